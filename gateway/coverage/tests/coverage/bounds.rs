//! Time and size.

use std::time::Instant;

use activity_coverage::{CoverageIndex, CoverageRequest};
use activity_schema::Class;
use activity_schema::coverage::EventClass;

use crate::world::*;

/// Most of an answer about a day, milliseconds, on a build that is optimised a little (`opt-level = 1`).
const ANSWER_MS_MAX: u128 = 50;
const INDEX_BYTES_MAX: usize = 8 * 1024 * 1024;

#[test]
fn a_day_is_answered_quickly_after_ten_million_events() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    let classes: Vec<(EventClass, &str)> =
        EventClass::ALL.iter().map(|class| (*class, "supported")).collect();
    c.config("i", 0, &classes);
    let (beats, every) = (100_000_i64, 10);
    let mut index = CoverageIndex::default();
    let began = Instant::now();
    for beat in 1..=beats {
        let t = beat * every;
        c.clock_error_ns = beat % 977;
        c.batch(Class::Standard, 100, t - 9, t - 1);
        if beat % 10 == 0 {
            c.loss("i", t, Loss::of(&["process.exec", "file.created"], t - 5, t - 4, 3));
        }
        c.heartbeat(t);
        apply(&mut index, &c.facts);
        c.facts.clear();
    }
    let building = began.elapsed();
    let now = beats * every + 5;
    let bytes = serde_json::to_vec(&index).unwrap().len();
    let mut slowest = 0;
    for day in 0..11 {
        let to = now - day * 86_400;
        // The best of three: other work on the machine is not the engine's.
        let ask = |_| {
            let asked = Instant::now();
            let report = index.report(&request("i", to - 86_400, to, now));
            (asked.elapsed().as_millis(), report)
        };
        let (took, report) = (0..3).map(ask).min_by_key(|(took, _)| *took).unwrap();
        slowest = slowest.max(took);
        assert_eq!(report.instances[0].classes.len(), EventClass::ALL.len());
        let lost: u64 = class(&report, EventClass::Process).spans.iter().map(|s| s.lost).sum();
        assert!((2_590..=2_640).contains(&lost) || day > 6, "day -{day}: {lost} lost");
    }
    let asked = Instant::now();
    let all = index.report(&request("i", 0, now, now));
    let whole = asked.elapsed().as_millis();
    let lost: u64 = class(&all, EventClass::Process).spans.iter().map(|s| s.lost).sum();
    println!(
        "coverage: {beats} heartbeats, 10000 losses, 10100000 events built in {building:?}; a day in at most \
         {slowest} ms, all {} days in {whole} ms; index {bytes} bytes as JSON",
        now / 86_400
    );
    assert_eq!(lost, 30_000, "coarser spans keep the counts");
    assert!(slowest <= ANSWER_MS_MAX, "{slowest} ms");
    assert!(bytes <= INDEX_BYTES_MAX, "{bytes} bytes");
}

#[test]
fn a_flood_of_every_kind_stays_bounded_and_never_becomes_complete() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &[(EventClass::File, "supported"), (EventClass::Process, "supported")]);
    let mut index = CoverageIndex::default();
    let mut half = 0;
    for round in 0..40_000_i64 {
        let t = 1 + round * 5;
        match round % 5 {
            0 => drop(c.shed(Class::Bulk, 3, t, t + 1)),
            1 => drop(c.loss("i", t, Loss::of(&["file.created"], t - 1, t, 1))),
            2 => {
                let mut aged = c.facts_of_batch(Class::Bulk, 2, t, t + 2);
                aged.elided = 1;
                c.facts.push(Fact::Batch(aged));
            }
            3 => {
                c.config("i", t, &[(EventClass::File, if round % 2 == 0 { "supported" } else { "degraded" })])
            }
            _ => c.heartbeat(t),
        }
        if round % 50 == 0 {
            c.stopped(t + 3);
            c.restarted(t + 4, "torn_tail");
        }
        apply(&mut index, &c.facts);
        c.facts.clear();
        if round == 20_000 {
            half = serde_json::to_vec(&index).unwrap().len();
        }
    }
    let full = serde_json::to_vec(&index).unwrap().len();
    println!("coverage: {half} bytes after half of the flood, {full} after all of it");
    assert!(full < half + half / 4, "grows from {half} to {full}");
    for from in (0..200_000).step_by(9_973) {
        let report = index.report(&request("i", from, from + 100, 300_000));
        assert!(!report.complete, "at {from}");
    }
}

