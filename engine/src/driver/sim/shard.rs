//! One life of a shard on a simulated device: its operations complete late, in any order, in
//! pieces, or not at all.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::disk::{SECTOR, SimDisk, io_error};
use super::random::Random;
use super::tally::{Event, Tally};
use crate::format::group::Header;
use crate::mem::Region;
use crate::op::{Completion, FileId, Op};
use crate::recovery::{self, Recovered, RecoveryError, RecoveryReport};
use crate::shard::{Acknowledge, CommitBy, Shard, ShardLimits, Start, Tail};
use crate::store::next_epoch;
use crate::units::{EpochMillis, Sequence, wide};

/// How a device behaves during one life: each fault fires once in so many chances, never at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mood {
    /// Turns that an operation takes at most, as a rule.
    pub(super) delay: usize,
    pub(super) held: usize,
    pub(super) short: usize,
    pub(super) log_write_error: usize,
    pub(super) zero_error: usize,
    pub(super) view_write_error: usize,
    pub(super) read_error: usize,
}

/// Why a simulated store did not open.
#[derive(Debug)]
pub(super) enum OpenFailure {
    /// A read failed; another attempt may succeed.
    Io,
    /// Recovery refuses to go on.
    Refused(String),
}

/// Free bytes of a device that is not full.
const FREE_BYTES: usize = 1 << 40;

struct Pending {
    op: Op,
    /// Bytes that are done of a write or read that came out short.
    done: usize,
    /// Turn before which it does not complete.
    due: u64,
}

/// A shard on a simulated disk.
pub(super) struct SimShard {
    shard: Shard,
    disk: SimDisk,
    /// The group buffers of a buffered store.
    memory: Option<Arc<Region>>,
    /// Those of the life before.
    left: Option<Vec<u8>>,
    pending: Vec<Pending>,
    report: RecoveryReport,
    mood: Mood,
    random: Random,
    turn: u64,
    full: bool,
    /// Groups whose write has completed in this life, above the frontier below.
    landed: BTreeSet<u64>,
    /// Every group up to here is on the device as a whole.
    on_device: Sequence,
    /// The newest segment that holds a group.
    last_ordinal: u64,
}

impl SimDisk {
    /// Starts a life on what is durable.
    pub(super) fn open(
        mut self,
        limits: ShardLimits,
        commit_by: CommitBy,
        now: EpochMillis,
    ) -> Result<SimShard, (Box<Self>, OpenFailure)> {
        let geometry = self.geometry();
        let Recovered { views, saved, repeats, report, epoch: logged } =
            match recovery::recover(&geometry, &mut self) {
                Ok(found) => found,
                Err(RecoveryError::Io(_)) => return Err((Box::new(self), OpenFailure::Io)),
                Err(error) => {
                    let why = OpenFailure::Refused(error.to_string());
                    return Err((Box::new(self), why));
                }
            };
        self.fail_read = None;
        let epoch = next_epoch(self.epoch, self.segment_count(), logged);
        self.epoch = Some(epoch);
        let on_device = views.covered.sequence;
        let last_ordinal = views.covered.next.ordinal;
        let segments = self.prepared();
        let acknowledge = self.acknowledge();
        let start = Start {
            geometry,
            limits,
            acknowledge,
            commit_by,
            epoch,
            views,
            saved,
            repeats,
            segments,
            now,
        };
        let left = self.shared.take();
        let (tail, memory) = match acknowledge {
            Acknowledge::Durable => (Tail::new(&limits).0, None),
            Acknowledge::Buffered => {
                let head = self.head(epoch, Tail::pool(&limits));
                let memory = Region::headed(head.buffer_at(0), head.file_len());
                let (tail, memory) = Tail::buffered(&limits, memory, head);
                (tail, Some(memory))
            }
        };
        let random = self.random.fork();
        Ok(SimShard {
            shard: Shard::new(start, tail),
            disk: self,
            memory,
            left,
            pending: Vec::new(),
            report,
            mood: Mood::default(),
            random,
            turn: 0,
            full: false,
            landed: BTreeSet::new(),
            on_device,
            last_ordinal,
        })
    }
}

