//! `fuzz`: mutated frames over many connections, with a healthy client beside them.
//!
//! More than half of the requests are valid frames that say something odd, the others are damaged
//! bytes. Every connection writes a few of them and a good one behind them. When that one is
//! answered the framing survived, and it goes on; when it is not answered in time the framing is
//! lost, and the connection is reset and opened again. So the broker sets the pace, and is never
//! just flooded. Whatever it answers has to be whole frames. The healthy client sends one message
//! after the other at a fixed rate before and during; none of its sends may fail.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ringmq_protocol::codes::request as codes;
use ringmq_protocol::frame::Encoding;
use serde_json::{Value, json};

use crate::cli::{Session, Target, latency_text, say};
use crate::clock::Nanos;
use crate::conn::{Conn, IDLE_INBOX_LEN, Received};
use crate::frame::{consumer_heartbeat, request};
use crate::load::{Budget, Load};
use crate::measure::Tally;
use crate::mutate::{Parts, Random, mutate};
use crate::produce::{LoadArgs, drain};
use crate::reactor::{Actor, Reactor, Stop, Token, run};

/// Damaged frames sent over one connection at most.
const FRAMES_PER_CONNECTION_MAX: usize = 100;
/// Damaged frames written at a time, at most.
const FRAMES_PER_WRITE_MAX: usize = 8;
/// Writes whose requests are valid frames and only say something odd, of 100.
const ODD_PERCENT: usize = 60;
/// Correlation number of the valid request behind the damaged ones.
const PROBE_OPAQUE: u32 = 2_000_000_000;
/// Steps in which progress is reported.
const REPORTS: u64 = 10;

/// Sends damaged frames.
#[derive(Args, Clone, Debug)]
pub(crate) struct Fuzz {
    #[command(flatten)]
    target: Target,
    /// Connections for damaged frames
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=5000))]
    connections: u32,
    /// Damaged frames to send
    #[arg(long, default_value_t = 1_000_000)]
    frames: u64,
    /// Seed of the damage
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of recorded frames (`*.jsonl` with a field `frame` in hexadecimal) to damage as well
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Messages a second of the healthy client
    #[arg(long, default_value_t = 500.0)]
    healthy_rate: f64,
    /// How long the answer to a valid request may take before its connection counts as lost, in
    /// milliseconds
    #[arg(long, default_value_t = 50)]
    patience_ms: u64,
    /// Longest run in seconds
    #[arg(long, default_value_t = 600.0)]
    seconds_max: f64,
}

struct Lane {
    conn: Conn,
    /// Damaged frames that this connection still sends.
    left: usize,
    /// When the valid request was written whose answer is awaited.
    probed_at: Option<Nanos>,
}

/// The connections that send damage.
struct Fuzzers {
    broker: SocketAddr,
    corpus: Vec<Vec<u8>>,
    parts: Vec<Parts>,
    probe: Vec<u8>,
    patience: Duration,
    random: Random,
    lanes: Vec<Lane>,
    left: u64,
    sent: u64,
    answers: u64,
    connections: u64,
    closed_by_broker: u64,
    malformed_answers: u64,
    framing_lost: u64,
    framing_kept: u64,
}

impl Fuzz {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Connection errors, also when the broker stops accepting.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut session = self.target.open()?;
        // A topic that no damaged request names: one of them may well say that the other topic
        // shall have no queues.
        let own = Target { topic: format!("{}-healthy", self.target.topic), ..self.target.clone() };
        session.admin.create_topic(&own.topic, own.queues)?;
        let mut healthy = LoadArgs {
            connections: 1,
            in_flight: 1,
            body: 200,
            batch: 1,
            rate: Some(self.healthy_rate),
            tag: None,
        }
        .open(&own, &session, 0)?;
        let alone = self.healthy_alone(&mut healthy, &mut session)?;

