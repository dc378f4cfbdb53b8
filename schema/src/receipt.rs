//! The gateway's signed word that a batch is durable (contract, "Receipt").

use serde::{Deserialize, Serialize};

use crate::keys::{KeyId, PublicKey, Purpose, Signer, signature_base64};
use crate::merkle::Hash;
use crate::time::Timestamp;

/// What the receipt says; signed as RFC 8785 JSON (fields in the order of their names).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptBody {
    pub batch_hash: Hash,
    /// Always true: a receipt is given after fsync or not at all.
    pub durable: bool,
    pub gateway_time: Timestamp,
    pub key_id: KeyId,
    /// Index of the batch in the tenant's log.
    pub leaf_index: u64,
    /// Random origin of the tenant's log.
    pub log_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub body: ReceiptBody,
    #[serde(with = "signature_base64")]
    pub signature: [u8; 64],
}

impl ReceiptBody {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(320);
        let written = serde_json::to_writer(&mut out, self);
        debug_assert!(written.is_ok(), "a receipt is plain data");
        out
    }
}

impl Receipt {
    pub fn sign(body: ReceiptBody, signer: &Signer) -> Self {
        let signature = signer.sign(Purpose::Receipt, &body.to_bytes());
        Receipt { body, signature }
    }

    pub fn is_signed_by(&self, key: PublicKey) -> bool {
        self.body.durable && key.verify(Purpose::Receipt, &self.body.to_bytes(), &self.signature)
    }

    /// SHA-256 of body and signature; heartbeats carry it back.
    pub fn hash(&self) -> Hash {
        Hash::of(&[&self.body.to_bytes(), &self.signature])
    }
}
