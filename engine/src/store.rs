//! Opening and creating stores.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use crate::driver::files::{ShardFiles, data_flags, io_error, lock, replace};
use crate::driver::ring::RingShard;
use crate::error::OpenError;
use crate::format::manifest::{FORMAT_VERSION, Manifest, ManifestError};
use crate::layout::Geometry;
use crate::recovery::{self, Recovered, RecoveryError, RecoveryReport};
use crate::shard::Tail;
use crate::shard::{Acknowledge, CommitBy, Shard, ShardLimits, Start};
use crate::units::{EpochMillis, index};

const MANIFEST_NAME: &str = "manifest";
const LOCK_NAME: &str = "lock";
/// Where Linux has shared memory.
const BUFFER_DIR: &str = "/dev/shm";
const SEGMENT_LEN_MIN: u64 = 1 << 20;
const SEGMENT_LEN_MAX: u64 = 2 << 30;
const SHARDS_MAX: u32 = 1024;

/// How much of the disk a store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBudget {
    /// This many bytes.
    Bytes(u64),
    /// This part of the file system that the store is on, in percent of its size.
    Percent(u8),
}

impl DiskBudget {
    /// What a new store may take when nobody says otherwise.
    pub const DEFAULT: Self = Self::Percent(75);

    fn bytes(self, dir: &Path) -> Result<u64, OpenError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Percent(percent) => {
                let stat = rustix::fs::statvfs(dir)
                    .map_err(|cause| io_error("read", dir, cause.into()))?;
                let size = stat.f_blocks.saturating_mul(stat.f_frsize);
                Ok(size / 100 * u64::from(percent.min(100)))
            }
        }
    }
}

/// How a store is created and opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Shards of a new store. An existing one keeps its number; asking for another is an error.
    pub shards: Option<u32>,
    /// Segment length of a new store, in bytes: 1 MiB to 2 GiB, a multiple of the block.
    pub segment_len: u64,
    /// Block length of a new store, in bytes: a power of two from the file system's direct-I/O
    /// alignment to 64 KiB. `None`: that alignment. An existing store keeps its own; asking for
    /// another is an error.
    pub block_len: Option<u32>,
    /// What the log and its indices may take of the disk. The oldest segment is recycled above it.
    /// `None`: what the store was given at its creation, [`DiskBudget::DEFAULT`].
    pub disk_budget: Option<DiskBudget>,
    /// Memory for what is read back from the device that all shards share evenly, in bytes; taken as
    /// it is found that what was read is read again. `None`: each shard has the
    /// [`cold_bytes`](ShardLimits::cold_bytes) of its limits.
    pub cold_bytes: Option<usize>,
    /// When appends count as acknowledged. `None`: as before, and durable in a new store. An existing
    /// store of the other kind is switched: what its last life has left in shared memory is on the
    /// device before anything of this life is.
    pub acknowledge: Option<Acknowledge>,
    /// The folder of the files in shared memory that a buffered store acknowledges from, one for each
    /// shard with the [`tail_bytes`](ShardLimits::tail_bytes) of its limits. It must be in memory
    /// (tmpfs) to be worth it, and the next opening must see the same one to find them.
    pub buffer_dir: PathBuf,
    /// Memory, timing and age of each shard. Its [`disk_bytes`](ShardLimits::disk_bytes) are set
    /// from the budget, the same for each shard.
    pub limits: ShardLimits,
    /// Who moves the committed frontier.
    pub commit_by: CommitBy,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            shards: None,
            segment_len: 256 << 20,
            block_len: None,
            disk_budget: None,
            cold_bytes: None,
            acknowledge: None,
            buffer_dir: PathBuf::from(BUFFER_DIR),
            limits: ShardLimits::default(),
            commit_by: CommitBy::Durable,
        }
    }
}

/// An open store whose shards have not been taken yet.
pub struct Store {
    manifest: Manifest,
    shards: Vec<RingShard>,
    reports: Vec<RecoveryReport>,
    direct: bool,
    physical_block: Option<u32>,
    _lock: File,
}

/// The shards of a store, and what keeps other processes out as long as it lives.
pub struct OpenStore {
    /// One per shard, by number. Each may go to a thread of its own.
    pub shards: Vec<RingShard>,
    /// Held until all shards are closed.
    pub guard: StoreGuard,
}

/// Keeps other processes from opening the store.
pub struct StoreGuard {
    _lock: File,
}

