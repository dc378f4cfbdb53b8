//! The event catalogue: one row an event name, one entry a payload field. The table is generated from
//! `schema/catalog/*.toml` by `cargo xtask codegen`.

mod table;

pub use table::{EVENTS, FIELDS};

use crate::batch::Class;
use crate::event::{CorrelationKey, Layer, Plane, Retention, Trust, Value};

/// What an event name means and what its records may carry.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    pub plane: Plane,
    pub class: Class,
    pub retention: Retention,
    /// Layers that may emit it.
    pub layers: &'static [Layer],
    /// Trusts that it may carry.
    pub trusts: &'static [Trust],
    /// Correlation beyond tenant, host, instance and agent.
    pub requires: &'static [CorrelationKey],
    /// May be submitted on the agent's socket.
    pub socket: bool,
    pub state: State,
    /// Indexes into [`FIELDS`], in ascending order.
    pub payload: &'static [u16],
    pub doc: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Active,
    /// The name is taken; nothing emits it yet.
    Reserved,
    /// Still read; no longer emitted.
    Deprecated,
}

/// A payload key: its type and bound.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: FieldKind,
    pub doc: &'static str,
}

#[derive(Debug)]
pub enum FieldKind {
    Integer,
    Number,
    Boolean,
    /// At most so many bytes.
    Text(usize),
    /// At most so many strings of at most [`LIST_TEXT_BYTES_MAX`] bytes.
    Texts(usize),
    /// At most so many objects with exactly these optional keys.
    Objects(usize, &'static [(&'static str, FieldKind)]),
}

/// Longest string inside a list.
pub const LIST_TEXT_BYTES_MAX: usize = 256;

impl Row {
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.payload.iter().map(|i| &FIELDS[usize::from(*i)])
    }

    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields().find(|f| f.name == key)
    }
}

/// The row of an event name.
pub fn row(name: &str) -> Option<&'static Row> {
    EVENTS.binary_search_by(|r| r.name.cmp(name)).ok().map(|i| &EVENTS[i])
}

/// The class that a name is sequenced under; names outside the catalogue are `standard`.
pub fn class_of(name: &str) -> Class {
    row(name).map_or(Class::Standard, |r| r.class)
}

impl FieldKind {
    /// Whether the value has this type and stays within the bound.
    pub fn admits(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (FieldKind::Integer, Value::Int(_) | Value::UInt(_))
            | (FieldKind::Number, Value::Int(_) | Value::UInt(_) | Value::Float(_))
            | (FieldKind::Boolean, Value::Bool(_)) => true,
            (FieldKind::Text(max), Value::Text(t)) => t.len() <= *max,
            (FieldKind::Texts(max), Value::List(items)) => {
                items.len() <= *max
                    && items.iter().all(|i| i.as_str().is_some_and(|t| t.len() <= LIST_TEXT_BYTES_MAX))
            }
            (FieldKind::Objects(max, keys), Value::List(items)) => {
                items.len() <= *max
                    && items.iter().all(|item| match item {
                        Value::Object(o) => o
                            .iter()
                            .all(|(k, v)| keys.iter().any(|(name, kind)| *name == k && kind.admits(v))),
                        _ => false,
                    })
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest value of each kind that the catalogue has, and one that is a step larger.
    #[test]
    fn every_text_list_and_object_is_bounded() {
        let texts = |n, len| Value::List(vec![Value::from("x".repeat(len)); n]);
        let object = |key, value| {
            let mut object = crate::event::Payload::new();
            object.set(key, value);
            Value::Object(object)
        };
        let objects = |n| Value::List(vec![object("class", Value::from("x")); n]);
        let class = |key, value| Value::List(vec![object(key, value)]);
        for (field, largest, larger) in [
            ("executable", Value::from("x".repeat(256)), Value::from("x".repeat(257))),
            ("executable_path", Value::from("x".repeat(4_096)), Value::from("x".repeat(4_097))),
            ("flags", texts(64, 1), texts(65, 1)),
            ("flags", texts(1, 256), texts(1, 257)),
            ("classes", objects(64), objects(65)),
            ("classes", class("reason", "x".repeat(256).into()), class("reason", "x".repeat(257).into())),
            ("classes", class("probes", texts(64, 256)), class("probes", texts(64, 257))),
            ("classes", class("state", "x".into()), class("other", "x".into())),
        ] {
            let kind = &FIELDS.iter().find(|f| f.name == field).unwrap().kind;
            assert!(kind.admits(&largest), "{field}");
            assert!(!kind.admits(&larger), "{field}");
        }
        for field in FIELDS {
            let larger = [Value::from("x".repeat(4_097)), texts(65, 1), texts(1, 257), objects(65)];
            assert!(!larger.iter().any(|value| field.kind.admits(value)), "{}", field.name);
        }
    }
}