impl SimShard {
    /// The shard itself.
    pub(super) fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    pub(super) fn view(&self) -> &Shard {
        &self.shard
    }

    /// What opening found.
    pub(super) fn report(&self) -> RecoveryReport {
        self.report
    }

    pub(super) fn device(&self) -> &SimDisk {
        &self.disk
    }

    #[cfg(test)]
    pub(super) fn disk(&mut self) -> &mut SimDisk {
        &mut self.disk
    }

    pub(super) fn tally(&mut self) -> &mut Tally {
        &mut self.disk.tally
    }

    /// From now on the device behaves like this.
    pub(super) fn set_mood(&mut self, mood: Mood) {
        self.mood = mood;
    }

    /// Groups that are on their way to the device.
    pub(super) fn log_writes(&self) -> usize {
        let writes = self.pending.iter().filter_map(|pending| match &pending.op {
            Op::Write { file: FileId::Segment(_), data, .. } => Header::read(data),
            _ => None,
        });
        writes.count()
    }

    /// Refuses new segments, or allows them again.
    pub(super) fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// From now on the device does its work at once and without a fault.
    pub(super) fn calm(&mut self) {
        self.mood = Mood::default();
        self.full = false;
        self.pending.iter_mut().for_each(|pending| pending.due = 0);
    }

    /// Everything up to this group is on the device as a whole, whatever the shard says.
    pub(super) fn on_device(&self) -> Sequence {
        self.on_device
    }

    pub(super) fn operations(&self) -> usize {
        self.pending.len()
    }

    /// Asks the device for what the shard wants of it.
    pub(super) fn gather(&mut self) {
        while let Some(op) = self.shard.next_op() {
            let mut due = self.turn + wide(self.random.below(self.mood.delay + 1));
            if self.random.one_in(self.mood.held) {
                self.disk.tally.count(Event::Delayed);
                due += wide(self.random.between(20, 400));
            }
            self.pending.push(Pending { op, done: 0, due });
        }
    }

    /// Gives the device one turn: one of the operations that are due goes on, or a few, of which the
    /// shard hears at once. False when none was.
    pub(super) fn step(&mut self, now: EpochMillis) -> bool {
        const MORE: usize = 4;
        self.turn += 1;
        self.gather();
        if !self.go_on(now) {
            return false;
        }
        while self.random.one_in(MORE) && self.go_on(now) {}
        // What follows for the device leaves first, as from the real ring.
        self.gather();
        self.shard.settle();
        self.gather();
        true
    }

    /// One of the operations that are due goes on, any of them. False when there is none.
    fn go_on(&mut self, now: EpochMillis) -> bool {
        let due = |pending: &&Pending| pending.due <= self.turn;
        let count = self.pending.iter().filter(due).count();
        let Some(nth) = count.checked_sub(1).map(|_| self.random.below(count)) else {
            return false;
        };
        let due = |(_, pending): &(usize, &Pending)| pending.due <= self.turn;
        let Some((at, _)) = self.pending.iter().enumerate().filter(due).nth(nth) else {
            return false;
        };
        if at > 0 {
            self.disk.tally.count(Event::Reordered);
        }
        let pending = self.pending.remove(at);
        match self.carry_out(pending) {
            Ok(completion) => self.shard.take_outcome(completion, now),
            Err(again) => self.pending.push(again),
        }
        true
    }

    /// Lets the device work until it has nothing to do or nothing is due.
    pub(super) fn run(&mut self, now: EpochMillis) {
        loop {
            self.gather();
            let Some(soonest) = self.pending.iter().map(|pending| pending.due).min() else {
                if !self.shard.delays_writes() {
                    return;
                }
                // The driver's alarm comes.
                self.shard.hurry_writes();
                continue;
            };
            self.turn = self.turn.max(soonest);
            self.step(now);
        }
    }