#[test]
fn many_instances_are_bounded_and_forgetting_some_is_told() {
    let mut index = CoverageIndex::default();
    let mut c = Collector::new("g", "e1");
    for i in 0..70_000_i64 {
        c.config(&format!("i{i}"), i, &[(EventClass::File, "supported")]);
        apply(&mut index, &c.facts);
        c.facts.clear();
    }
    c.heartbeat(70_000);
    apply(&mut index, &c.facts);
    assert!(index.instances().len() <= 65_536);
    assert!(index.report(&request("i69999", 69_999, 70_000, 70_000)).complete);
    assert!(!index.report(&request("i3", 69_999, 70_000, 70_000)).complete);
    let mut all = request("", 69_999, 70_000, 70_000);
    all.instance = None;
    let asked = Instant::now();
    let report = index.report(&all);
    println!("coverage: {} instances in {:?}", report.instances.len(), asked.elapsed());
    assert!(!report.complete && report.reasons.iter().any(|r| r.contains("older than the index keeps")));
}

/// The first collector declares so many instances, and dies; the second declares one of them.
fn declared_again(instances: i64, again: &str) -> CoverageIndex {
    let (mut dead, mut other) = (Collector::new("dead", "e1"), Collector::new("other", "e1"));
    let mut index = CoverageIndex::default();
    for i in 0..instances {
        dead.config(
            &format!("i{i}"),
            i,
            &[(EventClass::File, "supported"), (EventClass::Process, "supported")],
        );
        apply(&mut index, &dead.facts);
        dead.facts.clear();
    }
    other.config(again, instances, &[(EventClass::File, "supported")]);
    other.heartbeat(instances + 100);
    apply(&mut index, &other.facts);
    index
}

#[test]
fn an_instance_that_is_forgotten_is_still_claimed_by_who_declared_it() {
    let ask =
        |index: &CoverageIndex, instance: &str| index.report(&request(instance, 70_000, 70_100, 70_100));
    let mut index = declared_again(70_000, "i3");
    let report = ask(&index, "i3");
    let reason = "what it declared is older than the index keeps (dead); other vouches for the time";
    assert!(!report.complete && report.reasons.iter().any(|r| r.contains(reason)), "{:?}", report.reasons);
    assert_eq!(report.instances[0].classes.len(), EventClass::ALL.len(), "it may have declared any class");
    let without_from = CoverageRequest { from: None, ..request("i3", 0, 70_100, 70_100) };
    let beginning = index.report(&without_from);
    assert!(
        beginning.reasons.iter().any(|r| r.contains("its beginning is older")),
        "{:?}",
        beginning.reasons
    );
    // Revoked, it claims nothing more; the beginning stays forgotten.
    index.revoke("dead", Some(at(70_050)));
    let of_files =
        |from| CoverageRequest { classes: vec![EventClass::File], ..request("i3", from, 70_100, 70_100) };
    assert!(!index.report(&of_files(70_000)).complete);
    assert!(index.report(&of_files(70_050)).complete);
    assert!(!index.report(&without_from).complete);
    // An instance that it never declared is none of its business.
    assert!(ask(&declared_again(70_000, "new"), "new").complete);
}

#[test]
fn beyond_65_536_forgotten_instances_a_collector_may_have_declared_any() {
    let index = declared_again(139_000, "new");
    let report = index.report(&request("new", 139_000, 139_100, 139_100));
    assert!(!report.complete && report.reasons[0].contains("older than the index keeps"), "{report:?}");
}

#[test]
fn configs_that_are_forgotten_are_no_silence_behind_which_another_collector_is_complete() {
    let mut flapping = Collector::new("g", "e1");
    for t in 0..2_100 {
        flapping.config("i", t, &[(EventClass::File, "degraded")]);
    }
    flapping.heartbeat(2_200);
    let mut other = Collector::new("h", "e1");
    other.config("i", 0, &[(EventClass::File, "supported")]);
    other.heartbeat(2_200);
    let report = index_of(&[&flapping, &other]).report(&request("i", 10, 20, 2_200));
    assert!(!report.complete && report.reasons[0].contains("older than the index keeps"), "{report:?}");
}

#[test]
fn of_a_collector_1024_epochs_4096_stops_and_starts_and_4096_canaries_are_kept() {
    let mut c = Collector::new("g", "e0");
    let mut index = CoverageIndex::default();
    for round in 0..4_200_i64 {
        let t = 1 + round * 10;
        if round % 4 == 0 {
            c = c.reborn(&format!("e{round}"));
        }
        c.restarted(t, "torn_tail");
        let canary = if round % 2 == 0 { "seen" } else { "missing" };
        c.say("telemetry.probe", "unknown", t + 1, object([("canary", canary.into())]));
        c.stopped(t + 2);
        apply(&mut index, &c.facts);
        c.facts.clear();
    }
    let index = serde_json::to_value(&index).unwrap();
    let kept = |what: &str| {
        let all = &index["collectors"]["g"][what];
        all.as_array().map(Vec::len).or(all.as_object().map(serde_json::Map::len)).unwrap()
    };
    assert_eq!(["epochs", "stops", "resumes", "canaries"].map(kept), [1_024, 4_096, 4_096, 4_096]);
}
