//! The syncing thread: waits for the disk, so that recording does not.

use std::sync::mpsc;
use std::time::Duration;

use crate::spool::{Disk, Sealed, Unsynced};

/// Batches of one fsync, at most.
const GROUP_MAX: usize = 64;
/// Pause after a failed fsync.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Failed tries after which a stop no longer waits.
const TRIES_AT_STOP: u32 = 3;

pub struct Syncer<D: Disk> {
    queue: Option<mpsc::Sender<Unsynced<D>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<D: Disk> Syncer<D> {
    /// `sealed` is told every batch once it may be sent, in order.
    pub fn start(sealed: impl Fn(Sealed) + Send + 'static) -> std::io::Result<Self> {
        let (queue, waiting) = mpsc::channel();
        let run = move || while next_group(&waiting, &sealed) {};
        let thread = std::thread::Builder::new().name("sync".to_owned()).spawn(run)?;
        Ok(Syncer { queue: Some(queue), thread: Some(thread) })
    }

    pub fn sync(&self, batches: Vec<Unsynced<D>>) {
        for batch in batches {
            if let Some(queue) = &self.queue {
                let _ = queue.send(batch);
            }
        }
    }

    /// Waits until everything is synced, or the disk has failed repeatedly.
    pub fn finish(mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `false` when there will be no more, or the disk fails and nobody waits any longer.
fn next_group<D: Disk>(waiting: &mpsc::Receiver<Unsynced<D>>, sealed: &impl Fn(Sealed)) -> bool {
    let Ok(first) = waiting.recv() else { return false };
    let mut group = vec![first];
    group.extend(waiting.try_iter().take(GROUP_MAX - 1));
    let mut stopping_tries = 0;
    while let Err(error) = Unsynced::sync(&group) {
        tracing::error!(%error, "sealed batches cannot be synced and are not sent yet");
        std::thread::sleep(RETRY_AFTER);
        match waiting.try_recv() {
            Ok(batch) => group.push(batch),
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => stopping_tries += 1,
        }
        if stopping_tries >= TRIES_AT_STOP {
            return false;
        }
    }
    for batch in group {
        sealed(batch.finish());
    }
    true
}
