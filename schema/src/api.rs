//! Bodies of the gateway's HTTP API (contract, "Gateway API").

use serde::{Deserialize, Serialize};

use crate::batch::Class;
use crate::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use crate::keys::PublicKey;
use crate::merkle::Hash;
use crate::receipt::Receipt;
use crate::time::Timestamp;

/// Media type of `POST /v1/batches`: batch frames one after another.
pub const BATCHES_MEDIA_TYPE: &str = "application/vnd.activity.batches.v1";
/// Most bytes of one `POST /v1/batches` request.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most batches of one `POST /v1/batches` request.
pub const REQUEST_BATCHES_MAX: usize = 256;

/// `POST /v1/enroll`: a one-time token for a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrollRequest {
    pub token: String,
    pub collector_id: CollectorId,
    pub host_id: HostId,
    pub instance_id: InstanceId,
    /// PEM certificate request; its key is the TLS key.
    pub csr_pem: String,
    /// Key that batches are signed with.
    pub signing_key: PublicKey,
    /// Spool epoch that the key signs for.
    pub epoch: Epoch,
}

/// `POST /v1/renew`, over an authenticated connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    pub csr_pem: String,
    pub signing_key: PublicKey,
    pub epoch: Epoch,
}

/// Answer to enrolment and renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateAnswer {
    pub tenant_id: TenantId,
    /// The one instance that the certificate covers; absent: every instance of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    pub certificate_pem: String,
    pub ca_pem: String,
    pub not_after: Timestamp,
    /// Key that signs receipts and checkpoints.
    pub gateway_key: PublicKey,
}

/// One entry an accepted, refused or pending batch, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchesAnswer {
    pub results: Vec<BatchResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum BatchResult {
    /// Durable; `withheld` lines are kept as hashes only.
    Stored { receipt: Receipt, withheld: u64 },
    /// Was stored before; the same receipt again.
    Duplicate { receipt: Receipt },
    /// The same range was stored with other bytes; this one is kept beside it and an alarm is raised.
    Fork { receipt: Receipt },
    /// Comes after a batch that is not stored: resend from here.
    Gap { next_batch_number: u64 },
    /// Never acceptable as it is.
    Refused { reason: String },
}

/// `GET /v1/streams`: what is acknowledged of the caller's streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamsAnswer {
    pub streams: Vec<StreamAcked>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamAcked {
    pub epoch: Epoch,
    pub class: Class,
    pub batch_number: u64,
    pub last_sequence: u64,
    pub batch_hash: Hash,
}

/// Body of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    pub error: String,
}
