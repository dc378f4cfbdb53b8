//! Each rule of loss by name.

use activity_coverage::{BatchFacts, BatchKind, WithheldLine};
use activity_schema::Class;
use activity_schema::coverage::{CoverageReport, CoverageState, EventClass};

use crate::world::*;
use CoverageState::{Covered, Lossy, Unobserved};
use EventClass::{File, Network, Process, Runtime, Tool};

const WATCHED: [(EventClass, &str); 5] = [
    (Process, "supported"),
    (File, "supported"),
    (Network, "supported"),
    (Tool, "supported"),
    (Runtime, "supported"),
];

/// Watches `i` and `j`; `during` happens before the heartbeat at 100.
fn with(during: impl FnOnce(&mut Collector)) -> CoverageReport {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &WATCHED);
    c.config("j", 0, &WATCHED);
    during(&mut c);
    c.heartbeat(100);
    index_of(&[&c]).report(&request("i", 0, 100, 100))
}

fn lost(report: &CoverageReport, of: EventClass) -> u64 {
    class(report, of).spans.iter().map(|s| s.lost).sum()
}

fn state(report: &CoverageReport, of: EventClass) -> CoverageState {
    class(report, of).state
}

#[test]
fn a_loss_taints_the_named_classes_for_its_time_with_its_count() {
    let report = with(|c| {
        c.loss("i", 40, Loss::of(&["process.exec", "process.exited", "file.created"], 20, 30, 12));
    });
    let spans = &class(&report, Process).spans;
    assert_eq!(spans.iter().map(|s| s.state).collect::<Vec<_>>(), [Covered, Lossy, Covered]);
    assert_eq!((spans[1].from, spans[1].to), (at(20), at(30).saturating_add_nanos(1)));
    assert_eq!((spans[1].lost, spans[1].exact), (12, Some(true)));
    assert_eq!((lost(&report, File), state(&report, Network)), (12, Covered));
    assert_eq!(report.reasons.len(), 1, "{:?}", report.reasons);
    let said = &report.reasons[0];
    assert!(said.starts_with("i: process, file lossy between") && said.contains("12 records lost"), "{said}");
}

#[test]
fn a_lower_bound_is_not_exact() {
    let report = with(|c| {
        c.loss("i", 40, Loss { exact: false, ..Loss::of(&["process.exec"], 20, 30, 12) });
    });
    assert_eq!(class(&report, Process).spans[1].exact, Some(false));
    assert!(report.reasons[0].contains("at least 12 records"));
}

#[test]
fn a_loss_without_names_taints_the_classes_of_its_priority() {
    let report = with(|c| {
        c.loss("i", 40, Loss { class: Some(Class::Bulk), ..Loss::of(&[], 20, 30, 3) });
    });
    assert_eq!((state(&report, File), state(&report, Process)), (Lossy, Covered));
    let report = with(|c| {
        c.loss("i", 40, Loss::of(&[], 20, 30, 3));
    });
    assert!(WATCHED.iter().all(|(class, _)| state(&report, *class) == Lossy), "nothing is named: all");
}

#[test]
fn a_lost_telemetry_record_taints_everything() {
    let report = with(|c| {
        c.loss("i", 40, Loss::of(&["telemetry.loss"], 20, 30, 1));
    });
    assert!(WATCHED.iter().all(|(class, _)| state(&report, *class) == Lossy));
}

#[test]
fn a_loss_of_another_instance_does_not_taint_but_one_of_nobody_does() {
    let of = |instance: &'static str| {
        with(move |c| {
            c.loss(instance, 40, Loss::of(&["process.exec"], 20, 30, 12));
        })
    };
    assert!(of("j").complete);
    for unknown in ["unknown", "host-of-g", "never-declared"] {
        assert_eq!(lost(&of(unknown), Process), 12, "{unknown}");
    }
    let report = with(|c| {
        c.loss("j", 40, Loss::of(&["process.exec"], 20, 30, 12));
        c.last_event().payload.set("cgroup", "unknown");
    });
    assert_eq!(lost(&report, Process), 12);
}

