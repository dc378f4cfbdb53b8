//! HTTP to the model: HTTP/1.1 or HTTP/2 over rustls with the platform's roots, or loopback TCP.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Idle connections kept: one session asks one question at a time.
const POOL_IDLE_MAX: usize = 1;

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("cannot load the platform's certificate roots")]
    Roots(#[source] io::Error),
    #[error("the request failed: {}", innermost(.0))]
    Request(#[source] hyper_util::client::legacy::Error),
}

impl TransportError {
    /// Asking again cannot help: the fault is on this side.
    pub(crate) const fn is_permanent(&self) -> bool {
        matches!(self, Self::Roots(_))
    }
}

/// hyper's own texts ("client error (Connect)") hide what a person needs to know.
fn innermost(error: &hyper_util::client::legacy::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[derive(Debug, Clone)]
pub(crate) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Transport {
    /// `secure`: whether TLS is needed. Without it no roots are loaded, so that a machine without
    /// any still talks to loopback.
    pub(crate) fn new(secure: bool, connect_timeout: Duration) -> Result<Self, TransportError> {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(connect_timeout));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let builder = HttpsConnectorBuilder::new();
        let builder = if secure {
            builder.with_native_roots().map_err(TransportError::Roots)?.https_only()
        } else {
            builder.with_tls_config(no_tls()).https_or_http()
        };
        let connector = builder.enable_http1().enable_http2().wrap_connector(tcp);
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(POOL_IDLE_MAX).build(connector);
        Ok(Self { client })
    }

    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TransportError> {
        self.client.request(request).await.map_err(TransportError::Request)
    }
}
