//! Producers: an actor that sends, in a closed or an open loop.
//!
//! Closed: every connection keeps a fixed number of requests in flight and sends the next one when
//! an answer comes. Open: requests leave at a fixed rate whatever the answers do, dealt to the
//! connections in turn, and latency counts from the moment at which a request was *meant* to leave,
//! so that a broker that stalls is not measured less often.
//!
//! Budgets bound a run in messages and in body bytes, so that a fast broker cannot fill the disk.

use std::io;
use std::net::SocketAddr;

use crate::clock::Nanos;
use crate::conn::{BUSY_INBOX_LEN, Conn, Received};
use crate::frame::SendFrames;
use crate::measure::{CONNECTION_CLOSED, NOT_SENT, Tally, UNANSWERED, UNEXPECTED};
use crate::reactor::{Actor, Reactor, Token};
use crate::scan::Answer;

/// Requests that one connection of an open loop may have waiting for answers.
const OPEN_IN_FLIGHT_MAX: u32 = 1 << 18;

/// How requests follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// This many requests in flight on every connection.
    Closed(u32),
    /// This many requests a second, all connections together.
    Open(f64),
}

/// What may still be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Messages.
    pub(crate) messages: u64,
    /// Bytes of bodies.
    pub(crate) bytes: u64,
}

impl Budget {
    /// No bound but time.
    pub(crate) const UNLIMITED: Self = Self { messages: u64::MAX, bytes: u64::MAX };

    fn take(&mut self, messages: u64, bytes: u64) -> bool {
        if self.messages < messages || self.bytes < bytes {
            return false;
        }
        self.messages -= messages;
        self.bytes -= bytes;
        true
    }
}

/// What a load consists of.
pub(crate) struct LoadSpec {
    /// The broker.
    pub(crate) broker: SocketAddr,
    /// Connections.
    pub(crate) connections: u32,
    /// Queues of the topic, used in turn.
    pub(crate) queues: u32,
    /// How requests follow each other.
    pub(crate) pace: Pace,
    /// The requests.
    pub(crate) frames: SendFrames,
    /// Messages of one request.
    pub(crate) batch: u32,
    /// Body bytes of one message.
    pub(crate) body_len: usize,
    /// This actor's index in the loop.
    pub(crate) actor: u32,
}

/// One connection and its requests in flight.
struct Lane {
    conn: Conn,
    /// By slot: when the request was (meant to be) sent; `None` while the slot is free.
    slots: Vec<Option<Nanos>>,
    free: Vec<u32>,
    depth: usize,
    next_queue: usize,
    open: bool,
    dirty: bool,
}

impl Lane {
    fn has_room(&self) -> bool {
        self.open && (!self.free.is_empty() || self.slots.len() < self.depth)
    }

    /// Takes a slot for a request (meant to be) sent at `moment`.
    fn occupy(&mut self, moment: Nanos) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            *self.slots.get_mut(slot as usize)? = Some(moment);
            return Some(slot);
        }
        let slot = u32::try_from(self.slots.len()).ok()?;
        self.slots.push(Some(moment));
        Some(slot)
    }
}

/// First and last log position that the broker named, and how many messages lie between them.
#[derive(Clone, Copy, Debug)]
struct LogSpan {
    first: u64,
    last: u64,
    messages: u64,
}

/// The producers.
pub(crate) struct Load {
    spec: LoadSpec,
    lanes: Vec<Lane>,
    /// Counters since the last [`Load::begin`].
    pub(crate) tally: Tally,
    budget: Budget,
    sending: bool,
    outstanding: u64,
    sequence: u64,
    paced_from: Nanos,
    paced_count: u64,
    log_span: Option<LogSpan>,
    track_log: bool,
}

