//! One-time enrolment tokens.
//!
//! A token is 32 random bytes, shown once. Kept of it is a file `<data>/tokens/<SHA-256>.json` (0600) with what it is
//! bound to. Using it renames that file into `used/`: exactly one of any number of users wins, and the rename is
//! synced before the winner goes on, so that a crash never gives a token back.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use activity_schema::ids::{HostId, InstanceId, TenantId};
use activity_schema::{Hash, Timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use serde::{Deserialize, Serialize};

/// Most tokens that wait to be used.
pub const TOKENS_WAITING_MAX: usize = 10_000;
/// Longest life of a token.
pub const TOKEN_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// A used token's file is kept so long, to tell *used* from *unknown* in the log.
const USED_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
const PREFIX: &str = "act1_";

/// What a token allows. With an instance: that instance, on that host when one is named. Without: the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub tenant: TenantId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    pub expires_at: Timestamp,
}

/// The secret, to be shown once. `Debug` hides it.
pub struct Token(String);

/// Why no token was made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("a token is bound to an instance or a host")]
    Unbound,
    #[error("a token lives at most 30 days")]
    TooLong,
    #[error("{TOKENS_WAITING_MAX} tokens wait to be used already")]
    TooMany,
    #[error("the token could not be stored")]
    Io(#[from] io::Error),
}

/// Why a token does not enrol. All but `Io` look alike to the one who sent it.
#[derive(Debug, thiserror::Error)]
pub enum UseError {
    #[error("the token is unknown or was used")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token is bound to another instance or host")]
    Bound,
    #[error("the token could not be consumed")]
    Io(#[from] io::Error),
}

/// The directory of tokens. Several processes may share it.
#[derive(Debug, Clone)]
pub struct Tokens {
    dir: PathBuf,
}

impl Token {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Grant {
    /// Whether a collector on this host and instance may use it.
    fn admits(&self, host: &HostId, instance: &InstanceId) -> bool {
        self.host.as_ref().is_none_or(|h| h == host) && self.instance.as_ref().is_none_or(|i| i == instance)
    }
}

impl Tokens {
    pub fn open(data: &Path) -> io::Result<Self> {
        let dir = data.join("tokens");
        DirBuilder::new().recursive(true).mode(0o700).create(dir.join("used"))?;
        Ok(Tokens { dir })
    }

    /// Makes a token; it is durable on return.
    pub fn issue(&self, grant: &Grant, now: Timestamp) -> Result<Token, IssueError> {
        if grant.host.is_none() && grant.instance.is_none() {
            return Err(IssueError::Unbound);
        }
        if grant.expires_at > add(now, TOKEN_TTL_MAX) {
            return Err(IssueError::TooLong);
        }
        self.forget_expired(now)?;
        if fs::read_dir(&self.dir)?.count() > TOKENS_WAITING_MAX {
            return Err(IssueError::TooMany);
        }
        let secret: [u8; 32] = rand::random();
        let token = Token(format!("{PREFIX}{}", BASE64_URL.encode(secret)));
        let json = serde_json::to_vec(grant).map_err(io::Error::from)?;
        let path = self.path(token.reveal());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&json)?;
        // Made by root beside a server that runs as another user: the server must be able to read and use it.
        let owner = fs::metadata(&self.dir)?;
        if file.metadata()?.uid() != owner.uid() {
            fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        file.sync_all()?;
        File::open(&self.dir)?.sync_all()?;
        Ok(token)
    }

    /// What a token allows this collector; does not consume it.
    pub fn check(
        &self,
        token: &str,
        host: &HostId,
        instance: &InstanceId,
        now: Timestamp,
    ) -> Result<Grant, UseError> {
        let json = fs::read(self.path(token)).map_err(|e| missing(e, UseError::Unknown))?;
        let grant: Grant = serde_json::from_slice(&json).map_err(io::Error::from)?;
        if grant.expires_at <= now {
            return Err(UseError::Expired);
        }
        if grant.admits(host, instance) { Ok(grant) } else { Err(UseError::Bound) }
    }

