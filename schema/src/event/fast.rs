//! Reads a line that stands as this crate writes it: keys in the order of the fields, no spaces, no escapes, whole
//! numbers. That is nearly every line that a gateway sees. Anything else, also anything wrong, is left to the
//! general reader; so this one never refuses, and what it returns is what the general reader would.

use uuid::Uuid;

use super::payload::Value;
use super::{
    Correlation, Entity, Event, Integrity, Layer, Number, Outcome, Payload, Plane, Retention, Runtime,
    SchemaVersion, Sensitivity, Source, Status, Trust,
};
use crate::text::Text;
use crate::time::Timestamp;

/// More payload keys than this are left to the general reader, whose duplicate check is not quadratic.
const PAYLOAD_KEYS_MAX: usize = 32;

/// Reads an event, or leaves it to the general reader. Patterns are not checked here.
pub(super) fn parse(line: &str) -> Option<Event<'_>> {
    let mut cursor = Cursor { rest: line };
    let event = event(&mut cursor)?;
    cursor.rest.is_empty().then_some(event)
}

fn event<'a>(c: &mut Cursor<'a>) -> Option<Event<'a>> {
    c.literal("{\"schema_version\":\"activity.event/v1\",\"event_id\":\"")?;
    let event_id = c.id()?;
    c.literal(",\"event_name\":\"")?;
    let event_name = c.text()?;
    c.literal(",\"plane\":\"")?;
    let plane = Plane::from_wire(c.string()?)?;
    c.literal(",\"occurred_at\":\"")?;
    let occurred_at = c.time()?;
    c.literal(",\"observed_at\":\"")?;
    let observed_at = c.time()?;
    c.literal(",\"source\":{")?;
    let source = source(c)?;
    c.literal(",\"correlation\":{")?;
    let correlation = correlation(c)?;
    let actor = if c.has(",\"actor\":{") { Some(entity(c)?) } else { None };
    let target = if c.has(",\"target\":{") { Some(entity(c)?) } else { None };
    let outcome = if c.has(",\"outcome\":{") { Some(outcome(c)?) } else { None };
    c.literal(",\"sensitivity\":\"")?;
    let sensitivity = Sensitivity::from_wire(c.string()?)?;
    c.literal(",\"retention_class\":\"")?;
    let retention_class = Retention::from_wire(c.string()?)?;
    c.literal(",\"payload\":{")?;
    let payload = payload(c)?;
    c.literal(",\"integrity\":{\"collector_sequence\":")?;
    let collector_sequence = c.whole()?;
    let integrity = Integrity {
        collector_sequence,
        source_hash: c.option(",\"source_hash\":\"")?,
        source_previous_hash: c.option(",\"source_previous_hash\":\"")?,
        timeline_hash: c.option(",\"timeline_hash\":\"")?,
        timeline_previous_hash: c.option(",\"timeline_previous_hash\":\"")?,
        signature: c.option(",\"signature\":\"")?,
        key_id: c.option(",\"key_id\":\"")?,
    };
    c.literal("}}")?;
    Some(Event {
        schema_version: SchemaVersion::V1,
        event_id,
        event_name,
        plane,
        occurred_at,
        observed_at,
        source,
        correlation,
        actor,
        target,
        outcome,
        sensitivity,
        retention_class,
        payload,
        integrity,
    })
}

fn source<'a>(c: &mut Cursor<'a>) -> Option<Source<'a>> {
    c.literal("\"collector\":\"")?;
    let collector = c.text()?;
    c.literal(",\"layer\":\"")?;
    let layer = Layer::from_wire(c.string()?)?;
    c.literal(",\"runtime\":\"")?;
    let runtime = Runtime::from_wire(c.string()?)?;
    c.literal(",\"trust\":\"")?;
    let trust = Trust::from_wire(c.string()?)?;
    let clock_id = c.option(",\"clock_id\":\"")?;
    let clock_error_ms = if c.has(",\"clock_error_ms\":") { Some(c.number()?) } else { None };
    c.literal("}")?;
    Some(Source { collector, layer, runtime, trust, clock_id, clock_error_ms })
}

fn correlation<'a>(c: &mut Cursor<'a>) -> Option<Correlation<'a>> {
    c.literal("\"tenant_id\":\"")?;
    let tenant_id = c.text()?;
    c.literal(",\"host_id\":\"")?;
    let host_id = c.text()?;
    c.literal(",\"instance_id\":\"")?;
    let instance_id = c.text()?;
    c.literal(",\"agent_id\":\"")?;
    let agent_id = c.text()?;
    let correlation = Correlation {
        tenant_id,
        host_id,
        instance_id,
        agent_id,
        session_id: c.option(",\"session_id\":\"")?,
        mission_id: c.option(",\"mission_id\":\"")?,
        task_id: c.option(",\"task_id\":\"")?,
        tool_call_id: c.option(",\"tool_call_id\":\"")?,
        command_id: c.option(",\"command_id\":\"")?,
        process_id: c.option(",\"process_id\":\"")?,
        parent_event_id: if c.has(",\"parent_event_id\":\"") { Some(c.id()?) } else { None },
        trace_id: c.option(",\"trace_id\":\"")?,
        span_id: c.option(",\"span_id\":\"")?,
    };
    c.literal("}")?;
    Some(correlation)
}

fn entity<'a>(c: &mut Cursor<'a>) -> Option<Entity<'a>> {
    c.literal("\"type\":\"")?;
    let kind = c.text()?;
    c.literal(",\"id\":\"")?;
    let id = c.text()?;
    let mut whole = |key| if c.has(key) { c.whole().map(Some) } else { Some(None) };
    let entity =
        Entity { kind, id, uid: whole(",\"uid\":")?, gid: whole(",\"gid\":")?, pid: whole(",\"pid\":")? };
    c.literal("}")?;
    Some(entity)
}

