//! The only place of the engine that reads a clock: for shards that run on threads of the engine's
//! own. Everything else takes the time as an argument.
#![expect(clippy::disallowed_methods, reason = "this is the clock module")]

use std::time::{SystemTime, UNIX_EPOCH};

use crate::units::EpochMillis;

pub(super) fn now() -> EpochMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EpochMillis::new(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
