//! Answers about the gateway itself.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use serde_json::json as value;

use super::tenant::{Operator, unknown_tenant, visible};
use crate::gateway::Gateway;
use crate::identity::Role;
use crate::reply::{Refusal, json, respond};

type Answer = Result<Response, Refusal>;

/// Health and figures for an operator. A tenant that is named must be the caller's to see, as everywhere.
pub async fn status(
    State(gateway): State<Arc<Gateway>>,
    Operator(operator): Operator,
    parts: Parts,
) -> Answer {
    let seen = visible(&gateway, &operator).await?;
    let named: Vec<(String, String)> =
        serde_urlencoded::from_str(parts.uri.query().unwrap_or_default()).unwrap_or_default();
    if named.iter().any(|(k, v)| k == "tenant" && !seen.iter().any(|t| t.as_str() == v)) {
        return Err(unknown_tenant());
    }
    let ready = gateway.readiness(Instant::now());
    let mut body = value!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": ready.is_ok(),
        "gateway_key": gateway.evidence.gateway_key(),
        "tenants": seen,
    });
    if let Err(reason) = ready {
        body["reason"] = value!(reason);
    }
    // Figures of the whole gateway would tell one tenant about the others.
    if !matches!(operator.role, Role::Reader(_)) {
        body["health"] = value!(gateway.evidence.health());
    }
    Ok(json(StatusCode::OK, &body))
}

/// Tenants that the caller may read.
pub async fn tenants(State(gateway): State<Arc<Gateway>>, Operator(operator): Operator) -> Answer {
    let tenants = visible(&gateway, &operator).await?;
    Ok(json(StatusCode::OK, &value!({"tenants": tenants})))
}

pub async fn healthz() -> Response {
    respond(StatusCode::OK, "text/plain; charset=utf-8", "alive\n")
}

pub async fn readyz(State(gateway): State<Arc<Gateway>>) -> Response {
    match gateway.readiness(Instant::now()) {
        Ok(()) => respond(StatusCode::OK, "text/plain; charset=utf-8", "ready\n"),
        Err(reason) => respond(
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain; charset=utf-8",
            format!("not ready: {reason}\n"),
        ),
    }
}

pub async fn metrics(State(gateway): State<Arc<Gateway>>, Operator(operator): Operator) -> Answer {
    if matches!(operator.role, Role::Reader(_)) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "metrics are for the roles admin and monitor"));
    }
    let ready = gateway.readiness(Instant::now()).is_ok();
    let text = gateway.metrics.render(&gateway.evidence.health(), ready);
    Ok(respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}
