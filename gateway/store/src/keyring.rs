//! Where keys come from. A file keyring by default; a KMS replaces it behind [`Keyring`].
//!
//! ```text
//! keys/gateway.seed                              32 bytes, Ed25519 seed of receipts, checkpoints, control records
//! keys/tenants/<tenant>/kek                      32 bytes, wraps the tenant's other keys
//! keys/tenants/<tenant>/head.key                 wrapped: batch heads, segment footers, filter hashes; never aged out
//! keys/tenants/<tenant>/data/<class>-<day>.key   wrapped: lines of one retention class, received on one UTC day
//! ```
//!
//! A wrapped key is `nonce ‖ AES-256-GCM(key) ‖ tag` under the KEK; its associated data names tenant, class and
//! day. Every file is durable before its key encrypts anything. Deleting a data key erases that day's class.

use std::io;
use std::path::{Path, PathBuf};

use activity_schema::event::Retention;
use activity_schema::ids::TenantId;

use crate::aead::{Secret, SectionKey};
use crate::env::Env;

/// Why a key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error("key file {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("key file {path} does not hold a key: {reason}")]
    Malformed { path: PathBuf, reason: &'static str },
    #[error("key {path} is absent and may not be made here")]
    Absent { path: PathBuf },
}

/// Gives the store its keys; makes them on first use.
pub trait Keyring: Send + Sync + 'static {
    /// Seed of the gateway's signing key.
    fn gateway_seed(&self) -> Result<Secret, KeyringError>;
    /// Whether a tenant's keys were made and are there.
    fn has_keys(&self, tenant: &TenantId) -> Result<bool, KeyringError>;
    /// Key of a tenant's heads, footers and filters.
    fn head_key(&self, tenant: &TenantId) -> Result<Secret, KeyringError>;
    /// Key of one retention class and day. `None` when it is absent (erased) and `create` is false.
    fn data_key(
        &self,
        tenant: &TenantId,
        retention: Retention,
        day: u32,
        create: bool,
    ) -> Result<Option<Secret>, KeyringError>;
    /// Erases a data key for good. Erasing an absent key is no error.
    fn erase_data_key(&self, tenant: &TenantId, retention: Retention, day: u32) -> Result<(), KeyringError>;
}

/// Keys in files, see the module's documentation.
pub struct FileKeyring {
    env: Env,
    dir: PathBuf,
    read_only: bool,
}

impl FileKeyring {
    /// `dir` is the store's `keys` directory.
    pub fn open(env: Env, dir: PathBuf, read_only: bool) -> Result<Self, KeyringError> {
        let keyring = FileKeyring { env, dir, read_only };
        keyring.make_dirs(&keyring.dir.join("tenants"))?;
        Ok(keyring)
    }

    /// Makes the directories from the keyring's own downwards.
    fn make_dirs(&self, deepest: &Path) -> Result<(), KeyringError> {
        if self.read_only {
            return Ok(());
        }
        let below = deepest.ancestors().take_while(|d| d.starts_with(&self.dir)).collect::<Vec<_>>();
        for dir in below.into_iter().rev() {
            self.env.storage.create_dir(dir).map_err(at(dir))?;
        }
        Ok(())
    }

    fn tenant_dir(&self, tenant: &TenantId) -> PathBuf {
        self.dir.join("tenants").join(tenant.as_str())
    }

    /// A key in the clear; made when absent.
    fn plain(&self, path: &Path) -> Result<Secret, KeyringError> {
        if let Some(bytes) = self.env.storage.read_if_present(path).map_err(at(path))? {
            self.make_name_durable(path)?;
            return as_secret(&bytes, path);
        }
        self.may_make(path)?;
        let secret = Secret(self.env.random());
        self.env.storage.replace(path, &secret.0).map_err(at(path))?;
        Ok(secret)
    }

    fn wrapped(
        &self,
        tenant: &TenantId,
        path: &Path,
        aad: &[u8],
        create: bool,
    ) -> Result<Option<Secret>, KeyringError> {
        let stored = self.env.storage.read_if_present(path).map_err(at(path))?;
        if stored.is_none() && !create {
            return Ok(None);
        }
        self.make_dirs(path.parent().unwrap_or(&self.dir))?;
        let kek = SectionKey::new(&self.plain(&self.tenant_dir(tenant).join("kek"))?);
        if let Some(bytes) = stored {
            self.make_name_durable(path)?;
            let plain = kek.open(aad, &bytes).map_err(|_| KeyringError::Malformed {
                path: path.to_owned(),
                reason: "it does not unwrap under the tenant's KEK",
            })?;
            return as_secret(&plain, path).map(Some);
        }
        self.may_make(path)?;
        let secret = Secret(self.env.random());
        let mut bytes = Vec::new();
        kek.seal(&self.env, aad, &secret.0, &mut bytes);
        self.env.storage.replace(path, &bytes).map_err(at(path))?;
        Ok(Some(secret))
    }

