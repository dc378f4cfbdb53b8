//! The rules once more, slowly and from the raw history: no increments, no bounds, every question asked anew.

use std::collections::{BTreeMap, BTreeSet};

use activity_coverage::{BatchFacts, BatchKind, CoverageRequest};
use activity_schema::coverage::{CoverageState, EventClass};
use activity_schema::event::{Event, Payload, Value};
use activity_schema::{Class, StreamId, Timestamp, catalog};

use crate::world::Fact;

const TEN_SECONDS: i64 = 10_000_000_000;

/// State, records lost, and whether the number is exact, over an interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub from: i64,
    pub to: i64,
    pub state: CoverageState,
    pub lost: u64,
    pub exact: Option<bool>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub complete: bool,
    pub elided_lines: u64,
    pub forks: u64,
    pub clock_error_ns_max: Option<i64>,
    pub classes: BTreeMap<EventClass, Vec<Span>>,
}

struct Lost {
    from: i64,
    to: i64,
    unobserved: bool,
    count: u64,
    exact: bool,
}

/// The history of one collector.
#[derive(Default)]
struct Told<'h> {
    events: Vec<&'h Event<'static>>,
    batches: Vec<&'h BatchFacts>,
    /// (epoch, time) of the heartbeats that vouch.
    proven: Vec<(String, i64)>,
    revoked: Option<i64>,
}

pub struct Reference<'h> {
    collectors: BTreeMap<String, Told<'h>>,
}

fn time(event: &Event<'_>) -> i64 {
    event.occurred_at.as_nanos()
}

fn epoch(event: &Event<'_>) -> String {
    event.source.collector.split('/').nth(1).expect("three parts").to_owned()
}

fn entries<'p>(payload: &'p Payload<'static>, key: &str) -> Vec<&'p Payload<'static>> {
    let Some(Value::List(items)) = payload.get(key) else { return Vec::new() };
    items.iter().filter_map(|item| if let Value::Object(o) = item { Some(o) } else { None }).collect()
}

fn number(payload: &Payload<'_>, key: &str) -> u64 {
    payload.integer(key).and_then(|n| u64::try_from(n).ok()).expect("a count")
}

fn priority_classes(priority: Class) -> BTreeSet<EventClass> {
    let rows = catalog::EVENTS.iter().filter(|row| row.class == priority);
    rows.filter_map(|row| EventClass::of(row.name)).collect()
}

impl<'h> Reference<'h> {
    pub fn new(history: &'h [Fact]) -> Self {
        let mut collectors: BTreeMap<String, Told<'h>> = BTreeMap::new();
        let mut seen_events = BTreeSet::new();
        for fact in history {
            let name = match fact {
                Fact::Batch(batch) => batch.stream.collector.as_str().to_owned(),
                Fact::Event(event) => event.source.collector.split('/').next().expect("a name").to_owned(),
            };
            let told = collectors.entry(name).or_default();
            match fact {
                Fact::Batch(batch) if !told.batches.contains(&batch) => told.batches.push(batch),
                Fact::Event(event) if seen_events.insert(event.event_id) => told.events.push(event),
                _ => {}
            }
        }
        for told in collectors.values_mut() {
            told.proven = told.heartbeats_that_vouch();
        }
        Reference { collectors }
    }

    pub fn revoke(&mut self, collector: &str, at: Timestamp) {
        if let Some(told) = self.collectors.get_mut(collector) {
            told.revoked = Some(at.as_nanos());
        }
    }

    pub fn answer(&self, request: &CoverageRequest) -> Answer {
        let instance = request.instance.as_deref().expect("asked of one instance");
        let (from, to) =
            (request.from.expect("a beginning").as_nanos(), request.to.min(request.now).as_nanos());
        let speaking: Vec<&Told<'h>> =
            self.collectors.values().filter(|told| !told.configs(instance).is_empty()).collect();
        let all: Vec<&Told<'h>> = self.collectors.values().collect();
        let hiding = if speaking.is_empty() { &all } else { &speaking };
        let mut classes: BTreeSet<EventClass> = request.classes.iter().copied().collect();
        if classes.is_empty() {
            classes = speaking.iter().flat_map(|told| told.declared(instance, from, to)).collect();
        }
        if classes.is_empty() {
            classes = EventClass::ALL.iter().copied().collect();
        }
        let spans: BTreeMap<EventClass, Vec<Span>> =
            classes.iter().map(|class| (*class, sweep(&speaking, instance, *class, request))).collect();
        let complete = spans.values().flatten().all(|span| match span.state {
            CoverageState::Covered => true,
            CoverageState::Unsupported => request.classes.is_empty(),
            _ => false,
        });
        Answer {
            complete,
            elided_lines: hiding.iter().map(|told| told.elided(instance, from, to)).sum(),
            forks: hiding.iter().map(|told| told.forks(from, to)).sum(),
            clock_error_ns_max: speaking.iter().filter_map(|told| told.clock(from, to)).max(),
            classes: spans,
        }
    }
}

