//! Against a collector that is prompt, slow, refusing, or gone.

use std::time::{Duration, Instant};

use iteron_protocol::{Join, ToolCallId};
use iteron_testkit::fake_collector::{Behaviour, FakeCollector, What};
use tempfile::TempDir;

use super::*;

struct Lab {
    _dir: TempDir,
    collector: FakeCollector,
    lifecycle: Lifecycle,
}

fn config(socket: std::path::PathBuf) -> LifecycleConfig {
    let correlation = Correlation {
        agent_id: "agent".parse().unwrap(),
        session_id: "session".parse().unwrap(),
        mission_id: Some("mission".parse().unwrap()),
        task_id: None,
        tool_call_id: None,
    };
    LifecycleConfig { socket, correlation }
}

async fn lab(behaviour: Behaviour) -> Lab {
    let dir = TempDir::new().unwrap();
    let collector = FakeCollector::start(&dir.path().join("agent.sock"), behaviour).unwrap();
    let lifecycle = Lifecycle::connect(config(collector.path().to_owned())).await.unwrap();
    Lab { _dir: dir, collector, lifecycle }
}

fn tool_payload() -> ToolPayload {
    ToolPayload { tool_name: "shell".into(), join: Some(Join::Registered), ..ToolPayload::default() }
}

/// One of each event.
fn all_events() -> Vec<Event> {
    let id = ToolCallId::from_u128(7);
    let session = SessionPayload { client: "iteron", client_version: "0", ..SessionPayload::default() };
    let model =
        ModelPayload { provider: "anthropic", model: "m".into(), attempt: 1, ..ModelPayload::default() };
    let failure = EventOutcome::Failure { exit_code: Some(3), reason: "exit_code" };
    vec![
        Event::SessionStarted(session.clone()),
        Event::ModelRequested(model.clone()),
        Event::ModelCompleted(model.clone()),
        Event::ModelFailed(model, "stream_cut"),
        Event::ToolInvoked(id, tool_payload()),
        Event::ToolCompleted(id, tool_payload(), EventOutcome::Success { exit_code: Some(0) }),
        Event::ToolFailed(id, tool_payload(), failure),
        Event::ToolDenied(id, tool_payload(), EventOutcome::Denied { reason: "unknown_tool" }),
        Event::ToolCancelled(id, tool_payload(), EventOutcome::Unknown { reason: "interrupted" }),
        Event::SessionEnded(session, EventOutcome::Success { exit_code: None }),
    ]
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[tokio::test]
async fn every_event_is_accepted_in_order() {
    let lab = lab(Behaviour::default()).await;
    for event in all_events() {
        lab.lifecycle.emit(&event);
    }
    let counts = lab.lifecycle.shutdown().await;
    assert_eq!(lab.collector.faults(), Vec::<String>::new());
    assert_eq!((counts.accepted, counts.dropped, counts.rejected), (10, 0, 0));
    let names = lab.collector.event_names();
    assert_eq!(names[0], "session.started");
    assert_eq!(names[4..7], ["agent.tool.invoked", "agent.tool.completed", "agent.tool.failed"]);
    assert_eq!(names[9], "session.ended");
    let failed = &lab.collector.events()[6];
    assert_eq!(
        failed["outcome"],
        serde_json::json!({"status": "failure", "exit_code": 3, "reason": "exit_code"})
    );
    assert_eq!(failed["correlation"]["mission_id"], "mission");
    assert_eq!(failed["correlation"]["tool_call_id"], ToolCallId::from_u128(7).to_string());
}

#[tokio::test]
async fn a_scope_is_opened_under_its_parent_and_closed() {
    let lab = lab(Behaviour::default()).await;
    let session = lab.lifecycle.open_scope(ScopeKind::Session, None, 1, None, soon()).await;
    let id = ToolCallId::from_u128(7);
    let call = lab.lifecycle.open_scope(ScopeKind::ToolCall, Some(id), 2, Some(session), soon()).await;
    assert_eq!((session.join, call.join), (Join::Registered, Join::Registered));
    lab.lifecycle.close_scope(call);
    lab.lifecycle.shutdown().await;
    let scopes = scopes(&lab.collector);
    assert_eq!(scopes[0]["kind"], "session");
    assert_eq!((&scopes[1]["kind"], &scopes[1]["parent_scope_id"]), (&"tool_call".into(), &"scope-1".into()));
    assert_eq!(scopes[2], serde_json::json!({"op": "close", "scope_id": "scope-2"}));
}

fn scopes(collector: &FakeCollector) -> Vec<serde_json::Value> {
    let scope = |what| match what {
        What::Scope { body, .. } => Some(body),
        What::Event(_) => None,
    };
    collector.arrivals().into_iter().filter_map(|arrival| scope(arrival.what)).collect()
}

#[tokio::test]
async fn a_slow_collector_holds_nobody_and_its_late_scope_is_closed() {
    let lab = lab(Behaviour { scope_delay: Duration::from_millis(120), ..Behaviour::default() }).await;
    let begun = Instant::now();
    let deadline = begun + Duration::from_millis(20);
    let scope = lab.lifecycle.open_scope(ScopeKind::ToolCall, None, 2, None, deadline).await;
    assert_eq!(scope.join, Join::Inferred);
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
    lab.lifecycle.close_scope(scope);
    lab.lifecycle.shutdown().await;
    assert_eq!(scopes(&lab.collector).last().unwrap()["op"], "close");
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_a_bounded_end_and_is_counted() {
    let lab = lab(Behaviour { event_delay: Duration::from_secs(30), ..Behaviour::default() }).await;
    let begun = Instant::now();
    for event in all_events().iter().cycle().take(3000) {
        lab.lifecycle.emit(event);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "emitting waited: {:?}", begun.elapsed());
    let counts = lab.lifecycle.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(counts.accepted, 0);
    assert_eq!(counts.dropped + counts.unconfirmed, 3000);
    assert!(counts.dropped >= 3000 - 1024 - 64, "{counts:?}");
}

#[tokio::test]
async fn refusals_are_waited_out_and_closed_connections_opened_again() {
    let behaviour = Behaviour { refuse_events: 2, close_after_answer: true, ..Behaviour::default() };
    let lab = lab(behaviour).await;
    for event in all_events() {
        lab.lifecycle.emit_and_wait(&event, soon()).await;
    }
    let counts = lab.lifecycle.shutdown().await;
    assert_eq!(counts.accepted, 10, "{counts:?}");
    assert_eq!(lab.collector.events().len(), 10);
}

#[tokio::test]
async fn a_collector_that_goes_away_drops_events_with_a_count() {
    let lab = lab(Behaviour { close_after_answer: true, ..Behaviour::default() }).await;
    lab.lifecycle.emit_and_wait(&all_events()[0], soon()).await;
    drop(lab.collector);
    tokio::time::sleep(Duration::from_millis(50)).await;
    lab.lifecycle.emit(&all_events()[1]);
    lab.lifecycle.emit(&all_events()[2]);
    let begun = Instant::now();
    let counts = lab.lifecycle.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!((counts.accepted, counts.dropped + counts.unconfirmed), (1, 2), "{counts:?}");
}

#[tokio::test]
async fn an_absent_collector_is_noticed_at_once() {
    let begun = Instant::now();
    let error = Lifecycle::connect(config("/nonexistent/agent.sock".into())).await.unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(1));
}

/// Nothing is carried while the test does not wait.
#[tokio::test]
async fn of_events_that_wait_1024_are_kept_and_the_rest_is_counted() {
    let lab = lab(Behaviour::default()).await;
    let event = &all_events()[4];
    (0..1_030).for_each(|_| lab.lifecycle.emit(event));
    for _ in 0..500 {
        if lab.collector.events().len() >= 1_024 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let counts = lab.lifecycle.shutdown().await;
    assert_eq!((counts.accepted, counts.dropped), (1_024, 6));
}
