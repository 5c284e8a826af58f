//! Memory of the open group, the groups in flight, and the recent ones that readers at the tail
//! are served from.
//!
//! Groups lie in chunks in the order of the log and back to back, so that a position is found by
//! its distance from the chunk's first one. A chunk is used again once all its groups are
//! committed and no reader holds a slice of it. An append never waits for a reader: chunks that
//! readers hold are set aside, and a bounded number of further ones is taken in their place.
//!
//! In a buffered store the chunks of the pool lie in shared memory, each with a mark that says how many
//! bytes of whole groups it holds. Groups in other memory, which are those that no chunk has room for
//! and those in chunks taken in place of pinned ones, are not marked: they count once they are durable.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ShardLimits;
use super::append::OpenGroup;
use crate::format::buffers::{Head, Mark};
use crate::mem::{Chunk, ChunkTail, RecordSlice, Region};
use crate::units::{LogOffset, Sequence, index, narrow};

/// The length of a chunk, unless four of them would be more than the shard's budget.
const CHUNK_LEN_MAX: usize = 1 << 20;
const CHUNK_LEN_MIN: usize = 16 << 10;

struct TailChunk {
    base: LogOffset,
    chunk: Arc<Chunk>,
    frozen: usize,
    first: Sequence,
    last: Sequence,
    is_large: bool,
}

/// Says in shared memory what lies there.
struct Marks {
    region: Arc<Region>,
    head: Head,
}

impl Marks {
    /// Where the mark of a chunk lies, if it has one.
    fn place(&self, chunk: &Chunk) -> Option<usize> {
        chunk.number_in(&self.region).map(|number| self.head.mark_at(narrow(number)))
    }

    /// What the chunk holds counts no more. It is said before anything of it is written over.
    fn clear(&self, chunk: &Chunk) {
        if let Some(at) = self.place(chunk) {
            self.region.store(at, 0);
        }
    }

    /// The groups that the chunk holds count from now on. True when it is in shared memory.
    fn set(&self, chunk: &TailChunk, is_new: bool) -> bool {
        let Some(at) = self.place(&chunk.chunk) else { return false };
        let mark = Mark { len: narrow(chunk.frozen), position: chunk.base, sequence: chunk.first };
        if is_new {
            self.region.store(at + 8, mark.position.get().cast_unsigned());
            self.region.store(at + 16, mark.sequence.get());
        }
        self.region.store(at, mark.word());
        true
    }
}

pub(crate) struct Tail {
    /// Where the next group goes if it fits; its chunk is the newest of `chunks`.
    current: Option<ChunkTail>,
    free: Vec<ChunkTail>,
    chunks: VecDeque<TailChunk>,
    /// Chunks that have left `chunks` while readers still held slices of them.
    pinned: Vec<Arc<Chunk>>,
    pool: usize,
    chunk_len: usize,
    extra: usize,
    large_bytes: usize,
    large_bytes_max: usize,
    table: Vec<u8>,
    marks: Option<Marks>,
}

impl Tail {
    /// The pool and its region, which a driver may register with the kernel.
    pub(crate) fn new(limits: &ShardLimits) -> (Self, Arc<Region>) {
        let (pool, chunk_len) = Self::pool(limits);
        let region = Region::new(pool * chunk_len);
        region.touch();
        (Self::of(limits, &region), region)
    }

    /// As [`new`](Self::new), in memory that outlives the process and has this head.
    pub(crate) fn buffered(
        limits: &ShardLimits,
        mut region: Arc<Region>,
        head: Head,
    ) -> (Self, Arc<Region>) {
        region.touch();
        Region::write_head(&mut region, &head.encode());
        let mut tail = Self::of(limits, &region);
        tail.marks = Some(Marks { region: Arc::clone(&region), head });
        (tail, region)
    }

    /// Number and length of the chunks that the limits allow.
    pub(crate) fn pool(limits: &ShardLimits) -> (usize, usize) {
        let chunk_len = (limits.tail_bytes / 4).clamp(CHUNK_LEN_MIN, CHUNK_LEN_MAX);
        let chunk_len = chunk_len.next_multiple_of(CHUNK_LEN_MIN);
        ((limits.tail_bytes / chunk_len).max(4), chunk_len)
    }

