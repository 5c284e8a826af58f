//! What must not hang on one group alone is logged again: damage to a group costs the records in it,
//! and nothing that later groups can tell.
//!
//! Repeated are facts, the states and deletions of queues, trims, and, for every queue, the offset
//! that the records of a group have brought it to: without it, a queue whose last records were in a
//! damaged group would give their offsets out again. Copies lie at the front of the groups that
//! follow, and end with the first group that begins [`APART`] bytes behind the original, so that
//! neither damage to one group nor damage to so many bytes in a row takes all of them. When the log
//! falls idle, the note that names its frontier carries them. A life begins with what the last group
//! of the one before it would have had repeated. Of a queue only the newest end is repeated: whatever
//! group an older one still had to be in lies before one of those that tell the newer.
//!
//! Staged facts are not repeated: they are set again and again.
//!
//! Everything here is a copy, so its memory may have bounds.

use std::collections::VecDeque;

use super::Shard;
use super::append::OpenGroup;
use crate::format::group::{ENTRY_LEN, Group, Kind};
use crate::format::payload::{self, END_LEN, QueueState};
use crate::units::{LogOffset, Sequence, index, narrow, wide};
use crate::view::QueueNo;
use crate::view::queue::{Queue, Slot};

/// Bytes of log between an original and its last copy.
const APART: u64 = 4096;
/// Items that wait; further ones have to do with one record.
const ITEMS_MAX: usize = 16 << 10;
/// Queue ends that wait; the oldest ones have to do with fewer copies.
const ENDS_MAX: usize = 64 << 10;
/// Bytes of ends in one group.
const ENDS_BYTES_MAX: usize = 32 << 10;
/// Bytes of other copies in one group, unless a single one is longer.
const ITEMS_BYTES_MAX: usize = 32 << 10;

/// What is logged again.
pub(super) enum What {
    /// The fact with this key, unless it has been given another value since this group.
    Fact(Box<[u8]>, Sequence),
    State(QueueNo),
    Deletion(QueueNo, LogOffset),
    Trim(u64),
}

struct Item {
    what: What,
    /// Bytes of its record.
    len: usize,
    /// Where the group of the original ended, once it has; see [`Repeats::log_bytes`].
    end: Option<u64>,
}

/// The offset at which a queue went on behind a group.
struct End {
    queue: u32,
    next: u64,
    /// Where the group ended, once it has.
    end: u64,
    /// The queue has a newer one, or is gone.
    is_old: bool,
}

/// What waits to be logged again.
#[derive(Default)]
pub(crate) struct Repeats {
    items: VecDeque<Item>,
    /// Oldest first; those of the open group are the last.
    ends: VecDeque<End>,
    /// How many ends have left at the front, to find one again by its number.
    ends_left: u32,
    /// How many are of the open group.
    ends_open: usize,
    /// How many of closed groups are not old.
    ends_waiting: usize,
    /// Bytes of log behind the start of this life.
    log_bytes: u64,
}

impl Repeats {
    /// Those of a life that goes on behind this group.
    pub(crate) fn behind(last: Option<&Group<'_>>) -> Self {
        let mut repeats = Self::default();
        if let Some(group) = last {
            repeats.note_group(group);
        }
        repeats
    }

    /// Everything that a group holds which is to be repeated.
    pub(super) fn note_group(&mut self, group: &Group<'_>) {
        for record in group.records().filter(|record| record.is_sound()) {
            let (queue, bytes) = (QueueNo(record.entry.queue), record.bytes);
            let what = match record.entry.kind {
                Kind::Fact => payload::parse_fact(bytes)
                    .map(|(key, _)| What::Fact(key.into(), group.header.sequence)),
                Kind::QueueState => Some(What::State(queue)),
                Kind::QueueDeletion => {
                    payload::parse_deletion(bytes).map(|known| What::Deletion(queue, known))
                }
                Kind::Trim => payload::parse_trim(bytes).map(What::Trim),
                Kind::Message | Kind::Ends | Kind::Note => None,
            };
            if let Some(what) = what {
                self.note(what, bytes.len());
            }
        }
        self.note_ends(group);
    }

