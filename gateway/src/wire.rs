//! Bodies and parameters of the operator's API, shared by server and command line.

use std::str::FromStr;

use activity_schema::Timestamp;
use activity_schema::coverage::{CoverageReport, EventClass};
use activity_schema::event::{Plane, Status, Trust};
use activity_schema::ids::{CollectorId, HostId, InstanceId, TenantId};
use activity_store::{CollectorStatus, CoverageQuery, Enrolment, ImportReport, Query};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Media type of answers with events: one JSON document a line.
pub const NDJSON: &str = "application/x-ndjson";
/// Events of a page when nothing is said.
pub const PAGE_EVENTS_DEFAULT: usize = 1_000;
/// Most events of a page over HTTP.
pub const PAGE_EVENTS_MAX: usize = 10_000;

/// `/v1/collectors`: what is known of a tenant's collectors, seen by the store, enrolled and silent, or revoked.
pub fn collectors(
    seen: &[CollectorStatus],
    enrolled: &[Enrolment],
    revoked: impl IntoIterator<Item = (CollectorId, Timestamp)>,
) -> Value {
    let silent = enrolled.iter().filter(|e| !seen.iter().any(|s| s.collector_id == e.collector_id));
    let silent: Vec<_> = silent
        .map(|e| json!({"collector_id": e.collector_id, "host": e.host, "enrolled_at": e.enrolled_at}))
        .collect();
    let revoked = revoked.into_iter().map(|(id, at)| json!({"collector_id": id, "revoked_at": at}));
    json!({"collectors": seen, "silent": silent, "revoked": revoked.collect::<Vec<_>>()})
}

/// Parameters of `/v1/timeline`, `/v1/query`, `/v1/coverage` and `/v1/exports`. Lists are separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mission: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_leaf: Option<u64>,
    /// Of an export: size of a checkpoint that was kept from before, for a proof that it still holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_size: Option<u64>,
}

/// Why parameters ask nothing that can be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    #[error("{name}: {value:?} is not an RFC 3339 time")]
    Time { name: &'static str, value: String },
    #[error("{name}: {value:?} is not one of {known}")]
    Word { name: &'static str, value: String, known: String },
}

/// First line of an answer with events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub coverage: CoverageReport,
}

/// Last line of an answer with events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    pub next_cursor: Option<String>,
    /// Batches in the tenant's log; pass as `since_leaf` to get only what came later.
    pub log_size: u64,
    pub events: u64,
    /// Lines that may match but whose key was erased.
    pub erased_lines: u64,
    /// Batches that may match but do not read; `activity verify` names them all.
    pub damaged: u64,
    /// Where the first of them are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    pub coverage: Summary,
}

/// Coverage in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub complete: bool,
    pub reasons: Vec<String>,
}

/// `POST /v1/tokens`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    pub tenant: TenantId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    pub ttl_seconds: u64,
}

/// Answer to [`TokenRequest`]; the only time the token is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAnswer {
    pub token: String,
    pub expires_at: Timestamp,
}

/// `POST /v1/operators`: a certificate for a person or program that asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorRequest {
    pub name: String,
    /// `admin`, `monitor` or `reader@<tenant>`.
    pub role: String,
    /// PEM certificate request; only its key is used.
    pub csr_pem: String,
}

/// Answer to [`OperatorRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorAnswer {
    pub certificate_pem: String,
    pub ca_pem: String,
    pub not_after: Timestamp,
}

/// `POST /v1/revoke`: a collector of a tenant, or an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RevokeRequest {
    Collector { tenant: TenantId, collector: CollectorId, reason: String },
    Operator { name: String, reason: String },
}

/// Most bytes of one import through a gateway.
pub const IMPORT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Parameters of `POST /v1/import`; the body is one foreign `activity.event/v1` document a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportParams {
    pub tenant: TenantId,
    /// Where lines come from whose own ids are not ids here.
    pub host: HostId,
    pub instance: InstanceId,
}

