//! The server's shared state, and the decisions that both listeners take the same way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use activity_schema::Timestamp;
use activity_schema::ids::TenantId;
use http::StatusCode;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::access::Access;
use crate::audit::Audit;
use crate::evidence::Evidence;
use crate::identity::{CollectorIdentity, Identity, OperatorIdentity, Peer};
use crate::metrics::Metrics;
use crate::pki::{Authority, PkiError};
use crate::reply::Refusal;
use crate::stall::Watch;
use crate::tokens::Tokens;

/// Bytes of batch bodies held at once, in units of [`BUDGET_UNIT`].
const BUDGET_UNITS: usize = 256 * 1024 * 1024 / BUDGET_UNIT;
/// Share of one tenant: a flood of one leaves room for the others.
const TENANT_BUDGET_UNITS: usize = BUDGET_UNITS / 4;
/// Unit of the body budget, bytes.
const BUDGET_UNIT: usize = 64 * 1024;

/// What the handlers need to know of the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Lifetime of a collector's certificate.
    pub certificate_lifetime: Duration,
    /// Lifetime of an operator's certificate.
    pub operator_lifetime: Duration,
    /// A request or batch older than this makes the server not ready.
    pub stall_max: Duration,
}

/// See the module's documentation.
pub struct Gateway {
    pub evidence: Evidence,
    pub access: Access,
    pub tokens: Tokens,
    pub settings: Settings,
    pub metrics: Metrics,
    pub audit: Audit,
    pub ingest: Watch,
    /// Bounds the memory of batch bodies, over all connections and for each tenant.
    budget: Arc<Semaphore>,
    tenant_budgets: StdMutex<BTreeMap<TenantId, Arc<Semaphore>>>,
    /// One enrolment or renewal at a time: checking a name and taking it are one step.
    pub enrolling: Mutex<()>,
    authority: RwLock<Arc<Authority>>,
}

/// What is known of the other end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// `None`: no client certificate, or one that names nobody.
    pub peer: Option<Arc<Peer>>,
}

impl Gateway {
    pub fn new(
        data: &Path,
        evidence: Evidence,
        authority: Authority,
        settings: Settings,
    ) -> Result<Self, crate::daemon::StartError> {
        let access =
            Access::load(evidence.enrolments(), evidence.revocations(), data.join("revoked-operators.json"))?;
        Ok(Gateway {
            access,
            tokens: Tokens::open(data)?,
            evidence,
            settings,
            metrics: Metrics::default(),
            audit: Audit::default(),
            ingest: Watch::default(),
            budget: Arc::new(Semaphore::new(BUDGET_UNITS)),
            tenant_budgets: StdMutex::new(BTreeMap::new()),
            enrolling: Mutex::new(()),
            authority: RwLock::new(Arc::new(authority)),
        })
    }

    pub fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.authority.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up the authority that is on disk now.
    pub fn reload_authority(&self, data: &Path) -> Result<(), PkiError> {
        let fresh = Arc::new(Authority::load(&data.join("pki"))?);
        *self.authority.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The peer of a connection, if it may go on now.
    pub fn authenticate(&self, connection: &Connection, now: Timestamp) -> Result<Arc<Peer>, Refusal> {
        let Some(peer) = &connection.peer else {
            return Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "a client certificate of this gateway is needed; see `activity enroll`",
            ));
        };
        match self.access.check(peer, now) {
            Ok(()) => Ok(Arc::clone(peer)),
            Err(denial) => Err(Refusal::new(StatusCode::UNAUTHORIZED, denial.to_string())),
        }
    }

    /// The collector at the other end.
    pub fn collector(&self, connection: &Connection, now: Timestamp) -> Result<CollectorIdentity, Refusal> {
        match &self.authenticate(connection, now)?.identity {
            Identity::Collector(collector) => Ok(collector.clone()),
            Identity::Operator(_) => {
                Err(Refusal::new(StatusCode::FORBIDDEN, "only a collector's certificate may do this"))
            }
        }
    }

    /// The operator at the other end.
    pub fn operator(&self, connection: &Connection, now: Timestamp) -> Result<OperatorIdentity, Refusal> {
        match &self.authenticate(connection, now)?.identity {
            Identity::Operator(operator) => Ok(operator.clone()),
            Identity::Collector(_) => {
                Err(Refusal::new(StatusCode::FORBIDDEN, "only an operator's certificate may do this"))
            }
        }
    }

    /// Room for a body of so many bytes; `None` when the gateway or the tenant has too many under way.
    pub fn reserve(&self, tenant: &TenantId, bytes: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let units = u32::try_from(bytes.div_ceil(BUDGET_UNIT).max(1)).ok()?;
        let own = {
            let mut budgets = self.tenant_budgets.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(Semaphore::new(TENANT_BUDGET_UNITS));
            Arc::clone(budgets.entry(tenant.clone()).or_insert_with(fresh))
        };
        let own = own.try_acquire_many_owned(units).ok()?;
        let all = Arc::clone(&self.budget).try_acquire_many_owned(units).ok()?;
        Some([own, all])
    }

    /// Tenants that exist: those with evidence and those with enrolled collectors.
    pub async fn tenants(&self) -> Result<Vec<TenantId>, Refusal> {
        let mut all = self.evidence.tenants().await?;
        all.extend(self.access.tenants());
        all.sort();
        all.dedup();
        Ok(all)
    }

    /// Whether ingest and disk work, and why not.
    pub fn readiness(&self, now: Instant) -> Result<(), &'static str> {
        let health = self.evidence.health();
        if health.read_only || health.commits_fail {
            return Err("the journal cannot be written");
        }
        if health.thread_ended.is_some() {
            return Err("a thread of the store has ended; its log says why, and a restart helps");
        }
        if health.full {
            return Err("the disk is full");
        }
        let oldest = self.ingest.oldest(now).max(health.ingest_stalled);
        if oldest > self.settings.stall_max { Err("ingest stands still") } else { Ok(()) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use activity_store::StoreConfig;

    use super::*;

    /// A gateway in a directory of its own, without listeners.
    pub(crate) struct Lab {
        pub gateway: Arc<Gateway>,
        pub dir: tempfile::TempDir,
    }

    impl Lab {
        pub(crate) fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store =
                StoreConfig { dir: dir.path().join("store"), reserve_bytes: 0, ..StoreConfig::default() };
            let evidence = Evidence::open(store).unwrap();
            let names = ["localhost".to_owned()];
            let authority = Authority::create(&dir.path().join("pki"), &names, crate::clock::now()).unwrap();
            let hour = Duration::from_secs(3_600);
            let settings = Settings { certificate_lifetime: hour, operator_lifetime: hour, stall_max: hour };
            let gateway = Arc::new(Gateway::new(dir.path(), evidence, authority, settings).unwrap());
            Lab { gateway, dir }
        }
    }

    #[test]
    fn batch_bodies_have_256_mib_and_of_these_a_tenant_64() {
        const MIB: usize = 1 << 20;
        let lab = Lab::new();
        let reserve = |tenant: &str, bytes| lab.gateway.reserve(&tenant.parse().unwrap(), bytes);
        let mut held: Vec<_> = (0..8).map(|_| reserve("a", 8 * MIB).unwrap()).collect();
        assert!(reserve("a", 1).is_none(), "one tenant");
        for tenant in ["b", "c", "d"] {
            held.push(reserve(tenant, 64 * MIB).unwrap());
        }
        assert!(reserve("e", 1).is_none(), "all together");
        held.pop();
        assert!(reserve("e", 64 * MIB).is_some());
    }
}
