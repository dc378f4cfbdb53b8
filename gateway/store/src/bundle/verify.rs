//! Offline verification of a bundle: reads it once, from front to end, and needs nothing else.
//!
//! Of every batch: the enrolment of its key, signature, receipt, path to the checkpoint, Merkle root over the lines and
//! hashes. Of the bundle: checkpoint, every byte by the signature over its SHA-256, no batch missing. Memory is bounded
//! whatever the file holds.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead};

use activity_schema::batch::{BATCH_EVENTS_MAX, batch_hash};
use activity_schema::checkpoint::Checkpoint;
use activity_schema::ids::{CollectorId, Epoch};
use activity_schema::keys::{KeyId, PublicKey, Purpose};
use activity_schema::merkle::{self, Frontier};
use activity_schema::receipt::{Receipt, ReceiptBody};
use activity_schema::{BatchHeader, Hash};
use sha2::{Digest as _, Sha256};

use super::report::{BundleKey, BundleReport, BundleStep};
use super::{
    BatchRecord, Control, End, FIRST_BYTES_A_COMMA, FIRST_BYTES_MAX, FORMAT, First, LINE_BYTES_MAX, Line,
    Manifest, Run, name_of,
};
use crate::control::{ControlRecord, read_signed};
use crate::import::IMPORT_COLLECTOR;
use crate::verify::VerifyOptions;

/// Most control records that are kept.
const KEYS_MAX: usize = 32_768;

/// Commas that are taken in any first line.
const COMMAS_MIN: usize = 4096;

/// Verifies a bundle; `step` hears of every batch and now and then how many bytes are read.
pub fn verify_bundle(
    mut input: impl BufRead,
    options: &VerifyOptions,
    step: &mut dyn FnMut(BundleStep),
) -> BundleReport {
    let mut check = Check::new(options, step);
    let mut digest = Sha256::new();
    let (mut line, mut bytes) = (Vec::new(), 0);
    loop {
        let before = digest.clone();
        let bytes_max = if check.line == 0 { FIRST_BYTES_MAX } else { LINE_BYTES_MAX };
        match read_line(&mut input, bytes_max, &mut line, &mut digest) {
            Ok(None) => break,
            Ok(Some(read)) => {
                bytes += read.bytes;
                check.line += 1;
                (check.step)(BundleStep::Read(bytes));
                if read.bytes > bytes_max as u64 {
                    check.bad(format!("it is longer than the {bytes_max} bytes of any line"));
                } else {
                    check.take(&line, read.whole, &before);
                }
                if check.line == 1 {
                    // The longest by far.
                    line = Vec::new();
                }
            }
            Err(error) => {
                check.bad(format!("the file does not read: {error}"));
                break;
            }
        }
    }
    check.finish()
}

/// A line that was read: its length, and whether a newline ended it.
struct Read {
    bytes: u64,
    whole: bool,
}

/// Reads a line without its newline, and no more than `bytes_max` of it. All its bytes are digested.
fn read_line(
    input: &mut impl BufRead,
    bytes_max: usize,
    line: &mut Vec<u8>,
    digest: &mut Sha256,
) -> io::Result<Option<Read>> {
    line.clear();
    let mut read = Read { bytes: 0, whole: false };
    while !read.whole {
        let available = match input.fill_buf() {
            Ok([]) => break,
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = memchr::memchr(b'\n', available);
        let part = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&part[..part.len().min(bytes_max.saturating_sub(line.len()))]);
        let used = end.map_or(available.len(), |at| at + 1);
        digest.update(&available[..used]);
        read.bytes += used as u64;
        read.whole = end.is_some();
        input.consume(used);
    }
    Ok(Some(read).filter(|read| read.bytes > 0))
}

/// The batch whose lines are being read.
struct Current {
    name: String,
    root: Hash,
    tree: Frontier,
    places: VecDeque<Run>,
    erased: bool,
}

