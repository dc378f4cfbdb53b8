//! Lines that stand by themselves, and what all lines share.

use activity_schema::Event;
use activity_schema::event::{Status, Trust, Value};

use super::flow::{address, endpoints};
use super::units;
use super::{Node, Tone};

/// Payload values shown of an event without a form of its own.
const VALUES_SHOWN_MAX: usize = 6;

/// Agent of what no agent claims.
const UNKNOWN: &str = "unknown";

/// The heading of everything that one sandbox did.
pub(super) fn instance(id: &str, own: &[&Event<'_>]) -> Node {
    let mut details = Vec::new();
    if let Some(event) = own.first() {
        details.push(format!("host {}", event.correlation.host_id));
        details.push(event.source.runtime.to_string());
        let mut agents: Vec<&str> = own.iter().map(|e| e.correlation.agent_id.as_str()).collect();
        agents.sort_unstable();
        agents.dedup();
        agents.retain(|a| *a != UNKNOWN);
        if !agents.is_empty() {
            details.push(format!("agent {}", agents.join(", ")));
        }
    }
    node(format!("instance {id}"), details, Vec::new(), Tone::Heading)
}

/// The collector's own records, folded: it was alive and this is how it watched.
pub(super) fn collector(own: &[&Event<'_>]) -> Node {
    let count = |name: &str| own.iter().filter(|e| e.event_name == name).count();
    let mut details = Vec::new();
    let heartbeats = count("telemetry.heartbeat");
    if heartbeats > 0 {
        details.push(units::counted(heartbeats, "heartbeat"));
    }
    let last = |key: &str| own.iter().rev().find_map(|e| e.payload.text(key)).map(str::to_owned);
    details.extend(last("profile").map(|p| format!("profile {p}")));
    details.extend(last("kernel_release").map(|k| format!("kernel {k}")));
    let unsupported = own.iter().filter(|e| e.event_name == "telemetry.unsupported");
    let mut classes: Vec<&str> = unsupported.filter_map(|e| e.payload.text("class")).collect();
    classes.sort_unstable();
    classes.dedup();
    if !classes.is_empty() {
        details.push(format!("cannot see {}", classes.join(", ")));
    }
    let missed = own.iter().any(|e| e.payload.text("canary").is_some_and(|c| c == "missing"));
    if missed {
        details.push("a canary was not seen".to_owned());
    }
    let name = own.first().and_then(|e| e.source.collector.split('/').next()).unwrap_or_default();
    node(format!("collector {name}"), details, marks(own), if missed { Tone::Bad } else { Tone::Plain })
}

/// An event that is a line of its own.
pub(super) fn leaf(own: &[&Event<'_>]) -> Node {
    let Some(event) = own.first() else { return node(String::new(), Vec::new(), Vec::new(), Tone::Plain) };
    let payload = |key: &str| event.payload.text(key).map(str::to_owned);
    let (title, mut details) = match event.event_name.as_str() {
        "process.exec_failed" => {
            let name = payload("executable").unwrap_or_else(|| "unknown".to_owned());
            let mut details: Vec<String> = payload("error").into_iter().collect();
            if details.is_empty() {
                details.extend(event.payload.integer("errno").map(|e| format!("errno {e}")));
            }
            details.extend(payload("path_class"));
            (format!("exec failed {name}"), details)
        }
        "network.listen" => {
            let protocol = event.payload.text("protocol").unwrap_or("socket");
            (format!("{protocol} listen {}", address(event, "local_address", "local_port")), Vec::new())
        }
        "network.denied" => {
            let rule = payload("rule_id").map(|r| format!("rule {r}"));
            (format!("denied {}", endpoints(event)), rule.into_iter().collect())
        }
        "network.dns" => dns(event),
        name if name.starts_with("file.") => {
            let path = payload("path").or_else(|| payload("path_digest"));
            let act = name.strip_prefix("file.").unwrap_or(name).replace('_', " ");
            let size = event.payload.integer("bytes").map(units::bytes);
            (format!("{act} {}", path.unwrap_or_else(|| "a file".to_owned())), size.into_iter().collect())
        }
        name => (name.to_owned(), values(event)),
    };
    if let Some(reason) = event.outcome.as_ref().and_then(|o| o.reason.as_deref()) {
        details.push(reason.to_owned());
    }
    node(title, details, marks(own), tone(event))
}

fn dns(event: &Event<'_>) -> (String, Vec<String>) {
    let text = |key: &str| event.payload.text(key).unwrap_or_default().to_owned();
    let mut details = Vec::new();
    if let Some(Value::List(answers)) = event.payload.get("answers") {
        let answers: Vec<&str> = answers.iter().filter_map(Value::as_str).collect();
        if !answers.is_empty() {
            details.push(answers.join(", "));
        }
    }
    details.extend(Some(text("response_code")).filter(|c| !c.is_empty()));
    (format!("dns {} {}", text("question_type"), text("question_name")), details)
}

/// `key value` of the payload's plain values.
fn values(event: &Event<'_>) -> Vec<String> {
    let plain = event.payload.iter().filter_map(|(key, value)| {
        let shown = match value {
            Value::Text(t) if t.is_empty() => return None,
            Value::Text(t) => t.to_string(),
            Value::Int(i) => i.to_string(),
            Value::UInt(u) => u.to_string(),
            Value::Float(f) => f.to_string(),
            Value::Bool(b) => b.to_string(),
            Value::Null | Value::List(_) | Value::Object(_) => return None,
        };
        (!is_implied(key)).then(|| format!("{} {shown}", key.replace('_', " ")))
    });
    plain.take(VALUES_SHOWN_MAX).collect()
}

/// Shown at the right of the line already, or of use to machines only.
fn is_implied(key: &str) -> bool {
    key == "join" || key.ends_with("_digest")
}

fn tone(event: &Event<'_>) -> Tone {
    let bad_outcome =
        event.outcome.as_ref().is_some_and(|o| matches!(o.status, Status::Failure | Status::Denied));
    let name = event.event_name.as_str();
    let bad_name =
        matches!(name, "network.denied" | "process.exec_failed" | "system.oom" | "system.security")
            || [".failed", ".crashed", ".oom", ".denied"].iter().any(|end| name.ends_with(end));
    if bad_outcome || bad_name { Tone::Bad } else { Tone::Plain }
}

/// Trust and join of a line: the weakest trust among the events, the best join that was made.
pub(super) fn marks(own: &[&Event<'_>]) -> Vec<&'static str> {
    let trust = own.iter().map(|e| e.source.trust).max_by_key(|t| weakness(*t));
    let join = own.iter().filter_map(|e| e.payload.text("join")).filter_map(join_rank).min();
    trust.map(Trust::as_str).into_iter().chain(join.map(|(_, name)| name)).collect()
}

fn weakness(trust: Trust) -> u8 {
    match trust {
        Trust::Attested => 0,
        Trust::Observed => 1,
        Trust::Derived => 2,
        Trust::SelfReported => 3,
    }
}

fn join_rank(join: &str) -> Option<(u8, &'static str)> {
    Some(match join {
        "registered" => (0, "registered"),
        "inherited" => (1, "inherited"),
        "inferred" => (2, "inferred"),
        "none" => (3, "no join"),
        _ => return None,
    })
}

/// From the first to the last event, when there are two.
pub(super) fn span_ns(own: &[&Event<'_>]) -> Option<i64> {
    let first = own.iter().map(|e| e.occurred_at).min()?;
    let last = own.iter().map(|e| e.occurred_at).max()?;
    (own.len() > 1).then(|| last.nanos_since(first))
}

fn node(title: String, details: Vec<String>, marks: Vec<&'static str>, tone: Tone) -> Node {
    Node { at: None, concurrent: false, title, details, marks, tone, children: Vec::new() }
}
