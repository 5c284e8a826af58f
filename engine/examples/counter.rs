//! Event-sourced counters: every counter is the sum of its events, and each has a queue of its own,
//! found by the counter's name.
//!
//! `cargo run --release --example counter -- FOLDER NAME CHANGE ID` adds a change and prints the sum.
//! Queues are cheap (a million of them is no problem), so the history of one counter is read without
//! meeting the others. A snapshot, kept as a fact, spares reading all of it: it names the events it
//! covers, and only later ones are added up. The id of an event is its key: who does not know whether
//! an event was added, after a crash perhaps, adds it again, and it is counted once.
#![expect(clippy::print_stdout, reason = "an example that shows what it does")]

use std::error::Error;
use std::path::Path;

use ringmq_engine::{Engine, EngineOptions, KeyLimits, KeyScope, NewRecord, Queue, QueueOffset};

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
    /// What the ids of its events count within.
    ids: KeyScope,
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
        let ids = KeyScope::new(name.as_bytes());
        let mut counter = Self { events, ids, snapshot_key, snapshot, state: snapshot };
        counter.catch_up()?;
        Ok(counter)
    }

    /// The change that was added with this id.
    fn event(&self, id: &str) -> Result<Option<i64>, Box<dyn Error>> {
        let (queue, wanted) = (self.events.number(), id.as_bytes().to_vec());
        let has_id = move |event: &[u8]| parse(event).is_some_and(|(_, id)| id == wanted);
        let shard = self.events.shard();
        let found =
            shard.find(self.ids.hash(id.as_bytes()), has_id, KeyLimits::default()).wait()?;
        // Another counter's events have another scope, and as good as never the same hash.
        let own = found.iter().find(|found| found.queue == queue);
        Ok(own.and_then(|found| parse(&found.record.bytes)).map(|(change, _)| change))
    }

    /// Adds the events that are not counted yet, those of other owners too.
    fn catch_up(&mut self) -> Result<State, Box<dyn Error>> {
        loop {
            let batch = self.events.read(self.state.next).wait()?;
            if batch.next == self.state.next {
                return Ok(self.state);
            }
            for event in &batch.records {
                let (change, _id) = parse(&event.bytes).ok_or("not an event")?;
                self.state.sum += change;
            }
            self.state.next = batch.next;
        }
    }

    /// Adds an event, unless there is one with this id. When it returns, the event is on the device
    /// and counted.
    fn add(&mut self, change: i64, id: &str) -> Result<State, Box<dyn Error>> {
        if self.event(id)?.is_none() {
            let bytes = [&change.to_be_bytes(), id.as_bytes()].concat();
            let keys = [self.ids.hash(id.as_bytes())];
            self.events.append(NewRecord::from(&*bytes).with_keys(&keys)).wait()?;
        }
        self.catch_up()?;
        if self.state.next.since(self.snapshot.next) >= SNAPSHOT_EVERY {
            // It may wait for the next flush: a crash before it costs adding up some events again.
            self.events.shard().stage_fact(&self.snapshot_key, &encode(self.state)).wait()?;
            self.snapshot = self.state;
        }
        Ok(self.state)
    }
}

/// The change and the id of an event.
fn parse(event: &[u8]) -> Option<(i64, &[u8])> {
    let (change, id) = event.split_first_chunk()?;
    Some((i64::from_be_bytes(*change), id))
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

/// Adds a change to a counter once for each id. Gives its sum and the number of its events.
pub(crate) fn run(
    folder: &Path,
    name: &str,
    change: i64,
    ids: &[String],
) -> Result<(i64, i64), Box<dyn Error>> {
    let engine = Engine::open(folder, &EngineOptions::default())?;
    let mut counter = Counter::open(&engine, name)?;
    for id in ids {
        counter.add(change, id)?;
    }
    let State { sum, next } = counter.state;
    println!("{name} is {sum} after {next} events");
    engine.close().wait()?;
    Ok((sum, next.get()))
}

#[cfg_attr(test, expect(dead_code, reason = "tests call `run`"))]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: counter FOLDER NAME CHANGE ID";
    let (folder, name) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let (change, id) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    run(Path::new(&folder), &name, change.parse()?, &[id]).map(drop)
}
