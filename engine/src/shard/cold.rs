//! Parts of the log that were read back from the device: a bounded cache of whole groups, each
//! checked against its table.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::group::{Group, HEADER_LEN, Header};
use crate::format::index_block::BLOCK_LEN;
use crate::layout::Place;
use crate::mem::{Chunk, ChunkTail, RecordSlice};
use crate::op::{FileId, Op, ReadBuffer};
use crate::units::{LogOffset, index, wide};

/// How much one read asks for, unless a single group is longer.
const READ_LEN: usize = 1 << 20;

struct ColdChunk {
    groups: RecordSlice,
    /// Records in it whose checksum is wrong.
    damaged: Vec<LogOffset>,
    used: bool,
}

/// Reads ahead stop while this many reads are under way.
const LOADING_MAX: usize = 8;

/// A read under way: whoever waits for it, and where it starts.
struct Loading {
    base: Place,
    tokens: Vec<u64>,
}

#[derive(Default)]
pub(super) struct Cold {
    chunks: BTreeMap<LogOffset, ColdChunk>,
    order: VecDeque<LogOffset>,
    bytes: usize,
    spare: Vec<Arc<Chunk>>,
    loading: Vec<Loading>,
    /// Stretches of the log where no group can be read, by their start.
    gaps: BTreeMap<LogOffset, LogOffset>,
    /// A read that failed, for the next look-up of its position.
    failed: Option<(Place, ReadError)>,
    index_loading: Vec<(u32, Vec<u64>)>,
}

/// What the cache knows of a position.
pub(super) enum Look {
    Here(RecordSlice),
    Damaged,
    Absent,
}

impl Cold {
    fn look(&mut self, position: LogOffset, len: usize) -> Look {
        if self.gap_end(position).is_some() {
            return Look::Damaged;
        }
        let Some((&base, chunk)) = self.chunks.range_mut(..=position).next_back() else {
            return Look::Absent;
        };
        let at = index(u64::try_from(position.get() - base.get()).expect("range ends there"));
        match chunk.groups.part(at..at + len) {
            Some(_) if chunk.damaged.contains(&position) => Look::Damaged,
            Some(slice) => {
                chunk.used = true;
                Look::Here(slice)
            }
            None => Look::Absent,
        }
    }

    /// The end of the damaged stretch that a position lies in.
    fn gap_end(&self, position: LogOffset) -> Option<LogOffset> {
        let (_, &end) = self.gaps.range(..=position).next_back()?;
        (position < end).then_some(end)
    }

    fn note_gap(&mut self, start: LogOffset, end: LogOffset) {
        const GAPS_MAX: usize = 1024;
        if self.gaps.len() == GAPS_MAX {
            self.gaps.clear();
        }
        self.gaps.insert(start, end);
    }

    /// Where to go on behind a position that is cached or known to be damaged.
    fn end_of(&self, position: LogOffset) -> Option<LogOffset> {
        if let Some(end) = self.gap_end(position) {
            return Some(end);
        }
        let (&base, chunk) = self.chunks.range(..=position).next_back()?;
        let end = base.plus(chunk.groups.len());
        (position < end).then_some(end)
    }

    fn around(&self, position: LogOffset) -> Option<(LogOffset, RecordSlice)> {
        let (&base, chunk) = self.chunks.range(..=position).next_back()?;
        (position < base.plus(chunk.groups.len())).then(|| (base, chunk.groups.clone()))
    }

