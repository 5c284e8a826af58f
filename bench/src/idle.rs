//! `idle`: thousands of connections that wait, and what they cost.
//!
//! Each connection sends a heartbeat and parks one pull at the end of a queue. A busy load on
//! another topic is measured alone and beside them in turns; the broker's anonymous memory is read
//! before they come and while they wait. Of the turns the worst is told.

use std::io;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::admin::Admin;
use crate::busy::{BusyArgs, Rounds};
use crate::cli::{Session, Target};
use crate::conn::IDLE_INBOX_LEN;
use crate::consume::{ConsumerOptions, Consumers, CursorSpec, Latency, Membership};
use crate::frame::{PullFrame, PullSpec};
use crate::measure::Tally;
use crate::reactor::{Actor, Stop, run};

/// How long the broker gets to settle after the connections came or went.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Measures what waiting consumers cost.
#[derive(Args, Clone, Debug)]
pub(crate) struct Idle {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    busy: BusyArgs,
    /// Connections that wait
    #[arg(long, default_value_t = 5000)]
    idle: u32,
    /// Consumer groups that they are members of; every member that comes is told to its group
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,
    /// How long the broker may hold a pull, in milliseconds
    #[arg(long, default_value_t = 15_000)]
    suspend_ms: u32,
}

/// What was seen of the waiting connections.
#[derive(Clone, Copy, Default)]
struct Waited {
    growth_kib: u64,
    open: usize,
    parked: usize,
}

impl Waited {
    fn or_worse(self, other: Self) -> Self {
        Self {
            growth_kib: self.growth_kib.max(other.growth_kib),
            open: self.open.min(other.open),
            parked: self.parked.min(other.parked),
        }
    }
}

impl Idle {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Connection errors and refusals at set-up.
    pub(crate) fn run(&self) -> io::Result<()> {
        raise_file_limit()?;
        let mut session = self.target.open()?;
        let mut load = self.busy.open(&self.target, &session)?;
        self.busy.warm_up(&mut load, &mut session)?;
        let mut rounds = Rounds::default();
        rounds.push_alone(self.busy.window(&mut load, None, &mut session)?);
        let mut worst: Option<Waited> = None;
        let mut refused = Tally::default();
        for _ in 0..self.busy.rounds {
            // The busy load makes the broker's memory grow as well, so each round counts its own.
            let before = session.probe.rss_anon_kib().unwrap_or_default();
            let mut waiting = self.connect(&session)?;
            waiting.begin(&session.reactor)?;
            settle(&mut session, &mut [&mut load, &mut waiting])?;
            let waited = Waited {
                growth_kib: session.probe.rss_anon_kib().unwrap_or_default().saturating_sub(before),
                open: waiting.open(),
                parked: waiting.parked(),
            };
            rounds.push_beside(self.busy.window(&mut load, Some(&mut waiting), &mut session)?);
            refused.fail_as(&waiting.tally);
            worst = Some(worst.map_or(waited, |worst| worst.or_worse(waited)));
            drop(waiting);
            settle(&mut session, &mut [&mut load])?;
            rounds.push_alone(self.busy.window(&mut load, None, &mut session)?);
        }
        let refused = refused.errors_json();
        let Waited { growth_kib, open, parked } = worst.unwrap_or_default();
        let growth_mib = mib(growth_kib);
        let result = json!({
            "command": "idle",
            "idle_connections": self.idle,
            "groups": self.groups,
            "open": open,
            "parked": parked,
            "memory_growth_mib": growth_mib,
            "bytes_per_connection": growth_mib * 1_048_576.0 / f64::from(self.idle.max(1)),
            "busy": rounds.json(),
            "busy_part": rounds.part(),
            "errors": refused,
        });
        let text = format!(
            "{open} open, {parked} parked   memory +{growth_mib:.1} MiB   errors {refused}\n{}",
            rounds.text(),
        );
        self.target.report(&text, &result)
    }

    fn connect(&self, session: &Session) -> io::Result<Consumers> {
        let topic = format!("{}-idle", self.target.topic);
        Admin::connect(session.broker)?.create_topic(&topic, self.target.queues)?;
        let mut members = Vec::new();
        let mut cursors = Vec::new();
        for lane in 0..self.idle {
            let group = format!("bench-idle-{}", lane % self.groups);
            let spec = PullSpec {
                encoding: self.target.header.into(),
                group: &group,
                topic: &topic,
                messages_max: 32,
                suspend_ms: self.suspend_ms,
            };
            cursors.push(CursorSpec {
                lane: lane as usize,
                frame: PullFrame::new(&spec, lane % self.target.queues),
                from: 0,
                until: None,
            });
            members.push(Membership {
                client_id: format!("127.0.0.1@idle-{lane}"),
                group,
                topic: topic.clone(),
                tags: "*".to_owned(),
            });
        }
        let options = ConsumerOptions {
            actor: 1,
            inbox_len: IDLE_INBOX_LEN,
            latency: Latency::OfPulls,
            dense: true,
        };
        let mut waiting =
            Consumers::new(session.broker, &members, cursors, options, &session.reactor)?;
        waiting.tally = Tally::default();
        Ok(waiting)
    }
}

/// Lets the broker settle while the actors are served.
fn settle(session: &mut Session, actors: &mut [&mut dyn Actor]) -> io::Result<()> {
    let settled = session.reactor.now().plus(SETTLE_TIME);
    run(&mut session.reactor, actors, settled, Stop::AtTime)
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 KiB")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Allows as many open files as the system lets this process have.
fn raise_file_limit() -> io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
