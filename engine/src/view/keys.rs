//! The key index: from the hash of a key to the places of the records that may have it.
//!
//! A bucket is what a queue is: entries in the order of the log, the newest in memory, older ones in
//! blocks of the index file. The bucket of a key is a part of its hash, another part is kept in the
//! entry, and whoever searches compares the key itself. Every block says where its first entry lies,
//! so a search within a time reads only the blocks of that time. A bucket that no key has come to
//! takes a pointer, a shard without keys nothing.
//!
//! Invariant: a bucket has all entries of a group or none, so replay, which goes over groups that a
//! checkpoint knew, passes over entries at or before the newest one that it restored.

use crate::format::group::Group;
use crate::format::index_block::{self, BlockHead, BlockKind, KEY_ENTRY_LEN, KeyEntry};
use crate::record::KeyHash;
use crate::units::{LogOffset, Sequence, index as to_index, narrow, wide};
use crate::view::index::Index;

/// Buckets of a shard; fixed, since blocks and changes name them.
pub(crate) const BUCKETS: u32 = 4096;
/// Entries after which they go to a block: a page with its header.
pub(crate) const BLOCK_ENTRIES: usize = 336;
/// A bucket gives up this many entries, or more, when all of them take too much memory.
const SPILLED_ENTRIES_MIN: usize = 8;
/// Buckets that one look for such visits.
const SPILL_VISITS: usize = 256;

/// The bucket of a key.
pub(crate) fn bucket_of(hash: KeyHash) -> u32 {
    narrow(to_index(hash.get() >> 52))
}

/// What entries keep of the hash beside the bucket that they are in.
pub(crate) fn mark_of(hash: KeyHash) -> u32 {
    narrow(to_index((hash.get() >> 20) & 0xFFFF_FFFF))
}

/// A block of a bucket in the index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyBlock {
    pub(crate) at: u64,
    /// Position of its first entry's record.
    pub(crate) first: LogOffset,
    pub(crate) count: u32,
}

impl KeyBlock {
    pub(crate) fn head(&self, bucket: u32) -> BlockHead {
        let first = u64::try_from(self.first.get()).unwrap_or(0);
        BlockHead { kind: BlockKind::Keys, owner: bucket, first, count: self.count }
    }
}

/// How much of a bucket the checkpoints of one generation have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedKeys {
    /// 0 = nothing.
    pub(crate) generation: u64,
    /// Entries before this number, and blocks that lie before this byte of the index.
    pub(crate) entries_to: u64,
    pub(crate) blocks_to: u64,
}

/// Entries of the keys whose hash has the same first bits.
#[derive(Default)]
pub(crate) struct Bucket {
    /// Blocks before the tail, oldest first.
    blocks: Vec<KeyBlock>,
    /// How many entries have ever been put into blocks.
    tail_from: u64,
    tail: Vec<KeyEntry>,
    /// Position of the newest entry.
    newest: Option<LogOffset>,
    /// Of the newest entry that a checkpoint knew.
    restored: Option<LogOffset>,
    pub(crate) saved: SavedKeys,
    changed: bool,
}

impl Bucket {
    pub(crate) fn blocks(&self) -> &[KeyBlock] {
        &self.blocks
    }

    pub(crate) fn tail(&self) -> &[KeyEntry] {
        &self.tail
    }

    pub(crate) fn tail_from(&self) -> u64 {
        self.tail_from
    }

    pub(crate) fn newest(&self) -> Option<LogOffset> {
        self.newest
    }

    fn end(&self) -> u64 {
        self.tail_from + wide(self.tail.len())
    }

    /// Moves the entries of the tail to a block.
    fn put_aside(&mut self, bucket: u32, covered: Sequence, index: &mut Index) {
        let Some(first) = self.tail.first().map(KeyEntry::position) else { return };
        let count = index_block::count(self.tail.len());
        let mut block = KeyBlock { at: 0, first, count };
        block.at = index.put(&block.head(bucket), covered, |out| {
            self.tail.iter().for_each(|entry| entry.put(out));
        });
        self.tail_from = self.end();
        self.tail.clear();
        self.blocks.push(block);
    }

    fn push(&mut self, entry: KeyEntry) {
        if self.tail.len() == self.tail.capacity() {
            // Doubles like any vector, but not beyond the block.
            let more = self.tail.len().max(4).min(BLOCK_ENTRIES - self.tail.len());
            self.tail.reserve_exact(more);
        }
        self.tail.push(entry);
        self.newest = Some(entry.position());
    }

    /// A bucket as a checkpoint starts to tell it.
    pub(crate) fn restored(tail_from: u64) -> Self {
        Self { tail_from, ..Self::default() }
    }

