//! Each rule of liveness and declaration by name.

use activity_coverage::{CoverageIndex, CoverageRequest};
use activity_schema::Class;
use activity_schema::coverage::{CoverageReport, CoverageState, EventClass};
use activity_schema::event::{Trust, Value};

use uuid::Uuid;

use crate::world::*;
use CoverageState::{Covered, Lossy, Pending, Unobserved, Unsupported};
use EventClass::{Dns, File, Process, Tool};

/// Started and configured at 0, a heartbeat every 10 s up to `to`.
fn running(name: &str, to: i64) -> Collector {
    let mut c = Collector::new(name, "e1");
    c.started(0);
    c.config("i", 0, &[(Process, "supported"), (File, "degraded"), (Dns, "unsupported")]);
    for t in (10..=to).step_by(10) {
        c.batch(Class::Standard, 5, t - 9, t - 1);
        c.heartbeat(t);
    }
    c
}

#[test]
fn covered_up_to_the_newest_heartbeat_then_pending_then_silent() {
    let index = index_of(&[&running("g", 100)]);
    let report = index.report(&request("i", 0, 130, 120));
    assert_eq!(report.to, at(120), "cut to now");
    assert_eq!(states(&report, Process), [(0, 100, Covered), (100, 120, Pending)]);
    assert!(!report.complete);
    let report = index.report(&request("i", 0, 120, 121));
    assert_eq!(states(&report, Process), [(0, 100, Covered), (100, 120, Unobserved)]);
    let reason = class(&report, Process).spans[1].reason.clone().unwrap();
    assert!(reason.starts_with("silent since 1970-01-01T00:01:40Z"), "{reason}");
    assert_eq!(only(&report).last_heartbeat, Some(at(100)));
    assert_eq!(class(&report, Process).source.as_deref(), Some("source of process"));
}

#[test]
fn supported_only_is_complete_and_unsupported_counts_only_by_name() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &[(Process, "supported"), (Dns, "unsupported")]);
    c.heartbeat(50);
    let index = index_of(&[&c]);
    let report = index.report(&request("i", 0, 50, 55));
    assert!(report.complete && report.reasons.is_empty(), "{report:?}");
    assert_eq!(states(&report, Dns), [(0, 50, Unsupported)]);
    let mut named = request("i", 0, 50, 55);
    named.classes = vec![Dns];
    let report = index.report(&named);
    assert!(!report.complete);
    assert!(report.reasons[0].contains("no BTF"), "{:?}", report.reasons);
    named.classes = vec![Process];
    assert!(index.report(&named).complete);
    named.classes = vec![File];
    let report = index.report(&named);
    assert!(!report.complete);
    assert!(report.reasons[0].contains("no collector had declared this class"));
}

#[test]
fn degraded_is_lossy_with_the_reason_of_the_config() {
    let report = index_of(&[&running("g", 50)]).report(&request("i", 0, 50, 55));
    let span = &class(&report, File).spans[0];
    assert_eq!((span.state, span.exact, span.lost), (Lossy, Some(false), 0));
    assert!(span.reason.as_deref().unwrap().contains("degraded: no BTF"));
    assert!(!report.complete);
}

#[test]
fn nothing_is_known_before_the_first_config() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.heartbeat(10);
    c.config("i", 20, &[(Process, "supported")]);
    c.heartbeat(30);
    let report = index_of(&[&c]).report(&request("i", 0, 30, 35));
    assert_eq!(states(&report, Process), [(0, 20, Unobserved), (20, 30, Covered)]);
    assert!(report.reasons[0].contains("no collector had declared this instance"));
}

#[test]
fn a_config_holds_until_the_next() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &[(Process, "supported"), (File, "supported")]);
    c.config("i", 20, &[(Process, "unsupported")]);
    c.heartbeat(40);
    let report = index_of(&[&c]).report(&request("i", 0, 40, 45));
    assert_eq!(states(&report, Process), [(0, 20, Covered), (20, 40, Unsupported)]);
    assert_eq!(states(&report, File), [(0, 20, Covered), (20, 40, Unobserved)]);
}

