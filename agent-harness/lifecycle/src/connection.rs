//! One keep-alive HTTP/1.1 connection over a Unix socket, opened when it is needed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longest time for one request and its answer, connecting included.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);

/// An answer names at most one id and reason an event.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    /// Nothing was sent: asking again does nothing twice.
    #[error("cannot connect")]
    NotSent(#[source] io::Error),
    #[error("the connection was closed before the request was sent")]
    Closed,
    /// It may have been taken.
    #[error("no answer within {} ms", REQUEST_TIMEOUT.as_millis())]
    Timeout,
    #[error("the connection broke before an answer")]
    Broken(#[source] hyper::Error),
    #[error("the answer is too long or broke off")]
    Answer,
}

impl PostError {
    pub(crate) const fn is_unsent(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::Closed)
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

#[derive(Debug)]
pub(crate) struct Connection {
    path: PathBuf,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, sender: None }
    }

    /// Connects now, where that is not done yet.
    pub(crate) async fn open(&mut self) -> Result<(), PostError> {
        match timeout(REQUEST_TIMEOUT, self.ready()).await {
            Ok(result) => result.map(drop),
            Err(_) => Err(PostError::NotSent(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Sends one request. A connection that the peer closed while idle is opened again once.
    pub(crate) async fn post(&mut self, path: &'static str, body: Bytes) -> Result<Answer, PostError> {
        let exchange = async {
            match self.exchange(path, body.clone()).await {
                Err(PostError::Closed) => self.exchange(path, body).await,
                other => other,
            }
        };
        let result = timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or(Err(PostError::Timeout));
        if result.is_err() {
            // An answer that comes late must not be taken for the next one's.
            self.sender = None;
        }
        result
    }

    async fn exchange(&mut self, path: &'static str, body: Bytes) -> Result<Answer, PostError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static(path);
        request.headers_mut().insert(HOST, HeaderValue::from_static("collector"));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = self.ready().await?.try_send_request(request).await;
        let response = match sent {
            Ok(response) => response,
            Err(mut error) => {
                self.sender = None;
                let unsent = error.take_message().is_some();
                return Err(if unsent { PostError::Closed } else { PostError::Broken(error.into_error()) });
            }
        };
        let (parts, body) = response.into_parts();
        let body =
            Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|_| PostError::Answer)?.to_bytes();
        let seconds = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Ok(Answer { status: parts.status, retry_after, body })
    }

    async fn ready(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, PostError> {
        let usable = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            let stream = UnixStream::connect(&self.path).await.map_err(PostError::NotSent)?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| PostError::NotSent(io::Error::other(error)))?;
            // Ends with the sender or the peer; how it ends shows in the next request.
            tokio::spawn(async move { drop(connection.await) });
            self.sender = Some(sender);
        }
        self.sender.as_mut().ok_or(PostError::Closed)
    }
}
