//! `stall`: consumers that stop reading in the middle of an answer, and what they do to producers.
//!
//! A backlog is written; each consumer asks for many answers at once, reads a few hundred bytes of
//! the first one and then nothing more. The producers are measured alone and beside them in turns.

use std::io;

use clap::Args;
use ringmq_protocol::frame::Encoding;
use serde_json::json;

use crate::admin::join;
use crate::busy::{BusyArgs, Rounds};
use crate::cli::{Session, Target};
use crate::conn::{Conn, IDLE_INBOX_LEN};
use crate::frame::{PullFrame, PullSpec};
use crate::load::Budget;
use crate::produce::window;

/// Receive buffer of a stalled consumer's socket, in bytes, so that little of an answer gets out.
const SOCKET_BUFFER_LEN: usize = 4096;

/// Measures what stalled consumers do to producers.
#[derive(Args, Clone, Debug)]
pub(crate) struct Stall {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    busy: BusyArgs,
    /// Consumers that stop reading
    #[arg(long, default_value_t = 20)]
    stalled: u32,
    /// Pulls that each of them has sent before
    #[arg(long, default_value_t = 64)]
    pulls: u32,
    /// Messages written first, for the answers
    #[arg(long, default_value_t = 50_000)]
    backlog: u64,
}

impl Stall {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Connection errors and refusals at set-up.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut session = self.target.open()?;
        let mut load = self.busy.open(&self.target, &session)?;
        let backlog = Budget { messages: self.backlog, bytes: u64::MAX };
        window(&mut load, backlog, crate::produce::DRAIN_TIME, &mut session.reactor)?;
        self.busy.warm_up(&mut load, &mut session)?;
        let mut rounds = Rounds::default();
        rounds.push_alone(self.busy.window(&mut load, None, &mut session)?);
        let memory_before = session.probe.rss_anon_kib();
        let mut memory_beside = None;
        for _ in 0..self.busy.rounds {
            let stalled = self.stall(&session)?;
            rounds.push_beside(self.busy.window(&mut load, None, &mut session)?);
            memory_beside = memory_beside.max(session.probe.rss_anon_kib());
            drop(stalled);
            rounds.push_alone(self.busy.window(&mut load, None, &mut session)?);
        }
        let result = json!({
            "command": "stall",
            "stalled": self.stalled,
            "pulls": self.pulls,
            "busy": rounds.json(),
            "busy_part": rounds.part(),
            "rss_anon_kib_before": memory_before,
            "rss_anon_kib_beside": memory_beside,
        });
        let text = format!(
            "{}   anonymous memory {} -> {} KiB",
            rounds.text(),
            memory_before.unwrap_or_default(),
            memory_beside.unwrap_or_default(),
        );
        self.target.report(&text, &result)
    }

    /// Opens the consumers and leaves them in the middle of an answer.
    fn stall(&self, session: &Session) -> io::Result<Vec<Conn>> {
        let (group, topic) = ("bench-stall", self.target.topic.as_str());
        let encoding = Encoding::from(self.target.header);
        let spec = PullSpec { encoding, group, topic, messages_max: 32, suspend_ms: 15_000 };
        let frames: Vec<PullFrame> =
            (0..self.target.queues).map(|queue| PullFrame::new(&spec, queue)).collect();
        let mut stalled = Vec::new();
        for consumer in 0..self.stalled {
            let mut conn = Conn::connect(session.broker, IDLE_INBOX_LEN)?;
            rustix::net::sockopt::set_socket_recv_buffer_size(conn.fd(), SOCKET_BUFFER_LEN)?;
            join(&mut conn, &format!("127.0.0.1@stall-{consumer}"), group, topic, "*")?;
            for (pull, frame) in (0..self.pulls).zip(frames.iter().cycle()) {
                frame.write(0, pull, &mut conn.outbox);
            }
            conn.flush(&session.reactor)?;
            conn.receive()?;
            stalled.push(conn);
        }
        Ok(stalled)
    }
}
