//! `cargo xtask demo`: one agent session on this kernel, recorded, answered and verified.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use activity_tests::lab::{Arena, INSTANCE, Lab, TENANT, binary, interrupt, json};
use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::{Value, json};

/// Runs a gateway, a collector and an agent, and shows what was seen.
#[derive(Parser)]
#[command(name = "cargo xtask demo")]
struct Cli {
    /// Print one JSON object instead of the timeline
    #[arg(long)]
    json: bool,
    /// Leave the gateway's store and the collector's spool in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

const SESSION: &str = "demo-session";

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whatever failed, a signal came first.
            let error = interrupt::check().err().unwrap_or(error);
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let say = |text: &str| eprintln!("demo: {text}");
    interrupt::watch()?;
    let mut lab = Lab::new(cli.keep.as_deref())?;
    // A cgroup of its own makes the agent a sandbox; an ordinary user watches the whole machine instead.
    let arena = Arena::new("demo").ok();
    let instance = arena.as_ref().map_or(INSTANCE, Arena::name).to_owned();
    lab.collector_config = arena.as_ref().map(Arena::sandbox).unwrap_or_default();
    say("starting a gateway and enrolling a collector");
    lab.init_gateway()?;
    lab.enrol()?;
    lab.start_collector()?;
    say("running an agent session against a scripted model");
    session(&lab, arena.as_ref())?;
    say("waiting until everything up to the session's end is durable");
    let span = settle(&lab, &instance)?;
    let report = report(&lab, &instance, &span)?;
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let interval = ["--from", &span.0, "--to", &span.1];
        let timeline = lab.activity(&[&["timeline", "--instance", &instance][..], &interval].concat())?;
        println!("{}", String::from_utf8(timeline.stdout)?.trim_end());
    }
    if let Some(collector) = lab.collector.take() {
        ensure!(collector.stop()?.success(), "the collector did not stop well");
    }
    if let Some(gateway) = lab.gateway.take() {
        ensure!(gateway.stop()?.success(), "the gateway did not stop well");
    }
    verify(&lab, cli)
}

/// A session with one tool call that makes processes and a flow.
fn session(lab: &Lab, arena: Option<&Arena>) -> anyhow::Result<()> {
    let service = TcpListener::bind("127.0.0.1:0")?;
    let port = service.local_addr()?.port();
    let served = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut peer, _) = service.accept()?;
        let mut request = [0; 5];
        peer.read_exact(&mut request)?;
        peer.write_all(&[b'x'; 4096])
    });
    let command =
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf hello >&3; cat <&3 | wc -c; ls / >/dev/null");
    let script = json!({"turns": [
        {"text": "I fetch the page and count its bytes.",
         "tool_use": [{"name": "shell", "input": {"command": command}}]},
        {"text": "It has 4096 bytes."},
    ]});
    let path = lab.path("script.json");
    std::fs::write(&path, script.to_string())?;
    let mut model = binary("scripted-model")?
        .arg("--script")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(model.stdout.take().context("no output of the model server")?).read_line(&mut line)?;
    let listening = json(&line)?["listening"].as_str().context("the model server did not start")?.to_owned();
    let mut agent = binary("iteron")?;
    agent
        .args(["exec", "--session", SESSION, "fetch the page and count its bytes"])
        .env("ANTHROPIC_BASE_URL", format!("http://{listening}"))
        .env("ANTHROPIC_API_KEY", "demo-key")
        .env("ACTIVITY_SOCKET", lab.agent_socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let agent = match arena {
        Some(arena) => arena.spawn(&mut agent),
        None => Ok(agent.spawn()?),
    };
    let agent = agent.and_then(|child| Ok(child.wait_with_output()?));
    model.kill()?;
    model.wait()?;
    let agent = agent?;
    ensure!(
        agent.status.success(),
        "the agent ended with {}: {}",
        agent.status,
        String::from_utf8_lossy(&agent.stderr)
    );
    served.join().map_err(|_| anyhow::anyhow!("the demo's service panicked"))??;
    Ok(())
}