    /// What a checkpoint tells: blocks behind the known ones, and entries from a number on. `None`
    /// when that does not follow what is known.
    pub(crate) fn restore(
        &mut self,
        newest: Option<LogOffset>,
        (tail_from, blocks): (u64, Vec<KeyBlock>),
        (from, entries): (u64, &[KeyEntry]),
    ) -> Option<()> {
        self.blocks.extend(blocks);
        let gone = tail_from.checked_sub(self.tail_from)?;
        self.tail.drain(..to_index(gone).min(self.tail.len()));
        self.tail_from = tail_from;
        if self.end() != from {
            return None;
        }
        self.tail.extend_from_slice(entries);
        (self.newest, self.restored) = (newest, newest);
        Some(())
    }
}

/// Keys that a group will come to, since each meets a bucket that the processor has long forgotten: it
/// fetches those of the next keys meanwhile.
pub(crate) struct KeysAhead<I> {
    /// Whose buckets come next, and whose ends of tails.
    buckets: I,
    tails: I,
}

impl KeysAhead<()> {
    pub(crate) fn new<'a>(
        group: &Group<'a>,
        keys: &Keys,
    ) -> KeysAhead<impl Iterator<Item = (u32, KeyHash)> + use<'a>> {
        const BUCKETS_AHEAD: usize = 12;
        const TAILS_AHEAD: usize = 6;
        let mut ahead = KeysAhead { buckets: group.keys(), tails: group.keys() };
        for _ in TAILS_AHEAD..BUCKETS_AHEAD {
            ahead.prefetch_bucket(keys);
        }
        for _ in 0..TAILS_AHEAD {
            ahead.prefetch_next(keys);
        }
        ahead
    }
}

impl<I: Iterator<Item = (u32, KeyHash)>> KeysAhead<I> {
    /// To be called for each key of the group.
    pub(crate) fn prefetch_next(&mut self, keys: &Keys) {
        self.prefetch_bucket(keys);
        let tail = self.tails.next().and_then(|(_, hash)| keys.bucket(bucket_of(hash)));
        if let Some(last) = tail.and_then(|bucket| bucket.tail.last()) {
            crate::mem::prefetch(last);
        }
    }

    fn prefetch_bucket(&mut self, keys: &Keys) {
        let next = self.buckets.next();
        if let Some(bucket) = next.and_then(|(_, hash)| keys.bucket(bucket_of(hash))) {
            crate::mem::prefetch(bucket);
        }
    }
}

#[derive(Default)]
pub(crate) struct Keys {
    /// Empty as long as there was no key.
    buckets: Vec<Option<Box<Bucket>>>,
    /// Buckets that have changed since they were last taken for a checkpoint.
    changed: Vec<u32>,
    /// Entries in the tails of all buckets.
    tail_entries: usize,
    /// The next bucket to look at for entries to give up.
    hand: u32,
}

