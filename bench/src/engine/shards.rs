//! Two shards beside one, with a device that takes no time: what is left is the engine's own work, and
//! nothing of it is shared.

use std::path::Path;
use std::thread;

use ringmq_engine::{
    AppendError, Completion, EpochMillis, Op, ReadBuffer, Shard, Store, StoreOptions,
};
use serde_json::json;

use super::Bench;
use super::figures::Figures;
use super::own::{Failure, now};
use super::table::{Bar, Row, Table};
use crate::measure::median;

const RECORD_LEN: usize = 1024;
const RECORDS: u64 = 10_000_000;
/// Appends between two looks at the operations.
const BATCH: u64 = 64;

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    let (mut ratios, mut rates, mut details) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repetitions {
        let one = appended(&bench.fresh("shards")?, 1)?;
        let two = appended(&bench.fresh("shards")?, 2)?;
        ratios.push(two.rate() / one.rate());
        rates.push(one.rate());
        details.push(json!({ "one": one.json(), "two": two.json() }));
    }
    bench.remove(&bench.dir.join("shards"))?;
    Ok(table.add(Row {
        what: "1 KiB appends, device without delay".to_owned(),
        got: format!("one shard: {:.2} million/s", median(rates) / 1e6),
        measure: "two shards / one",
        values: ratios,
        bar: Bar::AtLeast(1.9),
        details,
    })?)
}

/// Appends on every shard of a new store at once, each on a thread of its own.
fn appended(dir: &Path, count: u32) -> Result<Figures, Failure> {
    let options = StoreOptions { shards: Some(count), ..Bench::options(1 << 30) };
    let store = Store::open(dir, &options, 1, now())?.into_shards();
    let shards: Vec<Shard> = store.shards.into_iter().map(|ring| ring.into_shard()).collect();
    let mut figures = Figures::start();
    let threads: Vec<_> =
        shards.into_iter().map(|shard| thread::spawn(move || append(shard))).collect();
    for thread in threads {
        thread.join().map_err(|_| "a shard has panicked")?.map_err(|error| error.to_string())?;
    }
    let records = RECORDS * u64::from(count);
    figures.end(records, records * RECORD_LEN as u64);
    Ok(figures)
}

fn append(mut shard: Shard) -> Result<(), AppendError> {
    let record = [0x5A; RECORD_LEN];
    let mut ticked = EpochMillis::default();
    let queue = loop {
        match shard.open_queue(b"queue", now()) {
            Ok(queue) => break queue,
            Err(AppendError::Backlogged) => complete(&mut shard, &mut ticked),
            Err(error) => return Err(error),
        }
    };
    let mut sent = 0;
    while sent < RECORDS {
        let time = now();
        for _ in 0..BATCH {
            match shard.append(queue, &[&record[..]], time) {
                Ok(_) => sent += 1,
                Err(AppendError::Backlogged) => break,
                Err(error) => return Err(error),
            }
        }
        complete(&mut shard, &mut ticked);
    }
    Ok(())
}

/// Has every operation succeed at once. What depends on time alone comes ten times a second.
fn complete(shard: &mut Shard, ticked: &mut EpochMillis) {
    let time = now();
    if time.since(*ticked) >= 100 {
        *ticked = time;
        shard.tick(time);
    }
    shard.input_drained(time);
    while let Some(op) = shard.next_op() {
        let (id, result, buffer): (_, _, Option<ReadBuffer>) = match op {
            Op::Write { id, data, .. } => (id, Ok(data.len()), None),
            Op::Read { id, len, buffer, .. } => (id, Ok(len), Some(buffer)),
            Op::FreeSpace { id } => (id, Ok(1 << 40), None),
            Op::CreateSegment { id, .. }
            | Op::RecycleSegment { id, .. }
            | Op::RemoveSegment { id, .. }
            | Op::Populate { id, .. }
            | Op::Discard { id, .. } => (id, Ok(0), None),
            Op::ReplaceCheckpoint { id, bytes, .. } => (id, Ok(bytes.len()), None),
        };
        shard.complete(Completion { id, result, buffer }, time);
    }
}
