//! A shard beside its model: everything that is asked of the one is asked of the other.

use super::keys::Searching;
use super::model::{Body, Change, ShardModel, Stored};
use super::plan::Plan;
use super::shard::SimShard;
use super::tally::Event;
use super::{Check, ensure};
use crate::error::{AppendError, ReadError};
use crate::mem::RecordSlice;
use crate::shard::{Acknowledge, ReadAtOutcome, ReadLimits, ReadOutcome, SearchOutcome, Trimmed};
use crate::units::{EpochMillis, QueueOffset, Sequence};
use crate::view::QueueNo;
use crate::view::queue::TagFilter;

/// Slices that a reader keeps for a while.
const HELD_MAX: usize = 6;

/// A read that waits for the device.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) queue: usize,
    pub(super) from: usize,
    pub(super) limits: ReadLimits,
    pub(super) filter: TagFilter,
}

struct Waiter {
    token: u64,
    queue: usize,
    from: usize,
    filter: TagFilter,
}

/// What may go wrong with a read in this life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowed {
    pub(super) read_errors: bool,
}

pub(super) struct Node {
    pub(super) sim: SimShard,
    pub(super) model: ShardModel,
    waiters: Vec<Waiter>,
    readings: Vec<(u64, Reading)>,
    pub(super) searches: Vec<(u64, Searching)>,
    held: Vec<(RecordSlice, Vec<Body>)>,
    token: u64,
    pub(super) allowed: Allowed,
}

pub(super) fn offset(at: usize) -> QueueOffset {
    QueueOffset::new(i64::try_from(at).unwrap_or(i64::MAX)).unwrap_or_default()
}

pub(super) fn number(offset: QueueOffset) -> usize {
    usize::try_from(offset.get()).unwrap_or(usize::MAX)
}

/// Whether the model has a record with this tag pass: not by the engine's own word.
fn wants(filter: &TagFilter, tag: i64) -> bool {
    match filter {
        TagFilter::All => true,
        TagFilter::Tags(tags) => tags.contains(&tag),
    }
}

/// True for a refusal that a retry may end.
fn is_for_now(error: &AppendError) -> bool {
    matches!(error, AppendError::Backlogged | AppendError::DiskFull(_))
}

impl Node {
    pub(super) fn new(sim: SimShard, model: ShardModel, allowed: Allowed) -> Self {
        Self {
            sim,
            model,
            waiters: Vec::new(),
            readings: Vec::new(),
            searches: Vec::new(),
            held: Vec::new(),
            token: 0,
            allowed,
        }
    }

    pub(super) fn token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    pub(super) fn queue_no(&self, plan: &Plan, queue: usize) -> Option<QueueNo> {
        plan.queues.get(queue).and_then(|name| self.sim.view().queue(&name.key))
    }

    /// Counts a refusal; `Err` when it is one that should not have come.
    fn refused(&mut self, error: &AppendError) -> Check {
        match error {
            AppendError::Poisoned(_) => {
                ensure!(self.sim.view().poisoned().is_some(), "refused as poisoned, but it is not");
            }
            error => {
                ensure!(is_for_now(error), "an append that fits was refused: {error}");
                self.sim.tally().count(Event::Backlogged);
            }
        }
        Ok(())
    }

    /// Appends records to a queue, opening it before. Gives the first offset and the group, or
    /// `None` when the shard has no room or is poisoned.
    pub(super) fn append(
        &mut self,
        plan: &Plan,
        queue: usize,
        bodies: &[Body],
        now: EpochMillis,
    ) -> Result<Option<(usize, Sequence)>, String> {
        let Some(number) = self.open_queue(plan, queue, now)? else { return Ok(None) };
        let appended = match self.sim.shard().append(number, bodies, now) {
            Ok(appended) => appended,
            Err(error) => return self.refused(&error).map(|()| None),
        };
        let first = self::number(appended.first_queue_offset);
        let expected = self.model.next(queue);
        ensure!(first == expected, "queue {queue}: an append got offset {first}, not {expected}");
        let committed = self.model.committed;
        ensure!(committed < appended.sequence, "appended to group {}", appended.sequence);
        let mut position = appended.first_log_offset;
        let mut records = Vec::with_capacity(bodies.len());
        for &body in bodies {
            records.push(Stored { body, position, time: appended.store_time, damaged: false });
            position = position.plus(body.len);
        }
        self.model.change(appended.sequence, Change::Append { queue, records });
        self.sim.tally().count(Event::Appended);
        Ok(Some((first, appended.sequence)))
    }

