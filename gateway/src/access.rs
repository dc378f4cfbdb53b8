//! Who may do what now: enrolled collectors and their keys, revoked certificates.
//!
//! A projection of the store's control records; it is asked at every request. A revocation is in force first and
//! durable before it is answered, so that a failing disk errs on the side of refusing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use activity_schema::Timestamp;
use activity_schema::ids::{CollectorId, HostId, TenantId};
use activity_store::{Caller, Enrolment, Instances, Revocation};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::identity::{CollectorIdentity, Identity, Peer};
use crate::pki::{self, PkiError};

/// Keys of a collector that are remembered: one an epoch. Batches of older epochs are refused.
const KEYS_MAX: usize = 256;

/// Why an authenticated peer is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    #[error("the certificate has expired")]
    Expired,
    #[error("the certificate was revoked")]
    Revoked,
    #[error("the collector is not enrolled")]
    NotEnrolled,
}

/// Why a collector may not be enrolled under this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the collector id is enrolled for another host or instance")]
pub struct NameTaken;

/// See the module's documentation.
pub struct Access {
    state: RwLock<State>,
    /// Counts revocations; connections watch it.
    revocations: watch::Sender<u64>,
    /// Names of revoked operators and when; the store's control records speak of collectors only.
    operators_file: PathBuf,
}

#[derive(Default)]
struct State {
    collectors: BTreeMap<(TenantId, CollectorId), Collector>,
    operators: BTreeMap<String, RevokedOperator>,
}

#[derive(Default)]
struct Collector {
    enrolled: Vec<Enrolment>,
    /// Certificates issued up to this moment are refused.
    revoked_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokedOperator {
    revoked_at: Timestamp,
}

impl Access {
    /// From what the store and the operators' file say.
    pub fn load(
        enrolments: Vec<Enrolment>,
        revocations: Vec<Revocation>,
        operators_file: PathBuf,
    ) -> Result<Self, PkiError> {
        let mut state = State::default();
        for enrolment in enrolments {
            state.enrol(enrolment);
        }
        for revocation in &revocations {
            state.mark_revoked(revocation);
        }
        if operators_file.exists() {
            let text = pki::read_text(&operators_file)?;
            state.operators =
                serde_json::from_str(&text).map_err(|_| PkiError::Pem { path: operators_file.clone() })?;
        }
        Ok(Access { state: RwLock::new(state), revocations: watch::Sender::new(0), operators_file })
    }

    /// Whether a peer may go on, now.
    pub fn check(&self, peer: &Peer, now: Timestamp) -> Result<(), Denial> {
        if peer.not_after <= now {
            return Err(Denial::Expired);
        }
        let state = self.read();
        match &peer.identity {
            Identity::Collector(c) => {
                let known = state.collectors.get(&(c.tenant.clone(), c.collector.clone()));
                let known = known.ok_or(Denial::NotEnrolled)?;
                if known.revoked_at.is_some_and(|at| peer.issued_ms <= millis(at)) {
                    return Err(Denial::Revoked);
                }
                let enrolled = known.enrolled.iter().any(|e| binds(e, &c.host, &c.instances));
                if enrolled { Ok(()) } else { Err(Denial::NotEnrolled) }
            }
            Identity::Operator(o) => {
                let revoked = state.operators.get(&o.name);
                let refused = revoked.is_some_and(|r| peer.issued_ms <= millis(r.revoked_at));
                if refused { Err(Denial::Revoked) } else { Ok(()) }
            }
        }
    }

    /// The caller as the store wants it.
    pub fn caller(&self, identity: &CollectorIdentity) -> Caller {
        let state = self.read();
        let known = state.collectors.get(&(identity.tenant.clone(), identity.collector.clone()));
        let enrolled = known.map(|c| c.enrolled.as_slice()).unwrap_or_default();
        Caller {
            tenant: identity.tenant.clone(),
            host: identity.host.clone(),
            collector_id: identity.collector.clone(),
            instances: identity.instances.clone(),
            keys: enrolled.iter().map(|e| (e.signing_key.id(), e.signing_key, e.epoch.clone())).collect(),
        }
    }

    /// Whether a collector id is free, or belongs to this host and instance already.
    pub fn check_name(&self, identity: &CollectorIdentity) -> Result<(), NameTaken> {
        let state = self.read();
        let known = state.collectors.get(&(identity.tenant.clone(), identity.collector.clone()));
        let taken =
            known.is_some_and(|c| c.enrolled.iter().any(|e| !binds(e, &identity.host, &identity.instances)));
        if taken { Err(NameTaken) } else { Ok(()) }
    }

    /// The earliest moment at which a certificate for this collector can be issued: after any revocation.
    pub fn issue_time(&self, identity: &CollectorIdentity, now: Timestamp) -> Timestamp {
        let state = self.read();
        let known = state.collectors.get(&(identity.tenant.clone(), identity.collector.clone()));
        match known.and_then(|c| c.revoked_at) {
            Some(at) => now.max(at.saturating_add_nanos(1_000_000)),
            None => now,
        }
    }

    pub fn enrol(&self, enrolment: Enrolment) {
        self.write().enrol(enrolment);
    }

