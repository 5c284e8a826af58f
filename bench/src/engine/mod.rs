//! `engine`: what the storage engine does, beside what the device can do and beside other logs.
//!
//! Every figure stands next to the ceiling that was measured in the same run with the same pattern
//! ([`device`]), since one and the same disk differs by a fifth from minute to minute. Cases repeat
//! with their ceilings interleaved; the table gives medians of the ratios, and their range.
//!
//! Stores lie in a folder of their own, are bounded by `--bytes-max`, and are removed after each run.

mod append;
mod cold;
mod device;
mod figures;
mod own;
mod peers;
mod queues;
mod recovery;
mod shards;
mod table;
mod tail;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ringmq_engine::{ShardLimits, StoreOptions};
use serde_json::json;

use own::Failure;
use table::Table;

/// Measure the storage engine itself
#[derive(Args, Clone, Debug)]
pub(crate) struct Engine {
    /// Folder for stores, on the device to be measured; what is made there is removed again
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Case::ALL)]
    cases: Vec<Case>,
    /// Of the appends and the numbers of queues, only those whose line contains this
    #[arg(long)]
    only: Option<String>,
    /// Repetitions of each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Bytes of a store, and of the log that one run writes, at most
    #[arg(long, default_value_t = 512 << 20, value_parser = clap::value_parser!(u64).range(64 << 20..))]
    bytes_max: u64,
    /// Write the result as JSON into this file
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// The device alone, by length and number of operations in flight
    Device,
    /// Durable appends by record length and number in flight
    Append,
    /// Reads of what is in memory
    Tail,
    /// Reads of what is not, alone and beside appends
    Cold,
    /// Appends to 1, 1,000, 100,000 and 1,000,000 queues, and a restart
    Queues,
    /// Opening a store whose process was killed, by its length
    Recovery,
    /// Two shards beside one, with a device that takes no time
    Shards,
    /// Other write-ahead logs and stores
    Peers,
}

impl Case {
    const ALL: [Self; 8] = [
        Self::Device,
        Self::Append,
        Self::Tail,
        Self::Cold,
        Self::Queues,
        Self::Recovery,
        Self::Shards,
        Self::Peers,
    ];
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// Where cases work, and how much.
struct Bench {
    dir: PathBuf,
    repetitions: u32,
    bytes: u64,
    only: Option<String>,
}

impl Bench {
    /// A fresh folder for a store; what was in it is removed.
    fn fresh(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        self.remove(&dir)?;
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
            _ => Ok(()),
        }
    }

    /// Whether a line with this description was asked for.
    fn wants(&self, what: &str) -> bool {
        self.only.as_ref().is_none_or(|only| what.contains(only.as_str()))
    }

    /// The usual options, with segments of a length.
    fn options(segment_len: u64) -> StoreOptions {
        StoreOptions { segment_len, limits: ShardLimits::default(), ..StoreOptions::default() }
    }
}

impl Engine {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// What the system and the stores report.
    pub(crate) fn run(&self) -> io::Result<()> {
        let dir = self.dir.join(format!("ringmq-bench-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let bench = Bench {
            dir: dir.clone(),
            repetitions: self.repetitions,
            bytes: self.bytes_max,
            only: self.only.clone(),
        };
        let mut table = Table::default();
        let result = self.cases.iter().try_for_each(|case| run(*case, &bench, &mut table));
        fs::remove_dir_all(&dir)?;
        result.map_err(|error| io::Error::other(error.to_string()))?;
        let Some(path) = &self.json else { return Ok(()) };
        let result = json!({
            "machine": crate::report::machine(),
            "repetitions": self.repetitions,
            "bytes_max": self.bytes_max,
            "rows": table.json(),
        });
        fs::write(path, format!("{result:#}\n"))
    }
}

fn run(case: Case, bench: &Bench, table: &mut Table) -> Result<(), Failure> {
    table.begin(&case.to_string())?;
    match case {
        Case::Device => device::run(bench, table),
        Case::Append => append::run(bench, table),
        Case::Tail => tail::run(bench, table),
        Case::Cold => cold::run(bench, table),
        Case::Queues => queues::run(bench, table),
        Case::Recovery => recovery::run(bench, table),
        Case::Shards => shards::run(bench, table),
        Case::Peers => peers::run(bench, table),
    }
}
