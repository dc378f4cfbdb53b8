//! The collector's word about itself: start, configuration, heartbeat, clock, probes, stop.

use std::borrow::Cow;

use activity_schema::coverage::EventClass;
use activity_schema::event::{Payload, Value};
use activity_schema::{Class, Timestamp};

use crate::kernel::{AttachReport, RecordKind, Support};
use crate::observe::warn_refused;
use crate::recorder::{Draft, Recorder};
use crate::sandbox::Instance;
use crate::spool::Disk;

/// How a class of events is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassPlan {
    pub class: EventClass,
    pub source: &'static str,
    pub support: Support,
    pub probes: Vec<Cow<'static, str>>,
}

/// What this run watches, and why not the rest.
pub fn plan(report: Option<&AttachReport>, no_kernel: &str, socket: bool, resources: bool) -> Vec<ClassPlan> {
    EventClass::ALL.iter().map(|class| plan_class(*class, report, no_kernel, socket, resources)).collect()
}

fn plan_class(
    class: EventClass,
    report: Option<&AttachReport>,
    no_kernel: &str,
    socket: bool,
    resources: bool,
) -> ClassPlan {
    let unsupported = |reason: &str| ClassPlan {
        class,
        source: "none",
        support: Support::Unsupported(reason.to_owned()),
        probes: Vec::new(),
    };
    let declared = |on: bool, source, reason: &str| {
        let support = if on { Support::Supported } else { Support::Unsupported(reason.to_owned()) };
        ClassPlan { class, source, support, probes: Vec::new() }
    };
    match class {
        EventClass::Session | EventClass::Tool => {
            declared(socket, "agent socket", "the agent socket cannot be opened")
        }
        EventClass::Resource => declared(resources, "cgroup", "no cgroup or procfs numbers can be read"),
        EventClass::Process => match report {
            Some(report) => from_kernel(
                class,
                report,
                &[RecordKind::Fork, RecordKind::Exec, RecordKind::ExecFailed, RecordKind::Exit],
            ),
            None => ClassPlan {
                class,
                source: "procfs",
                support: Support::Degraded(format!("procfs polling misses short processes: {no_kernel}")),
                probes: Vec::new(),
            },
        },
        EventClass::Network => match report {
            Some(report) => {
                from_kernel(class, report, &[RecordKind::Flow, RecordKind::Listen, RecordKind::UdpFlow])
            }
            None => unsupported(no_kernel),
        },
        EventClass::File
        | EventClass::Dns
        | EventClass::Runtime
        | EventClass::System
        | EventClass::Security => unsupported("no source of this version collects it"),
    }
}

/// The worst of the kinds that make up a class.
fn from_kernel(class: EventClass, report: &AttachReport, kinds: &[RecordKind]) -> ClassPlan {
    let parts: Vec<_> = report.classes.iter().filter(|c| kinds.contains(&c.kind)).collect();
    let probes = parts.iter().flat_map(|c| c.probes.iter().cloned()).collect();
    let lost: Vec<String> = parts
        .iter()
        .filter_map(|c| match &c.support {
            Support::Supported => None,
            Support::Degraded(why) => Some(format!("{}: {why}", c.kind.as_str())),
            Support::Unsupported(why) => Some(format!("no {}: {why}", c.kind.as_str())),
        })
        .collect();
    let nothing = parts.iter().all(|c| matches!(c.support, Support::Unsupported(_)));
    let support = match (nothing, lost.is_empty()) {
        (true, _) => Support::Unsupported(lost.join("; ")),
        (false, true) => Support::Supported,
        (false, false) => Support::Degraded(lost.join("; ")),
    };
    ClassPlan { class, source: "ebpf", support, probes }
}

/// Vouches for nothing, for one reason.
pub fn degrade(plans: &mut [ClassPlan], reason: &str) {
    for plan in plans.iter_mut().filter(|plan| !matches!(plan.support, Support::Unsupported(_))) {
        plan.support = Support::Degraded(reason.to_owned());
    }
}

fn cut(text: &str) -> String {
    const REASON_BYTES_MAX: usize = 250;
    let mut text = text.to_owned();
    while text.len() > REASON_BYTES_MAX {
        text.pop();
    }
    text
}

/// `telemetry.config` of a sandbox.
pub fn config<D: Disk>(
    recorder: &mut Recorder<D>,
    instance: &Instance,
    plans: &[ClassPlan],
    policy_digest: &str,
    interval_ms: u64,
) {
    let classes: Vec<Value<'static>> = plans
        .iter()
        .map(|plan| {
            let (state, reason) = match &plan.support {
                Support::Supported => ("supported", None),
                Support::Degraded(reason) => ("degraded", Some(cut(reason))),
                Support::Unsupported(reason) => ("unsupported", Some(cut(reason))),
            };
            let mut entry = Payload::new();
            entry.set("class", plan.class.as_str()).set("source", plan.source).set("state", state);
            entry.set_some("reason", reason);
            let mut probes = plan.probes.clone();
            probes.sort_unstable();
            probes.dedup();
            entry.set(
                "probes",
                Value::List(probes.into_iter().map(|p| Value::from(p.into_owned())).collect()),
            );
            Value::Object(entry)
        })
        .collect();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut payload = Payload::new();
    payload.set("policy_digest", policy_digest.to_owned()).set("profile", "M0");
    payload.set("classes", Value::List(classes));
    payload.set("kernel_release", release.trim().to_owned());
    payload.set("runtime", instance.runtime.as_str()).set("interval_ms", interval_ms);
    record(recorder, "telemetry.config", instance, payload);
}

