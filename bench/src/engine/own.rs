//! A shard that the measuring thread owns.

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use ringmq_engine::{
    AppendError, EpochMillis, QueueNo, ReadLimits, ReadOutcome, RecordSlice, RingShard, Sequence,
    Store, StoreOptions, TagFilter,
};

use super::figures::{Figures, Lap, float};
use crate::clock::epoch_ms;

const WAIT: Duration = Duration::from_millis(50);
const TICK_MS: u64 = 100;

pub(crate) type Failure = Box<dyn Error>;

pub(crate) fn now() -> EpochMillis {
    EpochMillis::new(epoch_ms())
}

/// A store of one shard.
pub(crate) struct Own {
    pub(crate) ring: RingShard,
    ticked: EpochMillis,
    /// The most processor time that a turn has taken so far, if that is watched.
    longest_turn: Option<Duration>,
    /// Held so that nobody else opens the store.
    _guard: ringmq_engine::StoreGuard,
}

/// Processor time of this thread: what waits, or is waited for by others, does not count.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// How a run appends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) record_len: usize,
    pub(crate) in_flight: usize,
    pub(crate) bytes: u64,
}

/// What a run has appended.
pub(crate) struct Appends {
    pub(crate) figures: Figures,
    /// Mean length of a group, header and padding included.
    pub(crate) group_len: f64,
    /// Bytes of log that were written.
    pub(crate) log_bytes: u64,
}

impl Own {
    pub(crate) fn open(dir: &Path, options: &StoreOptions) -> Result<Self, Failure> {
        let store = Store::open(dir, options, 1, now())?.into_shards();
        let ring = store.shards.into_iter().next().ok_or("the store has no shard")?;
        Ok(Self { ring, ticked: now(), longest_turn: None, _guard: store.guard })
    }

    /// Ends as a killed process does: nothing is written any more.
    pub(crate) fn kill(self) {}

    pub(crate) fn close(self) -> Result<(), Failure> {
        Ok(self.ring.close(now)?)
    }

    /// Waits until segments are ready, so that the device does nothing else.
    pub(crate) fn prepare(&mut self) -> Result<(), Failure> {
        while self.ring.shard().is_preparing() {
            self.turn()?;
        }
        Ok(())
    }

    /// From now on watches how much processor time a turn takes: for so long nothing is appended.
    pub(crate) fn watch_turns(&mut self) {
        self.longest_turn = Some(Duration::ZERO);
    }

    /// The most that a turn has taken since then.
    pub(crate) fn longest_turn(&self) -> Duration {
        self.longest_turn.unwrap_or_default()
    }

    /// Waits for the next completion, and does what depends on time.
    fn turn(&mut self) -> Result<(), Failure> {
        let Some(longest) = self.longest_turn else { return self.take_turn() };
        let before = thread_time();
        self.take_turn()?;
        self.longest_turn = Some(longest.max(thread_time().saturating_sub(before)));
        Ok(())
    }

    fn take_turn(&mut self) -> Result<(), Failure> {
        let time = now();
        self.ring.turn_blocking(time, WAIT)?;
        if time.since(self.ticked) >= TICK_MS {
            self.ticked = time;
            self.ring.shard().tick(time);
        }
        Ok(())
    }

