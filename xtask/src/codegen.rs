//! Generates what follows from the event catalogue: the Rust table, the JSON Schema and the reference page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Events {
    event: Vec<EventRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventRow {
    name: String,
    plane: String,
    class: String,
    retention: String,
    layers: Vec<String>,
    trusts: Vec<String>,
    requires: Vec<String>,
    socket: bool,
    state: String,
    payload: Vec<String>,
    doc: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldRow {
    #[serde(rename = "type")]
    kind: String,
    max: Option<usize>,
    keys: Option<BTreeMap<String, String>>,
    doc: String,
}

/// Longest string in a list or object, as `catalog::LIST_TEXT_BYTES_MAX`.
const LIST_TEXT_BYTES_MAX: usize = 256;

/// Writes the generated files, or with `check` fails naming the stale ones.
pub fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"));
    let mut events: Events =
        toml::from_str(&read("schema/catalog/events.toml")?).context("schema/catalog/events.toml")?;
    let fields: BTreeMap<String, FieldRow> =
        toml::from_str(&read("schema/catalog/fields.toml")?).context("schema/catalog/fields.toml")?;
    events.event.sort_by(|a, b| a.name.cmp(&b.name));
    validate(&events.event, &fields)?;
    let outputs = [
        ("schema/src/catalog/table.rs", table(&events.event, &fields)?),
        ("docs/reference/events.md", page(&events.event, &fields)),
        ("docs/reference/activity-event-v1.schema.json", json_schema(&events.event, &fields)?),
        ("docs/reference/iteron-rpc-v1.schema.json", crate::iteron_rpc::json_schema()?),
    ];
    let mut stale = Vec::new();
    for (path, text) in &outputs {
        if check {
            if std::fs::read_to_string(root.join(path)).ok().as_ref() != Some(text) {
                stale.push(*path);
            }
        } else {
            std::fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        }
    }
    ensure!(stale.is_empty(), "generated files are stale, run `cargo xtask codegen`: {}", stale.join(", "));
    Ok(())
}

fn validate(events: &[EventRow], fields: &BTreeMap<String, FieldRow>) -> anyhow::Result<()> {
    for pair in events.windows(2) {
        ensure!(pair[0].name != pair[1].name, "event {} is listed twice", pair[0].name);
    }
    for event in events {
        for key in &event.payload {
            ensure!(
                fields.contains_key(key),
                "event {}: payload key {key} is not in fields.toml",
                event.name
            );
        }
        ensure!(
            !event.layers.is_empty() && !event.trusts.is_empty(),
            "event {}: no layer or trust",
            event.name
        );
    }
    for name in fields.keys() {
        let used = events.iter().any(|e| e.payload.contains(name));
        ensure!(used, "field {name} is used by no event");
    }
    Ok(())
}

