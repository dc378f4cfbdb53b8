//! Where evidence is missing, drawn where it is missing.

use std::collections::BTreeMap;

use activity_schema::coverage::{CoverageReport, CoverageSpan, CoverageState, EventClass, InstanceCoverage};
use activity_schema::{Event, Timestamp};

use super::coverage_line::span_text;
use super::leaf::marks;
use super::units;
use super::{Node, Tone};

/// Gaps drawn for one instance; the coverage command lists them all.
const GAPS_SHOWN_MAX: usize = 200;

/// Spans with the same key are one gap.
type SpanKey<'a> = (Timestamp, Timestamp, CoverageState, Option<&'a str>);

/// The spans of an instance in which something is or may be missing. Classes that share a span share a line.
pub(super) fn of_coverage(report: &InstanceCoverage) -> Vec<Node> {
    let mut spans: BTreeMap<SpanKey<'_>, (Vec<EventClass>, &CoverageSpan)> = BTreeMap::new();
    for class in &report.classes {
        for span in class.spans.iter().filter(|s| is_gap(s.state)) {
            let key = (span.from, span.to, span.state, span.reason.as_deref());
            spans.entry(key).or_insert_with(|| (Vec::new(), span)).0.push(class.class);
        }
    }
    let left_out = spans.len().saturating_sub(GAPS_SHOWN_MAX);
    let mut gaps: Vec<Node> = spans.values().take(GAPS_SHOWN_MAX).map(|(c, s)| of_span(c, s)).collect();
    if left_out > 0
        && let Some(last) = gaps.last()
    {
        let title = format!("gap  {left_out} more; activity coverage lists them all");
        gaps.push(Node { title, details: Vec::new(), ..last.clone() });
    }
    gaps
}

/// Whether a loss record is already told by a gap of the coverage report.
pub(super) fn is_told_by(loss: &Event<'_>, coverage: &CoverageReport) -> bool {
    let instances =
        coverage.instances.iter().filter(|i| loss.correlation.instance_id == *i.instance_id.as_str());
    let mut spans = instances.flat_map(|i| &i.classes).flat_map(|c| &c.spans);
    let first = time(loss, "first_time").unwrap_or(loss.occurred_at);
    let last = time(loss, "last_time").unwrap_or(loss.occurred_at);
    spans.any(|s| s.state == CoverageState::Lossy && s.from <= last && first <= s.to)
}

/// A loss record by itself.
pub(super) fn of_loss(event: &Event<'_>) -> Node {
    let reason = event.payload.text("reason").unwrap_or("lost");
    let count = event.payload.integer("dropped_count").and_then(|n| u64::try_from(n).ok());
    let exact = event.payload.text("precision").is_some_and(|p| p == "exact");
    let mut details = vec![reason.to_owned()];
    details
        .extend(count.map(|n| format!("{}{} lost", if exact { "" } else { "at least " }, units::count(n))));
    let what = event.payload.text("loss_source").or_else(|| event.payload.text("class")).unwrap_or("records");
    Node {
        at: Some(time(event, "first_time").unwrap_or(event.occurred_at)),
        concurrent: false,
        title: format!("gap  {what} lossy"),
        details,
        marks: marks(&[event]),
        tone: Tone::Gap,
        children: Vec::new(),
    }
}

fn of_span(classes: &[EventClass], span: &CoverageSpan) -> Node {
    let names: Vec<&str> = classes.iter().map(|c| c.as_str()).collect();
    let length = span.to.nanos_since(span.from);
    Node {
        at: Some(span.from),
        concurrent: false,
        title: format!("gap  {} {}", names.join(", "), span_text(span)),
        details: vec![format!("for {}, until {}", units::duration_ns(length), units::clock_time(span.to))],
        marks: Vec::new(),
        tone: Tone::Gap,
        children: Vec::new(),
    }
}

fn is_gap(state: CoverageState) -> bool {
    matches!(state, CoverageState::Lossy | CoverageState::Unobserved | CoverageState::Pending)
}

fn time(event: &Event<'_>, key: &str) -> Option<Timestamp> {
    event.payload.text(key)?.parse().ok()
}
