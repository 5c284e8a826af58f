//! Worlds of some hundred seeds (`SEED=n` replays one), and single events on a simulated device.

use super::disk::SimDisk;
use super::node::{number, offset};
use super::random::Random;
use super::shard::{Mood, OpenFailure, SimShard};
use super::{CutOptions, Event, Tally, cut_power, run};
use crate::error::AppendError;
use crate::format::group::{Group, GroupRecord, Header, Kind};
use crate::format::manifest::Manifest;
use crate::format::payload;
use crate::layout::Place;
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
        // Reads one by one need a cache that is small for its world: `shard::spots` comes to them.
        for &event in Event::ALL.iter().filter(|&&event| event != Event::Spots) {
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

fn manifest() -> Manifest {
    Manifest {
        store: 1,
        shards: 1,
        segment_len: 64 << 10,
        block_len: 512,
        created_ms: 0,
        acknowledge: crate::shard::Acknowledge::Durable,
        budget_bytes: 0,
    }
}

fn disk() -> SimDisk {
    SimDisk::new(manifest(), 0, Random::new(1))
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

#[test]
fn nothing_acknowledged_is_lost_when_the_power_of_a_real_run_is_cut() {
    let folder = tempfile::tempdir().expect("a folder for a store");
    let options = CutOptions {
        folder: folder.path().join("store"),
        cuts: 6,
        sector_subsets: 150,
        second_lives: 10,
        appends: 25_000,
        seed: 5,
        threads: 1,
    };
    let report = cut_power(&options).unwrap_or_else(|what| panic!("{what}"));
    assert_eq!((report.cuts, report.sector_subsets, report.second_lives), (6, 900, 60));
    assert!(1 < report.in_flight_max, "{report:?}");
    assert!(0 < report.torn && 0 < report.beyond, "{report:?}");
}

/// Damages the group that `of` finds, and opens the store from the log alone.
fn open_damaged(mut disk: SimDisk, of: impl Fn(&Group<'_>) -> bool) -> Option<SimShard> {
    let written = disk.written();
    let found = written.iter().find(|group| {
        let file = FileId::Segment(group.place.ordinal);
        Group::parse(disk.bytes_at(file, group.place.byte)).is_some_and(|group| of(&group))
    })?;
    let file = FileId::Segment(found.place.ordinal);
    assert!(disk.flip_bit(file, found.place.byte + 40, 3), "the header is there");
    disk.lose_views();
    Some(open(disk, CommitBy::Durable))
}

#[test]
fn offsets_of_records_in_a_damaged_group_are_never_given_out_again() {
    for restarts in [false, true] {
        let mut sim = open(disk(), CommitBy::Durable);
        append(&mut sim, 1);
        flush(&mut sim);
        append(&mut sim, 2);
        flush(&mut sim);
        if restarts {
            sim = open(sim.crash(), CommitBy::Durable);
        }
        // Something else follows, which proves that the group before was committed.
        sim.shard().put_fact(b"fact", Some(b"value"), NOW).expect("there is room");
        flush(&mut sim);
        let last = |group: &Group<'_>| {
            let offsets = group.records().filter(|record| record.entry.kind == Kind::Message);
            offsets.map(|record| record.entry.queue_offset).max() == Some(1)
        };
        let mut sim = open_damaged(sim.crash(), last).expect("the group is there");
        assert_eq!(sim.report().damaged, 1);
        let queue = queue(&mut sim);
        assert_eq!(number(sim.shard().max_offset(queue)), 2, "after a restart: {restarts}");
        assert_eq!((read(&mut sim, 0), read(&mut sim, 1)), (Some(1), None));
        append(&mut sim, 3);
        flush(&mut sim);
        assert_eq!(read(&mut sim, 2), Some(3));
    }
}

#[test]
fn a_store_whose_budget_is_used_by_views_goes_on() {
    // Records of a few bytes: the views take more than the log leaves them.
    let budget = ShardLimits { disk_bytes: 4 * (64 << 10), view_bytes: 1 << 10, ..limits() };
    let opened = disk().open(budget, CommitBy::Durable, NOW);
    let mut sim = opened.map_err(|(_, failure)| failure).expect("an empty device");
    let mut now = NOW;
    for n in 0..20_000_u32 {
        let mut tries = 0;
        loop {
            now = EpochMillis::new(now.get() + 20);
            let number = sim.shard().open_queue(&(n % 40).to_be_bytes(), now);
            let appended =
                number.and_then(|number| sim.shard().append(number, &[&n.to_be_bytes()[..]], now));
            sim.shard().tick(now);
            sim.run(now);
            if appended.is_ok() {
                break;
            }
            tries += 1;
            assert!(tries < 500, "record {n}: {appended:?}, {:?}", sim.shard().disk_use());
        }
    }
    assert!(sim.shard().stats().segments_recycled > 10, "{:?}", sim.shard().stats());
}

#[test]
fn a_log_whose_trim_is_damaged_begins_where_it_begins() {
    let budget = ShardLimits { disk_bytes: 6 * (64 << 10), ..limits() };
    let opened = disk().open(budget, CommitBy::Durable, NOW);
    let mut sim = opened.map_err(|(_, failure)| failure).expect("an empty device");
    let mut now = NOW;
    while sim.shard().stats().segments_recycled < 3 {
        now = EpochMillis::new(now.get() + 20);
        if let Ok(number) = sim.shard().open_queue(b"queue", now) {
            let _ = sim.shard().append(number, &[&[7; 700][..]], now);
        }
        sim.shard().tick(now);
        sim.run(now);
    }
    // The shard falls idle.
    now = EpochMillis::new(now.get() + 1000);
    sim.shard().tick(now);
    sim.run(now);
    let device = sim.crash();
    let first = device.prepared().first().map_or(0, |&(ordinal, _)| ordinal);
    let trims = |record: &GroupRecord<'_>| {
        record.entry.kind == Kind::Trim
            && payload::parse_trim(record.bytes).is_some_and(|below| first <= below)
    };
    let sim = open_damaged(device, |group| group.records().any(|r| trims(&r)));
    assert!(sim.is_some_and(|mut sim| number(sim.shard().max_offset(QueueNo(0))) > 0));
}

#[test]
fn an_error_in_one_of_four_writes_in_flight_costs_nothing_that_was_acknowledged() {
    let (mut failed, mut others_landed) = (0, 0);
    for seed in 0..60 {
        let device = SimDisk::new(manifest(), 0, Random::new(seed));
        let mut sim = open(device, CommitBy::Durable);
        append(&mut sim, 0);
        flush(&mut sim);
        sim.set_mood(Mood { delay: 6, log_write_error: 4, ..Mood::default() });
        let number = queue(&mut sim);
        for byte in 1..=4 {
            // Long enough for a write of its own while others are in flight.
            sim.shard().append(number, &[&[byte; 5000][..]], NOW).expect("there is room");
            sim.shard().input_drained(NOW);
        }
        assert_eq!(sim.log_writes(), 0, "the device has not been asked for anything yet");
        sim.gather();
        assert_eq!(sim.log_writes(), 4);
        sim.run(NOW);
        let told = number_of(&mut sim);
        if sim.shard().poisoned().is_some() {
            failed += 1;
            others_landed += usize::from(told < 5 && told > 1);
            let refused = sim.shard().append(number, &[&b"more"[..]], NOW);
            assert!(matches!(refused, Err(AppendError::Poisoned(_))), "{refused:?}");
        }
        let mut sim = open(sim.crash(), CommitBy::Durable);
        let kept = number_of(&mut sim);
        assert!(told <= kept && kept <= 5, "seed {seed}: told {told}, kept {kept}");
        for at in 0..kept {
            let byte = first_byte(&mut sim, at);
            assert_eq!(usize::from(byte), at, "seed {seed}: offset {at} of {kept}, told {told}");
        }
        append(&mut sim, 9);
        flush(&mut sim);
        assert_eq!(read(&mut sim, kept), Some(9));
    }
    assert!(failed > 20 && others_landed > 0, "{failed} failed, {others_landed} in part");
}

fn number_of(sim: &mut SimShard) -> usize {
    let queue = queue(sim);
    number(sim.shard().max_offset(queue))
}

fn first_byte(sim: &mut SimShard, at: usize) -> u8 {
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let queue = queue(sim);
    loop {
        let mut out = Vec::new();
        match sim.shard().read(queue, offset(at), &limits, &TagFilter::All, 1, &mut out) {
            ReadOutcome::Found { .. } => return out[0][0],
            ReadOutcome::Pending => sim.run(NOW),
            other => panic!("offset {at}: {other:?}"),
        }
    }
}

/// Lets the shard come to rest, some time later.
fn rest(sim: &mut SimShard, now: &mut EpochMillis) {
    for _ in 0..8 {
        *now = EpochMillis::new(now.get() + 1000);
        sim.shard().tick(*now);
        sim.run(*now);
    }
}

#[test]
fn a_store_whose_index_is_damaged_goes_on_within_its_budget() {
    let budget = ShardLimits {
        disk_bytes: 4 * (64 << 10),
        view_bytes: 1 << 10,
        checkpoint_ms: 2000,
        ..limits()
    };
    let reopen = |disk: SimDisk| {
        let opened = disk.open(budget, CommitBy::Durable, NOW);
        let mut sim = opened.map_err(|(_, failure)| failure).expect("the log is whole");
        sim.shard().tick(NOW);
        sim.run(NOW);
        sim
    };
    let mut sim = reopen(disk());
    let mut now = NOW;
    for n in 0..60 {
        now = EpochMillis::new(now.get() + 20);
        append(&mut sim, n);
        flush(&mut sim);
        sim.shard().tick(now);
        sim.run(now);
    }
    rest(&mut sim, &mut now);
    assert!(sim.shard().stats().checkpoints > 0);
    let mut device = sim.crash();
    let len = device.len(FileId::Index);
    device.scramble(FileId::Index, 0..crate::units::wide(len));
    let mut sim = reopen(device);
    assert!(sim.report().from_checkpoint);
    let queue = queue(&mut sim);
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let read = |sim: &mut SimShard| {
        sim.shard().read(queue, offset(0), &limits, &TagFilter::All, 1, &mut Vec::new())
    };
    assert!(matches!(read(&mut sim), ReadOutcome::Pending));
    sim.run(now);
    assert!(matches!(read(&mut sim), ReadOutcome::Failed(_)));
    let mut refused = 0;
    while sim.shard().stats().segments_recycled < 10 {
        if sim.shard().append(queue, &[&[7; 700][..]], now).is_err() {
            refused += 1;
            assert!(refused < 1000, "{:?}", sim.shard().disk_use());
        }
        now = EpochMillis::new(now.get() + 20);
        sim.shard().tick(now);
        sim.run(now);
    }
    let end = sim.shard().max_offset(queue);
    let mut sim = reopen(sim.crash());
    assert!(!sim.report().from_checkpoint, "no checkpoint counts any more");
    assert_eq!(sim.shard().max_offset(queue), end);
}

#[test]
fn a_checkpoint_that_was_passed_over_never_counts_again() {
    let mut sim = open(disk(), CommitBy::Durable);
    let mut told = Vec::new();
    for byte in 0..3 {
        append(&mut sim, byte);
        flush(&mut sim);
        sim.shard().start_checkpoint(NOW);
        flush(&mut sim);
        told.push(sim.disk().len(FileId::Changes(0)));
    }
    assert_eq!(sim.shard().stats().checkpoints, 3);
    let mut device = sim.crash();
    // A bit of what the newest one tells; it comes back as if that had been written anew.
    let at = crate::units::wide(told[1] + 60);
    assert!(told[1] < told[2] && device.flip_bit(FileId::Changes(0), at, 1));
    let sim = open(device, CommitBy::Durable);
    assert!(sim.report().from_checkpoint);
    let replayed = sim.report().groups;
    assert!(replayed > 0, "the one before it counts");
    let mut device = sim.crash();
    assert!(device.flip_bit(FileId::Changes(0), at, 1));
    let mut sim = open(device, CommitBy::Durable);
    assert!(sim.report().from_checkpoint);
    assert_eq!(sim.report().groups, replayed);
    assert_eq!(read(&mut sim, 2), Some(2));
}

/// A store whose log goes on in the second segment, where it has a long group and so many short ones,
/// because three groups that were cut off lie at the end of the first one; and the byte where the
/// first of them begins.
fn with_groups_cut_off(short: u8) -> (SimShard, u64) {
    let mut sim = open(disk(), CommitBy::Caller);
    let number = queue(&mut sim);
    sim.shard().append(number, &[&[0; 8 << 10][..]], NOW).expect("there is room");
    flush(&mut sim);
    let kept = append(&mut sim, 1);
    flush(&mut sim);
    sim.shard().commit_through(kept);
    let cut_at = sim.shard().committed_end().get().cast_unsigned();
    for byte in 2..5 {
        append(&mut sim, byte);
        flush(&mut sim);
    }
    sim.shard().truncate(kept, 1000).expect("nothing is in flight");
    sim.cut(kept);
    let long = sim.shard().append(number, &[&[5; 60 << 10][..]], NOW).expect("there is room");
    flush(&mut sim);
    sim.shard().commit_through(long.sequence);
    for byte in 6..6 + short {
        let last = append(&mut sim, byte);
        flush(&mut sim);
        sim.shard().commit_through(last);
    }
    (sim, cut_at)
}

#[test]
fn groups_that_were_cut_off_do_not_come_back_behind_damage() {
    let (sim, cut_at) = with_groups_cut_off(3);
    let mut device = sim.crash();
    // Both groups that could follow are gone, the one that was cut off and the one that was not.
    assert!(device.flip_bit(FileId::Segment(0), cut_at + 40, 3));
    assert!(device.flip_bit(FileId::Segment(1), 40, 3));
    device.lose_views();
    let mut sim = open(device, CommitBy::Caller);
    let found: Vec<_> = (1..6).map(|at| read(&mut sim, at)).collect();
    assert_eq!(found, [Some(1), None, Some(6), Some(7), Some(8)]);
}

#[test]
fn groups_that_were_cut_off_do_not_stand_for_a_lost_end() {
    let (mut sim, _) = with_groups_cut_off(0);
    flush(&mut sim);
    sim.shard().start_checkpoint(NOW);
    flush(&mut sim);
    assert_eq!(sim.shard().stats().checkpoints, 1);
    let mut device = sim.crash();
    device.wipe_from(Place { ordinal: 1, byte: 0 });
    let opened = device.open(limits(), CommitBy::Caller, NOW);
    assert!(matches!(opened, Err((_, OpenFailure::Refused(_)))));
}

/// The header of a group goes bad.
fn damage_header(device: &mut SimDisk, group: &super::disk::Written) {
    assert!(device.flip_bit(FileId::Segment(group.place.ordinal), group.place.byte + 40, 3));
}

#[test]
fn groups_that_were_cut_off_do_not_stand_for_one_that_is_damaged() {
    for damaged in 1..=2 {
        let (sim, _) = with_groups_cut_off(3);
        let mut device = sim.crash();
        let written = device.written();
        let at = written.iter().position(|group| group.place.ordinal == 1).expect("it rolled");
        written[at..at + damaged].iter().for_each(|group| damage_header(&mut device, group));
        device.lose_views();
        let mut sim = open(device, CommitBy::Caller);
        assert_eq!(sim.report().damaged, 1);
        let found: Vec<_> = (1..6).map(|at| read(&mut sim, at)).collect();
        let second = (damaged == 1).then_some(6);
        assert_eq!(found, [Some(1), None, second, Some(7), Some(8)]);
    }
}

/// The other way round: the group that was cut off went to the next segment, and the log did not.
#[test]
fn a_group_that_was_cut_off_in_the_next_segment_does_not_stand_for_a_damaged_one() {
    let mut sim = open(disk(), CommitBy::Caller);
    let number = queue(&mut sim);
    sim.shard().append(number, &[&[0; 8 << 10][..]], NOW).expect("there is room");
    flush(&mut sim);
    let kept = append(&mut sim, 1);
    flush(&mut sim);
    sim.shard().commit_through(kept);
    sim.shard().append(number, &[&[5; 60 << 10][..]], NOW).expect("there is room");
    flush(&mut sim);
    sim.shard().truncate(kept, 1000).expect("nothing is in flight");
    sim.cut(kept);
    for byte in 6..9 {
        let last = append(&mut sim, byte);
        flush(&mut sim);
        sim.shard().commit_through(last);
    }
    let mut device = sim.crash();
    let left_over =
        Header::read(device.bytes_at(FileId::Segment(1), 0)).expect("nothing went over it");
    let written = device.written();
    let at = written.iter().rposition(|group| group.header.sequence == left_over.0.sequence);
    let at = at.expect("another one has its number");
    assert_eq!(written[at].place.ordinal, 0);
    damage_header(&mut device, &written[at]);
    device.lose_views();
    let mut sim = open(device, CommitBy::Caller);
    assert_eq!(sim.report().damaged, 1);
    let found: Vec<_> = (1..5).map(|at| read(&mut sim, at)).collect();
    assert_eq!(found, [Some(1), None, Some(7), Some(8)]);
}

#[test]
fn what_was_logged_at_the_end_of_a_segment_outlives_it_in_more_than_one_group() {
    let kept = ShardLimits { age_ms: 1000, checkpoint_ms: 2000, ..limits() };
    for back in (1..=6).map(|kib| kib << 10) {
        let opened = disk().open(kept, CommitBy::Durable, NOW);
        let mut sim = opened.map_err(|(_, failure)| failure).expect("an empty device");
        sim.shard().tick(NOW);
        sim.run(NOW);
        let queue = queue(&mut sim);
        let end = (64 << 10) - back;
        while sim.shard().committed_end().get() < end {
            let far = sim.shard().committed_end().get() + 2048 < end;
            let record: &[u8] = if far { &[1; 700] } else { &[1; 10] };
            sim.shard().append(queue, &[record], NOW).expect("there is room");
            flush(&mut sim);
        }
        assert_eq!(sim.shard().committed_end().get(), end);
        sim.shard().put_fact(b"fact", Some(b"value"), NOW).expect("there is room");
        flush(&mut sim);
        let mut now = NOW;
        while sim.shard().stats().segments_recycled == 0 {
            append(&mut sim, 2);
            flush(&mut sim);
            now = EpochMillis::new(now.get() + 20);
            sim.shard().tick(now);
            sim.run(now);
        }
        rest(&mut sim, &mut now);
        let groups = outlives_any_group(sim).len();
        assert!(groups > 1, "{back} bytes before the end: {groups} groups have it");
    }
}

/// Damages each group that tells of the fact, one at a time; gives the segments of those that are part of
/// the log.
fn outlives_any_group(mut sim: SimShard) -> Vec<u64> {
    let first = sim.shard().first_segment();
    let device = sim.crash();
    let holds = |group: &Group<'_>| group.records().any(|r| r.entry.kind == Kind::Fact);
    let has_it = |group: &super::disk::Written| {
        let file = FileId::Segment(group.place.ordinal);
        Group::parse(device.bytes_at(file, group.place.byte)).is_some_and(|g| holds(&g))
    };
    let groups: Vec<_> = device.written().into_iter().filter(has_it).collect();
    for damaged in &groups {
        let is_it = |group: &Group<'_>| group.header.sequence == damaged.header.sequence;
        let mut sim = open_damaged(device.clone(), is_it).expect("the group is there");
        assert_eq!(sim.shard().fact(b"fact"), Some(&b"value"[..]), "{:?}", damaged.place);
    }
    groups.iter().map(|group| group.place.ordinal).filter(|&ordinal| first <= ordinal).collect()
}

#[test]
fn a_fact_is_as_safe_as_before_once_the_segment_of_its_original_has_gone() {
    let kept = ShardLimits { age_ms: 1000, checkpoint_ms: 500, ..limits() };
    for back in (2..=24).map(|blocks| blocks * 512) {
        let opened = disk().open(kept, CommitBy::Durable, NOW);
        let mut sim = opened.map_err(|(_, failure)| failure).expect("an empty device");
        sim.shard().tick(NOW);
        sim.run(NOW);
        let queue = queue(&mut sim);
        let append = |sim: &mut SimShard, len: usize| {
            sim.shard().append(queue, &[&[1; 5000][..len]], NOW).expect("there is room");
            flush(sim);
        };
        while sim.shard().committed_end().get() < (64 << 10) - back {
            append(&mut sim, 10);
        }
        sim.shard().put_fact(b"fact", Some(b"value"), NOW).expect("there is room");
        flush(&mut sim);
        // Each makes a group so long that the fact is repeated in two of them.
        for _ in 0..4 {
            append(&mut sim, 5000);
        }
        let mut now = NOW;
        while sim.shard().stats().segments_recycled == 0 {
            now = EpochMillis::new(now.get() + 100);
            sim.shard().tick(now);
            sim.run(now);
        }
        // The file of segment 0 is there until it is used again.
        let groups = outlives_any_group(sim);
        let is_enough = groups.len() > 1 && groups.iter().all(|&ordinal| ordinal == 1);
        assert!(is_enough, "{back} bytes before the end: told in segments {groups:?}");
    }
}

#[test]
fn records_behind_a_damaged_opening_are_of_the_queue_that_a_copy_names() {
    let kept = ShardLimits { age_ms: 1000, checkpoint_ms: 2000, ..limits() };
    let opened = disk().open(kept, CommitBy::Durable, NOW);
    let mut sim = opened.map_err(|(_, failure)| failure).expect("an empty device");
    sim.shard().tick(NOW);
    sim.run(NOW);
    let gone = sim.shard().open_queue(b"gone", NOW).expect("there is room");
    sim.shard().append(gone, &[&[9; 700][..]], NOW).expect("there is room");
    sim.shard().delete_queue(gone, NOW).expect("there is room");
    flush(&mut sim);
    let other = sim.shard().open_queue(b"other", NOW).expect("there is room");
    assert_ne!(gone, other);
    let mut now = NOW;
    while sim.shard().stats().segments_recycled == 0 {
        sim.shard().append(other, &[&[8; 700][..]], now).expect("there is room");
        flush(&mut sim);
        now = EpochMillis::new(now.get() + 20);
        sim.shard().tick(now);
        sim.run(now);
    }
    // The number is given out again; the segment with the deletion waits for its next use.
    assert_eq!(queue(&mut sim), gone);
    for byte in 1..=3 {
        append(&mut sim, byte);
    }
    flush(&mut sim);
    append(&mut sim, 4);
    flush(&mut sim);
    assert_eq!(number_of(&mut sim), 4);
    let mut device = sim.crash();
    assert!(device.has_segment(0));
    let opening = device.written().into_iter().find_map(|group| {
        let file = FileId::Segment(group.place.ordinal);
        let parsed = Group::parse(device.bytes_at(file, group.place.byte))?;
        let mut states = parsed.records().filter(|r| r.entry.kind == Kind::QueueState);
        let first = states.find(|r| r.entry.queue == gone.0 && group.place.ordinal > 0)?;
        let from = first.position.get() - parsed.header.position.get();
        Some((file, group.place.byte + from.cast_unsigned()))
    });
    let (file, at) = opening.expect("the queue was opened");
    assert!(device.flip_bit(file, at, 1));
    device.lose_views();
    let mut sim = open(device, CommitBy::Durable);
    assert_eq!(sim.report().unreadable, 1, "{:?}", sim.report());
    assert_eq!(queue(&mut sim), gone);
    let found: Vec<_> = (0..4).map(|at| read(&mut sim, at)).collect();
    assert_eq!(found, [Some(1), Some(2), Some(3), Some(4)]);
}
