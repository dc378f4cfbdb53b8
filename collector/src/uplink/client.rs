//! HTTP/2 over TLS 1.3 to the gateway, over TCP or a Unix socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use activity_schema::api::{BatchesAnswer, ErrorAnswer, StreamsAnswer};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A dead peer is found by HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Where the gateway is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    address: Address,
    server_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Tcp { host: String, port: u16 },
    Unix(String),
}

/// Why the gateway did not answer as expected.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("gateway URL {0:?} is neither https://HOST:PORT nor unix:/PATH")]
    Url(String),
    #[error("the gateway URL holds a name or a password: the certificate says who the collector is")]
    UserInfo,
    #[error("gateway server name {0:?} is not a DNS name or address")]
    ServerName(String),
    #[error("cannot connect to the gateway")]
    Connect(#[source] io::Error),
    #[error("the gateway did not answer in time")]
    Timeout,
    #[error("the connection to the gateway failed")]
    Http(#[source] hyper::Error),
    #[error("the gateway asks to come back in {0:?}")]
    Busy(Duration),
    #[error("the gateway answered {status}: {error}")]
    Status { status: StatusCode, error: String },
    #[error("the gateway's answer is malformed")]
    Answer(#[source] serde_json::Error),
    #[error("the gateway's answer is too long or was cut short")]
    Body,
}

impl Endpoint {
    pub fn parse(url: &str, server_name: Option<&str>) -> Result<Self, ClientError> {
        let bad = || ClientError::Url(url.to_owned());
        if let Some(path) = url.strip_prefix("unix:").filter(|p| !p.is_empty()) {
            let server_name = server_name.unwrap_or("localhost").to_owned();
            return Ok(Endpoint { address: Address::Unix(path.to_owned()), server_name });
        }
        let uri: http::Uri = url.parse().map_err(|_| bad())?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(ClientError::UserInfo);
        }
        if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
            return Err(bad());
        }
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().ok_or_else(bad)?;
        let server_name = server_name.map_or_else(|| host.clone(), str::to_owned);
        Ok(Endpoint { address: Address::Tcp { host, port }, server_name })
    }
}

/// An open connection. Clones share it.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    pub async fn connect(endpoint: &Endpoint, tls: Arc<rustls::ClientConfig>) -> Result<Self, ClientError> {
        tokio::time::timeout(CONNECT_TIMEOUT, Self::connect_unbounded(endpoint, tls))
            .await
            .map_err(|_| ClientError::Timeout)?
    }

    async fn connect_unbounded(
        endpoint: &Endpoint,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, ClientError> {
        match &endpoint.address {
            Address::Tcp { host, port } => {
                let stream =
                    TcpStream::connect((host.as_str(), *port)).await.map_err(ClientError::Connect)?;
                stream.set_nodelay(true).map_err(ClientError::Connect)?;
                Self::over(stream, endpoint, tls).await
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(ClientError::Connect)?;
                Self::over(stream, endpoint, tls).await
            }
        }
    }

    async fn over<S>(
        stream: S,
        endpoint: &Endpoint,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let name = ServerName::try_from(endpoint.server_name.clone())
            .map_err(|_| ClientError::ServerName(endpoint.server_name.clone()))?;
        let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(ClientError::Connect)?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ClientError::Http)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "gateway connection ended");
            }
        });
        Ok(Client { sender })
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub async fn batches(&self, frames: Bytes) -> Result<BatchesAnswer, ClientError> {
        self.request(Method::POST, "/v1/batches", activity_schema::api::BATCHES_MEDIA_TYPE, frames).await
    }

    pub async fn streams(&self) -> Result<StreamsAnswer, ClientError> {
        self.request(Method::GET, "/v1/streams", "application/json", Bytes::new()).await
    }

    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Answer)?;
        self.request(Method::POST, path, "application/json", body.into()).await
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://gateway{path}"))
            .header(header::CONTENT_TYPE, media_type)
            .body(Full::new(body))
            .map_err(|_| ClientError::Url(path.to_owned()))?;
        let mut sender = self.sender.clone();
        let answer = async {
            sender.ready().await.map_err(ClientError::Http)?;
            let response = sender.send_request(request).await.map_err(ClientError::Http)?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|_| ClientError::Body)?;
            Ok((head, body.to_bytes()))
        };
        let (head, body) =
            tokio::time::timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| ClientError::Timeout)??;
        if head.status.is_success() {
            return serde_json::from_slice(&body).map_err(ClientError::Answer);
        }
        if matches!(head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let after = head.headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
            return Err(ClientError::Busy(Duration::from_secs(after.unwrap_or(1))));
        }
        let error = serde_json::from_slice::<ErrorAnswer>(&body).map(|e| e.error).unwrap_or_default();
        Err(ClientError::Status { status: head.status, error })
    }
}

#[cfg(test)]
pub(super) mod tests;
