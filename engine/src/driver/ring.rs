//! The real driver: a shard's operations on an `io_uring` of its own.
//!
//! The ring is made for a thread that also does other things: its completions are announced
//! through an eventfd, and [`RingShard::turn`] never blocks. Files and the tail's memory are
//! registered with the kernel where it allows that; where locked memory is limited, writes go on
//! from unregistered memory.
#![expect(unsafe_code, reason = "the kernel reads and writes memory that operations own")]

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use slab::Slab;

use super::files::{ShardFiles, checkpoint_name, data_flags, segment_name};
use crate::error::AppendError;
use crate::mem::{RecordSlice, Region};
use crate::op::{Completion, FileId, Op, OpId, ReadBuffer, Unpopulated};
use crate::shard::{Shard, WRITE_DELAY_MS};
use crate::units::{EpochMillis, index, narrow, wide};

const ENTRIES: u32 = 256;
/// Operations that the ring holds at once; further ones wait in the driver.
const JOBS_MAX: usize = 128;
/// Segments that can be registered; more are used by their descriptors.
const FIXED_FILES: u32 = 1024;
/// Marks the completions of the bell; no job has this number.
const BELL: u64 = u64::MAX;
/// Marks the completion of the alarm.
const ALARM: u64 = u64::MAX - 1;
/// How long the alarm takes.
static DELAY: Timespec = Timespec::new().nsec(WRITE_DELAY_MS * 1_000_000);

/// An operation under way. The memory that the kernel uses is owned here until its completion.
enum Job {
    Write { id: OpId, file: FileId, at: u64, data: RecordSlice, done: usize },
    Read { id: OpId, file: FileId, at: u64, len: usize, done: usize, buffer: ReadBuffer },
    Create { id: OpId, ordinal: u64, len: u64, path: CString, step: CreateStep },
    Populate { id: OpId, memory: Unpopulated },
    Checkpoint { id: OpId, bytes: Vec<u8>, done: usize, paths: (CString, CString), step: SaveStep },
    Recycle { id: OpId, from: u64, to: u64, paths: (CString, CString), step: MoveStep },
    Remove { id: OpId, ordinal: u64, path: CString },
    Discard { id: OpId, file: FileId, at: u64, len: u64 },
}

enum MoveStep {
    Rename,
    SyncDir,
}

enum CreateStep {
    Open,
    Allocate(OwnedFd),
    Sync(OwnedFd),
    SyncDir(OwnedFd),
}

enum SaveStep {
    Open,
    Write(OwnedFd),
    Sync(OwnedFd),
    Rename,
    SyncDir,
}

/// What became of one completion.
enum Progress {
    /// The job needs another entry.
    Again(Job),
    Done(Completion),
}

struct OpenFile {
    fd: OwnedFd,
    fixed: Option<u32>,
}

struct RingDriver {
    ring: IoUring,
    event: OwnedFd,
    dir: OwnedFd,
    files: ShardFiles,
    open: HashMap<FileId, OpenFile>,
    next_fixed: u32,
    /// Registered places of files that are gone.
    free_fixed: Vec<u32>,
    fixed_files: bool,
    region: Arc<Region>,
    fixed_memory: bool,
    jobs: Slab<Job>,
    waiting: VecDeque<Job>,
    /// Operations that were answered without the ring.
    answered: Vec<Completion>,
    /// Room for the completions of one look at the ring.
    taken: Vec<cqueue::Entry>,
    bell: Option<Bell>,
    /// The ring looks at the bell.
    listening: bool,
    /// The ring will tell when writes that wait are due.
    is_alarm_set: bool,
    has_alarm_come: bool,
}

