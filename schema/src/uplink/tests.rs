//! Generated action sequences: a lossy link between a crashing sender and a crashing receiver.
//!
//! The model outside both machines: `sealed` is what the collector made durable, `stored` what the gateway did.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers of tests"
)]

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::api::StreamAcked;
use crate::batch::tests::header;
use crate::batch::{BatchHeader, Class};
use crate::merkle::Hash;

const CLASS: Class = Class::Critical;

#[derive(Debug, Clone)]
enum Step {
    Seal,
    /// Deliver the oldest request under way (or its answer).
    Deliver,
    /// Deliver it and keep a copy that arrives again later.
    Duplicate,
    /// The connection breaks; requests and answers under way are lost.
    Break,
    /// The request arrives, its answer is lost with the connection.
    BreakAfterStore,
    /// The newest batch is announced once more.
    TellAgain,
    SenderCrash,
    ReceiverCrash,
    ReceiverDiskFull,
    Pass(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Seal),
        6 => Just(Step::Deliver),
        1 => Just(Step::Duplicate),
        1 => Just(Step::Break),
        1 => Just(Step::BreakAfterStore),
        1 => Just(Step::TellAgain),
        1 => Just(Step::SenderCrash),
        1 => Just(Step::ReceiverCrash),
        1 => Just(Step::ReceiverDiskFull),
        3 => (1u32..2_000).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..300)
}

struct World {
    sender: Sender,
    now_ns: u64,
    /// Durable at the collector: every sealed header and its hash, and the persisted acknowledgement.
    sealed: Vec<(BatchHeader, Hash)>,
    persisted_ack: u64,
    /// Durable at the gateway, in order.
    stored: Vec<Hash>,
    connected: bool,
    /// Requests on the wire: (first number, count).
    wire: VecDeque<(u64, usize)>,
    disk_full: bool,
    released: u64,
}

impl World {
    fn new() -> Self {
        World {
            sender: new_sender(0),
            now_ns: 1,
            sealed: Vec::new(),
            persisted_ack: 0,
            stored: Vec::new(),
            connected: false,
            wire: VecDeque::new(),
            disk_full: false,
            released: 0,
        }
    }

    fn input(&mut self, input: Input) {
        let mut actions: VecDeque<Action> = self.sender.handle(input, self.now_ns, 7).into();
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Connect => {
                    self.connected = true;
                    self.wire.clear();
                    actions.extend(self.sender.handle(Input::Connected, self.now_ns, 7));
                }
                Action::Resync => {
                    let answer = self.streams();
                    actions.extend(self.sender.handle(Input::Resynced(answer), self.now_ns, 7));
                }
                Action::Send { first_number, count, .. } => {
                    assert!(self.connected, "sends only over a connection");
                    assert!(first_number > self.released, "never sends what is released");
                    self.wire.push_back((first_number, count));
                }
                Action::Release { number, .. } => {
                    assert!(number as usize <= self.stored.len(), "acknowledged ⊆ stored");
                    self.released = number;
                    self.persisted_ack = number;
                }
                Action::Stranded { number, .. } => {
                    panic!("stranded at {number} though nothing durable was lost")
                }
                Action::Wake { at_ns } => assert!(at_ns > self.now_ns),
            }
        }
    }

    fn streams(&self) -> Vec<StreamAcked> {
        if self.stored.is_empty() {
            return Vec::new();
        }
        let n = self.stored.len();
        vec![StreamAcked {
            epoch: self.sealed[0].0.epoch.clone(),
            class: CLASS,
            batch_number: n as u64,
            last_sequence: self.sealed[n - 1].0.last_sequence,
            batch_hash: self.stored[n - 1],
        }]
    }

    fn seal(&mut self) {
        let mut h = header();
        h.class = CLASS;
        h.batch_number = self.sealed.len() as u64 + 1;
        h.first_sequence = self.sealed.last().map_or(0, |(h, _)| h.last_sequence) + 1;
        h.last_sequence = h.first_sequence + 2;
        h.count = 3;
        h.previous_batch_hash = self.sealed.last().map_or(Hash::default(), |(_, hash)| *hash);
        let hash = Hash::of(&[&h.to_bytes()]);
        let number = h.batch_number;
        self.sealed.push((h, hash));
        self.input(Input::Sealed { class: CLASS, number, bytes: 1000 });
    }

    /// The gateway handles a request; what it answers.
    fn store(&mut self, first: u64, count: usize) -> Option<Vec<Outcome>> {
        if self.disk_full {
            return None;
        }
        let mut outcomes = Vec::new();
        for number in first..first + count as u64 {
            let (header, hash) = &self.sealed[number as usize - 1];
            let n = self.stored.len();
            let head = StreamHead {
                batch_number: n as u64,
                last_sequence: if n == 0 { 0 } else { self.sealed[n - 1].0.last_sequence },
                batch_hash: self.stored.last().copied().unwrap_or_default(),
            };
            let stored = self.stored.get(number as usize - 1).copied();
            outcomes.push(match judge(&head, stored, header, *hash) {
                Verdict::Extend => {
                    self.stored.push(*hash);
                    Outcome::Durable
                }
                Verdict::Duplicate => Outcome::Durable,
                Verdict::Fork => panic!("an honest sender never forks"),
                Verdict::Gap { next_batch_number } => Outcome::Gap { next_batch_number },
            });
        }
        Some(outcomes)
    }

    fn deliver(&mut self) {
        let Some((first, count)) = self.wire.pop_front() else { return };
        let input = match self.store(first, count) {
            Some(outcomes) => Input::Answered { class: CLASS, outcomes },
            None => Input::Busy { class: CLASS, retry_after_ns: 1_000_000_000 },
        };
        self.input(input);
    }

    fn disconnect(&mut self) {
        if self.connected {
            self.connected = false;
            self.wire.clear();
            self.input(Input::Disconnected);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Seal => self.seal(),
            Step::Deliver => self.deliver(),
            Step::Duplicate => {
                if let Some((first, count)) = self.wire.front().copied() {
                    self.store(first, count);
                    self.deliver();
                }
            }
            Step::Break => self.disconnect(),
            Step::BreakAfterStore | Step::ReceiverCrash => {
                if let Some((first, count)) = self.wire.front().copied() {
                    self.store(first, count);
                }
                self.disconnect();
            }
            Step::TellAgain => {
                let number = self.sealed.len() as u64;
                if number > 0 {
                    self.input(Input::Sealed { class: CLASS, number, bytes: 1000 });
                }
            }
            Step::SenderCrash => {
                self.connected = false;
                self.wire.clear();
                self.sender = new_sender(self.persisted_ack);
                for i in 0..self.sealed.len() {
                    let number = self.sealed[i].0.batch_number;
                    self.input(Input::Sealed { class: CLASS, number, bytes: 1000 });
                }
            }
            Step::ReceiverDiskFull => self.disk_full = !self.disk_full,
            Step::Pass(ms) => {
                self.now_ns += u64::from(*ms) * 1_000_000;
                self.input(Input::Tick);
            }
        }
    }
}