    fn carry_out(&mut self, pending: Pending) -> Result<Completion, Pending> {
        let Pending { op, done, due } = pending;
        let id = op.id();
        let finish = |result, buffer| Ok(Completion { id, result, buffer });
        match op {
            Op::Write { id, file, at, data } => {
                let rest = data.get(done..).unwrap_or_default();
                let start = at + wide(done);
                if let Err(cause) = self.write_fails(file, &data) {
                    self.disk.tear(file, start, rest);
                    return finish(Err(cause), None);
                }
                let sectors = rest.len() / SECTOR;
                if sectors > 1 && self.random.one_in(self.mood.short) {
                    let len = SECTOR * self.random.between(1, sectors - 1);
                    self.disk.tally.count(Event::ShortWrite);
                    self.disk.write(file, start, rest.get(..len).unwrap_or_default());
                    let op = Op::Write { id, file, at, data };
                    return Err(Pending { op, done: done + len, due });
                }
                self.disk.write(file, start, rest);
                self.note(file, &data);
                finish(Ok(data.len()), None)
            }
            Op::Read { id, file, at, len, mut buffer } => {
                if self.random.one_in(self.mood.read_error) {
                    self.disk.tally.count(Event::ReadError);
                    return finish(Err(io_error()), Some(buffer));
                }
                let bytes = self.disk.bytes_at(file, at + wide(done));
                let bytes = bytes.get(..bytes.len().min(len - done)).unwrap_or_default();
                let sectors = bytes.len() / SECTOR;
                let short = sectors > 1 && self.random.one_in(self.mood.short);
                let count =
                    if short { SECTOR * self.random.between(1, sectors - 1) } else { bytes.len() };
                let dst = buffer.0.buffer().get_mut(done..).unwrap_or_default();
                super::disk::copy(bytes.get(..count).unwrap_or_default(), dst);
                if short {
                    self.disk.tally.count(Event::ShortRead);
                    let op = Op::Read { id, file, at, len, buffer };
                    return Err(Pending { op, done: done + count, due });
                }
                self.disk.tally.count(Event::ColdRead);
                finish(Ok(done + count), Some(buffer))
            }
            Op::CreateSegment { ordinal, len, .. } => {
                if self.full {
                    self.disk.tally.count(Event::DiskFull);
                    return finish(Err(io::ErrorKind::StorageFull.into()), None);
                }
                self.disk.create(ordinal, len);
                finish(Ok(0), None)
            }
            Op::Populate { .. } => finish(Ok(0), None),
            Op::FreeSpace { .. } => finish(Ok(if self.full { 0 } else { FREE_BYTES }), None),
            Op::RecycleSegment { from, to, .. } => {
                if self.random.one_in(self.mood.zero_error) {
                    self.disk.tally.count(Event::RecycleError);
                    return finish(Err(io_error()), None);
                }
                finish(self.disk.recycle(from, to).map(|()| 0), None)
            }
            Op::RemoveSegment { ordinal, .. } => {
                self.disk.remove(ordinal);
                finish(Ok(0), None)
            }
            Op::Discard { file, at, len, .. } => {
                self.disk.discard(file, at, len);
                finish(Ok(0), None)
            }
            Op::ReplaceCheckpoint { slot, bytes, .. } => {
                if self.view_write_fails() {
                    self.disk.tally.count(Event::CheckpointError);
                    return finish(Err(io_error()), None);
                }
                let len = bytes.len();
                self.disk.replace_checkpoint(slot, bytes);
                finish(Ok(len), None)
            }
        }
    }

    fn view_write_fails(&mut self) -> bool {
        self.random.one_in(self.mood.view_write_error) || (self.full && self.random.one_in(2))
    }

