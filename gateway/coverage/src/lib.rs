//! The coverage engine: for every instance, event class and moment, what this store can vouch for.
//!
//! Pure data: no IO, no clock. The store tells every batch ([`CoverageIndex::apply_batch`]) and every
//! `telemetry.*` event ([`CoverageIndex::apply_event`]); both may be told again and in any order.
//!
//! A moment of a class is the worst that a collector which claims it vouches for. A collector claims a class of an
//! instance from its config on, also when it falls silent; not where it says *unsupported*, and not after it said
//! `telemetry.stopped`, until it starts again or declares the instance again, nor from its revocation on, unless it is
//! enrolled again. So a second collector adds evidence and hides nothing that the first lost, and one that was stopped
//! or revoked leaves the word to its successor, from then on and not before. Where nobody claims the class, the best of
//! the others is told. What one collector vouches for is the worst of:
//!
//! - **declared**: the class in the `telemetry.config` in force for the instance: supported, degraded (lossy),
//!   unsupported; not declared at all is unobserved;
//! - **alive**: covered up to the newest heartbeat of the run whose named sequences are all stored; from there
//!   pending for [`MISSED_MAX`] intervals, then silent; stopped until a start, a restart or a config of the
//!   instance; revoked by the gateway's clock; down between runs. A run is an epoch, parted by starts and by restarts on a spool that was not intact;
//! - **missing**: loss records, shed headers, holes, withheld and aged-out lines, forks, stepped or wrong clocks, a
//!   canary that was not seen, for classes that probes watch. Unknown parts (instance, class, beginning) taint everything that they could be.
//!
//! Architecture invariant: what is merged or forgotten to stay bounded makes answers say less, never more.

mod classes;
mod clock;
mod collector;
mod declared;
mod facts;
mod life;
mod marks;
mod pairs;
mod read;
mod reasons;
mod report;
mod stored;
mod verdict;

pub use facts::{BatchFacts, BatchKind, CollectorState, CoverageRequest, StreamState, WithheldLine};

use std::collections::{BTreeMap, BTreeSet};

use activity_schema::coverage::CoverageReport;
use activity_schema::event::Layer;
use activity_schema::{Event, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::collector::Collector;

/// Under this name the gateway stores what was imported. Nobody of ours watched these instances: they are listed as what they
/// are, and do not make the answer over all instances incomplete.
pub const IMPORT_COLLECTOR: &str = "gateway-import";
/// So many heartbeat intervals without proof are `pending`; longer is silence (contract, "2 missed = silent").
pub const MISSED_MAX: i64 = 2;
/// Heartbeat interval of a config that names none (contract, "telemetry.heartbeat").
pub const INTERVAL_NS_DEFAULT: i64 = 10_000_000_000;
/// Most instances known by name; beyond it those that were heard of least recently are forgotten, and no answer
/// about "every instance" is complete any more. Who declared one that is forgotten goes on claiming all its classes.
const INSTANCES_MAX: usize = 65_536;

/// Coverage of one tenant, kept up to date batch by batch. Every kind of fact is bounded; what no longer fits is
/// merged or forgotten in such a way that answers only ever say less.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageIndex {
    collectors: BTreeMap<String, Collector>,
    instances: BTreeMap<String, Heard>,
    /// Instances of imported events; those above the bound are not listed.
    imported: BTreeMap<String, Heard>,
    forgotten_instances: u64,
}

/// When an instance was heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    first: i64,
    last: i64,
    /// Its newest config. Batches only tell roughly when it was seen.
    declared: Option<i64>,
    /// It was destroyed: a host or runtime said so.
    ended: Option<i64>,
}

/// Whether it is an instance's name.
fn is_named(instance: &str) -> bool {
    instance != read::UNKNOWN && !instance.is_empty()
}

impl Heard {
    fn note(all: &mut BTreeMap<String, Heard>, instance: &str, (first, last): (i64, i64)) {
        match all.get_mut(instance) {
            Some(heard) => (heard.first, heard.last) = (heard.first.min(first), heard.last.max(last)),
            None => {
                all.insert(instance.to_owned(), Heard { first, last, declared: None, ended: None });
            }
        }
    }

    /// When it ended, unless it was declared again.
    fn end(&self) -> Option<i64> {
        self.ended.filter(|at| self.declared <= Some(*at))
    }
}

impl CoverageIndex {
    /// Takes note of a stored, shed or forked batch.
    pub fn apply_batch(&mut self, facts: &BatchFacts) {
        let (min, max) = (facts.occurred_min.as_nanos(), facts.occurred_max.as_nanos());
        let imported = facts.stream.collector.as_str() == IMPORT_COLLECTOR;
        for instance in facts.instances.iter().filter(|name| is_named(name)) {
            if imported {
                let known = self.imported.contains_key(instance);
                if known || self.imported.len() < INSTANCES_MAX {
                    Heard::note(&mut self.imported, instance, (min, max));
                }
            } else {
                self.hear(instance, (min, max));
            }
        }
        self.collector(facts.stream.collector.as_str()).apply_batch(facts);
    }

