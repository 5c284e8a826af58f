//! Appends spread over many queues, the memory they take, and a restart with them.

use serde_json::json;

use super::Bench;
use super::figures::{Figures, float};
use super::own::{Failure, Load, Own};
use super::table::{Bar, Row, Table};
use crate::measure::median;
use crate::procfs;

const RECORD_LEN: usize = 1024;
const COUNTS: [usize; 4] = [1, 1000, 100_000, 1_000_000];
/// Resident memory that a million queues may take.
const MEMORY_MIB: f64 = 2048.0;
/// Longest pause for a checkpoint, in milliseconds. A turn also commits what was written meanwhile.
const PAUSE_MS: f64 = 5.0;

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let mut one = Vec::new();
    // One queue comes first, and is what the others are held against.
    for count in COUNTS.into_iter().filter(|&n| n == 1 || bench.wants(&format!("{n} queues"))) {
        let runs = (0..bench.repetitions.min(if count > 100_000 { 1 } else { u32::MAX }))
            .map(|_| once(bench, count))
            .collect::<Result<Vec<_>, _>>()?;
        let rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
        if count == 1 {
            one.clone_from(&rates);
        }
        let base = median(one.iter().copied());
        let bar = if count == 100_000 { Bar::AtLeast(0.9) } else { Bar::None };
        let what = format!("{count} queues");
        table.add(Row {
            what: format!("{what}: append, 4,096 in flight"),
            got: format!("{:.0}/s", median(rates.iter().copied())),
            measure: "rate / rate of one queue",
            values: rates.iter().map(|rate| rate / base).collect(),
            bar,
            details: runs.iter().map(|run| run.details.clone()).collect(),
        })?;
        let checkpoints = runs.iter().map(|run| run.checkpoints).min().unwrap_or(0);
        table.add(Row {
            what: format!("{what}: longest turn"),
            got: format!("with {checkpoints} checkpoints at least"),
            measure: "ms of processor time",
            values: runs.iter().map(|run| run.longest_turn_ms).collect(),
            bar: if checkpoints > 0 { Bar::AtMost(PAUSE_MS) } else { Bar::None },
            details: Vec::new(),
        })?;
        let is_million = count == 1_000_000;
        table.add(Row {
            what: format!("{what}: memory"),
            got: format!("opened in {:.2} s", median(runs.iter().map(|run| run.opened))),
            measure: "anonymous MiB",
            values: runs.iter().map(|run| run.memory_mib).collect(),
            bar: if is_million { Bar::AtMost(MEMORY_MIB) } else { Bar::None },
            details: Vec::new(),
        })?;
        table.add(Row {
            what: format!("{what}: restart after a kill"),
            got: "until an append is committed and a queue is read".to_owned(),
            measure: "seconds",
            values: runs.iter().map(|run| run.restarted).collect(),
            bar: if is_million { Bar::AtMost(10.0) } else { Bar::None },
            details: Vec::new(),
        })?;
    }
    Ok(())
}

struct Run {
    rate: f64,
    opened: f64,
    memory_mib: f64,
    longest_turn_ms: f64,
    checkpoints: u64,
    restarted: f64,
    details: serde_json::Value,
}

fn memory_mib() -> Result<f64, Failure> {
    Ok(float(procfs::rss_anon_kib(std::process::id())?) / 1024.0)
}

fn once(bench: &Bench, count: usize) -> Result<Run, Failure> {
    let dir = bench.fresh("queues")?;
    let options = Bench::options(256 << 20);
    let mut own = Own::open(&dir, &options)?;
    let clock = Figures::start();
    let numbers = own.queues(count)?;
    let opened = clock.elapsed();
    own.prepare()?;
    // Each queue gets a record at least.
    let bytes = bench.bytes.max((count * RECORD_LEN) as u64);
    own.watch_turns();
    let load = Load { record_len: RECORD_LEN, in_flight: 4096, bytes };
    let appends = own.append(&numbers, load, |_| Ok(()))?;
    let longest_turn_ms = own.longest_turn().as_secs_f64() * 1e3;
    let checkpoints = own.ring.shard().stats().checkpoints;
    let memory_mib = memory_mib()?;
    own.kill();
    let clock = Figures::start();
    let mut own = Own::open(&dir, &options)?;
    let last = own.queue(format!("queue/{}", count - 1).as_bytes())?;
    let load = Load { record_len: RECORD_LEN, in_flight: 1, bytes: RECORD_LEN as u64 };
    own.append(&[last], load, |_| Ok(()))?;
    let (records, _) = own.read_all(last, 0)?;
    let restarted = clock.elapsed();
    let wanted = bytes / RECORD_LEN as u64 / count as u64 + 1;
    if records < wanted {
        return Err(format!("{records} of {wanted} records after the restart").into());
    }
    own.kill();
    bench.remove(&dir)?;
    let details = json!({ "append": appends.figures.json(), "opened_s": opened });
    Ok(Run {
        rate: appends.figures.rate(),
        opened,
        memory_mib,
        longest_turn_ms,
        checkpoints,
        restarted,
        details,
    })
}
