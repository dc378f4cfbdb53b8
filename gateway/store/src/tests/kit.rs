//! A collector in miniature: makes events and signed batches, as a real one would.

use std::sync::Arc;

use activity_schema::batch::{self, BATCH_VERSION, ClockState, Leaf};
use activity_schema::event::{
    Correlation, Event, Integrity, Layer, Outcome, Payload, Runtime, SchemaVersion, Source, Status, Trust,
};
use activity_schema::ids::{CollectorId, Epoch, HostId, InstanceId, TenantId};
use activity_schema::keys::Signer;
use activity_schema::{BatchHeader, Class, Hash, SignedBatch, Timestamp, catalog};
use uuid::Uuid;

use crate::types::{Caller, Instances};

/// 2026-08-01T12:00:00Z
pub(crate) const T0: i64 = 1_785_585_600_000_000_000;

pub(crate) struct Collector {
    pub tenant: TenantId,
    pub host: HostId,
    pub id: CollectorId,
    pub instance: InstanceId,
    pub epoch: Epoch,
    pub class: Class,
    pub signer: Arc<Signer>,
    pub next_number: u64,
    pub next_sequence: u64,
    pub previous: Hash,
    pub seed: u64,
}

impl Collector {
    pub(crate) fn new(tenant: &str, name: &str) -> Self {
        let mut key = [7u8; 32];
        for (at, byte) in name.bytes().chain(tenant.bytes()).enumerate() {
            key[at % 32] ^= byte;
        }
        Collector {
            tenant: TenantId::new(tenant).unwrap(),
            host: HostId::new(format!("host-{name}")).unwrap(),
            id: CollectorId::new(name).unwrap(),
            instance: InstanceId::new(format!("instance-{name}")).unwrap(),
            epoch: Epoch::new(Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001).to_string())
                .unwrap(),
            class: Class::Critical,
            signer: Arc::new(Signer::from_seed(&key)),
            next_number: 1,
            next_sequence: 1,
            previous: Hash::default(),
            seed: u64::from(key[0]) << 8 | u64::from(key[1]),
        }
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller {
            tenant: self.tenant.clone(),
            host: self.host.clone(),
            collector_id: self.id.clone(),
            instances: Instances::One(self.instance.clone()),
            keys: vec![(self.signer.id().clone(), self.signer.public(), self.epoch.clone())],
        }
    }

    pub(crate) fn stream(&self) -> String {
        format!("{}/{}/{}", self.id, self.epoch, self.class)
    }

    fn random(&mut self) -> u64 {
        // splitmix64: reproducible, and as hard to compress as real ids.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A line of this name with the next sequence `offset` from now.
    pub(crate) fn line(
        &mut self,
        offset: u64,
        name: &str,
        at: i64,
        change: impl FnOnce(&mut Event<'_>),
    ) -> Vec<u8> {
        let row = catalog::row(name).unwrap();
        let millis = u128::try_from(at / 1_000_000).unwrap();
        let random = u128::from(self.random()) << 64 | u128::from(self.random());
        let id = millis << 80 | 0x7 << 76 | (random & 0x0fff_3fff_ffff_ffff_ffff) | 0x8 << 60;
        let stream = self.stream();
        let (pid, start) = (self.random() % 30_000, self.random() % 1_000_000);
        let process = format!("{}:{pid}:{start}", &self.instance);
        let mut payload = Payload::new();
        match name {
            "process.exec" => {
                payload.set("executable", ["bash", "python3", "git", "cargo"][(random % 4) as usize]);
                payload.set("executable_class", "file");
                payload.set("executable_inode", (random % 1_000_000) as u64);
                payload.set("argc", (random % 9) as u64);
                payload.set("join", "inherited");
                payload.set("parent_process_id", format!("{}:{}:4711", &self.instance, random % 30_000));
            }
            "network.flow.closed" => {
                payload.set("family", "ipv4");
                payload.set("peer_address", format!("10.{}.2.{}", random % 3, random % 250));
                payload.set("peer_port", 443u64);
                payload.set("bytes_sent", (random % 100_000) as u64);
            }
            _ => {}
        }
        let mut event = Event {
            schema_version: SchemaVersion::V1,
            event_id: Uuid::from_u128(id),
            event_name: name.into(),
            plane: row.plane,
            occurred_at: Timestamp::from_nanos(at),
            observed_at: Timestamp::from_nanos(at + 1_500_000 + (random % 1_000_000) as i64),
            source: Source {
                collector: stream.as_str().into(),
                layer: Layer::Guest,
                runtime: Runtime::QemuKvm,
                trust: row.trusts.iter().copied().find(|t| *t == Trust::Observed).unwrap_or(row.trusts[0]),
                clock_id: Some("boot:3f1b0c9e-1c1e-4bb1-9d63-0c8f3a3f9a11".into()),
                clock_error_ms: None,
            },
            correlation: Correlation {
                tenant_id: self.tenant.as_str().into(),
                host_id: self.host.as_str().into(),
                instance_id: self.instance.as_str().into(),
                agent_id: "agent-1".into(),
                session_id: Some("session-1".into()),
                tool_call_id: Some("toolu_01A09q90qw90lq917835lq9".into()),
                process_id: Some(process.as_str().into()),
                ..Correlation::default()
            },
            actor: None,
            target: None,
            outcome: Some(Outcome { status: Status::Success, exit_code: None, reason: None }),
            sensitivity: activity_schema::event::Sensitivity::Metadata,
            retention_class: row.retention,
            payload,
            integrity: Integrity {
                collector_sequence: self.next_sequence + offset,
                source_hash: None,
                source_previous_hash: None,
                timeline_hash: None,
                timeline_previous_hash: None,
                signature: None,
                key_id: None,
            },
        };
        change(&mut event);
        event.to_line()
    }

    /// A sealed batch of these lines; the stream moves on.
    pub(crate) fn batch(&mut self, lines: &[Vec<u8>], at: (i64, i64)) -> SignedBatch {
        let raw = batch::join_lines(lines.iter().map(Vec::as_slice));
        let count = lines.len() as u64;
        let header = BatchHeader {
            batch_number: self.next_number,
            boot_id: "3f1b0c9e-1c1e-4bb1-9d63-0c8f3a3f9a11".into(),
            class: self.class,
            clock: ClockState { error_ns: 1_000_000, offset_ns: -25, synchronised: true },
            collector_id: self.id.clone(),
            count,
            epoch: self.epoch.clone(),
            first_sequence: self.next_sequence,
            host: self.host.clone(),
            key_id: self.signer.id().clone(),
            last_sequence: self.next_sequence + count - 1,
            merkle_root: batch::lines_root(lines.iter().map(|l| Leaf::Line(l))),
            occurred_max: Timestamp::from_nanos(at.1),
            occurred_min: Timestamp::from_nanos(at.0),
            policy_digest: Hash::of(&[b"policy"]),
            previous_batch_hash: self.previous,
            raw_bytes: raw.len() as u64,
            ring_cursors: [("process".to_owned(), self.next_sequence * 4096)].into(),
            sealed_at: Timestamp::from_nanos(at.1 + 80_000_000),
            tenant: self.tenant.clone(),
            version: BATCH_VERSION,
        };
        let body = batch::compress(&raw).unwrap().into();
        let signed = SignedBatch::sign(header, Some(body), &self.signer);
        self.next_number += 1;
        self.next_sequence += count;
        self.previous = signed.hash();
        signed
    }

    /// A batch of `count` process events, one a millisecond from `at` on.
    pub(crate) fn processes(&mut self, count: u64, at: i64) -> SignedBatch {
        let time = |i: u64| at + i64::try_from(i).unwrap() * 1_000_000;
        let lines: Vec<_> = (0..count)
            .map(|i| {
                let name = if i % 2 == 0 { "process.exec" } else { "process.exited" };
                self.line(i, name, time(i), |_| {})
            })
            .collect();
        self.batch(&lines, (at, time(count - 1)))
    }
}
