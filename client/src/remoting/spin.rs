//! Waiting for an answer without going to sleep, where answers come at once.
//!
//! A broker nearby answers sooner than a processor that fell asleep is woken: on a virtual machine
//! each of the two sleeps of a round trip costs several times what the work does. So one of those who
//! wait for answers to sends keeps the runtime looking for them for a while, and lets other tasks run
//! in between. A broker that does not answer within that while is left alone for longer and longer.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use crate::clock::precise_now;

/// How long an answer is looked for. It bounds the processor time that a send may cost for nothing.
const SPIN_MAX: Duration = Duration::from_micros(300);

/// Most attempts that are left out after answers that came too late.
const SKIPPED_MAX: u32 = 4096;

/// Whether answers of one connection are worth it.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Somebody is looking.
    is_taken: AtomicBool,
    /// Attempts that are left out before the next one.
    left_out: AtomicU32,
    /// How many are left out after the next one that fails.
    penalty: AtomicU32,
}

/// The right to look for answers, and the duty to say what became of it.
pub(super) struct Look<'a> {
    spin: &'a Spin,
    since: Instant,
}

impl Spin {
    /// `None` if somebody is looking, or it is not worth it.
    pub(super) fn start(&self) -> Option<Look<'_>> {
        if !has_other_processor() || self.is_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        // Only who looks changes these.
        let left_out = self.left_out.load(Ordering::Relaxed);
        self.left_out.store(left_out.saturating_sub(1), Ordering::Relaxed);
        let look = Look { spin: self, since: precise_now() };
        (left_out == 0).then_some(look)
    }
}

impl Look<'_> {
    /// Whether to go on.
    pub(super) fn is_worth_it(&self) -> bool {
        self.since.elapsed() < SPIN_MAX
    }

    /// The answer came.
    pub(super) fn succeeded(self) {
        self.spin.penalty.store(0, Ordering::Relaxed);
    }

    /// The answer did not come in time.
    pub(super) fn failed(self) {
        let penalty = self.spin.penalty.load(Ordering::Relaxed);
        self.spin.left_out.store(penalty, Ordering::Relaxed);
        self.spin.penalty.store((2 * penalty + 1).min(SKIPPED_MAX), Ordering::Relaxed);
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.spin.is_taken.store(false, Ordering::Relaxed);
    }
}

/// On a single processor the broker may need the very one that would look.
fn has_other_processor() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| available_parallelism().is_ok_and(|count| 1 < count.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_looks_at_a_time() {
        let spin = Spin::default();
        if !has_other_processor() {
            assert!(spin.start().is_none());
            return;
        }
        let look = spin.start().unwrap();
        assert!(spin.start().is_none());
        look.succeeded();
        assert!(spin.start().is_some());
        assert!(spin.start().is_some(), "one that was given up leaves its place");
    }

    #[test]
    fn late_answers_are_looked_for_less_and_less_often_until_one_comes_in_time() {
        let spin = Spin::default();
        if !has_other_processor() {
            return;
        }
        let attempts_between = || {
            let mut count = 0;
            loop {
                match spin.start() {
                    Some(look) => {
                        look.failed();
                        return count;
                    }
                    None => count += 1,
                }
            }
        };
        let counts: Vec<_> = (0..14).map(|_| attempts_between()).collect();
        assert_eq!(counts[..5], [0, 0, 1, 3, 7]);
        assert_eq!(counts[13], 4095);
        while spin.start().map(Look::succeeded).is_none() {}
        assert!(spin.start().is_some());
    }
}
