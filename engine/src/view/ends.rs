//! Which queues have records in a segment, and where they go on behind it: what retention needs to
//! know when it recycles the segment, without a look at every queue or at the segment itself.
//!
//! The newest segment has a list of queue numbers. When the log has gone on to the next segment, the
//! list is put aside in blocks of the index, a part per turn; where a queue goes on is known by then,
//! as the offset of its first record in the next segment or else its end. So a list must be done
//! before the log goes on by another segment.

use std::collections::BTreeMap;

use super::index::Index;
use super::queue::Queue;
use crate::format::bytes::Put;
use crate::format::index_block::{BlockHead, BlockKind, count};
use crate::units::{Sequence, index as to_index};

/// Entries of a block: 192 KiB.
const BLOCK_ENTRIES: usize = 16 << 10;

/// A block with a part of a segment's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndsBlock {
    pub(crate) at: u64,
    pub(crate) count: u32,
}

impl EndsBlock {
    pub(crate) fn head(&self, ordinal: u64, part: u32) -> BlockHead {
        BlockHead { kind: BlockKind::Ends, owner: part, first: ordinal, count: self.count }
    }
}

/// What is known of a segment beyond its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentEnds {
    /// Where the index stood when the segment began: blocks before it speak of earlier segments.
    pub(crate) index_from: u64,
    pub(crate) blocks: Vec<EndsBlock>,
}

#[derive(Default)]
pub(crate) struct Ends {
    segments: BTreeMap<u64, SegmentEnds>,
    /// Queues with records in segments whose list is not in blocks yet, by ordinal.
    lists: BTreeMap<u64, Vec<u32>>,
    /// How much of the oldest list is in blocks.
    done: usize,
    /// The segment that the log is in.
    current: u64,
}

impl Ends {
    /// The log goes on in this segment.
    pub(crate) fn enter(&mut self, ordinal: u64, index_from: u64) {
        self.segments.entry(ordinal).or_insert(SegmentEnds { index_from, blocks: Vec::new() });
        self.lists.entry(ordinal).or_default();
        self.current = ordinal;
    }

    /// A queue has its first record in this segment.
    pub(crate) fn note(&mut self, ordinal: u64, queue: u32) {
        self.lists.entry(ordinal).or_default().push(queue);
    }

    pub(crate) fn restore(&mut self, ordinal: u64, segment: SegmentEnds) {
        self.segments.insert(ordinal, segment);
    }

    pub(crate) fn segment(&self, ordinal: u64) -> Option<&SegmentEnds> {
        self.segments.get(&ordinal)
    }

    pub(crate) fn forget(&mut self, ordinal: u64) {
        self.segments.remove(&ordinal);
    }

    /// The first segment whose list is not in blocks, when it has been left behind.
    pub(crate) fn unfinished(&self) -> Option<u64> {
        let (&oldest, _) = self.lists.first_key_value()?;
        (oldest < self.current).then_some(oldest)
    }

    /// Puts a part of the list of the oldest unfinished segment aside; gives the ordinal when that
    /// was the last part.
    pub(crate) fn put_part(
        &mut self,
        queues: &[Queue],
        covered: Sequence,
        index: &mut Index,
    ) -> Option<u64> {
        let ordinal = self.unfinished()?;
        let list = self.lists.get(&ordinal)?;
        let part: Vec<(u32, u64)> = list
            .iter()
            .skip(self.done)
            .take(BLOCK_ENTRIES)
            .filter_map(|&number| {
                let queue = queues.get(to_index(u64::from(number)))?;
                Some((number, queue.end_of_segment(ordinal)))
            })
            .collect();
        self.done += BLOCK_ENTRIES;
        let segment = self.segments.entry(ordinal).or_default();
        if !part.is_empty() {
            let mut block = EndsBlock { at: 0, count: count(part.len()) };
            let number = count(segment.blocks.len());
            block.at = index.put(&block.head(ordinal, number), covered, |out| {
                for (number, end) in part {
                    out.put_u32(number);
                    out.put_u64(end);
                }
            });
            segment.blocks.push(block);
        }
        if self.done < list.len() {
            return None;
        }
        self.done = 0;
        self.lists.remove(&ordinal);
        Some(ordinal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::index_block::{self, QueueEntry};
    use crate::units::LogOffset;

    #[test]
    fn a_list_tells_where_queues_go_on_behind_its_segment() {
        let mut index = Index::default();
        let mut ends = Ends::default();
        let mut queues: Vec<Queue> = (0..40_000).map(|_| Queue::unnamed()).collect();
        let mut append = |ends: &mut Ends, index: &mut Index, ordinal: u64, number: u32| {
            let queue = &mut queues[number as usize];
            if queue.enter_segment(ordinal, queue.visible()) {
                ends.note(ordinal, number);
            }
            let entry = QueueEntry { position: LogOffset::new(1).unwrap(), len: 1, crc: 0, tag: 0 };
            queue.push(entry, number, Sequence::new(1), index);
        };
        ends.enter(5, 0);
        for number in (0..40_000).chain(0..10) {
            append(&mut ends, &mut index, 5, number);
        }
        assert_eq!(ends.unfinished(), None);
        ends.enter(6, index.next());
        for number in 5..20 {
            append(&mut ends, &mut index, 6, number);
        }
        let mut parts = 0;
        while ends.put_part(&queues, Sequence::new(2), &mut index).is_none() {
            parts += 1;
        }
        assert_eq!((parts, ends.unfinished()), (2, None));
        let mut found = Vec::new();
        for (part, block) in (0..).zip(&ends.segment(5).unwrap().blocks) {
            let head = block.head(5, part);
            let bytes = index.block(block.at, &head).unwrap().unwrap();
            found.extend(index_block::ends(&bytes));
        }
        assert_eq!(found.len(), 40_000);
        for (number, end) in found {
            assert_eq!(end, if number < 10 { 2 } else { 1 }, "queue {number}");
        }
    }
}
