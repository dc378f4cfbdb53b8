//! Batches from collectors: checked on the caller's side, committed in groups, answered when durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use activity_schema::SignedBatch;
use activity_schema::api::BatchResult;
use tokio::sync::oneshot;

use crate::check::{BatchRefusal, Checked, LineCheck, check_content, check_origin, header_alone};
use crate::committer::{CommitError, Job};
use crate::queue::{NoRoom, Ticket};
use crate::store::{OpenError, Shared, Store};
use crate::tenant::Tenant;
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
        let bytes: u64 = batches.iter().map(batch_bytes).sum();
        let ticket = shared.queue.enter(bytes).map_err(|why| match why {
            NoRoom::Stopping => IngestError::Stopping,
            NoRoom::Overloaded => IngestError::Overloaded { retry_after: OVERLOADED_RETRY },
        })?;
        let caller = caller.clone();
        let turn = Arc::clone(&shared.checking).acquire_owned().await.map_err(|_| IngestError::Stopping)?;
        let checking = tokio::task::spawn_blocking(move || {
            let queued = shared.check_and_queue(&caller, batches, ticket);
            drop(turn);
            queued
        });
        let (answer, ticket) = checking.await.map_err(|_| IngestError::Stopping)??;
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

fn batch_bytes(batch: &SignedBatch) -> u64 {
    (batch.header_bytes.len() + batch.body.as_ref().map_or(0, bytes::Bytes::len)) as u64
}

type Queued = (oneshot::Receiver<Result<Vec<BatchResult>, CommitError>>, Ticket);

impl Shared {
    fn check_and_queue(
        &self,
        caller: &Caller,
        batches: Vec<SignedBatch>,
        ticket: Ticket,
    ) -> Result<Queued, IngestError> {
        let tenant = self.make_tenant(&caller.tenant).map_err(|e| IngestError::Tenant(Box::new(e)))?;
        let batches = batches.into_iter().map(|batch| self.check(caller, &tenant, batch)).collect();
        let (reply, answer) = oneshot::channel();
        self.queue.push(Job { tenant, batches, reply, queued_at: Instant::now() });
        Ok((answer, ticket))
    }

    fn check(&self, caller: &Caller, tenant: &Tenant, batch: SignedBatch) -> Result<Checked, BatchRefusal> {
        check_origin(&batch, caller, |header| {
            self.control.lock().is_revoked(&caller.tenant, &caller.collector_id, &header.key_id)
        })?;
        let hash = batch.hash();
        let stream = batch.header.stream();
        let content = if self.find_stored(tenant, &stream, batch.header.batch_number, hash).is_some() {
            // The committer answers with its receipt and stores nothing.
            header_alone(&batch.header)
        } else {
            let with =
                LineCheck { instances: &caller.instances, terms: &tenant.keys.terms, recent: &self.recent };
            let mut content = check_content(&batch, &with)?;
            content.facts.unknown_receipts = self.unknown_receipts(tenant, &content.facts.telemetry);
            content
        };
        Ok(Checked {
            received_bytes: batch_bytes(&batch),
            hash,
            content,
            header: batch.header,
            header_bytes: batch.header_bytes,
            signature: batch.signature,
        })
    }
}
