//! The spool: what was observed, on disk, until the gateway holds it durably.
//!
//! Format version 1, a folder:
//!
//! ```text
//! loss.state                      losses not yet durable as events; preallocated
//! <epoch>/epoch.json, key         identity; Ed25519 seed that signs the epoch's batches
//! <epoch>/registered              the gateway knows the key
//! <epoch>/acks.state              acknowledged batches by class; preallocated
//! <epoch>/<class>/<sequence>.seg  segments: see `frame`
//! <epoch>/<class>/head            sequence after the newest line
//! ```
//!
//! Rules that must stay true:
//! - one writer; sources never see it, and it never sees the network;
//! - a batch is fsynced before its first byte is sent, and its boundaries never move;
//! - an epoch is continued only when boot, nonce and identity are the same and its tail was whole;
//! - under pressure bulk goes first, then standard; a shed batch keeps its header, so the chain holds;
//! - what could not be appended used no sequence and is in the ledger.

pub mod disk;
mod epoch;
pub mod frame;
mod ledger;
mod reader;
mod recover;
mod slots;
mod stream;
#[cfg(test)]
mod tests;
mod unsynced;

pub use disk::{Disk, OsDisk};
pub use epoch::{AckState, EpochIdentity, EpochSpool};
pub use frame::RingCursor;
pub use ledger::{Ledger, Loss, LossKey};
pub use reader::{ReadError, SpoolReader};
pub use recover::Damage;
pub use stream::{BatchRef, Line};
pub use unsynced::Unsynced;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use activity_schema::batch::{BATCH_EVENTS_MAX, BATCH_RAW_BYTES_MAX, ClockState};
use activity_schema::ids::Epoch;
use activity_schema::merkle::Hash;
use activity_schema::{Class, Timestamp};

use stream::SealContext;

/// Bounds of the spool, bytes. Critical events may use all of `bytes_max`; the others only their share of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolLimits {
    pub bytes_max: u64,
    pub standard_bytes_max: u64,
    pub bulk_bytes_max: u64,
}

impl SpoolLimits {
    /// Half is reserved for critical events; standard may use up to half, bulk up to a quarter.
    pub const fn of_total(bytes_max: u64) -> Self {
        SpoolLimits { bytes_max, standard_bytes_max: bytes_max / 2, bulk_bytes_max: bytes_max / 4 }
    }

    /// Past this size a segment is closed, bytes: the grain of release and shedding. The newest segment of each stream
    /// stays when all is released, so that a small spool has small ones.
    const fn segment_bytes(&self) -> u64 {
        let share = self.bytes_max / SEGMENTS_MIN;
        if share < SEGMENT_BYTES { share } else { SEGMENT_BYTES }
    }

    const fn of_class(&self, class: Class) -> u64 {
        match class {
            Class::Critical => self.bytes_max,
            Class::Standard => self.standard_bytes_max,
            Class::Bulk => self.bulk_bytes_max,
        }
    }
}

/// A segment is closed at the first seal past this size.
const SEGMENT_BYTES: u64 = 1024 * 1024;
/// So many segments fit into the smallest spool.
const SEGMENTS_MIN: u64 = 16;

/// Seal when the open batch is this old, nanoseconds (contract, "Batch").
const SEAL_AGE_NS: [(Class, u64); 3] =
    [(Class::Critical, 100_000_000), (Class::Standard, 1_000_000_000), (Class::Bulk, 1_000_000_000)];
/// A critical batch is sealed at so many events.
const CRITICAL_EVENTS_MAX: u64 = 256;

/// How the spool was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolState {
    Fresh,
    Intact,
    TornTail,
    Foreign,
}

impl SpoolState {
    pub const fn as_str(self) -> &'static str {
        match self {
            SpoolState::Fresh => "fresh",
            SpoolState::Intact => "intact",
            SpoolState::TornTail => "torn_tail",
            SpoolState::Foreign => "foreign",
        }
    }
}

/// What opening found.
#[derive(Debug)]
pub struct Recovery {
    pub state: SpoolState,
    /// Kernel ring positions up to which a class's stream already holds the events of the ring.
    pub cursors: BTreeMap<(Class, u8), u64>,
    /// Time of the newest event that the spool has had: what happened since was recorded by nobody, unless the
    /// kernel's rings still hold it.
    pub newest: Option<Timestamp>,
    pub damage: Vec<(Epoch, Class, Damage)>,
}

