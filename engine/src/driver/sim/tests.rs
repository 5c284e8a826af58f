//! A workload with a model: whatever the seed does to a shard, what was acknowledged stays.

use std::collections::BTreeMap;

use super::{Faults, Random, SimDisk, SimShard};
use crate::error::AppendError;
use crate::shard::{ReadLimits, ReadOutcome, ShardLimits};
use crate::units::{EpochMillis, QueueOffset, Sequence};
use crate::view::QueueNo;
use crate::view::queue::TagFilter;

const QUEUES: usize = 20;
const LIVES: u64 = 4;
const APPENDS_PER_LIFE: usize = 400;

fn seeds() -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=60).collect(),
    }
}

fn limits() -> ShardLimits {
    ShardLimits {
        tail_bytes: 4 << 20,
        large_bytes: 2 << 20,
        cold_bytes: 2 << 20,
        group_bytes: 32 << 10,
        checkpoint_bytes: 300 << 10,
        checkpoint_ms: 2000,
        ..ShardLimits::default()
    }
}

/// What the outside world knows.
#[derive(Default)]
struct Model {
    /// Every body appended to a queue that is not known to be lost, in order.
    queues: BTreeMap<usize, Vec<Vec<u8>>>,
    /// How many of them were acknowledged.
    acknowledged: BTreeMap<usize, usize>,
    /// Appends of this life that wait for their group: sequence, queue, count then.
    waiting: Vec<(Sequence, usize, usize)>,
    fact: u64,
    acknowledged_fact: u64,
    waiting_facts: Vec<(Sequence, u64)>,
    clock: i64,
}

impl Model {
    fn now(&mut self) -> EpochMillis {
        self.clock += 1;
        EpochMillis::new(self.clock)
    }

    fn acknowledge(&mut self, committed: Sequence) {
        let Self { waiting, acknowledged, waiting_facts, acknowledged_fact, .. } = self;
        waiting.retain(|&(sequence, queue, count)| {
            let done = sequence <= committed;
            if done {
                acknowledged.insert(queue, count);
            }
            !done
        });
        waiting_facts.retain(|&(sequence, value)| {
            let done = sequence <= committed;
            if done {
                *acknowledged_fact = value;
            }
            !done
        });
    }
}

fn key(queue: usize) -> Vec<u8> {
    format!("queue-{queue}").into_bytes()
}

fn body(random: &mut Random) -> Vec<u8> {
    let len = if random.one_in(50) { 60_000 } else { 1 + random.below(3000) };
    let mark = random.number().to_be_bytes();
    mark.iter().copied().cycle().take(len.max(8)).collect()
}

