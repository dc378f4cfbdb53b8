//! What the store holds in memory of one tenant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use activity_schema::ids::{HostId, StreamId, TenantId};
use activity_schema::uplink::StreamHead;
use activity_schema::{Hash, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::aead::{Secret, SectionKey, derive};
use crate::check::INSTANCES_MAX;
use crate::commit::FileId;
use crate::coverage::Coverage;
use crate::env::Env;
use crate::keyring::{Keyring, KeyringError};
use crate::log::{TenantLog, read_leaves};
use crate::record::{Keys, SectionId};
use crate::summary::Summary;
use crate::terms::TermKey;

/// Forked batches kept of one stream; a stream with more must begin another epoch.
pub(crate) const FORKS_MAX: usize = 1024;

pub(crate) struct Tenant {
    pub id: TenantId,
    pub dir: PathBuf,
    pub keys: TenantKeys,
    pub state: RwLock<TenantState>,
    pub log: Mutex<TenantLog>,
}

#[derive(Default)]
pub(crate) struct TenantState {
    pub streams: BTreeMap<StreamId, StreamState>,
    /// Batches that are in the commit log only, by leaf index.
    pub open: BTreeMap<u64, Arc<OpenBatch>>,
    /// Sealed segments, by number.
    pub segments: BTreeMap<u64, SegmentMeta>,
    pub coverage: Coverage,
    pub last_received_at: Option<Timestamp>,
    /// Size of the log, for snapshots.
    pub log_size: u64,
    /// Batches of the log that were in no file that reads when the store was opened.
    pub missing: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct StreamState {
    pub head: StreamHead,
    pub host: HostId,
    pub last_received_at: Timestamp,
    /// Batch number → leaf index, for batches in the commit log.
    pub open: BTreeMap<u64, u64>,
    /// First batch number → where, for batches in segments.
    pub sealed: BTreeMap<u64, SealedRun>,
    /// Batches that were stored beside the stream, by their hash.
    pub forks: BTreeMap<Hash, Stored>,
}

/// What a receipt is made of again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub leaf_index: u64,
    pub received_at: Timestamp,
}

/// A segment, as far as memory needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentMeta {
    pub number: u64,
    pub file_id: FileId,
    pub summary: Summary,
    pub batches: u64,
    /// Bits of a filter over the terms that segments have few of.
    pub filter: Arc<[u8]>,
}

/// Batches of a stream in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealedRun {
    pub last_number: u64,
    pub segment: u64,
    pub block: u32,
}

impl StreamState {
    pub(crate) fn new(host: HostId) -> Self {
        StreamState {
            head: StreamHead::default(),
            host,
            last_received_at: Timestamp::MIN,
            open: BTreeMap::new(),
            sealed: BTreeMap::new(),
            forks: BTreeMap::new(),
        }
    }

    pub(crate) fn sealed_run(&self, number: u64) -> Option<SealedRun> {
        let (_, run) = self.sealed.range(..=number).next_back()?;
        (run.last_number >= number).then_some(*run)
    }
}

/// A batch in the commit log.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub file: u64,
    pub file_id: FileId,
    /// Of the frame's payload in the file.
    pub offset: u64,
    pub len: usize,
    pub leaf_index: u64,
    pub received_at: Timestamp,
    pub hash: Hash,
    pub flags: u8,
    pub stream: StreamId,
    pub batch_number: u64,
    pub last_sequence: u64,
    pub host: HostId,
    pub summary: Summary,
    pub terms: Box<[u64]>,
    /// Of the lines that are kept; `None` when there are more than memory keeps.
    pub instances: Option<Box<[String]>>,
    /// It holds lines that coverage hears of.
    pub telemetry: bool,
}

/// The instances of an open batch, when they are few enough to be kept in memory.
pub(crate) fn few(instances: Vec<String>) -> Option<Box<[String]>> {
    (instances.len() < INSTANCES_MAX).then(|| instances.into_boxed_slice())
}

/// The tenant's keys, opened once.
pub(crate) struct TenantKeys {
    tenant: TenantId,
    keyring: Arc<dyn Keyring>,
    head: Secret,
    pub terms: TermKey,
    data: Mutex<BTreeMap<SectionId, Arc<SectionKey>>>,
}

/// Data keys kept open; one class and day is one key.
const DATA_KEYS_MAX: usize = 4096;

