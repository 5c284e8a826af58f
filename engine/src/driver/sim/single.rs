//! One shard on a simulated device that does its work in any order but without faults, for tests of a
//! part of the engine that bring their own workload.

use super::{disk, random::Random, shard};
use crate::format::manifest::Manifest;
use crate::recovery::RecoveryReport;
use crate::shard::{CommitBy, Shard, ShardLimits};
use crate::units::EpochMillis;

/// What is durable, across lives.
pub(crate) struct SimDisk {
    disk: disk::SimDisk,
    limits: ShardLimits,
}

/// A life of the shard.
pub(crate) struct SimShard {
    sim: shard::SimShard,
    limits: ShardLimits,
    random: Random,
}

impl SimDisk {
    pub(crate) fn new(seed: u64, segment_len: u64, limits: ShardLimits) -> Self {
        let manifest = Manifest {
            store: u128::from(seed),
            shards: 1,
            segment_len,
            block_len: 512,
            created_ms: 0,
            acknowledge: crate::shard::Acknowledge::Durable,
            budget_bytes: 0,
        };
        Self { disk: disk::SimDisk::new(manifest, 0, Random::new(seed)), limits }
    }

    pub(crate) fn open(mut self, now: EpochMillis) -> Result<SimShard, String> {
        let random = self.disk.random.fork();
        let opened = self.disk.open(self.limits, CommitBy::Durable, now);
        let sim = opened.map_err(|(_, failure)| format!("{failure:?}"))?;
        Ok(SimShard { sim, limits: self.limits, random })
    }

    /// Drops both checkpoints, so that the next life rebuilds everything from the log.
    pub(crate) fn lose_checkpoint(&mut self) {
        self.disk.lose_checkpoints();
    }
}

impl SimShard {
    pub(crate) fn shard(&mut self) -> &mut Shard {
        self.sim.shard()
    }

    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    pub(crate) fn report(&self) -> RecoveryReport {
        self.sim.report()
    }

    /// Completes one operation, any of those under way. False when there is none.
    pub(crate) fn step(&mut self, now: EpochMillis) -> bool {
        self.sim.step(now)
    }

    /// Ends this life at once. Of every operation under way the disk keeps what it likes.
    pub(crate) fn crash(self) -> SimDisk {
        SimDisk { disk: self.sim.crash(), limits: self.limits }
    }
}
