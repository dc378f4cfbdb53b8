//! Many collectors at once: enrolled with tokens, one TLS connection each, sending what [`super::mix`] made as fast
//! as receipts return. Requests are as large and as many under way as the collector's own sender has them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use activity_collector::uplink::client::{Client, ClientError, Endpoint};
use activity_collector::uplink::identity::{Applicant, IdentityDir, enroll, read_certificates};
use activity_schema::api::BatchResult;
use activity_schema::keys::{PublicKey, Signer};
use activity_schema::receipt::Receipt;
use activity_schema::uplink::SenderConfig;
use activity_schema::{Class, Timestamp};
use anyhow::{bail, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::mix::Host;
use super::operator::Operator;
use super::recording::{Batch, Identity};
use crate::lab::{Lab, TENANT};

/// How the events of every collector come.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub from: Timestamp,
    pub per_second: u32,
    /// See [`super::recording::Recorder::new`].
    pub batch_age_ns_max: Option<i64>,
}

pub struct Fleet {
    members: Vec<Member>,
    gateway_key: PublicKey,
}

struct Member {
    client: Client,
    host: Host,
    /// What is to be sent, by stream.
    lanes: [VecDeque<Request>; 2],
}

struct Request {
    events: u64,
    raw_bytes: u64,
    batches: usize,
    body: Bytes,
}

/// What the gateway gave receipts for.
#[derive(Default)]
pub struct Sent {
    pub events: u64,
    pub raw_bytes: u64,
    pub requests: u64,
    /// Answers that asked to come back later.
    pub busy: u64,
    pub elapsed: Duration,
    pub latencies: Vec<Duration>,
    /// Bodies, for who wants to work on the same bytes.
    pub bodies: Vec<Bytes>,
    receipts: Vec<Receipt>,
}

impl Fleet {
    /// Enrols collectors on hosts of their own through the API.
    pub async fn enrol(lab: &Lab, size: usize, pace: Pace) -> anyhow::Result<Self> {
        ensure!(size > 0, "a fleet has members");
        let operator = Operator::of(lab);
        let mut members = Vec::new();
        let mut gateway_key = None;
        for n in 0..size {
            let identity = identity(n)?;
            let token = operator.token(identity.host.as_str()).await?;
            let dir = IdentityDir::new(&lab.path(&format!("fleet/{n}")));
            let applicant = Applicant {
                collector_id: identity.collector.clone(),
                host: identity.host.clone(),
                instance: identity.instance.clone(),
                signing_key: identity.signer.public(),
                epoch: identity.epoch.clone(),
            };
            let ca = read_certificates(&lab.path("gateway/pki/ca.pem"))?;
            let url = lab.collector_url();
            gateway_key = Some(enroll(&dir, &url, None, ca, &token, &applicant).await?.gateway_key);
            let client = Client::connect(&Endpoint::parse(&url, None)?, dir.tls()?).await?;
            let host = Host::new(identity, n as u64 + 1, pace.from, pace.per_second, pace.batch_age_ns_max);
            members.push(Member { client, host, lanes: Default::default() });
        }
        Ok(Fleet { members, gateway_key: gateway_key.expect("a fleet has members") })
    }

    /// Makes about so many events over all collectors, on all cores; with `last`, nothing stays unsealed.
    pub fn generate(&mut self, events: u64, last: bool) {
        let each = events / self.members.len() as u64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let share = self.members.len().div_ceil(cores);
        std::thread::scope(|scope| {
            for members in self.members.chunks_mut(share) {
                scope.spawn(move || members.iter_mut().for_each(|member| member.generate(each, last)));
            }
        });
    }

