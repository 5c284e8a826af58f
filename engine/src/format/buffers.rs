//! Group buffers in shared memory, as a killed process leaves them.
//!
#![doc = include_str!("../../format/buffers.md")]

use std::path::{Path, PathBuf};

use super::bytes::{Cursor, Put, Reader};
use crate::layout::Geometry;
use crate::units::{LogOffset, Sequence, index, narrow, wide};

const MAGIC: u64 = u64::from_be_bytes(*b"RINGMQB1");
const NOTE_MAGIC: u64 = u64::from_be_bytes(*b"RINGMQBN");
const HEAD_LEN: usize = 64;
pub(crate) const MARK_LEN: usize = 64;
const PAGE: usize = 4096;
/// More than any shard has; what a head may say before memory is taken for its marks.
const COUNT_MAX: u32 = 1 << 20;
const BUFFER_LEN_MAX: u32 = 1 << 30;

/// The head of a file of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) store: u128,
    pub(crate) boot: u128,
    pub(crate) shard: u32,
    pub(crate) count: u32,
    /// Unit: bytes; whole pages.
    pub(crate) buffer_len: u32,
    pub(crate) epoch: u64,
}

impl Head {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_LEN);
        out.put_u64(MAGIC);
        out.put_u128(self.store);
        out.put_u128(self.boot);
        out.put_u32(self.shard);
        out.put_u32(self.count);
        out.put_u32(self.buffer_len);
        out.put_u64(self.epoch);
        out.put_u32(crate::crc::crc32c(&out));
        out
    }

    /// `None` unless magic and checksum are right, and the numbers are possible.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes.get(..HEAD_LEN)?);
        if fields.u64()? != MAGIC {
            return None;
        }
        let head = Self {
            store: fields.u128()?,
            boot: fields.u128()?,
            shard: fields.u32()?,
            count: fields.u32()?,
            buffer_len: fields.u32()?,
            epoch: fields.u64()?,
        };
        let sound = crate::crc::crc32c(bytes.get(..HEAD_LEN - 4)?) == fields.u32()?
            && head.count <= COUNT_MAX
            && (1..=BUFFER_LEN_MAX).contains(&head.buffer_len);
        sound.then_some(head)
    }

    /// Whether the buffers hold the newest groups of this shard: they are of this store, of this run of
    /// the system, and of the newest life that is known.
    pub(crate) fn counts(&self, geometry: &Geometry, boot: u128, last_epoch: Option<u64>) -> bool {
        self.store == geometry.store()
            && self.shard == geometry.shard()
            && self.boot == boot
            && last_epoch.is_none_or(|last| self.epoch >= last)
    }

    /// Where the mark of a buffer lies in the file.
    pub(crate) fn mark_at(&self, number: u32) -> usize {
        PAGE + index(u64::from(number)) * MARK_LEN
    }

    /// Where a buffer lies in the file.
    pub(crate) fn buffer_at(&self, number: u32) -> usize {
        let first = self.mark_at(self.count).next_multiple_of(PAGE);
        first + index(u64::from(number)) * index(u64::from(self.buffer_len))
    }

    /// Length of the file.
    pub(crate) fn file_len(&self) -> usize {
        self.buffer_at(self.count)
    }
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Bytes of whole groups.
    pub(crate) len: u32,
    pub(crate) position: LogOffset,
    pub(crate) sequence: Sequence,
}

impl Mark {
    /// The word that makes the groups count: length and checksum.
    pub(crate) fn word(&self) -> u64 {
        u64::from(self.len) << 32 | u64::from(self.checksum())
    }

    fn checksum(&self) -> u32 {
        let mut bytes = [0; 20];
        let mut out = Cursor::new(&mut bytes);
        out.put_u32(self.len);
        out.put_i64(self.position.get());
        out.put_u64(self.sequence.get());
        crate::crc::crc32c(&bytes)
    }

    /// `None` for an empty buffer and for a damaged mark.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let (len, checksum) = (fields.u32()?, fields.u32()?);
        let position = LogOffset::new(fields.i64()?)?;
        let mark = Self { len, position, sequence: Sequence::new(fields.u64()?) };
        (len > 0 && mark.checksum() == checksum).then_some(mark)
    }
}

/// What a shard notes on its device while it acknowledges from buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) boot: u128,
    pub(crate) epoch: u64,
    /// Bytes of all buffers.
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
}

impl Note {
    pub(crate) fn encode(&self, store: u128) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt;
        let mut out = Vec::new();
        out.put_u64(NOTE_MAGIC);
        out.put_u128(store);
        out.put_u128(self.boot);
        out.put_u64(self.epoch);
        out.put_u64(self.bytes);
        out.put_sized(self.path.as_os_str().as_bytes());
        out.put_u32(crate::crc::crc32c(&out));
        out
    }

    /// `None` when it is damaged or of another store.
    pub(crate) fn decode(bytes: &[u8], store: u128) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let mut fields = Reader::new(bytes);
        let ours = fields.u64()? == NOTE_MAGIC && fields.u128()? == store;
        let (boot, epoch, bytes_max) = (fields.u128()?, fields.u64()?, fields.u64()?);
        let path = Path::new(std::ffi::OsStr::from_bytes(fields.sized()?)).to_owned();
        let checked = bytes.get(..bytes.len().checked_sub(4)?)?;
        let sound = fields.u32()? == crate::crc::crc32c(checked) && fields.rest().is_empty();
        (ours && sound).then_some(Self { boot, epoch, bytes: bytes_max, path })
    }
}

/// The head for a pool of `count` buffers.
pub(crate) fn head(geometry: &Geometry, boot: u128, epoch: u64, pool: (usize, usize)) -> Head {
    let (count, buffer_len) = pool;
    Head {
        store: geometry.store(),
        boot,
        shard: geometry.shard(),
        count: narrow(count),
        buffer_len: narrow(buffer_len),
        epoch,
    }
}

/// Bytes that the buffers of a file can hold.
pub(crate) fn bytes_max(head: &Head) -> u64 {
    u64::from(head.count) * wide(index(u64::from(head.buffer_len)))
}
