//! TLS 1.3 with client certificates of the internal authority.

use std::sync::Arc;

use activity_schema::Timestamp;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::pki::{Authority, PkiError};

/// The configuration of both TLS listeners. A client may come without a certificate; what it may do then is
/// decided request by request. There is no session resumption: every connection proves its certificate anew.
pub fn server_config(authority: &Authority, now: Timestamp) -> Result<Arc<ServerConfig>, PkiError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(authority.roots()?, Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|e| PkiError::Tls(rustls::Error::General(e.to_string())))?;
    let identity = authority.server_identity(now)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain, identity.key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
