//! Futures, records and whole shards that are dropped at any moment free nothing that the kernel
//! still uses.
//!
//! A binary of its own: its allocator overwrites what is freed, and keeps the memory of reads and
//! writes aside for a while to see that nobody writes to it any more. A write from freed memory would
//! put the poison on the device, where the checks after each life find it. Runs for 2 seconds, or for
//! `DROPPED_SECONDS`.
#![expect(unsafe_code, reason = "an allocator that poisons what is freed")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that takes its time"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ringmq_engine::{
    Engine, EpochMillis, InboxLimits, Queue, QueueOffset, ReadLimits, ShardLimits, ShardLoop,
    Store, StoreOptions, Turn,
};

const POISON: u8 = 0xDB;
/// What the kernel reads and writes lies in pages.
const PAGE: usize = 4096;

/// Freed blocks of whole pages that are still looked at, as address and layout.
struct Quarantine {
    slots: [(usize, Layout); 64],
    at: usize,
}

static QUARANTINE: Mutex<Quarantine> =
    Mutex::new(Quarantine { slots: [(0, Layout::new::<u8>()); 64], at: 0 });
static WRITTEN_AFTER_FREE: AtomicUsize = AtomicUsize::new(0);
static QUARANTINED: AtomicUsize = AtomicUsize::new(0);

struct Poisoning;

/// Gives a block back to the system, once it is known whether it was left alone.
fn release((address, layout): (usize, Layout)) {
    if address == 0 {
        return;
    }
    let block = address as *mut u8;
    // SAFETY: the block was allocated with this layout and is only known to the quarantine.
    let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
    if bytes.iter().any(|&byte| byte != POISON) {
        WRITTEN_AFTER_FREE.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { System.dealloc(block, layout) }
}

// SAFETY: memory comes from the system's allocator and goes back to it with the same layout, at once
// or from the quarantine.
unsafe impl GlobalAlloc for Poisoning {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller owned the block until now.
        unsafe { block.write_bytes(POISON, layout.size()) };
        if layout.align() < PAGE {
            // SAFETY: the caller keeps the contract.
            return unsafe { System.dealloc(block, layout) };
        }
        QUARANTINED.fetch_add(1, Ordering::Relaxed);
        let mut quarantine = QUARANTINE.lock().unwrap();
        let at = quarantine.at;
        quarantine.at = (at + 1) % quarantine.slots.len();
        let slot = quarantine.slots.get_mut(at).unwrap();
        let oldest = std::mem::replace(slot, (block as usize, layout));
        drop(quarantine);
        release(oldest);
    }
}

#[global_allocator]
static ALLOCATOR: Poisoning = Poisoning;

fn empty_quarantine() {
    for n in 0..64 {
        let nothing = (0, Layout::new::<u8>());
        let slot = std::mem::replace(&mut QUARANTINE.lock().unwrap().slots[n], nothing);
        release(slot);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A record that tells by itself whether it is whole: its name, then bytes that follow from it.
fn body(name: u64) -> Vec<u8> {
    let mut random = Random(name.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let long = random.one_in(16);
    let len = 16 + random.below(if long { 100_000 } else { 3000 });
    // A pattern of 104 bytes, so that no two blocks of the log are alike.
    let pattern: Vec<u8> = std::iter::once(name)
        .chain((0..12).map(|_| random.below(u64::MAX)))
        .flat_map(u64::to_be_bytes)
        .collect();
    let len = usize::try_from(len).unwrap();
    let mut bytes = pattern.repeat(len / pattern.len() + 1);
    bytes.truncate(len);
    bytes
}

#[track_caller]
fn check(bytes: &[u8]) -> u64 {
    let name = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, body(name), "the record named {name} is not whole");
    name
}

fn options() -> StoreOptions {
    let limits = ShardLimits {
        tail_bytes: 4 << 20,
        cold_bytes: 2 << 20,
        group_bytes: 64 << 10,
        ..ShardLimits::default()
    };
    StoreOptions { segment_len: 4 << 20, limits, ..StoreOptions::default() }
}

const NOW: EpochMillis = EpochMillis::new(1_700_000_000_000);

fn open(dir: &Path) -> (Engine, ShardLoop) {
    let store = Store::open(dir, &options(), 1, NOW).unwrap();
    let inbox = InboxLimits { bytes: 64 << 10, requests: 32, appends: 64 };
    let (engine, mut loops) = Engine::attach(store, inbox).unwrap();
    (engine, loops.remove(0))
}

/// Polls a future some times, then drops it, unless it was done: then gives its output.
fn drop_soon<F: Future>(future: F, random: &mut Random) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..random.below(4) {
        let polled: Poll<F::Output> =
            Pin::new(&mut future).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => thread::yield_now(),
        }
    }
    None
}

/// What one caller has been told: offsets of acknowledged records by name.
type Told = HashMap<u64, i64>;

