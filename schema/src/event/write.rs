//! Writes the canonical line: what `serde_json` writes of an [`Event`], key by key, in fewer and larger steps.

use uuid::Uuid;

use super::{Correlation, Entity, Event, Integrity, Outcome, Payload, Source, Value};
use crate::text::Text;

pub(super) fn line(event: &Event<'_>, out: &mut Vec<u8>) {
    raw(out, "{\"schema_version\":\"");
    raw(out, event.schema_version.as_str());
    raw(out, "\",\"event_id\":");
    id(out, &event.event_id);
    field(out, ",\"event_name\":", &event.event_name);
    word(out, ",\"plane\":\"", event.plane.as_str());
    raw(out, ",\"occurred_at\":\"");
    event.occurred_at.write(out);
    raw(out, "\",\"observed_at\":\"");
    event.observed_at.write(out);
    raw(out, "\",\"source\":");
    source(out, &event.source);
    raw(out, ",\"correlation\":");
    correlation(out, &event.correlation);
    for (key, value) in [(",\"actor\":", &event.actor), (",\"target\":", &event.target)] {
        if let Some(value) = value {
            raw(out, key);
            entity(out, value);
        }
    }
    if let Some(value) = &event.outcome {
        raw(out, ",\"outcome\":");
        outcome(out, value);
    }
    word(out, ",\"sensitivity\":\"", event.sensitivity.as_str());
    word(out, ",\"retention_class\":\"", event.retention_class.as_str());
    raw(out, ",\"payload\":");
    object(out, &event.payload);
    raw(out, ",\"integrity\":");
    integrity(out, &event.integrity);
    out.push(b'}');
}

fn source(out: &mut Vec<u8>, source: &Source<'_>) {
    field(out, "{\"collector\":", &source.collector);
    word(out, ",\"layer\":\"", source.layer.as_str());
    word(out, ",\"runtime\":\"", source.runtime.as_str());
    word(out, ",\"trust\":\"", source.trust.as_str());
    some(out, ",\"clock_id\":", source.clock_id.as_ref());
    if let Some(error) = &source.clock_error_ms {
        raw(out, ",\"clock_error_ms\":");
        general(out, error);
    }
    out.push(b'}');
}

fn correlation(out: &mut Vec<u8>, ids: &Correlation<'_>) {
    field(out, "{\"tenant_id\":", &ids.tenant_id);
    field(out, ",\"host_id\":", &ids.host_id);
    field(out, ",\"instance_id\":", &ids.instance_id);
    field(out, ",\"agent_id\":", &ids.agent_id);
    some(out, ",\"session_id\":", ids.session_id.as_ref());
    some(out, ",\"mission_id\":", ids.mission_id.as_ref());
    some(out, ",\"task_id\":", ids.task_id.as_ref());
    some(out, ",\"tool_call_id\":", ids.tool_call_id.as_ref());
    some(out, ",\"command_id\":", ids.command_id.as_ref());
    some(out, ",\"process_id\":", ids.process_id.as_ref());
    if let Some(parent) = &ids.parent_event_id {
        raw(out, ",\"parent_event_id\":");
        id(out, parent);
    }
    some(out, ",\"trace_id\":", ids.trace_id.as_ref());
    some(out, ",\"span_id\":", ids.span_id.as_ref());
    out.push(b'}');
}

fn entity(out: &mut Vec<u8>, entity: &Entity<'_>) {
    field(out, "{\"type\":", &entity.kind);
    field(out, ",\"id\":", &entity.id);
    for (key, value) in [(",\"uid\":", entity.uid), (",\"gid\":", entity.gid), (",\"pid\":", entity.pid)] {
        if let Some(value) = value {
            raw(out, key);
            integer(out, value);
        }
    }
    out.push(b'}');
}

fn outcome(out: &mut Vec<u8>, outcome: &Outcome<'_>) {
    word(out, "{\"status\":\"", outcome.status.as_str());
    if let Some(code) = outcome.exit_code {
        raw(out, ",\"exit_code\":");
        integer(out, code);
    }
    some(out, ",\"reason\":", outcome.reason.as_ref());
    out.push(b'}');
}

fn integrity(out: &mut Vec<u8>, integrity: &Integrity<'_>) {
    raw(out, "{\"collector_sequence\":");
    self::integer(out, integrity.collector_sequence);
    some(out, ",\"source_hash\":", integrity.source_hash.as_ref());
    some(out, ",\"source_previous_hash\":", integrity.source_previous_hash.as_ref());
    some(out, ",\"timeline_hash\":", integrity.timeline_hash.as_ref());
    some(out, ",\"timeline_previous_hash\":", integrity.timeline_previous_hash.as_ref());
    some(out, ",\"signature\":", integrity.signature.as_ref());
    some(out, ",\"key_id\":", integrity.key_id.as_ref());
    out.push(b'}');
}

fn object(out: &mut Vec<u8>, payload: &Payload<'_>) {
    out.push(b'{');
    for (n, (key, value)) in payload.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        text(out, key);
        out.push(b':');
        self::value(out, value);
    }
    out.push(b'}');
}

fn value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Null => raw(out, "null"),
        Value::Bool(b) => raw(out, if *b { "true" } else { "false" }),
        Value::Int(i) => integer(out, *i),
        Value::UInt(u) => integer(out, *u),
        Value::Float(f) => general(out, f),
        Value::Text(t) => text(out, t),
        Value::List(items) => {
            out.push(b'[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                self::value(out, item);
            }
            out.push(b']');
        }
        Value::Object(o) => object(out, o),
    }
}

fn raw(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// `key` ends with the opening quote.
fn word(out: &mut Vec<u8>, key: &str, word: &str) {
    raw(out, key);
    raw(out, word);
    out.push(b'"');
}

fn field(out: &mut Vec<u8>, key: &str, value: &str) {
    raw(out, key);
    text(out, value);
}

fn some(out: &mut Vec<u8>, key: &str, value: Option<&Text<'_>>) {
    if let Some(value) = value {
        field(out, key, value);
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    // RFC 8259, section 7. Every byte is looked at, so that many are at once.
    if text.bytes().fold(false, |found, b| found | (b < 0x20) | (b == b'"') | (b == b'\\')) {
        return general(out, text);
    }
    out.push(b'"');
    raw(out, text);
    out.push(b'"');
}

fn id(out: &mut Vec<u8>, id: &Uuid) {
    out.push(b'"');
    raw(out, id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
    out.push(b'"');
}

fn integer(out: &mut Vec<u8>, value: impl itoa::Integer) {
    raw(out, itoa::Buffer::new().format(value));
}

/// What is rare is left to `serde_json`.
fn general(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    let written = serde_json::to_writer(&mut *out, value);
    debug_assert!(written.is_ok(), "plain data, and a Vec takes every write");
}
