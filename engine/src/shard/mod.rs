//! A shard: one log, its views, and the state machine that runs them.
//!
//! Appends copy into the open group. A group closes when it is full, or when the device has a free
//! slot and the driver says that no more input waits; up to four writes are in flight and complete
//! in any order. Frontiers are sequences of groups: `appended >= kept >= committed`, and
//! `kept >= durable`. Views, acknowledgements and waiters follow the committed one, never the others;
//! what cannot be taken back, such as a checkpoint or the end of a segment, waits for the durable one
//! as well, which in a buffered store comes later.
//!
//! Nothing here calls the operating system, reads the clock or draws random numbers: time comes in
//! as an argument, operations go out through [`Shard::next_op`], results come in through
//! [`Shard::complete`].
//!
//! Elsewhere: group layout in `format::group`, replay in `recovery`, files in `driver`.

mod append;
mod blocks;
mod checkpoint;
mod cold;
mod commit;
mod keys;
mod prepare;
mod read;
mod repeat;
mod retention;
mod spots;
mod tail;
mod time;

use std::collections::VecDeque;
use std::ops::Range;

use slab::Slab;

pub use append::Appended;
pub(crate) use checkpoint::{Durable, SavedCheckpoints};
pub use keys::{FoundRecord, KeyLimits, KeyOutcome, KeySearch};
pub use read::{ReadAtOutcome, ReadLimits, ReadOutcome, SearchOutcome, StoreTime, StoredRecord};
pub use retention::{Hold, Trimmed};

use crate::layout::{Geometry, Place};
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{Completion, Op, OpId};
use crate::record::KeyHash;
use crate::units::{EpochMillis, LogOffset, QueueOffset, Sequence, index, wide};
use crate::view::queue::TagFilter;
use crate::view::{QueueNo, Views};
use append::OpenGroup;
use blocks::BlockReads;
use checkpoint::CheckpointState;
use cold::{ChunkKey, Cold};
pub use commit::WRITE_DELAY_MS;
use commit::{PendingGroup, Unwritten};
use keys::Inbox;
use prepare::Segments;
pub(crate) use repeat::Repeats;
use retention::Retention;
use spots::{SpotRead, Spots};
pub(crate) use tail::Tail;

/// Of the bytes for what is read back, the queue index may keep one in this many of its own: more
/// than the entries of what lies there take, unless records are tiny.
const INDEX_PART: usize = 16;

/// How much memory a shard may use, and when it writes checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Bytes for open, in-flight and recent groups. At least four groups.
    pub tail_bytes: usize,
    /// Bytes for groups longer than [`group_bytes`](Self::group_bytes).
    pub large_bytes: usize,
    /// Bytes for parts of the log that were read back from the device. Parts of the index take a
    /// sixteenth of that besides, and 32 MiB at least.
    pub cold_bytes: usize,
    /// Bytes for queue entries that are not in blocks of the index yet.
    pub view_bytes: usize,
    /// Bytes for entries of keys that are not in blocks of the index yet. Some entries for each part
    /// of the key index stay in any case, half a megabyte at most.
    pub key_bytes: usize,
    /// Bytes at which a group closes although more input waits.
    pub group_bytes: usize,
    /// Writes in flight at once.
    pub writes_in_flight: usize,
    /// Bytes of log after which a checkpoint is due.
    pub checkpoint_bytes: u64,
    /// Milliseconds after which a checkpoint is due when anything changed.
    pub checkpoint_ms: u64,
    /// Bytes that the shard may take of the disk. At least four segments. A store sets it from its
    /// own budget.
    pub disk_bytes: u64,
    /// Milliseconds after which a sealed segment is recycled, counted from its newest record.
    pub age_ms: u64,
}

impl Default for ShardLimits {
    fn default() -> Self {
        Self {
            tail_bytes: 64 << 20,
            large_bytes: 64 << 20,
            cold_bytes: 64 << 20,
            view_bytes: 64 << 20,
            key_bytes: 16 << 20,
            group_bytes: 512 << 10,
            writes_in_flight: 4,
            checkpoint_bytes: 128 << 20,
            checkpoint_ms: 10_000,
            disk_bytes: u64::MAX,
            age_ms: u64::MAX,
        }
    }
}

