//! Checkpoints: what the views have learned goes to a changes file bit by bit, while the log goes on;
//! then a small file says how far the changes count.
//!
//! A run takes what has changed since the last one, or everything when a generation of changes begins.
//! Each turn tells a bounded part of it, so that no turn is long, and no memory is held for more than
//! a few pieces. A queue is told as it is at that moment: replay, which goes on from where the run
//! began, passes over what is known already (see `view`). The blocks of the index that the changes
//! name are durable before the file that makes them count.
//!
//! A write that fails is tried again after a pause, at the same place: the run stands still until
//! then, and the two checkpoints before it count on.
//!
//! A run may tell of groups that a buffered store has committed before they are durable. The small file
//! waits for them: a checkpoint that names a group which a crash has taken would name a log that is not.
//!
//! Invariant: of the two changes files, a generation begins only in the one that no durable
//! checkpoint names.

use std::io;

use super::{Purpose, Shard};
use crate::format::changes::{self, PIECE_HEADER_LEN, PIECE_LEN};
use crate::format::checkpoint::{ChangesEnd, Checkpoint};
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{FileId, Op};
use crate::units::{EpochMillis, Sequence, index, wide};
use crate::view::keys::BUCKETS;
use crate::view::{Covered, QueueNo};

/// What a turn tells at most, give or take one item.
const STEP_BYTES: usize = 64 << 10;
/// Queues and facts that a turn looks at.
const STEP_ITEMS: usize = 1000;
/// Steps of a turn that fill one piece.
const STEPS_MAX: usize = 8;
/// Writes under way for checkpoints and the index.
const WRITES_MAX: usize = 4;
/// After a failed write, the run goes on this much later.
const RETRY_MS: i64 = 1000;
/// A generation of changes is not given up before its file has this length, or that part of the
/// budget: files that may be given up must not be what fills it.
const GENERATION_LEN_MIN: u64 = 16 << 20;
const GENERATION_PART_MIN: u64 = 32;

/// What stands in a checkpoint file that must not count.
const VOID: &[u8] = b"void";

/// What a durable checkpoint says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Durable {
    pub(crate) number: u64,
    /// Replay needs the segments from this ordinal on.
    pub(crate) replay_ordinal: u64,
    /// It names nothing of the index before this.
    pub(crate) index_live: u64,
    pub(crate) changes: ChangesEnd,
}

impl Durable {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            number: checkpoint.number,
            replay_ordinal: checkpoint.from.place.ordinal,
            index_live: checkpoint.index_discarded,
            changes: checkpoint.changes,
        }
    }
}

/// What recovery has found of checkpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SavedCheckpoints {
    /// By slot, those that may still be used.
    pub(crate) slots: [Option<Durable>; 2],
    /// By slot, those that name what is missing or damaged.
    pub(crate) rejected: [bool; 2],
    /// The highest number seen.
    pub(crate) number: u64,
    /// Where changes go on, when the views came from a checkpoint, and the newest group that it had.
    pub(crate) changes: Option<ChangesEnd>,
    pub(crate) covered: Option<Sequence>,
}

/// A checkpoint that is being written.
struct Run {
    from: Covered,
    first: u64,
    index_live: u64,
    trimmed: u64,
    changes: ChangesEnd,
    slot: u32,
    queues: Left<u32>,
    facts: Left<Box<[u8]>>,
    keys: Left<u32>,
    segments: Vec<u64>,
    /// Queues, facts, buckets of keys and segments that there were when it began.
    items: usize,
    /// Told, but not in a piece yet.
    told: Vec<u8>,
    /// Set once everything is told: what the newest item can know, and the index that it may name.
    through: Option<(Covered, u64)>,
    /// Writes of changes under way.
    writes: usize,
    /// The last step, the small file.
    replacing: bool,
}

/// What a run still has to tell.
enum Left<T> {
    These(Vec<T>),
    /// All behind this one.
    AllBehind(Option<T>),
    Nothing,
}

pub(super) struct CheckpointState {
    saved: SavedCheckpoints,
    covered: Sequence,
    taken: EpochMillis,
    log_bytes: u64,
    /// Length of the file when the generation had told everything once.
    whole_len: u64,
    run: Option<Run>,
    index_writes: usize,
    /// Writes that have failed, to be tried again.
    failed: Vec<(u64, RecordSlice)>,
    failed_file: Option<Vec<u8>>,
    stalled_until: Option<EpochMillis>,
    told: bool,
    /// The index is damaged: no checkpoint counts any more, and the next opening rebuilds the views.
    distrusted: bool,
    /// Checkpoint files that are being emptied for it, and those where that has failed.
    emptying: usize,
    not_emptied: Vec<u32>,
    /// What has been told since the caller came in.
    stretch: u64,
}

