//! A simulated world that runs the shards' own code, with every choice taken from a seed.
//!
//! [`run`] lives through several lives of a store of one to four shards. Each life appends, reads,
//! waits and hands requests over between shards while the device delays, reorders, tears, shortens
//! and fails what it is asked to do; then it ends, anywhere. A model, a plain map of what was
//! given to each shard and of the group that it rides in, says after every step what may be told,
//! and after every restart what must be there: exactly what the log's prefix holds, which is
//! everything that was acknowledged.
//!
//! Nothing here is random beyond the seed: a failing run is replayed by its seed.
//!
//! Elsewhere: the shape of a world in `plan`, the device in `disk` and `shard`, the model in
//! `model`, what is compared in `node`, `keys` and `check`, the lives in `world`, what is
//! tried beside them in `aside`, damage to the log in `damage`. Power cuts of a run
//! on real files are in `cuts`.

mod aside;
mod check;
mod cuts;
mod damage;
mod disk;
mod keys;
mod model;
mod node;
mod plan;
mod random;
pub(crate) mod recording;
mod shard;
#[cfg(test)]
mod single;
mod tally;
#[cfg(test)]
mod tests;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use cuts::{CutOptions, CutReport, cut_power};
pub use random::Random;
#[cfg(test)]
pub(crate) use single::{SimDisk, SimShard};
pub use tally::{Event, Tally};

/// What a check found: nothing, or what is wrong.
type Check = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}
use ensure;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that replays it.
    pub seed: u64,
    /// Where and what.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

/// Runs the world of a seed to its end, and tells what happened in it.
///
/// # Errors
///
/// The first [`Violation`]; a panic of the engine is one.
pub fn run(seed: u64) -> Result<Tally, Violation> {
    let outcome = catch_unwind(AssertUnwindSafe(|| world::World::new(seed).run()));
    let what = match outcome {
        Ok(Ok(tally)) => return Ok(tally),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("panic: {}", text.unwrap_or("without a text"))
        }
    };
    Err(Violation { seed, what })
}