        let mut fuzzers = self.fuzzers(&session)?;
        healthy.begin(Budget::UNLIMITED, &session.reactor)?;
        let end = session.reactor.now().plus(Duration::from_secs_f64(self.seconds_max));
        let mut memory = Vec::new();
        while fuzzers.sent < self.frames && session.reactor.now() < end && healthy.alive() {
            fuzzers.left = (self.frames / REPORTS).max(1).min(self.frames - fuzzers.sent);
            run(&mut session.reactor, &mut [&mut healthy, &mut fuzzers], end, Stop::AnyDone)?;
            let kib = session.probe.rss_anon_kib();
            say(&format!(
                "{} frames, {} connections, {} answers, anonymous memory {} KiB",
                fuzzers.sent,
                fuzzers.connections,
                fuzzers.answers,
                kib.unwrap_or_default()
            ))?;
            memory.push(kib);
        }
        healthy.stop();
        fuzzers.lanes.clear();
        drain(&mut healthy, &mut session.reactor)?;
        healthy.give_up();
        self.report(&fuzzers, &alone, &healthy.tally, &memory)
    }

    fn healthy_alone(&self, healthy: &mut Load, session: &mut Session) -> io::Result<Tally> {
        let mut tally = Tally::default();
        // The first of the two rounds warms up.
        for _ in 0..2 {
            healthy.begin(Budget::UNLIMITED, &session.reactor)?;
            let until = session.reactor.now().plus(Duration::from_secs(2));
            run(&mut session.reactor, &mut [healthy], until, Stop::AtTime)?;
            tally = healthy.tally.clone();
        }
        Ok(tally)
    }

    fn fuzzers(&self, session: &Session) -> io::Result<Fuzzers> {
        let mut corpus = built_corpus(&self.target.topic);
        if let Some(folder) = &self.corpus {
            corpus.extend(recorded_corpus(folder)?);
        }
        let probed = [("queueId", "0"), ("topic", self.target.topic.as_str())];
        let mut fuzzers = Fuzzers {
            broker: session.broker,
            parts: corpus.iter().filter_map(|frame| Parts::parse(frame)).collect(),
            corpus,
            probe: request(Encoding::Json, codes::GET_MAX_OFFSET, PROBE_OPAQUE, &probed, b""),
            patience: Duration::from_millis(self.patience_ms),
            random: Random::new(self.seed),
            lanes: Vec::new(),
            left: 0,
            sent: 0,
            answers: 0,
            connections: 0,
            closed_by_broker: 0,
            malformed_answers: 0,
            framing_lost: 0,
            framing_kept: 0,
        };
        for lane in 0..self.connections {
            let opened = fuzzers.open(lane, &session.reactor)?;
            fuzzers.lanes.push(opened);
        }
        Ok(fuzzers)
    }

    fn report(
        &self,
        fuzzers: &Fuzzers,
        alone: &Tally,
        beside: &Tally,
        memory: &[Option<u64>],
    ) -> io::Result<()> {
        let window = |tally: &Tally| {
            json!({
                "messages": tally.messages,
                "latency": tally.latency_json(),
                "errors": tally.errors_json(),
            })
        };
        let result = json!({
            "command": "fuzz",
            "seed": self.seed,
            "frames": fuzzers.sent,
            "connections": fuzzers.connections,
            "answers": fuzzers.answers,
            "closed_by_broker": fuzzers.closed_by_broker,
            "malformed_answers": fuzzers.malformed_answers,
            "framing_lost": fuzzers.framing_lost,
            "framing_kept": fuzzers.framing_kept,
            "healthy_alone": window(alone),
            "healthy_beside": window(beside),
            "rss_anon_kib": memory,
        });
        let text = format!(
            "{} damaged frames, {} answers ({} malformed), {} connections ({} closed by the broker), \
             framing kept {} and lost {} times\n\
             healthy client alone  {}   errors {}\nhealthy client beside {}   errors {}",
            fuzzers.sent,
            fuzzers.answers,
            fuzzers.malformed_answers,
            fuzzers.connections,
            fuzzers.closed_by_broker,
            fuzzers.framing_kept,
            fuzzers.framing_lost,
            latency_text(&alone.latency_json()),
            alone.errors_json(),
            latency_text(&beside.latency_json()),
            beside.errors_json(),
        );
        self.target.report(&text, &result)?;
        let unharmed = beside.errors.is_empty() && fuzzers.malformed_answers == 0;
        if unharmed && fuzzers.sent >= self.frames {
            return Ok(());
        }
        Err(io::Error::other("the broker was disturbed, or the frames were not all sent"))
    }
}

