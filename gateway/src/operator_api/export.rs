//! `POST /v1/exports`: a bundle of all events that match, made while it is sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use activity_store::{ControlRecord, ExportRequest, ReadAudit};
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::mpsc;

use super::tenant::Asked;
use crate::evidence::{Evidence, EvidenceError, Exporting};
use crate::gateway::Gateway;
use crate::identity::Identity;
use crate::reply::Refusal;
use crate::wire::NDJSON;

/// A reader that takes no part of a bundle for so long has gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// The question is on the record before its first byte is sent. A bundle that breaks off has no end, and does not verify.
pub async fn exports(State(gateway): State<Arc<Gateway>>, asked: Asked) -> Result<Response, Refusal> {
    let principal = Identity::Operator(asked.operator).to_string();
    let request = ExportRequest {
        query: asked.params.query()?,
        actor: principal.clone(),
        kept_size: asked.params.kept_size,
    };
    let detail = serde_json::to_string(&asked.params).unwrap_or_default();
    let exporting = gateway.evidence.export(&asked.tenant, request).await?;
    let read = ReadAudit {
        tenant: Some(asked.tenant),
        principal,
        action: "export".to_owned(),
        refused: false,
        detail,
    };
    gateway.evidence.record(ControlRecord::Read(read)).await?;
    let (parts, body) = mpsc::channel(1);
    let evidence = gateway.evidence.clone();
    tokio::spawn(async move {
        if let Err(error) = send(&evidence, exporting, &parts).await {
            tracing::error!(error = &error as &dyn std::error::Error, "an export broke off");
            let broken = io::Error::other("the export broke off");
            let _ = tokio::time::timeout(PATIENCE, parts.send(Err(broken))).await;
        }
    });
    let mut response = Response::new(Body::new(Parts(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(response)
}

type Part = io::Result<Bytes>;

async fn send(
    evidence: &Evidence,
    mut exporting: Exporting,
    parts: &mpsc::Sender<Part>,
) -> Result<(), EvidenceError> {
    while let (next, Some(part)) = evidence.next_part(exporting).await? {
        exporting = next;
        if part.is_empty() {
            continue;
        }
        let sent = tokio::time::timeout(PATIENCE, parts.send(Ok(part))).await;
        if !matches!(sent, Ok(Ok(()))) {
            return Err(EvidenceError::Failed("its reader went away".to_owned()));
        }
    }
    Ok(())
}

struct Parts(mpsc::Receiver<Part>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<http_body::Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| part.map(http_body::Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use activity_store::{ImportDefaults, Query};

    use super::*;
    use crate::gateway::tests::Lab;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_for_60_s_has_gone() {
        let lab = Lab::new();
        let evidence = &lab.gateway.evidence;
        let tenant = "acme".parse().unwrap();
        let line = include_str!("../../../fixtures/events.jsonl").lines().next().unwrap();
        let defaults = ImportDefaults { host: "h".parse().unwrap(), instance: "i".parse().unwrap() };
        evidence.import(&tenant, defaults, line.as_bytes()).await.unwrap();
        let request = ExportRequest { query: Query::default(), actor: "a".to_owned(), kept_size: None };
        let exporting = evidence.export(&tenant, request).await.unwrap();
        let (parts, _body) = mpsc::channel(1);
        let start = tokio::time::Instant::now();
        assert!(send(evidence, exporting, &parts).await.is_err());
        assert_eq!(start.elapsed().as_millis() / 100, 600);
    }
}
