//! Groups between their closing and the committed frontier.

use std::io;

use super::{CommitBy, Purpose, Shard};
use crate::format::group::{Group, Header};
use crate::layout::Place;
use crate::mem::RecordSlice;
use crate::op::{FileId, Op};
use crate::units::{Sequence, index};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Writing,
    Durable,
}

/// A closed group that is not committed.
pub(super) struct PendingGroup {
    header: Header,
    header_crc: u32,
    place: Place,
    data: RecordSlice,
    state: State,
}

impl PendingGroup {
    pub(super) fn new(header: Header, header_crc: u32, place: Place, data: RecordSlice) -> Self {
        Self { header, header_crc, place, data, state: State::Closed }
    }
}

impl Shard {
    /// Closed groups that no write has been issued for.
    pub(super) fn unwritten(&self) -> usize {
        let groups = self.pending.iter().rev();
        groups.take_while(|group| group.state == State::Closed).count()
    }

    /// Hands closed groups to the device, in order, while it has free slots.
    pub(super) fn issue_writes(&mut self) {
        if self.poison.is_some() {
            return;
        }
        let mut unwritten = self.unwritten();
        while self.writing < self.limits.writes_in_flight && unwritten > 0 {
            let at = self.pending.len() - unwritten;
            let Some(group) = self.pending.get_mut(at) else { return };
            group.state = State::Writing;
            let (sequence, place, data) = (group.header.sequence, group.place, group.data.clone());
            let id = self.op(Purpose::Group(sequence));
            let file = FileId::Segment(place.ordinal);
            self.ops.push_back(Op::Write { id, file, at: place.byte, data });
            self.writing += 1;
            unwritten -= 1;
        }
    }

    pub(super) fn group_written(&mut self, sequence: Sequence, result: io::Result<usize>) {
        self.writing -= 1;
        let Some(group) = self.pending.iter_mut().find(|group| group.header.sequence == sequence)
        else {
            return;
        };
        match result {
            Ok(len) => {
                assert_eq!(len, group.data.len(), "drivers complete a write as a whole");
                group.state = State::Durable;
            }
            // The kernel may have dropped what it was given: a retry that succeeds proves nothing.
            Err(cause) => self.fail("writing the log", &cause),
        }
        if self.poison.is_some() {
            return;
        }
        let durable = self.pending.iter().take_while(|group| group.state == State::Durable);
        if let Some(last) = durable.last() {
            assert!(self.durable <= last.header.sequence, "the durable frontier went back");
            self.durable = self.durable.max(last.header.sequence);
        }
        if self.commit_by == CommitBy::Durable {
            self.commit(self.durable);
        }
        self.issue_writes();
    }

    /// Moves the committed frontier of a store opened with [`CommitBy::Caller`]. It stops at the
    /// durable frontier and never moves back.
    pub fn commit_through(&mut self, sequence: Sequence) {
        self.commit(sequence.min(self.durable));
        self.signal_room();
    }

    fn commit(&mut self, through: Sequence) {
        while let Some(group) = self.pending.front() {
            if group.header.sequence > through {
                return;
            }
            let Some(group) = self.pending.pop_front() else { return };
            self.noted = self.noted.max(group.header.committed);
            let parsed = Group::trusted(&group.data, group.header, group.header_crc);
            self.hurry_checkpoint(group.place.ordinal);
            self.views.apply(&parsed, group.place, group.data.len(), false, &mut self.woken);
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
        let (head, crc) = self.pending.back().map_or_else(
            || (self.views.covered.next, self.views.covered.header_crc),
            |group| {
                let end = group.place.byte + crate::units::wide(group.data.len());
                (Place { byte: end, ..group.place }, group.header_crc)
            },
        );
        self.head = head;
        self.previous_crc = crc;
        self.appended = sequence;
        self.durable = self.durable.min(sequence);
        self.epoch = epoch;
        self.tail.cut(self.position(head), sequence);
        self.take_views_back();
        Ok(())
    }

    /// What appends have changed ahead of the commit goes back, then what is kept is counted anew.
    fn take_views_back(&mut self) {
        self.retention.start_over();
        self.repeats.clear();
        self.views.take_back();
        for group in &self.pending {
            let parsed = Group::trusted(&group.data, group.header, group.header_crc);
            for record in parsed.records() {
                self.views.reappend(&record, group.header.sequence);
            }
        }
    }

    /// Bytes of closed groups that wait for the device or for their commit.
    pub fn backlog_bytes(&self) -> usize {
        self.pending.iter().map(|group| index(u64::from(group.header.len))).sum()
    }
}