    /// Refuses a collector's certificates and keys from now on, and closes its connections.
    pub fn revoke(&self, revocation: &Revocation) {
        self.write().revoke(revocation);
        self.revocations.send_modify(|n| *n += 1);
    }

    /// Whether the collector was ever enrolled, or revoked, as far as the control journal says.
    pub fn knows(&self, tenant: &TenantId, collector: &CollectorId) -> bool {
        self.read().collectors.contains_key(&(tenant.clone(), collector.clone()))
    }

    /// Collectors that are revoked and not enrolled again, and since when.
    pub fn revoked(&self, tenant: &TenantId) -> Vec<(CollectorId, Timestamp)> {
        let state = self.read();
        let own = state.collectors.iter().filter(|((t, _), c)| t == tenant && c.enrolled.is_empty());
        own.filter_map(|((_, id), c)| Some((id.clone(), c.revoked_at?))).collect()
    }

    /// Refuses an operator's certificates that were issued so far. Durable on return.
    pub fn revoke_operator(&self, name: &str, now: Timestamp) -> Result<(), PkiError> {
        let json = {
            let mut state = self.write();
            state.operators.insert(name.to_owned(), RevokedOperator { revoked_at: now });
            serde_json::to_string_pretty(&state.operators).unwrap_or_default()
        };
        self.revocations.send_modify(|n| *n += 1);
        pki::write_over(&self.operators_file, &json)
    }

    /// Changes at every revocation.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.revocations.subscribe()
    }

    /// Tenants that have enrolled collectors.
    pub fn tenants(&self) -> Vec<TenantId> {
        let state = self.read();
        let enrolled = state.collectors.iter().filter(|(_, c)| !c.enrolled.is_empty());
        let mut tenants: Vec<TenantId> = enrolled.map(|((tenant, _), _)| tenant.clone()).collect();
        tenants.dedup();
        tenants
    }

    /// Every enrolled collector of a tenant.
    pub fn enrolled(&self, tenant: &TenantId) -> Vec<Enrolment> {
        let state = self.read();
        let own = state.collectors.iter().filter(|((t, _), _)| t == tenant);
        own.filter_map(|(_, c)| c.enrolled.last().cloned()).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enrol(&mut self, enrolment: Enrolment) {
        let key = (enrolment.tenant.clone(), enrolment.collector_id.clone());
        let collector = self.collectors.entry(key).or_default();
        collector
            .enrolled
            .retain(|e| (&e.signing_key, &e.epoch) != (&enrolment.signing_key, &enrolment.epoch));
        collector.enrolled.push(enrolment);
        let excess = collector.enrolled.len().saturating_sub(KEYS_MAX);
        collector.enrolled.drain(..excess);
    }

    fn revoke(&mut self, revocation: &Revocation) {
        self.mark_revoked(revocation);
        let key = (revocation.tenant.clone(), revocation.collector_id.clone());
        if let Some(collector) = self.collectors.get_mut(&key) {
            collector.enrolled.retain(|e| {
                let other_key = revocation.key_id.as_ref().is_some_and(|k| *k != e.signing_key.id());
                let other_serial =
                    revocation.certificate_serial.as_ref().is_some_and(|s| *s != e.certificate_serial);
                other_key || other_serial
            });
        }
    }

    /// Remembers from when on certificates are accepted again; enrolments in force already leave out the revoked.
    fn mark_revoked(&mut self, revocation: &Revocation) {
        let key = (revocation.tenant.clone(), revocation.collector_id.clone());
        let collector = self.collectors.entry(key).or_default();
        if revocation.certificate_serial.is_none() && revocation.key_id.is_none() {
            collector.revoked_at = collector.revoked_at.max(Some(revocation.revoked_at));
        }
    }
}

fn binds(enrolment: &Enrolment, host: &HostId, instances: &Instances) -> bool {
    enrolment.host == *host && enrolment.instances == *instances
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanos().div_euclid(1_000_000)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use activity_schema::keys::Signer;

    use super::*;

    #[test]
    fn of_a_collector_256_keys_are_remembered() {
        let enrolment = |n: u16| {
            let mut seed = [0; 32];
            seed[..2].copy_from_slice(&n.to_le_bytes());
            Enrolment {
                tenant: "acme".parse().unwrap(),
                collector_id: "c-1".parse().unwrap(),
                host: "host-1".parse().unwrap(),
                instances: Instances::Host,
                signing_key: Signer::from_seed(&seed).public(),
                epoch: format!("epoch-{n}").parse().unwrap(),
                certificate_serial: "01".to_owned(),
                enrolled_at: Timestamp::from_nanos(1),
            }
        };
        let identity = CollectorIdentity {
            tenant: "acme".parse().unwrap(),
            host: "host-1".parse().unwrap(),
            instances: Instances::Host,
            collector: "c-1".parse().unwrap(),
        };
        for (enrolled, oldest) in [(256, "epoch-0"), (257, "epoch-1")] {
            let all = (0..enrolled).map(enrolment).collect();
            let access = Access::load(all, Vec::new(), "/nowhere".into()).unwrap();
            let keys = access.caller(&identity).keys;
            assert_eq!((keys.len(), keys[0].2.as_str()), (256, oldest));
        }
    }
}