    fn open_queue(
        &mut self,
        plan: &Plan,
        queue: usize,
        now: EpochMillis,
    ) -> Result<Option<QueueNo>, String> {
        if let Some(number) = self.queue_no(plan, queue) {
            return Ok(Some(number));
        }
        let key = plan.queues.get(queue).map(|name| name.key.clone()).unwrap_or_default();
        match self.sim.shard().open_queue(&key, now) {
            Ok(number) => {
                // The opening rides in the open group: the next one to be closed.
                let sequence = self.sim.view().appended().next();
                self.model.change(sequence, Change::Open { queue });
                Ok(Some(number))
            }
            Err(error) => self.refused(&error).map(|()| None),
        }
    }

    /// Deletes a queue; its key is free at once.
    pub(super) fn delete(&mut self, plan: &Plan, queue: usize, now: EpochMillis) -> Check {
        let known = self.model.queues.contains_key(&queue) && !self.model.is_leaving(queue);
        let Some(queue_no) = self.queue_no(plan, queue).filter(|_| known) else { return Ok(()) };
        // Whoever waits for the queue or reads it would next meet another one.
        for waiter in self.waiters.iter().filter(|waiter| waiter.queue == queue) {
            self.sim.shard().cancel_wait(queue_no, waiter.token);
        }
        self.waiters.retain(|waiter| waiter.queue != queue);
        self.readings.retain(|(_, reading)| reading.queue != queue);
        match self.sim.shard().delete_queue(queue_no, now) {
            Ok(sequence) => {
                self.model.change(sequence, Change::Delete { queue });
                self.sim.tally().count(Event::Deleted);
                ensure!(self.queue_no(plan, queue).is_none(), "a deleted queue keeps its key");
                Ok(())
            }
            Err(error) => self.refused(&error),
        }
    }

    pub(super) fn put_fact(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        now: EpochMillis,
    ) -> Result<Option<Sequence>, String> {
        match self.sim.shard().put_fact(key, value, now) {
            Ok(sequence) => {
                let value = value.map(<[u8]>::to_vec);
                let latest = self.sim.view().latest_fact(key);
                ensure!(latest == value.as_deref(), "the newest value of a fact is not seen");
                self.model.change(sequence, Change::Fact { key: key.to_vec(), value });
                Ok(Some(sequence))
            }
            Err(error) => self.refused(&error).map(|()| None),
        }
    }