fn append(sim: &mut SimShard, model: &mut Model) {
    let queue = sim.random().below(QUEUES);
    let count = 1 + sim.random().below(3);
    let bodies: Vec<Vec<u8>> = (0..count).map(|_| body(sim.random())).collect();
    let now = model.now();
    let number = match sim.shard().open_queue(&key(queue), now) {
        Ok(number) => number,
        Err(AppendError::Backlogged | AppendError::DiskFull(_)) => return,
        Err(error) => panic!("{error}"),
    };
    let records: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    match sim.shard().append(number, &records, now) {
        Ok(appended) => {
            let known = model.queues.entry(queue).or_default();
            assert_eq!(
                appended.first_queue_offset.get(),
                i64::try_from(known.len()).unwrap(),
                "offsets are dense"
            );
            known.extend(bodies);
            model.waiting.push((appended.sequence, queue, known.len()));
        }
        Err(AppendError::Backlogged | AppendError::DiskFull(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

fn put_fact(sim: &mut SimShard, model: &mut Model) {
    let now = model.now();
    let value = model.fact + 1;
    if let Ok(sequence) = sim.shard().put_fact(b"counter", Some(&value.to_be_bytes()), now) {
        model.fact = value;
        model.waiting_facts.push((sequence, value));
    }
}

fn run_life(sim: &mut SimShard, model: &mut Model) {
    for _ in 0..APPENDS_PER_LIFE {
        append(sim, model);
        if sim.random().one_in(10) {
            put_fact(sim, model);
        }
        let now = model.now();
        if sim.random().one_in(3) {
            sim.shard().input_drained(now);
        }
        if sim.random().one_in(20) {
            sim.shard().tick(now);
        }
        let steps = sim.random().below(4);
        for _ in 0..steps {
            sim.step(now);
        }
        model.acknowledge(sim.shard().committed());
        if sim.random().one_in(40) {
            let full = sim.random().one_in(2);
            sim.set_full(full);
        }
    }
    sim.set_full(false);
}

fn read_one(sim: &mut SimShard, queue: QueueNo, at: usize, now: EpochMillis) -> Option<Vec<u8>> {
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let from = QueueOffset::new(i64::try_from(at).ok()?)?;
    loop {
        let mut out = Vec::new();
        match sim.shard().read(queue, from, &limits, &TagFilter::All, 1, &mut out) {
            ReadOutcome::Found { .. } => return out.first().map(|slice| slice.to_vec()),
            ReadOutcome::Pending => assert!(sim.step(now), "a pending read has an operation"),
            ReadOutcome::NoMatch { .. } => return None,
            other => panic!("offset {at}: {other:?}"),
        }
    }
}

/// Everything acknowledged is there; what is there beyond it was appended in just this order.
fn check(sim: &mut SimShard, model: &mut Model, may_be_unreadable: u64, replay: &str) {
    let mut unreadable = 0;
    let now = model.now();
    for queue in 0..QUEUES {
        let acknowledged = model.acknowledged.get(&queue).copied().unwrap_or(0);
        let Some(number) = sim.shard().queue(&key(queue)) else {
            assert_eq!(acknowledged, 0, "queue {queue} is gone; {replay}");
            model.queues.remove(&queue);
            continue;
        };
        let visible = usize::try_from(sim.shard().max_offset(number).get()).unwrap();
        let known = model.queues.entry(queue).or_default();
        assert!(acknowledged <= visible, "{acknowledged} > {visible}; {replay}");
        assert!(visible <= known.len(), "{visible} > {}; {replay}", known.len());
        known.truncate(visible);
        for (at, want) in known.clone().iter().enumerate() {
            match read_one(sim, number, at, now) {
                Some(got) => assert_eq!(&got, want, "queue {queue} offset {at}; {replay}"),
                None => unreadable += 1,
            }
        }
    }
    assert!(unreadable <= may_be_unreadable, "{unreadable} records are unreadable; {replay}");
    let fact = sim.shard().fact(b"counter").map_or(0, |value| {
        u64::from_be_bytes(value.try_into().expect("the value has eight bytes"))
    });
    assert!(model.acknowledged_fact <= fact && fact <= model.fact, "fact {fact}; {replay}");
    model.fact = fact;
    model.waiting.clear();
    model.waiting_facts.clear();
    for (queue, known) in &model.queues {
        model.acknowledged.insert(*queue, known.len());
    }
    model.acknowledged_fact = fact;
}

#[test]
fn acknowledged_records_survive_crashes_at_any_step() {
    let mut total = Faults::default();
    for seed in seeds() {
        let replay = format!("replay with SEED={seed}");
        let mut disk = SimDisk::new(seed, 1 << 20, limits());
        let mut model = Model::default();
        for life in 0..LIVES {
            if life == 2 {
                disk.lose_checkpoint();
            }
            let now = model.now();
            let mut sim = disk.open(now).unwrap_or_else(|error| panic!("{error}; {replay}"));
            check(&mut sim, &mut model, 0, &replay);
            run_life(&mut sim, &mut model);
            disk = sim.crash();
        }
        let faults = disk.faults();
        total.crashes += faults.crashes;
        total.torn_writes += faults.torn_writes;
        total.lost_writes += faults.lost_writes;
        total.reordered += faults.reordered;
        total.disk_full += faults.disk_full;
    }
    if std::env::var("SEED").is_err() {
        for (kind, count) in [
            ("crashes", total.crashes),
            ("torn", total.torn_writes),
            ("lost", total.lost_writes),
            ("reordered", total.reordered),
            ("disk full", total.disk_full),
        ] {
            assert!(count > 0, "no seed made the fault `{kind}`");
        }
    }
}

#[test]
fn a_flipped_bit_costs_only_what_it_touches() {
    for seed in seeds() {
        let replay = format!("replay with SEED={seed}");
        let mut model = Model::default();
        let now = model.now();
        let mut sim = SimDisk::new(seed, 1 << 20, limits()).open(now).unwrap();
        run_life(&mut sim, &mut model);
        // Settle and let the idle shard note its frontier, so that damage can be told from a tear.
        for _ in 0..200 {
            model.clock += 100;
            let now = model.now();
            sim.shard().tick(now);
            while sim.step(now) {}
        }
        model.acknowledge(sim.shard().committed());
        let limit = sim.shard().committed_end().get().min(900_000);
        if limit == 0 {
            // The disk was full from the start to the end of this life.
            continue;
        }
        let mut disk = sim.crash();
        disk.lose_checkpoint();
        let byte = disk.random.number() % limit.unsigned_abs();
        let bit = disk.random.number().to_be_bytes()[7];
        disk.flip_bit(0, byte, bit);
        let now = model.now();
        let mut sim = disk.open(now).unwrap_or_else(|error| panic!("{error}; {replay}"));
        // A group of 32 KiB holds at most some hundred of these records.
        check(&mut sim, &mut model, 300, &replay);
    }
}

#[test]
fn a_failed_write_stops_the_shard_and_loses_nothing_acknowledged() {
    for seed in seeds().into_iter().take(40) {
        let replay = format!("replay with SEED={seed}");
        let mut model = Model::default();
        let now = model.now();
        let mut sim = SimDisk::new(seed, 1 << 20, limits()).open(now).unwrap();
        run_life(&mut sim, &mut model);
        let now = model.now();
        while sim.step(now) {}
        model.acknowledge(sim.shard().committed());
        append(&mut sim, &mut model);
        sim.shard().input_drained(now);
        sim.fail_next_write();
        while sim.step(now) {}
        model.acknowledge(sim.shard().committed());
        if sim.shard().poisoned().is_some() {
            let queue = QueueNo(0);
            let refused = sim.shard().append(queue, &[&b"more"[..]], now);
            assert!(matches!(refused, Err(AppendError::Poisoned(_))), "{refused:?}; {replay}");
            assert!(read_one(&mut sim, queue, 0, now).is_some(), "reads go on; {replay}");
        }
        let mut sim = sim.crash().open(now).unwrap_or_else(|error| panic!("{error}; {replay}"));
        check(&mut sim, &mut model, 0, &replay);
    }
}

#[test]
fn a_log_cut_at_the_committed_frontier_goes_on_without_what_was_cut() {
    let mut model = Model::default();
    let now = model.now();
    let mut sim = SimDisk::new(7, 1 << 20, limits()).open(now).unwrap();
    run_life(&mut sim, &mut model);
    let now = model.now();
    while sim.step(now) {}
    let committed = sim.shard().committed();
    let queue = sim.shard().queue(&key(0)).expect("the workload opens it");
    let before = sim.shard().max_offset(queue);
    sim.shard().append(queue, &[&b"cut"[..]], now).unwrap();
    sim.shard().open_queue(b"cut too", now).unwrap();
    sim.shard().truncate(committed, 1000).unwrap();
    assert_eq!(sim.shard().queue(b"cut too"), None);
    let kept = sim.shard().append(queue, &[&b"kept"[..]], now).unwrap();
    assert_eq!(kept.first_queue_offset, before);
    sim.shard().input_drained(now);
    while sim.step(now) {}
    let at = usize::try_from(before.get()).unwrap();
    assert_eq!(read_one(&mut sim, queue, at, now), Some(b"kept".to_vec()));
    let mut sim = sim.crash().open(now).unwrap();
    assert_eq!(read_one(&mut sim, queue, at, now), Some(b"kept".to_vec()));
}

#[test]
fn damage_that_appears_while_the_store_is_open_costs_one_stretch() {
    let mut model = Model::default();
    let now = model.now();
    let mut sim = SimDisk::new(11, 1 << 20, limits()).open(now).unwrap();
    for _ in 0..4 {
        run_life(&mut sim, &mut model);
    }
    let now = model.now();
    while sim.step(now) {}
    model.acknowledge(sim.shard().committed());
    sim.shard().input_drained(now);
    while sim.step(now) {}
    model.acknowledge(sim.shard().committed());
    // The first groups have left memory by now; their headers go bad on the disk.
    for byte in [0, 40] {
        sim.disk.flip_bit(0, byte, 3);
    }
    check(&mut sim, &mut model, 300, "no seed");
    assert!(read_one(&mut sim, QueueNo(1), 0, now).is_none() || sim.disk.segments.len() < 5);
}
