//! Waiting for an answer without going to sleep, where answers come at once.
//!
//! A broker nearby answers sooner than a processor that fell asleep is woken: on a virtual machine
//! each of the two sleeps of a round trip costs several times what the work does. So one of those who
//! wait for answers to sends keeps the runtime looking for them for a while, and lets other tasks run
//! in between. A broker that does not answer within that while is left alone for longer and longer.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use crate::clock::precise_now;

/// How long an answer is looked for. It bounds the processor time that a send may cost for nothing.
const SPIN_MAX: Duration = Duration::from_micros(300);

/// How long nobody looks after a second answer that came too late; twice as long after each further
/// one.
const REST_MIN: Duration = Duration::from_millis(1);
/// The longest rest. What is spent on a broker that is slow all the time is a thousandth.
const REST_MAX: Duration = Duration::from_millis(256);

/// Whether answers of one connection are worth it.
#[derive(Debug)]
pub(super) struct Spin {
    /// Somebody is looking.
    is_taken: AtomicBool,
    born: Instant,
    /// Nobody looks until then. Unit: microseconds since `born`.
    until_us: AtomicU64,
    /// The rest after the next look that fails. Unit: microseconds.
    rest_us: AtomicU64,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            is_taken: AtomicBool::default(),
            born: precise_now(),
            until_us: AtomicU64::default(),
            rest_us: AtomicU64::default(),
        }
    }
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
        self.look(precise_now())
    }

    /// Looks from now on, or gives the right back.
    fn look(&self, now: Instant) -> Option<Look<'_>> {
        let look = Look { spin: self, since: now };
        (self.until_us.load(Ordering::Relaxed) <= self.age_us(now)).then_some(look)
    }

    fn age_us(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.born).as_micros()).unwrap_or(u64::MAX)
    }
}

impl Look<'_> {
    /// Whether to go on.
    pub(super) fn is_worth_it(&self) -> bool {
        self.since.elapsed() < SPIN_MAX
    }

    /// The answer came.
    pub(super) fn succeeded(self) {
        self.spin.rest_us.store(0, Ordering::Relaxed);
    }

    /// The answer did not come in time.
    pub(super) fn failed(self) {
        self.failed_at(precise_now());
    }

    fn failed_at(self, now: Instant) {
        // Only who looks changes these.
        let spin = self.spin;
        let rest = Duration::from_micros(spin.rest_us.load(Ordering::Relaxed));
        spin.until_us.store(spin.age_us(now + rest), Ordering::Relaxed);
        let longer = (2 * rest).clamp(REST_MIN, REST_MAX);
        spin.rest_us
            .store(u64::try_from(longer.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
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
    fn after_late_answers_nobody_looks_for_longer_and_longer_until_one_comes_in_time() {
        let spin = Spin::default();
        let mut now = spin.born;
        let mut rest_after_failure = || {
            spin.look(now).unwrap().failed_at(now);
            let mut rest = Duration::ZERO;
            while spin.look(now + rest).is_none() {
                rest += REST_MIN;
            }
            now += rest;
            rest.as_millis()
        };
        let rests: Vec<_> = (0..12).map(|_| rest_after_failure()).collect();
        assert_eq!(rests, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        spin.look(now).unwrap().succeeded();
        assert!(spin.look(now).is_some());
    }
}
