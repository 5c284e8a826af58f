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
/// Chunks that are read ahead of a reader.
const AHEAD: u32 = 4;

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
    used: bool,
}

impl ColdChunk {
    fn distance(&self, position: LogOffset) -> Option<usize> {
        u64::try_from(position.get() - self.base.get()).ok().map(index)
    }

    fn is_damaged(&self, position: LogOffset) -> bool {
        self.damaged.iter().any(|&(from, to)| from <= position && position < to)
    }
}

#[derive(Default)]
pub(super) struct Cold {
    buffer_len: usize,
    chunks: HashMap<ChunkKey, ColdChunk>,
    /// Cached chunks, oldest first.
    order: VecDeque<ChunkKey>,
    bytes: usize,
    spare: Vec<Arc<Chunk>>,
    /// Buffers that were never used.
    fresh: Vec<ChunkTail>,
    /// Reads under way, and who waits for them.
    loading: HashMap<ChunkKey, Vec<u64>>,
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

    fn insert(&mut self, key: ChunkKey, chunk: ColdChunk, budget: usize) {
        self.bytes += chunk.groups.chunk().len();
        match self.chunks.insert(key, chunk) {
            Some(old) => self.bytes -= old.groups.chunk().len(),
            None => self.order.push_back(key),
        }
        let mut second_chances = self.order.len();
        while self.bytes > budget && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else { return };
            let Some(chunk) = self.chunks.get_mut(&oldest) else { continue };
            if chunk.used && second_chances > 0 {
                second_chances -= 1;
                chunk.used = false;
                self.order.push_back(oldest);
                continue;
            }
            if let Some(chunk) = self.chunks.remove(&oldest) {
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
    /// The bytes of a committed record, from memory, or `Err` with what happens next.
    pub(super) fn bytes_at(
        &mut self,
        position: LogOffset,
        len: usize,
        token: u64,
    ) -> Result<RecordSlice, Miss> {
        if let Some(slice) = self.tail.find(position, len) {
            return Ok(slice);
        }
        let key = self.chunk_key(position)?;
        let Some(chunk) = self.cold.chunks.get_mut(&key) else {
            return self.load(key, Some(token));
        };
        let at = chunk.distance(position).ok_or(Miss::Outside)?;
        let Some(slice) = chunk.groups.part(at..at + len) else {
            // The chunk has grown since it was read.
            return self.load(key, Some(token));
        };
        if chunk.is_damaged(position) {
            return Err(Miss::Failed(ReadError::Damaged(position)));
        }
        if !std::mem::replace(&mut chunk.used, true) {
            self.read_ahead(key);
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
            _ => self.load(key, Some(token)),
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

    /// Starts reading a chunk, or joins the read that is under way.
    fn load<T>(&mut self, key: ChunkKey, token: Option<u64>) -> Result<T, Miss> {
        if let Some((_, error)) = self.cold.failed.take_if(|(failed, _)| *failed == key) {
            tracing::warn!(?key, %error, "reading the log failed");
            return Err(Miss::Failed(error));
        }
        if let Some(tokens) = self.cold.loading.get_mut(&key) {
            tokens.extend(token);
            return Err(Miss::Pending);
        }
        let (from, to) = self.chunk_range(key).ok_or(Miss::Outside)?;
        if !self.segments.exists(key.ordinal) {
            let place = Place { ordinal: key.ordinal, byte: from };
            return Err(Miss::Failed(ReadError::Damaged(self.position(place))));
        }
        let len = index(to - from);
        self.cold.loading.insert(key, token.into_iter().collect());
        self.stats.cold_reads += 1;
        self.stats.cold_bytes += wide(len);
        let buffer = ReadBuffer(self.cold.buffer(len));
        let id = self.op(Purpose::Cold { key, from });
        let file = FileId::Segment(key.ordinal);
        self.ops.push_back(Op::Read { id, file, at: from, len, buffer });
        Err(Miss::Pending)
    }

    /// Reads on behind a chunk, so that a sequential reader need not wait.
    fn read_ahead(&mut self, from: ChunkKey) {
        let mut key = from;
        for _ in 0..AHEAD {
            key.number += 1;
            if self.chunk_range(key).is_none() {
                key = ChunkKey { ordinal: key.ordinal + 1, number: 0 };
            }
            let Some((start, end)) = self.chunk_range(key) else { return };
            let place = Place { ordinal: key.ordinal, byte: start };
            let in_memory = self.tail.start().is_some_and(|tail| self.position(place) >= tail);
            if in_memory {
                return;
            }
            if start < end && !self.cold.chunks.contains_key(&key) {
                // Nobody waits for it: a failure is met by the reader that gets there.
                let _: Result<(), Miss> = self.load(key, None);
            }
        }
    }

    pub(super) fn cold_read(
        &mut self,
        key: ChunkKey,
        from: u64,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let tokens = self.cold.loading.remove(&key).unwrap_or_default();
        match (result, buffer) {
            (Ok(len), Some(ReadBuffer(memory))) => {
                let base = self.position(Place { ordinal: key.ordinal, byte: from });
                let chunk = self.check_groups(base, memory, len);
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
        ColdChunk { base, groups: memory.freeze(len), damaged, used: false }
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
