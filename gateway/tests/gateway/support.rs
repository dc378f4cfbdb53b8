//! A gateway in a temporary directory, collectors that enrol and send, operators that ask.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use activity_gateway::config::Config;
use activity_gateway::daemon::{self, Server};
use activity_gateway::tokens::Grant;
use activity_gateway::{clock, pki};
use activity_schema::api::{BATCHES_MEDIA_TYPE, BatchesAnswer, CertificateAnswer, EnrollRequest};
use activity_schema::batch::{BATCH_VERSION, ClockState, Leaf, compress, join_lines, lines_root};
use activity_schema::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use activity_schema::keys::Signer;
use activity_schema::{BatchHeader, Class, Hash, SignedBatch, Timestamp};
use activity_store::StoreConfig;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsConnector, rustls};

pub struct World {
    pub dir: TempDir,
    pub server: Server,
}

/// PEM certificate and key, and the authority to check the server against.
#[derive(Clone)]
pub struct Credentials {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

pub fn config(data: &Path) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        data: data.to_owned(),
        collector_listen: Some(any),
        collector_unix: Some(data.join("collector.sock")),
        operator_listen: Some(any),
        operator_unix: Some(data.join("operator.sock")),
        collector_lifetime: Duration::from_secs(3600),
        operator_lifetime: Duration::from_secs(3600),
        connections_max: 64,
        drain_max: Duration::from_secs(10),
        stall_max: Duration::from_millis(200),
        store: StoreConfig { dir: data.join("store"), reserve_bytes: 0, ..StoreConfig::default() },
    }
}

impl World {
    pub async fn start() -> World {
        World::start_in(tempfile::tempdir().unwrap()).await
    }

    pub async fn start_in(dir: TempDir) -> World {
        daemon::init(dir.path(), &["localhost".into(), "127.0.0.1".into()], clock::now()).await.unwrap();
        let server = Server::start(config(dir.path())).await.unwrap();
        World { dir, server }
    }

