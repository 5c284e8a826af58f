//! Aligned memory that the kernel, the shard and its readers share.
//!
//! A [`Chunk`] is filled from the front: its one [`ChunkTail`] may write the part behind the
//! frozen prefix, and every [`RecordSlice`] sees only frozen bytes, which nobody writes again while
//! a slice of the chunk exists. So an append needs no lock and a reader no copy.
#![expect(unsafe_code, reason = "memory written by its one owner while others read its prefix")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Enough for direct I/O on every device and for whole pages.
const ALIGN: usize = 4096;
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;
/// Bytes of a record that are fetched ahead; of longer ones the processor fetches the rest by itself.
#[cfg(target_arch = "x86_64")]
const PREFETCH_MAX: usize = 2048;
/// Mapped regions are aligned to this, and the kernel is asked for huge pages: the log's memory is used
/// in turn, and with small pages nearly every record would miss the TLB.
const HUGE: usize = 2 << 20;
/// Regions of this length and more are mapped; shorter ones use the allocator's memory again.
const MAPPED_MIN: usize = 4 * HUGE;

/// One allocation, cut into chunks. The ring can register it as a whole. A large one takes memory only
/// as far as it is used, or touched.
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Bytes at the front that belong to no chunk: words for whoever looks at the memory later.
    head_len: usize,
    /// Address and length of a mapping of its own; `None` if it came from the allocator.
    mapping: Option<(*mut c_void, usize)>,
}

// SAFETY: the region is plain memory without thread affinity. Who may touch which part of it is
// settled by `ChunkTail` (the unique writer) and `RecordSlice` (readers of frozen bytes).
unsafe impl Send for Region {}
// SAFETY: as above; the region itself offers no access to its bytes.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        let len = len.next_multiple_of(ALIGN).max(ALIGN);
        let layout = Self::layout(len);
        let region = if len < MAPPED_MIN { Self::allocate(len) } else { Self::map(len) };
        Arc::new(region.unwrap_or_else(|| handle_alloc_error(layout)))
    }

    fn allocate(len: usize) -> Option<Self> {
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) })?;
        Some(Self { start, len, head_len: 0, mapping: None })
    }

    fn map(len: usize) -> Option<Self> {
        let mapped_len = len.checked_add(HUGE)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping of no file at an address of the kernel's choice touches no other memory.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped_len, access, flags | MapFlags::NORESERVE)
        };
        let mapped = mapped.ok()?;
        let skip = mapped.cast::<u8>().align_offset(HUGE);
        // SAFETY: `skip < HUGE`, so that `len` bytes of the mapping follow.
        let start = unsafe { mapped.cast::<u8>().add(skip) };
        // A refusal costs speed, nothing else.
        // SAFETY: the range was just mapped and nobody else knows it; the advice does not change its
        // contents, which are zeros.
        let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        let start = NonNull::new(start)?;
        Some(Self { start, len, head_len: 0, mapping: Some((mapped, mapped_len)) })
    }

    /// The memory of a file, which outlives this process. Its space must have been reserved in full,
    /// or a write to it could end the process.
    ///
    /// # Errors
    ///
    /// The system's, when it does not map the file.
    pub(crate) fn shared(file: impl AsFd, head_len: usize, len: usize) -> io::Result<Arc<Self>> {
        assert_eq!((head_len % ALIGN, len % ALIGN), (0, 0), "heads and files are whole pages");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address of the kernel's choice touches no other memory. That others
        // write to the file is excluded by the store's lock and the file's mode, as for its log.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Arc::new(Self { start, len, head_len, mapping: Some((mapped, len)) }))
    }

    /// Memory with a head, as [`shared`](Self::shared) gives it, that ends with this process.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn headed(head_len: usize, len: usize) -> Arc<Self> {
        let mut region = Self::new(len);
        Arc::get_mut(&mut region).expect("it was just made").head_len = head_len;
        region
    }

    /// Writes to the front of the head, before anybody else knows the region.
    pub(crate) fn write_head(region: &mut Arc<Self>, bytes: &[u8]) {
        let region = Arc::get_mut(region).expect("a head is written before the region is shared");
        assert!(bytes.len() <= region.head_len, "{} bytes of head", bytes.len());
        // SAFETY: the bytes lie in the region, which nobody else can reach: the reference is unique.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.start.as_ptr(), bytes.len());
        }
    }

    /// Stores a word of the head at once, in big-endian order. Whoever reads it later, in this process
    /// or another, finds everything that was written before, and nothing that is written after it can
    /// be found without it.
    pub(crate) fn store(&self, at: usize, word: u64) {
        assert!(at.is_multiple_of(8) && at + 8 <= self.head_len, "no word of the head at {at}");
        // SAFETY: the word is aligned and lies in the head, which is in no chunk; it lives as long as
        // the region and is only used as an atomic once the region is shared.
        let place = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) };
        place.swap(word.to_be(), Ordering::AcqRel);
    }

    /// All bytes as they are now: what another process would find.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        // SAFETY: the bytes lie in the region and are initialised. The simulation has one thread, and
        // no part of the engine keeps a borrow of them between its steps.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }.to_vec()
    }

    /// Takes all of its memory now, so that no writer has to wait for the system to find some.
    pub(crate) fn touch(&self) {
        for at in (0..self.len).step_by(ALIGN) {
            // SAFETY: `at` lies in the region, and nobody else uses it yet: callers have just made it.
            unsafe { self.start.as_ptr().add(at).write_volatile(0) };
        }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("budgets are far below isize::MAX")
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.mapping {
            // SAFETY: mapped in `map` and unmapped only here; chunks hold the region, so none is left.
            // The call cannot fail for a mapping that exists.
            Some((start, len)) => drop(unsafe { munmap(start, len) }),
            // SAFETY: allocated in `allocate` with this layout; no chunk is left, as above.
            None => unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) },
        }
    }
}