impl Current {
    /// Takes the places up to the next event line.
    fn advance(&mut self) {
        while let Some(run) = self.places.front() {
            match run {
                Run::Lines(1..) => return,
                Run::Lines(0) => {}
                Run::Hashes(hashes) => hashes.iter().for_each(|hash| {
                    self.tree.push(*hash);
                }),
                Run::Erased(_) => self.erased = true,
            }
            self.places.pop_front();
        }
    }

    fn expects_line(&self) -> bool {
        !self.places.is_empty()
    }

    fn line(&mut self, line: &[u8]) {
        self.tree.push(merkle::leaf_hash(line));
        if let Some(Run::Lines(count)) = self.places.front_mut() {
            *count = count.saturating_sub(1);
        }
        self.advance();
    }
}

struct Check<'a> {
    options: &'a VerifyOptions,
    step: &'a mut dyn FnMut(BundleStep),
    report: BundleReport,
    /// Of the line at hand, from 1.
    line: u64,
    /// What everything is checked against.
    key: Option<PublicKey>,
    checkpoint: Option<Checkpoint>,
    enrolled: BTreeMap<(CollectorId, KeyId, Epoch), PublicKey>,
    current: Option<Current>,
    /// The batch before, by its name; `None` before the first, or when it did not read.
    last: Option<String>,
    /// The line before belonged to nothing, and that was said.
    stray: bool,
    /// Batches with lines that their roots do not reach any more.
    rootless: u64,
    ended: bool,
}

impl<'a> Check<'a> {
    fn new(options: &'a VerifyOptions, step: &'a mut dyn FnMut(BundleStep)) -> Self {
        Check {
            options,
            step,
            report: BundleReport::default(),
            line: 0,
            key: None,
            checkpoint: None,
            enrolled: BTreeMap::new(),
            current: None,
            last: None,
            stray: false,
            rootless: 0,
            ended: false,
        }
    }

    fn bad(&mut self, what: impl Into<String>) {
        self.report.problem(self.line, None, what);
    }

    fn take(&mut self, line: &[u8], whole: bool, before: &Sha256) {
        if self.line == 1 {
            return self.first(line, whole);
        }
        if self.key.is_none() {
            return;
        }
        if self.ended {
            if !std::mem::replace(&mut self.stray, true) {
                self.bad("there is something after the end");
            }
            return;
        }
        let is = |kind: &str| line.starts_with(format!("{{\"{kind}\":").as_bytes());
        if is("batch") || is("control") || is("end") {
            self.finish_batch();
            self.stray = false;
            self.record(line, whole, before);
        } else if let Some(current) = self.current.as_mut().filter(|current| current.expects_line()) {
            current.line(line);
            self.report.events += 1;
            if !whole {
                let name = current.name.clone();
                self.report.problem(self.line, Some(&name), "its line is cut off");
            }
        } else if !std::mem::replace(&mut self.stray, true) {
            let last = self.last.clone().unwrap_or_else(|| "no batch that reads".to_owned());
            self.bad(format!("this line is neither a record nor a line of a batch; before it is {last}"));
        }
    }

    fn first(&mut self, line: &[u8], whole: bool) {
        if memchr::memchr_iter(b',', line).count() > COMMAS_MIN.max(line.len() / FIRST_BYTES_A_COMMA) {
            return self.bad("the manifest is denser than any that is written");
        }
        let first: First = match serde_json::from_slice(line) {
            Ok(first) => first,
            Err(error) => return self.bad(format!("this is no bundle, or its manifest is damaged: {error}")),
        };
        if first.bundle != FORMAT {
            return self
                .bad(format!("the bundle's format {:?} is not known here, only {FORMAT}", first.bundle));
        }
        if !(whole && is_written_so(&first, line)) {
            self.bad("the manifest is not as it was written");
        }
        let manifest = first.manifest;
        match self.options.trust {
            None => self.report.not_established(
                "signer not pinned: the gateway key is the one that the bundle names; give it with --trust",
            ),
            // All else is still held against the named key: one difference is not a thousand.
            Some(key) if key != manifest.gateway_key => self.bad("the gateway key is not the trusted one"),
            Some(_) => {}
        }
        self.key = Some(manifest.gateway_key);
        self.checkpoint(&manifest);
        if !manifest.signed {
            if self.options.trust.is_some() {
                self.bad("the bundle is not signed, so that the trusted key does not hold it together; without --trust its batches can be checked");
            }
            self.report.not_established(
                "not signed: question, actor and coverage may have been changed, and batches or lines left out",
            );
        }
        self.report.manifest = Some(manifest);
    }

