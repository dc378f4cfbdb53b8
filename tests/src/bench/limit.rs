//! The plain limit: the least a gateway must do with the same bytes, and nothing else. Compress, hash, encrypt, write,
//! fdatasync; no network, no parsing, no checks, no index.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use activity_schema::SignedBatch;
use activity_schema::batch::{compress, decompress};
use anyhow::Context as _;
use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest as _, Sha256};

use super::host;

/// Bytes between two syncs of a file.
const SYNC_BYTES: usize = 4 * 1024 * 1024;

pub struct Limit {
    pub events: u64,
    pub elapsed: Duration,
    pub cpu: Duration,
}

/// Works on the lines of these requests, on all cores, each with a file of its own.
pub fn measure(bodies: &[Bytes], dir: &Path) -> anyhow::Result<Limit> {
    let mut batches = Vec::new();
    let mut events = 0;
    for body in bodies {
        let mut rest = body.clone();
        while !rest.is_empty() {
            let batch = SignedBatch::decode(&mut rest)?;
            let body = batch.body.context("a batch without lines")?;
            batches.push(decompress(&body, batch.header.raw_bytes)?);
            events += batch.header.count;
        }
    }
    let cores = std::thread::available_parallelism()?.get();
    let share = batches.len().div_ceil(cores).max(1);
    let (start, cpu) = (Instant::now(), host::own_cpu_time()?);
    std::thread::scope(|scope| {
        let workers: Vec<_> = batches
            .chunks(share)
            .enumerate()
            .map(|(n, part)| scope.spawn(move || work(part, &dir.join(format!("limit-{n}")))))
            .collect();
        workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
    })?;
    Ok(Limit { events, elapsed: start.elapsed(), cpu: host::own_cpu_time()?.saturating_sub(cpu) })
}

fn work(batches: &[Vec<u8>], path: &Path) -> anyhow::Result<()> {
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).map_err(|_| anyhow::anyhow!("a key"))?;
    let key = LessSafeKey::new(key);
    let mut file = std::fs::File::create(path)?;
    let mut pending = Vec::with_capacity(SYNC_BYTES + 1024 * 1024);
    for (n, lines) in batches.iter().enumerate() {
        pending.extend_from_slice(&Sha256::digest(lines));
        let mut sealed = compress(lines)?;
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&(n as u64).to_le_bytes());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
            .map_err(|_| anyhow::anyhow!("AES-GCM"))?;
        pending.extend_from_slice(&sealed);
        if pending.len() >= SYNC_BYTES {
            file.write_all(&pending)?;
            file.sync_data()?;
            pending.clear();
        }
    }
    file.write_all(&pending)?;
    Ok(file.sync_data()?)
}