impl CheckpointState {
    pub(super) fn new(now: EpochMillis, covered: Sequence, saved: SavedCheckpoints) -> Self {
        Self {
            saved,
            covered,
            taken: now,
            log_bytes: 0,
            whole_len: saved.changes.map_or(0, |changes| changes.len),
            run: None,
            index_writes: 0,
            failed: Vec::new(),
            failed_file: None,
            stalled_until: None,
            told: false,
            distrusted: false,
            emptying: 0,
            not_emptied: Vec::new(),
            stretch: 0,
        }
    }

    /// The lowest ordinal of a segment that one of two durable checkpoints may need for its replay;
    /// 0 as long as there are not two, and without a bound once none counts: then the next opening
    /// takes the log as it is.
    pub(super) fn replay_ordinal(&self) -> u64 {
        if self.none_counts() { u64::MAX } else { self.both(|durable| durable.replay_ordinal) }
    }

    /// Both files are empty, and stay so in this life.
    pub(super) fn none_counts(&self) -> bool {
        self.distrusted && self.run.is_none() && self.emptying == 0 && self.not_emptied.is_empty()
    }

    /// No durable checkpoint names anything of the index before this; 0 as long as there are not two.
    pub(super) fn index_live(&self) -> u64 {
        self.both(|durable| durable.index_live)
    }

    fn both(&self, of: impl Fn(&Durable) -> u64) -> u64 {
        let [one, other] = &self.saved.slots;
        one.as_ref().zip(other.as_ref()).map_or(0, |(one, other)| of(one).min(of(other)))
    }

    /// No checkpoint can be written now.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until.is_some() || self.distrusted
    }

    pub(super) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Bytes of the changes files.
    pub(super) fn changes_len(&self) -> u64 {
        let len = |durable: &Option<Durable>| durable.map_or(0, |durable| durable.changes.len);
        self.saved.slots.iter().map(len).max().unwrap_or(0)
    }

    /// The file for a generation that begins now, if one is free.
    fn free_file(&self) -> Option<u32> {
        let taken = |file: u32| {
            self.saved.slots.iter().flatten().any(|durable| durable.changes.file == file)
        };
        [0, 1].into_iter().find(|&file| !taken(file))
    }

    /// Where the changes of a run go, and whether they tell everything.
    fn destination(&self, epoch: u64, disk_bytes: u64) -> (ChangesEnd, bool) {
        let len_min = GENERATION_LEN_MIN.min(disk_bytes / GENERATION_PART_MIN);
        let grown =
            |changes: &ChangesEnd| changes.len > len_min.max(self.whole_len.saturating_mul(3));
        let generation = |file| {
            // Unique in the shard's life, as the epoch is.
            let number = self.saved.number.wrapping_add(1);
            ChangesEnd { file, generation: epoch.rotate_left(32) ^ number, len: 0 }
        };
        match (self.saved.changes, self.free_file()) {
            (Some(changes), None) => (changes, false),
            (Some(changes), Some(_)) if !grown(&changes) => (changes, false),
            (Some(_) | None, file) => (generation(file.unwrap_or(0)), true),
        }
    }

    /// The slot of the older checkpoint.
    fn next_slot(&self) -> u32 {
        let [one, other] = self.saved.slots.map(|durable| durable.map(|durable| durable.number));
        u32::from(one > other)
    }
}

impl Shard {
    pub(super) fn checkpoint_if_due(&mut self, now: EpochMillis) {
        let state = &self.checkpoint;
        let grown = self.stats.log_bytes - state.log_bytes >= self.limits.checkpoint_bytes;
        let old = now.since(state.taken) >= self.limits.checkpoint_ms;
        if grown || old {
            self.start_checkpoint(now);
        }
        self.drive_checkpoint(now);
    }

    /// Starts a checkpoint of everything that is committed, unless one is running or nothing has
    /// changed since the last one.
    pub fn start_checkpoint(&mut self, now: EpochMillis) {
        if self.checkpoint.covered != self.committed() {
            self.begin_checkpoint(now);
        }
    }

