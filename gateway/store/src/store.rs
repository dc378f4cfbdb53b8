//! The store's handle, its shared parts and its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use activity_schema::Timestamp;
use activity_schema::api::StreamAcked;
use activity_schema::coverage::CoverageReport;
use activity_schema::ids::{CollectorId, TenantId};
use activity_schema::keys::{PublicKey, Purpose, Signer, signature_base64};
use nix::fcntl::{Flock, FlockArg};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::closing::{self, Ends};
use crate::conflicts::RecentIds;
use crate::control::{
    self, ControlError, ControlJournal, ControlRecord, Enrolment, cut_tails, scan_journal, set_aside,
};
use crate::env::Env;
use crate::index::Index;
use crate::keyring::{FileKeyring, Keyring, KeyringError};
use crate::matcher::QueryError;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::recover::{Recovered, recover};
use crate::tenant::{Tenant, TenantError};
use crate::threads::Threads;
use crate::types::{Answer, CollectorStatus, CoverageQuery, Health, Query, StoreConfig};

/// Format version of the directory.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{0} is in use by another process (a gateway runs on it); use the gateway, or open it for reading"
    )]
    Locked(PathBuf),
    #[error("{0} holds no store")]
    Absent(PathBuf),
    #[error("{path} is not a store's meta.json: {reason}")]
    Meta { path: PathBuf, reason: String },
    #[error(
        "{0} is absent, though there is evidence beside it; put it back from a backup, or go on with a new one (`activity-gateway run --accept-control-damage`)"
    )]
    MetaLost(PathBuf),
    #[error(
        "the control journal is damaged, and may have lost revocations: {}; put {} back from a backup, or go on without what is lost (`activity-gateway run --accept-control-damage`), and revoke again what must stay revoked",
        .findings.join("; "), .dir.display()
    )]
    ControlDamaged { dir: PathBuf, findings: Vec<String> },
    #[error("format version {0} is not known here, only {FORMAT_VERSION}")]
    Version(u32),
    #[error("the keyring's gateway key is not the one that the store was made with")]
    ForeignKey,
    #[error(transparent)]
    Key(#[from] KeyringError),
    #[error(transparent)]
    Tenant(#[from] TenantError),
    #[error("the index")]
    Index(#[from] sled::Error),
    #[error("the control journal")]
    Control(#[from] ControlError),
    #[error("starting a thread")]
    Thread(#[source] io::Error),
}

/// `meta.json`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meta {
    pub format_version: u32,
    pub store_id: String,
    pub gateway_key: PublicKey,
    /// The gateway's, over [`Meta::statement`] in the manifest domain.
    #[serde(with = "signature_base64")]
    pub signature: [u8; 64],
}

impl Meta {
    fn statement(store_id: &str, key: PublicKey) -> Vec<u8> {
        format!("activity-store-v1\0{FORMAT_VERSION}\0{store_id}\0{}", key.to_base64()).into_bytes()
    }

    fn sign(store_id: String, signer: &Signer) -> Self {
        let gateway_key = signer.public();
        let signature = signer.sign(Purpose::Manifest, &Meta::statement(&store_id, gateway_key));
        Meta { format_version: FORMAT_VERSION, store_id, gateway_key, signature }
    }

    pub(crate) fn is_signed(&self) -> bool {
        let statement = Meta::statement(&self.store_id, self.gateway_key);
        self.gateway_key.verify(Purpose::Manifest, &statement, &self.signature)
    }

    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// What all threads share.
pub(crate) struct Shared {
    pub env: Env,
    pub config: StoreConfig,
    pub read_only: bool,
    pub meta: Meta,
    /// `None` where a store is read without the gateway's key.
    pub signer: Option<Signer>,
    pub keyring: Arc<dyn Keyring>,
    pub tenants: RwLock<BTreeMap<TenantId, Arc<Tenant>>>,
    /// Tenants with evidence whose keys do not open, where a store is only read.
    pub keyless: Mutex<BTreeSet<TenantId>>,
    pub control: Mutex<ControlJournal>,
    pub index: Index,
    pub queue: Queue,
    /// Batches are checked by as many threads as there are cores: more only take each other's caches.
    pub checking: Arc<tokio::sync::Semaphore>,
    pub recent: RecentIds,
    pub metrics: Metrics,
    pub last_commit: Mutex<Option<Timestamp>>,
    /// Commit files with damage; kept under another name when they are sealed.
    pub damaged_files: Mutex<BTreeSet<u64>>,
    /// Findings of the opening, for the operator.
    pub findings: Mutex<Vec<String>>,
    pub sealing_fails: AtomicBool,
    /// The last attempt to write the commit log failed.
    pub commits_fail: AtomicBool,
    /// Held by what rewrites segments.
    pub maintenance: Mutex<()>,
}

impl Shared {
    pub(crate) fn commit_dir(&self) -> PathBuf {
        self.config.dir.join("commit")
    }

    pub(crate) fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.read().get(id).cloned()
    }

    pub(crate) fn all_tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.read().values().cloned().collect()
    }

    /// Appends records to the control journal with one fsync.
    pub(crate) fn record_control(&self, records: Vec<ControlRecord>) -> Result<(), ControlError> {
        if self.read_only {
            return Err(ControlError::ReadOnly);
        }
        let concern = |record: &ControlRecord| match record {
            ControlRecord::Enrolled(e) => Some((e.tenant.clone(), e.collector_id.clone())),
            ControlRecord::Revoked(r) => Some((r.tenant.clone(), r.collector_id.clone())),
            _ => None,
        };
        let concerned: Vec<_> = records.iter().filter_map(concern).collect();
        let mut control = self.control.lock();
        let appended = control.append(&self.env, self.signer(), records);
        for named in concerned {
            if let Some(tenant) = self.tenant(&named.0) {
                let at = control.refused().get(&named).copied();
                tenant.state.write().coverage.revoke(&named.1, at);
            }
        }
        appended
    }

    /// The gateway's key. Whoever signs has the store open for writing, and thereby with its key.
    pub(crate) fn signer(&self) -> &Signer {
        match &self.signer {
            Some(signer) => signer,
            None => unreachable!("a store does not open for writing without its key"),
        }
    }

    pub(crate) fn coverage(&self, tenant: &Tenant, query: &CoverageQuery) -> CoverageReport {
        tenant.state.read().coverage.report(query, self.env.now())
    }

    pub(crate) fn disk_free(&self) -> io::Result<u64> {
        self.env.storage.free_bytes(&self.config.dir)
    }
}

/// An open store. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
    /// Held while the store is open for writing.
    _lock: Option<Flock<std::fs::File>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.lock().take() {
            threads.stop(&self.shared);
        }
    }
}

