//! Events as a collector beside a busy coding agent writes them: sessions of tool calls, each a tree of short
//! processes, some of which talk to the network. Shapes and lengths are those of recorded events.

use std::collections::VecDeque;

use activity_schema::event::{
    Correlation, Entity, Event, Integrity, Layer, Number, Outcome, Payload, Runtime, SchemaVersion,
    Sensitivity, Source, Status, Trust, Value,
};
use activity_schema::{Timestamp, catalog};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use uuid::Uuid;

use super::recording::{Batch, Identity, Recorder};

const EXECUTABLES: [&str; 16] = [
    "bash", "git", "cargo", "rustc", "cc", "ld", "python3", "node", "cat", "grep", "sed", "ls", "find",
    "make", "curl", "env",
];
const HEARTBEAT_NS: i64 = 10_000_000_000;

/// Makes one collector's events, in the order of time.
pub struct Host {
    recorder: Recorder,
    random: StdRng,
    now_ns: i64,
    /// Mean time between two events.
    step_ns: i64,
    heartbeat_at_ns: i64,
    next_pid: u64,
    /// Beginning of process ids: boot and nonce.
    prefix: String,
    clock_id: String,
    session: String,
    call: String,
    calls_left: u32,
    pub made: u64,
    /// Sessions that ended, with the number of their events.
    pub sessions: Vec<(String, u64)>,
    session_events: u64,
}

struct Process {
    id: String,
    pid: u64,
    parent: String,
    executable: usize,
    started_ns: i64,
}

/// What differs from event to event.
struct Act<'a> {
    name: &'static str,
    process: Option<&'a Process>,
    outcome: Option<(Status, Option<i64>)>,
    payload: Payload<'a>,
    /// Belongs to the session, and to its tool call.
    within: (bool, bool),
}

