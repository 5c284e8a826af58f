//! Retention on real files: what is given up, what never is, and who is in its way.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use ringmq_engine::{
    AppendError, DiskBudget, EpochMillis, OpenError, QueueNo, QueueOffset, ReadLimits, ReadOutcome,
    RingShard, SearchOutcome, Sequence, ShardLimits, Store, StoreOptions, TagFilter, Trimmed,
};

const NOW: EpochMillis = EpochMillis::new(1_700_000_000_000);
const WAIT: Duration = Duration::from_millis(100);
const BUDGET: u64 = 64 << 20;
const SEGMENT: u64 = 4 << 20;
const BODY: usize = 60 << 10;

fn options() -> StoreOptions {
    StoreOptions {
        segment_len: SEGMENT,
        disk_budget: Some(DiskBudget::Bytes(BUDGET)),
        limits: ShardLimits {
            tail_bytes: 8 << 20,
            cold_bytes: 8 << 20,
            group_bytes: 256 << 10,
            checkpoint_bytes: 16 << 20,
            ..ShardLimits::default()
        },
        ..StoreOptions::default()
    }
}

struct Opened {
    shard: RingShard,
    now: EpochMillis,
}

impl Opened {
    fn new(dir: &Path) -> Self {
        Self::with(dir, &options())
    }

    fn with(dir: &Path, options: &StoreOptions) -> Self {
        let store = Store::open(dir, options, 42, NOW).unwrap();
        Self { shard: store.into_shards().shards.remove(0), now: NOW }
    }

    fn turn(&mut self) {
        self.now = EpochMillis::new(self.now.get() + 1);
        self.shard.shard().tick(self.now);
        self.shard.turn_blocking(self.now, WAIT).unwrap();
        assert_eq!(self.shard.shard().poisoned(), None);
    }

