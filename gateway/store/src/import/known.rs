//! Digests of the lines that were imported, in a file without a name: memory does not grow with them.
//!
//! Slots of 16 bytes, zeros where free; a digest is in the first free slot from the one that its front names. Twice as
//! many slots when two thirds are taken.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use activity_schema::Hash;

/// Front of a digest; enough to tell the lines of a tenant apart.
const SLOT_BYTES: usize = 16;
/// Slots read with one call.
const PAGE_SLOTS: u64 = 256;
const SLOTS_MIN: u64 = 64 * PAGE_SLOTS;

type Slot = [u8; SLOT_BYTES];

pub(super) struct Known {
    dir: PathBuf,
    file: File,
    slots: u64,
    taken: u64,
}

impl Known {
    /// An empty set; its file takes place on the disk of `dir`.
    pub(super) fn new(dir: &Path) -> io::Result<Self> {
        Known::with_slots(dir, SLOTS_MIN)
    }

    fn with_slots(dir: &Path, slots: u64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(dir)?;
        file.set_len(slots * SLOT_BYTES as u64)?;
        Ok(Known { dir: dir.to_owned(), file, slots, taken: 0 })
    }

    /// Adds a digest; whether it was not there.
    pub(super) fn insert(&mut self, digest: &Hash) -> io::Result<bool> {
        if self.taken >= self.slots / 3 * 2 {
            self.grow()?;
        }
        let mut slot = Slot::default();
        slot.copy_from_slice(&digest.0[..SLOT_BYTES]);
        self.put(slot)
    }

    fn put(&mut self, slot: Slot) -> io::Result<bool> {
        let [a, b, c, d, e, f, g, h, ..] = slot;
        let mut at = u64::from_le_bytes([a, b, c, d, e, f, g, h]) % self.slots;
        loop {
            let page = self.page(at)?;
            for found in page.chunks_exact(SLOT_BYTES) {
                if found == slot {
                    return Ok(false);
                }
                if found == Slot::default() {
                    self.file.write_all_at(&slot, at * SLOT_BYTES as u64)?;
                    self.taken += 1;
                    return Ok(true);
                }
                at = (at + 1) % self.slots;
            }
        }
    }

    /// The slots from `at` to the end of its page.
    fn page(&self, at: u64) -> io::Result<Vec<u8>> {
        let slots = PAGE_SLOTS - at % PAGE_SLOTS;
        let mut page = vec![0; usize::try_from(slots).unwrap_or(0) * SLOT_BYTES];
        self.file.read_exact_at(&mut page, at * SLOT_BYTES as u64)?;
        Ok(page)
    }

    fn grow(&mut self) -> io::Result<()> {
        let mut larger = Known::with_slots(&self.dir, self.slots * 2)?;
        for at in (0..self.slots).step_by(usize::try_from(PAGE_SLOTS).unwrap_or(1)) {
            for found in self.page(at)?.as_chunks::<SLOT_BYTES>().0 {
                if *found != Slot::default() {
                    larger.put(*found)?;
                }
            }
        }
        *self = larger;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_imported_is_known_by_a_file_and_not_by_memory() {
        let dir = tempfile::tempdir().unwrap();
        let mut known = Known::new(dir.path()).unwrap();
        let digest = |n: u64| Hash::of(&[&n.to_le_bytes()]);
        for n in 0..100_000 {
            assert!(known.insert(&digest(n)).unwrap(), "{n} is new");
        }
        for n in (0..100_000).step_by(37) {
            assert!(!known.insert(&digest(n)).unwrap(), "{n} is known");
        }
        assert!(known.insert(&digest(100_000)).unwrap());
        let bytes = known.file.metadata().unwrap().len();
        assert!((100_001 * 16..=100_001 * 16 * 4).contains(&bytes), "{bytes}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn digests_that_want_the_same_slot_are_told_apart_also_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut known = Known::new(dir.path()).unwrap();
        let last = |n: u8| {
            let mut digest = Hash([n; 32]);
            digest.0[..8].copy_from_slice(&(SLOTS_MIN - 2).to_le_bytes());
            digest
        };
        for n in 1..=200 {
            assert!(known.insert(&last(n)).unwrap());
        }
        assert!((1..=200).all(|n| !known.insert(&last(n)).unwrap()));
    }
}
