//! Groups between their closing and the frontiers: durable, committed, and kept, which is what a
//! killed process leaves behind.
//!
//! In a durable store only what is durable is kept. In a buffered one a group is kept as soon as it lies
//! whole in shared memory, so that `kept`, and with it `committed`, runs ahead of `durable`. What is
//! *settled* is committed and durable: only that may leave memory, be named by a header as proven, or
//! be the reason for a segment to go.
//!
//! What is kept anyway need not reach the device at once. Groups in shared memory wait there until they
//! are worth a write, for a few milliseconds at most: a write for every message would cost more than
//! all the rest of its way.
//!
//! Invariants: `durable <= kept`, `committed <= kept <= appended`, and none moves back but by a cut.

use std::io;

use super::{Acknowledge, CommitBy, Purpose, Shard};
use crate::format::group::{Group, Header};
use crate::layout::Place;
use crate::mem::RecordSlice;
use crate::op::{FileId, Op};
use crate::units::{Sequence, index, wide};

/// How long a group in shared memory waits for others that the same write takes to the device: after
/// so many milliseconds the driver calls [`Shard::hurry_writes`].
pub const WRITE_DELAY_MS: u32 = 5;
/// How many bytes of them are worth a write before that.
const WORTH_A_WRITE: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Writing,
    Durable,
}

/// A closed group that is not both committed and durable.
pub(super) struct PendingGroup {
    header: Header,
    header_crc: u32,
    place: Place,
    data: RecordSlice,
    state: State,
    /// It lies where a killed process leaves it.
    survives: bool,
}

impl PendingGroup {
    pub(super) fn new(
        header: Header,
        header_crc: u32,
        place: Place,
        data: RecordSlice,
        survives: bool,
    ) -> Self {
        Self { header, header_crc, place, data, state: State::Closed, survives }
    }

    /// Where the group behind it lies if it follows in the same segment.
    fn end(&self) -> Place {
        Place { byte: self.place.byte + wide(self.data.len()), ..self.place }
    }
}

/// The newest closed groups: those that no write has been issued for.
#[derive(Default)]
pub(super) struct Unwritten {
    pub(super) count: usize,
    bytes: usize,
    /// They have waited long enough, or something waits for them to be durable.
    is_urgent: bool,
}

impl Unwritten {
    fn add(&mut self, group: &PendingGroup) {
        self.count += 1;
        self.bytes += group.data.len();
        self.is_urgent |= !group.survives;
    }

    fn remove(&mut self, groups: usize, bytes: usize) {
        self.count -= groups;
        self.bytes -= bytes;
        self.is_urgent &= self.count > 0;
    }
}

/// Closed groups that one write takes to the device.
struct Run {
    groups: usize,
    data: RecordSlice,
}

impl Shard {
    /// What need not be kept for the device or for its commit any more: everything up to this group
    /// is committed and durable.
    pub(super) fn settled(&self) -> Sequence {
        self.committed().min(self.durable)
    }

    fn at(&self, sequence: Sequence) -> Option<usize> {
        let front = self.pending.front()?.header.sequence;
        sequence.get().checked_sub(front.get()).map(index)
    }

    fn group(&self, sequence: Sequence) -> Option<&PendingGroup> {
        self.pending.get(self.at(sequence)?)
    }

    /// Takes a group that was closed.
    pub(super) fn enqueue(&mut self, group: PendingGroup) {
        self.unwritten.add(&group);
        self.pending.push_back(group);
    }

    /// Bytes that the device is writing.
    pub(super) fn writing_bytes(&self) -> usize {
        let writing = self.pending.iter().filter(|group| group.state == State::Writing);
        writing.map(|group| group.data.len()).sum()
    }

