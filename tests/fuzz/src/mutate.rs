//! Mutations that know a little of what they change: bytes, little-endian lengths, JSON tokens, whole lines.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngCore as _};

/// Longest input, bytes.
const INPUT_BYTES_MAX: usize = 128 * 1024;
/// Integers at the edges of what formats hold.
const EDGES: [u64; 12] = [0, 1, 7, 127, 255, 256, 4096, 65_535, 65_536, 1 << 31, u32::MAX as u64, u64::MAX];
const TOKENS: [&str; 18] = [
    "null",
    "true",
    "0",
    "-1",
    "1.0",
    "1e400",
    "9007199254740993",
    "18446744073709551616",
    "\"\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"1677-09-21T00:12:43Z\"",
    "\"9999-12-31T23:59:60Z\"",
    "{}",
    "[]",
    "[[[[[[[[",
    "\u{feff}",
    "\n",
];

/// Changes one of the seeds a few times.
pub fn mutate(seeds: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = seeds.choose(rng).cloned().unwrap_or_default();
    for _ in 0..rng.random_range(1..=4) {
        match rng.random_range(0..9) {
            0 => flip(&mut bytes, rng),
            1 => insert(&mut bytes, rng),
            2 => delete(&mut bytes, rng),
            3 => repeat(&mut bytes, rng),
            4 => integer(&mut bytes, rng),
            5 | 6 => token(&mut bytes, rng),
            7 => splice(&mut bytes, seeds, rng),
            _ => bytes.truncate(place(&bytes, rng)),
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn place(bytes: &[u8], rng: &mut StdRng) -> usize {
    rng.random_range(0..=bytes.len())
}

fn range(bytes: &[u8], rng: &mut StdRng) -> std::ops::Range<usize> {
    let from = place(bytes, rng);
    let len = rng.random_range(0..=(bytes.len() - from).min(64));
    from..from + len
}

fn flip(bytes: &mut [u8], rng: &mut StdRng) {
    if let Some(byte) = bytes.choose(rng).map(|_| rng.random_range(0..bytes.len())) {
        bytes[byte] ^= 1 << rng.random_range(0..8);
    }
}

fn insert(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let mut more = vec![0; rng.random_range(1..16)];
    rng.fill_bytes(&mut more);
    let at = place(bytes, rng);
    bytes.splice(at..at, more);
}

fn delete(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let range = range(bytes, rng);
    bytes.drain(range);
}

fn repeat(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let range = range(bytes, rng);
    let part = bytes[range.clone()].repeat(rng.random_range(1..32));
    bytes.splice(range.start..range.start, part);
}

fn integer(bytes: &mut [u8], rng: &mut StdRng) {
    let edge = EDGES.choose(rng).map_or([0; 8], |edge| edge.to_le_bytes());
    let width = *[1, 2, 4, 8].choose(rng).unwrap_or(&1);
    let at = place(bytes, rng);
    if let Some(field) = bytes.get_mut(at..at + width) {
        field.copy_from_slice(&edge[..width]);
    }
}

/// Replaces what stands between two JSON delimiters.
fn token(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let delimiter = |byte: &u8| b"{}[],:\n".contains(byte);
    let at = place(bytes, rng);
    let from = bytes[..at].iter().rposition(delimiter).map_or(0, |at| at + 1);
    let to = bytes[at..].iter().position(delimiter).map_or(bytes.len(), |len| at + len);
    let token = TOKENS.choose(rng).map_or(&b""[..], |token| token.as_bytes());
    bytes.splice(from.min(to)..to, token.iter().copied());
}

fn splice(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut StdRng) {
    let Some(other) = seeds.choose(rng) else { return };
    let (at, from) = (place(bytes, rng), place(other, rng));
    bytes.truncate(at);
    bytes.extend_from_slice(&other[from..]);
}
