//! Power cuts of a real run.
//!
//! Real are the shard, its ring, the kernel, the files below it and the order in which the device has
//! answered: a workload runs on a store in a folder, and a recorder notes every write, rename and
//! checkpoint at its submission and at its completion. Then the power is cut in memory, again and
//! again: what had completed at a moment is on the simulated device, and of what was in flight any
//! subset, of the writes and of their sectors. Recovery is the real one, on that device. What must
//! hold: the store opens; it ends at a group at or behind the last one that was acknowledged; each
//! queue has exactly the records of the groups up to there, in their places; nothing is reported as
//! damaged.
//!
//! From some of the images a second life goes on, on the simulated device, until the power is cut
//! again within a few steps, and what it has acknowledged counts too.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::disk::{SECTOR, SimDisk, Undo};
use super::model::Body;
use super::random::Random;
use super::recording::{Change, Recorded};
use super::shard::SimShard;
use super::{Check, ensure};
use crate::error::AppendError;
use crate::format::manifest::Manifest;
use crate::op::{FileId, OpId};
use crate::recovery::{self, Recovered};
use crate::shard::{Acknowledge, CommitBy, ReadLimits, ReadOutcome, ShardLimits};
use crate::store::{DiskBudget, Store, StoreOptions};
use crate::units::{EpochMillis, LogOffset, QueueOffset, Sequence, index, wide};
use crate::view::queue::{EntryPlace, TagFilter};

const QUEUES: usize = 8;
const SEGMENT_LEN: u64 = 1 << 20;
const FACT: &[u8] = b"count";
/// Writes in flight of which every subset is tried; of more, as many random ones.
const SUBSETS_OF_MAX: usize = 10;
/// Groups below the acknowledged one whose records are compared in every image.
const RECENT_GROUPS: u64 = 12;

/// How much is tried.
#[derive(Clone, Debug)]
pub struct CutOptions {
    /// Where the store is made; it must be empty or missing.
    pub folder: PathBuf,
    /// Moments at which the power is cut.
    pub cuts: usize,
    /// Random subsets of the sectors in flight per cut.
    pub sector_subsets: usize,
    /// Second lives per cut.
    pub second_lives: usize,
    /// Appends of the recorded run.
    pub appends: usize,
    /// Chooses records, moments and subsets.
    pub seed: u64,
    /// Threads that try images.
    pub threads: usize,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    /// Operations that went through the ring.
    pub operations: u64,
    /// Records that were acknowledged in the recorded run.
    pub records: u64,
    /// Moments.
    pub cuts: u64,
    /// Operations in flight at all moments together, and the most at one.
    pub in_flight: u64,
    /// The most at one moment.
    pub in_flight_max: u64,
    /// Images of whole writes.
    pub write_subsets: u64,
    /// Images of sectors.
    pub sector_subsets: u64,
    /// Images that were opened further than the last acknowledged group.
    pub beyond: u64,
    /// Images in which a torn tail was cut.
    pub torn: u64,
    /// Second lives.
    pub second_lives: u64,
}

impl fmt::Display for CutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10}  operations recorded from a real ring", self.operations)?;
        writeln!(f, "{:>10}  records acknowledged in the recorded run", self.records)?;
        writeln!(f, "{:>10}  power cuts", self.cuts)?;
        writeln!(
            f,
            "{:>10}  operations in flight, at most {}",
            self.in_flight, self.in_flight_max
        )?;
        writeln!(f, "{:>10}  subsets of writes in flight", self.write_subsets)?;
        writeln!(f, "{:>10}  subsets of their sectors", self.sector_subsets)?;
        writeln!(f, "{:>10}  images with a torn tail", self.torn)?;
        writeln!(f, "{:>10}  images with more than was acknowledged", self.beyond)?;
        writeln!(f, "{:>10}  second cuts soon after recovery", self.second_lives)
    }
}

impl CutReport {
    fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.in_flight += other.in_flight;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
        self.write_subsets += other.write_subsets;
        self.sector_subsets += other.sector_subsets;
        self.beyond += other.beyond;
        self.torn += other.torn;
        self.second_lives += other.second_lives;
    }
}