    /// As [`start_checkpoint`](Self::start_checkpoint), but also when nothing has changed.
    pub(super) fn begin_checkpoint(&mut self, now: EpochMillis) {
        let unfinished = self.views.ends.unfinished().is_some();
        let nothing = self.committed() == Sequence::default() || self.checkpoint.distrusted;
        if self.checkpoint.is_running() || self.poison.is_some() || unfinished || nothing {
            return;
        }
        let (changes, whole) = self.checkpoint.destination(self.epoch, self.limits.disk_bytes);
        let changed = std::mem::take(&mut self.views.changed);
        let changed_facts = self.views.facts.take_changed();
        let changed_keys = self.views.keys.take_changed();
        let changed_keys_len = changed_keys.len();
        let changed_segments = std::mem::take(&mut self.views.changed_segments);
        let newest = self.views.covered.place.ordinal;
        let (keys, keys_len) = match whole {
            true if self.views.keys.is_empty() => (Left::Nothing, 0),
            true => (Left::AllBehind(None), index(u64::from(BUCKETS))),
            false => (Left::These(changed_keys), changed_keys_len),
        };
        let segments: Vec<u64> = if whole {
            self.views.maps.keys().copied().collect()
        } else {
            changed_segments.into_iter().chain([newest]).collect()
        };
        let (queues_len, facts_len) = if whole {
            (self.views.queues.len(), self.views.facts.len())
        } else {
            (changed.len(), changed_facts.len())
        };
        self.checkpoint.run = Some(Run {
            from: self.views.covered,
            first: self.views.first,
            index_live: self.views.index_live_from(self.views.first),
            trimmed: self.views.trimmed,
            changes,
            slot: self.checkpoint.next_slot(),
            queues: if whole { Left::AllBehind(None) } else { Left::These(changed) },
            facts: if whole { Left::AllBehind(None) } else { Left::These(changed_facts) },
            items: queues_len + facts_len + keys_len + segments.len(),
            keys,
            segments,
            told: Vec::new(),
            through: None,
            writes: 0,
            replacing: false,
        });
        self.checkpoint.taken = now;
        self.checkpoint.log_bytes = self.stats.log_bytes;
    }

    /// Takes the next steps of the run, and writes what the index has ready.
    pub(super) fn drive_checkpoint(&mut self, now: EpochMillis) {
        if self.poison.is_some() {
            return;
        }
        // A clock that was set back must not make the pause longer.
        let waits = |until: EpochMillis| until > now && until.since(now) <= RETRY_MS.unsigned_abs();
        if self.checkpoint.stalled_until.is_some_and(waits) {
            return;
        }
        self.checkpoint.stalled_until = None;
        for slot in std::mem::take(&mut self.checkpoint.not_emptied) {
            self.empty_checkpoint(slot);
        }
        self.write_index();
        let failed = std::mem::take(&mut self.checkpoint.failed);
        for (at, data) in failed {
            self.write_changes(at, data);
        }
        if let Some(bytes) = self.checkpoint.failed_file.take() {
            self.replace_checkpoint(bytes);
        }
        for _ in 0..STEPS_MAX {
            match &self.checkpoint.run {
                Some(run) if run.through.is_none() && run.writes < WRITES_MAX => {}
                _ => break,
            }
            self.tell(STEP_ITEMS);
            // The completion of a write brings the next step; without one it comes at once.
            if self.checkpoint.run.as_ref().is_none_or(|run| run.writes > 0) {
                break;
            }
        }
        self.write_index();
        self.finish_run();
    }

    /// A group of this length is committed: the run goes on with its share, so that it has told
    /// everything long before [`hurry_checkpoint`](Self::hurry_checkpoint) would have to tell the rest
    /// at a stretch.
    pub(super) fn pace_checkpoint(&mut self, padded: usize) {
        let segment_len = index(self.geometry.segment_len());
        let Some(run) = self.checkpoint.run.as_ref().filter(|run| run.through.is_none()) else {
            return;
        };
        let is_stalled = self.checkpoint.stalled_until.is_some();
        // A run begins at least a segment before the border that it must not meet.
        let share = run.items.saturating_mul(padded).div_ceil(segment_len / 4 * 3);
        let mut told = 0;
        while !is_stalled
            && told < share
            && self.checkpoint.run.as_ref().is_some_and(|run| run.through.is_none())
        {
            told += self.tell(share - told);
        }
    }

