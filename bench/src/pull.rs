//! `pull`: drains a backlog, every queue pulled one answer at a time.

use std::io;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::cli::{Session, Target, costs_text, latency_text};
use crate::clock::Nanos;
use crate::conn::BUSY_INBOX_LEN;
use crate::consume::{ConsumerOptions, Consumers, CursorSpec, Latency, Membership};
use crate::frame::{PullFrame, PullSpec};
use crate::measure::{Tally, costs_json, per_second};
use crate::reactor::{Stop, run};

/// Longest time for one pass over the backlog.
const PASS_TIME_MAX: Duration = Duration::from_secs(120);

/// Reads everything that a topic holds.
#[derive(Args, Clone, Debug)]
pub(crate) struct Pull {
    #[command(flatten)]
    target: Target,
    /// Connections; the queues are divided among them
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Messages asked for in one pull
    #[arg(long, default_value_t = 32)]
    batch: u32,
    /// Read the backlog again and again until this many seconds have passed
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
    /// Read the backlog again and again for this many seconds before the measurement
    #[arg(long, default_value_t = 0.0)]
    warmup: f64,
    /// Consumer group
    #[arg(long, default_value = "bench-pull")]
    group: String,
}

impl Pull {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Connection errors, refusals at set-up, an empty backlog, a pass that takes too long.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut session = self.target.open()?;
        let (mut consumers, backlog) = self.open(&mut session)?;
        let first_pass = match self.warmup {
            0.0 => None,
            seconds => Some(warm_up(&mut consumers, &mut session, seconds)?),
        };
        let from = session.reactor.now();
        let before = session.probe.sample(from);
        let enough = from.plus(Duration::from_secs_f64(self.seconds));
        let passes = passes(&mut consumers, &mut session, enough)?;
        let until = session.reactor.now();
        let after = session.probe.sample(until);
        let tally = &consumers.tally;
        let rate = per_second(tally.messages, from, until);
        let bytes_rate = per_second(tally.bytes, from, until);
        let costs = costs_json(&before, &after, tally.messages);
        let latency = tally.latency_json();
        let missing = (backlog * passes).saturating_sub(tally.messages);
        let result = json!({
            "command": "pull",
            "connections": self.connections,
            "batch": self.batch,
            "backlog": backlog,
            "passes": passes,
            "messages": tally.messages,
            "messages_per_second": rate,
            "first_pass_messages_per_second": first_pass,
            "bytes_per_second": bytes_rate,
            "messages_per_pull": rate / per_second(tally.requests.max(1), from, until),
            "missing": missing,
            "gaps": consumers.gaps,
            "latency": latency,
            "errors": tally.errors_json(),
            "costs": costs,
        });
        let first = first_pass.map(|rate| format!("   first pass {rate:.0} msg/s"));
        let text = format!(
            "{rate:.0} msg/s  {:.2} GB/s{}   pulls {}{}   missing {missing}  gaps {}   errors {}",
            bytes_rate / 1e9,
            first.unwrap_or_default(),
            latency_text(&latency),
            costs_text(&costs),
            consumers.gaps,
            tally.errors_json(),
        );
        self.target.report(&text, &result)
    }

    fn open(&self, session: &mut Session) -> io::Result<(Consumers, u64)> {
        let connections = self.connections.min(self.target.queues);
        let members: Vec<Membership> = (0..connections)
            .map(|lane| Membership {
                client_id: format!("127.0.0.1@bench-{lane}"),
                group: self.group.clone(),
                topic: self.target.topic.clone(),
                tags: "*".to_owned(),
            })
            .collect();
        let spec = PullSpec {
            encoding: self.target.header.into(),
            group: &self.group,
            topic: &self.target.topic,
            messages_max: self.batch,
            suspend_ms: 1000,
        };
        let mut cursors = Vec::new();
        let mut backlog = 0;
        for queue in 0..self.target.queues {
            let from = session.admin.min_offset(&self.target.topic, queue)?;
            let until = session.admin.max_offset(&self.target.topic, queue)?;
            backlog += until.saturating_sub(from);
            cursors.push(CursorSpec {
                lane: (queue % connections) as usize,
                frame: PullFrame::new(&spec, queue),
                from,
                until: Some(until),
            });
        }
        if backlog == 0 {
            return Err(io::Error::other(format!("topic {} holds nothing", self.target.topic)));
        }
        let options = ConsumerOptions {
            actor: 0,
            inbox_len: BUSY_INBOX_LEN,
            latency: Latency::OfPulls,
            dense: true,
        };
        let consumers =
            Consumers::new(session.broker, &members, cursors, options, &session.reactor)?;
        Ok((consumers, backlog))
    }
}

/// Gives the messages per second of the first pass, which finds no cache filled by an earlier one.
fn warm_up(consumers: &mut Consumers, session: &mut Session, seconds: f64) -> io::Result<f64> {
    let from = session.reactor.now();
    pass(consumers, session)?;
    let rate = per_second(consumers.tally.messages, from, session.reactor.now());
    passes(consumers, session, from.plus(Duration::from_secs_f64(seconds)))?;
    consumers.tally = Tally::default();
    Ok(rate)
}

/// One pass, and further ones until it is late enough. Gives their number.
fn passes(consumers: &mut Consumers, session: &mut Session, enough: Nanos) -> io::Result<u64> {
    let mut number = 0;
    loop {
        pass(consumers, session)?;
        number += 1;
        if session.reactor.now() >= enough {
            return Ok(number);
        }
    }
}

fn pass(consumers: &mut Consumers, session: &mut Session) -> io::Result<()> {
    consumers.rewind();
    consumers.begin(&session.reactor)?;
    let until = session.reactor.now().plus(PASS_TIME_MAX);
    run(&mut session.reactor, &mut [consumers], until, Stop::AnyDone)?;
    if session.reactor.now() >= until {
        return Err(io::Error::other("the backlog was not drained in time"));
    }
    Ok(())
}