    /// Hands closed groups to the device, in order, while it has free slots.
    pub(super) fn issue_writes(&mut self) {
        if self.poison.is_some() {
            return;
        }
        while self.writing < self.limits.writes_in_flight {
            if self.delays_writes() {
                return;
            }
            let Some(Run { groups, data }) = self.next_run() else { return };
            let at = self.pending.len() - self.unwritten.count;
            let Some(first) = self.pending.get(at) else { return };
            let (sequence, place) = (first.header.sequence, first.place);
            self.pending.range_mut(at..at + groups).for_each(|group| group.state = State::Writing);
            let id = self.op(Purpose::Groups { first: sequence, count: groups });
            self.writing += 1;
            self.unwritten.remove(groups, data.len());
            self.segments.write_issued(data.len());
            let file = FileId::Segment(place.ordinal);
            self.ops.push_back(Op::Write { id, file, at: place.byte, data });
        }
    }

    /// Whether closed groups wait although the device could have them: the driver calls
    /// [`hurry_writes`](Self::hurry_writes) [`WRITE_DELAY_MS`](crate::WRITE_DELAY_MS) after this has
    /// become true. In a durable store, where a group that is small for its write is not closed yet, none
    /// waits.
    pub fn delays_writes(&self) -> bool {
        self.acknowledge == Acknowledge::Buffered
            && self.unwritten.count > 0
            && self.unwritten.bytes < self.worth_a_write()
            && !self.unwritten.is_urgent
    }

    /// How many bytes of groups that need not wait for their write are worth one.
    fn worth_a_write(&self) -> usize {
        WORTH_A_WRITE.min(self.limits.tail_bytes / 8)
    }

    /// Whether closed groups wait only because the device is busy.
    pub(super) fn has_due_writes(&self) -> bool {
        self.unwritten.count > 0 && !self.delays_writes()
    }

    /// Has the device get what waits to be worth a write, with the next operations.
    pub fn hurry_writes(&mut self) {
        self.unwritten.is_urgent = self.unwritten.count > 0;
    }

    /// The oldest closed groups that no write has been issued for, as far as they go together: one,
    /// or in a buffered store, where they are many and small, those that lie back to back.
    fn next_run(&self) -> Option<Run> {
        let mut closed = self.pending.range(self.pending.len() - self.unwritten.count..);
        let first = closed.next()?;
        let mut run = Run { groups: 1, data: first.data.clone() };
        if self.acknowledge == Acknowledge::Durable {
            return Some(run);
        }
        let (mut end, len_max) = (first.end(), self.worth_a_write().max(self.limits.group_bytes));
        for group in closed {
            let fits = run.data.len() + group.data.len() <= len_max;
            if !fits || group.place != end || !run.data.join(&group.data) {
                break;
            }
            run.groups += 1;
            end = group.end();
        }
        Some(run)
    }

    pub(super) fn groups_written(
        &mut self,
        first: Sequence,
        count: usize,
        result: io::Result<usize>,
    ) {
        self.writing -= 1;
        let Some(at) = self.at(first) else { return };
        match result {
            Ok(len) => {
                let groups = self.pending.range_mut(at..at + count);
                let written: usize = groups
                    .map(|group| {
                        group.state = State::Durable;
                        group.data.len()
                    })
                    .sum();
                assert_eq!(len, written, "drivers complete a write as a whole");
            }
            // The kernel may have dropped what it was given: a retry that succeeds proves nothing.
            Err(cause) => {
                // What was durable before still counts.
                if self.commit_by == CommitBy::Durable {
                    self.kept = self.kept.max(self.durable);
                    self.commit(self.durable);
                }
                self.fail("writing the log", &cause);
            }
        }
        if self.poison.is_some() {
            return;
        }
        while let Some(group) = self.group(self.durable.next())
            && group.state == State::Durable
        {
            self.durable_end = group.end();
            self.durable = self.durable.next();
        }
        self.issue_writes();
    }

