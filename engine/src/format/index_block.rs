//! The block of the queue index file: 200 entries of one queue.
//!
#![doc = include_str!("../../format/index_block.md")]

use super::bytes::{Cursor, Put, Reader};
use crate::crc::crc32c_of;
use crate::units::{LogOffset, narrow};

pub(crate) const BLOCK_LEN: usize = 4096;
pub(crate) const BLOCK_ENTRIES: usize = 200;
const MAGIC: u32 = u32::from_be_bytes(*b"RMQI");
const CRC_AT: usize = 28;
const ENTRIES_AT: usize = 32;
const ENTRY_LEN: usize = 20;

/// Where a record of a queue lies. Length 0: the record was damaged and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) position: LogOffset,
    pub(crate) len: u32,
    pub(crate) tag: i64,
}

impl QueueEntry {
    pub(crate) fn put(&self, out: &mut impl Put) {
        out.put_i64(self.position.get());
        out.put_u32(self.len);
        out.put_i64(self.tag);
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Option<Self> {
        let position = LogOffset::new(fields.i64()?)?;
        Some(Self { position, len: fields.u32()?, tag: fields.i64()? })
    }
}

/// Fills `dst` (one block) with entries of a queue.
pub(crate) fn write(dst: &mut [u8], queue: u32, first: u64, covered: u64, entries: &[QueueEntry]) {
    assert!(entries.len() <= BLOCK_ENTRIES, "a block holds at most {BLOCK_ENTRIES} entries");
    dst.fill(0);
    let mut out = Cursor::new(dst);
    out.put_u32(MAGIC);
    out.put_u32(queue);
    out.put_u64(first);
    out.put_u64(covered);
    out.put_u32(narrow(entries.len()));
    out.put_u32(0);
    for entry in entries {
        entry.put(&mut out);
    }
    let crc = crate::crc::crc32c(dst);
    Cursor::new(dst.get_mut(CRC_AT..).expect("a block has 4,096 bytes")).put_u32(crc);
}

/// True when the block is sound and belongs to that queue and offset.
pub(crate) fn is_sound(block: &[u8], queue: u32, first: u64) -> bool {
    (|| {
        let mut fields = Reader::new(block.get(..ENTRIES_AT)?);
        let ours = fields.u32()? == MAGIC && fields.u32()? == queue && fields.u64()? == first;
        fields.u64()?;
        let counted = usize::try_from(fields.u32()?).ok()? <= BLOCK_ENTRIES;
        let stored = fields.u32()?;
        let crc = crc32c_of(&[block.get(..CRC_AT)?, &[0; 4], block.get(ENTRIES_AT..BLOCK_LEN)?]);
        Some(ours && counted && crc == stored)
    })()
    .unwrap_or(false)
}

/// Entry `n` of a block that [`is_sound`].
pub(crate) fn entry(block: &[u8], n: usize) -> Option<QueueEntry> {
    let at = ENTRIES_AT + n * ENTRY_LEN;
    QueueEntry::take(&mut Reader::new(block.get(at..at + ENTRY_LEN)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_back_and_names_its_queue() {
        let entries: Vec<_> = (0..200)
            .map(|n| QueueEntry { position: LogOffset::new(n * 100).unwrap(), len: 100, tag: -n })
            .collect();
        let mut block = vec![1; BLOCK_LEN];
        write(&mut block, 3, 400, 17, &entries);
        assert!(is_sound(&block, 3, 400));
        assert!(!is_sound(&block, 4, 400));
        assert!(!is_sound(&block, 3, 401));
        assert_eq!(entry(&block, 199), Some(entries[199]));
        block[ENTRIES_AT + 7] ^= 1;
        assert!(!is_sound(&block, 3, 400));
    }
}
