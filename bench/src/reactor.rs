//! The event loop: one thread, one epoll instance, any number of actors.
//!
//! An [`Actor`] owns a set of connections (the producers of a run, its consumers, its fuzzers) and
//! is told when one of them is ready and when its own time has come. [`run`] drives several actors
//! side by side until a moment is reached or one of them says that it is done, so that every
//! subcommand is a composition of actors and windows.
//!
//! Readiness is level-triggered: a connection is read once per event, which keeps it at one system
//! call per turn and gives every connection its share. Waits use `epoll_pwait2` with nanoseconds,
//! since an open loop at tens of thousands of messages a second cannot be paced in milliseconds.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::clock::{Clock, Nanos};

/// Events taken from the kernel in one call.
const EVENTS_PER_WAIT: usize = 256;

/// Names a connection within the loop: which actor, and which of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Index of the actor in the slice given to [`run`].
    pub(crate) actor: u32,
    /// Index of the connection inside the actor.
    pub(crate) lane: u32,
}

impl Token {
    fn pack(self) -> u64 {
        u64::from(self.actor) << 32 | u64::from(self.lane)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half holds exactly 32 bits")]
    fn unpack(bits: u64) -> Self {
        Self { actor: (bits >> 32) as u32, lane: bits as u32 }
    }
}

/// A state machine over some connections.
pub(crate) trait Actor {
    /// One of the actor's connections has bytes, an end or an error to read (`readable`), or only
    /// room to send again.
    ///
    /// # Errors
    ///
    /// Ends the run. A connection that the peer closed is the actor's own business, not an error.
    fn ready(&mut self, lane: usize, readable: bool, reactor: &Reactor) -> io::Result<()>;

    /// Does what is due at `now` and says when it wants to be called again.
    ///
    /// # Errors
    ///
    /// Ends the run.
    fn tick(&mut self, now: Nanos, reactor: &Reactor) -> io::Result<Option<Nanos>>;

    /// The actor has reached its goal; the run ends.
    fn done(&self) -> bool;
}

/// The epoll instance and the clock.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    clock: Clock,
}

impl Reactor {
    /// Makes a loop. The thread's timer slack is lowered so that paced sends leave on time.
    ///
    /// # Errors
    ///
    /// When the kernel has no more file descriptors.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_PER_WAIT), clock })
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Watches a descriptor for input.
    ///
    /// # Errors
    ///
    /// When the kernel's watch limit is reached.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.pack());
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Watches a descriptor for input and, if `output`, for room in its send buffer.
    ///
    /// # Errors
    ///
    /// When the descriptor is not watched.
    pub(crate) fn watch_output(&self, fd: impl AsFd, token: Token, output: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.pack());
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, output);
        Ok(epoll::modify(&self.epoll, fd, data, flags)?)
    }

    /// Watches a descriptor no more.
    ///
    /// # Errors
    ///
    /// When the descriptor is not watched.
    pub(crate) fn forget(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        self.events.clear();
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// When [`run`] ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// As soon as an actor is done.
    AnyDone,
    /// Never.
    AtTime,
}

/// Drives the actors until `until`, or until `stop` says so.
///
/// # Errors
///
/// The first error of the loop or of an actor.
pub(crate) fn run(
    reactor: &mut Reactor,
    actors: &mut [&mut dyn Actor],
    until: Nanos,
    stop: Stop,
) -> io::Result<()> {
    loop {
        let now = reactor.now();
        let mut wake = until;
        for actor in actors.iter_mut() {
            if let Some(due) = actor.tick(now, reactor)? {
                wake = wake.min(due);
            }
        }
        let done = stop == Stop::AnyDone && actors.iter().any(|actor| actor.done());
        if now >= until || done {
            return Ok(());
        }
        reactor.wait(Duration::from_nanos(wake.since(reactor.now())))?;
        dispatch(reactor, actors)?;
    }
}

fn dispatch(reactor: &mut Reactor, actors: &mut [&mut dyn Actor]) -> io::Result<()> {
    // The list is lent out for the round, so that actors can register connections meanwhile.
    let events = std::mem::take(&mut reactor.events);
    for event in &events {
        // Copied out, since the kernel's structure is packed.
        let (flags, data) = (event.flags, event.data);
        let token = Token::unpack(data.u64());
        let readable = flags
            .intersects(epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        if let Some(actor) = actors.get_mut(token.actor as usize) {
            actor.ready(token.lane as usize, readable, reactor)?;
        }
    }
    reactor.events = events;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_given() {
        for (actor, lane) in [(0, 0), (1, 7), (u32::MAX, u32::MAX), (3, 1 << 31)] {
            let token = Token { actor, lane };
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