    /// Before the log goes on by a second segment since the run began, the run tells all the rest:
    /// what it says of queues rests on their being at most one segment further.
    pub(super) fn hurry_checkpoint(&mut self, ordinal: u64) {
        let behind = |run: &Run| run.through.is_none() && run.from.place.ordinal + 1 < ordinal;
        while self.checkpoint.run.as_ref().is_some_and(behind) {
            self.tell(usize::MAX);
        }
    }

    /// Tells a part of what is left; gives how many queues, facts and segments it was.
    fn tell(&mut self, items_max: usize) -> usize {
        let Some(mut run) = self.checkpoint.run.take() else { return 0 };
        let mut items = 0;
        // What a piece still lacks may be more than a step, so a step counts from where it begins.
        let enough = run.told.len() + STEP_BYTES;
        while items < items_max && run.told.len() < enough {
            items += 1;
            let more = self.tell_segment(&mut run)
                || self.tell_queue(&mut run)
                || self.tell_fact(&mut run)
                || self.tell_keys(&mut run);
            if !more {
                self.tell_new_segment(&mut run);
                run.through = Some((self.views.covered, self.views.index.end_page()));
                break;
            }
        }
        self.cut_pieces(&mut run);
        self.checkpoint.run = Some(run);
        self.checkpoint.stretch += wide(items);
        let stretch = self.checkpoint.stretch;
        self.stats.checkpoint_stretch_max = self.stats.checkpoint_stretch_max.max(stretch);
        items
    }

    /// The caller has come in anew.
    pub(super) fn new_stretch(&mut self) {
        self.checkpoint.stretch = 0;
    }

    fn tell_segment(&mut self, run: &mut Run) -> bool {
        let Some(ordinal) = run.segments.pop() else { return false };
        if let (Some(map), Some(ends)) =
            (self.views.maps.get(&ordinal), self.views.ends.segment(ordinal))
        {
            changes::put_segment(&mut run.told, ordinal, map, ends);
        }
        true
    }

    /// The log may have gone on by a segment since the run began. Replay enters that segment again,
    /// but only here is known which blocks of the index were put there before.
    fn tell_new_segment(&mut self, run: &mut Run) {
        let newest = self.views.covered.place.ordinal;
        if newest > run.from.place.ordinal {
            run.segments.push(newest);
            self.tell_segment(run);
        }
    }

    fn tell_queue(&mut self, run: &mut Run) -> bool {
        let number = match &mut run.queues {
            Left::These(numbers) => numbers.pop(),
            Left::AllBehind(last) => {
                let number = last.map_or(0, |last| last + 1);
                *last = Some(number);
                (index(u64::from(number)) < self.views.queues.len()).then_some(number)
            }
            Left::Nothing => return false,
        };
        let Some(number) = number else {
            run.queues = Left::Nothing;
            return true;
        };
        if let Some(queue) = self.views.queue_mut(QueueNo(number)) {
            queue.changed = false;
            changes::put_queue(&mut run.told, number, queue, run.changes.generation);
        }
        true
    }

    fn tell_fact(&mut self, run: &mut Run) -> bool {
        let key = match &mut run.facts {
            Left::These(keys) => keys.pop(),
            Left::AllBehind(last) => {
                let next = self.views.facts.behind(last.as_deref()).next();
                let next: Option<Box<[u8]>> = next.map(|(key, _)| key.into());
                last.clone_from(&next);
                next
            }
            Left::Nothing => return false,
        };
        let Some(key) = key else {
            run.facts = Left::Nothing;
            return true;
        };
        changes::put_fact(&mut run.told, &key, self.views.facts.state(&key));
        self.views.facts.note_saved(&key);
        true
    }

    fn tell_keys(&mut self, run: &mut Run) -> bool {
        let number = match &mut run.keys {
            Left::These(numbers) => numbers.pop(),
            Left::AllBehind(last) => {
                let number = last.map_or(0, |last| last + 1);
                *last = Some(number);
                (number < BUCKETS).then_some(number)
            }
            Left::Nothing => return false,
        };
        let Some(number) = number else {
            run.keys = Left::Nothing;
            return true;
        };
        self.views.keys.note_saved(number);
        if let Some(bucket) = self.views.keys.bucket_mut(number) {
            changes::put_keys(&mut run.told, number, bucket, run.changes.generation);
        }
        true
    }

