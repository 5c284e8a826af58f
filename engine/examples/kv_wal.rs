//! A key-value store in memory whose writes survive anything: a queue of the engine is its
//! write-ahead log.
//!
//! `cargo run --release --example kv_wal -- FOLDER` counts its own runs. A write is answered once its
//! record is durable; writes of all threads share flushes, so many threads cost little more than one.
#![expect(clippy::print_stdout, reason = "an example that shows what it does")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use ringmq_engine::{AppendError, Engine, EngineOptions, Queue, QueueOffset};

/// One write as a record: length of the key (4 bytes), key, then the value or nothing for a removal.
fn encode(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut record = u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    record.extend_from_slice(key);
    if let Some(value) = value {
        record.push(1);
        record.extend_from_slice(value);
    }
    record
}

fn decode(record: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let (len, rest) = record.split_first_chunk()?;
    let (key, value) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
    Some((key, value.split_first().map(|(_, value)| value)))
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The store. Shared by reference among threads.
struct KeyValues {
    log: Queue,
    pairs: Mutex<Pairs>,
}

impl KeyValues {
    /// Reads the log from its first record on.
    fn open(engine: &Engine, name: &str) -> Result<Self, Box<dyn Error>> {
        let log = engine.open_queue(name.as_bytes()).wait()?;
        let (mut pairs, mut next) = (Pairs::new(), QueueOffset::default());
        loop {
            let batch = log.read(next).wait()?;
            if batch.next == next {
                return Ok(Self { log, pairs: Mutex::new(pairs) });
            }
            for record in &batch.records {
                let (key, value) = decode(&record.bytes).ok_or("not a log of this store")?;
                apply(&mut pairs, key, value);
            }
            next = batch.next;
        }
    }

    /// Sets or removes a key. When it returns, the write is on the device.
    fn write(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), AppendError> {
        // The log's order must be the map's, so both are settled under one lock; the wait for the
        // device is not part of it.
        let commit = {
            let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
            let record = encode(key, value);
            let commit = loop {
                match self.log.try_append(&record[..]) {
                    Err(AppendError::Backlogged) => self.log.room().wait(),
                    result => break result?,
                }
            };
            apply(&mut pairs, key, value);
            commit
        };
        commit.wait().map(drop)
    }

    /// The newest value of a key, which may still be on its way to the device.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

fn apply(pairs: &mut Pairs, key: &[u8], value: Option<&[u8]>) {
    match value {
        Some(value) => drop(pairs.insert(key.to_vec(), value.to_vec())),
        None => drop(pairs.remove(key)),
    }
}

/// Counts the runs of this example in a folder, with eight threads that write at once.
pub(crate) fn run(folder: &Path) -> Result<u64, Box<dyn Error>> {
    let engine = Engine::open(folder, &EngineOptions::default())?;
    let store = KeyValues::open(&engine, "pairs")?;
    let runs =
        store.get(b"runs").and_then(|bytes| Some(u64::from_be_bytes(bytes.try_into().ok()?)));
    let runs = runs.unwrap_or(0) + 1;
    store.write(b"runs", Some(&runs.to_be_bytes()))?;
    thread::scope(|scope| {
        let writers = (0..8).map(|n| {
            let store = &store;
            scope.spawn(move || {
                (0..100)
                    .try_for_each(|i| store.write(format!("{n}/{i}").as_bytes(), Some(b"value")))
            })
        });
        let writers: Vec<_> = writers.collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| AppendError::Closed)?)
    })?;
    store.write(b"0/0", None)?;
    println!("run {runs}: 0/0 is {:?}, 7/99 is {:?}", store.get(b"0/0"), store.get(b"7/99"));
    engine.close().wait()?;
    Ok(runs)
}

#[cfg_attr(test, expect(dead_code, reason = "tests call `run`"))]
fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: kv_wal FOLDER")?;
    run(Path::new(&folder)).map(drop)
}
