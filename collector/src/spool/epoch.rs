//! One epoch of the spool: its identity, its signing key, its three streams and what of them is acknowledged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use activity_schema::ids::{CollectorId, Epoch, HostId, TenantId};
use activity_schema::keys::Signer;
use activity_schema::merkle::Hash;
use activity_schema::{Class, StreamId, Timestamp};
use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::reader::SpoolReader;
use super::recover::{Damage, missing, open_stream};
use super::slots::Slots;
use super::stream::{BatchIndex, HeaderFacts, StreamLog};

/// Format version of an epoch's folder.
const EPOCH_FORMAT: u32 = 1;

/// `epoch.json`. An epoch is continued only by a collector for which all of this but `created` is equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochIdentity {
    pub format: u32,
    pub epoch: Epoch,
    pub tenant: TenantId,
    pub host: HostId,
    pub collector_id: CollectorId,
    pub boot_id: String,
    /// Nonce of the instance; a snapshot clone has another.
    pub nonce: String,
    pub created: Timestamp,
}

impl EpochIdentity {
    /// Of the collector `c` on the host `h` of the tenant `t`.
    #[cfg(test)]
    pub fn of_a_test(epoch: &str) -> Self {
        EpochIdentity {
            format: EPOCH_FORMAT,
            epoch: epoch.parse().unwrap(),
            tenant: "t".parse().unwrap(),
            host: "h".parse().unwrap(),
            collector_id: "c".parse().unwrap(),
            boot_id: "boot".to_owned(),
            nonce: String::new(),
            created: Timestamp::from_nanos(1),
        }
    }

    fn continues(&self, other: &EpochIdentity) -> bool {
        EpochIdentity { epoch: other.epoch.clone(), created: other.created, ..self.clone() } == *other
    }
}

/// Newest acknowledged batch of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acked {
    pub batch_number: u64,
    pub sequence: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AckState {
    pub streams: BTreeMap<String, Acked>,
    pub last_receipt_hash: Option<Hash>,
}

pub struct EpochSpool<D: Disk> {
    disk: D,
    dir: PathBuf,
    pub identity: EpochIdentity,
    pub facts: HeaderFacts,
    pub signer: Signer,
    pub streams: BTreeMap<Class, StreamLog<D>>,
    pub acks: AckState,
    slots: Slots<D::File>,
    pub damage: BTreeMap<Class, Damage>,
}

impl<D: Disk> EpochSpool<D> {
    /// Creates an epoch with a fresh key. Everything is on disk when this returns.
    pub fn create(disk: &D, spool_dir: &Path, identity: EpochIdentity, seed: &[u8; 32]) -> io::Result<Self> {
        let dir = spool_dir.join(identity.epoch.as_str());
        disk.create_dir(&dir)?;
        disk.replace(&dir.join("key"), seed)?;
        disk.replace(&dir.join("epoch.json"), &serde_json::to_vec(&identity)?)?;
        disk.sync_dir(spool_dir)?;
        Self::open(disk, spool_dir, identity.epoch.as_str())
    }

