//! Parts of the log that were read back from the device: a bounded cache of whole groups, each
//! checked against its table before anything of it is given out.
//!
//! A segment is read in chunks of about 1 MiB whose borders the segment's map gives: a chunk begins
//! with the group that covers a multiple of 1 MiB. So every reader reads the same chunks, and
//! several can be read ahead at once.

mod memory;

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;

use memory::ColdMemory;

use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::group::{Group, Header};
use crate::format::index_block::QueueEntry;
use crate::layout::Place;
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{FileId, Op, ReadBuffer, Unpopulated};
use crate::units::{LogOffset, index, narrow, wide};

/// Room for a chunk with a usual last group; longer ones get memory of their own, and segments that
/// are shorter than that need less.
const BUFFER_LEN_MAX: usize = (1 << 20) + (512 << 10);
/// Chunks that are read ahead of a reader that has only begun, and of one that goes on and on.
const AHEAD_MIN: u32 = 2;
const AHEAD_MAX: u32 = 8;
/// While appends go on, one part of this length is read at a time, or one as long as the writes under
/// way, where that is more: a write waits for the reads that the device has before it.
const GENTLE_LEN: usize = 16 << 10;
/// All of a chunk, as a part of it.
const WHOLE_USE: usize = 1 << 16;

/// Names a chunk: the segment's ordinal, and the number of the chunk in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkKey {
    ordinal: u64,
    number: u32,
}

impl ChunkKey {
    /// The chunk before it in the same segment.
    fn before(self) -> Option<Self> {
        Some(Self { number: self.number.checked_sub(1)?, ..self })
    }
}

struct ColdChunk {
    base: LogOffset,
    groups: RecordSlice,
    /// Where each group lies, in order.
    extents: Vec<Extent>,
    /// Stretches that cannot be read: from, to.
    damaged: Vec<(LogOffset, LogOffset)>,
    /// Chunks that are read ahead when a reader arrives here.
    ahead: u32,
    used: bool,
    /// When it was read or used last, in readings of [`Cold::clock`].
    touched: u64,
    /// It was used again after a long time, not just read through.
    returned_to: bool,
    /// Bytes that were given out, each time they were.
    given: usize,
}

/// A group in a chunk: its bytes with padding, counted from the chunk's first.
struct Extent {
    start: usize,
    end: usize,
    /// Its records have been compared with its table. That is done when the first of them is wanted:
    /// they are read from memory once, then, for the check and for what is done with them.
    checked: bool,
}

/// A read that is wanted or under way.
struct Loading {
    /// Who waits for it.
    tokens: Vec<u64>,
    ahead: u32,
    /// The bytes of the segment that are wanted.
    range: Range<u64>,
    /// How many of them have arrived.
    done: usize,
    /// Where they go, unless the device has it.
    memory: Option<ChunkTail>,
}

impl ColdChunk {
    fn distance(&self, position: LogOffset) -> Option<usize> {
        u64::try_from(position.get() - self.base.get()).ok().map(index)
    }

    fn is_damaged(&self, position: LogOffset) -> bool {
        self.damaged.iter().any(|&(from, to)| from <= position && position < to)
    }

    /// The extent of the group around a byte, which is checked the first time. `None` in a gap.
    fn checked_group(&mut self, at: usize) -> Option<Range<usize>> {
        let behind = self.extents.partition_point(|extent| extent.start <= at);
        let extent = self.extents.get_mut(behind.checked_sub(1)?)?;
        let range = extent.start..extent.end;
        if !std::mem::replace(&mut extent.checked, true) {
            let known = self.damaged.len();
            let position = self.base.plus(range.start);
            match self.groups.get(range.clone()).and_then(Group::parse) {
                Some(group) => self.damaged.extend(
                    group
                        .records()
                        .filter(|record| !record.is_sound())
                        .map(|record| (record.position, record.position.plus(record.bytes.len()))),
                ),
                None => self.damaged.push((position, self.base.plus(range.end))),
            }
            if self.damaged.len() > known {
                let stretches = self.damaged.len() - known;
                tracing::error!(position = position.get(), stretches, "the log is damaged");
            }
        }
        range.contains(&at).then_some(range)
    }
}

/// Sound groups in memory, and the position of the first one.
pub(super) struct Near {
    base: LogOffset,
    groups: RecordSlice,
    /// The chunk that they are in, when they were read back, and bytes that were given out of them.
    chunk: Option<ChunkKey>,
    given: usize,
}

