//! Segments are there ahead of the writer, so that a flush is one device write into blocks that exist
//! already: recycled ones as they are, new ones zeroed.
//!
//! Zeroing doubles what the device has to write. While writes are so large that the device's bytes are
//! the limit, nothing is zeroed, and the writer goes on in space that is only reserved: the file system
//! then notes with each write that the blocks hold something, which costs a large write less than its
//! zeros would. Such space reads as zeros until then, so recovery sees no difference. Groups end on a
//! page there: the file system takes writes of parts of a page that holds nothing one at a time.

use std::collections::BTreeMap;
use std::io;

use super::append::OpenGroup;
use super::{Purpose, Shard};
use crate::error::AppendError;
use crate::layout::Place;
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{FileId, Op};
use crate::units::{EpochMillis, index, wide};

/// How much one write zeroes at most, when nothing else is written or all that is prepared is nearly
/// used up.
const ZERO_LEN: usize = 2 << 20;
/// The same while groups are written: one of them waits no longer than that.
const ZERO_PART: usize = 256 << 10;
/// Zeroing keeps to its pace while groups are written, and pauses while they or readers wait for the
/// device, unless less than this is prepared.
const AHEAD_MIN: u64 = 64 << 20;
/// Below this zeros do not keep up in small writes, each of which waits for the file system to note it.
const AHEAD_LESS: u64 = AHEAD_MIN / 4 * 3;
/// What is prepared is nearly used up below this.
const AHEAD_LEAST: u64 = AHEAD_MIN / 8;
/// The pace: how many bytes are zeroed for each that is logged.
const PACE: u64 = 2;
/// The unit in which the file system notes that reserved space holds something.
const PAGE: u64 = 4096;
/// The part of a full group that writes have on average when they are large.
const LARGE_PART: usize = 6;
/// How many writes the average is taken over.
const LENS: usize = 8;
/// What is left of the device for checkpoints and small files: a store must open on a full one.
const FREE_BYTES_MIN: u64 = 128 << 20;
/// The same in segments, for small ones.
const FREE_SEGMENTS_MIN: u64 = 16;
/// After the device was full, a segment is tried again this much later.
const RETRY_MS: u64 = 500;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing is under way.
    Idle,
    /// The file system is asked for its free space.
    Asking,
    Creating,
    Recycling,
    /// From this byte of this segment on.
    Zeroing {
        ordinal: u64,
        from: u64,
    },
    /// The device was full; no attempt until then.
    Full {
        until: EpochMillis,
    },
}

/// How fast to zero beside the groups that are written.
struct Pace {
    /// Bytes that the next write may zero.
    len: usize,
    /// Bytes that may be zeroed for what was logged.
    credit: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { len: ZERO_PART, credit: 0 }
    }
}

impl Pace {
    fn group_closed(&mut self, len: usize) {
        self.credit = (self.credit + wide(len) * PACE).min(wide(ZERO_LEN));
        self.len = ZERO_PART;
    }

    /// Bytes to zero now with so many ahead of the writer; `None` when it is not time yet. Beside
    /// appends, zeros do not follow each other, however seldom these are: one of them would wait.
    fn next_len(&self, ahead: u64, beside_appends: bool) -> Option<usize> {
        let is_due = !beside_appends || ahead < AHEAD_MIN || self.credit >= wide(self.len);
        let len = match ahead {
            ..AHEAD_LEAST => ZERO_LEN,
            AHEAD_LEAST..AHEAD_LESS => self.len.max(ZERO_LEN / 2),
            _ => self.len,
        };
        is_due.then_some(len)
    }

    /// As long as no group comes between, the writes grow.
    fn issued(&mut self, len: usize) {
        self.credit = self.credit.saturating_sub(wide(len));
        self.len = (self.len * 2).min(ZERO_LEN);
    }
}

pub(super) struct Segments {
    /// Bytes of each segment that are zeroed, or were written in an earlier life, by ordinal.
    prepared: BTreeMap<u64, u64>,
    len: u64,
    /// Average of the last writes of groups.
    write_len: usize,
    /// What messages leave to facts.
    reserve: u64,
    /// What is wanted beyond the reserve.
    need: u64,
    /// What the file system had free when it was last asked.
    free: u64,
    step: Step,
    pace: Pace,
    zeros: Option<RecordSlice>,
    /// It has been said that there is no room, and there has been none since.
    told: bool,
}

