//! The payload: an object of bounded plain values, borrowed from the line.

use std::fmt;

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};

use crate::text::Text;

/// A JSON value. Integers stay integers.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Only values above `i64::MAX`.
    UInt(u64),
    Float(f64),
    Text(Text<'a>),
    List(Vec<Value<'a>>),
    Object(Payload<'a>),
}

/// An object whose keys are unique; order is kept.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Payload<'a>(Vec<(Text<'a>, Value<'a>)>);

impl<'a> Payload<'a> {
    pub fn new() -> Self {
        const USUAL_KEYS: usize = 16;
        Payload(Vec::with_capacity(USUAL_KEYS))
    }

    /// Entries whose keys are known to be distinct.
    pub(super) fn from_distinct(entries: Vec<(Text<'a>, Value<'a>)>) -> Self {
        Payload(entries)
    }

    /// Adds or replaces a value.
    pub fn set(&mut self, key: impl Into<Text<'a>>, value: impl Into<Value<'a>>) -> &mut Self {
        let (key, value) = (key.into(), value.into());
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, slot)) => *slot = value,
            None => self.0.push((key, value)),
        }
        self
    }

    /// Adds a value if there is one.
    pub fn set_some(&mut self, key: impl Into<Text<'a>>, value: Option<impl Into<Value<'a>>>) -> &mut Self {
        if let Some(value) = value {
            self.set(key, value);
        }
        self
    }

    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    pub fn integer(&self, key: &str) -> Option<i64> {
        self.get(key).and_then(Value::as_i64)
    }

    pub fn remove(&mut self, key: &str) -> Option<Value<'a>> {
        let at = self.0.iter().position(|(k, _)| k == key)?;
        Some(self.0.remove(at).1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Value<'_> {
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(t) => Some(t),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(i) => Some(*i),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(v: &'a str) -> Self {
        Value::Text(v.into())
    }
}
impl From<String> for Value<'_> {
    fn from(v: String) -> Self {
        Value::Text(v.into())
    }
}
impl<'a> From<Text<'a>> for Value<'a> {
    fn from(v: Text<'a>) -> Self {
        Value::Text(v)
    }
}
impl From<bool> for Value<'_> {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}
impl From<i64> for Value<'_> {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}
impl From<i32> for Value<'_> {
    fn from(v: i32) -> Self {
        Value::Int(i64::from(v))
    }
}
impl From<u32> for Value<'_> {
    fn from(v: u32) -> Self {
        Value::Int(i64::from(v))
    }
}
impl From<u64> for Value<'_> {
    fn from(v: u64) -> Self {
        i64::try_from(v).map_or(Value::UInt(v), Value::Int)
    }
}
impl From<f64> for Value<'_> {
    fn from(v: f64) -> Self {
        Value::Float(v)
    }
}
impl<'a, T: Into<Value<'a>>> From<Vec<T>> for Value<'a> {
    fn from(v: Vec<T>) -> Self {
        Value::List(v.into_iter().map(Into::into).collect())
    }
}
impl<'a> From<Payload<'a>> for Value<'a> {
    fn from(v: Payload<'a>) -> Self {
        Value::Object(v)
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => s.serialize_unit(),
            Value::Bool(b) => s.serialize_bool(*b),
            Value::Int(i) => s.serialize_i64(*i),
            Value::UInt(u) => s.serialize_u64(*u),
            Value::Float(f) => s.serialize_f64(*f),
            Value::Text(t) => s.serialize_str(t),
            Value::List(items) => items.serialize(s),
            Value::Object(o) => o.serialize(s),
        }
    }
}

impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for (k, v) in &self.0 {
            map.serialize_entry(k, v)?;
        }
        map.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Payload<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Payload<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Payload<'de>, A::Error> {
                object(map)
            }
        }
        d.deserialize_map(ObjectVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct AnyVisitor;
        impl<'de> Visitor<'de> for AnyVisitor {
            type Value = Value<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Value<'de>, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E: de::Error>(self, v: bool) -> Result<Value<'de>, E> {
                Ok(v.into())
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Value<'de>, E> {
                Ok(v.into())
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Value<'de>, E> {
                Ok(v.into())
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value<'de>, E> {
                Ok(v.into())
            }
            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Value<'de>, E> {
                Ok(v.into())
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Value<'de>, E> {
                Ok(v.to_owned().into())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value<'de>, A::Error> {
                object(map).map(Value::Object)
            }
        }
        d.deserialize_any(AnyVisitor)
    }
}

fn object<'de, A: MapAccess<'de>>(mut map: A) -> Result<Payload<'de>, A::Error> {
    /// Below this many keys a linear look-up is cheaper than a set.
    const LINEAR_KEYS_MAX: usize = 32;
    let mut entries: Vec<(Text<'de>, Value<'de>)> = Vec::new();
    while let Some(key) = map.next_key::<Text<'de>>()? {
        if entries.len() < LINEAR_KEYS_MAX && entries.iter().any(|(k, _)| *k == key) {
            return Err(de::Error::custom(format_args!("duplicate key {key:?}")));
        }
        entries.push((key, map.next_value()?));
    }
    if entries.len() > LINEAR_KEYS_MAX {
        let mut keys: Vec<&str> = entries.iter().map(|(k, _)| k.as_str()).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(de::Error::custom(format_args!("duplicate key {:?}", pair[0])));
        }
    }
    Ok(Payload(entries))
}