/// Asks every whole second and the nanosecond after it; nothing in these histories changes in between.
fn sweep(speaking: &[&Told<'_>], instance: &str, class: EventClass, request: &CoverageRequest) -> Vec<Span> {
    let (from, to) = (request.from.expect("a beginning").as_nanos(), request.to.min(request.now).as_nanos());
    let missing: Vec<Vec<Lost>> =
        speaking.iter().map(|told| told.missing(instance, class, from, to)).collect();
    let mut counted = BTreeSet::new();
    let mut out: Vec<Span> = Vec::new();
    let mut t = from;
    while t < to {
        let end = if t % 1_000_000_000 == 0 { t + 1 } else { t + 999_999_999 }.min(to);
        let opinions = speaking.iter().zip(&missing).enumerate();
        let opinions = opinions.filter_map(|(by, (told, missing))| {
            let (state, exact) = told.opinion(instance, class, t, request.now.as_nanos(), missing)?;
            let claims = state != CoverageState::Unsupported && !told.stopped(instance, t);
            Some((state, by, exact, claims))
        });
        let opinions: Vec<_> = opinions.collect();
        let claiming: Vec<_> = opinions.iter().copied().filter(|(.., claims)| *claims).collect();
        let deciding = if claiming.is_empty() {
            opinions.into_iter().min_by_key(|(state, by, ..)| (*state, *by)).into_iter().collect()
        } else {
            claiming
        };
        let state = deciding.iter().map(|(state, ..)| *state).max().unwrap_or(CoverageState::Unobserved);
        let (mut lost, mut exacts) = (0, Vec::new());
        for (own, by, exact, _) in &deciding {
            if matches!(own, CoverageState::Lossy | CoverageState::Unobserved) {
                exacts.push(*exact);
            }
            if *own == CoverageState::Unsupported {
                continue;
            }
            // A loss counts where it first matters.
            let active = missing[*by].iter().enumerate();
            let active = active.filter(|(_, lost)| lost.from <= t && t < lost.to);
            let fresh = active.filter(|(i, _)| counted.insert((*by, *i)));
            lost += fresh.map(|(_, lost)| lost.count).sum::<u64>();
        }
        let told = exacts.iter().any(Option::is_some);
        let exact = told.then(|| exacts.iter().all(|exact| *exact == Some(true)));
        match out.last_mut() {
            Some(last) if last.state == state => {
                last.to = end;
                last.lost += lost;
                last.exact = match (last.exact, exact) {
                    (Some(a), Some(b)) => Some(a && b),
                    (a, b) => a.or(b),
                };
            }
            _ => out.push(Span { from: t, to: end, state, lost, exact }),
        }
        t = end;
    }
    out
}

impl Told<'_> {
    fn named(&self, names: &[&str]) -> Vec<&Event<'static>> {
        let full: Vec<String> = names.iter().map(|name| format!("telemetry.{name}")).collect();
        self.events
            .iter()
            .copied()
            .filter(|e| full.iter().any(|name| e.event_name == name.as_str()))
            .collect()
    }

    fn configs(&self, instance: &str) -> Vec<&Event<'static>> {
        let mut configs = self.named(&["config"]);
        configs.retain(|e| e.correlation.instance_id == instance);
        configs.sort_by_key(|e| (time(e), e.event_id));
        configs
    }

    fn config_at(&self, instance: &str, t: i64) -> Option<&Event<'static>> {
        self.configs(instance).into_iter().rfind(|e| time(e) <= t)
    }

    /// Classes of the configs in force at some time within the interval.
    fn declared(&self, instance: &str, from: i64, to: i64) -> BTreeSet<EventClass> {
        let mut configs: Vec<_> = self.configs(instance);
        configs.retain(|e| from < time(e) && time(e) < to);
        configs.extend(self.config_at(instance, from));
        let entries = configs.iter().flat_map(|e| entries(&e.payload, "classes"));
        entries.map(|o| EventClass::from_wire(o.text("class").expect("named")).expect("a class")).collect()
    }

    fn is_stored(&self, stream: &StreamId, sequence: u64) -> bool {
        self.batches.iter().any(|b| {
            b.kind != BatchKind::Fork
                && b.stream == *stream
                && (b.first_sequence..=b.last_sequence).contains(&sequence)
        })
    }

    fn is_proven(&self, heartbeat: &Event<'_>, streams: &[&Payload<'static>]) -> bool {
        let own: StreamId = heartbeat.source.collector.parse().expect("a stream");
        let mut needs = vec![(own, heartbeat.integrity.collector_sequence)];
        for stream in streams {
            let id: StreamId = stream.text("stream").expect("named").parse().expect("a stream");
            needs.push((id, number(stream, "last_sequence")));
        }
        needs.iter().all(|(stream, last)| (1..=*last).all(|sequence| self.is_stored(stream, sequence)))
    }

    fn heartbeats_that_vouch(&self) -> Vec<(String, i64)> {
        let beats = self.named(&["heartbeat"]);
        let proven = beats.iter().filter(|e| self.is_proven(e, &entries(&e.payload, "streams")));
        proven.map(|e| (epoch(e), time(e))).collect()
    }

    /// Times at which a run of the epoch begins.
    fn beginnings(&self, of: &str) -> Vec<i64> {
        let within = |names: &[&str]| -> Vec<i64> {
            self.named(names).into_iter().filter(|e| epoch(e) == of).map(time).collect()
        };
        let life = within(&["heartbeat", "started", "restarted"]);
        let not_intact = |e: &&Event<'static>| {
            e.event_name != "telemetry.restarted" || e.payload.text("spool_state") != Some("intact")
        };
        let starts = self.named(&["started", "restarted"]).into_iter().filter(|e| epoch(e) == of);
        let parting = starts.filter(not_intact).map(time).filter(|b| life.iter().any(|t| t < b));
        let first = life.iter().copied().chain(within(&["config"])).min();
        first.into_iter().chain(parting).collect()
    }

    fn vouched(&self, t: i64) -> bool {
        self.proven.iter().any(|(epoch, beat)| {
            let beginnings = self.beginnings(epoch);
            *beat > t
                && beginnings.iter().any(|b| *b <= t)
                && !beginnings.iter().any(|b| t < *b && *b <= *beat)
        })
    }

    /// Said that it stopped, or was revoked.
    fn stopped(&self, instance: &str, t: i64) -> bool {
        if self.revoked.is_some_and(|at| at <= t) {
            return true;
        }
        let mut resumes: Vec<i64> = self.named(&["started", "restarted"]).into_iter().map(time).collect();
        resumes.extend(self.configs(instance).into_iter().map(time));
        let stops = self.named(&["stopped"]);
        stops.iter().any(|e| time(e) <= t && !resumes.iter().any(|r| time(e) < *r && *r <= t))
    }

    /// Covered, pending or unobserved, losses and declarations aside.
    fn alive(&self, instance: &str, t: i64, now: i64) -> CoverageState {
        if self.stopped(instance, t) {
            return CoverageState::Unobserved;
        }
        if self.vouched(t) {
            return CoverageState::Covered;
        }
        let epochs: BTreeSet<String> = self.events.iter().map(|e| epoch(e)).collect();
        let begun = epochs.iter().flat_map(|epoch| self.beginnings(epoch));
        let Some(tail) = begun.chain(self.proven.iter().map(|(_, t)| *t)).max() else {
            return CoverageState::Unobserved;
        };
        let config = self.config_at(instance, tail).or_else(|| self.configs(instance).into_iter().next());
        let interval = config.and_then(|e| e.payload.integer("interval_ms")).map(|ms| ms * 1_000_000);
        let patient = now - tail <= 2 * interval.unwrap_or(TEN_SECONDS);
        if t >= tail && patient { CoverageState::Pending } else { CoverageState::Unobserved }
    }

    fn opinion(
        &self,
        instance: &str,
        class: EventClass,
        t: i64,
        now: i64,
        missing: &[Lost],
    ) -> Option<(CoverageState, Option<bool>)> {
        let config = self.config_at(instance, t)?;
        let entries = entries(&config.payload, "classes");
        let entry = entries.into_iter().find(|o| o.text("class") == Some(class.as_str()))?;
        let declared = entry.text("state").expect("declared");
        if declared == "unsupported" {
            return Some((CoverageState::Unsupported, None));
        }
        let alive = self.alive(instance, t, now);
        let active: Vec<&Lost> = missing.iter().filter(|lost| lost.from <= t && t < lost.to).collect();
        let mut state = alive;
        if declared == "degraded" || active.iter().any(|lost| !lost.unobserved) {
            state = state.max(CoverageState::Lossy);
        }
        if active.iter().any(|lost| lost.unobserved) {
            state = CoverageState::Unobserved;
        }
        let certain = alive == CoverageState::Covered && declared == "supported";
        let exact = match state {
            CoverageState::Lossy | CoverageState::Unobserved if !active.is_empty() => {
                Some(certain && active.iter().all(|lost| lost.exact))
            }
            CoverageState::Lossy => Some(false),
            _ => None,
        };
        Some((state, exact))
    }

    fn speaks_of(&self, named: Option<&str>, instance: &str) -> bool {
        named.is_none_or(|n| n == "unknown" || n == instance || self.configs(n).is_empty())
    }

    /// Everything missing of the class that touches the interval.
    fn missing(&self, instance: &str, class: EventClass, from: i64, to: i64) -> Vec<Lost> {
        let touches = |a: i64, b: i64| a < to && from < b;
        let mut out = Vec::new();
        let mut named: BTreeSet<(StreamId, u64)> = BTreeSet::new();
        for event in self.named(&["loss"]) {
            let p = &event.payload;
            let parse = |key| p.text(key).expect("given").parse::<Timestamp>().expect("a time").as_nanos();
            let (first, last) = (parse("first_time"), parse("last_time") + 1);
            let of_class = match p.get("event_names") {
                Some(Value::List(names)) => {
                    names.iter().any(|n| n.as_str().and_then(EventClass::of) == Some(class))
                }
                _ => {
                    let priority = Class::from_wire(p.text("class").expect("given")).expect("a priority");
                    priority_classes(priority).contains(&class)
                }
            };
            let of = event.correlation.instance_id.as_str();
            let life = self.named(&["started", "restarted", "stopped", "heartbeat"]);
            let own = life.iter().any(|e| e.correlation.instance_id == of);
            let mine = own || self.speaks_of(Some(of), instance);
            if !(of_class && mine && touches(first, last)) {
                continue;
            }
            if let Some(stream) = p.text("stream") {
                let range = number(p, "first_missing_sequence")..=number(p, "last_missing_sequence");
                named.extend(range.map(|sequence| (stream.parse().expect("a stream"), sequence)));
            }
            let reason = p.text("reason").expect("given");
            out.push(Lost {
                from: first,
                to: last,
                unobserved: matches!(reason, "spool_corrupt" | "collector_down"),
                count: number(p, "dropped_count"),
                exact: p.text("precision") == Some("exact"),
            });
        }
        let elided = self.elided_batches();
        for batch in &self.batches {
            let of_class = priority_classes(batch.stream.class).contains(&class);
            let (first, last) = (batch.occurred_min.as_nanos(), batch.occurred_max.as_nanos() + 1);
            let mut lost = |from: i64, to: i64, count, exact| {
                if touches(from, to) {
                    out.push(Lost { from, to, unobserved: false, count, exact });
                }
            };
            if of_class && batch.kind == BatchKind::Shed {
                let unnamed = (batch.first_sequence..=batch.last_sequence)
                    .filter(|sequence| !named.contains(&(batch.stream.clone(), *sequence)));
                lost(first, last, unnamed.count() as u64, true);
            }
            if of_class && batch.kind == BatchKind::Fork {
                lost(first, last, 0, false);
            }
            for line in &batch.withheld {
                let of_class = line.class.map_or(of_class, |c| c == class);
                if of_class && self.speaks_of(line.instance.as_deref(), instance) {
                    let at = line.occurred_at.map(Timestamp::as_nanos);
                    lost(at.unwrap_or(first), at.map_or(last, |t| t + 1), 1, true);
                }
            }
        }
        for (batch, count) in elided {
            let (first, last) = (batch.occurred_min.as_nanos(), batch.occurred_max.as_nanos() + 1);
            if priority_classes(batch.stream.class).contains(&class) && touches(first, last) {
                out.push(Lost { from: first, to: last, unobserved: false, count, exact: true });
            }
        }
        self.holes(class, &named, &mut |lost| {
            if touches(lost.from, lost.to) {
                out.push(lost);
            }
        });
        out
    }

    fn holes(&self, class: EventClass, named: &BTreeSet<(StreamId, u64)>, push: &mut dyn FnMut(Lost)) {
        let streams: BTreeSet<&StreamId> = self.batches.iter().map(|b| &b.stream).collect();
        for stream in streams.into_iter().filter(|s| priority_classes(s.class).contains(&class)) {
            let stored: Vec<&&BatchFacts> =
                self.batches.iter().filter(|b| b.kind != BatchKind::Fork && b.stream == *stream).collect();
            let highest = stored.iter().map(|b| b.last_sequence).max().unwrap_or(0);
            let missing: Vec<u64> = (1..=highest).filter(|n| !self.is_stored(stream, *n)).collect();
            for run in missing.chunk_by(|a, b| a + 1 == *b) {
                let (first, last) = (run[0], run[run.len() - 1]);
                let before = stored.iter().filter(|b| b.first_sequence == last + 1);
                let before = before.map(|b| b.occurred_min.as_nanos()).min().expect("a hole has an end");
                let after = stored.iter().filter(|b| b.last_sequence + 1 == first);
                let after = after.map(|b| b.occurred_max.as_nanos()).max();
                let begun = self.beginnings(stream.epoch.as_str()).into_iter().min();
                let after = after.or(begun).unwrap_or(before);
                let unnamed = run.iter().filter(|n| !named.contains(&(stream.clone(), **n))).count();
                push(Lost {
                    from: after.min(before),
                    to: after.max(before) + 1,
                    unobserved: false,
                    count: unnamed as u64,
                    exact: true,
                });
            }
        }
    }

    /// Batches with elided lines, each once with the most that was told.
    fn elided_batches(&self) -> Vec<(&BatchFacts, u64)> {
        let mut most: BTreeMap<(StreamId, u64), (&BatchFacts, u64)> = BTreeMap::new();
        for batch in self.batches.iter().filter(|b| b.elided > 0) {
            let entry = most.entry((batch.stream.clone(), batch.first_sequence)).or_insert((batch, 0));
            entry.1 = entry.1.max(batch.elided);
        }
        most.into_values().collect()
    }

    fn elided(&self, instance: &str, from: i64, to: i64) -> u64 {
        let touches = |a: Timestamp, b: Timestamp| a.as_nanos() < to && from <= b.as_nanos();
        let aged = self.elided_batches();
        let aged = aged.iter().filter(|(b, _)| touches(b.occurred_min, b.occurred_max)).map(|(_, n)| n);
        let withheld = self.batches.iter().flat_map(|b| b.withheld.iter().map(move |line| (b, line)));
        let withheld = withheld.filter(|(b, line)| {
            let (a, z) =
                (line.occurred_at.unwrap_or(b.occurred_min), line.occurred_at.unwrap_or(b.occurred_max));
            touches(a, z) && self.speaks_of(line.instance.as_deref(), instance)
        });
        aged.sum::<u64>() + withheld.count() as u64
    }

    fn forks(&self, from: i64, to: i64) -> u64 {
        let forks = self.batches.iter().filter(|b| {
            b.kind == BatchKind::Fork && b.occurred_min.as_nanos() < to && from <= b.occurred_max.as_nanos()
        });
        forks.count() as u64
    }

    fn clock(&self, from: i64, to: i64) -> Option<i64> {
        let said = self.named(&["heartbeat", "clock"]).into_iter();
        let said = said.filter_map(|e| Some((time(e), e.payload.integer("clock_error_ns")?)));
        let sealed = self.batches.iter().map(|b| (b.occurred_max.as_nanos(), b.clock.error_ns));
        let all: Vec<(i64, i64)> = said.chain(sealed).collect();
        let in_force = all.iter().map(|(t, _)| *t).filter(|t| *t <= from).max();
        let heard = |t: i64| Some(t) == in_force || (from <= t && t < to);
        all.iter().filter(|(t, _)| heard(*t)).map(|(_, error)| *error).max()
    }
}
