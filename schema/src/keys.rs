//! Ed25519 (RFC 8032) with domain separation: every kind of statement has a prefix of its own.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::hex;

/// What a signature speaks of. The prefix is hashed before the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Batch,
    Receipt,
    Manifest,
    /// C2SP signed notes have no prefix: the note's text is its own domain.
    Note,
}

impl Purpose {
    const fn prefix(self) -> &'static [u8] {
        match self {
            Purpose::Batch => b"activity-batch-v1\0",
            Purpose::Receipt => b"activity-receipt-v1\0",
            Purpose::Manifest => b"activity-manifest-v1\0",
            Purpose::Note => b"",
        }
    }
}

/// First 16 hex digits of the SHA-256 of the raw public key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(String);

impl KeyId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for KeyId {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if hex::is_lower(&text, 16) { Ok(KeyId(text)) } else { Err("a key id is 16 lower-case hex digits") }
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> String {
        id.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A private signing key. `Debug` shows its id only.
pub struct Signer {
    key: SigningKey,
    id: KeyId,
}

impl Signer {
    /// From 32 secret random bytes.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let id = PublicKey(key.verifying_key()).id();
        Signer { key, id }
    }

    pub fn id(&self) -> &KeyId {
        &self.id
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.key.verifying_key())
    }

    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> [u8; 64] {
        let mut full = Vec::with_capacity(purpose.prefix().len() + message.len());
        full.extend_from_slice(purpose.prefix());
        full.extend_from_slice(message);
        self.key.sign(&full).to_bytes()
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signer").field(&self.id).finish()
    }
}

/// A public verification key; in JSON and files the base64 of its 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// The text or bytes are not an Ed25519 public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 public key (32 bytes, base64)")]
pub struct PublicKeyError;

impl PublicKey {
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, PublicKeyError> {
        VerifyingKey::from_bytes(bytes).map(PublicKey).map_err(|_| PublicKeyError)
    }

    pub fn from_base64(text: &str) -> Result<Self, PublicKeyError> {
        let bytes = BASE64.decode(text.trim()).map_err(|_| PublicKeyError)?;
        Self::from_bytes(&bytes.try_into().map_err(|_| PublicKeyError)?)
    }

    pub fn to_bytes(self) -> [u8; 32] {
        self.0.to_bytes()
    }

    pub fn to_base64(self) -> String {
        BASE64.encode(self.0.as_bytes())
    }

    pub fn id(self) -> KeyId {
        KeyId(hex::encode(&Sha256::digest(self.0.as_bytes())[..8]))
    }

    /// Strict verification: small-order keys and non-canonical signatures are refused.
    pub fn verify(self, purpose: Purpose, message: &[u8], signature: &[u8; 64]) -> bool {
        let mut full = Vec::with_capacity(purpose.prefix().len() + message.len());
        full.extend_from_slice(purpose.prefix());
        full.extend_from_slice(message);
        self.0.verify_strict(&full, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
    }
}

impl Serialize for PublicKey {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        PublicKey::from_base64(&crate::text::Text::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// 64 signature bytes as base64 in JSON.
pub mod signature_base64 {
    use super::{BASE64, Deserialize};
    use base64::Engine as _;

    pub fn serialize<S: serde::Serializer>(bytes: &[u8; 64], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&BASE64.encode(bytes))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<[u8; 64], D::Error> {
        let text = crate::text::Text::deserialize(d)?;
        let bytes = BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)?;
        bytes.try_into().map_err(|_| serde::de::Error::custom("a signature is 64 bytes"))
    }
}
