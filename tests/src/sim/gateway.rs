//! A gateway without its network: the real store, which is killed, stopped and filled.

use std::fs;
use std::path::{Path, PathBuf};

use activity_schema::SignedBatch;
use activity_schema::api::{BatchResult, StreamAcked};
use activity_schema::ids::CollectorId;
use activity_schema::keys::PublicKey;
use activity_store::{Caller, ControlRecord, Enrolment, IngestError, Store, StoreConfig};
use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A commit file is sealed when it is this long, bytes: many are, within a short run.
const ROTATE_BYTES: u64 = 256 * 1024;

pub struct Gateway {
    // Dropped first: a store whose folder is gone does not end.
    store: Option<Store>,
    /// Number of the store's copy: each kill goes on with another.
    life: u32,
    full: bool,
    runtime: Runtime,
    dir: TempDir,
}

/// A temporary folder, in memory where the system has one: waiting for a disk is not what is tested.
pub fn folder() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("activity-sim-");
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }
}

impl Gateway {
    pub fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut gateway = Gateway { dir: folder()?, life: 0, full: false, store: None, runtime };
        gateway.open()?;
        Ok(gateway)
    }

    pub fn store(&self) -> anyhow::Result<&Store> {
        self.store.as_ref().context("the gateway is down")
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join(self.life.to_string())
    }

    fn open(&mut self) -> anyhow::Result<()> {
        let config = StoreConfig {
            dir: self.path(),
            commit_rotate_bytes: ROTATE_BYTES,
            // No disk has so much.
            reserve_bytes: if self.full { u64::MAX } else { 0 },
            ..StoreConfig::default()
        };
        self.store = Some(Store::open(config)?);
        Ok(())
    }

    pub fn enrol(&self, caller: &Caller) -> anyhow::Result<()> {
        for (_, key, epoch) in &caller.keys {
            self.store()?.record_control(ControlRecord::Enrolled(Enrolment {
                tenant: caller.tenant.clone(),
                collector_id: caller.collector_id.clone(),
                host: caller.host.clone(),
                instances: caller.instances.clone(),
                signing_key: *key,
                epoch: epoch.clone(),
                certificate_serial: "0".to_owned(),
                enrolled_at: activity_schema::Timestamp::from_nanos(0),
            }))?;
        }
        Ok(())
    }

    /// `None` is 503.
    pub fn ingest(
        &self,
        caller: &Caller,
        batches: Vec<SignedBatch>,
    ) -> anyhow::Result<Option<Vec<BatchResult>>> {
        let count = batches.len();
        match self.runtime.block_on(self.store()?.ingest(caller, batches)) {
            Ok(results) => {
                ensure!(results.len() == count, "{} results for {count} batches", results.len());
                Ok(Some(results))
            }
            Err(IngestError::Full { .. }) if self.full => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn streams(&self, caller: &Caller, collector: &CollectorId) -> anyhow::Result<Vec<StreamAcked>> {
        Ok(self.store()?.streams(&caller.tenant, collector))
    }

    pub fn key(&self) -> anyhow::Result<PublicKey> {
        Ok(self.store()?.gateway_key())
    }

    /// Stops cleanly and starts again, with a disk that is full or not.
    pub fn restart(&mut self, full: bool) -> anyhow::Result<()> {
        self.full = full;
        if let Some(store) = self.store.take() {
            store.close();
        }
        self.open()
    }

    /// Goes on with the files as a kill would leave them now.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let before = self.path();
        self.life += 1;
        let after = self.path();
        fs::create_dir_all(&after)?;
        // What is sealed leaves the commit log last: this order never misses a batch that moves meanwhile.
        for part in ["meta.json", "keys", "commit", "tenants", "control", "closed"] {
            copy(&before.join(part), &after.join(part))?;
        }
        // The old one may finish what it likes: its folder is not looked at again.
        self.store = None;
        fs::remove_dir_all(before)?;
        self.open()
    }
}

/// Copies a file or a folder; what is gone meanwhile, or was never there, is passed over.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    match fs::copy(from, to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