    /// Moves the frontier of what outlives the process, and commits that unless the caller decides.
    pub(super) fn commit_kept(&mut self) {
        if self.poison.is_some() {
            return;
        }
        self.kept = self.kept.max(self.durable);
        while let Some(group) = self.group(self.kept.next())
            && (group.survives || group.state == State::Durable)
        {
            self.kept = self.kept.next();
        }
        match self.commit_by {
            CommitBy::Durable => self.commit(self.kept),
            CommitBy::Caller => self.drop_settled(),
        }
    }

    /// Moves the committed frontier of a store opened with [`CommitBy::Caller`]. It stops at the
    /// frontier of what outlives the process, [`kept`](Self::kept), and never moves back.
    pub fn commit_through(&mut self, sequence: Sequence) {
        self.commit(sequence.min(self.kept));
        self.signal_room();
    }

    fn commit(&mut self, through: Sequence) {
        while self.committed() < through
            && let Some(at) = self.at(self.committed().next())
            && let Some(ordinal) = self.pending.get(at).map(|group| group.place.ordinal)
        {
            self.hurry_checkpoint(ordinal);
            let Some(group) = self.pending.get(at) else { return };
            let parsed = Group::trusted(&group.data, group.header, group.header_crc);
            self.views.apply(&parsed, group.place, group.data.len(), false, &mut self.woken);
            self.pace_checkpoint(group.data.len());
        }
        self.drop_settled();
    }

    fn drop_settled(&mut self) {
        let settled = self.settled();
        while let Some(group) = self.pending.front()
            && group.header.sequence <= settled
        {
            self.noted = self.noted.max(group.header.committed);
            self.pending.pop_front();
        }
    }

    /// Cuts the log behind `sequence`, which must not be below the committed frontier: what was
    /// appended above it is forgotten, and the epoch rises so that groups which reached the device
    /// never count again. The new epoch must be durable before the next append.
    ///
    /// # Errors
    ///
    /// The sequence that the log can be cut at, when `sequence` is below the committed frontier or
    /// above the newest group, or `None` while writes are in flight.
    pub fn truncate(&mut self, sequence: Sequence, epoch: u64) -> Result<(), Option<Sequence>> {
        if self.writing > 0 {
            return Err(None);
        }
        let committed = self.committed();
        if sequence < committed || sequence > self.appended || epoch <= self.epoch {
            return Err(Some(committed));
        }
        if let Some(open) = self.open.take() {
            self.tail.abandon(open);
        }
        self.pending.retain(|group| group.header.sequence <= sequence);
        // Nothing is being written, so that what is not durable is what waits to be.
        let count = index(sequence.get().saturating_sub(self.durable.get()));
        let mut unwritten = Unwritten::default();
        for group in self.pending.range(self.pending.len() - count..) {
            unwritten.add(group);
        }
        self.unwritten = unwritten;
        let (head, crc) = self.pending.back().map_or_else(
            || (self.views.covered.next, self.views.covered.header_crc),
            |group| (group.end(), group.header_crc),
        );
        self.head = head;
        self.previous_crc = crc;
        self.appended = sequence;
        if sequence < self.durable {
            self.durable = sequence;
            self.durable_end = head;
        }
        self.kept = self.kept.min(sequence);
        self.epoch = epoch;
        self.life_start = sequence.next();
        self.tail.cut(self.position(head), sequence);
        self.take_views_back();
        Ok(())
    }

    /// What appends have changed ahead of the commit goes back, then what is kept is counted anew.
    fn take_views_back(&mut self) {
        let committed = self.committed();
        self.retention.start_over(committed);
        self.repeats.clear();
        self.views.take_back();
        for group in self.pending.iter().filter(|group| committed < group.header.sequence) {
            let parsed = Group::trusted(&group.data, group.header, group.header_crc);
            for record in parsed.records() {
                self.views.reappend(&record, group.header.sequence);
            }
            self.repeats.note_group(&parsed);
        }
    }

    /// Bytes of closed groups that wait for the device or for their commit. Takes a look at each.
    pub fn backlog_bytes(&self) -> usize {
        self.pending.iter().map(|group| index(u64::from(group.header.len))).sum()
    }
}
