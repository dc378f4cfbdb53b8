//! Batches between their callers and the committer: bounded, and drained before the store closes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use activity_schema::ids::{CollectorId, TenantId};
use parking_lot::{Condvar, Mutex};

use crate::committer::Job;

/// Most bytes of requests that are being checked or wait for their commit, counted raw: 100 collectors with two streams
/// have 400 MiB under way at most.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Of these, one tenant's: a flood of one leaves room for the others.
pub(crate) const TENANT_BYTES_MAX: u64 = 448 * 1024 * 1024;
/// Requests of one collector; it has a stream a class, and one request of each.
pub(crate) const COLLECTOR_REQUESTS_MAX: u64 = 4;

#[derive(Default)]
pub(crate) struct Queue {
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    tickets: u64,
    in_flight_bytes: u64,
    tenant_bytes: BTreeMap<TenantId, u64>,
    collector_requests: BTreeMap<(TenantId, CollectorId), u64>,
    stopping: bool,
    seal_requests: u64,
    committing_since: Option<Instant>,
}

/// Room in the queue; given back when dropped.
pub(crate) struct Ticket {
    state: Arc<(Mutex<State>, Condvar)>,
    tenant: TenantId,
    collector: Option<CollectorId>,
    bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.state.0.lock();
        state.tickets -= 1;
        state.in_flight_bytes -= self.bytes;
        take_back(&mut state.tenant_bytes, &self.tenant, self.bytes);
        if let Some(collector) = self.collector.take() {
            take_back(&mut state.collector_requests, &(self.tenant.clone(), collector), 1);
        }
        self.state.1.notify_all();
    }
}

/// A key stays only while something of it is under way.
fn take_back<K: Ord>(counts: &mut BTreeMap<K, u64>, key: &K, n: u64) {
    if let Some(count) = counts.get_mut(key) {
        *count -= n;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Stopping,
    Overloaded,
}

/// What the committer is woken for.
pub(crate) enum Work {
    Commit(VecDeque<Job>),
    /// End the commit file now and seal it.
    Seal,
    /// Nothing came within the time.
    Idle,
    Stop,
}

impl Queue {
    /// `collector` counts the request against those of its sender.
    pub(crate) fn enter(
        &self,
        tenant: &TenantId,
        collector: Option<&CollectorId>,
        bytes: u64,
    ) -> Result<Ticket, NoRoom> {
        let mut state = self.state.0.lock();
        if state.stopping {
            return Err(NoRoom::Stopping);
        }
        // One request is always let in, however long it is.
        if state.in_flight_bytes > 0 && state.in_flight_bytes + bytes > IN_FLIGHT_BYTES_MAX {
            return Err(NoRoom::Overloaded);
        }
        let of_tenant = state.tenant_bytes.get(tenant).copied().unwrap_or(0);
        if of_tenant > 0 && of_tenant + bytes > TENANT_BYTES_MAX {
            return Err(NoRoom::Overloaded);
        }
        if let Some(collector) = collector {
            let requests = state.collector_requests.entry((tenant.clone(), collector.clone())).or_default();
            if *requests >= COLLECTOR_REQUESTS_MAX {
                return Err(NoRoom::Overloaded);
            }
            *requests += 1;
        }
        state.tickets += 1;
        state.in_flight_bytes += bytes;
        *state.tenant_bytes.entry(tenant.clone()).or_default() += bytes;
        let (tenant, collector) = (tenant.clone(), collector.cloned());
        Ok(Ticket { state: Arc::clone(&self.state), tenant, collector, bytes })
    }

    pub(crate) fn push(&self, job: Job) {
        self.state.0.lock().jobs.push_back(job);
        self.state.1.notify_all();
    }

    pub(crate) fn request_seal(&self) {
        self.state.0.lock().seal_requests += 1;
        self.state.1.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state.0.lock().stopping = true;
        self.state.1.notify_all();
    }

    /// Waits, but not beyond the moment the store begins to close; whether it does.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let (lock, wake) = &*self.state;
        let deadline = Instant::now() + time;
        let mut state = lock.lock();
        while !state.stopping && !wake.wait_until(&mut state, deadline).timed_out() {}
        state.stopping
    }

    /// Waits for work. Stops only when everything that was let in is done.
    pub(crate) fn next(&self, timeout: Duration) -> Work {
        let (lock, wake) = &*self.state;
        let mut state = lock.lock();
        state.committing_since = None;
        loop {
            if !state.jobs.is_empty() {
                state.committing_since = state.jobs.front().map(|job| job.queued_at);
                return Work::Commit(std::mem::take(&mut state.jobs));
            }
            if state.seal_requests > 0 {
                state.seal_requests = 0;
                return Work::Seal;
            }
            if state.stopping && state.tickets == 0 {
                return Work::Stop;
            }
            if wake.wait_for(&mut state, timeout).timed_out() {
                return Work::Idle;
            }
        }
    }

    /// How long the oldest batch has waited.
    pub(crate) fn oldest_wait(&self) -> Option<Duration> {
        let state = self.state.0.lock();
        let oldest = state.committing_since.or_else(|| state.jobs.front().map(|job| job.queued_at));
        oldest.map(|since| since.elapsed())
    }
}
