//! Blocks of the index: from memory, or read back a piece at a time.

use std::io;

use super::cold::Miss;
use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::index_block::BlockHead;
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{FileId, Op, ReadBuffer};
use crate::units::{index, wide};
use crate::view::index::Stretch;

#[derive(Default)]
pub(super) struct BlockReads {
    /// Pieces that are being read, and who waits for them.
    loading: Vec<(u64, Vec<u64>)>,
    /// A piece that could not be read, for its next look-up.
    failed: Option<(u64, String)>,
}

impl Shard {
    /// The block at `at`, if it is in memory and sound. Otherwise it is read, or being read, and
    /// `token` comes when that is done; or it is damaged.
    pub(super) fn index_block(
        &mut self,
        at: u64,
        head: &BlockHead,
        token: Option<u64>,
    ) -> Result<RecordSlice, Miss> {
        if let Some(found) = self.views.index.block(at, head) {
            if let Ok(block) = found {
                return Ok(block);
            }
            // The next look-up reads it again.
            self.views.index.forget(at);
            self.distrust_checkpoints();
            return Err(Miss::Failed(ReadError::Io(format!("the index is damaged at byte {at}"))));
        }
        let (from, len) = self.views.index.stretch(at);
        if let Some((_, cause)) = self.blocks.failed.take_if(|(failed, _)| *failed == from) {
            return Err(Miss::Failed(ReadError::Io(cause)));
        }
        if let Some((_, tokens)) = self.blocks.loading.iter_mut().find(|(start, _)| *start == from)
        {
            tokens.extend(token);
            return Err(Miss::Pending);
        }
        self.blocks.loading.push((from, token.into_iter().collect()));
        let wanted = index(at - from) + head.len();
        let id = self.op(Purpose::IndexRead { from, wanted });
        let buffer = ReadBuffer(ChunkTail::alone(len));
        self.ops.push_back(Op::Read { id, file: FileId::Index, at: from, len, buffer });
        Err(Miss::Pending)
    }

    pub(super) fn index_read(
        &mut self,
        from: u64,
        wanted: usize,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let Some(n) = self.blocks.loading.iter().position(|(start, _)| *start == from) else {
            return;
        };
        let (_, tokens) = self.blocks.loading.swap_remove(n);
        let short = matches!(result, Ok(len) if len < wanted);
        let failed = match (result, buffer) {
            (Ok(len), Some(ReadBuffer(mut memory))) if len >= wanted => {
                self.views.index.loaded(Stretch { at: from, bytes: memory.freeze(len) });
                None
            }
            (Ok(len), _) => Some(format!("the index ends at byte {}", from + wide(len))),
            (Err(cause), _) => Some(format!("reading the index failed: {cause}")),
        };
        if let Some(cause) = failed {
            tracing::error!(shard = self.geometry.shard(), cause, "a part of the index is missing");
            self.blocks.failed = Some((from, cause));
        }
        if short {
            self.distrust_checkpoints();
        }
        self.ready.extend(tokens);
    }
}