/// Wakes the thread that waits for a shard's ring, from any other thread.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    #[expect(clippy::host_endian_bytes, reason = "an eventfd counts in the machine's own order")]
    pub(crate) fn ring(&self) {
        // The counter cannot be full after fewer than 2^64 - 1 rings, and a full one is readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// A shard together with its ring, owned by one thread at a time.
pub struct RingShard {
    shard: Shard,
    driver: RingDriver,
    /// Room for the completions of one turn.
    done: Vec<Completion>,
    #[cfg(any(test, feature = "sim"))]
    recorder: Option<super::sim::recording::Recorder>,
}

impl RingDriver {
    fn new(mut files: ShardFiles, region: Arc<Region>) -> io::Result<Self> {
        let ring = IoUring::builder().setup_coop_taskrun().setup_clamp().build(ENTRIES)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let fixed_files = ring.submitter().register_files_sparse(FIXED_FILES).is_ok();
        // SAFETY: the region lives as long as the driver, which drains the ring before it drops
        // its fields, so the kernel never uses the registration behind the memory's back.
        let registered = unsafe { ring.submitter().register_buffers(&[iovec(&region)]) };
        if let Err(cause) = &registered {
            tracing::info!(%cause, "log memory is not registered with the kernel; writing goes on without");
        }
        let dir = OwnedFd::from(std::fs::File::open(&files.dir)?);
        let segments = std::mem::take(&mut files.segments);
        let index = files.index.try_clone()?;
        let changes = [files.changes[0].try_clone()?, files.changes[1].try_clone()?];
        let mut driver = Self {
            ring,
            event,
            dir,
            files,
            open: HashMap::new(),
            next_fixed: 0,
            free_fixed: Vec::new(),
            fixed_files,
            region,
            fixed_memory: registered.is_ok(),
            jobs: Slab::new(),
            waiting: VecDeque::new(),
            answered: Vec::new(),
            taken: Vec::new(),
            bell: None,
            listening: false,
            is_alarm_set: false,
            has_alarm_come: false,
        };
        driver.add_file(FileId::Index, index);
        for (number, fd) in (0..).zip(changes) {
            driver.add_file(FileId::Changes(number), fd);
        }
        for (ordinal, fd) in segments {
            driver.add_file(FileId::Segment(ordinal), fd);
        }
        Ok(driver)
    }

    fn add_file(&mut self, id: FileId, fd: OwnedFd) {
        let free = self.free_fixed.pop();
        let slot = free.unwrap_or(self.next_fixed);
        let fixed = self.fixed_files
            && slot < FIXED_FILES
            && self.ring.submitter().register_files_update(slot, &[fd.as_raw_fd()]).is_ok();
        self.next_fixed += u32::from(fixed && free.is_none());
        self.open.insert(id, OpenFile { fd, fixed: fixed.then_some(slot) });
    }

    fn start(&mut self, op: Op) {
        let job = match op {
            Op::Write { id, file, at, data } => Job::Write { id, file, at, data, done: 0 },
            Op::Read { id, file, at, len, buffer } => {
                Job::Read { id, file, at, len, done: 0, buffer }
            }
            Op::FreeSpace { id } => {
                let result = self.files.free_bytes();
                self.answered.push(Completion { id, result, buffer: None });
                return;
            }
            Op::CreateSegment { id, ordinal, len } => {
                let path = self.path(&segment_name(ordinal));
                Job::Create { id, ordinal, len, path, step: CreateStep::Open }
            }
            Op::RecycleSegment { id, from, to } => {
                let paths = (self.path(&segment_name(from)), self.path(&segment_name(to)));
                Job::Recycle { id, from, to, paths, step: MoveStep::Rename }
            }
            Op::RemoveSegment { id, ordinal } => {
                Job::Remove { id, ordinal, path: self.path(&segment_name(ordinal)) }
            }
            Op::Discard { id, file, at, len } => Job::Discard { id, file, at, len },
            Op::Populate { id, memory } => Job::Populate { id, memory },
            Op::ReplaceCheckpoint { id, slot, bytes } => {
                let name = checkpoint_name(slot);
                let paths = (self.path(&format!("{name}.new")), self.path(&name));
                Job::Checkpoint { id, bytes, done: 0, paths, step: SaveStep::Open }
            }
        };
        self.waiting.push_back(job);
    }

    fn path(&self, name: &str) -> CString {
        CString::new(self.files.dir.join(name).as_os_str().as_bytes())
            .expect("an open folder's path has no zero byte")
    }

    /// Puts waiting jobs on the ring as far as it has room.
    fn submit(&mut self) -> io::Result<()> {
        while self.jobs.len() < JOBS_MAX {
            let Some(job) = self.waiting.pop_front() else { break };
            self.push(job)?;
        }
        self.listen()?;
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        retry(|| self.ring.submit()).map(drop)
    }

    fn push(&mut self, job: Job) -> io::Result<()> {
        let key = self.jobs.insert(job);
        let entry = self.entry(key).user_data(wide(key));
        // SAFETY: the memory, paths and descriptors that the entry names are owned by the job
        // in slot `key` (or by the driver, for files and the folder). Only `reap` takes a job
        // out, after its completion; `drop` waits for all completions before fields go.
        unsafe { self.push_entry(&entry) }
    }

    /// Has the ring look at the bell until further notice.
    fn listen(&mut self) -> io::Result<()> {
        let Some(bell) = self.bell.as_ref().filter(|_| !self.listening) else { return Ok(()) };
        let events = u32::from(rustix::event::PollFlags::IN.bits());
        let entry = opcode::PollAdd::new(Fd(bell.0.as_raw_fd()), events).multi(true).build();
        // SAFETY: the entry names no memory. The descriptor lives as long as the driver, and the
        // kernel holds the file itself until the ring is gone.
        unsafe { self.push_entry(&entry.user_data(BELL)) }?;
        self.listening = true;
        Ok(())
    }

    /// Has the ring tell when writes that wait are due.
    fn set_alarm(&mut self) -> io::Result<()> {
        if self.is_alarm_set {
            return Ok(());
        }
        let entry = opcode::Timeout::new(&raw const DELAY).build();
        // SAFETY: the time that the entry names is never freed.
        unsafe { self.push_entry(&entry.user_data(ALARM)) }?;
        self.is_alarm_set = true;
        Ok(())
    }

    /// Whether the ring has something that will complete.
    fn has_entries(&self) -> bool {
        !self.jobs.is_empty() || self.listening || self.is_alarm_set
    }

    /// Puts an entry on the ring, which is emptied if it is full.
    ///
    /// # Safety
    ///
    /// What the entry names must live until its completion.
    unsafe fn push_entry(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: as the caller promises.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            retry(|| self.ring.submit())?;
        }
    }

    fn entry(&mut self, key: usize) -> squeue::Entry {
        let open = &self.open;
        let dir = Fd(self.dir.as_raw_fd());
        match self.jobs.get_mut(key).expect("inserted by the caller") {
            Job::Write { file, at, data, done, .. } => {
                let rest = data.get(*done..).unwrap_or_default();
                let (ptr, len, at) = (rest.as_ptr(), narrow(rest.len()), *at + wide(*done));
                let start = self.region.start() as usize;
                let inside = (start..start + self.region.len()).contains(&(ptr as usize));
                match open.get(file) {
                    Some(OpenFile { fixed: Some(slot), .. }) if inside && self.fixed_memory => {
                        opcode::WriteFixed::new(Fixed(*slot), ptr, len, 0).offset(at).build()
                    }
                    Some(OpenFile { fixed: Some(slot), .. }) => {
                        opcode::Write::new(Fixed(*slot), ptr, len).offset(at).build()
                    }
                    file => opcode::Write::new(Fd(raw(file)), ptr, len).offset(at).build(),
                }
            }
            Job::Read { file, at, len, done, buffer, .. } => {
                // SAFETY: `done <= len`, and the buffer was made with room for `len` bytes.
                let ptr = unsafe { buffer.0.raw().add(*done) };
                let (len, at) = (narrow(*len - *done), *at + wide(*done));
                match open.get(file) {
                    Some(OpenFile { fixed: Some(slot), .. }) => {
                        opcode::Read::new(Fixed(*slot), ptr, len).offset(at).build()
                    }
                    file => opcode::Read::new(Fd(raw(file)), ptr, len).offset(at).build(),
                }
            }
            Job::Create { path, len, step, .. } => match step {
                CreateStep::Open => {
                    let flags = data_flags(self.files.direct) | rustix::fs::OFlags::CREATE;
                    open_entry(path, flags)
                }
                CreateStep::Allocate(fd) => {
                    opcode::Fallocate::new(Fd(fd.as_raw_fd()), *len).build()
                }
                CreateStep::Sync(fd) => opcode::Fsync::new(Fd(fd.as_raw_fd())).build(),
                CreateStep::SyncDir(_) => opcode::Fsync::new(dir).build(),
            },
            Job::Checkpoint { bytes, done, paths, step, .. } => match step {
                SaveStep::Open => {
                    let flags = rustix::fs::OFlags::WRONLY
                        | rustix::fs::OFlags::CREATE
                        | rustix::fs::OFlags::TRUNC
                        | rustix::fs::OFlags::CLOEXEC;
                    open_entry(&paths.0, flags)
                }
                SaveStep::Write(fd) => {
                    let rest = bytes.get(*done..).unwrap_or_default();
                    let len = narrow(rest.len().min(1 << 30));
                    let fd = Fd(fd.as_raw_fd());
                    opcode::Write::new(fd, rest.as_ptr(), len).offset(wide(*done)).build()
                }
                SaveStep::Sync(fd) => opcode::Fsync::new(Fd(fd.as_raw_fd())).build(),
                SaveStep::Rename => rename_entry(paths),
                SaveStep::SyncDir => opcode::Fsync::new(dir).build(),
            },
            Job::Recycle { paths, step, .. } => match step {
                MoveStep::Rename => rename_entry(paths),
                MoveStep::SyncDir => opcode::Fsync::new(dir).build(),
            },
            Job::Remove { path, .. } => {
                opcode::UnlinkAt::new(Fd(rustix::fs::CWD.as_raw_fd()), path.as_ptr()).build()
            }
            Job::Populate { memory, .. } => {
                let Unpopulated(region) = memory;
                let advice = rustix::mm::Advice::LinuxPopulateWrite as i32;
                let len = i64::try_from(region.len()).unwrap_or(i64::MAX);
                opcode::Madvise::new(region.start().cast(), len, advice).build()
            }
            Job::Discard { file, at, len, .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let fd = Fd(raw(open.get(file)));
                opcode::Fallocate::new(fd, *len).offset(*at).mode(mode).build()
            }
        }
    }

    /// Takes every completion that is there and gives finished operations to `done`.
    fn reap(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let mut taken = std::mem::take(&mut self.taken);
            taken.extend(self.ring.completion());
            if taken.is_empty() {
                self.taken = taken;
                return Ok(());
            }
            for entry in taken.drain(..) {
                match entry.user_data() {
                    BELL => self.listening = cqueue::more(entry.flags()),
                    ALARM => (self.is_alarm_set, self.has_alarm_come) = (false, true),
                    _ => {}
                }
                let key = index(entry.user_data());
                let Some(job) = self.jobs.try_remove(key) else { continue };
                match self.advance(job, entry.result()) {
                    Progress::Again(job) => self.push(job)?,
                    Progress::Done(completion) => done.push(completion),
                }
            }
            self.taken = taken;
        }
    }

    fn advance(&mut self, job: Job, result: i32) -> Progress {
        let transient =
            [rustix::io::Errno::INTR, rustix::io::Errno::AGAIN].map(|errno| -errno.raw_os_error());
        if transient.contains(&result) {
            return Progress::Again(job);
        }
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        match job {
            Job::Write { id, file, at, data, done } => match result {
                Ok(0) => finish(id, Err(io::ErrorKind::WriteZero.into())),
                Ok(len) if done + len < data.len() => {
                    // A short write leaves the rest aligned to the block, or it is written again.
                    let done = (done + len) / 512 * 512;
                    Progress::Again(Job::Write { id, file, at, data, done })
                }
                Ok(_) => finish(id, Ok(data.len())),
                Err(cause) => finish(id, Err(cause)),
            },
            Job::Read { id, file, at, len, done, buffer } => match result {
                Ok(more) if more > 0 && done + more < len && more % 512 == 0 => {
                    let done = done + more;
                    Progress::Again(Job::Read { id, file, at, len, done, buffer })
                }
                result => {
                    let result = result.map(|more| done + more);
                    Progress::Done(Completion { id, result, buffer: Some(buffer) })
                }
            },
            Job::Create { id, ordinal, len, path, step } => match result {
                Ok(value) => self.created(id, ordinal, len, path, step, value),
                Err(cause) => {
                    // What was made so far is of no use; a later attempt starts over.
                    let _ = std::fs::remove_file(self.files.dir.join(segment_name(ordinal)));
                    finish(id, Err(cause))
                }
            },
            Job::Checkpoint { id, bytes, done, paths, step } => match result {
                Ok(value) => saved(id, bytes, done, paths, step, value),
                Err(cause) => finish(id, Err(cause)),
            },
            Job::Recycle { id, from, to, paths, step } => match (result, step) {
                (Ok(_), MoveStep::Rename) => {
                    // The name has changed already, whatever becomes of the rest.
                    if let Some(file) = self.open.remove(&FileId::Segment(from)) {
                        self.open.insert(FileId::Segment(to), file);
                    }
                    Progress::Again(Job::Recycle { id, from, to, paths, step: MoveStep::SyncDir })
                }
                (result, _) => finish(id, result),
            },
            Job::Remove { id, ordinal, .. } => {
                if result.is_ok() {
                    self.drop_file(FileId::Segment(ordinal));
                }
                finish(id, result)
            }
            Job::Discard { id, .. } | Job::Populate { id, .. } => finish(id, result),
        }
    }

    fn drop_file(&mut self, id: FileId) {
        let Some(OpenFile { fixed: Some(slot), .. }) = self.open.remove(&id) else { return };
        // The kernel keeps a registered file open until its place is given to another.
        if self.ring.submitter().register_files_update(slot, &[-1]).is_ok() {
            self.free_fixed.push(slot);
        }
    }

    fn created(
        &mut self,
        id: OpId,
        ordinal: u64,
        len: u64,
        path: CString,
        step: CreateStep,
        value: usize,
    ) -> Progress {
        let step = match step {
            CreateStep::Open => {
                let fd = own(value);
                let flag = rustix::fs::FlockOperation::NonBlockingLockExclusive;
                if let Err(cause) = rustix::fs::flock(&fd, flag) {
                    return finish(id, Err(cause.into()));
                }
                CreateStep::Allocate(fd)
            }
            CreateStep::Allocate(fd) => CreateStep::Sync(fd),
            CreateStep::Sync(fd) => CreateStep::SyncDir(fd),
            CreateStep::SyncDir(fd) => {
                self.add_file(FileId::Segment(ordinal), fd);
                return finish(id, Ok(0));
            }
        };
        Progress::Again(Job::Create { id, ordinal, len, path, step })
    }

    /// Waits until the ring holds nothing any more.
    fn drain(&mut self) {
        self.waiting.clear();
        while !self.jobs.is_empty() {
            let waited = retry(|| self.ring.submit_and_wait(1));
            let entries: Vec<cqueue::Entry> = self.ring.completion().collect();
            for entry in entries {
                self.jobs.try_remove(index(entry.user_data()));
            }
            if waited.is_err() {
                // Without the ring nothing tells when the kernel is done with the memory.
                std::mem::forget(std::mem::take(&mut self.jobs));
                std::mem::forget(Arc::clone(&self.region));
            }
        }
    }
}