impl Segments {
    pub(super) fn new(existing: &[(u64, u64)], len: u64, reserve: u64) -> Self {
        Self {
            prepared: existing.iter().copied().collect(),
            len,
            write_len: 0,
            reserve,
            need: len / 4,
            free: 0,
            step: Step::Idle,
            pace: Pace::default(),
            zeros: None,
            told: false,
        }
    }

    pub(super) fn exists(&self, ordinal: u64) -> bool {
        self.prepared.contains_key(&ordinal)
    }

    /// Bytes that may be written from `place` on. `large` says that writes are.
    fn writable(&self, place: Place, large: bool) -> usize {
        let Some(&prepared) = self.prepared.get(&place.ordinal) else { return 0 };
        // What was written last has the whole of its last page.
        let prepared = prepared.max(place.byte.next_multiple_of(PAGE).min(self.len));
        let end = match self.step {
            _ if !large => prepared,
            Step::Zeroing { ordinal, from } if ordinal == place.ordinal => from,
            _ => self.len,
        };
        index(end.max(prepared).saturating_sub(place.byte))
    }

    /// Bytes by which a group of `len` bytes at `place` is to grow to end on a page; `None` when it
    /// may end anywhere, or would become much longer.
    pub(super) fn missing_to_page(&self, place: Place, len: usize) -> Option<usize> {
        let end = place.byte + wide(len);
        let prepared = self.prepared.get(&place.ordinal).copied().unwrap_or(0);
        let missing = index(end.next_multiple_of(PAGE) - end);
        (end > prepared && missing > 0 && missing <= len / 4).then_some(missing)
    }

    /// How much of `room` bytes at `place` a group may use that needs `len_min`, to end on a page.
    pub(super) fn on_page(&self, place: Place, len_min: usize, room: usize) -> usize {
        let end = place.byte + wide(room);
        let prepared = self.prepared.get(&place.ordinal).copied().unwrap_or(0);
        let on_page = room.saturating_sub(index(end % PAGE));
        if end > prepared && on_page >= len_min { on_page } else { room }
    }

    pub(super) fn group_closed(&mut self, len: usize) {
        self.pace.group_closed(len);
    }

    pub(super) fn write_issued(&mut self, len: usize) {
        self.write_len = (self.write_len * (LENS - 1) + len) / LENS;
    }

    pub(super) fn count(&self) -> u64 {
        wide(self.prepared.len())
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free
    }

    pub(super) fn forget(&mut self, ordinal: u64) {
        self.prepared.remove(&ordinal);
    }

    /// Bytes of log from `place` on that have their space.
    fn ahead(&self, place: Place) -> u64 {
        let behind = self.prepared.last_key_value().map_or(0, |(&last, _)| last + 1);
        (behind.saturating_sub(place.ordinal) * self.len).saturating_sub(place.byte)
    }

    /// True when a message of `len` bytes at `place` leaves the reserve. If not, more is wanted.
    pub(super) fn keeps_reserve(&mut self, head: Place, place: Place, len: u64) -> bool {
        let keeps = self.ahead(place) >= self.reserve + len;
        if !keeps {
            let skipped = self.ahead(head).saturating_sub(self.ahead(place));
            self.need = self.need.max(skipped + len);
        }
        keeps
    }

    fn is_full(&self) -> bool {
        matches!(self.step, Step::Full { .. })
    }

    pub(super) fn tick(&mut self, now: EpochMillis) {
        // A clock that was set back must not make the pause longer.
        let over = |until: EpochMillis| until <= now || until.since(now) > RETRY_MS;
        if matches!(self.step, Step::Full { until } if over(until)) {
            self.step = Step::Idle;
        }
    }

    /// The segments that should be there. The one behind the head is always wanted, further ones for
    /// the reserve.
    fn wanted(&self, head: Place) -> impl Iterator<Item = u64> {
        let is_wanted = move |ordinal: u64| {
            let before = ((ordinal - head.ordinal) * self.len).saturating_sub(head.byte);
            ordinal <= head.ordinal + 1 || before < self.reserve + self.need
        };
        (head.ordinal..).take_while(move |&ordinal| is_wanted(ordinal))
    }

    /// The first segment from `head` on that should be there and is not.
    fn missing(&self, head: Place) -> Option<u64> {
        self.wanted(head).find(|&ordinal| !self.exists(ordinal))
    }

