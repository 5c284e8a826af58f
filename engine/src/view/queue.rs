//! A queue: entries of its newest records in memory, older ones in blocks of the index file.

use crate::format::index_block::{BLOCK_ENTRIES, QueueEntry};
use crate::units::{Sequence, index, wide};
use crate::view::index::Index;

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

/// Where an entry is to be looked up.
pub(crate) enum EntryPlace {
    Here(QueueEntry),
    /// Entry `n` of a block, whose first entry has offset `first`.
    Block {
        block: u32,
        first: u64,
        n: usize,
    },
}

#[derive(Default)]
pub(crate) struct Queue {
    key: Box<[u8]>,
    incarnation: u32,
    min: u64,
    /// Blocks before the tail, each full; the first one starts at queue offset `blocks_from`.
    blocks: Vec<u32>,
    blocks_from: u64,
    tail: Vec<QueueEntry>,
    /// The offset that the next append gets; at or above the visible end.
    next: u64,
    /// The group with its opening is committed.
    committed: bool,
    /// A second opening is in the log, or none is needed.
    confirmed: bool,
    waiters: Vec<Waiter>,
}

impl Queue {
    /// A queue whose opening is appended but not committed.
    pub(crate) fn opened(key: &[u8], incarnation: u32) -> Self {
        Self { key: key.into(), incarnation, ..Self::default() }
    }

    /// A queue that the log names by its number before, or without, its opening.
    pub(crate) fn unnamed() -> Self {
        Self { committed: true, confirmed: true, ..Self::default() }
    }

    /// A queue as a checkpoint kept it.
    pub(crate) fn restored(
        key: &[u8],
        incarnation: u32,
        min: u64,
        (blocks_from, blocks): (u64, Vec<u32>),
        tail: Vec<QueueEntry>,
    ) -> Self {
        let mut queue = Self::opened(key, incarnation);
        queue.committed = true;
        queue.confirmed = true;
        queue.min = min;
        queue.blocks = blocks;
        queue.blocks_from = blocks_from;
        queue.tail = tail;
        queue.next = queue.visible();
        queue
    }

    pub(crate) fn name(&mut self, key: &[u8], incarnation: u32) {
        self.key = key.into();
        self.incarnation = incarnation;
        self.committed = true;
    }

    /// True once, after the opening is committed: it is time to log a second one.
    pub(crate) fn take_confirmation(&mut self) -> bool {
        let due = self.committed && !self.confirmed;
        self.confirmed |= due;
        due
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.committed
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    pub(crate) fn min(&self) -> u64 {
        self.min
    }

    pub(crate) fn blocks(&self) -> (u64, &[u32]) {
        (self.blocks_from, &self.blocks)
    }

    pub(crate) fn tail(&self) -> &[QueueEntry] {
        &self.tail
    }

    fn tail_from(&self) -> u64 {
        self.blocks_from + wide(self.blocks.len() * BLOCK_ENTRIES)
    }

    /// The committed end: the offset behind the last visible record.
    pub(crate) fn visible(&self) -> u64 {
        self.tail_from() + wide(self.tail.len())
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
    }

    pub(crate) fn push(
        &mut self,
        entry: QueueEntry,
        number: u32,
        covered: Sequence,
        index: &mut Index,
    ) {
        self.tail.push(entry);
        if self.tail.len() == BLOCK_ENTRIES {
            let first = self.visible() - wide(BLOCK_ENTRIES);
            let block = index.seal(number, first, covered, &self.tail);
            self.tail.clear();
            self.blocks.push(block);
        }
        self.next = self.next.max(self.visible());
    }

    /// Where the entry of a visible offset is. `None` below the minimum or behind the end.
    pub(crate) fn entry(&self, offset: u64) -> Option<EntryPlace> {
        if offset < self.min || offset < self.blocks_from {
            return None;
        }
        let tail_from = self.tail_from();
        if let Some(n) = offset.checked_sub(tail_from) {
            return self.tail.get(index(n)).copied().map(EntryPlace::Here);
        }
        let n = index(offset - self.blocks_from);
        let block = *self.blocks.get(n / BLOCK_ENTRIES)?;
        let first = self.blocks_from + wide(n / BLOCK_ENTRIES * BLOCK_ENTRIES);
        Some(EntryPlace::Block { block, first, n: n % BLOCK_ENTRIES })
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    pub(crate) fn wait(&mut self, token: u64, filter: TagFilter) {
        self.waiters.push(Waiter { token, filter });
    }

    pub(crate) fn cancel_wait(&mut self, token: u64) {
        self.waiters.retain(|waiter| waiter.token != token);
    }

    pub(crate) fn wake(&mut self, tag: i64, woken: &mut Vec<u64>) {
        self.waiters.retain(|waiter| {
            let wanted = waiter.filter.matches(tag);
            if wanted {
                woken.push(waiter.token);
            }
            !wanted
        });
    }
}
