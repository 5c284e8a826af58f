//! The records that the engine writes for itself.
//!
#![doc = include_str!("../../format/payload.md")]

use super::bytes::{Cursor, Put, Reader};
use crate::units::LogOffset;

/// Keys of facts and queues. Longer ones are refused before anything is allocated.
pub(crate) const KEY_LEN_MAX: usize = 4096;
const STATE_FIELDS_LEN: usize = 24;
pub(crate) const DELETION_LEN: usize = 8;
pub(crate) const TRIM_LEN: usize = 8;
/// Bytes of one queue's end.
pub(crate) const END_LEN: usize = 12;

pub(crate) fn fact(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + key.len() + value.map_or(0, <[u8]>::len));
    out.put_u8(u8::from(value.is_none()));
    out.put_sized(key);
    out.put(value.unwrap_or_default());
    out
}

/// Key and value (`None` = removed) of a fact.
pub(crate) fn parse_fact(bytes: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut fields = Reader::new(bytes);
    let removed = fields.u8()? & 1 == 1;
    let key = fields.sized()?;
    Some((key, (!removed).then_some(fields.rest())))
}

/// What a queue's name is, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueState<'a> {
    /// Log position of the queue's first state.
    pub(crate) incarnation: LogOffset,
    pub(crate) next: u64,
    pub(crate) min: u64,
    pub(crate) key: &'a [u8],
}

impl<'a> QueueState<'a> {
    pub(crate) fn len(&self) -> usize {
        STATE_FIELDS_LEN + self.key.len()
    }

    /// Fills `dst`, which has exactly [`len`](Self::len) bytes.
    pub(crate) fn write(&self, dst: &mut [u8]) {
        let mut out = Cursor::new(dst);
        out.put_i64(self.incarnation.get());
        out.put_u64(self.next);
        out.put_u64(self.min);
        out.put(self.key);
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        Some(Self {
            incarnation: LogOffset::new(fields.i64()?)?,
            next: fields.u64()?,
            min: fields.u64()?,
            key: fields.rest(),
        })
    }
}

pub(crate) fn deletion(incarnation: LogOffset) -> [u8; DELETION_LEN] {
    incarnation.get().to_be_bytes()
}

/// The incarnation that a deletion ends.
pub(crate) fn parse_deletion(bytes: &[u8]) -> Option<LogOffset> {
    LogOffset::new(Reader::new(bytes).i64()?)
}

pub(crate) fn trim(ordinal: u64) -> [u8; TRIM_LEN] {
    ordinal.to_be_bytes()
}

/// Fills `dst` with queue numbers and the offsets at which the queues go on.
pub(crate) fn write_ends(ends: impl Iterator<Item = (u32, u64)>, dst: &mut [u8]) {
    let mut out = Cursor::new(dst);
    for (queue, next) in ends {
        out.put_u32(queue);
        out.put_u64(next);
    }
}

/// Queue numbers and the offsets at which the queues go on.
pub(crate) fn ends(bytes: &[u8]) -> impl Iterator<Item = (u32, u64)> + '_ {
    bytes.chunks_exact(END_LEN).filter_map(|end| {
        let mut fields = Reader::new(end);
        Some((fields.u32()?, fields.u64()?))
    })
}

/// The ordinal below which nothing lives.
pub(crate) fn parse_trim(bytes: &[u8]) -> Option<u64> {
    Reader::new(bytes).u64()
}