impl Near {
    fn bytes_at(&mut self, position: LogOffset, len: usize) -> Option<RecordSlice> {
        let at = usize::try_from(position.get() - self.base.get()).ok()?;
        let slice = self.groups.part(at..at + len)?;
        self.given += len;
        Some(slice)
    }
}

#[derive(Default)]
pub(super) struct Cold {
    memory: ColdMemory,
    chunks: HashMap<ChunkKey, ColdChunk>,
    /// Cached chunks in no order.
    keys: Vec<ChunkKey>,
    /// Counts touches.
    clock: u64,
    /// Bytes of cached chunks.
    bytes: usize,
    loading: HashMap<ChunkKey, Loading>,
    /// Chunks whose next part the device has not been asked for, in order.
    wanted: VecDeque<ChunkKey>,
    /// Parts that the device is reading.
    reading: usize,
    /// A read that failed, for the next look-up of its chunk.
    failed: Option<(ChunkKey, ReadError)>,
    /// How much of a chunk was given out before it left, lately and on average, in parts of
    /// [`WHOLE_USE`].
    use_lately: usize,
}

impl Cold {
    /// A cache of at most `budget` bytes, which takes more only while a single chunk needs more.
    pub(super) fn new(segment_len: u64, budget: usize) -> Self {
        let buffer_len = BUFFER_LEN_MAX.min(index(segment_len).next_multiple_of(4096));
        let memory = ColdMemory::new(buffer_len, budget);
        Self { memory, use_lately: WHOLE_USE, ..Self::default() }
    }

    /// Chunks have left lately with little of them used.
    pub(super) fn is_wasteful(&self) -> bool {
        self.use_lately < WHOLE_USE / 4
    }

    /// Takes the use of one more chunk into the average.
    pub(super) fn note_use(&mut self, given: usize, of: usize) {
        const LATELY: usize = 8;
        let part = given.saturating_mul(WHOLE_USE).checked_div(of).unwrap_or(0).min(WHOLE_USE);
        self.use_lately = (self.use_lately * (LATELY - 1) + part) / LATELY;
    }

    /// A chunk that is still there has given little, as others have that have left: it seems that
    /// readers do not go through the log in its order.
    fn was_hardly_used(&self, key: Option<ChunkKey>) -> bool {
        let chunk = key.and_then(|key| self.chunks.get(&key));
        let hardly = chunk.is_some_and(|chunk| chunk.given < chunk.groups.len() / 4);
        hardly && self.is_wasteful()
    }

    /// Chunks that there is room for.
    pub(super) fn room(&self) -> usize {
        (self.memory.budget() / self.memory.buffer_len()).max(1)
    }

    pub(super) fn has(&self, key: ChunkKey) -> bool {
        self.chunks.contains_key(&key) || self.loading.contains_key(&key)
    }

    /// Counts what was given out of the groups of a chunk.
    pub(super) fn note_given(&mut self, near: Option<&mut Near>) {
        let Some(Near { chunk: Some(key), given, .. }) = near else { return };
        let given = std::mem::take(given);
        if let Some(chunk) = self.chunks.get_mut(key) {
            chunk.given += given;
        }
    }

    /// Whether the device is being read.
    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Whether a segment is being read.
    pub(super) fn is_loading_of(&self, ordinal: u64) -> bool {
        self.loading.keys().any(|key| key.ordinal == ordinal)
    }

    /// Gives up what is wanted of a segment and not asked for yet. Gives who waits for it.
    pub(super) fn give_up(&mut self, ordinal: u64) -> Vec<u64> {
        let is_wanted = |key: &ChunkKey| {
            let loading = self.loading.get(key);
            key.ordinal == ordinal && loading.is_some_and(|loading| loading.memory.is_some())
        };
        let wanted: Vec<ChunkKey> = self.wanted.iter().copied().filter(is_wanted).collect();
        let mut tokens = Vec::new();
        for key in wanted {
            let Some(loading) = self.loading.remove(&key) else { continue };
            tokens.extend(loading.tokens);
            if let Some(buffer) = loading.memory {
                self.memory.leave(key, buffer.chunk());
            }
        }
        self.wanted.retain(|key| self.loading.contains_key(key));
        tokens
    }

