//! A store that acknowledges from shared memory: what a killed process had acknowledged is there at the
//! next opening, and a store whose shared memory is gone says so.
//!
//! A process is "killed" here by dropping its shards before what is in the buffers has been handed to
//! the device; the kill of a real process is tried by the `kill` program.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::time::Duration;

use ringmq_engine::{
    Acknowledge, EpochMillis, OpenError, QueueNo, QueueOffset, ReadLimits, ReadOutcome,
    RecoveryReport, RingShard, ShardLimits, Store, StoreOptions, TagFilter,
};

const NOW: EpochMillis = EpochMillis::new(1_700_000_000_000);
/// Long enough behind the last append to prepare segments in one go.
const LATER: EpochMillis = EpochMillis::new(1_700_000_001_000);
const WAIT: Duration = Duration::from_millis(100);

fn options(acknowledge: Option<Acknowledge>, buffers: &Path) -> StoreOptions {
    let limits = ShardLimits {
        tail_bytes: 4 << 20,
        cold_bytes: 4 << 20,
        group_bytes: 64 << 10,
        ..ShardLimits::default()
    };
    let buffer_dir = buffers.to_owned();
    StoreOptions {
        segment_len: 1 << 20,
        acknowledge,
        buffer_dir,
        limits,
        ..StoreOptions::default()
    }
}

/// A folder for the store and one for shared memory.
struct Folders {
    store: tempfile::TempDir,
    buffers: tempfile::TempDir,
}

