//! How fast one shard appends durably: `append_rate DIR RECORD_LEN OUTSTANDING SECONDS`.
//!
//! The thread owns the shard. It keeps `OUTSTANDING` records on their way to the device, and prints
//! records and bytes per second.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a command line that measures"
)]

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringmq_engine::{AppendError, EpochMillis, Sequence, Store, StoreOptions};

fn now() -> EpochMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EpochMillis::new(i64::try_from(since.as_millis()).unwrap_or(0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize| args.get(n).and_then(|arg| arg.parse::<usize>().ok());
    let (Some(dir), Some(len), Some(outstanding), Some(seconds)) =
        (args.get(1), number(2), number(3), number(4))
    else {
        return Err("usage: append_rate DIR RECORD_LEN OUTSTANDING SECONDS".into());
    };
    let store = Store::open(Path::new(dir), &StoreOptions::default(), 1, now())?;
    let mut shard = store.into_shards().shards.remove(0);
    let queue = loop {
        match shard.shard().open_queue(b"queue", now()) {
            Ok(queue) => break queue,
            Err(AppendError::Backlogged) => {
                shard.turn_blocking(now(), Duration::from_millis(50))?;
            }
            Err(error) => return Err(error.into()),
        }
    };
    let body = vec![7; len];
    let mut waiting: VecDeque<Sequence> = VecDeque::new();
    let (mut done, start) = (0u64, Instant::now());
    while start.elapsed() < Duration::from_secs(u64::try_from(seconds)?) {
        let time = now();
        while waiting.len() < outstanding {
            match shard.shard().append(queue, &[&body[..]], time) {
                Ok(appended) => waiting.push_back(appended.sequence),
                Err(AppendError::Backlogged) => break,
                Err(error) => return Err(error.into()),
            }
        }
        shard.turn_blocking(time, Duration::from_millis(50))?;
        let committed = shard.shard().committed();
        while waiting.front().is_some_and(|&sequence| sequence <= committed) {
            waiting.pop_front();
            done += 1;
        }
    }
    let secs = start.elapsed().as_secs_f64();
    let stats = shard.shard().stats();
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let (rate, bytes) = (done as f64 / secs, stats.log_bytes as f64 / secs / 1e6);
    println!("{rate:.0} records/s, {bytes:.0} MB/s of log, {:?}", stats);
    shard.close(now)?;
    Ok(())
}