/// When an append may be acknowledged: what it outlives then. A property of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// When it is on the device: nothing that was acknowledged is lost by any crash.
    #[default]
    Durable,
    /// When it lies in shared memory, which a killed process leaves to the next opening. A crash of
    /// the system or a power cut can cost the last moments, as far as the memory for groups reaches
    /// ([`tail_bytes`](ShardLimits::tail_bytes)); what is left then is the log's prefix.
    Buffered,
}

/// Who moves the committed frontier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitBy {
    /// Nobody holds it back: what is durable is committed, or in a buffered store what lies in
    /// shared memory.
    #[default]
    Durable,
    /// The caller, through [`Shard::commit_through`], such as a consensus library.
    Caller,
}

/// Counters of a shard since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Groups written.
    pub groups: u64,
    /// Bytes of log written, padding included.
    pub log_bytes: u64,
    /// Records appended, those of the engine included.
    pub records: u64,
    /// Records that callers appended to queues.
    pub appended: u64,
    /// Bytes of these.
    pub appended_bytes: u64,
    /// Records handed out by reads of queues.
    pub read: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Reads of the log that went to the device.
    pub cold_reads: u64,
    /// Bytes that these reads asked for.
    pub cold_bytes: u64,
    /// Those of these reads that were for one record each.
    pub spot_reads: u64,
    /// Times that a chunk of recent groups could not be reused because readers held it.
    pub pinned_chunks: u64,
    /// Records that recovery or a read found damaged.
    pub unreadable: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// The most queues, facts and segments that were told to a checkpoint at a stretch: what the
    /// longest pause for one took.
    pub checkpoint_stretch_max: u64,
    /// Segments that retention has taken from the log.
    pub segments_recycled: u64,
}

/// What an operation was for, until it completes.
enum Purpose {
    Groups {
        first: Sequence,
        count: usize,
    },
    Create {
        ordinal: u64,
    },
    Zero {
        ordinal: u64,
        end: u64,
    },
    /// Memory for the cache of read groups.
    Populate {
        buffers: Vec<ChunkTail>,
    },
    Cold {
        key: ChunkKey,
    },
    Spot(SpotRead),
    FreeSpace,
    Recycle {
        from: u64,
        to: u64,
    },
    Remove {
        ordinal: u64,
    },
    Discard,
    Empty {
        slot: u32,
    },
    IndexRead {
        from: u64,
        wanted: usize,
    },
    /// A block of keys at this byte, in this part of what is read.
    KeyRead {
        at: u64,
        range: Range<usize>,
        inbox: Inbox,
    },
    IndexWrite {
        at: u64,
    },
    Changes {
        at: u64,
        data: RecordSlice,
    },
    Checkpoint {
        bytes: Vec<u8>,
    },
}

/// One shard of a store: appends, completions and the end of input go in, operations and answers come
/// out.
pub struct Shard {
    geometry: Geometry,
    limits: ShardLimits,
    acknowledge: Acknowledge,
    commit_by: CommitBy,
    epoch: u64,
    /// The first group of this epoch.
    life_start: Sequence,
    /// The group that gets the next append, if one is open.
    open: Option<OpenGroup>,
    /// Sequence of the newest closed group.
    appended: Sequence,
    durable: Sequence,
    /// Where the last durable group ends.
    durable_end: Place,
    /// The newest group that a killed process leaves behind with all before it.
    kept: Sequence,
    /// Where the next group starts, unless it does not fit its segment.
    head: Place,
    previous_crc: u32,
    store_time: EpochMillis,
    /// Closed groups that are not both committed and durable, oldest first.
    pending: VecDeque<PendingGroup>,
    /// The newest of them.
    unwritten: Unwritten,
    /// Writes in flight.
    writing: usize,
    tail: Tail,
    /// Keys of the records that are being appended: which of them, and its hash.
    new_keys: Vec<(u32, KeyHash)>,
    /// Memory for the keys of the next group.
    spare_keys: Vec<u8>,
    cold: Cold,
    spots: Spots,
    segments: Segments,
    views: Views,
    blocks: BlockReads,
    retention: Retention,
    repeats: Repeats,
    checkpoint: CheckpointState,
    /// The newest group that holds more than a note, and the frontier that a durable header names.
    last_data: Sequence,
    noted: Sequence,
    last_append: EpochMillis,
    /// As of the last call that has told it.
    now: EpochMillis,
    ops: VecDeque<Op>,
    purposes: Slab<Purpose>,
    woken: Vec<u64>,
    ready: Vec<u64>,
    room: bool,
    starved: bool,
    poison: Option<String>,
    stats: ShardStats,
}

