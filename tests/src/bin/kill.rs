//! SIGKILL under load, on real files and a real ring: `kill --folder DIR [--kills N] [--ack buffered]`.
//!
//! The program starts itself as a child that embeds the engine: it appends to some queues of two
//! shards and tells, line by line, what is committed. The parent kills it after a random number of
//! lines, every third time soon after it has opened, so that the second crash comes right behind the
//! first one's recovery. Then it opens the store itself and looks for everything that was told, at its
//! queue and offset. It ends with 1 when anything is missing. A buffered store may have told of what
//! only lies in shared memory; how many groups were restored from there is printed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    error::Error,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use clap::{Parser, ValueEnum};
use ringmq_engine::{
    Acknowledge, AppendError, EpochMillis, QueueNo, QueueOffset, ReadLimits, ReadOutcome,
    RecoveryReport, RingShard, Sequence, ShardLimits, Store, StoreOptions, TagFilter, sim::Random,
};

const SHARDS: u32 = 2;
const QUEUES: usize = 8;
const IN_FLIGHT: usize = 256;
const WAIT: Duration = Duration::from_millis(20);

/// Kills a program that embeds the engine, and looks for what it had acknowledged.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the store is made; it must not exist.
    #[arg(long)]
    folder: PathBuf,
    /// How often the child is killed.
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// What an acknowledgement means.
    #[arg(long, value_enum, default_value = "durable")]
    ack: Ack,
    /// The life of a child; set by the parent.
    #[arg(long, hide = true)]
    life: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ack {
    /// On the device.
    Durable,
    /// In shared memory.
    Buffered,
}

type Failure = Box<dyn Error>;

/// What was told: the life that appended the record, by queue and offset.
type Acknowledged = BTreeMap<(u32, u32), BTreeMap<i64, u32>>;

fn options(ack: Ack) -> StoreOptions {
    let acknowledge = match ack {
        Ack::Durable => Acknowledge::Durable,
        Ack::Buffered => Acknowledge::Buffered,
    };
    StoreOptions {
        shards: Some(SHARDS),
        acknowledge: Some(acknowledge),
        segment_len: 1 << 20,
        limits: ShardLimits {
            tail_bytes: 4 << 20,
            cold_bytes: 16 << 20,
            group_bytes: 64 << 10,
            checkpoint_bytes: 1 << 20,
            ..ShardLimits::default()
        },
        ..StoreOptions::default()
    }
}

/// Time that only goes on: a count of steps, since nothing here depends on the clock.
struct Steps(i64);

impl Steps {
    fn now(&mut self) -> EpochMillis {
        self.0 += 1;
        self.last()
    }

    fn last(&self) -> EpochMillis {
        EpochMillis::new(self.0)
    }
}

fn key(queue: u32) -> Vec<u8> {
    format!("queue-{queue}").into_bytes()
}

