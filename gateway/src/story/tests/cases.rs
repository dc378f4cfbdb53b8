use activity_schema::coverage::{ClassCoverage, CoverageSpan, CoverageState, EventClass};
use serde_json::json;

use super::make::{at, complete, event};
use super::{Style, check};
use crate::story::{coverage_lines, tell};

/// A session with one tool call: a shell, a download by its child, samples, a model request.
fn download() -> Vec<String> {
    [
        event(1_003, "session.started").of("s-42", "").with(json!({"client": "iteron", "client_version": "0.1.0"})),
        event(1_100, "agent.model.requested").of("s-42", "").with(json!({"model": "scripted-1"})),
        event(1_900, "agent.model.completed").of("s-42", "").with(
            json!({"model": "scripted-1", "input_tokens": 1204, "output_tokens": 87, "duration_ms": 800}),
        ),
        event(2_120, "agent.tool.invoked").of("s-42", "call-1").with(json!({"tool_name": "shell"})),
        event(2_125, "agent.scope.opened").of("s-42", "call-1").with(
            json!({"scope_kind": "tool_call", "root_process": "b:100", "join": "registered"}),
        ),
        event(2_131, "process.exec").of("s-42", "call-1").by("b:100", 4242).with(
            json!({"executable": "bash", "executable_class": "file", "argc": 3, "parent_process_id": "b:9",
                "join": "registered"}),
        ),
        event(2_140, "process.exec").of("s-42", "call-1").by("b:101", 4243).with(
            json!({"executable": "curl", "executable_class": "file", "argc": 4, "parent_process_id": "b:100",
                "join": "inherited"}),
        ),
        event(2_150, "network.flow.started").of("s-42", "call-1").by("b:101", 4243).with(flow()),
        event(2_700, "network.flow.closed").of("s-42", "call-1").by("b:101", 4243).with({
            let mut closed = flow();
            closed["bytes_sent"] = json!(1_234);
            closed["bytes_received"] = json!(340_000);
            closed["tcp_result"] = json!("closed by peer");
            closed
        }),
        event(2_750, "process.exited").of("s-42", "call-1").by("b:101", 4243).outcome(
            json!({"status": "success", "exit_code": 0}),
        ).with(json!({"executable": "curl", "duration_ms": 610, "cpu_user_ms": 9, "cpu_system_ms": 3})),
        event(3_340, "process.exited").of("s-42", "call-1").by("b:100", 4242).outcome(
            json!({"status": "failure", "exit_code": 1}),
        ).with(json!({"executable": "bash", "duration_ms": 1209, "cpu_user_ms": 31, "cpu_system_ms": 9,
            "max_rss_bytes": 4_194_304})),
        event(3_360, "agent.tool.completed").of("s-42", "call-1").with(
            json!({"tool_name": "shell", "duration_ms": 1240, "claim": "ran a command"}),
        ),
        event(1_500, "runtime.resource.sample").with(
            json!({"cpu_usage_us": 100_000, "memory_bytes": 12_582_912, "pids": 2}),
        ),
        event(2_500, "runtime.resource.sample").with(
            json!({"cpu_usage_us": 1_900_000, "memory_bytes": 50_331_648, "pids": 7, "io_write_bytes": 0}),
        ),
        event(4_500, "runtime.resource.sample").with(
            json!({"cpu_usage_us": 1_950_000, "memory_bytes": 13_000_000, "pids": 2, "io_write_bytes": 340_000}),
        ),
        event(1_000, "telemetry.heartbeat"),
        event(11_000, "telemetry.heartbeat"),
        event(9_000, "session.ended").of("s-42", "").with(json!({"reason": "completed"})),
    ]
    .into_iter()
    .map(super::make::Maker::line)
    .collect()
}

fn flow() -> serde_json::Value {
    json!({"protocol": "tcp", "family": "inet", "local_address": "10.0.0.5", "local_port": 40112,
        "peer_address": "192.0.2.7", "peer_port": 443, "direction": "outbound", "join": "inherited"})
}

#[test]
fn a_complete_story_of_one_tool_call() {
    check("story_complete", &download(), complete(1_000, 9_000), Style::default());
}

#[test]
fn a_terminal_of_80_columns_gets_80_columns() {
    check("story_80_columns", &download(), complete(1_000, 9_000), Style { width: Some(80), colour: false });
    let events = download();
    let events: Vec<_> =
        events.iter().map(|l| activity_schema::Event::parse(l.as_bytes()).unwrap()).collect();
    let drawn = crate::story::render(&tell(&events, complete(0, 1)), Style { width: Some(80), colour: true });
    assert!(drawn.contains("\x1b[1;32mcomplete\x1b[0m"), "{drawn}");
}

