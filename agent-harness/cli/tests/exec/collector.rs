//! What the collector is told, in which order, and what it can cost.

use std::time::{Duration, Instant};

use iteron_testkit::fake_collector::{Behaviour, What};
use serde_json::{Value, json};

use crate::lab::{Lab, shell_then_done};

fn slow(ms: u64) -> Behaviour {
    let delay = Duration::from_millis(ms);
    Behaviour { scope_delay: delay, event_delay: delay, ..Behaviour::default() }
}

#[tokio::test]
async fn intent_reaches_the_collector_in_order_and_before_the_effect() {
    let lab = Lab::observed(&shell_then_done("exit 3"), Behaviour::default()).await;
    let run = lab.run(&["--json", "--session", "s-1", "--task", "t-1", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!run.stderr.contains("unobserved"), "{}", run.stderr);
    let collector = lab.collector();
    assert_eq!(collector.faults(), Vec::<String>::new());

    let story: Vec<String> = collector
        .arrivals()
        .iter()
        .map(|arrival| match &arrival.what {
            What::Event(event) => event["event_name"].as_str().unwrap().to_owned(),
            What::Scope { body, .. } if body["op"] == "open" => {
                format!("open {}", body["kind"].as_str().unwrap())
            }
            What::Scope { body, .. } => format!("close {}", body["scope_id"].as_str().unwrap()),
        })
        .collect();
    let position = |what: &str| {
        story.iter().position(|word| word == what).unwrap_or_else(|| panic!("no {what} in {story:?}"))
    };
    assert_eq!(
        collector.event_names(),
        [
            "session.started",
            "agent.model.requested",
            "agent.model.completed",
            "agent.tool.invoked",
            "agent.tool.failed",
            "agent.model.requested",
            "agent.model.completed",
            "session.ended",
        ]
    );
    assert_eq!(position("open session"), 0);
    assert!(position("open tool_call") < position("agent.tool.invoked"), "{story:?}");
    assert!(position("close scope-2") > position("agent.tool.invoked"), "{story:?}");
    assert_eq!(position("close scope-1"), story.len() - 1, "{story:?}");

    let opened: Vec<_> = collector
        .arrivals()
        .into_iter()
        .filter_map(|arrival| match arrival.what {
            What::Scope { body, process_name, peer_pid } if body["op"] == "open" => {
                Some((body, process_name, peer_pid))
            }
            _ => None,
        })
        .collect();
    let (session, call) = (&opened[0], &opened[1]);
    assert_eq!(session.2.map(i64::from), session.0["pid"].as_i64(), "the peer is not the session's process");
    assert_eq!(call.2, session.2, "another process spoke for the harness");
    assert_eq!(call.0["parent_scope_id"], "scope-1");
    let name = call.1.as_deref().unwrap().trim();
    assert!(!["bash", "sh"].contains(&name), "the tool had executed before its scope was there");

    let events = collector.events();
    assert_eq!(events[3]["payload"]["join"], "registered");
    assert_eq!(events[3]["outcome"]["status"], "started");
    assert_eq!(events[4]["payload"]["join"], "registered");
    assert_eq!(events[4]["payload"]["exit_code"], 3);
    assert_eq!(events[4]["outcome"], json!({"status": "failure", "exit_code": 3, "reason": "exit_code"}));
    assert_eq!(events[3]["correlation"]["tool_call_id"], call.0["tool_call_id"]);
    assert_eq!(events[7]["payload"]["reason"], "completed");
    for event in &events {
        assert_eq!(
            (&event["correlation"]["session_id"], &event["correlation"]["task_id"]),
            (&json!("s-1"), &json!("t-1"))
        );
        assert!(!event.to_string().contains("exit 3"), "content in {event}");
    }
    let last = run.lines().pop().unwrap();
    assert_eq!(last["telemetry"], json!({"accepted": 8, "rejected": 0, "dropped": 0, "unconfirmed": 0}));
}

#[tokio::test]
async fn a_slow_collector_makes_joins_inferred_and_costs_little() {
    let calls: Vec<Value> = (0..5)
        .map(|_| json!({"tool_use": [{"name": "shell", "input": {"command": "date +%s%N"}}]}))
        .collect();
    let script = json!([calls, vec![json!({"text": "Done."})]].concat()).to_string();
    let (plain, slow_lab) = (Lab::new(&script).await, Lab::observed(&script, slow(200)).await);
    let begun = Instant::now();
    assert_eq!(plain.run(&["--json", "do it"]).await.code, Some(0));
    let without = begun.elapsed();
    let begun = Instant::now();
    let run = slow_lab.run(&["--json", "do it"]).await;
    let with = begun.elapsed();
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let joins: Vec<_> = run
        .lines()
        .iter()
        .filter(|line| line["type"] == "tool.invoked")
        .map(|line| line["join"].clone())
        .collect();
    assert_eq!(joins, vec![json!("inferred"); 5]);
    // Five times 20 ms, the session's scope, and the bounded end; the rest is a busy machine.
    assert!(
        with < without + Duration::from_millis(2500),
        "{without:?} without, {with:?} with a slow collector"
    );
    let names = slow_lab.collector().event_names();
    assert_eq!(names.first().unwrap(), "session.started");
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_stop_the_agent() {
    let lab = Lab::observed(&shell_then_done("echo ran"), slow(30_000)).await;
    let begun = Instant::now();
    let run = lab.run(&["do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(run.stderr.contains("the collector may lack events"), "{}", run.stderr);
}

#[tokio::test]
async fn a_dead_socket_is_said_in_one_line() {
    let lab = Lab::new(&shell_then_done("echo ran")).await;
    let run = lab.run(&["--collector-socket", "/nonexistent/agent.sock", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stderr.matches("unobserved").count(), 1, "{}", run.stderr);
}

#[tokio::test]
async fn every_attempt_and_every_denial_is_told_once() {
    let script = json!([
        {"faults": {"status": 429, "retry_after": "0"}},
        {"tool_use": [{"name": "launch", "input": {}}]},
        {"text": "half", "faults": {"error_event": "overloaded_error", "error_at_event": 3}},
    ]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let run = lab.run(&["do it"]).await;
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert_eq!(lab.collector().faults(), Vec::<String>::new());
    assert_eq!(
        lab.collector().event_names(),
        [
            "session.started",
            "agent.model.requested",
            "agent.model.failed",
            "agent.model.requested",
            "agent.model.completed",
            "agent.tool.denied",
            "agent.model.requested",
            "agent.model.failed",
            "session.ended",
        ]
    );
    let events = lab.collector().events();
    assert_eq!((&events[2]["payload"]["attempt"], &events[3]["payload"]["attempt"]), (&json!(1), &json!(2)));
    assert_eq!(events[2]["payload"]["error_class"], "rate_limited");
    assert_eq!(events[7]["payload"]["error_class"], "overloaded");
    assert_eq!(events[8]["payload"]["reason"], "provider_failed");
}

/// A call that the rules deny is told once, as denied, and nothing of it as invoked.
#[tokio::test]
async fn a_denial_by_the_rules_is_told_with_its_class_and_decision() {
    let script = json!([
        {"tool_use": [
            {"name": "shell", "input": {"command": "touch ran"}},
            {"name": "write", "input": {"path": "ran", "content": "x"}},
            {"name": "list", "input": {}},
        ]},
        {"text": "Done."},
    ]);
    let lab = Lab::observed(&script.to_string(), Behaviour::default()).await;
    let run = lab.run(&["--deny", "execute", "--ask", "write", "do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!lab.path("ran").exists());
    assert_eq!(lab.collector().faults(), Vec::<String>::new());
    let of_tools: Vec<_> = lab
        .collector()
        .events()
        .into_iter()
        .filter(|event| event["event_name"].as_str().unwrap().starts_with("agent.tool."))
        .map(|event| {
            let name = event["event_name"].as_str().unwrap().to_owned();
            (
                name,
                event["payload"]["tool_class"].clone(),
                event["payload"]["decision"].clone(),
                event["outcome"].clone(),
            )
        })
        .collect();
    let denied = |reason: &str| json!({"status": "denied", "reason": reason});
    assert_eq!(
        of_tools[..2],
        [
            ("agent.tool.denied".to_owned(), json!("execute"), json!("deny"), denied("policy")),
            ("agent.tool.denied".to_owned(), json!("write"), json!("ask"), denied("nobody_to_ask")),
        ]
    );
    assert_eq!(
        (of_tools[2].0.as_str(), &of_tools[2].1, &of_tools[2].2),
        ("agent.tool.invoked", &json!("read"), &json!("allow"))
    );
    assert_eq!((of_tools.len(), of_tools[3].0.as_str()), (4, "agent.tool.completed"));
}