    pub async fn restart(self) -> World {
        self.server.stop().await.unwrap();
        let server = Server::start(config(self.dir.path())).await.unwrap();
        World { dir: self.dir, server }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn collectors(&self) -> SocketAddr {
        self.server.collector_address.unwrap()
    }

    pub fn operators(&self) -> SocketAddr {
        self.server.operator_address.unwrap()
    }

    pub fn ca(&self) -> String {
        pki::read_text(&self.path("pki/ca.pem")).unwrap()
    }

    pub fn admin(&self) -> Credentials {
        Credentials {
            ca: self.ca(),
            certificate: pki::read_text(&self.path("pki/admin.pem")).unwrap(),
            key: pki::read_text(&self.path("pki/admin.key")).unwrap(),
        }
    }

    /// A certificate of any operator, issued by an administrator.
    pub async fn operator(&self, name: &str, role: &str) -> Credentials {
        let (key, csr) = key_and_csr();
        let body = serde_json::json!({"name": name, "role": role, "csr_pem": csr});
        let admin = self.admin();
        let answer = post_json(self.operators(), Some(&admin), "/v1/operators", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
        let answer: serde_json::Value = answer.json();
        Credentials {
            ca: self.ca(),
            certificate: answer["certificate_pem"].as_str().unwrap().to_owned(),
            key,
        }
    }

    pub fn token(&self, tenant: &str, instance: Option<&str>, host: Option<&str>) -> String {
        let now = clock::now();
        let grant = Grant {
            tenant: tenant.parse().unwrap(),
            instance: instance.map(|i| i.parse().unwrap()),
            host: host.map(|h| h.parse().unwrap()),
            expires_at: now.saturating_add_nanos(60_000_000_000),
        };
        daemon::issue_token(self.dir.path(), &grant, now).unwrap().token
    }

    pub async fn enrol(&self, tenant: &str, instance: &str, collector: &str) -> Collector {
        let token = self.token(tenant, Some(instance), None);
        let mut collector = Collector::new(tenant, instance, collector);
        let answer = collector.enrol(self, &token).await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
        collector
    }

    pub async fn revoke(&self, tenant: &str, collector: &str) {
        let body = serde_json::json!(
            {"collector": {"tenant": tenant, "collector": collector, "reason": "test"}});
        let answer = post_json(self.operators(), Some(&self.admin()), "/v1/revoke", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
    }
}

/// A collector's daemon, as far as the gateway sees it.
pub struct Collector {
    pub tenant: TenantId,
    pub host: HostId,
    pub instance: InstanceId,
    pub id: CollectorId,
    pub epoch: Epoch,
    pub signer: Signer,
    pub credentials: Option<Credentials>,
    batch_number: u64,
    last_sequence: u64,
    last_hash: Hash,
}

impl Collector {
    pub fn new(tenant: &str, instance: &str, id: &str) -> Collector {
        Collector {
            tenant: tenant.parse().unwrap(),
            host: "host-1".parse().unwrap(),
            instance: instance.parse().unwrap(),
            id: id.parse().unwrap(),
            epoch: uuid::Uuid::now_v7().to_string().parse().unwrap(),
            signer: Signer::from_seed(&rand::random()),
            credentials: None,
            batch_number: 0,
            last_sequence: 0,
            last_hash: Hash::default(),
        }
    }

    pub async fn enrol(&mut self, world: &World, token: &str) -> Answer {
        let (key, csr) = key_and_csr();
        let request = EnrollRequest {
            token: token.to_owned(),
            collector_id: self.id.clone(),
            host_id: self.host.clone(),
            instance_id: self.instance.clone(),
            csr_pem: csr,
            signing_key: self.signer.public(),
            epoch: self.epoch.clone(),
        };
        let body = serde_json::to_value(&request).unwrap();
        let answer = post_json(world.collectors(), Some(&anonymous(world)), "/v1/enroll", &body).await;
        if answer.status == StatusCode::OK {
            let made: CertificateAnswer = answer.json();
            self.credentials = Some(Credentials { ca: made.ca_pem, certificate: made.certificate_pem, key });
        }
        answer
    }

    pub fn credentials(&self) -> &Credentials {
        self.credentials.as_ref().unwrap()
    }

    /// The next batch of the critical stream: one exec a line.
    pub fn batch(&mut self, lines: usize) -> SignedBatch {
        let now = clock::now();
        let events = (0..lines).map(|i| self.exec(now, i as u64)).collect();
        self.seal(Class::Critical, events, now)
    }

    pub fn exec(&self, at: Timestamp, offset: u64) -> serde_json::Value {
        let process = format!("boot-1:{}", self.last_sequence + offset + 1);
        let mut event = self.event("process.exec", "action", "observed", "security", at);
        event["correlation"]["process_id"] = process.clone().into();
        event["actor"] = serde_json::json!({"type": "process", "id": process, "pid": 7});
        event["payload"] = serde_json::json!({"executable": "sh", "argc": 1, "join": "none"});
        event
    }

    pub fn event(
        &self,
        name: &str,
        plane: &str,
        trust: &str,
        retention: &str,
        at: Timestamp,
    ) -> serde_json::Value {
        serde_json::json!({
            "schema_version": "activity.event/v1", "event_id": uuid::Uuid::now_v7().to_string(),
            "event_name": name, "plane": plane, "occurred_at": at.to_string(), "observed_at": at.to_string(),
            "source": {"collector": "", "layer": "host", "runtime": "docker", "trust": trust, "clock_id": "boot-1",
                "clock_error_ms": 1},
            "correlation": {"tenant_id": self.tenant, "host_id": self.host, "instance_id": self.instance,
                "agent_id": "agent-1"},
            "sensitivity": "metadata", "retention_class": retention, "payload": {},
            "integrity": {"collector_sequence": 0}
        })
    }

    /// Signs events as the stream's next batch; fills in stream and sequence.
    pub fn seal(
        &mut self,
        class: Class,
        events: Vec<serde_json::Value>,
        sealed_at: Timestamp,
    ) -> SignedBatch {
        let stream = format!("{}/{}/{}", self.id, self.epoch, class);
        let first = self.last_sequence + 1;
        let mut times = Vec::new();
        let lines: Vec<Vec<u8>> = events
            .into_iter()
            .zip(first..)
            .map(|(mut event, sequence)| {
                event["source"]["collector"] = stream.clone().into();
                event["integrity"]["collector_sequence"] = sequence.into();
                times.push(event["occurred_at"].as_str().unwrap().parse::<Timestamp>().unwrap());
                serde_json::to_vec(&event).unwrap()
            })
            .collect();
        let raw = join_lines(lines.iter().map(Vec::as_slice));
        let count = lines.len() as u64;
        let header = BatchHeader {
            batch_number: self.batch_number + 1,
            boot_id: "boot-1".into(),
            class,
            clock: ClockState { error_ns: 1_000_000, offset_ns: 0, synchronised: true },
            collector_id: self.id.clone(),
            count,
            epoch: self.epoch.clone(),
            first_sequence: first,
            host: self.host.clone(),
            key_id: self.signer.id().clone(),
            last_sequence: first + count - 1,
            merkle_root: lines_root(lines.iter().map(|l| Leaf::Line(l))),
            occurred_max: times.iter().copied().max().unwrap(),
            occurred_min: times.iter().copied().min().unwrap(),
            policy_digest: Hash::default(),
            previous_batch_hash: self.last_hash,
            raw_bytes: raw.len() as u64,
            ring_cursors: Default::default(),
            sealed_at,
            tenant: self.tenant.clone(),
            version: BATCH_VERSION,
        };
        self.batch_number = header.batch_number;
        self.last_sequence = header.last_sequence;
        let batch = SignedBatch::sign(header, Some(compress(&raw).unwrap().into()), &self.signer);
        self.last_hash = batch.hash();
        batch
    }

    pub async fn send(&self, world: &World, batches: &[SignedBatch]) -> Answer {
        let mut connection = Connection::open(world.collectors(), Some(self.credentials())).await.unwrap();
        connection.send(batches).await.unwrap()
    }
}

pub fn frames(batches: &[SignedBatch]) -> Bytes {
    let mut out = Vec::new();
    for batch in batches {
        batch.encode(&mut out);
    }
    out.into()
}

/// An answer, whole.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Answer {
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn results(&self) -> BatchesAnswer {
        assert_eq!(self.status, StatusCode::OK, "{:?}", self.body);
        self.json()
    }
}

/// One HTTP/1.1 connection.
pub struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
}

impl Connection {
    pub async fn open(address: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<Self> {
        Connection::over(tls(address, credentials).await?).await
    }

    pub async fn over<S>(stream: S) -> anyhow::Result<Self>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { sender })
    }

    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        kind: &str,
        body: Bytes,
    ) -> anyhow::Result<Answer> {
        self.sender.ready().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", kind)
            .body(Full::new(body))?;
        let (parts, body) = self.sender.send_request(request).await?.into_parts();
        Ok(Answer { status: parts.status, body: body.collect().await?.to_bytes() })
    }

    pub async fn send(&mut self, batches: &[SignedBatch]) -> anyhow::Result<Answer> {
        self.ask(Method::POST, "/v1/batches", BATCHES_MEDIA_TYPE, frames(batches)).await
    }

    pub async fn get(&mut self, path: &str) -> anyhow::Result<Answer> {
        self.ask(Method::GET, path, "application/json", Bytes::new()).await
    }
}

