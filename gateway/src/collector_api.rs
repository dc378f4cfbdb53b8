//! What collectors ask: to be let in, to be believed, what has been acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use activity_schema::SignedBatch;
use activity_schema::Timestamp;
use activity_schema::api::{
    BATCHES_MEDIA_TYPE, BatchesAnswer, CertificateAnswer, EnrollRequest, REQUEST_BATCHES_MAX,
    REQUEST_BYTES_MAX, RenewRequest, StreamsAnswer,
};
use activity_schema::ids::Epoch;
use activity_schema::keys::PublicKey;
use activity_store::{ControlRecord, Enrolment, Instances};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

use crate::clock;
use crate::gateway::{Connection, Gateway};
use crate::identity::{CollectorIdentity, Identity};
use crate::pki::{Issued, PkiError};
use crate::reply::{Refusal, declared_bytes, json, read_body, read_json, unknown_path};
use crate::tokens::UseError;

/// Wait that a client is told when too many bodies are in memory.
const BUDGET_RETRY: Duration = Duration::from_secs(1);

type Answer = Result<Response, Refusal>;

pub fn router(gateway: Arc<Gateway>) -> axum::Router {
    axum::Router::new()
        .route("/v1/enroll", post(enroll))
        .route("/v1/renew", post(renew))
        .route("/v1/batches", post(batches))
        .route("/v1/streams", get(streams))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_path)
        .with_state(gateway)
}

async fn enroll(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Body) -> Answer {
    let request: EnrollRequest = read_json(&headers, body).await?;
    let now = clock::now();
    let _turn = gateway.enrolling.lock().await;
    let grant = gateway
        .tokens
        .check(&request.token, &request.host_id, &request.instance_id, now)
        .map_err(|e| refuse_token(&e))?;
    let instances = match &grant.instance {
        Some(instance) => Instances::One(instance.clone()),
        None => Instances::Host,
    };
    let identity = CollectorIdentity {
        tenant: grant.tenant,
        host: request.host_id,
        instances,
        collector: request.collector_id,
    };
    gateway.access.check_name(&identity).map_err(|e| Refusal::new(StatusCode::CONFLICT, e.to_string()))?;
    // A token is not spent on a request that cannot succeed.
    let issued = issue(&gateway, &identity, &request.csr_pem, now)?;
    require_writable(&gateway)?;
    gateway.tokens.consume(&request.token).map_err(|e| refuse_token(&e))?;
    admit(&gateway, identity, issued, request.signing_key, request.epoch, now).await
}

async fn renew(
    State(gateway): State<Arc<Gateway>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    gateway.collector(&connection, clock::now())?;
    let request: RenewRequest = read_json(&headers, body).await?;
    let _turn = gateway.enrolling.lock().await;
    // Asked again: a revocation may have come while the body was read.
    let now = clock::now();
    let identity = gateway.collector(&connection, now)?;
    let issued = issue(&gateway, &identity, &request.csr_pem, now)?;
    admit(&gateway, identity, issued, request.signing_key, request.epoch, now).await
}

async fn batches(
    State(gateway): State<Arc<Gateway>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let identity = gateway.collector(&connection, clock::now())?;
    if headers.get(CONTENT_TYPE).is_none_or(|t| t.as_bytes() != BATCHES_MEDIA_TYPE.as_bytes()) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("batches are sent as {BATCHES_MEDIA_TYPE}"),
        ));
    }
    let declared = declared_bytes(&headers).and_then(|n| usize::try_from(n).ok());
    let bytes = declared.unwrap_or(REQUEST_BYTES_MAX).min(REQUEST_BYTES_MAX);
    let Some(_memory) = gateway.reserve(&identity.tenant, &identity.collector, bytes) else {
        let reason = "too many batches are being received; nothing was stored";
        return Err(Refusal::busy(StatusCode::TOO_MANY_REQUESTS, reason, BUDGET_RETRY));
    };
    let frames = read_body(&headers, body, REQUEST_BYTES_MAX).await?;
    let batches = decode(frames)?;
    // The body may have taken its time; what is revoked meanwhile is refused.
    let identity = gateway.collector(&connection, clock::now())?;
    let caller = gateway.access.caller(&identity);
    // A client that goes away must not stop a commit half way.
    let task = tokio::spawn(async move {
        let _under_way = gateway.ingest.begin(Instant::now());
        gateway.evidence.ingest(&caller, batches).await
    });
    let results = task.await.map_err(|e| crate::evidence::EvidenceError::Failed(e.to_string()))??;
    Ok(json(StatusCode::OK, &BatchesAnswer { results }))
}

