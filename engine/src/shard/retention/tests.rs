//! Retention, deletion and changed checkpoints under crashes at any step, against a model.

use std::collections::BTreeMap;

use crate::driver::sim::{Random, SimDisk, SimShard};
use crate::error::AppendError;
use crate::shard::{ReadLimits, ReadOutcome, ShardLimits};
use crate::units::{EpochMillis, QueueOffset, Sequence};
use crate::view::queue::TagFilter;

const SEGMENT: u64 = 1 << 20;
const QUEUES: usize = 12;
const LIVES: usize = 5;
const STEPS: usize = 900;

fn limits() -> ShardLimits {
    ShardLimits {
        tail_bytes: 4 << 20,
        large_bytes: 2 << 20,
        cold_bytes: 4 << 20,
        view_bytes: 8 << 10,
        group_bytes: 48 << 10,
        checkpoint_bytes: 500 << 10,
        checkpoint_ms: 400,
        disk_bytes: 10 * SEGMENT,
        ..ShardLimits::default()
    }
}

/// One incarnation of a queue as the outside world knows it.
#[derive(Clone, Default)]
struct Known {
    bodies: Vec<u64>,
    acknowledged: usize,
    /// The highest minimum offset that was told.
    min: usize,
}

#[derive(Default)]
struct Model {
    queues: BTreeMap<usize, Known>,
    /// Appends that wait for their group: queue, length of it then.
    waiting: Vec<(Sequence, usize, usize)>,
    /// Facts by key: the acknowledged value, and those that wait.
    facts: BTreeMap<usize, (u64, Vec<(Sequence, u64)>)>,
    clock: i64,
    recycled: u64,
    deleted: u64,
}

impl Model {
    fn now(&mut self) -> EpochMillis {
        self.clock += 1;
        EpochMillis::new(self.clock)
    }

    fn acknowledge(&mut self, committed: Sequence) {
        let queues = &mut self.queues;
        self.waiting.retain(|&(sequence, queue, count)| {
            if sequence <= committed
                && let Some(known) = queues.get_mut(&queue)
            {
                known.acknowledged = known.acknowledged.max(count);
            }
            sequence > committed
        });
        for (acknowledged, waiting) in self.facts.values_mut() {
            waiting.retain(|&(sequence, value)| {
                if sequence <= committed {
                    *acknowledged = value;
                }
                sequence > committed
            });
        }
    }
}

fn key(queue: usize) -> Vec<u8> {
    format!("queue-{queue}").into_bytes()
}

fn fact_key(n: usize) -> Vec<u8> {
    format!("fact-{n}").into_bytes()
}

/// A body that tells its number, of any length.
fn body(number: u64, random: &mut Random) -> Vec<u8> {
    let len = 8 + random.below(6000);
    number.to_be_bytes().iter().copied().cycle().take(len).collect()
}

