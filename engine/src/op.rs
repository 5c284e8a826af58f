//! What a shard asks of its driver, and what the driver answers.
//!
//! A shard never calls the operating system. It puts operations out and takes completions in, so
//! that the real ring, a simulated disk and an embedder's own loop can all run the same code.

use std::io;

use std::sync::Arc;

use crate::mem::{ChunkTail, RecordSlice, Region};

/// Names an operation until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(crate) u64);

/// A file of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// The segment with this ordinal. Writes to it are durable when they complete.
    Segment(u64),
    /// The index: blocks that views have put aside. Writes to it are durable when they complete.
    Index,
    /// One of the two files, 0 and 1, that take the changes which checkpoints name. Writes to it are
    /// durable when they complete.
    Changes(u32),
}

/// Memory that a read fills.
pub struct ReadBuffer(pub(crate) ChunkTail);

impl ReadBuffer {
    /// Fills the buffer from the front, for drivers that have the bytes at hand.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let buffer = self.0.buffer();
        let len = bytes.len().min(buffer.len());
        if let (Some(dst), Some(src)) = (buffer.get_mut(..len), bytes.get(..len)) {
            dst.copy_from_slice(src);
        }
        len
    }
}

/// Memory that the system has promised but not found yet.
pub struct Unpopulated(pub(crate) Arc<Region>);

/// One operation. Every operation is answered by exactly one [`Completion`].
pub enum Op {
    /// Write all of `data` at byte `at` of the file, durable when complete.
    Write {
        /// The operation.
        id: OpId,
        /// Where to.
        file: FileId,
        /// Byte in the file; a multiple of the block length.
        at: u64,
        /// What; a multiple of the block length, aligned for direct I/O.
        data: RecordSlice,
    },
    /// Read `len` bytes at byte `at` into the buffer, or fewer at the end of the file.
    Read {
        /// The operation.
        id: OpId,
        /// Where from.
        file: FileId,
        /// Byte in the file; a multiple of the block length.
        at: u64,
        /// How many bytes; a multiple of the block length.
        len: usize,
        /// Where to. It comes back with the completion.
        buffer: ReadBuffer,
    },
    /// Let the system find the memory of this region now, so that nobody has to wait for it later.
    /// A driver need not do anything.
    Populate {
        /// The operation.
        id: OpId,
        /// The region.
        memory: Unpopulated,
    },
    /// Say how many bytes are free for the store: the completion's result is that number.
    FreeSpace {
        /// The operation.
        id: OpId,
    },
    /// Create the segment with this ordinal and length, reserve its space, and make file and
    /// directory entry durable. The bytes need not be zero yet.
    CreateSegment {
        /// The operation.
        id: OpId,
        /// The segment.
        ordinal: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// Make segment `from`, of which nobody reads any more, segment `to`, which does not exist;
    /// atomically and durably. Its bytes stay as they are: groups name their position.
    RecycleSegment {
        /// The operation.
        id: OpId,
        /// The ordinal that it had.
        from: u64,
        /// The ordinal that it gets.
        to: u64,
    },
    /// Remove a segment of which nobody reads any more.
    RemoveSegment {
        /// The operation.
        id: OpId,
        /// The segment.
        ordinal: u64,
    },
    /// Give the space of these bytes back to the file system where it can do that. They are not
    /// read again.
    Discard {
        /// The operation.
        id: OpId,
        /// Whose bytes.
        file: FileId,
        /// The first one; a multiple of 4,096.
        at: u64,
        /// How many; a multiple of 4,096.
        len: u64,
    },
    /// Replace one of the shard's two checkpoints, 0 or 1, by these bytes, atomically and durably.
    ReplaceCheckpoint {
        /// The operation.
        id: OpId,
        /// Which of the two.
        slot: u32,
        /// The whole file.
        bytes: Vec<u8>,
    },
}

impl Op {
    /// The operation's name.
    pub fn id(&self) -> OpId {
        match self {
            Self::Write { id, .. }
            | Self::Read { id, .. }
            | Self::Populate { id, .. }
            | Self::FreeSpace { id }
            | Self::CreateSegment { id, .. }
            | Self::RecycleSegment { id, .. }
            | Self::RemoveSegment { id, .. }
            | Self::Discard { id, .. }
            | Self::ReplaceCheckpoint { id, .. } => *id,
        }
    }
}

/// The outcome of an operation.
pub struct Completion {
    /// Which one.
    pub id: OpId,
    /// Bytes read or written (all of them, for a write), or the error. Drivers repeat what the
    /// kernel only asks to be tried again, and continue short writes.
    pub result: io::Result<usize>,
    /// The buffer of a read.
    pub buffer: Option<ReadBuffer>,
}