    /// The first segment from `head` on that is not zeroed to its end, and where zeroing goes on,
    /// behind all that the writer has or may have used.
    fn unzeroed(&self, head: Place) -> Option<(u64, u64)> {
        self.wanted(head).find_map(|ordinal| {
            let prepared = self.prepared.get(&ordinal).copied()?;
            let used = if ordinal == head.ordinal { head.byte.next_multiple_of(PAGE) } else { 0 };
            let from = prepared.max(used);
            (from < self.len).then_some((ordinal, from))
        })
    }

    fn zeros(&mut self) -> &RecordSlice {
        let len = index(self.len).min(ZERO_LEN);
        self.zeros.get_or_insert_with(|| ChunkTail::alone(len).freeze(len))
    }

    fn full(&mut self, now: EpochMillis) {
        self.step = Step::Full { until: EpochMillis::new(now.get() + RETRY_MS.cast_signed()) };
    }
}

impl Shard {
    /// True while segments are still to be made ready for appends: the device is also busy with that.
    pub fn is_preparing(&self) -> bool {
        let Self { segments, head, .. } = self;
        self.poison.is_none()
            && (segments.missing(*head).is_some() || segments.unzeroed(*head).is_some())
    }

    /// Whether writes are large enough to do without zeros.
    fn has_large_writes(&self) -> bool {
        self.segments.write_len >= self.limits.group_bytes / LARGE_PART
    }

    /// Bytes of log that a group at `place` may use.
    pub(super) fn writable(&self, place: Place) -> usize {
        self.segments.writable(place, self.has_large_writes())
    }

    /// What has been the length of writes says nothing about what comes after a pause.
    pub(super) fn forget_write_len_if_idle(&mut self) {
        if self.open.is_none() && self.pending.is_empty() {
            self.segments.write_len = 0;
        }
    }

    /// Starts the next step of preparation, if one is due.
    pub(super) fn prepare_more(&mut self) {
        if self.poison.is_some() {
            return;
        }
        let used = self.open.as_ref().map_or(self.head, OpenGroup::end_of_room);
        let missing = self.segments.missing(self.head);
        let to_zero = self.segments.unzeroed(used).filter(|&(ordinal, _)| {
            !self.has_large_writes() && missing.is_none_or(|missing| ordinal < missing)
        });
        let Some((ordinal, from)) = to_zero else {
            if let Some(missing) = missing {
                self.get_segment(missing);
            }
            return;
        };
        if self.segments.step != Step::Idle {
            return;
        }
        let ahead = (ordinal - used.ordinal) * self.segments.len + from;
        let ahead = ahead.saturating_sub(used.byte);
        let reads = self.cold.is_loading() || self.spots.is_loading();
        let others_wait = self.has_due_writes() || reads;
        if ahead >= AHEAD_MIN && others_wait {
            return;
        }
        if let Some(len) = self.segments.pace.next_len(ahead, self.has_appends()) {
            self.zero(ordinal, from, len);
        }
    }

    /// Takes a segment that retention has let go, or a new one if the budget allows.
    fn get_segment(&mut self, ordinal: u64) {
        if !matches!(self.segments.step, Step::Idle | Step::Full { .. }) {
            return;
        }
        if let Some(from) = self.retention.take_spare() {
            self.segments.step = Step::Recycling;
            let id = self.op(Purpose::Recycle { from, to: ordinal });
            self.ops.push_back(Op::RecycleSegment { id, from, to: ordinal });
        } else if self.segments.step == Step::Idle && self.may_grow() {
            self.segments.step = Step::Asking;
            let id = self.op(Purpose::FreeSpace);
            self.ops.push_back(Op::FreeSpace { id });
        }
    }

    /// True when another segment is being made, or nothing stands against it.
    pub(super) fn more_is_coming(&self) -> bool {
        match self.segments.step {
            Step::Full { .. } => false,
            Step::Creating | Step::Recycling => true,
            Step::Idle | Step::Asking | Step::Zeroing { .. } => {
                self.may_grow() || self.retention.has_spare()
            }
        }
    }

    /// True when `len` bytes at `place` only wait for their zeros.
    pub(super) fn is_reserved(&self, place: Place, len: usize) -> bool {
        self.segments.exists(place.ordinal) && place.byte + wide(len) <= self.segments.len
    }

    /// Why an append finds no log.
    pub(super) fn refusal(&self) -> AppendError {
        let stuck = !self.may_grow() && self.retention.is_blocked();
        if self.segments.is_full() || stuck { self.disk_full() } else { AppendError::Backlogged }
    }

