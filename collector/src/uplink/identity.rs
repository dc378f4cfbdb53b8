//! What the collector keeps of its enrolment: certificate, key, CA. And how it gets and renews them.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use activity_schema::Timestamp;
use activity_schema::api::{CertificateAnswer, EnrollRequest, RenewRequest};
use activity_schema::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use activity_schema::keys::PublicKey;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use super::client::{Client, ClientError, Endpoint};
use crate::bounded;

/// `identity.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub tenant: TenantId,
    pub host: HostId,
    pub instance: InstanceId,
    /// The certificate covers no other instance.
    #[serde(default)]
    pub only_instance: bool,
    pub collector_id: CollectorId,
    pub not_after: Timestamp,
    pub gateway_key: PublicKey,
    pub gateway_url: String,
    pub server_name: Option<String>,
}

/// Why enrolment or renewal failed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is malformed: {message}")]
    Malformed { path: PathBuf, message: String },
    #[error("cannot make a certificate request")]
    Request(#[source] rcgen::Error),
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The collector's key and its certificate, PEM.
const CLIENT: &str = "client.pem";

/// Files of the enrolment, below the state folder.
#[derive(Debug, Clone)]
pub struct IdentityDir(PathBuf);

impl IdentityDir {
    pub fn new(state_dir: &Path) -> Self {
        IdentityDir(state_dir.join("identity"))
    }

    pub fn load(&self) -> Result<Option<Identity>, IdentityError> {
        let path = self.0.join("identity.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| IdentityError::Malformed { path, message: e.to_string() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::File { path, source }),
        }
    }

    /// TLS 1.3 with the client certificate.
    pub fn tls(&self) -> Result<Arc<rustls::ClientConfig>, IdentityError> {
        let ca = self.certificates("ca.pem")?;
        let chain = self.certificates(CLIENT)?;
        let path = self.0.join(CLIENT);
        let key =
            bounded::read(&path).map_err(|source| IdentityError::File { path: path.clone(), source })?;
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|e| IdentityError::Malformed { path, message: e.to_string() })?;
        client_tls(ca, Some((chain, key)))
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        read_certificates(&self.0.join(name))
    }

    fn store(
        &self,
        identity: &Identity,
        answer: &CertificateAnswer,
        key_pem: &str,
    ) -> Result<(), IdentityError> {
        let file = |name: &str, bytes: &[u8]| {
            let path = self.0.join(name);
            write_private(&path, bytes).map_err(|source| IdentityError::File { path, source })
        };
        use std::os::unix::fs::DirBuilderExt as _;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|source| IdentityError::File { path: self.0.clone(), source })?;
        // One file: a key without its certificate would lock the collector out.
        file(CLIENT, format!("{key_pem}{}", answer.certificate_pem).as_bytes())?;
        file("ca.pem", answer.ca_pem.as_bytes())?;
        // Last: without it the rest is not used.
        file("identity.json", &serde_json::to_vec_pretty(identity).unwrap_or_default())
    }
}

/// Who asks to be enrolled, and for which spool.
#[derive(Debug, Clone)]
pub struct Applicant {
    pub collector_id: CollectorId,
    pub host: HostId,
    pub instance: InstanceId,
    pub signing_key: PublicKey,
    pub epoch: Epoch,
}

/// Trades a one-time token for a certificate and keeps it.
pub async fn enroll(
    dir: &IdentityDir,
    url: &str,
    server_name: Option<&str>,
    ca: Vec<CertificateDer<'static>>,
    token: &str,
    applicant: &Applicant,
) -> Result<Identity, IdentityError> {
    let tls = client_tls(ca, None)?;
    let client = Client::connect(&Endpoint::parse(url, server_name)?, tls).await?;
    let (csr_pem, key_pem) = certificate_request()?;
    let request = EnrollRequest {
        token: token.to_owned(),
        collector_id: applicant.collector_id.clone(),
        host_id: applicant.host.clone(),
        instance_id: applicant.instance.clone(),
        csr_pem,
        signing_key: applicant.signing_key,
        epoch: applicant.epoch.clone(),
    };
    let answer: CertificateAnswer = client.post_json("/v1/enroll", &request).await?;
    let identity = Identity {
        tenant: answer.tenant_id.clone(),
        host: applicant.host.clone(),
        instance: applicant.instance.clone(),
        only_instance: answer.instance_id.is_some(),
        collector_id: applicant.collector_id.clone(),
        not_after: answer.not_after,
        gateway_key: answer.gateway_key,
        gateway_url: url.to_owned(),
        server_name: server_name.map(str::to_owned),
    };
    dir.store(&identity, &answer, &key_pem)?;
    Ok(identity)
}

/// Asks for a new certificate, or makes a new epoch's key known, over an authenticated connection.
pub async fn renew(
    dir: &IdentityDir,
    identity: &Identity,
    client: &Client,
    signing_key: PublicKey,
    epoch: Epoch,
) -> Result<Identity, IdentityError> {
    let (csr_pem, key_pem) = certificate_request()?;
    let request = RenewRequest { csr_pem, signing_key, epoch };
    let answer: CertificateAnswer = client.post_json("/v1/renew", &request).await?;
    let renewed = Identity {
        only_instance: answer.instance_id.is_some(),
        not_after: answer.not_after,
        ..identity.clone()
    };
    dir.store(&renewed, &answer, &key_pem)?;
    Ok(renewed)
}

fn certificate_request() -> Result<(String, String), IdentityError> {
    let key = rcgen::KeyPair::generate().map_err(IdentityError::Request)?;
    let request =
        rcgen::CertificateParams::default().serialize_request(&key).map_err(IdentityError::Request)?;
    Ok((request.pem().map_err(IdentityError::Request)?, key.serialize_pem()))
}

fn client_tls(
    ca: Vec<CertificateDer<'static>>,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<Arc<rustls::ClientConfig>, IdentityError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in ca {
        roots.add(certificate).map_err(IdentityError::Tls)?;
    }
    let builder =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(IdentityError::Tls)?
            .with_root_certificates(roots);
    let mut config = match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(IdentityError::Tls)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The certificates of a PEM file.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let malformed = |message: String| IdentityError::Malformed { path: path.to_owned(), message };
    let bytes =
        bounded::read(path).map_err(|source| IdentityError::File { path: path.to_owned(), source })?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|e| malformed(e.to_string()))?;
    if all.is_empty() { Err(malformed("it holds no certificate".to_owned())) } else { Ok(all) }
}

/// Writes beside, syncs and renames; mode 0600.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let beside = path.with_extension("new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
