//! A network flow: its start, samples and end are one line.

use activity_schema::event::Value;
use activity_schema::{Event, Timestamp};

use super::leaf::{marks, span_ns};
use super::units;
use super::{Node, Tone};

/// A socket that connects has no local port yet.
const UNBOUND: (&str, i64) = ("", 0);

/// Events with the same key speak of one flow, until it is closed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowKey<'e> {
    instance: &'e str,
    process: &'e str,
    collector: &'e str,
    protocol: &'e str,
    local: (&'e str, i64),
    peer: (&'e str, i64),
}

impl<'e> FlowKey<'e> {
    pub(super) fn of(event: &'e Event<'e>) -> Self {
        let text = |key| event.payload.text(key).unwrap_or_default();
        let port = |key| event.payload.integer(key).unwrap_or(0);
        FlowKey {
            instance: &event.correlation.instance_id,
            process: event.correlation.process_id.as_deref().unwrap_or_default(),
            // Host and guest may both see the flow; neither's word replaces the other's.
            collector: event.source.collector.split('/').next().unwrap_or_default(),
            protocol: text("protocol"),
            local: match port("local_port") {
                0 => UNBOUND,
                bound => (text("local_address"), bound),
            },
            peer: (text("peer_address"), port("peer_port")),
        }
    }

    /// The flow as it was before the kernel gave it a local port.
    pub(super) fn unbound(&self) -> Self {
        FlowKey { local: UNBOUND, ..self.clone() }
    }
}

pub(super) fn flow(own: &[&Event<'_>]) -> Node {
    let mut details = Vec::new();
    if let Some(traffic) = traffic(own) {
        details.push(traffic);
    }
    let closed = own.iter().rev().find(|e| e.event_name == "network.flow.closed");
    let result = last_text(own, "tcp_result");
    let result_text = result.unwrap_or(if closed.is_some() { "closed" } else { "open" });
    details.push(result_text.to_owned());
    if closed.is_some() {
        details.extend(lasted_ns(own).map(units::duration_ns));
    }
    details.extend(last_text(own, "nat_peer").map(|p| format!("NAT to {p}")));
    details.extend(last_text(own, "gateway").map(|g| format!("through {g}")));
    details.extend(last_text(own, "rule_id").map(|r| format!("rule {r}")));
    if own.iter().any(|e| e.payload.get("tls_observed") == Some(&Value::Bool(true))) {
        details.push("TLS".to_owned());
    }
    let bad = result.is_some_and(|r| {
        ["refused", "reset", "timeout", "timed", "unreach", "fail"].iter().any(|w| r.contains(w))
    });
    Node {
        at: None,
        concurrent: false,
        title: own.first().map(|e| endpoints(e)).unwrap_or_default(),
        details,
        marks: marks(own),
        tone: if bad { Tone::Bad } else { Tone::Plain },
        children: Vec::new(),
    }
}

/// `tcp → 192.0.2.7:443`, `udp ← [2001:db8::1]:53`.
pub(super) fn endpoints(event: &Event<'_>) -> String {
    let protocol = event.payload.text("protocol").unwrap_or("flow");
    let inbound = event.payload.text("direction").is_some_and(|d| d.starts_with("in"));
    let arrow = if inbound { '←' } else { '→' };
    format!("{protocol} {arrow} {}", address(event, "peer_address", "peer_port"))
}

pub(super) fn address(event: &Event<'_>, address: &str, port: &str) -> String {
    let host = event.payload.text(address).unwrap_or("unknown");
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    match event.payload.integer(port) {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

/// As the kernel saw it, else between the events.
fn lasted_ns(own: &[&Event<'_>]) -> Option<i64> {
    let seen = |key: &str| last_text(own, key).and_then(|t| t.parse::<Timestamp>().ok());
    match (seen("first_seen"), seen("last_seen")) {
        (Some(first), Some(last)) => Some(last.nanos_since(first)),
        _ => span_ns(own),
    }
}

/// `↑ 1.2 kB ↓ 340 kB`, as last counted.
fn traffic(own: &[&Event<'_>]) -> Option<String> {
    let last = |key: &str| own.iter().rev().find_map(|e| e.payload.integer(key));
    match (last("bytes_sent"), last("bytes_received")) {
        (None, None) => None,
        (sent, received) => {
            let show = |n: Option<i64>| n.map_or_else(|| "?".to_owned(), units::bytes);
            Some(format!("↑ {} ↓ {}", show(sent), show(received)))
        }
    }
}

fn last_text<'a>(own: &'a [&Event<'_>], key: &str) -> Option<&'a str> {
    own.iter().rev().find_map(|e| e.payload.text(key)).filter(|t| !t.is_empty())
}