impl Store {
    /// Opens the store in a folder, or creates it there. `store_id` becomes the name of a new
    /// store and should be random.
    ///
    /// # Errors
    ///
    /// [`OpenError`], whose text names cause and cure in one line.
    pub fn open(
        dir: &Path,
        options: &StoreOptions,
        store_id: u128,
        now: EpochMillis,
    ) -> Result<Self, OpenError> {
        std::fs::create_dir_all(dir).map_err(|cause| io_error("create", dir, cause))?;
        let lock_path = dir.join(LOCK_NAME);
        let lock_file =
            File::create(&lock_path).map_err(|cause| io_error("write", &lock_path, cause))?;
        lock(&lock_file, dir)?;
        probe_ring()?;
        let direct = takes_direct_writes(dir)?;
        let mut manifest = match read_manifest(dir)? {
            Some(manifest) => manifest,
            None => {
                refuse_orphans(dir)?;
                create(dir, options, store_id, now)?
            }
        };
        check(&manifest, options)?;
        let acknowledge = options.acknowledge.unwrap_or(manifest.acknowledge);
        if acknowledge == Acknowledge::Buffered {
            switch(dir, &mut manifest, acknowledge)?;
        }
        let mut limits = options.limits;
        limits.disk_bytes = shard_budget(dir, &manifest, options)?;
        if let Some(bytes) = options.cold_bytes {
            limits.cold_bytes = bytes / index(u64::from(manifest.shards.max(1)));
        }
        let options = &StoreOptions { limits, ..options.clone() };
        let mut store = Self {
            manifest,
            shards: Vec::new(),
            reports: Vec::new(),
            direct,
            physical_block: physical_block(dir),
            _lock: lock_file,
        };
        for shard in 0..manifest.shards {
            store.open_shard(dir, shard, acknowledge, options, now)?;
        }
        // Only now nothing is left in shared memory.
        switch(dir, &mut store.manifest, acknowledge)?;
        Ok(store)
    }

    fn open_shard(
        &mut self,
        dir: &Path,
        shard: u32,
        acknowledge: Acknowledge,
        options: &StoreOptions,
        now: EpochMillis,
    ) -> Result<(), OpenError> {
        let geometry = Geometry::new(&self.manifest, shard);
        let mut files = ShardFiles::open(dir, &geometry, self.direct)?;
        let failed = |cause| io_error("read", &dir.join(format!("shard-{shard}")), cause);
        let last = files.last_epoch(self.manifest.store).map_err(failed)?;
        let lost_bytes_max = files.find_buffers(&geometry, last)?;
        let Recovered { views, saved, repeats, mut report, epoch: logged } =
            recovery::recover(&geometry, &mut files).map_err(|error| match error {
                RecoveryError::Io(cause) => failed(cause),
                RecoveryError::Lost { .. } | RecoveryError::NoStart(_) => {
                    OpenError::Damaged(dir.to_owned(), error.to_string())
                }
            })?;
        report.lost_bytes_max = lost_bytes_max;
        if lost_bytes_max > 0 {
            tracing::error!(
                shard,
                log_end = %views.covered.sequence,
                lost_bytes_max,
                "the system has stopped, or shared memory was removed, while the store acknowledged \
                 from it: what was acknowledged behind the end of the log is lost, and its queue \
                 offsets are given out again"
            );
        }
        if last.is_none() && !files.segments.is_empty() {
            tracing::error!(folder = %files.dir.display(), "the epoch file is missing or damaged");
        }
        let epoch = next_epoch(last, files.segments.len(), logged);
        // Durable before the first append, so that groups of this life never pass for older ones.
        files.store_epoch(self.manifest.store, epoch).map_err(failed)?;
        let segments = files.prepared();
        let (limits, commit_by) = (options.limits, options.commit_by);
        let (tail, region) = match acknowledge {
            Acknowledge::Durable => {
                files.forget_buffers();
                Tail::new(&limits)
            }
            Acknowledge::Buffered => {
                let pool = Tail::pool(&limits);
                let folder = &options.buffer_dir;
                let (region, head) = files.make_buffers(folder, &geometry, epoch, pool)?;
                Tail::buffered(&limits, region, head)
            }
        };
        let start = Start {
            geometry,
            limits,
            acknowledge,
            commit_by,
            epoch,
            views,
            saved,
            repeats,
            segments,
            now,
        };
        let ring = RingShard::new(Shard::new(start, tail), files, region)
            .map_err(OpenError::RingForbidden)?;
        self.shards.push(ring);
        self.reports.push(report);
        Ok(())
    }