/// A part of a region that is filled and recycled as a whole.
pub(crate) struct Chunk {
    region: Arc<Region>,
    start: usize,
    len: usize,
}

impl Chunk {
    fn ptr(&self, at: usize) -> *mut u8 {
        // SAFETY: `start + at` lies in the region: `cut` made the chunk from a range of it, and
        // callers pass `at <= self.len`.
        unsafe { self.region.start().add(self.start + at) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Which chunk of this region it is, counted from the first; `None` if it is of another one.
    pub(crate) fn number_in(&self, region: &Arc<Region>) -> Option<usize> {
        Arc::ptr_eq(&self.region, region).then(|| (self.start - region.head_len) / self.len)
    }

    /// True when it is all of its region, so that dropping it frees memory.
    pub(crate) fn is_alone(&self) -> bool {
        self.len == self.region.len()
    }
}

/// The only handle that may write a chunk: to the part behind its frozen prefix.
pub(crate) struct ChunkTail {
    chunk: Arc<Chunk>,
    frozen: usize,
}

impl ChunkTail {
    /// A chunk of its own region, for what does not fit the pool.
    pub(crate) fn alone(len: usize) -> Self {
        let region = Region::new(len);
        let len = region.len();
        Self { chunk: Arc::new(Chunk { region, start: 0, len }), frozen: 0 }
    }

    /// Cuts a fresh region, behind its head, into chunks of `len` bytes.
    pub(crate) fn cut(region: &Arc<Region>, len: usize) -> Vec<Self> {
        assert_eq!(len % ALIGN, 0, "chunks are whole pages");
        assert_eq!(Arc::strong_count(region), 1, "a region is cut once, before it is shared");
        let head_len = region.head_len;
        (0..(region.len() - head_len) / len)
            .map(|n| Chunk { region: Arc::clone(region), start: head_len + n * len, len })
            .map(|chunk| Self { chunk: Arc::new(chunk), frozen: 0 })
            .collect()
    }

    /// Makes a chunk writable from its start again, unless a reader still holds a slice of it.
    pub(crate) fn recycle(mut chunk: Arc<Chunk>) -> Result<Self, Arc<Chunk>> {
        if Arc::get_mut(&mut chunk).is_some() { Ok(Self { chunk, frozen: 0 }) } else { Err(chunk) }
    }

    pub(crate) fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }

    pub(crate) fn frozen(&self) -> usize {
        self.frozen
    }

    pub(crate) fn room(&self) -> usize {
        self.chunk.len - self.frozen
    }

    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        let room = self.room();
        // SAFETY: the bytes behind `frozen` belong to this tail alone: it is not `Clone`, slices
        // are made only from the prefix, and `recycle` returns a tail only when no slice is left.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.ptr(self.frozen), room) }
    }