impl Store {
    /// Takes the lock, recovers, brings the index up to date and starts the store's threads.
    pub fn open(config: StoreConfig) -> Result<Store, OpenError> {
        let env = Env::system();
        make_dir_all(&env, &config.dir)?;
        let lock = take_lock(&config.dir.join("lock"))?;
        let keys_dir = config.dir.join("keys");
        make_dir_all(&env, &keys_dir)?;
        let keyring = Arc::new(FileKeyring::open(env.clone(), keys_dir, false)?);
        let index = Index::open(&config.dir.join("index"))?;
        Store::open_with(config, env, keyring, index, Some(lock))
    }

    /// Opens a store with another disk, clock or keyring.
    pub(crate) fn open_with(
        config: StoreConfig,
        env: Env,
        keyring: Arc<dyn Keyring>,
        index: Index,
        lock: Option<Flock<std::fs::File>>,
    ) -> Result<Store, OpenError> {
        let signer = Signer::from_seed(&keyring.gateway_seed()?.0);
        for name in ["commit", "tenants", "control"] {
            make_dir_all(&env, &config.dir.join(name))?;
        }
        let meta = open_meta(&env, &config, &signer)?;
        let (shared, mut findings) = assemble(config, env, keyring, index, Some(signer), meta, false)?;
        let shared = Arc::new(shared);
        if shared.control.lock().is_closed() {
            shared.record_control(vec![ControlRecord::Opened])?;
        }
        closing::clear(&shared.env, &shared.config.dir);
        let Recovered { writer, ended, findings: found } = recover(&shared)?;
        findings.extend(found);
        if !findings.is_empty() {
            shared.record_control(vec![ControlRecord::Recovered { findings: findings.clone() }])?;
        }
        shared.findings.lock().extend(findings);
        let threads = Threads::start(&shared, writer, ended).map_err(OpenError::Thread)?;
        Ok(Store { inner: Arc::new(Inner { shared, threads: Mutex::new(Some(threads)), _lock: lock }) })
    }

