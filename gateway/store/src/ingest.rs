//! Batches from collectors: checked on the caller's side, committed in groups, answered when durable.

use std::sync::Arc;
use std::time::Duration;

use activity_schema::SignedBatch;
use activity_schema::api::BatchResult;

use crate::checking::{Checking, Turn, weight};
use crate::committer::CommitError;
use crate::queue::NoRoom;
use crate::store::{OpenError, Store};
use crate::types::Caller;

/// When to try again after the queue was full.
const OVERLOADED_RETRY: Duration = Duration::from_secs(1);
/// When to try again on a full disk.
const FULL_RETRY: Duration = Duration::from_secs(10);

/// Why nothing of a request was acknowledged. All but `ReadOnly` pass.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error("the disk is full")]
    Full { retry_after: Duration },
    #[error("too many batches wait")]
    Overloaded { retry_after: Duration },
    #[error("the store is closing")]
    Stopping,
    #[error("the store is open for reading only")]
    ReadOnly,
    #[error("the batches could not be made durable")]
    Io(#[source] std::io::Error),
    #[error("a key could not be had")]
    Key(#[source] Arc<crate::keyring::KeyringError>),
    #[error("the tenant's part of the store does not open")]
    Tenant(#[source] Box<OpenError>),
}

impl Store {
    /// Stores batches in their order; returns one result a batch when all of them are durable.
    ///
    /// Must be called within a tokio runtime. Dropping the future does not undo what was begun.
    pub async fn ingest(
        &self,
        caller: &Caller,
        batches: Vec<SignedBatch>,
    ) -> Result<Vec<BatchResult>, IngestError> {
        let shared = Arc::clone(self.shared());
        if shared.read_only {
            return Err(IngestError::ReadOnly);
        }
        if shared.disk_free().map_err(IngestError::Io)? < shared.config.reserve_bytes {
            return Err(IngestError::Full { retry_after: FULL_RETRY });
        }
        let room = shared.queue.enter(&caller.tenant, Some(&caller.collector_id), weight(&batches));
        let ticket = room.map_err(|why| match why {
            NoRoom::Stopping => IngestError::Stopping,
            NoRoom::Overloaded => IngestError::Overloaded { retry_after: OVERLOADED_RETRY },
        })?;
        let turns = Arc::clone(&shared.checking);
        let mut checking = Box::new(Checking::new(shared, caller.clone(), batches));
        let answer = loop {
            // Turns are given in the order in which they are asked for: whoever has had one is last again.
            let turn = Arc::clone(&turns).acquire_owned().await.map_err(|_| IngestError::Stopping)?;
            let task = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                checking.turn()
            });
            match task.await.map_err(|_| IngestError::Stopping)?? {
                Turn::More(rest) => checking = rest,
                Turn::Queued(answer) => break answer,
            }
        };
        // A committer that ended without an answer committed nothing.
        let result = answer.await.map_err(|_| IngestError::Stopping)?;
        drop(ticket);
        result.map_err(|error| match error {
            CommitError::Io(error) if is_full(&error) => IngestError::Full { retry_after: FULL_RETRY },
            CommitError::Io(error) => IngestError::Io(std::io::Error::new(error.kind(), error)),
            CommitError::Key(error) => IngestError::Key(error),
        })
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