fn new_sender(acked: u64) -> Sender {
    Sender::new(SenderConfig::default(), header().epoch, &BTreeMap::from([(CLASS, acked)]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_happens_everything_sealed_arrives_once_in_order(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.disk_full = false;
        for _ in 0..2_000 {
            world.step(&Step::Pass(500));
            world.step(&Step::Deliver);
        }
        let sealed: Vec<Hash> = world.sealed.iter().map(|(_, hash)| *hash).collect();
        prop_assert_eq!(&world.stored, &sealed);
        prop_assert_eq!(world.released, sealed.len() as u64);
        prop_assert_eq!(world.sender.pending(CLASS), 0);
    }
}

#[test]
fn a_gateway_that_lost_an_acknowledged_batch_is_found_out() {
    let mut sender = new_sender(5);
    sender.handle(Input::Tick, 1, 0);
    sender.handle(Input::Connected, 2, 0);
    let actions = sender.handle(Input::Resynced(Vec::new()), 3, 0);
    assert!(actions.contains(&Action::Stranded { class: CLASS, number: 1 }));
}

/// What the gateway lacks is gone here: nothing that is left will be taken, so it is not sent in a loop.
#[test]
fn a_gap_in_front_of_all_that_is_left_pauses_the_stream_and_is_told() {
    let mut sender = new_sender(0);
    sender.handle(Input::Sealed { class: CLASS, number: 5, bytes: 1000 }, 1, 0);
    sender.handle(Input::Connected, 2, 0);
    let actions = sender.handle(Input::Resynced(Vec::new()), 3, 0);
    assert!(actions.contains(&Action::Send { class: CLASS, first_number: 5, count: 1 }), "{actions:?}");
    let outcomes = vec![Outcome::Gap { next_batch_number: 1 }];
    let actions = sender.handle(Input::Answered { class: CLASS, outcomes }, 4, 0);
    assert!(actions.contains(&Action::Stranded { class: CLASS, number: 1 }), "{actions:?}");
    let again = |actions: Vec<Action>| actions.iter().any(|a| matches!(a, Action::Send { .. }));
    assert!(!again(actions));
    assert!(!again(sender.handle(Input::Tick, 1_000_000_000, 0)), "a second later");
    assert!(again(sender.handle(Input::Tick, 60_000_000_000, 0)), "now and then");
}

/// A sender that starts reads what lies sealed, and is then told of the same batches as they are announced.
#[test]
fn a_batch_told_twice_is_sent_once() {
    let mut sender = new_sender(0);
    for number in [1, 2, 2, 1, 3] {
        sender.handle(Input::Sealed { class: CLASS, number, bytes: 1000 }, 1, 0);
    }
    assert_eq!(sender.pending(CLASS), 3);
    sender.handle(Input::Connected, 2, 0);
    let actions = sender.handle(Input::Resynced(Vec::new()), 3, 0);
    assert!(actions.contains(&Action::Send { class: CLASS, first_number: 1, count: 3 }), "{actions:?}");
}

#[test]
fn another_batch_under_a_stored_number_is_a_fork() {
    let h = header();
    let head = StreamHead { batch_number: 1, last_sequence: h.last_sequence, batch_hash: Hash::of(&[b"a"]) };
    assert_eq!(judge(&head, Some(Hash::of(&[b"a"])), &h, Hash::of(&[b"b"])), Verdict::Fork);
    assert_eq!(judge(&head, Some(Hash::of(&[b"a"])), &h, Hash::of(&[b"a"])), Verdict::Duplicate);
    let mut next = header();
    next.batch_number = 2;
    next.first_sequence = h.last_sequence + 1;
    assert_eq!(judge(&head, None, &next, Hash::of(&[b"c"])), Verdict::Fork, "chain does not match");
}

#[test]
fn a_request_holds_2_mib_or_64_batches_and_one_is_under_way() {
    const MIB: u64 = 1 << 20;
    for (batches, taken) in
        [(vec![1; 65], 64), (vec![MIB; 3], 2), (vec![MIB, MIB + 1], 1), (vec![3 * MIB, 1], 1)]
    {
        let mut sender = new_sender(0);
        for (number, bytes) in (1..).zip(&batches) {
            sender.handle(Input::Sealed { class: CLASS, number, bytes: *bytes }, 1, 0);
        }
        sender.handle(Input::Connected, 2, 0);
        let actions = sender.handle(Input::Resynced(Vec::new()), 3, 0);
        assert_eq!(actions, [Action::Send { class: CLASS, first_number: 1, count: taken }]);
        assert_eq!(sender.handle(Input::Tick, 4, 0), [], "one is under way");
        let outcomes = vec![Outcome::Durable; taken];
        let first_number = taken as u64 + 1;
        let next = sender.handle(Input::Answered { class: CLASS, outcomes }, 5, 0);
        assert!(
            next.contains(&Action::Send { class: CLASS, first_number, count: batches.len() - taken }),
            "{next:?}"
        );
    }
}

#[test]
fn pauses_are_doubled_from_100_ms_to_30_s_and_half_of_each_is_random() {
    let pause = |failures: u32, jitter| {
        let mut sender = new_sender(0);
        (0..failures).for_each(|_| drop(sender.handle(Input::Disconnected, 0, 0)));
        match sender.handle(Input::Disconnected, 0, jitter)[..] {
            [Action::Wake { at_ns }] => at_ns / 1_000,
            ref other => panic!("{other:?}"),
        }
    };
    let most = |ceiling_us: u64| ceiling_us * 500 - 1;
    assert_eq!((pause(0, 0), pause(0, most(100_000))), (50_000, 99_999));
    assert_eq!((pause(1, 0), pause(1, most(200_000))), (100_000, 199_999));
    assert_eq!((pause(8, 0), pause(8, most(25_600_000))), (12_800_000, 25_599_999));
    for failures in [9, 63, 64, 1_000] {
        assert_eq!(pause(failures, 0), 15_000_000, "{failures}");
        assert_eq!(pause(failures, most(30_000_000)), 29_999_999, "{failures}");
    }
}

#[test]
fn a_gateway_may_ask_for_a_pause_of_100_ms_to_30_s() {
    for (asked_ns, pause_ns) in [(0, 100_000_000), (1_000_000_000, 1_000_000_000), (u64::MAX, 30_000_000_000)]
    {
        let mut sender = new_sender(0);
        sender.handle(Input::Sealed { class: CLASS, number: 1, bytes: 1 }, 1, 0);
        sender.handle(Input::Connected, 2, 0);
        sender.handle(Input::Resynced(Vec::new()), 3, 0);
        let actions = sender.handle(Input::Busy { class: CLASS, retry_after_ns: asked_ns }, 10, 0);
        assert_eq!(actions, [Action::Wake { at_ns: 10 + pause_ns }]);
    }
}
