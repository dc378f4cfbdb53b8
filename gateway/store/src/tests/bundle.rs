//! A bundle proves what it holds, and whatever is changed in it is found and named.

use std::path::Path;

use activity_schema::ids::TenantId;
use activity_schema::keys::PublicKey;

use super::basic::{config, ingest, seal_all};
use super::kit::{Collector, T0};
use super::tamper::{copy_to, make};
use crate::{
    BundleReport, BundleStep, Export, ExportRequest, Query, Selector, Store, VerifyOptions, verify_bundle,
};

fn tenant() -> TenantId {
    TenantId::new("tenant-a").unwrap()
}

fn rest(mut export: Export) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(part) = export.next_part().unwrap() {
        bytes.extend_from_slice(&part);
    }
    bytes
}

fn export(store: &Store, query: Query) -> Vec<u8> {
    let request = ExportRequest { query, actor: "operator ann".into(), kept_size: None };
    rest(store.export(&tenant(), request).unwrap())
}

fn check(bundle: &[u8], trust: Option<PublicKey>) -> BundleReport {
    verify_bundle(bundle, &VerifyOptions { trust, ..VerifyOptions::default() }, &mut |_| {})
}

/// Lines of a bundle, with their newlines.
fn lines(bundle: &[u8]) -> Vec<&[u8]> {
    bundle.split_inclusive(|b| *b == b'\n').collect()
}

fn is_batch(line: &[u8]) -> bool {
    line.starts_with(b"{\"batch\"")
}

/// Names of the batches of a good bundle, in their order.
fn names(bundle: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let step = &mut |step| {
        if let BundleStep::Batch { name, .. } = step {
            names.push(name);
        }
    };
    assert!(verify_bundle(bundle, &VerifyOptions::default(), step).ok);
    names
}

/// Whether a problem names the batch, as its own or in words.
fn is_named(report: &BundleReport, name: &str) -> bool {
    report.problems.iter().any(|p| p.batch.as_deref() == Some(name) || p.what.contains(name))
}

#[test]
fn a_bundle_has_what_the_query_has_and_verifies_with_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let kept = make(dir.path());
    let store = Store::open_read_only(&dir.path().join("store")).unwrap();
    let bundle = export(&store, Query::default());
    let options = VerifyOptions { trust: Some(store.gateway_key()), checkpoint: Some(kept), strict: true };
    let report = verify_bundle(&bundle[..], &options, &mut |_| {});
    assert!(report.ok && report.signed, "{report:#?}");
    assert_eq!((report.batches, report.events, report.hashes), (6, 24, 6));
    assert_eq!(report.keys.len(), 1);
    let manifest = report.manifest.unwrap();
    assert_eq!((manifest.tenant, manifest.actor.as_str(), manifest.log_size), (tenant(), "operator ann", 6));
    let answer = store.query(&tenant(), &Query::default()).unwrap();
    let mut queried: Vec<_> = answer.events.iter().map(|e| e.line.to_vec()).collect();
    let mut exported: Vec<_> = lines(&bundle)
        .into_iter()
        .filter(|l| l.starts_with(b"{\"schema_version\""))
        .map(|l| l[..l.len() - 1].to_vec())
        .collect();
    queried.sort();
    exported.sort();
    assert_eq!(queried, exported);
    let unpinned = check(&bundle, None);
    assert!(unpinned.ok && unpinned.not_established.iter().any(|w| w.contains("signer not pinned")));
    let stranger = activity_schema::keys::Signer::from_seed(&[9; 32]).public();
    let report = check(&bundle, Some(stranger));
    assert_eq!((report.ok, report.problems_count), (false, 1), "{:#?}", report.problems);
}

#[test]
fn only_what_matches_is_in_it_and_the_rest_as_hashes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c1");
    let batch = c.processes(10, T0);
    ingest(&store, &c, vec![batch]).unwrap();
    let bundle = export(&store, Query { events: vec!["process.exited".into()], ..Query::default() });
    let report = check(&bundle, Some(store.gateway_key()));
    assert_eq!((report.events, report.hashes), (5, 5), "{report:#?}");
    assert!(!String::from_utf8_lossy(&bundle).contains("\"process.exec\",\"plane\""));
    // The key was never enrolled: nobody says whose it is.
    assert!(report.problems[0].what.contains("no enrolment"), "{report:#?}");
    let none = export(&store, Query { session: Some("another".into()), ..Query::default() });
    let report = check(&none, Some(store.gateway_key()));
    assert!(report.ok && report.batches == 0, "{report:#?}");
}