    /// Something was logged with a record of `len` bytes. False when there is no room for it here.
    pub(super) fn note(&mut self, what: What, len: usize) -> bool {
        let has_room = self.items.len() < ITEMS_MAX;
        if has_room {
            self.items.push_back(Item { what, len, end: None });
        }
        has_room
    }

    /// The records that the open group has of a queue bring it to `next`. `number` is the queue's
    /// own, and tells where its newest end is.
    pub(super) fn note_end(&mut self, queue: QueueNo, next: u64, number: &mut u32) {
        let at = index(u64::from(number.wrapping_sub(self.ends_left)));
        let closed = self.ends.len() - self.ends_open;
        match self.ends.get_mut(at) {
            Some(end) if at >= closed && end.queue == queue.0 && !end.is_old => end.next = next,
            _ => {
                self.retire_end(queue, *number);
                *number = self.ends_left.wrapping_add(narrow(self.ends.len()));
                self.push_end(queue.0, next);
            }
        }
    }

    /// The open group tells a newer end of the queue, whose last one has this number.
    fn retire_end(&mut self, queue: QueueNo, number: u32) {
        let at = index(u64::from(number.wrapping_sub(self.ends_left)));
        let end = self.ends.get_mut(at).filter(|end| end.queue == queue.0 && !end.is_old);
        if let Some(end) = end {
            end.is_old = true;
            self.ends_waiting -= 1;
        }
    }

    fn push_end(&mut self, queue: u32, next: u64) {
        self.ends.push_back(End { queue, next, end: 0, is_old: false });
        self.ends_open += 1;
    }

    /// The ends of a whole group, by its records and by the copies in it.
    fn note_ends(&mut self, group: &Group<'_>) {
        for record in group.records() {
            match record.entry.kind {
                Kind::Message => {
                    let (queue, next) = (record.entry.queue, record.entry.queue_offset + 1);
                    match self.ends.back_mut() {
                        Some(last) if last.queue == queue => last.next = next,
                        _ => self.push_end(queue, next),
                    }
                }
                Kind::Ends => {
                    payload::ends(record.bytes)
                        .for_each(|(queue, next)| self.push_end(queue, next));
                }
                _ => {}
            }
        }
        self.group_closed(0);
    }

    /// The open group was closed with this length.
    pub(super) fn group_closed(&mut self, padded: usize) {
        self.log_bytes += wide(padded);
        let closed = self.ends.len() - self.ends_open;
        for end in self.ends.range_mut(closed..) {
            end.end = self.log_bytes;
            self.ends_waiting += usize::from(!end.is_old);
        }
        self.ends_open = 0;
        while self.ends.len() > ENDS_MAX {
            self.drop_end();
        }
    }

    /// Drops the oldest end, which is of a closed group.
    fn drop_end(&mut self) {
        if let Some(end) = self.ends.pop_front() {
            self.ends_waiting -= usize::from(!end.is_old);
            self.ends_left = self.ends_left.wrapping_add(1);
        }
    }

    /// A queue is deleted: its number may become another one's.
    pub(super) fn forget_queue(&mut self, queue: QueueNo) {
        let closed = self.ends.len() - self.ends_open;
        for (at, end) in self.ends.iter_mut().enumerate().filter(|(_, end)| end.queue == queue.0) {
            self.ends_waiting -= usize::from(at < closed && !end.is_old);
            end.is_old = true;
        }
    }

