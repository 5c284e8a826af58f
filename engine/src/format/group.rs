//! The group: what one write of the log holds.
//!
#![doc = include_str!("../../format/group.md")]

use super::bytes::{Cursor, Put, Reader};
use crate::record::KeyHash;
use crate::units::{EpochMillis, LogOffset, Sequence, index, narrow};

pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"RINGMQG1");
pub(crate) const HEADER_LEN: usize = 96;
pub(crate) const ENTRY_LEN: usize = 32;
/// Bytes that a key takes behind the table.
pub(crate) const KEY_LEN: usize = 12;
/// The tag of a record of the engine that an earlier group has already.
pub(crate) const COPY: i64 = 1;
const CHECKED_LEN: usize = HEADER_LEN - 4;

/// What a record is, and so what its table entry and payload mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes of the embedder, in a queue.
    Message = 1,
    /// A key and its value, or the key's removal.
    Fact = 2,
    /// A queue's number gets its key, and where the queue stands.
    QueueState = 3,
    /// Nothing but its group's committed frontier.
    Note = 4,
    /// A queue is gone.
    QueueDeletion = 5,
    /// Nothing lives in the segments below an ordinal.
    Trim = 6,
    /// Where queues go on behind the groups before.
    Ends = 7,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Message),
            2 => Some(Self::Fact),
            3 => Some(Self::QueueState),
            4 => Some(Self::Note),
            5 => Some(Self::QueueDeletion),
            6 => Some(Self::Trim),
            7 => Some(Self::Ends),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) store: u128,
    pub(crate) shard: u32,
    pub(crate) count: u32,
    pub(crate) position: LogOffset,
    pub(crate) epoch: u64,
    pub(crate) sequence: Sequence,
    pub(crate) committed: Sequence,
    pub(crate) store_time: EpochMillis,
    pub(crate) records_len: u32,
    /// Unit: bytes, without padding. It follows from the other counts and is not stored.
    pub(crate) len: u32,
    /// The first group of the life that wrote it. The life found the log to end in front of that one, so
    /// a group of an earlier life with this sequence or a higher one is no part of the log. Behind 2^32
    /// groups of one life it is a later group, of which the same is true.
    pub(crate) life_start: Sequence,
    pub(crate) previous: u32,
    pub(crate) table_crc: u32,
    /// Keys of its records.
    pub(crate) keys: u32,
}

impl Header {
    /// Writes the header to the front of `dst` and gives its checksum.
    pub(crate) fn write(&self, dst: &mut [u8]) -> u32 {
        let mut out = Cursor::new(dst);
        out.put_u64(MAGIC);
        out.put_u128(self.store);
        out.put_u32(self.shard);
        out.put_u32(self.count);
        out.put_i64(self.position.get());
        out.put_u64(self.epoch);
        out.put_u64(self.sequence.get());
        out.put_u64(self.committed.get());
        out.put_i64(self.store_time.get());
        out.put_u32(self.records_len);
        let of_life = self.sequence.get().saturating_sub(self.life_start.get());
        out.put_u32(u32::try_from(of_life).unwrap_or(u32::MAX));
        out.put_u32(self.previous);
        out.put_u32(self.table_crc);
        out.put_u32(self.keys);
        let crc = crate::crc::crc32c(dst.get(..CHECKED_LEN).expect("the fields were just written"));
        Cursor::new(dst.get_mut(CHECKED_LEN..).expect("the header has 96 bytes")).put_u32(crc);
        crc
    }

    /// Reads a header and its checksum; `None` unless magic, checksum and lengths fit together.
    pub(crate) fn read(src: &[u8]) -> Option<(Self, u32)> {
        let mut fields = Reader::new(src.get(..HEADER_LEN)?);
        if fields.u64()? != MAGIC {
            return None;
        }
        let mut header = Self {
            store: fields.u128()?,
            shard: fields.u32()?,
            count: fields.u32()?,
            position: LogOffset::new(fields.i64()?)?,
            epoch: fields.u64()?,
            sequence: Sequence::new(fields.u64()?),
            committed: Sequence::new(fields.u64()?),
            store_time: EpochMillis::new(fields.i64()?),
            records_len: fields.u32()?,
            len: 0,
            life_start: Sequence::new(u64::from(fields.u32()?)),
            previous: fields.u32()?,
            table_crc: fields.u32()?,
            keys: fields.u32()?,
        };
        let crc = fields.u32()?;
        let len = HEADER_LEN as u64
            + u64::from(header.records_len)
            + u64::from(header.count) * ENTRY_LEN as u64
            + u64::from(header.keys) * KEY_LEN as u64;
        header.len = u32::try_from(len).ok()?;
        let of_life = header.life_start.get();
        header.life_start = Sequence::new(header.sequence.get().checked_sub(of_life)?);
        let sound = crate::crc::crc32c(src.get(..CHECKED_LEN)?) == crc
            && Sequence::default() < header.life_start
            && header.committed < header.sequence;
        sound.then_some((header, crc))
    }

