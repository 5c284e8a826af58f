//! The memory of what is read back: who has it, and when there should be more.
//!
//! Memory that is touched for the first time can cost more than a read of the device, so the cache
//! does not take its budget at once: beyond a little, it grows only when a chunk is read that would
//! still be here if it had been larger. A backlog that is read once needs no more than what is read
//! ahead.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::ChunkKey;
use crate::mem::{Chunk, ChunkTail, Region};

/// Buffers that are allocated together.
const BUFFERS: usize = 8;
/// Buffers that are allocated as they are used, whatever is read.
const UNASKED: usize = 4 * BUFFERS;
/// Chunks that are remembered when they leave, as a multiple of those that the budget has room for.
const REMEMBERED: usize = 4;

/// Buffers for chunks, of one length.
#[derive(Default)]
pub(super) struct ColdMemory {
    buffer_len: usize,
    /// Bytes that there may be.
    budget: usize,
    /// Bytes that there are.
    len: usize,
    /// More is being found.
    grows: bool,
    /// With more, a read could have been spared.
    is_short: bool,
    /// Buffers of chunks that have left; readers may still hold them.
    spare: Vec<Arc<Chunk>>,
    /// Buffers that were never used.
    fresh: Vec<ChunkTail>,
    left: Left,
}

impl ColdMemory {
    pub(super) fn new(buffer_len: usize, budget: usize) -> Self {
        let room_max = REMEMBERED * budget / buffer_len;
        Self { buffer_len, budget, left: Left { room_max, ..Left::default() }, ..Self::default() }
    }

    /// Length of each buffer. Unit: bytes.
    pub(super) fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Unit: bytes.
    pub(super) fn budget(&self) -> usize {
        self.budget
    }

    /// A buffer that nobody uses.
    pub(super) fn free_buffer(&mut self) -> Option<ChunkTail> {
        if self.len == 0 {
            let (_, buffers) = self.more();
            self.take(buffers);
        }
        if let Some(buffer) = self.fresh.pop() {
            return Some(buffer);
        }
        let unused = self.spare.iter().position(|chunk| Arc::strong_count(chunk) == 1)?;
        ChunkTail::recycle(self.spare.swap_remove(unused)).ok()
    }

    /// A chunk leaves; its buffer is used again once its readers have let go of it.
    pub(super) fn leave(&mut self, key: ChunkKey, buffer: &Arc<Chunk>) {
        self.left.remember(key);
        if !buffer.is_alone() {
            self.spare.push(Arc::clone(buffer));
        }
    }

    /// A chunk is read that is not here.
    pub(super) fn missed(&mut self, key: ChunkKey) {
        self.is_short |= self.left.forget(key);
    }

    /// All buffers are being read into, or readers hold them.
    pub(super) fn ran_out(&mut self) {
        self.is_short = true;
    }

    /// Memory that the system should find by the side. It comes back with [`take`](Self::take).
    pub(super) fn wanted(&mut self) -> Option<(Arc<Region>, Vec<ChunkTail>)> {
        let has_room = self.len + BUFFERS * self.buffer_len <= self.budget;
        let is_needed = self.is_short || self.len < UNASKED * self.buffer_len;
        if self.grows || !self.fresh.is_empty() || !has_room || !is_needed {
            return None;
        }
        self.grows = true;
        self.is_short = false;
        Some(self.more())
    }

    /// Takes memory that the system has found.
    pub(super) fn take(&mut self, buffers: Vec<ChunkTail>) {
        self.len += buffers.len() * self.buffer_len;
        self.fresh.extend(buffers);
        self.grows = false;
    }

    fn more(&self) -> (Arc<Region>, Vec<ChunkTail>) {
        let region = Region::new(BUFFERS * self.buffer_len);
        let buffers = ChunkTail::cut(&region, self.buffer_len);
        (region, buffers)
    }
}

/// Names of chunks that have left, a bounded number of the latest.
#[derive(Default)]
struct Left {
    room_max: usize,
    keys: HashSet<ChunkKey>,
    /// In the order in which they left. Some may have been forgotten since.
    order: VecDeque<ChunkKey>,
}

impl Left {
    fn remember(&mut self, key: ChunkKey) {
        if self.keys.insert(key) {
            self.order.push_back(key);
        }
        while self.order.len() > self.room_max {
            let Some(oldest) = self.order.pop_front() else { return };
            self.keys.remove(&oldest);
        }
    }

    /// True if it was remembered.
    fn forget(&mut self, key: ChunkKey) -> bool {
        self.keys.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4096;

    fn key(number: u32) -> ChunkKey {
        ChunkKey { ordinal: 0, number }
    }

    /// Reads `chunks` one after another with one of them in memory at a time beyond what is spare.
    fn read_through(memory: &mut ColdMemory, chunks: u32) {
        for number in 0..chunks {
            memory.missed(key(number));
            if let Some((_, buffers)) = memory.wanted() {
                memory.take(buffers);
            }
            let mut buffer = memory.free_buffer().unwrap();
            let slice = buffer.freeze(LEN);
            memory.leave(key(number), slice.chunk());
        }
    }

    #[test]
    fn what_is_read_once_takes_little_what_is_read_again_takes_the_budget() {
        let mut memory = ColdMemory::new(LEN, 1000 * LEN);
        read_through(&mut memory, 2000);
        assert!(memory.len <= UNASKED * LEN, "{}", memory.len);
        // Every chunk is missed again; what was never used is used up before there is more.
        for _ in 0..200 {
            memory.missed(key(0));
            memory.ran_out();
            if let Some((_, buffers)) = memory.wanted() {
                memory.take(buffers);
            }
            while memory.fresh.pop().is_some() {}
        }
        assert!(memory.len > 990 * LEN && memory.len <= 1000 * LEN, "{}", memory.len);
    }

    #[test]
    fn a_chunk_that_comes_back_asks_for_memory_once() {
        let mut memory = ColdMemory::new(LEN, 1000 * LEN);
        read_through(&mut memory, 2000);
        while memory.free_buffer().is_some() {}
        assert!(memory.wanted().is_none());
        memory.missed(key(7));
        let (_, buffers) = memory.wanted().unwrap();
        assert!(memory.wanted().is_none(), "one request at a time");
        memory.take(buffers);
        while memory.free_buffer().is_some() {}
        memory.missed(key(7));
        assert!(memory.wanted().is_none(), "it has not left again");
    }

    #[test]
    fn the_memory_of_names_is_bounded() {
        let mut memory = ColdMemory::new(LEN, 10 * LEN);
        let buffer = ChunkTail::alone(LEN);
        for number in 0..1000 {
            memory.leave(key(number), buffer.chunk());
        }
        assert_eq!(memory.left.order.len(), 10 * REMEMBERED);
        assert_eq!(memory.left.keys.len(), 10 * REMEMBERED);
        memory.missed(key(0));
        assert!(!memory.is_short);
        memory.missed(key(999));
        assert!(memory.is_short);
    }
}
