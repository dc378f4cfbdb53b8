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
        if !is_rfc3339_shape(text.as_bytes()) {
            return Err(TimestampError);
        }
        let parsed: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        i64::try_from(parsed.as_nanosecond()).map(Timestamp).map_err(|_| TimestampError)
    }
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

    #[test]
    fn nanoseconds_survive() {
        let t: Timestamp = "2026-08-01T12:00:00.000000001Z".parse().unwrap();
        assert_eq!(t.as_nanos(), 1_785_585_600_000_000_001);
        assert_eq!(t.to_string(), "2026-08-01T12:00:00.000000001Z");
        let offset: Timestamp = "2026-08-01T14:00:00.000000001+02:00".parse().unwrap();
        assert_eq!(offset, t);
    }
}