/// A batch became sendable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub epoch: Epoch,
    pub class: Class,
    pub number: u64,
    pub bytes: u64,
}

/// Batches lost their lines to make room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shed {
    pub class: Class,
    pub stream: String,
    pub batches: Vec<BatchRef>,
}

/// Why lines were not appended. Nothing of them is in the spool and no sequence was used.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the spool's quota is used up and nothing of lower class is left to shed")]
    Quota,
    #[error("the spool cannot be written")]
    Io(#[source] io::Error),
}

/// The single writer.
pub struct Spool<D: Disk> {
    disk: D,
    dir: PathBuf,
    limits: SpoolLimits,
    current: EpochSpool<D>,
    old: Vec<EpochSpool<D>>,
    pub ledger: Ledger<D>,
    sheds: Vec<Shed>,
    policy_digest: Hash,
}

impl<D: Disk> Spool<D> {
    /// Opens the spool; continues the newest epoch when it is `wanted`'s, else begins `wanted.epoch` with `seed`.
    /// Open lines of earlier epochs are sealed with their own keys.
    pub fn open(
        disk: D,
        dir: &Path,
        limits: SpoolLimits,
        wanted: EpochIdentity,
        seed: &[u8; 32],
        clock: ClockState,
    ) -> io::Result<(Self, Recovery)> {
        disk.create_dir(dir)?;
        let now = wanted.created;
        let mut epochs = Vec::new();
        for name in disk.list(dir)? {
            // One that a crash left before it was an epoch has no streams yet.
            let has_streams =
                || disk.list(&dir.join(&name)).is_ok_and(|all| all.iter().any(|n| n == "critical"));
            if disk.read(&dir.join(&name).join("epoch.json")).is_ok() || has_streams() {
                epochs.push(EpochSpool::open(&disk, dir, &name)?);
            }
        }
        let damage = epochs
            .iter()
            .flat_map(|e| e.damage.iter().map(|(c, d)| (e.identity.epoch.clone(), *c, d.clone())))
            .filter(|(_, _, d)| *d != Damage::default())
            .collect::<Vec<_>>();
        let newest = epochs.pop();
        let (state, current) = match newest {
            None => (SpoolState::Fresh, None),
            Some(e) if e.is_continued_by(&wanted) => (SpoolState::Intact, Some(e)),
            Some(e) => {
                let torn = e.damage.values().any(|d| d.torn_bytes > 0 || d.broken);
                epochs.push(e);
                (if torn { SpoolState::TornTail } else { SpoolState::Foreign }, None)
            }
        };
        let current = match current {
            Some(current) => current,
            None => EpochSpool::create(&disk, dir, wanted, seed)?,
        };
        let mut cursors: BTreeMap<(Class, u8), u64> = BTreeMap::new();
        let every_stream = epochs.iter().chain([&current]).flat_map(|e| e.streams.values());
        let newest = every_stream.map(stream::StreamLog::newest).max().flatten();
        // Rings do not outlive a boot; an epoch of this boot holds what its rings gave it, whoever continues it.
        let same_boot = epochs.iter().filter(|e| e.identity.boot_id == current.identity.boot_id);
        for (class, stream) in same_boot.flat_map(|e| &e.streams).chain(&current.streams) {
            for (ring, position) in &stream.cursors {
                let seen = cursors.entry((*class, *ring)).or_default();
                *seen = (*seen).max(*position);
            }
        }
        let ledger = Ledger::open(&disk, &dir.join("loss.state"))?;
        let mut spool = Spool {
            disk,
            dir: dir.to_owned(),
            limits,
            current,
            old: epochs,
            ledger,
            sheds: Vec::new(),
            policy_digest: Hash::default(),
        };
        let (told, open) = spool.losses_told();
        spool.seal_old(clock, now)?;
        spool.ledger.recognise(&told, &open, spool.current.streams[&Class::Critical].next_batch);
        spool.drop_drained();
        Ok((spool, Recovery { state, cursors, newest, damage }))
    }

