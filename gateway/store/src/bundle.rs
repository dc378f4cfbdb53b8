//! Export bundles: the events that match a question, with all that proves them, in one file.
//!
//! Version 1. Every line is one JSON document, except that a batch's event lines stand behind its record as they were
//! signed:
//!
//! ```text
//! {"bundle":"activity.bundle/v1","manifest":{…}}   question, actor, coverage, clock, loss, checkpoint, gateway key
//! {"control":{"entry":"…","signature":"…"}}        a record of the control journal: whose a key is, or no longer is
//! {"batch":{…}}                                    header and signature, receipt, path to the checkpoint, places
//! …                                                as many event lines as the places say
//! {"end":{…,"sha256":"…","signature":"…"}}         counts; SHA-256 of every byte before this line
//! ```
//!
//! *Places* are the leaves of the batch's tree in their order, in runs: so many event lines that follow, hashes of lines
//! that do not match or are kept as hashes only, or so many lines whose key was erased. The control record of a key comes
//! before the first batch that it signed. *after* of a batch and of the end names the batch before, so that one which was
//! taken out is named by its neighbour.
//!
//! The signature is the gateway's, over `"activity-bundle-v1\0" ‖` the end's document with `signature` null, in the
//! manifest domain. It is absent when the bundle was made from a copy of a store without the gateway's signing key; the
//! manifest then says so (`signed`).

mod paths;
mod report;
mod verify;
mod write;

pub use report::{BundleKey, BundleProblem, BundleReport, BundleStep};
pub use verify::verify_bundle;
pub use write::{Export, ExportError, ExportRequest};

use activity_schema::coverage::CoverageReport;
use activity_schema::ids::TenantId;
use activity_schema::keys::{PublicKey, signature_base64};
use activity_schema::{BatchHeader, Hash, Timestamp};
use serde::{Deserialize, Serialize};

use crate::types::Query;

/// Name and version, in the first line.
const FORMAT: &str = "activity.bundle/v1";
const DOMAIN: &[u8] = b"activity-bundle-v1\0";
/// Longest first line, bytes: the coverage of about ten thousand instances, or of few over a long time.
const FIRST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A first line has at least so many bytes a comma: a span, a sentence. Denser ones cost many times their length in
/// memory.
const FIRST_BYTES_A_COMMA: usize = 16;
/// Longest other line, bytes: a batch of 4,096 hashes takes less than a third of it.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    bundle: String,
    manifest: Manifest,
}

/// What was asked, by whom, and how far the answer can be vouched for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Who asked, as the connection proved it; of an export from disk, the user id.
    pub actor: String,
    /// The signed note that paths lead to; `None` where a store without one was read.
    pub checkpoint: Option<String>,
    /// Largest declared error bound of a clock, nanoseconds; `None` when an instance never declared one.
    pub clock_error_ns_max: Option<i64>,
    /// From a checkpoint that the asker kept to this one.
    pub consistency: Option<Consistency>,
    pub coverage: CoverageReport,
    pub gateway_key: PublicKey,
    /// Origin of the tenant's log.
    pub log_id: String,
    /// Batches in the log when the question was asked; later ones are not part of the answer.
    pub log_size: u64,
    pub loss: Loss,
    pub made_at: Timestamp,
    pub query: Query,
    /// Whether the end carries the gateway's signature.
    pub signed: bool,
    pub store_id: String,
    pub tenant: TenantId,
}

/// Proof that the first `size` batches of the log are still what they were (RFC 6962 section 2.1.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consistency {
    pub path: Vec<Hash>,
    pub size: u64,
}

/// Records that coverage knows to be missing from the answer's interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// False: `records` is a lower bound.
    pub exact: bool,
    pub records: u64,
}

impl Loss {
    fn of(coverage: &CoverageReport) -> Loss {
        let spans = coverage.instances.iter().flat_map(|i| &i.classes).flat_map(|c| &c.spans);
        let lost = spans.filter(|span| span.lost > 0);
        lost.fold(Loss { exact: true, records: 0 }, |sum, span| Loss {
            exact: sum.exact && span.exact == Some(true),
            records: sum.records.saturating_add(span.lost),
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Control(Control),
    Batch(BatchRecord),
    End(End),
}

/// A record of the control journal as the gateway signed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Control {
    /// JSON, as in the journal.
    entry: String,
    #[serde(with = "signature_base64")]
    signature: [u8; 64],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchRecord {
    after: Option<String>,
    /// It lies beside its stream: another batch has its number.
    fork: bool,
    /// RFC 8785 JSON, as it was signed.
    header: String,
    leaf_index: u64,
    /// From 1, within the bundle.
    number: u64,
    /// From the batch to the checkpoint's root; `None` for one that is newer than the checkpoint.
    path: Option<Vec<Hash>>,
    places: Vec<Run>,
    #[serde(with = "signature_base64")]
    receipt: [u8; 64],
    received_at: Timestamp,
    #[serde(with = "signature_base64")]
    signature: [u8; 64],
}

/// Neighbours in a batch's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Run {
    /// So many of the event lines that follow.
    Lines(u64),
    Hashes(Vec<Hash>),
    /// So many lines that are gone with their key, and their hashes with them.
    Erased(u64),
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    after: Option<String>,
    batches: u64,
    /// Batches or blocks of the store that may hold matches and did not read.
    damaged: u64,
    /// Lines that may match and are gone with their key.
    erased_lines: u64,
    events: u64,
    sha256: Hash,
    signature: Option<Signature>,
    /// Where the first damage is.
    unreadable: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Signature(#[serde(with = "signature_base64")] [u8; 64]);

impl End {
    /// What is signed.
    fn statement(&self) -> Vec<u8> {
        let bare = End { signature: None, ..self.clone() };
        let json = serde_json::to_vec(&bare).unwrap_or_default();
        debug_assert!(!json.is_empty(), "an end is plain data");
        [DOMAIN, &json].concat()
    }
}

/// How a batch is named to people, and by its neighbour.
fn name_of(header: &BatchHeader, leaf_index: u64) -> String {
    format!("batch {} of {} (leaf {leaf_index})", header.batch_number, header.stream())
}
