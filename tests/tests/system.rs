//! The whole system on this kernel: short forms of the campaigns in `cargo xtask soak`.
//!
//! Run through `cargo xtask test`, which builds the binaries first.

#![allow(clippy::print_stdout, reason = "tells what was skipped")]

use std::time::Duration;

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

#[test]
fn restart_truth_a_stopped_and_started_collector_records_from_its_first_moment() {
    if let Some(found) = here(|| campaign::stopped_and_started_truth(300)) {
        equal(&found);
        assert!(found.lost.is_empty(), "{:?}", found.lost);
    }
}

/// Field case 20.
#[test]
fn durability_truth_acknowledged_is_stored_once() {
    if let Some(found) = here(|| campaign::durability(8, 20, |_| ())) {
        equal(&found);
    }
}

/// Field case 31.
#[test]
fn tampering_is_found() {
    here(|| campaign::tamper(100, 31));
}

/// Field case 2: after overload loss and delay return to zero, nothing stays stuck. Field case 4: memory is flat.
#[test]
fn field_case_2_after_overload_nothing_stays_stuck() {
    if let Some(result) = here(|| campaign::overload(Duration::from_secs(10))) {
        println!("{result}");
    }
}

#[test]
fn field_case_3_the_parent_is_who_forked_not_the_reaper() {
    if let Some(found) = here(|| campaign::reparented_truth(2_000)) {
        equal(&found);
    }
}

#[test]
fn field_case_12_a_collector_started_in_a_storm_leaves_no_process_running() {
    if let Some(found) = here(|| campaign::start_in_storm(1_200, 200)) {
        equal(&found);
    }
}

#[test]
fn field_case_14_a_connection_of_milliseconds_has_bytes_and_owner() {
    let Some(connection) = here(campaign::short_connection) else { return };
    let [flow] = connection.flows.as_slice() else { panic!("one flow: {:?}", connection.flows) };
    let payload = &flow["payload"];
    assert_eq!(payload["bytes_sent"], connection.sent, "{flow}");
    assert_eq!(payload["bytes_received"], connection.received, "{flow}");
    assert_eq!(payload["peer_port"], connection.port, "{flow}");
    assert_eq!(flow["actor"]["pid"], connection.pid, "{flow}");
}

#[test]
fn field_case_24_one_event_then_silence_is_visible_within_a_second() {
    if let Some(after) = here(|| campaign::one_event_then_silence(5)) {
        assert!(after < Duration::from_secs(1), "visible after {after:?}");
    }
}

/// The collector records as another user than root, without capabilities and under a filter of system calls, and
/// nothing privileged is left beside it.
#[test]
fn least_privilege_after_attach() {
    if let Some(found) = here(|| campaign::least_privilege(61_234, 100)) {
        equal(&found.truth);
        assert!(found.truth.lost.is_empty(), "{:?}", found.truth.lost);
        assert!(found.threads.len() >= 3, "recorder, syncer, network: {:?}", found.threads);
        for thread in &found.threads {
            for (field, value) in [
                ("Uid", "61234 61234 61234 61234"),
                ("Groups", ""),
                ("CapPrm", "0000000000000000"),
                ("CapEff", "0000000000000000"),
                ("CapBnd", "0000000000000000"),
                ("NoNewPrivs", "1"),
                ("Seccomp", "2"),
            ] {
                assert_eq!(thread.get(field).map(String::as_str), Some(value), "{field} of {thread:?}");
            }
        }
        assert_eq!(found.children, "", "the process that attached the programs is gone");
        assert_eq!(found.pins_after_stop, 0, "a graceful end removes its pins");
    }
}

#[test]
fn a_socket_that_was_removed_is_not_vouched_for_and_comes_back() {
    if let Some((while_gone, later)) = here(campaign::removed_socket) {
        for class in ["session", "tool"] {
            assert_eq!(while_gone[class], "unobserved", "{while_gone:?}");
            assert_eq!(later[class], "covered", "{later:?}");
        }
        assert_eq!(while_gone["process"], "covered", "the kernel was watched: {while_gone:?}");
    }
}

#[test]
fn a_stopped_collector_heard_nobody_and_saw_everything() {
    if let Some(states) = here(campaign::stopped_process) {
        for class in ["session", "tool", "resource"] {
            assert_eq!(states[class], "unobserved", "{states:?}");
        }
        for class in ["process", "network"] {
            assert_eq!(states[class], "covered", "{states:?}");
        }
    }
}

/// A name that is mistaken looks like a sandbox in which nothing happens.
#[test]
fn a_sandbox_without_a_cgroup_is_not_vouched_for_until_it_comes() {
    if let Some((before, after)) = here(campaign::absent_sandbox) {
        for class in ["session", "tool", "process", "network", "resource"] {
            assert_ne!(before[class], "covered", "{before:?}");
            assert_eq!(after[class], "covered", "{after:?}");
        }
    }
}

/// A datagram that was sent is no secret of an open socket.
#[test]
fn a_udp_flow_is_told_while_it_is_open_and_its_end_at_a_graceful_stop() {
    if let Some((open, stopped)) = here(campaign::open_datagram_socket) {
        assert_eq!(open, ["network.flow.started"]);
        assert_eq!(stopped, ["network.flow.started", "network.flow.closed"]);
    }
}

/// Programs that are not pinned end with the process that holds them.
#[test]
fn without_its_kernel_programs_a_collector_vouches_for_no_process() {
    if let Some((over_it, after)) = here(campaign::lost_programs) {
        for states in [over_it, after] {
            assert!(["process", "network"].iter().all(|class| states[*class] != "covered"), "{states:?}");
            assert_eq!(states["resource"], "covered", "{states:?}");
        }
    }
}

/// Others' processes on the same host are not its own to tell, and do not make its answers worse.
#[test]
fn a_collector_enrolled_for_one_instance_vouches_for_it() {
    if let Some((own, others, states)) = here(campaign::one_instance) {
        assert_eq!(own, 1);
        assert!(others.is_empty(), "{others:?}");
        for class in ["session", "tool", "process", "network", "resource"] {
            assert_eq!(states[class], "covered", "{states:?}");
        }
    }
}

/// Field case 9: what ran in a cgroup that is gone is the sandbox's.
#[test]
fn what_ran_in_a_cgroup_that_is_gone_is_placed() {
    if let Some((made, seen, states)) = here(|| campaign::nested_cgroups(50)) {
        assert_eq!(seen, made);
        assert_eq!(states["process"], "covered", "{states:?}");
    }
}

/// Field case 25, for the collector's side.
#[test]
fn a_collector_outlives_its_certificates() {
    if let Some(heartbeats) = here(campaign::short_certificates) {
        assert!(heartbeats > 0, "nothing is stored once the first certificate has ended");
    }
}
