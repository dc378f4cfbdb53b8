//! Times as people type them.

use activity_schema::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::CliError;
use crate::config::parse_duration;

/// RFC 3339, a date (midnight UTC), `now`, or an age such as `-15m`, `-2h 30m`, `-3d`.
pub(super) fn parse(text: &str, now: Timestamp) -> Result<Timestamp, CliError> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(age) = text.strip_prefix('-').and_then(parse_age) {
        return Ok(now.saturating_add_nanos(age.saturating_neg()));
    }
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    if text.parse::<jiff::Timestamp>().is_ok() || text.len() == 10 && text.parse::<Date>().is_ok() {
        let (first, last) = (Timestamp::MIN, Timestamp::MAX);
        let midnight = text.parse::<Date>().ok().and_then(|date| date.to_zoned(TimeZone::UTC).ok());
        let at = midnight.and_then(|z| i64::try_from(z.timestamp().as_nanosecond()).ok());
        return at.map(Timestamp::from_nanos).ok_or_else(|| {
            CliError::Usage(format!("{text:?} is out of range: times are kept from {first} to {last}"))
        });
    }
    Err(CliError::Usage(format!(
        "{text:?} is not a time: use RFC 3339 (2026-08-01T12:00:00Z), a date, now, or an age such as -15m"
    )))
}

/// Nanoseconds. Days are 24 hours.
fn parse_age(text: &str) -> Option<i64> {
    const DAY_NS: i64 = 86_400_000_000_000;
    if let Some(days) = text.strip_suffix('d').and_then(|d| d.parse::<u16>().ok()) {
        return Some(i64::from(days) * DAY_NS);
    }
    i64::try_from(parse_duration(text)?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_type_them() {
        let now: Timestamp = "2026-08-01T12:00:00Z".parse().unwrap();
        let at = |text| parse(text, now).map(|t| t.to_string()).map_err(|e| e.to_string());
        assert_eq!(at("now").unwrap(), "2026-08-01T12:00:00Z");
        assert_eq!(at("-15m").unwrap(), "2026-08-01T11:45:00Z");
        assert_eq!(at("-2h 30m").unwrap(), "2026-08-01T09:30:00Z");
        assert_eq!(at("-3d").unwrap(), "2026-07-29T12:00:00Z");
        assert_eq!(at("2026-07-31").unwrap(), "2026-07-31T00:00:00Z");
        assert_eq!(at("2026-08-01T14:00:00.5+02:00").unwrap(), "2026-08-01T12:00:00.5Z");
        for early in ["0001-01-01", "0001-01-01T00:00:00Z", "9000-01-01"] {
            assert!(at(early).unwrap_err().contains("is out of range: times are kept from 1677-"), "{early}");
        }
        for bad in ["", "-", "15m", "yesterday", "2026-13-01", "-15", "2026-08-01T12:00"] {
            assert!(at(bad).unwrap_err().contains("is not a time"), "{bad}");
        }
    }
}
