//! Handles of an open store, as threads and executors use them.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use ringmq_engine::{
    AppendError, Closed, Engine, EngineOptions, EpochMillis, InboxLimits, NewRecord, Queue,
    QueueOffset, ReadError, ReadLimits, ShardLimits, Store, StoreOptions, TagFilter, Turn,
};

fn options() -> EngineOptions {
    let limits = ShardLimits {
        tail_bytes: 8 << 20,
        cold_bytes: 8 << 20,
        group_bytes: 64 << 10,
        ..ShardLimits::default()
    };
    let store = StoreOptions { segment_len: 4 << 20, limits, ..StoreOptions::default() };
    EngineOptions { store, ..EngineOptions::default() }
}

fn open(dir: &Path) -> Engine {
    Engine::open(dir, &options()).unwrap()
}

fn at(offset: i64) -> QueueOffset {
    QueueOffset::new(offset).unwrap()
}

/// All records of a queue from an offset on.
fn read_all(queue: &Queue, from: i64) -> Vec<Vec<u8>> {
    let (mut next, mut all) = (at(from), Vec::new());
    loop {
        let batch = queue.read(next).wait().unwrap();
        if batch.next == next {
            return all;
        }
        all.extend(batch.records.iter().map(|record| record.bytes.to_vec()));
        next = batch.next;
    }
}

/// Polls a set of futures as an executor would, each only when it was woken.
struct Executor {
    thread: Thread,
    polls: AtomicUsize,
}

struct Woken(usize, mpsc::Sender<usize>, Thread);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0);
        self.2.unpark();
    }
}

impl Executor {
    fn new() -> Self {
        Self { thread: thread::current(), polls: AtomicUsize::new(0) }
    }

    fn run<T>(&self, futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
        let (sender, woken) = mpsc::channel();
        let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
        let mut futures: Vec<_> = futures
            .into_iter()
            .enumerate()
            .map(|(n, future)| {
                sender.send(n).unwrap();
                let waker = Woken(n, sender.clone(), self.thread.clone());
                (future, Waker::from(Arc::new(waker)))
            })
            .collect();
        let mut left = futures.len();
        while left > 0 {
            let Ok(n) = woken.try_recv() else {
                thread::park();
                continue;
            };
            if results[n].is_some() {
                continue;
            }
            let (future, waker) = &mut futures[n];
            self.polls.fetch_add(1, Ordering::Relaxed);
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                results[n] = Some(result);
                left -= 1;
            }
        }
        results.into_iter().map(Option::unwrap).collect()
    }
}

#[test]
fn what_threads_append_is_there_after_every_reopening_in_one_process() {
    const THREADS: usize = 4;
    const PER_LIFE: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    for life in 0..5 {
        let engine = open(dir.path());
        thread::scope(|scope| {
            for n in 0..THREADS {
                let queue = engine.open_queue(format!("queue/{n}").as_bytes()).wait().unwrap();
                scope.spawn(move || {
                    for i in 0..PER_LIFE {
                        let record = format!("{n}/{life}/{i}");
                        let appended = queue.append(record.as_bytes()).wait().unwrap();
                        let offset = i64::try_from(life * PER_LIFE + i).unwrap();
                        assert_eq!(appended.first_queue_offset.get(), offset);
                    }
                });
            }
        });
        for n in 0..THREADS {
            let queue = engine.shard_for(format!("queue/{n}").as_bytes());
            let queue = queue.queue(format!("queue/{n}").as_bytes()).wait().unwrap().unwrap();
            let want = (0..=life).flat_map(|life| {
                (0..PER_LIFE).map(move |i| format!("{n}/{life}/{i}").into_bytes())
            });
            assert!(read_all(&queue, 0).into_iter().eq(want), "queue {n} in life {life}");
        }
        // Every second life ends by dropping the handles.
        if life % 2 == 0 {
            engine.close().wait().unwrap();
            assert_eq!(engine.open_queue(b"late").wait().unwrap_err(), AppendError::Closed);
        }
    }
}

