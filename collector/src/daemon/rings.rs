//! Positions in the kernel's rings, told apart over several sets of rings. A new set begins again at 0; the spool's
//! cursors must not be taken for places in it. So the spool counts on: a position there is the ring's own plus a base
//! that lies at or behind every position that the spool knew when the set was new.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use activity_schema::Class;
use serde::{Deserialize, Serialize};

use crate::spool::Disk;

const RINGS: usize = 4;

/// Which rings the spool's cursors speak of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    boot_id: String,
    /// Ids of the maps: the kernel gives none twice within a boot.
    map_ids: [u32; RINGS],
    base: [u64; RINGS],
}

impl Rings {
    /// What `path` says of these rings; where it speaks of others, they are new. Tells whether they are the ones of the
    /// run before.
    pub fn open<D: Disk>(
        disk: &D,
        path: &Path,
        boot_id: &str,
        map_ids: [u32; RINGS],
        cursors: &BTreeMap<(Class, u8), u64>,
    ) -> io::Result<(Self, bool)> {
        let known = disk.read(path).ok().and_then(|bytes| serde_json::from_slice::<Rings>(&bytes).ok());
        if let Some(known) = known.filter(|k| k.boot_id == boot_id && k.map_ids == map_ids) {
            return Ok((known, true));
        }
        let mut base = [0; RINGS];
        for ((_, ring), position) in cursors {
            if let Some(base) = base.get_mut(usize::from(*ring)) {
                *base = (*base).max(*position);
            }
        }
        let rings = Rings { boot_id: boot_id.to_owned(), map_ids, base };
        disk.replace(path, &serde_json::to_vec(&rings)?)?;
        Ok((rings, false))
    }

    /// The spool's position of a ring's own.
    pub fn position(&self, ring: u8, own: u64) -> u64 {
        own + self.base.get(usize::from(ring)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::OsDisk;

    #[test]
    fn a_new_set_of_rings_begins_behind_what_the_spool_knows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rings");
        let open = |ids, cursors: &[((Class, u8), u64)]| {
            Rings::open(&OsDisk, &path, "boot", ids, &cursors.iter().copied().collect()).unwrap()
        };
        let (first, known) = open([1, 2, 3, 4], &[]);
        assert!(!known && first.position(1, 640) == 640);
        let cursors = [((Class::Critical, 1), 640), ((Class::Standard, 1), 700), ((Class::Standard, 2), 8)];
        let (again, known) = open([1, 2, 3, 4], &cursors);
        assert!(known && again.position(1, 640) == 640, "the same rings are gone on with");
        let (next, known) = open([5, 6, 7, 8], &cursors);
        assert!(!known, "others are new, and their first record is behind all cursors");
        assert_eq!((next.position(1, 64), next.position(2, 64), next.position(0, 64)), (764, 72, 64));
        let (next, known) = open([5, 6, 7, 8], &[((Class::Critical, 1), 764)]);
        assert!(known && next.position(1, 128) == 828);
        let (other, known) = Rings::open(&OsDisk, &path, "later", [5, 6, 7, 8], &BTreeMap::new()).unwrap();
        assert!(!known && other.position(1, 64) == 64);
    }
}
