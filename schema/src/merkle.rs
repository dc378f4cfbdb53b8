//! Merkle trees of RFC 6962 section 2.1 (SHA-256): roots, inclusion and consistency proofs.
//!
//! Used twice: over the lines of a batch, and over the batches of a tenant's log.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::hex;

/// A SHA-256 digest; 64 hex digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    pub fn of(parts: &[&[u8]]) -> Hash {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update(part);
        }
        Hash(digest.finalize().into())
    }

    pub fn to_hex(self) -> String {
        hex::encode(&self.0)
    }

    pub fn from_hex(text: &str) -> Option<Hash> {
        hex::decode(text).map(Hash)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = crate::text::Text::deserialize(d)?;
        Hash::from_hex(&text).ok_or_else(|| serde::de::Error::custom("a hash is 64 lower-case hex digits"))
    }
}

/// `SHA-256(0x00 ‖ data)`
pub fn leaf_hash(data: &[u8]) -> Hash {
    Hash::of(&[&[0], data])
}

/// `SHA-256(0x01 ‖ left ‖ right)`
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Hash::of(&[&[1], &left.0, &right.0])
}

/// Root of the empty tree: `SHA-256("")`.
pub fn empty_root() -> Hash {
    Hash::of(&[])
}

/// Root over leaf hashes.
pub fn root(leaves: &[Hash]) -> Hash {
    let mut frontier = Frontier::default();
    for leaf in leaves {
        frontier.push(*leaf);
    }
    frontier.root()
}

/// The append-only part of a tree: its size and the roots of its full subtrees, largest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Frontier {
    size: u64,
    subtrees: Vec<Hash>,
}

impl Frontier {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends a leaf hash; returns its index.
    pub fn push(&mut self, leaf: Hash) -> u64 {
        let index = self.size;
        let mut node = leaf;
        for _ in 0..index.trailing_ones() {
            if let Some(left) = self.subtrees.pop() {
                node = node_hash(&left, &node);
            }
        }
        self.subtrees.push(node);
        self.size += 1;
        debug_assert_eq!(self.subtrees.len(), self.size.count_ones() as usize);
        index
    }

    pub fn root(&self) -> Hash {
        let mut subtrees = self.subtrees.iter().rev();
        match subtrees.next() {
            None => empty_root(),
            Some(last) => subtrees.fold(*last, |right, left| node_hash(left, &right)),
        }
    }
}

/// Largest power of two below `n`; `n` is at least 2.
fn split(n: usize) -> usize {
    1 << (usize::BITS - 1 - (n - 1).leading_zeros())
}

/// Inclusion proof (RFC 6962 section 2.1.1) for `index`; `None` when it is not in the tree.
pub fn inclusion_proof(leaves: &[Hash], index: usize) -> Option<Vec<Hash>> {
    if index >= leaves.len() {
        return None;
    }
    let (mut rest, mut at, mut path) = (leaves, index, Vec::new());
    while rest.len() > 1 {
        let k = split(rest.len());
        let (left, right) = rest.split_at(k);
        if at < k {
            path.push(root(right));
            rest = left;
        } else {
            path.push(root(left));
            rest = right;
            at -= k;
        }
    }
    path.reverse();
    Some(path)
}

/// Verifies an inclusion proof (RFC 9162 section 2.1.3.2).
pub fn verify_inclusion(leaf: &Hash, index: u64, size: u64, path: &[Hash], expected_root: &Hash) -> bool {
    if index >= size {
        return false;
    }
    let (mut f, mut s, mut node) = (index, size - 1, *leaf);
    for sibling in path {
        if s == 0 {
            return false;
        }
        if f & 1 == 1 || f == s {
            node = node_hash(sibling, &node);
            while f & 1 == 0 && f != 0 {
                f >>= 1;
                s >>= 1;
            }
        } else {
            node = node_hash(&node, sibling);
        }
        f >>= 1;
        s >>= 1;
    }
    s == 0 && node == *expected_root
}

