//! The index file in memory: blocks that wait to be written, and pieces that were read back.
//!
//! The file is cut into pieces of 256 KiB. A piece in memory lies as it lies in the file, so that any
//! stretch of it between multiples of 4,096 is written and read directly. Blocks go to the end; a full
//! piece is written at once, the last one when a checkpoint needs its blocks.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::format::index_block::{self, BlockHead};
use crate::mem::{ChunkTail, RecordSlice};
use crate::units::{Sequence, index as to_index, wide};

/// Pieces are the unit of memory and of reading.
pub(crate) const PIECE_LEN: usize = 256 * 1024;
/// Writes start and end at multiples of this.
const WRITE_LEN: usize = 4096;
/// No two blocks begin within so many bytes.
const BLOCK_LEN_MIN: usize = 32;
const _: () = assert!(BLOCK_LEN_MIN <= index_block::HEADER_LEN);
/// Pieces that stay in memory after they were written or read, at least: 32 MiB.
const CACHED_PIECES_MIN: usize = 128;

/// A stretch of the file.
#[derive(Clone)]
pub(crate) struct Stretch {
    pub(crate) at: u64,
    pub(crate) bytes: RecordSlice,
}

impl Stretch {
    fn end(&self) -> u64 {
        self.at + wide(self.bytes.len())
    }

    fn part(&self, range: &Range<u64>) -> Option<RecordSlice> {
        let from = range.start.checked_sub(self.at)?;
        self.bytes.part(to_index(from)..to_index(range.end - self.at))
    }
}

/// What is in memory of a piece.
#[derive(Default)]
struct Piece {
    stretches: Vec<Stretch>,
    /// A bit for every [`BLOCK_LEN_MIN`] bytes: the block that begins there was compared with its checksum.
    /// Readers of a queue come to each of its blocks again and again.
    checked: Vec<u64>,
}

impl Piece {
    fn is_checked(&self, at: u64) -> bool {
        let (word, bit) = check_bit(at);
        self.checked.get(word).is_some_and(|word| word & bit != 0)
    }

    fn set_checked(&mut self, at: u64) {
        let (word, bit) = check_bit(at);
        if self.checked.len() <= word {
            self.checked.resize(word + 1, 0);
        }
        if let Some(word) = self.checked.get_mut(word) {
            *word |= bit;
        }
    }
}

fn check_bit(at: u64) -> (usize, u64) {
    let n = to_index(at % wide(PIECE_LEN)) / BLOCK_LEN_MIN;
    (n / 64, 1 << (n % 64))
}

/// A block that is in memory is not what it should be.
#[derive(Debug)]
pub(crate) struct Unsound;

#[derive(Default)]
pub(crate) struct Index {
    /// Where the next block goes.
    next: u64,
    /// The piece that blocks go to.
    filling: Option<ChunkTail>,
    /// Stretches that no write has been issued for, oldest first; they follow each other.
    unwritten: VecDeque<Stretch>,
    writing: Vec<Stretch>,
    /// What is in memory, by piece.
    cached: HashMap<u64, Piece>,
    /// Pieces in memory in the order of their arrival.
    order: VecDeque<u64>,
    /// How many stay there beyond the least.
    more: usize,
    /// Everything before this has been given back to the file system.
    discarded: u64,
}

fn piece_of(at: u64) -> u64 {
    at / wide(PIECE_LEN)
}

impl Index {
    /// An index whose file is used up to `next`, a multiple of 4,096, and empty up to `discarded`.
    pub(crate) fn restored(next: u64, discarded: u64) -> Self {
        Self { next: next.next_multiple_of(wide(WRITE_LEN)), discarded, ..Self::default() }
    }

    /// An index that keeps off what its file, of this length, holds of another. It does not begin
    /// behind the file's end: a checkpoint that names no block yet counts only if the file reaches as
    /// far as it says. What is given up of the last page was not written whole.
    pub(crate) fn behind(len: u64) -> Self {
        Self::restored(len / wide(WRITE_LEN) * wide(WRITE_LEN), 0)
    }

