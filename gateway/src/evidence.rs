//! The evidence store as the server and the command line use it. The one place that calls `activity-store`.
//!
//! Everything that may touch the disk runs on the blocking pool. Reads that open many blocks take turns: no more of
//! them run at once than there are cores, so that any number of questions leaves ingest its threads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use activity_schema::api::{BatchResult, StreamAcked};
use activity_schema::coverage::CoverageReport;
use activity_schema::ids::{CollectorId, TenantId};
use activity_schema::keys::PublicKey;
use activity_schema::{Hash, SignedBatch};
use activity_store::{
    Answer, Caller, CollectorStatus, ControlRecord, CoverageQuery, Enrolment, EventProof, Export,
    ExportError, ExportRequest, Health, ImportDefaults, ImportError, ImportReport, IngestError, Query,
    QueryError, Revocation, Store, StoreConfig,
};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// Control records read at once while the journal is walked.
const CONTROL_PAGE: usize = 1_000;

/// Exports under way at once. Each keeps the hashes of the tenant's log in memory.
const EXPORTS_MAX: usize = 4;

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    #[error("the store cannot be opened")]
    Open(#[source] activity_store::OpenError),
    #[error("{reason}")]
    Busy {
        reason: &'static str,
        retry_after: Duration,
        /// The disk is the cause, not the load.
        unavailable: bool,
    },
    #[error("the batches could not be stored")]
    Ingest(#[source] IngestError),
    #[error("the question cannot be answered")]
    Question(#[source] QueryError),
    #[error("no bundle can be made")]
    Export(#[source] ExportError),
    #[error("the lines could not be imported")]
    Import(#[source] ImportError),
    #[error("the record is not durable")]
    Control(#[source] activity_store::ControlError),
    #[error("the store failed: {0}")]
    Failed(String),
}

/// An open store.
#[derive(Clone)]
pub struct Evidence {
    store: Arc<Store>,
    /// One permit a core.
    heavy_reads: Arc<Semaphore>,
    exports: Arc<Semaphore>,
}

/// A bundle that is being made.
pub struct Exporting {
    export: Export,
    _turn: OwnedSemaphorePermit,
}

impl Evidence {
    pub fn open(config: StoreConfig) -> Result<Self, EvidenceError> {
        Store::open(config).map(Evidence::of).map_err(EvidenceError::Open)
    }

    pub fn open_read_only(dir: &Path) -> Result<Self, EvidenceError> {
        Store::open_read_only(dir).map(Evidence::of).map_err(EvidenceError::Open)
    }

    fn of(store: Store) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Evidence {
            store: Arc::new(store),
            heavy_reads: Arc::new(Semaphore::new(cores)),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
        }
    }

    /// The key that signs receipts and checkpoints.
    pub fn gateway_key(&self) -> PublicKey {
        self.store.gateway_key()
    }

    /// Stores batches; durable on return.
    pub async fn ingest(
        &self,
        caller: &Caller,
        batches: Vec<SignedBatch>,
    ) -> Result<Vec<BatchResult>, EvidenceError> {
        self.store.ingest(caller, batches).await.map_err(|e| match e {
            IngestError::Full { retry_after } => EvidenceError::Busy {
                reason: "the gateway's disk is full; nothing was stored",
                retry_after,
                unavailable: true,
            },
            IngestError::Overloaded { retry_after } => EvidenceError::Busy {
                reason: "the gateway is overloaded; nothing was stored",
                retry_after,
                unavailable: false,
            },
            IngestError::Stopping => EvidenceError::Busy {
                reason: "the gateway is stopping; nothing was stored",
                retry_after: Duration::from_secs(1),
                unavailable: true,
            },
            other => EvidenceError::Ingest(other),
        })
    }

    pub async fn query(&self, tenant: &TenantId, query: Query) -> Result<Answer, EvidenceError> {
        let tenant = tenant.clone();
        self.heavy_read(move |s| s.query(&tenant, &query)).await?.map_err(EvidenceError::Question)
    }

    pub async fn coverage(
        &self,
        tenant: &TenantId,
        query: CoverageQuery,
    ) -> Result<CoverageReport, EvidenceError> {
        let tenant = tenant.clone();
        self.heavy_read(move |s| s.coverage(&tenant, &query)).await
    }

    pub async fn streams(
        &self,
        tenant: &TenantId,
        collector: &CollectorId,
    ) -> Result<Vec<StreamAcked>, EvidenceError> {
        let (tenant, collector) = (tenant.clone(), collector.clone());
        self.blocking(move |s| s.streams(&tenant, &collector)).await
    }

    pub async fn collectors(&self, tenant: &TenantId) -> Result<Vec<CollectorStatus>, EvidenceError> {
        let tenant = tenant.clone();
        self.blocking(move |s| s.collectors(&tenant)).await
    }

    pub async fn checkpoint(&self, tenant: &TenantId) -> Result<Option<String>, EvidenceError> {
        let tenant = tenant.clone();
        self.blocking(move |s| s.checkpoint(&tenant)).await
    }

    pub async fn inclusion(
        &self,
        tenant: &TenantId,
        event: Uuid,
    ) -> Result<Option<EventProof>, EvidenceError> {
        let tenant = tenant.clone();
        self.heavy_read(move |s| s.inclusion(&tenant, event)).await
    }

    pub async fn tenants(&self) -> Result<Vec<TenantId>, EvidenceError> {
        self.blocking(|s| s.tenants()).await
    }

    /// Proof that the log of `old` batches is a prefix of that of `new`; `None` when it has no such sizes.
    pub async fn consistency(
        &self,
        tenant: &TenantId,
        old: u64,
        new: u64,
    ) -> Result<Option<Vec<Hash>>, EvidenceError> {
        let tenant = tenant.clone();
        self.heavy_read(move |s| s.consistency(&tenant, old, new)).await
    }

    /// Begins a bundle.
    pub async fn export(
        &self,
        tenant: &TenantId,
        request: ExportRequest,
    ) -> Result<Exporting, EvidenceError> {
        let turn = Arc::clone(&self.exports).try_acquire_owned().map_err(|_| EvidenceError::Busy {
            reason: "as many exports are under way as the gateway makes at once",
            retry_after: Duration::from_secs(10),
            unavailable: false,
        })?;
        let tenant = tenant.clone();
        let export = self.heavy_read(move |s| s.export(&tenant, request)).await?.map_err(export_error)?;
        Ok(Exporting { export, _turn: turn })
    }

    /// The next bytes of a bundle; `None` after the last. Each part waits for its turn: a slow reader holds up nobody.
    pub async fn next_part(
        &self,
        mut exporting: Exporting,
    ) -> Result<(Exporting, Option<Bytes>), EvidenceError> {
        self.heavy_read(move |_| {
            let part = exporting.export.next_part().map_err(export_error)?;
            Ok((exporting, part))
        })
        .await?
    }

    /// Imports foreign lines; durable on return.
    pub async fn import(
        &self,
        tenant: &TenantId,
        defaults: ImportDefaults,
        lines: impl std::io::Read + Send + 'static,
    ) -> Result<ImportReport, EvidenceError> {
        let tenant = tenant.clone();
        let lines = std::io::BufReader::new(lines);
        self.blocking(move |s| s.import(&tenant, &defaults, lines)).await?.map_err(|e| match e {
            ImportError::Overloaded { .. } => EvidenceError::Busy {
                reason: "the gateway is overloaded; the import stopped",
                retry_after: Duration::from_secs(1),
                unavailable: false,
            },
            other => EvidenceError::Import(other),
        })
    }

    /// Durable on return.
    pub async fn record(&self, record: ControlRecord) -> Result<(), EvidenceError> {
        self.blocking(move |s| s.record_control(record)).await?.map_err(EvidenceError::Control)
    }

    pub fn enrolments(&self) -> Vec<Enrolment> {
        self.store.enrolments()
    }

    /// Every revocation ever recorded.
    pub fn revocations(&self) -> Vec<Revocation> {
        self.recorded(|record| match record {
            ControlRecord::Revoked(revocation) => Some(revocation),
            _ => None,
        })
    }

    /// Identities of every operator that a certificate was issued to over the API.
    pub async fn issued_operators(&self) -> Result<Vec<String>, EvidenceError> {
        let evidence = self.clone();
        self.blocking(move |_| {
            evidence.recorded(|record| match record {
                ControlRecord::Read(read) if read.action == "issue" && !read.refused => Some(read.detail),
                _ => None,
            })
        })
        .await
    }

    fn recorded<T>(&self, mut take: impl FnMut(ControlRecord) -> Option<T>) -> Vec<T> {
        let mut all = Vec::new();
        let mut from = 1;
        loop {
            let page = self.store.control_records(from, CONTROL_PAGE);
            let Some((last, _)) = page.last() else { return all };
            from = last + 1;
            all.extend(page.into_iter().filter_map(|(_, record)| take(record)));
        }
    }

    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Writes what is pending and gives up the lock.
    pub async fn close(&self) -> Result<(), EvidenceError> {
        self.blocking(|s| s.close()).await
    }

    /// Waits for its turn. A question whose asker went away keeps its turn until it is answered.
    async fn heavy_read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, EvidenceError> {
        let turn = Arc::clone(&self.heavy_reads).acquire_owned().await;
        let turn = turn.map_err(|e| EvidenceError::Failed(e.to_string()))?;
        self.blocking(move |store| {
            let _turn = turn;
            work(store)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, EvidenceError> {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || work(&store))
            .await
            .map_err(|e| EvidenceError::Failed(e.to_string()))
    }
}

fn export_error(error: ExportError) -> EvidenceError {
    match error {
        ExportError::Query(source) => EvidenceError::Question(source),
        other => EvidenceError::Export(other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thousand_questions_run_no_more_than_cores_at_once_and_ingest_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            StoreConfig { dir: dir.path().join("store"), reserve_bytes: 0, ..StoreConfig::default() };
        let evidence = Evidence::open(config).unwrap();
        let cores = std::thread::available_parallelism().unwrap().get();
        let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let questions: Vec<_> = (0..1_000)
            .map(|_| {
                let (evidence, under_way, most) =
                    (evidence.clone(), Arc::clone(&under_way), Arc::clone(&most));
                let held = Arc::clone(&held);
                tokio::spawn(async move {
                    let work = move |_: &Store| {
                        let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        // Until the test lets go.
                        let _ = held.lock().unwrap().recv();
                        under_way.fetch_sub(1, Ordering::SeqCst);
                    };
                    evidence.heavy_read(work).await.unwrap();
                })
            })
            .collect();
        while under_way.load(Ordering::SeqCst) < cores {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What ingest does is not behind them.
        let record = ControlRecord::Recovered { findings: Vec::new() };
        tokio::time::timeout(Duration::from_secs(20), evidence.record(record)).await.unwrap().unwrap();
        assert_eq!(under_way.load(Ordering::SeqCst), cores);
        drop(release);
        for question in questions {
            question.await.unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), cores);
    }

    #[tokio::test(start_paused = true)]
    async fn four_exports_may_be_under_way() {
        let lab = crate::gateway::tests::Lab::new();
        let evidence = &lab.gateway.evidence;
        let tenant: TenantId = "acme".parse().unwrap();
        let line = include_str!("../../fixtures/events.jsonl").lines().next().unwrap();
        let defaults = ImportDefaults { host: "h".parse().unwrap(), instance: "i".parse().unwrap() };
        evidence.import(&tenant, defaults, line.as_bytes()).await.unwrap();
        let export = async || {
            let request = ExportRequest { query: Query::default(), actor: "a".to_owned(), kept_size: None };
            evidence.export(&tenant, request).await
        };
        let mut under_way = Vec::new();
        for _ in 0..4 {
            under_way.push(export().await.unwrap());
        }
        assert!(matches!(export().await, Err(EvidenceError::Busy { unavailable: false, .. })));
        under_way.pop();
        assert!(export().await.is_ok());
    }
}
