//! What goes through the ring of a real shard, in the order in which it does.
//!
//! The recorder sits between the shard and its ring: it sees every operation when the shard hands it
//! out and every completion when the shard is told. What has been handed out but not been told is in
//! flight: it may be on the device or not, as a whole or in parts.

use crate::op::{FileId, Op, OpId};

/// A change of the files, as it was asked for.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write { file: FileId, at: u64, data: Vec<u8> },
    Create { ordinal: u64, len: u64 },
    Recycle { from: u64, to: u64 },
    Remove { ordinal: u64 },
    Discard { file: FileId, at: u64, len: u64 },
    Replace { slot: u32, bytes: Vec<u8> },
}

/// One thing that went through.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    Started(OpId, Change),
    Done(OpId),
}

/// Keeps everything that went through a ring.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) events: Vec<Recorded>,
}

impl Recorder {
    pub(crate) fn started(&mut self, op: &Op) {
        let change = match op {
            Op::Write { file, at, data, .. } => {
                Change::Write { file: *file, at: *at, data: data.to_vec() }
            }
            Op::CreateSegment { ordinal, len, .. } => {
                Change::Create { ordinal: *ordinal, len: *len }
            }
            Op::RecycleSegment { from, to, .. } => Change::Recycle { from: *from, to: *to },
            Op::RemoveSegment { ordinal, .. } => Change::Remove { ordinal: *ordinal },
            Op::Discard { file, at, len, .. } => {
                Change::Discard { file: *file, at: *at, len: *len }
            }
            Op::ReplaceCheckpoint { slot, bytes, .. } => {
                Change::Replace { slot: *slot, bytes: bytes.clone() }
            }
            Op::Read { .. } | Op::Populate { .. } | Op::FreeSpace { .. } => return,
        };
        self.events.push(Recorded::Started(op.id(), change));
    }

    pub(crate) fn done(&mut self, id: OpId) {
        self.events.push(Recorded::Done(id));
    }
}