    fn of(limits: &ShardLimits, region: &Arc<Region>) -> Self {
        let (pool, chunk_len) = Self::pool(limits);
        let free = ChunkTail::cut(region, chunk_len);
        Self {
            current: None,
            free,
            chunks: VecDeque::new(),
            pinned: Vec::new(),
            pool,
            chunk_len,
            extra: 0,
            large_bytes: 0,
            large_bytes_max: limits.large_bytes,
            table: Vec::new(),
            marks: None,
        }
    }

    /// Memory for a group of at least `len_min` and, if it comes cheap, `wanted` bytes. Chunks whose
    /// groups are settled, which is committed and durable, may be used again.
    pub(super) fn memory_for(
        &mut self,
        position: LogOffset,
        len_min: usize,
        wanted: usize,
        settled: Sequence,
    ) -> Option<ChunkTail> {
        if len_min > self.chunk_len {
            let memory = self.take_large(len_min, settled)?;
            self.current = None;
            return Some(memory);
        }
        let follows = self
            .chunks
            .back()
            .is_some_and(|newest| newest.base.plus(newest.frozen) == position && !newest.is_large);
        let enough = len_min.max(wanted.min(self.chunk_len / 8));
        if follows && self.current.as_ref().is_some_and(|current| current.room() >= enough) {
            return self.current.take();
        }
        let memory = self.take_chunk(settled)?;
        if let Some(marks) = &self.marks {
            marks.clear(memory.chunk());
        }
        self.current = None;
        Some(memory)
    }

    fn take_large(&mut self, len: usize, settled: Sequence) -> Option<ChunkTail> {
        let mut at = 0;
        while self.large_bytes + len > self.large_bytes_max {
            let chunk = self.chunks.get(at)?;
            let unused = Arc::strong_count(&chunk.chunk) == 1;
            if chunk.is_large && chunk.last <= settled && unused {
                self.large_bytes -= chunk.chunk.len();
                self.chunks.remove(at);
            } else {
                at += 1;
            }
        }
        let memory = ChunkTail::alone(len);
        self.large_bytes += memory.chunk().len();
        Some(memory)
    }

