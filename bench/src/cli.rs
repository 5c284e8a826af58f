//! Options that several subcommands share, and what they open.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ringmq_protocol::frame::Encoding;
use serde_json::Value;

use crate::admin::{Admin, resolve};
use crate::clock::Clock;
use crate::measure::Probe;
use crate::procfs::listener_pid;
use crate::reactor::Reactor;

/// How request headers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Header {
    /// What clients do by default.
    Json,
    /// The binary form, `rocketmq.serialize.type=ROCKETMQ`.
    Binary,
}

impl From<Header> for Encoding {
    fn from(header: Header) -> Self {
        match header {
            Header::Json => Self::Json,
            Header::Binary => Self::Binary,
        }
    }
}

/// Which broker, which topic, and where results go.
#[derive(Args, Clone, Debug)]
pub(crate) struct Target {
    /// Broker address; found through --namesrv when absent
    #[arg(long)]
    pub(crate) broker: Option<String>,
    /// Name server address
    #[arg(long, default_value = "127.0.0.1:9876")]
    pub(crate) namesrv: String,
    /// The broker's process id; found by its listening port when absent
    #[arg(long)]
    pub(crate) broker_pid: Option<u32>,
    /// Topic; created or widened first
    #[arg(long, default_value = "bench")]
    pub(crate) topic: String,
    /// Queues of the topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) queues: u32,
    /// How request headers are written
    #[arg(long, value_enum, default_value_t = Header::Json)]
    pub(crate) header: Header,
    /// Write the result as JSON into this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

/// An open target.
pub(crate) struct Session {
    /// The broker's address.
    pub(crate) broker: SocketAddr,
    /// Set-up calls to the broker.
    pub(crate) admin: Admin,
    /// The broker's costs.
    pub(crate) probe: Probe,
    /// The event loop.
    pub(crate) reactor: Reactor,
}

impl Target {
    /// Finds the broker, creates the topic, finds the process.
    ///
    /// # Errors
    ///
    /// Connection errors, a route without a broker, a refused topic.
    pub(crate) fn open(&self) -> io::Result<Session> {
        let broker = self.broker_addr()?;
        let mut admin = Admin::connect(broker)?;
        admin.create_topic(&self.topic, self.queues)?;
        Ok(Session {
            broker,
            admin,
            probe: Probe { pid: self.pid_of(broker)? },
            reactor: Reactor::new(Clock::start())?,
        })
    }

    /// The broker's address, from the option or the route of the template topic.
    ///
    /// # Errors
    ///
    /// As the system reports them, and a name server that knows no broker.
    pub(crate) fn broker_addr(&self) -> io::Result<SocketAddr> {
        match &self.broker {
            Some(addr) => resolve(addr),
            None => Admin::connect(resolve(&self.namesrv)?)?.broker_of("TBW102"),
        }
    }

    /// The broker's process, from the option or by its port.
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be read.
    pub(crate) fn pid_of(&self, broker: SocketAddr) -> io::Result<Option<u32>> {
        match self.broker_pid {
            Some(pid) => Ok(Some(pid)),
            None => listener_pid(broker.port()),
        }
    }

    /// Writes the result for people to standard output and as JSON where it was asked for.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn report(&self, text: &str, result: &Value) -> io::Result<()> {
        say(text)?;
        match &self.json {
            Some(path) => fs::write(path, format!("{result:#}\n")),
            None => Ok(()),
        }
    }
}

/// Prints a line to standard output.
///
/// # Errors
///
/// As the system reports them.
pub(crate) fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// The costs as text.
pub(crate) fn costs_text(costs: &Value) -> String {
    let number = |name: &str| costs.get(name).and_then(Value::as_f64);
    let cpu = number("broker_cpu_us_per_message")
        .map_or_else(String::new, |cpu| format!("   broker CPU {cpu:.2} us/msg"));
    let memory = number("broker_rss_anon_mib_before")
        .zip(number("broker_rss_anon_mib_after"))
        .map_or_else(String::new, |(a, b)| format!("   anonymous memory {a:.0} -> {b:.0} MiB"));
    format!("{cpu}{memory}")
}

/// The latencies as text.
pub(crate) fn latency_text(latency: &Value) -> String {
    let number = |name: &str| latency.get(name).and_then(Value::as_f64).unwrap_or_default();
    format!(
        "p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.1} ms",
        number("p50_ms"),
        number("p99_ms"),
        number("p99_9_ms"),
        number("max_ms")
    )
}