impl Fuzzers {
    fn open(&mut self, lane: u32, reactor: &Reactor) -> io::Result<Lane> {
        let mut conn = Conn::connect(self.broker, IDLE_INBOX_LEN)?;
        // Closing resets the connection, which leaves no port behind that waits to be reused.
        rustix::net::sockopt::set_socket_linger(conn.fd(), Some(Duration::ZERO))?;
        conn.go(reactor, Token { actor: 1, lane })?;
        self.connections += 1;
        let left = 1 + self.random.below(FRAMES_PER_CONNECTION_MAX);
        Ok(Lane { conn, left, probed_at: None })
    }

    fn reopen(&mut self, lane: usize, reactor: &Reactor) -> io::Result<()> {
        let number = u32::try_from(lane).expect("connections are counted in 32 bits");
        let opened = self.open(number, reactor)?;
        if let Some(state) = self.lanes.get_mut(lane) {
            *state = opened;
        }
        Ok(())
    }

    /// Writes the next few damaged frames of a connection and a valid one.
    fn damage(&mut self, lane: usize, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane) else { return Ok(()) };
        let odd = self.random.chance(ODD_PERCENT);
        for _ in 0..=self.random.below(FRAMES_PER_WRITE_MAX - 1) {
            if state.left == 0 || self.left == 0 {
                break;
            }
            state.left -= 1;
            self.left -= 1;
            self.sent += 1;
            let frame = if odd {
                let mut parts = self.random.pick(&self.parts).clone();
                let lender = self.random.pick(&self.parts);
                parts.mutate(&mut self.random, lender);
                parts.build()
            } else {
                let mut frame = self.random.pick(&self.corpus).clone();
                let lender = self.random.pick(&self.corpus);
                mutate(&mut self.random, &mut frame, lender);
                frame
            };
            state.conn.outbox.extend_from_slice(&frame);
        }
        state.conn.outbox.extend_from_slice(&self.probe);
        state.probed_at = Some(reactor.now());
        self.flush(lane, reactor)
    }

    /// Whatever a connection's turn is: the next damage, or a new connection.
    fn go_on(&mut self, lane: usize, reactor: &Reactor) -> io::Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        match self.lanes.get(lane) {
            Some(state) if state.left == 0 => self.reopen(lane, reactor),
            _ => self.damage(lane, reactor),
        }
    }

    fn flush(&mut self, lane: usize, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane) else { return Ok(()) };
        if state.conn.flush(reactor)? == Received::Closed {
            self.closed_by_broker += 1;
            return self.reopen(lane, reactor);
        }
        Ok(())
    }

    /// Takes the answers that have arrived.
    fn answers(&mut self, lane: usize) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        loop {
            let answer = match state.conn.inbox.answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(_) => {
                    self.malformed_answers += 1;
                    return;
                }
            };
            self.answers += 1;
            if answer.response && answer.opaque.cast_unsigned() == PROBE_OPAQUE {
                self.framing_kept += u64::from(state.probed_at.take().is_some());
            }
        }
    }
}

impl Actor for Fuzzers {
    fn ready(&mut self, lane: usize, readable: bool, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane) else { return Ok(()) };
        if readable {
            let received = state.conn.receive()?;
            self.answers(lane);
            if received == Received::Closed {
                self.closed_by_broker += 1;
                return self.reopen(lane, reactor);
            }
        }
        self.flush(lane, reactor)
    }

    fn tick(&mut self, now: Nanos, reactor: &Reactor) -> io::Result<Option<Nanos>> {
        let mut next = now.plus(self.patience);
        for lane in 0..self.lanes.len() {
            match self.lanes.get(lane).and_then(|state| state.probed_at) {
                None => self.go_on(lane, reactor)?,
                Some(at) if now >= at.plus(self.patience) => {
                    self.framing_lost += 1;
                    self.reopen(lane, reactor)?;
                    self.go_on(lane, reactor)?;
                }
                Some(at) => next = next.min(at.plus(self.patience)),
            }
        }
        Ok(Some(next))
    }

    fn done(&self) -> bool {
        self.left == 0
    }
}

/// Code, header fields and body of a request.
type Sample<'a> = (i32, &'a [(&'a str, &'a str)], &'a [u8]);

