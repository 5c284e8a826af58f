//! An append allocates nothing once the shard has warmed up. A binary of its own: its allocator
//! counts.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringmq_engine::{
    Acknowledge, AppendError, Engine, EngineOptions, EpochMillis, QueueNo, RingShard, Sequence,
    ShardLimits, Store, StoreOptions,
};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The tests of this file run one after another, since they share the counter.
static ALONE: Mutex<()> = Mutex::new(());

const NOW: EpochMillis = EpochMillis::new(1_700_000_000_000);
/// Long enough behind the last append to prepare segments in one go.
const LATER: EpochMillis = EpochMillis::new(1_700_000_001_000);
const WAIT: Duration = Duration::from_millis(100);
const RECORD: [u8; 1024] = [7; 1024];
/// Entries of the queue index lie in pieces of 256 KiB that are allocated as a whole: one for more
/// appends than this.
const APPENDS_PER_PIECE: u64 = 8000;
/// What a piece takes at most: its memory, its owner, its places in lists that may grow.
const ALLOCATIONS_PER_PIECE: u64 = 6;

/// Without checkpoints by time: they are no part of an append, and would come or not.
fn options() -> StoreOptions {
    let limits =
        ShardLimits { tail_bytes: 16 << 20, checkpoint_ms: u64::MAX, ..ShardLimits::default() };
    StoreOptions { segment_len: 512 << 20, limits, ..StoreOptions::default() }
}

/// Appends, waiting for room as long as the shard asks for it.
fn append(shard: &mut RingShard, queue: QueueNo, keep: u64, sent: &mut Sequence) {
    loop {
        match shard.shard().append(queue, &[&RECORD[..]], NOW) {
            Ok(appended) => {
                *sent = appended.sequence;
                break;
            }
            Err(AppendError::Backlogged) => shard.turn_blocking(NOW, WAIT).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
    while sent.get() - shard.shard().committed().get() > keep {
        shard.turn_blocking(NOW, WAIT).unwrap();
    }
}

fn open(dir: &Path, acknowledge: Acknowledge) -> (RingShard, QueueNo) {
    let options = StoreOptions { acknowledge: Some(acknowledge), ..options() };
    let store = Store::open(dir, &options, 42, NOW).unwrap();
    let mut shard = store.into_shards().shards.remove(0);
    let queue = loop {
        match shard.shard().open_queue(b"q", NOW) {
            Ok(queue) => break queue,
            Err(AppendError::Backlogged) => shard.turn_blocking(NOW, WAIT).unwrap(),
            Err(error) => panic!("{error}"),
        }
    };
    // The background work of preparing segments is no part of an append.
    while shard.shard().is_preparing() {
        shard.turn_blocking(LATER, WAIT).unwrap();
    }
    (shard, queue)
}

/// Allocations for the pieces that so many appends may begin.
const fn of_pieces(appends: u64) -> u64 {
    (appends / APPENDS_PER_PIECE + 1) * ALLOCATIONS_PER_PIECE
}

/// Allocations while `count` records are appended, with groups in flight up to `keep`.
fn counted(shard: &mut RingShard, queue: QueueNo, count: usize, keep: u64) -> u64 {
    let mut sent = shard.shard().committed();
    let before = COUNT.load(Ordering::Relaxed);
    for _ in 0..count {
        append(shard, queue, keep, &mut sent);
    }
    COUNT.load(Ordering::Relaxed) - before
}

#[test]
fn an_append_by_the_thread_that_owns_the_shard_allocates_nothing() {
    let _alone = ALONE.lock().unwrap();
    for acknowledge in [Acknowledge::Durable, Acknowledge::Buffered] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (mut shard, queue) = open(dir.path(), acknowledge);
        // Every chunk of the tail has been used, and every buffer has its size.
        counted(&mut shard, queue, 30_000, 4);
        counted(&mut shard, queue, 20_000, 0);
        let many = counted(&mut shard, queue, 50_000, 4);
        let one = counted(&mut shard, queue, 500, 0);
        assert!(many <= of_pieces(50_000), "{many} allocations in 50,000 appends");
        assert_eq!(one, 0, "allocations in 500 appends, one in flight, {acknowledge:?}");
        shard.close(|| NOW).unwrap();
    }
}

#[test]
fn an_append_through_a_handle_allocates_nothing() {
    let _alone = ALONE.lock().unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = EngineOptions { store: options(), ..EngineOptions::default() };
    let engine = Engine::open(dir.path(), &options).unwrap();
    let queue = engine.open_queue(b"q").wait().unwrap();
    let mut commits = Vec::with_capacity(1000);
    let mut append_thousand = || {
        for _ in 0..1000 {
            loop {
                match queue.try_append(&RECORD) {
                    Ok(commit) => break commits.push(commit),
                    Err(AppendError::Backlogged) => queue.room().wait(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for commit in commits.drain(..) {
            commit.wait().unwrap();
        }
    };
    (0..30).for_each(|_| append_thousand());
    // Segments are prepared while nobody appends much.
    while engine.shard(0).unwrap().with(|shard, _| shard.is_preparing()).wait().unwrap() {}
    // A checkpoint allocates and may fall into one of the rounds.
    let many = (0..4).map(|_| {
        let before = COUNT.load(Ordering::Relaxed);
        (0..50).for_each(|_| append_thousand());
        COUNT.load(Ordering::Relaxed) - before
    });
    let many = many.min().unwrap();
    assert!(many <= of_pieces(50_000), "{many} allocations in 50,000 appends");
}