/// A record of the run.
#[derive(Clone, Copy)]
struct Noted {
    sequence: Sequence,
    queue: usize,
    offset: usize,
    position: LogOffset,
    body: Body,
}

/// A run on real files.
struct Run {
    manifest: Manifest,
    limits: ShardLimits,
    events: Vec<Recorded>,
    /// What had been acknowledged when so many events had gone through; both rise.
    told: Vec<(usize, Sequence)>,
    /// In the order of their groups.
    records: Vec<Noted>,
    facts: Vec<(Sequence, u64)>,
}

fn key(queue: usize) -> Vec<u8> {
    format!("queue-{queue}").into_bytes()
}

/// Runs the workload, then cuts the power.
///
/// # Errors
///
/// What was lost, with what replays it as far as a real run can be replayed.
pub fn cut_power(options: &CutOptions) -> Result<CutReport, String> {
    let run = record(options)?;
    let moments = run.moments(options);
    let mut report = CutReport {
        operations: wide(run.events.len()) / 2,
        records: wide(run.records.len()),
        ..CutReport::default()
    };
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Ok(CutReport::default())));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                while let Some(&moment) = moments.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tried = run.cut(moment, options);
                    let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match (tried, &mut *found) {
                        (Ok(tried), Ok(sum)) => sum.add(&tried),
                        (Err(what), Ok(_)) => *found = Err(what),
                        (_, Err(_)) => return,
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)?;
    report.add(&found);
    Ok(report)
}

fn limits() -> ShardLimits {
    ShardLimits {
        tail_bytes: 1 << 20,
        large_bytes: 2 << 20,
        cold_bytes: 4 << 20,
        view_bytes: 16 << 10,
        group_bytes: 32 << 10,
        checkpoint_bytes: 300 << 10,
        checkpoint_ms: 5000,
        ..ShardLimits::default()
    }
}

/// Runs a workload on real files and notes what goes through the ring.
fn record(options: &CutOptions) -> Result<Run, String> {
    const IN_FLIGHT: usize = 200;
    let store_options = StoreOptions {
        segment_len: SEGMENT_LEN,
        block_len: None,
        disk_budget: Some(DiskBudget::Bytes(8 * SEGMENT_LEN)),
        limits: limits(),
        ..StoreOptions::default()
    };
    let now = EpochMillis::new(1_000_000);
    let store = Store::open(Path::new(&options.folder), &store_options, 11, now)
        .map_err(|error| error.to_string())?;
    let mut shards = store.into_shards();
    let ring = shards.shards.first_mut().ok_or("a store without a shard")?;
    ring.record();
    let geometry = *ring.shard().geometry();
    let mut run = Run {
        manifest: Manifest {
            store: geometry.store(),
            shards: 1,
            segment_len: geometry.segment_len(),
            block_len: crate::units::narrow(geometry.block_len()),
            created_ms: 0,
            budget_bytes: 0,
            acknowledge: Acknowledge::Durable,
        },
        limits: ShardLimits { disk_bytes: 8 * SEGMENT_LEN, ..limits() },
        events: Vec::new(),
        told: vec![(0, Sequence::default())],
        records: Vec::new(),
        facts: Vec::new(),
    };
    let mut random = Random::new(options.seed);
    let (mut mark, mut tick, mut unanswered) = (0, now.get(), 0);
    while run.records.len() < options.appends {
        tick += 1;
        let now = EpochMillis::new(tick);
        // Sometimes many producers, sometimes one.
        let crowd = if random.one_in(3) { 1 } else { random.between(1, IN_FLIGHT) };
        for _ in 0..crowd {
            mark += 1;
            let body = body(mark, &mut random);
            match append(ring, &mut random, body, now) {
                Ok(noted) => run.records.push(noted),
                Err(AppendError::Backlogged) => break,
                Err(error) => return Err(error.to_string()),
            }
            if random.one_in(20)
                && let Ok(sequence) = ring.shard().put_fact(FACT, Some(&mark.to_be_bytes()), now)
            {
                run.facts.push((sequence, mark));
            }
        }
        if random.one_in(10) {
            ring.shard().tick(now);
        }
        let wait = if random.one_in(2) { Duration::ZERO } else { Duration::from_millis(50) };
        ring.turn_blocking(now, wait).map_err(|error| error.to_string())?;
        let committed = ring.shard().committed();
        let events = ring.recorded();
        unanswered += usize::from(run.told.last().is_some_and(|(_, told)| *told == committed));
        ensure!(unanswered < options.appends + 100_000, "the store stands still at {committed}");
        run.told.push((events, committed));
        if let Some(cause) = ring.shard().poisoned() {
            return Err(cause.to_owned());
        }
    }
    run.events = ring.take_recorded();
    ensure!(ring.shard().stats().segments_recycled > 0, "no segment was recycled");
    Ok(run)
}

