//! What an answer can vouch for, in one line and in full.

use std::collections::BTreeMap;

use activity_schema::coverage::{
    ClassCoverage, CoverageReport, CoverageSpan, CoverageState, InstanceCoverage,
};

use super::units;

/// Reasons named in the one-line form.
const REASONS_SHOWN_MAX: usize = 3;
/// Spans listed for one class in the full form.
const SPANS_SHOWN_MAX: usize = 20;

/// Whether the question can be answered from this evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    Complete,
    Incomplete,
}

pub fn judge(report: &CoverageReport) -> Judgement {
    if report.complete { Judgement::Complete } else { Judgement::Incomplete }
}

/// The line before and after every answer, e.g.
/// `complete  process, network · not visible here: file · 2026-08-01 12:00:01–12:00:09 UTC · clock ±1 ms`. Not
/// escaped.
pub fn coverage_summary(report: &CoverageReport) -> String {
    let mut parts = Vec::new();
    let covered = classes_in(report, CoverageState::Covered);
    let word = match judge(report) {
        Judgement::Complete => {
            if !covered.is_empty() {
                parts.push(covered);
            }
            "complete"
        }
        Judgement::Incomplete => {
            parts.push(reasons(report));
            if !covered.is_empty() {
                parts.push(format!("covered: {covered}"));
            }
            "INCOMPLETE"
        }
    };
    let unseen = classes_in(report, CoverageState::Unsupported);
    if !unseen.is_empty() {
        parts.push(format!("not visible here: {unseen}"));
    }
    parts.push(format!("{} UTC", units::interval(report.from, report.to)));
    parts.push(clock(report));
    parts.extend(integrity(report));
    format!("{word}  {}", parts.join(" · "))
}

/// One line a class and one a span, for `activity coverage`. Not escaped.
pub fn coverage_lines(report: &CoverageReport) -> Vec<String> {
    let mut lines = vec![format!("coverage  {}", coverage_summary(report))];
    for instance in &report.instances {
        lines.push(String::new());
        lines.push(instance_line(instance));
        for class in &instance.classes {
            lines.push(class_line(class));
            let telling = |s: &&CoverageSpan| s.state != CoverageState::Covered && class.spans.len() > 1;
            let spans: Vec<&CoverageSpan> = class.spans.iter().filter(telling).collect();
            for span in spans.iter().take(SPANS_SHOWN_MAX) {
                lines.push(format!("    {}  {}", units::interval(span.from, span.to), span_text(span)));
            }
            if let Some(more) = spans.len().checked_sub(SPANS_SHOWN_MAX).filter(|n| *n > 0) {
                lines.push(format!("    … {more} more; --format json lists them all"));
            }
        }
    }
    for imported in &report.imported {
        lines.push(String::new());
        lines.push(format!(
            "instance {} · imported: derived from what others recorded, {} UTC; nobody of ours watched it",
            imported.instance_id,
            units::interval(imported.first, imported.last)
        ));
    }
    if report.instances.is_empty() {
        lines.push("no instance is known for this question".to_owned());
    }
    lines
}

fn instance_line(instance: &InstanceCoverage) -> String {
    let heartbeat = match instance.last_heartbeat {
        Some(t) => format!("last heartbeat {} UTC", units::date_time(t)),
        None => "no heartbeat".to_owned(),
    };
    let clock = match instance.clock_error_ns_max {
        Some(ns) => format!("clock ±{}", units::duration_ns(ns)),
        None => "clock bound unknown".to_owned(),
    };
    format!("instance {} · {heartbeat} · {clock}", instance.instance_id)
}

fn class_line(class: &ClassCoverage) -> String {
    let source = class.source.as_deref().map(|s| format!("  by {s}")).unwrap_or_default();
    let only = match &class.spans[..] {
        [span] if span.state != CoverageState::Covered => {
            let rest = span_detail(span);
            if rest.is_empty() { rest } else { format!("  {rest}") }
        }
        _ => String::new(),
    };
    format!("  {:<10}{:<12}{source}{only}", class.class.as_str(), class.state.as_str()).trim_end().to_owned()
}

/// `lossy · ring_full · 12 records lost`
pub(super) fn span_text(span: &CoverageSpan) -> String {
    let detail = span_detail(span);
    if detail.is_empty() { span.state.to_string() } else { format!("{} · {detail}", span.state) }
}

fn span_detail(span: &CoverageSpan) -> String {
    let mut parts: Vec<String> = span.reason.iter().cloned().collect();
    if span.lost > 0 {
        let bound = if span.exact == Some(true) { "" } else { "at least " };
        parts.push(format!("{bound}{} lost", units::count(span.lost)));
    }
    parts.join(" · ")
}

fn reasons(report: &CoverageReport) -> String {
    let mut reasons = report.reasons.clone();
    if reasons.is_empty() {
        reasons = worst_states(report);
    }
    if reasons.is_empty() {
        return "nothing was watched".to_owned();
    }
    let more = reasons.len().saturating_sub(REASONS_SHOWN_MAX);
    reasons.truncate(REASONS_SHOWN_MAX);
    let more = if more > 0 { format!("; {more} more reasons") } else { String::new() };
    format!("{}{more}", reasons.join("; "))
}

/// `process lossy, 12 lost` for every class that is not covered, when the report gives no words of its own.
fn worst_states(report: &CoverageReport) -> Vec<String> {
    let classes = report.instances.iter().flat_map(|i| &i.classes);
    let bad = classes.filter(|c| !matches!(c.state, CoverageState::Covered | CoverageState::Unsupported));
    bad.map(|c| {
        let lost: u64 = c.spans.iter().map(|s| s.lost).sum();
        let lost = if lost > 0 { format!(", {} lost", units::count(lost)) } else { String::new() };
        format!("{} {}{lost}", c.class, c.state)
    })
    .collect()
}

/// Classes whose worst state over all instances is `state`.
fn classes_in(report: &CoverageReport, state: CoverageState) -> String {
    let mut worst: BTreeMap<_, CoverageState> = BTreeMap::new();
    for class in report.instances.iter().flat_map(|i| &i.classes) {
        let entry = worst.entry(class.class).or_insert(class.state);
        *entry = (*entry).max(class.state);
    }
    let named: Vec<&str> = worst.iter().filter(|(_, s)| **s == state).map(|(c, _)| c.as_str()).collect();
    named.join(", ")
}

fn clock(report: &CoverageReport) -> String {
    let bounds: Option<Vec<i64>> = report.instances.iter().map(|i| i.clock_error_ns_max).collect();
    match bounds.and_then(|b| b.into_iter().max()) {
        Some(ns) => format!("clock ±{}", units::duration_ns(ns)),
        None => "clock bound unknown".to_owned(),
    }
}

fn integrity(report: &CoverageReport) -> Vec<String> {
    let mut parts = Vec::new();
    if report.elided_lines > 0 {
        parts.push(format!("{} lines kept as hashes only", units::count(report.elided_lines)));
    }
    if report.forks > 0 {
        parts.push(format!("{} FORKED BATCHES", units::count(report.forks)));
    }
    parts
}
