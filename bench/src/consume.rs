//! Consumers: an actor that pulls queues, each one pull at a time, as push consumers do.
//!
//! A cursor is one queue read over one connection; its next pull leaves when its last one was
//! answered. With goals it drains a backlog and is done; without, its pulls are held by the broker
//! until messages come. Every record is walked, its queue offset checked against the one expected.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ringmq_protocol::codes::response;
use ringmq_protocol::record::records;

use crate::admin::join;
use crate::clock::Nanos;
use crate::conn::{Conn, Received};
use crate::frame::{PullFrame, stamp};
use crate::measure::{CONNECTION_CLOSED, Tally, UNEXPECTED};
use crate::reactor::{Actor, Reactor, Token};
use crate::scan::Answer;

/// Pause after a refused pull; clients wait a second.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One queue to read.
#[derive(Clone, Debug)]
pub(crate) struct CursorSpec {
    /// Which connection carries its pulls.
    pub(crate) lane: usize,
    /// Its pull frame.
    pub(crate) frame: PullFrame,
    /// Where to start.
    pub(crate) from: u64,
    /// Where to stop; `None` reads on for ever.
    pub(crate) until: Option<u64>,
}

/// How a connection introduces itself.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    /// Client id.
    pub(crate) client_id: String,
    /// Consumer group.
    pub(crate) group: String,
    /// Topic.
    pub(crate) topic: String,
    /// Tag expression, `*` for all.
    pub(crate) tags: String,
}

struct Lane {
    conn: Conn,
    cursors: Vec<u32>,
    open: bool,
}

struct Cursor {
    lane: usize,
    frame: PullFrame,
    from: u64,
    next: u64,
    until: Option<u64>,
    asked_at: Nanos,
    waiting: bool,
}

/// Numbers of stamped messages seen so far.
#[derive(Debug, Default)]
struct Seen {
    words: Vec<u64>,
    count: u64,
    repeated: u64,
}

impl Seen {
    fn note(&mut self, number: u64) {
        let Ok(word) = usize::try_from(number / 64) else { return };
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        let Some(bits) = self.words.get_mut(word) else { return };
        let bit = 1 << (number % 64);
        if *bits & bit == 0 {
            *bits |= bit;
            self.count += 1;
        } else {
            self.repeated += 1;
        }
    }
}

/// What the latencies of a consumer mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Latency {
    /// From a pull to its answer.
    OfPulls,
    /// From the stamp in a message's body to its arrival; each message is also checked to come
    /// once.
    OfMessages,
}

/// The consumers.
pub(crate) struct Consumers {
    lanes: Vec<Lane>,
    cursors: Vec<Cursor>,
    latency: Latency,
    dense: bool,
    /// Counters since the last reset.
    pub(crate) tally: Tally,
    /// Messages whose queue offset was not the expected one.
    pub(crate) gaps: u64,
    seen: Seen,
    reading: bool,
    /// Cursors whose last pull was refused; they ask again at `retry_at`.
    refused: Vec<usize>,
    retry_at: Nanos,
}

impl Consumers {
    /// Connects, sends one heartbeat on every connection that has a membership, and registers.
    ///
    /// `dense` demands that every queue offset follows its predecessor, which holds without a tag.
    ///
    /// # Errors
    ///
    /// As the system reports them, and the broker's refusal of a heartbeat.
    pub(crate) fn new(
        broker: SocketAddr,
        members: &[Membership],
        cursors: Vec<CursorSpec>,
        options: ConsumerOptions,
        reactor: &Reactor,
    ) -> io::Result<Self> {
        let mut lanes = Vec::new();
        for (lane, member) in (0..).zip(members) {
            let mut conn = Conn::connect(broker, options.inbox_len)?;
            join(&mut conn, &member.client_id, &member.group, &member.topic, &member.tags)?;
            conn.go(reactor, Token { actor: options.actor, lane })?;
            lanes.push(Lane { conn, cursors: Vec::new(), open: true });
        }
        for (index, cursor) in (0..).zip(&cursors) {
            if let Some(lane) = lanes.get_mut(cursor.lane) {
                lane.cursors.push(index);
            }
        }
        let cursors = cursors
            .into_iter()
            .map(|spec| Cursor {
                lane: spec.lane,
                frame: spec.frame,
                from: spec.from,
                next: spec.from,
                until: spec.until,
                asked_at: Nanos::default(),
                waiting: false,
            })
            .collect();
        Ok(Self {
            lanes,
            cursors,
            latency: options.latency,
            dense: options.dense,
            tally: Tally::default(),
            gaps: 0,
            seen: Seen::default(),
            reading: false,
            refused: Vec::new(),
            retry_at: Nanos::default(),
        })
    }