    /// Opens a store on disk for reading, also while a gateway runs on it. Nothing is written; the index is built
    /// in memory. A copy may lack the gateway's signing key (`keys/gateway.seed`): its exports are then not signed.
    pub fn open_read_only(dir: &Path) -> Result<Store, OpenError> {
        let env = Env::system();
        if !dir.join("meta.json").exists() {
            return Err(OpenError::Absent(dir.to_owned()));
        }
        let keyring: Arc<dyn Keyring> = Arc::new(FileKeyring::open(env.clone(), dir.join("keys"), true)?);
        let signer = match keyring.gateway_seed() {
            Ok(seed) => Some(Signer::from_seed(&seed.0)),
            Err(KeyringError::Absent { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let meta = read_meta(&env, dir)?.ok_or_else(|| OpenError::Absent(dir.to_owned()))?;
        if signer.as_ref().is_some_and(|signer| signer.public() != meta.gateway_key) {
            return Err(OpenError::ForeignKey);
        }
        let config = StoreConfig { dir: dir.to_owned(), ..StoreConfig::default() };
        let (shared, _) = assemble(config, env, keyring, Index::memory(), signer, meta, true)?;
        let shared = Arc::new(shared);
        let findings = recover(&shared)?.findings;
        shared.findings.lock().extend(findings);
        Ok(Store { inner: Arc::new(Inner { shared, threads: Mutex::new(None), _lock: None }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub fn gateway_key(&self) -> PublicKey {
        self.shared().meta.gateway_key
    }

    /// What opening found amiss, in words; also in the control journal.
    pub fn findings(&self) -> Vec<String> {
        self.shared().findings.lock().clone()
    }

    /// What is acknowledged of a collector's streams.
    pub fn streams(&self, tenant: &TenantId, collector: &CollectorId) -> Vec<StreamAcked> {
        let Some(tenant) = self.shared().tenant(tenant) else { return Vec::new() };
        let state = tenant.state.read();
        let own =
            state.streams.iter().filter(|(id, s)| id.collector == *collector && s.head.batch_number > 0);
        own.map(|(id, s)| StreamAcked {
            epoch: id.epoch.clone(),
            class: id.class,
            batch_number: s.head.batch_number,
            last_sequence: s.head.last_sequence,
            batch_hash: s.head.batch_hash,
        })
        .collect()
    }

    /// Events in the order of `occurred_at`, with the coverage of the question. An unknown tenant has no events, and one
    /// without its keys is damaged.
    pub fn query(&self, tenant: &TenantId, query: &Query) -> Result<Answer, QueryError> {
        match self.shared().tenant(tenant) {
            Some(tenant) => self.shared().query(&tenant, query),
            None => {
                let keyless = self.shared().keyless.lock().contains(tenant);
                Ok(Answer {
                    coverage: self.coverage(
                        tenant,
                        &CoverageQuery {
                            instance: query.instance.clone(),
                            from: query.from,
                            to: query.to,
                            classes: query.classes.clone(),
                        },
                    ),
                    events: Vec::new(),
                    next_cursor: None,
                    log_size: 0,
                    erased_lines: 0,
                    damaged: u64::from(keyless),
                    unreadable: keyless.then(|| keys_lost(tenant)).into_iter().collect(),
                })
            }
        }
    }

    pub fn coverage(&self, tenant: &TenantId, query: &CoverageQuery) -> CoverageReport {
        match self.shared().tenant(tenant) {
            Some(tenant) => self.shared().coverage(&tenant, query),
            None => crate::coverage::Coverage::default().report(query, self.shared().env.now()),
        }
    }

    /// Appends a record to the control journal; durable on return.
    pub fn record_control(&self, record: ControlRecord) -> Result<(), ControlError> {
        self.shared().record_control(vec![record])
    }

    /// Enrolments in force.
    pub fn enrolments(&self) -> Vec<Enrolment> {
        self.shared().control.lock().enrolments().to_vec()
    }

    /// Records from sequence `from` on, with their sequences.
    pub fn control_records(&self, from: u64, limit: usize) -> Vec<(u64, ControlRecord)> {
        let shared = self.shared();
        let scan = scan_journal(&shared.env, &shared.config.dir.join("control"), shared.meta.gateway_key);
        match scan {
            Ok(scan) => scan
                .entries
                .into_iter()
                .map(|(entry, _)| (entry.sequence, entry.record))
                .filter(|(sequence, _)| *sequence >= from)
                .take(limit)
                .collect(),
            Err(error) => {
                tracing::error!(%error, "the control journal does not read");
                Vec::new()
            }
        }
    }

    pub fn tenants(&self) -> Vec<TenantId> {
        self.shared().tenants.read().keys().cloned().collect()
    }

    pub fn collectors(&self, tenant: &TenantId) -> Vec<CollectorStatus> {
        let Some(tenant) = self.shared().tenant(tenant) else { return Vec::new() };
        let state = tenant.state.read();
        let mut collectors: BTreeMap<CollectorId, CollectorStatus> = BTreeMap::new();
        for (id, stream) in &state.streams {
            let status = collectors.entry(id.collector.clone()).or_insert_with(|| CollectorStatus {
                collector_id: id.collector.clone(),
                host: stream.host.clone(),
                streams: Vec::new(),
                last_received_at: None,
                telemetry: None,
            });
            status.last_received_at = status.last_received_at.max(Some(stream.last_received_at));
            status.streams.push(StreamAcked {
                epoch: id.epoch.clone(),
                class: id.class,
                batch_number: stream.head.batch_number,
                last_sequence: stream.head.last_sequence,
                batch_hash: stream.head.batch_hash,
            });
        }
        for telemetry in state.coverage.collectors() {
            if let Some(status) =
                collectors.values_mut().find(|c| c.collector_id.as_str() == telemetry.collector)
            {
                status.telemetry = Some(telemetry);
            }
        }
        collectors.into_values().collect()
    }

    pub fn health(&self) -> Health {
        let shared = self.shared();
        let disk_free = shared.disk_free().unwrap_or(0);
        Health {
            ingest_stalled: shared.queue.oldest_wait().unwrap_or(Duration::ZERO),
            disk_free,
            full: disk_free < shared.config.reserve_bytes,
            read_only: shared.read_only,
            commits_fail: shared.commits_fail.load(Ordering::Relaxed),
            thread_ended: self.inner.threads.lock().as_ref().and_then(Threads::ended),
            last_commit: *shared.last_commit.lock(),
            counters: shared.metrics.snapshot(),
        }
    }

    /// Refuses new batches, commits what was accepted, stops the threads, writes last checkpoints and states how every
    /// file ended.
    pub fn close(&self) {
        if let Some(threads) = self.inner.threads.lock().take() {
            threads.stop(&self.inner.shared);
        }
    }

    /// Whether the background sealing fails; it is retried.
    pub fn sealing_fails(&self) -> bool {
        self.shared().sealing_fails.load(Ordering::Relaxed)
    }
}

/// Reads the journal and puts the parts together; also returns what was changed since a clean close.
fn assemble(
    config: StoreConfig,
    env: Env,
    keyring: Arc<dyn Keyring>,
    index: Index,
    signer: Option<Signer>,
    meta: Meta,
    read_only: bool,
) -> Result<(Shared, Vec<String>), OpenError> {
    let control_dir = config.dir.join("control");
    let scan = scan_journal(&env, &control_dir, meta.gateway_key)
        .map_err(|source| OpenError::Io { path: control_dir.clone(), source })?;
    for finding in &scan.findings {
        tracing::warn!(finding, "control journal");
    }
    let mut changed = Vec::new();
    if !read_only {
        // Before anything is repaired: afterwards the change would not show.
        let ends = closing::judge(&env, &config.dir, meta.gateway_key, Some(&meta.store_id), &scan);
        let mut damage = scan.damage.clone();
        if let Ends::Changed(files) = ends {
            for (file, what) in files {
                let what = format!("{file}: {what}");
                if file.starts_with("control/") {
                    damage.push(what);
                } else {
                    changed.push(what);
                }
            }
        }
        if !damage.is_empty() && !config.accept_control_damage {
            return Err(OpenError::ControlDamaged { dir: control_dir, findings: damage });
        }
        changed.extend(damage);
        set_aside(&env, &control_dir, &scan)
            .map_err(|source| OpenError::Io { path: control_dir.clone(), source })?;
        cut_tails(&env, &control_dir, &scan)
            .map_err(|source| OpenError::Io { path: control_dir.clone(), source })?;
    }
    let shared = Shared {
        control: Mutex::new(ControlJournal::from_scan(control_dir, &scan)),
        env,
        config,
        read_only,
        meta,
        signer,
        keyring,
        tenants: RwLock::default(),
        keyless: Mutex::default(),
        index,
        queue: Queue::default(),
        checking: Arc::new(tokio::sync::Semaphore::new(
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        )),
        recent: RecentIds::new(),
        metrics: Metrics::default(),
        last_commit: Mutex::default(),
        damaged_files: Mutex::default(),
        findings: Mutex::new(scan.findings),
        sealing_fails: AtomicBool::new(false),
        commits_fail: AtomicBool::new(false),
        maintenance: Mutex::new(()),
    };
    Ok((shared, changed))
}

/// What is said of a tenant whose evidence cannot be opened.
pub(crate) fn keys_lost(tenant: &TenantId) -> String {
    format!("tenants/{tenant}: its keys (keys/tenants/{tenant}) are absent or do not open; put them back")
}

fn make_dir_all(env: &Env, dir: &Path) -> Result<(), OpenError> {
    for part in dir.ancestors().collect::<Vec<_>>().into_iter().rev() {
        if part.as_os_str().is_empty() || part.is_dir() && part != dir {
            continue;
        }
        env.storage.create_dir(part).map_err(|source| OpenError::Io { path: part.to_owned(), source })?;
    }
    Ok(())
}

fn take_lock(path: &Path) -> Result<Flock<std::fs::File>, OpenError> {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => OpenError::Locked(path.parent().unwrap_or(path).to_owned()),
        other => OpenError::Io { path: path.to_owned(), source: other.into() },
    })
}

pub(crate) fn read_meta(env: &Env, dir: &Path) -> Result<Option<Meta>, OpenError> {
    let path = dir.join("meta.json");
    let bytes =
        env.storage.read_if_present(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
    let Some(bytes) = bytes else { return Ok(None) };
    let meta: Meta =
        serde_json::from_slice(&bytes).map_err(|e| OpenError::Meta { path, reason: e.to_string() })?;
    if meta.format_version == FORMAT_VERSION {
        Ok(Some(meta))
    } else {
        Err(OpenError::Version(meta.format_version))
    }
}

fn open_meta(env: &Env, config: &StoreConfig, signer: &Signer) -> Result<Meta, OpenError> {
    let dir = &config.dir;
    if let Some(meta) = read_meta(env, dir)? {
        // It may come from an attempt that failed after its rename.
        env.storage.sync_dir(dir).map_err(|source| OpenError::Io { path: dir.to_owned(), source })?;
        return if meta.gateway_key == signer.public() { Ok(meta) } else { Err(OpenError::ForeignKey) };
    }
    let path = dir.join("meta.json");
    if holds_evidence(env, dir)? && !config.accept_control_damage {
        return Err(OpenError::MetaLost(path));
    }
    control::begin(env, &dir.join("control"), signer)?;
    let meta = Meta::sign(activity_schema::hex::encode(&env.random::<16>()), signer);
    let bytes = meta.to_bytes().map_err(|e| OpenError::Meta { path: path.clone(), reason: e.to_string() })?;
    env.storage.replace(&path, &bytes).map_err(|source| OpenError::Io { path, source })?;
    Ok(meta)
}

/// Whether a folder has more in it than the beginning of a store that a crash interrupted.
fn holds_evidence(env: &Env, dir: &Path) -> Result<bool, OpenError> {
    let list = |name: &str| {
        let path = dir.join(name);
        env.storage.list(&path).map_err(|source| OpenError::Io { path, source })
    };
    Ok(!list("commit")?.is_empty()
        || !list("tenants")?.is_empty()
        || list("control")?.iter().any(|name| name.ends_with(".log")))
}
