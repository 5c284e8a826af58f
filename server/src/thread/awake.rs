//! A data thread that has nothing to do stays awake for a moment before it sleeps.
//!
//! A producer that waits for each answer sends its next message within microseconds, and a processor
//! that fell asleep takes several times that to come back, on a virtual machine above all. So the
//! thread looks for work for a while, as long as that tends to bring some: after looks that did not,
//! it does without for longer and longer. It gives its processor to whoever else wants it between two looks.

use std::{
    io,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::{Interest, unix::AsyncFd};

use super::Thread;
use crate::clock::instant;

/// How long a thread looks for work.
const AWAKE_MAX: Duration = Duration::from_micros(50);

/// How long a thread does without after a second look that brought nothing; twice as long after each
/// further one.
const REST_MIN: Duration = Duration::from_micros(500);
/// The longest rest. What is spent on looks that all bring nothing is a thousandth.
const REST_MAX: Duration = Duration::from_millis(64);

/// Whether it is worth to stay awake.
#[derive(Debug, Default)]
struct Worth {
    /// No look before that.
    until: Option<Instant>,
    /// How long none follows the next one that brings nothing.
    rest: Duration,
}

impl Worth {
    fn may_look(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    fn looked(&mut self, with_success: bool, now: Instant) {
        if with_success {
            *self = Self::default();
        } else {
            self.until = Some(now + self.rest);
            self.rest = (2 * self.rest).clamp(REST_MIN, REST_MAX);
        }
    }
}

/// How a data thread waits for its next turn.
pub(super) struct Awake {
    worth: Worth,
    /// Makes the runtime come back at once from where it would sleep.
    doze: AsyncFd<std::os::fd::OwnedFd>,
}

impl Awake {
    /// # Errors
    ///
    /// The system's, when there is no descriptor left.
    #[expect(
        deprecated,
        reason = "the other constructor is unsafe for kinds of descriptors unlike this"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let doze = AsyncFd::with_interest(event, Interest::READABLE)?;
        Ok(Self { worth: Worth::default(), doze })
    }

    /// Looks for work as long as that is worth it.
    pub(super) async fn look_for_work(&mut self, thread: &Thread) -> io::Result<()> {
        // What the device has on its way comes later than a look lasts, and requests that gather
        // meanwhile share the next group.
        let waits_for_device = thread.shards.iter().any(|shard| !shard.acks.borrow().is_empty());
        if thread.turn.is_set() || waits_for_device {
            return Ok(());
        }
        let since = instant();
        if !self.worth.may_look(since) {
            return Ok(());
        }
        while since.elapsed() < AWAKE_MAX {
            if thread.links.has_input() {
                thread.turn.set();
            }
            if thread.turn.is_set() {
                self.worth.looked(true, since);
                return Ok(());
            }
            std::thread::yield_now();
            self.through_the_runtime().await?;
        }
        self.worth.looked(false, instant());
        Ok(())
    }

    /// Lets the runtime submit and see everything it would when it sleeps, without that it sleeps.
    /// Yielding alone would not: the runtime submits what its tasks want of the kernel when it has
    /// nothing else to do.
    #[expect(clippy::host_endian_bytes, reason = "an eventfd counts in the machine's own order")]
    async fn through_the_runtime(&self) -> io::Result<()> {
        // Each write is an edge, so the counter need not be read; it cannot overflow in a lifetime.
        rustix::io::write(self.doze.get_ref(), &1_u64.to_ne_bytes())?;
        self.doze.readable().await?.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_bring_nothing_become_rare_until_one_brings_something() {
        let (mut worth, mut now) = (Worth::default(), instant());
        let mut rest_after = |with_success| {
            worth.looked(with_success, now);
            let mut rest = Duration::ZERO;
            while !worth.may_look(now + rest) {
                rest += REST_MIN;
            }
            now += rest;
            rest.as_micros()
        };
        let rests: Vec<_> = (0..10).map(|_| rest_after(false)).collect();
        assert_eq!(rests[..6], [0, 500, 1000, 2000, 4000, 8000]);
        assert_eq!(rests[9], 64_000);
        assert_eq!(rest_after(true), 0);
        assert_eq!(rest_after(false), 0);
        assert_eq!(rest_after(false), 500);
    }
}
