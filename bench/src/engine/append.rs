//! Appends: durable, with segments prepared and while they are being prepared, and acknowledged from
//! shared memory, where a run ends when the last record is acknowledged, and the device may have as much
//! of it still before it as the memory for groups holds.

use std::path::Path;

use ringmq_engine::{Acknowledge, QueueNo, StoreOptions};
use serde_json::json;

use super::Bench;
use super::device::Device;
use super::figures::Figures;
use super::own::{Failure, Load, Own};
use super::table::{Bar, Row, Table};
use crate::measure::median;

/// Group lengths that the best bare figure is sought among, and how many are in flight.
const GROUPS: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
const DEPTH: usize = 4;
/// Appends of a run that has one in flight.
const SINGLE: u64 = 4000;
const FILE_LEN: u64 = 512 << 20;

/// One load, and what it is held against.
struct Case {
    record_len: usize,
    in_flight: usize,
    bar: Bar,
}

const CASES: [Case; 6] = [
    Case { record_len: 1024, in_flight: 4096, bar: Bar::AtLeast(0.9) },
    Case { record_len: 1024, in_flight: 256, bar: Bar::AtLeast(0.85) },
    Case { record_len: 1024, in_flight: 1, bar: Bar::AtMost(1.25) },
    Case { record_len: 256, in_flight: 4096, bar: Bar::None },
    Case { record_len: 16 << 10, in_flight: 1024, bar: Bar::AtLeast(0.9) },
    Case { record_len: 128, in_flight: 1, bar: Bar::None },
];

/// A kind of store, and how its segments stand.
struct State {
    name: &'static str,
    acknowledge: Acknowledge,
    segments: Segments,
}

const STATES: [State; 3] = [
    State { name: "prepared", acknowledge: Acknowledge::Durable, segments: Segments::Prepared },
    State { name: "preparing", acknowledge: Acknowledge::Durable, segments: Segments::Preparing },
    State { name: "buffered", acknowledge: Acknowledge::Buffered, segments: Segments::Prepared },
];

/// Where a store's segments stand while it is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segments {
    /// All that the run needs is zeroed.
    Prepared,
    /// Each is zeroed shortly before it is written, by the same device.
    Preparing,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let mut device = Device::new(&bench.dir, FILE_LEN)?;
    let memory = Path::new("/dev/shm").join(format!("ringmq-bench-{}", std::process::id()));
    std::fs::create_dir_all(&memory)?;
    let lines = STATES.iter().flat_map(|state| CASES.iter().map(move |case| (state, case)));
    let result = { lines }
        .try_for_each(|(state, case)| measure(bench, &mut device, state, &memory, case, table));
    // Stores are dropped as a killed process leaves them.
    std::fs::remove_dir_all(&memory)?;
    result
}

/// A store that takes runs until its prepared segment is used up.
struct Prepared {
    own: Own,
    queue: QueueNo,
    left: u64,
}

/// Opens a store whose first segment holds some runs of `need` bytes of log.
fn open(dir: &Path, state: &State, memory: &Path, need: u64) -> Result<Prepared, Failure> {
    const SHORT: u64 = 64 << 20;
    const LONG: u64 = 2 << 30;
    let (segment_len, left) = match state.segments {
        Segments::Prepared => {
            let len = (3 * need).next_power_of_two().clamp(SHORT, LONG);
            (len, len - (1 << 20))
        }
        Segments::Preparing => (SHORT, u64::MAX),
    };
    let options = StoreOptions {
        acknowledge: Some(state.acknowledge),
        buffer_dir: memory.to_owned(),
        ..Bench::options(segment_len)
    };
    let mut own = Own::open(dir, &options)?;
    let queue = own.queues(1)?.first().copied().ok_or("no queue")?;
    own.prepare()?;
    Ok(Prepared { own, queue, left })
}

