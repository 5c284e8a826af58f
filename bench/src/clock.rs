//! Time: the only module of this crate that reads the clock.
//!
//! All latencies are differences of [`Nanos`], which come from the monotonic clock. A sender and a
//! receiver that are compared always live in one process, so one origin serves both.

#![expect(clippy::disallowed_methods, reason = "this is the clock module")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment. Unit: nanoseconds of the monotonic clock since the tool started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(u64);

impl Nanos {
    /// The moment that is `count` nanoseconds after the tool's start.
    pub(crate) const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Nanoseconds since the tool's start.
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// The moment `span` later.
    pub(crate) fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Nanoseconds from `earlier` until this moment; 0 when `earlier` is in fact later.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The monotonic clock of this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Wall-clock time in milliseconds since 1970, for message headers and report names.
pub(crate) fn epoch_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
