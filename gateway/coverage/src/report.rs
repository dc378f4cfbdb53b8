//! Turns stretches into the answer, with reasons in words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use activity_schema::Timestamp;
use activity_schema::coverage::{
    ClassCoverage, CoverageReport, CoverageSpan, CoverageState, EventClass, ImportedInstance,
    InstanceCoverage,
};

use crate::Heard;
use crate::classes::ClassSet;
use crate::collector::Collector;
use crate::declared::DeclaredState;
use crate::facts::CoverageRequest;
use crate::marks::{Cause, Mark};
use crate::reasons::Reasons;
use crate::verdict::{self, Alive, CauseBits, Stretch, Why, Window, Witness};

/// Most spans a class in an answer; beyond it neighbours are merged to the worse state.
const SPANS_MAX: usize = 4096;
/// Causes that a reason names.
const CAUSES_SHOWN_MAX: usize = 3;

/// What a report is made of.
pub(crate) struct Asked<'i> {
    pub(crate) collectors: &'i BTreeMap<String, Collector>,
    pub(crate) heard: &'i BTreeMap<String, Heard>,
    pub(crate) imported: &'i BTreeMap<String, Heard>,
    pub(crate) instances: Vec<String>,
    /// Instances that the index no longer knows by name.
    pub(crate) forgotten_instances: u64,
    pub(crate) request: &'i CoverageRequest,
}

pub(crate) fn report(asked: &Asked<'_>) -> CoverageReport {
    let request = asked.request;
    let to = request.to.min(request.now);
    let first = || asked.instances.iter().filter_map(|i| first_known(asked, i)).min();
    let from =
        request.from.or_else(|| first().map(Timestamp::from_nanos)).unwrap_or(Timestamp::from_nanos(0));
    let mut report = CoverageReport {
        from,
        to,
        complete: false,
        reasons: Vec::new(),
        elided_lines: 0,
        forks: 0,
        instances: Vec::new(),
        imported: Vec::new(),
    };
    if from >= to {
        let why = if from >= request.to { "" } else { ": it lies in the future" };
        report.reasons.push(format!("the interval is empty{why}"));
        return report;
    }
    let window = Window { from: from.as_nanos(), to: to.as_nanos(), now: request.now.as_nanos() };
    let mut reasons = Reasons::default();
    for instance in &asked.instances {
        let forgot = |c: &Collector| c.declarations.known_from(instance).is_some();
        if request.from.is_none() && asked.collectors.values().any(forgot) {
            reasons.note(format!("{instance}: its beginning is older than the index keeps"));
        }
        let own = own_window(asked, instance, window);
        report.instances.push(instance_coverage(asked, instance, own, &mut reasons));
    }
    if report.instances.is_empty() {
        reasons.note("no instance is known".to_owned());
    }
    if request.instance.is_none() && asked.forgotten_instances > 0 {
        reasons.note(format!("{} instances are older than the index keeps", asked.forgotten_instances));
    }
    report.imported = imported(asked, window);
    (report.elided_lines, report.forks) = hidden(asked, window);
    report.complete = reasons.is_empty();
    report.reasons = reasons.into_sentences();
    report
}

fn imported(asked: &Asked<'_>, window: Window) -> Vec<ImportedInstance> {
    let wanted = asked.request.instance.as_deref();
    let mine = asked.imported.iter().filter(|(name, heard)| {
        wanted.is_none_or(|i| i == *name) && heard.first < window.to && heard.last >= window.from
    });
    let told = mine.map(|(name, heard)| ImportedInstance {
        instance_id: name.clone(),
        first: Timestamp::from_nanos(heard.first),
        last: Timestamp::from_nanos(heard.last),
    });
    told.collect()
}

/// When an instance was first declared, else when it was first heard of.
fn first_known(asked: &Asked<'_>, instance: &str) -> Option<i64> {
    let declared = |c: &Collector| c.declarations.configs(instance).next().map(|(at, _)| at);
    let first = asked.collectors.values().filter_map(declared).min();
    first.or_else(|| asked.heard.get(instance).map(|heard| heard.first))
}