#[test]
fn a_heartbeat_vouches_only_when_all_that_it_names_is_stored() {
    let mut c = running("g", 50);
    let late = c.facts_of_batch(Class::Bulk, 10, 51, 55);
    c.heartbeat(60);
    c.heartbeat(70);
    let mut index = index_of(&[&c]);
    let report = index.report(&request("i", 0, 70, 75));
    assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 70, Unobserved)]);
    assert!(report.reasons[0].contains("names records that are not stored"), "{:?}", report.reasons);
    index.apply_batch(&late);
    assert_eq!(states(&index.report(&request("i", 0, 70, 75)), Process), [(0, 70, Covered)]);
}

#[test]
fn a_heartbeat_that_does_not_say_what_it_sequenced_vouches_for_nothing() {
    for damage in 0..4 {
        let mut c = running("g", 50);
        c.heartbeat(60);
        let event = c.last_event();
        match damage {
            0 => drop(event.payload.remove("streams")),
            1 => drop(event.payload.set("streams", vec![Value::from(object([("class", "odd".into())]))])),
            2 => event.source.trust = Trust::SelfReported,
            _ => event.source.collector = "g".into(),
        }
        let report = index_of(&[&c]).report(&request("i", 0, 60, 65));
        assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 60, Pending)], "damage {damage}");
    }
}

#[test]
fn silence_is_filled_by_a_later_heartbeat_of_the_epoch() {
    let mut c = running("g", 50);
    let mut index = index_of(&[&c]);
    assert_eq!(states(&index.report(&request("i", 40, 100, 500)), Process)[1], (50, 100, Unobserved));
    let told = c.facts.len();
    c.heartbeat(200);
    apply(&mut index, &c.facts[told..]);
    assert_eq!(states(&index.report(&request("i", 40, 100, 500)), Process), [(40, 100, Covered)]);
}

#[test]
fn the_interval_comes_from_the_config() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config_every("i", 0, &[(Process, "supported")], Some(60_000));
    c.heartbeat(60);
    let index = index_of(&[&c]);
    assert_eq!(states(&index.report(&request("i", 60, 180, 180)), Process), [(60, 180, Pending)]);
    assert_eq!(states(&index.report(&request("i", 60, 181, 181)), Process), [(60, 181, Unobserved)]);
}

#[test]
fn before_the_first_heartbeat_it_is_pending_from_the_start() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &[(Process, "supported")]);
    let index = index_of(&[&c]);
    assert_eq!(states(&index.report(&request("i", 0, 15, 15)), Process), [(0, 15, Pending)]);
    assert_eq!(states(&index.report(&request("i", 0, 25, 25)), Process), [(0, 25, Unobserved)]);
}

#[test]
fn a_stop_ends_observation_until_a_start_or_a_config() {
    for resume in ["restart", "config", "start"] {
        let mut c = running("g", 50);
        c.stopped(50);
        match resume {
            "restart" => c.restarted(80, "intact"),
            "start" => c.started(80),
            _ => c.config("i", 80, &[(Process, "supported")]),
        }
        c.heartbeat(100);
        let report = index_of(&[&c]).report(&request("i", 0, 100, 105));
        let expected = [(0, 50, Covered), (50, 80, Unobserved), (80, 100, Covered)];
        assert_eq!(states(&report, Process), expected, "{resume}");
        assert!(report.reasons[0].contains("collector stopped"), "{:?}", report.reasons);
    }
}

#[test]
fn a_heartbeat_after_a_stop_is_no_resumption() {
    let mut c = running("g", 50);
    c.stopped(50);
    c.heartbeat(60);
    let report = index_of(&[&c]).report(&request("i", 0, 70, 70));
    assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 70, Unobserved)]);
}

#[test]
fn a_config_of_another_instance_does_not_resume_this_one() {
    let mut c = running("g", 50);
    c.stopped(50);
    c.config("other", 60, &[(Process, "supported")]);
    c.heartbeat(80);
    let index = index_of(&[&c]);
    assert_eq!(states(&index.report(&request("i", 50, 80, 80)), Process), [(50, 80, Unobserved)]);
    assert_eq!(states(&index.report(&request("other", 60, 80, 80)), Process), [(60, 80, Covered)]);
}

#[test]
fn a_new_epoch_without_a_stop_means_the_collector_was_down() {
    let old = running("g", 50);
    let mut new = old.reborn("e2");
    new.started(90);
    new.heartbeat(100);
    let index = index_of(&[&old, &new]);
    let report = index.report(&request("i", 0, 100, 105));
    assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 90, Unobserved), (90, 100, Covered)]);
    assert!(report.reasons[0].contains("collector down"), "{:?}", report.reasons);
    let states = index.collectors();
    assert_eq!(states[0].epoch.as_ref().unwrap().as_str(), "e2");
    assert_eq!((states[0].covered_to, states[0].stopped_since), (Some(at(100)), None));
    assert!(!states[0].is_silent(at(120)) && states[0].is_silent(at(121)));
}