    fn write_fails(&mut self, file: FileId, data: &[u8]) -> io::Result<()> {
        let (chance, event) = match file {
            FileId::Index | FileId::Changes(_) => {
                (usize::from(self.view_write_fails()), Event::IndexWriteError)
            }
            FileId::Segment(_) if Header::read(data).is_some() => {
                (self.mood.log_write_error, Event::LogWriteError)
            }
            FileId::Segment(_) => (self.mood.zero_error, Event::ZeroError),
        };
        if !self.random.one_in(chance) {
            return Ok(());
        }
        self.disk.tally.count(event);
        Err(io_error())
    }

    /// Keeps account of the groups that are on the device as a whole.
    fn note(&mut self, file: FileId, data: &[u8]) {
        let FileId::Segment(ordinal) = file else { return };
        let block_len = self.disk.geometry().block_len();
        let mut rest = data;
        while let Some((header, _)) = Header::read(rest) {
            self.landed.insert(header.sequence.get());
            rest = rest.get(header.padded_len(block_len)..).unwrap_or_default();
        }
        if rest.len() == data.len() {
            return;
        }
        while self.landed.remove(&self.on_device.next().get()) {
            self.on_device = self.on_device.next();
        }
        if ordinal > self.last_ordinal {
            self.last_ordinal = ordinal;
            self.disk.tally.count(Event::Rolled);
        }
    }

    #[cfg(test)]
    /// The log was cut behind this group: what had landed behind it counts no more.
    pub(super) fn cut(&mut self, sequence: Sequence) {
        self.landed.retain(|&landed| landed <= sequence.get());
        self.on_device = self.on_device.min(sequence);
    }

    /// The epoch of this life had not become durable when it ended, and with it nothing that it did.
    pub(super) fn unbegin(&mut self) {
        self.disk.epoch = self.disk.epoch.and_then(|epoch| epoch.checked_sub(1)).filter(|&e| e > 0);
        self.memory = None;
        self.disk.shared = self.left.take();
    }

    /// Ends this life at once, and the system with it. The device keeps the first sector of every group
    /// under way, and nothing else.
    pub(super) fn crash_with_heads(mut self) -> SimDisk {
        self.gather();
        for Pending { op, .. } in std::mem::take(&mut self.pending) {
            if let Op::Write { file: file @ FileId::Segment(_), at, data, .. } = op
                && Header::read(&data).is_some()
            {
                self.disk.write(file, at, data.get(..SECTOR).unwrap_or_default());
            }
        }
        self.disk.shared = None;
        self.disk
    }

    /// Ends this life at once. Of every operation under way the disk keeps what it likes.
    pub(super) fn crash(mut self) -> SimDisk {
        if let Some(memory) = &self.memory {
            self.disk.shared = Some(memory.snapshot());
        }
        self.gather();
        if self.shard.stats().spot_reads > 0 {
            self.disk.tally.count(Event::Spots);
        }
        for Pending { op, done, .. } in std::mem::take(&mut self.pending) {
            match op {
                Op::Write { file, at, data, .. } => {
                    self.disk.tear(file, at + wide(done), data.get(done..).unwrap_or_default());
                }
                Op::Read { .. } | Op::Populate { .. } | Op::FreeSpace { .. } => {}
                // Each of these is there as a whole or not at all.
                _ if self.disk.random.one_in(2) => {}
                Op::CreateSegment { ordinal, len, .. } => self.disk.create(ordinal, len),
                Op::RecycleSegment { from, to, .. } => drop(self.disk.recycle(from, to)),
                Op::RemoveSegment { ordinal, .. } => self.disk.remove(ordinal),
                Op::Discard { file, at, len, .. } => self.disk.discard(file, at, len),
                Op::ReplaceCheckpoint { slot, bytes, .. } => {
                    self.disk.replace_checkpoint(slot, bytes);
                }
            }
        }
        self.disk
    }
}
