//! The command line.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, Parser, Subcommand};

use super::{Ack, LogFormat, SHARDS_MAX, THREADS_MAX};

/// A message broker and name server for RocketMQ clients.
///
/// Without a command, runs a name server and a broker in one process. RUST_LOG sets what is logged,
/// for example RUST_LOG=ringmq=debug.
#[derive(Clone, Debug, Parser)]
#[command(name = "ringmq", version, args_conflicts_with_subcommands = false)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags that mean the same everywhere.
    #[command(flatten)]
    pub flags: Flags,
}

/// What to run.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Name server and broker in one process (the default)
    Standalone,
    /// A name server only
    Namesrv,
    /// A broker only, registered with the given name servers
    Broker {
        /// Name servers, separated by semicolons
        #[arg(short = 'n', long = "namesrv", value_name = "HOST:PORT[;HOST:PORT]")]
        namesrv: Option<String>,
    },
}

/// Flags that mean the same everywhere.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// A RocketMQ broker.conf
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Folder of the store, made if missing [default: ./ringmq-data]
    #[arg(long, value_name = "DIR", global = true)]
    pub data: Option<PathBuf>,
    /// Where the broker listens [default: 127.0.0.1:10911]
    #[arg(long, value_name = "ADDR:PORT", global = true)]
    pub listen: Option<SocketAddr>,
    /// Where the name server listens
    #[arg(long, value_name = "ADDR:PORT", global = true, default_value = "127.0.0.1:9876")]
    pub namesrv_listen: SocketAddr,
    /// Where /metrics and /ready are served, in Prometheus' text format [default: nowhere]
    #[arg(long, value_name = "ADDR:PORT", global = true)]
    pub metrics_listen: Option<SocketAddr>,
    /// The address that clients are told to dial [default: where the broker listens]
    #[arg(long, value_name = "HOST[:PORT]", global = true)]
    pub advertise: Option<String>,
    /// Shards of a new store; an existing one keeps its number
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX)))]
    pub shards: Option<u32>,
    /// Threads that serve connections and shards [default: one per shard, at most one per core]
    #[arg(long, value_name = "N", global = true, value_parser = threads)]
    pub threads: Option<usize>,
    /// Block of a new store: auto, 512 or 4096; an existing one keeps its own
    #[arg(long, value_name = "SIZE", global = true, default_value = "auto")]
    pub block_size: BlockSize,
    /// What the store may take of the disk, in bytes or as a part of the file system (75%)
    /// [default: what it was given when it was made, 75%]
    #[arg(long, value_name = "BYTES|PERCENT%", global = true)]
    pub disk_budget: Option<DiskBudget>,
    /// What an acknowledgement means [default: what flushDiskType=SYNC_FLUSH says, else as the store has
    /// it; a new one is durable]
    #[arg(long, value_enum, global = true)]
    pub ack: Option<Ack>,
    /// Where a buffered store keeps what is not on the device yet: a folder in memory, outside of it
    /// nothing survives [default: /dev/shm]
    #[arg(long, value_name = "DIR", global = true)]
    pub buffer_dir: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_enum, global = true, default_value_t)]
    pub log_format: LogFormat,
}

/// What the store may take of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskBudget(pub ringmq_engine::DiskBudget);

/// The forms of a [`DiskBudget`].
pub const DISK_BUDGET_FORMS: &str = "bytes, or 1% to 100%";

impl FromStr for DiskBudget {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use ringmq_engine::DiskBudget::{Bytes, Percent};
        let budget = match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|part| (1..=100).contains(part)).map(Percent)
            }
            None => text.parse().ok().map(Bytes),
        };
        budget.map(Self).ok_or(DISK_BUDGET_FORMS)
    }
}

/// `auto`, 512 or 4096: `None` or the length in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSize(pub Option<u32>);

impl FromStr for BlockSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self(None)),
            "512" => Ok(Self(Some(512))),
            "4096" => Ok(Self(Some(4096))),
            _ => Err("takes auto, 512 or 4096"),
        }
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=THREADS_MAX) => Ok(count),
        _ => Err(format!("takes 1 to {THREADS_MAX}")),
    }
}

impl Cli {
    /// The `broker.conf` to read.
    pub fn config_file(&self) -> Option<&Path> {
        self.flags.config.as_deref()
    }

    /// Whether this process runs a broker.
    pub fn runs_broker(&self) -> bool {
        !matches!(self.command, Some(Command::Namesrv))
    }

    /// Whether this process runs a name server.
    pub fn runs_namesrv(&self) -> bool {
        !matches!(self.command, Some(Command::Broker { .. }))
    }

    /// The name servers given to `broker`.
    pub fn namesrv(&self) -> Option<&str> {
        match &self.command {
            Some(Command::Broker { namesrv }) => namesrv.as_deref(),
            _ => None,
        }
    }
}
