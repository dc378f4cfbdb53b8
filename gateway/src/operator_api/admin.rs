//! What only an administrator may do: let in and shut out.

use std::sync::Arc;
use std::time::Duration;

use activity_schema::ids::is_id;
use activity_store::{ControlRecord, ImportDefaults, ReadAudit, Revocation};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::Response;
use bytes::Buf as _;
use http::{HeaderMap, StatusCode};

use super::tenant::Operator;
use crate::clock;
use crate::gateway::Gateway;
use crate::identity::{Identity, OperatorIdentity, Role};
use crate::reply::{Refusal, json, read_body, read_json};
use crate::tokens::{Grant, IssueError};
use crate::wire::{
    IMPORT_BYTES_MAX, ImportAnswer, ImportParams, OperatorAnswer, OperatorRequest, RevokeAnswer,
    RevokeRequest, TokenAnswer, TokenRequest,
};

type Answer = Result<Response, Refusal>;

/// Makes a one-time enrolment token.
pub async fn tokens(
    State(gateway): State<Arc<Gateway>>,
    Operator(operator): Operator,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    require_admin(&gateway, &operator, "/v1/tokens")?;
    let request: TokenRequest = read_json(&headers, body).await?;
    let now = clock::now();
    let ttl = i64::try_from(Duration::from_secs(request.ttl_seconds).as_nanos()).unwrap_or(i64::MAX);
    let grant = Grant {
        tenant: request.tenant,
        host: request.host,
        instance: request.instance,
        expires_at: now.saturating_add_nanos(ttl),
    };
    let token = gateway.tokens.issue(&grant, now).map_err(|e| match e {
        IssueError::Io(_) => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
        _ => Refusal::bad_request(e.to_string()),
    })?;
    audit(&gateway, &operator, "token", &format!("tenant {}", grant.tenant)).await?;
    let answer = TokenAnswer { token: token.reveal().to_owned(), expires_at: grant.expires_at };
    Ok(json(StatusCode::OK, &answer))
}

/// Issues an operator's certificate.
pub async fn operators(
    State(gateway): State<Arc<Gateway>>,
    Operator(operator): Operator,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    require_admin(&gateway, &operator, "/v1/operators")?;
    let request: OperatorRequest = read_json(&headers, body).await?;
    let role: Role = request.role.parse().map_err(|e| Refusal::bad_request(format!("{e}")))?;
    if !is_id(&request.name) {
        return Err(Refusal::bad_request("the name is not an id"));
    }
    let identity = Identity::Operator(OperatorIdentity { name: request.name, role });
    let authority = gateway.authority();
    let issued = authority
        .issue_for_request(&request.csr_pem, &identity, gateway.settings.operator_lifetime, clock::now())
        .map_err(|e| Refusal::bad_request(e.to_string()))?;
    audit(&gateway, &operator, "issue", &identity.to_string()).await?;
    let answer = OperatorAnswer {
        certificate_pem: issued.certificate_pem,
        ca_pem: authority.ca_pem().to_owned(),
        not_after: issued.not_after,
    };
    Ok(json(StatusCode::OK, &answer))
}

/// Refuses a collector or an operator from now on.
pub async fn revoke(
    State(gateway): State<Arc<Gateway>>,
    Operator(operator): Operator,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    require_admin(&gateway, &operator, "/v1/revoke")?;
    let request: RevokeRequest = read_json(&headers, body).await?;
    let _turn = gateway.enrolling.lock().await;
    let now = clock::now();
    match request {
        RevokeRequest::Collector { tenant, collector, reason } => {
            if !gateway.access.knows(&tenant, &collector) {
                return Err(unknown(format!("tenant {tenant} has no collector {collector}")));
            }
            let revocation = Revocation {
                tenant,
                collector_id: collector,
                key_id: None,
                certificate_serial: None,
                reason,
                revoked_at: now,
            };
            gateway.access.revoke(&revocation);
            gateway.evidence.record(ControlRecord::Revoked(revocation.clone())).await?;
            tracing::warn!(
                tenant = %revocation.tenant,
                collector = %revocation.collector_id,
                "collector revoked"
            );
        }
        RevokeRequest::Operator { name, reason } => {
            let issued = gateway.evidence.issued_operators().await?;
            let is_it = |identity: &Identity| matches!(identity, Identity::Operator(o) if o.name == name);
            // The first administrator's certificate is made by `init`, before there is a journal.
            if name != "admin" && !issued.iter().filter_map(|uri| uri.parse().ok()).any(|i| is_it(&i)) {
                return Err(unknown(format!("no certificate was issued to an operator {name}")));
            }
            gateway
                .access
                .revoke_operator(&name, now)
                .map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
            audit(&gateway, &operator, "revoke", &format!("operator {name}: {reason}")).await?;
            tracing::warn!(name, "operator revoked");
        }
    }
    Ok(json(StatusCode::OK, &RevokeAnswer { revoked_at: now }))
}

/// A mistyped name must not look as if somebody were shut out.
fn unknown(what: String) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, format!("nobody is revoked: {what}"))
}

/// Takes in foreign lines as derived evidence of a tenant that is named, new or not.
pub async fn import(
    State(gateway): State<Arc<Gateway>>,
    Operator(operator): Operator,
    Query(params): Query<ImportParams>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    require_admin(&gateway, &operator, "/v1/import")?;
    let lines = read_body(&headers, body, IMPORT_BYTES_MAX).await?;
    let defaults = ImportDefaults { host: params.host, instance: params.instance };
    let report = gateway.evidence.import(&params.tenant, defaults, lines.reader()).await?;
    Ok(json(StatusCode::OK, &ImportAnswer::from(report)))
}

fn require_admin(
    gateway: &Gateway,
    operator: &OperatorIdentity,
    action: &'static str,
) -> Result<(), Refusal> {
    if operator.role == Role::Admin {
        return Ok(());
    }
    gateway.audit.refused(&Identity::Operator(operator.clone()).to_string(), action);
    Err(Refusal::new(StatusCode::FORBIDDEN, "this needs the role admin"))
}

/// Puts an administrator's act on the record before it is answered.
async fn audit(
    gateway: &Gateway,
    operator: &OperatorIdentity,
    action: &str,
    detail: &str,
) -> Result<(), Refusal> {
    let record = ControlRecord::Read(ReadAudit {
        tenant: None,
        principal: Identity::Operator(operator.clone()).to_string(),
        action: action.to_owned(),
        refused: false,
        detail: detail.to_owned(),
    });
    Ok(gateway.evidence.record(record).await?)
}
