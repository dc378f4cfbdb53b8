//! The internal certificate authority: who may connect, and how the gateway proves itself.
//!
//! Files in `<data>/pki`, all 0600: `ca.pem` (the current authority first, then those still trusted), `ca.key`,
//! `server.pem` (with its chain), `server.key`.

mod files;

pub use files::{create_dir, read_text, write_new, write_over};

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use activity_schema::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData,
    SanType, SerialNumber, string::Ia5String,
};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::identity::Identity;

/// Clocks of new collectors may be behind by this much.
const BACKDATED: Duration = Duration::from_secs(300);
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The server's certificate; renewed at start and once a day when less than a third is left.
const SERVER_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// Authorities that stay trusted, the current one among them. A collector learns of a new one at every renewal.
const AUTHORITIES_MAX: usize = 8;

/// Why the authority cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not a certificate or key in PEM", path.display())]
    Pem { path: PathBuf },
    #[error("the certificate request is not acceptable")]
    Request(#[source] rcgen::Error),
    #[error("the certificate could not be made")]
    Make(#[from] rcgen::Error),
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
    #[error("the certificates do not fit together")]
    Tls(#[from] rustls::Error),
}

/// A certificate that was just issued.
#[derive(Debug, Clone)]
pub struct Issued {
    pub certificate_pem: String,
    pub serial: Uuid,
    pub not_after: Timestamp,
}

/// What a TLS listener shows: its chain and key.
pub struct ServerIdentity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// The authority, loaded.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// Every authority whose certificates are accepted, PEM; also given to collectors.
    ca_pem: String,
}

impl Authority {
    /// Makes an authority and a server certificate in an empty directory.
    pub fn create(dir: &Path, names: &[String], now: Timestamp) -> Result<Self, PkiError> {
        files::create_dir(dir)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = ca_params(now);
        let certificate = params.self_signed(&key)?;
        write_new(&dir.join("ca.key"), &key.serialize_pem())?;
        write_new(&dir.join("ca.pem"), &certificate.pem())?;
        let authority = Authority {
            dir: dir.to_owned(),
            issuer: Issuer::from_ca_cert_pem(&certificate.pem(), key)?,
            ca_pem: certificate.pem(),
        };
        authority.make_server_certificate(names, now)?;
        Ok(authority)
    }

    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        let ca_path = dir.join("ca.pem");
        let ca_pem = read_text(&ca_path)?;
        let key_path = dir.join("ca.key");
        let key = KeyPair::from_pem(&read_text(&key_path)?).map_err(|_| PkiError::Pem { path: key_path })?;
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, key).map_err(|_| PkiError::Pem { path: ca_path })?;
        Ok(Authority { dir: dir.to_owned(), issuer, ca_pem })
    }

    /// Replaces the authority by a new one, and the server's certificate with it. The old authority signs the new
    /// one, and stays trusted: neither side needs to have seen the change.
    pub fn rotate(&self, now: Timestamp) -> Result<Self, PkiError> {
        let names = self.server_names()?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = ca_params(now);
        let own = params.self_signed(&key)?;
        let crossed = params.signed_by(&key, &self.issuer)?;
        let ca_pem = newest(&format!("{}{}", own.pem(), self.ca_pem));
        write_over(&self.dir.join("cross.pem"), &newest(&format!("{}{}", crossed.pem(), self.cross_pem())))?;
        write_over(&self.dir.join("ca.key"), &key.serialize_pem())?;
        write_over(&self.dir.join("ca.pem"), &ca_pem)?;
        let authority =
            Authority { dir: self.dir.clone(), issuer: Issuer::from_ca_cert_pem(&own.pem(), key)?, ca_pem };
        authority.make_server_certificate(&names, now)?;
        Ok(authority)
    }

    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Issues a client certificate for the key of a request. Nothing else of the request is used.
    pub fn issue_for_request(
        &self,
        csr_pem: &str,
        identity: &Identity,
        lifetime: Duration,
        issued_at: Timestamp,
    ) -> Result<Issued, PkiError> {
        let request = CertificateSigningRequestParams::from_pem(csr_pem).map_err(PkiError::Request)?;
        self.issue(&request.public_key, identity, lifetime, issued_at)
    }

    /// Makes a key and a client certificate for it; returns the key's PEM.
    pub fn issue_with_key(
        &self,
        identity: &Identity,
        lifetime: Duration,
        issued_at: Timestamp,
    ) -> Result<(Issued, String), PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok((self.issue(&key, identity, lifetime, issued_at)?, key.serialize_pem()))
    }

    fn issue(
        &self,
        key: &impl PublicKeyData,
        identity: &Identity,
        lifetime: Duration,
        issued_at: Timestamp,
    ) -> Result<Issued, PkiError> {
        let serial = serial(issued_at);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(identity.to_string())?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
        let not_after = validity(&mut params, issued_at, lifetime);
        let certificate = params.signed_by(key, &self.issuer)?;
        Ok(Issued { certificate_pem: certificate.pem(), serial, not_after })
    }

    /// The server's chain and key, renewed first when little of its lifetime is left.
    pub fn server_identity(&self, now: Timestamp) -> Result<ServerIdentity, PkiError> {
        let path = self.dir.join("server.pem");
        let mut chain = certificates(&path)?;
        if chain.first().is_none_or(|c| expires_soon(c, now)) {
            self.make_server_certificate(&self.server_names()?, now)?;
            chain = certificates(&path)?;
        }
        let key_path = self.dir.join("server.key");
        let key = PrivateKeyDer::from_pem_slice(read_text(&key_path)?.as_bytes());
        Ok(ServerIdentity { chain, key: key.map_err(|_| PkiError::Pem { path: key_path })? })
    }

    /// The authorities that client certificates are checked against.
    pub fn roots(&self) -> Result<Arc<RootCertStore>, PkiError> {
        roots_of(&self.ca_pem)
    }

    fn make_server_certificate(&self, names: &[String], now: Timestamp) -> Result<(), PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name("activity-gateway");
        params.subject_alt_names = names.iter().map(|n| name_of(n)).collect::<Result<_, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from_slice(serial(now).as_bytes()));
        validity(&mut params, now, SERVER_LIFETIME);
        let certificate = params.signed_by(&key, &self.issuer)?;
        write_over(&self.dir.join("server.key"), &key.serialize_pem())?;
        write_over(&self.dir.join("server.pem"), &format!("{}{}", certificate.pem(), self.cross_pem()))?;
        write_over(&self.dir.join("server.names"), &format!("{}\n", names.join("\n")))
    }

    pub fn server_names(&self) -> Result<Vec<String>, PkiError> {
        let text = read_text(&self.dir.join("server.names"))?;
        Ok(text.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect())
    }

    /// Every authority as the one before signed it, newest first: a chain from the current one to the first.
    fn cross_pem(&self) -> String {
        read_text(&self.dir.join("cross.pem")).unwrap_or_default()
    }
}