    fn seal_old(&mut self, clock: ClockState, now: Timestamp) -> io::Result<()> {
        for epoch in &mut self.old {
            let facts = epoch.facts.clone();
            let context = SealContext {
                header: &facts,
                clock,
                policy_digest: self.policy_digest,
                now,
                ring_names: RING_NAMES,
                segment_bytes: self.limits.segment_bytes(),
            };
            for stream in epoch.streams.values_mut() {
                if let Some(batch) = stream.seal(&context, &epoch.signer)? {
                    Unsynced::sync(std::slice::from_ref(&batch))?;
                    batch.finish();
                }
            }
        }
        Ok(())
    }

    /// Ids of the losses whose events are in the spool from before a kill: in batches that are sealed, and in the one
    /// that is open.
    fn losses_told(&self) -> (Vec<uuid::Uuid>, Vec<uuid::Uuid>) {
        let every_stream = self.epochs().flat_map(|e| e.streams.values());
        let sealed = every_stream.flat_map(|s| &s.losses_told);
        // Old epochs are sealed before anything else happens.
        let old = self.old.iter().flat_map(|e| e.streams.values()).flat_map(|s| &s.open.losses);
        let open = self.current.streams.values().flat_map(|s| &s.open.losses);
        (sealed.chain(old).copied().collect(), open.copied().collect())
    }

    pub fn identity(&self) -> &EpochIdentity {
        &self.current.identity
    }

    pub fn current(&self) -> &EpochSpool<D> {
        &self.current
    }

    /// Every epoch with something to send, oldest first; the current one is last.
    pub fn epochs(&self) -> impl Iterator<Item = &EpochSpool<D>> {
        self.old.iter().chain(std::iter::once(&self.current))
    }

    pub fn set_policy_digest(&mut self, digest: Hash) {
        self.policy_digest = digest;
    }

    /// Sequence of the next line of a class.
    pub fn next_sequence(&self, class: Class) -> u64 {
        self.current.streams.get(&class).map_or(1, |s| s.next_sequence)
    }

    /// Text of `source.collector` for a class.
    pub fn stream_text(&self, class: Class) -> String {
        self.current.streams.get(&class).map(|s| s.stream.to_string()).unwrap_or_default()
    }

    pub fn bytes(&self) -> u64 {
        self.epochs().map(EpochSpool::bytes).sum()
    }

    /// Appends lines whose sequences start at [`Spool::next_sequence`]. Makes room by shedding lower classes.
    pub fn append(
        &mut self,
        class: Class,
        lines: &[Line],
        cursors: &[RingCursor],
        now_ns: u64,
    ) -> Result<(), AppendError> {
        let len: u64 = lines.iter().map(|l| l.bytes.len() as u64 + 16).sum();
        self.make_room(class, len)?;
        let Some(stream) = self.current.streams.get_mut(&class) else { return Ok(()) };
        stream.append(lines, cursors, now_ns).map_err(AppendError::Io)
    }

    /// Whether appending `more` bytes and lines would pass a bound of the batch, or the open batch is due.
    pub fn seal_due(&self, class: Class, now_ns: u64, more_lines: u64, more_bytes: u64) -> bool {
        let Some(stream) = self.current.streams.get(&class) else { return false };
        let open = &stream.open;
        if open.count() == 0 {
            return false;
        }
        let events_max = if class == Class::Critical { CRITICAL_EVENTS_MAX } else { BATCH_EVENTS_MAX };
        let age = SEAL_AGE_NS.iter().find(|(c, _)| *c == class).map_or(0, |(_, age)| *age);
        open.count() + more_lines > events_max
            || (more_lines == 0 && open.count() >= events_max)
            || open.raw_bytes + more_bytes + more_lines > BATCH_RAW_BYTES_MAX
            || now_ns.saturating_sub(open.opened_at_ns) >= age
    }

    /// When the oldest open batch is due, nanoseconds on the caller's clock.
    pub fn next_seal_at_ns(&self) -> Option<u64> {
        SEAL_AGE_NS
            .iter()
            .filter_map(|(class, age)| {
                let open = &self.current.streams.get(class)?.open;
                (open.count() > 0).then(|| open.opened_at_ns.saturating_add(*age))
            })
            .min()
    }

