//! What the device can do without an engine: `io_uring` on a file that is written already.
//!
//! Writes are direct and durable, from registered memory to a registered file, sequential, with a
//! fixed number in flight: the pattern of the log, and nothing else. So a ratio to these figures says
//! what the engine costs, whatever device and neighbours the run has met.
#![expect(unsafe_code, reason = "bare ring operations on memory that outlives them")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use io_uring::types::Fixed;
use io_uring::{IoUring, opcode, squeue};
use rustix::fs::{Mode, OFlags};

use super::Bench;
use super::figures::{Figures, Lap};
use super::own::Failure;
use super::table::{Bar, Row, Table};
use crate::measure::median;

const ALIGN: usize = 4096;
/// Longest operation.
pub(crate) const LEN_MAX: usize = 1 << 20;
/// Operations in flight at most.
const DEPTH_MAX: usize = 16;

/// Writes of these lengths, this many in flight: bytes.
const LENGTHS: [usize; 8] =
    [512, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
const DEPTHS: [usize; 4] = [1, 2, 3, 4];

/// A table of the device alone.
pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let mut device = Device::new(&bench.dir, bench.bytes.next_multiple_of(LEN_MAX as u64))?;
    for (len, depth) in LENGTHS.iter().flat_map(|&len| DEPTHS.map(|depth| (len, depth))) {
        let what = format!("{} KiB, {depth} in flight", len as f64 / 1024.0);
        if !bench.wants(&what) {
            continue;
        }
        // Short writes are bounded by number, long ones by bytes.
        let bytes = bench.bytes.min(2000 * len as u64);
        let runs: Vec<Figures> = (0..bench.repetitions)
            .map(|_| device.writes(len, depth, bytes))
            .collect::<io::Result<_>>()?;
        let quantile = |quantile| median(runs.iter().map(|run| run.quantile_us(quantile)));
        table.add(Row {
            what,
            got: format!("p50 {:.0}, p99 {:.0} us", quantile(0.5), quantile(0.99)),
            measure: "MB/s",
            values: runs.iter().map(|run| run.byte_rate() / 1e6).collect(),
            bar: Bar::None,
            details: runs.iter().map(Figures::json).collect(),
        })?;
    }
    Ok(())
}

/// Reads and writes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// What a run does.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    way: Way,
    /// Which of the registered files.
    file: u32,
    /// Length of an operation, how many are in flight, and what they move together.
    len: usize,
    depth: usize,
    bytes: u64,
    /// Beside them as many bytes are written to new space, this many at a time, one after the other;
    /// 0: none are.
    beside: usize,
}

/// The file that is written already, and the one that only has its space.
const WRITTEN: u32 = 0;
const NEW: u32 = 1;
/// How far writes may be ahead of those beside them. Unit: bytes.
const AHEAD: u64 = 8 << 20;
/// The slot of writes beside others.
const BESIDE: usize = DEPTH_MAX - 1;

/// Files of its own, open as the log's files are, removed in the end.
pub(crate) struct Device {
    path: PathBuf,
    new_path: PathBuf,
    len: u64,
    ring: IoUring,
    memory: Vec<u8>,
    /// Operations that the kernel has.
    pending: usize,
    _file: OwnedFd,
}

/// A new file with space for `len` bytes.
fn reserved(path: &Path, len: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::TRUNC
        | OFlags::DIRECT
        | OFlags::DSYNC
        | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)?;
    rustix::fs::fsync(&file)?;
    Ok(file)
}

