//! Signed heads: who held the key vouches for a record up to a line.
//!
//! The message is `"iteron-head-v1\0"`, the number of the line as eight bytes, big-endian, and the
//! line's hash as 32 bytes. The hash binds everything before it, the session's id included.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::entry::{from_hex, hex};

const PREFIX: &[u8] = b"iteron-head-v1\0";
const SEED_BYTES: usize = 32;

/// Why a key file holds no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the signing key {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the signing key {0} is not 64 hex digits: make one with `openssl rand -hex 32`")]
    Form(PathBuf),
}

/// The key that heads are signed with (Ed25519, RFC 8032).
pub struct HeadKey(SigningKey);

impl fmt::Debug for HeadKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HeadKey({})", self.public())
    }
}

impl HeadKey {
    /// The key of this seed, which must come from a good source.
    #[must_use]
    pub fn from_seed(seed: [u8; SEED_BYTES]) -> Self {
        Self(SigningKey::from_bytes(&seed))
    }

    /// Reads the seed as 64 hex digits. The file is read once, and may be a pipe.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(256).read_to_string(&mut text).map_err(failed)?;
        let seed = from_hex(text.trim()).ok_or_else(|| KeyError::Form(path.to_owned()))?;
        Ok(Self::from_seed(seed))
    }

    /// The public key as 64 hex digits, to be kept where the record is not.
    #[must_use]
    pub fn public(&self) -> String {
        hex(self.0.verifying_key().as_bytes())
    }

    /// The signature of a head as 128 hex digits; nothing when `head` is none.
    pub(crate) fn sign(&self, seq: u64, head: &str) -> Option<String> {
        Some(hex(&self.0.sign(&message(seq, head)?).to_bytes()))
    }
}

/// Whether the holder of `public_key` signed the head.
pub(crate) fn is_signed(public_key: &str, signature: &str, seq: u64, head: &str) -> bool {
    let verified = || {
        let key = VerifyingKey::from_bytes(&from_hex(public_key)?).ok()?;
        let signature = Signature::from_bytes(&from_hex(signature)?);
        key.verify_strict(&message(seq, head)?, &signature).ok()
    };
    verified().is_some()
}

fn message(seq: u64, head: &str) -> Option<Vec<u8>> {
    Some([PREFIX, &seq.to_be_bytes(), &from_hex::<32>(head)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn a_head_is_signed_as_rfc_8032_says() {
        // The first test vector of RFC 8032, section 7.1: its seed has this public key.
        let seed = from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let key = HeadKey::from_seed(seed);
        assert_eq!(key.public(), "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let signature = key.sign(7, HEAD).unwrap();
        assert!(is_signed(&key.public(), &signature, 7, HEAD));
        assert!(!is_signed(&key.public(), &signature, 8, HEAD));
        assert!(!is_signed(&key.public(), &signature, 7, &HEAD.replacen("00", "01", 1)));
        let other = HeadKey::from_seed([7; 32]);
        assert!(!is_signed(&other.public(), &signature, 7, HEAD));
        assert!(!is_signed(&key.public(), &signature[2..], 7, HEAD));
        assert!(!is_signed("", "", 7, HEAD));
    }

    #[test]
    fn a_key_is_in_no_debug_output_and_is_read_from_hex() {
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{seed}\n")).unwrap();
        let key = HeadKey::read(file.path()).unwrap();
        assert!(!format!("{key:?}").contains("9d61"));
        for bad in ["", "9d61", &format!("{seed}00"), &seed.replace('9', "g")] {
            std::fs::write(file.path(), bad).unwrap();
            assert!(matches!(HeadKey::read(file.path()), Err(KeyError::Form(_))), "{bad}");
        }
        assert!(matches!(HeadKey::read(Path::new("/nonexistent")), Err(KeyError::Read { .. })));
    }
}