impl Load {
    /// Connects and registers all connections.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn new(spec: LoadSpec, reactor: &Reactor) -> io::Result<Self> {
        let depth = match spec.pace {
            Pace::Closed(in_flight) => in_flight,
            Pace::Open(_) => OPEN_IN_FLIGHT_MAX,
        };
        let mut lanes = Vec::new();
        for lane in 0..spec.connections {
            let mut conn = Conn::connect(spec.broker, BUSY_INBOX_LEN)?;
            conn.go(reactor, Token { actor: spec.actor, lane })?;
            lanes.push(Lane {
                conn,
                slots: Vec::new(),
                free: Vec::new(),
                depth: depth as usize,
                next_queue: (lane % spec.queues) as usize,
                open: true,
                dirty: false,
            });
        }
        Ok(Self {
            spec,
            lanes,
            tally: Tally::default(),
            budget: Budget::UNLIMITED,
            sending: false,
            outstanding: 0,
            sequence: 0,
            paced_from: Nanos::default(),
            paced_count: 0,
            log_span: None,
            track_log: false,
        })
    }

    /// Reads log positions out of the answers from now on; costs time for each.
    pub(crate) fn track_log(&mut self) {
        self.track_log = true;
    }

    /// Starts counting afresh with a new budget, and sends.
    ///
    /// # Errors
    ///
    /// Ends the run.
    pub(crate) fn begin(&mut self, budget: Budget, reactor: &Reactor) -> io::Result<()> {
        let now = reactor.now();
        self.tally = Tally::default();
        self.budget = budget;
        if matches!(self.spec.pace, Pace::Open(_)) && !self.sending {
            self.paced_from = now;
            self.paced_count = 0;
        }
        self.sending = true;
        if matches!(self.spec.pace, Pace::Closed(_)) {
            for lane in 0..self.lanes.len() {
                self.fill(lane, now);
                self.flush(lane, reactor)?;
            }
        }
        Ok(())
    }

    /// Sends no more.
    pub(crate) fn stop(&mut self) {
        self.sending = false;
    }

    /// Counts what is still unanswered as failed.
    pub(crate) fn give_up(&mut self) {
        self.tally.fail_many(UNANSWERED, self.outstanding);
    }

    /// Whether connections are left to send on.
    pub(crate) fn alive(&self) -> bool {
        self.lanes.iter().any(|lane| lane.open)
    }

    /// Messages numbered so far, sent ones and those of an open loop that found no room.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes of log for each message, from the positions in the answers to the first and the last
    /// request. Means something with one queue and one request in flight only.
    #[expect(clippy::cast_precision_loss, reason = "positions of one run are far below 2^53")]
    pub(crate) fn log_bytes_per_message(&self) -> Option<f64> {
        let span = self.log_span?;
        (span.messages > 0)
            .then(|| span.last.saturating_sub(span.first) as f64 / span.messages as f64)
    }

    fn batch_bytes(&self) -> u64 {
        u64::from(self.spec.batch) * self.spec.body_len as u64
    }

    /// Sends on a closed-loop connection until its slots or the budget are used up.
    fn fill(&mut self, lane: usize, now: Nanos) {
        while self.sending && self.lanes.get(lane).is_some_and(Lane::has_room) {
            if !self.budget.take(self.spec.batch.into(), self.batch_bytes()) {
                self.sending = false;
                return;
            }
            self.push(lane, now);
        }
    }

    /// Queues one request on a connection that has room.
    fn push(&mut self, lane: usize, moment: Nanos) {
        let Some(lane) = self.lanes.get_mut(lane) else { return };
        let Some(slot) = lane.occupy(moment) else { return };
        let queue = lane.next_queue;
        lane.next_queue = (queue + 1) % self.spec.queues as usize;
        self.spec.frames.write(queue, slot, moment, self.sequence, &mut lane.conn.outbox);
        self.sequence += u64::from(self.spec.batch);
        self.outstanding += 1;
    }

    fn flush(&mut self, lane: usize, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane) else { return Ok(()) };
        state.dirty = false;
        if state.open && state.conn.flush(reactor)? == Received::Closed {
            self.close(lane);
        }
        Ok(())
    }

    /// Gives a connection up. The loop forgets it at its next event.
    fn close(&mut self, lane: usize) {
        let Some(lane) = self.lanes.get_mut(lane).filter(|lane| lane.open) else { return };
        lane.open = false;
        let lost = lane.slots.iter_mut().filter_map(Option::take).count() as u64;
        self.outstanding -= lost;
        self.tally.fail(CONNECTION_CLOSED);
        self.tally.fail_many(UNANSWERED, lost);
    }

    /// Takes all answers that have arrived on a connection.
    fn answers(&mut self, lane: usize, now: Nanos) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        loop {
            let answer = match state.conn.inbox.answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(_) => break,
            };
            if !answer.response {
                continue;
            }
            let slot = answer.slot();
            let Some(sent) = state.slots.get_mut(slot as usize).and_then(Option::take) else {
                self.tally.fail(UNEXPECTED);
                continue;
            };
            state.free.push(slot);
            self.outstanding -= 1;
            if answer.code == 0 {
                self.tally.record(now.since(sent));
                self.tally.requests += 1;
                self.tally.messages += u64::from(self.spec.batch);
                self.tally.bytes += u64::from(self.spec.batch) * self.spec.body_len as u64;
                if self.track_log {
                    note_position(&mut self.log_span, &answer);
                }
            } else {
                self.tally.fail(answer.code);
            }
        }
        // The stream cannot be read on: whatever it carries is lost.
        self.tally.fail(UNEXPECTED);
        self.close(lane);
    }

    /// Queues every request of an open loop that is due, and says when the next one is.
    fn pace(&mut self, rate: f64, now: Nanos) -> Nanos {
        loop {
            let due = due(self.paced_from, self.paced_count, rate);
            if due > now || !self.sending {
                return due;
            }
            if !self.budget.take(self.spec.batch.into(), self.batch_bytes()) {
                self.sending = false;
                return due;
            }
            let lane = usize::try_from(self.paced_count).unwrap_or(0) % self.lanes.len().max(1);
            self.paced_count += 1;
            match self.lanes.get_mut(lane) {
                Some(state) if state.has_room() => {
                    state.dirty = true;
                    self.push(lane, due);
                }
                _ => {
                    self.sequence += u64::from(self.spec.batch);
                    self.tally.fail(NOT_SENT);
                }
            }
        }
    }
}