    /// Cuts what was told into pieces; the last one when everything is told.
    fn cut_pieces(&mut self, run: &mut Run) {
        const ROOM: usize = PIECE_LEN - PIECE_HEADER_LEN;
        let mut from = 0;
        while run.told.len() - from >= ROOM || (run.through.is_some() && run.told.len() > from) {
            let payload = run.told.get(from..).unwrap_or_default();
            let payload = payload.get(..ROOM).unwrap_or(payload);
            from += payload.len();
            let mut piece = ChunkTail::alone(PIECE_HEADER_LEN + payload.len());
            let at = run.changes.len;
            let dst = piece.buffer();
            dst.get_mut(PIECE_HEADER_LEN..PIECE_HEADER_LEN + payload.len())
                .expect("the piece was made for it")
                .copy_from_slice(payload);
            let generation = run.changes.generation;
            let padded = changes::seal_piece(dst, payload.len(), &self.geometry, generation, at);
            run.changes.len += wide(padded);
            run.writes += 1;
            let id = self.op(Purpose::Changes { at, data: piece.freeze(padded) });
            self.push_changes_write(id, run.changes.file, at);
        }
        run.told.drain(..from);
    }

    fn write_changes(&mut self, at: u64, data: RecordSlice) {
        let Some(run) = &mut self.checkpoint.run else { return };
        run.writes += 1;
        let file = run.changes.file;
        let id = self.op(Purpose::Changes { at, data });
        self.push_changes_write(id, file, at);
    }

    fn push_changes_write(&mut self, id: crate::op::OpId, file: u32, at: u64) {
        let Some(Purpose::Changes { data, .. }) = self.purposes.get(index(id.0)) else { return };
        let data = data.clone();
        self.ops.push_back(Op::Write { id, file: FileId::Changes(file), at, data });
    }

    fn write_index(&mut self) {
        let run = self.checkpoint.run.as_ref();
        let page_end = run.and_then(|run| run.through).map_or(0, |(_, page_end)| page_end);
        while self.checkpoint.index_writes < WRITES_MAX {
            let Some(stretch) = self.views.index.take_unwritten(page_end) else { return };
            self.checkpoint.index_writes += 1;
            let id = self.op(Purpose::IndexWrite { at: stretch.at });
            let (at, data) = (stretch.at, stretch.bytes);
            self.ops.push_back(Op::Write { id, file: FileId::Index, at, data });
        }
    }

    pub(super) fn changes_written(
        &mut self,
        (at, data): (u64, RecordSlice),
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        if let Some(run) = &mut self.checkpoint.run {
            run.writes -= 1;
        }
        if let Err(cause) = result {
            self.checkpoint.failed.push((at, data));
            self.stall(&cause, now);
        }
        self.drive_checkpoint(now);
    }

    pub(super) fn index_written(&mut self, at: u64, result: io::Result<usize>, now: EpochMillis) {
        self.checkpoint.index_writes -= 1;
        self.views.index.written(at, result.is_ok());
        if let Err(cause) = result {
            self.stall(&cause, now);
        }
        self.drive_checkpoint(now);
    }

    /// The previous checkpoints still stand, so only the next opening takes longer.
    fn stall(&mut self, cause: &io::Error, now: EpochMillis) {
        if !std::mem::replace(&mut self.checkpoint.told, true) {
            tracing::warn!(shard = self.geometry.shard(), %cause, "checkpoint not written");
        }
        self.checkpoint.stalled_until = Some(EpochMillis::new(now.get().saturating_add(RETRY_MS)));
    }

    /// When all that a checkpoint names is durable, the file that makes it count follows.
    fn finish_run(&mut self) {
        let Some(run) = &mut self.checkpoint.run else { return };
        let Some((through, index_next)) = run.through else { return };
        let waits = run.writes > 0 || run.replacing || !self.checkpoint.failed.is_empty();
        let is_ahead = self.durable < through.sequence;
        if waits || is_ahead || !self.views.index.is_written(index_next) {
            return;
        }
        run.replacing = true;
        let checkpoint = Checkpoint {
            number: self.checkpoint.saved.number + 1,
            from: run.from,
            through,
            first: run.first,
            trimmed: run.trimmed,
            changes: run.changes,
            index_next,
            index_discarded: self.views.index.discarded(),
        };
        let bytes = checkpoint.encode(&self.geometry);
        self.replace_checkpoint(bytes);
    }

