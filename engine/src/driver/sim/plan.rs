//! What a seed decides before the first step: the shape of the store, how long it lives, and which
//! families of faults it meets.

use super::random::Random;
use super::shard::Mood;
use crate::format::manifest::Manifest;
use crate::layout::shard_of;
use crate::shard::{Acknowledge, ShardLimits};

/// Topics of a world; each has a queue that its records can be copied to.
pub(super) const TOPICS: usize = 5;
/// Queues of a topic, without that one.
const QUEUES: usize = 5;
/// Lives of a world at least.
const LIVES_MIN: usize = 3;
/// Appends of a world at least; each is one to three records.
pub(super) const APPENDS_MIN: u64 = 1000;
/// Rolls of a segment at least, in one shard or several.
pub(super) const ROLLS_MIN: u64 = 2;
/// Segments that retention recycles or removes at least.
pub(super) const RECYCLED_MIN: u64 = 1;

/// What the views of a small shard take of the budget at most.
const VIEWS_BYTES: u64 = 1 << 20;

/// A queue of the world, by its number.
#[derive(Clone)]
pub(super) struct QueueName {
    pub(super) topic: usize,
    pub(super) shard: usize,
    pub(super) key: Vec<u8>,
}

#[derive(Clone)]
pub(super) struct Plan {
    pub(super) manifest: Manifest,
    pub(super) limits: ShardLimits,
    pub(super) queues: Vec<QueueName>,
    pub(super) faults: Families,
    /// Requests and answers that a pair of threads has room for.
    pub(super) ring_entries: usize,
    pub(super) body_len_max: usize,
    /// One record in so many is long.
    pub(super) long_body: usize,
    pub(super) lives: usize,
    pub(super) life_steps: usize,
}

/// Which kinds of faults a world meets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Families {
    pub(super) errors: bool,
    pub(super) full: bool,
    pub(super) short: bool,
    pub(super) damage: bool,
    pub(super) views_damage: bool,
    pub(super) clock: bool,
    /// The epoch file is never found again.
    pub(super) epoch: bool,
}

impl Plan {
    pub(super) fn new(seed: u64, random: &mut Random) -> Self {
        let shards = random.between(1, 4);
        // Most worlds are small, so that many can be run. Some have segments of several chunks.
        let wide_world = random.one_in(40);
        let segment_len =
            if wide_world { 1 << 20 } else { random.pick(&[32 << 10, 32 << 10, 64 << 10]) };
        let manifest = Manifest {
            store: u128::from(seed) << 32 | 0x51D,
            shards: crate::units::narrow(shards),
            segment_len,
            block_len: random.pick(&[512, 512, 512, 4096]),
            created_ms: 0,
            acknowledge: random.pick(&[Acknowledge::Durable, Acknowledge::Buffered]),
            budget_bytes: 0,
        };
        let body_len_max = if wide_world { 6000 } else { random.pick(&[40, 100, 200, 400]) };
        Self {
            limits: limits(random, wide_world, segment_len),
            queues: queues(shards),
            ring_entries: random.between(1, 8),
            body_len_max,
            long_body: random.pick(&[0, 40, 100]),
            lives: LIVES_MIN + random.below(4),
            life_steps: random.between(600, 1800),
            faults: Families {
                errors: random.one_in(2),
                full: random.one_in(3),
                short: random.one_in(2),
                damage: random.one_in(4),
                views_damage: random.one_in(3),
                clock: random.one_in(3),
                epoch: random.one_in(8),
            },
            manifest,
        }
    }

    /// A world that has not appended enough in its lives gets further ones, without the faults
    /// that keep it from appending.
    pub(super) fn hurry(&mut self) {
        self.faults.errors = false;
        self.faults.full = false;
        self.life_steps = self.life_steps.max(4000);
    }

    /// What people read beside a violation.
    pub(super) fn shape(&self) -> String {
        format!("{:?}, {:?}, {:?}", self.manifest, self.limits, self.faults)
    }

    /// How a device behaves during the next life.
    pub(super) fn mood(&self, random: &mut Random) -> Mood {
        let errors = |random: &mut Random, often: usize| {
            if self.faults.errors && random.one_in(3) { often } else { 0 }
        };
        Mood {
            delay: random.pick(&[0, 2, 6, 12]),
            held: random.pick(&[0, 0, 50, 15]),
            short: if self.faults.short { random.pick(&[3, 10]) } else { 0 },
            log_write_error: errors(random, 60),
            zero_error: errors(random, 8),
            view_write_error: errors(random, 4),
            read_error: errors(random, 5),
        }
    }

    /// The queue that takes copies of a topic's records.
    pub(super) fn copies_of(&self, topic: usize) -> usize {
        topic * (QUEUES + 1) + QUEUES
    }

    /// Queues that are deleted now and then.
    pub(super) fn is_deleted_at_times(queue: usize) -> bool {
        queue % (QUEUES + 1) == 3
    }

    /// A queue that producers send to; a few get most of what is sent.
    pub(super) fn any_queue(&self, random: &mut Random) -> usize {
        let topic = random.below(TOPICS);
        let queue = random.below(QUEUES);
        if random.one_in(2) { 0 } else { topic * (QUEUES + 1) + queue }
    }
}

fn limits(random: &mut Random, wide_world: bool, segment_len: u64) -> ShardLimits {
    let group_bytes =
        if wide_world { 64 << 10 } else { random.pick(&[4 << 10, 8 << 10, 16 << 10]) };
    ShardLimits {
        tail_bytes: if wide_world { 1 << 20 } else { random.pick(&[64 << 10, 128 << 10]) },
        large_bytes: 2 * crate::units::index(segment_len),
        cold_bytes: crate::units::index(segment_len)
            * if wide_world { 8 } else { random.pick(&[8, 16, 2]) },
        group_bytes,
        writes_in_flight: random.pick(&[4, 4, 2, 1, 8]),
        checkpoint_bytes: random.pick(&[16 << 10, 60 << 10, 200 << 10]),
        checkpoint_ms: random.pick(&[2000, 10_000, 60_000]),
        key_bytes: random.pick(&[100, 1 << 10, 1 << 20]),
        view_bytes: random.pick(&[1 << 10, 16 << 10, 1 << 20]),
        // The files of the views take their part, or more than there is for them.
        disk_bytes: segment_len * random.pick(&[4, 4, 5, 8]) + random.pick(&[0, VIEWS_BYTES]),
        age_ms: random.pick(&[2000, 5000, 20_000]),
    }
}

fn queues(shards: usize) -> Vec<QueueName> {
    let shards = crate::units::narrow(shards);
    let mut queues = Vec::new();
    for topic in 0..TOPICS {
        let name = format!("topic-{topic}");
        for queue in 0..=QUEUES {
            let number = crate::units::narrow(queue);
            let shard = shard_of(name.as_bytes(), number, shards);
            let key = format!("{name}/{queue}").into_bytes();
            let shard = crate::units::index(u64::from(shard));
            queues.push(QueueName { topic, shard, key });
        }
    }
    queues
}
