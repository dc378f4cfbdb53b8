//! The collector's side: which batches to send when, and what an answer means.

use std::collections::{BTreeMap, VecDeque};

use crate::api::StreamAcked;
use crate::batch::Class;
use crate::ids::Epoch;

/// Bounds of the sender. Times are nanoseconds.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    pub request_bytes_max: u64,
    pub request_batches_max: usize,
    pub backoff_min_ns: u64,
    pub backoff_max_ns: u64,
}

impl Default for SenderConfig {
    fn default() -> Self {
        SenderConfig {
            request_bytes_max: 2 * 1024 * 1024,
            request_batches_max: 64,
            backoff_min_ns: 100_000_000,
            backoff_max_ns: 30_000_000_000,
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A batch is fsynced and may be sent. Numbers of a class arrive in order.
    Sealed {
        class: Class,
        number: u64,
        bytes: u64,
    },
    Connected,
    /// The connection failed or closed; answers in flight will not come.
    Disconnected,
    /// Answer to [`Action::Resync`], this epoch's streams only.
    Resynced(Vec<StreamAcked>),
    /// Answer to [`Action::Send`]: one outcome a batch, in order.
    Answered {
        class: Class,
        outcomes: Vec<Outcome>,
    },
    /// 429 or 503 to [`Action::Send`].
    Busy {
        class: Class,
        retry_after_ns: u64,
    },
    /// Time passed.
    Tick,
}

/// Outcome of one batch of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Stored, stored before, or stored as a fork: never to be sent again.
    Durable,
    Gap {
        next_batch_number: u64,
    },
    Refused,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Connect,
    /// Ask `GET /v1/streams`.
    Resync,
    /// Send `count` batches from `first_number`.
    Send {
        class: Class,
        first_number: u64,
        count: usize,
    },
    /// Batches up to `number` are durable at the gateway and may be forgotten.
    Release {
        class: Class,
        number: u64,
    },
    /// The gateway lacks a batch that was released here (it lost what it had acknowledged), or refused one for
    /// good: the stream cannot go on in this epoch.
    Stranded {
        class: Class,
        number: u64,
    },
    /// Call with [`Input::Tick`] at this time, if nothing happens before.
    Wake {
        at_ns: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down { until_ns: u64 },
    Connecting,
    Resyncing,
    Up,
}

#[derive(Debug, Clone, Default)]
struct Stream {
    /// Sealed, not acknowledged: numbers are contiguous.
    pending: VecDeque<(u64, u64)>,
    /// How many of the front are in a request under way.
    in_flight: usize,
    acked: u64,
    paused_until_ns: u64,
    stranded: bool,
}

/// See the module's documentation. One per spool.
#[derive(Debug, Clone)]
pub struct Sender {
    config: SenderConfig,
    epoch: Epoch,
    link: Link,
    failures: u32,
    streams: BTreeMap<Class, Stream>,
}

impl Sender {
    /// `acked` is the last batch number known to be acknowledged, by class.
    pub fn new(config: SenderConfig, epoch: Epoch, acked: &BTreeMap<Class, u64>) -> Self {
        let streams = Class::ALL
            .iter()
            .map(|c| (*c, Stream { acked: acked.get(c).copied().unwrap_or(0), ..Stream::default() }))
            .collect();
        Sender { config, epoch, link: Link::Down { until_ns: 0 }, failures: 0, streams }
    }

    /// Advances the machine. `jitter` is fresh randomness for backoff.
    pub fn handle(&mut self, input: Input, now_ns: u64, jitter: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Sealed { class, number, bytes } => self.sealed(class, number, bytes),
            Input::Connected => {
                self.link = Link::Resyncing;
                actions.push(Action::Resync);
            }
            Input::Disconnected => self.disconnected(now_ns, jitter),
            Input::Resynced(streams) if self.link == Link::Resyncing => {
                self.link = Link::Up;
                self.failures = 0;
                self.resynced(&streams, &mut actions);
            }
            Input::Answered { class, outcomes } => self.answered(class, &outcomes, now_ns, &mut actions),
            Input::Busy { class, retry_after_ns } => {
                let wait = retry_after_ns.clamp(self.config.backoff_min_ns, self.config.backoff_max_ns);
                let stream = self.stream(class);
                stream.in_flight = 0;
                stream.paused_until_ns = now_ns.saturating_add(wait);
            }
            Input::Resynced(_) | Input::Tick => {}
        }
        self.advance(now_ns, &mut actions);
        actions
    }

    /// Batches not yet acknowledged, by class.
    pub fn pending(&self, class: Class) -> usize {
        self.streams.get(&class).map_or(0, |s| s.pending.len())
    }

    pub fn is_connected(&self) -> bool {
        self.link == Link::Up
    }

    fn stream(&mut self, class: Class) -> &mut Stream {
        self.streams.entry(class).or_default()
    }

    fn sealed(&mut self, class: Class, number: u64, bytes: u64) {
        let stream = self.stream(class);
        // What lies in the spool at the start may be told once more by whoever sealed it meanwhile.
        let known = stream.pending.back().map_or(stream.acked, |(last, _)| *last);
        if number <= known {
            return;
        }
        debug_assert!(stream.pending.is_empty() || known + 1 == number, "numbers are contiguous");
        stream.pending.push_back((number, bytes));
    }

    fn disconnected(&mut self, now_ns: u64, jitter: u64) {
        for stream in self.streams.values_mut() {
            stream.in_flight = 0;
        }
        let doubled = self.config.backoff_min_ns.saturating_mul(1 << self.failures.min(20));
        let ceiling = doubled.min(self.config.backoff_max_ns);
        self.failures = self.failures.saturating_add(1);
        // Half fixed, half random: a fleet that lost its gateway does not come back at once.
        let wait = ceiling / 2 + jitter % (ceiling / 2).max(1);
        self.link = Link::Down { until_ns: now_ns.saturating_add(wait) };
    }

    fn resynced(&mut self, streams: &[StreamAcked], actions: &mut Vec<Action>) {
        let epoch = self.epoch.clone();
        for class in Class::ALL {
            let known =
                streams.iter().find(|s| s.epoch == epoch && s.class == *class).map_or(0, |s| s.batch_number);
            let stream = self.stream(*class);
            // What the gateway says it has beyond our receipts is sent again: only a receipt releases a batch.
            if known < stream.acked {
                strand(stream, *class, known + 1, actions);
            }
        }
    }

    fn answered(&mut self, class: Class, outcomes: &[Outcome], now_ns: u64, actions: &mut Vec<Action>) {
        let backoff = self.config.backoff_max_ns;
        let stream = self.stream(class);
        let sent = std::mem::take(&mut stream.in_flight);
        let first = stream.pending.front().map_or(0, |(n, _)| *n);
        let mut durable = None;
        for (number, outcome) in (first..).zip(outcomes.iter().take(sent)) {
            match outcome {
                Outcome::Durable => durable = Some(number),
                Outcome::Gap { next_batch_number } if *next_batch_number <= stream.acked => {
                    strand(stream, class, *next_batch_number, actions);
                    return;
                }
                // What it lacks is gone here: nothing that is left will be taken.
                Outcome::Gap { next_batch_number } if *next_batch_number < first => {
                    stream.paused_until_ns = now_ns.saturating_add(backoff);
                    actions.push(Action::Stranded { class, number: *next_batch_number });
                    break;
                }
                Outcome::Gap { .. } => break,
                Outcome::Refused => {
                    // Kept and tried again rarely: a revoked or mistaken gateway must not cost evidence.
                    stream.paused_until_ns = now_ns.saturating_add(backoff);
                    actions.push(Action::Stranded { class, number });
                    break;
                }
            }
        }
        if let Some(number) = durable {
            release(stream, class, number, actions);
        }
    }

    fn advance(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        match self.link {
            Link::Down { until_ns } if now_ns >= until_ns => {
                self.link = Link::Connecting;
                actions.push(Action::Connect);
            }
            Link::Down { until_ns } => actions.push(Action::Wake { at_ns: until_ns }),
            Link::Connecting | Link::Resyncing => {}
            Link::Up => self.send_pending(now_ns, actions),
        }
    }

    /// One request under way a stream; critical first.
    fn send_pending(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let (bytes_max, batches_max) = (self.config.request_bytes_max, self.config.request_batches_max);
        for (class, stream) in &mut self.streams {
            let Some((first_number, _)) = stream.pending.front().copied() else { continue };
            if stream.stranded || stream.in_flight > 0 {
                continue;
            }
            if now_ns < stream.paused_until_ns {
                actions.push(Action::Wake { at_ns: stream.paused_until_ns });
                continue;
            }
            let mut total = 0;
            let count = stream
                .pending
                .iter()
                .take(batches_max)
                .take_while(|(_, bytes)| {
                    total += bytes;
                    total <= bytes_max
                })
                .count()
                .max(1);
            stream.in_flight = count;
            actions.push(Action::Send { class: *class, first_number, count });
        }
    }
}

fn release(stream: &mut Stream, class: Class, number: u64, actions: &mut Vec<Action>) {
    if number <= stream.acked {
        return;
    }
    stream.acked = number;
    while stream.pending.front().is_some_and(|(n, _)| *n <= number) {
        stream.pending.pop_front();
    }
    actions.push(Action::Release { class, number });
}

fn strand(stream: &mut Stream, class: Class, number: u64, actions: &mut Vec<Action>) {
    stream.stranded = true;
    actions.push(Action::Stranded { class, number });
}