/// The record that a life appends to an offset of a queue.
fn body(life: u32, shard: u32, queue: u32, offset: i64) -> Vec<u8> {
    let mark = format!("{life}/{shard}/{queue}/{offset};");
    let len = 16 + usize::try_from(offset.wrapping_mul(7919) % 700).unwrap_or(0);
    mark.bytes().cycle().take(len.max(mark.len())).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.life {
        Some(life) => child(&arguments, life),
        None => parent(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Appends until it is killed.
fn child(arguments: &Arguments, life: u32) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let mut steps = Steps(i64::from(life) * 100_000_000);
    let mut shards = Store::open(folder, &options(arguments.ack), 7, steps.now())?.into_shards();
    let mut out = std::io::stdout().lock();
    writeln!(out, "open")?;
    out.flush()?;
    let mut random = Random::new(u64::from(life));
    let mut waiting: Vec<VecDeque<(Sequence, String)>> = vec![VecDeque::new(); 2];
    loop {
        for ((number, shard), waiting) in (0..).zip(&mut shards.shards).zip(&mut waiting) {
            while waiting.len() < IN_FLIGHT {
                let queue = u32::try_from(random.below(QUEUES)).unwrap_or(0);
                match append(shard, life, number, queue, steps.now()) {
                    Ok((sequence, offset)) => {
                        waiting.push_back((sequence, format!("{number} {queue} {offset}")));
                    }
                    Err(AppendError::Backlogged) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            shard.shard().tick(steps.now());
            shard.turn_blocking(steps.now(), WAIT)?;
            let committed = shard.shard().committed();
            while waiting.front().is_some_and(|(sequence, _)| *sequence <= committed) {
                if let Some((_, line)) = waiting.pop_front() {
                    writeln!(out, "{line}")?;
                }
            }
        }
        out.flush()?;
    }
}

fn append(
    shard: &mut RingShard,
    life: u32,
    number: u32,
    queue: u32,
    now: EpochMillis,
) -> Result<(Sequence, i64), AppendError> {
    let queue_no = shard.shard().open_queue(&key(queue), now)?;
    let record = Numbered { life, shard: number, queue };
    let appended = shard.shard().append(queue_no, &[record], now)?;
    Ok((appended.sequence, appended.first_queue_offset.get()))
}

/// A record whose bytes tell where it belongs; its length is that of the longest.
struct Numbered {
    life: u32,
    shard: u32,
    queue: u32,
}

const RECORD_LEN: usize = 700;

impl ringmq_engine::Record for Numbered {
    fn len(&self) -> usize {
        RECORD_LEN
    }

    fn tag(&self) -> i64 {
        0
    }

    fn write(&self, stamp: &ringmq_engine::Stamp, dst: &mut [u8]) {
        let bytes = body(self.life, self.shard, self.queue, stamp.queue_offset.get());
        for (dst, byte) in dst.iter_mut().zip(bytes.iter().cycle()) {
            *dst = *byte;
        }
    }
}

fn parent(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.folder.exists() {
        return Err(format!("{} exists", arguments.folder.display()).into());
    }
    let mut random = Random::new(u64::from(arguments.kills));
    let mut acknowledged = Acknowledged::new();
    let (mut total, mut restored) = (0u64, 0u64);
    for life in 1..=arguments.kills {
        let lines = if life % 3 == 0 { random.below(20) } else { 500 + random.below(4000) };
        total += load(arguments, life, lines, &mut acknowledged)?;
        // Every other pair of crashes is not looked at in between.
        if life % 2 == 0 || life == arguments.kills {
            restored += verify(arguments, &acknowledged, life == arguments.kills)?;
        }
    }
    println!("{} kills, {total} acknowledged records, none lost", arguments.kills);
    if matches!(arguments.ack, Ack::Buffered) {
        println!("{restored} groups were restored from shared memory");
        if restored == 0 {
            return Err("no kill has left anything in shared memory".into());
        }
    }
    std::fs::remove_dir_all(&arguments.folder)?;
    Ok(())
}

/// Starts a child and kills it after so many lines. What it told until then counts.
fn load(
    arguments: &Arguments,
    life: u32,
    lines: usize,
    acknowledged: &mut Acknowledged,
) -> Result<u64, Failure> {
    let mut child: Child = Command::new(env::current_exe()?)
        .arg("--folder")
        .arg(&arguments.folder)
        .args(["--life", &life.to_string()])
        .args([
            "--ack",
            arguments.ack.to_possible_value().as_ref().map_or("", |ack| ack.get_name()),
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    let told = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
    let mut count = 0;
    for line in told.lines() {
        let line = line?;
        if count == lines {
            child.kill()?;
        }
        count += 1;
        let numbers: Vec<i64> = line.split(' ').flat_map(str::parse).collect();
        // A line that the kill has cut tells nothing.
        if let [shard, queue, offset] = numbers[..]
            && count <= lines
        {
            let place = (u32::try_from(shard)?, u32::try_from(queue)?);
            acknowledged.entry(place).or_default().insert(offset, life);
        }
    }
    child.wait()?;
    if count <= lines {
        return Err(format!("the child of life {life} ended by itself").into());
    }
    Ok(u64::try_from(lines)?)
}

/// Looks for everything that was told; what is old only at the end. Gives the groups that were restored
/// from shared memory.
fn verify(arguments: &Arguments, acknowledged: &Acknowledged, all: bool) -> Result<u64, Failure> {
    const RECENT: i64 = 3000;
    let mut steps = Steps(1_000_000_000_000);
    let store = Store::open(&arguments.folder, &options(arguments.ack), 7, steps.now())?;
    let wrong = |report: &&RecoveryReport| report.damaged + report.lost_bytes_max > 0;
    if let Some(report) = store.reports().iter().find(wrong) {
        return Err(format!("damage or loss where there is none: {report:?}").into());
    }
    let restored = store.reports().iter().map(|report| report.restored_groups).sum();
    let mut shards = store.into_shards();
    for (&(shard, queue), offsets) in acknowledged {
        let ring = usize::try_from(shard).ok().and_then(|n| shards.shards.get_mut(n));
        let ring = ring.ok_or("no such shard")?;
        let queue_no = ring.shard().queue(&key(queue)).ok_or("a queue is gone")?;
        let newest = offsets.last_key_value().map_or(0, |(&offset, _)| offset);
        let from = if all { 0 } else { newest - RECENT };
        for (&offset, &life) in offsets.range(from..) {
            let found = read(ring, queue_no, offset, &mut steps)?;
            let wanted = body(life, shard, queue, offset);
            let wanted: Vec<u8> = wanted.iter().copied().cycle().take(RECORD_LEN).collect();
            if found != wanted {
                return Err(format!("shard {shard} queue {queue} offset {offset} is lost").into());
            }
        }
    }
    if all {
        // Nothing stays behind in shared memory.
        for shard in shards.shards {
            shard.close(|| steps.last())?;
        }
    }
    Ok(restored)
}

fn read(
    ring: &mut RingShard,
    queue: QueueNo,
    offset: i64,
    steps: &mut Steps,
) -> Result<Vec<u8>, Failure> {
    let limits = ReadLimits { records_max: 1, bytes_max: 1, scanned_max: 1 };
    let at = QueueOffset::new(offset).ok_or("an offset is negative")?;
    loop {
        let mut out = Vec::new();
        match ring.shard().read(queue, at, &limits, &TagFilter::All, 1, &mut out) {
            ReadOutcome::Found { .. } => return Ok(out.iter().flat_map(|s| s.to_vec()).collect()),
            ReadOutcome::Pending => ring.turn_blocking(steps.now(), WAIT)?,
            other => return Err(format!("offset {offset}: {other:?}").into()),
        }
    }
}