#[test]
fn a_loss_that_the_collector_could_not_place_taints_all_its_instances() {
    let of = |cgroup: Option<&'static str>| {
        with(move |c| {
            c.own = "j";
            c.loss("j", 40, Loss::of(&["process.exec"], 20, 30, 12));
            c.last_event().payload.set_some("cgroup", cgroup);
        })
    };
    assert_eq!(lost(&of(None), Process), 12, "its own name only says who reports");
    assert!(of(Some("4711")).complete, "a cgroup says where");
}

#[test]
fn a_loss_in_a_cgroup_of_no_sandbox_taints_no_sandbox() {
    for (nobody, cgroup, is_complete) in [
        ("unknown", Some("4711"), true),
        ("host-of-g", Some("4711"), true),
        ("unknown", Some("unknown"), false),
        ("unknown", None, false),
        ("host-of-g", None, false),
        ("never-declared", Some("4711"), false),
    ] {
        let report = with(move |c| {
            c.own = "host-of-g";
            c.config("host-of-g", 0, &WATCHED);
            c.loss(nobody, 40, Loss::of(&["process.exec"], 20, 30, 12));
            c.last_event().payload.set_some("cgroup", cgroup);
        });
        assert_eq!(report.complete, is_complete, "{nobody} {cgroup:?}");
    }
}

#[test]
fn a_loss_without_a_beginning_may_have_begun_at_any_time() {
    let report = with(|c| {
        c.loss("i", 40, Loss::of(&["process.exec"], 20, 30, 12));
        c.last_event().payload.remove("first_time");
    });
    assert_eq!(states(&report, Process), [(0, 30, Lossy), (30, 100, Covered)]);
}

#[test]
fn a_corrupt_spool_and_a_collector_that_was_down_leave_it_unobserved() {
    for reason in ["spool_corrupt", "collector_down"] {
        let report = with(|c| {
            c.restarted(30, "intact");
            c.loss("i", 40, Loss { reason, ..Loss::of(&["process.exec"], 20, 30, 0) });
        });
        assert_eq!(states(&report, Process), [(0, 20, Covered), (20, 30, Unobserved), (30, 100, Covered)]);
        assert!(report.reasons[0].contains(reason));
        assert_eq!(state(&report, File), Covered, "only the named classes");
    }
}

#[test]
fn the_same_loss_twice_counts_once() {
    let report = with(|c| {
        c.loss("i", 40, Loss::of(&["process.exec"], 20, 30, 12));
        let again = c.facts.last().cloned().unwrap();
        c.facts.push(again);
    });
    assert_eq!(lost(&report, Process), 12);
}

#[test]
fn a_shed_batch_is_lossy_for_the_classes_of_its_priority_and_keeps_the_stream_contiguous() {
    let report = with(|c| {
        c.shed(Class::Bulk, 40, 50, 60);
    });
    assert_eq!(states(&report, File), [(0, 50, Covered), (50, 60, Lossy), (60, 100, Covered)]);
    assert_eq!((lost(&report, File), state(&report, Process)), (40, Covered));
}

#[test]
fn a_shed_batch_that_a_loss_names_is_not_counted_twice() {
    let report = with(|c| {
        let first = c.shed(Class::Bulk, 40, 50, 55);
        let second = c.shed(Class::Bulk, 10, 55, 60);
        let range = Some((first.stream.clone(), first.first_sequence, second.last_sequence - 4));
        let loss = Loss { class: Some(Class::Bulk), reason: "spool_quota", ..Loss::of(&[], 50, 60, 46) };
        c.loss("unknown", 61, Loss { sequences: range, ..loss });
    });
    assert_eq!(lost(&report, File), 50, "46 by the loss, 4 that only the header tells");
}

#[test]
fn a_hole_in_a_stream_is_lossy_and_stops_heartbeats_from_vouching() {
    let report = with(|c| {
        c.batch(Class::Standard, 2, 10, 20);
        c.heartbeat(45);
        c.facts_of_batch(Class::Standard, 7, 20, 50);
        c.batch(Class::Standard, 2, 50, 60);
    });
    let spans = states(&report, Network);
    assert_eq!(spans, [(0, 20, Covered), (20, 45, Lossy), (45, 100, Unobserved)]);
    assert_eq!(lost(&report, Network), 7);
}