    pub fn open(disk: &D, spool_dir: &Path, name: &str) -> io::Result<Self> {
        let dir = spool_dir.join(name);
        let unusable = |name: &str, why: &dyn std::fmt::Display| {
            io::Error::other(format!(
                "{}: {why}; move the folder away to go on with a new epoch (what it holds unsent stays in it)",
                dir.join(name).display()
            ))
        };
        let identity = disk.read(&dir.join("epoch.json")).map_err(|error| unusable("epoch.json", &error))?;
        let identity: EpochIdentity =
            serde_json::from_slice(&identity).map_err(|error| unusable("epoch.json", &error))?;
        if identity.format != EPOCH_FORMAT {
            let why = format!("format {} is not known to this version", identity.format);
            return Err(unusable("epoch.json", &why));
        }
        let seed = disk.read(&dir.join("key")).map_err(|error| unusable("key", &error))?;
        let seed: [u8; 32] = seed.try_into().map_err(|_| unusable("key", &"not a key of 32 bytes"))?;
        let (slots, acks) = Slots::open::<D, AckState>(disk, &dir.join("acks.state"))?;
        let acks = acks.unwrap_or_default();
        let (mut streams, mut damage) = (BTreeMap::new(), BTreeMap::new());
        for class in Class::ALL {
            let stream = StreamId {
                collector: identity.collector_id.clone(),
                epoch: identity.epoch.clone(),
                class: *class,
            };
            let index = BatchIndex::default();
            let (mut log, mut found) = open_stream(disk, dir.join(class.as_str()), stream, index)?;
            let (acked, sequence) =
                acks.streams.get(class.as_str()).map_or((0, 0), |a| (a.batch_number, a.sequence));
            let missing = missing(&log, sequence);
            if missing > 0 {
                found.broken = true;
                found.missing = Some((missing, log.newest()));
            }
            if acked > 0 {
                // Its numbers were used: going on from an earlier one would fork the stream.
                found.broken |= acked >= log.next_batch;
                log.release(acked)?;
            }
            found.headless = log.first_pending().is_some_and(|first| first > acked + 1);
            found.broken |= found.headless;
            streams.insert(*class, log);
            damage.insert(*class, found);
        }
        let facts = HeaderFacts {
            tenant: identity.tenant.clone(),
            host: identity.host.clone(),
            boot_id: identity.boot_id.clone(),
        };
        let signer = Signer::from_seed(&seed);
        Ok(EpochSpool { disk: disk.clone(), dir, identity, facts, signer, streams, acks, slots, damage })
    }

    /// Whether new events may be appended by a collector of this identity.
    pub fn is_continued_by(&self, wanted: &EpochIdentity) -> bool {
        let intact = self.damage.values().all(|d| d.torn_bytes == 0 && !d.broken);
        intact && self.identity.continues(wanted)
    }

    pub fn reader(&self) -> SpoolReader<D> {
        let batches = self.streams.iter().map(|(c, s)| (*c, s.batches.clone())).collect();
        SpoolReader { disk: self.disk.clone(), batches }
    }

    /// Whether anything is left to be sent.
    pub fn is_drained(&self) -> bool {
        self.streams.values().all(|s| s.open.count() == 0 && super::stream::lock(&s.batches).is_empty())
    }

    pub fn bytes(&self) -> u64 {
        self.streams.values().map(StreamLog::bytes).sum()
    }

    /// The gateway holds batches of a class up to `number` durably.
    pub fn release(&mut self, class: Class, number: u64, receipt: Hash) -> io::Result<()> {
        let Some(log) = self.streams.get_mut(&class) else { return Ok(()) };
        let sequence =
            super::stream::lock(&log.batches).iter().find(|b| b.number == number).map(|b| b.last_sequence);
        let Some(sequence) = sequence else { return Ok(()) };
        self.acks.streams.insert(class.as_str().to_owned(), Acked { batch_number: number, sequence });
        self.acks.last_receipt_hash = Some(receipt);
        self.slots.write(&self.acks, false)?;
        log.release(number)
    }

    /// Marks that the gateway knows this epoch's key.
    pub fn set_registered(&self) -> io::Result<()> {
        self.disk.replace(&self.dir.join("registered"), b"")
    }

    pub fn is_registered(&self) -> bool {
        self.disk.read(&self.dir.join("registered")).is_ok()
    }

    /// Removes a drained epoch.
    pub fn remove(self) -> io::Result<()> {
        for class in Class::ALL {
            let dir = self.dir.join(class.as_str());
            for name in self.disk.list(&dir)? {
                self.disk.remove(&dir.join(name))?;
            }
            self.disk.remove_dir(&dir)?;
        }
        for name in self.disk.list(&self.dir)? {
            self.disk.remove(&self.dir.join(name))?;
        }
        self.disk.remove_dir(&self.dir)
    }
}