#[test]
fn futures_run_on_an_executor_and_are_polled_only_when_woken() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    let bodies: Vec<Vec<u8>> = (0..500).map(|n| format!("record {n}").into_bytes()).collect();
    let executor = Executor::new();
    let queue = &queue;
    let appends = bodies.iter().map(|body| {
        Box::pin(async move { queue.append(&body[..]).await.unwrap().first_queue_offset.get() })
            as Pin<Box<dyn Future<Output = i64>>>
    });
    let offsets = executor.run(appends.collect());
    assert_eq!(offsets, (0..500).collect::<Vec<_>>());
    assert!(executor.polls.load(Ordering::Relaxed) <= 3 * 500, "{:?}", executor.polls);
    assert_eq!(read_all(queue, 0), bodies);
}

#[test]
fn appends_keep_the_order_of_their_calls_and_a_full_inbox_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = InboxLimits { bytes: 8 << 10, requests: 64, appends: 100 };
    let engine = Engine::open(dir.path(), &EngineOptions { inbox, ..options() }).unwrap();
    let queue = engine.open_queue(b"q").wait().unwrap();
    let (mut commits, mut refused) = (Vec::new(), 0);
    for n in 0..3000_u32 {
        let body = n.to_be_bytes().repeat(64);
        loop {
            match queue.try_append(&body[..]) {
                Ok(commit) => break commits.push(commit),
                Err(AppendError::Backlogged) => {
                    refused += 1;
                    queue.room().wait();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 0, "3,000 appends at once do not fit an inbox of 64");
    for (n, commit) in (0..).zip(commits) {
        assert_eq!(commit.wait().unwrap().first_queue_offset.get(), n);
    }
    let all = read_all(&queue, 0);
    assert!(all.into_iter().eq((0..3000_u32).map(|n| n.to_be_bytes().repeat(64))));
}

#[test]
fn a_record_above_the_inbox_is_taken_and_one_above_the_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = InboxLimits { bytes: 4096, ..InboxLimits::default() };
    let engine = Engine::open(dir.path(), &EngineOptions { inbox, ..options() }).unwrap();
    let queue = engine.open_queue(b"q").wait().unwrap();
    let max = engine.shard_for(b"q").with(|shard, _| shard.append_len_max()).wait().unwrap();
    assert!((3 << 20..4 << 20).contains(&max), "{max} of a segment of 4 MiB");
    for len in [1, 4096, 5000, 1 << 20, max] {
        let record = vec![7; len];
        let appended = queue.append(&record[..]).wait().unwrap();
        let limits = ReadLimits { records_max: 1, ..ReadLimits::default() };
        let batch = queue.read(appended.first_queue_offset).limits(limits).wait().unwrap();
        assert_eq!(&*batch.records[0].bytes, &record[..]);
    }
    let refused = queue.append(&vec![7; max + 1][..]).wait().unwrap_err();
    assert_eq!(refused, AppendError::TooLarge { len: max + 1, max });
}

#[test]
fn a_batch_is_stored_side_by_side_with_its_tags() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    let records: Vec<NewRecord<'_>> = [(1, "a"), (2, "bb"), (1, ""), (3, "dddd")]
        .map(|(tag, bytes)| NewRecord { tag, keys: &[], bytes: bytes.as_bytes() })
        .into();
    queue.append(b"first").wait().unwrap();
    assert_eq!(queue.append_all(&records).wait().unwrap().first_queue_offset, at(1));
    let filter = TagFilter::Tags([1].into());
    let batch = queue.read(at(0)).filter(filter).wait().unwrap();
    let found: Vec<_> =
        batch.records.iter().map(|record| (record.queue_offset.get(), &*record.bytes)).collect();
    // An empty record cannot be told from a damaged one, and is passed over like it.
    assert_eq!(found, [(1, &b"a"[..])]);
    assert_eq!(batch.next, at(5));
    assert_eq!(queue.offsets().wait().unwrap().max, at(5));
}

