//! The lives of a store: producers and readers, hand-over between its shards, and how lives end.
//!
//! Every shard has a thread of its own. A request for another shard goes through a bounded ring;
//! sending it reserves the slot of its answer. A power cut or a kill ends all threads at once, and
//! with them every request and answer under way.

use std::collections::{BTreeMap, VecDeque};

use super::aside::{Aside, Opening};
use super::check::{self, Depth, Expected};
use super::damage::Damaging;
use super::disk::SimDisk;
use super::keys::Searching;
use super::model::{Body, ShardModel};
use super::node::{Node, Reading};
use super::plan::{APPENDS_MIN, Plan, RECYCLED_MIN, ROLLS_MIN, TOPICS};
use super::random::Random;
use super::shard::OpenFailure;
use super::tally::{Event, Tally};
use super::{Check, ensure};
use crate::op::FileId;
use crate::shard::{Acknowledge, CommitBy, ReadLimits, ShardLimits};
use crate::units::{EpochMillis, Sequence, wide};
use crate::view::queue::TagFilter;

/// Lives of a world at most, however few appends they made.
const LIVES_MAX: usize = 30;

/// What a thread asks of the one that owns the shard.
#[derive(Clone, Debug)]
enum Request {
    /// Make a topic known, on shard 0, before anything depends on it.
    Topic { topic: usize },
    /// Append records to a queue.
    Produce { queue: usize, bodies: Vec<Body> },
    /// Append a copy of a record of the asking thread's shard.
    Copy { queue: usize, body: Body },
}

/// A request that was carried out and waits for its group.
struct Unanswered {
    sequence: Sequence,
    asked_by: usize,
    request: Request,
    first: usize,
}

/// Both directions between an asking and a serving thread.
#[derive(Default)]
struct Link {
    requests: VecDeque<Request>,
    answers: VecDeque<(Request, usize)>,
    /// Requests whose answer has not been taken out yet.
    taken: usize,
}

/// One life: the shards, and everything that ends with the process.
struct Life {
    nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), Link>,
    unanswered: Vec<Vec<Unanswered>>,
}