fn body(mark: u64, random: &mut Random) -> Body {
    let len = if random.one_in(50) { random.between(8, 60_000) } else { random.between(8, 900) };
    Body { mark: mark.wrapping_mul(0x9E37_79B9_7F4A_7C15), len, tag: 0 }
}

fn append(
    ring: &mut crate::RingShard,
    random: &mut Random,
    body: Body,
    now: EpochMillis,
) -> Result<Noted, AppendError> {
    let queue = random.below(QUEUES);
    let number = ring.shard().open_queue(&key(queue), now)?;
    let appended = ring.shard().append(number, &[body], now)?;
    Ok(Noted {
        sequence: appended.sequence,
        queue,
        offset: super::node::number(appended.first_queue_offset),
        position: appended.first_log_offset,
        body,
    })
}

/// The device at a moment, and what had been asked of it and not been answered.
struct Moment {
    disk: SimDisk,
    flying: Vec<Change>,
    acknowledged: Sequence,
}

impl Run {
    /// Moments right behind the start of a write of the log; every other one with several in flight.
    fn moments(&self, options: &CutOptions) -> Vec<usize> {
        let (mut one, mut several, mut flying) = (Vec::new(), Vec::new(), 0_usize);
        for (at, event) in self.events.iter().enumerate() {
            match event {
                Recorded::Done(_) => flying = flying.saturating_sub(1),
                Recorded::Started(_, change) => {
                    flying += 1;
                    let log = matches!(change, Change::Write { file: FileId::Segment(_), data, .. }
                        if data.iter().any(|&byte| byte != 0));
                    match flying {
                        _ if !log => {}
                        1 | 2 => one.push(at),
                        _ => several.push(at),
                    }
                }
            }
        }
        let mut random = Random::new(options.seed ^ 0xC07);
        let pick = |n: usize| if n.is_multiple_of(2) && !one.is_empty() { &one } else { &several };
        let moments = (0..options.cuts).filter_map(|n| {
            let from = pick(n);
            from.get(random.below(from.len())).copied()
        });
        moments.collect()
    }

    fn moment(&self, at: usize) -> Moment {
        let mut disk = SimDisk::new(self.manifest, 0, Random::new(wide(at)));
        disk.epoch = Some(1);
        let mut flying: Vec<(OpId, Change)> = Vec::new();
        for event in self.events.iter().take(at + 1) {
            match event {
                Recorded::Started(id, change) => flying.push((*id, change.clone())),
                Recorded::Done(id) => {
                    if let Some(n) = flying.iter().position(|(flying, _)| flying == id) {
                        land(&mut disk, &flying.remove(n).1);
                    }
                }
            }
        }
        let told = self.told.partition_point(|&(events, _)| events <= at);
        let acknowledged = told.checked_sub(1).and_then(|told| self.told.get(told));
        Moment {
            disk,
            flying: flying.into_iter().map(|(_, change)| change).collect(),
            acknowledged: acknowledged.map_or(Sequence::default(), |(_, sequence)| *sequence),
        }
    }