    /// The length that the group takes in the log.
    pub(crate) fn padded_len(&self, block_len: usize) -> usize {
        index(u64::from(self.len)).next_multiple_of(block_len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) len: u32,
    pub(crate) crc: u32,
    pub(crate) queue: u32,
    pub(crate) queue_offset: u64,
    pub(crate) tag: i64,
}

impl Entry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        let mut out = Cursor::new(&mut bytes);
        out.put_u8(self.kind as u8);
        out.put(&[0; 3]);
        out.put_u32(self.len);
        out.put_u32(self.crc);
        out.put_u32(self.queue);
        out.put_u64(self.queue_offset);
        out.put_i64(self.tag);
        bytes
    }

    /// Fills in the checksum of the last entry of a table.
    pub(crate) fn set_last_crc(table: &mut [u8], crc: u32) {
        const CRC_AT: usize = 8;
        let entry = table.len().checked_sub(ENTRY_LEN).and_then(|at| table.get_mut(at..));
        let field = entry.and_then(|entry| entry.get_mut(CRC_AT..CRC_AT + 4));
        field.expect("the table has an entry").copy_from_slice(&crc.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let kind = Kind::of(fields.u8()?)?;
        fields.bytes(3)?;
        Some(Self {
            kind,
            len: fields.u32()?,
            crc: fields.u32()?,
            queue: fields.u32()?,
            queue_offset: fields.u64()?,
            tag: fields.i64()?,
        })
    }
}

/// A whole group in memory whose header and table have been checked.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(crate) header: Header,
    pub(crate) header_crc: u32,
    bytes: &'a [u8],
}

/// A record of a group: its entry, where it starts in the log, and its bytes.
pub(crate) struct GroupRecord<'a> {
    pub(crate) entry: Entry,
    pub(crate) position: LogOffset,
    pub(crate) bytes: &'a [u8],
}

impl GroupRecord<'_> {
    pub(crate) fn is_sound(&self) -> bool {
        crate::crc::crc32c(self.bytes) == self.entry.crc
    }

    /// An earlier group has it already.
    pub(crate) fn is_copy(&self) -> bool {
        self.entry.kind != Kind::Message && self.entry.tag == COPY
    }
}

impl<'a> Group<'a> {
    /// The group at the front of `bytes`. `None` when the bytes hold no whole group, its table is
    /// damaged, or the entries do not add up to the records.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, header_crc) = Header::read(bytes)?;
        let bytes = bytes.get(..index(u64::from(header.len)))?;
        let group = Self { header, header_crc, bytes };
        let behind = group.behind_records()?;
        if crate::crc::crc32c(behind) != header.table_crc {
            return None;
        }
        let table = group.table()?;
        let mut total = 0u64;
        for entry in table.chunks_exact(ENTRY_LEN) {
            total += u64::from(Entry::decode(entry)?.len);
        }
        (total == u64::from(header.records_len)).then_some(group)
    }

    /// A group that this process has just written, which needs no check.
    pub(crate) fn trusted(bytes: &'a [u8], header: Header, header_crc: u32) -> Self {
        let len = index(u64::from(header.len));
        Self { header, header_crc, bytes: bytes.get(..len).unwrap_or(bytes) }
    }

    /// The table and the keys.
    fn behind_records(&self) -> Option<&'a [u8]> {
        self.bytes.get(HEADER_LEN + index(u64::from(self.header.records_len))..)
    }

    fn table(&self) -> Option<&'a [u8]> {
        self.behind_records()?.get(..index(u64::from(self.header.count)) * ENTRY_LEN)
    }

    /// The keys of its records: the record's place in the table, and the key's hash. In the order
    /// of the records.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (u32, KeyHash)> + use<'a> {
        let table_len = index(u64::from(self.header.count)) * ENTRY_LEN;
        let keys = self.behind_records().and_then(|behind| behind.get(table_len..));
        keys.unwrap_or_default().chunks_exact(KEY_LEN).filter_map(|key| {
            let mut fields = Reader::new(key);
            Some((fields.u32()?, KeyHash::new(fields.u64()?)))
        })
    }

    /// The queue of record `n`, for what can be done ahead of it.
    pub(crate) fn queue_of(&self, n: usize) -> Option<u32> {
        const AT: usize = 12;
        let entry = self.table()?.get(n * ENTRY_LEN..)?;
        Reader::new(entry.get(AT..)?).u32()
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = GroupRecord<'a>> + use<'a> {
        let bytes = self.bytes;
        let base = self.header.position;
        let mut at = HEADER_LEN;
        self.table().unwrap_or_default().chunks_exact(ENTRY_LEN).map_while(move |entry| {
            let entry = Entry::decode(entry)?;
            let start = at;
            at += index(u64::from(entry.len));
            Some(GroupRecord { entry, position: base.plus(start), bytes: bytes.get(start..at)? })
        })
    }
}

