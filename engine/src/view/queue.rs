//! A queue: entries of its newest records in memory, older ones in blocks of the index file.

use crate::format::index_block::{BlockHead, BlockKind, QueueEntry, count};
use crate::units::{LogOffset, Sequence, index, wide};
use crate::view::index::Index;

/// Entries after which they go to a block.
pub(crate) const BLOCK_ENTRIES: usize = 200;
/// A queue that was not appended to for a while gives up this many entries, or more, for a block.
const IDLE_ENTRIES_MIN: usize = 8;

/// Which records a reader or waiter wants, by their tag number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagFilter {
    /// Every record.
    All,
    /// Records with one of these tags.
    Tags(Box<[i64]>),
}

impl TagFilter {
    /// True when a record with this tag is wanted.
    pub fn matches(&self, tag: i64) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => tags.contains(&tag),
        }
    }
}

struct Waiter {
    token: u64,
    filter: TagFilter,
}

/// A block of this queue in the index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) at: u64,
    /// Queue offset of its first entry, and that record's place.
    pub(crate) first: u64,
    pub(crate) position: LogOffset,
    pub(crate) count: u32,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    pub(crate) fn head(&self, queue: u32) -> BlockHead {
        BlockHead { kind: BlockKind::Entries, owner: queue, first: self.first, count: self.count }
    }
}

/// Where an entry is to be looked up.
pub(crate) enum EntryPlace {
    Here(QueueEntry),
    /// In this block.
    Block(Block),
}

/// Where the first entry at or behind a log position is.
pub(crate) enum FirstAt {
    /// It has this offset, or the queue ends there.
    Offset(u64),
    /// It is in this block, or the first one behind it.
    In(Block),
}

/// What a slot of the shard's queues holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing; the number may be given to a queue.
    #[default]
    Free,
    /// A queue whose first state is appended but not committed.
    Opened,
    Live,
    /// A live queue whose deletion is appended but not committed.
    Leaving,
    /// A deleted queue: the log may have records of it up to the segment with this ordinal. Entries
    /// that replay finds meanwhile wait for what the log says of them: the deletion, which they are
    /// in front of, or the state of the number's next queue, whose first one damage has hidden.
    Deleted {
        last: u64,
    },
}

/// How much of a queue the checkpoints of one generation have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    /// 0 = nothing.
    pub(crate) generation: u64,
    /// Entries before this offset, and blocks that end at or before that one.
    pub(crate) entries_to: u64,
    pub(crate) blocks_to: u64,
}

#[derive(Default)]
pub(crate) struct Queue {
    key: Box<[u8]>,
    /// Log position of the first state; only `None` while the log has not told it.
    incarnation: Option<LogOffset>,
    pub(crate) slot: Slot,
    min: u64,
    /// Blocks before the tail; each starts where the one before ends.
    blocks: Vec<Block>,
    /// Queue offset of the first entry of the tail.
    tail_from: u64,
    tail: Vec<QueueEntry>,
    /// The offset that the next append gets; at or above the visible end.
    next: u64,
    /// A second state is in the log or on its way there, or none is needed.
    confirmed: bool,
    /// Where the queue's end stands in a list of those that are repeated.
    pub(crate) end_noted: u32,
    /// Ordinal of the segment with the newest state.
    pub(crate) home: u64,
    /// Ordinal of the segment with the newest record, and the offset of the first record there.
    segment: u64,
    segment_first: u64,
    pub(crate) saved: Saved,
    /// The next checkpoint takes it anyway.
    pub(crate) changed: bool,
    /// Records have come since this was cleared.
    pub(crate) used: bool,
    #[expect(clippy::box_collection, reason = "8 bytes in each of a million queues, not 24")]
    waiters: Option<Box<Vec<Waiter>>>,
}

impl Queue {
    /// A queue whose opening is appended but not committed.
    pub(crate) fn opened(key: &[u8], incarnation: LogOffset) -> Self {
        Self {
            key: key.into(),
            incarnation: Some(incarnation),
            slot: Slot::Opened,
            segment: u64::MAX,
            ..Self::default()
        }
    }

