//! What targets start from: the examples of the catalogue, and a collector that records them.

use std::sync::Arc;

use activity_collector::clock::ClockReading;
use activity_collector::recorder::Recorder;
use activity_collector::sandbox::Instance;
use activity_collector::spool::{EpochIdentity, Recovery, Spool, SpoolLimits, Unsynced};
use activity_schema::batch::ClockState;
use activity_schema::event::{Layer, Runtime};
use activity_schema::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use activity_schema::{Class, Timestamp, batch};
use activity_store::Instances;
use activity_tests::sim::disk::MemoryDisk;

/// 2026-08-01T12:00:00Z, a second after boot.
pub const CLOCK: ClockReading = ClockReading {
    boot_ns: 1_000_000_000,
    wall: Timestamp::from_nanos(1_785_585_600_000_000_000),
    state: ClockState { error_ns: 1_000_000, offset_ns: 0, synchronised: true },
    state_at_ns: 1_000_000_000,
};
pub const EPOCH: &str = "01980000-0000-7000-8000-000000000001";
/// Seed of the key that signs the epoch's batches.
pub const KEY: [u8; 32] = [7; 32];

/// One example of every event name.
pub fn lines() -> impl Iterator<Item = &'static str> {
    include_str!("../../../fixtures/events.jsonl").lines()
}

/// The identity that the examples name.
pub fn identity() -> EpochIdentity {
    EpochIdentity {
        format: 1,
        epoch: Epoch::new(EPOCH).expect("an id"),
        tenant: tenant(),
        host: HostId::new("host-1").expect("an id"),
        collector_id: CollectorId::new("collector-1").expect("an id"),
        boot_id: "3f1b0c9e-1c1e-4bb1-9d63-0c8f3a3f9a11".to_owned(),
        nonce: String::new(),
        created: CLOCK.wall,
    }
}

pub fn tenant() -> TenantId {
    TenantId::new("tenant-a").expect("an id")
}

pub fn instances() -> Instances {
    Instances::One(InstanceId::new("sandbox-1").expect("an id"))
}

/// The whole guest is one sandbox: no cgroup is ever looked up.
pub fn instance() -> Instance {
    Instance {
        instance_id: "sandbox-1".to_owned(),
        agent_id: "iteron".to_owned(),
        runtime: Runtime::Docker,
        layer: Layer::Guest,
        cgroup: "/".to_owned(),
    }
}

/// Starts on a new disk.
pub fn spool(disk: &MemoryDisk) -> Spool<MemoryDisk> {
    reopen(disk, EPOCH).expect("the disk is empty").0
}

/// Starts on any disk; `epoch` is begun unless an earlier one can be continued.
pub fn reopen(disk: &MemoryDisk, epoch: &str) -> std::io::Result<(Spool<MemoryDisk>, Recovery)> {
    let limits = SpoolLimits::of_total(64 << 20);
    let wanted = EpochIdentity { epoch: Epoch::new(epoch).expect("an id"), ..identity() };
    Spool::open(disk.clone(), "/spool".as_ref(), limits, wanted, &KEY, CLOCK.state)
}

pub fn recorder(spool: Spool<MemoryDisk>) -> Recorder<MemoryDisk> {
    Recorder::new(spool, Arc::new(instance()), CLOCK)
}

/// Seals what is open of a class, and waits for the disk.
pub fn seal(spool: &mut Spool<MemoryDisk>, class: Class) {
    let sealed = spool.seal(class, CLOCK.state, CLOCK.wall).expect("a disk in memory does not fail");
    finish(sealed.into_iter().collect());
}

/// Waits for the disk: from then on the batches are read back from it.
pub fn finish(unsynced: Vec<Unsynced<MemoryDisk>>) {
    Unsynced::sync(&unsynced).expect("a disk in memory does not fail");
    unsynced.into_iter().for_each(|batch| drop(batch.finish()));
}

/// Calls `check` with every line of every sealed batch of a spool; batches that do not read are passed over.
pub fn sealed_lines(spool: &Spool<MemoryDisk>, mut check: impl FnMut(&[u8])) {
    for epoch in spool.epochs() {
        let reader = epoch.reader();
        for class in Class::ALL {
            for reference in reader.pending(*class) {
                let Ok(sealed) = reader.read(*class, reference.number) else { continue };
                let Some(body) = &sealed.body else { continue };
                let raw = batch::decompress(body, sealed.header.raw_bytes).expect("the spool compressed it");
                let lines = batch::split_lines(&raw, sealed.header.count).expect("as many lines as declared");
                lines.iter().for_each(|line| check(line));
            }
        }
    }
}
