//! What is known about a run of events without opening it: time range and sets of small enumerations.
//!
//! ```text
//! signed varint occurred min (ns) | varint occurred span (ns) | u8 planes | u8 outcomes | u8 trusts | varint events
//! ```
//! The sets are bit masks in the order of the contract's tables.

use activity_schema::event::{Plane, Status, Trust};
use activity_schema::{Event, Timestamp};

use crate::wire::{Reader, WireError, put_signed, put_varint};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Summary {
    pub occurred_min: Timestamp,
    pub occurred_max: Timestamp,
    pub planes: u8,
    pub outcomes: u8,
    pub trusts: u8,
    pub events: u64,
}

impl Summary {
    /// Of no events within a time range.
    pub(crate) fn empty(occurred_min: Timestamp, occurred_max: Timestamp) -> Self {
        Summary { occurred_min, occurred_max, planes: 0, outcomes: 0, trusts: 0, events: 0 }
    }

    pub(crate) fn add(&mut self, event: &Event<'_>) {
        self.planes |= plane_bit(event.plane);
        self.trusts |= trust_bit(event.source.trust);
        if let Some(outcome) = &event.outcome {
            self.outcomes |= outcome_bit(outcome.status);
        }
        self.events += 1;
    }

    pub(crate) fn merge(&mut self, other: &Summary) {
        self.occurred_min = self.occurred_min.min(other.occurred_min);
        self.occurred_max = self.occurred_max.max(other.occurred_max);
        self.planes |= other.planes;
        self.outcomes |= other.outcomes;
        self.trusts |= other.trusts;
        self.events += other.events;
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_signed(out, self.occurred_min.as_nanos());
        let span = self.occurred_max.as_nanos().abs_diff(self.occurred_min.as_nanos());
        put_varint(out, span);
        out.extend_from_slice(&[self.planes, self.outcomes, self.trusts]);
        put_varint(out, self.events);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let min = reader.signed()?;
        let max = min.checked_add_unsigned(reader.varint()?).ok_or(WireError)?;
        let [planes, outcomes, trusts] = reader.array()?;
        Ok(Summary {
            occurred_min: Timestamp::from_nanos(min),
            occurred_max: Timestamp::from_nanos(max),
            planes,
            outcomes,
            trusts,
            events: reader.varint()?,
        })
    }
}

pub(crate) fn plane_bit(plane: Plane) -> u8 {
    bit(Plane::ALL, plane)
}

pub(crate) fn outcome_bit(status: Status) -> u8 {
    bit(Status::ALL, status)
}

pub(crate) fn trust_bit(trust: Trust) -> u8 {
    bit(Trust::ALL, trust)
}

fn bit<T: PartialEq>(all: &[T], value: T) -> u8 {
    all.iter().position(|x| *x == value).map_or(0, |at| 1 << at)
}