/// A key of the record at this place in the table, as it stands behind the table.
pub(crate) fn put_key(out: &mut Vec<u8>, record: u32, hash: KeyHash) {
    out.put_u32(record);
    out.put_u64(hash.get());
}

/// Writes table and keys behind `records_end` and the header to the front of `dst`, and zeroes the rest
/// of the last block. Gives the padded length, the header and its checksum.
pub(crate) fn seal(
    dst: &mut [u8],
    records_end: usize,
    (table, keys): (&[u8], &[u8]),
    block_len: usize,
    mut header: Header,
) -> (usize, Header, u32) {
    let len = records_end + table.len() + keys.len();
    let padded = len.next_multiple_of(block_len);
    header.records_len = narrow(records_end - HEADER_LEN);
    header.len = narrow(len);
    header.count = narrow(table.len() / ENTRY_LEN);
    header.keys = narrow(keys.len() / KEY_LEN);
    let behind = dst.get_mut(records_end..len).expect("room for the table is kept");
    let (table_dst, keys_dst) = behind.split_at_mut(table.len());
    table_dst.copy_from_slice(table);
    keys_dst.copy_from_slice(keys);
    header.table_crc = crate::crc::crc32c(behind);
    dst.get_mut(len..padded).expect("buffers end on a block").fill(0);
    let crc = header.write(dst);
    (padded, header, crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            store: 7,
            shard: 1,
            count: 0,
            position: LogOffset::new(4096).unwrap(),
            epoch: 3,
            sequence: Sequence::new(9),
            life_start: Sequence::new(4),
            committed: Sequence::new(8),
            store_time: EpochMillis::new(1_700_000_000_000),
            records_len: 0,
            len: 0,
            previous: 0xAABB_CCDD,
            table_crc: 0,
            keys: 0,
        }
    }

    #[test]
    fn a_header_tells_where_its_life_began_as_far_back_as_it_can() {
        for (sequence, told) in [(9, 4), (4, 4), (1 << 40, (1 << 40) - u64::from(u32::MAX))] {
            let mut bytes = [0; HEADER_LEN];
            let sequence = Sequence::new(sequence);
            Header { sequence, committed: Sequence::new(3), ..header() }.write(&mut bytes);
            let (read, _) = Header::read(&bytes).expect("it was just written");
            assert_eq!(read.life_start.get(), told);
            assert_eq!(index(u64::from(read.len)), HEADER_LEN);
        }
    }

    const KEYS: [(u32, u64); 3] = [(0, 7), (1, u64::MAX), (1, 7)];

    fn sealed() -> (Vec<u8>, usize) {
        let mut buffer = vec![0xFF; 1024];
        buffer[HEADER_LEN..HEADER_LEN + 5].copy_from_slice(b"hello");
        buffer[HEADER_LEN + 5..HEADER_LEN + 8].copy_from_slice(b"abc");
        let mut table = Vec::new();
        for (bytes, offset) in [(&b"hello"[..], 4), (b"abc", 5)] {
            let entry = Entry {
                kind: Kind::Message,
                len: narrow(bytes.len()),
                crc: crate::crc::crc32c(bytes),
                queue: 2,
                queue_offset: offset,
                tag: -1,
            };
            table.extend_from_slice(&entry.encode());
        }
        let mut keys = Vec::new();
        for (record, hash) in KEYS {
            put_key(&mut keys, record, KeyHash::new(hash));
        }
        let behind = (&*table, &*keys);
        let (padded, ..) = seal(&mut buffer, HEADER_LEN + 8, behind, 512, header());
        (buffer, padded)
    }

    #[test]
    fn a_sealed_group_reads_back() {
        let (buffer, padded) = sealed();
        let group = Group::parse(&buffer).unwrap();
        assert_eq!(padded, 512);
        assert!(
            buffer[HEADER_LEN + 8 + 2 * ENTRY_LEN + 3 * KEY_LEN..512].iter().all(|&byte| byte == 0)
        );
        let records: Vec<_> = group.records().collect();
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].bytes, b"abc");
        assert_eq!(records[1].entry.queue_offset, 5);
        assert_eq!(records[1].position.get(), 4096 + 96 + 5);
        assert!(records.iter().all(GroupRecord::is_sound));
        let keys: Vec<_> = group.keys().map(|(record, hash)| (record, hash.get())).collect();
        assert_eq!(keys, KEYS);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (mut buffer, _) = sealed();
        let used = HEADER_LEN + 8 + 2 * ENTRY_LEN + 3 * KEY_LEN;
        for bit in 0..used * 8 {
            buffer[bit / 8] ^= 1 << (bit % 8);
            let noticed = Group::parse(&buffer)
                .is_none_or(|group| group.records().any(|record| !record.is_sound()));
            assert!(noticed, "bit {bit}");
            buffer[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
