//! Retention: the oldest segment is used again once its age or the budget says so.
//!
//! In this order, each step a bounded part per turn:
//!
//! 1. **Sweep.** Facts and queue states whose newest record lies in the segment are appended again at
//!    the head, then a trim says up to which segment that was done, and has to be on the device. To do
//!    it seldom, a sweep clears an eighth of the kept segments at once.
//! 2. **Checkpoints.** Two durable ones replay from behind the segment, or none counts.
//! 3. **Ends.** What the index has about the segment (see `view::ends`) raises the minimum offset of
//!    the queues that had records there; the embedder learns which through
//!    [`Shard::take_trimmed`].
//! 4. **Release.** When no read of the segment is under way and nobody holds it, it becomes the next
//!    segment ahead of the writer by a rename, or is removed when none is needed.
//!
//! After step 1 the log behind the segment is enough to rebuild everything, after step 2 opening never
//! looks for it, after step 3 no reader does. A crash in between leaves a segment that is merely kept
//! longer.
//!
//! Appends are refused only while the log may not grow and no segment can be released: another process
//! has filled the file system, a hold is in the way, or checkpoints cannot be written.

use slab::Slab;

use super::cold::Miss;
use super::repeat::{What, state_of};
use super::{Purpose, Shard};
use crate::error::{AppendError, DiskUse};
use crate::format::group::Kind;
use crate::format::index_block;
use crate::format::payload;
use crate::op::{FileId, Op};
use crate::units::{EpochMillis, LogOffset, QueueOffset, Sequence, narrow, wide};
use crate::view::{QueueNo, queue::Slot};

/// What a turn appends again at most.
const SWEEP_BYTES: usize = 64 << 10;
/// Facts or queues that a turn looks at.
const SWEEP_ITEMS: usize = 1000;
/// Steps of a turn.
const STEPS_MAX: usize = 4;
/// Notices that are kept for an embedder that does not take them.
const TRIMMED_MAX: usize = 1 << 20;
/// How often a part of the index is read before it counts as damaged.
const FAILURES_MAX: u32 = 8;
/// Holds at once.
const HOLDS_MAX: usize = 1024;

/// A queue whose oldest records were given up by retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// The queue.
    pub queue: QueueNo,
    /// The first offset that could be read before.
    pub from: QueueOffset,
    /// The first offset that can be read now; everything before it is gone.
    pub to: QueueOffset,
}

/// Keeps segments from being recycled until it is given to [`Shard::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct Hold(usize);

enum Sweep {
    Idle,
    /// Looks at the facts behind this one.
    Facts {
        below: u64,
        behind: Option<Box<[u8]>>,
    },
    /// Looks at the queues from this number on.
    Queues {
        below: u64,
        next: u32,
    },
    /// The trim is appended.
    Waiting(Sequence),
}

pub(super) struct Retention {
    sweep: Sweep,
    /// The segment whose ends are being applied, and the next part of them.
    release: Option<(u64, usize)>,
    /// How often the next part could not be read.
    failures: u32,
    /// A released segment that has not been used yet.
    spare: Option<u64>,
    holds: Slab<u64>,
    trimmed: Vec<Trimmed>,
    /// Something other than time keeps the oldest segment.
    blocked: bool,
    /// The sweep has found no room at the head.
    needs_log: bool,
}

impl Retention {
    pub(super) fn new() -> Self {
        Self {
            sweep: Sweep::Idle,
            release: None,
            failures: 0,
            spare: None,
            holds: Slab::new(),
            trimmed: Vec::new(),
            blocked: false,
            needs_log: false,
        }
    }

    pub(super) fn has_spare(&self) -> bool {
        self.spare.is_some()
    }

