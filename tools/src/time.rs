//! Times as people write them: `2026-01-31T12:00:00.000Z`, always UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_S: i64 = 86_400;

/// Milliseconds since 1970.
pub(crate) fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time in UTC, to the millisecond.
pub(crate) fn to_text(time: SystemTime) -> String {
    let ms = i64::try_from(epoch_ms(time)).unwrap_or(i64::MAX);
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (year, month, day) = date(seconds.div_euclid(DAY_S));
    let second = seconds.rem_euclid(DAY_S);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Reads milliseconds since 1970, or `YYYY-MM-DDThh:mm:ss[.mmm]Z`.
///
/// # Errors
///
/// What the text should look like.
pub(crate) fn parse(text: &str) -> Result<SystemTime, String> {
    let ms = text.parse().ok().or_else(|| parse_date_time(text));
    ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms)).ok_or_else(|| {
        "expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z".into()
    })
}

fn parse_date_time(text: &str) -> Option<u64> {
    let (date_text, time_text) = text.strip_suffix('Z')?.split_once('T')?;
    let (clock, ms) = time_text.split_once('.').unwrap_or((time_text, "0"));
    let ms: u64 = format!("{ms:0<3}").parse().ok().filter(|ms| *ms < 1000)?;
    let [year, month, day] = numbers(date_text, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let days = days_since_1970(year, month, day);
    let is_date = date(days) == (year, month, day);
    let is_clock =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
    if !is_date || !is_clock {
        return None;
    }
    let seconds = days * DAY_S + hour * 3600 + minute * 60 + second;
    Some(u64::try_from(seconds).ok()? * 1000 + ms)
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let numbers: Option<Vec<i64>> =
        text.split(separator).map(|part| part.parse::<u16>().ok().map(i64::from)).collect();
    numbers?.try_into().ok()
}

/// Year, month and day of a day in the Gregorian calendar, counted from 1970.
///
/// Years are counted from March, so that a leap day is the last of its year.
fn date(days: i64) -> (i64, i64, i64) {
    let (era, day_of_era) =
        ((days + 719_468).div_euclid(146_097), (days + 719_468).rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The reverse of [`date`]; for numbers that are no date it gives the day of some other one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_back() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_798_761_599_123, "2026-12-31T23:59:59.123Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(ms);
            assert_eq!(to_text(time), text);
            assert_eq!(parse(text), Ok(time));
            assert_eq!(parse(&ms.to_string()), Ok(time));
        }
        assert_eq!(parse("2024-03-01T00:00:00Z"), parse("1709251200000"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in [
            "",
            "now",
            "-1",
            "2024-02-30T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01",
            "2024-01-01T00:00:00.1234Z",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
