//! Waiting for an answer without going to sleep, where answers come at once.
//!
//! A broker nearby answers sooner than a processor that fell asleep is woken: on a virtual machine
//! each of the two sleeps of a round trip costs several times what the work does. So one of those who
//! wait for answers to sends keeps the runtime looking for them for a while, and lets other tasks run
//! in between. A broker that does not answer within that while is left alone for longer and longer.
//!
//! Only a runtime of one thread looks. Among several workers another one sees the answers, and would
//! have to share the processors with the one who looks.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task,
};

use crate::clock::precise_now;

/// How long an answer is looked for. It bounds the processor time that a send may cost for nothing.
const SPIN_MAX: Duration = Duration::from_micros(300);

/// How long nobody looks after a second answer that came too late; twice as long after each further
/// one.
const REST_MIN: Duration = Duration::from_millis(1);
/// The longest rest. What is spent on a broker that is slow all the time is a thousandth.
const REST_MAX: Duration = Duration::from_millis(256);

/// How long it looks without giving its processor away in between: an answer of a broker on another one
/// comes sooner. One on this very processor has to be let run.
const KEEP_MAX: Duration = Duration::from_micros(40);

/// The place of the one in this process who looks: several would keep each other from it.
static PLACE: Place = Place(AtomicBool::new(false));

/// Where one at a time can be.
#[derive(Debug)]
struct Place(AtomicBool);

/// Whether answers of one connection are worth it.
#[derive(Debug)]
pub(super) struct Spin {
    born: Instant,
    /// Nobody looks until then. Unit: microseconds since `born`.
    until_us: AtomicU64,
    /// The rest after the next look that fails. Unit: microseconds.
    rest_us: AtomicU64,
}

impl Default for Spin {
    fn default() -> Self {
        Self { born: precise_now(), until_us: AtomicU64::default(), rest_us: AtomicU64::default() }
    }
}

/// The right to look for answers. A look that is given up, or ends without having succeeded, counts as
/// one that failed.
pub(super) struct Look<'a> {
    spin: &'a Spin,
    place: &'a Place,
    since: Instant,
    brought_something: bool,
}

impl Spin {
    /// `None` if somebody is looking, or it is not worth it.
    pub(super) fn start(&self) -> Option<Look<'_>> {
        if PLACE.0.load(Ordering::Relaxed) || !has_other_processor() || !drives_io() {
            return None;
        }
        self.look(precise_now(), &PLACE)
    }

    fn look<'a>(&'a self, now: Instant, place: &'a Place) -> Option<Look<'a>> {
        let rests = self.until_us.load(Ordering::Relaxed) > self.age_us(now);
        if rests || place.0.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Look { spin: self, place, since: now, brought_something: false })
    }

    fn age_us(&self, now: Instant) -> u64 {
        us(now.duration_since(self.born))
    }

    /// Answers that came in time make up for late ones one by one: where some of both come all the
    /// time, it is not worth it.
    fn succeeded(&self) {
        let less = self.rest_us.load(Ordering::Relaxed) / 2;
        self.rest_us.store(if less < us(REST_MIN) { 0 } else { less }, Ordering::Relaxed);
    }

    fn failed(&self, now: Instant) {
        let rest = Duration::from_micros(self.rest_us.load(Ordering::Relaxed));
        self.until_us.store(self.age_us(now + rest), Ordering::Relaxed);
        self.rest_us.store(us((2 * rest).clamp(REST_MIN, REST_MAX)), Ordering::Relaxed);
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Look<'_> {
    /// Whether to go on. Lets others have the processor when it takes long.
    pub(super) fn goes_on(&self) -> bool {
        let for_now = self.since.elapsed();
        if KEEP_MAX < for_now {
            std::thread::yield_now();
        }
        for_now < SPIN_MAX
    }

    /// The answer came.
    pub(super) fn succeeded(mut self) {
        self.brought_something = true;
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        if self.brought_something {
            self.spin.succeeded();
        } else {
            self.spin.failed(precise_now());
        }
        self.place.0.store(false, Ordering::Relaxed);
    }
}

/// On a single processor the broker may need the very one that would look.
fn has_other_processor() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| available_parallelism().is_ok_and(|count| 1 < count.get()))
}

/// Whether this thread is the one that sees the connection's answers. Among several workers another one
/// does, and has to be woken for them anyway.
fn drives_io() -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    match runtime.runtime_flavor() {
        RuntimeFlavor::CurrentThread => true,
        // Beside the only worker there is the thread that waits for the runtime's main task.
        _ => runtime.metrics().num_workers() == 1 && task::try_id().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_looks_at_a_time() {
        let (one, other, place) = (Spin::default(), Spin::default(), Place(AtomicBool::new(false)));
        let look = one.look(one.born, &place).unwrap();
        assert!(other.look(other.born, &place).is_none());
        look.succeeded();
        drop(other.look(other.born, &place).expect("the place is free"));
        assert!(one.look(one.born, &place).is_some(), "one that was given up leaves it, too");
    }

    #[test]
    fn nobody_looks_for_longer_and_longer_while_answers_come_late() {
        let spin = Spin::default();
        let rest_at = |now: Instant| {
            let left = spin.until_us.load(Ordering::Relaxed).saturating_sub(spin.age_us(now));
            left / 1000
        };
        let rests: Vec<_> = (0..12)
            .map(|_| {
                spin.failed(spin.born);
                rest_at(spin.born)
            })
            .collect();
        assert_eq!(rests, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        let place = Place(AtomicBool::new(false));
        assert!(spin.look(spin.born, &place).is_none());
        let later = spin.born + REST_MAX;
        assert!(spin.look(later, &place).is_some());
        // Each answer in time halves the rest, until there is none.
        (0..2).for_each(|_| spin.succeeded());
        spin.failed(later);
        assert_eq!(rest_at(later), 64);
        (0..8).for_each(|_| spin.succeeded());
        spin.failed(later);
        assert_eq!(rest_at(later), 0);
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_sees_its_own_answers() {
        assert!(drives_io());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_only_worker_sees_them_and_the_main_task_does_not() {
        assert!(!drives_io());
        assert!(tokio::spawn(async { drives_io() }).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_of_several_workers_may_not_be_the_one() {
        assert!(!tokio::spawn(async { drives_io() }).await.unwrap());
    }
}
