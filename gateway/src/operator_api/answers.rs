//! Answers about one tenant's evidence.

use std::sync::Arc;

use activity_schema::event::CorrelationKey;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use serde_json::json as value;
use uuid::Uuid;

use super::stream::ndjson;
use super::tenant::Asked;
use crate::gateway::Gateway;
use crate::reply::{Refusal, json, respond};
use crate::wire::ParamsError;

type Answer = Result<Response, Refusal>;

impl From<ParamsError> for Refusal {
    fn from(error: ParamsError) -> Self {
        Refusal::bad_request(error.to_string())
    }
}

/// One sandbox or session; otherwise as [`query`].
pub async fn timeline(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Answer {
    if asked.params.instance.is_none() && asked.params.session.is_none() {
        let keys = [CorrelationKey::InstanceId, CorrelationKey::SessionId].map(CorrelationKey::as_str);
        return Err(Refusal::bad_request(format!("a timeline is of one {} or {}", keys[0], keys[1])));
    }
    query(State(gateway), asked).await
}

pub async fn query(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Answer {
    let answer = gateway.evidence.query(&asked.tenant, asked.params.query()?).await?;
    Ok(ndjson(answer))
}

pub async fn coverage(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Answer {
    let report = gateway.evidence.coverage(&asked.tenant, asked.params.coverage_query()?).await?;
    Ok(json(StatusCode::OK, &report))
}

/// What is acknowledged, by collector.
pub async fn streams(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Answer {
    let collectors = gateway.evidence.collectors(&asked.tenant).await?;
    let streams: Vec<_> = collectors
        .into_iter()
        .map(|c| value!({"collector_id": c.collector_id, "streams": c.streams}))
        .collect();
    Ok(json(StatusCode::OK, &value!({"collectors": streams})))
}

pub async fn collectors(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Answer {
    let seen = gateway.evidence.collectors(&asked.tenant).await?;
    let (enrolled, revoked) = (gateway.access.enrolled(&asked.tenant), gateway.access.revoked(&asked.tenant));
    Ok(json(StatusCode::OK, &crate::wire::collectors(&seen, &enrolled, revoked)))
}

pub async fn proof(
    State(gateway): State<Arc<Gateway>>,
    asked: Asked,
    Path(event_id): Path<String>,
) -> Answer {
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "the tenant has no such event");
    let event = Uuid::try_parse(&event_id).map_err(|_| missing())?;
    let proof = gateway.evidence.inclusion(&asked.tenant, event).await?;
    Ok(json(StatusCode::OK, &proof.ok_or_else(missing)?))
}

/// The newest checkpoint of the tenant's log, a C2SP signed note.
pub async fn checkpoint(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Answer {
    let note = gateway.evidence.checkpoint(&asked.tenant).await?;
    let note = note.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "the tenant's log is empty"))?;
    Ok(respond(StatusCode::OK, "text/plain; charset=utf-8", note))
}

/// Proof that a log of `old` batches is a prefix of one of `new` (RFC 6962 section 2.1.2).
pub async fn consistency(
    State(gateway): State<Arc<Gateway>>,
    asked: Asked,
    Path((old, new)): Path<(u64, u64)>,
) -> Answer {
    let path = gateway.evidence.consistency(&asked.tenant, old, new).await?;
    let path = path.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "the log has no such sizes"))?;
    Ok(json(StatusCode::OK, &value!({"old": old, "new": new, "path": path})))
}
