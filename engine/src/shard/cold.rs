//! Parts of the log that were read back from the device: a bounded cache of whole groups, each
//! checked against its table before anything of it is given out.
//!
//! A segment is read in chunks of about 1 MiB whose borders the segment's map gives: a chunk begins
//! with the group that covers a multiple of 1 MiB. So every reader reads the same chunks, and
//! several can be read ahead at once.

mod memory;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::ops::Range;

use memory::ColdMemory;

use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::group::{Group, Header};
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

/// Names a chunk: the segment's ordinal, and the number of the chunk in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkKey {
    ordinal: u64,
    number: u32,
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
}

/// A group in a chunk: its bytes with padding, counted from the chunk's first.
struct Extent {
    start: usize,
    end: usize,
    /// Its records have been compared with its table. That is done when the first of them is wanted:
    /// they are read from memory once, then, for the check and for what is done with them.
    checked: bool,
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
}

impl Near {
    fn bytes_at(&self, position: LogOffset, len: usize) -> Option<RecordSlice> {
        let at = usize::try_from(position.get() - self.base.get()).ok()?;
        self.groups.part(at..at + len)
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
    /// A read that failed, for the next look-up of its chunk.
    failed: Option<(ChunkKey, ReadError)>,
}

impl Cold {
    /// A cache of at most `budget` bytes, which takes more only while a single chunk needs more.
    pub(super) fn new(segment_len: u64, budget: usize) -> Self {
        let buffer_len = BUFFER_LEN_MAX.min(index(segment_len).next_multiple_of(4096));
        Self { memory: ColdMemory::new(buffer_len, budget), ..Self::default() }
    }

    /// Whether the device is being read.
    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Whether a segment is being read.
    pub(super) fn is_loading_of(&self, ordinal: u64) -> bool {
        self.loading.keys().any(|key| key.ordinal == ordinal)
    }

    fn insert(&mut self, key: ChunkKey, mut chunk: ColdChunk) {
        self.clock += 1;
        chunk.touched = self.clock;
        self.bytes += chunk.groups.chunk().len();
        match self.chunks.insert(key, chunk) {
            Some(old) => self.bytes -= old.groups.chunk().len(),
            None => self.keys.push(key),
        }
        while self.bytes > self.memory.budget() && self.keys.len() > 1 {
            self.evict();
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
            drawn = Some(at);
            let chunk = self.keys.get(at).and_then(|key| self.chunks.get_mut(key));
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
        let known = chunk.damaged.len();
        let group = chunk.checked_group(at);
        self.stats.unreadable += wide(chunk.damaged.len() - known);
        let Some(group) = group.filter(|_| !chunk.is_damaged(position)) else {
            return Err(Miss::Failed(ReadError::Damaged(position)));
        };
        if chunk.damaged.is_empty() {
            let base = chunk.base.plus(group.start);
            *near = chunk.groups.part(group).map(|groups| Near { base, groups });
        }
        self.cold.clock += 1;
        let long = 4 * wide(self.cold.keys.len());
        chunk.returned_to |= chunk.used && self.cold.clock - chunk.touched > long;
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
        let tokens = token.into_iter().collect();
        self.cold.loading.insert(key, Loading { tokens, ahead });
        self.stats.cold_reads += 1;
        self.stats.cold_bytes += wide(len);
        self.cold.memory.missed(key);
        let buffer = ReadBuffer(self.cold.buffer(len));
        if let Some((region, buffers)) = self.cold.memory.wanted() {
            let id = self.op(Purpose::Populate { buffers });
            self.ops.push_back(Op::Populate { id, memory: Unpopulated(region) });
        }
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
        from: u64,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let Some(Loading { tokens, ahead }) = self.cold.loading.remove(&key) else { return };
        match (result, buffer) {
            (Ok(len), Some(ReadBuffer(memory))) => {
                let base = self.position(Place { ordinal: key.ordinal, byte: from });
                let chunk = ColdChunk { ahead, ..self.find_groups(base, memory, len) };
                self.cold.insert(key, chunk);
            }
            (Err(cause), _) => self.cold.failed = Some((key, ReadError::Io(cause.to_string()))),
            (Ok(_), None) => {
                let cause = "the read lost its buffer".to_owned();
                self.cold.failed = Some((key, ReadError::Io(cause)));
            }
        }
        self.ready.extend(tokens);
    }

    /// Finds the groups of what was read, and notes where there is none.
    fn find_groups(&mut self, base: LogOffset, mut memory: ChunkTail, len: usize) -> ColdChunk {
        let block_len = self.geometry.block_len();
        let bytes = memory.buffer().get(..len).unwrap_or_default();
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
            let end = (start + header.padded_len(block_len)).min(len);
            extents.push(Extent { start, end, checked: false });
            start = end;
        }
        if !damaged.is_empty() {
            self.stats.unreadable += wide(damaged.len());
            let position = base.get();
            tracing::error!(position, stretches = damaged.len(), "the log is damaged");
        }
        let groups = memory.freeze(len);
        ColdChunk {
            base,
            groups,
            extents,
            damaged,
            ahead: 0,
            used: false,
            touched: 0,
            returned_to: false,
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