    /// Consumes a token: of all who try, one succeeds, once.
    pub fn consume(&self, token: &str) -> Result<(), UseError> {
        let from = self.path(token);
        let to = self.dir.join("used").join(from.file_name().unwrap_or_default());
        fs::rename(&from, to).map_err(|e| missing(e, UseError::Unknown))?;
        File::open(self.dir.join("used"))?.sync_all()?;
        File::open(&self.dir)?.sync_all()?;
        Ok(())
    }

    fn path(&self, token: &str) -> PathBuf {
        self.dir.join(format!("{}.json", Hash::of(&[token.as_bytes()])))
    }

    /// Removes tokens that nobody can use any more, and old records of use.
    fn forget_expired(&self, now: Timestamp) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.is_file() && read_grant(&path).is_some_and(|g| g.expires_at <= now) {
                remove(&path)?;
            }
        }
        for entry in fs::read_dir(self.dir.join("used"))? {
            let path = entry?.path();
            if read_grant(&path).is_some_and(|g| add(g.expires_at, USED_KEPT) <= now) {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

fn read_grant(path: &Path) -> Option<Grant> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn missing(error: io::Error, none: UseError) -> UseError {
    if error.kind() == io::ErrorKind::NotFound { none } else { UseError::Io(error) }
}

fn add(at: Timestamp, duration: Duration) -> Timestamp {
    at.saturating_add_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

    fn grant() -> Grant {
        Grant {
            tenant: "acme".parse().unwrap(),
            host: None,
            instance: Some("sandbox-7".parse().unwrap()),
            expires_at: add(NOW, Duration::from_secs(3600)),
        }
    }

    #[test]
    fn of_many_users_at_once_one_wins() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let token = tokens.issue(&grant(), NOW).unwrap();
        let wins: usize = std::thread::scope(|scope| {
            let users: Vec<_> =
                (0..16).map(|_| scope.spawn(|| tokens.consume(token.reveal()).is_ok())).collect();
            users.into_iter().map(|u| usize::from(u.join().unwrap())).sum()
        });
        assert_eq!(wins, 1);
        let again = Tokens::open(dir.path()).unwrap();
        assert!(
            matches!(again.consume(token.reveal()), Err(UseError::Unknown)),
            "a restart gives nothing back"
        );
    }

    #[test]
    fn a_token_is_bound_expires_and_is_never_stored_in_clear() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let token = tokens.issue(&grant(), NOW).unwrap();
        let (host, instance) = ("h".parse().unwrap(), "sandbox-7".parse().unwrap());
        assert_eq!(tokens.check(token.reveal(), &host, &instance, NOW).unwrap(), grant());
        let other = "sandbox-8".parse().unwrap();
        assert!(matches!(tokens.check(token.reveal(), &host, &other, NOW), Err(UseError::Bound)));
        let late = add(NOW, Duration::from_secs(3600));
        assert!(matches!(tokens.check(token.reveal(), &host, &instance, late), Err(UseError::Expired)));
        for guess in ["", "../used/x", "act1_", "act1_AAAA"] {
            assert!(matches!(tokens.check(guess, &host, &instance, NOW), Err(UseError::Unknown)), "{guess}");
        }
        for entry in fs::read_dir(dir.path().join("tokens")).unwrap() {
            let path = entry.unwrap().path();
            assert!(!path.to_string_lossy().contains(token.reveal()));
            assert!(!fs::read_to_string(path).unwrap_or_default().contains(token.reveal()));
        }
        assert!(matches!(tokens.issue(&Grant { instance: None, ..grant() }, NOW), Err(IssueError::Unbound)));
    }

    #[test]
    fn a_token_lives_30_days_at_most_and_10_000_may_wait() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let until = |seconds| Grant { expires_at: add(NOW, Duration::from_secs(seconds)), ..grant() };
        tokens.issue(&until(2_592_000), NOW).unwrap();
        assert!(matches!(tokens.issue(&until(2_592_001), NOW), Err(IssueError::TooLong)));
        let json = serde_json::to_vec(&grant()).unwrap();
        for n in 0..9_998 {
            fs::write(dir.path().join(format!("tokens/{n}.json")), &json).unwrap();
        }
        tokens.issue(&grant(), NOW).unwrap();
        assert!(matches!(tokens.issue(&grant(), NOW), Err(IssueError::TooMany)), "10,000 wait");
    }
}
