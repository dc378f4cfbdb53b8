//! The control journal: who may write, who read, what was changed. Durable before the act it records is answered.
//!
//! `control/<20 digits of its first sequence>.log` holds frames (see `frame`) of
//!
//! ```text
//! 64 signature | JSON {"at", "previous", "record", "sequence", "version"}
//! ```
//!
//! `previous` is the SHA-256 of the payload before (zeros for the first). The signature is the gateway's, over
//! `"activity-control-v1\0" ‖ JSON` in the manifest domain. `control/end` says how far the journal is durable (see
//! `end`).

mod end;
mod torn;

pub(crate) use end::begin;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use activity_schema::ids::{CollectorId, Epoch, HostId, StreamId, TenantId};
use activity_schema::keys::{KeyId, PublicKey, Purpose, Signer};
use activity_schema::{Hash, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::env::Env;
use crate::frame::{Found, Kind, Scan, put_frame};
use crate::receipts::UnknownReceipt;
use crate::storage::numbered_name;
use crate::types::Instances;
use end::End;

const VERSION: u32 = 1;
const DOMAIN: &[u8] = b"activity-control-v1\0";
/// A journal file is followed by the next when it is this long.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
const SIGNATURE_BYTES: usize = 64;

/// A decision, or an event about the store itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRecord {
    /// A collector was enrolled, or renewed its key or epoch.
    Enrolled(Enrolment),
    Revoked(Revocation),
    /// A read that was refused, or that returned content of a restricted class.
    Read(ReadAudit),
    Imported(Import),
    /// A batch was stored beside its stream.
    Forked {
        tenant: TenantId,
        stream: StreamId,
        batch_number: u64,
        leaf_index: u64,
        batch_hash: Hash,
    },
    /// Event ids of one batch came again with other bytes: the first of them, and how many there are.
    Conflict {
        tenant: TenantId,
        stream: StreamId,
        leaf_index: u64,
        event_id: Uuid,
        count: u64,
    },
    /// A heartbeat in this batch names a receipt that this store did not give: an acknowledged batch is missing.
    ReceiptUnknown {
        tenant: TenantId,
        stream: StreamId,
        leaf_index: u64,
        receipt: UnknownReceipt,
    },
    /// Lines of one batch are reduced to their leaf hashes.
    Elided {
        tenant: TenantId,
        leaf_index: u64,
        positions: Vec<u32>,
        reason: String,
    },
    /// A day of a retention class was erased by deleting its key.
    KeyErased {
        tenant: TenantId,
        retention: String,
        day: String,
        reason: String,
    },
    /// The store was opened and found something amiss.
    Recovered {
        findings: Vec<String>,
    },
    /// The store was closed with every end as the statement beside the journal says (see `closing`).
    Closed,
    /// The store was opened after a clean close: the statement no longer holds.
    Opened,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    pub tenant: TenantId,
    pub collector_id: CollectorId,
    pub host: HostId,
    pub instances: Instances,
    pub signing_key: PublicKey,
    pub epoch: Epoch,
    pub certificate_serial: String,
    pub enrolled_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    pub tenant: TenantId,
    pub collector_id: CollectorId,
    /// `None`: every key of the collector that was enrolled before.
    pub key_id: Option<KeyId>,
    pub certificate_serial: Option<String>,
    pub reason: String,
    pub revoked_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadAudit {
    pub tenant: Option<TenantId>,
    /// As the connection proved it.
    pub principal: String,
    pub action: String,
    pub refused: bool,
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    pub tenant: TenantId,
    pub stream: StreamId,
    pub stored: u64,
    pub refused: u64,
}

/// A record in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub at: Timestamp,
    pub previous: Hash,
    pub record: ControlRecord,
    pub sequence: u64,
    pub version: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the control record is not durable: {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the store is open for reading only")]
    ReadOnly,
    #[error("the control record does not serialise")]
    Json(#[from] serde_json::Error),
    #[error("the control record is {0} bytes, too long for a frame")]
    TooLong(usize),
}

/// Unknown receipts kept in memory. Each taints all that is before it, so that the first ones matter.
const UNKNOWN_RECEIPTS_MAX: usize = 4096;
/// Longest control record, bytes.
const RECORD_BYTES_MAX: usize = 256 * 1024;

pub(crate) struct ControlJournal {
    dir: PathBuf,
    /// Current file: first sequence and length that counts.
    file: u64,
    len: u64,
    usable: bool,
    name_synced: bool,
    next_sequence: u64,
    last_hash: Hash,
    /// The last record is [`ControlRecord::Closed`].
    closed: bool,
    enrolments: Vec<Enrolment>,
    revocations: Vec<Revocation>,
    /// Collectors that no enrolment is left of, and since when.
    refused: BTreeMap<(TenantId, CollectorId), Timestamp>,
    unknown_receipts: Vec<(TenantId, CollectorId, UnknownReceipt)>,
}

/// Records in their places, not yet written.
pub(crate) struct Framed {
    records: Vec<ControlRecord>,
    bytes: Vec<u8>,
    /// Sequence and hash of the last of them.
    pub sequence: u64,
    pub hash: Hash,
}

/// What was found in the journal's files.
pub(crate) struct JournalScan {
    pub entries: Vec<(Entry, Hash)>,
    /// What is amiss, in words, with the file's name.
    pub findings: Vec<String>,
    /// Those of them that no crash explains: records that were durable are lost or changed, maybe revocations. Without
    /// those that the store was opened with all the same, by somebody's decision.
    pub damage: Vec<String>,
    pub last: Option<FileEnd>,
    /// The last file goes on behind its last record with bytes that are kept as evidence.
    pub last_is_kept: bool,
    /// Files with bytes after their last record: appends that a crash cut short, and that nobody was told of.
    pub tails: Vec<FileEnd>,
}

/// A journal file, as far as it holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileEnd {
    /// First sequence, its name.
    pub file: u64,
    /// End of its last record.
    pub len: u64,
}

/// Cuts off what crashes left behind the last records of files. Where the chain breaks after an end, that end was a
/// record, and is left as it is.
pub(crate) fn cut_tails(env: &Env, dir: &Path, scan: &JournalScan) -> io::Result<()> {
    for tail in &scan.tails {
        let path = dir.join(numbered_name(tail.file, "log"));
        if tail.len == 0 {
            env.storage.remove(&path)?;
            env.storage.sync_dir(dir)?;
        } else {
            env.storage.truncate(&path, tail.len)?;
            env.storage.sync(&path)?;
        }
    }
    Ok(())
}

impl JournalScan {
    /// After a failed append the journal goes on in another file, named by its first sequence: what the file before holds
    /// from there on was never acknowledged. Returns the sequence and hash that `first` then follows.
    fn abandon(&mut self, first: &Entry) -> Option<(u64, Hash)> {
        let kept = self.entries.iter().rposition(|(entry, _)| entry.sequence < first.sequence)?;
        let (entry, hash) = &self.entries[kept];
        if entry.sequence + 1 != first.sequence || *hash != first.previous {
            return None;
        }
        let hash = *hash;
        self.entries.truncate(kept + 1);
        Some((first.sequence, hash))
    }

    /// The record up to which the journal was durable must be in it.
    fn hold_against(&mut self, end: Result<End, &str>) {
        let what = match end {
            Err(why) => format!("control/end: {why}"),
            Ok(end) => {
                let named = (end.sequence, end.hash);
                if end.sequence == 0
                    || self.entries.iter().any(|(entry, hash)| (entry.sequence, *hash) == named)
                {
                    return;
                }
                let file = numbered_name(self.last.map_or(1, |last| last.file), "log");
                format!("control/{file}: record {}, which was durable, is not in it", end.sequence)
            }
        };
        self.findings.push(what.clone());
        self.damage.push(what);
    }
}

/// Puts a last file that holds no record aside, so that its name can be used again.
pub(crate) fn set_aside(env: &Env, dir: &Path, scan: &JournalScan) -> io::Result<()> {
    let Some(FileEnd { file, len: 0 }) = scan.last.filter(|_| scan.last_is_kept) else { return Ok(()) };
    let path = dir.join(numbered_name(file, "log"));
    env.storage.rename(&path, &path.with_extension("log.damaged"))?;
    env.storage.sync_dir(dir)
}

/// Reads every journal file, checking chain, signatures and how far it was durable. A gateway may append meanwhile.
pub(crate) fn scan_journal(env: &Env, dir: &Path, key: PublicKey) -> io::Result<JournalScan> {
    let end = end::read(env, dir, key)?;
    let mut scan = JournalScan {
        entries: Vec::new(),
        findings: Vec::new(),
        damage: Vec::new(),
        last: None,
        last_is_kept: false,
        tails: Vec::new(),
    };
    let mut previous = Hash::default();
    let mut expected = 1u64;
    let files = env.storage.numbered(dir, "log")?;
    for file in &files {
        let file = *file;
        let name = numbered_name(file, "log");
        let bytes = env.storage.read(&dir.join(&name))?;
        let (mut len, mut torn) = (0, true);
        // Behind a clean close, not even a crash leaves anything.
        let is_closed = files.last() == Some(&file)
            && end.is_ok_and(|end| end.closed)
            && end == end::read(env, dir, key)?;
        let damage = |scan: &mut JournalScan, what: String| {
            scan.findings.push(what.clone());
            scan.damage.push(what);
        };
        if bytes.is_empty() {
            scan.findings.push(format!("control/{name}: its 0 bytes are no record"));
        }
        for found in Scan::new(&bytes, 0) {
            match found {
                Found::Frame { offset, kind: Kind::Control, payload } => {
                    len = (offset + crate::frame::FRAME_HEADER_BYTES + payload.len()) as u64;
                    match read_entry(payload, key) {
                        Ok(entry) => {
                            if offset == 0 && entry.sequence == file {
                                (expected, previous) = scan.abandon(&entry).unwrap_or((expected, previous));
                            }
                            if entry.sequence != expected || entry.previous != previous {
                                scan.tails.pop();
                                let what = format!(
                                    "control/{name}: record {} does not follow record {}",
                                    entry.sequence,
                                    expected - 1
                                );
                                damage(&mut scan, what);
                            }
                            expected = entry.sequence + 1;
                            previous = Hash::of(&[payload]);
                            scan.entries.push((entry, previous));
                        }
                        Err(why) => damage(&mut scan, format!("control/{name}: frame at {offset}: {why}")),
                    }
                }
                Found::Frame { offset, .. } => {
                    damage(&mut scan, format!("control/{name}: foreign frame at {offset}"));
                }
                Found::Damaged { offset, len } => {
                    damage(&mut scan, format!("control/{name}: {len} damaged bytes at {offset}"));
                }
                Found::Tail { offset, len } if !is_closed && torn::is_torn(&bytes[offset..]) => {
                    scan.findings.push(format!(
                        "control/{name}: {len} bytes at the end, from {offset}, are no record"
                    ));
                }
                Found::Tail { offset, len } => {
                    torn = false;
                    damage(
                        &mut scan,
                        format!("control/{name}: {len} damaged bytes at the end, from {offset}"),
                    );
                }
            }
        }
        let end = FileEnd { file, len };
        if torn && (bytes.len() as u64 > len || len == 0) {
            scan.tails.push(end);
        }
        scan.last = Some(end);
        scan.last_is_kept = !torn;
    }
    for (entry, _) in &scan.entries {
        if let ControlRecord::Recovered { findings } = &entry.record {
            scan.damage.retain(|what| !findings.contains(what));
        }
    }
    scan.hold_against(end);
    Ok(scan)
}

/// A record as it was signed.
pub(crate) struct Signed {
    pub entry: Entry,
    pub json: String,
    pub signature: [u8; SIGNATURE_BYTES],
}

/// The records that `wanted` takes, in their order; what does not check is left out.
pub(crate) fn signed_records(
    env: &Env,
    dir: &Path,
    key: PublicKey,
    wanted: impl Fn(&ControlRecord) -> bool,
) -> io::Result<Vec<Signed>> {
    let mut records = Vec::new();
    for file in env.storage.numbered(dir, "log")? {
        let bytes = env.storage.read(&dir.join(numbered_name(file, "log")))?;
        for found in Scan::new(&bytes, 0) {
            let Found::Frame { kind: Kind::Control, payload, .. } = found else { continue };
            let Ok(entry) = read_entry(payload, key) else { continue };
            if let (true, Some((signature, json))) = (wanted(&entry.record), payload.split_first_chunk()) {
                let json = String::from_utf8_lossy(json).into_owned();
                records.push(Signed { entry, json, signature: *signature });
            }
        }
    }
    Ok(records)
}

/// Reads a record that was taken out of the journal.
pub(crate) fn read_signed(
    json: &str,
    signature: &[u8; SIGNATURE_BYTES],
    key: PublicKey,
) -> Result<Entry, &'static str> {
    read_entry(&[signature, json.as_bytes()].concat(), key)
}