    fn retry<T>(
        &mut self,
        mut call: impl FnMut(&mut RingShard, EpochMillis) -> Result<T, AppendError>,
    ) -> T {
        loop {
            match call(&mut self.shard, self.now) {
                Ok(value) => return value,
                Err(AppendError::Backlogged) => self.turn(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn queue(&mut self, key: &[u8]) -> QueueNo {
        self.retry(|shard, now| shard.shard().open_queue(key, now))
    }

    fn append(&mut self, queue: QueueNo, body: &[u8]) -> Sequence {
        self.retry(|shard, now| shard.shard().append(queue, &[body], now)).sequence
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Sequence {
        self.retry(|shard, now| shard.shard().put_fact(key, Some(value), now))
    }

    fn commit(&mut self, sequence: Sequence) {
        while self.shard.shard().committed() < sequence {
            self.turn();
        }
    }

    /// Appends bodies until this many segments have been recycled.
    fn fill(&mut self, queue: QueueNo, recycled: u64) {
        let body = vec![b'x'; BODY];
        while self.shard.shard().stats().segments_recycled < recycled {
            let last = (0..16).map(|_| self.append(queue, &body)).max().unwrap();
            self.commit(last);
        }
    }

    /// Takes turns until retention has room ahead of the writer and stops.
    fn settle(&mut self) {
        let (mut recycled, mut quiet) = (0, 0);
        while quiet < 50 {
            self.turn();
            let stats = self.shard.shard().stats();
            quiet = if stats.segments_recycled == recycled { quiet + 1 } else { 0 };
            recycled = stats.segments_recycled;
        }
    }

    fn min_max(&mut self, queue: QueueNo) -> (i64, i64) {
        let shard = self.shard.shard();
        (shard.min_offset(queue).get(), shard.max_offset(queue).get())
    }

    fn read(&mut self, queue: QueueNo, from: i64) -> Result<(Vec<u8>, i64), ReadOutcome> {
        let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
        let from = QueueOffset::new(from).unwrap();
        loop {
            let mut out = Vec::new();
            let all = TagFilter::All;
            match self.shard.shard().read(queue, from, &limits, &all, 7, &mut out) {
                ReadOutcome::Found { next, .. } => return Ok((out.remove(0).to_vec(), next.get())),
                ReadOutcome::Pending => self.turn(),
                other => return Err(other),
            }
        }
    }
}

fn remove_checkpoints(dir: &Path) {
    for slot in 0..2 {
        std::fs::remove_file(dir.join(format!("shard-0/checkpoint.{slot}"))).unwrap();
    }
}

#[test]
fn what_must_not_be_lost_outlives_twenty_turns_of_the_budget_and_the_checkpoints() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let facts: [(&[u8], &[u8]); 4] = [
        (b"control/topic/orders", b"read queues, write queues, permission"),
        (b"offset/idle group/orders/0", b"12"),
        (b"timer/in 40 days", b"due"),
        (b"removed and set again", b"again"),
    ];
    let mut store = Opened::new(dir.path());
    let emptied = store.queue(b"emptied");
    let mut last = Sequence::default();
    for n in 0..37 {
        last = store.append(emptied, format!("record {n}").as_bytes());
    }
    store.put(b"removed and set again", b"first");
    store.retry(|shard, now| shard.shard().put_fact(b"removed and set again", None, now));
    store.retry(|shard, now| shard.shard().put_fact(b"removed", Some(b"x"), now));
    store.retry(|shard, now| shard.shard().put_fact(b"removed", None, now));
    for (key, value) in facts {
        last = store.put(key, value);
    }
    store.commit(last);
    let busy = store.queue(b"busy");
    // 20 times the segments that the budget has room for.
    store.fill(busy, 20 * (BUDGET / SEGMENT));
    store.settle();
    let (min, max) = store.min_max(busy);
    assert!(min > 0 && max > min, "{min} to {max}");
    assert_eq!(store.min_max(emptied), (37, 37));
    let used = store.shard.shard().disk_use();
    assert!(used.used_bytes <= BUDGET, "{used:?}");
    // A kill, and nothing but the log is left.
    drop(store);
    remove_checkpoints(dir.path());
    let opened = Store::open(dir.path(), &options(), 1, NOW).unwrap();
    assert!(!opened.reports()[0].from_checkpoint);
    let shard = opened.into_shards().shards.remove(0);
    let mut store = Opened { shard, now: NOW };
    for (key, value) in facts {
        assert_eq!(store.shard.shard().fact(key), Some(value), "{}", key.escape_ascii());
    }
    assert_eq!(store.shard.shard().fact(b"removed"), None);
    let emptied = store.shard.shard().queue(b"emptied").unwrap();
    assert_eq!(store.min_max(emptied), (37, 37));
    let appended = store.retry(|shard, now| shard.shard().append(emptied, &[&b"next"[..]], now));
    assert_eq!(appended.first_queue_offset.get(), 37);
    let busy = store.shard.shard().queue(b"busy").unwrap();
    let after = store.min_max(busy);
    assert_eq!(after.1, max);
    assert!(after.0 <= min, "what was kept is there: {after:?}, {min}");
    for offset in [after.0, min, max - 1] {
        assert_eq!(store.read(busy, offset).unwrap().0.len(), BODY);
    }
    let below = store.read(busy, after.0 - 1);
    assert!(matches!(below, Err(ReadOutcome::BelowMin { .. })), "{below:?}");
}

#[test]
fn retention_tells_which_records_were_given_up_and_minimum_offsets_outlive_a_kill() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = Opened::new(dir.path());
    let (busy, slow) = (store.queue(b"busy"), store.queue(b"slow"));
    let mut trimmed = Vec::new();
    let body = vec![b'x'; BODY];
    for n in 0..2500 {
        if n % 50 == 0 {
            store.append(slow, format!("{n}").as_bytes());
        }
        let sequence = store.append(busy, &body);
        if n % 10 == 9 {
            store.commit(sequence);
        }
        store.shard.shard().take_trimmed(&mut trimmed);
    }
    store.settle();
    store.shard.shard().take_trimmed(&mut trimmed);
    for queue in [busy, slow] {
        // Each notice goes on where the one before has ended.
        let mut at = QueueOffset::default();
        for Trimmed { from, to, .. } in trimmed.iter().filter(|notice| notice.queue == queue) {
            assert_eq!(*from, at);
            assert!(from < to);
            at = *to;
        }
        assert_eq!(at, store.shard.shard().min_offset(queue));
        let (min, _) = store.min_max(queue);
        assert!(store.read(queue, min).is_ok(), "the first one that is kept can be read");
    }
    let before = [store.min_max(busy), store.min_max(slow)];
    let from = store.read(slow, before[1].0).unwrap();
    drop(store);
    for without_checkpoints in [false, true] {
        if without_checkpoints {
            remove_checkpoints(dir.path());
        }
        let mut store = Opened::new(dir.path());
        let (busy, slow) = (store.queue(b"busy"), store.queue(b"slow"));
        assert_eq!(store.read(slow, before[1].0).unwrap(), from);
        for (queue, (min, max)) in [(busy, before[0]), (slow, before[1])] {
            let after = store.min_max(queue);
            assert_eq!(after.1, max);
            // A segment that was let go and not used again is merely kept longer.
            assert!(after.0 <= min && after.0 > 0, "{after:?}, {min}");
        }
    }
}

#[test]
fn segments_past_their_age_are_given_up_and_the_newest_one_never() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut options = options();
    options.limits.age_ms = 3_600_000;
    let mut store = Opened::with(dir.path(), &options);
    let queue = store.queue(b"q");
    let body = vec![b'x'; BODY];
    for _ in 0..300 {
        let sequence = store.append(queue, &body);
        store.commit(sequence);
    }
    assert_eq!(store.min_max(queue), (0, 300));
    store.now = EpochMillis::new(NOW.get() + 3_600_000 + 1_000_000);
    while store.shard.shard().stats().segments_recycled < 4 {
        store.turn();
    }
    let (min, max) = store.min_max(queue);
    assert!(min > 100 && min < 300 && max == 300, "{min}");
    let logs = || {
        let files = std::fs::read_dir(dir.path().join("shard-0")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|name| name == "log")).count()
    };
    // A segment is given up before its file is gone.
    for _ in 0..1000 {
        if logs() <= 5 {
            break;
        }
        store.turn();
    }
    assert!(logs() <= 5, "what is not needed ahead of the writer is removed");
    for offset in min..max {
        assert_eq!(store.read(queue, offset).unwrap().0, body);
    }
}

#[test]
fn a_hold_keeps_records_and_refuses_appends_but_not_facts_until_it_ends() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = Opened::new(dir.path());
    let queue = store.queue(b"q");
    let first = store.retry(|shard, now| shard.shard().append(queue, &[&b"first"[..]], now));
    store.commit(first.sequence);
    let hold = store.shard.shard().hold(first.first_log_offset).unwrap();
    let body = vec![b'x'; BODY];
    let refused = loop {
        match store.shard.shard().append(queue, &[&body[..]], store.now) {
            Ok(_) | Err(AppendError::Backlogged) => store.turn(),
            Err(refused) => break refused,
        }
    };
    let AppendError::DiskFull(disk) = &refused else { panic!("{refused}") };
    assert_eq!(disk.budget_bytes, BUDGET);
    assert!(disk.used_bytes + SEGMENT > BUDGET && disk.used_bytes <= BUDGET, "{refused}");
    assert_eq!(store.read(queue, 0).unwrap().0, b"first", "a slow reader gets what it holds");
    // A day of offset commits, one a second, would fit; a part of it shows that they go on.
    for n in 0..2000_u32 {
        let sequence = store.put(b"offset/group/q", &n.to_be_bytes());
        store.commit(sequence);
    }
    let refused = store.shard.shard().append(queue, &[&body[..]], store.now);
    assert!(matches!(refused, Err(AppendError::DiskFull(_))), "{refused:?}");
    store.shard.shard().release(hold);
    let sequence = loop {
        match store.shard.shard().append(queue, &[&body[..]], store.now) {
            Ok(appended) => break appended.sequence,
            Err(AppendError::Backlogged | AppendError::DiskFull(_)) => store.turn(),
            Err(error) => panic!("{error}"),
        }
    };
    store.commit(sequence);
    assert!(store.min_max(queue).0 > 0, "the oldest records have gone");
    let fact = store.shard.shard().fact(b"offset/group/q");
    assert_eq!(fact, Some(&1999_u32.to_be_bytes()[..]));
}

