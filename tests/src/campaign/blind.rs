//! What a collector cannot know, it must not vouch for.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{enrolled_lab, lab_with, settle};
use crate::lab::{Arena, INSTANCE, Lab, cgroup2_root, json};

/// State of each event class.
pub type States = BTreeMap<String, String>;

/// The agent socket's file is removed: the states over that time, and over a later one when it is back.
pub fn removed_socket() -> anyhow::Result<(States, States)> {
    let arena = Arena::new("removed")?;
    let lab = lab_with(&[&arena])?;
    let from = now();
    fs::remove_file(lab.agent_socket())?;
    lab.wait_for("the socket", |lab| Ok(lab.agent_socket().exists()))?;
    settle(&lab)?;
    let (middle, end) = stored_span(&lab)?;
    Ok((states(&lab, arena.name(), &from, &middle)?, states(&lab, arena.name(), &middle, &end)?))
}

/// The collector is stopped for longer than its looks are apart: the states over that time.
pub fn stopped_process() -> anyhow::Result<States> {
    let arena = Arena::new("paused")?;
    let lab = lab_with(&[&arena])?;
    let pid = Pid::from_raw(i32::try_from(lab.collector.as_ref().context("no collector")?.pid())?);
    let from = now();
    kill(pid, Signal::SIGSTOP)?;
    std::thread::sleep(Duration::from_secs(5));
    kill(pid, Signal::SIGCONT)?;
    let end = now();
    settle(&lab)?;
    states(&lab, arena.name(), &from, &end)
}

/// A sandbox is configured whose cgroup comes later: the states before, and after it came.
pub fn absent_sandbox() -> anyhow::Result<(States, States)> {
    let name = format!("activity-late-{}", std::process::id());
    let config = format!("[[sandbox]]\ninstance_id = \"{name}\"\ncgroup = \"/{name}\"\n");
    let mut lab = enrolled_lab(&[], &config)?;
    lab.start_collector()?;
    settle(&lab)?;
    let from = now();
    settle(&lab)?;
    let middle = now();
    let cgroup = cgroup2_root().context("no cgroup v2 is mounted")?.join(&name);
    fs::create_dir(&cgroup)?;
    let after = settle(&lab).and_then(|()| {
        let (from, to) = stored_span(&lab)?;
        states(&lab, &name, &from, &to)
    });
    fs::remove_dir(&cgroup)?;
    Ok((states(&lab, &name, &from, &middle)?, after?))
}

/// A span that begins now, and of which everything is stored.
fn stored_span(lab: &Lab) -> anyhow::Result<(String, String)> {
    let from = now();
    settle(lab)?;
    let to = now();
    settle(lab)?;
    Ok((from, to))
}

/// Processes in nested cgroups that live for milliseconds: how many were made, how many are the sandbox's in the
/// answer, and the states of that time.
pub fn nested_cgroups(count: usize) -> anyhow::Result<(usize, usize, States)> {
    let arena = Arena::new("nested")?;
    let lab = lab_with(&[&arena])?;
    let from = now();
    for n in 0..count {
        let nested = arena.below(&format!("n{n}"))?;
        nested.spawn(Command::new("/bin/true").stdin(Stdio::null()))?.wait()?;
    }
    let to = now();
    settle(&lab)?;
    let asked = ["--instance", arena.name(), "--event", "process.exec", "--executable", "true"];
    let seen = lab.events(&asked)?.len();
    Ok((count, seen, states(&lab, arena.name(), &from, &to)?))
}

/// Programs are not pinned, and the process that holds them is killed: the states over that time, and over a later one.
pub fn lost_programs() -> anyhow::Result<(States, States)> {
    let arena = Arena::new("unheld")?;
    let mut lab = enrolled_lab(&[&arena], "[kernel]\npin = false\n")?;
    lab.start_collector()?;
    settle(&lab)?;
    let from = now();
    let pid = lab.collector.as_ref().context("no collector")?.pid();
    let holder = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    kill(Pid::from_raw(holder.trim().parse()?), Signal::SIGKILL)?;
    settle(&lab)?;
    let (middle, end) = stored_span(&lab)?;
    Ok((states(&lab, arena.name(), &from, &middle)?, states(&lab, arena.name(), &middle, &end)?))
}

/// A collector that is enrolled for one instance alone, which is a cgroup of its host: processes of that instance in
/// the answer, other instances in it, and the states.
pub fn one_instance() -> anyhow::Result<(usize, Vec<String>, States)> {
    let arena = Arena::new("one")?;
    let mut lab = Lab::new(None)?;
    lab.token_bound_to = ["--instance", INSTANCE];
    lab.collector_config = format!("cgroup = \"/{}\"\n", arena.name());
    lab.init_gateway()?;
    lab.enrol()?;
    lab.start_collector()?;
    settle(&lab)?;
    let from = now();
    Command::new("/bin/true").status()?;
    arena.spawn(Command::new("/bin/true").stdin(Stdio::null()))?.wait()?;
    let to = now();
    settle(&lab)?;
    let told = lab.events(&["--event", "process.exec"])?;
    let instance =
        |event: &Value| event["correlation"]["instance_id"].as_str().unwrap_or_default().to_owned();
    let (own, others): (Vec<_>, Vec<_>) = told.iter().map(instance).partition(|name| name == INSTANCE);
    Ok((own.len(), others, states(&lab, INSTANCE, &from, &to)?))
}

/// A collector whose certificates live for seconds: heartbeats that are stored after several of these lives.
pub fn short_certificates() -> anyhow::Result<usize> {
    const LIFE: Duration = Duration::from_secs(6);
    let mut lab = Lab::new(None)?;
    lab.gateway_flags = vec!["--collector-lifetime".to_owned(), format!("{}s", LIFE.as_secs())];
    lab.init_gateway()?;
    lab.enrol()?;
    lab.start_collector()?;
    std::thread::sleep(LIFE * 5 / 2);
    let from = now();
    std::thread::sleep(LIFE / 2);
    Ok(lab.events(&["--event", "telemetry.heartbeat", "--from", &from])?.len())
}

fn states(lab: &Lab, instance: &str, from: &str, to: &str) -> anyhow::Result<States> {
    let asked = ["coverage", "--format", "json", "--instance", instance, "--from", from, "--to", to];
    let answer: Value = json(&String::from_utf8(lab.activity(&asked)?.stdout)?)?;
    let classes = answer["instances"][0]["classes"].as_array().context("no classes in the answer")?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    Ok(classes.iter().map(|c| (text(&c["class"]), text(&c["state"]))).collect())
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}