/// `telemetry.started` or `.restarted`.
pub fn started<D: Disk>(
    recorder: &mut Recorder<D>,
    own: &Instance,
    restarted: bool,
    spool_state: &str,
    gap_ms: Option<u64>,
) {
    let mut payload = Payload::new();
    payload.set("version", env!("CARGO_PKG_VERSION")).set("spool_state", spool_state.to_owned());
    if restarted {
        payload.set_some("gap_ms", gap_ms);
    }
    record(recorder, if restarted { "telemetry.restarted" } else { "telemetry.started" }, own, payload);
}

pub fn stopped<D: Disk>(recorder: &mut Recorder<D>, own: &Instance, reason: &'static str) {
    let mut payload = Payload::new();
    payload.set("reason", reason);
    record(recorder, "telemetry.stopped", own, payload);
}

/// `telemetry.heartbeat`: everything that occurred up to `complete_until` is sequenced at or below the marks.
pub fn heartbeat<D: Disk>(recorder: &mut Recorder<D>, own: &Instance, complete_until: Timestamp) {
    recorder.flush(None);
    let (spool, drops) = (recorder.spool(), recorder.drops_total + recorder.refused);
    let epoch = spool.current();
    let streams: Vec<Value<'static>> = Class::ALL
        .iter()
        .map(|class| {
            let acked = epoch.acks.streams.get(class.as_str());
            let mut entry = Payload::new();
            entry.set("stream", spool.stream_text(*class)).set("class", class.as_str());
            entry.set("last_sequence", spool.next_sequence(*class) - 1);
            entry.set("acked_sequence", acked.map_or(0, |a| a.sequence));
            entry.set("batches_pending", epoch.streams.get(class).map_or(0, |s| s.pending().0) as u64);
            Value::Object(entry)
        })
        .collect();
    let oldest = epoch.streams.values().filter_map(|s| s.pending().1).min();
    let clock = *recorder.clock();
    let mut payload = Payload::new();
    payload.set_some("last_receipt_hash", epoch.acks.last_receipt_hash.map(|h| h.to_hex()));
    payload.set("streams", Value::List(streams)).set("spool_bytes", spool.bytes());
    let age = oldest.map_or(0, |t| clock.wall.nanos_since(t).max(0) / 1_000_000);
    payload.set("spool_oldest_ms", age).set("drops_total", drops);
    let (cpu_ms, rss_bytes) = own_use();
    payload.set("cpu_ms", cpu_ms).set("rss_bytes", rss_bytes);
    clock_fields(&mut payload, &clock);
    let mut draft = Draft::observed("telemetry.heartbeat", complete_until, own, payload);
    draft.outcome = None;
    warn_refused("telemetry.heartbeat", recorder.record(draft));
    // What the heartbeat names is sealed with it: the gateway can confirm it as soon as it has the heartbeat.
    recorder.seal_all();
}

pub fn clock_step<D: Disk>(recorder: &mut Recorder<D>, own: &Instance, step_ns: i64) {
    let clock = *recorder.clock();
    let mut payload = Payload::new();
    payload.set("step_ms", step_ns / 1_000_000).set("reason", "step");
    clock_fields(&mut payload, &clock);
    record(recorder, "telemetry.clock", own, payload);
}

fn clock_fields(payload: &mut Payload<'static>, clock: &crate::clock::ClockReading) {
    payload.set("clock_offset_ns", clock.state.offset_ns).set("clock_error_ns", clock.state.error_ns);
    payload.set("clock_synchronised", clock.state.synchronised);
}

pub fn probe<D: Disk>(recorder: &mut Recorder<D>, own: &Instance, seen: bool, lag_ms: Option<u64>) {
    let mut payload = Payload::new();
    payload.set("canary", if seen { "seen" } else { "missing" });
    payload.set_some("lag_ms", lag_ms);
    record(recorder, "telemetry.probe", own, payload);
}

pub fn rejected<D: Disk>(recorder: &mut Recorder<D>, own: &Instance, count: u64) {
    record(recorder, "telemetry.rejected", own, super::agent::rejected_payload(count));
}

fn record<D: Disk>(recorder: &mut Recorder<D>, name: &'static str, own: &Instance, payload: Payload<'_>) {
    let at = recorder.clock().wall;
    warn_refused(name, recorder.record(Draft::observed(name, at, own, payload)));
}

/// CPU milliseconds and resident bytes of this process.
fn own_use() -> (u64, u64) {
    const TICK_MS: u64 = crate::identity::TICK_NS / 1_000_000;
    const PAGE_BYTES: u64 = 4096;
    let stat = procfs::process::Process::myself().and_then(|p| p.stat());
    stat.map_or((0, 0), |s| ((s.utime + s.stime) * TICK_MS, s.rss * PAGE_BYTES))
}
