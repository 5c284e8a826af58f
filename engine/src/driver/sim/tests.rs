//! Worlds of some hundred seeds (`SEED=n` replays one), and single events on a simulated device.

use super::disk::SimDisk;
use super::node::{number, offset};
use super::random::Random;
use super::shard::{Mood, SimShard};
use super::{Event, Tally, run};
use crate::error::AppendError;
use crate::format::manifest::Manifest;
use crate::op::FileId;
use crate::shard::{Acknowledge, CommitBy, ReadLimits, ReadOutcome, ShardLimits};
use crate::units::{EpochMillis, Sequence};
use crate::view::QueueNo;
use crate::view::queue::TagFilter;

const NOW: EpochMillis = EpochMillis::new(1_000_000);

fn seeds() -> std::ops::RangeInclusive<u64> {
    match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..=seed
        }
        Err(_) => 1..=200,
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_else_is_told() {
    let mut total = Tally::default();
    for seed in seeds() {
        match run(seed) {
            Ok(tally) => total.merge(&tally),
            Err(violation) => panic!("{violation}; replay with SEED={seed}"),
        }
    }
    // So few seeds come to all but the rarest.
    if std::env::var("SEED").is_err() {
        for &event in Event::ALL.iter().filter(|&&event| event != Event::EndLost) {
            assert!(total.of(event) > 0, "no seed came to: {}", event.name());
        }
    }
}

#[test]
fn a_seed_replays_the_same_world() {
    for seed in [3, 4] {
        assert_eq!(run(seed), run(seed));
    }
}

fn limits() -> ShardLimits {
    ShardLimits {
        tail_bytes: 64 << 10,
        large_bytes: 64 << 10,
        cold_bytes: 64 << 10,
        group_bytes: 8 << 10,
        ..ShardLimits::default()
    }
}

fn disk() -> SimDisk {
    let manifest = Manifest {
        store: 1,
        shards: 1,
        segment_len: 64 << 10,
        block_len: 512,
        created_ms: 0,
        acknowledge: crate::shard::Acknowledge::Durable,
        budget_bytes: 0,
    };
    SimDisk::new(manifest, 0, Random::new(1))
}

fn open(disk: SimDisk, commit_by: CommitBy) -> SimShard {
    let opened = disk.open(limits(), commit_by, NOW);
    let mut sim = opened.map_err(|(_, failure)| failure).expect("nothing is damaged");
    sim.shard().tick(NOW);
    sim.run(NOW);
    sim
}

fn queue(sim: &mut SimShard) -> QueueNo {
    sim.shard().open_queue(b"queue", NOW).expect("there is room")
}

/// Appends a record and gives its group; what the device does is up to the caller.
fn append(sim: &mut SimShard, byte: u8) -> Sequence {
    let queue = queue(sim);
    let appended = sim.shard().append(queue, &[&[byte; 700][..]], NOW).expect("there is room");
    appended.sequence
}

fn flush(sim: &mut SimShard) {
    sim.shard().input_drained(NOW);
    sim.run(NOW);
}

fn read(sim: &mut SimShard, at: usize) -> Option<u8> {
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let queue = queue(sim);
    loop {
        let mut out = Vec::new();
        match sim.shard().read(queue, offset(at), &limits, &TagFilter::All, 1, &mut out) {
            ReadOutcome::Found { .. } => {
                let bytes = out.first().map(|slice| slice.to_vec()).unwrap_or_default();
                assert!(bytes.iter().all(|&byte| byte == bytes[0]) && bytes.len() == 700);
                return Some(bytes[0]);
            }
            ReadOutcome::Pending => sim.run(NOW),
            ReadOutcome::NoMatch { .. } | ReadOutcome::AtEnd => return None,
            other => panic!("offset {at}: {other:?}"),
        }
    }
}

#[test]
fn a_failed_write_of_the_log_stops_the_shard_and_readers_go_on() {
    let mut sim = open(disk(), CommitBy::Durable);
    append(&mut sim, 1);
    flush(&mut sim);
    let committed = sim.shard().committed();
    sim.set_mood(Mood { log_write_error: 1, ..Mood::default() });
    append(&mut sim, 2);
    flush(&mut sim);
    assert_eq!(sim.shard().committed(), committed);
    assert!(sim.shard().poisoned().is_some());
    let refused = sim.shard().append(QueueNo(0), &[&b"more"[..]], NOW);
    assert!(matches!(refused, Err(AppendError::Poisoned(_))), "{refused:?}");
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), None));
    let mut sim = open(sim.crash(), CommitBy::Durable);
    assert_eq!(read(&mut sim, 0), Some(1));
    assert_eq!(sim.shard().poisoned(), None);
}