    fn again<T>(
        &mut self,
        mut call: impl FnMut(&mut RingShard) -> Result<T, AppendError>,
    ) -> Result<T, Failure> {
        loop {
            match call(&mut self.ring) {
                Ok(value) => return Ok(value),
                Err(AppendError::Backlogged) => self.turn()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn queue(&mut self, key: &[u8]) -> Result<QueueNo, Failure> {
        self.again(|ring| ring.shard().open_queue(key, now()))
    }

    /// Opens queues, and waits until all are committed.
    pub(crate) fn queues(&mut self, count: usize) -> Result<Vec<QueueNo>, Failure> {
        let queues: Vec<QueueNo> = (0..count)
            .map(|n| self.queue(format!("queue/{n}").as_bytes()))
            .collect::<Result<_, _>>()?;
        let last = self.again(|ring| ring.shard().put_fact(b"opened", Some(b""), now()))?;
        self.commit(last)?;
        Ok(queues)
    }

    pub(crate) fn commit(&mut self, sequence: Sequence) -> Result<(), Failure> {
        while self.ring.shard().committed() < sequence {
            if let Some(cause) = self.ring.shard().poisoned() {
                return Err(cause.to_owned().into());
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Appends to the queues in turn, `load.in_flight` records on their way at any time. `between`
    /// runs once a turn.
    pub(crate) fn append(
        &mut self,
        queues: &[QueueNo],
        load: Load,
        mut between: impl FnMut(&mut RingShard) -> Result<(), Failure>,
    ) -> Result<Appends, Failure> {
        let record = vec![0x5A; load.record_len];
        let before = self.ring.shard().stats();
        // Sequence, when its first record was appended, how many it has.
        let mut waiting: VecDeque<(Sequence, Lap, u64)> = VecDeque::new();
        let (mut outstanding, mut sent, mut done) = (0, 0_u64, 0_u64);
        let count = load.bytes / load.record_len as u64;
        let mut targets = queues.iter().cycle();
        let mut figures = Figures::start();
        while done < count {
            let (time, lap) = (now(), figures.lap());
            while outstanding < load.in_flight && sent < count {
                let Some(&queue) = targets.next() else { return Err("no queue".into()) };
                let appended = match self.ring.shard().append(queue, &[&record[..]], time) {
                    Ok(appended) => appended.sequence,
                    Err(AppendError::Backlogged) => break,
                    Err(error) => return Err(error.into()),
                };
                match waiting.back_mut() {
                    Some((sequence, _, count)) if *sequence == appended => *count += 1,
                    _ => waiting.push_back((appended, lap, 1)),
                }
                outstanding += 1;
                sent += 1;
                self.ring.feed(time)?;
            }
            self.turn()?;
            between(&mut self.ring)?;
            let committed = self.ring.shard().committed();
            while let Some(&(sequence, lap, count)) = waiting.front()
                && sequence <= committed
            {
                waiting.pop_front();
                figures.took(lap, count);
                outstanding -= usize::try_from(count)?;
                done += count;
            }
            if let Some(cause) = self.ring.shard().poisoned() {
                return Err(cause.to_owned().into());
            }
        }
        figures.end(done, done * load.record_len as u64);
        let after = self.ring.shard().stats();
        let (groups, log_bytes) =
            (after.groups - before.groups, after.log_bytes - before.log_bytes);
        Ok(Appends { figures, group_len: float(log_bytes) / float(groups.max(1)), log_bytes })
    }

    /// Reads a queue from an offset to its end. Gives the number of records and their bytes.
    pub(crate) fn read_all(&mut self, queue: QueueNo, from: i64) -> Result<(u64, u64), Failure> {
        let limits = ReadLimits { records_max: 4096, bytes_max: 1 << 20, scanned_max: 65_536 };
        let mut next = ringmq_engine::QueueOffset::new(from).ok_or("a negative offset")?;
        let (mut records, mut total) = (0, 0);
        let mut slices: Vec<RecordSlice> = Vec::new();
        loop {
            slices.clear();
            let shard = self.ring.shard();
            match shard.read(queue, next, &limits, &TagFilter::All, 0, &mut slices) {
                ReadOutcome::Found { next: behind, bytes, count } => {
                    next = behind;
                    records += u64::from(count);
                    total += bytes as u64;
                }
                ReadOutcome::AtEnd => return Ok((records, total)),
                ReadOutcome::Pending => self.until_ready()?,
                other => return Err(format!("{other:?} at offset {next}").into()),
            }
        }
    }

    fn until_ready(&mut self) -> Result<(), Failure> {
        let mut ready = Vec::new();
        loop {
            self.turn()?;
            self.ring.shard().take_ready(&mut ready);
            if !ready.is_empty() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_appends_is_read_back_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { segment_len: 4 << 20, ..StoreOptions::default() };
        let mut own = Own::open(dir.path(), &options).unwrap();
        let queues = own.queues(3).unwrap();
        let load = Load { record_len: 1000, in_flight: 100, bytes: 6_000_000 };
        let appends = own.append(&queues, load, |_| Ok(())).unwrap();
        assert_eq!((appends.figures.count, appends.figures.bytes), (6000, 6_000_000));
        assert!(appends.log_bytes > 6_000_000 && appends.group_len > 1000.0);
        own.kill();
        let mut own = Own::open(dir.path(), &options).unwrap();
        for queue in own.queues(3).unwrap() {
            assert_eq!(own.read_all(queue, 0).unwrap(), (2000, 2_000_000));
        }
        own.close().unwrap();
    }
}
