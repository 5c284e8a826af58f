//! Segments are created and zeroed ahead of the writer, so that a flush is one device write into
//! blocks that exist already.

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
/// After the device was full, a segment is tried again this much later.
const RETRY_MS: u64 = 500;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing is under way.
    Idle,
    Creating,
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
    step: Step,
    now: EpochMillis,
    zeros: Option<RecordSlice>,
    /// It has been said that there is no room, and there has been none since.
    told: bool,
}

impl Segments {
    pub(super) fn new(existing: &[(u64, u64)], len: u64) -> Self {
        Self {
            prepared: existing.iter().copied().collect(),
            len,
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

    pub(super) fn refusal(&self) -> AppendError {
        match self.step {
            Step::Full { .. } => AppendError::DiskFull,
            _ => AppendError::Backlogged,
        }
    }

    pub(super) fn tick(&mut self, now: EpochMillis) {
        self.now = now;
        if matches!(self.step, Step::Full { until } if until <= now) {
            self.step = Step::Idle;
        }
    }

    /// The first segment from `head` on that is not prepared to its end; the one behind the head
    /// is the last that is wanted.
    fn wanted(&self, head: u64) -> Option<(u64, u64)> {
        (head..=head + 1)
            .map(|ordinal| (ordinal, self.prepared.get(&ordinal).copied()))
            .find(|&(_, prepared)| prepared != Some(self.len))
            .map(|(ordinal, prepared)| (ordinal, prepared.unwrap_or(u64::MAX)))
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
        self.poison.is_none() && self.segments.wanted(self.head.ordinal).is_some()
    }

    /// Starts the next step of preparation, if one is due.
    pub(super) fn prepare_more(&mut self) {
        if self.poison.is_some() || self.segments.step != Step::Idle {
            return;
        }
        let Some((ordinal, prepared)) = self.segments.wanted(self.head.ordinal) else { return };
        if prepared == u64::MAX {
            self.segments.step = Step::Creating;
            let id = self.op(Purpose::Create { ordinal });
            let len = self.geometry.segment_len();
            self.ops.push_back(Op::CreateSegment { id, ordinal, len });
            return;
        }
        let ahead = (ordinal - self.head.ordinal) * self.segments.len + prepared;
        let ahead = ahead.saturating_sub(self.head.byte);
        let others_wait = self.unwritten() > 0 || self.cold.is_loading();
        if ahead >= AHEAD_MIN && others_wait {
            return;
        }
        self.zero(ordinal, prepared);
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