fn append(sim: &mut SimShard, model: &mut Model) {
    // Most go to a few queues, so that the others are emptied by retention.
    let queue = if sim.random().one_in(20) { sim.random().below(QUEUES) } else { 0 };
    let now = model.now();
    let Ok(number) = sim.shard().open_queue(&key(queue), now) else { return };
    let mark = sim.random().number();
    let bytes = body(mark, sim.random());
    match sim.shard().append(number, &[&bytes[..]], now) {
        Ok(appended) => {
            let known = model.queues.entry(queue).or_default();
            let first = usize::try_from(appended.first_queue_offset.get()).unwrap();
            assert_eq!(first, known.bodies.len(), "{queue}");
            known.bodies.push(mark);
            model.waiting.push((appended.sequence, queue, known.bodies.len()));
        }
        Err(AppendError::Backlogged | AppendError::DiskFull(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Deletes a queue, and waits until that is committed: until then a crash may bring it back.
fn delete(sim: &mut SimShard, model: &mut Model) {
    let queue = 1 + sim.random().below(QUEUES - 1);
    let now = model.now();
    let Some(number) = sim.shard().queue(&key(queue)) else { return };
    let Ok(sequence) = sim.shard().delete_queue(number, now) else { return };
    while sim.shard().committed() < sequence {
        let now = model.now();
        sim.shard().input_drained(now);
        sim.step(now);
    }
    model.acknowledge(sim.shard().committed());
    model.waiting.retain(|&(_, waiting, _)| waiting != queue);
    model.queues.remove(&queue);
    model.deleted += 1;
}

fn put_fact(sim: &mut SimShard, model: &mut Model) {
    let n = if sim.random().one_in(30) { sim.random().below(50) } else { 0 };
    let value = sim.random().number();
    let now = model.now();
    if let Ok(sequence) = sim.shard().put_fact(&fact_key(n), Some(&value.to_be_bytes()), now) {
        model.facts.entry(n).or_default().1.push((sequence, value));
    }
}

fn run_life(sim: &mut SimShard, model: &mut Model) {
    for _ in 0..STEPS {
        append(sim, model);
        if sim.random().one_in(10) {
            put_fact(sim, model);
        }
        if sim.random().one_in(150) {
            delete(sim, model);
        }
        let now = model.now();
        if sim.random().one_in(2) {
            sim.shard().input_drained(now);
        }
        if sim.random().one_in(10) {
            sim.shard().tick(now);
        }
        for _ in 0..sim.random().below(8) {
            sim.step(now);
        }
        model.acknowledge(sim.shard().committed());
        let used = sim.shard().disk_use();
        assert!(used.used_bytes <= used.budget_bytes + SEGMENT, "{used:?}");
    }
    model.recycled += sim.shard().stats().segments_recycled;
    for (queue, known) in &mut model.queues {
        if let Some(number) = sim.shard().queue(&key(*queue)) {
            known.min = usize::try_from(sim.shard().min_offset(number).get()).unwrap();
        }
    }
}

fn check(sim: &mut SimShard, model: &mut Model, replay: &str) {
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let mut queues = std::mem::take(&mut model.queues);
    queues.retain(|&queue, known| {
        let Some(number) = sim.shard().queue(&key(queue)) else {
            assert_eq!(known.acknowledged, 0, "queue {queue} is gone; {replay}");
            return false;
        };
        let visible = usize::try_from(sim.shard().max_offset(number).get()).unwrap();
        let acknowledged = known.acknowledged;
        assert!(acknowledged <= visible, "{queue}: {acknowledged} > {visible}; {replay}");
        assert!(visible <= known.bodies.len(), "{queue}: {visible}; {replay}");
        known.bodies.truncate(visible);
        known.acknowledged = visible;
        let min = usize::try_from(sim.shard().min_offset(number).get()).unwrap();
        // What was kept at the end of the life before is there, unless retention goes on meanwhile.
        assert!(min <= known.min, "{queue}: {min} > {}; {replay}", known.min);
        for at in known.min..visible {
            let from = QueueOffset::default().plus(at);
            let bytes = loop {
                let mut out = Vec::new();
                match sim.shard().read(number, from, &limits, &TagFilter::All, 1, &mut out) {
                    ReadOutcome::Found { .. } => break out[0].to_vec(),
                    ReadOutcome::Pending => assert!(sim.step(EpochMillis::new(model.clock))),
                    other => panic!("queue {queue} offset {at}: {other:?}; {replay}"),
                }
            };
            assert_eq!(bytes[..8], known.bodies[at].to_be_bytes(), "{queue} at {at}; {replay}");
        }
        true
    });
    assert_eq!(sim.shard().queue_count(), queues.len(), "no queue comes back; {replay}");
    model.queues = queues;
    model.waiting.clear();
    for (n, (acknowledged, waiting)) in &mut model.facts {
        let value = sim.shard().fact(&fact_key(*n));
        let value = value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()));
        let waits = waiting.iter().any(|&(_, waiting)| waiting == value);
        assert!(value == *acknowledged || waits, "fact {n}; {replay}");
        *acknowledged = value;
        waiting.clear();
    }
}

#[test]
fn what_is_kept_and_what_is_gone_survive_crashes_at_any_step() {
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=12).collect(),
    };
    let (mut recycled, mut deleted) = (0, 0);
    for seed in seeds {
        let replay = format!("replay with SEED={seed}");
        let mut disk = SimDisk::new(seed, SEGMENT, limits());
        let mut model = Model::default();
        for life in 0..LIVES {
            if life % 2 == 1 && seed % 2 == 0 {
                disk.lose_checkpoint();
            }
            let now = model.now();
            let mut sim = disk.open(now).unwrap_or_else(|error| panic!("{error}; {replay}"));
            check(&mut sim, &mut model, &replay);
            run_life(&mut sim, &mut model);
            disk = sim.crash();
        }
        recycled += model.recycled;
        deleted += model.deleted;
    }
    assert!(recycled > 0 && deleted > 0, "{recycled} recycled, {deleted} deleted");
}