    fn replace_checkpoint(&mut self, bytes: Vec<u8>) {
        let Some(run) = &self.checkpoint.run else { return };
        let slot = run.slot;
        let id = self.op(Purpose::Checkpoint { bytes: bytes.clone() });
        self.ops.push_back(Op::ReplaceCheckpoint { id, slot, bytes });
    }

    pub(super) fn checkpoint_written(
        &mut self,
        bytes: Vec<u8>,
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        if self.checkpoint.distrusted {
            self.checkpoint.run = None;
            [0, 1].into_iter().for_each(|slot| self.empty_checkpoint(slot));
            return;
        }
        if let Err(cause) = result {
            self.checkpoint.failed_file = Some(bytes);
            self.stall(&cause, now);
            return;
        }
        let Some(run) = self.checkpoint.run.take() else { return };
        let state = &mut self.checkpoint;
        state.saved.number += 1;
        let begun = state.saved.changes.map(|changes| changes.generation);
        if begun != Some(run.changes.generation) {
            state.whole_len = run.changes.len;
        }
        state.saved.changes = Some(run.changes);
        let durable = Durable {
            number: state.saved.number,
            replay_ordinal: run.from.place.ordinal,
            index_live: run.index_live,
            changes: run.changes,
        };
        if let Some(slot) = state.saved.slots.get_mut(index(u64::from(run.slot))) {
            *slot = Some(durable);
        }
        state.covered = run.from.sequence;
        state.taken = now;
        state.told = false;
        self.stats.checkpoints += 1;
        self.discard_index();
        self.retain(now);
    }

    /// A block of the index is not what was written there. The log has everything that the index has,
    /// so the next opening rebuilds the views from it. Retention goes on until then without checkpoints.
    pub(super) fn distrust_checkpoints(&mut self) {
        if std::mem::replace(&mut self.checkpoint.distrusted, true) {
            return;
        }
        tracing::error!(
            shard = self.geometry.shard(),
            "the index is damaged: some records cannot be read until the store is opened again"
        );
        self.checkpoint.failed.clear();
        self.checkpoint.saved.slots = [None; 2];
        let waits = self.checkpoint.failed_file.take().is_some();
        let replacing = self.checkpoint.run.as_ref().is_some_and(|run| run.replacing);
        // A file that is on its way to its place would come there behind the empty one.
        if !replacing || waits {
            self.checkpoint.run = None;
            [0, 1].into_iter().for_each(|slot| self.empty_checkpoint(slot));
        }
    }

    fn empty_checkpoint(&mut self, slot: u32) {
        self.checkpoint.emptying += 1;
        let id = self.op(Purpose::Empty { slot });
        self.ops.push_back(Op::ReplaceCheckpoint { id, slot, bytes: VOID.to_vec() });
    }

    pub(super) fn checkpoint_emptied(
        &mut self,
        slot: u32,
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        self.checkpoint.emptying -= 1;
        if let Err(cause) = result {
            self.checkpoint.not_emptied.push(slot);
            self.stall(&cause, now);
        }
    }