    /// What was appended may have been cut off.
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.ends_left = self.ends_left.wrapping_add(narrow(self.ends.len()));
        self.ends.clear();
        self.ends_open = 0;
        self.ends_waiting = 0;
    }

    /// Bytes that the next group should have for copies, their table entries included.
    pub(super) fn wanted_len(&self) -> usize {
        let mut bytes = 0;
        for item in &self.items {
            if bytes > 0 && bytes + item.len > ITEMS_BYTES_MAX {
                break;
            }
            bytes += item.len + ENTRY_LEN;
        }
        match self.ends_waiting.min(ENDS_BYTES_MAX / END_LEN) {
            0 => bytes,
            count => bytes + ENTRY_LEN + count * END_LEN,
        }
    }

    /// Adds ends to a group that has just been opened, as far as `room` goes.
    fn add_ends(&mut self, open: &mut OpenGroup, room: usize) {
        let room = room.saturating_sub(ENTRY_LEN).min(ENDS_BYTES_MAX);
        let count = self.ends_waiting.min(room / END_LEN);
        if count == 0 {
            return;
        }
        let waiting = self.ends.iter().filter(|end| !end.is_old).take(count);
        let ends = waiting.map(|end| (end.queue, end.next));
        open.push_copy(count * END_LEN, (Kind::Ends, 0), |dst| payload::write_ends(ends, dst));
        let start = self.log_bytes;
        let mut told = 0;
        while let Some(end) = self.ends.front() {
            told += usize::from(!end.is_old);
            if !end.is_old && (told > count || end.end + APART > start) {
                break;
            }
            self.drop_end();
        }
    }
}

impl Shard {
    /// Adds copies to the group that has just been opened, and leaves room for `records_len` bytes of
    /// `count` records. Those that come first tell themselves where their queue goes on.
    pub(super) fn add_repeats(
        &mut self,
        records_len: usize,
        count: usize,
        messages_of: Option<QueueNo>,
    ) {
        let Some(mut open) = self.open.take() else { return };
        if let Some((queue, known)) = messages_of.and_then(|of| Some((of, self.views.queue(of)?))) {
            self.repeats.retire_end(queue, known.end_noted);
        }
        let wanted = records_len + count * ENTRY_LEN;
        let room = open.room().saturating_sub(wanted);
        self.repeats.add_ends(&mut open, room);
        let start = self.repeats.log_bytes;
        let mut waiting = std::mem::take(&mut self.repeats.items);
        let mut bytes = 0;
        while let Some(mut item) = waiting.pop_front() {
            let Some((kind, queue, copy)) = self.copy_of(&item.what) else { continue };
            let enough = bytes > 0 && bytes + copy.len() > ITEMS_BYTES_MAX;
            if enough || open.room() < wanted + copy.len() + ENTRY_LEN {
                waiting.push_front(item);
                break;
            }
            bytes += copy.len() + ENTRY_LEN;
            open.push_copy(copy.len(), (kind, queue), |dst| dst.copy_from_slice(&copy));
            self.stats.records += 1;
            if *item.end.get_or_insert(start) + APART > start {
                self.repeats.items.push_back(item);
            }
        }
        self.repeats.items.append(&mut waiting);
        self.open = Some(open);
    }

    /// The record that says the same again; `None` when it is not true any more.
    fn copy_of(&self, what: &What) -> Option<(Kind, u32, Vec<u8>)> {
        match what {
            What::Fact(key, since) => {
                let value = self.views.facts.unchanged_since(key, *since)?;
                Some((Kind::Fact, 0, payload::fact(key, value)))
            }
            What::State(number) => {
                let queue = self.views.queue(*number)?;
                let lives = matches!(queue.slot, Slot::Opened | Slot::Live);
                let incarnation = queue.incarnation().filter(|_| lives)?;
                Some((Kind::QueueState, number.0, state_of(queue, incarnation)))
            }
            What::Deletion(number, incarnation) => {
                let queue = self.views.queue(*number)?;
                let gone = matches!(queue.slot, Slot::Leaving | Slot::Deleted { .. })
                    && queue.incarnation() == Some(*incarnation);
                let copy = payload::deletion(*incarnation).to_vec();
                gone.then_some((Kind::QueueDeletion, number.0, copy))
            }
            What::Trim(below) => Some((Kind::Trim, 0, payload::trim(*below).to_vec())),
        }
    }
}

/// The record with a queue's state.
pub(super) fn state_of(queue: &Queue, incarnation: LogOffset) -> Vec<u8> {
    let (next, min, key) = (queue.next(), queue.min(), queue.key());
    let state = QueueState { incarnation, next, min, key };
    let mut bytes = vec![0; state.len()];
    state.write(&mut bytes);
    bytes
}