    /// Number of shards.
    pub fn shard_count(&self) -> u32 {
        self.manifest.shards
    }

    /// The store's id.
    pub fn id(&self) -> u128 {
        self.manifest.store
    }

    /// Bytes of a block: what a group takes at least.
    pub fn block_len(&self) -> u32 {
        self.manifest.block_len
    }

    /// The device's physical block in bytes, where the system tells. A larger one than
    /// [`block_len`](Self::block_len) means that the device itself reads and writes more than a
    /// small group at a time.
    pub fn physical_block_len(&self) -> Option<u32> {
        self.physical_block
    }

    /// When appends count as acknowledged.
    pub fn acknowledge(&self) -> Acknowledge {
        self.manifest.acknowledge
    }

    /// False when the file system refuses direct writes and the page cache is used instead.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// What recovery found, by shard.
    pub fn reports(&self) -> &[RecoveryReport] {
        &self.reports
    }

    /// Which shard a log position lies on.
    pub fn shard_of_position(&self, position: crate::LogOffset) -> u32 {
        Geometry::new(&self.manifest, 0).shard_of_position(position)
    }

    /// Hands out the shards.
    pub fn into_shards(self) -> OpenStore {
        OpenStore { shards: self.shards, guard: StoreGuard { _lock: self._lock } }
    }
}

/// The epoch of the life that begins: above that of every earlier life, from the last one that was
/// stored, if it is known, and the newest one in the log.
pub(crate) fn next_epoch(last: Option<u64>, segments: usize, logged: u64) -> u64 {
    /// More lives than can have ended without a committed group.
    const UNKNOWN_LIVES: u64 = 1 << 20;
    match last {
        Some(last) => last.max(logged) + 1,
        None if segments == 0 => 1,
        None => logged + UNKNOWN_LIVES,
    }
}

/// A folder with shards but without a manifest is a store that has lost it.
fn refuse_orphans(dir: &Path) -> Result<(), OpenError> {
    if !dir.join("shard-0").exists() {
        return Ok(());
    }
    let what = "is missing, but the folder has a store's shards; restore it from a copy, or choose \
                another folder";
    Err(OpenError::Manifest(dir.join(MANIFEST_NAME), what.to_owned()))
}

fn probe_ring() -> Result<(), OpenError> {
    io_uring::IoUring::new(2).map(drop).map_err(OpenError::RingForbidden)
}

/// Tries a direct, durable open in the folder, as the log's files are opened.
fn takes_direct_writes(dir: &Path) -> Result<bool, OpenError> {
    let probe = dir.join("probe");
    let flags = data_flags(true) | OFlags::CREATE;
    let outcome = rustix::fs::open(&probe, flags, Mode::from_raw_mode(0o644));
    let direct = match outcome {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::INVAL) => Ok(false),
        Err(cause) => Err(io_error("write", &probe, cause.into())),
    };
    let _ = std::fs::remove_file(&probe);
    direct
}

fn read_manifest(dir: &Path) -> Result<Option<Manifest>, OpenError> {
    let path = dir.join(MANIFEST_NAME);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(io_error("read", &path, cause)),
    };
    Manifest::decode(&bytes).map(Some).map_err(|error| {
        let what = match error {
            ManifestError::Damaged => "not a store's manifest, or damaged".to_owned(),
            ManifestError::Newer(version) => format!(
                "the store has format {version}, this version knows {FORMAT_VERSION}; use a newer \
                 version"
            ),
            ManifestError::Older(version) => format!(
                "the store has format {version} of a version before the first release; make a new \
                 one in another folder"
            ),
            ManifestError::UnknownHash => {
                "the store places queues by an unknown hash; use the version that made it"
                    .to_owned()
            }
        };
        OpenError::Manifest(path, what)
    })
}