    fn checkpoint(&mut self, manifest: &Manifest) {
        let Some(note) = &manifest.checkpoint else {
            return self
                .report
                .not_established("no checkpoint: only receipts say that the batches are in a log");
        };
        match Checkpoint::verify(note, manifest.gateway_key) {
            Ok(checkpoint) if checkpoint.origin != manifest.log_id => {
                self.bad("the checkpoint is of another log");
            }
            Ok(checkpoint) => self.checkpoint = Some(checkpoint),
            Err(error) => self.bad(format!("the checkpoint: {error}")),
        }
        self.kept(manifest);
    }

    /// Holds the checkpoint against one that was kept from before.
    fn kept(&mut self, manifest: &Manifest) {
        let Some(note) = &self.options.checkpoint else {
            return self.report.not_established(
                "log not pinned: the gateway may have shown others another log; give a checkpoint kept from before with --checkpoint",
            );
        };
        let kept = match Checkpoint::verify(note, manifest.gateway_key) {
            Ok(kept) => kept,
            Err(error) => return self.bad(format!("the kept checkpoint: {error}")),
        };
        let Some(own) = &self.checkpoint else { return };
        let holds =
            |path: &[Hash]| merkle::verify_consistency(kept.size, own.size, &kept.root, &own.root, path);
        let what = match &manifest.consistency {
            _ if kept.origin != own.origin => "the kept checkpoint is of another log",
            _ if kept.size == own.size && kept.root == own.root => return,
            _ if kept.size == own.size => "the log is not the one of the kept checkpoint",
            Some(proof) if proof.size == kept.size && holds(&proof.path) => return,
            Some(proof) if proof.size == kept.size => "the log is not the one of the kept checkpoint",
            _ => {
                return self.report.not_established(format!(
                    "log not pinned: the kept checkpoint is of {} batches, that of the bundle of {}, and the bundle has no proof between them; export it with --checkpoint",
                    kept.size, own.size
                ));
            }
        };
        self.bad(what);
    }

    fn record(&mut self, line: &[u8], whole: bool, before: &Sha256) {
        let record: Line = match serde_json::from_slice(line) {
            Ok(record) => record,
            Err(error) => {
                let last = self.last.take().unwrap_or_else(|| "no batch that reads".to_owned());
                return self.bad(format!("the record does not read: {error}; before it is {last}"));
            }
        };
        let as_written = whole && is_written_so(&record, line);
        match record {
            Line::Control(control) => self.control(&control, as_written),
            Line::Batch(batch) => self.batch(batch, as_written),
            Line::End(end) => self.end(&end, as_written, before),
        }
    }

    fn control(&mut self, control: &Control, as_written: bool) {
        let Some(key) = self.key else { return };
        let entry = match read_signed(&control.entry, &control.signature, key) {
            Ok(entry) if as_written => entry,
            Ok(_) => return self.bad("the control record is not as it was written"),
            Err(why) => return self.bad(format!("the control record: {why}")),
        };
        if self.report.keys.len() >= KEYS_MAX {
            return self.bad(format!("there are more than {KEYS_MAX} control records"));
        }
        let tenant = self.report.manifest.as_ref().map(|manifest| &manifest.tenant);
        match entry.record {
            ControlRecord::Enrolled(e) if Some(&e.tenant) == tenant => {
                let key_id = e.signing_key.id();
                self.enrolled
                    .insert((e.collector_id.clone(), key_id.clone(), e.epoch.clone()), e.signing_key);
                self.report.keys.push(BundleKey {
                    collector_id: e.collector_id,
                    key_id,
                    epoch: e.epoch,
                    enrolled_at: e.enrolled_at,
                    control_sequence: entry.sequence,
                    revoked_at: None,
                });
            }
            ControlRecord::Revoked(r) if Some(&r.tenant) == tenant => {
                let named = |key: &&mut BundleKey| {
                    key.collector_id == r.collector_id && r.key_id.as_ref().is_none_or(|id| *id == key.key_id)
                };
                self.report.keys.iter_mut().filter(named).for_each(|key| key.revoked_at = Some(r.revoked_at));
            }
            _ => self.bad("the control record is no enrolment or revocation of the bundle's tenant"),
        }
    }

