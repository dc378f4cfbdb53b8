//! Wall-clock instants with nanoseconds, as RFC 3339 in JSON.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

/// Nanoseconds since 1970-01-01T00:00:00Z. Range: years 1678 to 2262.
///
/// Text form: RFC 3339 section 5.6; written in UTC with as many fractional digits as are not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// The text is not an RFC 3339 date-time, or lies outside the range of [`Timestamp`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 date-time between the years 1678 and 2262")]
pub struct TimestampError;

impl Timestamp {
    pub const MIN: Timestamp = Timestamp(i64::MIN);
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    pub const fn from_nanos(nanos: i64) -> Self {
        Timestamp(nanos)
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    pub const fn saturating_add_nanos(self, nanos: i64) -> Self {
        Timestamp(self.0.saturating_add(nanos))
    }

    /// Appends the text form.
    pub fn write(self, out: &mut Vec<u8>) {
        if !write_usual_form(self.0, out) {
            out.extend_from_slice(self.to_string().as_bytes());
        }
    }

    /// `self - earlier` in nanoseconds, saturating; negative when `earlier` is later.
    pub const fn nanos_since(self, earlier: Timestamp) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(t) => fmt::Display::fmt(&t, f),
            Err(_) => Err(fmt::Error),
        }
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        if let Some(timestamp) = usual_form(text.as_bytes()) {
            return Ok(timestamp);
        }
        if !is_rfc3339_shape(text.as_bytes()) {
            return Err(TimestampError);
        }
        let parsed: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        i64::try_from(parsed.as_nanosecond()).map(Timestamp).map_err(|_| TimestampError)
    }
}

