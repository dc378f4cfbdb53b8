//! Admission: a valid event is admitted only when the catalogue allows it and it belongs where it was sent.
//!
//! The same checks run at the source before an event is spooled and at the gateway before it is stored.

use crate::batch::BatchHeader;
use crate::catalog::{self, Row, State};
use crate::event::{CorrelationKey, Event, Sensitivity};

/// Why an event is not admitted. The text names the key and never repeats a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Envelope(String),
    #[error("event_name is not in the catalogue")]
    UnknownName,
    #[error("event_name is reserved: nothing may emit it yet")]
    Reserved,
    #[error("plane is not the catalogue's")]
    Plane,
    #[error("source.layer may not emit this event")]
    Layer,
    #[error("source.trust may not be carried by this event")]
    Trust,
    #[error("sensitivity is not metadata")]
    Sensitivity,
    #[error("retention_class is not the catalogue's")]
    Retention,
    #[error("correlation.{0} is required")]
    Correlation(&'static str),
    #[error("{0} is longer than {TEXT_BYTES_MAX} bytes")]
    TooLong(&'static str),
    #[error("the event is longer than a line may be")]
    LineTooLong,
    #[error("payload.{0} is not on the allowlist")]
    PayloadKey(String),
    #[error("payload.{0} has another type or is too long")]
    PayloadValue(&'static str),
    #[error("{0} does not belong to the batch")]
    Foreign(&'static str),
    #[error("integrity.collector_sequence is not {expected}")]
    Sequence { expected: u64 },
}

/// Longest text outside the payload, bytes: ids, entity types, reasons.
pub const TEXT_BYTES_MAX: usize = 512;

/// Checks an event against its catalogue row; returns the row.
pub fn admit(event: &Event<'_>) -> Result<&'static Row, Refusal> {
    let row = catalog::row(&event.event_name).ok_or(Refusal::UnknownName)?;
    if row.state == State::Reserved {
        return Err(Refusal::Reserved);
    }
    admit_known(event, row)?;
    Ok(row)
}

fn admit_known(event: &Event<'_>, row: &Row) -> Result<(), Refusal> {
    let require = |ok: bool, refusal| if ok { Ok(()) } else { Err(refusal) };
    require(event.plane == row.plane, Refusal::Plane)?;
    require(row.layers.contains(&event.source.layer), Refusal::Layer)?;
    require(row.trusts.contains(&event.source.trust), Refusal::Trust)?;
    require(event.sensitivity == Sensitivity::Metadata, Refusal::Sensitivity)?;
    require(event.retention_class == row.retention, Refusal::Retention)?;
    for key in row.requires {
        let present = event.correlation.get(*key).is_some_and(|t| !t.is_empty());
        require(present, Refusal::Correlation(key.as_str()))?;
    }
    admit_texts(event)?;
    admit_payload(row, event)
}

/// What can be asked of an event whose name is not in this catalogue: a newer collector may have it in its own, and has
/// admitted it there.
fn admit_unknown(event: &Event<'_>) -> Result<(), Refusal> {
    if event.sensitivity != Sensitivity::Metadata {
        return Err(Refusal::Sensitivity);
    }
    admit_texts(event)
}

/// Checks the bound of every text outside the payload.
fn admit_texts(event: &Event<'_>) -> Result<(), Refusal> {
    for key in CorrelationKey::ALL {
        if event.correlation.get(*key).is_some_and(|t| t.len() > TEXT_BYTES_MAX) {
            return Err(Refusal::TooLong(key.as_str()));
        }
    }
    for entity in [&event.actor, &event.target].into_iter().flatten() {
        if entity.kind.len() > TEXT_BYTES_MAX || entity.id.len() > TEXT_BYTES_MAX {
            return Err(Refusal::TooLong("actor or target"));
        }
    }
    let reason = event.outcome.as_ref().and_then(|o| o.reason.as_ref());
    if reason.is_some_and(|t| t.len() > TEXT_BYTES_MAX) {
        return Err(Refusal::TooLong("outcome.reason"));
    }
    Ok(())
}

/// Checks the payload against the row's closed allowlist.
fn admit_payload(row: &Row, event: &Event<'_>) -> Result<(), Refusal> {
    /// Longest part of an unknown key that an error repeats: keys may be chosen by a hostile source.
    const KEY_SHOWN_MAX: usize = 64;
    for (key, value) in event.payload.iter() {
        let Some(field) = row.field(key) else {
            return Err(Refusal::PayloadKey(key.chars().take(KEY_SHOWN_MAX).collect()));
        };
        if !field.kind.admits(value) {
            return Err(Refusal::PayloadValue(field.name));
        }
    }
    Ok(())
}

/// Checks that the event at `position` of a batch belongs to it: stream, sequence, tenant, host. Returns the catalogue's
/// row, or `None` for a name that the catalogue does not know: such events are kept too (contract, "Envelope"). A name
/// that is reserved here may be active where the event was made.
///
/// `stream` is the text of the header's stream, made once a batch by the caller.
pub fn admit_in_batch(
    event: &Event<'_>,
    header: &BatchHeader,
    stream: &str,
    position: u64,
) -> Result<Option<&'static Row>, Refusal> {
    let expected = header.first_sequence + position;
    if event.integrity.collector_sequence != expected {
        return Err(Refusal::Sequence { expected });
    }
    let require = |ok: bool, what| if ok { Ok(()) } else { Err(Refusal::Foreign(what)) };
    require(event.source.collector == *stream, "source.collector")?;
    require(event.correlation.tenant_id == *header.tenant.as_str(), "correlation.tenant_id")?;
    require(event.correlation.host_id == *header.host.as_str(), "correlation.host_id")?;
    let time_ok = (header.occurred_min..=header.occurred_max).contains(&event.occurred_at);
    require(time_ok, "occurred_at")?;
    let Some(row) = catalog::row(&event.event_name) else { return admit_unknown(event).map(|()| None) };
    admit_known(event, row)?;
    require(row.class == header.class, "event class")?;
    Ok(Some(row))
}