    /// A queue that the log names by its number before, or without, its state.
    pub(crate) fn unnamed() -> Self {
        Self { slot: Slot::Live, confirmed: true, segment: u64::MAX, ..Self::default() }
    }

    /// A queue as a checkpoint starts to tell it.
    pub(crate) fn restored(key: &[u8], incarnation: Option<LogOffset>) -> Self {
        Self { key: key.into(), incarnation, ..Self::unnamed() }
    }

    /// A queue that is gone, so that replay knows older records of its number.
    pub(crate) fn deleted(incarnation: Option<LogOffset>, last: u64) -> Self {
        Self { incarnation, slot: Slot::Deleted { last }, segment: u64::MAX, ..Self::default() }
    }

    /// A deleted queue's number has another one, which begins here: the entries that wait are its own,
    /// unless they lie in front of it.
    pub(crate) fn become_next(&mut self, incarnation: LogOffset) {
        let first = self.blocks.first().map(|block| block.position);
        let first = first.or_else(|| self.tail.first().map(|entry| entry.position));
        if first.is_some_and(|position| incarnation < position) {
            self.incarnation = None;
            self.slot = Slot::Live;
            self.confirmed = true;
        } else {
            *self = Self::unnamed();
        }
    }

    /// Puts something else into the slot; gives what was there.
    pub(crate) fn become_slot(&mut self, other: Self) -> Self {
        let changed = self.changed;
        std::mem::replace(self, Self { changed, ..other })
    }

    /// The log says what the queue is called and where it stands.
    pub(crate) fn state(&mut self, key: &[u8], incarnation: LogOffset, min: u64, home: u64) {
        self.key = key.into();
        self.incarnation = Some(incarnation);
        if self.slot != Slot::Leaving {
            self.slot = Slot::Live;
        }
        self.home = home;
        self.next = self.next.max(self.visible());
        self.raise_min(min.min(self.visible()));
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.tail.is_empty()
    }

    /// True once, after the opening is committed: it is time to log a second state.
    pub(crate) fn take_confirmation(&mut self) -> bool {
        let due = self.slot == Slot::Live && !self.confirmed;
        self.confirmed |= due;
        due
    }

