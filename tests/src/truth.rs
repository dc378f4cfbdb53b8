//! What a load program made, compared with what was recorded. The truth comes from the load program alone.

use std::collections::BTreeMap;

use activity_schema::Timestamp;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Situations that users of other recorders met (field cases 3, 5, 6, 7, 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kind {
    Plain,
    Setsid,
    DoubleFork,
    EmptyArgument,
    ExecFails,
    Memfd,
    Thread,
    LeaderFirst,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Plain,
        Kind::Setsid,
        Kind::DoubleFork,
        Kind::EmptyArgument,
        Kind::ExecFails,
        Kind::Memfd,
        Kind::Thread,
        Kind::LeaderFirst,
    ];
}

/// A process that the load program made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    pub kind: Kind,
    pub pid: i32,
    /// The process that forked it.
    pub parent: i32,
    pub exec: bool,
    pub argc: i64,
    pub exec_failed: bool,
    pub memfd: bool,
    pub exit_code: i32,
    /// When the load program had it behind itself: a later process may have the same pid.
    pub at: Timestamp,
}

/// One line of difference a finding; empty when the record is the truth.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    pub processes: usize,
    pub events: usize,
    /// Records counted as lost by kind of event.
    pub lost: BTreeMap<String, u64>,
    pub differences: Vec<String>,
}

/// Pids do not come round faster than this: 32,768 of them at 10,000 a second.
const PID_REUSE_NS_MIN: i64 = 3_000_000_000;

/// Compares. `events` are all events of the load's sandbox, `pid` is the load program's own.
pub fn compare(made: &[Made], events: &[Value], load_pid: u32) -> Comparison {
    let mut found = Comparison { processes: made.len(), events: events.len(), ..Comparison::default() };
    for loss in events.iter().filter(|e| e["event_name"] == "telemetry.loss") {
        let count = loss["payload"]["dropped_count"].as_u64().unwrap_or(0);
        for name in loss["payload"]["event_names"].as_array().into_iter().flatten() {
            *found.lost.entry(name.as_str().unwrap_or("").to_owned()).or_default() += count;
        }
    }
    let mut ids = BTreeMap::new();
    for event in events {
        let id = event["event_id"].as_str().unwrap_or("");
        if ids.insert(id.to_owned(), ()).is_some() {
            found.differences.push(format!("event {id} twice"));
        }
    }
    let by_pid = by_pid(events);
    let mut missing: BTreeMap<&str, u64> = BTreeMap::new();
    let mut last_of_pid = BTreeMap::new();
    for process in made {
        let own = by_pid.get(&i64::from(process.pid)).map(Vec::as_slice).unwrap_or_default();
        // Events may lie behind `at` by as much as the load program was ahead; pids come round much later.
        let until = process.at.saturating_add_nanos(PID_REUSE_NS_MIN / 2);
        let from = last_of_pid.insert(process.pid, until).unwrap_or(Timestamp::MIN);
        let of_life = |event: &&Value| {
            let at = event["occurred_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
            at.is_some_and(|at| from < at && at <= until)
        };
        let own: Vec<&Value> = own.iter().copied().filter(of_life).collect();
        check(process, &own, load_pid, &mut missing, &mut found.differences);
    }
    for (name, count) in missing {
        let lost = found.lost.get(name).copied().unwrap_or(0);
        if count != lost {
            found.differences.push(format!("{count} of {name} missing, {lost} counted as lost"));
        }
    }
    found
}

fn by_pid(events: &[Value]) -> BTreeMap<i64, Vec<&Value>> {
    let mut map: BTreeMap<i64, Vec<&Value>> = BTreeMap::new();
    for event in events {
        let process = event["event_name"].as_str().is_some_and(|n| n.starts_with("process."));
        if let Some(pid) = event["actor"]["pid"].as_i64().filter(|_| process) {
            map.entry(pid).or_default().push(event);
        }
    }
    map
}

fn check<'a>(
    process: &Made,
    own: &[&Value],
    load_pid: u32,
    missing: &mut BTreeMap<&'a str, u64>,
    differences: &mut Vec<String>,
) {
    let named = |name: &str| own.iter().filter(|e| e["event_name"] == name).copied().collect::<Vec<_>>();
    let mut expect = |name: &'a str, times: usize| {
        let seen = named(name);
        if seen.len() < times {
            *missing.entry(name).or_default() += (times - seen.len()) as u64;
        } else if seen.len() > times {
            differences.push(format!("{:?} {}: {name} {} times", process.kind, process.pid, seen.len()));
        }
        seen
    };
    let exec = expect("process.exec", usize::from(process.exec));
    let exited = expect("process.exited", 1);
    expect("process.exec_failed", usize::from(process.exec_failed));
    let mut differ = |what: &str, seen: &Value| {
        differences.push(format!("{:?} {}: {what} is {seen}", process.kind, process.pid));
    };
    for event in &exited {
        if event["outcome"]["exit_code"] != i64::from(process.exit_code) {
            differ("exit code", &event["outcome"]);
        }
        let parent = event["payload"]["parent_process_id"].as_str().unwrap_or("");
        let expected = if process.parent == 0 { i64::from(load_pid) } else { i64::from(process.parent) };
        if parent.split('-').nth(1) != Some(&expected.to_string()) {
            differ("parent", &event["payload"]["parent_process_id"]);
        }
    }
    for event in &exec {
        if event["payload"]["argc"] != process.argc {
            differ("argc", &event["payload"]["argc"]);
        }
        let class = event["payload"]["executable_class"].as_str().unwrap_or("");
        if (class == "memfd") != process.memfd {
            differ("executable class", &event["payload"]["executable_class"]);
        }
    }
}