fn measure(
    bench: &Bench,
    device: &mut Device,
    state: &State,
    memory: &Path,
    case: &Case,
    table: &mut Table,
) -> Result<(), Failure> {
    let is_durable = state.acknowledge == Acknowledge::Durable;
    let what = format!("{} B, {} in flight, {}", case.record_len, case.in_flight, state.name);
    if !bench.wants(&what) {
        return Ok(());
    }
    let bytes = match case.in_flight {
        1 => SINGLE * case.record_len as u64,
        _ => bench.bytes,
    };
    let load = Load { record_len: case.record_len, in_flight: case.in_flight, bytes };
    let (mut ratios, mut in_new, mut rates, mut cpus, mut latencies, mut details) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut store: Option<Prepared> = None;
    for _ in 0..bench.repetitions {
        // A record and its entry in the table take a tenth more at most, in the lengths used here.
        let need = bytes + bytes / 8 + SINGLE * 512;
        let mut prepared = match store.take() {
            Some(prepared) if prepared.left >= need => prepared,
            used => {
                drop(used);
                open(&bench.fresh("append")?, state, memory, need)?
            }
        };
        prepared.own.prepare()?;
        let appends = prepared.own.append(&[prepared.queue], load, |_| Ok(()))?;
        prepared.left = prepared.left.saturating_sub(appends.log_bytes);
        store = Some(prepared);
        let bare = best_bare(device, case, appends.group_len, bench.bytes, Space::Written)?;
        let figures = &appends.figures;
        let new = match state.segments {
            Segments::Preparing if case.in_flight > 1 => {
                Some(best_bare(device, case, appends.group_len, bench.bytes, Space::New)?)
            }
            _ => None,
        };
        in_new.extend(new.as_ref().map(|new| figures.byte_rate() / new.byte_rate()));
        let ratio = if case.in_flight == 1 {
            figures.quantile_us(0.5) / bare.quantile_us(0.5)
        } else {
            // Of the log's bytes, so that padding, headers and tables count as cost.
            figures.byte_rate() / bare.byte_rate()
        };
        ratios.push(ratio);
        rates.push(figures.rate());
        cpus.push(figures.cpu_us());
        latencies.push(figures.quantile_us(0.5));
        details.push(json!({
            "engine": figures.json(),
            "bare": bare.json(),
            "bare_in_new_space": new.as_ref().map(Figures::json),
            "group_len": appends.group_len,
            "log_bytes_per_second": appends.log_bytes as f64 / figures.seconds,
        }));
    }
    bench.remove(&bench.dir.join("append"))?;
    let single = case.in_flight == 1;
    table.add(Row {
        what: what.clone(),
        got: format!(
            "{:.0}/s, {:.0} MB/s, p50 {:.0} us",
            median(rates.iter().copied()),
            median(rates.iter().copied()) * case.record_len as f64 / 1e6,
            median(latencies)
        ),
        measure: if single { "p50 / bare" } else { "bytes / bare" },
        values: ratios,
        bar: if is_durable { case.bar } else { Bar::None },
        details,
    })?;
    if !in_new.is_empty() {
        table.add(Row {
            what: what.clone(),
            got: String::new(),
            measure: "bytes / bare in new space",
            values: in_new,
            bar: case.bar,
            details: Vec::new(),
        })?;
    }
    if is_durable && case.record_len == 1024 && case.in_flight == 4096 {
        table.add(Row {
            what,
            got: String::new(),
            measure: "CPU us a record",
            values: cpus,
            bar: Bar::AtMost(0.35),
            details: Vec::new(),
        })?;
    }
    Ok(())
}

/// Where bare writes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Written,
    /// Nothing was ever written there: a device that gives its space out when it is written to is
    /// slower then, with whatever engine.
    New,
}

/// The device's own figure for a load.
fn best_bare(
    device: &mut Device,
    case: &Case,
    group_len: f64,
    bytes: u64,
    space: Space,
) -> Result<Figures, Failure> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a mean of lengths below 1 GiB"
    )]
    let same = (group_len as usize).next_multiple_of(512).clamp(512, super::device::LEN_MAX);
    let mut writes = |len, depth, bytes| match space {
        Space::Written => device.writes(len, depth, bytes),
        Space::New => device.writes_to_new_space(len, depth, bytes),
    };
    match case.in_flight {
        1 => Ok(writes(same, 1, SINGLE * same as u64)?),
        256 => {
            // The same bytes in flight in writes of the same length, as nearly as whole writes allow.
            let in_flight = case.in_flight * case.record_len;
            let depth = ((in_flight + same / 2) / same).clamp(1, DEPTH);
            Ok(writes(same, depth, bytes / 2)?)
        }
        _ => {
            let mut best: Option<Figures> = None;
            for len in GROUPS {
                let figures = writes(len, DEPTH, bytes / 2)?;
                if best.as_ref().is_none_or(|best| best.byte_rate() < figures.byte_rate()) {
                    best = Some(figures);
                }
            }
            best.ok_or_else(|| "no group length".into())
        }
    }
}