/// One caller's life: appends and reads, most of them given up. Ends when the engine is closed.
fn call(queue: &Queue, first_name: u64, seed: u64) -> Told {
    let (mut random, mut told) = (Random(seed | 1), Told::new());
    for name in first_name..first_name + 150 {
        let mut bytes = body(name);
        let appended = if random.one_in(3) {
            Some(queue.append(&bytes[..]).wait())
        } else {
            drop_soon(queue.append(&bytes[..]), &mut random)
        };
        // Whatever the future has left behind, it is not this.
        bytes.fill(POISON);
        match appended {
            Some(Ok(appended)) => drop(told.insert(name, appended.first_queue_offset.get())),
            Some(Err(_)) => return told,
            None => {}
        }
        read(queue, &mut random);
        let _ = drop_soon(queue.shard().put_fact(b"fact", Some(&bytes)), &mut random);
    }
    told
}

fn read(queue: &Queue, random: &mut Random) {
    let Ok(offsets) = queue.offsets().wait() else { return };
    let from =
        QueueOffset::new(i64::try_from(random.below(1 << 40)).unwrap() % (offsets.max.get() + 1));
    let limits = ReadLimits { records_max: 8, ..ReadLimits::default() };
    let read = queue.read(from.unwrap()).limits(limits);
    let read = if random.one_in(4) { read.follow() } else { read };
    if let Some(Ok(batch)) = drop_soon(read, random) {
        for record in &batch.records {
            check(&record.bytes);
        }
    }
}

/// Runs the shard until it is closed, or for some turns, and then drops it with all that is under way.
fn run(mut shard: ShardLoop, turns: Option<u64>, gone: &AtomicBool) {
    for n in 0.. {
        let closing = shard.turn_blocking(NOW).unwrap() == Turn::Closing;
        if closing || turns == Some(n) {
            break;
        }
    }
    if turns.is_none() {
        shard.close(|| NOW).unwrap();
    } else {
        drop(shard);
    }
    gone.store(true, Ordering::Release);
}

/// One opening of the store: callers at work, then what they were told holds.
fn live(dir: &Path, life: u64, random: &mut Random, told: &mut Told) {
    let (engine, shard) = open(dir);
    let turns = (!random.one_in(3)).then(|| 20 + random.below(200));
    let gone = AtomicBool::new(false);
    let seeds: Vec<u64> = (0..3).map(|_| random.below(u64::MAX)).collect();
    thread::scope(|scope| {
        scope.spawn(|| run(shard, turns, &gone));
        let Ok(queue) = engine.open_queue(b"q").wait() else { return };
        let callers: Vec<_> = (0..)
            .zip(seeds)
            .map(|(n, seed)| {
                let queue = queue.clone();
                scope.spawn(move || call(&queue, (life * 3 + n) * 1000, seed))
            })
            .collect();
        for caller in callers {
            told.extend(caller.join().unwrap());
        }
        // Closing answers although the shard may have been dropped before.
        let _ = engine.close().wait();
    });
    assert!(gone.load(Ordering::Acquire));
}

fn check_told(dir: &Path, told: &Told) {
    let engine = Engine::open(
        dir,
        &ringmq_engine::EngineOptions {
            store: options(),
            ..ringmq_engine::EngineOptions::default()
        },
    )
    .unwrap();
    let queue = engine.open_queue(b"q").wait().unwrap();
    let (mut next, mut found) = (QueueOffset::default(), HashMap::new());
    loop {
        let batch = queue.read(next).wait().unwrap();
        if batch.next == next {
            break;
        }
        for record in &batch.records {
            let before = found.insert(check(&record.bytes), record.queue_offset.get());
            assert_eq!(before, None, "stored twice");
        }
        next = batch.next;
    }
    assert!(told.iter().all(|(name, offset)| found.get(name) == Some(offset)));
    let stats = queue.shard().with(|shard, _| shard.stats()).wait().unwrap();
    assert_eq!(stats.unreadable, 0);
    engine.close().wait().unwrap();
}

#[test]
fn what_is_dropped_frees_nothing_that_the_kernel_uses() {
    const LIVES_PER_STORE: u64 = 12;
    let seconds = std::env::var("DROPPED_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (end, mut random) =
        (Instant::now() + Duration::from_secs(seconds.unwrap_or(2)), Random(seed));
    let mut lives = 0;
    while Instant::now() < end {
        // Beside the build, since memory file systems take no direct writes.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut told = Told::new();
        for _ in 0..LIVES_PER_STORE {
            live(dir.path(), lives, &mut random, &mut told);
            check_told(dir.path(), &told);
            lives += 1;
            assert_eq!(WRITTEN_AFTER_FREE.load(Ordering::Relaxed), 0, "life {lives}");
            if Instant::now() >= end {
                break;
            }
        }
        assert!(!told.is_empty());
    }
    empty_quarantine();
    assert_eq!(WRITTEN_AFTER_FREE.load(Ordering::Relaxed), 0);
    let quarantined = QUARANTINED.load(Ordering::Relaxed);
    assert!(quarantined > 0, "the allocator saw no memory of the kernel's");
    println!("{lives} lives, {quarantined} freed blocks of pages looked at");
}
