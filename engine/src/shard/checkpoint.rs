//! Checkpoints: first the index blocks that they name, then the file itself.

use std::io;

use super::{Purpose, Shard};
use crate::format::checkpoint;
use crate::format::index_block::BLOCK_LEN;
use crate::op::{FileId, Op};
use crate::units::{EpochMillis, Sequence, wide};

pub(super) struct CheckpointState {
    covered: Sequence,
    taken: EpochMillis,
    log_bytes: u64,
    /// Index writes that must complete before the file may name their blocks.
    writes: usize,
    bytes: Option<Vec<u8>>,
    running: bool,
    failed: bool,
}

impl CheckpointState {
    pub(super) fn new(now: EpochMillis, covered: Sequence) -> Self {
        Self {
            covered,
            taken: now,
            log_bytes: 0,
            writes: 0,
            bytes: None,
            running: false,
            failed: false,
        }
    }
}

impl Shard {
    pub(super) fn checkpoint_if_due(&mut self, now: EpochMillis) {
        let state = &self.checkpoint;
        let grown = self.stats.log_bytes - state.log_bytes >= self.limits.checkpoint_bytes;
        let old = now.since(state.taken) >= self.limits.checkpoint_ms;
        if grown || old {
            self.start_checkpoint(now);
        }
    }

    /// Starts a checkpoint of everything that is committed, unless one is running or nothing has
    /// changed since the last one.
    pub fn start_checkpoint(&mut self, now: EpochMillis) {
        let covered = self.committed();
        if self.checkpoint.running || self.poison.is_some() || covered == self.checkpoint.covered {
            return;
        }
        self.checkpoint = CheckpointState {
            covered,
            taken: now,
            log_bytes: self.stats.log_bytes,
            writes: 0,
            bytes: Some(checkpoint::encode(&self.views, &self.geometry)),
            running: true,
            failed: false,
        };
        for (first, data) in self.views.index.take_unwritten() {
            let id = self.op(Purpose::IndexWrite { first });
            let at = u64::from(first) * wide(BLOCK_LEN);
            self.ops.push_back(Op::Write { id, file: FileId::Index, at, data });
            self.checkpoint.writes += 1;
        }
        self.replace_checkpoint();
    }

    pub(super) fn index_written(
        &mut self,
        first: u32,
        result: io::Result<usize>,
        now: EpochMillis,
    ) {
        self.checkpoint.writes -= 1;
        self.views.index.written(first, result.is_ok());
        if let Err(cause) = result {
            // The blocks stay in memory and are written again; until then no checkpoint names them.
            self.checkpoint.bytes = None;
            self.give_checkpoint_up(&cause, now);
        }
        self.replace_checkpoint();
    }

    fn replace_checkpoint(&mut self) {
        if self.checkpoint.writes > 0 {
            return;
        }
        match self.checkpoint.bytes.take() {
            Some(bytes) => {
                let id = self.op(Purpose::Checkpoint);
                self.ops.push_back(Op::ReplaceCheckpoint { id, bytes });
            }
            None => self.checkpoint.running = false,
        }
    }

    /// The previous checkpoint still stands, so only the next opening takes longer.
    fn give_checkpoint_up(&mut self, cause: &io::Error, now: EpochMillis) {
        tracing::warn!(shard = self.geometry.shard(), %cause, "checkpoint not written");
        self.checkpoint.failed = true;
        self.checkpoint.covered = Sequence::default();
        self.checkpoint.taken = now;
    }

    pub(super) fn checkpoint_written(&mut self, result: io::Result<usize>, now: EpochMillis) {
        self.checkpoint.running = false;
        self.checkpoint.taken = now;
        match result {
            Ok(_) => self.stats.checkpoints += 1,
            Err(cause) => self.give_checkpoint_up(&cause, now),
        }
    }

    /// True when a checkpoint covers everything that is committed, or none can be written.
    pub fn is_checkpointed(&self) -> bool {
        let covered = self.checkpoint.covered == self.committed() && !self.checkpoint.running;
        covered || self.checkpoint.failed || self.poison.is_some()
    }
}