    fn take_chunk(&mut self, settled: Sequence) -> Option<ChunkTail> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        let chunk_len = self.chunk_len;
        let released =
            |chunk: &Arc<Chunk>| chunk.len() == chunk_len && Arc::strong_count(chunk) == 1;
        if let Some(at) = self.pinned.iter().position(released)
            && let Ok(memory) = ChunkTail::recycle(self.pinned.swap_remove(at))
        {
            return Some(memory);
        }
        // The newest chunk is the current one and stays.
        while self.chunks.front().is_some_and(|oldest| oldest.last <= settled) {
            let Some(oldest) = self.chunks.pop_front() else { break };
            if self.chunks.is_empty() {
                self.current = None;
            }
            if oldest.is_large {
                self.retire_large(oldest);
                continue;
            }
            match ChunkTail::recycle(oldest.chunk) {
                Ok(memory) => return Some(memory),
                Err(chunk) => self.pinned.push(chunk),
            }
        }
        if self.pinned.is_empty() || self.extra >= self.pool / 2 {
            return None;
        }
        self.extra += 1;
        Some(ChunkTail::alone(self.chunk_len))
    }

    fn retire_large(&mut self, oldest: TailChunk) {
        // A large chunk that readers still hold keeps counting until they are done, or appends of
        // large groups could take memory without bound.
        if Arc::strong_count(&oldest.chunk) == 1 {
            self.large_bytes -= oldest.chunk.len();
        } else {
            self.pinned.push(oldest.chunk);
        }
    }

    /// Frees large chunks whose last reader has gone.
    fn drop_unpinned_large(&mut self) {
        let (large_bytes, chunk_len) = (&mut self.large_bytes, self.chunk_len);
        self.pinned.retain(|chunk| {
            let done = chunk.len() != chunk_len && Arc::strong_count(chunk) == 1;
            if done {
                *large_bytes -= chunk.len();
            }
            !done
        });
    }

    /// Takes the memory of a group that was closed: `position` is where the group starts. True when
    /// the group survives this process from now on.
    pub(super) fn give_back(
        &mut self,
        memory: ChunkTail,
        position: LogOffset,
        last: Sequence,
    ) -> bool {
        self.drop_unpinned_large();
        let mut is_new = false;
        let frozen = memory.frozen();
        let is_large = memory.chunk().len() != self.chunk_len;
        match self.chunks.back_mut() {
            Some(newest) if Arc::ptr_eq(&newest.chunk, memory.chunk()) => {
                newest.frozen = frozen;
                newest.last = last;
            }
            _ => {
                let chunk = Arc::clone(memory.chunk());
                let base = position;
                self.chunks.push_back(TailChunk {
                    base,
                    chunk,
                    frozen,
                    first: last,
                    last,
                    is_large,
                });
                is_new = true;
            }
        }
        self.current = (!is_large).then_some(memory);
        let marked = self.marks.as_ref().zip(self.chunks.back());
        marked.is_some_and(|(marks, chunk)| marks.set(chunk, is_new))
    }

    /// Takes the memory of an open group that is given up.
    pub(super) fn abandon(&mut self, open: OpenGroup) {
        let memory = open.into_memory();
        if memory.chunk().len() != self.chunk_len {
            self.large_bytes -= memory.chunk().len();
        } else if memory.frozen() == 0 {
            self.free.push(memory);
        }
    }

    /// Forgets groups above `last`, whose successor will start at `end`.
    pub(super) fn cut(&mut self, end: LogOffset, last: Sequence) {
        self.current = None;
        while self.chunks.back().is_some_and(|newest| newest.base >= end) {
            let Some(newest) = self.chunks.pop_back() else { return };
            if let Some(marks) = &self.marks {
                marks.clear(&newest.chunk);
            }
            match ChunkTail::recycle(newest.chunk) {
                Ok(memory) if memory.chunk().len() == self.chunk_len => self.free.push(memory),
                Ok(memory) => self.large_bytes -= memory.chunk().len(),
                Err(chunk) => self.pinned.push(chunk),
            }
        }
        if let Some(newest) = self.chunks.back_mut() {
            newest.last = newest.last.min(last);
            newest.frozen = newest.frozen.min(index(
                u64::try_from(end.get() - newest.base.get()).expect("it starts before the end"),
            ));
            if let Some(marks) = &self.marks {
                marks.set(newest, false);
            }
        }
    }

    /// What is in memory from the chunk's first group to its end, and that group's position.
    pub(super) fn groups_around(&self, position: LogOffset) -> Option<(LogOffset, RecordSlice)> {
        let (chunk, at) = self.chunk_of(position)?;
        let groups = RecordSlice::of(&chunk.chunk, chunk.frozen, 0..chunk.frozen)?;
        (at < chunk.frozen).then_some((chunk.base, groups))
    }

    fn chunk_of(&self, position: LogOffset) -> Option<(&TailChunk, usize)> {
        let after = self.chunks.partition_point(|chunk| chunk.base <= position);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        let distance = u64::try_from(position.get() - chunk.base.get()).ok()?;
        Some((chunk, index(distance)))
    }

    /// The first position that is in memory with everything behind it.
    pub(super) fn start(&self) -> Option<LogOffset> {
        self.chunks.front().map(|chunk| chunk.base)
    }

    pub(super) fn may_have_room(&self, settled: Sequence) -> bool {
        !self.free.is_empty()
            || self.chunks.front().is_some_and(|oldest| oldest.last <= settled)
            || self.pinned.iter().any(|chunk| Arc::strong_count(chunk) == 1)
            || self.current.as_ref().is_some_and(|current| current.room() >= self.chunk_len / 8)
    }

    /// True when readers hold so much that new ones should get copies.
    pub(super) fn is_much_pinned(&self) -> bool {
        self.pinned.len() * 2 >= self.pool
    }

    pub(super) fn pinned(&self) -> usize {
        self.pinned.len()
    }

    pub(super) fn take_table(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.table)
    }

    pub(super) fn give_table(&mut self, mut table: Vec<u8>) {
        table.clear();
        self.table = table;
    }
}