/// A world: a device that outlives its lives, and what was acknowledged to the outside.
pub(super) struct World {
    plan: Plan,
    random: Random,
    aside: Aside,
    tally: Tally,
    clock: i64,
    disks: Vec<SimDisk>,
    models: Vec<ShardModel>,
    expected: Vec<Expected>,
    /// Marks of the records that were acknowledged, by queue and offset.
    acknowledged: BTreeMap<(usize, usize), u64>,
    topics: [bool; TOPICS],
    /// The shards of a buffered store have lost different lengths of time: what one says of another
    /// need not be so.
    apart: bool,
    /// The last life came to rest before it ended.
    rested: bool,
    /// The store commits ahead of the device in this life.
    buffered: bool,
    /// Topics that were acknowledged.
    marks: u64,
    facts: u64,
    life: usize,
    step: usize,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(seed, &mut random);
        let shards = plan.manifest.shards;
        let disk = |shard| SimDisk::new(plan.manifest, shard, random.fork());
        let disks: Vec<SimDisk> = (0..shards).map(disk).collect();
        Self {
            models: disks.iter().map(|_| ShardModel::default()).collect(),
            expected: vec![Expected::default(); disks.len()],
            disks,
            buffered: plan.manifest.acknowledge == Acknowledge::Buffered,
            plan,
            random,
            aside: Aside::new(seed),
            tally: Tally::default(),
            clock: 1_000_000,
            acknowledged: BTreeMap::new(),
            topics: [false; TOPICS],
            apart: false,
            rested: false,
            marks: 0,
            facts: 0,
            life: 0,
            step: 0,
        }
    }

    pub(super) fn run(mut self) -> Result<Tally, String> {
        let outcome = self.lives();
        let tally = self.tally();
        let shape = self.plan.shape();
        outcome
            .map(|()| tally)
            .map_err(|what| format!("life {}, step {}: {what} [{shape}]", self.life, self.step))
    }

    fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        tally.merge(self.aside.tally());
        self.disks.iter().for_each(|disk| tally.merge(disk.tally()));
        tally
    }

    fn lives(&mut self) -> Check {
        loop {
            let grown = self.tally();
            let mut life = self.open()?;
            let enough = grown.of(Event::Appended) >= APPENDS_MIN
                && grown.of(Event::Rolled) >= ROLLS_MIN
                && grown.of(Event::Recycled) + grown.of(Event::Removed) >= RECYCLED_MIN;
            if self.life >= self.plan.lives && (enough || self.life >= LIVES_MAX) {
                ensure!(
                    enough,
                    "only {} appends in {} lives",
                    grown.of(Event::Appended),
                    self.life
                );
                return self.end(life);
            }
            self.life += 1;
            if self.life > self.plan.lives {
                self.plan.hurry();
            }
            // Without its epoch, a life tells by the log alone which groups an earlier one has left that
            // came to nothing.
            let (ends_soon, begins_long) = if self.plan.faults.epoch { (2, 2) } else { (6, 3) };
            let steps = match self.random.below(ends_soon) {
                0 => {
                    self.tally.count(Event::EndedSoon);
                    self.random.below(40)
                }
                _ => self.plan.life_steps,
            };
            if self.random.one_in(begins_long) {
                self.begin_long(&mut life);
            }
            for step in 0..steps {
                self.step = step;
                self.step(&mut life)?;
            }
            self.end(life)?;
        }
    }

    fn now(&mut self) -> EpochMillis {
        self.clock += i64::from(self.random.one_in(2));
        EpochMillis::new(self.clock)
    }

    // ---- the beginning of a life

    fn open(&mut self) -> Result<Life, String> {
        loop {
            let mut nodes = Vec::new();
            for shard in 0..self.disks.len() {
                match self.open_shard(shard)? {
                    Some(node) => nodes.push(node),
                    None => break,
                }
            }
            if nodes.len() == self.disks.len() && !self.random.one_in(12) {
                self.check_across(&nodes)?;
                return Ok(self.begin(nodes));
            }
            // One shard could not be read, or the process ends before it has done anything.
            self.tally.count(Event::EndedInOpening);
            for (shard, node) in nodes.into_iter().enumerate() {
                self.close_down(shard, node, true);
            }
            if self.random.one_in(3) {
                self.stop_the_system();
            }
        }
    }

    fn begin(&mut self, mut nodes: Vec<Node>) -> Life {
        let shards = nodes.len();
        self.expected.iter_mut().for_each(|expected| expected.fallen = false);
        for node in &mut nodes {
            let mood = self.plan.mood(&mut self.random);
            node.allowed.read_errors |= mood.read_error > 0;
            node.sim.set_mood(mood);
        }
        let pairs = (0..shards).flat_map(|from| (0..shards).map(move |to| (from, to)));
        Life {
            links: pairs.filter(|(from, to)| from != to).map(|p| (p, Link::default())).collect(),
            unanswered: nodes.iter().map(|_| Vec::new()).collect(),
            nodes,
        }
    }

    /// Opens a shard and checks it. `None` when a read failed on the way.
    fn open_shard(&mut self, shard: usize) -> Result<Option<Node>, String> {
        let now = self.now();
        let Some(mut disk) = self.take_disk(shard) else { return Ok(None) };
        let expected = self.expected.get(shard).copied().unwrap_or_default();
        let model = self.models.get(shard).cloned().unwrap_or_default();
        self.check_whole(&disk, &model, expected, now)?;
        if self.plan.faults.errors && self.random.one_in(6) {
            disk.fail_read = Some(self.random.below(3));
        }
        let sim = match disk.open(self.plan.limits, CommitBy::Durable, now) {
            Ok(sim) => sim,
            Err((disk, OpenFailure::Io)) => {
                self.put_disk(shard, *disk);
                return Ok(None);
            }
            Err((_, OpenFailure::Refused(why))) => return Err(format!("shard {shard}: {why}")),
        };
        let random = &mut self.random;
        check::reopened(&self.plan, sim, model, expected, Depth::End, random, now)
            .map(Some)
            .map_err(|what| format!("shard {shard} reopened: {what}"))
    }

    /// Reads everything back from a copy of the device, with a cache that holds it all; half of the
    /// time without any view, since the log from its first kept segment must be enough.
    fn check_whole(
        &mut self,
        disk: &SimDisk,
        model: &ShardModel,
        expected: Expected,
        now: EpochMillis,
    ) -> Check {
        const CACHE: usize = 64 << 20;
        if self.random.one_in(6) {
            self.check_end_lost(disk, now)?;
        }
        let opening = Opening { plan: &self.plan, disk, model, expected, now };
        self.aside.look(&opening, self.rested)?;
        let mut disk = disk.clone();
        let from_log = self.random.one_in(2);
        if from_log {
            disk.lose_views();
        }
        let may_be_unsound = expected.damaged || self.plan.faults.views_damage;
        let has_sound = !may_be_unsound && disk.checkpointed().is_some();
        let limits = ShardLimits { cold_bytes: CACHE, ..self.plan.limits };
        let sim = disk.open(limits, CommitBy::Durable, now);
        let checked = sim.map_err(|(_, failure)| format!("{failure:?}")).and_then(|sim| {
            let report = sim.report();
            ensure!(
                report.from_checkpoint || !has_sound,
                "a sound checkpoint does not count: {report:?}"
            );
            let (model, random) = (model.clone(), &mut self.random);
            check::reopened(&self.plan, sim, model, expected, Depth::Whole, random, now)
        });
        let views = if from_log { "from the log alone" } else { "from views and log" };
        checked.map(drop).map_err(|what| format!("rebuilt {views}: {what}"))
    }

    /// A log that has lost groups of which a checkpoint speaks is not opened without them, and the
    /// checkpoint does not stand for them.
    fn check_end_lost(&mut self, disk: &SimDisk, now: EpochMillis) -> Check {
        let written = disk.written();
        // What lies in shared memory would mend the log.
        let known = disk.checkpointed().filter(|_| !disk.has_buffers());
        let Some(known) = known else { return Ok(()) };
        let known: Vec<_> = written.iter().filter(|group| group.header.sequence <= known).collect();
        let back = self.random.below(known.len().min(4));
        let Some(lost) = known.len().checked_sub(1 + back).and_then(|at| known.get(at)) else {
            return Ok(());
        };
        let mut disk = disk.clone();
        disk.wipe_from(lost.place);
        self.tally.count(Event::LogEndLost);
        match disk.open(self.plan.limits, CommitBy::Durable, now) {
            Err((_, OpenFailure::Refused(_))) => Ok(()),
            Err((_, OpenFailure::Io)) => Err("a read failed that should not".to_owned()),
            Ok(sim) => Err(format!(
                "the log has lost group {} and all behind it, which a checkpoint knows, but opens at {}",
                lost.header.sequence,
                sim.view().committed()
            )),
        }
    }

    /// What one shard says must agree with what the others say.
    fn check_across(&mut self, nodes: &[Node]) -> Check {
        // A power cut may have cost the very end of a queue of a buffered store.
        let visible = |queue: usize| {
            let name = self.plan.queues.get(queue)?;
            Some((nodes.get(name.shard)?.model.visible(queue), name.shard))
        };
        let expected = &self.expected;
        self.acknowledged.retain(|&(queue, at), _| {
            let Some((visible, shard)) = visible(queue) else { return true };
            at < visible || !expected.get(shard).is_some_and(|expected| expected.fallen)
        });
        for (&(queue, at), &mark) in &self.acknowledged {
            let node = self.plan.queues.get(queue).and_then(|name| nodes.get(name.shard));
            let stored = node.and_then(|node| node.model.queues.get(&queue)?.get(at));
            ensure!(
                stored.is_some_and(|stored| stored.body.mark == mark),
                "queue {queue} offset {at} was acknowledged as {mark:x} and is {stored:?}"
            );
        }
        let topics = nodes.first().map(|node| &node.model.facts);
        for (queue, name) in self.plan.queues.iter().enumerate() {
            let used = nodes.get(name.shard).is_some_and(|node| node.model.visible(queue) > 0);
            let known = topics.is_some_and(|facts| facts.contains_key(&topic_key(name.topic)));
            ensure!(
                !used || known || self.apart,
                "queue {queue} has records, its topic is unknown"
            );
        }
        for (topic, known) in self.topics.iter_mut().enumerate() {
            *known = topics.is_some_and(|facts| facts.contains_key(&topic_key(topic)));
        }
        for (shard, node) in nodes.iter().enumerate() {
            for key in node.model.facts.keys().filter(|key| key.starts_with(COPIED)) {
                self.is_copied(nodes, key).ok_or_else(|| {
                    let key = String::from_utf8_lossy(key);
                    format!("shard {shard}: {key} was copied, but the copy is not there")
                })?;
            }
        }
        Ok(())
    }

    fn is_copied(&self, nodes: &[Node], key: &[u8]) -> Option<()> {
        let text = std::str::from_utf8(key.strip_prefix(COPIED)?).ok()?;
        let (queue, mark) = text.split_once('/')?;
        let queue: usize = queue.parse().ok()?;
        let mark: u64 = mark.parse().ok()?;
        let shard = self.plan.queues.get(queue)?.shard;
        if self.apart {
            return Some(());
        }
        let records = nodes.get(shard)?.model.queues.get(&queue)?;
        records.iter().any(|stored| stored.body.mark == mark).then_some(())
    }

    fn take_disk(&mut self, shard: usize) -> Option<SimDisk> {
        let (manifest, number) = (self.plan.manifest, crate::units::narrow(shard));
        let empty = SimDisk::new(manifest, number, Random::new(0));
        self.disks.get_mut(shard).map(|slot| std::mem::replace(slot, empty))
    }

    fn put_disk(&mut self, shard: usize, disk: SimDisk) {
        if let Some(slot) = self.disks.get_mut(shard) {
            *slot = disk;
        }
    }

    // ---- a life

    fn step(&mut self, life: &mut Life) -> Check {
        let shard = self.random.below(life.nodes.len());
        let now = self.now();
        match self.random.below(100) {
            0..24 => self.produce(life, shard),
            24..27 => self.put_fact(life, shard, now)?,
            27..30 => self.stage_fact(life, shard, now)?,
            30..38 => self.read(life, shard)?,
            38..41 => self.wait(life, shard),
            41..43 => self.look_up(life, shard)?,
            43 if self.random.one_in(3) => self.delete(life, shard, now)?,
            43 => self.copy(life, shard),
            44..64 => self.serve(life, shard, now)?,
            64..74 => with(life, shard, |node| node.sim.shard().input_drained(now)),
            74..77 => with(life, shard, |node| node.sim.shard().tick(now)),
            77..98 => {
                let steps = self.random.between(1, 4);
                with(life, shard, |node| {
                    (0..steps).for_each(|_| _ = node.sim.step(now));
                });
            }
            98 => self.turn_the_clock(),
            _ => self.switch(life, shard, now),
        }
        self.observe(life, shard)
    }

    fn observe(&mut self, life: &mut Life, shard: usize) -> Check {
        let queue = self.random.below(self.plan.queues.len());
        let keep = self.random.below(12);
        if let Some(node) = life.nodes.get_mut(shard) {
            node.observe(&self.plan)?;
            if self.plan.queues.get(queue).is_some_and(|name| name.shard == shard) {
                node.check_end(&self.plan, queue)?;
            }
            node.let_go(keep)?;
            self.check_bounds(life, shard)?;
        }
        self.answer(life, shard);
        self.take_answers(life, shard)
    }

    /// Nothing that the plan bounds grows beyond it.
    fn check_bounds(&self, life: &Life, shard: usize) -> Check {
        let Some(node) = life.nodes.get(shard) else { return Ok(()) };
        let limits = &self.plan.limits;
        let backlog = node.sim.view().backlog_bytes();
        // Half of the tail's chunks may be taken again for those that readers hold.
        let bound = limits.tail_bytes.max(64 << 10) * 3 / 2 + limits.large_bytes;
        ensure!(backlog <= bound, "{backlog} bytes wait for the device, {bound} are allowed");
        let writes = node.sim.log_writes();
        ensure!(
            writes <= limits.writes_in_flight,
            "{writes} writes of the log in flight, {} are allowed",
            limits.writes_in_flight
        );
        Ok(())
    }

    fn body(&mut self) -> Body {
        self.marks += 1;
        let long = self.random.one_in(self.plan.long_body);
        let max = if long { 30 * self.plan.body_len_max } else { self.plan.body_len_max };
        let tag = i64::try_from(self.random.below(4)).unwrap_or(0);
        // The mark is spread over the word, so that no two records look alike for long.
        let mark = self.marks.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Body { mark, len: self.random.between(8, max.max(8)), tag }
    }

    /// A producer's request arrives at a thread, which hands it to the owner of the queue.
    fn produce(&mut self, life: &mut Life, thread: usize) {
        let queue = self.plan.any_queue(&mut self.random);
        let Some(name) = self.plan.queues.get(queue) else { return };
        let (topic, shard) = (name.topic, name.shard);
        if self.topics.get(topic) != Some(&true) {
            return self.ask(life, thread, 0, Request::Topic { topic });
        }
        let count = self.random.between(1, 3);
        let bodies = (0..count).map(|_| self.body()).collect();
        self.ask(life, thread, shard, Request::Produce { queue, bodies });
    }

    /// A life begins with a record that may not fit behind what the last one has left.
    fn begin_long(&mut self, life: &mut Life) {
        let segment_len = crate::units::index(self.plan.manifest.segment_len);
        for shard in 0..life.nodes.len() {
            let queue = self.queue_of(shard);
            let topic = self.plan.queues.get(queue).map_or(0, |name| name.topic);
            if self.topics.get(topic) == Some(&true) {
                let len = self.random.between(segment_len / 8, segment_len / 5 * 2);
                let bodies = vec![Body { len, ..self.body() }];
                self.ask(life, shard, shard, Request::Produce { queue, bodies });
            }
        }
    }

    /// Copies a record of this shard to the copies of its topic, at least once.
    fn copy(&mut self, life: &mut Life, shard: usize) {
        let queue = self.plan.any_queue(&mut self.random);
        let Some(name) = self.plan.queues.get(queue).filter(|name| name.shard == shard) else {
            return;
        };
        let target = self.plan.copies_of(name.topic);
        let records = life.nodes.get(shard).and_then(|node| node.model.queues.get(&queue));
        let records = records.map(Vec::as_slice).unwrap_or_default();
        let Some(stored) = records.get(self.random.below(records.len())) else { return };
        let body = stored.body;
        let owner = self.plan.queues.get(target).map_or(0, |name| name.shard);
        self.ask(life, shard, owner, Request::Copy { queue: target, body });
    }

    /// Deletes a queue of this shard. What was acknowledged of it is forgotten.
    fn delete(&mut self, life: &mut Life, shard: usize, now: EpochMillis) -> Check {
        let queue = self.random.below(self.plan.queues.len());
        let here = self.plan.queues.get(queue).is_some_and(|name| name.shard == shard);
        if !here || !Plan::is_deleted_at_times(queue) {
            return Ok(());
        }
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(()) };
        node.delete(&self.plan, queue, now)
    }

    /// Puts a request on its way, if the pair of threads has room for it.
    fn ask(&mut self, life: &mut Life, from: usize, to: usize, request: Request) {
        let now = EpochMillis::new(self.clock);
        if from == to {
            // A refused request of a thread's own shard is its client's to repeat.
            let _ = self.carry_out(life, to, from, &request, now);
            return;
        }
        let Some(link) = life.links.get_mut(&(from, to)) else { return };
        if link.taken < self.plan.ring_entries {
            link.taken += 1;
            link.requests.push_back(request);
            self.tally.count(Event::HandedOver);
        }
    }

    /// Takes requests of other threads until one is refused, which stays the first of its ring.
    fn serve(&mut self, life: &mut Life, shard: usize, now: EpochMillis) -> Check {
        for from in 0..life.nodes.len() {
            while let Some(request) =
                life.links.get(&(from, shard)).and_then(|link| link.requests.front()).cloned()
            {
                if !self.carry_out(life, shard, from, &request, now)? {
                    break;
                }
                if let Some(link) = life.links.get_mut(&(from, shard)) {
                    link.requests.pop_front();
                }
            }
        }
        Ok(())
    }

    /// Carries a request out. False when the shard has no room for it now.
    fn carry_out(
        &mut self,
        life: &mut Life,
        shard: usize,
        asked_by: usize,
        request: &Request,
        now: EpochMillis,
    ) -> Result<bool, String> {
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(false) };
        let done = match request {
            Request::Topic { topic } => {
                let done = node.put_fact(&topic_key(*topic), Some(b"known"), now)?;
                done.map(|sequence| (0, sequence))
            }
            Request::Produce { queue, bodies } => {
                let done = node.append(&self.plan, *queue, bodies, now)?;
                if self.random.one_in(3) {
                    node.sim.shard().close_if_worth();
                }
                done
            }
            Request::Copy { queue, body } => node.append(&self.plan, *queue, &[*body], now)?,
        };
        let Some((first, sequence)) = done else { return Ok(false) };
        if let Some(unanswered) = life.unanswered.get_mut(shard) {
            let request = request.clone();
            unanswered.push(Unanswered { sequence, asked_by, request, first });
        }
        Ok(true)
    }

    /// Answers what the committed frontier has reached.
    fn answer(&mut self, life: &mut Life, shard: usize) {
        let committed = life.nodes.get(shard).map_or(Sequence::default(), |n| n.model.committed);
        let Some(unanswered) = life.unanswered.get_mut(shard) else { return };
        let ready = unanswered.iter().take_while(|waits| waits.sequence <= committed).count();
        for done in unanswered.drain(..ready).collect::<Vec<_>>() {
            match life.links.get_mut(&(done.asked_by, shard)) {
                Some(link) => link.answers.push_back((done.request, done.first)),
                None => self.acknowledge(life, done.asked_by, &done.request, done.first),
            }
        }
    }

    fn take_answers(&mut self, life: &mut Life, thread: usize) -> Check {
        for from in 0..life.nodes.len() {
            while let Some(link) = life.links.get_mut(&(thread, from)) {
                ensure!(
                    link.answers.len() <= self.plan.ring_entries,
                    "more answers than their ring has room for"
                );
                let Some((request, first)) = link.answers.pop_front() else { break };
                link.taken -= 1;
                self.acknowledge(life, thread, &request, first);
            }
        }
        Ok(())
    }

    /// The outside is told that a request is done.
    fn acknowledge(&mut self, life: &mut Life, thread: usize, request: &Request, first: usize) {
        match request {
            Request::Topic { topic } => {
                if let Some(known) = self.topics.get_mut(*topic) {
                    *known = true;
                }
            }
            Request::Produce { queue, bodies } => {
                if Plan::is_deleted_at_times(*queue) {
                    return;
                }
                for (at, body) in (first..).zip(bodies) {
                    self.acknowledged.insert((*queue, at), body.mark);
                }
            }
            Request::Copy { queue, body } => {
                self.acknowledged.insert((*queue, first), body.mark);
                let key = [COPIED, format!("{queue}/{}", body.mark).as_bytes()].concat();
                let now = EpochMillis::new(self.clock);
                if let Some(node) = life.nodes.get_mut(thread) {
                    // A refusal leaves the record to be copied once more.
                    let _ = node.put_fact(&key, Some(b""), now);
                }
            }
        }
    }

    fn put_fact(&mut self, life: &mut Life, shard: usize, now: EpochMillis) -> Check {
        self.facts += 1;
        let key = format!("fact/{}", self.random.below(8)).into_bytes();
        let value = vec![self.facts.to_be_bytes()[7]; self.random.between(1, 40)];
        let value = (!self.random.one_in(5)).then_some(value);
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(()) };
        node.put_fact(&key, value.as_deref(), now).map(drop)
    }

    fn stage_fact(&mut self, life: &mut Life, shard: usize, now: EpochMillis) -> Check {
        self.facts += 1;
        let key = format!("staged/{}", self.random.below(6)).into_bytes();
        let flush = self.random.one_in(8);
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(()) };
        node.stage_fact(&key, &self.facts.to_be_bytes(), now)?;
        if flush { node.flush_staged(now) } else { Ok(()) }
    }

    fn filter(&mut self) -> TagFilter {
        if self.random.one_in(2) {
            return TagFilter::All;
        }
        let tag = i64::try_from(self.random.below(4)).unwrap_or(0);
        TagFilter::Tags([tag, (tag + 1) % 4].into())
    }

    /// A queue of a shard.
    fn queue_of(&mut self, shard: usize) -> usize {
        let queue = self.plan.any_queue(&mut self.random);
        let here = |queue: usize| self.plan.queues.get(queue).is_some_and(|n| n.shard == shard);
        if here(queue) {
            queue
        } else {
            (0..self.plan.queues.len()).find(|&q| here(q)).unwrap_or(0)
        }
    }

    fn read(&mut self, life: &mut Life, shard: usize) -> Check {
        let (queue, filter) = (self.queue_of(shard), self.filter());
        let limits = ReadLimits {
            records_max: crate::units::narrow(self.random.between(1, 20)),
            bytes_max: self.random.between(1, 5000),
            scanned_max: crate::units::narrow(self.random.between(1, 50)),
        };
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(()) };
        let visible = node.model.visible(queue);
        // At the end, behind it, or anywhere: far back more often than not.
        let from = match self.random.below(8) {
            0 => visible,
            1 => visible + 1 + self.random.below(3),
            _ => self.random.below(visible.max(1)),
        };
        node.read(&self.plan, Reading { queue, from, limits, filter }).map(drop)
    }

    fn wait(&mut self, life: &mut Life, shard: usize) {
        let (queue, filter) = (self.queue_of(shard), self.filter());
        let cancel = self.random.one_in(4);
        let Some(node) = life.nodes.get_mut(shard) else { return };
        if cancel {
            node.cancel_a_wait(&self.plan);
        } else {
            node.wait(&self.plan, queue, filter);
        }
    }

    fn look_up(&mut self, life: &mut Life, shard: usize) -> Check {
        if self.random.one_in(3) {
            let searching = Searching::part(
                &mut self.random,
                self.clock,
                4 * self.plan.limits.age_ms.cast_signed(),
            );
            return life.nodes.get_mut(shard).map_or(Ok(()), |node| node.search(searching));
        }
        let queue = self.queue_of(shard);
        let shift = if self.random.one_in(3) { self.random.below(600) } else { 0 };
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(()) };
        let at = self.random.below(node.model.visible(queue).max(1));
        if self.random.one_in(2) {
            return node.read_at(queue, at, shift);
        }
        let records = node.model.queues.get(&queue).and_then(|records| records.get(at).copied());
        let time = records.map_or(self.clock, |stored| stored.time.get());
        let time = time + i64::from(self.random.one_in(2));
        node.search_time(&self.plan, queue, EpochMillis::new(time))
    }

    fn turn_the_clock(&mut self) {
        let ms = i64::try_from(self.random.between(50, 3000)).unwrap_or(50);
        if self.plan.faults.clock && self.random.one_in(2) {
            self.clock -= ms;
            self.tally.count(Event::ClockBack);
        } else {
            self.clock += ms;
            self.tally.count(Event::ClockAhead);
        }
    }

    fn switch(&mut self, life: &mut Life, shard: usize, now: EpochMillis) {
        let (plan, random) = (&self.plan, &mut self.random);
        let Some(node) = life.nodes.get_mut(shard) else { return };
        if plan.faults.full && random.one_in(2) {
            let full = random.one_in(2);
            node.sim.set_full(full);
        } else {
            node.sim.shard().start_checkpoint(now);
        }
    }

    // ---- the end of a life

    fn end(&mut self, mut life: Life) -> Check {
        let settle = self.random.below(4);
        if settle == 0 {
            for shard in 0..life.nodes.len() {
                self.settle(&mut life, shard)?;
            }
            self.tally.count(Event::Closed);
        }
        let cut = self.random.one_in(2);
        self.tally.count(if cut { Event::PowerCut } else { Event::Killed });
        let mut nodes = std::mem::take(&mut life.nodes);
        // An answer that came to a thread may have closed a group of its shard since it was looked at.
        nodes.iter_mut().try_for_each(Node::notice_staged)?;
        let shards = nodes.len();
        for (shard, node) in nodes.into_iter().enumerate() {
            self.close_down(shard, node, false);
        }
        if cut {
            self.stop_the_system();
        }
        for shard in 0..shards {
            self.disturb_views(shard);
            // What lies in shared memory mends the log.
            let mended = self.disks.get(shard).is_some_and(SimDisk::has_buffers);
            if settle == 0 && self.plan.faults.damage && !mended {
                self.damage_log(shard);
            }
        }
        self.rested = settle == 0;
        self.switch_acknowledgement();
        Ok(())
    }

    /// A power cut, or a crash of the system: memory is gone.
    fn stop_the_system(&mut self) {
        for (disk, model) in self.disks.iter_mut().zip(&mut self.models) {
            if model.fall() {
                self.tally.count(Event::Given);
                self.apart = true;
            }
            disk.reboot();
        }
        for expected in &mut self.expected {
            expected.fallen = true;
        }
    }

    /// The next life opens the store as the other kind, now and then.
    fn switch_acknowledgement(&mut self) {
        if !self.random.one_in(8) {
            return;
        }
        self.tally.count(Event::Switched);
        self.buffered = !self.buffered;
        let acknowledge = if self.buffered { Acknowledge::Buffered } else { Acknowledge::Durable };
        self.disks.iter_mut().for_each(|disk| disk.set_acknowledge(acknowledge));
    }

    fn close_down(&mut self, shard: usize, node: Node, in_opening: bool) {
        let Node { mut sim, model, .. } = node;
        if let Some(slot) = self.models.get_mut(shard) {
            *slot = model;
        }
        if let Some(expected) = self.expected.get_mut(shard).filter(|_| !in_opening) {
            // Retention may take the damaged segment from now on.
            expected.shows = false;
        }
        if in_opening && self.random.one_in(2) {
            sim.unbegin();
        }
        let mut disk = sim.crash();
        if self.plan.faults.epoch {
            disk.epoch = None;
            disk.tally.count(Event::EpochLost);
        }
        self.put_disk(shard, disk);
    }

    /// Lets a shard come to rest: everything appended is committed, and room comes back, unless
    /// the shard is poisoned.
    fn settle(&mut self, life: &mut Life, shard: usize) -> Check {
        const ROUNDS: usize = 8;
        with(life, shard, |node| node.sim.calm());
        for _ in 0..ROUNDS {
            self.clock += 1500;
            let now = EpochMillis::new(self.clock);
            with(life, shard, |node| {
                node.sim.shard().tick(now);
                node.sim.run(now);
            });
            self.observe(life, shard)?;
        }
        let Some(node) = life.nodes.get_mut(shard) else { return Ok(()) };
        if node.sim.view().poisoned().is_some() {
            node.sim.tally().count(Event::Poisoned);
            return Ok(());
        }
        ensure!(
            node.model.is_settled(),
            "shard {shard} is at rest, but {} changes and {} staged facts wait: {:?}, {:?}",
            node.model.waiting(),
            node.model.staged.len(),
            node.sim.view().disk_use(),
            node.sim.view().stats()
        );
        let (committed, appended) = (node.sim.view().committed(), node.sim.view().appended());
        let durable = node.sim.view().durable();
        ensure!(
            committed == appended && durable == appended,
            "at rest at group {committed} of {appended}, durable to {durable}"
        );
        let operations = node.sim.operations();
        ensure!(operations == 0, "at rest with {operations} operations under way");
        let now = EpochMillis::new(self.clock);
        let room = node.put_fact(b"fact/rest", Some(b"room"), now)?;
        ensure!(room.is_some(), "shard {shard} is at rest, but refuses");
        with(life, shard, |node| {
            node.sim.shard().input_drained(now);
            node.sim.run(now);
        });
        self.observe(life, shard)?;
        // An idle shard notes its frontier.
        self.clock += 100;
        let now = EpochMillis::new(self.clock);
        with(life, shard, |node| {
            node.sim.shard().tick(now);
            node.sim.run(now);
        });
        self.observe(life, shard)
    }

    /// Views may be lost, old or damaged: the log is what counts.
    fn disturb_views(&mut self, shard: usize) {
        let (plan, random, tally) = (&self.plan, &mut self.random, &mut self.tally);
        let Some(disk) = self.disks.get_mut(shard) else { return };
        if !plan.faults.views_damage || !random.one_in(3) {
            return;
        }
        let changes = FileId::Changes(crate::units::narrow(random.below(2)));
        let expected = self.expected.get_mut(shard);
        let slot = random.below(2);
        let event = match random.below(8) {
            0 => {
                disk.lose_checkpoints();
                Event::CheckpointsLost
            }
            1 => {
                disk.checkpoints.get_mut(slot).map(Option::take);
                Event::CheckpointLost
            }
            2 => {
                let bytes = disk.checkpoints.get_mut(slot).and_then(Option::as_mut);
                let at = random.below(bytes.as_ref().map_or(0, |bytes| bytes.len()));
                let byte = bytes.and_then(|bytes| bytes.get_mut(at));
                let Some(byte) = byte else { return };
                *byte ^= 1 << random.below(8);
                Event::CheckpointDamaged
            }
            3 => {
                disk.cut(FileId::Index, random.below(disk.len(FileId::Index) + 1));
                Event::IndexLost
            }
            4 => {
                let at = wide(random.below(disk.len(FileId::Index)));
                disk.flip_bit(FileId::Index, at, random.below(8));
                Event::IndexDamaged
            }
            5 => {
                disk.cut(changes, random.below(disk.len(changes) + 1));
                Event::ChangesLost
            }
            6 => {
                let at = wide(random.below(disk.len(changes)));
                disk.flip_bit(changes, at, random.below(8));
                Event::ChangesDamaged
            }
            _ => {
                disk.epoch = None;
                Event::EpochLost
            }
        };
        if let Some(expected) = expected
            && matches!(event, Event::IndexLost | Event::IndexDamaged)
        {
            expected.views_damaged = true;
        }
        tally.count(event);
    }

    /// Damages groups that a later one has noted as committed, once.
    fn damage_log(&mut self, shard: usize) {
        let (Some(disk), Some(model), Some(expected)) =
            (self.disks.get_mut(shard), self.models.get_mut(shard), self.expected.get_mut(shard))
        else {
            return;
        };
        let random = &mut self.random;
        if !expected.damaged && random.one_in(2) {
            Damaging { disk, model, expected, random }.anything();
        }
    }
}

const COPIED: &[u8] = b"copied/";

fn topic_key(topic: usize) -> Vec<u8> {
    format!("topic/{topic}").into_bytes()
}

fn with(life: &mut Life, shard: usize, act: impl FnOnce(&mut Node)) {
    if let Some(node) = life.nodes.get_mut(shard) {
        act(node);
    }
}