/// Roots from PEM text.
pub fn roots_of(ca_pem: &str) -> Result<Arc<RootCertStore>, PkiError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|_| PkiError::Pem { path: PathBuf::from("ca.pem") })?;
        roots.add(certificate)?;
    }
    Ok(Arc::new(roots))
}

/// All certificates of a PEM file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let text = read_text(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    all.ok().filter(|c| !c.is_empty()).ok_or_else(|| PkiError::Pem { path: path.to_owned() })
}

/// The first [`AUTHORITIES_MAX`] certificates of a PEM text.
fn newest(pem: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    pem.split_inclusive(END)
        .take(AUTHORITIES_MAX)
        .filter(|c| c.contains(END))
        .map(|c| format!("{}\n", c.trim()))
        .collect()
}

fn ca_params(now: Timestamp) -> CertificateParams {
    let serial = serial(now);
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&format!("activity-gateway CA {}", serial.simple()));
    // Below it come leaves and, when it was replaced, its successors.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
    validity(&mut params, now, CA_LIFETIME);
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    dn.push(DnType::CommonName, name);
    dn
}

/// Whether a certificate can be made for all of them.
pub fn check_names(names: &[String]) -> Result<(), PkiError> {
    names.iter().try_for_each(|name| name_of(name).map(drop))
}

fn name_of(name: &str) -> Result<SanType, PkiError> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let bad = || PkiError::Name(name.to_owned());
    rustls_pki_types::DnsName::try_from(name).map_err(|_| bad())?;
    Ok(SanType::DnsName(Ia5String::try_from(name).map_err(|_| bad())?))
}

/// A serial number that says when it was given: a UUIDv7.
fn serial(at: Timestamp) -> Uuid {
    let ms = u64::try_from(at.as_nanos().div_euclid(1_000_000)).unwrap_or(0);
    let random: [u8; 10] = rand::random();
    uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
}

fn validity(params: &mut CertificateParams, from: Timestamp, lifetime: Duration) -> Timestamp {
    let seconds = from.as_nanos().div_euclid(1_000_000_000);
    let at = |s: i64| OffsetDateTime::from_unix_timestamp(s).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let end = seconds.saturating_add_unsigned(lifetime.as_secs());
    params.not_before = at(seconds.saturating_sub_unsigned(BACKDATED.as_secs()));
    params.not_after = at(end);
    Timestamp::from_nanos(end.saturating_mul(1_000_000_000))
}

fn expires_soon(certificate: &CertificateDer<'_>, now: Timestamp) -> bool {
    use x509_parser::prelude::FromDer as _;
    let parsed = x509_parser::certificate::X509Certificate::from_der(certificate);
    let margin = (SERVER_LIFETIME / 3).as_secs();
    let seconds = now.as_nanos().div_euclid(1_000_000_000).saturating_add_unsigned(margin);
    parsed.map_or(true, |(_, c)| c.validity().not_after.timestamp() < seconds)
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::FromDer as _;

    use super::*;

    const DAY_S: i64 = 86_400;
    const NOW_S: i64 = 1_785_585_600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    /// From when and until when a certificate counts, seconds from [`NOW_S`].
    fn validity_of(der: &[u8]) -> (i64, i64) {
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(der).unwrap();
        let validity = parsed.validity();
        (validity.not_before.timestamp() - NOW_S, validity.not_after.timestamp() - NOW_S)
    }

    #[test]
    fn an_authority_lives_10_years_and_the_servers_certificate_90_days_renewed_below_a_third() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("pki"), &["localhost".into()], at(NOW_S)).unwrap();
        let ca = certificates(&dir.path().join("pki/ca.pem")).unwrap();
        assert_eq!(validity_of(&ca[0]), (-300, 3_650 * DAY_S));
        let server = |after_s| {
            let identity = authority.server_identity(at(NOW_S + after_s)).unwrap();
            validity_of(&identity.chain[0])
        };
        assert_eq!(server(0), (-300, 90 * DAY_S));
        assert_eq!(server(60 * DAY_S), (-300, 90 * DAY_S), "a third is left");
        assert_eq!(server(60 * DAY_S + 1), (60 * DAY_S - 299, 150 * DAY_S + 1), "renewed");
    }
}