    /// A second state follows by itself.
    pub(crate) fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// True when the queue may be appended to and its committed state be told.
    pub(crate) fn is_live(&self) -> bool {
        self.slot == Slot::Live
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn incarnation(&self) -> Option<LogOffset> {
        self.incarnation
    }

    pub(crate) fn min(&self) -> u64 {
        self.min
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub(crate) fn tail(&self) -> &[QueueEntry] {
        &self.tail
    }

    pub(crate) fn tail_from(&self) -> u64 {
        self.tail_from
    }

    /// Has the processor fetch the end of the tail, where the next entry goes.
    pub(crate) fn prefetch_tail(&self) {
        if let Some(last) = self.tail.last() {
            crate::mem::prefetch(last);
        }
    }

    /// The committed end: the offset behind the last visible record.
    pub(crate) fn visible(&self) -> u64 {
        self.tail_from + wide(self.tail.len())
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.next += wide(count);
    }

    /// Forgets appends that were not committed.
    pub(crate) fn take_back(&mut self) {
        self.next = self.visible();
        if self.slot == Slot::Leaving {
            self.slot = Slot::Live;
        }
    }

    /// The newest segment with a record, and the offset of the first record there.
    pub(crate) fn segment(&self) -> (u64, u64) {
        (self.segment, self.segment_first)
    }

    pub(crate) fn restore_segment(&mut self, (ordinal, first): (u64, u64)) {
        (self.segment, self.segment_first) = (ordinal, first);
    }

    /// Notes that records of the queue are in this segment from `first` on. True the first time.
    pub(crate) fn enter_segment(&mut self, ordinal: u64, first: u64) -> bool {
        // Replay may go over segments before the one that a checkpoint knew already.
        let entered = self.segment == u64::MAX || self.segment < ordinal;
        if entered {
            (self.segment, self.segment_first) = (ordinal, first);
        }
        entered
    }

    /// The first offset that does not lie in this segment or before, if records are at most one
    /// segment further.
    pub(crate) fn end_of_segment(&self, ordinal: u64) -> u64 {
        if self.segment <= ordinal { self.visible() } else { self.segment_first }
    }

    /// Replay finds nothing of the queue in the log before this offset: what was there is gone.
    pub(crate) fn start_at(&mut self, offset: u64) {
        if self.is_empty() && self.visible() < offset {
            self.tail_from = offset;
            self.min = offset;
            self.next = self.next.max(offset);
        }
    }

    pub(crate) fn push(
        &mut self,
        entry: QueueEntry,
        number: u32,
        covered: Sequence,
        index: &mut Index,
    ) {
        self.tail.push(entry);
        self.used = true;
        if self.tail.len() >= BLOCK_ENTRIES {
            self.put_aside(number, covered, index);
        }
        self.next = self.next.max(self.visible());
    }

    /// Moves the entries of the tail to a block.
    fn put_aside(&mut self, number: u32, covered: Sequence, index: &mut Index) {
        let Some(oldest) = self.tail.first() else { return };
        let position = oldest.position;
        let mut block =
            Block { at: 0, first: self.tail_from, position, count: count(self.tail.len()) };
        block.at = index.put(&block.head(number), covered, |out| {
            self.tail.iter().for_each(|entry| entry.put(out));
        });
        self.tail_from = block.end();
        self.tail.clear();
        self.blocks.push(block);
    }

    /// Gives up the memory of the tail, if it is worth it. True when it has.
    pub(crate) fn spill(&mut self, number: u32, covered: Sequence, index: &mut Index) -> bool {
        let worth = self.tail.len() >= IDLE_ENTRIES_MIN;
        if worth {
            self.put_aside(number, covered, index);
        }
        if self.tail.capacity() > 2 * self.tail.len() {
            self.tail.shrink_to_fit();
        }
        self.blocks.shrink_to_fit();
        worth
    }

    /// What lies before `min` cannot be read any more. True when that changes anything.
    pub(crate) fn raise_min(&mut self, min: u64) -> bool {
        if min <= self.min {
            return false;
        }
        self.min = min;
        let gone = self.blocks.partition_point(|block| block.end() <= min);
        self.blocks.drain(..gone);
        if let Some(gone) = min.checked_sub(self.tail_from) {
            let gone = index(gone).min(self.tail.len());
            self.tail.drain(..gone);
            self.tail_from += wide(gone);
        }
        true
    }

    /// What a checkpoint tells of the queue's entries: blocks that follow the known ones, and
    /// entries from an offset on.
    pub(crate) fn restore_entries(
        &mut self,
        tail_from: u64,
        blocks: impl IntoIterator<Item = Block>,
        (from, entries): (u64, &[QueueEntry]),
    ) -> Option<()> {
        self.blocks.extend(blocks);
        let gone = tail_from.checked_sub(self.tail_from)?;
        self.tail.drain(..index(gone).min(self.tail.len()));
        self.tail_from = tail_from;
        // A queue that was emptied goes on where the checkpoint says.
        if !entries.is_empty() && self.visible() != from {
            return None;
        }
        self.tail.extend_from_slice(entries);
        self.next = self.visible();
        Some(())
    }

    /// Where the entry of a visible offset is. `None` below the minimum or behind the end.
    pub(crate) fn entry(&self, offset: u64) -> Option<EntryPlace> {
        if offset < self.min {
            return None;
        }
        if let Some(n) = offset.checked_sub(self.tail_from) {
            return self.tail.get(index(n)).copied().map(EntryPlace::Here);
        }
        let after = self.blocks.partition_point(|block| block.first <= offset);
        let block = *self.blocks.get(after.checked_sub(1)?)?;
        (offset < block.end()).then_some(EntryPlace::Block(block))
    }

    /// The first entry whose record lies at or behind a position; positions rise with offsets.
    pub(crate) fn first_at(&self, position: LogOffset) -> FirstAt {
        let after = self.blocks.partition_point(|block| block.position < position);
        let last = after.checked_sub(1).and_then(|last| self.blocks.get(last));
        let is_last_block = after == self.blocks.len();
        let in_tail = self.tail.partition_point(|entry| entry.position < position);
        match last {
            // The tail goes on behind the last block.
            Some(block) if !is_last_block || in_tail == 0 => FirstAt::In(*block),
            None if !is_last_block => FirstAt::Offset(self.blocks.first().map_or(0, |b| b.first)),
            _ => FirstAt::Offset(self.tail_from + wide(in_tail)),
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.is_some()
    }

    pub(crate) fn wait(&mut self, token: u64, filter: TagFilter) {
        self.waiters.get_or_insert_default().push(Waiter { token, filter });
    }

    pub(crate) fn cancel_wait(&mut self, token: u64) {
        self.retain_waiters(|waiter| waiter.token != token);
    }

    pub(crate) fn wake(&mut self, tag: i64, woken: &mut Vec<u64>) {
        self.retain_waiters(|waiter| {
            let wanted = waiter.filter.matches(tag);
            if wanted {
                woken.push(waiter.token);
            }
            !wanted
        });
    }

    /// Wakes whoever waits, because the queue is gone.
    pub(crate) fn wake_all(&mut self, woken: &mut Vec<u64>) {
        let waiters = self.waiters.take();
        woken.extend(waiters.into_iter().flat_map(|waiters| *waiters).map(|waiter| waiter.token));
    }

    fn retain_waiters(&mut self, keep: impl FnMut(&Waiter) -> bool) {
        let Some(waiters) = &mut self.waiters else { return };
        waiters.retain(keep);
        if waiters.is_empty() {
            self.waiters = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: i64) -> QueueEntry {
        QueueEntry { position: LogOffset::new(1000 * n).unwrap(), len: 10, crc: 0, tag: n }
    }

    fn filled(count: i64, index: &mut Index) -> Queue {
        let mut queue = Queue::unnamed();
        for n in 0..count {
            queue.push(entry(n), 4, Sequence::new(1), index);
        }
        queue
    }

    #[track_caller]
    fn check(queue: &Queue, offsets: std::ops::Range<u64>) {
        for offset in offsets {
            match queue.entry(offset) {
                Some(EntryPlace::Here(found)) => assert_eq!(found.tag.unsigned_abs(), offset),
                Some(EntryPlace::Block(block)) => {
                    assert!((block.first..block.end()).contains(&offset));
                }
                None => panic!("offset {offset} is gone"),
            }
        }
    }

    #[test]
    fn entries_are_found_in_the_tail_and_in_blocks_of_any_length() {
        let mut index = Index::default();
        let mut queue = filled(450, &mut index);
        assert_eq!((queue.blocks().len(), queue.tail().len()), (2, 50));
        assert!(queue.spill(4, Sequence::new(1), &mut index));
        assert!(!queue.spill(4, Sequence::new(1), &mut index), "nothing is left to spill");
        for n in 450..460 {
            queue.push(entry(n), 4, Sequence::new(1), &mut index);
        }
        check(&queue, 0..460);
        assert!(queue.entry(460).is_none());
    }

    #[test]
    fn retention_raises_the_minimum_and_an_emptied_queue_keeps_its_next_offset() {
        let mut index = Index::default();
        let mut queue = filled(450, &mut index);
        assert!(queue.raise_min(200));
        assert!(!queue.raise_min(100), "it never goes back");
        assert_eq!(queue.blocks().len(), 1);
        check(&queue, 200..450);
        assert!(queue.entry(199).is_none());
        queue.raise_min(420);
        check(&queue, 420..450);
        queue.raise_min(450);
        assert_eq!((queue.min(), queue.visible(), queue.next()), (450, 450, 450));
        queue.push(entry(450), 4, Sequence::new(1), &mut index);
        check(&queue, 450..451);
    }

    #[test]
    fn a_queue_without_records_starts_where_the_log_says() {
        let mut queue = Queue::unnamed();
        let incarnation = LogOffset::new(7).unwrap();
        queue.start_at(90);
        queue.state(b"k", incarnation, 40, 3);
        assert_eq!((queue.min(), queue.visible(), queue.next()), (90, 90, 90));
        queue.push(entry(90), 4, Sequence::new(1), &mut Index::default());
        queue.start_at(91);
        queue.state(b"k", incarnation, 90, 5);
        assert_eq!((queue.min(), queue.visible(), queue.home), (90, 91, 5));
    }
}
