//! The block index: one entry a block, in sled, or in memory where sled's directory cannot be used (a reader
//! beside a running gateway). Everything in it comes from the segments; it may be deleted at any time.
//!
//! ```text
//! key:   tenant | 0 | u64 BE segment | u32 BE block     value: block entry (see `block_entry`)
//! key:   tenant | 1 | u64 BE segment                    value: 16 segment file id: its entries are complete
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use activity_schema::ids::TenantId;
use parking_lot::RwLock;

use crate::block_entry::{BlockEntry, EntryView};
use crate::commit::FileId;

/// sled's page cache, bytes: holds the entries of about 20 million events.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Unflushed entries are rebuilt after a crash, so that flushing can be rare.
const FLUSH_EVERY_MS: u64 = 5_000;

pub(crate) enum Index {
    Sled(sled::Db),
    Memory(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>),
}

impl Index {
    pub(crate) fn memory() -> Self {
        Index::Memory(RwLock::default())
    }

    /// Opens sled; a damaged database is deleted and begun again, as all of it can be rebuilt.
    pub(crate) fn open(dir: &Path) -> Result<Self, sled::Error> {
        match open_sled(dir) {
            Some(Ok(db)) => Ok(Index::Sled(db)),
            first => {
                tracing::warn!(error = ?first.and_then(Result::err), "the index is damaged and is rebuilt");
                std::fs::remove_dir_all(dir)?;
                match open_sled(dir) {
                    Some(result) => result.map(Index::Sled),
                    None => Err(sled::Error::Unsupported("sled does not open a new database".into())),
                }
            }
        }
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self {
            Index::Sled(db) => match db.get(key) {
                Ok(value) => value.map(|v| v.to_vec()),
                Err(error) => {
                    tracing::error!(%error, "the index does not read; delete its directory to rebuild it");
                    None
                }
            },
            Index::Memory(map) => map.read().get(key).cloned(),
        }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), sled::Error> {
        match self {
            Index::Sled(db) => db.insert(key, value).map(drop),
            Index::Memory(map) => {
                map.write().insert(key.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    /// Whether the entries of this very segment file are complete.
    pub(crate) fn has_segment(&self, tenant: &TenantId, segment: u64, id: &FileId) -> bool {
        self.get(&segment_key(tenant, segment)).is_some_and(|value| value == id)
    }

    /// Takes a segment's entries in place of any it had.
    pub(crate) fn put_segment(
        &self,
        tenant: &TenantId,
        segment: u64,
        id: &FileId,
        entries: &[BlockEntry],
    ) -> Result<(), sled::Error> {
        self.remove_segment(tenant, segment)?;
        for entry in entries {
            self.put(&block_key(tenant, segment, entry.block), &entry.to_bytes())?;
        }
        self.put(&segment_key(tenant, segment), id)
    }

    pub(crate) fn remove_segment(&self, tenant: &TenantId, segment: u64) -> Result<(), sled::Error> {
        let prefix = blocks_prefix(tenant, segment);
        match self {
            Index::Sled(db) => {
                db.remove(segment_key(tenant, segment))?;
                for key in db.scan_prefix(&prefix).keys() {
                    db.remove(key?)?;
                }
            }
            Index::Memory(map) => {
                let mut map = map.write();
                map.remove(&segment_key(tenant, segment));
                map.retain(|key, _| !key.starts_with(&prefix));
            }
        }
        Ok(())
    }

    /// Passes over the blocks of a segment.
    pub(crate) fn blocks(&self, tenant: &TenantId, segment: u64, mut see: impl FnMut(&EntryView<'_>)) {
        let prefix = blocks_prefix(tenant, segment);
        let mut view = |value: &[u8]| match EntryView::read(value) {
            Ok(entry) => see(&entry),
            Err(_) => tracing::error!(segment, "an index entry is damaged; delete the index to rebuild it"),
        };
        match self {
            Index::Sled(db) => db.scan_prefix(&prefix).values().flatten().for_each(|value| view(&value)),
            Index::Memory(map) => map
                .read()
                .range(prefix.clone()..)
                .take_while(|(key, _)| key.starts_with(&prefix))
                .for_each(|(_, value)| view(value)),
        }
    }

    pub(crate) fn block(&self, tenant: &TenantId, segment: u64, block: u32) -> Option<BlockEntry> {
        BlockEntry::read(&self.get(&block_key(tenant, segment, block))?).ok()
    }

    /// Every entry of a segment, in order.
    pub(crate) fn entries(&self, tenant: &TenantId, segment: u64) -> Vec<BlockEntry> {
        (0..).map_while(|block| self.block(tenant, segment, block)).collect()
    }

    pub(crate) fn flush(&self) {
        if let Index::Sled(db) = self
            && let Err(error) = db.flush()
        {
            tracing::warn!(%error, "the index is not flushed; it is brought up to date at the next start");
        }
    }
}

/// `None` when sled panicked, as it may on a damaged database.
fn open_sled(dir: &Path) -> Option<sled::Result<sled::Db>> {
    let config = sled::Config::new()
        .path(dir)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(Some(FLUSH_EVERY_MS))
        .mode(sled::Mode::HighThroughput);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| config.open())).ok()
}

fn key(tenant: &TenantId, kind: u8) -> Vec<u8> {
    // Ids hold no byte below `-`, so no tenant is a prefix of another.
    let mut key = tenant.as_str().as_bytes().to_vec();
    key.push(kind);
    key
}

fn blocks_prefix(tenant: &TenantId, segment: u64) -> Vec<u8> {
    let mut key = key(tenant, 0);
    key.extend_from_slice(&segment.to_be_bytes());
    key
}

fn block_key(tenant: &TenantId, segment: u64, block: u32) -> Vec<u8> {
    let mut key = blocks_prefix(tenant, segment);
    key.extend_from_slice(&block.to_be_bytes());
    key
}

fn segment_key(tenant: &TenantId, segment: u64) -> Vec<u8> {
    let mut key = key(tenant, 1);
    key.extend_from_slice(&segment.to_be_bytes());
    key
}
