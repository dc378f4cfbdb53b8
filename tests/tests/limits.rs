//! What a gateway does with what no collector sends: over the wire, to the real gateway.
//!
//! Run through `cargo xtask test`, which builds the binaries first.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use activity_collector::uplink::client::ClientError;
use activity_schema::api::{BatchResult, REQUEST_BATCHES_MAX, REQUEST_BYTES_MAX};
use activity_schema::batch::{BATCH_EVENTS_MAX, BATCH_RAW_BYTES_MAX};
use activity_tests::bench::Operator;
use activity_tests::lab::Lab;
use activity_tests::peer::Peer;
use serde_json::{Value, json};

fn with_peer(name: &str, test: impl AsyncFnOnce(&Lab, Peer)) {
    let mut lab = Lab::new(None).unwrap();
    lab.init_gateway().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let peer = Peer::enrol(&lab, name).await.unwrap();
        test(&lab, peer).await;
    });
}

fn refusal(answer: Result<activity_schema::api::BatchesAnswer, ClientError>) -> (u16, String) {
    match answer {
        Err(ClientError::Status { status, error }) => (status.as_u16(), error),
        other => panic!("not refused: {other:?}"),
    }
}

/// A log that cannot be written does not change how a program ends.
#[test]
fn a_full_log_is_no_panic() {
    for program in ["activity-gateway", "activity-collector"] {
        let mut command = activity_tests::lab::binary(program).unwrap();
        command.args(if program == "activity-gateway" { ["run", "--data"] } else { ["run", "--config"] });
        let log = std::fs::File::create("/dev/full").unwrap();
        let status = command.arg("/nowhere/at/all").stderr(log).status().unwrap();
        assert_eq!(status.code(), Some(1), "{program}");
    }
}

/// Field case 21: split or refused with a reason, never dropped and acknowledged.
#[test]
fn field_case_21_what_is_over_a_limit_is_refused_with_its_reason_and_not_acknowledged() {
    with_peer("peer-21", async |lab, mut peer| {
        let too_many = peer.batch(&peer.lines(BATCH_EVENTS_MAX + 1)).unwrap();
        let (status, reason) = refusal(peer.send(&[too_many]).await);
        assert!(status == 400 && reason.contains("count"), "{status} {reason}");

        let long = peer.line(0, |event| event["payload"]["executable"] = "x".repeat(100_000).into());
        let lines = vec![long; usize::try_from(BATCH_RAW_BYTES_MAX).unwrap() / 100_000 + 1];
        let (status, reason) = refusal(peer.send(&[peer.batch(&lines).unwrap()]).await);
        assert!(status == 400 && reason.contains("raw_bytes"), "{status} {reason}");

        let small = peer.batch(&peer.lines(1)).unwrap();
        let (status, reason) = refusal(peer.send(&vec![small; REQUEST_BATCHES_MAX + 1]).await);
        assert!(status == 413 && reason.contains("256 batches"), "{status} {reason}");

        let (status, reason) = refusal(peer.send_bytes(vec![0; REQUEST_BYTES_MAX + 1]).await);
        assert!(status == 413 && reason.contains("longer"), "{status} {reason}");

        // Nothing of it was stored, and the stream goes on from its beginning.
        assert_eq!(lab.events(&["--instance", "peer-21"]).unwrap(), [] as [Value; 0]);
        let whole = peer.batch(&peer.lines(1_000)).unwrap();
        let answer = peer.send(std::slice::from_ref(&whole)).await.unwrap();
        assert!(matches!(answer.results[..], [BatchResult::Stored { withheld: 0, .. }]), "{answer:?}");
        peer.stored(&whole);
        assert_eq!(lab.events(&["--instance", "peer-21"]).unwrap().len(), 1_000);
    });
}

/// What the collector watches, so that coverage can be asked for.
fn declare(event: &mut Value) {
    event["event_name"] = "telemetry.config".into();
    event["plane"] = "integrity".into();
    event["payload"] =
        json!({"profile": "M0", "classes": [{"class": "process", "source": "ebpf", "state": "supported"}]});
}

/// Field case 27: one bad event among thousands.
#[test]
fn field_case_27_one_bad_event_among_5000_is_withheld_with_its_reason_and_the_stream_goes_on() {
    with_peer("peer-27", async |lab, mut peer| {
        // As many lines as fit a batch, and the bad one in the third.
        for n in 0..5 {
            let mut lines = peer.lines(1_000);
            if n == 0 {
                lines[0] = peer.line(0, declare);
            }
            if n == 2 {
                lines[345] = peer.line(345, |event| event["payload"]["prompt"] = json!("a secret"));
            }
            let batch = peer.batch(&lines).unwrap();
            let answer = peer.send(std::slice::from_ref(&batch)).await.unwrap();
            let bad = u64::from(n == 2);
            assert!(
                matches!(answer.results[..], [BatchResult::Stored { withheld, .. }] if withheld == bad),
                "{answer:?}"
            );
            peer.stored(&batch);
        }

        let stored = lab.events(&["--instance", "peer-27"]).unwrap();
        let mut sequences: Vec<u64> =
            stored.iter().filter_map(|e| e["integrity"]["collector_sequence"].as_u64()).collect();
        sequences.sort_unstable();
        let expected: Vec<u64> = (1..=5_000).filter(|sequence| *sequence != 2_346).collect();
        assert_eq!(sequences, expected);
        let path = "/v1/coverage?tenant=demo&instance=peer-27&from=2026-08-01T00:00:00Z";
        let coverage = Operator::of(lab).get_json(path).await.unwrap();
        assert_eq!(coverage["elided_lines"], 1, "{coverage}");
        assert!(!coverage.to_string().contains("a secret"), "what was withheld is not shown");
    });
}