    fn insert(&mut self, key: ChunkKey, mut chunk: ColdChunk) {
        let len = chunk.groups.chunk().len();
        // It draws no lot for its own room: somebody waits for it, and would find it gone.
        while self.bytes + len > self.memory.budget() && self.evict() {}
        self.clock += 1;
        chunk.touched = self.clock;
        self.bytes += len;
        match self.chunks.insert(key, chunk) {
            Some(old) => self.bytes -= old.groups.chunk().len(),
            None => self.keys.push(key),
        }
    }

    /// Drops a chunk, and keeps its buffer for the next one. False: there is none.
    ///
    /// It is drawn by lot, since of a backlog that is a little too large and read again and again
    /// nothing would ever be found if the oldest went first. What was read ahead, or is in use, is
    /// spared, and so is once what readers have come back to: a long scan does not push that out.
    fn evict(&mut self) -> bool {
        const DRAWS: u64 = 8;
        const RECENT: u64 = 64;
        let mut drawn = None;
        for n in 0..DRAWS {
            let lot = scatter(self.clock.wrapping_mul(DRAWS).wrapping_add(n));
            let Some(at) = lot.checked_rem(wide(self.keys.len())).map(index) else { return false };
            let chunk = self.keys.get(at).and_then(|key| self.chunks.get_mut(key));
            // Where all are spared, what nobody has come for yet goes last.
            if drawn.is_none() || chunk.as_ref().is_some_and(|chunk| chunk.used) {
                drawn = Some(at);
            }
            let spared = chunk.is_some_and(|chunk| {
                let in_use = !chunk.used || self.clock - chunk.touched < RECENT;
                in_use || std::mem::take(&mut chunk.returned_to)
            });
            if !spared {
                break;
            }
        }
        self.clock += 1;
        let Some(key) = drawn.map(|at| self.keys.swap_remove(at)) else { return false };
        if let Some(chunk) = self.chunks.remove(&key) {
            if chunk.used {
                self.note_use(chunk.given, chunk.groups.len());
            }
            let buffer = chunk.groups.chunk();
            self.bytes -= buffer.len();
            self.memory.leave(key, buffer);
        }
        true
    }

    fn buffer(&mut self, len: usize) -> ChunkTail {
        if len > self.memory.buffer_len() {
            return ChunkTail::alone(len.next_multiple_of(4096));
        }
        loop {
            if let Some(buffer) = self.memory.free_buffer() {
                return buffer;
            }
            if !self.evict() {
                // All of it is being read into, or readers hold it: this one goes when it leaves.
                self.memory.ran_out();
                return ChunkTail::alone(self.memory.buffer_len());
            }
        }
    }

    /// Takes memory that the system has found.
    pub(super) fn take_memory(&mut self, buffers: Vec<ChunkTail>) {
        self.memory.take(buffers);
    }
}