#[test]
fn any_changed_byte_is_found_and_in_a_batch_the_batch_is_named() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = Store::open_read_only(&dir.path().join("store")).unwrap();
    let (bundle, key) = (export(&store, Query::default()), store.gateway_key());
    let names = names(&bundle);
    // The batch that each byte belongs to.
    let (mut owner, mut at) = (Vec::new(), None);
    for line in lines(&bundle) {
        if is_batch(line) {
            at = Some(at.map_or(0, |n: usize| n + 1));
        } else if line.starts_with(b"{\"control\"") || line.starts_with(b"{\"end\"") {
            at = at.filter(|_| !line.starts_with(b"{\"end\""));
            owner.extend(std::iter::repeat_n(None, line.len()));
            continue;
        }
        owner.extend(std::iter::repeat_n(at, line.len()));
    }
    assert_eq!(owner.len(), bundle.len());
    for place in (0..bundle.len()).step_by(11) {
        for bit in [place % 8, 5] {
            let mut changed = bundle.clone();
            changed[place] ^= 1 << bit;
            let report = check(&changed, Some(key));
            let line = String::from_utf8_lossy(&changed[place.saturating_sub(30)..place + 1]).into_owned();
            assert!(!report.ok, "byte {place}, bit {bit}: {line}");
            if let Some(batch) = owner[place] {
                assert!(
                    is_named(&report, &names[batch]),
                    "byte {place}, bit {bit}: {line}\n{:#?}",
                    report.problems
                );
            }
        }
    }
}

#[test]
fn what_is_taken_out_put_in_or_moved_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = Store::open_read_only(&dir.path().join("store")).unwrap();
    let (bundle, key) = (export(&store, Query::default()), store.gateway_key());
    let (names, lines) = (names(&bundle), lines(&bundle));
    let bad = |what: &str, changed: Vec<u8>| {
        let report = check(&changed, Some(key));
        assert!(!report.ok, "{what}");
        report
    };
    for cut in (0..bundle.len()).step_by(97) {
        bad(&format!("cut at {cut}"), bundle[..cut].to_vec());
    }
    let (mut batch, mut starts) = (None, Vec::new());
    for (at, line) in lines.iter().enumerate() {
        if is_batch(line) {
            starts.push(at);
            batch = Some(batch.map_or(0, |n: usize| n + 1));
        }
        let without = [&lines[..at], &lines[at + 1..]].concat().concat();
        let report = bad(&format!("line {at} removed"), without);
        if let Some(batch) = batch.filter(|_| at + 1 < lines.len()) {
            assert!(is_named(&report, &names[batch]), "line {at} removed: {:#?}", report.problems);
        }
        bad(&format!("line {at} twice"), [&lines[..=at], &lines[at..]].concat().concat());
    }
    for (n, start) in starts.iter().enumerate() {
        let end = starts.get(n + 1).copied().unwrap_or(lines.len() - 1);
        let report = bad("batch removed", [&lines[..*start], &lines[end..]].concat().concat());
        assert!(is_named(&report, &names[n]), "{} removed: {:#?}", names[n], report.problems);
    }
    let swap =
        |from: &str, to: &str| String::from_utf8(bundle.clone()).unwrap().replace(from, to).into_bytes();
    bad("tenant swapped", swap("tenant-a", "tenant-b"));
    bad("actor changed", swap("operator ann", "operator eve"));
    bad("coverage changed", swap("\"complete\":false", "\"complete\":true"));
    bad("something appended", [&bundle[..], b"\n"].concat());
    let last: serde_json::Value = serde_json::from_slice(lines.last().unwrap()).unwrap();
    let signature = last["end"]["signature"].to_string();
    let stripped = swap(&signature, "null");
    assert!(bad("signature stripped", stripped).problems[0].what.contains("was taken away"));
    let unsigned =
        String::from_utf8(swap(&signature, "null")).unwrap().replace("\"signed\":true", "\"signed\":false");
    let report = bad("re-made as unsigned", unsigned.into_bytes());
    assert!(report.problems.iter().any(|p| p.what.contains("is not signed")), "{report:#?}");
    bad("not a bundle", b"#!/bin/sh\n".to_vec());
    bad("another version", swap("activity.bundle/v1", "activity.bundle/v2"));
}

#[test]
fn a_copy_without_the_signing_key_gives_an_unsigned_bundle_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let kept = make(dir.path());
    copy_to(&dir.path().join("store"), &dir.path().join("copy"));
    std::fs::remove_file(dir.path().join("copy/keys/gateway.seed")).unwrap();
    let store = Store::open_read_only(&dir.path().join("copy")).unwrap();
    let bundle = export(&store, Query::default());
    let report = check(&bundle, None);
    assert!(report.ok && !report.signed, "{report:#?}");
    assert!(
        report.not_established.iter().any(|what| what.contains("not signed: question, actor and coverage"))
    );
    assert!(!check(&bundle, Some(store.gateway_key())).ok);
    let strict = VerifyOptions { strict: true, checkpoint: Some(kept), ..VerifyOptions::default() };
    assert!(!verify_bundle(&bundle[..], &strict, &mut |_| {}).ok);
}

