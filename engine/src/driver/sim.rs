//! A simulated disk that runs the shard's own code, with every choice taken from a seed.
//!
//! Operations complete late and in any order. A crash keeps what had completed, and of each write
//! under way any subset of its sectors: none, some (a torn write) or all. Errors are injected on
//! request. Nothing here is random beyond the seed, so a failing run is replayed by its seed.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use crate::format::manifest::Manifest;
use crate::layout::Geometry;
use crate::op::{Completion, FileId, Op};
use crate::recovery::{self, LogSource, Recovered, RecoveryReport};
use crate::shard::{CommitBy, Shard, ShardLimits, Start, Tail};
use crate::units::{EpochMillis, index, wide};

const SECTOR: usize = 512;

/// A small generator of pseudo-random numbers (xorshift64*), so that a seed means the same for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`, which is above 0.
    pub fn below(&mut self, bound: usize) -> usize {
        index((self.number() >> 11) % wide(bound.max(1)))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// How often each kind of fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Ends of a life with operations under way.
    pub crashes: u64,
    /// Writes of which only some sectors reached the disk.
    pub torn_writes: u64,
    /// Writes that were lost as a whole.
    pub lost_writes: u64,
    /// Writes that completed before an earlier one.
    pub reordered: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Segments that could not be created for want of space.
    pub disk_full: u64,
    /// Bits that changed below the committed frontier.
    pub bit_flips: u64,
}

/// What is durable, across lives.
#[derive(Clone)]
pub struct SimDisk {
    manifest: Manifest,
    limits: ShardLimits,
    random: Random,
    segments: BTreeMap<u64, Vec<u8>>,
    index: Vec<u8>,
    changes: [Vec<u8>; 2],
    checkpoints: [Option<Vec<u8>>; 2],
    epoch: u64,
    faults: Faults,
}

/// A shard on a simulated disk.
pub struct SimShard {
    shard: Shard,
    disk: SimDisk,
    pending: Vec<Op>,
    report: RecoveryReport,
    /// The next write of the log fails.
    fail_write: bool,
    full: bool,
}

impl LogSource for SimDisk {
    fn ordinals(&self) -> Vec<u64> {
        self.segments.keys().copied().collect()
    }

    fn read(&mut self, ordinal: u64, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        let bytes = self.segments.get(&ordinal).map(Vec::as_slice).unwrap_or_default();
        Ok(copy(bytes.get(index(at)..).unwrap_or_default(), dst))
    }

    fn read_view(&mut self, file: FileId, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bytes(file).and_then(|bytes| bytes.get(index(at)..));
        Ok(copy(bytes.unwrap_or_default(), dst))
    }

    fn index_len(&mut self) -> io::Result<u64> {
        Ok(wide(self.index.len()))
    }

    fn checkpoint(&mut self, slot: u32) -> io::Result<Option<Vec<u8>>> {
        Ok(self.checkpoints.get(index(u64::from(slot))).cloned().flatten())
    }
}

fn copy(src: &[u8], dst: &mut [u8]) -> usize {
    let len = src.len().min(dst.len());
    if let (Some(dst), Some(src)) = (dst.get_mut(..len), src.get(..len)) {
        dst.copy_from_slice(src);
    }
    len
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64, segment_len: u64, limits: ShardLimits) -> Self {
        let manifest = Manifest {
            store: u128::from(seed),
            shards: 1,
            segment_len,
            block_len: 512,
            created_ms: 0,
            budget_bytes: u64::MAX,
        };
        Self {
            manifest,
            limits,
            random: Random::new(seed),
            segments: BTreeMap::new(),
            index: Vec::new(),
            changes: [const { Vec::new() }; 2],
            checkpoints: [const { None }; 2],
            epoch: 0,
            faults: Faults::default(),
        }
    }

    /// What has been injected so far.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// Starts a life on what is durable.
    ///
    /// # Errors
    ///
    /// What recovery says when committed groups are gone.
    pub fn open(mut self, now: EpochMillis) -> Result<SimShard, String> {
        let geometry = Geometry::new(&self.manifest, 0);
        let Recovered { views, saved, report } =
            recovery::recover(&geometry, &mut self).map_err(|error| error.to_string())?;
        self.epoch = self.epoch.max(views.covered.epoch) + 1;
        let start = Start {
            geometry,
            limits: self.limits,
            commit_by: CommitBy::Durable,
            epoch: self.epoch,
            views,
            saved,
            segments: self.segments.iter().map(|(&n, bytes)| (n, wide(bytes.len()))).collect(),
            now,
        };
        let (tail, _) = Tail::new(&self.limits);
        let shard = Shard::new(start, tail);
        Ok(SimShard {
            shard,
            disk: self,
            pending: Vec::new(),
            report,
            fail_write: false,
            full: false,
        })
    }

    /// Drops the checkpoints, so that the next life rebuilds everything from the log.
    pub fn lose_checkpoint(&mut self) {
        self.checkpoints = [const { None }; 2];
    }

    fn bytes(&self, file: FileId) -> Option<&Vec<u8>> {
        match file {
            FileId::Segment(ordinal) => self.segments.get(&ordinal),
            FileId::Index => Some(&self.index),
            FileId::Changes(n) => self.changes.get(index(u64::from(n))),
        }
    }

    fn replace_checkpoint(&mut self, slot: u32, bytes: Vec<u8>) {
        if let Some(checkpoint) = self.checkpoints.get_mut(index(u64::from(slot))) {
            *checkpoint = Some(bytes);
        }
    }

    fn recycle(&mut self, from: u64, to: u64) {
        if let Some(bytes) = self.segments.remove(&from) {
            self.segments.insert(to, bytes);
        }
    }

    /// Flips one bit of a segment.
    pub fn flip_bit(&mut self, ordinal: u64, byte: u64, bit: u8) {
        let byte = self.segments.get_mut(&ordinal).and_then(|bytes| bytes.get_mut(index(byte)));
        if let Some(byte) = byte {
            *byte ^= 1 << (bit % 8);
            self.faults.bit_flips += 1;
        }
    }

    fn write(&mut self, file: FileId, at: u64, data: &[u8]) {
        let bytes = match file {
            FileId::Segment(ordinal) => self.segments.entry(ordinal).or_default(),
            FileId::Index => &mut self.index,
            FileId::Changes(0) => &mut self.changes[0],
            FileId::Changes(_) => &mut self.changes[1],
        };
        let (start, end) = (index(at), index(at) + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(dst) = bytes.get_mut(start..end) {
            dst.copy_from_slice(data);
        }
    }

    /// What a write under way at a crash leaves behind.
    fn tear(&mut self, file: FileId, at: u64, data: &[u8]) {
        match self.random.below(3) {
            0 => self.faults.lost_writes += 1,
            1 => self.write(file, at, data),
            _ => {
                self.faults.torn_writes += 1;
                for (n, sector) in data.chunks(SECTOR).enumerate() {
                    if self.random.one_in(2) {
                        self.write(file, at + wide(n * SECTOR), sector);
                    }
                }
            }
        }
    }
}

