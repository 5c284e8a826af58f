//! Reads of records that are no longer in memory: one queue, a hundred interleaved ones, and beside
//! durable appends.

use std::path::Path;

use ringmq_engine::{
    QueueNo, QueueOffset, ReadLimits, ReadOutcome, RecordSlice, RingShard, TagFilter,
};
use serde_json::json;

use super::Bench;
use super::device::{Device, LEN_MAX};
use super::figures::{Figures, float};
use super::own::{Failure, Load, Own};
use super::table::{Bar, Row, Table};
use crate::measure::median;

const RECORD_LEN: usize = 1024;
const SEGMENT_LEN: u64 = 256 << 20;
const LIMITS: ReadLimits =
    ReadLimits { records_max: 4096, bytes_max: 1 << 20, scanned_max: 65_536 };

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    one_queue(bench, table)?;
    many_queues(bench, table)?;
    beside_appends(bench, table)
}

/// A store whose records are on the device only.
fn filled(dir: &Path, queues: usize, bytes: u64) -> Result<(Own, Vec<QueueNo>), Failure> {
    let options = Bench::options(SEGMENT_LEN);
    let mut own = Own::open(dir, &options)?;
    let numbers = own.queues(queues)?;
    own.append(&numbers, Load { record_len: RECORD_LEN, in_flight: 4096, bytes }, |_| Ok(()))?;
    own.close()?;
    let mut own = Own::open(dir, &options)?;
    let numbers = own.queues(queues)?;
    own.prepare()?;
    Ok((own, numbers))
}

fn one_queue(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let dir = bench.fresh("cold")?;
    let (own, _) = filled(&dir, 1, bench.bytes)?;
    own.close()?;
    let mut device = Device::new(&bench.dir, bench.bytes.next_multiple_of(LEN_MAX as u64))?;
    let (mut ratios, mut rates, mut details) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repetitions {
        let mut own = Own::open(&dir, &Bench::options(SEGMENT_LEN))?;
        let queue = own.queues(1)?.first().copied().ok_or("no queue")?;
        own.prepare()?;
        let mut figures = Figures::start();
        let (records, bytes) = own.read_all(queue, 0)?;
        figures.end(records, bytes);
        let mut best = device.reads(LEN_MAX, 4, bench.bytes)?;
        let other = device.reads(LEN_MAX, 8, bench.bytes)?;
        if other.byte_rate() > best.byte_rate() {
            best = other;
        }
        ratios.push(figures.byte_rate() / best.byte_rate());
        rates.push(figures.byte_rate() / 1e6);
        details.push(json!({ "engine": figures.json(), "bare": best.json() }));
        own.close()?;
    }
    bench.remove(&dir)?;
    Ok(table.add(Row {
        what: "1 KiB, one queue from its start".to_owned(),
        got: format!("{:.0} MB/s", median(rates)),
        measure: "bytes / bare reads of 1 MiB",
        values: ratios,
        bar: Bar::AtLeast(0.7),
        details,
    })?)
}

fn many_queues(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let dir = bench.fresh("cold")?;
    let (mut own, numbers) = filled(&dir, 100, bench.bytes)?;
    let before = own.ring.shard().stats().cold_bytes;
    let mut figures = Figures::start();
    let (mut records, mut bytes) = (0, 0);
    for queue in numbers {
        let (count, len) = own.read_all(queue, 0)?;
        records += count;
        bytes += len;
    }
    figures.end(records, bytes);
    let read = own.ring.shard().stats().cold_bytes - before;
    drop(own);
    bench.remove(&dir)?;
    Ok(table.add(Row {
        what: "1 KiB, 100 interleaved queues, one by one".to_owned(),
        got: format!("{:.0} MB/s", figures.byte_rate() / 1e6),
        measure: "bytes read / bytes wanted",
        values: vec![float(read) / float(bytes.max(1))],
        bar: Bar::AtMost(3.0),
        details: vec![figures.json()],
    })?)
}

/// A reader that goes on as far as it gets without waiting.
struct Reader {
    queue: QueueNo,
    next: QueueOffset,
    waiting: bool,
    bytes: u64,
    slices: Vec<RecordSlice>,
}

impl Reader {
    fn step(&mut self, ring: &mut RingShard) -> Result<(), Failure> {
        let mut ready = Vec::new();
        ring.shard().take_ready(&mut ready);
        self.waiting &= ready.is_empty();
        if self.waiting {
            return Ok(());
        }
        self.slices.clear();
        match ring.shard().read(
            self.queue,
            self.next,
            &LIMITS,
            &TagFilter::All,
            0,
            &mut self.slices,
        ) {
            ReadOutcome::Found { next, bytes, .. } => {
                self.next = next;
                self.bytes += bytes as u64;
            }
            ReadOutcome::Pending => self.waiting = true,
            // From the start again: the cache is far smaller than what lies in between.
            ReadOutcome::AtEnd => self.next = QueueOffset::default(),
            other => return Err(format!("{other:?} at offset {}", self.next).into()),
        }
        Ok(())
    }
}

fn beside_appends(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let dir = bench.fresh("cold")?;
    let (mut own, numbers) = filled(&dir, 2, bench.bytes)?;
    let [old, new] = numbers.as_slice() else { return Err("two queues were opened".into()) };
    // Sends that wait for their answers, as 32 producers do.
    let load = Load { record_len: RECORD_LEN, in_flight: 32, bytes: bench.bytes / 16 };
    let (mut ratios, mut texts, mut details) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repetitions {
        own.prepare()?;
        let alone = own.append(&[*new], load, |_| Ok(()))?.figures;
        own.prepare()?;
        let mut reader = Reader {
            queue: *old,
            next: QueueOffset::default(),
            waiting: false,
            bytes: 0,
            slices: Vec::new(),
        };
        let beside = own.append(&[*new], load, |ring| reader.step(ring))?.figures;
        let read_rate = float(reader.bytes) / beside.seconds / 1e6;
        let (p99_alone, p99) = (alone.quantile_us(0.99), beside.quantile_us(0.99));
        ratios.push(p99 / p99_alone);
        texts.push(format!("p99 {p99_alone:.0} -> {p99:.0} us, {read_rate:.0} MB/s read"));
        details.push(json!({
            "alone": alone.json(),
            "beside": beside.json(),
            "read_bytes_per_second": float(reader.bytes) / beside.seconds,
        }));
    }
    drop(own);
    bench.remove(&dir)?;
    Ok(table.add(Row {
        what: "append p99, 32 in flight, beside a cold read".to_owned(),
        got: texts.pop().unwrap_or_default(),
        measure: "p99 / p99 alone",
        values: ratios,
        bar: Bar::AtMost(1.5),
        details,
    })?)
}