    /// True when a checkpoint covers everything that is committed, or none can be written.
    pub fn is_checkpointed(&self) -> bool {
        let running = self.checkpoint.is_running();
        let covered = self.checkpoint.covered == self.committed() && !running;
        let given_up = self.checkpoint.is_stalled() || self.poison.is_some();
        let emptying = self.checkpoint.emptying > 0 || (self.checkpoint.distrusted && running);
        !emptying && (covered || given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durable(number: u64, file: u32) -> Durable {
        let changes = ChangesEnd { file, generation: 1, len: 1 << 30 };
        Durable { number, replay_ordinal: number, index_live: 0, changes }
    }

    #[test]
    fn a_generation_never_begins_in_a_file_that_a_checkpoint_names() {
        let mut saved = SavedCheckpoints::default();
        let state = |saved| CheckpointState::new(EpochMillis::new(0), Sequence::default(), saved);
        assert!(state(saved).destination(1, u64::MAX).1, "the first one tells everything");
        saved.changes = Some(ChangesEnd { file: 1, generation: 1, len: 1 << 30 });
        saved.slots = [Some(durable(7, 0)), Some(durable(8, 1))];
        let mut grown = state(saved);
        grown.whole_len = 1;
        assert_eq!(grown.destination(1, u64::MAX), (saved.changes.unwrap(), false));
        assert_eq!((grown.next_slot(), grown.replay_ordinal()), (0, 7));
        grown.saved.slots = [Some(durable(9, 1)), Some(durable(8, 1))];
        let (changes, whole) = grown.destination(1, u64::MAX);
        assert_eq!((changes.file, changes.len, whole), (0, 0, true));
        assert_eq!(grown.next_slot(), 1);
    }

    #[test]
    fn a_checkpoint_of_many_queues_is_told_bit_by_bit_however_fast_the_log_grows() {
        use crate::driver::sim::{SimDisk, SimShard};
        use crate::shard::ShardLimits;

        const COUNT: u32 = 60_000;
        const SEGMENT_LEN: u64 = 4 << 20;
        let now = EpochMillis::new(1);
        let limits = ShardLimits {
            checkpoint_ms: u64::MAX,
            group_bytes: 64 << 10,
            ..ShardLimits::default()
        };
        let mut sim = SimDisk::new(3, SEGMENT_LEN, limits).open(now).unwrap();
        let drain = |sim: &mut SimShard| {
            sim.shard().input_drained(now);
            while sim.step(now) {
                sim.shard().input_drained(now);
            }
        };
        drain(&mut sim);
        for n in 0..COUNT {
            while sim.shard().open_queue(&n.to_be_bytes(), now).is_err() {
                drain(&mut sim);
            }
        }
        drain(&mut sim);
        sim.shard().start_checkpoint(now);
        let queue = sim.shard().queue(&1_u32.to_be_bytes()).unwrap();
        let from = sim.shard().committed_end();
        // The device is at work all the time, and nobody says that no more input waits.
        while sim.shard().stats().checkpoints == 0 {
            while sim.shard().append(queue, &[&[0; 60 << 10][..]], now).is_err() {
                assert!(sim.step(now));
            }
        }
        let len = sim.shard().committed_end().get() - from.get();
        assert!(len.unsigned_abs() < 2 * SEGMENT_LEN, "a checkpoint took {len} bytes of log");
        // A quarter of a microsecond for each makes 5 ms.
        let most = 20_000;
        let told = sim.shard().stats().checkpoint_stretch_max;
        assert!(told <= most, "{told} items at a stretch, {most} are allowed");
    }

    #[test]
    fn a_checkpoint_longer_than_many_steps_restores_every_queue_and_fact() {
        use crate::driver::sim::{SimDisk, SimShard};
        use crate::shard::ShardLimits;

        const COUNT: u32 = 20_000;
        let now = EpochMillis::new(1);
        let limits = ShardLimits { checkpoint_ms: u64::MAX, ..ShardLimits::default() };
        let mut sim = SimDisk::new(3, 8 << 20, limits).open(now).unwrap();
        let drain = |sim: &mut SimShard| {
            sim.shard().input_drained(now);
            while sim.step(now) {
                sim.shard().input_drained(now);
            }
        };
        let key =
            |n: u32| format!("a key that is long enough to fill some pieces {n}").into_bytes();
        drain(&mut sim);
        for n in 0..COUNT {
            while sim.shard().open_queue(&key(n), now).is_err() {
                drain(&mut sim);
            }
            while sim.shard().put_fact(&key(n), Some(&n.to_be_bytes()), now).is_err() {
                drain(&mut sim);
            }
        }
        for _ in 0..3 {
            drain(&mut sim);
            sim.shard().start_checkpoint(now);
            drain(&mut sim);
            // A part of it changes before the next one.
            for n in 0..2000 {
                let queue = sim.shard().queue(&key(n)).unwrap();
                while sim.shard().append(queue, &[&b"record"[..]], now).is_err() {
                    drain(&mut sim);
                }
            }
        }
        drain(&mut sim);
        assert_eq!(sim.shard().stats().checkpoints, 3);
        let mut sim = sim.crash().open(now).unwrap();
        assert!(sim.report().from_checkpoint);
        assert_eq!(sim.shard().queue_count(), index(u64::from(COUNT)));
        for n in 0..COUNT {
            let queue = sim.shard().queue(&key(n)).unwrap();
            assert_eq!(sim.shard().max_offset(queue).get(), if n < 2000 { 3 } else { 0 });
            assert_eq!(sim.shard().fact(&key(n)), Some(&n.to_be_bytes()[..]));
        }
    }
}
