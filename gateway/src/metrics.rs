//! Figures for Prometheus. The names and labels are closed lists: no tenant, collector or path becomes a label.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use activity_store::{Counters, Health};

/// What clients ask for; anything else is `other`.
pub const ROUTES: [&str; 21] = [
    "/v1/enroll",
    "/v1/renew",
    "/v1/batches",
    "/v1/streams",
    "/v1/timeline",
    "/v1/query",
    "/v1/coverage",
    "/v1/collectors",
    "/v1/status",
    "/v1/proof",
    "/v1/checkpoint",
    "/v1/consistency",
    "/v1/exports",
    "/v1/tenants",
    "/v1/tokens",
    "/v1/operators",
    "/v1/revoke",
    "/v1/import",
    "/healthz",
    "/readyz",
    "/metrics",
];
const CLASSES: [&str; 4] = ["2xx", "4xx", "5xx", "other"];

/// Counters of the server itself; the store has its own.
#[derive(Default)]
pub struct Metrics {
    requests: [[AtomicU64; CLASSES.len()]; ROUTES.len() + 1],
    pub connections_open: AtomicU64,
    pub connections_total: AtomicU64,
    pub connections_refused: AtomicU64,
    pub handshakes_failed: AtomicU64,
    pub connections_revoked: AtomicU64,
    pub refused_reads: AtomicU64,
}

impl Metrics {
    pub fn count_request(&self, path: &str, status: u16) {
        let route = ROUTES.iter().position(|r| is_route(path, r)).unwrap_or(ROUTES.len());
        let class = match status {
            200..=299 => 0,
            400..=499 => 1,
            500..=599 => 2,
            _ => 3,
        };
        self.requests[route][class].fetch_add(1, Ordering::Relaxed);
    }

    /// The Prometheus text exposition format, version 0.0.4.
    pub fn render(&self, health: &Health, ready: bool) -> String {
        let mut out = String::new();
        self.render_requests(&mut out);
        for (name, help, value) in [
            ("connections_open", "Connections now open.", &self.connections_open),
            ("connections_total", "Connections accepted.", &self.connections_total),
            ("connections_refused_total", "Connections closed at a limit.", &self.connections_refused),
            ("handshakes_failed_total", "TLS handshakes that failed.", &self.handshakes_failed),
            ("connections_revoked_total", "Connections closed by a revocation.", &self.connections_revoked),
            ("refused_reads_total", "Reads refused to an operator.", &self.refused_reads),
        ] {
            line(&mut out, name, help, value.load(Ordering::Relaxed));
        }
        line(&mut out, "ready", "1 when ingest and disk work.", u64::from(ready));
        line(&mut out, "disk_free_bytes", "Free space of the store.", health.disk_free);
        line(&mut out, "disk_full", "1 when ingest is refused for lack of space.", u64::from(health.full));
        let stalled = u64::try_from(health.ingest_stalled.as_millis()).unwrap_or(u64::MAX);
        line(&mut out, "ingest_stalled_ms", "Age of the oldest batch that waits for its commit.", stalled);
        for (name, value) in counters(&health.counters) {
            line(&mut out, &format!("store_{name}_total"), "Since the store was opened.", value);
        }
        out
    }

    fn render_requests(&self, out: &mut String) {
        out.push_str("# HELP activity_gateway_requests_total Requests by route and status.\n");
        out.push_str("# TYPE activity_gateway_requests_total counter\n");
        for (route, by_class) in ROUTES.iter().chain(&["other"]).zip(&self.requests) {
            for (class, count) in CLASSES.iter().zip(by_class) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let _ = writeln!(
                        out,
                        "activity_gateway_requests_total{{route=\"{route}\",status=\"{class}\"}} {count}"
                    );
                }
            }
        }
    }
}

fn is_route(path: &str, route: &str) -> bool {
    path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn line(out: &mut String, name: &str, help: &str, value: u64) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(out, "# HELP activity_gateway_{name} {help}");
    let _ = writeln!(out, "# TYPE activity_gateway_{name} {kind}");
    let _ = writeln!(out, "activity_gateway_{name} {value}");
}

/// The store's counters by name.
fn counters(counters: &Counters) -> Vec<(String, u64)> {
    match serde_json::to_value(counters) {
        Ok(serde_json::Value::Object(map)) => {
            map.into_iter().filter_map(|(k, v)| Some((k, v.as_u64()?))).collect()
        }
        _ => Vec::new(),
    }
}