/// `control-plane` → `ControlPlane`.
fn variant(text: &str) -> String {
    text.split(['-', '_'])
        .map(|word| {
            let mut chars = word.chars();
            chars.next().map(|c| c.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
        })
        .collect()
}

fn variants(of: &str, texts: &[String]) -> String {
    let list: Vec<String> = texts.iter().map(|t| format!("{of}::{}", variant(t))).collect();
    format!("&[{}]", list.join(", "))
}

fn field_kind(name: &str, row: &FieldRow) -> anyhow::Result<String> {
    let max = || row.max.with_context(|| format!("field {name}: max is missing"));
    Ok(match row.kind.as_str() {
        "integer" => "FieldKind::Integer".to_owned(),
        "number" => "FieldKind::Number".to_owned(),
        "boolean" => "FieldKind::Boolean".to_owned(),
        "string" => format!("FieldKind::Text({})", max()?),
        "strings" => format!("FieldKind::Texts({})", max()?),
        "objects" => {
            let keys = row.keys.as_ref().with_context(|| format!("field {name}: keys are missing"))?;
            let mut list = Vec::new();
            for (key, kind) in keys {
                let kind = match kind.as_str() {
                    "integer" => "FieldKind::Integer",
                    "string" => "FieldKind::Text(LIST_TEXT_BYTES_MAX)",
                    "strings" => "FieldKind::Texts(64)",
                    other => bail!("field {name}.{key}: type {other} is not known"),
                };
                list.push(format!("({key:?}, {kind})"));
            }
            format!("FieldKind::Objects({}, &[{}])", max()?, list.join(", "))
        }
        other => bail!("field {name}: type {other} is not known"),
    })
}

fn table(events: &[EventRow], fields: &BTreeMap<String, FieldRow>) -> anyhow::Result<String> {
    let mut out = String::from(
        "// Generated by `cargo xtask codegen` from schema/catalog. Do not edit.\n\n\
         use super::{Field, FieldKind, LIST_TEXT_BYTES_MAX, Row, State};\n\
         use crate::batch::Class;\n\
         use crate::event::{CorrelationKey, Layer, Plane, Retention, Trust};\n\n\
         /// Every payload field, in the order of names.\n#[rustfmt::skip]\npub static FIELDS: &[Field] = &[\n",
    );
    for (name, row) in fields {
        writeln!(
            out,
            "    Field {{ name: {name:?}, kind: {}, doc: {:?} }},",
            field_kind(name, row)?,
            row.doc
        )?;
    }
    out.push_str("];\n\n/// Every event name, in the order of names.\n#[rustfmt::skip]\npub static EVENTS: &[Row] = &[\n");
    let index: BTreeMap<&str, usize> = fields.keys().enumerate().map(|(i, k)| (k.as_str(), i)).collect();
    for e in events {
        let mut payload: Vec<usize> = e.payload.iter().map(|k| index[k.as_str()]).collect();
        payload.sort_unstable();
        writeln!(
            out,
            "    Row {{ name: {:?}, plane: Plane::{}, class: Class::{}, retention: Retention::{}, layers: {}, trusts: {}, requires: {}, socket: {}, state: State::{}, payload: &{payload:?}, doc: {:?} }},",
            e.name,
            variant(&e.plane),
            variant(&e.class),
            variant(&e.retention),
            variants("Layer", &e.layers),
            variants("Trust", &e.trusts),
            variants("CorrelationKey", &e.requires),
            e.socket,
            variant(&e.state),
            e.doc,
        )?;
    }
    out.push_str("];\n");
    Ok(out)
}

fn page(events: &[EventRow], fields: &BTreeMap<String, FieldRow>) -> String {
    let mut out = String::from(
        "<!-- Generated by `cargo xtask codegen` from schema/catalog. Do not edit. -->\n\n# Events\n\n\
         Class: critical, standard, bulk. Reserved names are taken; nothing emits them yet.\n\n\
         | event | plane | class | retention | layers | trusts | requires | state | payload |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for e in events {
        let code = |list: &[String]| list.join(" ");
        let _ = writeln!(
            out,
            "| `{}`: {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            e.name,
            e.doc,
            e.plane,
            e.class,
            e.retention,
            code(&e.layers),
            code(&e.trusts),
            code(&e.requires),
            e.state,
            code(&e.payload)
        );
    }
    out.push_str("\n# Payload fields\n\n| field | type | bound | meaning |\n|---|---|---|---|\n");
    for (name, row) in fields {
        let bound = row.max.map(|m| m.to_string()).unwrap_or_default();
        let _ = writeln!(out, "| `{name}` | {} | {bound} | {} |", row.kind, row.doc);
    }
    out
}

/// The published envelope with the payload of each name closed to its allowlist.
fn json_schema(events: &[EventRow], fields: &BTreeMap<String, FieldRow>) -> anyhow::Result<String> {
    use serde_json::{Map, Value, json};
    let scalar = |kind: &str, max: Option<usize>| match kind {
        "string" => json!({"type": "string", "maxLength": max.unwrap_or(LIST_TEXT_BYTES_MAX)}),
        "strings" => json!({"type": "array", "maxItems": max.unwrap_or(64),
                            "items": {"type": "string", "maxLength": LIST_TEXT_BYTES_MAX}}),
        other => json!({"type": other}),
    };
    let mut definitions = Map::new();
    for (name, row) in fields {
        let mut value = if row.kind == "objects" {
            let keys: Map<String, Value> =
                row.keys.iter().flatten().map(|(k, kind)| (k.clone(), scalar(kind, None))).collect();
            json!({"type": "array", "maxItems": row.max,
                   "items": {"type": "object", "additionalProperties": false, "properties": keys}})
        } else {
            scalar(&row.kind, row.max)
        };
        value["description"] = json!(row.doc);
        definitions.insert(name.clone(), value);
    }
    let rules: Vec<Value> = events
        .iter()
        .map(|e| {
            let keys: Map<String, Value> =
                e.payload.iter().map(|k| (k.clone(), json!({"$ref": format!("#/$defs/{k}")}))).collect();
            json!({
                "if": {"properties": {"event_name": {"const": e.name}}},
                "then": {"properties": {
                    "plane": {"const": e.plane},
                    "retention_class": {"const": e.retention},
                    "source": {"properties": {"layer": {"enum": e.layers}, "trust": {"enum": e.trusts}}},
                    "correlation": {"required": e.requires},
                    "payload": {"type": "object", "additionalProperties": false, "properties": keys}
                }}
            })
        })
        .collect();
    let names: Vec<&str> = events.iter().map(|e| e.name.as_str()).collect();
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "activity-event-v1-catalogue",
        "title": "activity.event/v1 as admitted: the catalogue's names and their payloads",
        "type": "object",
        "required": ["event_name", "plane", "retention_class", "source", "correlation", "payload"],
        "properties": {"event_name": {"enum": names}, "sensitivity": {"const": "metadata"}},
        "allOf": rules,
        "$defs": definitions,
    });
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}
