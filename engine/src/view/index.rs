//! Blocks of queue entries: sealed in memory, written with the next checkpoint, read back when a
//! reader goes far behind.

use std::collections::{HashMap, VecDeque};

use crate::format::index_block::{self, BLOCK_LEN, QueueEntry};
use crate::mem::{ChunkTail, RecordSlice};
use crate::units::{Sequence, index as to_index};

/// Blocks are gathered in pieces of this many bytes, which are also what is written and read.
pub(crate) const PIECE_LEN: usize = 256 * 1024;
/// Blocks that stay in memory after they were written: 32 MiB, 1.6 million entries.
const CACHED_BLOCKS_MAX: usize = 8192;

/// A block in memory. One that came from the file counts only once it has been checked.
struct Cached {
    bytes: RecordSlice,
    checked: bool,
}

#[derive(Default)]
pub(crate) struct Index {
    next: u32,
    filling: Option<ChunkTail>,
    /// Sealed blocks that no write has been issued for, joined where they lie together.
    unwritten: Vec<(u32, RecordSlice)>,
    /// What is being written.
    writing: Vec<(u32, RecordSlice)>,
    blocks: HashMap<u32, Cached>,
    /// Blocks that are in the file, oldest first: they may leave memory.
    evictable: VecDeque<u32>,
}

impl Index {
    /// An index whose file holds blocks `0..next`.
    pub(crate) fn restored(next: u32) -> Self {
        Self { next, ..Self::default() }
    }

    pub(crate) fn next_block(&self) -> u32 {
        self.next
    }

    /// Keeps a full block of a queue and gives its number.
    pub(crate) fn seal(
        &mut self,
        queue: u32,
        first: u64,
        covered: Sequence,
        entries: &[QueueEntry],
    ) -> u32 {
        let filling = match &mut self.filling {
            Some(filling) if filling.room() >= BLOCK_LEN => filling,
            slot => slot.insert(ChunkTail::alone(PIECE_LEN)),
        };
        let dst = filling.buffer().get_mut(..BLOCK_LEN).expect("room was just checked");
        index_block::write(dst, queue, first, covered.get(), entries);
        let slice = filling.freeze(BLOCK_LEN);
        let block = self.next;
        self.next += 1;
        self.blocks.insert(block, Cached { bytes: slice.clone(), checked: true });
        let joined = self.unwritten.last_mut().is_some_and(|(_, last)| last.join(&slice));
        if !joined {
            self.unwritten.push((block, slice));
        }
        block
    }

    /// What has to be in the file before a checkpoint may name it.
    pub(crate) fn take_unwritten(&mut self) -> Vec<(u32, RecordSlice)> {
        let taken = std::mem::take(&mut self.unwritten);
        self.writing.extend(taken.iter().cloned());
        taken
    }

    /// The write of these blocks has ended: they are durable, or wait to be written again.
    pub(crate) fn written(&mut self, first: u32, durable: bool) {
        let Some(at) = self.writing.iter().position(|&(block, _)| block == first) else { return };
        let (first, data) = self.writing.swap_remove(at);
        if durable {
            self.loaded_range(first, data.len() / BLOCK_LEN);
        } else {
            self.unwritten.insert(0, (first, data));
        }
    }

    fn loaded_range(&mut self, first: u32, count: usize) {
        let count = crate::units::narrow(count);
        self.evictable.extend(first..first + count);
        while self.evictable.len() > CACHED_BLOCKS_MAX {
            if let Some(block) = self.evictable.pop_front() {
                self.blocks.remove(&block);
            }
        }
    }

    /// Takes blocks that were read from the file.
    pub(crate) fn loaded(&mut self, first: u32, piece: &RecordSlice) {
        let mut count = 0;
        while let Some(slice) = piece.part(count * BLOCK_LEN..(count + 1) * BLOCK_LEN) {
            let block = first + crate::units::narrow(count);
            count += 1;
            if self.blocks.contains_key(&block) {
                continue;
            }
            self.blocks.insert(block, Cached { bytes: slice, checked: false });
            self.loaded_range(block, 1);
        }
    }

    /// A block that is in memory.
    pub(crate) fn block(&self, block: u32) -> Option<&RecordSlice> {
        self.blocks.get(&block).map(|cached| &cached.bytes)
    }

    /// True when the block is sound and is the one of this queue and first offset.
    pub(crate) fn check(&mut self, block: u32, queue: u32, first: u64) -> bool {
        self.blocks.get_mut(&block).is_some_and(|cached| {
            cached.checked = cached.checked || index_block::is_sound(&cached.bytes, queue, first);
            cached.checked
        })
    }

    /// Drops a block that is not sound, so that the next look-up reads it again.
    pub(crate) fn forget(&mut self, block: u32) {
        self.blocks.remove(&block);
    }

    /// The stretch of the file to read for a block: first block and length in bytes.
    pub(crate) fn stretch(&self, block: u32) -> (u32, usize) {
        let per_piece = crate::units::narrow(PIECE_LEN / BLOCK_LEN);
        let first = block / per_piece * per_piece;
        let last = (first + per_piece).min(self.next);
        (first, to_index(u64::from(last - first)) * BLOCK_LEN)
    }
}