/// What opening has found out about a shard; the shard starts from it.
pub(crate) struct Start {
    pub(crate) geometry: Geometry,
    pub(crate) limits: ShardLimits,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) commit_by: CommitBy,
    pub(crate) epoch: u64,
    pub(crate) views: Views,
    pub(crate) saved: SavedCheckpoints,
    pub(crate) repeats: Repeats,
    /// Segments that exist, with the bytes that are prepared in each.
    pub(crate) segments: Vec<(u64, u64)>,
    pub(crate) now: EpochMillis,
}

impl Shard {
    pub(crate) fn new(start: Start, tail: Tail) -> Self {
        let Start {
            geometry,
            limits,
            acknowledge,
            commit_by,
            epoch,
            mut views,
            saved,
            repeats,
            segments,
            now,
        } = start;
        views.index.keep_more(limits.cold_bytes / INDEX_PART);
        let covered = views.covered;
        let unreadable = views.unreadable;
        // A checkpoint counts as the newest one only if nothing had to be replayed behind it.
        let checkpointed = saved.covered.filter(|_| views.changed.is_empty()).unwrap_or_default();
        let segment_len = geometry.segment_len();
        let reserve = retention::reserve_len(geometry.block_len(), segment_len, limits.disk_bytes);
        let (kept, given_up): (Vec<_>, Vec<_>) =
            segments.into_iter().partition(|&(ordinal, _)| ordinal >= views.first);
        let mut shard = Self {
            geometry,
            limits,
            acknowledge,
            commit_by,
            epoch,
            life_start: covered.sequence.next(),
            open: None,
            appended: covered.sequence,
            durable: covered.sequence,
            durable_end: covered.next,
            kept: covered.sequence,
            head: covered.next,
            previous_crc: covered.header_crc,
            store_time: covered.store_time,
            pending: VecDeque::new(),
            unwritten: Unwritten::default(),
            writing: 0,
            tail,
            new_keys: Vec::new(),
            spare_keys: Vec::new(),
            cold: Cold::new(geometry.segment_len(), limits.cold_bytes),
            spots: Spots::default(),
            segments: Segments::new(&kept, segment_len, reserve),
            views,
            blocks: BlockReads::default(),
            retention: Retention::new(),
            repeats,
            checkpoint: CheckpointState::new(now, checkpointed, saved),
            last_data: covered.sequence,
            noted: Sequence::default(),
            last_append: now,
            now,
            ops: VecDeque::new(),
            purposes: Slab::new(),
            woken: Vec::new(),
            ready: Vec::new(),
            room: false,
            starved: false,
            poison: None,
            stats: ShardStats { unreadable, ..ShardStats::default() },
        };
        // They were let go before the last end, but not used again.
        for (ordinal, _) in given_up {
            shard.keep_spare(ordinal);
        }
        shard
    }

    /// Number, block and segment length of this shard.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Counters since the shard was opened.
    pub fn stats(&self) -> ShardStats {
        self.stats
    }

    /// The queue with this key, if it was ever opened.
    pub fn queue(&self, key: &[u8]) -> Option<QueueNo> {
        self.views.by_key.get(key).copied()
    }

    /// The key of a queue; `None` once it is deleted.
    pub fn queue_key(&self, queue: QueueNo) -> Option<&[u8]> {
        self.views.queue(queue).map(crate::view::queue::Queue::key).filter(|key| !key.is_empty())
    }

    /// How many queues the shard has.
    pub fn queue_count(&self) -> usize {
        self.views.by_key.len()
    }

    /// The first offset of a queue that can be read. Unit: records.
    pub fn min_offset(&self, queue: QueueNo) -> QueueOffset {
        self.views.queue(queue).map_or_else(QueueOffset::default, |queue| offset(queue.min()))
    }

    /// The offset behind the last committed record of a queue. Unit: records.
    pub fn max_offset(&self, queue: QueueNo) -> QueueOffset {
        self.views.queue(queue).map_or_else(QueueOffset::default, |queue| offset(queue.visible()))
    }