/// Answer to an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportAnswer {
    pub stored: u64,
    pub refused: u64,
    /// Lines that were stored before.
    pub already: u64,
    pub unknown_names: u64,
    pub keys_stripped: u64,
    pub refusals: Vec<LineRefusal>,
}

/// A line that was not imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineRefusal {
    /// From 1.
    pub line: u64,
    pub reason: String,
}

impl From<ImportReport> for ImportAnswer {
    fn from(report: ImportReport) -> Self {
        let refusals = report.refusals.into_iter();
        ImportAnswer {
            stored: report.stored,
            refused: report.refused,
            already: report.already,
            unknown_names: report.unknown_names,
            keys_stripped: report.keys_stripped,
            refusals: refusals.map(|(line, reason)| LineRefusal { line, reason }).collect(),
        }
    }
}

/// Answer to [`RevokeRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeAnswer {
    pub revoked_at: Timestamp,
}

impl Params {
    pub fn query(&self) -> Result<Query, ParamsError> {
        let limit = self.limit.unwrap_or(PAGE_EVENTS_DEFAULT).clamp(1, PAGE_EVENTS_MAX);
        Ok(Query {
            from: time("from", self.from.as_deref())?,
            to: time("to", self.to.as_deref())?,
            instance: self.instance.clone(),
            session: self.session.clone(),
            mission: self.mission.clone(),
            task: self.task.clone(),
            tool_call: self.tool_call.clone(),
            command: self.command.clone(),
            process: self.process.clone(),
            events: list(self.event.as_deref()).map(str::to_owned).collect(),
            planes: words("plane", self.plane.as_deref(), Plane::ALL, Plane::as_str)?,
            outcomes: words("outcome", self.outcome.as_deref(), Status::ALL, Status::as_str)?,
            trusts: words("trust", self.trust.as_deref(), Trust::ALL, Trust::as_str)?,
            peer: self.peer.clone(),
            executable: self.executable.clone(),
            limit,
            cursor: self.cursor.clone(),
            classes: self.classes()?,
            since_leaf: self.since_leaf,
        })
    }

    pub fn coverage_query(&self) -> Result<CoverageQuery, ParamsError> {
        Ok(CoverageQuery {
            instance: self.instance.clone(),
            from: time("from", self.from.as_deref())?,
            to: time("to", self.to.as_deref())?,
            classes: self.classes()?,
        })
    }

    /// The classes that the answer must cover: those asked for by name, else those of the events asked for.
    fn classes(&self) -> Result<Vec<EventClass>, ParamsError> {
        let named = words("class", self.class.as_deref(), EventClass::ALL, EventClass::as_str)?;
        if !named.is_empty() {
            return Ok(named);
        }
        let mut classes: Vec<_> = list(self.event.as_deref()).filter_map(EventClass::of).collect();
        classes.sort_unstable();
        classes.dedup();
        Ok(classes)
    }
}

fn time(name: &'static str, text: Option<&str>) -> Result<Option<Timestamp>, ParamsError> {
    let parse = |t: &str| Timestamp::from_str(t).map_err(|_| ParamsError::Time { name, value: t.to_owned() });
    text.map(parse).transpose()
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(',').map(str::trim).filter(|t| !t.is_empty())
}

fn words<T: Copy>(
    name: &'static str,
    text: Option<&str>,
    all: &[T],
    show: fn(T) -> &'static str,
) -> Result<Vec<T>, ParamsError> {
    let find = |word: &str| {
        all.iter().copied().find(|t| show(*t) == word).ok_or_else(|| ParamsError::Word {
            name,
            value: word.to_owned(),
            known: all.iter().map(|t| show(*t)).collect::<Vec<_>>().join(", "),
        })
    };
    list(text).map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_1_000_events_and_at_most_10_000() {
        let limit = |limit| Params { limit, ..Params::default() }.query().unwrap().limit;
        assert_eq!([None, Some(0), Some(10_000), Some(10_001)].map(limit), [1_000, 1, 10_000, 10_000]);
    }
}