#[test]
fn a_log_cut_at_the_committed_frontier_goes_on_without_what_was_cut() {
    let mut sim = open(disk(), CommitBy::Caller);
    let kept = append(&mut sim, 1);
    flush(&mut sim);
    sim.shard().commit_through(kept);
    append(&mut sim, 2);
    flush(&mut sim);
    assert!(sim.shard().durable() > kept);
    sim.shard().open_queue(b"cut too", NOW).expect("there is room");
    sim.shard().truncate(kept, 1000).expect("nothing is in flight");
    sim.cut(kept);
    assert_eq!(sim.shard().queue(b"cut too"), None);
    let again = append(&mut sim, 3);
    assert_eq!(again, kept.next(), "the cut group's number is given out again");
    flush(&mut sim);
    sim.shard().commit_through(again);
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), Some(3)));
    let mut sim = open(sim.crash(), CommitBy::Caller);
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), Some(3)));
}

fn buffered_disk() -> SimDisk {
    let mut disk = disk();
    disk.set_acknowledge(Acknowledge::Buffered);
    disk
}

#[test]
fn what_a_buffered_store_has_acknowledged_outlives_a_device_that_fails() {
    let mut sim = open(buffered_disk(), CommitBy::Durable);
    append(&mut sim, 1);
    flush(&mut sim);
    sim.set_mood(Mood { log_write_error: 1, ..Mood::default() });
    let second = append(&mut sim, 2);
    sim.shard().input_drained(NOW);
    assert_eq!(sim.shard().committed(), second, "acknowledged before the device has answered");
    sim.run(NOW);
    assert!(sim.shard().poisoned().is_some());
    assert!(sim.shard().durable() < second);
    let refused = sim.shard().append(QueueNo(0), &[&b"more"[..]], NOW);
    assert!(matches!(refused, Err(AppendError::Poisoned(_))), "{refused:?}");
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), Some(2)));
    let mut sim = open(sim.crash(), CommitBy::Durable);
    assert!(sim.report().restored_groups > 0);
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), Some(2)));
}

#[test]
fn what_a_buffered_store_has_committed_beats_what_a_cut_has_left_on_the_device() {
    let mut sim = open(buffered_disk(), CommitBy::Caller);
    let kept = append(&mut sim, 1);
    flush(&mut sim);
    sim.shard().commit_through(kept);
    append(&mut sim, 2);
    flush(&mut sim);
    sim.shard().truncate(kept, 1000).expect("nothing is in flight");
    sim.cut(kept);
    let again = append(&mut sim, 3);
    sim.shard().input_drained(NOW);
    sim.shard().commit_through(again);
    assert_eq!((sim.shard().committed(), sim.shard().durable()), (again, kept));
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), Some(3)));
    // The group that was cut lies whole where the one that was committed belongs.
    let mut sim = open(sim.crash(), CommitBy::Caller);
    assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), Some(3)));
}

#[test]
fn a_buffered_store_without_room_in_memory_refuses_until_the_device_has_gone_on() {
    let mut sim = open(buffered_disk(), CommitBy::Durable);
    let queue = queue(&mut sim);
    let record = [7; 700];
    let mut count = 0;
    let refused = loop {
        match sim.shard().append(queue, &[&record[..]], NOW) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        sim.shard().input_drained(NOW);
        assert_eq!(sim.shard().committed(), sim.shard().appended());
    };
    assert_eq!(refused, AppendError::Backlogged);
    assert!((10..=100).contains(&count), "{count} records of a block or two in 64 KiB");
    assert!(!sim.shard().take_room());
    sim.run(NOW);
    assert!(sim.shard().take_room(), "whoever was refused is told");
    sim.shard().append(queue, &[&record[..]], NOW).expect("there is room again");
    assert_eq!(number(sim.shard().max_offset(queue)), count);
}

#[test]
fn damage_that_appears_while_the_store_is_open_costs_one_group() {
    let mut sim = open(disk(), CommitBy::Durable);
    let count: u16 = 400;
    for n in 0..count {
        append(&mut sim, n.to_be_bytes()[1]);
        flush(&mut sim);
    }
    // The first group has left memory by now; its header goes bad on the device.
    assert!(sim.disk().flip_bit(FileId::Segment(0), 40, 3));
    let readable = (0..usize::from(count)).filter(|&at| read(&mut sim, at).is_some()).count();
    assert_eq!(readable, usize::from(count) - 1);
    let queue = queue(&mut sim);
    assert_eq!(number(sim.shard().max_offset(queue)), usize::from(count));
}
