//! What an embedder appends. The engine knows nothing of what is in a record.

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
