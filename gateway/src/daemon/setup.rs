//! What is made before the server runs: store, authority, certificates, tokens.

use std::fs::File;
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

/// What `init` makes, in the order in which it is put in place; the server does not start without the last.
const PARTS: [&str; 3] = ["store", "tokens", "pki"];
/// Where the parts are made, and where they wait when all of them are durable. In the data directory, which may be a
/// file system of its own.
const UNREADY: &str = ".init.unready";
const READY: &str = ".init.ready";
/// Lifetime of the first administrator's certificate.
const ADMIN_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why nothing, or not everything, was made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("the evidence store cannot be made")]
    Store(#[from] EvidenceError),
    #[error("the certificates cannot be made")]
    Pki(#[from] PkiError),
    #[error("{} is there already: `activity-gateway run` uses it; name another directory to start anew", .0.display())]
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
    pki::check_names(names)?;
    pki::create_dir(data)?;
    // An attempt before was interrupted when it had everything ready: it is finished, with its own names.
    if put_in_place(data)? {
        return made(data);
    }
    for name in PARTS {
        if data.join(name).exists() {
            return Err(SetupError::Exists(data.join(name)));
        }
    }
    let unready = data.join(UNREADY);
    if unready.exists() {
        std::fs::remove_dir_all(&unready)?;
    }
    make(&unready, names, now).await?;
    std::fs::rename(&unready, data.join(READY))?;
    File::open(data)?.sync_all()?;
    put_in_place(data)?;
    made(data)
}

fn made(data: &Path) -> Result<Made, SetupError> {
    let (store, pki_dir) = (data.join("store"), data.join("pki"));
    let evidence = Evidence::open_read_only(&store)?;
    Ok(Made {
        data: data.to_owned(),
        ca: pki_dir.join("ca.pem"),
        admin_certificate: pki_dir.join("admin.pem"),
        admin_key: pki_dir.join("admin.key"),
        names: Authority::load(&pki_dir)?.server_names()?,
        gateway_key: evidence.gateway_key(),
        store,
    })
}

/// Makes all parts, durably, in a folder of their own.
async fn make(folder: &Path, names: &[String], now: Timestamp) -> Result<(), SetupError> {
    let pki_dir = folder.join("pki");
    pki::create_dir(folder)?;
    let authority = Authority::create(&pki_dir, names, now)?;
    let admin = Identity::Operator(OperatorIdentity { name: "admin".to_owned(), role: Role::Admin });
    let (issued, key) = authority.issue_with_key(&admin, ADMIN_LIFETIME, now)?;
    pki::write_new(&pki_dir.join("admin.pem"), &issued.certificate_pem)?;
    pki::write_new(&pki_dir.join("admin.key"), &key)?;
    Tokens::open(folder)?;
    let evidence = Evidence::open(StoreConfig { dir: folder.join("store"), ..StoreConfig::default() })?;
    evidence.close().await?;
    for part in PARTS {
        File::open(folder.join(part))?.sync_all()?;
    }
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// Moves parts that are ready to where the server looks for them, and goes on where it was interrupted. False when none
/// are ready.
fn put_in_place(data: &Path) -> Result<bool, SetupError> {
    let ready = data.join(READY);
    if !ready.exists() {
        return Ok(false);
    }
    for part in PARTS {
        if ready.join(part).exists() {
            std::fs::rename(ready.join(part), data.join(part))?;
        }
    }
    File::open(data)?.sync_all()?;
    std::fs::remove_dir(&ready)?;
    File::open(data)?.sync_all()?;
    Ok(true)
}

/// Makes a one-time token. Works beside a running server: tokens are files that it reads when they are used.
pub fn issue_token(data: &Path, grant: &Grant, now: Timestamp) -> Result<TokenAnswer, SetupError> {
    if !data.join("pki/ca.pem").exists() {
        return Err(SetupError::Absent(data.to_owned()));
    }
    let token = Tokens::open(data)?.issue(grant, now)?;
    Ok(TokenAnswer { token: token.reveal().to_owned(), expires_at: grant.expires_at })
}