impl SimShard {
    /// The shard itself.
    pub fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// What opening found.
    pub fn report(&self) -> RecoveryReport {
        self.report
    }

    /// The source of every choice in this life.
    pub fn random(&mut self) -> &mut Random {
        &mut self.disk.random
    }

    /// Makes the next write of the log fail.
    pub fn fail_next_write(&mut self) {
        self.fail_write = true;
    }

    /// Refuses new segments, or allows them again.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Completes one operation, any of those under way. False when there is none.
    pub fn step(&mut self, now: EpochMillis) -> bool {
        while let Some(op) = self.shard.next_op() {
            self.pending.push(op);
        }
        if self.pending.is_empty() {
            return false;
        }
        let at = self.disk.random.below(self.pending.len());
        self.disk.faults.reordered += u64::from(at > 0);
        let op = self.pending.swap_remove(at);
        let completion = self.carry_out(op);
        self.shard.complete(completion, now);
        true
    }

    fn carry_out(&mut self, op: Op) -> Completion {
        let id = op.id();
        let (result, buffer) = match op {
            Op::Write { file: FileId::Segment(_), .. } if std::mem::take(&mut self.fail_write) => {
                self.disk.faults.write_errors += 1;
                (Err(io::Error::from_raw_os_error(5)), None)
            }
            Op::Write { file, at, data, .. } => {
                self.disk.write(file, at, &data);
                (Ok(data.len()), None)
            }
            Op::Read { file, at, len, mut buffer, .. } => {
                let bytes = self.disk.bytes(file);
                let bytes = bytes.and_then(|bytes| bytes.get(index(at)..)).unwrap_or_default();
                let read = buffer.fill(bytes.get(..len.min(bytes.len())).unwrap_or_default());
                (Ok(read), Some(buffer))
            }
            Op::FreeSpace { .. } if self.full => {
                self.disk.faults.disk_full += 1;
                (Ok(0), None)
            }
            Op::FreeSpace { .. } => (Ok(usize::MAX / 2), None),
            Op::CreateSegment { ordinal, len, .. } => {
                self.disk.segments.insert(ordinal, vec![0; index(len)]);
                (Ok(0), None)
            }
            Op::RecycleSegment { from, to, .. } => {
                self.disk.recycle(from, to);
                (Ok(0), None)
            }
            Op::RemoveSegment { ordinal, .. } => {
                self.disk.segments.remove(&ordinal);
                (Ok(0), None)
            }
            Op::Discard { file, at, len, .. } => {
                self.disk.write(file, at, &vec![0; index(len)]);
                (Ok(0), None)
            }
            Op::ReplaceCheckpoint { slot, bytes, .. } => {
                let len = bytes.len();
                self.disk.replace_checkpoint(slot, bytes);
                (Ok(len), None)
            }
        };
        Completion { id, result, buffer }
    }

    /// Ends this life at once. Of every operation under way the disk keeps what it likes.
    pub fn crash(mut self) -> SimDisk {
        while let Some(op) = self.shard.next_op() {
            self.pending.push(op);
        }
        self.disk.faults.crashes += 1;
        for op in std::mem::take(&mut self.pending) {
            match op {
                Op::Write { file, at, data, .. } => self.disk.tear(file, at, &data),
                Op::CreateSegment { ordinal, len, .. } if self.disk.random.one_in(2) => {
                    self.disk.segments.insert(ordinal, vec![0; index(len)]);
                }
                Op::RecycleSegment { from, to, .. } if self.disk.random.one_in(2) => {
                    self.disk.recycle(from, to);
                }
                Op::RemoveSegment { ordinal, .. } if self.disk.random.one_in(2) => {
                    self.disk.segments.remove(&ordinal);
                }
                Op::ReplaceCheckpoint { slot, bytes, .. } if self.disk.random.one_in(2) => {
                    self.disk.replace_checkpoint(slot, bytes);
                }
                _ => {}
            }
        }
        self.disk
    }
}
