//! What is made before the server runs: store, authority, certificates, tokens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use activity_schema::Timestamp;
use activity_schema::keys::PublicKey;
use activity_store::StoreConfig;
use serde::Serialize;

use crate::evidence::{Evidence, EvidenceError};
use crate::identity::{Identity, OperatorIdentity, Role};
use crate::pki::{self, Authority, PkiError};
use crate::tokens::{Grant, IssueError, Tokens};
use crate::wire::TokenAnswer;

/// Lifetime of the first administrator's certificate.
const ADMIN_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why nothing, or not everything, was made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("the evidence store cannot be made")]
    Store(#[from] EvidenceError),
    #[error("the certificates cannot be made")]
    Pki(#[from] PkiError),
    #[error("{} was made already; remove it to start anew", .0.display())]
    Exists(PathBuf),
    #[error("{} is not a gateway's data directory; `activity-gateway init` makes one", .0.display())]
    Absent(PathBuf),
    #[error("the token cannot be made")]
    Token(#[from] IssueError),
    #[error("the data directory cannot be used")]
    Data(#[from] std::io::Error),
}

/// What `init` made.
#[derive(Debug, Serialize)]
pub struct Made {
    pub data: PathBuf,
    pub store: PathBuf,
    /// Give this to collectors and operators: it is what they check the server against.
    pub ca: PathBuf,
    pub admin_certificate: PathBuf,
    pub admin_key: PathBuf,
    pub names: Vec<String>,
    /// Keep this elsewhere: `activity verify --trust` checks evidence against it.
    pub gateway_key: PublicKey,
}

/// Makes everything that a server needs in `data`. `names` are what clients call it.
pub async fn init(data: &Path, names: &[String], now: Timestamp) -> Result<Made, SetupError> {
    let pki_dir = data.join("pki");
    if pki_dir.join("ca.pem").exists() {
        return Err(SetupError::Exists(pki_dir));
    }
    let authority = Authority::create(&pki_dir, names, now)?;
    let admin = Identity::Operator(OperatorIdentity { name: "admin".to_owned(), role: Role::Admin });
    let (issued, key) = authority.issue_with_key(&admin, ADMIN_LIFETIME, now)?;
    let (admin_certificate, admin_key) = (pki_dir.join("admin.pem"), pki_dir.join("admin.key"));
    pki::write_new(&admin_certificate, &issued.certificate_pem)?;
    pki::write_new(&admin_key, &key)?;
    Tokens::open(data)?;
    let store = data.join("store");
    let evidence = Evidence::open(StoreConfig { dir: store.clone(), ..StoreConfig::default() })?;
    let gateway_key = evidence.gateway_key();
    evidence.close().await?;
    Ok(Made {
        data: data.to_owned(),
        store,
        ca: pki_dir.join("ca.pem"),
        admin_certificate,
        admin_key,
        names: names.to_vec(),
        gateway_key,
    })
}

/// Makes a one-time token. Works beside a running server: tokens are files that it reads when they are used.
pub fn issue_token(data: &Path, grant: &Grant, now: Timestamp) -> Result<TokenAnswer, SetupError> {
    if !data.join("pki/ca.pem").exists() {
        return Err(SetupError::Absent(data.to_owned()));
    }
    let token = Tokens::open(data)?.issue(grant, now)?;
    Ok(TokenAnswer { token: token.reveal().to_owned(), expires_at: grant.expires_at })
}