#[test]
fn a_kept_checkpoint_is_held_against_the_log_of_the_bundle() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c3");
    let mut next = |store: &Store, second: i64| {
        let batch = c.processes(3, T0 + second * 1_000_000_000);
        ingest(store, &c, vec![batch]).unwrap();
        crate::threads::checkpoint_all(store.shared());
        store.checkpoint(&tenant()).unwrap()
    };
    let kept = next(&store, 100);
    next(&store, 101);
    let with = |kept_size: Option<u64>| {
        let request = ExportRequest { query: Query::default(), actor: "a".into(), kept_size };
        let bundle = rest(store.export(&tenant(), request).unwrap());
        let options = VerifyOptions { checkpoint: Some(kept.clone()), ..VerifyOptions::default() };
        verify_bundle(&bundle[..], &options, &mut |_| {})
    };
    let pinned = |report: &BundleReport| !report.not_established.iter().any(|w| w.contains("log not pinned"));
    assert!(pinned(&with(Some(7))));
    assert!(!pinned(&with(None)));
    assert!(
        store.export(&tenant(), ExportRequest { kept_size: Some(9), ..ExportRequest::default() }).is_err()
    );
}

#[test]
fn an_elided_line_is_a_hash_and_what_is_sealed_meanwhile_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = Store::open(config(dir.path())).unwrap();
    let request = ExportRequest { actor: "a".into(), ..ExportRequest::default() };
    let mut under_way = store.export(&tenant(), request).unwrap();
    let mut bundle = under_way.next_part().unwrap().unwrap().to_vec();
    bundle.extend(under_way.next_part().unwrap().unwrap());
    seal_all(&store);
    bundle.extend(rest(under_way));
    let report = check(&bundle, Some(store.gateway_key()));
    assert!(report.ok && report.batches == 6 && report.events == 24, "{report:#?}");
    elide_one(&store);
    let report = check(&export(&store, Query::default()), Some(store.gateway_key()));
    assert!(report.ok && report.events == 23 && report.hashes == 7, "{report:#?}");
}

#[test]
fn lines_whose_key_is_gone_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).unwrap();
    let mut c = Collector::new("tenant-a", "c4");
    let name = |i| if i % 2 == 0 { "process.exec" } else { "agent.tool.invoked" };
    let lines: Vec<_> = (0..5).map(|i| c.line(i, name(i), T0, |_| {})).collect();
    let batch = c.batch(&lines, (T0, T0));
    ingest(&store, &c, vec![batch]).unwrap();
    drop(store);
    for key in std::fs::read_dir(dir.path().join("store/keys/tenants/tenant-a/data")).unwrap() {
        let key = key.unwrap();
        if key.file_name().to_string_lossy().starts_with("security") {
            std::fs::remove_file(key.path()).unwrap();
        }
    }
    let store = Store::open_read_only(&dir.path().join("store")).unwrap();
    let tools = Query { events: vec!["agent.tool.invoked".into()], ..Query::default() };
    let report = check(&export(&store, tools), Some(store.gateway_key()));
    assert_eq!((report.events, report.erased), (2, 3), "{report:#?}");
    assert!(report.not_established.iter().any(|what| what.contains("erased with their key")), "{report:#?}");
}

fn elide_one(store: &Store) {
    let answer = store.query(&tenant(), &Query { limit: 1, ..Query::default() }).unwrap();
    let event = &answer.events[0];
    let selector = Selector::Lines(vec![(event.leaf_index, event.position)]);
    assert_eq!(store.elide(&tenant(), &selector, "a test").unwrap().lines, 1);
}

#[test]
fn hostile_lines_cost_no_more_than_a_line() {
    let long = vec![b'x'; 3 * 1024 * 1024];
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let bundle = export(&Store::open_read_only(&dir.path().join("store")).unwrap(), Query::default());
    let first = lines(&bundle)[0];
    let report = check(&[first, &long, b"\n", &long].concat(), None);
    assert!(report.problems.iter().filter(|p| p.what.contains("longer than")).count() == 2, "{report:#?}");
    let many = b"{\"batch\":1}\n".repeat(10_000);
    let report = check(&[first, &many].concat(), None);
    assert!(report.problems_count >= 10_000 && report.problems.len() == 64);
    let quoting = format!("{{\"control\":{{\"{}\":1}}}}\n", "k".repeat(900_000));
    let report = check(&[first, quoting.as_bytes()].concat(), None);
    assert!(report.problems.iter().all(|p| p.what.len() <= 1_024), "{}", report.problems.len());
    assert!(!check(Path::new("/").as_os_str().as_encoded_bytes(), None).ok);
}