fn read_entry(payload: &[u8], key: PublicKey) -> Result<Entry, &'static str> {
    let (signature, json) = payload.split_at_checked(SIGNATURE_BYTES).ok_or("too short")?;
    let signature = signature.try_into().map_err(|_| "too short")?;
    if !key.verify(Purpose::Manifest, &[DOMAIN, json].concat(), signature) {
        return Err("the signature is not the gateway's");
    }
    let entry: Entry = serde_json::from_slice(json).map_err(|_| "not a control record")?;
    if entry.version == VERSION { Ok(entry) } else { Err("unknown version") }
}

impl ControlJournal {
    pub(crate) fn from_scan(dir: PathBuf, scan: &JournalScan) -> Self {
        let (sequence, last_hash) =
            scan.entries.last().map_or((0, Hash::default()), |(entry, hash)| (entry.sequence, *hash));
        let (file, len) = scan.last.map_or((1, 0), |last| (last.file, last.len));
        let mut journal = ControlJournal {
            dir,
            file,
            len,
            usable: !scan.last_is_kept,
            name_synced: false,
            next_sequence: sequence + 1,
            last_hash,
            closed: false,
            enrolments: Vec::new(),
            revocations: Vec::new(),
            refused: BTreeMap::new(),
            unknown_receipts: Vec::new(),
        };
        for (entry, _) in &scan.entries {
            journal.note(&entry.record);
        }
        journal
    }

