//! The store's threads: committer, sealer, and one that keeps the cadence of checkpoints.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use std::sync::atomic::Ordering;

use crate::commit::CommitWriter;
use crate::committer::Committer;
use crate::queue::Work;
use crate::sealer::seal;
use crate::store::Shared;

/// How often the committer looks whether its file is due.
const COMMITTER_IDLE: Duration = Duration::from_millis(500);
/// Wait before a failed sealing is tried again.
const SEAL_RETRY: Duration = Duration::from_secs(5);

pub(crate) struct Threads {
    committer: JoinHandle<()>,
    sealer: JoinHandle<()>,
    checkpointer: JoinHandle<()>,
    stop_checkpoints: Sender<()>,
}

impl Threads {
    /// `ended` are commit files to seal.
    pub(crate) fn start(shared: &Arc<Shared>, writer: CommitWriter, ended: Vec<u64>) -> io::Result<Threads> {
        let (to_sealer, files) = channel();
        for file in ended {
            // The receiver is alive: it is in this function.
            let _ = to_sealer.send(file);
        }
        let (stop_checkpoints, stopped) = channel();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run)
        };
        let (a, b, c) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
        Ok(Threads {
            committer: spawn("store-commit", Box::new(move || commit_loop(&a, writer, &to_sealer)))?,
            sealer: spawn("store-seal", Box::new(move || seal_loop(&b, &files)))?,
            checkpointer: spawn("store-checkpoint", Box::new(move || checkpoint_loop(&c, &stopped)))?,
            stop_checkpoints,
        })
    }

    /// A thread that is no more: it panicked.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        let all = [("commit", &self.committer), ("seal", &self.sealer), ("checkpoint", &self.checkpointer)];
        all.into_iter().find(|(_, thread)| thread.is_finished()).map(|(name, _)| name)
    }

    /// Drains and joins. What was accepted is durable afterwards, and the ends of all files are stated.
    pub(crate) fn stop(self, shared: &Shared) {
        shared.queue.stop();
        // The committer drops the sealer's channel; the sealer ends when it has done what it was given.
        let mut clean = self.committer.join().is_ok();
        clean &= self.sealer.join().is_ok();
        let _ = self.stop_checkpoints.send(());
        clean &= self.checkpointer.join().is_ok();
        clean &= checkpoint_all(shared);
        crate::snapshot::save_coverage(shared);
        shared.index.flush();
        if clean && let Err(error) = crate::closing::close(shared) {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, source, "the store is closed, but its ends are not provable");
        }
    }
}

fn commit_loop(shared: &Shared, writer: CommitWriter, to_sealer: &Sender<u64>) {
    let mut committer = Committer::new(shared, writer);
    loop {
        let force = match shared.queue.next(COMMITTER_IDLE) {
            Work::Stop => return,
            Work::Idle => {
                committer.probe();
                false
            }
            Work::Seal => true,
            Work::Commit(mut jobs) => {
                while !jobs.is_empty() {
                    committer.commit(&mut jobs);
                }
                false
            }
        };
        if let Some(file) = committer.rotate_if_due(force) {
            // Without a sealer the file stays; the next start seals it.
            let _ = to_sealer.send(file);
        }
    }
}

fn seal_loop(shared: &Shared, files: &Receiver<u64>) {
    for file in files {
        while let Err(error) = seal(shared, file) {
            shared.metrics.seal_failures.add(1);
            shared.sealing_fails.store(true, Ordering::Relaxed);
            tracing::error!(%error, source = ?std::error::Error::source(&error), file, "sealing failed; it is tried again");
            if shared.queue.pause(SEAL_RETRY) {
                // The commit file stays; the next start seals it.
                return;
            }
        }
        shared.sealing_fails.store(false, Ordering::Relaxed);
        crate::snapshot::save_coverage(shared);
    }
}

fn checkpoint_loop(shared: &Shared, stopped: &Receiver<()>) {
    let interval = shared.config.checkpoint_interval.max(Duration::from_millis(10));
    let mut next = Instant::now() + interval;
    loop {
        match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        next += interval;
        checkpoint_all(shared);
    }
}

/// A checkpoint of every tenant's log; whether all are durable.
pub(crate) fn checkpoint_all(shared: &Shared) -> bool {
    let mut all = true;
    for tenant in shared.all_tenants() {
        if let Err(error) = tenant.log.lock().checkpoint(&shared.env, shared.signer()) {
            tracing::error!(%error, tenant = %tenant.id, "no checkpoint; the next one covers it");
            all = false;
        }
    }
    all
}
