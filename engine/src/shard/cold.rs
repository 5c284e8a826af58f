//! Parts of the log that were read back from the device: a bounded cache of whole groups, each
//! checked against its table.
//!
//! A segment is read in chunks of about 1 MiB whose borders the segment's map gives: a chunk begins
//! with the group that covers a multiple of 1 MiB. So every reader reads the same chunks, and
//! several can be read ahead at once.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::group::{Group, Header};
use crate::layout::Place;
use crate::mem::{Chunk, ChunkTail, RecordSlice, Region};
use crate::op::{FileId, Op, ReadBuffer};
use crate::units::{LogOffset, index, wide};

/// Room for a chunk with a usual last group; longer ones get memory of their own, and segments that
/// are shorter than that need less.
const BUFFER_LEN_MAX: usize = (1 << 20) + (512 << 10);
/// Buffers that are allocated together, and those that are kept for the next reads.
const BUFFERS: usize = 8;
/// Chunks that are read ahead of a reader that has only begun, and of one that goes on and on.
const AHEAD_MIN: u32 = 2;
const AHEAD_MAX: u32 = 8;

/// Names a chunk: the segment's ordinal, and the number of the chunk in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkKey {
    ordinal: u64,
    number: u32,
}

struct ColdChunk {
    base: LogOffset,
    groups: RecordSlice,
    /// Stretches that cannot be read: from, to.
    damaged: Vec<(LogOffset, LogOffset)>,
    /// Chunks that are read ahead when a reader arrives here.
    ahead: u32,
    used: bool,
    /// When it was read or used last, in readings of [`Cold::clock`].
    touched: u64,
}

/// A read under way.
struct Loading {
    /// Who waits for it.
    tokens: Vec<u64>,
    ahead: u32,
}

impl ColdChunk {
    fn distance(&self, position: LogOffset) -> Option<usize> {
        u64::try_from(position.get() - self.base.get()).ok().map(index)
    }

    fn is_damaged(&self, position: LogOffset) -> bool {
        self.damaged.iter().any(|&(from, to)| from <= position && position < to)
    }
}

/// Sound groups in memory, and the position of the first one.
pub(super) struct Near {
    base: LogOffset,
    groups: RecordSlice,
}

impl Near {
    fn bytes_at(&self, position: LogOffset, len: usize) -> Option<RecordSlice> {
        let at = usize::try_from(position.get() - self.base.get()).ok()?;
        self.groups.part(at..at + len)
    }
}

#[derive(Default)]
pub(super) struct Cold {
    buffer_len: usize,
    chunks: HashMap<ChunkKey, ColdChunk>,
    /// Cached chunks with the time of a touch, about in the order of it: what was read ahead stays
    /// until its reader has come, and then leaves before what came later.
    order: VecDeque<(ChunkKey, u64)>,
    /// Counts touches.
    clock: u64,
    bytes: usize,
    spare: Vec<Arc<Chunk>>,
    /// Buffers that were never used.
    fresh: Vec<ChunkTail>,
    loading: HashMap<ChunkKey, Loading>,
    /// A read that failed, for the next look-up of its chunk.
    failed: Option<(ChunkKey, ReadError)>,
}

impl Cold {
    pub(super) fn new(segment_len: u64) -> Self {
        let buffer_len = BUFFER_LEN_MAX.min(index(segment_len).next_multiple_of(4096));
        Self { buffer_len, ..Self::default() }
    }

    /// Whether the device is being read.
    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Whether a segment is being read.
    pub(super) fn is_loading_of(&self, ordinal: u64) -> bool {
        self.loading.keys().any(|key| key.ordinal == ordinal)
    }

    fn insert(&mut self, key: ChunkKey, mut chunk: ColdChunk, budget: usize) {
        self.clock += 1;
        chunk.touched = self.clock;
        self.bytes += chunk.groups.chunk().len();
        match self.chunks.insert(key, chunk) {
            Some(old) => self.bytes -= old.groups.chunk().len(),
            None => self.order.push_back((key, self.clock)),
        }
        while self.bytes > budget && self.order.len() > 1 {
            let Some((oldest, queued)) = self.order.pop_front() else { return };
            let touched = self.chunks.get(&oldest).map_or(queued, |chunk| chunk.touched);
            if touched != queued {
                self.order.push_back((oldest, touched));
            } else if let Some(chunk) = self.chunks.remove(&oldest) {
                self.bytes -= chunk.groups.chunk().len();
                self.spare.push(Arc::clone(chunk.groups.chunk()));
                self.spare.truncate(BUFFERS);
            }
        }
    }

    fn buffer(&mut self, len: usize) -> ChunkTail {
        if len > self.buffer_len {
            return ChunkTail::alone(len.next_multiple_of(4096));
        }
        while let Some(chunk) = self.spare.pop() {
            if chunk.len() == self.buffer_len
                && let Ok(memory) = ChunkTail::recycle(chunk)
            {
                return memory;
            }
        }
        if self.fresh.is_empty() {
            self.fresh = ChunkTail::cut(&Region::new(BUFFERS * self.buffer_len), self.buffer_len);
        }
        self.fresh.pop().unwrap_or_else(|| ChunkTail::alone(self.buffer_len))
    }
}