    /// Takes note of a stored `telemetry.*` event; others cost a comparison. `runtime.lifecycle.destroyed` is also
    /// understood, so that an instance that is gone does not make every later answer incomplete.
    pub fn apply_event(&mut self, event: &Event<'_>) {
        let instance = event.correlation.instance_id.as_str();
        let at = event.occurred_at.as_nanos();
        let Some(kind) = event.event_name.strip_prefix("telemetry.") else {
            if event.event_name == "runtime.lifecycle.destroyed" && event.source.layer != Layer::Guest {
                self.end(instance, at, read::speaker(event).vouches);
            }
            return;
        };
        let speaker = read::speaker(event);
        if kind == "config" && speaker.vouches {
            self.hear(instance, (at, at));
            if let Some(heard) = self.instances.get_mut(instance) {
                heard.declared = heard.declared.max(Some(at));
            }
        }
        self.collector(speaker.collector).apply_event(event, kind, &speaker);
    }

    /// The gateway does not know the receipt that a heartbeat of `at` names: an acknowledged batch is missing, and nobody
    /// can say which.
    pub fn apply_unknown_receipt(&mut self, collector: &str, heartbeat: Uuid, at: Timestamp) {
        self.collector(collector).note_unknown_receipt(heartbeat, at.as_nanos());
    }

    /// From when on the gateway takes nothing from a collector; `None` once it is enrolled again: then it is as if it had
    /// never been revoked, since it may speak of any time. Not kept with the index: to be told anew to each.
    pub fn revoke(&mut self, collector: &str, at: Option<Timestamp>) {
        if let Some(collector) = self.collectors.get_mut(collector) {
            collector.revoked = at.map(Timestamp::as_nanos);
        }
    }

    /// Coverage of `[from, min(to, now))`, reasons worst first.
    ///
    /// `complete` holds exactly when `reasons` is empty. A loss record counts in the first span that it touches;
    /// spans of one class follow one another without a gap.
    pub fn report(&self, request: &CoverageRequest) -> CoverageReport {
        let instances = match &request.instance {
            Some(instance) => vec![instance.clone()],
            None => self.instances_within(request),
        };
        report::report(&report::Asked {
            collectors: &self.collectors,
            heard: &self.instances,
            imported: &self.imported,
            instances,
            forgotten_instances: self.forgotten_instances,
            request,
        })
    }

    /// Every instance that a collector declared or that a stored line names, sorted.
    pub fn instances(&self) -> Vec<String> {
        self.instances.keys().cloned().collect()
    }

    /// Every collector that was heard of, sorted by name.
    pub fn collectors(&self) -> Vec<CollectorState> {
        self.collectors.iter().map(|(name, collector)| collector.state(name)).collect()
    }

    /// Those heard of before `to` and not destroyed before `from`. Silence is no end: an instance whose collector
    /// was killed must not drop out of the answer.
    fn instances_within(&self, request: &CoverageRequest) -> Vec<String> {
        let from = request.from.unwrap_or(Timestamp::MIN).as_nanos();
        let to = request.to.min(request.now).as_nanos();
        let lives = |heard: &Heard| heard.first < to && heard.end().is_none_or(|at| at >= from);
        self.instances.iter().filter(|(_, heard)| lives(heard)).map(|(name, _)| name.clone()).collect()
    }

    fn collector(&mut self, name: &str) -> &mut Collector {
        if !self.collectors.contains_key(name) {
            self.collectors.insert(name.to_owned(), Collector::default());
        }
        self.collectors.entry(name.to_owned()).or_default()
    }

    fn hear(&mut self, instance: &str, range: (i64, i64)) {
        if is_named(instance) {
            Heard::note(&mut self.instances, instance, range);
        }
        if self.instances.len() > INSTANCES_MAX {
            self.forget_instances();
        }
    }

    fn end(&mut self, instance: &str, at: i64, vouches: bool) {
        if vouches && let Some(heard) = self.instances.get_mut(instance) {
            heard.ended = heard.ended.max(Some(at));
        }
    }

    /// Forgets the eighth that was heard of least recently.
    fn forget_instances(&mut self) {
        let mut by_age: Vec<(i64, String)> =
            self.instances.iter().map(|(name, heard)| (heard.last, name.clone())).collect();
        by_age.sort_unstable();
        let gone: BTreeSet<String> =
            by_age.into_iter().take(INSTANCES_MAX / 8).map(|(_, name)| name).collect();
        self.instances.retain(|name, _| !gone.contains(name));
        self.collectors.values_mut().for_each(|collector| collector.declarations.forget(&gone));
        self.forgotten_instances += gone.len() as u64;
    }
}
