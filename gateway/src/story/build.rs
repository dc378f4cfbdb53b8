//! From a list of events to a tree: who belongs below whom.

mod arena;
mod attach;

use activity_schema::Event;
use activity_schema::coverage::CoverageReport;

use super::Story;

/// Tells the story of `events`, which may come in any order.
pub fn tell(events: &[Event<'_>], coverage: CoverageReport) -> Story {
    let mut sorted: Vec<&Event<'_>> = events.iter().collect();
    sorted.sort_by(|a, b| {
        (a.occurred_at, &a.source.collector, a.integrity.collector_sequence).cmp(&(
            b.occurred_at,
            &b.source.collector,
            b.integrity.collector_sequence,
        ))
    });
    let mut attacher = attach::Attacher::new(&coverage);
    attacher.register(&sorted);
    for event in sorted {
        attacher.add(event);
    }
    let instances = attacher.finish(&coverage);
    Story { coverage, instances }
}
