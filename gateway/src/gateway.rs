//! The server's shared state, and the decisions that both listeners take the same way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use activity_schema::Timestamp;
use activity_schema::api::REQUEST_BYTES_MAX;
use activity_schema::ids::{CollectorId, TenantId};
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
/// Share of one collector, which has a request a stream under way: bodies that it declares and does not send keep no
/// room from its neighbours.
const COLLECTOR_BUDGET_UNITS: usize = 2 * REQUEST_BYTES_MAX / BUDGET_UNIT;
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
    /// Bounds the memory of batch bodies, over all connections, for each tenant and each collector.
    budget: Arc<Semaphore>,
    tenant_budgets: StdMutex<BTreeMap<TenantId, Arc<Semaphore>>>,
    collector_budgets: StdMutex<BTreeMap<(TenantId, CollectorId), Arc<Semaphore>>>,
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
            collector_budgets: StdMutex::new(BTreeMap::new()),
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

    /// Room for a body of so many bytes; `None` when the gateway, the tenant or the collector has too many under way.
    pub fn reserve(
        &self,
        tenant: &TenantId,
        collector: &CollectorId,
        bytes: usize,
    ) -> Option<[OwnedSemaphorePermit; 3]> {
        let units = u32::try_from(bytes.div_ceil(BUDGET_UNIT).max(1)).ok()?;
        let own = share(&self.collector_budgets, (tenant.clone(), collector.clone()), COLLECTOR_BUDGET_UNITS);
        let tenants = share(&self.tenant_budgets, tenant.clone(), TENANT_BUDGET_UNITS);
        let take = |budget: Arc<Semaphore>| budget.try_acquire_many_owned(units).ok();
        Some([take(own)?, take(tenants)?, take(Arc::clone(&self.budget))?])
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

/// Who is enrolled has a share, full at first.
fn share<K: Ord>(shares: &StdMutex<BTreeMap<K, Arc<Semaphore>>>, of: K, units: usize) -> Arc<Semaphore> {
    let mut shares = shares.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(shares.entry(of).or_insert_with(|| Arc::new(Semaphore::new(units))))
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
    fn batch_bodies_have_256_mib_of_these_a_tenant_64_and_a_collector_16() {
        const MIB: usize = 1 << 20;
        let lab = Lab::new();
        let reserve = |tenant: &str, collector: &str, bytes| {
            lab.gateway.reserve(&tenant.parse().unwrap(), &collector.parse().unwrap(), bytes)
        };
        let mut held: Vec<_> = (0..2).map(|_| reserve("a", "1", 8 * MIB).unwrap()).collect();
        assert!(reserve("a", "1", 1).is_none(), "one collector");
        for collector in ["2", "3", "4"] {
            held.push(reserve("a", collector, 16 * MIB).unwrap());
        }
        assert!(reserve("a", "5", 1).is_none(), "one tenant");
        for tenant in ["b", "c", "d"] {
            held.extend(["1", "2", "3", "4"].map(|collector| reserve(tenant, collector, 16 * MIB).unwrap()));
        }
        assert!(reserve("e", "1", 1).is_none(), "all together");
        held.pop();
        assert!(reserve("e", "1", 16 * MIB).is_some());
    }

    #[test]
    fn bodies_that_one_collector_declares_and_does_not_send_leave_room_for_its_neighbour() {
        const MIB: usize = 1 << 20;
        let lab = Lab::new();
        let reserve = |collector: &str| {
            lab.gateway.reserve(&"a".parse().unwrap(), &collector.parse().unwrap(), 8 * MIB)
        };
        let idle: Vec<_> = (0..8).filter_map(|_| reserve("1")).collect();
        assert_eq!(idle.len(), 2);
        assert!(reserve("2").is_some());
    }
}
