//! Event-sourced counters: every counter is the sum of its events, and each has a queue of its own,
//! found by the counter's name.
//!
//! `cargo run --release --example counter -- FOLDER NAME CHANGE` adds a change and prints the sum. Queues
//! are cheap (a million of them is no problem), so the history of one counter is read without meeting
//! the others. A snapshot, kept as a fact, spares reading all of it: it names the events it covers,
//! and only later ones are added up.
#![expect(clippy::print_stdout, reason = "an example that shows what it does")]

use std::error::Error;
use std::path::Path;

use ringmq_engine::{Engine, EngineOptions, Queue, QueueOffset};

/// Events after which a snapshot is due.
const SNAPSHOT_EVERY: usize = 100;

/// A sum, and how many events it is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// The counter's value.
    sum: i64,
    /// The events that it covers: those before this offset.
    next: QueueOffset,
}

/// One counter.
struct Counter {
    events: Queue,
    snapshot_key: Vec<u8>,
    snapshot: State,
    state: State,
}

impl Counter {
    /// Finds the counter with this name, or makes it, and adds up what its snapshot does not cover.
    fn open(engine: &Engine, name: &str) -> Result<Self, Box<dyn Error>> {
        let events = engine.open_queue(format!("counter/{name}").as_bytes()).wait()?;
        let snapshot_key = format!("snapshot/{name}").into_bytes();
        let stored = events.shard().fact(&snapshot_key).wait()?;
        let snapshot = stored.as_deref().and_then(decode).unwrap_or_default();
        let mut counter = Self { events, snapshot_key, snapshot, state: snapshot };
        counter.catch_up()?;
        Ok(counter)
    }

    /// Adds the events that are not counted yet, those of other owners too.
    fn catch_up(&mut self) -> Result<State, Box<dyn Error>> {
        loop {
            let batch = self.events.read(self.state.next).wait()?;
            if batch.next == self.state.next {
                return Ok(self.state);
            }
            for event in &batch.records {
                self.state.sum += i64::from_be_bytes((*event.bytes).try_into()?);
            }
            self.state.next = batch.next;
        }
    }

    /// Adds an event. When it returns, the event is on the device and counted.
    fn add(&mut self, change: i64) -> Result<State, Box<dyn Error>> {
        self.events.append(&change.to_be_bytes()).wait()?;
        self.catch_up()?;
        if self.state.next.since(self.snapshot.next) >= SNAPSHOT_EVERY {
            // It may wait for the next flush: a crash before it costs adding up some events again.
            self.events.shard().stage_fact(&self.snapshot_key, &encode(self.state)).wait()?;
            self.snapshot = self.state;
        }
        Ok(self.state)
    }
}

fn encode(state: State) -> [u8; 16] {
    let (sum, next) = (i128::from(state.sum), i128::from(state.next.get()));
    (sum << 64 | next).to_be_bytes()
}

fn decode(bytes: &[u8]) -> Option<State> {
    let (sum, next) = bytes.split_first_chunk()?;
    let next = QueueOffset::new(i64::from_be_bytes(next.try_into().ok()?))?;
    Some(State { sum: i64::from_be_bytes(*sum), next })
}

/// Adds a change to a counter some times. Gives its sum and the number of its events.
pub(crate) fn run(
    folder: &Path,
    name: &str,
    change: i64,
    times: usize,
) -> Result<(i64, i64), Box<dyn Error>> {
    let engine = Engine::open(folder, &EngineOptions::default())?;
    let mut counter = Counter::open(&engine, name)?;
    for _ in 0..times {
        counter.add(change)?;
    }
    let State { sum, next } = counter.state;
    println!("{name} is {sum} after {next} events");
    engine.close().wait()?;
    Ok((sum, next.get()))
}

#[cfg_attr(test, expect(dead_code, reason = "tests call `run`"))]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: counter FOLDER NAME CHANGE";
    let (folder, name) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    run(Path::new(&folder), &name, args.next().ok_or(usage)?.parse()?, 1).map(drop)
}