impl Device {
    /// Makes a file of `len` bytes, a multiple of 1 MiB, and writes all of it once.
    pub(crate) fn new(dir: &Path, len: u64) -> io::Result<Self> {
        let (path, new_path) = (dir.join("bare"), dir.join("bare-new"));
        let file = reserved(&path, len)?;
        let ring = IoUring::builder().setup_coop_taskrun().build(64)?;
        ring.submitter().register_files(&[file.as_raw_fd(), -1])?;
        let mut memory = vec![0; DEPTH_MAX * LEN_MAX + ALIGN];
        // Bytes that a device cannot shorten.
        let mut word = 1_u64;
        for chunk in memory.chunks_mut(8) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chunk.iter_mut().zip(word.to_be_bytes()).for_each(|(to, from)| *to = from);
        }
        let mut device = Self { path, new_path, len, ring, memory, pending: 0, _file: file };
        device.register();
        device.writes(LEN_MAX, 4, len)?;
        Ok(device)
    }

    fn start(&self) -> usize {
        self.memory.as_ptr().align_offset(ALIGN)
    }

    fn register(&mut self) {
        let start = self.start();
        let Some(memory) = self.memory.get_mut(start..start + DEPTH_MAX * LEN_MAX) else { return };
        let base = memory.as_mut_ptr().cast();
        let iovec = libc::iovec { iov_base: base, iov_len: memory.len() };
        // SAFETY: the memory is never moved or shrunk, and lives as long as the ring.
        // Where locked memory is limited, the operations below fail and say so.
        let _ = unsafe { self.ring.submitter().register_buffers(&[iovec]) };
    }

    /// Writes of `len` bytes, `depth` at a time, `bytes` in all.
    pub(crate) fn writes(&mut self, len: usize, depth: usize, bytes: u64) -> io::Result<Figures> {
        self.run(Pattern { way: Way::Write, file: WRITTEN, len, depth, bytes, beside: 0 })
    }

    /// As [`writes`](Self::writes), where each byte goes to space that nothing was ever written to: at
    /// once, or after other writes have prepared it, whichever is faster.
    pub(crate) fn writes_to_new_space(
        &mut self,
        len: usize,
        depth: usize,
        bytes: u64,
    ) -> io::Result<Figures> {
        let direct = Pattern { way: Way::Write, file: NEW, len, depth, bytes, beside: 0 };
        let mut best: Option<Figures> = None;
        for (file, beside) in [(NEW, 0), (WRITTEN, 256 << 10), (WRITTEN, 1 << 20)] {
            // Removing the file gives its blocks back to the device.
            let _ = std::fs::remove_file(&self.new_path);
            let new = reserved(&self.new_path, bytes + 2 * LEN_MAX as u64)?;
            self.ring.submitter().register_files_update(NEW, &[new.as_raw_fd()])?;
            let figures = self.run(Pattern { file, beside, ..direct })?;
            if best.as_ref().is_none_or(|best| best.byte_rate() < figures.byte_rate()) {
                best = Some(figures);
            }
        }
        best.ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Reads of `len` bytes, `depth` at a time, `bytes` in all.
    pub(crate) fn reads(&mut self, len: usize, depth: usize, bytes: u64) -> io::Result<Figures> {
        self.run(Pattern { way: Way::Read, file: WRITTEN, len, depth, bytes, beside: 0 })
    }

    fn run(&mut self, pattern: Pattern) -> io::Result<Figures> {
        let Pattern { len, depth, bytes, beside, .. } = pattern;
        assert!(len <= LEN_MAX && depth < BESIDE, "{depth} operations of {len} bytes");
        // Bytes that are written beside, unless a write of them is under way.
        let (mut zeroed, mut behind) = (Some(0_u64), 0_u64);
        let mut figures = Figures::start();
        let mut started = [Lap::default(); DEPTH_MAX];
        let (mut at, mut issued, mut done) = (0_u64, 0_u64, 0_u64);
        let (step, count) = (len as u64, bytes / len as u64);
        let mut free: Vec<usize> = (0..depth).collect();
        while done < count {
            while issued < count
                && (beside == 0 || issued * step < behind + AHEAD)
                && let Some(slot) = free.pop()
            {
                if at + step > self.len {
                    at = 0;
                }
                if let Some(started) = started.get_mut(slot) {
                    *started = figures.lap();
                }
                self.push(pattern, slot, at)?;
                at += step;
                issued += 1;
            }
            if beside > 0
                && let Some(from) = zeroed.filter(|&zeroed| zeroed < done * step)
            {
                self.push(Pattern { file: NEW, len: beside, ..pattern }, BESIDE, from)?;
                zeroed = None;
            }
            self.ring.submit_and_wait(1)?;
            while let Some(entry) = self.ring.completion().next() {
                self.pending -= 1;
                let slot = usize::try_from(entry.user_data()).unwrap_or(0);
                let wanted = if slot == BESIDE { beside } else { len };
                match usize::try_from(entry.result()) {
                    Ok(moved) if moved == wanted => {}
                    Ok(moved) => return Err(io::Error::other(format!("{moved} of {len} bytes"))),
                    Err(_) => return Err(io::Error::from_raw_os_error(-entry.result())),
                }
                if slot == BESIDE {
                    behind += beside as u64;
                    zeroed = Some(behind);
                    continue;
                }
                figures.took(started.get(slot).copied().unwrap_or_default(), 1);
                free.push(slot);
                done += 1;
            }
        }
        figures.end(done, done * step);
        if zeroed.is_none() {
            self.ring.submit_and_wait(1)?;
            self.pending -= self.ring.completion().count();
        }
        Ok(figures)
    }

    fn push(&mut self, pattern: Pattern, slot: usize, at: u64) -> io::Result<()> {
        let Pattern { way, file, len, .. } = pattern;
        let start = self.start() + slot * LEN_MAX;
        let memory = self.memory.get_mut(start..start + len).ok_or(io::ErrorKind::InvalidInput)?;
        let (base, len) = (memory.as_mut_ptr(), u32::try_from(len).unwrap_or(0));
        let entry: squeue::Entry = match way {
            Way::Write => opcode::WriteFixed::new(Fixed(file), base, len, 0).offset(at).build(),
            Way::Read => opcode::ReadFixed::new(Fixed(file), base, len, 0).offset(at).build(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: the memory of a slot belongs to one operation at a time: a slot is free again only
        // after its completion. `drop` waits for all of them.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.pending += 1;
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // After an error, operations may be under way.
        while self.pending > 0 {
            if self.ring.submit_and_wait(1).is_err() {
                std::mem::forget(std::mem::take(&mut self.memory));
                break;
            }
            self.pending -= self.ring.completion().count().min(self.pending);
        }
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.new_path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_was_asked_for_is_moved_and_the_file_is_removed() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut device = Device::new(dir.path(), 2 << 20).unwrap();
        for (len, depth) in [(512, 1), (4096, 4), (1 << 20, 2)] {
            let bytes = 50 * len as u64;
            let figures = device.writes(len, depth, bytes).unwrap();
            assert_eq!((figures.bytes, figures.count), (bytes, 50));
            assert_eq!(device.reads(len, depth, bytes).unwrap().bytes, bytes);
            assert!(figures.quantile_us(0.5) > 0.0);
            assert_eq!(device.writes_to_new_space(len, depth, bytes).unwrap().bytes, bytes);
        }
        drop(device);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
