//! One tenant's batches and log, checked.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use activity_schema::checkpoint::Checkpoint;
use activity_schema::ids::{StreamId, TenantId};
use activity_schema::keys::{PublicKey, Purpose};
use activity_schema::receipt::Receipt;
use activity_schema::{BatchHeader, Hash, merkle};

use crate::aead::SectionKey;
use crate::commit::FileId;
use crate::env::Env;
use crate::import::IMPORT_COLLECTOR;
use crate::keyring::{Keyring, KeyringError, day_text};
use crate::log::{LEAF_BYTES, split_notes};
use crate::proof::receipt_of;
use crate::record::{FLAG_FORK, FLAG_HEADER_ONLY, Keys, SectionId, StoredBatch, StoredLine};
use crate::tenant::{TenantKeys, tenant_dir};
use crate::verify::{Enrolled, Findings};
use crate::verify_report::TenantVerified;

/// Reads a checkpoint that was kept from before.
pub(crate) fn kept_checkpoint(note: &str, key: PublicKey) -> Result<Checkpoint, String> {
    Checkpoint::verify(note, key).map_err(|error| error.to_string())
}

/// A batch as its stream's chain needs it.
struct Link {
    number: u64,
    first_sequence: u64,
    last_sequence: u64,
    previous: Hash,
    hash: Hash,
    leaf: u64,
    file: String,
}

pub(crate) struct TenantCheck<'a> {
    id: TenantId,
    base: String,
    key: PublicKey,
    enrolled: &'a Enrolled,
    erased_days: &'a [(TenantId, String, String)],
    keys: Arc<TenantKeys>,
    origin: String,
    origin_raw: Vec<u8>,
    leaves: Vec<Hash>,
    leaves_len: usize,
    notes: Vec<u8>,
    /// File of each stored batch, by leaf index.
    stored: BTreeMap<u64, (Hash, String)>,
    segments: BTreeSet<u64>,
    chains: BTreeMap<StreamId, Vec<Link>>,
    unknown_keys: BTreeSet<String>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    events: u64,
    elided: u64,
    erased: u64,
    forks: u64,
    headers_alone: u64,
    receipts_bad: u64,
}

/// Keys of one file that remember what did not come.
pub(crate) struct RecordingKeys {
    head: SectionKey,
    keys: Arc<TenantKeys>,
    trouble: RefCell<BTreeMap<SectionId, Option<String>>>,
}

impl RecordingKeys {
    /// Keys that are gone (`None`) or do not open (why).
    pub(crate) fn into_trouble(self) -> BTreeMap<SectionId, Option<String>> {
        self.trouble.into_inner()
    }
}

impl Keys for RecordingKeys {
    fn head(&self) -> &SectionKey {
        &self.head
    }

    fn data(&self, id: SectionId) -> Option<Arc<SectionKey>> {
        match self.keys.data_key(id, false) {
            Ok(Some(key)) => Some(key),
            Ok(None) => {
                self.trouble.borrow_mut().insert(id, None);
                None
            }
            Err(error) => {
                self.trouble.borrow_mut().insert(id, Some(error.to_string()));
                None
            }
        }
    }
}

impl<'a> TenantCheck<'a> {
    pub(crate) fn open(
        env: &Env,
        store: &Path,
        id: &TenantId,
        keyring: &Arc<dyn Keyring>,
        key: PublicKey,
        enrolled: &'a Enrolled,
        erased_days: &'a [(TenantId, String, String)],
    ) -> Result<Self, KeyringError> {
        let log = tenant_dir(store, id).join("log");
        let read = |name: &str| env.storage.read(&log.join(name)).unwrap_or_default();
        // Leaves last: a running gateway makes checkpoints of leaves that are there.
        let (origin_raw, notes, leaves) = (read("origin"), read("checkpoints"), read("leaves"));
        Ok(TenantCheck {
            id: id.clone(),
            base: format!("tenants/{id}"),
            key,
            enrolled,
            erased_days,
            keys: Arc::new(TenantKeys::open(id.clone(), Arc::clone(keyring))?),
            origin: String::from_utf8_lossy(&origin_raw).trim_end_matches('\n').to_owned(),
            origin_raw,
            leaves_len: leaves.len(),
            leaves: leaves.chunks_exact(LEAF_BYTES).filter_map(|c| c.try_into().ok().map(Hash)).collect(),
            notes,
            stored: BTreeMap::new(),
            segments: BTreeSet::new(),
            chains: BTreeMap::new(),
            unknown_keys: BTreeSet::new(),
            counts: Counts::default(),
        })
    }

