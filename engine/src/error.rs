//! What can go wrong, by what the caller does next.

use std::path::PathBuf;
use std::{error, fmt, io};

/// Why an append or a fact was not accepted. Nothing of it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendError {
    /// The memory or the prepared disk space is used up by appends that wait for the device. A
    /// retry succeeds once [`Shard::take_room`](crate::Shard::take_room) says so.
    Backlogged,
    /// The log may not grow and nothing may be recycled. Reads go on, facts go on from a reserve; a
    /// retry succeeds once space is back and [`Shard::take_room`](crate::Shard::take_room) says so.
    DiskFull(DiskUse),
    /// The records need this many bytes, more than the limit that follows. A retry fails again.
    TooLarge {
        /// Bytes that the append needs in the log.
        len: usize,
        /// Bytes that a group may have at most.
        max: usize,
    },
    /// The queue has been deleted. A retry fails again; the key can be opened as another queue.
    Deleted,
    /// An earlier write failed, with this cause. The shard only reads until it is opened again.
    Poisoned(String),
    /// The engine is closed. Only a new opening takes appends again.
    Closed,
}

/// What a shard takes of the disk, and what is left. Unit of all fields: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// What the shard may take: its part of the store's budget.
    pub budget_bytes: u64,
    /// What its segments and its index take.
    pub used_bytes: u64,
    /// What the file system had free when it was last asked.
    pub free_bytes: u64,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backlogged => f.write_str("too many appends wait for the device"),
            Self::DiskFull(DiskUse { budget_bytes, used_bytes, free_bytes }) => write!(
                f,
                "no space for the log: it uses {used_bytes} of {budget_bytes} bytes, the device has \
                 {free_bytes} bytes free, some of which stay so; free space there, or allow it more"
            ),
            Self::TooLarge { len, max } => {
                write!(f, "the append needs {len} bytes, a group has at most {max}")
            }
            Self::Deleted => f.write_str("the queue is deleted"),
            Self::Poisoned(cause) => write!(f, "the shard stopped after a failed write: {cause}"),
            Self::Closed => Closed.fmt(f),
        }
    }
}

impl error::Error for AppendError {}

impl From<Closed> for AppendError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// Why a record could not be read although its queue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The device refused to read, with this cause. A retry may succeed.
    Io(String),
    /// What lies at this position is not what was written there. A retry fails again.
    Damaged(crate::LogOffset),
    /// The offset lies before the first record that is kept. Read on at this one.
    BelowMin(crate::QueueOffset),
    /// The offset lies behind the committed end, which is this one.
    BeyondEnd(crate::QueueOffset),
    /// Nothing will follow: an earlier write failed, with this cause. What is there can be read.
    Poisoned(String),
    /// The engine is closed. Only a new opening reads again.
    Closed,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(cause) => write!(f, "reading the log failed: {cause}"),
            Self::Damaged(position) => write!(f, "the log is damaged at position {position}"),
            Self::BelowMin(min) => write!(f, "the first record that is kept has offset {min}"),
            Self::BeyondEnd(max) => write!(f, "the queue ends at offset {max}"),
            Self::Poisoned(cause) => {
                write!(f, "no record will follow, a write has failed: {cause}")
            }
            Self::Closed => Closed.fmt(f),
        }
    }
}

impl error::Error for ReadError {}

impl From<Closed> for ReadError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// The engine is closed, or was closed before it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the engine is closed")
    }
}

impl error::Error for Closed {}

/// Why a store did not open. `Display` is one line that names the cause and the cure.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder or a file in it cannot be created, read or written.
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process holds the store's files.
    Held(PathBuf),
    /// The kernel does not offer `io_uring` to this process.
    RingForbidden(io::Error),
    /// The manifest is damaged or from a newer version; the text says which.
    Manifest(PathBuf, String),
    /// The options contradict each other or the store; the text says how.
    Options(String),
    /// The shared memory for group buffers cannot be had.
    Buffers {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// The log or a view of it is damaged beyond what recovery may decide alone.
    Damaged(PathBuf, String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, path, source } => {
                write!(f, "cannot {doing} {}: {source}; ", path.display())?;
                f.write_str(match source.kind() {
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        "choose a folder that this user may write"
                    }
                    io::ErrorKind::StorageFull => "free some space or choose another folder",
                    _ => "check the folder and the disk below it",
                })
            }
            Self::Held(path) => write!(
                f,
                "the store in {} is held by another process; stop it or choose another folder",
                path.display()
            ),
            Self::RingForbidden(source) => write!(
                f,
                "io_uring is not available: {source}; allow the io_uring system calls (in \
                 containers: a seccomp profile that permits them; kernel.io_uring_disabled = 0)"
            ),
            Self::Buffers { path, len, source } => write!(
                f,
                "cannot reserve {len} bytes of shared memory in {}: {source}; make room there (in \
                 containers: a larger --shm-size), choose another folder in memory, or acknowledge \
                 durable",
                path.display()
            ),
            Self::Manifest(path, what) => write!(f, "{}: {what}", path.display()),
            Self::Options(what) => f.write_str(what),
            Self::Damaged(path, what) => write!(
                f,
                "the store in {} is damaged: {what}; restore it from a copy",
                path.display()
            ),
        }
    }
}

impl error::Error for OpenError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io { source, .. }
            | Self::RingForbidden(source)
            | Self::Buffers { source, .. } => Some(source),
            _ => None,
        }
    }
}
