//! Runs the engine's simulation over many seeds: `simulate --seeds N [--from S] [--threads T]`.
//!
//! Every seed is a world of its own (see `ringmq_engine::sim`). The program prints how often each
//! kind of fault fired, and ends with 1 at the first violation, whose seed replays it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]

use std::{
    env,
    num::NonZero,
    panic,
    process::{Command, ExitCode},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use clap::Parser;
use ringmq_engine::sim::{self, Tally, Violation};

/// Runs the engine on a simulated device, once per seed.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Threads; one per core unless given.
    #[arg(long)]
    threads: Option<NonZero<usize>>,
}

/// Set in a process whose C library keeps the memory that it has.
const MEMORY_KEPT: &str = "MALLOC_MMAP_THRESHOLD_";

/// Runs the program again, so that every store does not get its memory from the system anew: that
/// would take more time than all the rest.
fn with_memory_kept() -> ExitCode {
    const NEVER: &str = "1073741824";
    let child = env::current_exe().and_then(|program| {
        Command::new(program)
            .args(env::args_os().skip(1))
            .envs([(MEMORY_KEPT, NEVER), ("MALLOC_TRIM_THRESHOLD_", NEVER)])
            .status()
    });
    match child {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(cause) => {
            eprintln!("the program cannot start itself: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// What the threads share.
struct Progress {
    next: AtomicU64,
    end: u64,
    found: Mutex<Option<Violation>>,
    total: Mutex<(Tally, u64)>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if env::var_os(MEMORY_KEPT).is_none() {
        return with_memory_kept();
    }
    // A panic of the engine is reported as the violation that it is.
    panic::set_hook(Box::new(|_| {}));
    let progress = Progress {
        next: AtomicU64::new(arguments.from),
        end: arguments.from.saturating_add(arguments.seeds),
        found: Mutex::new(None),
        total: Mutex::new((Tally::default(), 0)),
    };
    let cores = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let threads = arguments.threads.unwrap_or(cores).get();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| progress.work());
        }
    });
    progress.report()
}

impl Progress {
    fn work(&self) {
        let (mut tally, mut count) = (Tally::default(), 0);
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                break;
            }
            match sim::run(seed) {
                Ok(seen) => {
                    tally.merge(&seen);
                    count += 1;
                }
                Err(violation) => {
                    // Nobody starts another seed.
                    self.next.store(self.end, Ordering::Relaxed);
                    let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.get_or_insert(violation);
                    break;
                }
            }
        }
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        total.0.merge(&tally);
        total.1 += count;
    }

    fn report(self) -> ExitCode {
        let (tally, count) = self.total.into_inner().unwrap_or_else(PoisonError::into_inner);
        print!("{tally}");
        println!("{count:>12}  seeds without a violation");
        match self.found.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => ExitCode::SUCCESS,
            Some(violation) => {
                eprintln!("{violation}");
                eprintln!("replay with: simulate --seeds 1 --from {}", violation.seed);
                ExitCode::FAILURE
            }
        }
    }
}
