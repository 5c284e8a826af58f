//! `e2e`: how long a single message takes from its producer to an idle consumer.
//!
//! The consumer's pulls are parked at the end of every queue; each message wakes one of them.
//! Latency counts from the moment at which a message was meant to leave, in one process, on one
//! clock.

use std::io;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::cli::{Session, Target, costs_text, latency_text};
use crate::conn::BUSY_INBOX_LEN;
use crate::consume::{ConsumerOptions, Consumers, CursorSpec, Latency, Membership};
use crate::frame::{PullFrame, PullSpec, STAMP_LEN};
use crate::load::{Budget, Load};
use crate::measure::{Tally, costs_json};
use crate::produce::LoadArgs;
use crate::reactor::{Stop, run};

/// How long the last messages may take.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// The span that push consumers let the broker hold a pull, in milliseconds.
const SUSPEND_MS: u32 = 15_000;

/// Measures the way from send to receive.
#[derive(Args, Clone, Debug)]
pub(crate) struct EndToEnd {
    #[command(flatten)]
    target: Target,
    /// Messages a second
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Body bytes of one message
    #[arg(long, default_value_t = 1024)]
    body: usize,
    /// The consumer subscribes to this tag and the messages carry it
    #[arg(long)]
    tag: Option<String>,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 3.0)]
    warmup: f64,
    /// Consumer group
    #[arg(long, default_value = "bench-e2e")]
    group: String,
}

impl EndToEnd {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Connection errors and refusals at set-up.
    pub(crate) fn run(&self) -> io::Result<()> {
        if self.body < STAMP_LEN {
            return Err(io::Error::other(format!("--body must be at least {STAMP_LEN}")));
        }
        let mut session = self.target.open()?;
        let mut load = self.load(&session)?;
        let mut consumers = self.consumers(&mut session)?;
        consumers.begin(&session.reactor)?;
        load.begin(Budget::UNLIMITED, &session.reactor)?;
        let warm = session.reactor.now().plus(Duration::from_secs_f64(self.warmup));
        run(&mut session.reactor, &mut [&mut load, &mut consumers], warm, Stop::AnyDone)?;
        consumers.tally = Tally::default();
        let before = session.probe.sample(session.reactor.now());
        let until = session.reactor.now().plus(Duration::from_secs_f64(self.seconds));
        run(&mut session.reactor, &mut [&mut load, &mut consumers], until, Stop::AnyDone)?;
        let after = session.probe.sample(session.reactor.now());
        let tally = consumers.tally.clone();
        self.settle(&mut load, &mut consumers, &mut session)?;
        let costs = costs_json(&before, &after, tally.messages);
        let latency = tally.latency_json();
        let missing = load.sequence() - consumers.received();
        let result = json!({
            "command": "e2e",
            "rate": self.rate,
            "body": self.body,
            "tag": self.tag,
            "messages": tally.messages,
            "latency": latency,
            "missing": missing,
            "repeated": consumers.repeated(),
            "gaps": consumers.gaps,
            "errors": consumers.tally.errors_json(),
            "send_errors": load.tally.errors_json(),
            "costs": costs,
        });
        let text = format!(
            "end to end {}{}   missing {missing}  repeated {}  gaps {}   errors {} {}",
            latency_text(&latency),
            costs_text(&costs),
            consumers.repeated(),
            consumers.gaps,
            load.tally.errors_json(),
            consumers.tally.errors_json(),
        );
        self.target.report(&text, &result)
    }

    /// Waits for the messages that are still under way.
    fn settle(
        &self,
        load: &mut Load,
        consumers: &mut Consumers,
        session: &mut Session,
    ) -> io::Result<()> {
        load.stop();
        let until = session.reactor.now().plus(DRAIN_TIME);
        let turn = Duration::from_millis(20);
        while session.reactor.now() < until && consumers.received() < load.sequence() {
            let soon = session.reactor.now().plus(turn);
            run(&mut session.reactor, &mut [load, consumers], soon, Stop::AtTime)?;
        }
        Ok(())
    }

    fn load(&self, session: &Session) -> io::Result<Load> {
        LoadArgs {
            connections: 1,
            in_flight: 1,
            body: self.body,
            batch: 1,
            rate: Some(self.rate),
            tag: self.tag.clone(),
        }
        .open(&self.target, session, 0)
    }

    fn consumers(&self, session: &mut Session) -> io::Result<Consumers> {
        let members = [Membership {
            client_id: "127.0.0.1@bench-e2e".to_owned(),
            group: self.group.clone(),
            topic: self.target.topic.clone(),
            tags: self.tag.clone().unwrap_or_else(|| "*".to_owned()),
        }];
        let spec = PullSpec {
            encoding: self.target.header.into(),
            group: &self.group,
            topic: &self.target.topic,
            messages_max: 32,
            suspend_ms: SUSPEND_MS,
        };
        let mut cursors = Vec::new();
        for queue in 0..self.target.queues {
            cursors.push(CursorSpec {
                lane: 0,
                frame: PullFrame::new(&spec, queue),
                from: session.admin.max_offset(&self.target.topic, queue)?,
                until: None,
            });
        }
        let options = ConsumerOptions {
            actor: 1,
            inbox_len: BUSY_INBOX_LEN,
            latency: Latency::OfMessages,
            dense: self.tag.is_none(),
        };
        Consumers::new(session.broker, &members, cursors, options, &session.reactor)
    }
}
