//! Checkpoints: C2SP `tlog-checkpoint` bodies in C2SP `signed-note` form, Ed25519 (type byte 0x01).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest as _, Sha256};

use crate::keys::{PublicKey, Purpose, Signer};
use crate::merkle::Hash;

/// Longest note that is read, bytes.
const NOTE_BYTES_MAX: usize = 16 * 1024;

/// Size and root of a log at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Unique name of the log; also the key name of its signature.
    pub origin: String,
    pub size: u64,
    pub root: Hash,
}

/// Why a text is not a checkpoint signed by the expected key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("not a signed note: {0}")]
    Form(&'static str),
    #[error("the note carries no valid signature of the expected key")]
    Signature,
}

impl Checkpoint {
    fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, BASE64.encode(self.root.0))
    }

    /// The signed note.
    pub fn sign(&self, signer: &Signer) -> String {
        let text = self.text();
        let mut blob = note_key_id(&self.origin, signer.public()).to_vec();
        blob.extend_from_slice(&signer.sign(Purpose::Note, text.as_bytes()));
        format!("{text}\n\u{2014} {} {}\n", self.origin, BASE64.encode(blob))
    }

    /// Reads a note without judging its signatures.
    pub fn parse(note: &str) -> Result<Checkpoint, CheckpointError> {
        let (text, _) = split_note(note)?;
        let mut lines = text.lines();
        let mut next = |what| lines.next().ok_or(CheckpointError::Form(what));
        let origin = next("no origin line")?;
        let size_text = next("no size line")?;
        let root = next("no root line")?;
        let size: u64 = size_text.parse().map_err(|_| CheckpointError::Form("size is not a number"))?;
        if origin.is_empty() || size.to_string() != size_text {
            return Err(CheckpointError::Form("origin or size is malformed"));
        }
        let root = BASE64.decode(root).ok().and_then(|b| b.try_into().ok()).map(Hash);
        let root = root.ok_or(CheckpointError::Form("root is not base64 of 32 bytes"))?;
        Ok(Checkpoint { origin: origin.to_owned(), size, root })
    }

    /// Reads a note and requires a valid signature of `key` under the log's origin.
    pub fn verify(note: &str, key: PublicKey) -> Result<Checkpoint, CheckpointError> {
        let checkpoint = Checkpoint::parse(note)?;
        let (text, signatures) = split_note(note)?;
        let id = note_key_id(&checkpoint.origin, key);
        let signed = signatures.lines().any(|line| {
            let Some((name, blob)) = line.strip_prefix("\u{2014} ").and_then(|l| l.rsplit_once(' ')) else {
                return false;
            };
            let Some(blob) = BASE64.decode(blob).ok().filter(|b| b.len() == 68) else { return false };
            let Ok(signature) = <&[u8; 64]>::try_from(&blob[4..]) else { return false };
            name == checkpoint.origin
                && blob[..4] == id
                && key.verify(Purpose::Note, text.as_bytes(), signature)
        });
        if signed { Ok(checkpoint) } else { Err(CheckpointError::Signature) }
    }
}

fn split_note(note: &str) -> Result<(&str, &str), CheckpointError> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(CheckpointError::Form("too long"));
    }
    let at = note.rfind("\n\n").ok_or(CheckpointError::Form("no blank line before signatures"))?;
    Ok((&note[..=at], &note[at + 2..]))
}

/// `SHA-256(name ‖ "\n" ‖ 0x01 ‖ public key)[..4]` (C2SP signed-note).
fn note_key_id(name: &str, key: PublicKey) -> [u8; 4] {
    let mut digest = Sha256::new();
    digest.update(name.as_bytes());
    digest.update(b"\n\x01");
    digest.update(key.to_bytes());
    let full: [u8; 32] = digest.finalize().into();
    [full[0], full[1], full[2], full[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_notes_round_trip_and_changes_are_found() {
        let signer = Signer::from_seed(&[7; 32]);
        let checkpoint =
            Checkpoint { origin: "activity.log/0f".into(), size: 12, root: Hash::of(&[b"root"]) };
        let note = checkpoint.sign(&signer);
        assert_eq!(Checkpoint::verify(&note, signer.public()).unwrap(), checkpoint);
        assert_eq!(
            Checkpoint::verify(&note, Signer::from_seed(&[8; 32]).public()),
            Err(CheckpointError::Signature)
        );
        for i in 0..note.len() {
            let mut bytes = note.clone().into_bytes();
            bytes[i] ^= 1;
            if let Ok(text) = String::from_utf8(bytes) {
                assert!(Checkpoint::verify(&text, signer.public()).is_err(), "byte {i}");
            }
        }
    }

    #[test]
    fn a_note_of_more_than_16_kib_is_not_read() {
        let checkpoint = Checkpoint { origin: "o".into(), size: 1, root: Hash::default() };
        let note = checkpoint.sign(&Signer::from_seed(&[7; 32]));
        let of_bytes = |n: usize| format!("{note}{}", "x".repeat(n - note.len()));
        assert_eq!(Checkpoint::parse(&of_bytes(16_384)).unwrap(), checkpoint);
        assert_eq!(Checkpoint::parse(&of_bytes(16_385)), Err(CheckpointError::Form("too long")));
    }
}