impl Folders {
    fn new() -> Self {
        let store = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { store, buffers: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn open(&self, acknowledge: Option<Acknowledge>) -> (RingShard, RecoveryReport) {
        let options = options(acknowledge, self.buffers.path());
        let store = Store::open(self.store.path(), &options, 42, NOW).unwrap();
        let report = *store.reports().first().unwrap();
        (store.into_shards().shards.remove(0), report)
    }

    fn buffer_files(&self) -> usize {
        std::fs::read_dir(self.buffers.path()).unwrap().count()
    }
}

/// The queue, with a shard that is ready for appends.
fn queue(shard: &mut RingShard) -> QueueNo {
    while shard.shard().is_preparing() {
        shard.turn_blocking(LATER, WAIT).unwrap();
    }
    let queue = shard.shard().open_queue(b"queue", NOW).unwrap();
    shard.shard().input_drained(NOW);
    queue
}

/// Appends one record and has it acknowledged, without anything being handed to the device.
fn append(shard: &mut RingShard, queue: QueueNo, bytes: &[u8]) -> i64 {
    let appended = shard.shard().append(queue, &[bytes], NOW).unwrap();
    shard.shard().input_drained(NOW);
    assert!(shard.shard().committed() >= appended.sequence, "acknowledged at once");
    appended.first_queue_offset.get()
}

fn body(n: i64) -> Vec<u8> {
    format!("{n:08}").into_bytes().repeat(1 + usize::try_from(n % 40).unwrap())
}

fn read(shard: &mut RingShard, queue: QueueNo, at: i64) -> Vec<u8> {
    let limits = ReadLimits { records_max: 1, bytes_max: 1 << 20, scanned_max: 1 };
    let at = QueueOffset::new(at).unwrap();
    loop {
        let mut out = Vec::new();
        match shard.shard().read(queue, at, &limits, &TagFilter::All, 7, &mut out) {
            ReadOutcome::Found { .. } => return out.iter().flat_map(|s| s.to_vec()).collect(),
            ReadOutcome::Pending => shard.turn_blocking(NOW, WAIT).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

#[track_caller]
fn check(shard: &mut RingShard, count: i64) {
    let queue = shard.shard().queue(b"queue").unwrap();
    assert_eq!(shard.shard().max_offset(queue).get(), count);
    for n in 0..count {
        assert_eq!(read(shard, queue, n), body(n), "record {n}");
    }
}

#[test]
fn what_was_acknowledged_from_memory_is_there_after_a_kill() {
    const PER_LIFE: i64 = 300;
    let folders = Folders::new();
    for life in 0..5 {
        let acknowledge = (life == 0).then_some(Acknowledge::Buffered);
        let (mut shard, report) = folders.open(acknowledge);
        assert_eq!(shard.shard().acknowledge(), Acknowledge::Buffered, "the manifest says so");
        // Before the first life nothing is there, and the last but one has ended cleanly.
        let left = life > 0 && life != 4;
        assert_eq!(report.restored_groups > 0, left, "life {life}: {report:?}");
        assert_eq!((report.lost_bytes_max, report.damaged), (0, 0));
        if life > 0 {
            check(&mut shard, life * PER_LIFE);
        }
        let queue = queue(&mut shard);
        for n in life * PER_LIFE..(life + 1) * PER_LIFE {
            assert_eq!(append(&mut shard, queue, &body(n)), n);
            assert_eq!(read(&mut shard, queue, n), body(n), "visible at once");
        }
        assert!(shard.shard().durable() < shard.shard().committed());
        if life == 3 {
            shard.close(|| NOW).unwrap();
            assert_eq!(folders.buffer_files(), 0, "a clean end leaves nothing in memory");
        }
    }
}

#[test]
fn a_switch_to_durable_takes_what_is_in_memory_first() {
    let folders = Folders::new();
    let (mut shard, _) = folders.open(Some(Acknowledge::Buffered));
    let queue = queue(&mut shard);
    (0..50).for_each(|n| assert_eq!(append(&mut shard, queue, &body(n)), n));
    drop(shard);
    let (mut shard, report) = folders.open(Some(Acknowledge::Durable));
    assert!(report.restored_groups > 0);
    assert_eq!(shard.shard().acknowledge(), Acknowledge::Durable);
    check(&mut shard, 50);
    assert_eq!(folders.buffer_files(), 0);
    let sequence = shard.shard().append(queue, &[&body(50)[..]], NOW).unwrap().sequence;
    shard.shard().input_drained(NOW);
    assert!(shard.shard().committed() < sequence, "it waits for the device");
    while shard.shard().committed() < sequence {
        shard.turn_blocking(NOW, WAIT).unwrap();
    }
    drop(shard);
    let (mut shard, report) = folders.open(None);
    assert_eq!((report.restored_groups, report.lost_bytes_max), (0, 0));
    check(&mut shard, 51);
}

#[test]
fn a_store_whose_memory_is_gone_ends_at_its_durable_group_and_says_so() {
    let folders = Folders::new();
    let (mut shard, _) = folders.open(Some(Acknowledge::Buffered));
    let queue = queue(&mut shard);
    (0..20).for_each(|n| assert_eq!(append(&mut shard, queue, &body(n)), n));
    while shard.shard().durable() < shard.shard().committed() {
        shard.turn_blocking(NOW, WAIT).unwrap();
    }
    (20..50).for_each(|n| assert_eq!(append(&mut shard, queue, &body(n)), n));
    drop(shard);
    for file in std::fs::read_dir(folders.buffers.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let (mut shard, report) = folders.open(None);
    assert_eq!((report.restored_groups, report.lost_bytes_max), (0, 4 << 20));
    check(&mut shard, 20);
    let queue = shard.shard().queue(b"queue").unwrap();
    assert_eq!(append(&mut shard, queue, &body(20)), 20, "offsets are given out again");
    shard.close(|| NOW).unwrap();
    let (mut shard, report) = folders.open(None);
    assert_eq!(report.lost_bytes_max, 0, "it is said once");
    check(&mut shard, 21);
}

#[test]
fn buffers_of_another_run_of_the_system_and_damaged_groups_do_not_count() {
    /// Where the head has the boot id.
    const BOOT_AT: usize = 24;
    const MAGIC: &[u8] = b"RINGMQG1";
    for is_damaged in [false, true] {
        let folders = Folders::new();
        let (mut shard, _) = folders.open(Some(Acknowledge::Buffered));
        let queue = queue(&mut shard);
        // Each append is a group of its own.
        (0..30).for_each(|n| assert_eq!(append(&mut shard, queue, &body(0)), n));
        drop(shard);
        let file = std::fs::read_dir(folders.buffers.path()).unwrap().next().unwrap().unwrap();
        let mut bytes = std::fs::read(file.path()).unwrap();
        let groups = bytes.windows(MAGIC.len()).enumerate().filter(|(_, at)| *at == MAGIC);
        let nth = groups.map(|(at, _)| at).nth(20).unwrap();
        bytes[if is_damaged { nth + 100 } else { BOOT_AT }] ^= 1;
        std::fs::write(file.path(), bytes).unwrap();
        let (mut shard, report) = folders.open(None);
        assert_eq!(report.lost_bytes_max > 0, !is_damaged, "{report:?}");
        let queue = shard.shard().queue(b"queue");
        let count = queue.map_or(0, |queue| shard.shard().max_offset(queue).get());
        // The queue's opening rides in the first group, with its first record or alone.
        let kept = if is_damaged { 19..=20 } else { 0..=0 };
        assert!(kept.contains(&count), "{count} records, {report:?}");
    }
}

#[test]
fn the_memory_of_a_store_that_is_open_is_not_taken_by_its_copy() {
    let folders = Folders::new();
    let (mut shard, _) = folders.open(Some(Acknowledge::Buffered));
    let queue = queue(&mut shard);
    (0..10).for_each(|n| assert_eq!(append(&mut shard, queue, &body(n)), n));
    let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    copy_folder(folders.store.path(), copy.path());
    let options = options(None, folders.buffers.path());
    let refused = Store::open(copy.path(), &options, 42, NOW).err().unwrap();
    assert!(matches!(refused, OpenError::Held(_)), "{refused}");
    drop(shard);
    let (mut shard, _) = folders.open(None);
    check(&mut shard, 10);
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

#[test]
fn memory_that_cannot_be_reserved_is_one_clear_line() {
    let folders = Folders::new();
    let mut large = options(Some(Acknowledge::Buffered), folders.buffers.path());
    large.limits.tail_bytes = 1 << 40;
    let error = Store::open(folders.store.path(), &large, 42, NOW).err().unwrap();
    assert!(matches!(error, OpenError::Buffers { .. }), "{error:?}");
    let line = error.to_string();
    assert!(line.contains("shared memory") && line.contains("ringmq-"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(folders.buffer_files(), 0, "nothing is left of the attempt");
    let missing = options(Some(Acknowledge::Buffered), &folders.buffers.path().join("none"));
    let error = Store::open(folders.store.path(), &missing, 42, NOW).err().unwrap();
    assert!(error.to_string().contains("No such file"), "{error}");
}

#[test]
fn what_is_acknowledged_reaches_the_device_soon_although_nothing_else_happens() {
    let folders = Folders::new();
    let (mut shard, _) = folders.open(Some(Acknowledge::Buffered));
    let queue = queue(&mut shard);
    append(&mut shard, queue, b"alone");
    let appended = shard.shard().appended();
    assert!(shard.shard().durable() < appended, "it waits for others");
    // Two completions end a wait each: the alarm, and the write.
    for _ in 0..2 {
        if shard.shard().durable() < appended {
            shard.turn_blocking(NOW, 100 * WAIT).unwrap();
        }
    }
    assert_eq!(shard.shard().durable(), appended);
}