#[test]
fn a_cold_reader_and_retention_race_without_a_wrong_record() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = Opened::new(dir.path());
    let queue = store.queue(b"q");
    let record = |n: i64| format!("{n:012}").into_bytes().repeat(BODY / 12);
    let (mut written, mut at, mut lost, mut read) = (0, 0, 0, 0);
    let mut times = Vec::new();
    while written < 3000 {
        let bytes = record(written);
        let appended = store.retry(|shard, now| shard.shard().append(queue, &[&bytes[..]], now));
        times.push(appended.store_time);
        written += 1;
        if written % 10 == 0 {
            store.commit(appended.sequence);
        }
        // The reader is slower than the writer, so retention overtakes it again and again.
        if written % 2 == 0 {
            match store.read(queue, at) {
                Ok((bytes, next)) => {
                    assert_eq!(bytes, record(at), "offset {at}");
                    read += 1;
                    at = next;
                }
                Err(ReadOutcome::BelowMin { min }) => {
                    lost += min.get() - at;
                    at = min.get();
                }
                Err(ReadOutcome::AtEnd) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(lost > 0 && read > 0, "{lost} lost, {read} read");
    let min = store.min_max(queue).0;
    let times_from = usize::try_from(min).unwrap();
    for wanted in [NOW, times[times_from], times[times_from + 201], times[2500], times[2999]] {
        let found = loop {
            match store.shard.shard().search_time(queue, wanted, 7) {
                SearchOutcome::Pending => store.shard.turn_blocking(store.now, WAIT).unwrap(),
                SearchOutcome::Found(offset) => break offset.get(),
                failed => panic!("{failed:?}"),
            }
        };
        let first = times.iter().position(|&time| time >= wanted).unwrap();
        let min = store.min_max(queue).0;
        assert_eq!(found, i64::try_from(first).unwrap().max(min), "{wanted}");
    }
}

#[test]
fn a_deleted_queue_leaves_nothing_that_one_of_the_same_key_could_meet() {
    for (without_checkpoints, checkpoint) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut store = Opened::new(dir.path());
        let old = store.queue(b"topic/0");
        let other = store.queue(b"other");
        store.append(other, b"stays");
        for n in 0..500 {
            store.append(old, format!("old {n}").as_bytes());
        }
        store.shard.shard().wait(old, TagFilter::Tags([99].into()), 5);
        let sequence = store.retry(|shard, now| shard.shard().delete_queue(old, now));
        assert_eq!(store.shard.shard().queue(b"topic/0"), None, "the key is free at once");
        let again = store.retry(|shard, now| shard.shard().append(other, &[&b"two"[..]], now));
        let refused = store.shard.shard().append(old, &[&b"late"[..]], store.now);
        assert!(matches!(refused, Err(AppendError::Deleted)), "{refused:?}");
        let refused = store.shard.shard().delete_queue(old, store.now);
        assert!(matches!(refused, Err(AppendError::Deleted)), "{refused:?}");
        let new = store.queue(b"topic/0");
        assert_ne!(old, new);
        let first = store.retry(|shard, now| shard.shard().append(new, &[&b"new 0"[..]], now));
        assert_eq!(first.first_queue_offset.get(), 0);
        store.commit(first.sequence.max(again.sequence).max(sequence));
        let mut woken = Vec::new();
        store.shard.shard().take_woken(&mut woken);
        assert_eq!(woken, [5], "whoever waited is told");
        assert_eq!(store.min_max(old), (0, 0));
        if checkpoint {
            for _ in 0..2 {
                let before = store.shard.shard().stats().checkpoints;
                let sequence = store.append(other, b"more");
                store.commit(sequence);
                store.shard.shard().start_checkpoint(store.now);
                while store.shard.shard().stats().checkpoints == before {
                    store.turn();
                }
            }
        }
        drop(store);
        if without_checkpoints && checkpoint {
            remove_checkpoints(dir.path());
        }
        let mut store = Opened::new(dir.path());
        let new = store.shard.shard().queue(b"topic/0").unwrap();
        assert_eq!(store.min_max(new), (0, 1));
        assert_eq!(store.read(new, 0).unwrap().0, b"new 0");
        let other = store.shard.shard().queue(b"other").unwrap();
        assert_eq!(store.read(other, 0).unwrap().0, b"stays");
        assert_eq!(store.shard.shard().queue_count(), 2);
        // When the log has forgotten the old queue, its number is used again.
        store.fill(other, 4);
        let third = store.queue(b"third");
        assert_eq!(third, old);
        let sequence = store.append(third, b"third 0");
        store.commit(sequence);
        assert_eq!(store.min_max(third), (0, 1));
        drop(store);
        let mut store = Opened::new(dir.path());
        let third = store.shard.shard().queue(b"third").unwrap();
        assert_eq!(store.read(third, 0).unwrap().0, b"third 0");
    }
}

#[test]
fn a_shortened_or_missing_segment_in_the_middle_costs_its_records_only() {
    for missing in [false, true] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut store = Opened::new(dir.path());
        let queue = store.queue(b"q");
        let record = |n: i64| format!("{n:012}").into_bytes().repeat(BODY / 12);
        for n in 0..300 {
            let sequence = store.append(queue, &record(n));
            store.commit(sequence);
        }
        let fact = store.put(b"fact", b"value");
        store.commit(fact);
        drop(store);
        for slot in 0..2 {
            let _ = std::fs::remove_file(dir.path().join(format!("shard-0/checkpoint.{slot}")));
        }
        let path = dir.path().join("shard-0/0000000000000002.log");
        if missing {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        }
        let mut store = Opened::new(dir.path());
        let queue = store.shard.shard().queue(b"q").unwrap();
        assert_eq!(store.min_max(queue), (0, 300), "offsets are kept");
        assert_eq!(store.shard.shard().fact(b"fact"), Some(&b"value"[..]));
        let mut lost = 0;
        for n in 0..300 {
            match store.read(queue, n) {
                Ok((bytes, _)) => assert_eq!(bytes, record(n)),
                Err(ReadOutcome::NoMatch { .. }) => lost += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        // A segment holds 68 groups of one record of 60 KiB.
        let most = if missing { 68 } else { 52 };
        assert!((most - 4..=most).contains(&lost), "{lost} records lost");
        let appended = store.retry(|shard, now| shard.shard().append(queue, &[&b"on"[..]], now));
        assert_eq!(appended.first_queue_offset.get(), 300);
    }
}

#[test]
fn a_budget_that_cannot_work_is_refused_in_one_line() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let small = StoreOptions { disk_budget: Some(DiskBudget::Bytes(SEGMENT)), ..options() };
    let refused = Store::open(dir.path(), &small, 1, NOW).err().unwrap();
    assert!(matches!(refused, OpenError::Options(_)), "{refused}");
    assert!(refused.to_string().contains("raise the budget"), "{refused}");
    let part = StoreOptions { disk_budget: Some(DiskBudget::Percent(10)), ..options() };
    let mut store = Opened::with(dir.path(), &part);
    assert!(store.shard.shard().disk_use().budget_bytes > BUDGET);
}

#[test]
fn a_fact_outlives_the_damage_of_its_group_before_there_is_a_checkpoint() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut store = Opened::new(dir.path());
    let topic = store.put(b"control/topic/orders", b"8 queues");
    let removed = store.put(b"control/topic/gone", b"4 queues");
    store.commit(topic.max(removed));
    let changed = store.put(b"control/topic/orders", b"16 queues");
    let removed =
        store.retry(|shard, now| shard.shard().put_fact(b"control/topic/gone", None, now));
    store.commit(changed.max(removed));
    // An idle shard notes its frontier; the facts ride along.
    for _ in 0..40 {
        store.now = EpochMillis::new(store.now.get() + 100);
        store.turn();
    }
    let committed = store.shard.shard().committed();
    store.commit(committed);
    drop(store);
    let path = dir.path().join("shard-0/0000000000000000.log");
    let log = std::fs::read(&path).unwrap();
    let starts: Vec<usize> = (0..log.len() - 8)
        .step_by(512)
        .filter(|&at| log.get(at..at + 8) == Some(&b"RINGMQG1"[..]))
        .collect();
    assert!(starts.len() >= 3, "{starts:?}");
    for &damaged in starts.iter().take(2) {
        for slot in 0..2 {
            let _ = std::fs::remove_file(dir.path().join(format!("shard-0/checkpoint.{slot}")));
        }
        let mut bytes = log.clone();
        bytes[damaged + 100] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let mut store = Opened::new(dir.path());
        let shard = store.shard.shard();
        assert_eq!(shard.fact(b"control/topic/orders"), Some(&b"16 queues"[..]), "{damaged}");
        assert_eq!(shard.fact(b"control/topic/gone"), None, "{damaged}");
    }
}