impl Drop for RingDriver {
    fn drop(&mut self) {
        self.drain();
    }
}

fn iovec(region: &Region) -> libc::iovec {
    libc::iovec { iov_base: region.start().cast(), iov_len: region.len() }
}

fn raw(file: Option<&OpenFile>) -> RawFd {
    // An unknown file gives EBADF in the completion, which the shard reports.
    file.map_or(-1, |file| file.fd.as_raw_fd())
}

fn own(value: usize) -> OwnedFd {
    let fd = RawFd::try_from(value).expect("the kernel gave a descriptor");
    // SAFETY: the completion of an open operation gives a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn open_entry(path: &CString, flags: rustix::fs::OFlags) -> squeue::Entry {
    opcode::OpenAt::new(Fd(rustix::fs::CWD.as_raw_fd()), path.as_ptr())
        .flags(flags.bits().cast_signed())
        .mode(0o644)
        .build()
}

fn rename_entry((from, to): &(CString, CString)) -> squeue::Entry {
    let at = Fd(rustix::fs::CWD.as_raw_fd());
    opcode::RenameAt::new(at, from.as_ptr(), at, to.as_ptr()).build()
}

fn saved(
    id: OpId,
    bytes: Vec<u8>,
    done: usize,
    paths: (CString, CString),
    step: SaveStep,
    value: usize,
) -> Progress {
    let (step, done) = match step {
        SaveStep::Open => (SaveStep::Write(own(value)), done),
        SaveStep::Write(_) if value == 0 => {
            return finish(id, Err(io::ErrorKind::WriteZero.into()));
        }
        SaveStep::Write(fd) if done + value < bytes.len() => (SaveStep::Write(fd), done + value),
        SaveStep::Write(fd) => (SaveStep::Sync(fd), bytes.len()),
        SaveStep::Sync(_) => (SaveStep::Rename, done),
        SaveStep::Rename => (SaveStep::SyncDir, done),
        SaveStep::SyncDir => return finish(id, Ok(bytes.len())),
    };
    Progress::Again(Job::Checkpoint { id, bytes, done, paths, step })
}