    /// Appends records with one fsync. What follows a clean close begins with [`ControlRecord::Opened`].
    pub(crate) fn append(
        &mut self,
        env: &Env,
        signer: &Signer,
        mut records: Vec<ControlRecord>,
    ) -> Result<(), ControlError> {
        if records.is_empty() {
            return Ok(());
        }
        if self.closed && records[0] != ControlRecord::Opened {
            records.insert(0, ControlRecord::Opened);
        }
        let framed = self.frame(env, signer, records)?;
        self.write(env, signer, framed)
    }

    /// Gives records their places at the end of the journal.
    pub(crate) fn frame(
        &self,
        env: &Env,
        signer: &Signer,
        records: Vec<ControlRecord>,
    ) -> Result<Framed, ControlError> {
        let (mut bytes, mut hash, mut sequence) = (Vec::new(), self.last_hash, self.next_sequence - 1);
        let mut framed = Vec::with_capacity(records.len());
        for record in records {
            sequence += 1;
            let entry = Entry { at: env.now(), previous: hash, record, sequence, version: VERSION };
            let json = serde_json::to_vec(&entry)?;
            if json.len() > RECORD_BYTES_MAX {
                return Err(ControlError::TooLong(json.len()));
            }
            let mut payload = signer.sign(Purpose::Manifest, &[DOMAIN, &json].concat()).to_vec();
            payload.extend_from_slice(&json);
            put_frame(&mut bytes, Kind::Control, &payload);
            hash = Hash::of(&[&payload]);
            framed.push(entry.record);
        }
        Ok(Framed { records: framed, bytes, sequence, hash })
    }