/// A number that looks drawn by lot, the same for the same argument.
fn scatter(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

impl Shard {
    /// The bytes of a committed record, if they are in memory. `near` keeps the memory around it for
    /// the next call: records of a queue lie close to each other.
    pub(super) fn bytes_at(
        &mut self,
        entry: &QueueEntry,
        near: &mut Option<Near>,
    ) -> Result<Found, Miss> {
        let (position, len) = (entry.position, index(u64::from(entry.len)));
        if let Some(slice) = near.as_mut().and_then(|near| near.bytes_at(position, len)) {
            return Ok(Found::Here(slice));
        }
        self.cold.note_given(near.as_mut());
        if let Some((base, groups)) = self.tail.groups_around(position) {
            let found = near.insert(Near { base, groups, chunk: None, given: 0 });
            return found.bytes_at(position, len).map(Found::Here).ok_or(Miss::Outside);
        }
        let key = self.chunk_key(position)?;
        let Some(chunk) = self.cold.chunks.get_mut(&key) else {
            return match self.spot(entry) {
                Some(found) => found.map(Found::Here),
                None => Ok(Found::On(key)),
            };
        };
        let at = chunk.distance(position).ok_or(Miss::Outside)?;
        let Some(slice) = chunk.groups.part(at..at + len) else {
            // The chunk has grown since it was read.
            return Ok(Found::On(key));
        };
        let known = chunk.damaged.len();
        let group = chunk.checked_group(at);
        self.stats.unreadable += wide(chunk.damaged.len() - known);
        let Some(group) = group.filter(|_| !chunk.is_damaged(position)) else {
            return Err(Miss::Failed(ReadError::Damaged(position)));
        };
        chunk.given += len;
        if chunk.damaged.is_empty() {
            let base = chunk.base.plus(group.start);
            let groups = chunk.groups.part(group);
            *near = groups.map(|groups| Near { base, groups, chunk: Some(key), given: 0 });
        }
        self.cold.clock += 1;
        let long = 4 * wide(self.cold.keys.len());
        chunk.returned_to |= chunk.used && self.cold.clock - chunk.touched > long;
        chunk.touched = self.cold.clock;
        if !std::mem::replace(&mut chunk.used, true) {
            let ahead = chunk.ahead;
            if !self.cold.was_hardly_used(key.before()) {
                self.read_ahead(key, ahead);
            }
        }
        Ok(Found::Here(slice))
    }

    /// Has the chunk of a record read for a reader, and some behind it.
    pub(super) fn load_chunk(&mut self, key: ChunkKey, token: Option<u64>) -> Miss {
        match self.load::<()>(key, AHEAD_MIN, token) {
            Ok(()) => Miss::Pending,
            Err(miss) => miss,
        }
    }

    /// Where a position is, the chunk around it, and the length of that.
    pub(super) fn chunk_around(&self, position: LogOffset) -> Option<(Place, ChunkKey, usize)> {
        let key = self.chunk_key(position).ok()?;
        let (from, to) = self.chunk_range(key)?;
        let exists = self.segments.exists(key.ordinal);
        Some((self.geometry.place(position)?, key, index(to - from))).filter(|_| exists)
    }

    /// Whole groups in memory around a position, with the position of the first one.
    pub(super) fn groups_at(
        &mut self,
        position: LogOffset,
        token: u64,
    ) -> Result<(LogOffset, RecordSlice), Miss> {
        if let Some(groups) = self.tail.groups_around(position) {
            return Ok(groups);
        }
        let key = self.chunk_key(position)?;
        match self.cold.chunks.get(&key) {
            Some(chunk) if position < chunk.base.plus(chunk.groups.len()) => {
                Ok((chunk.base, chunk.groups.clone()))
            }
            _ => self.load(key, 0, Some(token)),
        }
    }

    fn chunk_key(&self, position: LogOffset) -> Result<ChunkKey, Miss> {
        let place = self.geometry.place(position).ok_or(Miss::Outside)?;
        let map = self.views.maps.get(&place.ordinal).ok_or(Miss::Outside)?;
        let number = map.chunk_of(place.byte).ok_or(Miss::Outside)?;
        Ok(ChunkKey { ordinal: place.ordinal, number })
    }

    /// The bytes of its segment that a chunk covers now, as far as they are on the device.
    fn chunk_range(&self, key: ChunkKey) -> Option<(u64, u64)> {
        let (start, end) = self.views.maps.get(&key.ordinal)?.chunk_range(key.number)?;
        match key.ordinal.cmp(&self.durable_end.ordinal) {
            Ordering::Less => Some((start, end)),
            Ordering::Equal => Some((start, end.min(self.durable_end.byte))),
            Ordering::Greater => None,
        }
        .filter(|(start, end)| start <= end)
    }

    /// Starts reading a chunk, or joins the read that is under way. A reader that arrives there has
    /// `ahead` further ones read.
    fn load<T>(&mut self, key: ChunkKey, ahead: u32, token: Option<u64>) -> Result<T, Miss> {
        if let Some((_, error)) = self.cold.failed.take_if(|(failed, _)| *failed == key) {
            tracing::warn!(?key, %error, "reading the log failed");
            return Err(Miss::Failed(error));
        }
        if let Some(loading) = self.cold.loading.get_mut(&key) {
            loading.tokens.extend(token);
            loading.ahead = loading.ahead.max(ahead);
            return Err(Miss::Pending);
        }
        let (from, to) = self.chunk_range(key).ok_or(Miss::Outside)?;
        if !self.segments.exists(key.ordinal) {
            let place = Place { ordinal: key.ordinal, byte: from };
            return Err(Miss::Failed(ReadError::Damaged(self.position(place))));
        }
        let len = index(to - from);
        self.stats.cold_reads += 1;
        self.stats.cold_bytes += wide(len);
        self.cold.memory.missed(key);
        let memory = Some(self.cold.buffer(len));
        let tokens = token.into_iter().collect();
        let loading = Loading { tokens, ahead, range: from..to, done: 0, memory };
        self.cold.loading.insert(key, loading);
        self.cold.wanted.push_back(key);
        if let Some((region, buffers)) = self.cold.memory.wanted() {
            let id = self.op(Purpose::Populate { buffers });
            self.ops.push_back(Op::Populate { id, memory: Unpopulated(region) });
        }
        self.issue_reads();
        Err(Miss::Pending)
    }

    /// Asks the device for what is wanted, bit by bit while appends go on.
    pub(super) fn issue_reads(&mut self) {
        let gently = self.has_appends();
        let part = if gently {
            GENTLE_LEN.max(self.writing_bytes()).max(self.geometry.block_len())
        } else {
            usize::MAX
        };
        while !(gently && self.cold.reading > 0)
            && let Some(key) = self.cold.wanted.pop_front()
        {
            let Some(loading) = self.cold.loading.get_mut(&key) else { continue };
            let Some(memory) = loading.memory.take() else { continue };
            let at = loading.range.start + wide(loading.done);
            let len = part.min(index(loading.range.end - at));
            let len = len / self.geometry.block_len() * self.geometry.block_len();
            self.cold.reading += 1;
            let id = self.op(Purpose::Cold { key });
            let (file, buffer) = (FileId::Segment(key.ordinal), ReadBuffer(memory));
            self.ops.push_back(Op::Read { id, file, at, len, buffer });
        }
        self.issue_spot_reads(gently);
    }

    /// Reads on behind a chunk, so that a sequential reader need not wait. The longer it goes on, the
    /// more is read.
    ///
    /// Once half of what was read ahead is used, and all of it has arrived, the next half is asked
    /// for at once: some devices report what they have read only when they have no more to do, so
    /// that a steady trickle of reads would hold back the ones before.
    fn read_ahead(&mut self, from: ChunkKey, ahead: u32) {
        // With many readers, what some have read ahead must not take the memory of the others.
        let room = self.cold.memory.budget() / 2 / self.cold.memory.buffer_len();
        let ahead = ahead.min(narrow(room.saturating_sub(self.cold.loading.len())));
        if ahead == 0 {
            return;
        }
        let mut missing = Vec::new();
        let mut present = 0;
        let mut key = from;
        for _ in 0..ahead {
            let Some(next) = self.chunk_behind(key) else { break };
            key = next;
            if self.cold.loading.contains_key(&key) {
                return;
            }
            if self.cold.chunks.contains_key(&key) {
                present += 1;
            } else {
                missing.push(key);
            }
        }
        if present > ahead / 2 {
            return;
        }
        let further = (ahead * 2).min(AHEAD_MAX);
        for key in missing {
            // Nobody waits for it: a failure is met by the reader that gets there.
            let _: Result<(), Miss> = self.load(key, further, None);
        }
    }

    /// The next chunk in the order of the log, unless it is in memory anyway.
    fn chunk_behind(&self, mut key: ChunkKey) -> Option<ChunkKey> {
        key.number += 1;
        if self.chunk_range(key).is_none() {
            key = ChunkKey { ordinal: key.ordinal + 1, number: 0 };
        }
        let (start, end) = self.chunk_range(key)?;
        let place = Place { ordinal: key.ordinal, byte: start };
        let in_memory = self.tail.start().is_some_and(|tail| self.position(place) >= tail);
        (!in_memory && start < end).then_some(key)
    }

    pub(super) fn cold_read(
        &mut self,
        key: ChunkKey,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        self.cold.reading -= 1;
        if let Some(loading) = self.cold.loading.get_mut(&key) {
            let left = index(loading.range.end - loading.range.start) - loading.done;
            match (result, buffer) {
                (Ok(len), Some(ReadBuffer(mut memory))) => {
                    let len = len.min(left);
                    drop(memory.freeze(len));
                    loading.done += len;
                    let more = len > 0 && len < left;
                    loading.memory = Some(memory);
                    if more { self.cold.wanted.push_front(key) } else { self.loaded(key) }
                }
                (Err(cause), _) => self.not_loaded(key, cause.to_string()),
                (Ok(_), None) => self.not_loaded(key, "the read lost its buffer".to_owned()),
            }
        }
        self.issue_reads();
    }

    fn not_loaded(&mut self, key: ChunkKey, cause: String) {
        let Some(loading) = self.cold.loading.remove(&key) else { return };
        self.cold.failed = Some((key, ReadError::Io(cause)));
        self.ready.extend(loading.tokens);
    }

    fn loaded(&mut self, key: ChunkKey) {
        let Some(loading) = self.cold.loading.remove(&key) else { return };
        self.ready.extend(loading.tokens);
        let Some(memory) = loading.memory else { return };
        let base = self.position(Place { ordinal: key.ordinal, byte: loading.range.start });
        let groups = RecordSlice::of(memory.chunk(), memory.frozen(), 0..loading.done);
        if let Some(groups) = groups {
            let chunk = ColdChunk { ahead: loading.ahead, ..self.find_groups(base, groups) };
            self.cold.insert(key, chunk);
        }
    }

    /// Finds the groups of what was read, and notes where there is none.
    fn find_groups(&mut self, base: LogOffset, groups: RecordSlice) -> ColdChunk {
        let block_len = self.geometry.block_len();
        let bytes: &[u8] = &groups;
        let (mut extents, mut damaged) = (Vec::new(), Vec::new());
        let mut start = 0;
        while let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) {
            let position = base.plus(start);
            let header = Header::read(rest).map(|(header, _)| header);
            let Some(header) = header.filter(|header| self.is_at(header, position)) else {
                let gap = self.gap_len(rest, position);
                damaged.push((position, position.plus(gap)));
                start += gap;
                continue;
            };
            let end = (start + header.padded_len(block_len)).min(bytes.len());
            extents.push(Extent { start, end, checked: false });
            start = end;
        }
        if !damaged.is_empty() {
            self.stats.unreadable += wide(damaged.len());
            let position = base.get();
            tracing::error!(position, stretches = damaged.len(), "the log is damaged");
        }
        ColdChunk {
            base,
            groups,
            extents,
            damaged,
            ahead: 0,
            used: false,
            touched: 0,
            returned_to: false,
            given: 0,
        }
    }

    fn is_at(&self, header: &Header, position: LogOffset) -> bool {
        header.store == self.geometry.store() && header.position == position
    }

    /// How far it is from a damaged group to the next one that can be read.
    fn gap_len(&self, bytes: &[u8], position: LogOffset) -> usize {
        let block_len = self.geometry.block_len();
        let is_group = |at: &usize| {
            let header = bytes.get(*at..).and_then(Header::read);
            header.is_some_and(|(header, _)| self.is_at(&header, position.plus(*at)))
        };
        (block_len..bytes.len()).step_by(block_len).find(is_group).unwrap_or(bytes.len())
    }
}

