//! A process: what it ran, how it ended, what it cost.

use activity_schema::Event;
use activity_schema::event::{Status, Value};

use super::leaf::{marks, span_ns};
use super::units;
use super::{Node, Tone};

/// Images named for one process; a shell that execs in a loop stays one line.
const IMAGES_SHOWN_MAX: usize = 4;

/// `pid` is of use where no event of the process itself is known.
pub(super) fn process(id: &str, pid: Option<u64>, own: &[&Event<'_>]) -> Node {
    let exited = own.iter().rev().find(|e| e.event_name == "process.exited");
    let mut details = vec![match own_pid(own).or(pid) {
        Some(pid) => format!("pid {pid}"),
        None => id.to_owned(),
    }];
    let (ending, failed) = match exited {
        Some(event) => how_it_ended(event),
        None if own.is_empty() => ("its start and end are not in this answer".to_owned(), false),
        None => ("no exit seen".to_owned(), false),
    };
    details.push(ending);
    if let Some(event) = exited {
        details.extend(cost(event, own));
    }
    if let Some(class) = text(own, "executable_class").filter(|c| *c != "file") {
        details.push(format!("image from {class}"));
    }
    if flag(own, "credentials_changed") {
        details.push("credentials changed".to_owned());
    }
    if flag(own, "seeded") {
        details.push("was running before".to_owned());
    }
    Node {
        at: None,
        concurrent: false,
        title: title(own),
        details,
        marks: marks(own),
        tone: if failed { Tone::Bad } else { Tone::Plain },
        children: Vec::new(),
    }
}

/// `sh → curl`: the images in the order they were executed.
fn title(own: &[&Event<'_>]) -> String {
    let mut images: Vec<&str> = Vec::new();
    for name in own.iter().filter_map(|e| e.payload.text("executable")) {
        if images.last() != Some(&name) {
            images.push(name);
        }
    }
    match images.len() {
        0 => "process".to_owned(),
        1..=IMAGES_SHOWN_MAX => images.join(" → "),
        n => format!("{} → … {} more → {}", images[0], n - 2, images[n - 1]),
    }
}

fn own_pid(own: &[&Event<'_>]) -> Option<u64> {
    own.iter().find_map(|e| {
        let entity =
            |entity: &Option<activity_schema::event::Entity<'_>>| entity.as_ref().and_then(|x| x.pid);
        entity(&e.actor)
            .or_else(|| entity(&e.target))
            .or_else(|| e.payload.integer("ns_pid").and_then(|p| u64::try_from(p).ok()))
    })
}

fn how_it_ended(event: &Event<'_>) -> (String, bool) {
    let code = event.outcome.as_ref().and_then(|o| o.exit_code);
    if let Some(signal) = event.payload.text("exit_signal").filter(|s| !s.is_empty()) {
        let dumped = event.payload.get("core_dumped") == Some(&Value::Bool(true));
        return (format!("killed by {signal}{}", if dumped { ", core dumped" } else { "" }), true);
    }
    match code {
        Some(code) => (format!("exit {code}"), code != 0),
        None => {
            let failed = event.outcome.as_ref().is_some_and(|o| o.status == Status::Failure);
            ("exited".to_owned(), failed)
        }
    }
}

fn cost(exited: &Event<'_>, own: &[&Event<'_>]) -> Vec<String> {
    let mut parts = Vec::new();
    let declared = exited.payload.integer("duration_ms").map(units::duration_ms);
    parts.extend(declared.or_else(|| span_ns(own).map(units::duration_ns)));
    let cpu = ["cpu_user_ms", "cpu_system_ms"].map(|k| exited.payload.integer(k));
    if cpu.iter().any(Option::is_some) {
        let total = cpu.iter().flatten().fold(0i64, |sum, ms| sum.saturating_add(*ms));
        parts.push(format!("cpu {}", units::duration_ms(total)));
    }
    parts.extend(exited.payload.integer("max_rss_bytes").map(|n| format!("rss {}", units::memory(n))));
    parts
}

fn text<'a>(own: &'a [&Event<'_>], key: &str) -> Option<&'a str> {
    own.iter().rev().find_map(|e| e.payload.text(key))
}

fn flag(own: &[&Event<'_>], key: &str) -> bool {
    own.iter().any(|e| e.payload.get(key) == Some(&Value::Bool(true)))
}