    /// Cuts the power at a moment, in many ways.
    fn cut(&self, at: usize, options: &CutOptions) -> Result<CutReport, String> {
        let Moment { disk, flying, acknowledged } = self.moment(at);
        let mut random = Random::new(options.seed ^ wide(at));
        let mut report = CutReport {
            cuts: 1,
            in_flight: wide(flying.len()),
            in_flight_max: wide(flying.len()),
            ..CutReport::default()
        };
        let mut image = Image::new(self, disk, acknowledged);
        let failed = |what: String| {
            format!(
                "cut at event {at}, {} in flight, {acknowledged} acknowledged: {what}",
                flying.len()
            )
        };
        let subsets = 1_usize << flying.len().min(SUBSETS_OF_MAX);
        for subset in 0..subsets {
            let chosen = |n: usize, random: &mut Random| {
                let any = flying.len() > SUBSETS_OF_MAX && random.one_in(2);
                if flying.len() > SUBSETS_OF_MAX { any } else { subset >> n & 1 == 1 }
            };
            let parts = |n: usize, random: &mut Random| {
                if chosen(n, random) { Part::Whole } else { Part::Nothing }
            };
            image
                .with(&flying, parts, &mut random, |image| image.check(&mut report))
                .map_err(failed)?;
            report.write_subsets += 1;
        }
        for n in 0..options.sector_subsets {
            let parts = |_: usize, random: &mut Random| Part::any(random);
            let second = n < options.second_lives;
            let tried = image.with(&flying, parts, &mut random, |image| {
                image.check(&mut report)?;
                if second { image.live_again(wide(n)) } else { Ok(()) }
            });
            tried.map_err(failed)?;
            report.sector_subsets += 1;
            report.second_lives += u64::from(second);
        }
        Ok(report)
    }
}

fn land(disk: &mut SimDisk, change: &Change) {
    match change {
        Change::Write { file, at, data } => disk.write(*file, *at, data),
        Change::Create { ordinal, len } => disk.create(*ordinal, *len),
        Change::Recycle { from, to } => drop(disk.recycle(*from, *to)),
        Change::Remove { ordinal } => disk.remove(*ordinal),
        Change::Discard { file, at, len } => disk.discard(*file, *at, *len),
        Change::Replace { slot, bytes } => disk.replace_checkpoint(*slot, bytes.clone()),
    }
}

/// How much of an operation reaches the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Whole,
    /// Each sector or not.
    AnySectors,
    AllSectorsBut(usize),
    OnlySector(usize),
}

impl Part {
    fn any(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Nothing,
            1 => Self::Whole,
            2 | 3 => Self::AnySectors,
            4 => Self::AllSectorsBut(random.below(1 << 20)),
            _ => Self::OnlySector(random.below(1 << 20)),
        }
    }

    fn has(self, sector: usize, sectors: usize, random: &mut Random) -> bool {
        match self {
            Self::Nothing => false,
            Self::Whole => true,
            Self::AnySectors => random.one_in(2),
            Self::AllSectorsBut(n) => n % sectors != sector,
            Self::OnlySector(n) => n % sectors == sector,
        }
    }
}

/// What the device may look like after a cut, and what must be on it.
struct Image<'a> {
    run: &'a Run,
    disk: SimDisk,
    acknowledged: Sequence,
    /// The end of each queue behind a group that may be the last one.
    ends: BTreeMap<Sequence, Expected>,
}

#[derive(Clone, Default)]
struct Expected {
    ends: [usize; QUEUES],
    fact: Option<u64>,
    /// Records up to and with this group.
    records: usize,
}

impl<'a> Image<'a> {
    fn new(run: &'a Run, disk: SimDisk, acknowledged: Sequence) -> Self {
        Self { run, disk, acknowledged, ends: BTreeMap::new() }
    }

