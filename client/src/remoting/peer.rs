//! Whether an address has a connection: one state machine, and what drives it.
//!
//! An address without a connection gets one when a call needs it; all calls wait for the same
//! attempt. After a failed attempt the address rests, for a moment that doubles up to [`REST_MAX`],
//! during which calls fail at once: those who can go elsewhere do so without delay.
//!
//! ```text
//!          call                    connected
//!   Idle ────────▶ Connecting ───────────────────▶ Up
//!    ▲                 │  ▲                         │
//!    │          failed │  │ call after the rest     │ ended, or told to go away
//!    │                 ▼  │                         │
//!    │               Resting                        │
//!    └──────────────────────────────────────────────┘
//! ```

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::link::Link;
use crate::lock;

/// Rest of an address after its first failed attempt to connect.
const REST_MIN: Duration = Duration::from_millis(50);

/// Longest rest of an address.
const REST_MAX: Duration = Duration::from_secs(1);

/// The state of an address.
#[derive(Debug)]
enum State<L> {
    /// Nobody asked yet, or the last connection has ended.
    Idle,
    /// An attempt is under way; the rest before it, should it fail as well.
    Connecting {
        rest: Duration,
    },
    Up(L),
    Resting {
        until: Instant,
        rest: Duration,
        kind: io::ErrorKind,
    },
}

/// What a call has to do.
#[derive(Debug, PartialEq, Eq)]
enum Step<L> {
    Use(L),
    /// Make the attempt that everybody waits for.
    Connect,
    /// Wait for the attempt of somebody else.
    Wait,
    /// Fail as the last attempt did.
    Fail(io::ErrorKind),
}

impl<L: Clone> State<L> {
    /// A call needs a connection.
    fn ask(&mut self, now: Instant, is_usable: impl Fn(&L) -> bool) -> Step<L> {
        match self {
            Self::Up(link) if is_usable(link) => Step::Use(link.clone()),
            Self::Connecting { .. } => Step::Wait,
            Self::Resting { until, kind, .. } if now < *until => Step::Fail(*kind),
            Self::Resting { rest, .. } => {
                *self = Self::Connecting { rest: *rest };
                Step::Connect
            }
            Self::Idle | Self::Up(_) => {
                *self = Self::Connecting { rest: Duration::ZERO };
                Step::Connect
            }
        }
    }

    /// The attempt succeeded.
    fn connected(&mut self, link: L) {
        *self = Self::Up(link);
    }

    /// The attempt failed.
    fn failed(&mut self, now: Instant, kind: io::ErrorKind) {
        let rest = match self {
            Self::Connecting { rest } => (*rest * 2).clamp(REST_MIN, REST_MAX),
            Self::Idle | Self::Up(_) | Self::Resting { .. } => REST_MIN,
        };
        *self = Self::Resting { until: now + rest, rest, kind };
    }

    /// The one who made the attempt gave up waiting: that says nothing about the address.
    fn abandoned(&mut self) {
        if let Self::Connecting { rest } = self {
            // A rest that is over: the next call makes an attempt at once.
            *self = match *rest {
                Duration::ZERO => Self::Idle,
                rest => {
                    Self::Resting { until: Instant::now(), rest, kind: io::ErrorKind::TimedOut }
                }
            };
        }
    }
}

/// One address.
#[derive(Debug)]
pub(super) struct Peer {
    state: Mutex<State<Arc<Link>>>,
    /// An attempt has ended.
    settled: Notify,
}

impl Default for Peer {
    fn default() -> Self {
        Self { state: Mutex::new(State::Idle), settled: Notify::new() }
    }
}

/// Settles an attempt, also if the one who makes it is dropped.
struct Attempt<'a> {
    peer: &'a Peer,
    result: Option<Result<Arc<Link>, io::ErrorKind>>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.peer.state);
        match self.result.take() {
            Some(Ok(link)) => state.connected(link),
            Some(Err(kind)) => state.failed(Instant::now(), kind),
            None => state.abandoned(),
        }
        drop(state);
        self.peer.settled.notify_waiters();
    }
}

impl Peer {
    /// The connection, which `connect` makes if there is none.
    ///
    /// # Errors
    ///
    /// What this attempt, or a very recent one, met.
    pub(super) async fn link(
        &self,
        connect: impl Future<Output = io::Result<Arc<Link>>>,
    ) -> io::Result<Arc<Link>> {
        loop {
            let settled = self.settled.notified();
            let step = lock(&self.state).ask(Instant::now(), |link| !link.is_closed());
            match step {
                Step::Use(link) => return Ok(link),
                Step::Fail(kind) => return Err(kind.into()),
                Step::Wait => settled.await,
                Step::Connect => break,
            }
        }
        let mut attempt = Attempt { peer: self, result: None };
        let result = connect.await;
        attempt.result = Some(result.as_ref().map(Arc::clone).map_err(io::Error::kind));
        result
    }

    /// The connection, if there is one.
    pub(super) fn current(&self) -> Option<Arc<Link>> {
        match &*lock(&self.state) {
            State::Up(link) if !link.is_closed() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Gives a connection up for calls to come; those under way go on.
    pub(super) fn retire(&self, link: &Arc<Link>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Up(current) if Arc::ptr_eq(current, link)) {
            *state = State::Idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type S = State<u32>;

    const REFUSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;

    fn ask(state: &mut S, now: Instant) -> Step<u32> {
        state.ask(now, |link| *link != 0)
    }

    #[test]
    fn one_attempt_serves_all() {
        let (now, mut state) = (Instant::now(), S::Idle);
        assert_eq!(ask(&mut state, now), Step::Connect);
        assert_eq!(ask(&mut state, now), Step::Wait);
        state.connected(7);
        assert_eq!(ask(&mut state, now), Step::Use(7));
    }

    #[test]
    fn rests_double_up_to_a_bound_and_end_with_a_success() {
        let (mut now, mut state) = (Instant::now(), S::Idle);
        for want in [50, 100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
            assert_eq!(ask(&mut state, now), Step::Connect);
            state.failed(now, REFUSED);
            assert_eq!(ask(&mut state, now), Step::Fail(REFUSED));
            assert_eq!(ask(&mut state, now + want - Duration::from_nanos(1)), Step::Fail(REFUSED));
            now += want;
        }
        assert_eq!(ask(&mut state, now), Step::Connect);
        state.connected(1);
        // That connection ends, and the next attempt fails.
        state.connected(0);
        assert_eq!(ask(&mut state, now), Step::Connect);
        state.failed(now, REFUSED);
        assert_eq!(ask(&mut state, now + REST_MIN), Step::Connect);
    }

    #[test]
    fn an_attempt_that_nobody_waits_for_any_more_costs_no_rest() {
        let (now, mut state) = (Instant::now(), S::Idle);
        assert_eq!(ask(&mut state, now), Step::Connect);
        state.abandoned();
        assert_eq!(ask(&mut state, now), Step::Connect);
        state.failed(now, REFUSED);
        assert_eq!(ask(&mut state, now + REST_MIN), Step::Connect);
        state.abandoned();
        assert_eq!(ask(&mut state, now + Duration::from_secs(1)), Step::Connect);
        state.failed(now, REFUSED);
        let rest = 2 * REST_MIN - Duration::from_nanos(1);
        assert_eq!(ask(&mut state, now + rest), Step::Fail(REFUSED), "the rest still doubles");
    }
}
