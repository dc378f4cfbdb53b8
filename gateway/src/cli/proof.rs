//! One event proven: line → batch → log → checkpoint.

use activity_schema::batch::batch_hash;
use activity_schema::checkpoint::Checkpoint;
use activity_schema::keys::PublicKey;
use activity_schema::merkle::{leaf_hash, verify_inclusion};
use activity_schema::{BatchHeader, Event};
use activity_store::EventProof;

use super::args::{Format, Place, ProofArgs};
use super::output::Output;
use super::source::Source;
use super::{CliError, Ending};
use crate::story::escape;
use crate::wire::Params;

pub(super) async fn proof(place: &Place, args: ProofArgs, out: &Output) -> Result<Ending, CliError> {
    let trust = args.trust.as_deref().map(read_key).transpose()?;
    let source = Source::open(place).await?;
    let params = Params { tenant: place.tenant.as_ref().map(ToString::to_string), ..Params::default() };
    let proof: EventProof = serde_json::from_value(source.proof(args.event_id, &params).await?)?;
    let established =
        check(&proof, trust).map_err(|why| CliError::Integrity(format!("the proof fails: {why}")))?;
    match out.format {
        Format::Text => {
            for line in established {
                out.text(&format!("{}\n", escape(&line)))?;
            }
        }
        Format::Json | Format::Ndjson => out.document(&proof)?,
    }
    Ok(Ending::Complete)
}

/// Checks every step; returns what was established, in words.
fn check(proof: &EventProof, trust: Option<PublicKey>) -> Result<Vec<String>, &'static str> {
    let event = Event::parse(proof.line.as_bytes()).map_err(|_| "the line is not an event")?;
    let header =
        BatchHeader::parse(proof.header.as_bytes()).map_err(|_| "the header is not a batch header")?;
    let leaf = leaf_hash(proof.line.as_bytes());
    if !verify_inclusion(&leaf, proof.position, header.count, &proof.line_path, &header.merkle_root) {
        return Err("the line is not in the batch");
    }
    let batch = batch_hash(proof.header.as_bytes(), &proof.signature);
    if proof.receipt.body.batch_hash != batch {
        return Err("the receipt is of another batch");
    }
    let checkpoint = Checkpoint::parse(&proof.checkpoint).map_err(|_| "the checkpoint is not one")?;
    let log_leaf = leaf_hash(&batch.0);
    if !verify_inclusion(&log_leaf, proof.leaf_index, checkpoint.size, &proof.log_path, &checkpoint.root) {
        return Err("the batch is not in the log");
    }
    let mut lines = vec![
        format!("event       {} · {} · {}", event.event_id, event.event_name, event.occurred_at),
        format!("in batch    {batch}, line {} of {}", proof.position + 1, header.count),
        format!("in log      {}, leaf {} of {}", checkpoint.origin, proof.leaf_index, checkpoint.size),
    ];
    match trust {
        Some(key) => {
            Checkpoint::verify(&proof.checkpoint, key)
                .map_err(|_| "the checkpoint is not signed by the trusted key")?;
            if !proof.receipt.is_signed_by(key) {
                return Err("the receipt is not signed by the trusted key");
            }
            lines.push(format!("signed by   {} (trusted)", key.id()));
        }
        None => lines.push("signed by   not checked: give the gateway's key with --trust".to_owned()),
    }
    Ok(lines)
}

/// A key as base64, or the file that holds it.
pub(super) fn read_key(text: &str) -> Result<PublicKey, CliError> {
    if let Ok(key) = PublicKey::from_base64(text) {
        return Ok(key);
    }
    let content = std::fs::read_to_string(text).map_err(|e| {
        CliError::Usage(format!(
            "--trust {text:?} is neither a key (32 bytes, base64) nor a file that reads ({e}); `activity status` shows the gateway's key"
        ))
    })?;
    PublicKey::from_base64(&content).map_err(|e| {
        CliError::Usage(format!(
            "--trust: the file {text:?} holds {e}; `activity status` shows the gateway's"
        ))
    })
}
