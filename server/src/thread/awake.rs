//! A data thread that has nothing to do stays awake for a moment before it sleeps.
//!
//! A producer that waits for each answer sends its next message within microseconds, and a processor
//! that fell asleep takes several times that to come back, on a virtual machine above all. So the
//! thread looks for work for a while, as long as that tends to bring some: after looks that did not,
//! more and more are left out. It gives its processor to whoever else wants it between two looks.

use std::{io, time::Duration};

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::{Interest, unix::AsyncFd};

use super::Thread;
use crate::clock::instant;

/// How long a thread looks for work.
const AWAKE_MAX: Duration = Duration::from_micros(50);

/// Most looks that are left out after some that brought nothing.
const LEFT_OUT_MAX: u32 = 4096;

/// Whether it is worth to stay awake.
#[derive(Debug, Default)]
struct Worth {
    /// Looks to be left out before the next one.
    left_out: u32,
    /// How many are left out after the next one that brings nothing.
    penalty: u32,
}

impl Worth {
    fn may_look(&mut self) -> bool {
        let may = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        may
    }

    fn looked(&mut self, with_success: bool) {
        if with_success {
            *self = Self::default();
        } else {
            self.left_out = self.penalty;
            self.penalty = (2 * self.penalty + 1).min(LEFT_OUT_MAX);
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
        if thread.turn.is_set() || waits_for_device || !self.worth.may_look() {
            return Ok(());
        }
        let since = instant();
        while since.elapsed() < AWAKE_MAX {
            if thread.links.has_input() {
                thread.turn.set();
            }
            if thread.turn.is_set() {
                self.worth.looked(true);
                return Ok(());
            }
            std::thread::yield_now();
            self.through_the_runtime().await?;
        }
        self.worth.looked(false);
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
        let mut worth = Worth::default();
        let mut left_out_after = |with_success| {
            worth.looked(with_success);
            let mut count = 0;
            while !worth.may_look() {
                count += 1;
            }
            count
        };
        let counts: Vec<_> = (0..14).map(|_| left_out_after(false)).collect();
        assert_eq!(counts[..5], [0, 1, 3, 7, 15]);
        assert_eq!(counts[13], LEFT_OUT_MAX);
        assert_eq!(left_out_after(true), 0);
        assert_eq!(left_out_after(false), 0);
        assert_eq!(left_out_after(false), 1);
    }
}