#[test]
fn a_read_that_follows_is_answered_by_the_next_record_that_it_wants() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    let reader = queue.clone();
    let (sender, received) = mpsc::channel();
    let follower = thread::spawn(move || {
        let mut next = at(0);
        loop {
            let filter = TagFilter::Tags([7].into());
            match reader.read(next).filter(filter).follow().wait() {
                Ok(batch) => {
                    next = batch.next;
                    for record in batch.records {
                        sender.send(record.queue_offset.get()).unwrap();
                    }
                }
                Err(error) => return error,
            }
        }
    });
    for n in 0..100 {
        let tag = if n % 3 == 0 { 7 } else { 8 };
        queue.append(NewRecord { tag, keys: &[], bytes: b"x" }).wait().unwrap();
        if n % 3 == 0 {
            assert_eq!(received.recv().unwrap(), n);
        }
    }
    engine.close().wait().unwrap();
    assert_eq!(follower.join().unwrap(), ReadError::Closed);
}

#[test]
fn offsets_outside_a_queue_are_errors_that_name_the_border() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    queue.append(b"one").wait().unwrap();
    assert_eq!(queue.read(at(5)).wait().unwrap_err(), ReadError::BeyondEnd(at(1)));
    let batch = queue.read(at(1)).wait().unwrap();
    assert_eq!((batch.records.len(), batch.next), (0, at(1)));
}

#[test]
fn facts_are_there_when_their_future_says_so_and_after_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let shard = engine.shard(0).unwrap();
    for n in 0..10_u8 {
        shard.put_fact(&[b'k', n], Some(&[n; 3])).wait().unwrap();
        assert_eq!(shard.fact(&[b'k', n]).wait().unwrap().as_deref(), Some(&[n; 3][..]));
    }
    shard.put_fact(b"k\x04", None).wait().unwrap();
    shard.stage_fact(b"staged", b"value").wait().unwrap();
    engine.close().wait().unwrap();
    assert_eq!(shard.fact(b"staged").wait().unwrap_err(), Closed);
    drop((engine, shard));
    let engine = open(dir.path());
    let shard = engine.shard(0).unwrap();
    assert_eq!(shard.fact(b"staged").wait().unwrap().as_deref(), Some(&b"value"[..]));
    let keys: Vec<u8> =
        shard.facts_with_prefix(b"k").wait().unwrap().iter().map(|(key, _)| key[1]).collect();
    assert_eq!(keys, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    assert!(engine.shard(1).is_none());
}

#[test]
fn a_time_leads_to_an_offset() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    let times: Vec<EpochMillis> =
        (0..20).map(|_| queue.append(b"x").wait().unwrap().store_time).collect();
    for time in &times {
        let want = times.iter().position(|stored| stored >= time).unwrap();
        let found = queue.search_time(*time).wait().unwrap();
        assert_eq!(found, at(i64::try_from(want).unwrap()));
    }
    let after = EpochMillis::new(times[19].get() + 1);
    assert_eq!(queue.search_time(after).wait().unwrap(), at(20));
}

#[test]
fn four_shards_on_one_thread_serve_all_their_queues() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = EngineOptions { threads: Some(1), ..options() };
    options.store.shards = Some(4);
    for life in 0..2 {
        let engine = Engine::open(dir.path(), &options).unwrap();
        assert_eq!((engine.shard_count(), engine.reports().len()), (4, 4));
        let queues: Vec<Queue> = (0..40)
            .map(|n| engine.open_queue(format!("q{n}").as_bytes()).wait().unwrap())
            .collect();
        let mut shards: Vec<u32> = queues.iter().map(|queue| queue.shard().number()).collect();
        shards.sort_unstable();
        shards.dedup();
        assert_eq!(shards, [0, 1, 2, 3]);
        for round in 0..20 {
            let commits: Vec<_> =
                queues.iter().map(|queue| queue.try_append(b"record").unwrap()).collect();
            for commit in commits {
                let offset = commit.wait().unwrap().first_queue_offset;
                assert_eq!(offset, at(life * 20 + round));
            }
        }
        engine.close().wait().unwrap();
    }
}