    fn insert(&mut self, base: LogOffset, chunk: ColdChunk, budget: usize) {
        self.bytes += chunk.groups.chunk().len();
        if let Some(old) = self.chunks.insert(base, chunk) {
            self.bytes -= old.groups.chunk().len();
            self.order.retain(|&other| other != base);
        }
        self.order.push_back(base);
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
                self.spare.truncate(8);
            }
        }
    }

    fn buffer(&mut self, len: usize) -> ChunkTail {
        if len == READ_LEN {
            while let Some(chunk) = self.spare.pop() {
                if chunk.len() == READ_LEN
                    && let Ok(memory) = ChunkTail::recycle(chunk)
                {
                    return memory;
                }
            }
        }
        ChunkTail::alone(len)
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
        match self.cold.look(position, len) {
            Look::Here(slice) => {
                self.read_ahead(position);
                Ok(slice)
            }
            Look::Damaged => Err(Miss::Failed(ReadError::Damaged(position))),
            Look::Absent => self.load(position, token),
        }
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
        match self.cold.around(position) {
            Some(groups) => Ok(groups),
            None => self.load(position, token),
        }
    }

    fn load<T>(&mut self, position: LogOffset, token: u64) -> Result<T, Miss> {
        let place = self.geometry.place(position).ok_or(Miss::Outside)?;
        let map = self.views.maps.get(&place.ordinal).ok_or(Miss::Outside)?;
        let start = map.start_before(place.byte).ok_or(Miss::Outside)?;
        // The chunk that starts at the map's boundary may end before the record: go on behind it.
        let base = self.walk_cached(Place { byte: start, ..place }, position);
        if let Some((failed, error)) = self.cold.failed.take_if(|(failed, _)| *failed == base) {
            tracing::warn!(ordinal = failed.ordinal, byte = failed.byte, %error, "read failed");
            return Err(Miss::Failed(error));
        }
        self.start_read(base, READ_LEN, Some(token));
        Err(Miss::Pending)
    }

    /// Follows cached chunks from `base` towards `position` and gives where the next read starts.
    fn walk_cached(&self, base: Place, position: LogOffset) -> Place {
        let mut at = self.position(base);
        while let Some(end) = self.cold.end_of(at) {
            if end > position {
                break;
            }
            at = end;
        }
        self.geometry.place(at).unwrap_or(base)
    }

    /// Reads on behind the chunk that holds `position`, so that a sequential reader need not wait.
    fn read_ahead(&mut self, position: LogOffset) {
        const AHEAD: usize = 3;
        let mut at = position;
        for _ in 0..AHEAD {
            let Some(next) = self.cold.end_of(at).and_then(|end| self.group_from(end)) else {
                return;
            };
            at = self.position(next);
            if self.cold.end_of(at).is_none() {
                let in_memory = self.tail.start().is_some_and(|start| at >= start);
                if !in_memory && self.cold.loading.len() < LOADING_MAX {
                    self.start_read(next, READ_LEN, None);
                }
                return;
            }
        }
    }

    /// Where the next group of the log starts, given the end of one.
    fn group_from(&self, end: LogOffset) -> Option<Place> {
        let place = self.geometry.place(end)?;
        let has_group = |place: Place| {
            let map = self.views.maps.get(&place.ordinal);
            map.is_some_and(|map| place.byte < map.end()).then_some(place)
        };
        has_group(place).or_else(|| has_group(Place { ordinal: place.ordinal + 1, byte: 0 }))
    }

    fn start_read(&mut self, base: Place, len: usize, token: Option<u64>) {
        if let Some(loading) = self.cold.loading.iter_mut().find(|loading| loading.base == base) {
            loading.tokens.extend(token);
            return;
        }
        let room = index(self.geometry.segment_len() - base.byte);
        let len = len.min(room);
        self.cold.loading.push(Loading { base, tokens: token.into_iter().collect() });
        self.stats.cold_reads += 1;
        self.stats.cold_bytes += wide(len);
        let buffer = ReadBuffer(self.cold.buffer(len.next_multiple_of(4096)));
        let id = self.op(Purpose::Cold { base });
        let file = FileId::Segment(base.ordinal);
        self.ops.push_back(Op::Read { id, file, at: base.byte, len, buffer });
    }

    pub(super) fn cold_read(
        &mut self,
        base: Place,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let Some(at) = self.cold.loading.iter().position(|loading| loading.base == base) else {
            return;
        };
        let loading = self.cold.loading.swap_remove(at);
        let outcome = match (result, buffer) {
            (Ok(len), Some(ReadBuffer(memory))) => self.take_groups(base, memory, len),
            (Err(cause), _) => Err(ReadError::Io(cause.to_string())),
            (Ok(_), None) => Err(ReadError::Io("the read lost its buffer".to_owned())),
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(longer)) => {
                // The first group is longer than the read: once more, for all of it.
                self.start_read(base, longer, None);
                if let Some(again) = self.cold.loading.last_mut() {
                    again.tokens.extend(loading.tokens);
                }
                return;
            }
            Err(error) => self.cold.failed = Some((base, error)),
        }
        self.ready.extend(loading.tokens);
    }

    /// Keeps the whole, committed groups at the front of what was read. `Some(len)`: the first
    /// group needs a read of this length.
    fn take_groups(
        &mut self,
        base: Place,
        mut memory: ChunkTail,
        len: usize,
    ) -> Result<Option<usize>, ReadError> {
        let position = self.position(base);
        let map_end = self.views.maps.get(&base.ordinal).map_or(0, |map| map.end());
        let end = self.position(Place { byte: map_end, ..base });
        let bytes = memory.buffer().get(..len).unwrap_or_default();
        let mut whole = 0;
        let mut damaged = Vec::new();
        while let Some(rest) = bytes.get(whole..)
            && position.plus(whole) < end
        {
            let ours = Header::read(rest).map(|(header, _)| header).filter(|header| {
                header.store == self.geometry.store() && header.position == position.plus(whole)
            });
            let Some(header) = ours else { break };
            let padded = header.padded_len(self.geometry.block_len());
            if padded > rest.len() {
                if whole == 0 && bytes.len() < padded && rest.len() >= HEADER_LEN {
                    return Ok(Some(padded));
                }
                break;
            }
            let Some(group) = Group::parse(rest) else { break };
            damaged.extend(
                group.records().filter(|record| !record.is_sound()).map(|record| record.position),
            );
            whole += padded;
        }
        if whole == 0 && position < end {
            let len = self.damaged_len(base, bytes);
            tracing::error!(position = position.get(), len, "the log is damaged here");
            self.cold.note_gap(position, position.plus(len));
            return Ok(None);
        }
        if whole == 0 {
            return Ok(None);
        }
        self.stats.unreadable += wide(damaged.len());
        let groups = memory.freeze(whole);
        let chunk = ColdChunk { groups, damaged, used: false };
        self.cold.insert(position, chunk, self.limits.cold_bytes);
        Ok(None)
    }

    /// How far it is to the next group that can be read, at most to the end of what was read.
    fn damaged_len(&self, base: Place, bytes: &[u8]) -> usize {
        let position = self.position(base);
        let block_len = self.geometry.block_len();
        let is_group = |at: &usize| {
            bytes.get(*at..).and_then(Header::read).is_some_and(|(header, _)| {
                header.store == self.geometry.store() && header.position == position.plus(*at)
            })
        };
        let blocks = (block_len..bytes.len()).step_by(block_len);
        blocks.into_iter().find(is_group).unwrap_or(bytes.len().max(block_len))
    }

    /// The block of the queue index with this number, or `Pending` while it is read.
    pub(super) fn index_block(&mut self, block: u32, token: u64) -> Option<RecordSlice> {
        if let Some(slice) = self.views.index.block(block) {
            return Some(slice.clone());
        }
        let (first, len) = self.views.index.stretch(block);
        let loading = self.cold.index_loading.iter_mut().find(|(start, _)| *start == first);
        if let Some((_, tokens)) = loading {
            tokens.push(token);
            return None;
        }
        self.cold.index_loading.push((first, vec![token]));
        let id = self.op(Purpose::IndexRead { first });
        let buffer = ReadBuffer(ChunkTail::alone(len));
        let at = u64::from(first) * wide(BLOCK_LEN);
        self.ops.push_back(Op::Read { id, file: FileId::Index, at, len, buffer });
        None
    }

    pub(super) fn index_read(
        &mut self,
        first: u32,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let Some(at) = self.cold.index_loading.iter().position(|(start, _)| *start == first) else {
            return;
        };
        let (_, tokens) = self.cold.index_loading.swap_remove(at);
        match (result, buffer) {
            (Ok(len), Some(ReadBuffer(mut memory))) => {
                let whole = len / BLOCK_LEN * BLOCK_LEN;
                self.views.index.loaded(first, &memory.freeze(whole));
            }
            (Err(cause), _) => {
                tracing::warn!(shard = self.geometry.shard(), %cause, "reading the index failed");
            }
            (Ok(_), None) => {}
        }
        self.ready.extend(tokens);
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
