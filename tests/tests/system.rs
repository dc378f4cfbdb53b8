//! The whole system on this kernel: short forms of the campaigns in `cargo xtask soak`.
//!
//! Run through `cargo xtask test`, which builds the binaries first.

#![allow(clippy::print_stdout, reason = "tells what was skipped")]

use activity_tests::campaign;
use activity_tests::truth::Comparison;

/// Runs a campaign, or says why it cannot run here.
fn here<T>(campaign: impl FnOnce() -> anyhow::Result<T>) -> Option<T> {
    if let Some(reason) = campaign::unsupported() {
        println!("skipped: {reason}");
        return None;
    }
    Some(campaign().unwrap_or_else(|error| panic!("{error:#}")))
}

fn equal(found: &Comparison) {
    assert!(found.processes > 0 && found.events > found.processes, "{found:?}");
    assert!(found.differences.is_empty(), "{}", found.differences.join("\n"));
}

/// Field cases 1, 3, 5, 6, 7, 8.
#[test]
fn exec_truth_issued_is_emitted_plus_lost() {
    if let Some(found) = here(|| campaign::exec_truth(1_600)) {
        equal(&found);
    }
}

#[test]
fn restart_truth_a_killed_collector_misses_nothing() {
    if let Some(found) = here(|| campaign::restart_truth(4, 200)) {
        equal(&found);
        assert!(found.lost.is_empty(), "{:?}", found.lost);
    }
}

/// Field case 20.
#[test]
fn durability_truth_acknowledged_is_stored_once() {
    if let Some(found) = here(|| campaign::durability(8, 20)) {
        equal(&found);
    }
}

/// Field case 31.
#[test]
fn tampering_is_found() {
    here(|| campaign::tamper(100, 31));
}