#[test]
fn a_callers_own_thread_runs_a_shard_and_uses_it_directly_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let now = || EpochMillis::new(1_700_000_000_000);
    let store = Store::open(dir.path(), &options().store, 1, now()).unwrap();
    let (engine, mut loops) = Engine::attach(store, InboxLimits::default()).unwrap();
    let mut shard_loop = loops.remove(0);
    let owner = thread::spawn(move || {
        let queue = loop {
            match shard_loop.shard().open_queue(b"q", now()) {
                Ok(queue) => break queue,
                Err(AppendError::Backlogged) => shard_loop.turn_blocking(now()).unwrap(),
                Err(error) => panic!("{error}"),
            };
        };
        shard_loop.shard().wait(queue, TagFilter::All, 5);
        let (mut tokens, mut turns) = (Vec::new(), 0_usize);
        while shard_loop.turn_blocking(now()).unwrap() != Turn::Closing {
            shard_loop.take_tokens(&mut tokens);
            turns += 1;
        }
        shard_loop.close(now).unwrap();
        (tokens, turns)
    });
    let queue = engine.open_queue(b"q").wait().unwrap();
    queue.append(b"from a handle").wait().unwrap();
    let shard = engine.shard_for(b"q");
    let number = queue.number();
    let appended = shard
        .with(move |shard, now| shard.append(number, &[&b"from the owner"[..]], now))
        .wait()
        .unwrap()
        .unwrap();
    shard.committed(appended.sequence).wait().unwrap();
    assert_eq!(read_all(&queue, 0), [&b"from a handle"[..], b"from the owner"]);
    engine.close().wait().unwrap();
    let (tokens, turns) = owner.join().unwrap();
    assert_eq!(tokens, [5], "the owner's wait was answered by the first record");
    assert!(turns < 1000, "a shard that has nothing to do sleeps: {turns} turns");
}

#[test]
fn handles_of_a_shard_that_is_dropped_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let now = EpochMillis::new(1_700_000_000_000);
    let store = Store::open(dir.path(), &options().store, 1, now).unwrap();
    let (engine, mut loops) = Engine::attach(store, InboxLimits::default()).unwrap();
    let mut shard_loop = loops.remove(0);
    let waiting = thread::spawn({
        let engine = engine.clone();
        move || {
            let queue = engine.open_queue(b"q").wait().unwrap();
            let commit = queue.try_append(b"x").unwrap();
            (commit.wait(), queue.read(at(1)).follow().wait())
        }
    });
    let queue_is_there = |shard_loop: &mut ringmq_engine::ShardLoop| {
        let shard = shard_loop.shard();
        shard.queue(b"q").is_some_and(|queue| shard.max_offset(queue) == at(1))
    };
    while !queue_is_there(&mut shard_loop) {
        shard_loop.turn_blocking(now).unwrap();
    }
    drop(shard_loop);
    let (appended, read) = waiting.join().unwrap();
    // The record is committed; whether its future was told depends on which turn came first.
    assert!(matches!(appended, Ok(_) | Err(AppendError::Closed)), "{appended:?}");
    assert_eq!(read.unwrap_err(), ReadError::Closed);
    assert_eq!(engine.open_queue(b"q").wait().unwrap_err(), AppendError::Closed);
}

#[test]
fn a_panic_on_the_shards_thread_is_told_and_spares_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    queue.append(b"kept").wait().unwrap();
    let panicked = engine.shard_for(b"q").with(|_, _| panic!("on purpose")).wait();
    assert_eq!(panicked, Err(Closed));
    // Taken while the thread unwinds, or refused later: never stored.
    let refused = queue.append(b"lost").wait().unwrap_err();
    assert!(matches!(refused, AppendError::Poisoned(_)), "{refused}");
    assert!(engine.close().wait().is_err());
    drop((engine, queue));
    let engine = open(dir.path());
    let queue = engine.open_queue(b"q").wait().unwrap();
    assert_eq!(read_all(&queue, 0), [b"kept"]);
}