    pub(super) fn take_spare(&mut self) -> Option<u64> {
        self.spare.take()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// What was appended again behind this group has been cut off.
    pub(super) fn start_over(&mut self, committed: Sequence) {
        if !matches!(self.sweep, Sweep::Waiting(trim) if trim <= committed) {
            self.sweep = Sweep::Idle;
        }
    }

    /// A trim is not on the device yet, although it may be committed.
    fn awaits_trim(&self) -> bool {
        matches!(self.sweep, Sweep::Waiting(_))
    }
}

impl Shard {
    /// Keeps the segment with this position, and those behind it, from being recycled. For readers
    /// that come back to older records later; a read that is under way needs none. `None` when too
    /// many holds exist or the position is not kept.
    pub fn hold(&mut self, position: LogOffset) -> Option<Hold> {
        let place = self.geometry.place(position)?;
        let kept = place.ordinal >= self.views.first && self.retention.holds.len() < HOLDS_MAX;
        let releasing = self.retention.release.is_some_and(|(ordinal, _)| ordinal == place.ordinal);
        (kept && !releasing).then(|| Hold(self.retention.holds.insert(place.ordinal)))
    }

    /// Ends a [`hold`](Self::hold).
    pub fn release(&mut self, hold: Hold) {
        let Hold(key) = hold;
        self.retention.holds.try_remove(key);
    }

    /// Moves the queues that have lost records to retention to `out`.
    pub fn take_trimmed(&mut self, out: &mut Vec<Trimmed>) {
        out.append(&mut self.retention.trimmed);
    }