    /// Makes framed records durable; nothing may have been appended since they were framed.
    ///
    /// When only the end does not become durable, the records are in force all the same: they are on disk.
    pub(crate) fn write(&mut self, env: &Env, signer: &Signer, framed: Framed) -> Result<(), ControlError> {
        debug_assert_eq!(framed.sequence + 1, self.next_sequence + framed.records.len() as u64);
        if self.closed {
            End::new(self.next_sequence - 1, self.last_hash, false).write(env, &self.dir, signer)?;
        }
        if !self.usable || self.len > FILE_BYTES_MAX {
            (self.file, self.len, self.name_synced) = (self.next_sequence, 0, false);
            // A failed attempt under this name: two attempts in one place would look like damage.
            let path = self.dir.join(numbered_name(self.file, "log"));
            match env.storage.remove(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    self.usable = false;
                    return Err(ControlError::Io { path, source });
                }
                _ => self.usable = true,
            }
        }
        let path = self.dir.join(numbered_name(self.file, "log"));
        if let Err(source) = self.write_frames(env, &path, &framed.bytes) {
            // What may have been written is cut off; if that fails too, the file is left for a new one.
            self.usable =
                env.storage.truncate(&path, self.len).and_then(|()| env.storage.sync(&path)).is_ok();
            return Err(ControlError::Io { path, source });
        }
        (self.usable, self.name_synced) = (true, true);
        self.len += framed.bytes.len() as u64;
        self.last_hash = framed.hash;
        self.next_sequence = framed.sequence + 1;
        framed.records.iter().for_each(|record| self.note(record));
        End::new(framed.sequence, framed.hash, self.closed).write(env, &self.dir, signer)
    }

    /// Whether the last record says that the store was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    fn write_frames(&self, env: &Env, path: &Path, frames: &[u8]) -> io::Result<()> {
        env.storage.write_at(path, self.len, frames)?;
        env.storage.sync(path)?;
        if self.name_synced { Ok(()) } else { env.storage.sync_dir(&self.dir) }
    }

    fn note(&mut self, record: &ControlRecord) {
        self.closed = *record == ControlRecord::Closed;
        match record {
            ControlRecord::Enrolled(enrolment) => {
                self.enrolments.retain(|e| {
                    (&e.tenant, &e.collector_id, &e.signing_key, &e.epoch)
                        != (
                            &enrolment.tenant,
                            &enrolment.collector_id,
                            &enrolment.signing_key,
                            &enrolment.epoch,
                        )
                });
                self.enrolments.push(enrolment.clone());
                self.refused.remove(&(enrolment.tenant.clone(), enrolment.collector_id.clone()));
            }
            ControlRecord::Revoked(revocation) => {
                self.enrolments.retain(|e| !covers(revocation, e));
                let (tenant, collector) = (&revocation.tenant, &revocation.collector_id);
                if !self.enrolments.iter().any(|e| (&e.tenant, &e.collector_id) == (tenant, collector)) {
                    let named = (tenant.clone(), collector.clone());
                    self.refused.entry(named).or_insert(revocation.revoked_at);
                }
                self.revocations.push(revocation.clone());
            }
            ControlRecord::ReceiptUnknown { tenant, stream, receipt, .. }
                if self.unknown_receipts.len() < UNKNOWN_RECEIPTS_MAX =>
            {
                self.unknown_receipts.push((tenant.clone(), stream.collector.clone(), receipt.clone()));
            }
            _ => {}
        }
    }

    /// Heartbeats with a receipt that this store did not give, with their collectors.
    pub(crate) fn unknown_receipts(&self) -> &[(TenantId, CollectorId, UnknownReceipt)] {
        &self.unknown_receipts
    }

    /// Collectors from which nothing is taken any more, and since when.
    pub(crate) fn refused(&self) -> &BTreeMap<(TenantId, CollectorId), Timestamp> {
        &self.refused
    }

    /// Enrolments in force.
    pub(crate) fn enrolments(&self) -> &[Enrolment] {
        &self.enrolments
    }

    /// A key is revoked when a revocation names it, or its collector, and nothing enrolled it since.
    pub(crate) fn is_revoked(&self, tenant: &TenantId, collector: &CollectorId, key: &KeyId) -> bool {
        let named = |r: &Revocation| {
            r.tenant == *tenant && r.collector_id == *collector && r.key_id.as_ref().is_none_or(|k| k == key)
        };
        self.revocations.iter().any(named)
            && !self
                .enrolments
                .iter()
                .any(|e| e.tenant == *tenant && e.collector_id == *collector && e.signing_key.id() == *key)
    }
}

fn covers(revocation: &Revocation, enrolment: &Enrolment) -> bool {
    revocation.tenant == enrolment.tenant
        && revocation.collector_id == enrolment.collector_id
        && revocation.key_id.as_ref().is_none_or(|k| *k == enrolment.signing_key.id())
        && revocation.certificate_serial.as_ref().is_none_or(|s| *s == enrolment.certificate_serial)
}