impl Shard {
    /// The bytes of a committed record, from memory, or `Err` with what happens next. `near` keeps
    /// the memory around it for the next call: records of a queue lie close to each other.
    pub(super) fn bytes_at(
        &mut self,
        position: LogOffset,
        len: usize,
        token: u64,
        near: &mut Option<Near>,
    ) -> Result<RecordSlice, Miss> {
        if let Some(slice) = near.as_ref().and_then(|near| near.bytes_at(position, len)) {
            return Ok(slice);
        }
        if let Some((base, groups)) = self.tail.groups_around(position) {
            let found = near.insert(Near { base, groups });
            return found.bytes_at(position, len).ok_or(Miss::Outside);
        }
        let key = self.chunk_key(position)?;
        let Some(chunk) = self.cold.chunks.get_mut(&key) else {
            return self.load(key, AHEAD_MIN, Some(token));
        };
        let at = chunk.distance(position).ok_or(Miss::Outside)?;
        let Some(slice) = chunk.groups.part(at..at + len) else {
            // The chunk has grown since it was read.
            return self.load(key, AHEAD_MIN, Some(token));
        };
        if chunk.is_damaged(position) {
            return Err(Miss::Failed(ReadError::Damaged(position)));
        }
        if chunk.damaged.is_empty() {
            *near = Some(Near { base: chunk.base, groups: chunk.groups.clone() });
        }
        self.cold.clock += 1;
        chunk.touched = self.cold.clock;
        if !std::mem::replace(&mut chunk.used, true) {
            let ahead = chunk.ahead;
            self.read_ahead(key, ahead);
        }
        Ok(slice)
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

    /// The bytes of its segment that a chunk covers now.
    fn chunk_range(&self, key: ChunkKey) -> Option<(u64, u64)> {
        self.views.maps.get(&key.ordinal)?.chunk_range(key.number)
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
        let tokens = token.into_iter().collect();
        self.cold.loading.insert(key, Loading { tokens, ahead });
        self.stats.cold_reads += 1;
        self.stats.cold_bytes += wide(len);
        let buffer = ReadBuffer(self.cold.buffer(len));
        let id = self.op(Purpose::Cold { key, from });
        let file = FileId::Segment(key.ordinal);
        self.ops.push_back(Op::Read { id, file, at: from, len, buffer });
        Err(Miss::Pending)
    }

    /// Reads on behind a chunk, so that a sequential reader need not wait. The longer it goes on, the
    /// more is read.
    ///
    /// Once half of what was read ahead is used, and all of it has arrived, the next half is asked
    /// for at once: some devices report what they have read only when they have no more to do, so
    /// that a steady trickle of reads would hold back the ones before.
    fn read_ahead(&mut self, from: ChunkKey, ahead: u32) {
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
        from: u64,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let Some(Loading { tokens, ahead }) = self.cold.loading.remove(&key) else { return };
        match (result, buffer) {
            (Ok(len), Some(ReadBuffer(memory))) => {
                let base = self.position(Place { ordinal: key.ordinal, byte: from });
                let chunk = ColdChunk { ahead, ..self.check_groups(base, memory, len) };
                self.cold.insert(key, chunk, self.limits.cold_bytes);
            }
            (Err(cause), _) => self.cold.failed = Some((key, ReadError::Io(cause.to_string()))),
            (Ok(_), None) => {
                let cause = "the read lost its buffer".to_owned();
                self.cold.failed = Some((key, ReadError::Io(cause)));
            }
        }
        self.ready.extend(tokens);
    }

    /// Checks every group and record of what was read, and notes what is damaged.
    fn check_groups(&mut self, base: LogOffset, mut memory: ChunkTail, len: usize) -> ColdChunk {
        let block_len = self.geometry.block_len();
        let bytes = memory.buffer().get(..len).unwrap_or_default();
        let mut damaged = Vec::new();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let position = base.plus(at);
            let group = Group::parse(rest).filter(|group| self.is_at(&group.header, position));
            let Some(group) = group else {
                let gap = self.gap_len(rest, position);
                damaged.push((position, position.plus(gap)));
                at += gap;
                continue;
            };
            for record in group.records().filter(|record| !record.is_sound()) {
                damaged.push((record.position, record.position.plus(record.bytes.len())));
            }
            at += group.header.padded_len(block_len);
        }
        if !damaged.is_empty() {
            self.stats.unreadable += wide(damaged.len());
            let position = base.get();
            tracing::error!(position, stretches = damaged.len(), "the log is damaged");
        }
        ColdChunk { base, groups: memory.freeze(len), damaged, ahead: 0, used: false, touched: 0 }
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
