//! Bodies of the gateway's API, on both sides: what collectors and operators send, and what they are answered.
//!
//! ```text
//! u8 which | JSON
//! ```

use std::fmt::Debug;

use activity_gateway::wire::{
    ImportAnswer, OperatorAnswer, OperatorRequest, RevokeAnswer, RevokeRequest, TokenAnswer, TokenRequest,
};
use activity_schema::api::{
    BatchResult, BatchesAnswer, CertificateAnswer, EnrollRequest, RenewRequest, StreamAcked, StreamsAnswer,
};
use activity_schema::coverage::CoverageReport;
use activity_schema::keys::Signer;
use activity_schema::receipt::{Receipt, ReceiptBody};
use activity_schema::{Class, Hash};
use activity_store::{EventProof, Query};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::fixture::{self, CLOCK, KEY};

const BODIES: [fn(&[u8]); 14] = [
    fixpoint::<EnrollRequest>,
    fixpoint::<RenewRequest>,
    fixpoint::<CertificateAnswer>,
    fixpoint::<BatchesAnswer>,
    fixpoint::<StreamsAnswer>,
    fixpoint::<TokenRequest>,
    fixpoint::<TokenAnswer>,
    fixpoint::<OperatorRequest>,
    fixpoint::<OperatorAnswer>,
    fixpoint::<RevokeRequest>,
    fixpoint::<RevokeAnswer>,
    fixpoint::<ImportAnswer>,
    fixpoint::<EventProof>,
    fixpoint::<CoverageReport>,
];

pub fn run(data: &[u8]) {
    if let Some((which, body)) = data.split_first() {
        BODIES[usize::from(*which) % BODIES.len()](body);
        fixpoint::<Query>(body);
        if let Ok(receipt) = serde_json::from_slice::<Receipt>(body) {
            let foreign = Signer::from_seed(&[8; 32]);
            assert!(!receipt.is_signed_by(foreign.public()), "nobody has signed with this key");
        }
    }
}

/// What is read is written so that the same is read.
fn fixpoint<T: Serialize + DeserializeOwned + PartialEq + Debug>(body: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(body) {
        let written = serde_json::to_vec(&value).expect("plain data");
        let again: T = serde_json::from_slice(&written).expect("what is written is read");
        assert_eq!(again, value);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let (identity, signer) = (fixture::identity(), Signer::from_seed(&KEY));
    let key = signer.public();
    let pem = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
    let hash = Hash::of(&[b"batch"]);
    let body = ReceiptBody {
        batch_hash: hash,
        durable: true,
        gateway_time: CLOCK.wall,
        key_id: signer.id().clone(),
        leaf_index: 3,
        log_id: "activity.log/0f".to_owned(),
    };
    let receipt = Receipt::sign(body, &signer);
    let results = vec![
        BatchResult::Stored { receipt: receipt.clone(), withheld: 1 },
        BatchResult::Duplicate { receipt: receipt.clone() },
        BatchResult::Fork { receipt: receipt.clone() },
        BatchResult::Gap { next_batch_number: 4 },
        BatchResult::Refused { reason: "the signature is not valid".to_owned() },
    ];
    let stream = StreamAcked {
        epoch: identity.epoch.clone(),
        class: Class::Critical,
        batch_number: 1,
        last_sequence: 2,
        batch_hash: hash,
    };
    let (tenant, epoch, at) = (&identity.tenant, &identity.epoch, CLOCK.wall);
    let span =
        json!({"from": at, "to": at, "state": "lossy", "reason": "ring_full", "lost": 3, "exact": true});
    let class = json!({"class": "process", "state": "lossy", "source": "ebpf", "spans": [span]});
    let bodies = [
        json!({"token": "t", "collector_id": "c", "host_id": "h", "instance_id": "i", "csr_pem": pem,
            "signing_key": key, "epoch": epoch}),
        json!({"csr_pem": pem, "signing_key": key, "epoch": epoch}),
        json!({"tenant_id": tenant, "certificate_pem": pem, "ca_pem": pem, "not_after": at, "gateway_key": key}),
        json!(BatchesAnswer { results }),
        json!(StreamsAnswer { streams: vec![stream] }),
        json!({"tenant": tenant, "host": "h", "instance": "i", "ttl_seconds": 3600}),
        json!({"token": "t", "expires_at": at}),
        json!({"name": "ops", "role": "reader@tenant-a", "csr_pem": pem}),
        json!({"certificate_pem": pem, "ca_pem": pem, "not_after": at}),
        json!({"collector": {"tenant": tenant, "collector": "c", "reason": "stolen"}}),
        json!({"revoked_at": at}),
        json!({"stored": 3, "refused": 1, "keys_stripped": 2, "refusals": [{"line": 4, "reason": "not JSON"}]}),
        json!({"line": "{}", "position": 0, "line_path": [hash], "header": "{}",
            "signature": receipt_signature(&receipt), "receipt": receipt, "leaf_index": 3, "log_path": [hash],
            "checkpoint": "note"}),
        json!({"from": at, "to": at, "complete": false, "reasons": ["lossy"], "elided_lines": 0, "forks": 0,
            "instances": [{"instance_id": "i", "classes": [class], "clock_error_ns_max": 5, "last_heartbeat": at}]}),
    ];
    assert_eq!(bodies.len(), BODIES.len());
    let mut seeds: Vec<Vec<u8>> = bodies
        .iter()
        .zip(0u8..)
        .map(|(body, which)| [&[which], body.to_string().as_bytes()].concat())
        .collect();
    seeds.push([&[0], json!(receipt).to_string().as_bytes()].concat());
    seeds.push([&[0], json!(Query::default()).to_string().as_bytes()].concat());
    seeds
}

fn receipt_signature(receipt: &Receipt) -> serde_json::Value {
    json!(receipt)["signature"].clone()
}