    /// Sends the first pull of every queue, from where its cursor stands.
    ///
    /// # Errors
    ///
    /// Ends the run.
    pub(crate) fn begin(&mut self, reactor: &Reactor) -> io::Result<()> {
        self.reading = true;
        let now = reactor.now();
        for cursor in 0..self.cursors.len() {
            self.ask(cursor, now);
        }
        for lane in 0..self.lanes.len() {
            self.flush(lane, reactor)?;
        }
        Ok(())
    }

    /// Sets every cursor back to its start.
    pub(crate) fn rewind(&mut self) {
        for cursor in &mut self.cursors {
            cursor.next = cursor.from;
        }
    }

    /// Different stamped messages received.
    pub(crate) fn received(&self) -> u64 {
        self.seen.count
    }

    /// Stamped messages received again.
    pub(crate) fn repeated(&self) -> u64 {
        self.seen.repeated
    }

    /// Pulls that wait for an answer.
    pub(crate) fn parked(&self) -> usize {
        self.cursors.iter().filter(|cursor| cursor.waiting).count()
    }

    /// Connections that are still open.
    pub(crate) fn open(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.open).count()
    }

    fn ask(&mut self, index: usize, now: Nanos) {
        let Some(cursor) = self.cursors.get_mut(index) else { return };
        if cursor.waiting || cursor.until.is_some_and(|until| cursor.next >= until) {
            return;
        }
        let Some(lane) = self.lanes.get_mut(cursor.lane).filter(|lane| lane.open) else { return };
        let slot = u32::try_from(index).expect("cursors are counted in 32 bits");
        cursor.frame.write(cursor.next, slot, &mut lane.conn.outbox);
        cursor.asked_at = now;
        cursor.waiting = true;
    }

    fn flush(&mut self, lane: usize, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane).filter(|lane| lane.open) else { return Ok(()) };
        if state.conn.flush(reactor)? == Received::Closed {
            self.close(lane);
        }
        Ok(())
    }

    fn close(&mut self, lane: usize) {
        let Some(lane) = self.lanes.get_mut(lane).filter(|lane| lane.open) else { return };
        lane.open = false;
        for &cursor in &lane.cursors {
            if let Some(cursor) = self.cursors.get_mut(cursor as usize) {
                cursor.waiting = false;
            }
        }
        self.tally.fail(CONNECTION_CLOSED);
    }

    fn answers(&mut self, lane: usize, now: Nanos) {
        loop {
            let Some(state) = self.lanes.get_mut(lane) else { return };
            let answer = match state.conn.inbox.answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(_) => break,
            };
            if !answer.response {
                continue;
            }
            let slot = answer.slot() as usize;
            let Some(cursor) = self.cursors.get_mut(slot).filter(|cursor| cursor.waiting) else {
                self.tally.fail(UNEXPECTED);
                continue;
            };
            cursor.waiting = false;
            let mut sink = Sink {
                latency: self.latency,
                dense: self.dense,
                tally: &mut self.tally,
                gaps: &mut self.gaps,
                seen: &mut self.seen,
            };
            if !sink.take(cursor, &answer, now) {
                self.refused.push(slot);
                self.retry_at = now.plus(RETRY_PAUSE);
            } else if self.reading {
                self.ask(slot, now);
            }
        }
        self.tally.fail(UNEXPECTED);
        self.close(lane);
    }
}