#[test]
fn order_of_arrival_does_not_matter() {
    let mut lines = download();
    lines.reverse();
    check("story_complete", &lines, complete(1_000, 9_000), Style::default());
}

#[test]
fn gaps_are_drawn_where_they_are_and_the_coverage_line_says_why() {
    let mut coverage = complete(1_000, 9_000);
    coverage.complete = false;
    coverage.reasons = vec!["process lossy: ring_full, 12 lost".into(), "network unobserved for 3 s".into()];
    let process = &mut coverage.instances[0].classes[2];
    process.state = CoverageState::Lossy;
    process.spans.push(CoverageSpan {
        from: at(2_600),
        to: at(3_000),
        state: CoverageState::Lossy,
        reason: Some("ring_full".into()),
        lost: 12,
        exact: Some(true),
    });
    let network = &mut coverage.instances[0].classes[3];
    network.state = CoverageState::Unobserved;
    network.spans.push(CoverageSpan {
        from: at(6_000),
        to: at(9_000),
        state: CoverageState::Unobserved,
        reason: Some("collector_down".into()),
        lost: 0,
        exact: None,
    });
    let mut lines = download();
    lines.push(
        event(2_900, "telemetry.loss")
            .with(json!({"reason": "ring_full", "dropped_count": 12, "loss_source": "process", "precision": "exact"}))
            .line(),
    );
    check("story_gaps", &lines, coverage.clone(), Style::default());
    let full = coverage_lines(&coverage).join("\n");
    assert!(full.contains("  process   lossy         by ebpf"), "{full}");
    assert!(full.contains("ring_full · 12 lost"), "{full}");
}

#[test]
fn what_cannot_be_seen_here_is_said_beside_complete() {
    let mut coverage = complete(1_000, 9_000);
    coverage.instances[0].classes.push(ClassCoverage {
        class: EventClass::File,
        state: CoverageState::Unsupported,
        source: None,
        spans: Vec::new(),
    });
    check("story_unsupported", &download(), coverage, Style::default());
}

#[test]
fn data_never_reaches_the_terminal_as_control() {
    let evil = "ls\x1b[2J\u{202e}gpj\n└─ forged";
    let lines = [
        event(1, "process.exec").by("b:1", 1).with(json!({"executable": evil})).line(),
        event(2, "session.started").of("s\x1b]0;x\x07", "").with(json!({"client": evil})).line(),
        event(3, "network.dns").with(json!({"question_name": evil, "question_type": "A"})).line(),
    ];
    check("story_escapes", &lines, complete(0, 10), Style::default());
}

#[test]
fn causality_outranks_clocks_and_unordered_clocks_are_marked() {
    let guest = |ms, name| {
        event(ms, name).source("clock_id", json!("guest-boot")).source("clock_error_ms", json!(40))
    };
    let lines = [
        // The child's clock says that it ran before its parent.
        event(100, "process.exec").of("s", "t").by("b:1", 10).with(json!({"executable": "make"})).line(),
        guest(90, "process.exec")
            .of("s", "t")
            .by("b:2", 11)
            .with(json!({"executable": "cc", "parent_process_id": "b:1"}))
            .line(),
        // Two children, 10 ms apart by different clocks: no order is claimed.
        event(300, "process.exec")
            .of("s", "t")
            .by("b:3", 12)
            .with(json!({"executable": "ld", "parent_process_id": "b:1"}))
            .line(),
        guest(310, "process.exec")
            .of("s", "t")
            .by("b:4", 13)
            .with(json!({"executable": "ar", "parent_process_id": "b:1"}))
            .line(),
        event(900, "process.exec")
            .of("s", "t")
            .by("b:5", 14)
            .with(json!({"executable": "strip", "parent_process_id": "b:1"}))
            .line(),
        // Hostile parents: a cycle ends at the call, and nothing is lost.
        event(910, "process.exec")
            .of("s", "t")
            .by("c:1", 20)
            .with(json!({"executable": "ouro", "parent_process_id": "c:2"}))
            .line(),
        event(920, "process.exec")
            .of("s", "t")
            .by("c:2", 21)
            .with(json!({"executable": "boros", "parent_process_id": "c:1"}))
            .line(),
    ];
    check("story_clocks", &lines, complete(0, 1_000), Style::default());
}

