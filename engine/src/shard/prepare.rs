//! Segments are there ahead of the writer, so that a flush is one device write into blocks that exist
//! already: recycled ones as they are, new ones zeroed.

use std::collections::BTreeMap;
use std::io;

use super::{Purpose, Shard};
use crate::error::AppendError;
use crate::layout::Place;
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{FileId, Op};
use crate::units::{EpochMillis, index, wide};

/// How much one write zeroes.
const ZERO_LEN: usize = 2 << 20;
/// Zeroing pauses while groups or readers wait for the device, unless less than this is prepared.
const AHEAD_MIN: u64 = 64 << 20;
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
    Zeroing,
    /// The device was full; no attempt until then.
    Full {
        until: EpochMillis,
    },
}

pub(super) struct Segments {
    /// Bytes of each segment that may be written, by ordinal.
    prepared: BTreeMap<u64, u64>,
    len: u64,
    /// What messages leave to facts.
    reserve: u64,
    /// What is wanted beyond the reserve.
    need: u64,
    /// What the file system had free when it was last asked.
    free: u64,
    step: Step,
    now: EpochMillis,
    zeros: Option<RecordSlice>,
    /// It has been said that there is no room, and there has been none since.
    told: bool,
}

impl Segments {
    pub(super) fn new(existing: &[(u64, u64)], len: u64, reserve: u64) -> Self {
        Self {
            prepared: existing.iter().copied().collect(),
            len,
            reserve,
            need: len / 4,
            free: 0,
            step: Step::Idle,
            now: EpochMillis::default(),
            zeros: None,
            told: false,
        }
    }

    pub(super) fn exists(&self, ordinal: u64) -> bool {
        self.prepared.contains_key(&ordinal)
    }

    /// Bytes that may be written from `place` on.
    pub(super) fn prepared(&self, place: Place) -> usize {
        let prepared = self.prepared.get(&place.ordinal).copied().unwrap_or(0);
        index(prepared.saturating_sub(place.byte))
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
        self.now = now;
        // A clock that was set back must not make the pause longer.
        let over = |until: EpochMillis| until <= now || until.since(now) > RETRY_MS;
        if matches!(self.step, Step::Full { until } if over(until)) {
            self.step = Step::Idle;
        }
    }

    /// The first segment from `head` on that is not prepared to its end, and the bytes of it that
    /// are, or `None` if it does not exist. The one behind the head is always wanted, further ones for
    /// the reserve.
    fn wanted(&self, head: Place) -> Option<(u64, Option<u64>)> {
        let is_wanted = |ordinal: u64| {
            let before = ((ordinal - head.ordinal) * self.len).saturating_sub(head.byte);
            ordinal <= head.ordinal + 1 || before < self.reserve + self.need
        };
        (head.ordinal..)
            .take_while(|&ordinal| is_wanted(ordinal))
            .map(|ordinal| (ordinal, self.prepared.get(&ordinal).copied()))
            .find(|&(_, prepared)| prepared != Some(self.len))
    }

    fn zeros(&mut self) -> &RecordSlice {
        let len = index(self.len).min(ZERO_LEN);
        self.zeros.get_or_insert_with(|| ChunkTail::alone(len).freeze(len))
    }

    fn full(&mut self) {
        self.step = Step::Full { until: EpochMillis::new(self.now.get() + RETRY_MS.cast_signed()) };
    }
}

impl Shard {
    /// True while segments are still to be made ready for appends: the device is also busy with that.
    pub fn is_preparing(&self) -> bool {
        self.poison.is_none() && self.segments.wanted(self.head).is_some()
    }

    /// Starts the next step of preparation, if one is due.
    pub(super) fn prepare_more(&mut self) {
        if self.poison.is_some() {
            return;
        }
        let Some((ordinal, prepared)) = self.segments.wanted(self.head) else { return };
        let Some(prepared) = prepared else {
            self.get_segment(ordinal);
            return;
        };
        if self.segments.step != Step::Idle {
            return;
        }
        let ahead = (ordinal - self.head.ordinal) * self.segments.len + prepared;
        let ahead = ahead.saturating_sub(self.head.byte);
        let others_wait = self.unwritten > 0 || self.cold.is_loading();
        if ahead >= AHEAD_MIN && others_wait {
            return;
        }
        self.zero(ordinal, prepared);
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
            Step::Idle | Step::Asking | Step::Zeroing => {
                self.may_grow() || self.retention.has_spare()
            }
        }
    }

    /// Why an append finds no log.
    pub(super) fn refusal(&self) -> AppendError {
        let stuck = !self.may_grow() && self.retention.is_blocked();
        if self.segments.is_full() || stuck { self.disk_full() } else { AppendError::Backlogged }
    }

    pub(super) fn disk_full(&self) -> AppendError {
        AppendError::DiskFull(self.disk_use())
    }

    pub(super) fn free_space_known(&mut self, result: io::Result<usize>, now: EpochMillis) {
        self.segments.now = now;
        let wanted = self.segments.wanted(self.head);
        let Some((ordinal, None)) = wanted else {
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

    pub(super) fn segment_recycled(
        &mut self,
        from: u64,
        to: u64,
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        self.segments.now = now;
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

    fn zero(&mut self, ordinal: u64, from: u64) {
        let len = index(self.segments.len - from).min(ZERO_LEN);
        let Some(data) = self.segments.zeros().part(0..len) else { return };
        self.segments.step = Step::Zeroing;
        let id = self.op(Purpose::Zero { ordinal, end: from + wide(len) });
        self.ops.push_back(Op::Write { id, file: FileId::Segment(ordinal), at: from, data });
    }

    pub(super) fn segment_created(
        &mut self,
        ordinal: u64,
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        self.segments.now = now;
        match result {
            Ok(_) => {
                self.segments.step = Step::Idle;
                self.segments.told = false;
                self.segments.prepared.insert(ordinal, 0);
            }
            Err(cause) => self.not_prepared(ordinal, &cause),
        }
    }

    pub(super) fn segment_zeroed(
        &mut self,
        ordinal: u64,
        end: u64,
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        self.segments.now = now;
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
        self.segments.full();
        // Whoever waits for room is told that there is none.
        self.room = true;
    }
}