    /// Keeps so many more bytes in memory after they were written or read.
    pub(crate) fn keep_more(&mut self, bytes: usize) {
        self.more = bytes / PIECE_LEN;
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Bytes of the file that are in use.
    pub(crate) fn live_len(&self) -> u64 {
        self.next.saturating_sub(self.discarded)
    }

    /// The stretch to give back when nothing before `live` is needed any more.
    pub(crate) fn discard(&mut self, live: u64) -> Option<Range<u64>> {
        let to = live.min(self.next) / wide(WRITE_LEN) * wide(WRITE_LEN);
        if to < self.discarded + wide(PIECE_LEN) {
            return None;
        }
        Some(std::mem::replace(&mut self.discarded, to)..to)
    }

    /// Keeps a block, filled by `put`, and tells where it is.
    pub(crate) fn put(
        &mut self,
        head: &BlockHead,
        covered: Sequence,
        put: impl FnOnce(&mut crate::format::bytes::Cursor<'_>),
    ) -> u64 {
        let len = head.len();
        assert!(len <= PIECE_LEN, "a block of {len} bytes is longer than a piece");
        let left = PIECE_LEN - to_index(self.next % wide(PIECE_LEN));
        if left < len {
            self.fill_up(left);
        }
        let filling = self.filling();
        let dst = filling.buffer().get_mut(..len).expect("room was just made");
        index_block::write(dst, head, covered, put);
        let bytes = filling.freeze(len);
        let at = self.next;
        self.append(bytes);
        at
    }

    fn filling(&mut self) -> &mut ChunkTail {
        let skip = to_index(self.next % wide(PIECE_LEN));
        match &mut self.filling {
            Some(filling) if filling.frozen() == skip => {}
            slot => {
                let mut piece = ChunkTail::alone(PIECE_LEN);
                // What lies before came from an earlier life and is read from the file.
                drop(piece.freeze(skip));
                *slot = Some(piece);
            }
        }
        self.filling.as_mut().expect("set in the lines before")
    }

    /// Fills the piece with zeros for `len` bytes.
    fn fill_up(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        let filling = self.filling();
        filling.buffer().get_mut(..len).expect("within the piece").fill(0);
        let bytes = filling.freeze(len);
        self.append(bytes);
    }

    fn append(&mut self, bytes: RecordSlice) {
        let piece = piece_of(self.next);
        let stretch = Stretch { at: self.next, bytes };
        self.next = stretch.end();
        let joined = self.unwritten.back_mut().is_some_and(|last| last.bytes.join(&stretch.bytes));
        if !joined {
            self.unwritten.push_back(stretch.clone());
        }
        self.keep(piece, stretch);
    }

    fn keep(&mut self, piece: u64, stretch: Stretch) {
        let Piece { stretches, .. } = self.cached.entry(piece).or_insert_with(|| {
            self.order.push_back(piece);
            Piece::default()
        });
        let joined = stretches.last_mut().is_some_and(|last| last.bytes.join(&stretch.bytes));
        if !joined {
            stretches.push(stretch);
        }
        self.evict();
    }

    fn evict(&mut self) {
        for _ in CACHED_PIECES_MIN + self.more..self.order.len() {
            let Some(oldest) = self.order.pop_front() else { return };
            if self.waits(oldest) {
                self.order.push_back(oldest);
            } else {
                self.cached.remove(&oldest);
            }
        }
    }

    /// Whether a piece has stretches that are not in the file yet.
    fn waits(&self, piece: u64) -> bool {
        let mut waiting = self.unwritten.iter().chain(&self.writing);
        waiting.any(|stretch| piece_of(stretch.at) == piece)
    }

    /// Ends the last page, so that everything that was put can be written. Gives the file's end.
    pub(crate) fn end_page(&mut self) -> u64 {
        let over = to_index(self.next % wide(WRITE_LEN));
        self.fill_up((WRITE_LEN - over) % WRITE_LEN);
        self.next
    }

    /// Takes what may be written: full pieces, and what lies before `page_end`, where a page ended.
    pub(crate) fn take_unwritten(&mut self, page_end: u64) -> Option<Stretch> {
        let first = self.unwritten.front()?;
        let full = first.end().is_multiple_of(wide(PIECE_LEN));
        if !full && first.at >= page_end {
            return None;
        }
        let mut stretch = self.unwritten.pop_front()?;
        if !full && stretch.end() > page_end {
            let len = to_index(page_end - stretch.at);
            let rest = stretch.bytes.part(len..stretch.bytes.len())?;
            self.unwritten.push_front(Stretch { at: page_end, bytes: rest });
            stretch.bytes = stretch.bytes.part(0..len)?;
        }
        self.writing.push(stretch.clone());
        Some(stretch)
    }

    /// The write of the stretch at `at` has ended: it is durable, or waits to be written again.
    pub(crate) fn written(&mut self, at: u64, durable: bool) {
        let Some(n) = self.writing.iter().position(|stretch| stretch.at == at) else { return };
        let stretch = self.writing.swap_remove(n);
        if !durable {
            let later = self.unwritten.partition_point(|waiting| waiting.at < at);
            self.unwritten.insert(later, stretch);
        }
        self.evict();
    }

    /// True when every block before `end` is in the file.
    pub(crate) fn is_written(&self, end: u64) -> bool {
        self.unwritten.iter().chain(&self.writing).all(|stretch| stretch.at >= end)
    }

    /// Takes a stretch that was read from the file. It counts up to where blocks of this life begin:
    /// they may not have been in the file when it was read.
    pub(crate) fn loaded(&mut self, stretch: Stretch) {
        let piece = piece_of(stretch.at);
        let here = self.cached.get(&piece).into_iter().flat_map(|piece| &piece.stretches);
        let here = here.map(|cached| cached.at);
        let end = here.filter(|&at| at > stretch.at).min().unwrap_or(self.next).min(self.next);
        let len = to_index(end.saturating_sub(stretch.at)).min(stretch.bytes.len());
        if let Some(bytes) = stretch.bytes.part(0..len) {
            self.keep(piece, Stretch { at: stretch.at, bytes });
        }
    }

    /// A block that is in memory. It is compared with its checksum the first time.
    pub(crate) fn block(
        &mut self,
        at: u64,
        head: &BlockHead,
    ) -> Option<Result<RecordSlice, Unsound>> {
        let range = at..at + wide(head.len());
        let piece = self.cached.get_mut(&piece_of(at))?;
        let block = piece.stretches.iter().find_map(|stretch| stretch.part(&range))?;
        if piece.is_checked(at) {
            return Some(index_block::is_named(&block, head).then_some(block).ok_or(Unsound));
        }
        if !index_block::is_sound(&block, head) {
            return Some(Err(Unsound));
        }
        piece.set_checked(at);
        Some(Ok(block))
    }

    /// Drops what is cached around a block that is not sound, so that it is read again.
    pub(crate) fn forget(&mut self, at: u64) {
        if !self.waits(piece_of(at)) {
            self.cached.remove(&piece_of(at));
            self.order.retain(|&piece| piece != piece_of(at));
        }
    }

    /// The stretch of the file to read for a block: where, and how many bytes.
    pub(crate) fn stretch(&self, at: u64) -> (u64, usize) {
        let from = piece_of(at) * wide(PIECE_LEN);
        (from, PIECE_LEN.min(to_index(self.next - from)).next_multiple_of(WRITE_LEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::bytes::Put;
    use crate::format::index_block::BlockKind;

    fn put(index: &mut Index, owner: u32, count: u32) -> (u64, BlockHead) {
        let head = BlockHead { kind: BlockKind::Ends, owner, first: 0, count };
        let at = index.put(&head, Sequence::new(1), |out| {
            for n in 0..count {
                out.put_u32(n);
                out.put_u64(u64::from(owner));
            }
        });
        (at, head)
    }

    #[test]
    fn blocks_are_found_before_and_after_they_are_written_and_read_back() {
        let mut index = Index::restored(8192, 0);
        let mut blocks = Vec::new();
        let mut file = vec![0xEE; 4 << 20];
        for owner in 0..400 {
            blocks.push(put(&mut index, owner, owner % 700));
            if owner % 50 == 49 {
                let end = if owner % 100 == 99 { index.end_page() } else { 0 };
                while let Some(stretch) = index.take_unwritten(end) {
                    assert!(stretch.at.is_multiple_of(4096) && stretch.bytes.len() % 4096 == 0);
                    let at = to_index(stretch.at);
                    file[at..at + stretch.bytes.len()].copy_from_slice(&stretch.bytes);
                    index.written(stretch.at, true);
                }
            }
        }
        assert!(index.is_written(index.next()));
        assert_eq!(file[..8192], [0xEE; 8192], "what was there before is left alone");
        let mut again = Index::restored(index.next(), 0);
        for (at, head) in blocks {
            assert!(index.block(at, &head).unwrap().is_ok());
            let (from, len) = again.stretch(at);
            let mut memory = ChunkTail::alone(len);
            memory.buffer()[..len].copy_from_slice(&file[to_index(from)..to_index(from) + len]);
            again.loaded(Stretch { at: from, bytes: memory.freeze(len) });
            assert!(again.block(at, &head).unwrap().is_ok());
        }
    }

    #[test]
    fn a_piece_that_is_read_back_does_not_hide_what_was_put_since() {
        let mut index = Index::restored(8192, 0);
        let (from, len) = index.stretch(0);
        let mut memory = ChunkTail::alone(len);
        let before = Stretch { at: from, bytes: memory.freeze(len) };
        put(&mut index, 1, 10);
        index.loaded(before);
        let (from, len) = index.stretch(0);
        assert_eq!(len, 3 * 4096, "the file ends within a page");
        let mut memory = ChunkTail::alone(len);
        index.loaded(Stretch { at: from, bytes: memory.freeze(len) });
        let (at, head) = put(&mut index, 2, 10);
        assert!(at < 3 * 4096 && index.block(at, &head).unwrap().is_ok());
    }

    #[test]
    fn a_failed_write_is_tried_again_in_its_place() {
        let mut index = Index::default();
        put(&mut index, 1, 10);
        let end = index.end_page();
        let first = index.take_unwritten(end).unwrap();
        put(&mut index, 2, 10);
        index.written(first.at, false);
        assert!(!index.is_written(end));
        let end = index.end_page();
        let again: Vec<u64> =
            std::iter::from_fn(|| index.take_unwritten(end)).map(|stretch| stretch.at).collect();
        assert_eq!(again, [0, 4096]);
    }

    #[test]
    fn what_waits_to_be_written_stays_in_memory() {
        for more in [0, 7] {
            let mut index = Index::default();
            index.keep_more(more * PIECE_LEN);
            let (at, head) = put(&mut index, 9, 20_000);
            for owner in 0..300 {
                put(&mut index, owner, 20_000);
            }
            assert!(index.block(at, &head).is_some());
            let end = index.end_page();
            while let Some(stretch) = index.take_unwritten(end) {
                index.written(stretch.at, true);
            }
            assert!(index.block(at, &head).is_none());
            assert_eq!(index.cached.len(), CACHED_PIECES_MIN + more);
        }
    }

    #[test]
    fn a_damaged_block_is_found_when_it_is_read_again() {
        let mut index = Index::restored(0, 0);
        let (at, head) = put(&mut index, 1, 10);
        let sound = index.block(at, &head).unwrap().unwrap();
        assert!(index.block(at, &BlockHead { owner: 2, ..head }).unwrap().is_err());
        index.end_page();
        let stretch = index.take_unwritten(4096).unwrap();
        index.written(stretch.at, true);
        for damaged in [true, false] {
            index.forget(at);
            let mut memory = ChunkTail::alone(4096);
            memory.buffer()[..sound.len()].copy_from_slice(&sound);
            memory.buffer()[sound.len() - 1] ^= u8::from(damaged);
            index.loaded(Stretch { at: 0, bytes: memory.freeze(4096) });
            assert_eq!(index.block(at, &head).unwrap().is_err(), damaged);
        }
    }
}
