//! The evidence store as the server and the command line use it. The one place that calls `activity-store`.
//!
//! Everything that may touch the disk runs on the blocking pool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use activity_schema::api::{BatchResult, StreamAcked};
use activity_schema::coverage::CoverageReport;
use activity_schema::ids::{CollectorId, TenantId};
use activity_schema::keys::PublicKey;
use activity_schema::{Hash, SignedBatch};
use activity_store::{
    Answer, Caller, CollectorStatus, ControlRecord, CoverageQuery, Enrolment, EventProof, Health,
    ImportDefaults, ImportError, ImportReport, IngestError, Query, QueryError, Revocation, Store,
    StoreConfig,
};
use uuid::Uuid;

/// Control records read at once while the journal is walked.
const CONTROL_PAGE: usize = 1_000;

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
}

impl Evidence {
    pub fn open(config: StoreConfig) -> Result<Self, EvidenceError> {
        Ok(Evidence { store: Arc::new(Store::open(config).map_err(EvidenceError::Open)?) })
    }

    pub fn open_read_only(dir: &Path) -> Result<Self, EvidenceError> {
        Ok(Evidence { store: Arc::new(Store::open_read_only(dir).map_err(EvidenceError::Open)?) })
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
        self.blocking(move |s| s.query(&tenant, &query)).await?.map_err(EvidenceError::Question)
    }

    pub async fn coverage(
        &self,
        tenant: &TenantId,
        query: CoverageQuery,
    ) -> Result<CoverageReport, EvidenceError> {
        let tenant = tenant.clone();
        self.blocking(move |s| s.coverage(&tenant, &query)).await
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
        self.blocking(move |s| s.inclusion(&tenant, event)).await
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
        self.blocking(move |s| s.consistency(&tenant, old, new)).await
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
        let mut all = Vec::new();
        let mut from = 1;
        loop {
            let page = self.store.control_records(from, CONTROL_PAGE);
            let Some((last, _)) = page.last() else { return all };
            from = last + 1;
            all.extend(page.into_iter().filter_map(|(_, record)| match record {
                ControlRecord::Revoked(revocation) => Some(revocation),
                _ => None,
            }));
        }
    }

    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Writes what is pending and gives up the lock.
    pub async fn close(&self) -> Result<(), EvidenceError> {
        self.blocking(|s| s.close()).await
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
