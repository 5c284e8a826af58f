//! `produce`: load on the send path, closed or open loop.

use std::io;
use std::time::Duration;

use clap::Args;
use ringmq_protocol::frame::FRAME_LEN_MAX;
use serde_json::{Value, json};

use crate::cli::{Session, Target, costs_text, latency_text};
use crate::frame::{SendFrames, SendSpec};
use crate::load::{Budget, Load, LoadSpec, Pace};
use crate::measure::{Tally, costs_json, per_second};
use crate::reactor::{Reactor, Stop, run};

/// How long answers may take after the last send before they count as missing.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(10);
/// The part of the byte budget that warm-up may use: one in this many.
const WARMUP_SHARE: u64 = 4;

/// What a frame needs beside its messages, and a message of a batch beside its body, at most.
const FRAME_RESERVE: usize = 4096;
const MESSAGE_RESERVE: usize = 512;
/// Longest tag, so that properties stay within the reserve.
const TAG_LEN_MAX: usize = 127;

/// Sends messages and measures.
#[derive(Args, Clone, Debug)]
pub(crate) struct Produce {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    load: LoadArgs,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Stop after this many messages (warm-up not counted)
    #[arg(long)]
    messages: Option<u64>,
    /// Stop after this many bytes of bodies; a quarter of them at most go into the warm-up
    #[arg(long, default_value_t = 8_000_000_000)]
    bytes_max: u64,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 2.0)]
    warmup: f64,
    /// Report bytes of log for each message (from the log positions in the answers); meant for
    /// one queue, one connection, one in flight
    #[arg(long)]
    log_span: bool,
}

/// The load itself.
#[derive(Args, Clone, Debug)]
pub(crate) struct LoadArgs {
    /// Connections
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Requests in flight on each connection (closed loop)
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) in_flight: u32,
    /// Body bytes of one message
    #[arg(long, default_value_t = 1024)]
    pub(crate) body: usize,
    /// Messages of one request; more than one sends batches
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: u32,
    /// Open loop: messages a second over all connections
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Tag of every message
    #[arg(long)]
    pub(crate) tag: Option<String>,
}

impl LoadArgs {
    /// Opens the load's connections as actor number `actor`.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn open(&self, target: &Target, session: &Session, actor: u32) -> io::Result<Load> {
        self.check()?;
        let frames = SendFrames::new(
            &SendSpec {
                encoding: target.header.into(),
                group: "bench-producer",
                topic: &target.topic,
                body_len: self.body,
                batch: self.batch,
                tag: self.tag.as_deref(),
            },
            target.queues,
        );
        let pace = match self.rate {
            Some(rate) => Pace::Open(rate.max(0.001) / f64::from(self.batch)),
            None => Pace::Closed(self.in_flight),
        };
        let spec = LoadSpec {
            broker: session.broker,
            connections: self.connections,
            queues: target.queues,
            pace,
            frames,
            batch: self.batch,
            body_len: self.body,
            actor,
        };
        Load::new(spec, &session.reactor)
    }

    /// Refuses what does not fit into a frame or a property.
    fn check(&self) -> io::Result<()> {
        let room = FRAME_LEN_MAX - FRAME_RESERVE;
        if (self.body + MESSAGE_RESERVE) * self.batch as usize > room {
            return Err(io::Error::other("--body times --batch does not fit into a frame"));
        }
        let unfit = |tag: &str| {
            tag.is_empty() || tag.len() > TAG_LEN_MAX || tag.chars().any(char::is_control)
        };
        if self.tag.as_deref().is_some_and(unfit) {
            return Err(io::Error::other("--tag has control characters, is empty or too long"));
        }
        Ok(())
    }

    /// The options as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "connections": self.connections,
            "in_flight": self.in_flight,
            "body": self.body,
            "batch": self.batch,
            "rate": self.rate,
            "tag": self.tag,
        })
    }
}

/// Runs one load alone: warm-up, then a window; returns its tally and its length.
///
/// # Errors
///
/// Ends the run.
pub(crate) fn window(
    load: &mut Load,
    budget: Budget,
    span: Duration,
    reactor: &mut Reactor,
) -> io::Result<()> {
    load.begin(budget, reactor)?;
    let until = reactor.now().plus(span);
    run(reactor, &mut [load], until, Stop::AnyDone)
}

/// Stops a load and waits for its last answers.
///
/// # Errors
///
/// Ends the run.
pub(crate) fn drain(load: &mut Load, reactor: &mut Reactor) -> io::Result<()> {
    load.stop();
    let until = reactor.now().plus(DRAIN_TIME);
    run(reactor, &mut [load], until, Stop::AnyDone)
}

impl Produce {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Connection errors and refusals at set-up.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut session = self.target.open()?;
        let mut load = self.load.open(&self.target, &session, 0)?;
        if self.log_span {
            load.track_log();
        }
        if self.warmup > 0.0 {
            let budget = Budget { messages: u64::MAX, bytes: self.bytes_max / WARMUP_SHARE };
            let span = Duration::from_secs_f64(self.warmup);
            window(&mut load, budget, span, &mut session.reactor)?;
        }
        let budget = Budget { messages: self.messages.unwrap_or(u64::MAX), bytes: self.bytes_max };
        let from = session.reactor.now();
        let before = session.probe.sample(from);
        let span = Duration::from_secs_f64(self.seconds);
        window(&mut load, budget, span, &mut session.reactor)?;
        let until = session.reactor.now();
        let after = session.probe.sample(until);
        // Answers that come after the window are not part of it, but must come.
        let mut tally = load.tally.clone();
        load.tally = Tally::default();
        drain(&mut load, &mut session.reactor)?;
        load.give_up();
        for (&code, &count) in &load.tally.errors {
            tally.fail_many(code, count);
        }
        let rate = per_second(tally.messages, from, until);
        let costs = costs_json(&before, &after, tally.messages);
        self.report(&load, &tally, rate, &costs)
    }

    fn report(&self, load: &Load, tally: &Tally, rate: f64, costs: &Value) -> io::Result<()> {
        let latency = tally.latency_json();
        let errors = tally.errors_json();
        let result = json!({
            "command": "produce",
            "load": self.load.json(),
            "messages": tally.messages,
            "messages_per_second": rate,
            "latency": latency,
            "errors": errors,
            "costs": costs,
            "log_bytes_per_message": load.log_bytes_per_message(),
        });
        let log = load
            .log_bytes_per_message()
            .map_or_else(String::new, |bytes| format!("   log {bytes:.0} B/msg"));
        let flushes = costs.get("device_flushes").and_then(Value::as_u64).unwrap_or_default();
        let text = format!(
            "{rate:.0} msg/s   {}{}{log}   flushes {flushes}   errors {errors}",
            latency_text(&latency),
            costs_text(costs),
        );
        self.target.report(&text, &result)
    }
}
