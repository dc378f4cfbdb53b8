//! Refused reads on the record. Equal ones are gathered and written as one control record, so that a caller who
//! asks in a loop cannot fill the journal.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use activity_store::{ControlRecord, ReadAudit};

use crate::evidence::Evidence;

/// How often gathered reads are written.
pub const FLUSH_INTERVAL: Duration = Duration::from_secs(10);
/// Different reads gathered at once; further ones are counted together.
const KINDS_MAX: usize = 1_024;

/// What makes two reads equal: who asked, and for what. Which tenant was asked for is left out; it may not exist.
type Read = (String, &'static str);

/// Refused reads since the last flush.
#[derive(Debug, Default)]
pub struct Audit {
    refused: Mutex<BTreeMap<Read, u64>>,
}

impl Audit {
    pub fn refused(&self, principal: &str, action: &'static str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let read = (principal.to_owned(), action);
        let full = refused.len() >= KINDS_MAX && !refused.contains_key(&read);
        let read = if full { ("several".to_owned(), action) } else { read };
        *refused.entry(read).or_insert(0) += 1;
    }

    /// Writes what was gathered. What cannot be written is logged and kept for the next time.
    pub async fn flush(&self, evidence: &Evidence) {
        let gathered = std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner));
        for ((principal, action), count) in gathered {
            let record = ControlRecord::Read(ReadAudit {
                tenant: None,
                principal: principal.clone(),
                action: action.to_owned(),
                refused: true,
                detail: format!("{count} times"),
            });
            if let Err(error) = evidence.record(record).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "refusals could not be audited yet");
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                *refused.entry((principal, action)).or_insert(0) += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_refused_reads_1_024_kinds_are_told_apart_and_the_rest_is_counted() {
        let audit = Audit::default();
        for n in 0..1_030 {
            audit.refused(&n.to_string(), "/v1/query");
        }
        audit.refused("7", "/v1/query");
        let refused = audit.refused.lock().unwrap();
        let count = |who: &str| refused.get(&(who.to_owned(), "/v1/query")).copied();
        assert_eq!((refused.len(), count("1023"), count("1024")), (1_025, Some(1), None));
        assert_eq!((count("several"), count("7")), (Some(6), Some(2)));
    }
}