/// The part of the window that an instance answers for: not after its end, nor, where no beginning is asked for,
/// before it was known.
fn own_window(asked: &Asked<'_>, instance: &str, window: Window) -> Window {
    let first = first_known(asked, instance).filter(|_| asked.request.from.is_none());
    let end = asked.heard.get(instance).and_then(Heard::end);
    let own = Window {
        from: first.map_or(window.from, |at| at.max(window.from)),
        to: end.map_or(window.to, |at| at.min(window.to)),
        ..window
    };
    if own.from < own.to { own } else { window }
}

/// Lines kept as hashes and forks, of the collectors that speak for the instances asked for; of an instance that nobody
/// declared, of all that may be its.
fn hidden(asked: &Asked<'_>, window: Window) -> (u64, u64) {
    let knows = |i: &String| asked.collectors.values().any(|c| c.declarations.may_know(i));
    let declared = asked.request.instance.as_ref().is_some_and(knows);
    let speaks = |collector: &&Collector| match &asked.request.instance {
        Some(instance) if declared => collector.declarations.may_know(instance),
        _ => true,
    };
    let mine = |collector: &Collector, mark: &Mark| {
        let asked_of = asked.request.instance.as_deref();
        mark.overlaps(window.from, window.to) && asked_of.is_none_or(|i| collector.touches(mark, i))
    };
    let (mut elided, mut forks) = (0_u64, 0_u64);
    for collector in asked.collectors.values().filter(speaks) {
        let marks = collector.losses.iter().chain(collector.aged.iter());
        for mark in marks.filter(|mark| mine(collector, mark)) {
            match mark.cause {
                Cause::Fork => forks = forks.saturating_add(mark.weight),
                Cause::AgedOut | Cause::Withheld => elided = elided.saturating_add(mark.count),
                _ => {}
            }
        }
    }
    (elided, forks)
}

fn instance_coverage(
    asked: &Asked<'_>,
    instance: &str,
    window: Window,
    reasons: &mut Reasons,
) -> InstanceCoverage {
    let speaking = || asked.collectors.iter().filter(|(_, c)| c.declarations.may_know(instance));
    let witnesses: Vec<Witness<'_>> =
        speaking().map(|(name, c)| Witness::new(name, c, instance, window)).collect();
    let by_name = !asked.request.classes.is_empty();
    let wanted = if by_name {
        asked.request.classes.iter().copied().collect()
    } else {
        declared_classes(&witnesses, instance, window)
    };
    let mut classes = Vec::new();
    for class in wanted.iter() {
        let stretches = verdict::stretches(&witnesses, instance, class, window);
        let coverage = class_coverage(class, &stretches, &witnesses);
        reasons.note_class(instance, &coverage, by_name);
        classes.push(coverage);
    }
    InstanceCoverage {
        instance_id: instance.to_owned(),
        classes,
        clock_error_ns_max: speaking().filter_map(|(_, c)| c.clock.max_within(window.from, window.to)).max(),
        last_heartbeat: speaking().filter_map(|(_, c)| c.last_heartbeat()).max().map(Timestamp::from_nanos),
    }
}

