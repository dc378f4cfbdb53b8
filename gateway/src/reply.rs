//! What both listeners share: bounded bodies, errors with one shape.

use std::time::Duration;

use activity_schema::api::ErrorAnswer;
use activity_store::ExportError;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;

use crate::evidence::EvidenceError;

/// A body that does not arrive within this time is given up.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest JSON body.
pub const JSON_BYTES_MAX: usize = 64 * 1024;

/// An error as the client sees it.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub error: String,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Refusal { status, error: error.into(), retry_after: None }
    }

    pub fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    pub fn busy(status: StatusCode, error: impl Into<String>, retry_after: Duration) -> Self {
        Refusal { status, error: error.into(), retry_after: Some(retry_after) }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json(self.status, &ErrorAnswer { error: self.error });
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

impl From<EvidenceError> for Refusal {
    fn from(error: EvidenceError) -> Self {
        match &error {
            EvidenceError::Busy { reason, retry_after, unavailable } => {
                let status = if *unavailable {
                    StatusCode::SERVICE_UNAVAILABLE
                } else {
                    StatusCode::TOO_MANY_REQUESTS
                };
                Refusal::busy(status, *reason, *retry_after)
            }
            EvidenceError::Question(source) => Refusal::bad_request(source.to_string()),
            EvidenceError::Export(source @ ExportError::Empty) => {
                Refusal::new(StatusCode::NOT_FOUND, source.to_string())
            }
            EvidenceError::Export(source @ (ExportError::Kept { .. } | ExportError::TooLong(_))) => {
                Refusal::bad_request(source.to_string())
            }
            EvidenceError::Open(_)
            | EvidenceError::Ingest(_)
            | EvidenceError::Import(_)
            | EvidenceError::Export(_)
            | EvidenceError::Control(_)
            | EvidenceError::Failed(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the store failed");
                Refusal::busy(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the store failed; see the gateway's log",
                    Duration::from_secs(5),
                )
            }
        }
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    respond(status, "application/json", bytes)
}

/// Any answer whose body is known.
pub fn respond(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Reads a whole body, bounded in size and time.
pub async fn read_body(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Refusal> {
    let too_long =
        || Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {bytes_max} bytes"));
    if declared_bytes(headers).is_some_and(|n| n > bytes_max as u64) {
        return Err(too_long());
    }
    let read = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, bytes_max).collect()).await;
    match read {
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(_)) => Err(Refusal::bad_request("the body could not be read")),
    }
}

/// Reads a JSON body.
pub async fn read_json<T: serde::de::DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Refusal> {
    let bytes = read_body(headers, body, JSON_BYTES_MAX).await?;
    serde_json::from_slice(&bytes).map_err(|e| Refusal::bad_request(format!("the body is not valid: {e}")))
}

/// The answer where nothing is.
pub async fn unknown_path() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "this listener has no such path or method")
}

/// `Content-Length`, when it is declared.
pub fn declared_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// Never comes.
    struct Silent;

    impl axum::body::HttpBody for Silent {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_waited_for_30_s() {
        let start = tokio::time::Instant::now();
        let refused = read_body(&HeaderMap::new(), Body::new(Silent), 10).await.unwrap_err();
        assert_eq!(refused.into_response().status(), StatusCode::REQUEST_TIMEOUT);
        assert_eq!(start.elapsed().as_millis() / 100, 300);
    }

    #[tokio::test]
    async fn a_body_of_json_has_64_kib() {
        let read = async |bytes: usize| {
            let text = format!("\"{}\"", "x".repeat(bytes - 2));
            let body: Result<String, Refusal> = read_json(&HeaderMap::new(), Body::from(text)).await;
            body.map_err(|refusal| refusal.into_response().status())
        };
        assert!(read(65_536).await.is_ok());
        assert_eq!(read(65_537).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }
}