#[test]
fn effects_without_a_call_and_calls_without_effects_are_both_told() {
    let lines = [
        event(10, "agent.tool.invoked").of("s", "t-1").with(json!({"tool_name": "read"})).line(),
        event(20, "agent.tool.denied")
            .of("s", "t-2")
            .with(json!({"tool_name": "shell", "decision": "deny"}))
            .line(),
        event(30, "process.exec")
            .by("b:1", 7)
            .with(json!({"executable": "nc", "executable_class": "memfd", "join": "none"}))
            .line(),
        event(35, "process.exec_failed")
            .by("b:1", 7)
            .with(json!({"executable": "missing", "error": "ENOENT", "join": "none"}))
            .line(),
        event(40, "network.denied")
            .by("b:1", 7)
            .with({
                let mut f = flow();
                f["rule_id"] = json!("deny-all");
                f
            })
            .line(),
        event(41, "network.listen")
            .by("b:1", 7)
            .with(json!({"protocol": "tcp", "local_address": "::", "local_port": 8080}))
            .line(),
        event(50, "process.exited")
            .by("b:1", 7)
            .with(json!({"executable": "nc", "exit_signal": "SIGKILL", "duration_ms": 20}))
            .line(),
        event(60, "network.flow").of("s", "").by("b:9", 99).with(flow()).line(),
        event(70, "process.exec")
            .instance("sandbox-8")
            .by("z:1", 1)
            .with(json!({"executable": "init"}))
            .line(),
    ];
    check("story_unjoined", &lines, complete(0, 100), Style::default());
}

#[test]
fn a_flow_is_one_line_from_connect_to_close_though_its_port_came_between() {
    let connecting = || {
        let mut flow = flow();
        flow["local_port"] = json!(0);
        flow["local_address"] = json!("0.0.0.0");
        flow
    };
    let closed = |port: i64, bytes: i64| {
        let mut flow = flow();
        flow["local_port"] = json!(port);
        flow["bytes_received"] = json!(bytes);
        flow["bytes_sent"] = json!(0);
        flow["first_seen"] = json!(at(10).to_string());
        flow["last_seen"] = json!(at(35).to_string());
        flow
    };
    let by = |ms, name, payload| event(ms, name).by("b:1", 7).with(payload).line();
    let lines = [
        by(10, "network.flow.started", connecting()),
        by(11, "network.flow.started", connecting()),
        by(30, "network.flow.closed", closed(40_001, 1)),
        by(31, "network.flow.closed", closed(40_002, 2)),
        // The same ports again are another flow.
        by(40, "network.flow.started", flow()),
        by(50, "network.flow.closed", closed(40_112, 3)),
        by(60, "network.flow.started", flow()),
    ];
    check("story_flows", &lines, complete(0, 100), Style::default());
}

#[test]
fn the_agent_hangs_below_its_session_and_the_call_below_neither_process() {
    let exec = |ms, process: &str, pid, name: &str, parent: &str| {
        event(ms, "process.exec")
            .by(process, pid)
            .with(json!({"executable": name, "parent_process_id": parent, "join": "none"}))
    };
    let lines = [
        exec(1, "b:1", 1, "login-shell", "b:0").line(),
        // The session's scope opened after the exec: only its exit says where it belongs.
        exec(2, "b:2", 2, "iteron", "b:1").line(),
        event(5, "session.started").of("s", "").line(),
        event(10, "agent.tool.invoked").of("s", "t").with(json!({"tool_name": "shell"})).line(),
        exec(11, "b:3", 3, "bash", "b:2").of("s", "t").line(),
        exec(12, "b:4", 4, "git", "b:2").of("s", "").line(),
        event(90, "process.exited")
            .of("s", "")
            .by("b:2", 2)
            .with(json!({"executable": "iteron", "parent_process_id": "b:1", "join": "registered"}))
            .outcome(json!({"status": "success", "exit_code": 0}))
            .line(),
    ];
    check("story_agent", &lines, complete(0, 100), Style::default());
}

#[test]
fn a_chain_of_twenty_thousand_forks_is_drawn_and_dropped() {
    let lines: Vec<String> = (1..20_000)
        .map(|i| {
            event(i, "process.exec")
                .by(&format!("p:{i}"), 1)
                .with(json!({"executable": "fork", "parent_process_id": format!("p:{}", i - 1)}))
                .line()
        })
        .collect();
    let events: Vec<_> = lines.iter().map(|l| activity_schema::Event::parse(l.as_bytes()).unwrap()).collect();
    let drawn = crate::story::render(&tell(&events, complete(0, 1)), Style::default());
    assert_eq!(drawn.lines().filter(|l| l.contains("fork")).count(), lines.len());
}
