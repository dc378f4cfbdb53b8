//! The gateway's evidence store: what is acknowledged is on disk, signed, encrypted, provable, and found again.
//!
//! ```text
//! meta.json                 format version, random store id, gateway public key
//! keys/                     file keyring (see `keyring`)
//! commit/<n>.log            commit log of all tenants (see `commit`, `record`)
//! tenants/<tenant>/segments sealed batches (see `segment`, `block`)
//! tenants/<tenant>/log      Merkle log: origin, leaves, checkpoints (see `log`)
//! control/<n>.log           control journal (see `control`)
//! control/end               how far the control journal is durable
//! closed                    how every file ended, of a store that was closed cleanly (see `closing`)
//! index/                    sled, and coverage/; only what can be rebuilt (see `index`, `snapshot`)
//! lock                      held by the process that writes
//! ```
//!
//! A batch is checked by its caller's thread ([`Store::ingest`]), placed, framed and fsynced by the one committer, and
//! only then acknowledged. Ended commit files are sealed into one segment a tenant. Readers prune by summary and
//! filter, one entry a batch or block, and open only what may match.

mod aead;
mod block;
mod block_entry;
mod bundle;
mod check;
mod checking;
mod closing;
mod commit;
mod committer;
mod conflicts;
mod control;
mod coverage;
mod elide;
mod env;
mod frame;
mod import;
mod index;
mod ingest;
mod keyring;
mod log;
mod matcher;
mod metrics;
mod proof;
mod query;
mod queue;
mod reader;
mod rebuild;
mod receipts;
mod record;
mod recover;
mod sealer;
mod segment;
mod signed_text;
mod snapshot;
mod storage;
mod store;
mod summary;
mod tenant;
mod terms;
#[cfg(test)]
mod tests;
mod threads;
mod types;
mod verify;
mod verify_files;
mod verify_report;
mod verify_tenant;
mod wire;

pub use aead::Secret;
pub use bundle::{
    BundleKey, BundleProblem, BundleReport, BundleStep, Consistency, Export, ExportError, ExportRequest,
    Loss, Manifest, verify_bundle,
};
pub use control::{ControlError, ControlRecord, Enrolment, Import, ReadAudit, Revocation};
pub use elide::{ElideError, ElideReport, RewriteError, Selector};
pub use import::{ImportDefaults, ImportError, ImportReport};
pub use ingest::IngestError;
pub use keyring::{FileKeyring, Keyring, KeyringError};
pub use matcher::QueryError;
pub use receipts::UnknownReceipt;
pub use store::{OpenError, Store};
pub use tenant::TenantError;
pub use types::{
    Answer, Caller, CollectorStatus, Counters, CoverageQuery, EventProof, Health, Instances, LIMIT_DEFAULT,
    LIMIT_MAX, Query, StoreConfig, StoredEvent,
};
pub use verify::{VerifyOptions, evidence_files, verify_store};
pub use verify_report::{Problem, Progress, Severity, TenantVerified, VerifyReport};
