//! A store on a real folder: what was committed is there after it is opened again.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use ringmq_engine::{
    AppendError, EpochMillis, OpenError, QueueNo, QueueOffset, ReadAtOutcome, ReadLimits,
    ReadOutcome, RecordSlice, RingShard, SearchOutcome, Sequence, ShardLimits, Store, StoreOptions,
    TagFilter,
};

const NOW: EpochMillis = EpochMillis::new(1_700_000_000_000);
const WAIT: Duration = Duration::from_millis(100);

fn small() -> StoreOptions {
    StoreOptions {
        segment_len: 1 << 20,
        limits: ShardLimits {
            tail_bytes: 4 << 20,
            cold_bytes: 4 << 20,
            group_bytes: 64 << 10,
            ..ShardLimits::default()
        },
        ..StoreOptions::default()
    }
}

fn open(dir: &Path) -> RingShard {
    let store = Store::open(dir, &small(), 42, NOW).unwrap();
    store.into_shards().shards.remove(0)
}

fn commit(shard: &mut RingShard, sequence: Sequence) {
    while shard.shard().committed() < sequence {
        assert_eq!(shard.shard().poisoned(), None);
        shard.turn_blocking(NOW, WAIT).unwrap();
    }
}

/// Appends, waiting for room as long as the shard asks for it.
fn append(shard: &mut RingShard, queue: QueueNo, bytes: &[u8], now: EpochMillis) -> Sequence {
    loop {
        match shard.shard().append(queue, &[bytes], now) {
            Ok(appended) => return appended.sequence,
            Err(AppendError::Backlogged) => shard.turn_blocking(now, WAIT).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn open_queue(shard: &mut RingShard, key: &[u8]) -> QueueNo {
    loop {
        match shard.shard().open_queue(key, NOW) {
            Ok(queue) => return queue,
            Err(AppendError::Backlogged) => shard.turn_blocking(NOW, WAIT).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn read_from(shard: &mut RingShard, queue: QueueNo, from: i64, max: u32) -> (Vec<u8>, i64) {
    let limits = ReadLimits { records_max: max, bytes_max: 1 << 20, scanned_max: 10_000 };
    loop {
        let mut out = Vec::new();
        let from = QueueOffset::new(from).unwrap();
        match shard.shard().read(queue, from, &limits, &TagFilter::All, 7, &mut out) {
            ReadOutcome::Found { next, .. } => {
                return (out.iter().flat_map(|slice| slice.to_vec()).collect(), next.get());
            }
            ReadOutcome::Pending => {
                let mut ready = Vec::new();
                while ready.is_empty() {
                    shard.turn_blocking(NOW, WAIT).unwrap();
                    shard.shard().take_ready(&mut ready);
                }
                assert_eq!(ready, [7]);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn body(n: u32) -> Vec<u8> {
    format!("{n:08}").into_bytes().repeat(1 + n as usize % 200)
}

fn check_all(shard: &mut RingShard, queue: QueueNo, count: u32) {
    let mut next = 0;
    for n in 0..count {
        let (bytes, after) = read_from(shard, queue, next, 1);
        assert_eq!(bytes, body(n), "record {n}");
        assert_eq!(after, next + 1);
        next = after;
    }
    assert_eq!(shard.shard().max_offset(queue).get(), i64::from(count));
}

#[test]
fn records_and_facts_survive_with_and_without_a_clean_end() {
    let dir = tempfile::tempdir().unwrap();
    const PER_LIFE: u32 = 3000;
    for life in 0..4 {
        let mut shard = open(dir.path());
        let queue = open_queue(&mut shard, b"TopicA/0");
        check_all(&mut shard, queue, life * PER_LIFE);
        let mut last = Sequence::default();
        for n in life * PER_LIFE..(life + 1) * PER_LIFE {
            last = append(&mut shard, queue, &body(n), NOW);
        }
        let fact = shard.shard().put_fact(b"life", Some(&life.to_be_bytes()), NOW).unwrap();
        shard.shard().stage_fact(b"staged", &life.to_be_bytes(), NOW);
        commit(&mut shard, last.max(fact));
        assert_eq!(shard.shard().fact(b"life"), Some(&life.to_be_bytes()[..]));
        check_all(&mut shard, queue, (life + 1) * PER_LIFE);
        if life % 2 == 0 {
            shard.close(|| NOW).unwrap();
        }
    }
}

#[test]
fn a_clean_end_leaves_nothing_to_replay() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path());
    let queue = open_queue(&mut shard, b"q");
    append(&mut shard, queue, b"hello", NOW);
    shard.close(|| NOW).unwrap();
    let store = Store::open(dir.path(), &small(), 0, NOW).unwrap();
    let report = store.reports()[0];
    assert!(report.from_checkpoint);
    assert_eq!((report.groups, report.torn_bytes, report.damaged), (0, 0, 0));
    assert_eq!(store.id(), 42);
}

#[test]
fn a_checkpoint_of_any_length_comes_to_an_end() {
    // More than one step tells, and the last piece is neither empty nor full.
    for count in [1, 500, 1500, 4000] {
        let dir = tempfile::tempdir().unwrap();
        let mut shard = open(dir.path());
        let mut last = None;
        for n in 0..count {
            let key = format!("{n:0>100}");
            let queue = open_queue(&mut shard, key.as_bytes());
            last = Some(append(&mut shard, queue, &body(n), NOW));
        }
        commit(&mut shard, last.unwrap());
        shard.close(|| NOW).unwrap();
        let mut shard = open(dir.path());
        assert_eq!(shard.shard().queue_count(), usize::try_from(count).unwrap());
        let key = format!("{:0>100}", count - 1);
        let queue = shard.shard().queue(key.as_bytes()).unwrap();
        assert_eq!(read_from(&mut shard, queue, 0, 1), (body(count - 1), 1));
    }
}

#[test]
fn waiters_wake_at_the_commit_of_a_record_that_they_want() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path());
    let queue = open_queue(&mut shard, b"q");
    shard.shard().wait(queue, TagFilter::Tags([5].into()), 1);
    shard.shard().wait(queue, TagFilter::All, 2);
    shard.shard().wait(queue, TagFilter::All, 3);
    shard.shard().cancel_wait(queue, 3);
    let sequence = append(&mut shard, queue, b"untagged", NOW);
    let mut woken = Vec::new();
    shard.shard().take_woken(&mut woken);
    assert!(woken.is_empty(), "nothing above the committed frontier is told");
    commit(&mut shard, sequence);
    shard.shard().take_woken(&mut woken);
    assert_eq!(woken, [2]);
}

#[test]
fn positions_from_outside_count_only_where_a_record_starts() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path());
    let queue = open_queue(&mut shard, b"q");
    let first = shard.shard().append(queue, &[&b"one"[..], b"twotwo"], NOW).unwrap();
    commit(&mut shard, first.sequence);
    let mut at =
        |distance: usize| match shard.shard().read_at(first.first_log_offset.plus(distance), 0) {
            ReadAtOutcome::Found(slice) => Some(slice.to_vec()),
            ReadAtOutcome::Missing => None,
            other => panic!("{other:?}"),
        };
    assert_eq!(at(0), Some(b"one".to_vec()));
    assert_eq!(at(3), Some(b"twotwo".to_vec()));
    for wrong in [1, 2, 4, 8, 9, 100, 511, 512, 1 << 20, 1 << 40] {
        assert_eq!(at(wrong), None, "distance {wrong}");
    }
}

#[test]
fn a_time_leads_to_the_first_record_stored_at_or_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path());
    let queue = open_queue(&mut shard, b"q");
    for n in 0..50 {
        let now = EpochMillis::new(NOW.get() + 1000 * n);
        let sequence = append(&mut shard, queue, b"x", now);
        commit(&mut shard, sequence);
    }
    for (ms, want) in [(-1, 0), (0, 0), (1, 1), (1000, 1), (48_999, 49), (49_000, 49), (49_001, 50)]
    {
        let time = EpochMillis::new(NOW.get() + ms);
        match shard.shard().search_time(queue, time, 0) {
            SearchOutcome::Found(offset) => assert_eq!(offset.get(), want, "{ms} ms"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn large_records_make_groups_of_their_own_and_too_large_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { segment_len: 16 << 20, ..StoreOptions::default() };
    let store = Store::open(dir.path(), &options, 1, NOW).unwrap();
    let mut shard = store.into_shards().shards.remove(0);
    let queue = open_queue(&mut shard, b"q");
    let large = vec![7; 5 << 20];
    for _ in 0..20 {
        append(&mut shard, queue, b"small", NOW);
        append(&mut shard, queue, &large, NOW);
    }
    let last = append(&mut shard, queue, b"end", NOW);
    commit(&mut shard, last);
    for n in 0..20 {
        assert_eq!(read_from(&mut shard, queue, 2 * n, 1).0, b"small");
        assert_eq!(read_from(&mut shard, queue, 2 * n + 1, 1).0.len(), large.len());
    }
    let refused = shard.shard().append(queue, &[&vec![0; 16 << 20][..]], NOW);
    assert!(matches!(refused, Err(AppendError::TooLarge { .. })), "{refused:?}");
    assert_eq!(shard.shard().max_offset(queue).get(), 41);
}

#[test]
fn a_reader_keeps_what_it_reads_while_appends_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path());
    let queue = open_queue(&mut shard, b"q");
    let mut held: Vec<(u32, RecordSlice)> = Vec::new();
    let limits = ReadLimits { records_max: 1, bytes_max: 1 << 20, scanned_max: 1 };
    for n in 0..30_000u32 {
        let sequence = append(&mut shard, queue, &body(n), NOW);
        if n % 500 == 0 {
            commit(&mut shard, sequence);
            let mut out = Vec::new();
            let at = QueueOffset::new(i64::from(n)).unwrap();
            let outcome = shard.shard().read(queue, at, &limits, &TagFilter::All, 0, &mut out);
            assert!(matches!(outcome, ReadOutcome::Found { count: 1, .. }), "{outcome:?}");
            held.push((n, out.remove(0)));
        }
    }
    for (n, slice) in &held {
        assert_eq!(&**slice, body(*n), "record {n}");
    }
}

#[test]
fn a_second_opening_is_refused_while_the_first_holds_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &small(), 1, NOW).unwrap();
    let refused = Store::open(dir.path(), &small(), 1, NOW).err().unwrap();
    assert!(matches!(refused, OpenError::Held(_)), "{refused}");
    drop(store);
    Store::open(dir.path(), &small(), 1, NOW).unwrap();
}

#[test]
fn options_that_contradict_the_store_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let two = StoreOptions { shards: Some(2), ..small() };
    drop(Store::open(dir.path(), &two, 1, NOW).unwrap());
    let three = StoreOptions { shards: Some(3), ..small() };
    let refused = Store::open(dir.path(), &three, 1, NOW).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "the store has 2 shards, not 3; the number is fixed when it is created: ask for none, or \
         choose another folder"
    );
    let large = StoreOptions { block_len: Some(32_768), ..small() };
    let refused = Store::open(dir.path(), &large, 1, NOW).err().unwrap().to_string();
    assert!(refused.contains("bytes, not 32768;"), "{refused}");
    assert_eq!(Store::open(dir.path(), &small(), 1, NOW).unwrap().shard_count(), 2);
}

