//! HTTP to the model: HTTP/1.1 or HTTP/2 over rustls with the platform's roots, or loopback TCP.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};

/// Idle connections kept: one session asks one question at a time.
const POOL_IDLE_MAX: usize = 1;

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("the platform has no usable certificate roots; install ca-certificates or set SSL_CERT_FILE")]
    NoRoots,
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("the request failed: {}", innermost(.0))]
    Request(#[source] hyper_util::client::legacy::Error),
}

impl TransportError {
    /// Asking again cannot help: the fault is on this side.
    pub(crate) const fn is_permanent(&self) -> bool {
        matches!(self, Self::NoRoots | Self::Tls(_))
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
        let roots = if secure { platform_roots()? } else { RootCertStore::empty() };
        Self::with_roots(roots, connect_timeout)
    }

    pub(crate) fn with_roots(
        roots: RootCertStore,
        connect_timeout: Duration,
    ) -> Result<Self, TransportError> {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(connect_timeout));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(roots)?)
            .https_or_http()
            .enable_http1()
            .enable_http2()
            .wrap_connector(tcp);
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

/// A root that does not parse is skipped: platforms carry odd ones, and one good root is enough.
fn platform_roots() -> Result<RootCertStore, TransportError> {
    let loaded = rustls_native_certs::load_native_certs();
    for error in &loaded.errors {
        tracing::warn!(%error, "a certificate root could not be loaded");
    }
    let mut roots = RootCertStore::empty();
    let (added, ignored) = roots.add_parsable_certificates(loaded.certs);
    tracing::debug!(added, ignored, "certificate roots");
    if roots.is_empty() { Err(TransportError::NoRoots) } else { Ok(roots) }
}

fn tls(roots: RootCertStore) -> Result<ClientConfig, TransportError> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .map_err(TransportError::Tls)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
