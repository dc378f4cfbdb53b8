//! `iteron record`: session records, offline.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use iteron_protocol::ToolCallId;
use iteron_record::{Entry, VerifyError, replay};
use serde_json::json;

use crate::print::note;

/// Checks a record, and prints one line of JSON about it.
#[allow(clippy::print_stdout, reason = "the command's answer")]
pub fn verify(path: &Path, head: Option<&str>, trust: &[String]) -> ExitCode {
    let mut intents: BTreeSet<ToolCallId> = BTreeSet::new();
    let (mut runs_open, mut has_head) = (0_u64, head.is_none());
    let verified = File::open(path).map_err(VerifyError::from).and_then(|file| {
        replay(file, |line| {
            has_head |= head == Some(line.prev.as_str());
            match line.entry {
                Entry::ToolIntended { tool_call_id, .. } => {
                    intents.insert(tool_call_id);
                }
                Entry::ToolEnded { tool_call_id, .. } | Entry::EffectUnknown { tool_call_id } => {
                    intents.remove(&tool_call_id);
                }
                Entry::Admitted { .. } => runs_open += 1,
                Entry::RunEnded { .. } => runs_open = 0,
                _ => {}
            }
        })
    });
    match verified {
        Ok(found) => {
            has_head |= head == Some(found.head.as_str());
            let answer = json!({
                "entries": found.entries,
                "head": found.head,
                "torn_bytes": found.torn_bytes,
                "calls_open": intents,
                "runs_open": runs_open,
                "contains_head": head.map(|_| has_head),
                "signed_through": found.signed_through,
                "signed_by": found.signed_by,
            });
            println!("{answer}");
            if !has_head {
                note("the record verifies, but does not contain the given head");
            }
            let signed = found.signed_through > 0 && found.signed_by.iter().all(|key| trust.contains(key));
            let is_trusted = trust.is_empty() || signed;
            if !is_trusted {
                note("the record verifies, but who is trusted did not sign it, or somebody else did too");
            }
            ExitCode::from(u8::from(!has_head || !is_trusted))
        }
        Err(error) => {
            note(&format!("{}: {error}", path.display()));
            ExitCode::from(if matches!(error, VerifyError::Io(_)) { 2 } else { 1 })
        }
    }
}