    fn batch(&mut self, record: BatchRecord, as_written: bool) {
        self.report.batches += 1;
        let header = BatchHeader::parse(record.header.as_bytes());
        let name = match &header {
            Ok(header) => name_of(header, record.leaf_index),
            Err(_) => format!("the batch at leaf {}", record.leaf_index),
        };
        let mut found = Vec::new();
        if record.number != self.report.batches || record.after != self.last {
            let missing = record.after.as_deref().unwrap_or("nothing");
            found.push(format!("before it was {missing}, which is missing, damaged or not in its place"));
            self.report.batches = record.number;
        }
        if !as_written {
            found.push("its record is not as it was written".to_owned());
        }
        match &header {
            Ok(header) => self.header(&record, header, &mut found),
            Err(error) => found.push(error.to_string()),
        }
        for what in found {
            self.report.problem(self.line, Some(&name), what);
        }
        let hash = batch_hash(record.header.as_bytes(), &record.signature);
        let (events, hashes, erased) = sum(&record.places);
        self.report.hashes += hashes;
        self.report.erased += erased;
        self.rootless += u64::from(erased > 0);
        let of = header.as_ref().map_or(0, |header| header.count);
        (self.step)(BundleStep::Batch { name: name.clone(), hash, events, of });
        self.last = Some(name.clone());
        let root = header.map(|header| header.merkle_root).unwrap_or_default();
        let mut current =
            Current { name, root, tree: Frontier::default(), places: record.places.into(), erased: false };
        current.advance();
        self.current = Some(current);
    }

    /// Whose batch it is, and where it is in the log.
    fn header(&mut self, record: &BatchRecord, header: &BatchHeader, found: &mut Vec<String>) {
        let (Some(key), Some(manifest)) = (self.key, &self.report.manifest) else { return };
        if header.tenant != manifest.tenant {
            found.push(format!("its header names tenant {}", header.tenant));
        }
        let id = (header.collector_id.clone(), header.key_id.clone(), header.epoch.clone());
        let import = header.collector_id.as_str() == IMPORT_COLLECTOR && header.key_id == key.id();
        match self.enrolled.get(&id).copied().or_else(|| import.then_some(key)) {
            Some(signer) if signer.verify(Purpose::Batch, record.header.as_bytes(), &record.signature) => {}
            Some(_) => found.push("its signature is not valid".to_owned()),
            None => found.push(format!("no enrolment of its key {} is in the bundle", header.key_id)),
        }
        let hash = batch_hash(record.header.as_bytes(), &record.signature);
        let body = ReceiptBody {
            batch_hash: hash,
            durable: true,
            gateway_time: record.received_at,
            key_id: key.id(),
            leaf_index: record.leaf_index,
            log_id: manifest.log_id.clone(),
        };
        if !(Receipt { body, signature: record.receipt }).is_signed_by(key) {
            found.push("its receipt is not the gateway's".to_owned());
        }
        let covered = self.checkpoint.as_ref().filter(|checkpoint| record.leaf_index < checkpoint.size);
        match (&record.path, covered) {
            (Some(path), Some(log)) => {
                let leaf = merkle::leaf_hash(&hash.0);
                if !merkle::verify_inclusion(&leaf, record.leaf_index, log.size, path, &log.root) {
                    found.push("it is not in the log of the checkpoint".to_owned());
                }
            }
            (None, None) => self.report.beyond_checkpoint += 1,
            (Some(_), None) => found.push("no checkpoint covers it, though it has a path".to_owned()),
            (None, Some(_)) => found.push("its path to the checkpoint is not there".to_owned()),
        }
        let (events, hashes, erased) = sum(&record.places);
        let lines = events.saturating_add(hashes).saturating_add(erased);
        if lines != header.count || lines > BATCH_EVENTS_MAX {
            found.push(format!("it has {lines} lines, its header says {}", header.count));
        }
    }