async fn streams(
    State(gateway): State<Arc<Gateway>>,
    Extension(connection): Extension<Connection>,
) -> Answer {
    let identity = gateway.collector(&connection, clock::now())?;
    let streams = gateway.evidence.streams(&identity.tenant, &identity.collector).await?;
    Ok(json(StatusCode::OK, &StreamsAnswer { streams }))
}

/// Every frame of a request, or the reason why one is not a frame.
fn decode(mut frames: Bytes) -> Result<Vec<SignedBatch>, Refusal> {
    let mut batches = Vec::new();
    while !frames.is_empty() {
        if batches.len() == REQUEST_BATCHES_MAX {
            return Err(Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("more than {REQUEST_BATCHES_MAX} batches in a request"),
            ));
        }
        let batch = SignedBatch::decode(&mut frames)
            .map_err(|e| Refusal::bad_request(format!("frame {} is malformed: {e}", batches.len())))?;
        batches.push(batch);
    }
    if batches.is_empty() {
        return Err(Refusal::bad_request("the request holds no batch"));
    }
    Ok(batches)
}

/// Makes the certificate for a request's key.
fn issue(
    gateway: &Gateway,
    identity: &CollectorIdentity,
    csr_pem: &str,
    now: Timestamp,
) -> Result<Issued, Refusal> {
    let issued_at = gateway.access.issue_time(identity, now);
    let name = Identity::Collector(identity.clone());
    let lifetime = gateway.settings.certificate_lifetime;
    gateway.authority().issue_for_request(csr_pem, &name, lifetime, issued_at).map_err(|e| match e {
        PkiError::Request(source) => {
            Refusal::bad_request(format!("the certificate request is not acceptable: {source}"))
        }
        other => {
            tracing::error!(error = &other as &dyn std::error::Error, "no certificate could be made");
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no certificate could be made")
        }
    })
}

/// Records an enrolment, then lets the collector in.
async fn admit(
    gateway: &Gateway,
    identity: CollectorIdentity,
    issued: Issued,
    signing_key: PublicKey,
    epoch: Epoch,
    now: Timestamp,
) -> Answer {
    let enrolment = Enrolment {
        tenant: identity.tenant.clone(),
        collector_id: identity.collector.clone(),
        host: identity.host.clone(),
        instances: identity.instances.clone(),
        signing_key,
        epoch,
        certificate_serial: issued.serial.simple().to_string(),
        enrolled_at: now,
    };
    gateway.evidence.record(ControlRecord::Enrolled(enrolment.clone())).await?;
    gateway.access.enrol(enrolment);
    tracing::info!(identity = %Identity::Collector(identity.clone()), "collector enrolled");
    Ok(json(
        StatusCode::OK,
        &CertificateAnswer {
            tenant_id: identity.tenant,
            instance_id: match identity.instances {
                Instances::One(own) => Some(own),
                Instances::Host => None,
            },
            certificate_pem: issued.certificate_pem,
            ca_pem: gateway.authority().ca_pem().to_owned(),
            not_after: issued.not_after,
            gateway_key: gateway.evidence.gateway_key(),
        },
    ))
}

fn require_writable(gateway: &Gateway) -> Result<(), Refusal> {
    let health = gateway.evidence.health();
    if health.read_only || health.full {
        let reason = "the gateway cannot write; the token was not used";
        return Err(Refusal::busy(StatusCode::SERVICE_UNAVAILABLE, reason, Duration::from_secs(5)));
    }
    Ok(())
}

/// One answer for every token that does not enrol: it tells nothing about tokens that exist.
fn refuse_token(error: &UseError) -> Refusal {
    if let UseError::Io(_) = error {
        tracing::error!(error = error as &dyn std::error::Error, "a token could not be used");
        return Refusal::busy(
            StatusCode::SERVICE_UNAVAILABLE,
            "the token could not be used",
            Duration::from_secs(5),
        );
    }
    tracing::warn!(reason = %error, "enrolment refused");
    Refusal::new(
        StatusCode::FORBIDDEN,
        "the token is unknown, used, expired, or bound to another instance or host; ask for a new one",
    )
}
