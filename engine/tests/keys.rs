//! Records are found by their keys on real files: from memory, from blocks of the index, and after the
//! index was rebuilt.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use ringmq_engine::{
    Engine, EngineOptions, FoundRecord, KeyHash, KeyLimits, KeyScope, NewRecord, Queue, ReadError,
    ShardLimits, StoreOptions,
};

/// Records of the store that most tests use.
const COUNT: u64 = 6000;
/// One key for so many records.
const KEYS: u64 = 40;

/// Entries of keys go to blocks of the index as soon as there are a few.
fn options() -> EngineOptions {
    let limits = ShardLimits {
        tail_bytes: 4 << 20,
        cold_bytes: 4 << 20,
        group_bytes: 64 << 10,
        key_bytes: 1 << 10,
        ..ShardLimits::default()
    };
    let store = StoreOptions { segment_len: 1 << 20, limits, ..StoreOptions::default() };
    EngineOptions { store, ..EngineOptions::default() }
}

fn open(dir: &Path) -> (Engine, Queue) {
    let engine = Engine::open(dir, &options()).unwrap();
    let queue = engine.open_queue(b"q").wait().unwrap();
    (engine, queue)
}

/// The number of a record, which is how it begins.
fn number(record: &[u8]) -> u64 {
    u64::from_be_bytes(*record.first_chunk().unwrap())
}

fn key(number: u64) -> KeyHash {
    KeyScope::new(b"scope").hash(&(number % KEYS).to_be_bytes())
}

/// Appends records, each with the key of its number.
fn fill(queue: &Queue, numbers: std::ops::Range<u64>) {
    let commits: Vec<_> = numbers
        .map(|number| {
            let mut bytes = [7; 200];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            let keys = [key(number)];
            loop {
                match queue.try_append(NewRecord::from(&bytes).with_keys(&keys)) {
                    Ok(commit) => break commit,
                    Err(_) => queue.room().wait(),
                }
            }
        })
        .collect();
    for commit in commits {
        commit.wait().unwrap();
    }
}

fn find(engine: &Engine, wanted: u64, limits: KeyLimits) -> Result<Vec<FoundRecord>, ReadError> {
    let has_key = move |record: &[u8]| number(record) % KEYS == wanted % KEYS;
    engine.shard(0).unwrap().find(key(wanted), has_key, limits).wait()
}

/// Every key leads to its records, newest first.
#[track_caller]
fn check(engine: &Engine, count: u64) {
    for wanted in 0..KEYS {
        let limits = KeyLimits { records_max: 10_000, ..KeyLimits::default() };
        let found = find(engine, wanted, limits).unwrap();
        let numbers: Vec<u64> = found.iter().map(|found| number(&found.record.bytes)).collect();
        let expected: Vec<u64> = (0..count).rev().filter(|n| n % KEYS == wanted).collect();
        assert_eq!(numbers, expected, "key {wanted}");
    }
}

#[test]
fn records_are_found_newest_first_and_after_every_opening() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (engine, queue) = open(dir.path());
    fill(&queue, 0..COUNT / 2);
    check(&engine, COUNT / 2);
    fill(&queue, COUNT / 2..COUNT);
    engine.close().wait().unwrap();
    drop((engine, queue));
    let (engine, queue) = open(dir.path());
    assert!(engine.reports()[0].from_checkpoint);
    check(&engine, COUNT);
    drop((engine, queue));
    // The log alone is enough.
    for slot in 0..2 {
        fs::remove_file(dir.path().join(format!("shard-0/checkpoint.{slot}"))).unwrap();
    }
    let (engine, _queue) = open(dir.path());
    assert!(!engine.reports()[0].from_checkpoint);
    check(&engine, COUNT);
}

#[test]
fn limits_end_a_search() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (engine, queue) = open(dir.path());
    fill(&queue, 0..1000);
    let found = |limits| -> Vec<u64> {
        let found = find(&engine, 3, limits).unwrap();
        found.iter().map(|found| number(&found.record.bytes)).collect()
    };
    let limits = KeyLimits::default();
    assert_eq!(found(KeyLimits { records_max: 2, ..limits }), [963, 923]);
    assert_eq!(found(KeyLimits { bytes_max: 650, ..limits }), [963, 923, 883]);
    assert_eq!(found(KeyLimits { bytes_max: 1, ..limits }), [963]);
    assert_eq!(found(KeyLimits { scanned_max: 1, ..limits }), [963]);
    assert_eq!(found(KeyLimits { records_max: 0, ..limits }), [0; 0]);
}

#[test]
fn different_keys_with_the_same_hash_are_told_apart() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (engine, queue) = open(dir.path());
    let hash = [KeyHash::new(77)];
    for n in 0..20_u64 {
        queue.append(NewRecord::from(&n.to_be_bytes()).with_keys(&hash)).wait().unwrap();
    }
    let odd = |record: &[u8]| number(record) % 2 == 1;
    let limits = KeyLimits { records_max: 3, ..KeyLimits::default() };
    let found = engine.shard(0).unwrap().find(hash[0], odd, limits).wait().unwrap();
    let found: Vec<u64> = found.iter().map(|found| number(&found.record.bytes)).collect();
    assert_eq!(found, [19, 17, 15]);
    let other = KeyHash::new(77 << 48);
    let none = engine.shard(0).unwrap().find(other, |_| true, limits).wait().unwrap();
    assert_eq!(none.len(), 0);
}

#[test]
fn a_damaged_index_is_said_and_the_next_opening_mends_it() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (engine, queue) = open(dir.path());
    fill(&queue, 0..COUNT);
    engine.close().wait().unwrap();
    drop((engine, queue));
    let index = dir.path().join("shard-0/index");
    let len = fs::metadata(&index).unwrap().len();
    fs::write(&index, vec![0; usize::try_from(len).unwrap()]).unwrap();
    let (engine, queue) = open(dir.path());
    assert!(engine.reports()[0].from_checkpoint);
    let failed = find(&engine, 3, KeyLimits { records_max: 10_000, ..KeyLimits::default() });
    assert!(matches!(failed, Err(ReadError::Io(_))), "{failed:?}");
    drop((engine, queue));
    let (engine, _queue) = open(dir.path());
    assert!(!engine.reports()[0].from_checkpoint);
    check(&engine, COUNT);
}

#[test]
fn a_store_whose_queue_was_deleted_finds_nothing_of_it() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (engine, queue) = open(dir.path());
    fill(&queue, 0..500);
    let number = queue.number();
    let shard = engine.shard(0).unwrap();
    let deleted = shard.with(move |shard, now| shard.delete_queue(number, now).unwrap()).wait();
    shard.committed(deleted.unwrap()).wait().unwrap();
    check(&engine, 0);
    let again = engine.open_queue(b"q").wait().unwrap();
    fill(&again, 0..200);
    check(&engine, 200);
}
