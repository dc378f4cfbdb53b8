//! Encrypted sections: AES-256-GCM with a random 96-bit nonce. The associated data says where a section
//! belongs, so that no section can be moved to another tenant, batch or place.

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;

use crate::env::Env;

/// The section does not open under this key at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the section does not open: damaged, or not of this place")]
pub(crate) struct Unsealed;

/// 32 secret bytes. `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A key ready for use.
pub(crate) struct SectionKey(LessSafeKey);

impl SectionKey {
    pub(crate) fn new(secret: &Secret) -> Self {
        match UnboundKey::new(&AES_256_GCM, &secret.0) {
            Ok(key) => SectionKey(LessSafeKey::new(key)),
            // The only failure is a key of another length.
            Err(_) => unreachable!("AES-256 takes 32 bytes"),
        }
    }

    /// Appends `nonce ‖ ciphertext ‖ tag`.
    pub(crate) fn seal(&self, env: &Env, aad: &[u8], plain: &[u8], out: &mut Vec<u8>) {
        let nonce: [u8; NONCE_LEN] = env.random();
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        match self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), &mut out[start..]) {
            Ok(tag) => out.extend_from_slice(tag.as_ref()),
            // The only failure is an input beyond 2^36 bytes; sections are below 2^24.
            Err(_) => unreachable!("sections are short"),
        }
    }

    pub(crate) fn open(&self, aad: &[u8], sealed: &[u8]) -> Result<Vec<u8>, Unsealed> {
        let (nonce, cipher) = sealed.split_at_checked(NONCE_LEN).ok_or(Unsealed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unsealed)?;
        let mut plain = cipher.to_vec();
        let len = self.0.open_in_place(nonce, Aad::from(aad), &mut plain).map_err(|_| Unsealed)?.len();
        plain.truncate(len);
        Ok(plain)
    }
}

/// HKDF-SHA-256 of a secret for one use.
///
/// The head key of a tenant lives as long as the tenant. A key per file keeps the random nonces of any one key
/// far below 2^32.
pub(crate) fn derive(secret: &Secret, purpose: &[u8], id: &[u8]) -> Secret {
    struct Len;
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            32
        }
    }
    let mut out = [0; 32];
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"activity-store-v1").extract(&secret.0);
    let filled = prk.expand(&[purpose, id], Len).and_then(|okm| okm.fill(&mut out));
    debug_assert!(filled.is_ok(), "32 bytes are within HKDF's bound");
    Secret(out)
}