/// Fills a store so that it has index blocks and a checkpoint, and closes it.
fn filled(dir: &Path) {
    let mut shard = open(dir);
    let queue = open_queue(&mut shard, b"q");
    for n in 0..1000 {
        append(&mut shard, queue, &body(n), NOW);
    }
    shard.close(|| NOW).unwrap();
}

fn remove_checkpoints(dir: &Path) {
    for slot in 0..2 {
        let path = dir.join(format!("shard-0/checkpoint.{slot}"));
        if path.exists() {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn an_index_that_is_short_is_rebuilt_from_the_log() {
    for len in [0, 5000] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let index = dir.path().join("shard-0/index");
        let file = std::fs::OpenOptions::new().write(true).open(&index).unwrap();
        assert!(file.metadata().unwrap().len() >= 5 * 4096, "1,000 records fill five blocks");
        file.set_len(len).unwrap();
        let store = Store::open(dir.path(), &small(), 0, NOW).unwrap();
        assert!(store.reports()[0].groups > 1, "the newest checkpoint names blocks that are gone");
        let mut shard = store.into_shards().shards.remove(0);
        let queue = open_queue(&mut shard, b"q");
        check_all(&mut shard, queue, 1000);
    }
}

#[test]
fn a_damaged_block_of_the_index_is_met_by_its_reader_and_rebuilt_by_the_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let index = dir.path().join("shard-0/index");
    let mut bytes = std::fs::read(&index).unwrap();
    // In the second block, whether a page ended between the two or not.
    bytes[8300] ^= 1;
    std::fs::write(&index, &bytes).unwrap();
    let store = Store::open(dir.path(), &small(), 0, NOW).unwrap();
    assert!(store.reports()[0].from_checkpoint, "blocks are not read before they are needed");
    let mut shard = store.into_shards().shards.remove(0);
    let queue = open_queue(&mut shard, b"q");
    assert_eq!(read_from(&mut shard, queue, 0, 1).0, body(0));
    assert_eq!(read_from(&mut shard, queue, 999, 1).0, body(999));
    let limits = ReadLimits { records_max: 1, bytes_max: 1 << 20, scanned_max: 1 };
    let outcome = loop {
        let from = QueueOffset::new(210).unwrap();
        let all = TagFilter::All;
        match shard.shard().read(queue, from, &limits, &all, 7, &mut Vec::new()) {
            ReadOutcome::Pending => shard.turn_blocking(NOW, WAIT).unwrap(),
            outcome => break outcome,
        }
    };
    assert!(matches!(outcome, ReadOutcome::Failed(_)), "{outcome:?}");
    shard.close(|| NOW).unwrap();
    let store = Store::open(dir.path(), &small(), 0, NOW).unwrap();
    assert!(!store.reports()[0].from_checkpoint);
    let mut shard = store.into_shards().shards.remove(0);
    let queue = open_queue(&mut shard, b"q");
    check_all(&mut shard, queue, 1000);
}

#[test]
fn a_store_without_its_manifest_or_its_first_segment_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let manifest = dir.path().join("manifest");
    let kept = std::fs::read(&manifest).unwrap();
    std::fs::remove_file(&manifest).unwrap();
    let refused = Store::open(dir.path(), &small(), 9, NOW).err().unwrap();
    assert!(matches!(refused, OpenError::Manifest(..)), "{refused}");
    assert!(!manifest.exists());
    std::fs::write(&manifest, kept).unwrap();
    let first = dir.path().join("shard-0/0000000000000000.log");
    let segment = std::fs::read(&first).unwrap();
    for keep_checkpoint in [true, false] {
        std::fs::remove_file(&first).unwrap();
        if !keep_checkpoint {
            remove_checkpoints(dir.path());
        }
        let refused = Store::open(dir.path(), &small(), 9, NOW).err().unwrap();
        assert!(matches!(refused, OpenError::Damaged(..)), "{refused}");
        std::fs::write(&first, &segment).unwrap();
    }
    let mut shard = open(dir.path());
    let queue = open_queue(&mut shard, b"q");
    check_all(&mut shard, queue, 1000);
}

#[test]
fn a_lost_epoch_costs_nothing() {
    for damage in [None, Some(&b"not an epoch"[..])] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let epoch = dir.path().join("shard-0/epoch");
        match damage {
            None => std::fs::remove_file(&epoch).unwrap(),
            Some(bytes) => std::fs::write(&epoch, bytes).unwrap(),
        }
        let mut shard = open(dir.path());
        let queue = open_queue(&mut shard, b"q");
        check_all(&mut shard, queue, 1000);
    }
}