/// Consistency proof (RFC 6962 section 2.1.2) from the tree of the first `old` leaves; `None` when `old` is
/// larger than the tree.
pub fn consistency_proof(leaves: &[Hash], old: usize) -> Option<Vec<Hash>> {
    if old > leaves.len() {
        return None;
    }
    if old == 0 || old == leaves.len() {
        return Some(Vec::new());
    }
    let (mut rest, mut m, mut whole, mut path) = (leaves, old, true, Vec::new());
    while m != rest.len() {
        let k = split(rest.len());
        let (left, right) = rest.split_at(k);
        if m <= k {
            path.push(root(right));
            rest = left;
        } else {
            path.push(root(left));
            rest = right;
            m -= k;
            whole = false;
        }
    }
    if !whole {
        path.push(root(rest));
    }
    path.reverse();
    Some(path)
}

/// Verifies a consistency proof (RFC 9162 section 2.1.4.2).
pub fn verify_consistency(old: u64, new: u64, old_root: &Hash, new_root: &Hash, path: &[Hash]) -> bool {
    if old > new {
        return false;
    }
    if old == new {
        return path.is_empty() && old_root == new_root;
    }
    if old == 0 {
        return path.is_empty() && *old_root == empty_root();
    }
    let mut nodes = path.iter();
    let start = if old.is_power_of_two() { Some(old_root) } else { nodes.next() };
    let Some(start) = start else { return false };
    let (mut f, mut s) = (old - 1, new - 1);
    while f & 1 == 1 {
        f >>= 1;
        s >>= 1;
    }
    let (mut from_old, mut from_new) = (*start, *start);
    for node in nodes {
        if s == 0 {
            return false;
        }
        if f & 1 == 1 || f == s {
            from_old = node_hash(node, &from_old);
            from_new = node_hash(node, &from_new);
            while f & 1 == 0 && f != 0 {
                f >>= 1;
                s >>= 1;
            }
        } else {
            from_new = node_hash(&from_new, node);
        }
        f >>= 1;
        s >>= 1;
    }
    s == 0 && from_old == *old_root && from_new == *new_root
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The eight inputs and roots of the Certificate Transparency reference tests.
    const INPUTS: [&[u8]; 8] = [
        b"",
        b"\x00",
        b"\x10",
        b"\x20\x21",
        b"\x30\x31",
        b"\x40\x41\x42\x43",
        b"\x50\x51\x52\x53\x54\x55\x56\x57",
        b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
    ];
    const ROOTS: [&str; 8] = [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ];

    fn leaves(n: usize) -> Vec<Hash> {
        INPUTS.iter().take(n).map(|d| leaf_hash(d)).collect()
    }

    #[test]
    fn roots_equal_the_reference_vectors() {
        assert_eq!(root(&[]).to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        for (i, expected) in ROOTS.iter().enumerate() {
            assert_eq!(root(&leaves(i + 1)).to_hex(), *expected);
        }
    }

    #[test]
    fn every_proof_of_every_small_tree_verifies_and_every_change_fails() {
        let all: Vec<Hash> = (0u32..40).map(|i| leaf_hash(&i.to_be_bytes())).collect();
        for n in 1..=all.len() {
            let r = root(&all[..n]);
            for i in 0..n {
                let path = inclusion_proof(&all[..n], i).unwrap();
                assert!(verify_inclusion(&all[i], i as u64, n as u64, &path, &r));
                assert!(!verify_inclusion(&all[(i + 1) % 40], i as u64, n as u64, &path, &r));
                for at in 0..path.len() {
                    let mut bad = path.clone();
                    bad[at].0[7] ^= 1;
                    assert!(!verify_inclusion(&all[i], i as u64, n as u64, &bad, &r));
                }
            }
            for old in 0..=n {
                let path = consistency_proof(&all[..n], old).unwrap();
                assert!(verify_consistency(old as u64, n as u64, &root(&all[..old]), &r, &path), "{old} {n}");
                if old > 0 && old < n {
                    assert!(!verify_consistency(old as u64, n as u64, &leaf_hash(b"x"), &r, &path));
                    assert!(!verify_consistency(
                        old as u64,
                        n as u64,
                        &root(&all[..old]),
                        &leaf_hash(b"x"),
                        &path
                    ));
                }
            }
        }
        assert!(inclusion_proof(&all, 40).is_none());
        assert!(consistency_proof(&all, 41).is_none());
    }
}
