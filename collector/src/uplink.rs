//! Carries sealed batches to the gateway: drives the [`Sender`] machines of all epochs over one connection.

pub mod client;
pub mod identity;

use std::collections::BTreeMap;
use std::time::Duration;

use activity_schema::Class;
use activity_schema::api::{BatchResult, BatchesAnswer};
use activity_schema::ids::Epoch;
use activity_schema::keys::PublicKey;
use activity_schema::merkle::Hash;
use activity_schema::uplink::{Action, Input, Outcome, Sender, SenderConfig};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock::boot_ns;
use crate::spool::{Disk, ReadError, SpoolReader};
use client::{Client, ClientError, Endpoint};
use identity::{Identity, IdentityDir, IdentityError};

/// Steps in which renewal of the certificate is looked at.
const RENEW_STEP_MIN: Duration = Duration::from_secs(1);
const RENEW_STEP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// From the recorder.
#[derive(Debug)]
pub enum ToUplink {
    Sealed { epoch: Epoch, class: Class, number: u64, bytes: u64 },
}

/// To the recorder.
#[derive(Debug)]
pub enum FromUplink {
    /// Durable at the gateway.
    Released { epoch: Epoch, class: Class, number: u64, receipt: Hash },
    /// The gateway knows the epoch's key.
    Registered { epoch: Epoch },
    /// Lines that the gateway keeps as hashes only.
    Withheld { class: Class, count: u64 },
    /// The gateway lacks what it had acknowledged, or refuses a batch for good.
    Stranded { epoch: Epoch, class: Class, number: u64, reason: String },
}

/// An epoch to be sent.
pub struct EpochFeed<D: Disk> {
    pub epoch: Epoch,
    pub reader: SpoolReader<D>,
    pub acked: BTreeMap<Class, u64>,
    pub key: PublicKey,
    pub registered: bool,
}

struct Lane<D: Disk> {
    feed: EpochFeed<D>,
    sender: Sender,
}

type Sent = (usize, Class, u64, Result<BatchesAnswer, ClientError>);

pub struct Uplink<D: Disk> {
    endpoint: Endpoint,
    dir: IdentityDir,
    identity: Identity,
    lanes: Vec<Lane<D>>,
    client: Option<Client>,
    requests: JoinSet<Sent>,
    wake_ns: Option<u64>,
    to_recorder: std::sync::Arc<dyn Fn(FromUplink) + Send + Sync>,
    random: fn() -> u64,
}

impl<D: Disk> Uplink<D> {
    pub fn new(
        dir: IdentityDir,
        identity: Identity,
        feeds: Vec<EpochFeed<D>>,
        to_recorder: std::sync::Arc<dyn Fn(FromUplink) + Send + Sync>,
    ) -> Result<Self, ClientError> {
        let endpoint = Endpoint::parse(&identity.gateway_url, identity.server_name.as_deref())?;
        let lanes = feeds
            .into_iter()
            .map(|feed| {
                let sender = Sender::new(SenderConfig::default(), feed.epoch.clone(), &feed.acked);
                Lane { feed, sender }
            })
            .collect();
        Ok(Uplink {
            endpoint,
            dir,
            identity,
            lanes,
            client: None,
            requests: JoinSet::new(),
            wake_ns: None,
            to_recorder,
            random: rand::random::<u64>,
        })
    }

    /// Runs until the recorder hangs up and, within `linger`, everything sealed is acknowledged.
    pub async fn run(mut self, mut from_recorder: mpsc::UnboundedReceiver<ToUplink>, linger: Duration) {
        for lane in 0..self.lanes.len() {
            for class in Class::ALL {
                for batch in self.lanes[lane].feed.reader.pending(*class) {
                    let input = Input::Sealed { class: *class, number: batch.number, bytes: batch.raw_bytes };
                    self.feed(lane, input).await;
                }
            }
        }
        let mut stop_at: Option<tokio::time::Instant> = None;
        let mut renew_at = self.renewal();
        loop {
            let drained = Class::ALL.iter().all(|c| self.lanes.iter().all(|l| l.sender.pending(*c) == 0));
            if stop_at.is_some_and(|at| drained || tokio::time::Instant::now() >= at) {
                return;
            }
            let wake = self
                .wake_ns
                .map_or(Duration::from_secs(3600), |at| Duration::from_nanos(at.saturating_sub(boot_ns())));
            let wake = if stop_at.is_some() { wake.min(Duration::from_millis(50)) } else { wake };
            tokio::select! {
                message = from_recorder.recv(), if stop_at.is_none() => match message {
                    Some(ToUplink::Sealed { epoch, class, number, bytes }) => {
                        if let Some(lane) = self.lanes.iter().position(|l| l.feed.epoch == epoch) {
                            self.feed(lane, Input::Sealed { class, number, bytes }).await;
                        }
                    }
                    None => stop_at = Some(tokio::time::Instant::now() + linger),
                },
                () = tokio::time::sleep_until(renew_at), if stop_at.is_none() => {
                    self.renew().await;
                    renew_at = self.renewal();
                }
                Some(done) = self.requests.join_next() => if let Ok(sent) = done { self.answered(sent).await },
                () = tokio::time::sleep(wake) => {
                    self.wake_ns = None;
                    if self.client.as_ref().is_some_and(Client::is_closed) {
                        self.disconnected().await;
                    } else {
                        self.feed_all(&Input::Tick).await;
                    }
                }
            }
        }
    }