fn outcome<'a>(c: &mut Cursor<'a>) -> Option<Outcome<'a>> {
    c.literal("\"status\":\"")?;
    let status = Status::from_wire(c.string()?)?;
    let exit_code = if c.has(",\"exit_code\":") { Some(c.signed()?) } else { None };
    let reason = c.option(",\"reason\":\"")?;
    c.literal("}")?;
    Some(Outcome { status, exit_code, reason })
}

/// The payload after its opening brace.
fn payload<'a>(c: &mut Cursor<'a>) -> Option<Payload<'a>> {
    if c.has("}") {
        return Some(Payload::new());
    }
    let mut entries: Vec<(Text<'a>, Value<'a>)> = Vec::with_capacity(8);
    loop {
        c.literal("\"")?;
        let key = c.text()?;
        c.literal(":")?;
        if entries.len() == PAYLOAD_KEYS_MAX || entries.iter().any(|(known, _)| *known == key) {
            return None;
        }
        let value = if c.has("[") { list(c)? } else { scalar(c)? };
        entries.push((key, value));
        if c.has("}") {
            return Some(Payload::from_distinct(entries));
        }
        c.literal(",")?;
    }
}

/// A list after its opening bracket; nested ones are left to the general reader.
fn list<'a>(c: &mut Cursor<'a>) -> Option<Value<'a>> {
    let mut items = Vec::new();
    if c.has("]") {
        return Some(Value::List(items));
    }
    loop {
        items.push(scalar(c)?);
        if c.has("]") {
            return Some(Value::List(items));
        }
        c.literal(",")?;
    }
}

fn scalar<'a>(c: &mut Cursor<'a>) -> Option<Value<'a>> {
    match c.rest.as_bytes().first()? {
        b'"' => {
            c.literal("\"")?;
            c.text().map(Value::Text)
        }
        b'-' => c.signed().map(Value::Int),
        b'0'..=b'9' => c.whole().map(Value::from),
        b't' => c.literal("true").map(|()| Value::Bool(true)),
        b'f' => c.literal("false").map(|()| Value::Bool(false)),
        _ => None,
    }
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn has(&mut self, literal: &str) -> bool {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn literal(&mut self, literal: &str) -> Option<()> {
        self.has(literal).then_some(())
    }

    /// The rest of a string, and its closing quote. `None` when it holds an escape or a control character.
    fn string(&mut self) -> Option<&'a str> {
        let len = plain_len(self.rest.as_bytes());
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest.strip_prefix('"')?;
        Some(text)
    }

    fn text(&mut self) -> Option<Text<'a>> {
        self.string().map(Text::from)
    }

    /// An optional string after its key; the outer `None` leaves the line to the general reader.
    #[expect(clippy::option_option, reason = "absent and unreadable are two things")]
    fn option(&mut self, key: &str) -> Option<Option<Text<'a>>> {
        if self.has(key) { self.text().map(Some) } else { Some(None) }
    }

    fn id(&mut self) -> Option<Uuid> {
        let text = self.string()?;
        if text.len() == 36 { Uuid::try_parse(text).ok() } else { None }
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.string()?.parse().ok()
    }

    /// An integer from 0, without a fraction, below 10^19.
    fn whole(&mut self) -> Option<u64> {
        let bytes = self.rest.as_bytes();
        let len = bytes.iter().position(|b| !b.is_ascii_digit())?;
        let fits = (1..=19).contains(&len) && (len == 1 || bytes[0] != b'0');
        // `1.0` and `1e3` are numbers too.
        if !fits || matches!(bytes[len], b'.' | b'e' | b'E') {
            return None;
        }
        let value = bytes[..len].iter().fold(0u64, |n, digit| n * 10 + u64::from(digit - b'0'));
        self.rest = &self.rest[len..];
        Some(value)
    }

    /// A number from 0, fraction and all.
    fn number(&mut self) -> Option<Number> {
        let is_part = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
        let len = self.rest.as_bytes().iter().position(|b| !is_part(b))?;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        serde_json::from_str(text).ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let negative = self.has("-");
        let value = i64::try_from(self.whole()?).ok()?;
        // `-0` is a float to the general reader.
        if negative { (value != 0).then_some(-value) } else { Some(value) }
    }
}

/// Bytes before the first quote, escape or control character.
fn plain_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let mut at = 0;
    for chunk in bytes.chunks_exact(8) {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        // Bit 7 of a byte is set where it is zero after the exclusive or, or below 0x20. False hits only follow a
        // true one (a borrow), so the first is exact.
        let zero_in = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let quote = zero_in(word ^ (ONES * u64::from(b'"')));
        let escape = zero_in(word ^ (ONES * u64::from(b'\\')));
        let hits = control | quote | escape;
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let ends = |b: &u8| matches!(b, b'"' | b'\\' | 0..0x20);
    at + bytes[at..].iter().position(ends).unwrap_or(bytes.len() - at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_text_ends_at_the_first_quote_escape_or_control_character(bytes in proptest::collection::vec(
            prop_oneof![8 => any::<u8>(), 4 => 0x20u8..0x7f, 1 => Just(b'"'), 1 => Just(b'\\')], 0..80)) {
            let slow = bytes.iter().position(|b| matches!(b, b'"' | b'\\' | 0..0x20)).unwrap_or(bytes.len());
            prop_assert_eq!(plain_len(&bytes), slow);
        }
    }
}