/// Classes of every config in force within the window; all classes when there is none, or one is forgotten.
fn declared_classes(witnesses: &[Witness<'_>], instance: &str, window: Window) -> ClassSet {
    let mut out = ClassSet::default();
    for witness in witnesses {
        if witness.collector.declarations.known_from(instance).is_some_and(|at| window.from < at) {
            return ClassSet::all();
        }
        let configs: Vec<_> = witness.collector.declarations.configs(instance).collect();
        let in_force = configs.partition_point(|(at, _)| *at <= window.from).saturating_sub(1);
        for (_, body) in configs[in_force..].iter().take_while(|(at, _)| *at < window.to) {
            out = out.union(body.classes.iter().map(|declared| declared.class).collect());
        }
    }
    if out.is_empty() { ClassSet::all() } else { out }
}

/// For the worst of an interval: what counts against completeness ranks above what is only listed.
pub(crate) fn rank(state: CoverageState) -> u8 {
    match state {
        CoverageState::Covered => 0,
        CoverageState::Unsupported => 1,
        CoverageState::Pending => 2,
        CoverageState::Lossy => 3,
        CoverageState::Unobserved => 4,
    }
}

fn class_coverage(class: EventClass, stretches: &[Stretch<'_>], witnesses: &[Witness<'_>]) -> ClassCoverage {
    let spans: Vec<CoverageSpan> = stretches
        .iter()
        .map(|stretch| CoverageSpan {
            from: Timestamp::from_nanos(stretch.from),
            to: Timestamp::from_nanos(stretch.to),
            state: stretch.state,
            reason: reason(stretch, witnesses),
            lost: stretch.lost,
            exact: stretch.exact,
        })
        .collect();
    let watching = stretches.iter().rev().find_map(|stretch| match stretch.why {
        Why::Declared { declared, .. } if declared.state != DeclaredState::Unsupported => {
            declared.source.clone()
        }
        _ => None,
    });
    let state = spans.iter().map(|s| s.state).max_by_key(|s| rank(*s)).unwrap_or(CoverageState::Unobserved);
    ClassCoverage { class, state, source: watching, spans: coarsen(spans) }
}

/// Merges neighbours pairwise until the bound holds; each pair takes the worse state.
fn coarsen(mut spans: Vec<CoverageSpan>) -> Vec<CoverageSpan> {
    while spans.len() > SPANS_MAX {
        let pairs = spans.chunks(2).map(|pair| match pair {
            [a, b] => {
                let worse = if rank(a.state) >= rank(b.state) { a } else { b };
                let exact = [a, b].iter().filter_map(|s| s.exact).reduce(|x, y| x && y);
                CoverageSpan {
                    from: a.from,
                    to: b.to,
                    state: worse.state,
                    reason: worse.reason.clone(),
                    lost: a.lost.saturating_add(b.lost),
                    exact: exact.filter(|_| worse.state != CoverageState::Covered),
                }
            }
            other => other[0].clone(),
        });
        spans = pairs.collect();
    }
    spans
}

fn causes_text(bits: CauseBits) -> String {
    let named: BTreeSet<&str> =
        Cause::ALL.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0).map(|(_, c)| c.text()).collect();
    let mut text = named.iter().take(CAUSES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    if named.len() > CAUSES_SHOWN_MAX {
        let _ = write!(text, " and {} more causes", named.len() - CAUSES_SHOWN_MAX);
    }
    text
}

fn reason(stretch: &Stretch<'_>, witnesses: &[Witness<'_>]) -> Option<String> {
    let Why::Declared { by, declared, alive, causes } = stretch.why else {
        let what = if stretch.why == Why::NoClass { "class" } else { "instance" };
        return Some(format!("no collector had declared this {what}"));
    };
    let name = witnesses[by].name;
    let given = declared.reason.as_deref().unwrap_or("no reason given");
    match stretch.state {
        CoverageState::Covered => return None,
        CoverageState::Unsupported => return Some(format!("{given} ({name})")),
        _ => {}
    }
    let mut parts = Vec::new();
    match alive {
        Alive::Proven => {}
        Alive::Pending(since) => {
            parts.push(format!("not yet confirmed since {}", Timestamp::from_nanos(since)))
        }
        Alive::Silent(since) => parts.push(silence(since, witnesses[by].collector)),
        Alive::Down => parts.push("collector down".to_owned()),
        Alive::Stopped(since) => parts.push(format!("collector stopped at {}", Timestamp::from_nanos(since))),
        Alive::Revoked(since) => parts.push(format!("collector revoked at {}", Timestamp::from_nanos(since))),
        Alive::Forgotten => parts.push("older than the index keeps".to_owned()),
    }
    if causes != 0 {
        parts.push(causes_text(causes));
    }
    match declared.state {
        DeclaredState::Degraded => parts.push(format!("degraded: {given}")),
        DeclaredState::Unclear => parts.push("declared in a way that is not understood here".to_owned()),
        DeclaredState::Forgotten => parts.push("what it declared is older than the index keeps".to_owned()),
        _ => {}
    }
    let mut text = format!("{} ({name})", parts.join("; "));
    if let Some(other) = stretch.beside {
        let _ = write!(text, "; {} vouches for the time", witnesses[other].name);
    }
    Some(text)
}

/// A collector that is heard but whose records are not all here is told from one that is not heard.
fn silence(since: i64, collector: &Collector) -> String {
    let since_text = Timestamp::from_nanos(since);
    match collector.last_heartbeat().filter(|at| *at > since) {
        Some(at) => format!(
            "silent since {since_text}: the heartbeat of {} names records that are not stored",
            Timestamp::from_nanos(at)
        ),
        None => format!("silent since {since_text}"),
    }
}
