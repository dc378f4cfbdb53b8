//! Which tenant a caller asks about, and whether it may.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use activity_schema::ids::TenantId;
use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;

use crate::clock;
use crate::gateway::{Connection, Gateway};
use crate::identity::{Identity, OperatorIdentity, Role};
use crate::metrics::ROUTES;
use crate::reply::Refusal;
use crate::wire::Params;

/// An authorised question about one tenant.
#[derive(Debug)]
pub struct Asked {
    pub tenant: TenantId,
    pub operator: OperatorIdentity,
    pub params: Params,
}

/// An authenticated operator.
#[derive(Debug)]
pub struct Operator(pub OperatorIdentity);

impl FromRequestParts<Arc<Gateway>> for Operator {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, gateway: &Arc<Gateway>) -> Result<Self, Refusal> {
        let connection = parts.extensions.get::<Connection>().cloned().unwrap_or_default();
        gateway.operator(&connection, clock::now()).map(Operator)
    }
}

impl FromRequestParts<Arc<Gateway>> for Asked {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, gateway: &Arc<Gateway>) -> Result<Self, Refusal> {
        let Operator(operator) = Operator::from_request_parts(parts, gateway).await?;
        let query = parts.uri.query().unwrap_or_default();
        // The tenant is judged before anything else of the question is looked at.
        let named = tenant_parameter(query);
        let visible = visible(gateway, &operator).await?;
        let wanted = match named {
            Some(name) => visible.iter().find(|t| t.as_str() == name),
            None => sole(&visible)?,
        };
        let Some(tenant) = wanted.cloned() else {
            let principal = Identity::Operator(operator.clone()).to_string();
            let action = action_of(parts.uri.path());
            gateway.metrics.refused_reads.fetch_add(1, Ordering::Relaxed);
            gateway.audit.refused(&principal, action);
            return Err(unknown_tenant());
        };
        let params: Params = serde_urlencoded::from_str(query)
            .map_err(|e| Refusal::bad_request(format!("the parameters are not valid: {e}")))?;
        Ok(Asked { tenant, operator, params })
    }
}

/// The only answer about a tenant that is not the caller's, existing or not.
pub fn unknown_tenant() -> Refusal {
    Refusal::new(
        StatusCode::FORBIDDEN,
        "no such tenant, or this certificate may not read it; `activity tenants` lists what it may read",
    )
}

/// Tenants that an operator may read. A reader's list comes from its certificate alone: nothing about other
/// tenants is looked up, so nothing about them can be timed.
pub async fn visible(gateway: &Gateway, operator: &OperatorIdentity) -> Result<Vec<TenantId>, Refusal> {
    match &operator.role {
        Role::Reader(tenant) => Ok(vec![tenant.clone()]),
        Role::Monitor => Ok(Vec::new()),
        Role::Admin => gateway.tenants().await,
    }
}

fn sole(visible: &[TenantId]) -> Result<Option<&TenantId>, Refusal> {
    match visible {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(Refusal::bad_request("there are several tenants; name one with tenant=")),
    }
}

fn tenant_parameter(query: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(query).unwrap_or_default();
    pairs.into_iter().find(|(key, _)| key == "tenant").map(|(_, value)| value)
}

/// The route as a closed set of words for the audit.
fn action_of(path: &str) -> &'static str {
    ROUTES.into_iter().find(|r| path == *r || path.starts_with(&format!("{r}/"))).unwrap_or("other")
}