    async fn feed_all(&mut self, input: &Input) {
        for lane in 0..self.lanes.len() {
            self.feed(lane, input.clone()).await;
        }
    }

    async fn feed(&mut self, lane: usize, input: Input) {
        let mut inputs = vec![(lane, input)];
        while let Some((lane, input)) = inputs.pop() {
            let actions = self.lanes[lane].sender.handle(input, boot_ns(), (self.random)());
            for action in actions {
                match action {
                    Action::Connect => inputs.extend(self.connect(lane).await),
                    Action::Resync => inputs.extend(self.resync(lane).await),
                    Action::Send { class, first_number, count } => {
                        self.send(lane, class, first_number, count)
                    }
                    Action::Release { .. } => {}
                    Action::Stranded { class, number } => self.stranded(lane, class, number, "missing there"),
                    Action::Wake { at_ns } => {
                        self.wake_ns = Some(self.wake_ns.map_or(at_ns, |w| w.min(at_ns)))
                    }
                }
            }
        }
    }

    fn stranded(&self, lane: usize, class: Class, number: u64, reason: &str) {
        let epoch = self.lanes[lane].feed.epoch.clone();
        tracing::error!(%epoch, %class, number, reason, "the stream cannot go on");
        (self.to_recorder)(FromUplink::Stranded { epoch, class, number, reason: reason.to_owned() });
    }