    pub(crate) fn id(&self) -> &TenantId {
        &self.id
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn keys(&self) -> &TenantKeys {
        &self.keys
    }

    pub(crate) fn recording_keys(&self, file: &FileId) -> RecordingKeys {
        RecordingKeys {
            head: self.keys.head_of(file),
            keys: Arc::clone(&self.keys),
            trouble: RefCell::new(BTreeMap::new()),
        }
    }

    pub(crate) fn enter_segment(&mut self, number: u64) {
        self.segments.insert(number);
    }

    /// Whether the log says that this batch was acknowledged.
    pub(crate) fn is_logged(&self, leaf: u64, hash: Hash) -> bool {
        usize::try_from(leaf).ok().and_then(|at| self.leaves.get(at)) == Some(&merkle::leaf_hash(&hash.0))
    }

    /// A running gateway went on meanwhile: takes the leaves of batches that were read since from the log as it is now.
    pub(crate) fn catch_up(&mut self, env: &Env, store: &Path) {
        /// A leaf follows its batch within milliseconds.
        const LEAF_FOLLOWS: Duration = Duration::from_millis(50);
        let path = tenant_dir(store, &self.id).join("log/leaves");
        let needed = self.stored.last_key_value().map_or(0, |(leaf, _)| *leaf).saturating_add(1);
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        for wait in [Duration::ZERO, LEAF_FOLLOWS] {
            if self.leaves.len() >= needed {
                return;
            }
            std::thread::sleep(wait);
            let now = env.storage.read(&path).unwrap_or_default();
            let new = now.chunks_exact(LEAF_BYTES).skip(self.leaves.len()).take(needed - self.leaves.len());
            self.leaves.extend(new.filter_map(|leaf| leaf.try_into().ok().map(Hash)));
        }
    }

    /// A batch in a commit file; passed over when the segment made of that file holds it.
    pub(crate) fn commit_batch(
        &mut self,
        file: &str,
        number: u64,
        batch: &StoredBatch,
        findings: &mut Findings,
    ) {
        let sealed = self.segments.contains(&number)
            && self.stored.get(&batch.leaf_index).is_some_and(|(hash, _)| *hash == batch.batch_hash);
        if !sealed {
            self.batch(file, batch, findings);
        }
    }

    pub(crate) fn batch(&mut self, file: &str, batch: &StoredBatch, findings: &mut Findings) {
        let leaf = batch.leaf_index;
        let mut bad = |what: String| findings.damage(file, Some(&self.id), Some(leaf), what);
        if let Some((_, other)) = self.stored.get(&leaf) {
            return bad(format!("leaf {leaf} is stored twice, also in {other}"));
        }
        self.stored.insert(leaf, (batch.batch_hash, file.to_owned()));
        let header = match BatchHeader::parse(&batch.header_bytes) {
            Ok(header) => header,
            Err(error) => return bad(format!("leaf {leaf}: {error}")),
        };
        if header.tenant != self.id {
            bad(format!("leaf {leaf}: the header names tenant {}", header.tenant));
        }
        if activity_schema::batch::batch_hash(&batch.header_bytes, &batch.signature) != batch.batch_hash {
            bad(format!("leaf {leaf}: the batch hash is not that of header and signature"));
        }
        match self.signer_of(&header) {
            Some(key) if key.verify(Purpose::Batch, &batch.header_bytes, &batch.signature) => {}
            Some(_) => bad(format!("leaf {leaf}: the batch's signature is not valid")),
            None => {
                let who =
                    format!("{} of collector {}, epoch {}", header.key_id, header.collector_id, header.epoch);
                if self.unknown_keys.insert(who.clone()) {
                    bad(format!("leaf {leaf}: no enrolment of key {who} is in the control journal"));
                }
            }
        }
        let receipt: Receipt = receipt_of(batch, &self.origin, self.key.id());
        if !receipt.is_signed_by(self.key) {
            self.counts.receipts_bad += 1;
            bad(format!("leaf {leaf}: the receipt is not the gateway's"));
        }
        self.lines(file, batch, &header, findings);
        if batch.flags & FLAG_FORK != 0 {
            self.counts.forks += 1;
            return;
        }
        self.chains.entry(header.stream()).or_default().push(Link {
            number: header.batch_number,
            first_sequence: header.first_sequence,
            last_sequence: header.last_sequence,
            previous: header.previous_batch_hash,
            hash: batch.batch_hash,
            leaf,
            file: file.to_owned(),
        });
    }

    fn signer_of(&self, header: &BatchHeader) -> Option<PublicKey> {
        if header.collector_id.as_str() == IMPORT_COLLECTOR && header.key_id == self.key.id() {
            return Some(self.key);
        }
        let id = (self.id.clone(), header.collector_id.clone(), header.key_id.clone(), header.epoch.clone());
        self.enrolled.get(&id).copied()
    }

    fn lines(&mut self, file: &str, batch: &StoredBatch, header: &BatchHeader, findings: &mut Findings) {
        let leaf = batch.leaf_index;
        if batch.lines.is_empty() {
            self.counts.headers_alone += 1;
            if batch.flags & FLAG_HEADER_ONLY == 0 {
                let what = format!("leaf {leaf}: its lines are not there");
                findings.damage(file, Some(&self.id), Some(leaf), what);
            }
            return;
        }
        if batch.lines.len() as u64 != header.count {
            let what = format!("leaf {leaf}: {} lines, the header says {}", batch.lines.len(), header.count);
            findings.damage(file, Some(&self.id), Some(leaf), what);
        }
        for line in batch.all_lines() {
            match line {
                StoredLine::Line(_) => self.counts.events += 1,
                StoredLine::Elided(_) => self.counts.elided += 1,
                StoredLine::Erased => self.counts.erased += 1,
            }
        }
        if let Some(leaves) = batch.leaves()
            && merkle::root(&leaves) != header.merkle_root
        {
            let what = format!("leaf {leaf}: the Merkle root over its lines is not the signed one");
            findings.damage(file, Some(&self.id), Some(leaf), what);
        }
    }

    pub(crate) fn report_keys(
        &self,
        file: &str,
        trouble: &BTreeMap<SectionId, Option<String>>,
        findings: &mut Findings,
    ) {
        for (id, why) in trouble {
            let name = (self.id.clone(), id.retention.to_string(), day_text(id.day));
            let what = match why {
                Some(why) => format!("lines of {} {} do not open: {why}", name.1, name.2),
                None if self.erased_days.contains(&name) => continue,
                None => format!(
                    "the key of {} {} is gone, and the control journal records no erasure",
                    name.1, name.2
                ),
            };
            findings.damage(file, Some(&self.id), None, what);
        }
    }

    /// Chains, leaves, checkpoints; writes the tenant's part of the report.
    pub(crate) fn finish(self, kept: Option<&Checkpoint>, findings: &mut Findings) {
        self.check_chains(findings);
        self.check_leaves(findings);
        let (checkpoints, newest) = self.check_checkpoints(findings);
        if let Some(kept) = kept {
            self.check_against("the checkpoint kept from before", kept, findings);
        }
        findings.report.tenants.push(TenantVerified {
            tenant: self.id.clone(),
            origin: self.origin.clone(),
            batches: self.stored.len() as u64,
            events: self.counts.events,
            elided: self.counts.elided,
            erased: self.counts.erased,
            forks: self.counts.forks,
            headers_alone: self.counts.headers_alone,
            streams: self.chains.len() as u64,
            log_size: self.leaves.len() as u64,
            log_root: merkle::root(&self.leaves),
            checkpoints,
            checkpoint_size: newest,
        });
    }

    fn check_chains(&self, findings: &mut Findings) {
        for (stream, links) in &self.chains {
            let mut links: Vec<&Link> = links.iter().collect();
            links.sort_by_key(|link| link.number);
            let (mut number, mut sequence, mut hash) = (0, 0, Hash::default());
            for link in links {
                let what = if link.number != number + 1 {
                    Some(format!("batches {} to {} are missing before it", number + 1, link.number - 1))
                } else if link.previous != hash {
                    Some("it does not name the batch before it".to_owned())
                } else if link.first_sequence != sequence + 1 {
                    Some(format!("sequences {} to {} are missing", sequence + 1, link.first_sequence))
                } else {
                    None
                };
                if let Some(what) = what {
                    let what = format!("leaf {}: batch {} of {stream}: {what}", link.leaf, link.number);
                    findings.damage(&link.file, Some(&self.id), Some(link.leaf), what);
                }
                (number, sequence, hash) = (link.number, link.last_sequence, link.hash);
            }
        }
    }

    fn check_leaves(&self, findings: &mut Findings) {
        let file = format!("{}/log/leaves", self.base);
        if !self.leaves_len.is_multiple_of(LEAF_BYTES) {
            findings.damage(&file, Some(&self.id), None, "its length is not whole leaves");
        }
        for (leaf, (hash, stored_in)) in &self.stored {
            if !self.is_logged(*leaf, *hash) {
                let what = format!("leaf {leaf} is not the batch that {stored_in} holds");
                findings.damage(&file, Some(&self.id), Some(*leaf), what);
            }
        }
        let mut missing: Option<(u64, u64)> = None;
        let mut runs = Vec::new();
        for leaf in 0..self.leaves.len() as u64 {
            match (self.stored.contains_key(&leaf), &mut missing) {
                (false, Some((_, last))) => *last = leaf,
                (false, none) => *none = Some((leaf, leaf)),
                (true, run) => runs.extend(run.take()),
            }
        }
        runs.extend(missing);
        for (first, last) in runs {
            let before = self.stored.range(..first).next_back().map(|(_, (_, file))| file.as_str());
            let after = self.stored.range(last..).next().map(|(_, (_, file))| file.as_str());
            let what = format!(
                "batches of leaves {first} to {last} were acknowledged and are in no file (before them: {}; after them: {})",
                before.unwrap_or("nothing"),
                after.unwrap_or("nothing"),
            );
            findings.damage(&format!("{}/segments", self.base), Some(&self.id), Some(first), what);
        }
    }

    fn check_checkpoints(&self, findings: &mut Findings) -> (u64, Option<u64>) {
        let file = format!("{}/log/checkpoints", self.base);
        let origin_file = format!("{}/log/origin", self.base);
        if self.origin_raw != format!("{}\n", self.origin).as_bytes() || self.origin.is_empty() {
            findings.damage(&origin_file, Some(&self.id), None, "it is not one line with the log's name");
        }
        let (notes, rest) = split_notes(&self.notes);
        if rest > 0 {
            findings.unfinished(&file, format!("{rest} bytes at the end are no whole note"));
        }
        if notes.is_empty() && !(self.leaves.is_empty() && self.stored.is_empty()) {
            // The first is durable before the first batch is acknowledged.
            findings.damage(&file, Some(&self.id), None, "no checkpoint, though batches were acknowledged");
        }
        let (mut newest, mut foreign) = (None, 0u64);
        for (at, note) in notes.iter().enumerate() {
            match Checkpoint::verify(note, self.key) {
                Ok(checkpoint) => {
                    foreign += u64::from(checkpoint.origin != self.origin);
                    if newest.is_some_and(|size| checkpoint.size < size) {
                        findings.damage(
                            &file,
                            Some(&self.id),
                            None,
                            format!("note {}: the log shrank", at + 1),
                        );
                    }
                    newest = Some(checkpoint.size);
                    self.check_against(&format!("note {} of {file}", at + 1), &checkpoint, findings);
                }
                Err(error) => {
                    findings.damage(&file, Some(&self.id), None, format!("note {}: {error}", at + 1))
                }
            }
        }
        let receipts = self.counts.receipts_bad > 0 && self.counts.receipts_bad == self.stored.len() as u64;
        if foreign > 0 || receipts {
            findings.damage(&origin_file, Some(&self.id), None, "receipts or checkpoints name another log");
        }
        (notes.len() as u64, newest)
    }

    fn check_against(&self, what: &str, checkpoint: &Checkpoint, findings: &mut Findings) {
        let file = format!("{}/log/leaves", self.base);
        match crate::log::root_of(&self.leaves, checkpoint.size) {
            None => {
                let size = self.leaves.len();
                let what = format!("{what} speaks of {} batches, the log has {size}", checkpoint.size);
                findings.damage(&file, Some(&self.id), None, what);
            }
            Some(root) if root != checkpoint.root => {
                let what =
                    format!("the log is not the one of {what}: its first {} leaves differ", checkpoint.size);
                findings.damage(&file, Some(&self.id), None, what);
            }
            Some(_) => {}
        }
    }
}
