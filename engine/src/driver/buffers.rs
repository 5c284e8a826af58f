//! The shared-memory file of a shard's group buffers, and the note beside the log that tells the next
//! opening where it is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::files::{ShardFiles, io_error, lock, replace};
use crate::error::OpenError;
use crate::format::buffers::{self, Head, Note};
use crate::layout::Geometry;
use crate::mem::Region;
use crate::units::wide;

const NOTE_NAME: &str = "buffers";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Longer than any head.
const HEAD_READ_LEN: usize = 4096;

/// What the last life has left.
pub(super) struct Left {
    pub(super) file: File,
    pub(super) head: Head,
}

/// The number that the system took when it started.
fn boot_id() -> io::Result<u128> {
    let text = std::fs::read_to_string(BOOT_ID)?;
    let hex: String = text.trim().chars().filter(|&digit| digit != '-').collect();
    u128::from_str_radix(&hex, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn boot() -> Result<u128, OpenError> {
    boot_id().map_err(|cause| io_error("read", Path::new(BOOT_ID), cause))
}

impl ShardFiles {
    /// Looks for what the last life has left in shared memory; recovery finds it then. Gives the bytes
    /// that may have been acknowledged and are gone.
    pub(crate) fn find_buffers(
        &mut self,
        geometry: &Geometry,
        last_epoch: Option<u64>,
    ) -> Result<u64, OpenError> {
        let path = self.dir.join(NOTE_NAME);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(cause) => return Err(io_error("read", &path, cause)),
        };
        let Some(note) = Note::decode(&bytes, geometry.store()) else {
            tracing::error!(path = %path.display(), "the note of group buffers is damaged");
            return Ok(0);
        };
        self.buffers = Some(note.path.clone());
        if last_epoch.is_some_and(|last| note.epoch < last) {
            // A later life has put everything of it on the device, but ended before it said so.
            return Ok(0);
        }
        let boot = boot()?;
        self.left = left(&note.path, &self.dir)?
            .filter(|left| left.head.counts(geometry, boot, last_epoch));
        Ok(if self.left.is_some() { 0 } else { note.bytes })
    }

    /// Makes the file for this life's buffers, reserves its memory, and notes it beside the log.
    pub(crate) fn make_buffers(
        &mut self,
        folder: &Path,
        geometry: &Geometry,
        epoch: u64,
        pool: (usize, usize),
    ) -> Result<(Arc<Region>, Head), OpenError> {
        self.remove_buffers();
        let head = buffers::head(geometry, boot()?, epoch, pool);
        let path = folder.join(format!("ringmq-{:032x}-{}", geometry.store(), geometry.shard()));
        let (file, region) = reserve(&path, &head, &self.dir)?;
        let bytes = buffers::bytes_max(&head);
        let note = Note { boot: head.boot, epoch, bytes, path: path.clone() };
        replace(&self.dir, NOTE_NAME, &note.encode(geometry.store()))
            .map_err(|cause| io_error("write", &self.dir.join(NOTE_NAME), cause))?;
        self.buffers = Some(path);
        self.reserved = Some(file);
        Ok((region, head))
    }

    /// Everything is on the device: the buffers of this life, or of the one before, are of no use any
    /// more.
    pub(crate) fn forget_buffers(&mut self) {
        // Without its note the file counts no more. What cannot be removed is replaced later.
        let _ = std::fs::remove_file(self.dir.join(NOTE_NAME));
        self.remove_buffers();
    }

    fn remove_buffers(&mut self) {
        (self.left, self.reserved) = (None, None);
        if let Some(path) = self.buffers.take() {
            let _ = std::fs::remove_file(path);
        }
    }

    pub(super) fn left_head(&self) -> Option<Head> {
        self.left.as_ref().map(|left| left.head)
    }

    pub(super) fn read_left(&self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        let Some(left) = &self.left else { return Ok(0) };
        left.file.read_exact_at(dst, at)?;
        Ok(dst.len())
    }
}

/// The file at this path, once nobody else holds it: a copy of the store could be open.
fn existing(path: &Path, store: &Path) -> Result<Option<File>, OpenError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => {
            lock(&file, store)?;
            Ok(Some(File::from(file)))
        }
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(cause) => Err(io_error("open", path, cause.into())),
    }
}

/// The file at this path, if it is one of group buffers, and as long as it says.
fn left(path: &Path, store: &Path) -> Result<Option<Left>, OpenError> {
    let Some(file) = existing(path, store)? else { return Ok(None) };
    let failed = |cause| io_error("read", path, cause);
    let mut bytes = vec![0; HEAD_READ_LEN];
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let head = Head::decode(bytes.get(..read).unwrap_or_default());
    Ok(head.filter(|head| wide(head.file_len()) <= len).map(|head| Left { file, head }))
}

/// Makes the file anew with all of its memory, so that no later write to it can fail, and locks it.
fn reserve(path: &Path, head: &Head, store: &Path) -> Result<(File, Arc<Region>), OpenError> {
    let len = head.file_len();
    let failed = |source| OpenError::Buffers { path: path.to_owned(), len, source };
    if existing(path, store)?.is_some() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
        .map_err(|cause| failed(cause.into()))?;
    let file = File::from(file);
    lock(&file, store)?;
    warn_of_a_disk(&file, path);
    let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, wide(len));
    let region = reserved
        .map_err(io::Error::from)
        .and_then(|()| Region::shared(&file, head.buffer_at(0), len));
    match region {
        Ok(region) => Ok((file, region)),
        Err(cause) => {
            let _ = std::fs::remove_file(path);
            Err(failed(cause))
        }
    }
}

/// A folder on a disk works, but the system then writes every group a second time.
fn warn_of_a_disk(file: &impl std::os::fd::AsFd, path: &Path) {
    const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58F6];
    let kind = rustix::fs::fstatfs(file).map(|stat| stat.f_type.cast_unsigned());
    if kind.is_ok_and(|kind| !MEMORY.contains(&kind)) {
        tracing::warn!(path = %path.display(), "group buffers are not in memory: the folder is on a disk");
    }
}
