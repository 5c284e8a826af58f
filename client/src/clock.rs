//! The only place that reads the machine's clock.
//!
//! Wall-clock time goes into messages and ids. How long something took, and when a request's time
//! is up, comes from `tokio::time::Instant`, which the tests can stop.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const DAY_MS: i64 = 86_400_000;

/// Milliseconds since 1970, by the wall clock.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn epoch_ms() -> i64 {
    to_epoch_ms(SystemTime::now())
}

/// Now, for what takes microseconds: no test can stop it.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn precise_now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970; 0 for earlier times, the last representable one for later times.
pub(crate) fn to_epoch_ms(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time that lies this many milliseconds after 1970; 1970 itself for negative numbers.
pub(crate) fn from_epoch_ms(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// Milliseconds from the start of the month, in UTC, that the given time lies in.
pub(crate) fn ms_into_month(epoch_ms: i64) -> i64 {
    let days = epoch_ms.div_euclid(DAY_MS);
    // Count days from 1 March of year 0, so that a leap day is the last day of its year: then the
    // lengths of months repeat in groups of 153 days per five months.
    let day_of_era = (days + 719_468).rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let days_into_month = day_of_year - (153 * month + 2) / 5;
    days_into_month * DAY_MS + epoch_ms.rem_euclid(DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_start_where_calendars_say() {
        for (epoch_ms, days, ms) in [
            (0, 0, 0),
            (1_709_164_800_000, 28, 0), // 2024-02-29
            (1_709_251_199_999, 28, DAY_MS - 1),
            (1_709_251_200_000, 0, 0),  // 2024-03-01
            (1_798_761_600_000, 0, 0),  // 2027-01-01
            (1_798_675_200_001, 30, 1), // 2026-12-31
            (951_782_400_000, 28, 0),   // 2000-02-29
        ] {
            assert_eq!(ms_into_month(epoch_ms), days * DAY_MS + ms, "at {epoch_ms}");
        }
    }

    #[test]
    fn times_and_milliseconds_agree() {
        assert_eq!(to_epoch_ms(from_epoch_ms(1_700_000_000_123)), 1_700_000_000_123);
        assert_eq!(to_epoch_ms(from_epoch_ms(-5)), 0);
        assert!(epoch_ms() > 1_700_000_000_000);
    }
}
