//! A durable queue of tasks with several groups of workers, each with its own place in it.
//!
//! `cargo run --release --example task_queue -- FOLDER` adds tasks and works on them. Every group sees
//! every task; a group's offset is a fact on the queue's own shard, so it rides in the same log. A
//! worker that dies before its offset is stored meets its task again: at least once, never none.
#![expect(clippy::print_stdout, reason = "an example that shows what it does")]

use std::error::Error;
use std::path::Path;
use std::thread;

use ringmq_engine::{
    AppendError, Closed, Engine, EngineOptions, Queue, QueueOffset, ReadError, ReadLimits,
};

/// Where one group of workers stands in a queue.
struct Group {
    queue: Queue,
    fact: Vec<u8>,
    next: QueueOffset,
}

impl Group {
    /// Joins a group, where it stopped the last time.
    fn join(queue: &Queue, name: &str) -> Result<Self, Closed> {
        let fact = format!("offset of {name} in queue {:?}", queue.number()).into_bytes();
        let stored = queue.shard().fact(&fact).wait()?;
        let next = stored.and_then(|bytes| Some(i64::from_be_bytes((*bytes).try_into().ok()?)));
        let next = next.and_then(QueueOffset::new).unwrap_or_default();
        Ok(Self { queue: queue.clone(), fact, next })
    }

    /// Waits for the next task and works on it. Returns how far the group has got.
    fn work(&mut self, work: impl FnOnce(&[u8])) -> Result<QueueOffset, ReadError> {
        let limits = ReadLimits { records_max: 1, ..ReadLimits::default() };
        let batch = match self.queue.read(self.next).limits(limits).follow().wait() {
            // What retention has taken in the meantime is lost for this group.
            Err(ReadError::BelowMin(min)) => {
                self.next = min;
                return Ok(min);
            }
            result => result?,
        };
        if let Some(task) = batch.records.first() {
            work(&task.bytes);
        }
        self.next = batch.next;
        Ok(batch.next)
    }

    /// Stores the group's place at once: no task before it is worked on again.
    fn commit(&self) -> Result<(), AppendError> {
        self.queue.shard().put_fact(&self.fact, Some(&self.next.get().to_be_bytes())).wait()
    }

    /// Lets the group's place be stored within a second, which costs no flush of its own. After a
    /// crash, the tasks of that second are worked on again.
    fn commit_soon(&self) -> Result<(), Closed> {
        self.queue.shard().stage_fact(&self.fact, &self.next.get().to_be_bytes()).wait()
    }
}

/// Adds tasks, and has two groups work on all of them. Gives how many each has seen.
pub(crate) fn run(folder: &Path, tasks: usize) -> Result<[usize; 2], Box<dyn Error>> {
    let engine = Engine::open(folder, &EngineOptions::default())?;
    let queue = engine.open_queue(b"tasks").wait()?;
    for n in 0..tasks {
        queue.append(format!("task {n}").as_bytes()).wait()?;
    }
    let end = queue.offsets().wait()?.max;
    let seen = thread::scope(|scope| {
        let groups = ["mail", "audit"].map(|name| {
            let queue = &queue;
            scope.spawn(move || -> Result<usize, Box<dyn Error + Send + Sync>> {
                let (mut group, mut seen) = (Group::join(queue, name)?, 0);
                while group.next < end {
                    group.work(|_task| seen += 1)?;
                    group.commit_soon()?;
                }
                group.commit()?;
                Ok(seen)
            })
        });
        groups.map(|group| group.join().map_err(|_| "a worker has panicked")?)
    });
    let [mail, audit] = seen;
    let seen =
        [mail.map_err(|error| error.to_string())?, audit.map_err(|error| error.to_string())?];
    println!("{tasks} tasks were added, worked on: {seen:?}");
    engine.close().wait()?;
    Ok(seen)
}

#[cfg_attr(test, expect(dead_code, reason = "tests call `run`"))]
fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: task_queue FOLDER")?;
    run(Path::new(&folder), 1000).map(drop)
}
