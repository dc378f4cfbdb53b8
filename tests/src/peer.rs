//! A collector's side of the uplink by hand: enrolled as any other, it sends what no collector would.

use activity_collector::uplink::client::{Client, ClientError, Endpoint};
use activity_collector::uplink::identity::{Applicant, IdentityDir, enroll, read_certificates};
use activity_schema::api::BatchesAnswer;
use activity_schema::batch::{self, BATCH_VERSION, ClockState, Leaf};
use activity_schema::ids::{CollectorId, Epoch, HostId};
use activity_schema::keys::Signer;
use activity_schema::{BatchHeader, Class, Hash, SignedBatch, Timestamp};
use serde_json::Value;

use crate::bench::Operator;
use crate::lab::{Lab, TENANT};

/// 2026-08-01T12:00:00Z
const AT: i64 = 1_785_585_600_000_000_000;

pub struct Peer {
    client: Client,
    signer: Signer,
    host: HostId,
    collector: CollectorId,
    epoch: Epoch,
    next_sequence: u64,
    batch_number: u64,
    previous: Hash,
}

impl Peer {
    pub async fn enrol(lab: &Lab, name: &str) -> anyhow::Result<Self> {
        let signer = Signer::from_seed(&rand::random());
        let applicant = Applicant {
            collector_id: name.parse()?,
            host: name.parse()?,
            instance: name.parse()?,
            signing_key: signer.public(),
            epoch: uuid::Uuid::now_v7().to_string().parse()?,
        };
        let token = Operator::of(lab).token(name).await?;
        let dir = IdentityDir::new(&lab.path(name));
        let url = lab.collector_url();
        let ca = read_certificates(&lab.path("gateway/pki/ca.pem"))?;
        enroll(&dir, &url, None, ca, &token, &applicant).await?;
        let client = Client::connect(&Endpoint::parse(&url, None)?, dir.tls()?).await?;
        let Applicant { collector_id: collector, host, epoch, .. } = applicant;
        let (next_sequence, batch_number, previous) = (1, 1, Hash::default());
        Ok(Peer { client, signer, host, collector, epoch, next_sequence, batch_number, previous })
    }

    /// The next `count` lines of the stream: execs, a microsecond apart.
    pub fn lines(&self, count: u64) -> Vec<Vec<u8>> {
        (0..count).map(|n| self.line(n, |_| {})).collect()
    }

    /// The line that is the `n`-th from now, changed.
    pub fn line(&self, n: u64, change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let at = Timestamp::from_nanos(AT + i64::try_from((self.next_sequence + n) * 1000).unwrap_or(0));
        let mut event = serde_json::json!({
            "schema_version": "activity.event/v1", "event_id": uuid::Uuid::now_v7(),
            "event_name": "process.exec", "plane": "action", "occurred_at": at, "observed_at": at,
            "source": {"collector": self.stream(), "layer": "guest", "runtime": "docker", "trust": "observed"},
            "correlation": {"tenant_id": TENANT, "host_id": self.host, "instance_id": self.host,
                "agent_id": "agent", "process_id": format!("p-{n}")},
            "outcome": {"status": "success"}, "sensitivity": "metadata", "retention_class": "security",
            "payload": {"executable": "sh", "argc": 1},
            "integrity": {"collector_sequence": self.next_sequence + n},
        });
        change(&mut event);
        event.to_string().into_bytes()
    }

    fn stream(&self) -> String {
        format!("{}/{}/{}", self.collector, self.epoch, Class::Critical)
    }

    /// A batch of these lines, whatever they are; it is the stream's next only once it was [`Peer::stored`].
    pub fn batch(&self, lines: &[Vec<u8>]) -> anyhow::Result<SignedBatch> {
        let raw = batch::join_lines(lines.iter().map(Vec::as_slice));
        let count = lines.len() as u64;
        let last = self.next_sequence + count;
        let time = |sequence: u64| Timestamp::from_nanos(AT + i64::try_from(sequence * 1000).unwrap_or(0));
        let header = BatchHeader {
            batch_number: self.batch_number,
            boot_id: "boot".to_owned(),
            class: Class::Critical,
            clock: ClockState { error_ns: 1_000_000, offset_ns: 0, synchronised: true },
            collector_id: self.collector.clone(),
            count,
            epoch: self.epoch.clone(),
            first_sequence: self.next_sequence,
            host: self.host.clone(),
            key_id: self.signer.id().clone(),
            last_sequence: last - 1,
            merkle_root: batch::lines_root(lines.iter().map(|line| Leaf::Line(line))),
            occurred_max: time(last),
            occurred_min: time(self.next_sequence),
            policy_digest: Hash::default(),
            previous_batch_hash: self.previous,
            raw_bytes: raw.len() as u64,
            ring_cursors: [].into(),
            sealed_at: time(last),
            tenant: TENANT.parse()?,
            version: BATCH_VERSION,
        };
        Ok(SignedBatch::sign(header, Some(batch::compress(&raw)?.into()), &self.signer))
    }

    /// Sends batches in one request.
    pub async fn send(&self, batches: &[SignedBatch]) -> Result<BatchesAnswer, ClientError> {
        let mut body = Vec::new();
        batches.iter().for_each(|batch| batch.encode(&mut body));
        self.send_bytes(body).await
    }

    pub async fn send_bytes(&self, body: Vec<u8>) -> Result<BatchesAnswer, ClientError> {
        self.client.batches(body.into()).await
    }

    /// The stream goes on behind this batch.
    pub fn stored(&mut self, batch: &SignedBatch) {
        self.next_sequence = batch.header.last_sequence + 1;
        self.batch_number += 1;
        self.previous = batch.hash();
    }
}
