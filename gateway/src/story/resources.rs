//! Samples of resource use, folded into one line: counts, differences of counters, least and most of gauges.

use activity_schema::Event;
use activity_schema::event::Value;

use super::leaf::marks;
use super::units;
use super::{Node, Tone};

pub(super) fn samples(own: &[&Event<'_>]) -> Node {
    let mut details = vec![units::counted(own.len(), "sample")];
    let grown = |key: &str| range(own, key).map(|(min, max)| max.saturating_sub(min)).filter(|n| *n > 0);
    details.extend(
        grown("cpu_usage_us").map(|us| format!("cpu {}", units::duration_ns(us.saturating_mul(1000)))),
    );
    details.extend(
        grown("cpu_throttled_us")
            .map(|us| format!("throttled {}", units::duration_ns(us.saturating_mul(1000)))),
    );
    details.extend(
        range(own, "memory_bytes").map(|(min, max)| format!("memory {}", spread(min, max, units::memory))),
    );
    details
        .extend(range(own, "pids").map(|(min, max)| format!("pids {}", spread(min, max, |n| n.to_string()))));
    details.extend(grown("io_read_bytes").map(|n| format!("read {}", units::bytes(n))));
    details.extend(grown("io_write_bytes").map(|n| format!("written {}", units::bytes(n))));
    for (key, what) in
        [("psi_cpu_some_avg10", "cpu"), ("psi_memory_some_avg10", "memory"), ("psi_io_some_avg10", "io")]
    {
        details
            .extend(most(own, key).filter(|n| *n >= 1.0).map(|n| format!("{what} pressure up to {n:.0} %")));
    }
    let kills = grown("memory_oom_kills");
    details.extend(kills.map(|n| format!("{n} OOM kills")));
    Node {
        at: None,
        concurrent: false,
        title: "resources".to_owned(),
        details,
        marks: marks(own),
        tone: if kills.is_some() { Tone::Bad } else { Tone::Plain },
        children: Vec::new(),
    }
}

fn range(own: &[&Event<'_>], key: &str) -> Option<(i64, i64)> {
    let values = || own.iter().filter_map(|e| e.payload.integer(key));
    Some((values().min()?, values().max()?))
}

fn most(own: &[&Event<'_>], key: &str) -> Option<f64> {
    let values = own.iter().filter_map(|e| match e.payload.get(key)? {
        Value::Float(f) => Some(*f),
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        Value::Int(i) => Some(*i as f64),
        _ => None,
    });
    values.max_by(f64::total_cmp)
}

/// `12–48 MiB`, or one figure when both are shown alike.
fn spread(min: i64, max: i64, show: impl Fn(i64) -> String) -> String {
    let (low, high) = (show(min), show(max));
    if low == high {
        return high;
    }
    match (low.rsplit_once(' '), high.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number}\u{2013}{high}"),
        _ => format!("{low}\u{2013}{high}"),
    }
}
