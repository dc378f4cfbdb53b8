//! Deserialisers as strict, and as lenient, as the JSON Schema: no nulls, `1.0` is an integer.

use std::fmt;

use ::uuid::Uuid;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use crate::text::Text;

/// A present optional key: an explicit `null` is refused.
pub(super) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Option<T>, D::Error> {
    T::deserialize(d).map(Some)
}

fn hyphenated<E: de::Error>(text: &str) -> Result<Uuid, E> {
    if text.len() != 36 {
        return Err(E::custom("a UUID must be 36 characters, hyphenated"));
    }
    Uuid::try_parse(text).map_err(|_| E::custom("not a UUID"))
}

pub(super) mod id {
    use super::*;
    pub fn serialize<S: Serializer>(value: &Uuid, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(value.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Uuid, D::Error> {
        hyphenated(&Text::deserialize(d)?)
    }
}

pub(super) mod opt_id {
    use super::*;
    pub fn serialize<S: Serializer>(value: &Option<Uuid>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::id::serialize(value, s),
            None => s.serialize_none(),
        }
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Uuid>, D::Error> {
        super::id::deserialize(d).map(Some)
    }
}

struct Whole;

impl Visitor<'_> for Whole {
    type Value = i128;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<i128, E> {
        Ok(i128::from(v))
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<i128, E> {
        Ok(i128::from(v))
    }
    /// JSON Schema 2020-12 section 4.2.3: a number with a zero fraction is an integer.
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<i128, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if v.fract() == 0.0 && v.abs() <= EXACT {
            #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
            return Ok(v as i128);
        }
        Err(E::custom("expected an integer"))
    }
}

pub(super) fn u64<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    u64::try_from(d.deserialize_any(Whole)?).map_err(|_| de::Error::custom("must be an integer from 0"))
}

pub(super) fn opt_u64<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    u64(d).map(Some)
}

pub(super) fn opt_i64<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
    let whole = d.deserialize_any(Whole)?;
    i64::try_from(whole).map(Some).map_err(|_| de::Error::custom("integer out of range"))
}

/// A number that is not negative; written as an integer when it is whole.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Number(f64);

impl Number {
    /// `None` when negative or not finite.
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then_some(Number(value))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if self.0.fract() == 0.0 && self.0 < EXACT {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole, from 0, below 2^53"
            )]
            return s.serialize_u64(self.0 as u64);
        }
        s.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(d)?;
        Number::new(value).ok_or_else(|| de::Error::custom("must be a number from 0"))
    }
}