impl Keys {
    /// True when there never was a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    pub(crate) fn bucket(&self, bucket: u32) -> Option<&Bucket> {
        self.buckets.get(to_index(u64::from(bucket)))?.as_deref()
    }

    pub(crate) fn bucket_mut(&mut self, bucket: u32) -> Option<&mut Bucket> {
        self.buckets.get_mut(to_index(u64::from(bucket)))?.as_deref_mut()
    }

    /// The bucket, made if it is new. `None` when there is no such bucket.
    pub(crate) fn make(&mut self, bucket: u32) -> Option<&mut Bucket> {
        if self.buckets.is_empty() {
            self.buckets.resize_with(to_index(u64::from(BUCKETS)), || None);
        }
        let slot = self.buckets.get_mut(to_index(u64::from(bucket)))?;
        Some(slot.get_or_insert_default())
    }

    /// A record at this position has a key.
    pub(crate) fn note(
        &mut self,
        hash: KeyHash,
        position: LogOffset,
        covered: Sequence,
        index: &mut Index,
    ) {
        let number = bucket_of(hash);
        let Some(bucket) = self.make(number) else { return };
        if bucket.restored.is_some_and(|known| position <= known) {
            return;
        }
        bucket.push(KeyEntry::new(mark_of(hash), position));
        let changed = std::mem::replace(&mut bucket.changed, true);
        let put_aside = bucket.tail.len() >= BLOCK_ENTRIES;
        if put_aside {
            bucket.put_aside(number, covered, index);
        }
        self.tail_entries += 1;
        if put_aside {
            self.tail_entries = self.tail_entries.saturating_sub(BLOCK_ENTRIES);
        }
        if !changed {
            self.changed.push(number);
        }
    }

    /// Moves entries to blocks, when all tails together take more than `bytes_max`. One call visits a
    /// bounded number of buckets; a few entries may stay in each.
    pub(crate) fn spill(&mut self, bytes_max: usize, covered: Sequence, index: &mut Index) {
        if self.tail_entries * KEY_ENTRY_LEN <= bytes_max {
            return;
        }
        for _ in 0..SPILL_VISITS {
            self.hand = (self.hand + 1) % BUCKETS;
            let number = self.hand;
            let Some(bucket) = self.bucket_mut(number) else { continue };
            let entries = bucket.tail.len();
            if entries < SPILLED_ENTRIES_MIN {
                continue;
            }
            bucket.put_aside(number, covered, index);
            bucket.tail = Vec::new();
            let changed = std::mem::replace(&mut bucket.changed, true);
            self.tail_entries = self.tail_entries.saturating_sub(entries);
            if !changed {
                self.changed.push(number);
            }
        }
    }

    /// What lies before this byte of the index speaks of segments that are gone, and may be given back
    /// to the file system.
    pub(crate) fn forget_before(&mut self, live: u64) {
        for bucket in self.buckets.iter_mut().flatten() {
            let gone = bucket.blocks.partition_point(|block| block.at < live);
            bucket.blocks.drain(..gone);
        }
    }

    /// What recovery has put together is complete.
    pub(crate) fn settle(&mut self) {
        let tails = self.buckets.iter().flatten().map(|bucket| bucket.tail.len());
        self.tail_entries = tails.sum();
    }

    pub(crate) fn take_changed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.changed)
    }

    /// Notes that a checkpoint takes the bucket as it is now.
    pub(crate) fn note_saved(&mut self, bucket: u32) {
        if let Some(bucket) = self.bucket_mut(bucket) {
            bucket.changed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(n: i64) -> LogOffset {
        LogOffset::new(n).unwrap()
    }

    fn hash(bucket: u64, mark: u64) -> KeyHash {
        KeyHash::new(bucket << 52 | mark << 20)
    }

    #[test]
    fn entries_go_to_blocks_when_there_are_many_and_when_memory_is_short() {
        let (mut keys, mut index) = (Keys::default(), Index::default());
        for n in 0..800 {
            keys.note(hash(5, n % 3), position(n.cast_signed()), Sequence::new(1), &mut index);
            keys.note(hash(4095, 7), position(n.cast_signed()), Sequence::new(1), &mut index);
        }
        assert!(keys.bucket(4).is_none(), "nothing is made for keys that did not come");
        let bucket = keys.bucket(5).unwrap();
        assert_eq!(bucket.blocks().len(), 2);
        assert_eq!((bucket.tail().len(), bucket.tail_from()), (800 - 672, 672));
        assert_eq!(bucket.blocks()[1].first, position(336));
        let block = index.block(bucket.blocks()[1].at, &bucket.blocks()[1].head(5));
        let block = block.unwrap().unwrap();
        let entry = index_block::key_entries(&block).nth(2).unwrap();
        assert_eq!((entry.mark(), entry.position()), (338 % 3, position(338)));
        assert_eq!(keys.tail_entries, 2 * 128);
        for _ in 0..BUCKETS {
            keys.spill(1000, Sequence::new(1), &mut index);
        }
        assert!(keys.tail_entries * KEY_ENTRY_LEN <= 2000);
        assert_eq!(keys.take_changed(), [5, 4095]);
    }

    #[test]
    fn replay_passes_over_what_a_checkpoint_knew() {
        let (mut keys, mut index) = (Keys::default(), Index::default());
        let entries = [KeyEntry::new(1, position(10)), KeyEntry::new(2, position(20))];
        let bucket = keys.make(9).unwrap();
        *bucket = Bucket::restored(336);
        bucket.restore(Some(position(20)), (336, Vec::new()), (336, &entries)).unwrap();
        for at in [10, 20, 20, 30, 30] {
            keys.note(hash(9, 3), position(at), Sequence::new(4), &mut index);
        }
        let tail: Vec<_> = keys.bucket(9).unwrap().tail().iter().map(KeyEntry::position).collect();
        assert_eq!(tail, [10, 20, 30, 30].map(position));
    }

    #[test]
    fn blocks_of_segments_that_are_gone_are_forgotten() {
        let (mut keys, mut index) = (Keys::default(), Index::default());
        let mut live = 0;
        for n in 0..336 * 3 {
            if n == 400 {
                live = index.next();
            }
            keys.note(hash(1, 1), position(n), Sequence::new(1), &mut index);
        }
        keys.forget_before(live);
        let blocks = keys.bucket(1).unwrap().blocks();
        assert_eq!(blocks.iter().map(|block| block.first.get()).collect::<Vec<_>>(), [336, 672]);
    }
}
