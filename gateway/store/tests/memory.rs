//! What hostile input costs in memory: of the whole process, so that these tests are alone in theirs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use activity_store::{VerifyOptions, verify_bundle};

const MIB: u64 = 1024 * 1024;

/// What a call adds to the memory that is resident, at its peak.
fn peak_bytes(call: impl FnOnce()) -> u64 {
    let resident = || -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    // The peak begins anew (proc(5)).
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = resident();
    call();
    resident() - before
}

/// A first line of 16 MiB, made of as many of these as fit into the list.
fn first(key: &str, begin: &str, item: &str) -> Vec<u8> {
    let mut text = format!("{{\"bundle\":\"activity.bundle/v1\",\"manifest\":{{{begin}\"{key}\":[");
    while text.len() + item.len() < 16 * 1024 * 1024 - 64 {
        text.push_str(item);
        text.push(',');
    }
    text.pop();
    text.push_str("]}}}\n");
    text.into_bytes()
}

#[test]
fn a_hostile_bundle_is_verified_in_128_mib() {
    let report =
        "\"coverage\":{\"from\":\"2026-08-01T12:00:00Z\",\"to\":\"2026-08-01T12:00:01Z\",\"complete\":false,";
    let span = "{\"from\":\"2026-08-01T12:00:00Z\",\"to\":\"2026-08-01T12:00:01Z\",\"state\":\"lossy\"}";
    let spans = format!("{report}\"reasons\":[],\"elided_lines\":0,\"forks\":0,");
    let instance = "{\"instance_id\":\"\",\"classes\":[],\"clock_error_ns_max\":0,\"last_heartbeat\":null}";
    let classes = format!(
        "{spans}\"instances\":[{{\"instance_id\":\"i\",\"clock_error_ns_max\":0,\"last_heartbeat\":null,\"classes\":[{{\"class\":\"process\",\"state\":\"lossy\","
    );
    let hostile = [
        first("reasons", report, "\"\""),
        first("reasons", report, "\"thirteen bytes\""),
        first("instances", &spans, instance),
        first("spans", &classes, span),
        vec![b','; 63 * 1024 * 1024],
    ];
    for bundle in hostile {
        let peak = peak_bytes(|| {
            let found = verify_bundle(&bundle[..], &VerifyOptions::default(), &mut |_| {});
            assert!(!found.ok);
        });
        assert!(peak <= 128 * MIB, "{} MiB for {:?}", peak / MIB, String::from_utf8_lossy(&bundle[..200]));
    }
}