fn create(
    dir: &Path,
    options: &StoreOptions,
    store: u128,
    now: EpochMillis,
) -> Result<Manifest, OpenError> {
    let align = direct_align(dir);
    let block_len = options.block_len.unwrap_or(align);
    if !block_len.is_power_of_two() || block_len < align || block_len > 65_536 {
        return Err(OpenError::Options(format!(
            "block length {block_len} does not fit: a power of two from {align} to 65536"
        )));
    }
    let segment_len = options.segment_len;
    let fits = (SEGMENT_LEN_MIN..=SEGMENT_LEN_MAX).contains(&segment_len)
        && segment_len.is_multiple_of(4096.max(u64::from(block_len)));
    if !fits {
        return Err(OpenError::Options(format!(
            "segment length {segment_len} does not fit: {SEGMENT_LEN_MIN} to {SEGMENT_LEN_MAX}, \
             whole blocks"
        )));
    }
    let shards = options.shards.unwrap_or(1);
    if shards == 0 || shards > SHARDS_MAX {
        return Err(OpenError::Options(format!("{shards} shards do not fit: 1 to {SHARDS_MAX}")));
    }
    let budget_bytes = DiskBudget::DEFAULT.bytes(dir)?.max(budget_min(shards, segment_len));
    let created_ms = now.get();
    let acknowledge = options.acknowledge.unwrap_or_default();
    let manifest =
        Manifest { store, shards, segment_len, block_len, created_ms, acknowledge, budget_bytes };
    write_manifest(dir, &manifest)?;
    Ok(manifest)
}

fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), OpenError> {
    replace(dir, MANIFEST_NAME, &manifest.encode())
        .map_err(|cause| io_error("write", &dir.join(MANIFEST_NAME), cause))
}

/// Makes a store durable or buffered from now on. While it says that it is buffered, versions that know
/// nothing of that do not open it.
fn switch(dir: &Path, manifest: &mut Manifest, acknowledge: Acknowledge) -> Result<(), OpenError> {
    if manifest.acknowledge != acknowledge {
        tracing::info!(from = ?manifest.acknowledge, to = ?acknowledge, "the store is switched");
        manifest.acknowledge = acknowledge;
        write_manifest(dir, manifest)?;
    }
    Ok(())
}

/// The smallest budget of a store: what its shards write to, what they prepare, and what they keep.
fn budget_min(shards: u32, segment_len: u64) -> u64 {
    const SEGMENTS: u64 = 5;
    u64::from(shards).saturating_mul(segment_len.saturating_mul(SEGMENTS))
}

/// What one shard may take of the disk.
fn shard_budget(dir: &Path, manifest: &Manifest, options: &StoreOptions) -> Result<u64, OpenError> {
    let budget = match options.disk_budget {
        Some(budget) => budget.bytes(dir)?,
        None => manifest.budget_bytes,
    };
    let least = budget_min(manifest.shards, manifest.segment_len);
    if budget < least {
        return Err(OpenError::Options(format!(
            "a disk budget of {budget} bytes does not fit: {} shards with segments of {} bytes need \
             at least {least}; raise the budget",
            manifest.shards, manifest.segment_len
        )));
    }
    Ok(budget / u64::from(manifest.shards))
}

fn check(manifest: &Manifest, options: &StoreOptions) -> Result<(), OpenError> {
    if let Some(shards) = options.shards.filter(|shards| *shards != manifest.shards) {
        return Err(OpenError::Options(format!(
            "the store has {} shards, not {shards}; the number is fixed when it is created: ask for \
             none, or choose another folder",
            manifest.shards
        )));
    }
    if let Some(len) = options.block_len.filter(|len| *len != manifest.block_len) {
        return Err(OpenError::Options(format!(
            "the store has a block size of {} bytes, not {len}; it is fixed when the store is \
             created: ask for none, or choose another folder",
            manifest.block_len
        )));
    }
    Ok(())
}

/// The alignment that the file system wants for direct I/O.
fn direct_align(dir: &Path) -> u32 {
    const USUAL: u32 = 512;
    // The alignment is told for regular files only, and files of one folder share it.
    let probe = dir.join(LOCK_NAME);
    let flags = StatxFlags::from_bits_retain(StatxFlags::BASIC_STATS.bits() | 0x2000);
    rustix::fs::statx(rustix::fs::CWD, &probe, AtFlags::empty(), flags)
        .ok()
        .map(|stat| stat.stx_dio_offset_align)
        .filter(|align| align.is_power_of_two() && *align <= 65_536)
        .map_or(USUAL, |align| align.max(USUAL))
}

/// The physical block of the device below a folder, from sysfs.
fn physical_block(dir: &Path) -> Option<u32> {
    let device = rustix::fs::stat(dir).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let base = format!("/sys/dev/block/{major}:{minor}");
    ["queue/physical_block_size", "../queue/physical_block_size"]
        .iter()
        .find_map(|name| std::fs::read_to_string(format!("{base}/{name}")).ok())
        .and_then(|text| text.trim().parse().ok())
}