/// When request number `count` of an open loop is meant to leave.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a run has far fewer than 2^53 requests and nanoseconds, and no negative ones"
)]
fn due(from: Nanos, count: u64, rate: f64) -> Nanos {
    Nanos::new(from.get() + (count as f64 * 1e9 / rate) as u64)
}

/// Notes the log position in a send answer's message id: host, port, then 16 hexadecimal digits.
fn note_position(span: &mut Option<LogSpan>, answer: &Answer<'_>) {
    let position = answer
        .ext("msgId")
        .and_then(|id| u64::from_str_radix(id.get(id.len().checked_sub(16)?..)?, 16).ok());
    let Some(position) = position else { return };
    match span {
        None => *span = Some(LogSpan { first: position, last: position, messages: 0 }),
        Some(span) => {
            span.last = position;
            span.messages += 1;
        }
    }
}

impl Actor for Load {
    fn ready(&mut self, lane: usize, readable: bool, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane) else { return Ok(()) };
        if !state.open {
            return reactor.forget(state.conn.fd());
        }
        if readable {
            let received = state.conn.receive()?;
            let now = reactor.now();
            self.answers(lane, now);
            if matches!(self.spec.pace, Pace::Closed(_)) {
                self.fill(lane, now);
            }
            if received == Received::Closed {
                self.close(lane);
                return Ok(());
            }
        }
        self.flush(lane, reactor)
    }

    fn tick(&mut self, now: Nanos, reactor: &Reactor) -> io::Result<Option<Nanos>> {
        let Pace::Open(rate) = self.spec.pace else { return Ok(None) };
        if !self.sending {
            return Ok(None);
        }
        let next = self.pace(rate, now);
        for lane in 0..self.lanes.len() {
            if self.lanes.get(lane).is_some_and(|lane| lane.dirty) {
                self.flush(lane, reactor)?;
            }
        }
        Ok(Some(next))
    }

    fn done(&self) -> bool {
        (!self.sending && self.outstanding == 0) || !self.alive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringmq_protocol::frame::Encoding;

    use super::*;
    use crate::clock::Clock;
    use crate::frame::SendSpec;
    use crate::reactor::{Stop, run};
    use crate::sink::serve;

    fn load(broker: SocketAddr, encoding: Encoding, batch: u32, pace: Pace) -> (Load, Reactor) {
        let reactor = Reactor::new(Clock::start()).unwrap();
        let send = SendSpec { encoding, group: "g", topic: "t", body_len: 100, batch, tag: None };
        let spec = LoadSpec {
            broker,
            connections: 3,
            queues: 4,
            pace,
            frames: SendFrames::new(&send, 4),
            batch,
            body_len: 100,
            actor: 0,
        };
        (Load::new(spec, &reactor).unwrap(), reactor)
    }

    fn until_done(load: &mut Load, budget: Budget, reactor: &mut Reactor) {
        load.begin(budget, reactor).unwrap();
        let limit = reactor.now().plus(Duration::from_secs(30));
        run(reactor, &mut [load], limit, Stop::AnyDone).unwrap();
        assert!(load.done(), "still {} outstanding", load.outstanding);
    }

    #[test]
    fn a_closed_loop_sends_its_budget_and_not_more() {
        for (encoding, batch) in [(Encoding::Json, 1), (Encoding::Json, 5), (Encoding::Binary, 1)] {
            let broker = serve(usize::MAX);
            let (mut load, mut reactor) = load(broker, encoding, batch, Pace::Closed(7));
            let budget = Budget { messages: 1003, bytes: u64::MAX };
            until_done(&mut load, budget, &mut reactor);
            assert_eq!(load.tally.messages, 1003 / u64::from(batch) * u64::from(batch));
            assert_eq!(load.tally.errors.len(), 0);
            assert_eq!(load.sequence(), load.tally.messages);
            let budget = Budget { messages: u64::MAX, bytes: 100 * 50 };
            until_done(&mut load, budget, &mut reactor);
            assert_eq!(load.tally.messages, 50);
        }
    }

    #[test]
    fn an_open_loop_keeps_its_pace() {
        let (mut load, mut reactor) =
            load(serve(usize::MAX), Encoding::Json, 1, Pace::Open(10_000.0));
        let from = reactor.now();
        until_done(&mut load, Budget { messages: 501, bytes: u64::MAX }, &mut reactor);
        assert_eq!(load.tally.messages, 501);
        assert!(reactor.now().since(from) >= 50_000_000, "500 intervals of 0.1 ms");
    }

    #[test]
    fn what_a_broker_that_hangs_up_still_owed_is_counted() {
        let (mut load, mut reactor) = load(serve(10), Encoding::Json, 1, Pace::Closed(4));
        until_done(&mut load, Budget::UNLIMITED, &mut reactor);
        assert!(!load.alive());
        assert_eq!(load.tally.errors.get(&CONNECTION_CLOSED), Some(&3));
        let unanswered = load.tally.errors.get(&UNANSWERED).copied().unwrap_or_default();
        assert_eq!(load.tally.messages + unanswered, load.sequence());
    }
}
