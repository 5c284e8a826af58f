//! The one place that looks at a clock.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything may take that a healthy server does at once. Generous, since the machine may
/// be busy; a test that needs so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks `ready` until it gives a value; `None` when [`PATIENCE`] is over.
///
/// For what announces itself to nobody, such as room on a device. Events are waited for by reading
/// from the socket or pipe that brings them.
#[expect(clippy::disallowed_methods, reason = "tests have no clock that they could be given")]
pub fn poll<T>(mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `action` and tells how long it took.
#[expect(clippy::disallowed_methods, reason = "tests have no clock that they could be given")]
pub fn timed<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = action();
    (value, start.elapsed())
}
