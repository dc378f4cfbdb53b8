//! All that is known of one collector.

use std::collections::{BTreeMap, BTreeSet};

use activity_schema::coverage::EventClass;
use activity_schema::ids::CollectorId;
use activity_schema::{Class, Epoch, Event, StreamId, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::classes::{ClassSet, index};
use crate::clock::ClockBounds;
use crate::declared::Declarations;
use crate::facts::{BatchFacts, BatchKind, CollectorState, StreamState};
use crate::life::{EpochState, Life};
use crate::marks::{Cause, Mark, MarkId, Marks, Sequences};
use crate::read::{self, Speaker};

/// Epochs kept a collector: boots and crashes with a lost spool.
const EPOCHS_MAX: usize = 1024;
/// Stops and starts kept a collector.
const TURNS_MAX: usize = 4096;
/// Names under which a collector speaks of itself; beyond it any instance may be such a name.
const OWN_MAX: usize = 64;
/// Canary results kept a collector.
const CANARIES_MAX: usize = 4096;
/// A batch that claims times this far after its receipt has a wrong clock, nanoseconds.
const AHEAD_NS_MAX: i64 = 1_000_000_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Collector {
    host: Option<String>,
    /// Instances under which it speaks of itself: those of its starts and heartbeats.
    own: BTreeSet<String>,
    epochs: BTreeMap<Epoch, EpochState>,
    stops: BTreeSet<i64>,
    /// Starts and restarts.
    resumes: BTreeSet<i64>,
    last_heartbeat: Option<i64>,
    pub(crate) declarations: Declarations,
    pub(crate) losses: Marks,
    pub(crate) aged: Marks,
    pub(crate) clock: ClockBounds,
    /// Whether the canary was seen, by time.
    #[serde(with = "crate::pairs")]
    canaries: BTreeMap<i64, bool>,
    /// Bounds were reached: nothing is vouched for before this.
    pub(crate) forgotten_before: Option<i64>,
    /// From here on the gateway takes nothing from it. Told anew to every index: the control journal decides.
    #[serde(skip)]
    pub(crate) revoked: Option<i64>,
}

impl Collector {
    pub(crate) fn apply_batch(&mut self, facts: &BatchFacts) {
        self.host = Some(facts.host.as_str().to_owned());
        self.clock.note(facts.occurred_max.as_nanos(), facts.clock.error_ns);
        self.mark_batch(facts);
        if facts.kind != BatchKind::Fork {
            let epoch = self.epoch(&facts.stream.epoch);
            let stream = &mut epoch.streams[index(facts.stream.class)];
            let (min, max) = (facts.occurred_min.as_nanos(), facts.occurred_max.as_nanos());
            if stream.insert(facts.first_sequence, facts.last_sequence, min, max) {
                self.prove(&facts.stream.epoch);
            }
        }
    }

    fn mark_batch(&mut self, facts: &BatchFacts) {
        let id = |cause, item| MarkId::Batch {
            epoch: facts.stream.epoch.clone(),
            priority: facts.stream.class,
            first: facts.first_sequence,
            last: facts.last_sequence,
            cause,
            item,
        };
        let (min, max) = (facts.occurred_min.as_nanos(), facts.occurred_max.as_nanos());
        let whole = |cause, count| Mark {
            from: min.min(max),
            to: max.max(min).saturating_add(1),
            instance: None,
            placed: true,
            classes: ClassSet::of_priority(facts.stream.class),
            cause,
            count,
            exact: true,
            sequences: None,
            weight: 1,
        };
        match facts.kind {
            BatchKind::Stored => {}
            BatchKind::Shed => {
                let sequences = Some(Sequences {
                    epoch: facts.stream.epoch.clone(),
                    priority: facts.stream.class,
                    first: facts.first_sequence,
                    last: facts.last_sequence,
                });
                self.losses.put(id(Cause::Shed, 0), Mark { sequences, ..whole(Cause::Shed, facts.count) });
            }
            BatchKind::Fork => {
                let fork = Mark { exact: false, ..whole(Cause::Fork, 0) };
                self.losses.put(id(Cause::Fork, facts.received_at.as_nanos()), fork);
            }
        }
        for (line, item) in facts.withheld.iter().zip(0_i64..) {
            let mut mark = whole(Cause::Withheld, 1);
            if let Some(at) = line.occurred_at {
                (mark.from, mark.to) = (at.as_nanos(), at.as_nanos().saturating_add(1));
            }
            mark.instance = line.instance.clone().filter(|instance| instance != read::UNKNOWN);
            mark.classes = line.class.map_or(mark.classes, ClassSet::one);
            self.losses.put(id(Cause::Withheld, item), mark);
        }
        if facts.elided > 0 {
            self.aged.put(id(Cause::AgedOut, 0), whole(Cause::AgedOut, facts.elided));
        }
        let received = facts.received_at.as_nanos();
        if max.saturating_sub(received) > AHEAD_NS_MAX.max(facts.clock.error_ns) {
            let ahead = whole(Cause::ClockAhead, 0);
            let ahead = Mark { from: received, classes: ClassSet::all(), exact: false, ..ahead };
            self.losses.put(id(Cause::ClockAhead, 0), ahead);
        }
    }

    pub(crate) fn apply_event(&mut self, event: &Event<'_>, kind: &str, speaker: &Speaker<'_>) {
        let at = event.occurred_at.as_nanos();
        if matches!(kind, "started" | "restarted" | "stopped" | "heartbeat") && self.own.len() < OWN_MAX {
            self.own.insert(event.correlation.instance_id.as_str().to_owned());
        }
        match kind {
            "loss" => {
                self.losses.put(MarkId::Event(event.event_id), read::loss(event, speaker));
            }
            "stopped" => {
                self.stops.insert(at);
                if self.stops.len() > TURNS_MAX {
                    // The forgotten stop lasted until a start, or at most into the next stop.
                    self.stops.pop_first();
                    self.forget_before(self.stops.first().copied());
                }
            }
            "clock" => {
                self.note_clock_error(event);
                if let Some(mark) = read::clock_step(event) {
                    self.losses.put(MarkId::Event(event.event_id), mark);
                }
            }
            "unsupported" => {
                let class = event.payload.text("class").and_then(EventClass::from_wire);
                let reason = event.payload.text("reason").map(str::to_owned);
                if let Some(class) = class {
                    let key = (at, event.event_id);
                    let forgotten = self.declarations.withdraw(read::instance_of(event), key, class, reason);
                    self.forget_before(forgotten);
                }
            }
            "probe" => self.note_canary(at, event.payload.text("canary")),
            _ if speaker.vouches => self.apply_vouching(event, kind, speaker),
            _ => {}
        }
    }

    /// Started, restarted, heartbeat and config: what makes coverage better.
    fn apply_vouching(&mut self, event: &Event<'_>, kind: &str, speaker: &Speaker<'_>) {
        let Some(epoch_id) = &speaker.epoch else { return };
        let at = event.occurred_at.as_nanos();
        match kind {
            "started" | "restarted" => {
                let intact = kind == "restarted" && event.payload.text("spool_state") == Some("intact");
                self.resumes.insert(at);
                if self.resumes.len() > TURNS_MAX {
                    // The stop before a forgotten start would last on, and a stopped collector claims nothing.
                    self.resumes.pop_first();
                    self.forget_before(self.resumes.first().copied());
                }
                let epoch = self.epoch(epoch_id);
                if intact {
                    epoch.note_life(at);
                } else {
                    let forgotten = epoch.note_break(at);
                    self.forget_before(forgotten);
                }
            }
            "heartbeat" => {
                self.note_clock_error(event);
                self.last_heartbeat = self.last_heartbeat.max(Some(at));
                let needs = read::needs(event, speaker);
                self.epoch(epoch_id).note_heartbeat(at, event.integrity.collector_sequence, needs);
                self.prove(epoch_id);
            }
            "config" => {
                self.epoch(epoch_id).note_config(at);
                let instance = event.correlation.instance_id.as_str();
                if instance != read::UNKNOWN {
                    let body = read::declaration(&event.payload);
                    self.declarations.declare(instance, (at, event.event_id), body);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn note_unknown_receipt(&mut self, heartbeat: Uuid, at: i64) {
        let mark = Mark {
            from: i64::MIN,
            to: at.saturating_add(1),
            instance: None,
            placed: false,
            classes: ClassSet::all(),
            cause: Cause::ReceiptUnknown,
            count: 0,
            exact: false,
            sequences: None,
            weight: 1,
        };
        self.losses.put(MarkId::Event(heartbeat), mark);
    }

    fn note_clock_error(&mut self, event: &Event<'_>) {
        if let Some(error_ns) = event.payload.integer("clock_error_ns") {
            self.clock.note(event.occurred_at.as_nanos(), error_ns);
        }
    }

    fn note_canary(&mut self, at: i64, canary: Option<&str>) {
        let seen = match canary {
            Some("seen" | "late") => true,
            Some("missing") => false,
            _ => return,
        };
        // Two results of one moment: the worse.
        let entry = self.canaries.entry(at).or_insert(seen);
        *entry &= seen;
        if self.canaries.len() > CANARIES_MAX {
            self.thin_canaries();
        }
    }

    /// Forgets results within a run of equal ones in the older half; then the oldest.
    fn thin_canaries(&mut self) {
        let older: Vec<(i64, bool)> =
            self.canaries.iter().take(CANARIES_MAX / 2).map(|(at, seen)| (*at, *seen)).collect();
        for around in older.windows(3) {
            if around[0].1 == around[1].1 && around[1].1 == around[2].1 {
                self.canaries.remove(&around[1].0);
            }
        }
        while self.canaries.len() > CANARIES_MAX {
            let forgotten = self.canaries.pop_first().map(|(at, _)| at.saturating_add(1));
            self.forget_before(forgotten);
        }
    }

    fn forget_before(&mut self, at: Option<i64>) {
        self.forgotten_before = self.forgotten_before.max(at);
    }

    fn epoch(&mut self, id: &Epoch) -> &mut EpochState {
        if !self.epochs.contains_key(id) && self.epochs.len() >= EPOCHS_MAX {
            self.forget_an_epoch();
        }
        self.epochs.entry(id.clone()).or_default()
    }

    fn forget_an_epoch(&mut self) {
        let oldest = self.epochs.iter().min_by_key(|(_, epoch)| epoch.first()).map(|(id, _)| id.clone());
        if let Some(epoch) = oldest.and_then(|id| self.epochs.remove(&id)) {
            let ends = epoch.segments().into_iter().map(|s| s.covered_to.unwrap_or(s.start));
            self.forget_before(ends.max());
        }
    }

    /// Moves heartbeats whose needs are met, in this epoch and in those that wait for it.
    fn prove(&mut self, changed: &Epoch) {
        let mut met: Vec<(Epoch, Vec<(i64, u64)>)> = Vec::new();
        let touched = |(id, epoch): &(&Epoch, &EpochState)| *id == changed || epoch.waits_for_others;
        for (id, epoch) in self.epochs.iter().filter(touched) {
            let has = |(other, class, last): &(Epoch, Class, u64)| {
                self.epochs.get(other).map_or(0, |epoch| epoch.contiguous_to(*class)) >= *last
            };
            let keys: Vec<_> = epoch
                .waits()
                .filter(|(_, needs)| id == changed || needs.others.iter().any(|(other, ..)| other == changed))
                .filter(|(_, needs)| epoch.has(&needs.own) && needs.others.iter().all(has))
                .map(|(key, _)| *key)
                .collect();
            if !keys.is_empty() {
                met.push((id.clone(), keys));
            }
        }
        for (id, keys) in met {
            self.epoch(&id).prove(&keys);
        }
    }

    /// Whether something missing may be missing of the instance.
    ///
    /// A loss that names no cgroup, under the collector's own name, is one that the collector could not place.
    pub(crate) fn touches(&self, mark: &Mark, instance: &str) -> bool {
        let Some(named) = mark.instance.as_deref() else { return true };
        if mark.placed && named == read::UNKNOWN {
            return instance == named;
        }
        let own = || self.own.len() >= OWN_MAX || self.own.contains(named);
        named == instance || !self.declarations.knows(named) || (!mark.placed && own())
    }

    pub(crate) fn life(&self) -> Life {
        Life::of(self.epochs.values())
    }

    pub(crate) fn last_heartbeat(&self) -> Option<i64> {
        self.last_heartbeat
    }

    /// Intervals after a stop, until a start or a config of the instance.
    pub(crate) fn stopped(&self, instance: &str) -> Vec<(i64, i64)> {
        let after = |at: i64| at.saturating_add(1)..;
        let configs: BTreeSet<i64> = if self.stops.is_empty() {
            BTreeSet::new()
        } else {
            self.declarations.configs(instance).map(|(at, _)| at).collect()
        };
        let mut out: Vec<(i64, i64)> = Vec::new();
        for stop in &self.stops {
            let resume = self.resumes.range(after(*stop)).next();
            let config = configs.range(after(*stop)).next();
            let end = resume.into_iter().chain(config).min().copied().unwrap_or(i64::MAX);
            match out.last_mut() {
                Some((_, last)) if *last >= *stop => *last = (*last).max(end),
                _ => out.push((*stop, end)),
            }
        }
        out
    }

    /// Missing sequences between stored ones, as marks.
    pub(crate) fn holes(&self) -> Vec<Mark> {
        let mut out = Vec::new();
        for (id, epoch) in &self.epochs {
            for priority in Class::ALL.iter().copied() {
                for hole in epoch.streams[index(priority)].holes() {
                    let after = hole.after.or(epoch.first()).unwrap_or(hole.before);
                    let (first, last) = (hole.first, hole.last);
                    let sequences = Sequences { epoch: id.clone(), priority, first, last };
                    out.push(Mark {
                        from: after.min(hole.before),
                        to: after.max(hole.before).saturating_add(1),
                        instance: None,
                        placed: false,
                        classes: ClassSet::of_priority(priority),
                        cause: Cause::Hole,
                        count: (last - first).saturating_add(1),
                        exact: true,
                        sequences: Some(sequences),
                        weight: 1,
                    });
                }
            }
        }
        out
    }

    /// From the last canary that was seen to the next one, where one was missing.
    pub(crate) fn canary_gaps(&self) -> Vec<Mark> {
        let mut out: Vec<Mark> = Vec::new();
        for (at, _) in self.canaries.iter().filter(|(_, seen)| !**seen) {
            if out.last().is_some_and(|mark| mark.to > *at) {
                continue;
            }
            let seen_before = self.canaries.range(..*at).rev().find(|(_, seen)| **seen);
            let seen_after = self.canaries.range(*at..).find(|(_, seen)| **seen);
            out.push(Mark {
                from: seen_before.map_or(i64::MIN, |(at, _)| *at),
                to: seen_after.map_or(i64::MAX, |(at, _)| *at),
                instance: None,
                placed: false,
                classes: ClassSet::all(),
                cause: Cause::CanaryMissing,
                count: 0,
                exact: false,
                sequences: None,
                weight: 1,
            });
        }
        out
    }

    pub(crate) fn state(&self, name: &str) -> CollectorState {
        let life = self.life();
        let newest = self.epochs.iter().max_by_key(|(id, epoch)| (epoch.first(), *id));
        let stop = self.stops.last().copied();
        let configs_after = |stop: i64| {
            let of_all = self.declarations.instances().flat_map(|i| self.declarations.configs(i));
            of_all.map(|(at, _)| at).any(|at| at > stop)
        };
        let resumed = |stop: i64| self.resumes.last().is_some_and(|at| *at > stop) || configs_after(stop);
        let at = self.last_heartbeat.unwrap_or(i64::MAX);
        let intervals = self.declarations.instances().map(|i| self.declarations.interval_ns(i, at));
        CollectorState {
            collector: name.to_owned(),
            host: self.host.clone(),
            epoch: newest.map(|(id, _)| id.clone()),
            last_heartbeat: self.last_heartbeat.map(Timestamp::from_nanos),
            covered_to: life.covered.last().map(|(_, to)| Timestamp::from_nanos(*to)),
            interval_ns: intervals.max().unwrap_or(crate::INTERVAL_NS_DEFAULT),
            stopped_since: stop.filter(|stop| !resumed(*stop)).map(Timestamp::from_nanos),
            revoked_since: self.revoked.map(Timestamp::from_nanos),
            instances: self.declarations.instances().map(str::to_owned).collect(),
            streams: self.stream_states(name),
        }
    }

    fn stream_states(&self, name: &str) -> Vec<StreamState> {
        let Ok(collector) = CollectorId::new(name) else { return Vec::new() };
        let mut out = Vec::new();
        for (id, epoch) in &self.epochs {
            for class in Class::ALL.iter().copied() {
                let (stored, declared) = (&epoch.streams[index(class)], epoch.declared[index(class)]);
                if stored.last() > 0 || declared > 0 {
                    out.push(StreamState {
                        stream: StreamId { collector: collector.clone(), epoch: id.clone(), class },
                        contiguous_to: stored.contiguous_to(),
                        stored_to: stored.last(),
                        declared_to: declared,
                    });
                }
            }
        }
        out
    }
}