#[test]
fn a_restart_with_an_intact_spool_leaves_no_gap() {
    let mut c = running("g", 50);
    c.restarted(90, "intact");
    c.heartbeat(100);
    let report = index_of(&[&c]).report(&request("i", 0, 100, 105));
    assert_eq!(states(&report, Process), [(0, 100, Covered)]);
}

#[test]
fn a_restart_on_a_torn_spool_or_a_second_start_leaves_one() {
    for kind in ["torn_tail", "start"] {
        let mut c = running("g", 50);
        if kind == "start" {
            c.started(90)
        } else {
            c.restarted(90, kind)
        }
        c.heartbeat(100);
        let report = index_of(&[&c]).report(&request("i", 0, 100, 105));
        assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 90, Unobserved), (90, 100, Covered)]);
    }
}

#[test]
fn a_silent_collector_is_not_hidden_by_one_that_cannot_see() {
    let guest = running("guest", 50);
    let mut host = Collector::new("host", "h1");
    host.started(0);
    host.config("i", 0, &[(Process, "unsupported")]);
    host.heartbeat(200);
    let report = index_of(&[&guest, &host]).report(&request("i", 0, 200, 200));
    assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 200, Unobserved)]);
}

#[test]
fn withdrawn_and_unproven_classes() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &[(Process, "supported"), (File, "supported")]);
    let withdrawn = object([("class", "file".into()), ("reason", "hook refused".into())]);
    c.say("telemetry.unsupported", "i", 20, withdrawn);
    for (t, canary) in [(5, "seen"), (30, "missing"), (40, "seen")] {
        c.say("telemetry.probe", "unknown", t, object([("canary", canary.into())]));
    }
    c.heartbeat(60);
    let report = index_of(&[&c]).report(&request("i", 0, 60, 60));
    assert_eq!(states(&report, Process), [(0, 5, Covered), (5, 40, Lossy), (40, 60, Covered)]);
    assert_eq!(states(&report, File), [(0, 5, Covered), (5, 20, Lossy), (20, 60, Unsupported)]);
}

#[test]
fn a_missed_canary_taints_no_longer_than_probes_watch() {
    let canary = |c: &mut Collector, t, text: &'static str| {
        c.say("telemetry.probe", "unknown", t, object([("canary", text.into())]));
    };
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config_by("i", 0, &[(Process, &["on_exec"]), (Tool, &[])]);
    c.config_by("j", 0, &[(Process, &["on_exec"])]);
    canary(&mut c, 10, "seen");
    canary(&mut c, 20, "missing");
    // Started again without its kernel part: no canary will ever be seen.
    c.restarted(30, "intact");
    c.config_by("i", 30, &[(Process, &[]), (Tool, &[])]);
    c.heartbeat(60);
    let ask = |c: &Collector, instance| index_of(&[c]).report(&request(instance, 0, 60, 60));
    assert_eq!(states(&ask(&c, "i"), Process), [(0, 10, Covered), (10, 30, Lossy), (30, 60, Covered)]);
    assert_eq!(states(&ask(&c, "i"), Tool), [(0, 60, Covered)], "no probe watches it");
    assert_eq!(
        states(&ask(&c, "j"), Process),
        [(0, 10, Covered), (10, 60, Lossy)],
        "it was not declared again"
    );
    // With its kernel part again, it has to be seen.
    c.config_by("i", 40, &[(Process, &["on_exec"])]);
    let expected = [(0, 10, Covered), (10, 30, Lossy), (30, 40, Covered), (40, 60, Lossy)];
    assert_eq!(states(&ask(&c, "i"), Process), expected);
    canary(&mut c, 50, "seen");
    assert_eq!(states(&ask(&c, "i"), Process).last(), Some(&(50, 60, Covered)));
}