    /// What the shard takes of the disk.
    pub fn disk_use(&self) -> DiskUse {
        DiskUse {
            budget_bytes: self.limits.disk_bytes,
            used_bytes: self.used_bytes(),
            free_bytes: self.segments.free_bytes(),
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let spare = u64::from(self.retention.has_spare());
        let segments = (self.segments.count() + spare) * self.geometry.segment_len();
        segments + self.views.index.live_len() + 2 * self.checkpoint.changes_len()
    }

    /// True when another segment fits the budget. What the shard cannot do without it may have in any
    /// case, so that files of the views which have grown never stop it for good: the segment that the
    /// log is in, the one behind it, the one before it until it is recycled, and one for the reserve.
    /// Facts may have used the log up to its last block; then what must be appended again before a
    /// segment can be let go gets another one.
    pub(super) fn may_grow(&self) -> bool {
        const SEGMENTS_MIN: u64 = 4;
        let segments = self.segments.count() + u64::from(self.retention.has_spare());
        segments < SEGMENTS_MIN
            || self.needs_log()
            || self.used_bytes().saturating_add(self.geometry.segment_len())
                <= self.limits.disk_bytes
    }

    fn needs_log(&self) -> bool {
        self.retention.needs_log && !self.segments.exists(self.head.ordinal + 1)
    }

    /// Takes the next steps, as far as they wait for nothing.
    pub(super) fn retain(&mut self, now: EpochMillis) {
        self.views.put_ends_aside();
        self.views.spill(self.limits.view_bytes, self.limits.key_bytes);
        for _ in 0..STEPS_MAX {
            if self.poison.is_some() || !self.retain_step(now) {
                return;
            }
        }
    }

    /// Takes one step. False when it takes an operation, or time, to go on.
    fn retain_step(&mut self, now: EpochMillis) -> bool {
        if self.retention.release.is_some() {
            return self.release_more();
        }
        if !self.is_release_due(now) {
            self.retention.blocked = false;
            self.retention.needs_log = false;
            return false;
        }
        let first = self.views.first;
        if self.views.trimmed <= first || self.retention.awaits_trim() {
            return self.sweep(now);
        }
        if self.checkpoint.replay_ordinal() <= first {
            self.retention.blocked = self.checkpoint.is_stalled();
            self.begin_checkpoint(now);
        } else if self.retention.holds.iter().any(|(_, &held)| held <= first) {
            self.retention.blocked = true;
        } else {
            self.retention.blocked = false;
            self.retention.release = Some((first, 0));
            return true;
        }
        false
    }

    /// Whether the oldest segment is sealed, and too old or in the way.
    fn is_release_due(&self, now: EpochMillis) -> bool {
        let first = self.views.first;
        if first >= self.views.covered.place.ordinal {
            return false;
        }
        let in_the_way = !self.retention.has_spare() && !self.may_grow();
        let last_time = self.views.maps.get(&first).map(crate::layout::GroupMap::last_time);
        in_the_way || last_time.is_none_or(|last| now.since(last) >= self.limits.age_ms)
    }

    fn sweep(&mut self, now: EpochMillis) -> bool {
        match &self.retention.sweep {
            Sweep::Idle => {
                let newest = self.views.covered.place.ordinal;
                let count = (newest - self.views.first).div_ceil(8);
                let below = self.views.first + count.max(1);
                self.retention.sweep = Sweep::Facts { below, behind: None };
                true
            }
            // A refusal is no harm: the next turn goes on where this one has stopped.
            Sweep::Facts { .. } | Sweep::Queues { .. } => {
                let done = self.sweep_more(now).is_ok();
                self.retention.needs_log = !done;
                done
            }
            Sweep::Waiting(sequence) => {
                let settled = self.settled() >= *sequence;
                if settled {
                    self.retention.sweep = Sweep::Idle;
                }
                settled
            }
        }
    }

    fn sweep_more(&mut self, now: EpochMillis) -> Result<(), AppendError> {
        match &self.retention.sweep {
            Sweep::Facts { below, behind } => {
                let (below, behind) = (*below, behind.clone());
                self.sweep_facts(below, behind, now)
            }
            &Sweep::Queues { below, next } => self.sweep_queues(below, next, now),
            Sweep::Idle | Sweep::Waiting(_) => Ok(()),
        }
    }

    fn sweep_facts(
        &mut self,
        below: u64,
        behind: Option<Box<[u8]>>,
        now: EpochMillis,
    ) -> Result<(), AppendError> {
        let mut bytes = 0;
        let mut found: Vec<(Box<[u8]>, Sequence, Vec<u8>)> = Vec::new();
        let mut last = None;
        let facts = self.views.facts.behind(behind.as_deref());
        for (key, state) in facts.take(SWEEP_ITEMS) {
            if bytes >= SWEEP_BYTES {
                break;
            }
            last = Some(key);
            // A value that is on its way lies at the head already.
            if state.home < below && self.views.facts.awaited(key).is_none() {
                let record = payload::fact(key, Some(state.value));
                bytes += record.len();
                found.push((key.into(), state.sequence, record));
            }
        }
        let last: Option<Box<[u8]>> = last.map(Into::into);
        for (key, since, record) in found {
            // Making room may close a group, and that takes along what is staged: a newer value of
            // this key must not be followed by the older one. In a buffered store it is committed by now.
            self.opened(record.len(), 1, now)?;
            let facts = &self.views.facts;
            let same = facts.state(&key).is_some_and(|state| state.sequence == since);
            if same && facts.awaited(&key).is_none() {
                self.append_own(Kind::Fact, 0, &record, now)?;
                self.repeats.note(What::Fact(key.clone(), since), record.len());
            }
            self.retention.sweep = Sweep::Facts { below, behind: Some(key) };
        }
        self.retention.sweep = match last {
            Some(last) => Sweep::Facts { below, behind: Some(last) },
            None => Sweep::Queues { below, next: 0 },
        };
        Ok(())
    }

    fn sweep_queues(
        &mut self,
        below: u64,
        mut next: u32,
        now: EpochMillis,
    ) -> Result<(), AppendError> {
        let mut bytes = 0;
        for _ in 0..SWEEP_ITEMS {
            let Some(queue) = self.views.queue(QueueNo(next)) else {
                let trim = payload::trim(below);
                let sequence = self.append_own(Kind::Trim, 0, &trim, now)?;
                self.repeats.note(What::Trim(below), trim.len());
                self.retention.sweep = Sweep::Waiting(sequence);
                return Ok(());
            };
            let lives = queue.slot == Slot::Live && queue.home < below;
            if let Some(incarnation) = queue.incarnation().filter(|_| lives) {
                let record = state_of(queue, incarnation);
                bytes += record.len();
                self.append_own(Kind::QueueState, next, &record, now)?;
                self.repeats.note(What::State(QueueNo(next)), record.len());
            }
            next += 1;
            self.retention.sweep = Sweep::Queues { below, next };
            if bytes >= SWEEP_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// Applies the next part of the ends, and lets the segment go after the last one.
    fn release_more(&mut self) -> bool {
        let Some((ordinal, part)) = self.retention.release else { return false };
        let block = self.views.ends.segment(ordinal).and_then(|ends| ends.blocks.get(part));
        let Some(block) = block.copied() else {
            // Whoever waits comes back and is told that the records are gone.
            let given_up = self.cold.give_up(ordinal);
            self.ready.extend(given_up);
            self.give_up_spots(ordinal);
            let is_read = self.cold.is_loading_of(ordinal) || self.spots.is_loading_of(ordinal);
            if !is_read {
                self.retention.release = None;
                self.let_go(ordinal);
            }
            return !is_read;
        };
        let head = block.head(ordinal, narrow(part));
        match self.index_block(block.at, &head, None) {
            Ok(bytes) => index_block::ends(&bytes).for_each(|(queue, end)| {
                self.trim_queue(queue, end);
            }),
            Err(Miss::Pending) => return false,
            // A device that fails once is asked again, on a later turn.
            Err(Miss::Failed(_)) if self.retention.failures < FAILURES_MAX => {
                self.retention.failures += 1;
                return false;
            }
            // Readers that come to the lost records pass over them one by one.
            Err(Miss::Failed(_) | Miss::Outside) => tracing::error!(
                shard = self.geometry.shard(),
                ordinal,
                "what the index has of a segment is damaged; some minimum offsets stay too low"
            ),
        }
        self.retention.failures = 0;
        self.retention.release = Some((ordinal, part + 1));
        true
    }

    fn trim_queue(&mut self, number: u32, end: u64) {
        let Some(before) = self.views.raise_min(number, end) else { return };
        let queue = QueueNo(number);
        let trimmed = Trimmed { queue, from: super::offset(before), to: self.min_offset(queue) };
        if self.retention.trimmed.len() < TRIMMED_MAX {
            self.retention.trimmed.push(trimmed);
        }
    }

    /// Nothing refers to the segment any more.
    fn let_go(&mut self, ordinal: u64) {
        self.views.drop_segment(ordinal);
        self.segments.forget(ordinal);
        self.stats.segments_recycled += 1;
        tracing::debug!(shard = self.geometry.shard(), ordinal, "a segment is recycled");
        self.keep_spare(ordinal);
        self.discard_index();
        self.prepare_more();
    }

    /// Keeps a segment that is not part of the log for use ahead of the writer, or removes it.
    pub(super) fn keep_spare(&mut self, ordinal: u64) {
        if self.retention.spare.is_none() && self.may_grow() {
            self.retention.spare = Some(ordinal);
            return;
        }
        let id = self.op(Purpose::Remove { ordinal });
        self.ops.push_back(Op::RemoveSegment { id, ordinal });
    }

    /// Gives the front of the index back to the file system, as far as both checkpoints allow.
    pub(super) fn discard_index(&mut self) {
        let live = if self.checkpoint.none_counts() {
            self.views.index_live_from(self.views.first)
        } else {
            self.checkpoint.index_live()
        };
        // Not before: until then a crash may bring a segment back that was let go, and with it what the
        // keys lead to.
        self.views.keys.forget_before(live);
        if let Some(range) = self.views.index.discard(live) {
            let id = self.op(Purpose::Discard);
            let (at, len) = (range.start, range.end - range.start);
            self.ops.push_back(Op::Discard { id, file: FileId::Index, at, len });
        }
    }
}

/// How much of the prepared log is kept for facts: a day of one group a second, or less where that
/// would be more than a part of the budget or of some segments.
pub(super) fn reserve_len(block_len: usize, segment_len: u64, disk_bytes: u64) -> u64 {
    const SECONDS: u64 = 86_400;
    let day = SECONDS * wide(block_len);
    day.min(segment_len / 2 * 3).min(disk_bytes / 8) / wide(block_len) * wide(block_len)
}

#[cfg(test)]
mod tests;
