//! The only place that reads a clock.
//!
//! Everything else takes the time as an argument, so that it can be tested with any time. Wall time
//! goes into records and answers; how long something took comes from the monotonic clock.
#![expect(clippy::disallowed_methods, reason = "this is the clock module")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, by the wall clock. May go back when the clock is set; the engine copes.
pub fn epoch_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The monotonic clock, for how long something took.
pub fn instant() -> Instant {
    Instant::now()
}

/// Blocks this thread. Only for start and stop, where no event can be waited for: a busy port or a
/// locked folder frees itself without telling anyone.
pub fn pause(how_long: Duration) {
    std::thread::sleep(how_long);
}