/// Waits for the session's end and a sample after it, and until that is durable; the interval to show.
fn settle(lab: &Lab, instance: &str) -> anyhow::Result<(String, String)> {
    // Looking makes processes too: on a machine that is watched as a whole, look seldom.
    std::thread::sleep(Duration::from_millis(2500));
    let first_time =
        |events: Vec<Value>| events.first().and_then(|e| e["occurred_at"].as_str()).map(str::to_owned);
    let mut span = None;
    lab.wait_for("the session's end and a sample after it", |lab| {
        let of_session = ["--session", SESSION, "--event"];
        let start = first_time(lab.events(&[&of_session[..], &["session.started"]].concat())?);
        let end = first_time(lab.events(&[&of_session[..], &["session.ended"]].concat())?);
        let Some((start, end)) = start.zip(end) else { return Ok(false) };
        let samples = ["--instance", instance, "--event", "runtime.resource.sample", "--from", &end];
        span = first_time(lab.events(&samples)?).map(|sample| (start, sample));
        Ok(span.is_some())
    })?;
    let (start, sample) = span.context("no session")?;
    let until: activity_schema::Timestamp = sample.parse()?;
    let span = (start, until.saturating_add_nanos(1).to_string());
    // Confirmed by the next heartbeat; where classes are lost for good, that never makes it complete.
    for _ in 0..20 {
        let asked = ["coverage", "--instance", instance, "--from", &span.0, "--to", &span.1];
        let answer = lab.activity(&asked)?;
        if answer.status.success() || !String::from_utf8_lossy(&answer.stdout).contains("pending") {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(span)
}

fn report(lab: &Lab, instance: &str, (from, to): &(String, String)) -> anyhow::Result<Value> {
    let interval = ["--from", from, "--to", to];
    let events = lab.events(&[&["--instance", instance][..], &interval].concat())?;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for event in &events {
        *counts.entry(event["event_name"].as_str().unwrap_or("")).or_default() += 1;
    }
    let coverage =
        lab.activity(&[&["coverage", "--instance", instance, "--format", "json"][..], &interval].concat())?;
    let coverage = json(&String::from_utf8(coverage.stdout)?)?;
    Ok(json!({
        "tenant": TENANT,
        "instance": instance,
        "session": SESSION,
        "events": counts,
        "tool_calls": tool_calls(&events),
        "coverage": coverage,
        "store": lab.store(),
    }))
}

/// Each tool call with its join and the effects that carry its id.
fn tool_calls(events: &[Value]) -> Vec<Value> {
    let invoked = events.iter().filter(|e| e["event_name"] == "agent.tool.invoked");
    invoked
        .map(|call| {
            let id = &call["correlation"]["tool_call_id"];
            let own = || events.iter().filter(|e| e["correlation"]["tool_call_id"] == *id);
            let effects: Vec<Value> = own()
                .filter(|e| {
                    let name = e["event_name"].as_str().unwrap_or("");
                    name.starts_with("process.") || name.starts_with("network.")
                })
                .map(|e| {
                    json!({"event": e["event_name"], "executable": e["payload"]["executable"],
                           "peer": e["payload"]["peer_address"], "join": e["payload"]["join"],
                           "outcome": e["outcome"]})
                })
                .collect();
            let end = own().find(|e| {
                matches!(
                    e["event_name"].as_str(),
                    Some("agent.tool.completed" | "agent.tool.failed" | "agent.tool.cancelled")
                )
            });
            json!({"tool_call_id": id, "tool_name": call["payload"]["tool_name"],
                   "join": call["payload"]["join"], "outcome": end.map(|e| e["outcome"].clone()),
                   "effects": effects})
        })
        .collect()
}

/// The evidence on disk, checked without trusting the gateway that wrote it.
fn verify(lab: &Lab, cli: &Cli) -> anyhow::Result<()> {
    let output = binary("activity")?.arg("verify").arg(lab.store()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() != Some(5), "the evidence does not verify:\n{text}");
    if !cli.json {
        println!("\n{}", text.trim_end());
        if let Some(dir) = &cli.keep {
            println!("\nkept: {}", dir.display());
        }
    }
    Ok(())
}