/// Settings of [`Consumers`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerOptions {
    /// This actor's index in the loop.
    pub(crate) actor: u32,
    /// Receive buffer of each connection, in bytes.
    pub(crate) inbox_len: usize,
    /// What to measure.
    pub(crate) latency: Latency,
    /// Demand dense queue offsets.
    pub(crate) dense: bool,
}

/// The parts of the consumers that an answer changes.
struct Sink<'a> {
    latency: Latency,
    dense: bool,
    tally: &'a mut Tally,
    gaps: &'a mut u64,
    seen: &'a mut Seen,
}

impl Sink<'_> {
    /// Takes an answer in; false when the broker refused the pull.
    fn take(&mut self, cursor: &mut Cursor, answer: &Answer<'_>, now: Nanos) -> bool {
        let next = answer.ext_int("nextBeginOffset").and_then(|next| u64::try_from(next).ok());
        match (answer.code, next) {
            (response::SUCCESS, Some(next)) => {
                self.records(cursor, answer.body, now);
                cursor.next = next;
                self.tally.requests += 1;
                if self.latency == Latency::OfPulls {
                    self.tally.record(now.since(cursor.asked_at));
                }
            }
            (response::PULL_NOT_FOUND | response::PULL_RETRY_IMMEDIATELY, Some(next)) => {
                cursor.next = next
            }
            (code, _) => {
                self.tally.fail(code);
                return false;
            }
        }
        true
    }

    fn records(&mut self, cursor: &mut Cursor, body: &[u8], now: Nanos) {
        let mut expected = i64::try_from(cursor.next).unwrap_or(i64::MAX);
        for record in records(body) {
            let Ok(record) = record else {
                self.tally.fail(UNEXPECTED);
                return;
            };
            *self.gaps += u64::from(self.dense && record.queue_offset != expected);
            expected = record.queue_offset + 1;
            self.tally.messages += 1;
            self.tally.bytes += record.bytes.len() as u64;
            if self.latency == Latency::OfMessages
                && let Some((sent, number)) = stamp(record.body)
            {
                self.tally.record(now.since(sent));
                self.seen.note(number);
            }
        }
    }
}

impl Actor for Consumers {
    fn ready(&mut self, lane: usize, readable: bool, reactor: &Reactor) -> io::Result<()> {
        let Some(state) = self.lanes.get_mut(lane) else { return Ok(()) };
        if !state.open {
            return reactor.forget(state.conn.fd());
        }
        if readable {
            let received = state.conn.receive()?;
            self.answers(lane, reactor.now());
            if received == Received::Closed {
                self.close(lane);
                return Ok(());
            }
        }
        self.flush(lane, reactor)
    }

    fn tick(&mut self, now: Nanos, reactor: &Reactor) -> io::Result<Option<Nanos>> {
        if self.refused.is_empty() || !self.reading {
            return Ok(None);
        }
        if now < self.retry_at {
            return Ok(Some(self.retry_at));
        }
        for cursor in std::mem::take(&mut self.refused) {
            self.ask(cursor, now);
            if let Some(lane) = self.cursors.get(cursor).map(|cursor| cursor.lane) {
                self.flush(lane, reactor)?;
            }
        }
        Ok(None)
    }

    fn done(&self) -> bool {
        let drained = |cursor: &Cursor| cursor.until.is_some_and(|until| cursor.next >= until);
        // Asked in every turn: counting thousands of connections would slow what runs beside them.
        self.cursors.iter().all(drained) || !self.lanes.iter().any(|lane| lane.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_seen_twice_counts_once() {
        let mut seen = Seen::default();
        for number in [0, 63, 64, 1_000_000, 63] {
            seen.note(number);
        }
        assert_eq!((seen.count, seen.repeated), (4, 1));
    }
}
