//! Coverage kept beside the index, so that neither a start nor a reader of the files reads every batch again.
//!
//! ```text
//! index/coverage/<tenant>.snapshot: 16 id | bytes sealed under the tenant's head key of this id: varint raw length | zstd of JSON
//! ```
//! It may be deleted at any time. It is written without fsync: what a crash leaves of it does not open, and is made
//! anew from the batches.

use std::io;
use std::path::PathBuf;

use activity_schema::batch;
use activity_schema::ids::TenantId;

use crate::store::Shared;
use crate::tenant::Tenant;
use crate::wire::{Reader, put_len};

const ZSTD_LEVEL: i32 = 1;
const ID_BYTES: usize = 16;
const EXTENSION: &str = "snapshot";
/// Most bytes of one opened: the engine bounds what it keeps far below.
const RAW_BYTES_MAX: usize = 1024 * 1024 * 1024;

fn path(shared: &Shared, tenant: &TenantId, extension: &str) -> PathBuf {
    shared.config.dir.join("index").join("coverage").join(format!("{tenant}.{extension}"))
}

fn aad(tenant: &TenantId) -> Vec<u8> {
    [b"activity-coverage-v1\0", tenant.as_str().as_bytes()].concat()
}

/// Saves every tenant's coverage. A failure costs time at the next start, nothing else.
pub(crate) fn save_coverage(shared: &Shared) {
    for tenant in shared.all_tenants() {
        if let Err(error) = save(shared, &tenant) {
            tracing::warn!(%error, tenant = %tenant.id, "coverage is not saved");
        }
    }
}

fn save(shared: &Shared, tenant: &Tenant) -> io::Result<()> {
    let json = {
        let state = tenant.state.read();
        if state.segments.is_empty() {
            return Ok(());
        }
        let files = state.segments.values().map(|s| (s.number, s.file_id)).collect();
        state.coverage.snapshot(files)?
    };
    let mut plain = Vec::new();
    put_len(&mut plain, json.len());
    plain.extend_from_slice(&batch::compress_at(&json, ZSTD_LEVEL)?);
    let id: [u8; ID_BYTES] = shared.env.random();
    let mut bytes = id.to_vec();
    tenant.keys.head_of(&id).seal(&shared.env, &aad(&tenant.id), &plain, &mut bytes);
    let (path, temporary) = (path(shared, &tenant.id, EXTENSION), path(shared, &tenant.id, "tmp"));
    let storage = &shared.env.storage;
    for dir in path.ancestors().skip(1).take(2).collect::<Vec<_>>().into_iter().rev() {
        storage.create_dir(dir)?;
    }
    match storage.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    storage.write_at(&temporary, 0, &bytes)?;
    storage.rename(&temporary, &path)
}

/// What was saved of a tenant's coverage, if it opens.
pub(crate) fn load_coverage(shared: &Shared, tenant: &Tenant) -> Option<Vec<u8>> {
    let bytes = shared.env.storage.read_if_present(&path(shared, &tenant.id, EXTENSION)).ok()??;
    let (id, sealed) = bytes.split_first_chunk::<ID_BYTES>()?;
    let plain = tenant.keys.head_of(id).open(&aad(&tenant.id), sealed).ok()?;
    let mut reader = Reader::new(&plain);
    let raw_len = reader.len().ok().filter(|len| *len <= RAW_BYTES_MAX)?;
    zstd::bulk::decompress(reader.rest(), raw_len).ok()
}