    /// Has the processor fetch `len` bytes from `at` on behind the frozen prefix, to be written soon: the
    /// memory is used in turn, and has mostly left the caches since the last time.
    pub(crate) fn prefetch(&self, at: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        for at in (at..self.room().min(at + len.min(PREFETCH_MAX))).step_by(CACHE_LINE) {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a hint that changes nothing, for an address within the chunk.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.chunk.ptr(self.frozen + at).cast()) };
        }
    }

    /// Where the kernel may write `room` bytes while this tail is kept untouched.
    pub(crate) fn raw(&mut self) -> *mut u8 {
        self.chunk.ptr(self.frozen)
    }

    /// Makes the next `len` bytes immutable and gives them out.
    pub(crate) fn freeze(&mut self, len: usize) -> RecordSlice {
        assert!(len <= self.room(), "froze {len} bytes of {}", self.room());
        let range = self.frozen..self.frozen + len;
        self.frozen = range.end;
        RecordSlice { chunk: Arc::clone(&self.chunk), range }
    }
}

/// Bytes of one or more records in a group that is committed, or of a whole group.
///
/// Cheap to clone and to send to another thread. As long as a slice lives, the memory that it
/// lies in (a chunk of up to some MiB of the shard's budget) is not used again, so slices should
/// be dropped once their bytes are sent.
#[derive(Clone)]
pub struct RecordSlice {
    chunk: Arc<Chunk>,
    range: Range<usize>,
}

impl RecordSlice {
    pub(crate) fn of(chunk: &Arc<Chunk>, frozen: usize, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= frozen)
            .then(|| Self { chunk: Arc::clone(chunk), range })
    }

    /// A part of this slice, without its bytes being copied.
    pub(crate) fn part(&self, range: Range<usize>) -> Option<Self> {
        let range = self.range.start + range.start..self.range.start + range.end;
        (range.end <= self.range.end).then(|| Self { chunk: Arc::clone(&self.chunk), range })
    }

    /// Copies the bytes into memory of their own, so that nothing of the shard stays pinned.
    #[must_use]
    pub fn detached(&self) -> Self {
        let mut copy = ChunkTail::alone(self.len());
        if let Some(dst) = copy.buffer().get_mut(..self.len()) {
            dst.copy_from_slice(self);
        }
        copy.freeze(self.len())
    }

    /// Makes `other` part of this slice when it lies right behind it in the same memory.
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        let adjacent =
            Arc::ptr_eq(&self.chunk, &other.chunk) && self.range.end == other.range.start;
        if adjacent {
            self.range.end = other.range.end;
        }
        adjacent
    }

    pub(crate) fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }

    /// Has the processor fetch the first bytes, so that they are at hand when the kernel copies them to
    /// a socket: it copies one short record after another, and would wait for memory at each.
    pub(crate) fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..self.len().min(PREFETCH_MAX)).step_by(CACHE_LINE) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a hint that reads nothing, for an address within the slice.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.chunk.ptr(self.range.start + at).cast()) };
        }
    }
}

/// Has the processor fetch a value that is about to be used.
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of::<T>()).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = std::ptr::from_ref(value).cast::<i8>();
        // SAFETY: a hint that reads nothing, for an address within the value.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(at)) };
    }
}

impl Deref for RecordSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: slices are made from frozen ranges only, which lie in the chunk and are not
        // written while this slice holds the chunk.
        unsafe { std::slice::from_raw_parts(self.chunk.ptr(self.range.start), self.range.len()) }
    }
}

impl AsRef<[u8]> for RecordSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RecordSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordSlice({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_recycled_only_when_no_slice_is_left() {
        let region = Region::new(4 * ALIGN);
        let mut tails = ChunkTail::cut(&region, 2 * ALIGN);
        assert_eq!(tails.len(), 2);
        let mut tail = tails.remove(0);
        tail.buffer()[..3].copy_from_slice(b"one");
        let slice = tail.freeze(3);
        tail.buffer()[..3].copy_from_slice(b"two");
        let mut joined = slice.clone();
        assert!(joined.join(&tail.freeze(3)));
        assert_eq!((&*slice, &*joined), (&b"one"[..], &b"onetwo"[..]));
        let chunk = Arc::clone(tail.chunk());
        drop(tail);
        let chunk = ChunkTail::recycle(chunk).err().expect("slices pin it");
        let copy = slice.detached();
        drop((slice, joined));
        assert_eq!(ChunkTail::recycle(chunk).ok().map(|tail| tail.frozen()), Some(0));
        assert_eq!(&*copy, b"one");
    }
}