    /// Puts parts of what was in flight onto the device, looks, and takes them back.
    fn with(
        &mut self,
        flying: &[Change],
        mut parts: impl FnMut(usize, &mut Random) -> Part,
        random: &mut Random,
        look: impl FnOnce(&mut Self) -> Check,
    ) -> Check {
        let mut undo: Vec<Undo> = Vec::new();
        let mut before = None;
        for (n, change) in flying.iter().enumerate() {
            let part = parts(n, random);
            match change {
                Change::Write { file, at, data } => {
                    // Zeros go where only zeros are.
                    if part == Part::Nothing || data.iter().all(|&byte| byte == 0) {
                        continue;
                    }
                    let sectors = data.len().div_ceil(SECTOR);
                    for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                        if part.has(sector, sectors, random) {
                            let at = at + wide(sector * SECTOR);
                            undo.push(self.disk.write_with_undo(*file, at, bytes));
                        }
                    }
                }
                // Everything else is there as a whole or not at all.
                change => {
                    if part == Part::Whole || (part != Part::Nothing && random.one_in(2)) {
                        if before.is_none() {
                            before = Some((self.disk.clone(), undo.len()));
                        }
                        land(&mut self.disk, change);
                    }
                }
            }
        }
        let looked = look(self);
        if let Some((kept, done)) = before {
            self.disk = kept;
            undo.truncate(done);
        }
        for undo in undo.into_iter().rev() {
            self.disk.undo(undo);
        }
        looked
    }

    fn expected(&mut self, last: Sequence) -> Expected {
        let run = self.run;
        let expected = self.ends.entry(last).or_insert_with(|| {
            let mut expected = Expected::default();
            for noted in run.records.iter().take_while(|noted| noted.sequence <= last) {
                if let Some(end) = expected.ends.get_mut(noted.queue) {
                    *end = noted.offset + 1;
                }
                expected.records += 1;
            }
            let facts = run.facts.iter().take_while(|(sequence, _)| *sequence <= last);
            expected.fact = facts.last().map(|(_, value)| *value);
            expected
        });
        expected.clone()
    }

    /// Opens the store and compares it with what must be there.
    fn check(&mut self, report: &mut CutReport) -> Check {
        let geometry = self.disk.geometry();
        let recovered = recovery::recover(&geometry, &mut self.disk);
        let Recovered { views, report: found, .. } =
            recovered.map_err(|error| error.to_string())?;
        let last = views.covered.sequence;
        ensure!(self.acknowledged <= last, "the store ends at {last}");
        ensure!(
            found.damaged == 0 && found.unreadable == 0,
            "damage where there is none: {found:?}"
        );
        report.beyond += u64::from(self.acknowledged < last);
        report.torn += u64::from(found.torn_bytes > 0);
        let expected = self.expected(last);
        for (queue, &end) in expected.ends.iter().enumerate() {
            let number = views.by_key.get(&*key(queue));
            let visible = number.and_then(|number| views.queue(*number)).map_or(0, |q| q.visible());
            ensure!(visible == wide(end), "queue {queue} ends at {visible}, not at {end}");
        }
        let fact = views.facts.committed(FACT);
        let wanted = expected.fact.map(u64::to_be_bytes);
        ensure!(
            fact == wanted.as_ref().map(<[u8; 8]>::as_slice),
            "the fact is {fact:?}, not {wanted:?}"
        );
        let recent = Sequence::new(self.acknowledged.get().saturating_sub(RECENT_GROUPS));
        let records = self.run.records.get(..expected.records).unwrap_or_default();
        for noted in records.iter().rev().take_while(|noted| noted.sequence > recent) {
            let queue =
                views.by_key.get(&*key(noted.queue)).and_then(|number| views.queue(*number));
            let entry = queue.and_then(|queue| queue.entry(wide(noted.offset)));
            match entry {
                Some(EntryPlace::Here(entry)) => ensure!(
                    entry.position == noted.position
                        && index(u64::from(entry.len)) == noted.body.len,
                    "queue {} offset {} is at {}",
                    noted.queue,
                    noted.offset,
                    entry.position
                ),
                Some(EntryPlace::Block(..)) => {}
                None => return Err(format!("queue {} has no {}", noted.queue, noted.offset)),
            }
            let place = geometry.place(noted.position).ok_or("a position of another shard")?;
            let bytes = self.disk.bytes_at(FileId::Segment(place.ordinal), place.byte);
            let bytes = bytes.get(..noted.body.len).unwrap_or_default();
            ensure!(noted.body.is(bytes), "queue {} offset {} is lost", noted.queue, noted.offset);
        }
        Ok(())
    }

    /// Goes on from here with a second life, whose power is cut soon.
    fn live_again(&mut self, seed: u64) -> Check {
        let mut random = Random::new(seed ^ self.acknowledged.get());
        let now = EpochMillis::new(10_000_000);
        let mut sim = self.open(self.disk.clone(), now)?;
        let first = sim.view().committed();
        let before = self.expected(first);
        let mut second: Vec<Noted> = Vec::new();
        let mut ends = before.ends;
        for step in 0..random.between(1, 60) {
            let queue = random.below(QUEUES);
            let body = body(wide(step) | 1 << 40, &mut random);
            let now = EpochMillis::new(now.get() + i64::try_from(step).unwrap_or(0));
            let number = sim.shard().open_queue(&key(queue), now);
            let appended = number.and_then(|number| sim.shard().append(number, &[body], now));
            if let (Ok(appended), Some(end)) = (appended, ends.get_mut(queue)) {
                let offset = super::node::number(appended.first_queue_offset);
                ensure!(offset == *end, "queue {queue} goes on at {offset}, not at {end}");
                *end += 1;
                let (sequence, position) = (appended.sequence, appended.first_log_offset);
                second.push(Noted { sequence, queue, offset, position, body });
            }
            sim.shard().input_drained(now);
            for _ in 0..random.below(4) {
                sim.step(now);
            }
        }
        let acknowledged = sim.view().committed();
        let mut sim = self.open(sim.crash(), now)?;
        let last = sim.view().committed();
        ensure!(acknowledged <= last, "the second life ends at {last}, told was {acknowledged}");
        let report = sim.report();
        ensure!(report.damaged == 0 && report.unreadable == 0, "second life: {report:?}");
        let mut ends = before.ends;
        for noted in second.iter().filter(|noted| noted.sequence <= last) {
            if let Some(end) = ends.get_mut(noted.queue) {
                *end = noted.offset + 1;
            }
        }
        let records = self.run.records.get(..before.records).unwrap_or_default();
        let recent = records.iter().rev().take(200).chain(&second);
        let there: Vec<Noted> = recent.filter(|noted| noted.sequence <= last).copied().collect();
        for (queue, &end) in ends.iter().enumerate() {
            let number = sim.shard().queue(&key(queue));
            let told = number.map_or(0, |n| super::node::number(sim.view().max_offset(n)));
            ensure!(told == end, "after two lives queue {queue} ends at {told}, not at {end}");
        }
        there.iter().try_for_each(|noted| read(&mut sim, noted, now))
    }

    fn open(&self, disk: SimDisk, now: EpochMillis) -> Result<SimShard, String> {
        let opened = disk.open(self.run.limits, CommitBy::Durable, now);
        opened.map_err(|(_, failure)| format!("{failure:?}"))
    }
}

/// Reads a record through its queue.
fn read(sim: &mut SimShard, noted: &Noted, now: EpochMillis) -> Check {
    const TRIES: usize = 6;
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let Some(number) = sim.shard().queue(&key(noted.queue)) else {
        return Err(format!("queue {} is gone", noted.queue));
    };
    let at = QueueOffset::default().plus(noted.offset);
    for _ in 0..TRIES {
        let mut out = Vec::new();
        match sim.shard().read(number, at, &limits, &TagFilter::All, 1, &mut out) {
            ReadOutcome::Found { .. } => {
                let bytes = out.first().map(|slice| slice.to_vec()).unwrap_or_default();
                ensure!(noted.body.is(&bytes), "queue {} offset {} is another", noted.queue, at);
                return Ok(());
            }
            ReadOutcome::Pending => sim.run(now),
            // Retention has gone on.
            ReadOutcome::BelowMin { .. } => return Ok(()),
            other => return Err(format!("queue {} offset {at}: {other:?}", noted.queue)),
        }
    }
    Err(format!("queue {} offset {at} is never there", noted.queue))
}