    /// Seals the open batch of a class. It may be sent when it is synced and finished.
    pub fn seal(
        &mut self,
        class: Class,
        clock: ClockState,
        now: Timestamp,
    ) -> io::Result<Option<Unsynced<D>>> {
        let facts = self.current.facts.clone();
        let context = SealContext {
            header: &facts,
            clock,
            policy_digest: self.policy_digest,
            now,
            ring_names: RING_NAMES,
            segment_bytes: self.limits.segment_bytes(),
        };
        let Some(stream) = self.current.streams.get_mut(&class) else { return Ok(None) };
        stream.seal(&context, &self.current.signer)
    }

    /// The event of a loss was appended to the open critical batch.
    pub fn loss_told(&mut self, event_id: uuid::Uuid) {
        if let Some(stream) = self.current.streams.get(&Class::Critical) {
            self.ledger.emitted(event_id, stream.next_batch);
        }
    }

    /// Forgets the losses whose events are on disk by now.
    pub fn forget_told_losses(&mut self) {
        if let Some(stream) = self.current.streams.get(&Class::Critical) {
            self.ledger.synced(stream.synced());
        }
    }

    /// The gateway holds a batch durably.
    pub fn release(&mut self, epoch: &Epoch, class: Class, number: u64, receipt: Hash) -> io::Result<()> {
        // The events of told losses go with the batch; the losses must be forgotten before.
        self.forget_told_losses();
        if *epoch == self.current.identity.epoch {
            return self.current.release(class, number, receipt);
        }
        if let Some(old) = self.old.iter_mut().find(|e| e.identity.epoch == *epoch) {
            old.release(class, number, receipt)?;
        }
        self.drop_drained();
        Ok(())
    }

    pub fn set_registered(&self, epoch: &Epoch) -> io::Result<()> {
        self.epochs().filter(|e| e.identity.epoch == *epoch).try_for_each(EpochSpool::set_registered)
    }

    /// What was shed since the last call.
    pub fn take_sheds(&mut self) -> Vec<Shed> {
        std::mem::take(&mut self.sheds)
    }

    fn drop_drained(&mut self) {
        for epoch in std::mem::take(&mut self.old) {
            if epoch.is_drained() {
                // What cannot be removed now is found drained again at the next start.
                let _ = epoch.remove();
            } else {
                self.old.push(epoch);
            }
        }
        let _ = self.disk.sync_dir(&self.dir);
    }

    /// Sheds until `len` more bytes of `class` fit: first what is over its own share, then lower classes.
    fn make_room(&mut self, class: Class, len: u64) -> Result<(), AppendError> {
        let own_max = self.limits.of_class(class);
        while self.class_bytes(class) + len > own_max {
            if class == Class::Critical || !self.shed_one(class)? {
                break;
            }
        }
        for victim in [Class::Bulk, Class::Standard] {
            while self.bytes() + len > self.limits.bytes_max && victim >= class {
                if !self.shed_one(victim)? {
                    break;
                }
            }
        }
        let fits = self.bytes() + len <= self.limits.bytes_max && self.class_bytes(class) + len <= own_max;
        if fits { Ok(()) } else { Err(AppendError::Quota) }
    }

    fn class_bytes(&self, class: Class) -> u64 {
        self.epochs().filter_map(|e| e.streams.get(&class)).map(stream::StreamLog::bytes).sum()
    }

    fn shed_one(&mut self, class: Class) -> Result<bool, AppendError> {
        for epoch in self.old.iter_mut().chain(std::iter::once(&mut self.current)) {
            let Some(stream) = epoch.streams.get_mut(&class) else { continue };
            if let Some(batches) = stream.shed_oldest().map_err(AppendError::Io)? {
                if !batches.is_empty() {
                    self.sheds.push(Shed { class, stream: stream.stream.to_string(), batches });
                }
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Names of the kernel rings in batch headers, by ring number.
pub const RING_NAMES: &[&str] = &["vital", "process", "flow", "file"];

/// After a new enrolment the gateway knows none of the epochs' keys.
pub fn forget_registrations(spool_dir: &Path) -> io::Result<()> {
    let Ok(names) = OsDisk.list(spool_dir) else { return Ok(()) };
    for name in names {
        match OsDisk.remove(&spool_dir.join(name).join("registered")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound && e.kind() != io::ErrorKind::NotADirectory => {
                return Err(e);
            }
            _ => {}
        }
    }
    Ok(())
}
