//! What an embedder appends. The engine knows nothing of what is in a record.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::units::{EpochMillis, LogOffset, QueueOffset};

/// What the engine settles at the moment of an append, for formats that carry it inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Where the record starts in the log.
    pub log_offset: LogOffset,
    /// The record's place in its queue.
    pub queue_offset: QueueOffset,
    /// When the record was stored; never below the last one of its shard.
    pub store_time: EpochMillis,
}

/// The hash of a key by which a record can be found; see [`KeyScope::hash`].
///
/// The log keeps it with the record, so the embedder must give the same number for the same key as
/// long as the store exists. Different keys may have the same hash: whoever searches says which records
/// have the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// A hash that the embedder has made itself. Its bits must be spread evenly.
    pub const fn new(hash: u64) -> Self {
        Self(hash)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a key counts within, such as a topic: the same key in another scope is another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyScope(u64);

impl KeyScope {
    /// The scope with this name.
    pub fn new(name: &[u8]) -> Self {
        Self(xxh3_64(name))
    }

    /// The hash of a key: XXH3 (64 bits), with that of the scope's name as its seed.
    pub fn hash(self, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(key, self.0))
    }
}

/// One record to append.
pub trait Record {
    /// Bytes of the stored form. Must not change between calls.
    fn len(&self) -> usize;

    /// True when the stored form is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number by which readers and waiters filter, such as the hash of a tag. 0 when unused.
    fn tag(&self) -> i64;

    /// Gives `each` the hash of every key by which the record is to be found; none unless the
    /// embedder says otherwise.
    fn keys(&self, _each: &mut dyn FnMut(KeyHash)) {}

    /// Writes the stored form; `dst` has exactly [`len`](Record::len) bytes.
    fn write(&self, stamp: &Stamp, dst: &mut [u8]);
}

/// Plain bytes are stored as they are.
impl Record for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn tag(&self) -> i64 {
        0
    }

    fn write(&self, _stamp: &Stamp, dst: &mut [u8]) {
        dst.copy_from_slice(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_key_is_what_stores_have_been_written_with() {
        let (one, other) = (KeyScope::new(b"orders"), KeyScope::new(b"bills"));
        assert_eq!(KeyScope::new(b"").0, 0x2D06_8005_38D3_94C2, "XXH3 of nothing, by its authors");
        assert_ne!(one.hash(b"7"), other.hash(b"7"));
        assert_ne!(one.hash(b"7"), one.hash(b"8"));
        assert_eq!(one.hash(b"7"), KeyScope::new(b"orders").hash(b"7"));
    }
}
