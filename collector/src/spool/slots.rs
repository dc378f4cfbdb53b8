//! A small state that is rewritten in place: two preallocated slots, the newer valid one counts.
//!
//! The file has its full size from the start, so a full disk cannot keep the state from being written, and a
//! torn write spoils only the slot that was being written.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Disk, DiskFile};

/// The largest state is a full ledger: entries of some 1,200 bytes each at the most.
const SLOT_BYTES: usize = 64 * 1024;
const HEAD_BYTES: usize = 16;

pub struct Slots<F> {
    file: F,
    generation: u64,
}

impl<F: DiskFile> Slots<F> {
    /// Opens or creates the file; returns the newest state that is intact.
    pub fn open<D: Disk<File = F>, T: DeserializeOwned>(
        disk: &D,
        path: &Path,
    ) -> io::Result<(Self, Option<T>)> {
        let existing = match disk.read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        if existing.len() < 2 * SLOT_BYTES {
            disk.replace(path, &vec![0; 2 * SLOT_BYTES])?;
        }
        let newest = existing
            .chunks_exact(SLOT_BYTES)
            .filter_map(read_slot::<T>)
            .max_by_key(|(generation, _)| *generation);
        let (generation, state) = newest.map_or((0, None), |(g, s)| (g, Some(s)));
        Ok((Slots { file: disk.open(path)?, generation }, state))
    }

    /// Writes a state; with `durable` it is on disk when this returns.
    pub fn write<T: Serialize>(&mut self, state: &T, durable: bool) -> io::Result<()> {
        let json = serde_json::to_vec(state)?;
        if json.len() > SLOT_BYTES - HEAD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the state is larger than its slot"));
        }
        let generation = self.generation + 1;
        let mut slot = Vec::with_capacity(HEAD_BYTES + json.len());
        slot.extend_from_slice(&generation.to_le_bytes());
        slot.extend_from_slice(&u32::try_from(json.len()).unwrap_or(0).to_le_bytes());
        slot.extend_from_slice(&[0; 4]);
        slot.extend_from_slice(&json);
        let crc = crc32c::crc32c(&slot);
        slot[12..16].copy_from_slice(&crc.to_le_bytes());
        let offset = (generation % 2) * SLOT_BYTES as u64;
        self.file.write_at(offset, &slot)?;
        if durable {
            self.file.sync()?;
        }
        self.generation = generation;
        Ok(())
    }
}

fn read_slot<T: DeserializeOwned>(slot: &[u8]) -> Option<(u64, T)> {
    let generation = u64::from_le_bytes(slot[0..8].try_into().ok()?);
    let len = u32::from_le_bytes(slot[8..12].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(slot[12..16].try_into().ok()?);
    let mut checked = slot.get(..HEAD_BYTES + len)?.to_vec();
    checked[12..16].fill(0);
    if generation == 0 || crc32c::crc32c(&checked) != crc {
        return None;
    }
    Some((generation, serde_json::from_slice(&checked[HEAD_BYTES..]).ok()?))
}
