//! Reads on the record. Equal reads are gathered and written as one control record, so that a caller who asks in
//! a loop cannot fill the journal.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use activity_schema::ids::TenantId;
use activity_store::{ControlRecord, ReadAudit};

use crate::evidence::Evidence;

/// How often gathered reads are written.
pub const FLUSH_INTERVAL: Duration = Duration::from_secs(10);
/// Different reads gathered at once; further ones are counted together.
const KINDS_MAX: usize = 1_024;

/// What makes two reads equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Read {
    principal: String,
    action: &'static str,
    /// The tenant that was read; none for a refusal, which never says whether the tenant exists.
    tenant: Option<TenantId>,
    refused: bool,
}

/// Reads since the last flush.
#[derive(Debug, Default)]
pub struct Audit {
    reads: Mutex<BTreeMap<Read, u64>>,
}

impl Audit {
    pub fn allowed(&self, principal: &str, action: &'static str, tenant: &TenantId) {
        self.note(Read {
            principal: principal.to_owned(),
            action,
            tenant: Some(tenant.clone()),
            refused: false,
        });
    }

    pub fn refused(&self, principal: &str, action: &'static str) {
        self.note(Read { principal: principal.to_owned(), action, tenant: None, refused: true });
    }

    fn note(&self, read: Read) {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let full = reads.len() >= KINDS_MAX && !reads.contains_key(&read);
        let read =
            if full { Read { principal: "several".into(), tenant: None, ..read } } else { read };
        *reads.entry(read).or_insert(0) += 1;
    }

    /// Writes what was gathered. What cannot be written is logged and kept for the next time.
    pub async fn flush(&self, evidence: &Evidence) {
        let gathered = std::mem::take(&mut *self.reads.lock().unwrap_or_else(PoisonError::into_inner));
        for (read, count) in gathered {
            let record = ControlRecord::Read(ReadAudit {
                tenant: read.tenant.clone(),
                principal: read.principal.clone(),
                action: read.action.to_owned(),
                refused: read.refused,
                detail: format!("{count} times"),
            });
            if let Err(error) = evidence.record(record).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "reads could not be audited yet");
                let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
                *reads.entry(read).or_insert(0) += count;
            }
        }
    }
}
