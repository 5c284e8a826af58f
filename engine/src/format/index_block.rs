//! The blocks of the index file: entries of one queue, ends of one segment, or entries of keys.
//!
#![doc = include_str!("../../format/index_block.md")]

use super::bytes::{Cursor, Put, Reader};
use crate::crc::crc32c_of;
use crate::units::{LogOffset, Sequence, index, narrow};

pub(crate) const HEADER_LEN: usize = 36;
const CHECKED_LEN: usize = 32;
pub(crate) const KEY_ENTRY_LEN: usize = 12;
const MAGIC: u32 = u32::from_be_bytes(*b"RMQB");

/// What a block holds, and so how long its entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Entries of a queue.
    Entries = 1,
    /// Where the queues that a segment has records of go on behind it.
    Ends = 2,
    /// Where records with the keys of one bucket lie.
    Keys = 3,
}

impl BlockKind {
    pub(crate) const fn entry_len(self) -> usize {
        match self {
            Self::Entries => 24,
            Self::Ends => 12,
            Self::Keys => KEY_ENTRY_LEN,
        }
    }

    pub(crate) const fn block_len(self, count: usize) -> usize {
        HEADER_LEN + count * self.entry_len()
    }
}

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) kind: BlockKind,
    pub(crate) owner: u32,
    pub(crate) first: u64,
    pub(crate) count: u32,
}

impl BlockHead {
    pub(crate) fn len(&self) -> usize {
        self.kind.block_len(index(u64::from(self.count)))
    }
}

/// Where a record of a queue lies. Length 0: the record was damaged and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) position: LogOffset,
    pub(crate) len: u32,
    /// Checksum of the record, so that it can be read without its group.
    pub(crate) crc: u32,
    pub(crate) tag: i64,
}

impl QueueEntry {
    pub(crate) fn put(&self, out: &mut impl Put) {
        out.put_i64(self.position.get());
        out.put_u32(self.len);
        out.put_u32(self.crc);
        out.put_i64(self.tag);
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Option<Self> {
        let position = LogOffset::new(fields.i64()?)?;
        Some(Self { position, len: fields.u32()?, crc: fields.u32()?, tag: fields.i64()? })
    }

    /// As [`put`](Self::put), with numbers of variable length.
    pub(crate) fn put_short(&self, out: &mut impl Put) {
        out.put_var(self.position.get().cast_unsigned());
        out.put_var(u64::from(self.len));
        out.put_u32(self.crc);
        out.put_signed_var(self.tag);
    }

    pub(crate) fn take_short(fields: &mut Reader<'_>) -> Option<Self> {
        let position = LogOffset::new(fields.var()?.cast_signed())?;
        let (len, crc) = (fields.var_u32()?, fields.u32()?);
        Some(Self { position, len, crc, tag: fields.signed_var()? })
    }
}

/// Where a record with a key lies, and a part of the key's hash. As short as it stands in the file,
/// since there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyEntry([u8; KEY_ENTRY_LEN]);

impl KeyEntry {
    pub(crate) fn new(mark: u32, position: LogOffset) -> Self {
        let mut bytes = [0; KEY_ENTRY_LEN];
        let mut out = Cursor::new(&mut bytes);
        out.put_u32(mark);
        out.put_i64(position.get());
        Self(bytes)
    }