/// Why bytes are not at hand.
pub(super) enum Miss {
    /// A read is under way; the token comes when it is done.
    Pending,
    /// No group was ever noted there.
    Outside,
    /// The read failed or found damage.
    Failed(ReadError),
}

/// Where a record is.
pub(super) enum Found {
    Here(RecordSlice),
    /// Not in memory; it can be read with this chunk.
    On(ChunkKey),
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4096;

    fn key(number: u32) -> ChunkKey {
        ChunkKey { ordinal: 0, number }
    }

    fn chunk(used: bool) -> ColdChunk {
        ColdChunk {
            base: LogOffset::new(0).unwrap(),
            groups: ChunkTail::alone(LEN).freeze(LEN),
            extents: Vec::new(),
            damaged: Vec::new(),
            ahead: 0,
            used,
            touched: 0,
            returned_to: false,
            given: 0,
        }
    }

    #[test]
    fn of_a_backlog_larger_than_the_cache_a_part_is_found_in_every_pass() {
        let mut cold = Cold::new(1 << 20, 300 * LEN);
        let mut found = 0;
        for pass in 0..4 {
            for number in 0..400 {
                if cold.chunks.contains_key(&key(number)) {
                    found += u32::from(pass > 0);
                } else {
                    cold.insert(key(number), chunk(true));
                }
                assert!(cold.bytes <= 300 * LEN);
            }
        }
        assert!(found > 400, "{found} of 1200 were found");
    }

    #[test]
    fn what_waits_for_its_reader_outlives_what_was_read() {
        let mut cold = Cold::new(1 << 20, 200 * LEN);
        for number in 0..8 {
            cold.insert(key(number), chunk(false));
        }
        for number in 8..1000 {
            cold.insert(key(number), chunk(true));
        }
        assert!((0..8).all(|number| cold.chunks.contains_key(&key(number))));
    }
}
