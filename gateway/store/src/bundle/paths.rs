//! Inclusion paths of many leaves of one tree (RFC 6962 section 2.1.1): the complete subtrees are hashed once.

use activity_schema::Hash;
use activity_schema::merkle::node_hash;

pub(super) struct Paths {
    /// Roots of the complete subtrees of 2^level leaves; the leaves are level 0.
    levels: Vec<Vec<Hash>>,
}

impl Paths {
    pub(super) fn new(leaves: Vec<Hash>) -> Self {
        let mut levels = vec![leaves];
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            let pairs = below.chunks_exact(2).map(|pair| node_hash(&pair[0], &pair[1])).collect();
            levels.push(pairs);
        }
        Paths { levels }
    }

    /// From the leaf to the root; `None` when the tree has no such leaf.
    pub(super) fn path(&self, index: u64) -> Option<Vec<Hash>> {
        let mut at = usize::try_from(index).ok()?;
        let (mut start, mut len) = (0, self.levels.first()?.len());
        if at >= len {
            return None;
        }
        let mut path = Vec::new();
        while len > 1 {
            let left = split(len);
            if at < left {
                path.push(self.root(start + left, len - left)?);
                len = left;
            } else {
                path.push(self.root(start, left)?);
                (start, len, at) = (start + left, len - left, at - left);
            }
        }
        path.reverse();
        Some(path)
    }

    /// Of `len` leaves from `start` on. Every subtree that a path meets begins at a multiple of its size.
    fn root(&self, start: usize, len: usize) -> Option<Hash> {
        if len.is_power_of_two() {
            let level = len.trailing_zeros() as usize;
            return self.levels.get(level)?.get(start >> level).copied();
        }
        let left = split(len);
        Some(node_hash(&self.root(start, left)?, &self.root(start + left, len - left)?))
    }
}

/// Largest power of two below `n`; `n` is at least 2.
fn split(n: usize) -> usize {
    n.next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use activity_schema::merkle;

    use super::*;

    #[test]
    fn paths_are_those_of_the_plain_algorithm() {
        for size in 0..70u8 {
            let leaves: Vec<Hash> = (0..size).map(|n| merkle::leaf_hash(&[n])).collect();
            let paths = Paths::new(leaves.clone());
            for index in 0..usize::from(size) + 2 {
                assert_eq!(
                    paths.path(index as u64),
                    merkle::inclusion_proof(&leaves, index),
                    "{index} of {size}"
                );
            }
        }
    }
}