    /// The committed value of a fact.
    pub fn fact(&self, key: &[u8]) -> Option<&[u8]> {
        self.views.facts.committed(key)
    }

    /// The newest value of a fact, even when it is only staged or not committed yet.
    pub fn latest_fact(&self, key: &[u8]) -> Option<&[u8]> {
        self.views.facts.latest(key)
    }

    /// The group that the newest value of a fact waits for; `None` when it is committed, staged
    /// (see [`flush_staged`](Self::flush_staged)) or absent.
    pub fn fact_awaits(&self, key: &[u8]) -> Option<Sequence> {
        self.views.facts.awaited(key)
    }

    /// The group in which a fact was last set in this life.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn fact_sequence(&self, key: &[u8]) -> Option<Sequence> {
        self.views.facts.set_in(key)
    }

    /// True while the newest value of a fact is staged only.
    pub fn fact_is_staged(&self, key: &[u8]) -> bool {
        self.views.facts.is_staged(key)
    }

    /// Committed facts whose key begins with `prefix`, in the order of their keys.
    pub fn facts_with_prefix<'a>(
        &'a self,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.views.facts.with_prefix(prefix)
    }

    /// Committed facts whose key is greater than `key`, in the order of their keys. For a look at all
    /// of them, some at a time.
    pub fn facts_behind<'a>(
        &'a self,
        key: &[u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.views.facts.behind(Some(key)).map(|(key, state)| (key, state.value))
    }

    /// The committed frontier: everything that was given this sequence or a lower one is kept (see
    /// [`Acknowledge`]), visible, and may be acknowledged.
    pub fn committed(&self) -> Sequence {
        self.views.covered.sequence
    }

    /// The log position right behind everything that is committed.
    pub fn committed_end(&self) -> LogOffset {
        self.position(self.views.covered.next)
    }

    /// The store time of the newest committed group.
    pub fn committed_time(&self) -> EpochMillis {
        self.views.covered.store_time
    }

    /// The newest group that was closed; what is appended now rides in the next one or later.
    pub fn appended(&self) -> Sequence {
        self.appended
    }

    /// The durable frontier. At or above the committed one, unless the store is buffered.
    pub fn durable(&self) -> Sequence {
        self.durable
    }

    /// The frontier of what a killed process leaves behind, at or above the committed one: the durable
    /// one, or in a buffered store what lies in shared memory.
    pub fn kept(&self) -> Sequence {
        self.kept
    }

    /// When appends to this shard may be acknowledged.
    pub fn acknowledge(&self) -> Acknowledge {
        self.acknowledge
    }

    /// Why the shard refuses appends, once a write has failed.
    pub fn poisoned(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// Asks for `token` in [`take_woken`](Self::take_woken) once a record that matches the filter
    /// is committed to the queue. The caller has just read up to the committed end.
    pub fn wait(&mut self, queue: QueueNo, filter: TagFilter, token: u64) {
        if let Some(queue) = self.views.queue_mut(queue) {
            queue.wait(token, filter);
        }
    }

    /// Takes back a [`wait`](Self::wait) whose token has not come.
    pub fn cancel_wait(&mut self, queue: QueueNo, token: u64) {
        if let Some(queue) = self.views.queue_mut(queue) {
            queue.cancel_wait(token);
        }
    }

    /// Moves the tokens of waiters that may read now to `out`.
    pub fn take_woken(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.woken);
    }

    /// Moves the tokens of reads that were pending and can be repeated now to `out`.
    pub fn take_ready(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.ready);
    }

    /// True when [`take_ready`](Self::take_ready) has tokens: take them before sleeping.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// True once after room has come back for appends that were refused.
    pub fn take_room(&mut self) -> bool {
        std::mem::take(&mut self.room)
    }

    /// The next operation for the driver.
    pub fn next_op(&mut self) -> Option<Op> {
        if self.ops.is_empty() {
            self.issue_writes();
        }
        self.ops.pop_front()
    }

    /// Takes the outcome of an operation.
    pub fn complete(&mut self, completion: Completion, now: EpochMillis) {
        self.take_outcome(completion, now);
        self.settle();
    }

    /// As [`complete`](Self::complete), but leaves the work that follows to [`settle`](Self::settle):
    /// the device can have the next writes before that.
    pub(crate) fn take_outcome(&mut self, completion: Completion, now: EpochMillis) {
        self.now = now;
        let Completion { id, result, buffer } = completion;
        let Some(purpose) = self.purposes.try_remove(index(id.0)) else { return };
        self.new_stretch();
        match purpose {
            Purpose::Groups { first, count } => self.groups_written(first, count, result),
            Purpose::Create { ordinal } => self.segment_created(ordinal, result),
            Purpose::Zero { ordinal, end } => self.segment_zeroed(ordinal, end, result),
            Purpose::Populate { buffers } => self.cold.take_memory(buffers),
            Purpose::Cold { key } => self.cold_read(key, result, buffer),
            Purpose::Spot(read) => self.spot_read(read, result, buffer),
            Purpose::FreeSpace => self.free_space_known(result),
            Purpose::Recycle { from, to } => self.segment_recycled(from, to, result),
            Purpose::Remove { ordinal } => self.segment_removed(ordinal, result),
            // Where the file system cannot do it, the space stays taken.
            Purpose::Discard => {}
            Purpose::Empty { slot } => self.checkpoint_emptied(slot, result, now),
            Purpose::IndexRead { from, wanted } => self.index_read(from, wanted, result, buffer),
            Purpose::KeyRead { at, range, inbox } => {
                self.key_read((at, range), &inbox, result, buffer);
            }
            Purpose::IndexWrite { at } => self.index_written(at, result, now),
            Purpose::Changes { at, data } => self.changes_written((at, data), result, now),
            Purpose::Checkpoint { bytes } => self.checkpoint_written(bytes, result, now),
        }
    }

    /// Does what follows from the outcomes that were taken.
    pub(crate) fn settle(&mut self) {
        self.commit_kept();
        self.prepare_more();
        self.signal_room();
    }

    /// Says that no more input is waiting: what is open may go to the device now. In a buffered store
    /// it is acknowledged with that.
    pub fn input_drained(&mut self, now: EpochMillis) {
        self.now = now;
        self.new_stretch();
        // What retention appends goes out with this group.
        self.retain(now);
        if self.may_close() {
            self.close_group();
        }
        if self.acknowledge == Acknowledge::Buffered {
            self.commit_kept();
        }
        self.checkpoint_if_due(now);
        self.prepare_more();
    }

    /// What depends on time alone: staged facts, the note of an idle shard, checkpoints, retries, and
    /// in a buffered store writes that waited for more. Call it several times a second.
    pub fn tick(&mut self, now: EpochMillis) {
        self.now = now;
        self.hurry_writes();
        self.spots.tick();
        self.issue_reads();
        self.force_staged(now);
        self.note_if_idle(now);
        self.segments.tick(now);
        self.forget_write_len_if_idle();
        self.prepare_more();
        self.input_drained(now);
        self.signal_room();
    }

    /// True when nothing is open, staged or on its way to the device, and a checkpoint covers it
    /// all: a shard that is closed now loses nothing.
    pub fn is_closable(&self) -> bool {
        self.open.is_none()
            && self.pending.is_empty()
            && !self.views.facts.has_staged()
            && self.is_checkpointed()
    }

    /// Ordinal of the first segment that is part of the log.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn first_segment(&self) -> u64 {
        self.views.first
    }

    fn op(&mut self, purpose: Purpose) -> OpId {
        OpId(wide(self.purposes.insert(purpose)))
    }

    fn fail(&mut self, doing: &str, cause: &std::io::Error) {
        if self.poison.is_none() {
            tracing::error!(shard = self.geometry.shard(), %cause, "{doing} failed, the shard stops");
            self.poison = Some(format!("{doing}: {cause}"));
            // Whoever waits for room must come back to be told.
            self.room = true;
        }
    }

    /// An append was refused: groups that wait may hold the memory that it needs.
    fn starve(&mut self) {
        self.starved = true;
        self.hurry_writes();
    }

    /// Refused appends come back once a group or a segment has made room.
    fn signal_room(&mut self) {
        if self.starved && self.may_have_room() {
            self.starved = false;
            self.room = true;
        }
    }

    fn position(&self, place: Place) -> LogOffset {
        self.geometry.position(place).expect("places of written groups have positions")
    }
}

fn offset(records: u64) -> QueueOffset {
    QueueOffset::new(i64::try_from(records).unwrap_or(i64::MAX)).expect("not negative")
}