    /// All lanes share the connection: the first that asks makes it.
    async fn connect(&mut self, lane: usize) -> Option<(usize, Input)> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.client = None;
            match self.open().await {
                Ok(client) => self.client = Some(client),
                Err(error) => {
                    tracing::warn!(error = %full(&error), "no connection to the gateway");
                    return Some((lane, Input::Disconnected));
                }
            }
        }
        Some((lane, Input::Connected))
    }

    async fn open(&mut self) -> Result<Client, IdentityError> {
        let client = Client::connect(&self.endpoint, self.dir.tls()?).await?;
        for lane in 0..self.lanes.len() {
            if !self.lanes[lane].feed.registered {
                let feed = &self.lanes[lane].feed;
                let (key, epoch) = (feed.key, feed.epoch.clone());
                match identity::renew(&self.dir, &self.identity, &client, key, epoch.clone()).await {
                    Ok(identity) => self.identity = identity,
                    // The gateway knows the key, and the certificate before is still good. A full disk must not keep what
                    // fills it from being sent.
                    Err(error @ IdentityError::File { .. }) => {
                        tracing::warn!(error = %full(&error), "the new certificate cannot be kept");
                    }
                    Err(error) => return Err(error),
                }
                self.lanes[lane].feed.registered = true;
                (self.to_recorder)(FromUplink::Registered { epoch });
            }
        }
        Ok(client)
    }

    async fn resync(&mut self, lane: usize) -> Option<(usize, Input)> {
        let client = self.client.clone()?;
        match client.streams().await {
            Ok(answer) => Some((lane, Input::Resynced(answer.streams))),
            Err(error) => {
                tracing::warn!(error = %full(&error), "the gateway does not tell its streams");
                self.client = None;
                Some((lane, Input::Disconnected))
            }
        }
    }

    fn send(&mut self, lane: usize, class: Class, first_number: u64, count: usize) {
        let Some(client) = self.client.clone() else { return };
        let reader = self.lanes[lane].feed.reader.clone();
        self.requests.spawn(async move {
            let frames = match read_frames(&reader, class, first_number, count) {
                Ok(frames) => frames,
                Err(error) => {
                    tracing::error!(error = %full(&error), "a sealed batch cannot be read");
                    let busy = ClientError::Busy(Duration::from_secs(1));
                    return (lane, class, first_number, Err(busy));
                }
            };
            (lane, class, first_number, client.batches(frames).await)
        });
    }

    async fn answered(&mut self, (lane, class, first, result): Sent) {
        match result {
            Ok(answer) => {
                let outcomes = self.outcomes(lane, class, first, answer);
                self.feed(lane, Input::Answered { class, outcomes }).await;
            }
            Err(ClientError::Busy(after)) => {
                let retry_after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                self.feed(lane, Input::Busy { class, retry_after_ns }).await;
            }
            Err(error) => {
                tracing::warn!(error = %full(&error), "batches were not answered");
                self.disconnected().await;
            }
        }
    }

    async fn disconnected(&mut self) {
        self.client = None;
        self.requests = JoinSet::new();
        self.feed_all(&Input::Disconnected).await;
    }

    fn outcomes(&self, lane: usize, class: Class, first: u64, answer: BatchesAnswer) -> Vec<Outcome> {
        let mut released = None;
        let mut outcomes = Vec::new();
        for (number, result) in (first..).zip(answer.results) {
            outcomes.push(match result {
                BatchResult::Stored { .. } | BatchResult::Duplicate { .. } | BatchResult::Fork { .. }
                    if !self.is_receipt_of(lane, class, number, &result) =>
                {
                    self.stranded(lane, class, number, "the receipt is not the gateway's word on this batch");
                    Outcome::Refused
                }
                BatchResult::Stored { receipt, withheld } => {
                    if withheld > 0 {
                        (self.to_recorder)(FromUplink::Withheld { class, count: withheld });
                    }
                    released = Some((number, receipt.hash()));
                    Outcome::Durable
                }
                BatchResult::Duplicate { receipt } | BatchResult::Fork { receipt } => {
                    released = Some((number, receipt.hash()));
                    Outcome::Durable
                }
                BatchResult::Gap { next_batch_number } => Outcome::Gap { next_batch_number },
                BatchResult::Refused { reason } => {
                    self.stranded(lane, class, number, &reason);
                    Outcome::Refused
                }
            });
        }
        if let Some((number, receipt)) = released {
            let epoch = self.lanes[lane].feed.epoch.clone();
            (self.to_recorder)(FromUplink::Released { epoch, class, number, receipt });
        }
        outcomes
    }

    /// Whether a result carries a receipt that the gateway's key signed over the very batch that was sent.
    fn is_receipt_of(&self, lane: usize, class: Class, number: u64, result: &BatchResult) -> bool {
        let (BatchResult::Stored { receipt, .. }
        | BatchResult::Duplicate { receipt }
        | BatchResult::Fork { receipt }) = result
        else {
            return false;
        };
        let sent = self.lanes[lane].feed.reader.hash(class, number);
        sent == Some(receipt.body.batch_hash) && receipt.is_signed_by(self.identity.gateway_key)
    }

    /// When the certificate is to be renewed: a third of what is left of its life before it ends. After a failure that
    /// is tried again in ever shorter steps, of a second at least.
    fn renewal(&self) -> tokio::time::Instant {
        let left = self.identity.not_after.nanos_since(crate::clock::ClockReading::now().wall);
        let wait = Duration::from_nanos(u64::try_from(left).unwrap_or(0)) * 2 / 3;
        tokio::time::Instant::now() + wait.clamp(RENEW_STEP_MIN, RENEW_STEP_MAX)
    }

    async fn renew(&mut self) {
        let Some(client) = self.client.clone() else { return };
        let Some(lane) = self.lanes.last() else { return };
        let (key, epoch) = (lane.feed.key, lane.feed.epoch.clone());
        match identity::renew(&self.dir, &self.identity, &client, key, epoch).await {
            // The new certificate counts from the next connection on.
            Ok(identity) => self.identity = identity,
            Err(error) => tracing::warn!(error = %full(&error), "the certificate was not renewed"),
        }
    }
}

fn read_frames<D: Disk>(
    reader: &SpoolReader<D>,
    class: Class,
    first: u64,
    count: usize,
) -> Result<Bytes, ReadError> {
    let mut frames = Vec::new();
    for number in (first..).take(count) {
        reader.read(class, number)?.encode(&mut frames);
    }
    Ok(frames.into())
}

/// An error with all its causes, on one line.
pub fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        at = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