/// One valid request of each kind that a client sends, in both encodings.
fn built_corpus(topic: &str) -> Vec<Vec<u8>> {
    let send = [
        ("a", "fuzz"),
        ("b", topic),
        // A template that does not exist: a damaged topic name creates no topic.
        ("c", "NO_TEMPLATE"),
        ("d", "4"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", "TAGS\u{1}TagA\u{2}KEYS\u{1}k\u{2}"),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let send_long = [
        ("bornTimestamp", "1700000000000"),
        ("defaultTopic", "NO_TEMPLATE"),
        ("defaultTopicQueueNums", "4"),
        ("flag", "0"),
        ("producerGroup", "fuzz"),
        ("properties", "TAGS\u{1}TagA"),
        ("queueId", "0"),
        ("sysFlag", "0"),
        ("topic", topic),
    ];
    let pull = [
        ("commitOffset", "0"),
        ("consumerGroup", "fuzz"),
        ("maxMsgNums", "32"),
        ("queueId", "0"),
        ("queueOffset", "0"),
        ("subVersion", "0"),
        ("subscription", "TagA || TagB"),
        ("suspendTimeoutMillis", "1000"),
        ("sysFlag", "6"),
        ("topic", topic),
    ];
    let queue = [("queueId", "0"), ("topic", topic)];
    let offset = [("consumerGroup", "fuzz"), ("queueId", "0"), ("topic", topic)];
    let commit =
        [("commitOffset", "1"), ("consumerGroup", "fuzz"), ("queueId", "0"), ("topic", topic)];
    let item = b"\x00\x00\x00\x1b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05hello\x00\x00";
    let heartbeat = consumer_heartbeat("fuzz@1", "fuzz", topic, "TagA||TagB");
    let lock = format!(
        "{{\"clientId\":\"fuzz@1\",\"consumerGroup\":\"fuzz\",\"mqSet\":[{{\"brokerName\":\"b\",\
         \"queueId\":0,\"topic\":\"{topic}\"}}]}}"
    );
    let requests: [Sample<'_>; 18] = [
        (codes::SEND_MESSAGE_V2, &send, b"hello"),
        (codes::SEND_MESSAGE, &send_long, b"hello"),
        (codes::SEND_BATCH_MESSAGE, &send, &[&item[..], item].concat()),
        (codes::PULL_MESSAGE, &pull, b""),
        (codes::LITE_PULL_MESSAGE, &pull, b""),
        (codes::QUERY_CONSUMER_OFFSET, &offset, b""),
        (codes::UPDATE_CONSUMER_OFFSET, &commit, b""),
        (codes::SEARCH_OFFSET_BY_TIMESTAMP, &[&queue[..], &[("timestamp", "1")]].concat(), b""),
        (codes::GET_MAX_OFFSET, &queue, b""),
        (codes::GET_MIN_OFFSET, &queue, b""),
        (codes::GET_EARLIEST_MSG_STORETIME, &queue, b""),
        (codes::VIEW_MESSAGE_BY_ID, &[("offset", "0")], b""),
        (codes::HEART_BEAT, &[], &heartbeat),
        (codes::UNREGISTER_CLIENT, &[("clientID", "fuzz@1"), ("consumerGroup", "fuzz")], b""),
        (codes::GET_CONSUMER_LIST_BY_GROUP, &[("consumerGroup", "fuzz")], b""),
        (codes::LOCK_BATCH_MQ, &[], lock.as_bytes()),
        (codes::UNLOCK_BATCH_MQ, &[], lock.as_bytes()),
        (codes::GET_ROUTEINFO_BY_TOPIC, &[("topic", topic)], b""),
    ];
    [Encoding::Json, Encoding::Binary]
        .into_iter()
        .flat_map(|encoding| {
            requests.map(|(code, ext, body)| request(encoding, code, 77, ext, body))
        })
        .collect()
}

/// The frames of all recordings in a folder that are requests.
fn recorded_corpus(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        for line in std::fs::read_to_string(&path)?.lines() {
            let recorded: Value = serde_json::from_str(line)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            let is_request = recorded.get("response") == Some(&Value::Bool(false));
            let hex = recorded.get("frame").and_then(Value::as_str).unwrap_or_default();
            if is_request && let Some(bytes) = from_hex(hex) {
                frames.push(bytes);
            }
        }
    }
    Ok(frames)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan;

    #[test]
    fn the_built_corpus_is_valid() {
        for frame in built_corpus("t") {
            assert!(scan(&frame).is_some_and(|answer| !answer.response));
        }
    }

    #[test]
    fn hexadecimal_is_read_or_refused() {
        assert_eq!(from_hex("00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!(from_hex("0g"), None);
        assert_eq!(from_hex("000"), None);
    }
}