fn finish(id: OpId, result: io::Result<usize>) -> Progress {
    Progress::Done(Completion { id, result, buffer: None })
}

/// Repeats a call that a signal interrupted, or that the kernel wants to be tried again.
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            // Too many completions wait to be taken: the caller's next turn takes them.
            Err(cause) if cause.raw_os_error() == Some(libc::EBUSY) => return Ok(0),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            result => return result,
        }
    }
}

impl RingShard {
    pub(crate) fn new(shard: Shard, files: ShardFiles, region: Arc<Region>) -> io::Result<Self> {
        Ok(Self {
            shard,
            driver: RingDriver::new(files, region)?,
            done: Vec::new(),
            #[cfg(any(test, feature = "sim"))]
            recorder: None,
        })
    }

    /// A bell that ends the wait of [`turn_blocking`](Self::turn_blocking) and makes
    /// [`event_fd`](Self::event_fd) readable. The first one makes the ring listen.
    pub(crate) fn bell(&mut self) -> io::Result<Bell> {
        let bell = match self.driver.bell.take() {
            Some(bell) => bell,
            None => Bell::new()?,
        };
        let other = bell.0.try_clone();
        self.driver.bell = Some(bell);
        self.driver.submit()?;
        Ok(Bell(other?))
    }

    /// The shard itself.
    pub fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// From now on everything that goes through the ring is kept.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn record(&mut self) {
        self.recorder = Some(super::sim::recording::Recorder::default());
    }

    /// How much has been kept.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn recorded(&self) -> usize {
        self.recorder.as_ref().map_or(0, |recorder| recorder.events.len())
    }

    /// What has been kept.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn take_recorded(&mut self) -> Vec<super::sim::recording::Recorded> {
        self.recorder.take().map(|recorder| recorder.events).unwrap_or_default()
    }

    /// The shard, to look at.
    pub(crate) fn view(&self) -> &Shard {
        &self.shard
    }

    /// Takes a shard that was just opened off its ring, for a driver of the caller's own: one that
    /// performs the operations of [`Shard::next_op`] in its own way. The files stay as they are. In a
    /// buffered store such a driver also minds [`Shard::delays_writes`].
    pub fn into_shard(self) -> Shard {
        self.shard
    }

    /// Becomes readable when completions wait for a [`turn`](Self::turn). Read it before the turn.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.driver.event.as_fd()
    }

    /// Takes completions, closes the open group if the device has a slot for it, and submits what
    /// the shard wants. Never blocks. Call it when no more input is waiting.
    ///
    /// `now` must move on as time does: while appends go on, segments are made ready at a pace that
    /// follows it, and [`Shard::is_preparing`] does not end under a clock that stands still.
    ///
    /// # Errors
    ///
    /// The kernel's, when the ring itself fails; the shard cannot go on then.
    pub fn turn(&mut self, now: EpochMillis) -> io::Result<()> {
        self.driver.reap(&mut self.done)?;
        for completion in self.done.drain(..) {
            #[cfg(any(test, feature = "sim"))]
            if let Some(recorder) = &mut self.recorder {
                recorder.done(completion.id);
            }
            self.shard.take_outcome(completion, now);
        }
        if std::mem::take(&mut self.driver.has_alarm_come) {
            self.shard.hurry_writes();
        }
        // Groups that wait go to the device first: it works while the views take what is committed.
        self.submit(now)?;
        self.shard.settle();
        self.shard.input_drained(now);
        self.submit(now)
    }

    /// Gives the device what was appended, if that is worth a write of its own. To be called between
    /// appends when many are made in a row, so that the device does not wait for the last of them; it
    /// costs next to nothing when there is nothing to do.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub fn feed(&mut self, now: EpochMillis) -> io::Result<()> {
        if self.shard.close_if_worth() { self.submit(now) } else { Ok(()) }
    }

    fn submit(&mut self, now: EpochMillis) -> io::Result<()> {
        loop {
            while let Some(op) = self.shard.next_op() {
                #[cfg(any(test, feature = "sim"))]
                if let Some(recorder) = &mut self.recorder {
                    recorder.started(&op);
                }
                self.driver.start(op);
            }
            if self.driver.answered.is_empty() {
                if self.shard.delays_writes() {
                    self.driver.set_alarm()?;
                }
                return self.driver.submit();
            }
            for completion in std::mem::take(&mut self.driver.answered) {
                self.shard.complete(completion, now);
            }
        }
    }

    /// As [`turn`](Self::turn), but first waits for a completion, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub fn turn_blocking(&mut self, now: EpochMillis, timeout: Duration) -> io::Result<()> {
        let committed = self.shard.committed();
        self.shard.input_drained(now);
        self.submit(now)?;
        // In a buffered store that alone may be what the caller waits for.
        let is_news = self.shard.committed() != committed;
        if !is_news && self.driver.has_entries() {
            let time = Timespec::from(timeout);
            let args = SubmitArgs::new().timespec(&time);
            match self.driver.ring.submitter().submit_with_args(1, &args) {
                Err(cause)
                    if cause.raw_os_error() == Some(libc::ETIME)
                        || cause.kind() == io::ErrorKind::Interrupted => {}
                result => drop(result?),
            }
        }
        self.turn(now)
    }

    /// Writes everything that was appended, then a checkpoint, and closes the files. `now` gives
    /// the time. Blocks until it is done.
    ///
    /// # Errors
    ///
    /// The kernel's, or why the shard was poisoned. What was acknowledged is safe all the same.
    pub fn close(mut self, now: impl Fn() -> EpochMillis) -> io::Result<()> {
        self.finish(now)
    }

    pub(crate) fn finish(&mut self, now: impl Fn() -> EpochMillis) -> io::Result<()> {
        const WAIT: Duration = Duration::from_millis(50);
        self.shard.start_checkpoint(now());
        loop {
            // Any other refusal means that the tail is full: the next completion makes room.
            if let Err(AppendError::DiskFull(_)) = self.shard.flush_staged(now()) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if !self.shard.is_checkpointed() {
                self.shard.start_checkpoint(now());
            }
            if let Some(cause) = self.shard.poisoned() {
                return Err(io::Error::other(cause.to_owned()));
            }
            if self.shard.is_closable() {
                self.driver.files.forget_buffers();
                return Ok(());
            }
            self.turn_blocking(now(), WAIT)?;
        }
    }
}
