//! Events for stories, as the collectors write them.

use activity_schema::Timestamp;
use activity_schema::coverage::{
    ClassCoverage, CoverageReport, CoverageSpan, CoverageState, EventClass, InstanceCoverage,
};
use serde_json::{Value, json};

/// 2026-08-01T12:00:00Z
const START_NS: i64 = 1_785_585_600_000_000_000;

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_nanos(START_NS + ms * 1_000_000)
}

/// Starts an event of `name` at `ms` after noon.
pub fn event(ms: i64, name: &str) -> Maker {
    let family = name.split('.').next().unwrap_or_default();
    let plane = match family {
        "session" | "mission" | "task" => "session",
        "agent" | "process" | "file" => "action",
        "network" => "network",
        "runtime" => "runtime",
        "system" => "system",
        _ => "integrity",
    };
    let trust = if matches!(family, "session" | "agent") && !name.contains("scope") {
        "self-reported"
    } else {
        "observed"
    };
    let id =
        uuid::Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0000 + u128::try_from(ms).unwrap_or(0));
    Maker(json!({
        "schema_version": "activity.event/v1", "event_id": id.to_string(), "event_name": name, "plane": plane,
        "occurred_at": at(ms).to_string(), "observed_at": at(ms + 1).to_string(),
        "source": {"collector": "host-a/01980000-0000-7000-8000-000000000001/critical", "layer": "host",
            "runtime": "docker", "trust": trust, "clock_id": "boot-1", "clock_error_ms": 1},
        "correlation": {"tenant_id": "acme", "host_id": "host-a", "instance_id": "sandbox-7",
            "agent_id": "agent-1"},
        "sensitivity": "metadata", "retention_class": "security", "payload": {},
        "integrity": {"collector_sequence": 1}
    }))
}

pub struct Maker(Value);

impl Maker {
    pub fn of(mut self, session: &str, tool: &str) -> Self {
        if !session.is_empty() {
            self.0["correlation"]["session_id"] = json!(session);
        }
        if !tool.is_empty() {
            self.0["correlation"]["tool_call_id"] = json!(tool);
        }
        self
    }
    pub fn by(mut self, process: &str, pid: u64) -> Self {
        self.0["correlation"]["process_id"] = json!(process);
        self.0["actor"] = json!({"type": "process", "id": process, "pid": pid});
        self
    }
    pub fn with(mut self, payload: Value) -> Self {
        self.0["payload"] = payload;
        self
    }
    pub fn outcome(mut self, outcome: Value) -> Self {
        self.0["outcome"] = outcome;
        self
    }
    pub fn source(mut self, key: &str, value: Value) -> Self {
        self.0["source"][key] = value;
        self
    }
    pub fn instance(mut self, id: &str) -> Self {
        self.0["correlation"]["instance_id"] = json!(id);
        self
    }
    pub fn line(self) -> String {
        self.0.to_string()
    }
}

pub fn complete(from_ms: i64, to_ms: i64) -> CoverageReport {
    let classes = [
        EventClass::Session,
        EventClass::Tool,
        EventClass::Process,
        EventClass::Network,
        EventClass::Resource,
    ];
    let span = CoverageSpan {
        from: at(from_ms),
        to: at(to_ms),
        state: CoverageState::Covered,
        reason: None,
        lost: 0,
        exact: None,
    };
    CoverageReport {
        from: at(from_ms),
        to: at(to_ms),
        complete: true,
        reasons: Vec::new(),
        elided_lines: 0,
        forks: 0,
        imported: Vec::new(),
        instances: vec![InstanceCoverage {
            instance_id: "sandbox-7".into(),
            classes: classes
                .into_iter()
                .map(|class| ClassCoverage {
                    class,
                    state: CoverageState::Covered,
                    source: Some("ebpf".into()),
                    spans: vec![span.clone()],
                })
                .collect(),
            clock_error_ns_max: Some(1_000_000),
            last_heartbeat: Some(at(to_ms)),
        }],
    }
}