    pub(super) fn stage_fact(&mut self, key: &[u8], value: &[u8], now: EpochMillis) -> Check {
        self.notice_staged()?;
        let unchanged = self.sim.view().latest_fact(key) == Some(value);
        self.sim.shard().stage_fact(key, value, now);
        if !unchanged {
            self.model.staged.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    pub(super) fn flush_staged(&mut self, now: EpochMillis) -> Check {
        match self.sim.shard().flush_staged(now) {
            Ok(_) => {
                ensure!(
                    self.model.staged.keys().all(|key| !self.sim.view().fact_is_staged(key)),
                    "a fact is staged after all were flushed"
                );
                Ok(())
            }
            Err(error) => self.refused(&error),
        }
    }

    /// Compares what the shard tells with what the model allows, after anything has happened.
    pub(super) fn observe(&mut self, plan: &Plan) -> Check {
        let committed = self.sim.view().committed();
        let durable = self.sim.view().durable();
        let on_device = self.sim.on_device();
        ensure!(
            durable <= on_device,
            "group {durable} is told to be durable, the device has them up to {on_device}"
        );
        if durable < committed {
            let buffered = self.sim.view().acknowledge() == Acknowledge::Buffered;
            ensure!(buffered, "group {committed} is committed, {durable} is durable");
            self.sim.tally().count(Event::Ahead);
        }
        self.notice_staged()?;
        if committed != self.model.committed {
            let leaving = self.model.leaving();
            self.model.commit(committed)?;
            if self.model.leaving() < leaving {
                // What a search has found of a deleted queue is not in the model any more.
                self.searches.clear();
            }
            self.check_facts()?;
        }
        self.model.settle(committed.min(durable))?;
        self.check_trimmed(plan)?;
        self.check_waiters()?;
        self.repeat_reads(plan)
    }

    /// Staged facts leave with whatever group is closed next; the model learns which it was.
    pub(super) fn notice_staged(&mut self) -> Check {
        let gone: Vec<Vec<u8>> = self
            .model
            .staged
            .keys()
            .filter(|key| !self.sim.view().fact_is_staged(key))
            .cloned()
            .collect();
        for key in gone {
            let Some(value) = self.model.staged.remove(&key) else { continue };
            let sequence = match self.sim.view().fact_awaits(&key) {
                Some(sequence) => sequence,
                None if self.sim.view().fact(&key) == Some(&value) => {
                    self.sim.view().fact_sequence(&key).unwrap_or_default()
                }
                None => return Err("a staged fact was dropped".to_owned()),
            };
            self.model.change(sequence, Change::Fact { key, value: Some(value) });
        }
        Ok(())
    }

    /// The committed value of every fact is the model's, and there is no other fact.
    pub(super) fn check_facts(&mut self) -> Check {
        let mut told = self.sim.view().facts_with_prefix(b"");
        let mut known = self.model.facts.iter();
        let tainted = &self.model.tainted;
        loop {
            let (told, known) = (
                told.find(|(key, _)| !tainted.contains(*key)),
                known.find(|(key, _)| !tainted.contains(*key)),
            );
            let known = known.map(|(key, value)| (key.as_slice(), value.as_slice()));
            ensure!(told == known, "fact {told:?} is told, {known:?} is committed");
            let Some((key, value)) = told else { return Ok(()) };
            let found = self.sim.view().fact(key);
            ensure!(found == Some(value), "fact {told:?} is told, but {found:?} is found");
        }
    }

    /// Retention gives up the oldest records of a queue, and says which.
    fn check_trimmed(&mut self, plan: &Plan) -> Check {
        let mut trimmed = Vec::new();
        self.sim.shard().take_trimmed(&mut trimmed);
        for Trimmed { queue, from, to } in trimmed {
            let mut queues = 0..plan.queues.len();
            let Some(known) = queues.find(|&known| self.queue_no(plan, known) == Some(queue))
            else {
                continue;
            };
            if self.model.is_leaving(known) {
                continue;
            }
            let (from, to) = (number(from), number(to));
            let (min, visible) = (self.model.min(known), self.model.visible(known));
            ensure!(from == min, "queue {known} was trimmed from {from}, it began at {min}");
            ensure!(min < to && to <= visible, "queue {known} of {visible} is trimmed to {to}");
            let newest = self.newest_ordinal();
            let records = self.model.queues.get(&known).and_then(|records| records.get(min..to));
            let mut trimmed = records.unwrap_or_default().iter();
            ensure!(
                trimmed.all(|stored| stored.damaged || self.ordinal(stored) < newest),
                "queue {known} has lost records of the newest segment"
            );
            self.model.set_min(known, to);
            self.sim.tally().count(Event::Trimmed);
        }
        Ok(())
    }

    pub(super) fn ordinal(&self, stored: &Stored) -> Option<u64> {
        self.sim.view().geometry().place(stored.position).map(|place| place.ordinal)
    }

    fn newest_ordinal(&self) -> Option<u64> {
        // The end of a full segment is the start of another shard's.
        let last = crate::LogOffset::new(self.sim.view().committed_end().get() - 1)?;
        self.sim.view().geometry().place(last).map(|place| place.ordinal)
    }

    fn check_waiters(&mut self) -> Check {
        let mut woken = Vec::new();
        self.sim.shard().take_woken(&mut woken);
        for token in woken {
            let at = self.waiters.iter().position(|waiter| waiter.token == token);
            let Some(at) = at else { return Err("a waiter was woken twice".to_owned()) };
            let waiter = self.waiters.swap_remove(at);
            ensure!(
                self.has_match(&waiter),
                "a waiter on queue {} was woken, but no record that it wants is committed",
                waiter.queue
            );
            self.sim.tally().count(Event::Woken);
        }
        let late = self.waiters.iter().find(|waiter| self.has_match(waiter));
        ensure!(
            late.is_none(),
            "a record is committed, but its waiter on queue {:?} sleeps",
            late.map(|waiter| waiter.queue)
        );
        Ok(())
    }

    fn has_match(&self, waiter: &Waiter) -> bool {
        let records = self.model.queues.get(&waiter.queue).map(Vec::as_slice).unwrap_or_default();
        let new = records.get(waiter.from..).unwrap_or_default();
        new.iter().any(|stored| wants(&waiter.filter, stored.body.tag))
    }

    /// Waits for a record behind the visible end.
    pub(super) fn wait(&mut self, plan: &Plan, queue: usize, filter: TagFilter) {
        let Some(number) = self.queue_no(plan, queue) else { return };
        if self.model.is_leaving(queue) {
            return;
        }
        let (token, from) = (self.token(), self.model.visible(queue));
        self.sim.shard().wait(number, filter.clone(), token);
        self.waiters.push(Waiter { token, queue, from, filter });
    }

    pub(super) fn cancel_a_wait(&mut self, plan: &Plan) {
        let Some(waiter) = self.waiters.pop() else { return };
        if let Some(number) = self.queue_no(plan, waiter.queue) {
            self.sim.shard().cancel_wait(number, waiter.token);
        }
    }

    /// The end of a queue that is told is the committed one.
    pub(super) fn check_end(&mut self, plan: &Plan, queue: usize) -> Check {
        if self.model.is_leaving(queue) {
            return Ok(());
        }
        let Some(queue_no) = self.queue_no(plan, queue) else {
            ensure!(self.model.visible(queue) == 0, "queue {queue} is gone");
            return Ok(());
        };
        let told = number(self.sim.view().max_offset(queue_no));
        let visible = self.model.visible(queue);
        ensure!(told == visible, "queue {queue} is told to end at {told}, committed is {visible}");
        let (told, min) = (number(self.sim.view().min_offset(queue_no)), self.model.min(queue));
        ensure!(told == min, "queue {queue} is told to begin at {told}, it begins at {min}");
        Ok(())
    }

    fn repeat_reads(&mut self, plan: &Plan) -> Check {
        let mut ready = Vec::new();
        self.sim.shard().take_ready(&mut ready);
        for token in ready {
            if self.search_again(token)? {
                continue;
            }
            let at = self.readings.iter().position(|&(known, _)| known == token);
            // A read that was repeated for another reason may be reported a second time.
            let Some(at) = at else { continue };
            let (_, reading) = self.readings.swap_remove(at);
            self.read(plan, reading)?;
        }
        Ok(())
    }

    /// Reads, now or when the device has answered, and checks what comes. Gives how far it got;
    /// `None` while it waits.
    pub(super) fn read(&mut self, plan: &Plan, reading: Reading) -> Result<Option<usize>, String> {
        let Some(queue_no) = self.queue_no(plan, reading.queue) else { return Ok(None) };
        if self.model.is_leaving(reading.queue) {
            return Ok(None);
        }
        let (mut out, token) = (Vec::new(), self.token());
        let Reading { queue, from, .. } = reading;
        let visible = self.model.visible(queue);
        let told = self.sim.shard().read(
            queue_no,
            offset(from),
            &reading.limits,
            &reading.filter,
            token,
            &mut out,
        );
        match told {
            ReadOutcome::Found { next, bytes, count } => {
                let next = number(next);
                let given = self.check_found(&reading, next, &out)?;
                let len: usize = given.iter().map(|body| body.len).sum();
                let counted = usize::try_from(count).unwrap_or(0);
                ensure!(
                    (counted, bytes) == (given.len(), len) && 0 < count,
                    "queue {queue}: {count} records of {bytes} bytes told, {} of {len} given",
                    given.len()
                );
                ensure!(count <= reading.limits.records_max, "more records than asked for");
                ensure!(count == 1 || bytes <= reading.limits.bytes_max, "more bytes than asked");
                self.hold(out, given);
                return Ok(Some(next));
            }
            ReadOutcome::NoMatch { next } => {
                let next = number(next);
                self.check_found(&reading, next, &[])?;
                return Ok(Some(next));
            }
            ReadOutcome::AtEnd => ensure!(from == visible, "{from} is no end, {visible} is"),
            ReadOutcome::BeyondEnd { max } => {
                ensure!(visible < from && number(max) == visible, "{from} is beyond {max}?");
            }
            ReadOutcome::BelowMin { min } => {
                let known = self.model.min(queue);
                ensure!(
                    from < known && number(min) == known,
                    "queue {queue}: {from} is told to be below {min}, it begins at {known}"
                );
                return Ok(Some(known));
            }
            ReadOutcome::Pending => {
                self.readings.push((token, reading));
                return Ok(None);
            }
            ReadOutcome::Failed(error) => self.check_failure(queue, from, &error)?,
        }
        Ok(Some(from))
    }

    fn check_failure(&self, queue: usize, from: usize, error: &ReadError) -> Check {
        let records = self.model.queues.get(&queue).map(Vec::as_slice).unwrap_or_default();
        let damaged = records.get(from).is_some_and(|stored| stored.damaged);
        ensure!(
            damaged || (self.allowed.read_errors && matches!(error, ReadError::Io(_))),
            "queue {queue} offset {from} cannot be read: {error}"
        );
        Ok(())
    }

    /// The records of a queue from where the read began to `next`, as far as they are wanted, are
    /// what lies in the slices; only damaged ones may be missing.
    fn check_found(
        &self,
        reading: &Reading,
        next: usize,
        out: &[RecordSlice],
    ) -> Result<Vec<Body>, String> {
        let Reading { queue, from, filter, .. } = reading;
        let records = self.model.queues.get(queue).map(Vec::as_slice).unwrap_or_default();
        let Some(covered) = records.get(*from..next).filter(|covered| !covered.is_empty()) else {
            let place = records.get(*from).and_then(|stored| self.ordinal(stored));
            return Err(format!(
                "queue {queue}: read on at {next} from {from} of {} to {}, in segment {place:?} of \
                 {:?}",
                self.model.min(*queue),
                records.len(),
                self.sim.device().prepared()
            ));
        };
        let bytes = out.iter().map(|slice| &**slice).collect::<Vec<&[u8]>>().concat();
        let (mut rest, mut given) = (bytes.as_slice(), Vec::new());
        for (at, stored) in (*from..).zip(covered) {
            if !wants(filter, stored.body.tag) {
                continue;
            }
            match rest.split_at_checked(stored.body.len) {
                Some((record, behind)) if stored.body.is(record) => {
                    rest = behind;
                    given.push(stored.body);
                }
                _ => ensure!(
                    stored.damaged || self.may_be_gone(stored),
                    "queue {queue} offset {at} is not what was stored in segment {:?}, {} bytes were \
                     read up to {next}, the device has {:?}",
                    self.ordinal(stored),
                    bytes.len(),
                    self.sim.device().prepared()
                ),
            }
        }
        ensure!(rest.is_empty(), "queue {queue}: {} bytes too many were read", rest.len());
        Ok(given)
    }

    /// Damage to what the index knows of a segment leaves minimum offsets too low; what was in the
    /// segment is passed over.
    pub(super) fn may_be_gone(&self, stored: &Stored) -> bool {
        // It may still be there under its old name, to be used again.
        let gone = self.ordinal(stored).is_none_or(|at| {
            at < self.sim.view().first_segment() || !self.sim.device().has_segment(at)
        });
        gone && self.allowed.read_errors
    }

    fn hold(&mut self, out: Vec<RecordSlice>, given: Vec<Body>) {
        if let [slice] = out.as_slice() {
            self.held.push((slice.clone(), given));
        }
    }

    /// What readers hold is still what they were given.
    pub(super) fn let_go(&mut self, keep: usize) -> Check {
        while self.held.len() > keep.min(HELD_MAX) {
            let (slice, bodies) = self.held.remove(0);
            let mut rest: &[u8] = &slice;
            for body in bodies {
                let (record, behind) = rest.split_at_checked(body.len).unwrap_or_default();
                ensure!(body.is(record), "a record changed while a reader held it");
                rest = behind;
            }
        }
        Ok(())
    }

    /// Forgets reads that wait for the device.
    pub(super) fn forget_reads(&mut self) {
        self.readings.clear();
        self.searches.clear();
    }

    /// Looks a visible record up by its position, and near it.
    pub(super) fn read_at(&mut self, queue: usize, at: usize, shift: usize) -> Check {
        // What retention takes from a queue that is being deleted is not told.
        let gone = at < self.model.min(queue) || self.model.is_leaving(queue);
        let records = self.model.queues.get(&queue).map(Vec::as_slice).unwrap_or_default();
        let Some(stored) = records.get(at).copied() else { return Ok(()) };
        let token = self.token();
        match self.sim.shard().read_at(stored.position.plus(shift), token) {
            ReadAtOutcome::Found(slice) if shift == 0 => {
                ensure!(stored.body.is(&slice), "the record at {} is another", stored.position);
            }
            ReadAtOutcome::Found(slice) => {
                // Another record may begin there: it is one that was stored there.
                let position = stored.position.plus(shift);
                let mut all = self.model.queues.values().flatten();
                let known = all.any(|other| other.position == position && other.body.is(&slice));
                // A deleted queue's records are there until retention takes them.
                ensure!(
                    known || self.model.has_deleted,
                    "no record was stored at {position}, but one was found"
                );
            }
            ReadAtOutcome::Missing => {
                let may_miss = shift > 0 || gone || stored.damaged || self.may_be_gone(&stored);
                ensure!(may_miss, "no record at {}", stored.position);
            }
            ReadAtOutcome::Pending => {}
            ReadAtOutcome::Failed(_) if gone => {}
            ReadAtOutcome::Failed(error) => self.check_failure(queue, at, &error)?,
        }
        Ok(())
    }

    /// Finds the first record stored at or after a time.
    pub(super) fn search_time(&mut self, plan: &Plan, queue: usize, time: EpochMillis) -> Check {
        let Some(queue_no) = self.queue_no(plan, queue) else { return Ok(()) };
        let token = self.token();
        let records = self.model.queues.get(&queue).map(Vec::as_slice).unwrap_or_default();
        if self.model.is_leaving(queue) {
            return Ok(());
        }
        let first = records.partition_point(|stored| stored.time < time);
        let first = first.max(self.model.min(queue));
        let hidden = records.get(first).is_some_and(|stored| self.may_be_gone(stored));
        let any_damage = hidden || records.iter().any(|stored| stored.damaged);
        match self.sim.shard().search_time(queue_no, time, token) {
            SearchOutcome::Found(found) => ensure!(
                number(found) == first || any_damage,
                "queue {queue}: {time} leads to {found}, not {first}"
            ),
            SearchOutcome::Pending => {}
            SearchOutcome::Failed(error) => ensure!(
                any_damage || self.allowed.read_errors,
                "queue {queue}: searching for a time failed: {error}"
            ),
        }
        Ok(())
    }
}