impl Host {
    /// `age_ns_max` as in [`Recorder::new`].
    pub fn new(
        identity: Identity,
        seed: u64,
        from: Timestamp,
        per_second: u32,
        age_ns_max: Option<i64>,
    ) -> Self {
        let mut host = Host {
            prefix: format!("{:016x}", seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            clock_id: format!("boot:{}", identity.boot_id),
            recorder: Recorder::new(identity, age_ns_max),
            random: StdRng::seed_from_u64(seed),
            now_ns: from.as_nanos(),
            step_ns: 1_000_000_000 / i64::from(per_second),
            heartbeat_at_ns: 0,
            next_pid: 1000,
            session: String::new(),
            call: String::new(),
            calls_left: 0,
            made: 0,
            sessions: Vec::new(),
            session_events: 0,
        };
        host.configured();
        host
    }

    /// Makes at least so many more events; sealed batches come with the last.
    pub fn run(&mut self, events: u64) -> Vec<Batch> {
        let until = self.made + events;
        while self.made < until {
            if self.calls_left == 0 {
                self.begin_session();
            }
            self.tool_call();
            self.calls_left -= 1;
            if self.calls_left == 0 {
                self.end_session();
            }
        }
        self.recorder.take()
    }

    /// Seals what is left.
    pub fn finish(&mut self) -> Vec<Batch> {
        self.recorder.seal_all();
        self.recorder.take()
    }

    fn begin_session(&mut self) {
        self.session = self.uuid().to_string();
        self.calls_left = self.random.random_range(4..12);
        self.session_events = 0;
        let mut payload = Payload::new();
        payload.set("client", "iteron").set("client_version", "0.1.0").set("backend", "anthropic");
        self.say("session.started", Status::Started, payload, false);
    }

    fn end_session(&mut self) {
        let mut payload = Payload::new();
        payload.set("client", "iteron").set("client_version", "0.1.0").set("backend", "anthropic");
        payload.set("reason", "completed");
        self.say("session.ended", Status::Success, payload, false);
        self.sessions.push((std::mem::take(&mut self.session), self.session_events));
    }

    fn tool_call(&mut self) {
        self.model();
        self.call = self.uuid().to_string();
        let input_bytes = self.random.random_range(20_u64..400);
        let mut payload = Payload::new();
        payload.set("tool_name", "shell").set("tool_class", "shell").set("input_bytes", input_bytes);
        payload.set("decision", "allowed").set("join", "registered");
        self.say("agent.tool.invoked", Status::Started, payload, true);
        let began_ns = self.now_ns;
        self.processes();
        let mut payload = Payload::new();
        payload.set("tool_name", "shell").set("tool_class", "shell").set("input_bytes", input_bytes);
        payload.set("output_bytes", self.random.random_range(0_u64..20_000));
        payload.set("duration_ms", (self.now_ns - began_ns) / 1_000_000).set("exit_code", 0_i64);
        payload.set("join", "registered");
        self.say("agent.tool.completed", Status::Success, payload, true);
    }

    fn model(&mut self) {
        let mut payload = Payload::new();
        payload.set("provider", "anthropic").set("model", "claude-sonnet-4-5").set("attempt", 1_i64);
        self.say("agent.model.requested", Status::Started, payload.clone(), false);
        payload.set("input_tokens", self.random.random_range(500_u64..60_000));
        payload.set("output_tokens", self.random.random_range(20_u64..2_000));
        payload.set("cache_read_tokens", self.random.random_range(0_u64..50_000));
        payload.set("cache_write_tokens", 0_u64).set("duration_ms", self.random.random_range(300_u64..9_000));
        self.say("agent.model.completed", Status::Success, payload, false);
    }

    /// A shell and what it runs; at most a few live at once.
    fn processes(&mut self) {
        let shell = self.process(String::from("root"), 0);
        self.exec(&shell);
        let mut alive: VecDeque<Process> = VecDeque::new();
        for _ in 0..self.random.random_range(6..36) {
            let parent = alive.back().map_or(&shell.id, |p| &p.id).clone();
            let executable = self.random.random_range(0..EXECUTABLES.len());
            let process = self.process(parent, executable);
            match self.random.random_range(0..20) {
                0 => self.forked(&process),
                1 => self.exec_failed(&process),
                2 | 3 => {
                    self.exec(&process);
                    self.flow(&process);
                }
                _ => self.exec(&process),
            }
            alive.push_back(process);
            if alive.len() > 3 {
                alive.pop_front().iter().for_each(|ended| self.exited(ended));
            }
        }
        alive.drain(..).rev().for_each(|ended| self.exited(&ended));
        self.exited(&shell);
    }

    fn process(&mut self, parent: String, executable: usize) -> Process {
        self.next_pid += self.random.random_range(1..4);
        let (pid, started_ns) = (self.next_pid % 4_194_304, self.now_ns);
        let id = format!("{}-{pid}-{}", self.prefix, started_ns / 10_000_000 % 100_000_000);
        Process { id, pid, parent, executable, started_ns }
    }

    fn exec(&mut self, process: &Process) {
        let mut payload = executable(process);
        payload.set("executable_class", "file");
        payload.set("executable_inode", 247_003 + process.executable as u64);
        payload.set("executable_device", 266_338_304_u64);
        payload.set("argc", self.random.random_range(1_u64..14));
        payload.set("argv_bytes", self.random.random_range(4_u64..700));
        parent(&mut payload, process);
        payload.set("session_leader", false).set("join", "inherited");
        self.observe("process.exec", process, (Status::Success, None), payload);
    }

    fn forked(&mut self, process: &Process) {
        let mut payload = executable(process);
        parent(&mut payload, process);
        payload.set("ns_pid", process.pid).set("session_leader", false).set("join", "inherited");
        self.observe("process.started", process, (Status::Started, None), payload);
    }

    fn exec_failed(&mut self, process: &Process) {
        let mut payload = executable(process);
        payload.set("path_class", "absolute").set("errno", 2_i64).set("error", "ENOENT");
        parent(&mut payload, process);
        payload.set("join", "inherited");
        self.observe("process.exec_failed", process, (Status::Failure, None), payload);
    }

    fn exited(&mut self, process: &Process) {
        let mut payload = executable(process);
        payload.set("duration_ms", (self.now_ns - process.started_ns) / 1_000_000);
        payload.set("cpu_user_ms", self.random.random_range(0_u64..40));
        payload.set("cpu_system_ms", self.random.random_range(0_u64..20));
        payload.set("max_rss_bytes", self.random.random_range(400_u64..30_000) * 4096);
        parent(&mut payload, process);
        payload.set("join", "inherited");
        let failed = self.random.random_range(0..10) == 0;
        let status = if failed { Status::Failure } else { Status::Success };
        self.observe("process.exited", process, (status, Some(i64::from(failed))), payload);
    }

    fn flow(&mut self, process: &Process) {
        let peer = format!("10.{}.{}.7", self.random.random_range(0..8), self.random.random_range(0..250));
        let mut payload = Payload::new();
        payload.set("family", "ipv4").set("protocol", "tcp").set("local_address", "10.0.0.5");
        payload.set("local_port", self.random.random_range(32_768_u64..61_000));
        payload.set("peer_address", peer).set("peer_port", 443_u64).set("direction", "outbound");
        let mut closed = payload.clone();
        let first_seen = Timestamp::from_nanos(self.now_ns).to_string();
        payload.set("payload_captured", false).set("join", "inherited").set("owner_basis", "socket");
        self.observe("network.flow.started", process, (Status::Started, None), payload);
        closed.set("bytes_sent", self.random.random_range(200_u64..9_000));
        closed.set("bytes_received", self.random.random_range(200_u64..900_000));
        closed.set("packets_sent", self.random.random_range(5_u64..90));
        closed.set("packets_received", self.random.random_range(5_u64..700));
        closed.set("tcp_result", "completed").set("first_seen", first_seen);
        closed.set("last_seen", Timestamp::from_nanos(self.now_ns).to_string());
        closed.set("payload_captured", false).set("join", "inherited").set("owner_basis", "socket");
        self.observe("network.flow.closed", process, (Status::Success, None), closed);
    }

    fn observe(
        &mut self,
        name: &'static str,
        process: &Process,
        outcome: (Status, Option<i64>),
        payload: Payload<'_>,
    ) {
        self.record(Act {
            name,
            process: Some(process),
            outcome: Some(outcome),
            payload,
            within: (true, true),
        });
    }

    /// Declared by the agent.
    fn say(&mut self, name: &'static str, status: Status, payload: Payload<'_>, in_call: bool) {
        let outcome = Some((status, None));
        self.record(Act { name, process: None, outcome, payload, within: (true, in_call) });
    }

    /// The collector's first words.
    fn configured(&mut self) {
        let mut payload = Payload::new();
        payload.set("version", "0.1.0").set("spool_state", "fresh");
        self.telemetry("telemetry.started", payload);
        let classes = ["session", "tool", "process", "network", "resource"].map(|class| {
            let mut entry = Payload::new();
            entry.set("class", class).set("source", "ebpf").set("state", "supported");
            Value::Object(entry)
        });
        let mut payload = Payload::new();
        payload.set("policy_digest", "0".repeat(64)).set("profile", "M0");
        payload.set("classes", Value::List(classes.to_vec()));
        payload.set("kernel_release", "6.1.0").set("runtime", "host").set("interval_ms", 10_000_u64);
        self.telemetry("telemetry.config", payload);
    }

    fn heartbeat(&mut self) {
        let streams = ["critical", "standard"].map(|class| {
            let class = activity_schema::Class::from_wire(class).expect("a class");
            let (text, next) = self.recorder.place(class);
            let mut entry = Payload::new();
            entry.set("stream", text.to_owned()).set("class", class.as_str());
            entry
                .set("last_sequence", next - 1)
                .set("acked_sequence", next - 1)
                .set("batches_pending", 0_u64);
            Value::Object(entry)
        });
        let mut payload = Payload::new();
        payload.set("streams", Value::List(streams.to_vec())).set("spool_bytes", 138_670_u64);
        payload.set("spool_oldest_ms", 0_i64).set("drops_total", 0_u64);
        payload.set("cpu_ms", 200_u64).set("rss_bytes", 35_299_328_u64);
        payload.set("clock_offset_ns", 0_i64).set("clock_error_ns", 16_000_000_i64);
        payload.set("clock_synchronised", true);
        self.telemetry("telemetry.heartbeat", payload);
    }

    fn telemetry(&mut self, name: &'static str, payload: Payload<'_>) {
        self.record(Act { name, process: None, outcome: None, payload, within: (false, false) });
    }

    fn record(&mut self, act: Act<'_>) {
        self.now_ns += self.random.random_range(0..self.step_ns * 2);
        if self.now_ns >= self.heartbeat_at_ns && act.within.0 {
            self.heartbeat_at_ns = self.now_ns + HEARTBEAT_NS;
            self.heartbeat();
        }
        let row = catalog::row(act.name).expect("the catalogue has what the collector emits");
        let id = self.uuid();
        let observed = act.process.is_some() || !act.within.0;
        let occurred_at = Timestamp::from_nanos(self.now_ns);
        let (stream, sequence) = self.recorder.place(row.class);
        let identity = &self.recorder.identity;
        let process_id = act.process.map(|p| p.id.as_str().into());
        let actor = |p: &Process| Entity {
            kind: "process".into(),
            id: p.id.clone().into(),
            uid: Some(1000),
            gid: Some(1000),
            pid: Some(p.pid),
        };
        let event = Event {
            schema_version: SchemaVersion::V1,
            event_id: id,
            event_name: act.name.into(),
            plane: row.plane,
            occurred_at,
            observed_at: Timestamp::from_nanos(self.now_ns + 4_000_000),
            source: Source {
                collector: stream.into(),
                layer: if observed { Layer::Host } else { Layer::Provider },
                runtime: Runtime::Docker,
                trust: if observed { Trust::Observed } else { Trust::SelfReported },
                clock_id: Some(self.clock_id.as_str().into()),
                clock_error_ms: Number::new(16.0),
            },
            correlation: Correlation {
                tenant_id: identity.tenant.as_str().into(),
                host_id: identity.host.as_str().into(),
                instance_id: identity.instance.as_str().into(),
                agent_id: "iteron".into(),
                session_id: act.within.0.then(|| self.session.as_str().into()),
                tool_call_id: act.within.1.then(|| self.call.as_str().into()),
                process_id,
                ..Correlation::default()
            },
            actor: act.process.map(actor),
            target: None,
            outcome: act.outcome.map(|(status, exit_code)| Outcome { status, exit_code, reason: None }),
            sensitivity: Sensitivity::Metadata,
            retention_class: row.retention,
            payload: act.payload,
            integrity: Integrity {
                collector_sequence: sequence,
                source_hash: None,
                source_previous_hash: None,
                timeline_hash: None,
                timeline_previous_hash: None,
                signature: None,
                key_id: None,
            },
        };
        let mut line = Vec::with_capacity(1200);
        event.write_line(&mut line);
        self.recorder.append(row.class, occurred_at.as_nanos(), |out| out.extend_from_slice(&line));
        self.made += 1;
        self.session_events += u64::from(act.within.0);
    }

    fn uuid(&mut self) -> Uuid {
        let millis = u64::try_from(self.now_ns / 1_000_000).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &self.random.random()).into_uuid()
    }
}

fn executable<'a>(process: &Process) -> Payload<'a> {
    let mut payload = Payload::new();
    payload.set("executable", EXECUTABLES[process.executable]);
    payload
}

fn parent(payload: &mut Payload<'_>, process: &Process) {
    payload.set("parent_process_id", process.parent.clone());
}