    pub(crate) fn mark(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    pub(crate) fn position(&self) -> LogOffset {
        let [_, _, _, _, position @ ..] = self.0;
        LogOffset::new(i64::from_be_bytes(position)).unwrap_or(LogOffset::START)
    }

    pub(crate) fn put(&self, out: &mut impl Put) {
        out.put(&self.0);
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Option<Self> {
        let bytes = fields.bytes(KEY_ENTRY_LEN)?;
        Some(Self(bytes.try_into().ok()?))
    }
}

/// Fills `dst`, which is as long as the block, with entries that `put` writes.
pub(crate) fn write(
    dst: &mut [u8],
    head: &BlockHead,
    covered: Sequence,
    put: impl FnOnce(&mut Cursor<'_>),
) {
    assert_eq!(dst.len(), head.len(), "a block has exactly the room of its entries");
    let mut out = Cursor::new(dst);
    out.put_u32(MAGIC);
    out.put_u32(head.kind as u32);
    out.put_u32(head.owner);
    out.put_u32(head.count);
    out.put_u64(head.first);
    out.put_u64(covered.get());
    out.put_u32(0);
    put(&mut out);
    let crc = checksum(dst).expect("the block has a header");
    Cursor::new(dst.get_mut(CHECKED_LEN..).expect("the block has a header")).put_u32(crc);
}

fn checksum(block: &[u8]) -> Option<u32> {
    Some(crc32c_of(&[block.get(..CHECKED_LEN)?, block.get(HEADER_LEN..)?]))
}

/// True when the bytes are exactly this block, and sound.
pub(crate) fn is_sound(block: &[u8], head: &BlockHead) -> bool {
    let stored = checksum_at(block, head);
    stored.is_some() && stored == checksum(block)
}

/// True when the bytes claim to be this block.
pub(crate) fn is_named(block: &[u8], head: &BlockHead) -> bool {
    checksum_at(block, head).is_some()
}

/// The checksum that stands in a block. `None`: it is another block, or none.
fn checksum_at(block: &[u8], head: &BlockHead) -> Option<u32> {
    let mut fields = Reader::new(block);
    let ours = fields.u32()? == MAGIC
        && fields.u32()? == head.kind as u32
        && fields.u32()? == head.owner
        && fields.u32()? == head.count
        && fields.u64()? == head.first
        && block.len() == head.len();
    fields.u64()?;
    fields.u32().filter(|_| ours)
}

/// Entry `n` of a block of queue entries that [`is_sound`].
pub(crate) fn entry(block: &[u8], n: usize) -> Option<QueueEntry> {
    let at = HEADER_LEN + n * BlockKind::Entries.entry_len();
    QueueEntry::take(&mut Reader::new(block.get(at..)?))
}

/// The entries of a block of ends that [`is_sound`]: queue number and first offset behind.
pub(crate) fn ends(block: &[u8]) -> impl Iterator<Item = (u32, u64)> + '_ {
    let entries = block.get(HEADER_LEN..).unwrap_or_default();
    entries.chunks_exact(BlockKind::Ends.entry_len()).filter_map(|entry| {
        let mut fields = Reader::new(entry);
        Some((fields.u32()?, fields.u64()?))
    })
}

/// The entries of a block of keys that [`is_sound`], oldest first.
pub(crate) fn key_entries(block: &[u8]) -> impl Iterator<Item = KeyEntry> + '_ {
    let entries = block.get(HEADER_LEN..).unwrap_or_default();
    entries.chunks_exact(KEY_ENTRY_LEN).filter_map(|entry| KeyEntry::take(&mut Reader::new(entry)))
}

/// A count of entries as it stands in a block.
pub(crate) fn count(entries: usize) -> u32 {
    narrow(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_back_and_names_its_owner() {
        let entries: Vec<_> = (0..170)
            .map(|n| {
                let position = LogOffset::new(n * 100).unwrap();
                QueueEntry { position, len: 100, crc: 7, tag: -n }
            })
            .collect();
        let head = BlockHead { kind: BlockKind::Entries, owner: 3, first: 400, count: 170 };
        let mut block = vec![1; head.len()];
        write(&mut block, &head, Sequence::new(17), |out| {
            entries.iter().for_each(|entry| entry.put(out));
        });
        assert!(is_sound(&block, &head));
        assert!(!is_sound(&block, &BlockHead { owner: 4, ..head }));
        assert!(!is_sound(&block, &BlockHead { first: 401, ..head }));
        assert!(!is_sound(&block, &BlockHead { count: 169, ..head }));
        assert_eq!(entry(&block, 169), Some(entries[169]));
        assert_eq!(entry(&block, 170), None);
        for byte in 0..block.len() {
            block[byte] ^= 1;
            assert!(!is_sound(&block, &head), "byte {byte}");
            block[byte] ^= 1;
        }
    }

    #[test]
    fn ends_read_back() {
        let head = BlockHead { kind: BlockKind::Ends, owner: 0, first: 7, count: 2 };
        let mut block = vec![0; head.len()];
        write(&mut block, &head, Sequence::new(1), |out| {
            for (queue, end) in [(5, 50), (6, 1 << 40)] {
                out.put_u32(queue);
                out.put_u64(end);
            }
        });
        assert!(is_sound(&block, &head));
        assert_eq!(ends(&block).collect::<Vec<_>>(), [(5, 50), (6, 1 << 40)]);
    }
}