impl TenantKeys {
    pub(crate) fn open(tenant: TenantId, keyring: Arc<dyn Keyring>) -> Result<Self, KeyringError> {
        let head = keyring.head_key(&tenant)?;
        let terms = TermKey::of(&head);
        Ok(TenantKeys { tenant, keyring, head, terms, data: Mutex::default() })
    }

    /// The key of heads and footers in one file.
    pub(crate) fn head_of(&self, file: &FileId) -> SectionKey {
        SectionKey::new(&derive(&self.head, b"head", file))
    }

    pub(crate) fn data_key(
        &self,
        id: SectionId,
        create: bool,
    ) -> Result<Option<Arc<SectionKey>>, KeyringError> {
        let mut data = self.data.lock();
        if let Some(key) = data.get(&id) {
            return Ok(Some(Arc::clone(key)));
        }
        let secret = self.keyring.data_key(&self.tenant, id.retention, id.day, create)?;
        Ok(secret.map(|secret| {
            if data.len() >= DATA_KEYS_MAX {
                data.clear();
            }
            let key = Arc::new(SectionKey::new(&secret));
            data.insert(id, Arc::clone(&key));
            key
        }))
    }

    pub(crate) fn erase(&self, id: SectionId) -> Result<(), KeyringError> {
        let mut data = self.data.lock();
        self.keyring.erase_data_key(&self.tenant, id.retention, id.day)?;
        data.remove(&id);
        Ok(())
    }

    /// Keys for reading and writing one file.
    pub(crate) fn of_file(&self, file: &FileId) -> FileKeys<'_> {
        FileKeys { head: self.head_of(file), tenant: self }
    }
}

pub(crate) struct FileKeys<'a> {
    head: SectionKey,
    tenant: &'a TenantKeys,
}

impl Keys for FileKeys<'_> {
    fn head(&self) -> &SectionKey {
        &self.head
    }

    fn data(&self, id: SectionId) -> Option<Arc<SectionKey>> {
        match self.tenant.data_key(id, false) {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(%error, tenant = %self.tenant.tenant, "a data key does not open");
                None
            }
        }
    }
}

/// Makes a tenant's directories and opens its log.
pub(crate) fn open_tenant(
    env: &Env,
    store: &Path,
    id: &TenantId,
    keyring: &Arc<dyn Keyring>,
    read_only: bool,
) -> Result<Tenant, TenantError> {
    let dir = tenant_dir(store, id);
    if !read_only {
        for part in [dir.clone(), dir.join("segments"), dir.join("log")] {
            env.storage.create_dir(&part).map_err(|source| TenantError::Io { path: part.clone(), source })?;
        }
    }
    // Made before anything was sealed under them: new ones would open nothing, and hide that these are gone.
    if !keyring.has_keys(id)? && holds_evidence(env, &dir)? {
        return Err(TenantError::KeysLost {
            tenant: id.clone(),
            keys: store.join("keys/tenants").join(id.as_str()),
        });
    }
    let keys = TenantKeys::open(id.clone(), Arc::clone(keyring))?;
    let log_dir = dir.join("log");
    let log = TenantLog::open(env, log_dir.clone(), read_only)
        .map_err(|source| TenantError::Io { path: log_dir, source })?;
    let state = RwLock::new(TenantState { log_size: log.size(), ..TenantState::default() });
    Ok(Tenant { id: id.clone(), dir, keys, state, log: Mutex::new(log) })
}

pub(crate) fn tenant_dir(store: &Path, id: &TenantId) -> PathBuf {
    store.join("tenants").join(id.as_str())
}

/// Whether a segment or a leaf of the log is there.
pub(crate) fn holds_evidence(env: &Env, dir: &Path) -> Result<bool, TenantError> {
    let (segments, log) = (dir.join("segments"), dir.join("log"));
    let numbers = match env.storage.numbered(&segments, "seg") {
        // A crash while the tenant was made.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|source| TenantError::Io { path: segments, source })?,
    };
    let leaves = read_leaves(env, &log).map_err(|source| TenantError::Io { path: log, source })?;
    Ok(!numbers.is_empty() || !leaves.is_empty())
}

/// Why a tenant's part of the store does not open.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    #[error("{path}")]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "tenant {tenant} has evidence, but its keys are absent or incomplete: put {} back from the backup of the keys; \
         without them nothing of the tenant reads",
        .keys.display()
    )]
    KeysLost { tenant: TenantId, keys: PathBuf },
    #[error(transparent)]
    Key(#[from] KeyringError),
}
