//! What operators ask. Every answer about a tenant goes through [`tenant::Asked`]: a tenant that the caller may not
//! see and one that does not exist are refused by the same code with the same bytes.

mod admin;
mod answers;
mod export;
mod stream;
mod system;
mod tenant;

use std::sync::Arc;

use axum::routing::{get, post};

use crate::gateway::Gateway;
use crate::reply::unknown_path;

pub fn router(gateway: Arc<Gateway>) -> axum::Router {
    axum::Router::new()
        .route("/v1/timeline", get(answers::timeline))
        .route("/v1/query", get(answers::query))
        .route("/v1/coverage", get(answers::coverage))
        .route("/v1/streams", get(answers::streams))
        .route("/v1/collectors", get(answers::collectors))
        .route("/v1/proof/{event_id}", get(answers::proof))
        .route("/v1/checkpoint", get(answers::checkpoint))
        .route("/v1/consistency/{old}/{new}", get(answers::consistency))
        .route("/v1/exports", post(export::exports))
        .route("/v1/status", get(system::status))
        .route("/v1/tenants", get(system::tenants))
        .route("/v1/tokens", post(admin::tokens))
        .route("/v1/operators", post(admin::operators))
        .route("/v1/revoke", post(admin::revoke))
        .route("/v1/import", post(admin::import))
        .route("/healthz", get(system::healthz))
        .route("/readyz", get(system::readyz))
        .route("/metrics", get(system::metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_path)
        .with_state(gateway)
}