#[test]
fn empty_future_and_unknown_requests_are_not_complete() {
    let index = index_of(&[&running("g", 50)]);
    for (from, to, why) in [(10, 10, "empty"), (20, 10, "empty"), (60, 70, "future")] {
        let report = index.report(&request("i", from, to, 55));
        assert!(!report.complete && report.reasons[0].contains(why), "{report:?}");
    }
    let report = index.report(&request("nobody", 0, 50, 55));
    assert!(!report.complete);
    assert!(report.reasons[0].contains("no collector had declared this instance"), "{:?}", report.reasons);
    let mut all = request("i", 0, 50, 55);
    all.instance = None;
    let report = CoverageIndex::default().report(&all);
    assert!(!report.complete && report.reasons == ["no instance is known"]);
}

#[test]
fn every_instance_means_silent_ones_too_but_not_destroyed_ones() {
    let mut c = running("g", 100);
    let mut vm = Collector::new("vm", "v1");
    vm.started(0);
    vm.config("j", 0, &[(Process, "supported")]);
    vm.heartbeat(10);
    let mut seen = c.facts_of_batch(Class::Standard, 1, 20, 20);
    seen.instances = vec!["k".to_owned(), "unknown".to_owned()];
    let mut index = index_of(&[&c, &vm]);
    index.apply_batch(&seen);
    assert_eq!(index.instances(), ["i", "j", "k"]);
    let mut all = request("i", 50, 100, 100);
    all.instance = None;
    let ids = |index: &CoverageIndex| -> Vec<String> {
        index.report(&all).instances.into_iter().map(|i| i.instance_id).collect()
    };
    assert_eq!(ids(&index), ["i", "j", "k"]);
    c.facts.clear();
    c.say("runtime.lifecycle.destroyed", "j", 30, object([]));
    apply(&mut index, &c.facts);
    assert_eq!(ids(&index), ["i", "k"]);
}

#[test]
fn a_destroyed_instance_is_answered_for_up_to_its_end_and_is_not_silent_after_it() {
    let mut vm = Collector::new("vm", "v1");
    vm.started(0);
    vm.config("j", 0, &[(Process, "supported")]);
    vm.heartbeat(30);
    let mut host = running("g", 100);
    let ask = |index: &CoverageIndex| index.report(&request("j", 0, 100, 100));
    let index = index_of(&[&host, &vm]);
    let silent = ask(&index);
    assert!(!silent.complete && silent.reasons[0].contains("silent since"), "{:?}", silent.reasons);
    host.say("runtime.lifecycle.destroyed", "j", 30, object([]));
    // The batch that tells of it goes on with other events.
    let mut batch = host.facts_of_batch(Class::Standard, 2, 20, 40);
    batch.instances = vec!["j".to_owned()];
    let mut facts = vm.facts.clone();
    facts.extend(host.facts.clone());
    facts.push(Fact::Batch(batch));
    let mut index = CoverageIndex::default();
    apply(&mut index, &facts);
    let report = ask(&index);
    assert!(report.complete, "{:?}", report.reasons);
    assert_eq!(states(&report, Process), [(0, 30, Covered)]);
    // Declared again, it lives on.
    vm.config("j", 60, &[(Process, "supported")]);
    apply(&mut index, &vm.facts);
    assert!(!ask(&index).complete);
}

#[test]
fn without_a_beginning_each_instance_is_answered_for_from_its_first_declaration() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 10, &[(Process, "supported")]);
    c.config("late", 50, &[(Process, "supported")]);
    c.heartbeat(100);
    let index = index_of(&[&c]);
    let ask = |instance: Option<&str>, from: Option<i64>| {
        index.report(&CoverageRequest {
            instance: instance.map(str::to_owned),
            from: from.map(at),
            ..request("i", 0, 100, 100)
        })
    };
    for (instance, first) in [(Some("i"), 10), (Some("late"), 50), (None, 10)] {
        let report = ask(instance, None);
        assert!(report.complete, "{instance:?}: {:?}", report.reasons);
        assert_eq!(report.from, at(first));
    }
    assert!(!ask(Some("late"), Some(0)).complete, "what is asked for is not left out");
    assert!(!ask(Some("nobody"), None).complete);
}

#[test]
fn an_unknown_receipt_taints_all_before_it() {
    let mut c = Collector::new("g", "e1");
    c.started(0);
    c.config("i", 0, &[(Process, "supported")]);
    c.heartbeat(100);
    let mut index = index_of(&[&c]);
    assert!(index.report(&request("i", 0, 50, 100)).complete);
    index.apply_unknown_receipt("g", Uuid::from_u128(9), at(60));
    let report = index.report(&request("i", 0, 50, 100));
    assert!(!report.complete && report.reasons[0].contains("receipt"), "{:?}", report.reasons);
    assert!(index.report(&request("i", 70, 90, 100)).complete);
}

