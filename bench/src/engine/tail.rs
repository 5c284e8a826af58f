//! Reads of records that are in memory, and of records that are being appended.

use ringmq_engine::{QueueNo, QueueOffset, ReadLimits, ReadOutcome, StoredRecord, TagFilter};
use serde_json::json;

use super::Bench;
use super::figures::Figures;
use super::own::{Failure, Load, Own};
use super::table::{Bar, Row, Table};
use crate::measure::median;

const RECORD_LEN: usize = 1024;
/// What lies in memory: less than the tail's default of 64 MiB.
const BYTES: u64 = 48 << 20;
const ROUNDS: u64 = 40;

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let mut own = Own::open(&bench.fresh("tail")?, &Bench::options(256 << 20))?;
    let queue = own.queues(1)?.first().copied().ok_or("no queue")?;
    own.prepare()?;
    own.append(&[queue], Load { record_len: RECORD_LEN, in_flight: 4096, bytes: BYTES }, |_| {
        Ok(())
    })?;
    let joined = repeated(bench, || {
        let mut figures = Figures::start();
        let (mut records, mut bytes) = (0, 0);
        for _ in 0..ROUNDS {
            let (count, len) = own.read_all(queue, 0)?;
            records += count;
            bytes += len;
        }
        figures.end(records, bytes);
        Ok(figures)
    })?;
    table.add(row("1 KiB from memory, neighbours joined", joined, Bar::AtLeast(3.0)))?;
    let apart = repeated(bench, || {
        let mut figures = Figures::start();
        let (mut records, mut bytes) = (0, 0);
        for _ in 0..ROUNDS {
            let (count, len) = read_apart(&mut own, queue)?;
            records += count;
            bytes += len;
        }
        figures.end(records, bytes);
        Ok(figures)
    })?;
    table.add(row("1 KiB from memory, every record apart", apart, Bar::AtLeast(3.0)))?;
    let following = repeated(bench, || follow(&mut own, queue, bench.bytes / 2))?;
    table.add(row("1 KiB while it is appended, same thread", following, Bar::None))?;
    drop(own);
    Ok(bench.remove(&bench.dir.join("tail"))?)
}

fn repeated(
    bench: &Bench,
    mut once: impl FnMut() -> Result<Figures, Failure>,
) -> Result<Vec<Figures>, Failure> {
    (0..bench.repetitions).map(|_| once()).collect()
}

fn row(what: &str, all: Vec<Figures>, bar: Bar) -> Row {
    let rate = median(all.iter().map(Figures::byte_rate)) / 1e6;
    Row {
        what: what.to_owned(),
        got: format!("{rate:.0} MB/s"),
        measure: "million records/s",
        values: all.iter().map(|figures| figures.rate() / 1e6).collect(),
        bar,
        details: all.iter().map(Figures::json).collect(),
    }
}

/// Reads the whole queue, every record by itself.
fn read_apart(own: &mut Own, queue: QueueNo) -> Result<(u64, u64), Failure> {
    let limits = ReadLimits { records_max: 4096, bytes_max: 1 << 20, scanned_max: 65_536 };
    let (mut next, mut records, mut total) = (QueueOffset::default(), 0, 0);
    let mut found: Vec<StoredRecord> = Vec::new();
    loop {
        found.clear();
        let shard = own.ring.shard();
        match shard.read_records(queue, next, &limits, &TagFilter::All, 0, &mut found) {
            ReadOutcome::Found { next: behind, .. } => {
                next = behind;
                records += found.len() as u64;
                total += found.iter().map(|record| record.bytes.len() as u64).sum::<u64>();
            }
            ReadOutcome::AtEnd => return Ok((records, total)),
            other => return Err(format!("{other:?} at offset {next}").into()),
        }
    }
}

/// Appends while a reader on the same thread takes each record once it is committed.
fn follow(own: &mut Own, queue: QueueNo, bytes: u64) -> Result<Figures, Failure> {
    let limits = ReadLimits { records_max: 4096, bytes_max: 1 << 20, scanned_max: 65_536 };
    let mut next = own.ring.shard().max_offset(queue);
    let (mut records, mut total, mut slices) = (0, 0, Vec::new());
    let mut figures = Figures::start();
    let load = Load { record_len: RECORD_LEN, in_flight: 4096, bytes };
    own.append(&[queue], load, |ring| {
        loop {
            slices.clear();
            match ring.shard().read(queue, next, &limits, &TagFilter::All, 0, &mut slices) {
                ReadOutcome::Found { next: behind, bytes, count } => {
                    next = behind;
                    records += u64::from(count);
                    total += bytes as u64;
                }
                ReadOutcome::AtEnd => return Ok(()),
                other => return Err(format!("{other:?} at offset {next}").into()),
            }
        }
    })?;
    figures.end(records, total);
    if records != bytes / RECORD_LEN as u64 {
        return Err(json!({ "records": records, "wanted": bytes / RECORD_LEN as u64 })
            .to_string()
            .into());
    }
    Ok(figures)
}