    pub(super) fn disk_full(&self) -> AppendError {
        AppendError::DiskFull(self.disk_use())
    }

    pub(super) fn free_space_known(&mut self, result: io::Result<usize>) {
        let Some(ordinal) = self.segments.missing(self.head) else {
            self.segments.step = Step::Idle;
            return;
        };
        let len = self.segments.len;
        let left = FREE_BYTES_MIN.min(len.saturating_mul(FREE_SEGMENTS_MIN));
        match result {
            Ok(free) => {
                self.segments.free = wide(free);
                if self.segments.free < len.saturating_add(left) {
                    self.not_prepared(ordinal, &io::ErrorKind::StorageFull.into());
                    return;
                }
                self.segments.step = Step::Creating;
                let id = self.op(Purpose::Create { ordinal });
                self.ops.push_back(Op::CreateSegment { id, ordinal, len });
            }
            Err(cause) => self.not_prepared(ordinal, &cause),
        }
    }

    pub(super) fn segment_recycled(&mut self, from: u64, to: u64, result: io::Result<usize>) {
        match result {
            Ok(_) => {
                self.segments.step = Step::Idle;
                self.segments.told = false;
                // What was written to it has its blocks, whatever it says.
                self.segments.prepared.insert(to, self.segments.len);
            }
            Err(cause) => {
                self.not_prepared(to, &cause);
                self.keep_spare(from);
            }
        }
    }

    pub(super) fn segment_removed(&mut self, ordinal: u64, result: io::Result<usize>) {
        if let Err(cause) = result {
            let shard = self.geometry.shard();
            tracing::warn!(shard, ordinal, %cause, "a segment that is not needed stays");
        }
    }

    fn zero(&mut self, ordinal: u64, from: u64, len_max: usize) {
        let len = index(self.segments.len - from).min(len_max);
        self.segments.pace.issued(len);
        let Some(data) = self.segments.zeros().part(0..len) else { return };
        self.segments.step = Step::Zeroing { ordinal, from };
        let id = self.op(Purpose::Zero { ordinal, end: from + wide(len) });
        self.ops.push_back(Op::Write { id, file: FileId::Segment(ordinal), at: from, data });
    }

    pub(super) fn segment_created(&mut self, ordinal: u64, result: io::Result<usize>) {
        match result {
            Ok(_) => {
                self.segments.step = Step::Idle;
                self.segments.told = false;
                self.segments.prepared.insert(ordinal, 0);
            }
            Err(cause) => self.not_prepared(ordinal, &cause),
        }
    }

    pub(super) fn segment_zeroed(&mut self, ordinal: u64, end: u64, result: io::Result<usize>) {
        match result {
            Ok(_) => {
                self.segments.step = Step::Idle;
                self.segments.prepared.insert(ordinal, end);
            }
            Err(cause) => self.not_prepared(ordinal, &cause),
        }
    }

    /// A full device is a state to wait out; nothing that was acknowledged is touched by it.
    fn not_prepared(&mut self, ordinal: u64, cause: &io::Error) {
        if !std::mem::replace(&mut self.segments.told, true) {
            let segment_len = self.geometry.segment_len();
            tracing::warn!(
                shard = self.geometry.shard(), ordinal, segment_len, %cause,
                "no room for another segment and the reserve; appends that do not fit the current \
                 one are refused until there is"
            );
        }
        self.segments.full(self.now);
        // Whoever waits for room is told that there is none.
        self.room = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_follow_each_other_only_when_nothing_else_is_written() {
        let mut pace = Pace::default();
        pace.group_closed(ZERO_PART / 2);
        assert_eq!(pace.next_len(AHEAD_MIN, true), Some(ZERO_PART));
        pace.issued(ZERO_PART);
        assert_eq!(pace.next_len(AHEAD_MIN, true), None, "all that was logged has its zeros");
        assert!(pace.next_len(AHEAD_MIN - 1, true).is_some(), "little is prepared");
        pace.group_closed(512);
        for len in [1, 2, 4].map(|times| times * ZERO_PART) {
            assert_eq!(pace.next_len(AHEAD_MIN, false), Some(len));
            pace.issued(len);
        }
        pace.group_closed(512);
        assert_eq!(pace.next_len(AHEAD_MIN, false), Some(ZERO_PART));
        assert_eq!(pace.next_len(AHEAD_MIN, true), None);
    }
}
