//! The wall clock, read at the edge and given to logic as a value.

use activity_schema::Timestamp;

/// Now; years outside 1678 to 2262 are clamped.
pub fn now() -> Timestamp {
    let nanos = jiff::Timestamp::now().as_nanosecond();
    Timestamp::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX))
}