#[test]
fn clock_error_is_the_largest_of_the_interval() {
    let mut c = running("g", 20);
    c.clock_error_ns = 5_000;
    c.heartbeat(30);
    c.clock_error_ns = 100;
    c.heartbeat(40);
    let index = index_of(&[&c]);
    let max = |from, to| only(&index.report(&request("i", from, to, 100))).clock_error_ns_max;
    assert_eq!((max(0, 50), max(0, 30), max(40, 50)), (Some(5_000), Some(0), Some(100)));
    assert_eq!(only(&index.report(&request("nobody", 0, 10, 100))).clock_error_ns_max, None);
}

#[test]
fn told_twice_and_in_another_order_is_the_same_index() {
    let mut c = running("g", 60);
    c.shed(Class::Bulk, 4, 61, 62);
    c.loss("i", 70, Loss::of(&["file.created"], 3, 5, 2));
    c.heartbeat(70);
    let once = index_of(&[&c]);
    let mut other = CoverageIndex::default();
    let mut backwards = c.facts.clone();
    backwards.reverse();
    apply(&mut other, &backwards);
    apply(&mut other, &c.facts);
    assert_eq!(once, other);
    let text = serde_json::to_string(&once).unwrap();
    assert_eq!(serde_json::from_str::<CoverageIndex>(&text).unwrap(), once);
}

#[test]
fn a_second_collector_hides_neither_the_silence_nor_the_loss_of_the_first() {
    let mut dead = running("g", 30);
    dead.loss("i", 30, Loss::of(&["process.exec"], 10, 14, 3));
    let other = running("h", 100);
    let report = index_of(&[&dead, &other]).report(&request("i", 0, 100, 105));
    assert_eq!(
        states(&report, Process),
        [(0, 10, Covered), (10, 14, Lossy), (14, 30, Covered), (30, 100, Unobserved)]
    );
    assert!(!report.complete);
    let silent = class(&report, Process).spans.last().unwrap().reason.clone().unwrap();
    assert!(
        silent.starts_with("silent since") && silent.ends_with("(g); h vouches for the time"),
        "{silent}"
    );
    assert_eq!(class(&report, Process).spans.iter().map(|span| span.lost).sum::<u64>(), 3);
}

#[test]
fn losses_of_two_collectors_are_both_counted_and_a_silent_one_makes_no_number_exact() {
    let (mut g, mut h) = (running("g", 60), running("h", 60));
    g.loss("i", 60, Loss::of(&["process.exec"], 10, 14, 3));
    h.loss("i", 60, Loss::of(&["process.exec"], 10, 14, 4));
    let report = index_of(&[&g, &h]).report(&request("i", 0, 60, 65));
    let lossy = class(&report, Process).spans.iter().find(|span| span.state == Lossy).unwrap();
    assert_eq!((lossy.lost, lossy.exact), (7, Some(true)));
    let dead = running("d", 5);
    let report = index_of(&[&dead, &g]).report(&request("i", 0, 60, 65));
    let unobserved = class(&report, Process).spans.iter().find(|span| span.lost > 0).unwrap();
    assert_eq!((unobserved.state, unobserved.lost, unobserved.exact), (Unobserved, 3, Some(false)));
}

#[test]
fn a_collector_that_stopped_leaves_the_word_to_its_successor() {
    let mut old = running("old", 50);
    old.stopped(50);
    let mut new = Collector::new("new", "e2");
    new.started(55);
    new.config("i", 55, &[(Process, "supported")]);
    new.heartbeat(100);
    let report = index_of(&[&old, &new]).report(&request("i", 0, 100, 105));
    assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 55, Unobserved), (55, 100, Covered)]);
    // It comes back and falls silent: it claims the class again.
    old.restarted(70, "intact");
    let report = index_of(&[&old, &new]).report(&request("i", 0, 100, 105));
    assert_eq!(states(&report, Process).last(), Some(&(70, 100, Unobserved)));
}