pub async fn get(address: SocketAddr, credentials: Option<&Credentials>, path: &str) -> Answer {
    Connection::open(address, credentials).await.unwrap().get(path).await.unwrap()
}

pub async fn post_json(
    address: SocketAddr,
    credentials: Option<&Credentials>,
    path: &str,
    body: &serde_json::Value,
) -> Answer {
    let mut connection = Connection::open(address, credentials).await.unwrap();
    connection.ask(Method::POST, path, "application/json", body.to_string().into()).await.unwrap()
}

/// Knows the authority, shows no certificate.
pub fn anonymous(world: &World) -> Credentials {
    Credentials { ca: world.ca(), certificate: String::new(), key: String::new() }
}

pub async fn tls(
    address: SocketAddr,
    credentials: Option<&Credentials>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(client_config(credentials.expect("an authority is needed"))));
    Ok(connector.connect(ServerName::try_from("localhost")?, stream).await?)
}

pub fn client_config(credentials: &Credentials) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(pki::roots_of(&credentials.ca).unwrap());
    if credentials.certificate.is_empty() {
        return builder.with_no_client_auth();
    }
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(credentials.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).unwrap();
    builder.with_client_auth_cert(chain, key).unwrap()
}

pub fn key_and_csr() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::default().serialize_request(&key).unwrap();
    (key.serialize_pem(), csr.pem().unwrap())
}
