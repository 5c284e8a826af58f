//! Power cuts of a real run: `powercut [--cuts N] [--folder DIR]`.
//!
//! A workload runs on a store on real files, through a real ring; every operation is recorded at its
//! submission and at its completion. Then the power is cut, in memory: at each of the cuts the store
//! is opened from every subset of the operations that were in flight, and from random subsets of
//! their sectors (see `ringmq_engine::sim`). The program ends with 1 when anything that was
//! acknowledged is missing.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]

use std::{num::NonZero, path::PathBuf, process::ExitCode, thread};

use clap::Parser;
use ringmq_engine::sim::{CutOptions, cut_power};

/// Records a run of the engine on real files, and cuts its power again and again.
#[derive(Debug, Parser)]
struct Arguments {
    /// Moments at which the power is cut.
    #[arg(long, default_value_t = 50)]
    cuts: usize,
    /// Random subsets of the sectors in flight, per cut.
    #[arg(long, default_value_t = 10_000)]
    subsets: usize,
    /// Second lives, each cut soon after its recovery, per cut.
    #[arg(long, default_value_t = 100)]
    second: usize,
    /// Appends of the recorded run.
    #[arg(long, default_value_t = 40_000)]
    appends: usize,
    /// Chooses records, moments and subsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the store is made; it must not exist. It is removed in the end.
    #[arg(long, default_value = "powercut-store")]
    folder: PathBuf,
    /// Threads; one per core unless given.
    #[arg(long)]
    threads: Option<NonZero<usize>>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.folder.exists() {
        eprintln!("{} exists", arguments.folder.display());
        return ExitCode::FAILURE;
    }
    let cores = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let options = CutOptions {
        folder: arguments.folder.clone(),
        cuts: arguments.cuts,
        sector_subsets: arguments.subsets,
        second_lives: arguments.second,
        appends: arguments.appends,
        seed: arguments.seed,
        threads: arguments.threads.unwrap_or(cores).get(),
    };
    let outcome = cut_power(&options);
    if let Err(cause) = std::fs::remove_dir_all(&arguments.folder) {
        eprintln!("{} stays: {cause}", arguments.folder.display());
    }
    match outcome {
        Ok(report) => {
            print!("{report}");
            println!("nothing acknowledged was lost");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}
