//! The files of one shard: names, flags, locks, and how much of a segment is prepared.
//!
//! ```text
//! shard-0/0000000000000000.log   a segment, named by its ordinal in hexadecimal
//! shard-0/index                  blocks that the views have put aside
//! shard-0/changes.0, .1          changes of the views; a checkpoint says how far they count
//! shard-0/checkpoint.0, .1       the newest two checkpoints
//! shard-0/buffers                where the group buffers of a buffered store are
//! shard-0/epoch                  the epoch of the newest life: magic 8, store id 16, epoch 8, checksum 4
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, SeekFrom};

use super::buffers::Left;
use crate::error::OpenError;
use crate::format::buffers::Head;
use crate::format::bytes::{Put, Reader};
use crate::layout::Geometry;
use crate::op::FileId;
use crate::recovery::LogSource;

const INDEX_NAME: &str = "index";
const CHANGES_NAMES: [&str; 2] = ["changes.0", "changes.1"];
const EPOCH_NAME: &str = "epoch";
const EPOCH_MAGIC: u64 = u64::from_be_bytes(*b"RINGMQEP");

pub(crate) fn segment_name(ordinal: u64) -> String {
    format!("{ordinal:016x}.log")
}

pub(crate) fn checkpoint_name(slot: u32) -> String {
    format!("checkpoint.{slot}")
}

fn ordinal_of(name: &str) -> Option<u64> {
    let hex = name.strip_suffix(".log").filter(|hex| hex.len() == 16)?;
    u64::from_str_radix(hex, 16).ok()
}

/// How files are opened for data: direct and durable on completion, or, where the file system
/// refuses direct writes, through the page cache with a data sync.
pub(crate) fn data_flags(direct: bool) -> OFlags {
    let flags = OFlags::RDWR | OFlags::DSYNC | OFlags::CLOEXEC;
    if direct { flags | OFlags::DIRECT } else { flags }
}

pub(crate) fn io_error(doing: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { doing, path: path.to_owned(), source }
}