    /// Sends until all is sent or time is up; what is under way then is still counted.
    pub async fn send(&mut self, time_max: Duration, keep_bodies: bool) -> anyhow::Result<Sent> {
        let start = Instant::now();
        let deadline = start + time_max;
        let mut lanes = JoinSet::new();
        for member in &mut self.members {
            for lane in &mut member.lanes {
                let lane = std::mem::take(lane);
                lanes.spawn(send_lane(member.client.clone(), lane, deadline, keep_bodies));
            }
        }
        let mut all = Sent::default();
        while let Some(sent) = lanes.join_next().await {
            all.add(sent??);
        }
        all.elapsed = start.elapsed();
        let good = |receipt: &Receipt| receipt.is_signed_by(self.gateway_key);
        ensure!(all.receipts.iter().step_by(37).all(good), "a receipt is not signed by the gateway");
        Ok(all)
    }

    pub fn made(&self) -> u64 {
        self.members.iter().map(|m| m.host.made).sum()
    }

    /// Sessions that ended, with the number of their events.
    pub fn sessions(&self) -> Vec<(String, u64)> {
        self.members.iter().flat_map(|m| m.host.sessions.clone()).collect()
    }
}

impl Member {
    fn generate(&mut self, events: u64, last: bool) {
        let mut batches = self.host.run(events);
        if last {
            batches.extend(self.host.finish());
        }
        let bounds = SenderConfig::default();
        for batch in batches {
            let lane = &mut self.lanes[usize::from(batch.class != Class::Critical)];
            match lane.back_mut() {
                Some(request)
                    if request.raw_bytes + batch.raw_bytes <= bounds.request_bytes_max
                        && request.batches < bounds.request_batches_max =>
                {
                    request.add(batch);
                }
                _ => lane.push_back(Request::of(batch)),
            }
        }
    }
}

impl Request {
    fn of(batch: Batch) -> Self {
        let Batch { events, raw_bytes, frame, .. } = batch;
        Request { events, raw_bytes, batches: 1, body: frame.into() }
    }

    fn add(&mut self, batch: Batch) {
        self.events += batch.events;
        self.raw_bytes += batch.raw_bytes;
        self.batches += 1;
        self.body = [&self.body[..], &batch.frame].concat().into();
    }
}

impl Sent {
    fn add(&mut self, other: Sent) {
        self.events += other.events;
        self.raw_bytes += other.raw_bytes;
        self.requests += other.requests;
        self.busy += other.busy;
        self.latencies.extend(other.latencies);
        self.bodies.extend(other.bodies);
        self.receipts.extend(other.receipts);
    }
}

async fn send_lane(
    client: Client,
    mut lane: VecDeque<Request>,
    deadline: Instant,
    keep_bodies: bool,
) -> anyhow::Result<Sent> {
    let mut sent = Sent::default();
    while let Some(request) = lane.front() {
        if Instant::now() >= deadline {
            break;
        }
        let start = Instant::now();
        let answer = match client.batches(request.body.clone()).await {
            Ok(answer) => answer,
            Err(ClientError::Busy(after)) => {
                sent.busy += 1;
                tokio::time::sleep(after).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        sent.latencies.push(start.elapsed());
        ensure!(answer.results.len() == request.batches, "{} results", answer.results.len());
        for result in answer.results {
            match result {
                BatchResult::Stored { receipt, withheld: 0 } => sent.receipts.push(receipt),
                other => bail!("a batch was not stored whole: {other:?}"),
            }
        }
        sent.events += request.events;
        sent.raw_bytes += request.raw_bytes;
        sent.requests += 1;
        let done = lane.pop_front();
        if keep_bodies {
            sent.bodies.extend(done.map(|request| request.body));
        }
    }
    Ok(sent)
}

fn identity(n: usize) -> anyhow::Result<Identity> {
    Ok(Identity {
        tenant: TENANT.parse()?,
        host: host_name(n).parse()?,
        instance: host_name(n).parse()?,
        collector: format!("bench-collector-{n}").parse()?,
        epoch: uuid::Uuid::now_v7().to_string().parse()?,
        signer: Signer::from_seed(&rand::random()),
        boot_id: uuid::Uuid::from_u128(rand::random()).to_string(),
    })
}

/// Host and instance of the n-th collector.
pub fn host_name(n: usize) -> String {
    format!("bench-host-{n}")
}
