//! Batches between their callers and the committer: bounded, and drained before the store closes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::committer::Job;

/// Most bytes of batches that are being checked or wait for their commit.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Default)]
pub(crate) struct Queue {
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    tickets: u64,
    in_flight_bytes: u64,
    stopping: bool,
    seal_requests: u64,
    committing_since: Option<Instant>,
}

/// Room in the queue; given back when dropped.
pub(crate) struct Ticket {
    state: Arc<(Mutex<State>, Condvar)>,
    bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.state.0.lock();
        state.tickets -= 1;
        state.in_flight_bytes -= self.bytes;
        self.state.1.notify_all();
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
    pub(crate) fn enter(&self, bytes: u64) -> Result<Ticket, NoRoom> {
        let mut state = self.state.0.lock();
        if state.stopping {
            return Err(NoRoom::Stopping);
        }
        // One request is always let in, however long it is.
        if state.in_flight_bytes > 0 && state.in_flight_bytes + bytes > IN_FLIGHT_BYTES_MAX {
            return Err(NoRoom::Overloaded);
        }
        state.tickets += 1;
        state.in_flight_bytes += bytes;
        Ok(Ticket { state: Arc::clone(&self.state), bytes })
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