/// Writes a time of the years 1970 to 2261 without `jiff`; `false` for any other.
fn write_usual_form(nanos: i64, out: &mut Vec<u8>) -> bool {
    const DAY_S: u64 = 86_400;
    const END_2261_S: u64 = 9_214_646_400;
    let Ok(nanos) = u64::try_from(nanos) else { return false };
    let (seconds, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if seconds >= END_2261_S {
        return false;
    }
    // Years from March on, in eras of 400: days of a month then follow a line (Hinnant, "chrono-Compatible Low-Level
    // Date Algorithms", civil_from_days).
    let shifted = seconds / DAY_S + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let of_day = seconds % DAY_S;
    let mut text = *b"0000-00-00T00:00:00.000000000Z";
    let parts = [(0, 4, year), (5, 2, month), (8, 2, day), (11, 2, of_day / 3_600)];
    let rest = [(14, 2, of_day / 60 % 60), (17, 2, of_day % 60), (20, 9, fraction)];
    for (at, digits, mut value) in parts.into_iter().chain(rest) {
        for place in (at..at + digits).rev() {
            text[place] = b'0' + u8::try_from(value % 10).unwrap_or(0);
            value /= 10;
        }
    }
    let digits = text[20..29].iter().rposition(|d| *d != b'0').map_or(0, |last| last + 1);
    out.extend_from_slice(&text[..if digits == 0 { 19 } else { 20 + digits }]);
    out.push(b'Z');
    true
}

/// `YYYY-MM-DDTHH:MM:SS[.fraction]Z` of the years 1970 to 2261, without a leap second: the form that is written, read
/// without `jiff`. Everything else, also what is wrong, is left to it.
fn usual_form(b: &[u8]) -> Option<Timestamp> {
    const DAYS_BEFORE: [u16; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    const DAYS: [u8; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let (head, fraction) = (b.get(..19)?, b.get(19..)?.strip_suffix(b"Z")?);
    let form = head[4] == b'-' && head[7] == b'-' && head[10] == b'T' && head[13] == b':' && head[16] == b':';
    let two = |at: usize| {
        let (tens, ones) = (head[at].wrapping_sub(b'0'), head[at + 1].wrapping_sub(b'0'));
        (tens < 10 && ones < 10).then(|| i64::from(tens * 10 + ones))
    };
    let year = two(0)? * 100 + two(2)?;
    let (month, day) = (usize::try_from(two(5)?).ok()?.checked_sub(1)?, two(8)?);
    let (hour, minute, second) = (two(11)?, two(14)?, two(17)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = i64::from(*DAYS.get(month)?) + i64::from(leap && month == 1);
    if !form
        || !(1970..=2261).contains(&year)
        || !(1..=days).contains(&day)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    let nanos = match fraction {
        [] => 0,
        [b'.', digits @ ..] if (1..=9).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) => {
            let value = digits.iter().fold(0i64, |n, digit| n * 10 + i64::from(digit - b'0'));
            (digits.len()..9).fold(value, |n, _| n * 10)
        }
        _ => return None,
    };
    // Leap days of the years before: from 1969 on, none is counted before 1972.
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    let in_year = i64::from(DAYS_BEFORE[month]) + i64::from(leap && month > 1) + day - 1;
    let seconds = (((year - 1970) * 365 + leap_days + in_year) * 24 + hour) * 3600 + minute * 60 + second;
    Some(Timestamp(seconds * 1_000_000_000 + nanos))
}

/// `jiff` also reads RFC 9557 and ISO 8601 variants; the contract admits RFC 3339 only.
fn is_rfc3339_shape(b: &[u8]) -> bool {
    let digits = |range: std::ops::Range<usize>| b[range].iter().all(u8::is_ascii_digit);
    if b.len() < 20
        || !(digits(0..4)
            && digits(5..7)
            && digits(8..10)
            && digits(11..13)
            && digits(14..16)
            && digits(17..19))
        || !(b[4] == b'-' && b[7] == b'-' && b[13] == b':' && b[16] == b':' && matches!(b[10], b'T' | b't'))
    {
        return false;
    }
    let mut i = 19;
    if b[i] == b'.' {
        let start = i + 1;
        i = start;
        while i < b.len() && b[i].is_ascii_digit() {
            i += 1;
        }
        if i == start || i - start > 9 {
            return false;
        }
    }
    match &b[i..] {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|d| d.is_ascii_digit()),
        _ => false,
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = crate::text::Text::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_only() {
        for ok in [
            "2026-08-01T12:00:00Z",
            "2026-08-01T12:00:00.123456789Z",
            "2026-08-01t12:00:00z",
            "2026-08-01T12:00:00.5+02:00",
            "2016-12-31T23:59:60Z",
        ] {
            assert!(ok.parse::<Timestamp>().is_ok(), "{ok}");
        }
        for bad in [
            "2026-08-01 12:00:00Z",
            "2026-08-01T12:00Z",
            "2026-08-01T12:00:00",
            "2026-08-01T12:00:00.Z",
            "2026-08-01T12:00:00Z[UTC]",
            "2026-13-01T12:00:00Z",
            "20260801T120000Z",
            "",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
    }

    fn by_jiff(text: &str) -> Option<i64> {
        if !is_rfc3339_shape(text.as_bytes()) {
            return None;
        }
        i64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_nanosecond()).ok()
    }

    #[test]
    fn every_day_is_read_as_jiff_reads_it() {
        for year in 1960..2270 {
            for (month, day) in (0..=13).flat_map(|m| (0..=32).map(move |d| (m, d))) {
                let text = format!("{year}-{month:02}-{day:02}T23:59:01.5Z");
                assert_eq!(text.parse::<Timestamp>().ok().map(Timestamp::as_nanos), by_jiff(&text), "{text}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn texts_are_read_as_jiff_reads_them(
            text in "(19|20|22|[0-9]{2})[0-9]{2}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{0,10})?(Z|z|\\+00:00|-01:30|)"
        ) {
            proptest::prop_assert_eq!(text.parse::<Timestamp>().ok().map(Timestamp::as_nanos), by_jiff(&text));
        }

        #[test]
        fn what_is_written_is_read_again(nanos: i64) {
            let text = Timestamp::from_nanos(nanos).to_string();
            let mut written = Vec::new();
            Timestamp::from_nanos(nanos).write(&mut written);
            proptest::prop_assert_eq!(&text, std::str::from_utf8(&written).unwrap(), "as jiff writes it");
            proptest::prop_assert_eq!(text.parse::<Timestamp>().unwrap().as_nanos(), nanos);
        }
    }

    #[test]
    fn every_day_is_written_as_jiff_writes_it() {
        const DAY_NS: i64 = 86_400_000_000_000;
        let first_of_2262 = 9_214_646_400_000_000_000;
        for nanos in (0..=first_of_2262 / DAY_NS).flat_map(|d| [d * DAY_NS, d * DAY_NS - 1, d * DAY_NS + 500])
        {
            let mut written = Vec::new();
            Timestamp::from_nanos(nanos).write(&mut written);
            assert_eq!(Timestamp::from_nanos(nanos).to_string().as_bytes(), written);
        }
    }

    #[test]
    fn nanoseconds_survive() {
        let t: Timestamp = "2026-08-01T12:00:00.000000001Z".parse().unwrap();
        assert_eq!(t.as_nanos(), 1_785_585_600_000_000_001);
        assert_eq!(t.to_string(), "2026-08-01T12:00:00.000000001Z");
        let offset: Timestamp = "2026-08-01T14:00:00.000000001+02:00".parse().unwrap();
        assert_eq!(offset, t);
    }

    #[test]
    fn times_reach_from_1678_to_2262() {
        for (text, ok) in [
            ("1678-01-01T00:00:00Z", true),
            ("1677-01-01T00:00:00Z", false),
            ("2261-12-31T23:59:59.999999999Z", true),
            ("2262-04-11T23:47:16Z", true),
            ("2263-01-01T00:00:00Z", false),
        ] {
            assert_eq!(text.parse::<Timestamp>().is_ok(), ok, "{text}");
        }
    }
}