/// Takes an exclusive lock, waiting up to ten seconds: the writes of a killed process go on for a
/// moment after its exit, and its locks end with them.
pub(crate) fn lock(file: impl AsFd, store: &Path) -> Result<(), OpenError> {
    const TRIES: u32 = 500;
    const PAUSE: Duration = Duration::from_millis(20);
    /// A process that was killed is usually gone by then.
    const SILENT: u32 = 25;
    for tried in 0..TRIES {
        if tried == SILENT {
            let at_most = PAUSE * TRIES;
            tracing::info!(
                "the store in {} is held; waiting, {at_most:?} at most",
                store.display()
            );
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => pause(PAUSE),
            Err(cause) => return Err(io_error("lock", store, cause.into())),
        }
    }
    Err(OpenError::Held(store.to_owned()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event tells that another process let go of a lock"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Replaces a small file atomically and durably.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    let file = File::create(&temporary)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()?;
    std::fs::rename(&temporary, dir.join(name))?;
    File::open(dir)?.sync_all()
}

/// The open files of a shard.
pub(crate) struct ShardFiles {
    pub(crate) dir: PathBuf,
    pub(crate) direct: bool,
    pub(crate) index: OwnedFd,
    pub(crate) changes: [OwnedFd; 2],
    pub(crate) segments: BTreeMap<u64, OwnedFd>,
    segment_len: u64,
    /// What the last life has left in shared memory.
    pub(super) left: Option<Left>,
    /// The file of the group buffers, if there may be one.
    pub(super) buffers: Option<PathBuf>,
    /// This life's, locked.
    pub(super) reserved: Option<File>,
}

impl ShardFiles {
    /// Opens and locks every file of the shard; creates what a new shard needs.
    pub(crate) fn open(store: &Path, geometry: &Geometry, direct: bool) -> Result<Self, OpenError> {
        let dir = store.join(format!("shard-{}", geometry.shard()));
        std::fs::create_dir_all(&dir).map_err(|cause| io_error("create", &dir, cause))?;
        let open = |name: &str| {
            let path = dir.join(name);
            let flags = data_flags(direct) | OFlags::CREATE;
            let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644))
                .map_err(|cause| io_error("open", &path, cause.into()))?;
            lock(&file, store)?;
            Ok(file)
        };
        let index = open(INDEX_NAME)?;
        let changes = [open(CHANGES_NAMES[0])?, open(CHANGES_NAMES[1])?];
        let mut files = Self {
            dir,
            direct,
            index,
            changes,
            segments: BTreeMap::new(),
            segment_len: geometry.segment_len(),
            left: None,
            buffers: None,
            reserved: None,
        };
        files.open_segments(store)?;
        Ok(files)
    }

    fn open_segments(&mut self, store: &Path) -> Result<(), OpenError> {
        let failed = |cause| io_error("read", &self.dir, cause);
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(ordinal) = entry.file_name().to_str().and_then(ordinal_of) else { continue };
            let path = entry.path();
            let file = rustix::fs::open(&path, data_flags(self.direct), Mode::empty())
                .map_err(|cause| io_error("open", &path, cause.into()))?;
            lock(&file, store)?;
            let len = rustix::fs::fstat(&file)
                .map_err(|cause| io_error("read", &path, cause.into()))?
                .st_size;
            let len = u64::try_from(len).unwrap_or(0);
            if len < self.segment_len {
                if rustix::fs::seek(&file, SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO) {
                    // Its creation was cut short; nothing was ever written to it.
                    std::fs::remove_file(&path)
                        .map_err(|cause| io_error("remove", &path, cause))?;
                    continue;
                }
                tracing::error!(
                    path = %path.display(), len, segment_len = self.segment_len,
                    "a segment is shorter than it was made; what it has lost counts as damaged"
                );
                rustix::fs::ftruncate(&file, self.segment_len)
                    .map_err(|cause| io_error("write", &path, cause.into()))?;
            } else if len > self.segment_len {
                let what = format!("{} has {len} bytes, not {}", path.display(), self.segment_len);
                return Err(OpenError::Damaged(store.to_owned(), what));
            }
            self.segments.insert(ordinal, file);
        }
        Ok(())
    }

    /// Bytes that the file system has free for this process.
    pub(crate) fn free_bytes(&self) -> io::Result<usize> {
        let stat = rustix::fs::fstatvfs(&self.index)?;
        let bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Bytes of each segment that are zeroed or written: the first hole ends them, since space
    /// that is only reserved counts as one.
    pub(crate) fn prepared(&self) -> Vec<(u64, u64)> {
        let prepared = |file: &OwnedFd| rustix::fs::seek(file, SeekFrom::Hole(0)).unwrap_or(0);
        self.segments.iter().map(|(&ordinal, file)| (ordinal, prepared(file))).collect()
    }

    /// The epoch of the newest life; `None` when its file is missing or damaged.
    pub(crate) fn last_epoch(&self, store: u128) -> io::Result<Option<u64>> {
        match std::fs::read(self.dir.join(EPOCH_NAME)) {
            Ok(bytes) => Ok(parse_epoch(&bytes, store)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    pub(crate) fn store_epoch(&self, store: u128, epoch: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        bytes.put_u64(EPOCH_MAGIC);
        bytes.put_u128(store);
        bytes.put_u64(epoch);
        bytes.put_u32(crate::crc::crc32c(&bytes));
        replace(&self.dir, EPOCH_NAME, &bytes)
    }
}

fn parse_epoch(bytes: &[u8], store: u128) -> Option<u64> {
    let mut fields = Reader::new(bytes);
    let ours = fields.u64()? == EPOCH_MAGIC && fields.u128()? == store;
    let epoch = fields.u64()?;
    let sound = fields.u32()? == crate::crc::crc32c(bytes.get(..32)?);
    (ours && sound).then_some(epoch)
}

impl LogSource for ShardFiles {
    fn ordinals(&self) -> Vec<u64> {
        self.segments.keys().copied().collect()
    }

    fn read(&mut self, ordinal: u64, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        self.segments.get(&ordinal).map_or(Ok(0), |file| read_whole(file, at, dst))
    }

    fn read_view(&mut self, file: FileId, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        match file {
            FileId::Segment(ordinal) => self.read(ordinal, at, dst),
            FileId::Index => read_whole(&self.index, at, dst),
            FileId::Changes(number) => {
                let file = self.changes.get(crate::units::index(u64::from(number)));
                file.map_or(Ok(0), |file| read_whole(file, at, dst))
            }
        }
    }

    fn index_len(&mut self) -> io::Result<u64> {
        let len = rustix::fs::fstat(&self.index)?.st_size;
        Ok(u64::try_from(len).unwrap_or(0))
    }

    fn checkpoint(&mut self, slot: u32) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.dir.join(checkpoint_name(slot))) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    fn remove_checkpoint(&mut self, slot: u32) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(checkpoint_name(slot)))?;
        File::open(&self.dir)?.sync_all()
    }

    fn buffers(&mut self) -> io::Result<Option<Head>> {
        Ok(self.left_head())
    }

    fn read_buffers(&mut self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        self.read_left(at, dst)
    }

    fn restore(&mut self, ordinal: u64, at: u64, groups: &[u8]) -> io::Result<()> {
        let file = self.segments.get(&ordinal).ok_or(io::ErrorKind::NotFound)?;
        write_whole(file, at, groups)
    }
}

/// Writes all of `src`, durably when it returns.
fn write_whole(file: &OwnedFd, at: u64, src: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = src.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(file, rest, at + crate::units::wide(done)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            // What a short write leaves must be aligned, or it is written again.
            Ok(len) if len < rest.len() => done = (done + len) / 512 * 512,
            Ok(len) => done += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(())
}

/// Fills `dst`; fewer bytes only at the end of the file.
fn read_whole(file: &OwnedFd, at: u64, dst: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = dst.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, at + crate::units::wide(done)) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(done)
}
