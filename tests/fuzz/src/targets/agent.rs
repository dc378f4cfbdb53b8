//! What an agent sends on the collector's socket: `POST /v1/events` and `POST /v1/scopes`.
//!
//! ```text
//! u8 path (even: events, odd: scopes) | body
//! ```

use std::collections::BTreeMap;

use activity_collector::agent_socket::{AgentRequest, Answer, Peer};
use activity_collector::daemon::agent::{Parts, ScopeLog, handle};
use activity_collector::daemon::quota::Quotas;
use activity_collector::identity::ProcessIds;
use activity_collector::observe::Observer;
use activity_collector::sandbox::Sandboxes;
use activity_collector::scope::ScopeTable;
use activity_schema::admit::admit;
use activity_schema::event::Trust;
use activity_schema::submission::ScopeRequest;
use activity_schema::{Event, catalog};
use activity_tests::sim::disk::MemoryDisk;
use bytes::Bytes;
use serde_json::json;
use tokio::sync::oneshot;

use crate::fixture;

pub fn run(data: &[u8]) {
    let Some((path, body)) = data.split_first() else { return };
    let mut recorder = fixture::recorder(fixture::spool(&MemoryDisk::default()));
    let sandboxes = Sandboxes::new("/".into(), fixture::instance(), Vec::new());
    let ids = ProcessIds::new("boot", "");
    let mut observer = Observer::new(ids, sandboxes, ScopeTable::default(), BTreeMap::new());
    let accepted = submit(&mut recorder, &mut observer, path % 2 == 0, body);
    recorder.seal_all();
    fixture::finish(recorder.seal_due());
    let mut recorded = 0;
    fixture::sealed_lines(recorder.spool(), |line| {
        let event = Event::parse(line).expect("what is recorded is valid");
        admit(&event).expect("what is recorded is admitted");
        let row = catalog::row(&event.event_name).expect("an admitted name");
        if path % 2 == 0 {
            assert!(row.socket, "{} cannot be declared", event.event_name);
            assert_eq!(event.source.trust, Trust::SelfReported, "an agent cannot vouch for itself");
            let own = fixture::identity();
            assert_eq!(
                (event.correlation.tenant_id.as_str(), event.correlation.host_id.as_str()),
                (own.tenant.as_str(), own.host.as_str()),
                "an agent cannot speak for others"
            );
        }
        recorded += 1;
    });
    assert_eq!(recorded, accepted, "accepted is recorded");
}

/// How many events were accepted.
fn submit(
    recorder: &mut activity_collector::recorder::Recorder<MemoryDisk>,
    observer: &mut Observer,
    events: bool,
    body: &[u8],
) -> usize {
    let (mut quota, mut rejected) = (Quotas::default(), 0);
    let dir = crate::stored::folder();
    let (mut log, _) = ScopeLog::open(&dir.path().join("scopes"), "boot").expect("the folder can be written");
    let mut parts = Parts {
        recorder,
        observer,
        kernel: None,
        quota: &mut quota,
        log: &mut log,
        boot_id: "boot",
        rejected: &mut rejected,
    };
    let peer = Peer { pid: std::process::id(), uid: 1000, gid: 1000, process: None };
    if events {
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        let (reply, mut answer) = oneshot::channel();
        handle(&mut parts, AgentRequest::Events { peer, body: Bytes::copy_from_slice(body), reply });
        match answer.try_recv().expect("every request is answered") {
            Answer::Ok(answer) => {
                assert_eq!(
                    answer.accepted.len() + answer.rejected.len(),
                    lines,
                    "every line is answered for"
                );
                answer.accepted.len()
            }
            Answer::Later { .. } | Answer::Refused(_) => 0,
        }
    } else {
        let Ok(request) = serde_json::from_slice::<ScopeRequest>(body) else { return 0 };
        let again = serde_json::to_vec(&request).expect("plain data");
        assert_eq!(serde_json::from_slice::<ScopeRequest>(&again).ok().as_ref(), Some(&request));
        let (reply, mut answer) = oneshot::channel();
        handle(&mut parts, AgentRequest::Scope { peer, request, reply });
        usize::from(matches!(answer.try_recv().expect("every request is answered"), Answer::Ok(_)))
    }
}

/// Every event that may be declared, all of them at once, and the scopes that can be asked for.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    for line in fixture::lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("a fixture is valid");
        let name = event["event_name"].as_str().unwrap_or_default();
        if !catalog::row(name).is_some_and(|row| row.socket) {
            continue;
        }
        let mut correlation = event["correlation"].clone();
        if let Some(ids) = correlation.as_object_mut() {
            ids.retain(|key, _| {
                !["tenant_id", "host_id", "instance_id", "parent_event_id"].contains(&key.as_str())
            });
        }
        let mut submitted = json!({
            "event_name": name, "correlation": correlation, "payload": event["payload"],
        });
        for key in ["actor", "target", "outcome"] {
            if !event[key].is_null() {
                submitted[key] = event[key].clone();
            }
        }
        lines.push(submitted.to_string());
    }
    let own = std::process::id();
    let scopes = [
        json!({"op": "open", "kind": "session", "session_id": "s", "agent_id": "a", "pid": own}),
        json!({"op": "open", "kind": "tool_call", "session_id": "s", "agent_id": "a", "tool_call_id": "t",
            "command_id": "c", "pid": 1, "parent_scope_id": "s-0000000000000001"}),
        json!({"op": "close", "scope_id": "s-0000000000000001"}),
    ];
    // Ids that are text, and yet no event may carry them.
    for ids in [json!({"agent_id": ""}), json!({"trace_id": "x"})] {
        lines.push(json!({"event_name": "session.started", "correlation": ids, "payload": {}}).to_string());
    }
    let mut inputs: Vec<Vec<u8>> = lines.iter().map(|line| [&[0], line.as_bytes()].concat()).collect();
    inputs.push([&[0], lines.join("\n").as_bytes()].concat());
    inputs.extend(scopes.map(|scope| [&[1], scope.to_string().as_bytes()].concat()));
    inputs
}