    /// A key that is found may have been made a moment ago by an attempt that failed after its rename. Once a key and
    /// process.
    fn make_name_durable(&self, path: &Path) -> Result<(), KeyringError> {
        if self.read_only {
            return Ok(());
        }
        let dir = path.parent().unwrap_or(&self.dir);
        self.env.storage.sync_dir(dir).map_err(at(dir))
    }

    fn may_make(&self, path: &Path) -> Result<(), KeyringError> {
        if self.read_only { Err(KeyringError::Absent { path: path.to_owned() }) } else { Ok(()) }
    }

    fn data_path(&self, tenant: &TenantId, retention: Retention, day: u32) -> PathBuf {
        self.tenant_dir(tenant).join("data").join(format!("{retention}-{}.key", day_text(day)))
    }
}

impl Keyring for FileKeyring {
    fn gateway_seed(&self) -> Result<Secret, KeyringError> {
        self.plain(&self.dir.join("gateway.seed"))
    }

    fn has_keys(&self, tenant: &TenantId) -> Result<bool, KeyringError> {
        let is_there = |name| {
            let path = self.tenant_dir(tenant).join(name);
            self.env.storage.read_if_present(&path).map(|key| key.is_some()).map_err(at(&path))
        };
        Ok(is_there("kek")? && is_there("head.key")?)
    }

    fn head_key(&self, tenant: &TenantId) -> Result<Secret, KeyringError> {
        let path = self.tenant_dir(tenant).join("head.key");
        let aad = format!("activity-head-key-v1/{tenant}");
        let key = self.wrapped(tenant, &path, aad.as_bytes(), !self.read_only)?;
        key.ok_or(KeyringError::Absent { path })
    }

    fn data_key(
        &self,
        tenant: &TenantId,
        retention: Retention,
        day: u32,
        create: bool,
    ) -> Result<Option<Secret>, KeyringError> {
        let aad = format!("activity-data-key-v1/{tenant}/{retention}/{}", day_text(day));
        self.wrapped(tenant, &self.data_path(tenant, retention, day), aad.as_bytes(), create)
    }

    fn erase_data_key(&self, tenant: &TenantId, retention: Retention, day: u32) -> Result<(), KeyringError> {
        let path = self.data_path(tenant, retention, day);
        match self.env.storage.remove(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(at(&path))?,
        }
        let dir = path.parent().unwrap_or(&self.dir);
        self.env.storage.sync_dir(dir).map_err(at(dir))
    }
}

/// `YYYYMMDD` of a day since 1970-01-01.
pub(crate) fn day_text(day: u32) -> String {
    let seconds = i64::from(day) * 86_400;
    match jiff::Timestamp::from_second(seconds) {
        Ok(at) => at.strftime("%Y%m%d").to_string(),
        // Beyond year 9999; still a unique name.
        Err(_) => format!("day{day}"),
    }
}

fn as_secret(bytes: &[u8], path: &Path) -> Result<Secret, KeyringError> {
    let reason = "it is not 32 bytes";
    bytes.try_into().map(Secret).map_err(|_| KeyringError::Malformed { path: path.to_owned(), reason })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> KeyringError + '_ {
    move |source| KeyringError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_last_are_apart_and_an_erased_one_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        let (a, b) = (TenantId::new("a").unwrap(), TenantId::new("b").unwrap());
        let open = |ro| FileKeyring::open(Env::system(), keys.clone(), ro).unwrap();
        let first = open(false);
        let key = first.data_key(&a, Retention::Security, 20_000, true).unwrap().unwrap();
        assert_ne!(Some(key.clone()), first.data_key(&b, Retention::Security, 20_000, true).unwrap());
        assert_ne!(Some(key.clone()), first.data_key(&a, Retention::Standard, 20_000, true).unwrap());
        let again = open(true);
        assert_eq!(again.data_key(&a, Retention::Security, 20_000, false).unwrap(), Some(key));
        assert_eq!(first.head_key(&a).unwrap(), again.head_key(&a).unwrap());
        assert!(keys.join("tenants/a/data/security-20241004.key").exists());
        first.erase_data_key(&a, Retention::Security, 20_000).unwrap();
        assert_eq!(again.data_key(&a, Retention::Security, 20_000, false).unwrap(), None);
    }

    #[test]
    fn a_key_file_moved_to_another_day_does_not_unwrap() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = FileKeyring::open(Env::system(), dir.path().join("keys"), false).unwrap();
        let tenant = TenantId::new("a").unwrap();
        keyring.data_key(&tenant, Retention::Security, 1, true).unwrap();
        let data = dir.path().join("keys/tenants/a/data");
        std::fs::rename(data.join("security-19700102.key"), data.join("security-19700103.key")).unwrap();
        assert!(keyring.data_key(&tenant, Retention::Security, 2, false).is_err());
    }
}
