//! Commands that list: collectors, tenants, status.

use serde_json::{Value, json};

use super::args::{Format, Place};
use super::output::Output;
use super::source::Source;
use super::{CliError, Ending};
use crate::story::escape;
use crate::wire::Params;

pub(super) async fn collectors(place: &Place, out: &Output) -> Result<Ending, CliError> {
    let source = Source::open(place).await?;
    let params = Params { tenant: place.tenant.as_ref().map(ToString::to_string), ..Params::default() };
    let answer = source.collectors(&params).await?;
    if out.format != Format::Text {
        out.document(&answer)?;
        return Ok(Ending::Complete);
    }
    let seen = answer["collectors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let silent = answer["silent"].as_array().map(Vec::as_slice).unwrap_or_default();
    let revoked = answer["revoked"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mark = |id: &Value| {
        let revocation = revoked.iter().find(|r| r["collector_id"] == *id);
        revocation.map_or_else(String::new, |r| format!("  REVOKED {}", word(&r["revoked_at"])))
    };
    for collector in seen {
        let line = collector_line(collector) + &mark(&collector["collector_id"]);
        out.text(&format!("{}\n", escape(&line)))?;
    }
    for gone in revoked.iter().filter(|r| !seen.iter().any(|c| c["collector_id"] == r["collector_id"])) {
        let id = &gone["collector_id"];
        out.text(&format!("{}\n", escape(&format!("{}  has sent nothing{}", word(id), mark(id)))))?;
    }
    for collector in silent {
        let line = format!(
            "{}  host {}  enrolled {}, has sent nothing",
            word(&collector["collector_id"]),
            word(&collector["host"]),
            word(&collector["enrolled_at"])
        );
        out.text(&format!("{}\n", escape(&line)))?;
    }
    if seen.is_empty() && silent.is_empty() && revoked.is_empty() {
        out.text("no collectors\n")?;
    }
    Ok(Ending::Complete)
}

pub(super) async fn tenants(place: &Place, out: &Output) -> Result<Ending, CliError> {
    let tenants = Source::open(place).await?.tenants().await?;
    if out.format == Format::Text {
        for tenant in tenants {
            out.text(&format!("{tenant}\n"))?;
        }
    } else {
        out.document(&json!({"tenants": tenants}))?;
    }
    Ok(Ending::Complete)
}

pub(super) async fn status(place: &Place, out: &Output) -> Result<Ending, CliError> {
    let status = Source::open(place).await?.status().await?;
    if out.format != Format::Text {
        out.document(&status)?;
        return Ok(Ending::Complete);
    }
    let mut lines = Vec::new();
    if let Some(ready) = status["ready"].as_bool() {
        let reason = status["reason"].as_str().map(|r| format!(": {r}")).unwrap_or_default();
        lines.push(format!("gateway   {}{reason}", if ready { "ready" } else { "NOT READY" }));
    }
    lines.push(format!("key       {}", word(&status["gateway_key"])));
    let tenants = status["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
    let tenants: Vec<String> = tenants.iter().map(word).collect();
    lines.push(format!("tenants   {}", if tenants.is_empty() { "none".into() } else { tenants.join(", ") }));
    if let Some(free) = status["health"]["disk_free"].as_i64() {
        lines.push(format!("disk      {} free", crate::story::bytes(free)));
    }
    if let Some(counters) = status["health"]["counters"].as_object() {
        for (name, value) in counters.iter().filter(|(_, v)| v.as_u64() != Some(0)) {
            lines.push(format!("          {} {}", name.replace('_', " "), word(value)));
        }
    }
    for line in lines {
        out.text(&format!("{}\n", escape(&line)))?;
    }
    Ok(Ending::Complete)
}

fn collector_line(collector: &Value) -> String {
    let streams = collector["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
    let acked: Vec<String> = streams
        .iter()
        .map(|s| format!("{} batch {} to event {}", word(&s["class"]), s["batch_number"], s["last_sequence"]))
        .collect();
    format!(
        "{}  host {}  last received {}  {}",
        word(&collector["collector_id"]),
        word(&collector["host"]),
        word(&collector["last_received_at"]),
        acked.join("; ")
    )
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "never".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
