//! Reads stored batches back: open ones from the commit log, sealed ones from blocks.

use std::io;

use activity_schema::Hash;
use activity_schema::ids::StreamId;

use crate::block::read_block;
use crate::commit::commit_path;
use crate::record::{PackedBatch, RecordError, StoredBatch, read_batch};
use crate::segment::{BlockRef, segment_path};
use crate::store::Shared;
use crate::tenant::{OpenBatch, Stored, Tenant};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The file was sealed or rewritten since the place was looked up.
    #[error("the file is no longer there")]
    Gone,
    #[error("reading")]
    Io(#[source] io::Error),
    #[error("leaf {leaf}")]
    Record {
        leaf: u64,
        #[source]
        source: RecordError,
    },
    #[error("block {block} of segment {segment}")]
    Block {
        segment: u64,
        block: u32,
        #[source]
        source: RecordError,
    },
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound { ReadError::Gone } else { ReadError::Io(error) }
    }
}

impl Shared {
    /// An open batch with its lines still compressed.
    pub(crate) fn read_packed(&self, tenant: &Tenant, batch: &OpenBatch) -> Result<PackedBatch, ReadError> {
        let path = commit_path(&self.commit_dir(), batch.file);
        let payload = self.env.storage.read_at(&path, batch.offset, batch.len)?;
        PackedBatch::read(&payload, &tenant.keys.of_file(&batch.file_id))
            .map_err(|source| ReadError::Record { leaf: batch.leaf_index, source })
    }

    pub(crate) fn read_open(&self, tenant: &Tenant, batch: &OpenBatch) -> Result<StoredBatch, ReadError> {
        let path = commit_path(&self.commit_dir(), batch.file);
        let payload = self.env.storage.read_at(&path, batch.offset, batch.len)?;
        read_batch(&payload, &tenant.keys.of_file(&batch.file_id))
            .map_err(|source| ReadError::Record { leaf: batch.leaf_index, source })
    }

    pub(crate) fn read_block(
        &self,
        tenant: &Tenant,
        block: &BlockRef,
    ) -> Result<Vec<StoredBatch>, ReadError> {
        let path = segment_path(&tenant.dir, block.segment);
        let payload = self.env.storage.read_at(&path, block.offset, block.len)?;
        read_block(&payload, &tenant.keys.of_file(&block.file_id), &tenant.id).map_err(|source| {
            // A block that was rewritten under the look-up does not open under the old file's key.
            let current = tenant.state.read().segments.get(&block.segment).map(|s| s.file_id);
            if current == Some(block.file_id) {
                ReadError::Block { segment: block.segment, block: block.block, source }
            } else {
                ReadError::Gone
            }
        })
    }

    /// The stored batch of this hash, when this very batch is stored; `true` when it lies beside the stream.
    pub(crate) fn find_stored(
        &self,
        tenant: &Tenant,
        stream: &StreamId,
        number: u64,
        hash: Hash,
    ) -> Option<(Stored, bool)> {
        let (run, meta) = {
            let state = tenant.state.read();
            let known = state.streams.get(stream)?;
            if let Some(stored) = known.forks.get(&hash) {
                return Some((*stored, true));
            }
            if number > known.head.batch_number {
                return None;
            }
            if let Some(leaf) = known.open.get(&number) {
                let open = state.open.get(leaf)?;
                let stored = Stored { leaf_index: *leaf, received_at: open.received_at };
                return (open.hash == hash).then_some((stored, false));
            }
            let run = known.sealed_run(number)?;
            (run, state.segments.get(&run.segment)?.clone())
        };
        let entry = self.index.block(&tenant.id, run.segment, run.block)?;
        let block = entry.place(&meta);
        match self.read_block(tenant, &block) {
            Ok(batches) => batches
                .iter()
                .find(|b| b.batch_hash == hash)
                .map(|b| (Stored { leaf_index: b.leaf_index, received_at: b.received_at }, false)),
            Err(error) => {
                tracing::error!(%error, "an old batch does not read; run verify");
                None
            }
        }
    }
}