#[test]
fn a_revoked_collector_leaves_the_word_to_its_successor_from_then_on_and_not_before() {
    let killed = running("old", 50);
    let mut new = Collector::new("new", "e2");
    new.started(55);
    new.config("i", 55, &[(Process, "supported"), (File, "supported")]);
    new.heartbeat(100);
    let mut index = index_of(&[&killed, &new]);
    let ask = |index: &CoverageIndex| index.report(&request("i", 0, 100, 105));
    assert_eq!(states(&ask(&index), Process), [(0, 50, Covered), (50, 100, Unobserved)]);
    index.revoke("old", Some(at(70)));
    let report = ask(&index);
    assert_eq!(states(&report, Process), [(0, 50, Covered), (50, 70, Unobserved), (70, 100, Covered)]);
    assert!(!report.complete && index.report(&request("i", 70, 100, 105)).complete);
    assert_eq!(index.collectors()[1].revoked_since, Some(at(70)));
    // Enrolled again, it may still bring what it saw in the meantime.
    index.revoke("old", None);
    assert_eq!(states(&ask(&index), Process), [(0, 50, Covered), (50, 100, Unobserved)]);
}

#[test]
fn a_revocation_without_a_successor_vouches_for_nothing() {
    let mut index = index_of(&[&running("g", 100)]);
    index.revoke("g", Some(at(60)));
    let report = index.report(&request("i", 0, 100, 105));
    assert_eq!(states(&report, Process), [(0, 60, Covered), (60, 100, Unobserved)]);
    assert!(report.reasons[0].contains("collector revoked at 1970-01-01T00:01:00Z"), "{:?}", report.reasons);
}

#[test]
fn a_collector_that_cannot_see_a_class_takes_nothing_from_one_that_can() {
    let mut blind = Collector::new("blind", "e1");
    blind.started(0);
    blind.config("i", 0, &[(Process, "unsupported")]);
    let report = index_of(&[&blind, &running("g", 50)]).report(&request("i", 0, 50, 55));
    assert_eq!(states(&report, Process), [(0, 50, Covered)]);
}

#[test]
fn starts_that_are_forgotten_prolong_no_stop() {
    let mut flapping = Collector::new("g", "e1");
    flapping.started(0);
    flapping.config("i", 0, &[(Process, "supported")]);
    flapping.stopped(10);
    for t in 20..4_200 {
        flapping.restarted(t, "intact");
    }
    let mut other = Collector::new("h", "e1");
    other.started(0);
    other.config("i", 0, &[(Process, "supported")]);
    other.heartbeat(5_000);
    let report = index_of(&[&flapping, &other]).report(&request("i", 30, 5_000, 5_005));
    assert_eq!(states(&report, Process), [(30, 5_000, Unobserved)]);
}

#[test]
fn elided_lines_are_told_also_of_an_instance_that_nobody_declared() {
    let mut c = Collector::new("g", "e1");
    let mut batch = c.facts_of_batch(Class::Critical, 5, 10, 12);
    batch.elided = 3;
    c.facts.push(Fact::Batch(batch));
    let report = index_of(&[&c]).report(&request("i", 0, 50, 55));
    assert_eq!((report.elided_lines, report.complete), (3, false));
}

#[test]
fn an_imported_instance_is_listed_as_imported_and_taints_no_other_answer() {
    let mut imported = Collector::new(activity_coverage::IMPORT_COLLECTOR, "e9");
    let mut batch = imported.facts_of_batch(Class::Critical, 5, 10, 12);
    batch.instances = vec!["theirs".to_owned()];
    imported.facts.push(Fact::Batch(batch));
    let mut own = Collector::new("g", "e1");
    own.started(0);
    own.config("i", 0, &[(Process, "supported")]);
    own.heartbeat(50);
    let index = index_of(&[&imported, &own]);
    let all = CoverageRequest { instance: None, ..request("i", 0, 50, 55) };
    let report = index.report(&all);
    assert!(report.complete && only(&report).instance_id == "i", "{report:?}");
    let imported = |report: &CoverageReport| -> Vec<_> {
        report.imported.iter().map(|i| (i.instance_id.clone(), i.first, i.last)).collect()
    };
    let theirs = [("theirs".to_owned(), at(10), at(12))];
    assert_eq!(imported(&report), theirs);
    assert_eq!(imported(&index.report(&request("i", 0, 50, 55))), []);
    assert_eq!(imported(&index.report(&request("theirs", 13, 50, 55))), [], "not within the interval");
    let report = index.report(&request("theirs", 0, 50, 55));
    assert_eq!(imported(&report), theirs);
    assert!(
        !report.complete && report.reasons[0].contains("no collector had declared this instance"),
        "{report:?}"
    );
}
