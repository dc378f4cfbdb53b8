//! Asks a gateway: HTTPS with a client certificate, or its local socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use activity_schema::api::ErrorAnswer;
use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::CliError;
use super::args::Place;
use crate::pki;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer: a page of events at their longest, and room.
const ANSWER_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// A gateway that can be asked.
pub(super) struct Client {
    door: Door,
}

enum Door {
    Unix(PathBuf),
    Tls { host: String, port: u16, config: Arc<ClientConfig> },
}

impl Client {
    pub(super) fn new(url: &str, place: &Place) -> Result<Self, CliError> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Client { door: Door::Unix(PathBuf::from(path)) });
        }
        let bad = || CliError::Usage(format!("{url:?} is not a gateway: use https://HOST:PORT or unix:PATH"));
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let (Some("https"), Some(host)) = (uri.scheme_str(), uri.host()) else { return Err(bad()) };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let config = tls_config(place)?;
        Ok(Client { door: Door::Tls { host, port: uri.port_u16().unwrap_or(7444), config } })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Bytes, CliError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(&self, path: &str, body: &impl serde::Serialize) -> Result<Bytes, CliError> {
        self.ask(Method::POST, path, serde_json::to_vec(body)?.into()).await
    }

    pub(super) async fn post_bytes(&self, path: &str, body: Bytes) -> Result<Bytes, CliError> {
        self.ask(Method::POST, path, body).await
    }

    /// Hands each part of an answer to `take` as it arrives.
    pub(super) async fn post_to(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), CliError> {
        let patient =
            |what| move |_| anyhow!("the gateway did not {what} for {} s", ANSWER_TIMEOUT.as_secs());
        let sending = self.send(Method::POST, path, Bytes::new());
        let response = tokio::time::timeout(ANSWER_TIMEOUT, sending).await.map_err(patient("answer"))??;
        let (parts, mut body) = response.into_parts();
        if !parts.status.is_success() {
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|e| anyhow!("reading the gateway's answer: {e}"))?;
            return judge(parts.status, body.to_bytes()).map(drop);
        }
        loop {
            let frame = tokio::time::timeout(ANSWER_TIMEOUT, body.frame()).await.map_err(patient("go on"))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.context("the gateway's answer broke off")?;
            if let Some(data) = frame.data_ref() {
                take(data).context("writing the answer")?;
            }
        }
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, CliError> {
        let answer = async {
            let (parts, body) = self.send(method, path, body).await?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|e| anyhow!("reading the gateway's answer: {e}"))?;
            Ok::<_, CliError>((parts.status, body.to_bytes()))
        };
        let (status, body) = tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| {
            anyhow!("the gateway did not finish its answer; ask for less with --from or --limit")
        })??;
        judge(status, body)
    }

    /// Connects, and asks; the answer's body is not read yet.
    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, CliError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.connect());
        let mut sender = connecting
            .await
            .map_err(|_| anyhow!("the gateway does not answer within {} s", CONNECT_TIMEOUT.as_secs()))??;
        let host = match &self.door {
            Door::Unix(_) => "localhost".to_owned(),
            Door::Tls { host, port, .. } => format!("{host}:{port}"),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .context("the request")?;
        Ok(sender.send_request(request).await.context("asking the gateway")?)
    }

    async fn connect(&self) -> Result<hyper::client::conn::http1::SendRequest<Full<Bytes>>, CliError> {
        match &self.door {
            Door::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                let stream = stream.with_context(|| {
                    format!(
                        "no gateway answers at {}; is it running, and is this its operator socket?",
                        path.display()
                    )
                })?;
                handshake(stream).await
            }
            Door::Tls { host, port, config } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.with_context(|| format!("no gateway answers at {host}:{port}"))?;
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| CliError::Usage(format!("{host:?} is not a host name")))?;
                let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                handshake(stream.with_context(|| {
                    format!(
                        "{host}:{port} is not the gateway that --ca vouches for, or refused the certificate"
                    )
                })?)
                .await
            }
        }
    }
}

async fn handshake<S>(stream: S) -> Result<hyper::client::conn::http1::SendRequest<Full<Bytes>>, CliError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .context("speaking HTTP with the gateway")?;
    // Its errors come out of the request as well.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn judge(status: StatusCode, body: Bytes) -> Result<Bytes, CliError> {
    if status.is_success() {
        return Ok(body);
    }
    let error = serde_json::from_slice::<ErrorAnswer>(&body)
        .map_or_else(|_| String::from_utf8_lossy(&body).trim().to_owned(), |e| e.error);
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CliError::Unauthorised(error),
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => CliError::Usage(error),
        StatusCode::UNPROCESSABLE_ENTITY => CliError::Other(anyhow!(error)),
        other => CliError::Other(anyhow!("the gateway answered {other}: {error}")),
    })
}

fn tls_config(place: &Place) -> Result<Arc<ClientConfig>, CliError> {
    let ca = place.ca.as_ref().ok_or_else(|| {
        CliError::Usage(
            "name the gateway's authority with --ca or ACTIVITY_CA (pki/ca.pem of its data directory)".into(),
        )
    })?;
    let roots =
        pki::roots_of(&pki::read_text(ca).map_err(anyhow::Error::new)?).map_err(anyhow::Error::new)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("TLS")?
        .with_root_certificates(roots);
    let (Some(cert), Some(key)) = (&place.cert, &place.key) else {
        return Err(CliError::Usage(
            "name your certificate with --cert and --key (or ACTIVITY_CERT and ACTIVITY_KEY); an administrator makes one with `activity enroll --operator`".into(),
        ));
    };
    let chain = pki::certificates(cert).map_err(anyhow::Error::new)?;
    let key = PrivateKeyDer::from_pem_slice(pki::read_text(key).map_err(anyhow::Error::new)?.as_bytes())
        .map_err(|_| CliError::Usage(format!("{} is not a key in PEM", key.display())))?;
    let mut config = builder.with_client_auth_cert(chain, key).context("the client certificate")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, UnixListener};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_gateway_is_waited_for_10_s_and_its_answer_120_s() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let port = silent.local_addr().unwrap().port();
        let door = Door::Tls { host: "127.0.0.1".to_owned(), port, config: Arc::new(config) };
        let start = Instant::now();
        assert!(Client { door }.get("/v1/status").await.is_err());
        assert_eq!(start.elapsed().as_millis() / 100, 100);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.sock");
        let _silent = UnixListener::bind(&path).unwrap();
        let client = Client { door: Door::Unix(path) };
        let start = Instant::now();
        assert!(client.get("/v1/status").await.is_err());
        assert_eq!(start.elapsed().as_millis() / 100, 1_200);
        let start = Instant::now();
        assert!(client.post_to("/v1/exports", |_| Ok(())).await.is_err());
        assert_eq!(start.elapsed().as_millis() / 100, 1_200);
    }
}