    /// Holds the lines of the batch that was read against its root.
    fn finish_batch(&mut self) {
        let Some(current) = self.current.take() else { return };
        if current.expects_line() {
            self.report.problem(self.line, Some(&current.name), "lines of it are missing");
        } else if !current.erased && current.tree.root() != current.root {
            let what = "the Merkle root over its lines is not the signed one";
            self.report.problem(self.line, Some(&current.name), what);
        }
    }

    fn end(&mut self, end: &End, as_written: bool, before: &Sha256) {
        self.ended = true;
        let (Some(key), Some(manifest)) = (self.key, &self.report.manifest) else { return };
        let mut found = Vec::new();
        if end.after != self.last {
            let missing = end.after.as_deref().unwrap_or("nothing");
            found.push(format!("the last was {missing}, which is missing, damaged or not in its place"));
        }
        if !as_written {
            found.push("the end is not as it was written".to_owned());
        }
        if (end.batches, end.events) != (self.report.batches, self.report.events) {
            found.push(format!(
                "{} batches with {} events were written, {} with {} are here",
                end.batches, end.events, self.report.batches, self.report.events
            ));
        }
        if end.sha256.0 != <[u8; 32]>::from(before.clone().finalize()) {
            found.push("the bytes before the end are not those that were written".to_owned());
        }
        let holds = |s: &[u8; 64]| key.verify(Purpose::Manifest, &end.statement(), s);
        match &end.signature {
            Some(signature) if holds(&signature.0) => self.report.signed = true,
            Some(_) => found.push("the signature over the bundle is not valid".to_owned()),
            None if manifest.signed => found.push("the signature over the bundle was taken away".to_owned()),
            None => {}
        }
        if end.damaged > 0 {
            self.report.not_established(format!(
                "{} batches or blocks of the store that may hold matches did not read when the bundle was made",
                end.damaged
            ));
        }
        self.report.damaged = end.damaged;
        self.report.unreadable.clone_from(&end.unreadable);
        for what in found {
            self.bad(what);
        }
    }

    fn finish(mut self) -> BundleReport {
        self.finish_batch();
        if !self.ended && self.key.is_some() {
            let last = self.last.clone();
            self.report.problem(
                self.line,
                last.as_deref(),
                "the bundle is cut off after it: there is no end",
            );
        } else if self.line == 0 {
            self.bad("the file is empty");
        }
        if self.report.beyond_checkpoint > 0 {
            self.report.not_established(format!(
                "{} batches are newer than the checkpoint: their receipts hold them, not the log",
                self.report.beyond_checkpoint
            ));
        }
        if self.rootless > 0 {
            self.report.not_established(format!(
                "of {} batches lines were erased with their key: what is left of them is held by the bundle's signature, not by their own",
                self.rootless
            ));
        }
        let strict = self.options.strict && !self.report.not_established.is_empty();
        self.report.ok = self.report.problems_count == 0 && !strict;
        self.report
    }
}

/// Whether a document is written as exactly these bytes.
fn is_written_so(document: &impl serde::Serialize, line: &[u8]) -> bool {
    let mut rest = Rest(line);
    serde_json::to_writer(&mut rest, document).is_ok() && rest.0.is_empty()
}

/// What is still to be written; takes nothing else.
struct Rest<'a>(&'a [u8]);

impl io::Write for Rest<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Event lines, hashes and erased lines of a batch.
fn sum(places: &[Run]) -> (u64, u64, u64) {
    places.iter().fold((0u64, 0u64, 0u64), |(events, hashes, erased), run| match run {
        Run::Lines(count) => (events.saturating_add(*count), hashes, erased),
        Run::Hashes(more) => (events, hashes.saturating_add(more.len() as u64), erased),
        Run::Erased(count) => (events, hashes, erased.saturating_add(*count)),
    })
}