#[test]
fn a_withheld_line_is_one_exact_loss() {
    let line = |instance: Option<&str>, class, seconds: Option<i64>| WithheldLine {
        instance: instance.map(str::to_owned),
        class,
        occurred_at: seconds.map(at),
    };
    let report = with(|c| c.withheld(Class::Critical, 20, 30, line(Some("i"), Some(Process), Some(25))));
    let span = &class(&report, Process).spans[1];
    assert_eq!((span.from, span.lost, span.exact, span.state), (at(25), 1, Some(true), Lossy));
    assert!(span.reason.as_deref().unwrap().contains("gateway_quarantine"));
    assert_eq!((report.elided_lines, state(&report, Tool)), (1, Covered));
    let report = with(|c| c.withheld(Class::Critical, 20, 30, line(None, None, None)));
    assert_eq!(states(&report, Tool), [(0, 20, Covered), (20, 30, Lossy), (30, 100, Covered)]);
    let report = with(|c| c.withheld(Class::Critical, 20, 30, line(Some("j"), None, None)));
    assert!(report.complete && report.elided_lines == 0, "{report:?}");
}

#[test]
fn a_fork_is_counted_and_makes_its_range_lossy() {
    let report = with(|c| {
        let stored = c.batch(Class::Critical, 3, 20, 30);
        let fork = BatchFacts { kind: BatchKind::Fork, received_at: at(90), ..stored };
        c.facts.extend([Fact::Batch(fork.clone()), Fact::Batch(fork)]);
    });
    assert_eq!((report.forks, state(&report, Process), state(&report, File)), (1, Lossy, Covered));
    assert!(report.reasons[0].contains("different bytes"));
}

#[test]
fn aged_out_lines_matter_only_to_who_asks_for_their_time() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &WATCHED);
    let mut old = c.batch(Class::Standard, 9, 20, 30);
    c.heartbeat(100);
    let mut index = index_of(&[&c]);
    for elided in [4, 9, 9] {
        old.elided = elided;
        index.apply_batch(&old);
    }
    let report = index.report(&request("i", 0, 100, 100));
    assert_eq!((report.elided_lines, lost(&report, File)), (9, 9));
    assert!(report.reasons[0].contains("aged out"));
    let report = index.report(&request("i", 31, 100, 100));
    assert!(report.complete && report.elided_lines == 0);
}

#[test]
fn a_stepped_clock_and_a_clock_that_runs_ahead_are_told() {
    let report = with(|c| {
        c.say("telemetry.clock", "unknown", 50, object([("step_ms", 20_000.into())]));
        c.say("telemetry.clock", "unknown", 70, object([("step_ms", 3.into())]));
    });
    assert_eq!(states(&report, Process), [(0, 30, Covered), (30, 50, Lossy), (50, 100, Covered)]);
    let report = with(|c| {
        let mut ahead = c.facts_of_batch(Class::Standard, 1, 60, 60);
        ahead.received_at = at(40);
        c.facts.push(Fact::Batch(ahead));
    });
    assert_eq!(states(&report, Process), [(0, 40, Covered), (40, 60, Lossy), (60, 100, Covered)]);
    assert!(report.reasons[0].contains("ahead of the gateway"));
}

#[test]
fn reasons_are_worst_first() {
    let report = with(|c| {
        c.loss("i", 40, Loss::of(&["file.created"], 20, 30, 100));
        c.loss("i", 41, Loss::of(&["process.exec"], 20, 30, 5));
        c.loss("i", 43, Loss { reason: "collector_down", ..Loss::of(&["network.listen"], 60, 61, 0) });
    });
    assert_eq!(report.reasons.len(), 2, "{:?}", report.reasons);
    assert!(report.reasons[0].contains("network unobserved"), "{:?}", report.reasons);
    assert!(report.reasons[1].contains("100 records lost"), "{:?}", report.reasons);
}
