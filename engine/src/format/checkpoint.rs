//! The checkpoint: how far the changes count, so that opening reads only what follows.
//!
#![doc = include_str!("../../format/checkpoint.md")]

use super::bytes::{Put, Reader};
use crate::layout::{Geometry, Place};
use crate::units::{EpochMillis, Sequence};
use crate::view::Covered;

const MAGIC: u64 = u64::from_be_bytes(*b"RINGMQCP");
const VERSION: u32 = 3;

/// What a checkpoint file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Rises by one per checkpoint.
    pub(crate) number: u64,
    /// Replay goes on behind this group.
    pub(crate) from: Covered,
    /// Nothing in the checkpoint is newer than this group.
    pub(crate) through: Covered,
    pub(crate) first: u64,
    pub(crate) trimmed: u64,
    pub(crate) changes: ChangesEnd,
    pub(crate) index_next: u64,
    pub(crate) index_discarded: u64,
}

/// How much of which changes file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangesEnd {
    /// 0 or 1.
    pub(crate) file: u32,
    pub(crate) generation: u64,
    /// Bytes from the start of the file.
    pub(crate) len: u64,
}

impl Checkpoint {
    pub(crate) fn encode(&self, geometry: &Geometry) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.put_u64(MAGIC);
        out.put_u32(VERSION);
        out.put_u128(geometry.store());
        out.put_u32(geometry.shard());
        out.put_u64(self.number);
        put_covered(&mut out, &self.from);
        put_covered(&mut out, &self.through);
        out.put_u64(self.first);
        out.put_u64(self.trimmed);
        out.put_u32(self.changes.file);
        out.put_u64(self.changes.generation);
        out.put_u64(self.changes.len);
        out.put_u64(self.index_next);
        out.put_u64(self.index_discarded);
        out.put_u32(crate::crc::crc32c(&out));
        out
    }

    /// A sound checkpoint of this shard; `None` for any other bytes.
    pub(crate) fn decode(bytes: &[u8], geometry: &Geometry) -> Option<Self> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if crate::crc::crc32c(body) != Reader::new(crc).u32()? {
            return None;
        }
        let mut fields = Reader::new(body);
        let ours = fields.u64()? == MAGIC
            && fields.u32()? == VERSION
            && fields.u128()? == geometry.store()
            && fields.u32()? == geometry.shard();
        let checkpoint = Self {
            number: fields.u64()?,
            from: take_covered(&mut fields)?,
            through: take_covered(&mut fields)?,
            first: fields.u64()?,
            trimmed: fields.u64()?,
            changes: ChangesEnd {
                file: fields.u32()?,
                generation: fields.u64()?,
                len: fields.u64()?,
            },
            index_next: fields.u64()?,
            index_discarded: fields.u64()?,
        };
        let whole = fields.rest().is_empty() && checkpoint.changes.file <= 1;
        (ours && whole).then_some(checkpoint)
    }
}

fn put_covered(out: &mut Vec<u8>, covered: &Covered) {
    out.put_u64(covered.sequence.get());
    out.put_u32(covered.header_crc);
    out.put_u64(covered.place.ordinal);
    out.put_u64(covered.place.byte);
    out.put_u64(covered.next.byte);
    out.put_i64(covered.store_time.get());
    out.put_u64(covered.epoch);
}

fn take_covered(fields: &mut Reader<'_>) -> Option<Covered> {
    let sequence = Sequence::new(fields.u64()?);
    let header_crc = fields.u32()?;
    let place = Place { ordinal: fields.u64()?, byte: fields.u64()? };
    let next = Place { byte: fields.u64()?, ..place };
    let store_time = EpochMillis::new(fields.i64()?);
    Some(Covered { sequence, header_crc, place, next, store_time, epoch: fields.u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::manifest::Manifest;

    #[test]
    fn a_checkpoint_reads_back_and_damage_is_noticed() {
        let manifest = Manifest {
            store: 9,
            shards: 2,
            segment_len: 1 << 20,
            block_len: 512,
            created_ms: 0,
            acknowledge: crate::shard::Acknowledge::Durable,
            budget_bytes: 1 << 30,
        };
        let geometry = Geometry::new(&manifest, 1);
        let covered = Covered { sequence: Sequence::new(5), ..Covered::nothing(3) };
        let checkpoint = Checkpoint {
            number: 77,
            from: covered,
            through: Covered { sequence: Sequence::new(8), header_crc: 1, ..covered },
            first: 2,
            trimmed: 3,
            changes: ChangesEnd { file: 1, generation: 4, len: 8192 },
            index_next: 1 << 20,
            index_discarded: 4096,
        };
        let mut bytes = checkpoint.encode(&geometry);
        assert_eq!(Checkpoint::decode(&bytes, &geometry), Some(checkpoint));
        assert_eq!(Checkpoint::decode(&bytes, &Geometry::new(&manifest, 0)), None);
        for byte in 0..bytes.len() {
            bytes[byte] ^= 1;
            assert_eq!(Checkpoint::decode(&bytes, &geometry), None, "byte {byte}");
            bytes[byte] ^= 1;
        }
    }
}
