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
