//! The manifest: what a store is, written when it is created and when its acknowledgement is changed.
//!
#![doc = include_str!("../../format/manifest.md")]

use super::bytes::{Put, Reader};
use crate::shard::Acknowledge;

/// The feature bit of a store that acknowledges from shared memory: who does not know it would open the
/// store without what a killed process has left there.
const BUFFERED: u64 = 1;

pub(crate) const FORMAT_VERSION: u32 = 4;
/// FNV-1a over the topic's bytes, 32 bits. The name is stored, so that a change is noticed.
pub(crate) const HASH_NAME: [u8; 16] = *b"fnv1a32\0\0\0\0\0\0\0\0\0";
const MAGIC: u64 = u64::from_be_bytes(*b"RINGMQST");
const CHECKED_LEN: usize = 84;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) store: u128,
    pub(crate) shards: u32,
    pub(crate) segment_len: u64,
    pub(crate) block_len: u32,
    pub(crate) created_ms: i64,
    pub(crate) acknowledge: Acknowledge,
    /// What the store may take of the disk when nobody says otherwise.
    pub(crate) budget_bytes: u64,
}

/// Why a manifest cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestError {
    /// Not a manifest, or damaged.
    Damaged,
    /// Written by a newer version with this format number or unknown features.
    Newer(u32),
    /// Written by a version before the first release.
    Older(u32),
    /// Queues are placed by a hash that this version does not know.
    UnknownHash,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CHECKED_LEN + 4);
        out.put_u64(MAGIC);
        out.put_u32(FORMAT_VERSION);
        out.put_u64(match self.acknowledge {
            Acknowledge::Durable => 0,
            Acknowledge::Buffered => BUFFERED,
        });
        out.put_u128(self.store);
        out.put_u32(self.shards);
        out.put_u64(self.segment_len);
        out.put_u32(self.block_len);
        out.put(&HASH_NAME);
        out.put_i64(self.created_ms);
        out.put_u64(self.budget_bytes);
        out.put_u32(crate::crc::crc32c(&out));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let mut fields = Reader::new(bytes);
        let head = (|| {
            let magic = fields.u64()? == MAGIC;
            Some((magic, fields.u32()?, fields.u64()?))
        })();
        let (version, features) = match head {
            Some((true, version, features)) => (version, features),
            _ => return Err(ManifestError::Damaged),
        };
        // The version comes before the checksum: a newer format may end elsewhere.
        if version > FORMAT_VERSION || features & !BUFFERED != 0 {
            return Err(ManifestError::Newer(version));
        }
        if version < FORMAT_VERSION {
            return Err(ManifestError::Older(version));
        }
        let body = (|| {
            let manifest = (fields.u128()?, fields.u32()?, fields.u64()?, fields.u32()?);
            let hash = fields.bytes(16)?;
            let ends = (fields.i64()?, fields.u64()?);
            let sound = crate::crc::crc32c(bytes.get(..CHECKED_LEN)?) == fields.u32()?;
            sound.then_some((manifest, hash, ends))
        })();
        let ((store, shards, segment_len, block_len), hash, (created_ms, budget_bytes)) =
            body.ok_or(ManifestError::Damaged)?;
        if hash != HASH_NAME {
            return Err(ManifestError::UnknownHash);
        }
        if shards == 0 || block_len == 0 || segment_len == 0 {
            return Err(ManifestError::Damaged);
        }
        let acknowledge =
            if features & BUFFERED == 0 { Acknowledge::Durable } else { Acknowledge::Buffered };
        Ok(Self { store, shards, segment_len, block_len, created_ms, acknowledge, budget_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            store: 1 << 100,
            shards: 4,
            segment_len: 1 << 28,
            block_len: 512,
            created_ms: 5,
            acknowledge: Acknowledge::Durable,
            budget_bytes: 1 << 40,
        }
    }

    #[test]
    fn a_manifest_reads_back() {
        let buffered = Manifest { acknowledge: Acknowledge::Buffered, ..manifest() };
        for manifest in [manifest(), buffered] {
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    }

    #[test]
    fn a_newer_format_is_named_and_damage_is_noticed() {
        let mut bytes = manifest().encode();
        bytes[11] = 9;
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Newer(9)));
        let mut other = manifest().encode();
        other[19] = 2;
        assert_eq!(Manifest::decode(&other), Err(ManifestError::Newer(FORMAT_VERSION)));
        bytes[11] = 1;
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Older(1)));
        for at in 20..88 {
            let mut bytes = manifest().encode();
            bytes[at] ^= 0x40;
            assert!(Manifest::decode(&bytes).is_err(), "byte {at}");
        }
        assert_eq!(Manifest::decode(b"short"), Err(ManifestError::Damaged));
    }
}
