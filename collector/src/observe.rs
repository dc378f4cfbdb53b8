//! From kernel records to events.

mod names;
pub mod procfs;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use activity_schema::coverage::LossReason;
use activity_schema::event::{Entity, Outcome, Payload, Status, Trust};
use activity_schema::{Class, Timestamp};

use crate::identity::ProcessIds;
use crate::kernel::{
    self, Common, ExecFailedRecord, ExecRecord, ExitRecord, FlowDirection, FlowPhase, FlowRecord, ForkRecord,
    KernelLoss, Record, RecordKind, RingId, RingPosition, TcpResult, UdpFlow, missing,
};
use crate::process::{Process, ProcessTable};
use crate::recorder::{Draft, Ids, Recorder};
use crate::sandbox::{Instance, Sandboxes, UNKNOWN};
use crate::scope::{Scope, ScopeTable, scope_text};
use crate::spool::{Disk, Loss};

struct Unplaced {
    count: u64,
    /// Boot clock.
    first_ns: u64,
    last_ns: u64,
}

/// State between records.
pub struct Observer {
    pub ids: ProcessIds,
    pub processes: ProcessTable,
    pub sandboxes: Sandboxes,
    pub scopes: ScopeTable,
    /// Ring positions that a class's stream held when this run began: older records are already told.
    held: BTreeMap<(Class, u8), u64>,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Records whose cgroup was gone, by the sandbox that may miss them; `None`: any.
    unplaced: BTreeMap<Option<String>, Unplaced>,
    no_instance: Arc<Instance>,
}

/// A parent's id, and its tgid and start.
type Parent = (Option<Arc<str>>, (u32, u64));

/// Owned strings that a draft borrows.
struct Context {
    instance: Arc<Instance>,
    scope: Option<Scope>,
    process_id: Option<Arc<str>>,
    join: &'static str,
}

impl Context {
    fn ids(&self) -> Ids<'_> {
        let scope = self.scope.as_ref();
        Ids {
            agent_id: scope.map(|s| s.agent_id.as_str()),
            session_id: scope.map(|s| s.session_id.as_str()),
            tool_call_id: scope.and_then(|s| s.tool_call_id.as_deref()),
            command_id: scope.and_then(|s| s.command_id.as_deref()),
            process_id: self.process_id.as_deref(),
            ..Ids::default()
        }
    }
}

impl Observer {
    pub fn new(
        ids: ProcessIds,
        sandboxes: Sandboxes,
        scopes: ScopeTable,
        held: BTreeMap<(Class, u8), u64>,
    ) -> Self {
        let no_instance = sandboxes.own().clone();
        Observer {
            ids,
            processes: ProcessTable::default(),
            sandboxes,
            scopes,
            held,
            undecodable: 0,
            unplaced: BTreeMap::new(),
            no_instance,
        }
    }

    /// Turns one record into state and, unless its events are in the spool from before, into events.
    pub fn record<D: Disk>(
        &mut self,
        recorder: &mut Recorder<D>,
        ring: RingId,
        position: RingPosition,
        record: Result<Record<'_>, kernel::DecodeError>,
    ) {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                self.undecodable += 1;
                tracing::error!(%error, "a kernel record cannot be decoded");
                return;
            }
        };
        if record.common().canary {
            return;
        }
        let class = match &record {
            Record::Flow(_) => Class::Standard,
            _ => Class::Critical,
        };
        let ring_number = u8::try_from(RingId::ALL.iter().position(|r| *r == ring).unwrap_or(0)).unwrap_or(0);
        let told_before = self.held.get(&(class, ring_number)).is_some_and(|held| position.0 <= *held);
        let tell = !told_before;
        match record {
            Record::Fork(r) => self.fork(recorder, &r, tell),
            Record::Exec(r) => self.exec(recorder, &r, tell),
            Record::ExecFailed(r) => self.exec_failed(recorder, &r, tell),
            Record::Exit(r) => self.exit(recorder, &r, tell),
            Record::Flow(r) => self.flow(recorder, &r, tell),
            Record::Listen(r) => self.listen(recorder, &r, tell),
            Record::Cgroup(r) => self.sandboxes.learn(&r),
        }
    }

    fn context(&mut self, common: &Common) -> Context {
        let known = common.tgid != 0 && !common.lacks(missing::OWNER);
        let instance = if common.lacks(missing::CGROUP) {
            self.processes.get(common.tgid).map_or_else(|| self.no_instance.clone(), |p| p.instance.clone())
        } else {
            match self.sandboxes.resolve(common.cgroup_id, common.tgid) {
                Some(instance) => instance,
                None => self.unplaced(common),
            }
        };
        let process_id = known.then(|| match self.processes.get_mut(common.tgid, common.start_boottime_ns) {
            Some(p) => p.id.clone(),
            None => self.ids.of(common.tgid, common.start_boottime_ns).into(),
        });
        let scope = self.scopes.get(common.scope).cloned();
        let join = join_of(common.scope, scope.as_ref(), process_id.as_deref());
        Context { instance, scope, process_id, join }
    }

    /// The cgroup of a record was gone before the record was read. It is nobody's then, and missing where the process
    /// was last seen, or anywhere.
    fn unplaced(&mut self, common: &Common) -> Arc<Instance> {
        let last = self.processes.get_mut(common.tgid, common.start_boottime_ns).map(|p| p.instance.clone());
        let last = last.filter(|i| i.instance_id != UNKNOWN).map(|i| i.instance_id.clone());
        let at = common.ktime_boot_ns;
        let span = self.unplaced.entry(last).or_insert(Unplaced { count: 0, first_ns: at, last_ns: at });
        span.count += 1;
        span.first_ns = span.first_ns.min(at);
        span.last_ns = span.last_ns.max(at);
        self.sandboxes.unknown().clone()
    }

    /// Tells what has been unplaced since the last call.
    pub fn tell_unplaced<D: Disk>(&mut self, recorder: &mut Recorder<D>) {
        const PLACES: &[&[&str]] =
            &[&["process.started", "process.exec", "process.exited"], &["network.flow.closed"]];
        for (instance, Unplaced { count, first_ns, last_ns }) in std::mem::take(&mut self.unplaced) {
            let clock = recorder.clock();
            let between = (clock.wall_of(first_ns), clock.wall_of(last_ns));
            for names in PLACES {
                let loss = Loss::of(LossReason::MapEvicted, "cgroup", names, between).counted(count, false);
                recorder.lose(loss.of_instance(instance.clone()));
            }
        }
    }

    fn fork<D: Disk>(&mut self, recorder: &mut Recorder<D>, r: &ForkRecord, tell: bool) {
        let parent = if r.common.lacks(missing::PARENT) || r.parent_tgid == 0 {
            None
        } else {
            self.effect_of(recorder, r.parent_tgid, r.parent_start_boottime_ns, r.common.ktime_boot_ns, tell);
            let known =
                self.processes.get_mut(r.parent_tgid, r.parent_start_boottime_ns).map(|p| p.id.clone());
            Some(known.unwrap_or_else(|| self.ids.of(r.parent_tgid, r.parent_start_boottime_ns).into()))
        };
        let executable =
            self.processes.get(r.parent_tgid).map_or_else(|| "".into(), |p| p.executable.clone());
        let context = self.context(&r.common);
        let id = context.process_id.unwrap_or_else(|| self.no_id());
        // A fork that an earlier run has read is told only if that run had not come to it.
        let known = || self.processes.recall(r.common.tgid, r.common.start_boottime_ns);
        let told = !tell && known().is_none_or(|k| k.told);
        self.processes.insert(Process {
            id,
            tgid: r.common.tgid,
            start_ns: r.common.start_boottime_ns,
            parent,
            parent_key: (r.parent_tgid, r.parent_start_boottime_ns),
            executable,
            instance: context.instance,
            scope: r.common.scope,
            uid: r.common.uid,
            gid: r.common.gid,
            ns_pid: r.ns_pid,
            session_leader: r.session == r.common.tgid,
            told,
            forked_at_ns: r.common.ktime_boot_ns,
        });
    }

    /// Who forked a process that an earlier run of the collector saw forked.
    fn parent_from_memory(&self, common: &Common) -> Option<Parent> {
        let known = self.processes.recall(common.tgid, common.start_boottime_ns)?;
        let (tgid, start) = known.parent;
        (tgid != 0).then(|| (Some(self.ids.of(tgid, start).into()), known.parent))
    }

    fn no_id(&self) -> Arc<str> {
        self.ids.of(0, 0).into()
    }

    /// A process has a child or an effect: if it lives on without exec, it is told now.
    fn effect_of<D: Disk>(
        &mut self,
        recorder: &mut Recorder<D>,
        tgid: u32,
        start: u64,
        at_ns: u64,
        tell: bool,
    ) {
        let untold = self.processes.get_mut(tgid, start).is_some_and(|p| !p.told);
        if !untold {
            return;
        }
        let Some(process) = self.processes.update(tgid, start, |p| p.told = true).cloned() else { return };
        if tell {
            self.started(recorder, &process, at_ns.min(process.forked_at_ns), false);
        }
    }

    /// Tells forks that have lived for a second without exec.
    pub fn tell_due<D: Disk>(&mut self, recorder: &mut Recorder<D>, now_ns: u64) {
        for process in self.processes.due(now_ns) {
            self.started(recorder, &process, process.forked_at_ns, false);
        }
    }

    /// `process.started` for a process of the table.
    pub fn started<D: Disk>(&self, recorder: &mut Recorder<D>, p: &Process, at_ns: u64, seeded: bool) {
        let scope = self.scopes.get(p.scope).cloned();
        let join = join_of(p.scope, scope.as_ref(), Some(&p.id));
        let context = Context { instance: p.instance.clone(), scope, process_id: Some(p.id.clone()), join };
        let mut payload = Payload::new();
        payload.set("executable", p.executable.as_ref());
        payload.set_some("parent_process_id", p.parent.as_deref());
        if p.ns_pid != 0 {
            payload.set("ns_pid", p.ns_pid);
        }
        payload.set("session_leader", p.session_leader).set("join", join);
        if seeded {
            payload.set("seeded", true);
        }
        let actor = process_entity(&p.id, p.uid, p.gid, p.tgid);
        self.emit(
            recorder,
            "process.started",
            at_ns,
            &context,
            Some(actor),
            Some(Status::Started),
            None,
            payload,
        );
    }

    fn exec<D: Disk>(&mut self, recorder: &mut Recorder<D>, r: &ExecRecord<'_>, tell: bool) {
        let context = self.context(&r.common);
        let id = context.process_id.clone().unwrap_or_else(|| self.no_id());
        let executable: Arc<str> = names::text(r.basename()).into();
        let known = self.processes.update(r.common.tgid, r.common.start_boottime_ns, |process| {
            process.executable = executable.clone();
            process.told = true;
            process.scope = r.common.scope;
            (process.uid, process.gid) = (r.common.uid, r.common.gid);
        });
        let parent = match known.map(|p| p.parent.clone()) {
            Some(parent) => parent,
            None => {
                let (parent, parent_key) = self.parent_from_memory(&r.common).unwrap_or_else(|| {
                    let seen = (r.parent_tgid != 0 && !r.common.lacks(missing::PARENT))
                        .then(|| self.processes.get(r.parent_tgid))
                        .flatten();
                    seen.map_or((None, (0, 0)), |p| (Some(p.id.clone()), (p.tgid, p.start_ns)))
                });
                self.processes.insert(Process {
                    id: id.clone(),
                    tgid: r.common.tgid,
                    start_ns: r.common.start_boottime_ns,
                    parent: parent.clone(),
                    parent_key,
                    executable: executable.clone(),
                    instance: context.instance.clone(),
                    scope: r.common.scope,
                    uid: r.common.uid,
                    gid: r.common.gid,
                    ns_pid: r.ns_pid,
                    session_leader: r.session == r.common.tgid,
                    told: true,
                    forked_at_ns: r.common.ktime_boot_ns,
                });
                parent
            }
        };
        if !tell {
            return;
        }
        let mut payload = Payload::new();
        payload.set("executable", executable.as_ref());
        payload.set("executable_class", r.class.as_str());
        if !r.common.lacks(missing::FILE) {
            payload.set("executable_inode", r.inode);
            payload.set("executable_device", u64::from(r.device_major) << 20 | u64::from(r.device_minor));
        }
        if !r.interpreter.is_empty() && r.flags & kernel::exec_flags::INTERPRETER != 0 {
            payload.set("interpreter", names::text(names::last(r.interpreter)));
        }
        if !r.common.lacks(missing::ARGUMENTS) {
            payload.set("argc", r.argc).set("argv_bytes", r.argv_bytes);
        }
        payload.set_some("parent_process_id", parent.as_deref());
        if r.ns_pid != 0 && r.ns_pid != r.common.tgid {
            payload.set("ns_pid", r.ns_pid);
        }
        payload.set("session_leader", r.session == r.common.tgid);
        if r.credentials_changed() {
            payload.set("credentials_changed", true);
        }
        payload.set("join", context.join);
        let flags = names::exec_flags(r.flags, r.common.missing);
        if !flags.is_empty() {
            payload.set("flags", flags);
        }
        let actor = process_entity(&id, r.common.uid, r.common.gid, r.common.tgid);
        let at = r.common.ktime_boot_ns;
        self.emit(recorder, "process.exec", at, &context, Some(actor), Some(Status::Success), None, payload);
    }

    fn exec_failed<D: Disk>(&mut self, recorder: &mut Recorder<D>, r: &ExecFailedRecord<'_>, tell: bool) {
        let at = r.common.ktime_boot_ns;
        self.effect_of(recorder, r.common.tgid, r.common.start_boottime_ns, at, tell);
        if !tell {
            return;
        }
        let context = self.context(&r.common);
        let parent = self.processes.get(r.common.tgid).and_then(|p| p.parent.clone());
        let mut payload = Payload::new();
        payload.set("executable", names::text(r.basename()));
        payload.set("path_class", r.path_class().as_str());
        payload.set("errno", r.errno).set("error", names::errno(r.errno));
        payload.set_some("parent_process_id", parent.as_deref());
        payload.set("join", context.join);
        let id = context.process_id.clone().unwrap_or_else(|| self.no_id());
        let actor = process_entity(&id, r.common.uid, r.common.gid, r.common.tgid);
        self.emit(
            recorder,
            "process.exec_failed",
            at,
            &context,
            Some(actor),
            Some(Status::Failure),
            None,
            payload,
        );
    }

    fn exit<D: Disk>(&mut self, recorder: &mut Recorder<D>, r: &ExitRecord, tell: bool) {
        let context = self.context(&r.common);
        let process = self.processes.remove(r.common.tgid, r.common.start_boottime_ns);
        let (executable, parent) = match process {
            Some(p) => (p.executable, p.parent),
            None => {
                let known = self.processes.recall(r.common.tgid, r.common.start_boottime_ns);
                let parent = self.parent_from_memory(&r.common).and_then(|(parent, _)| parent);
                (known.map(|k| k.executable).unwrap_or_default().into(), parent)
            }
        };
        if !tell {
            return;
        }
        let mut payload = Payload::new();
        payload.set_some("executable", Some(executable.as_ref()).filter(|e| !e.is_empty()));
        let (exit_code, signal) = ((r.exit_code >> 8) & 0xff, r.exit_code & 0x7f);
        let known_code = !r.common.lacks(missing::EXIT_CODE);
        if known_code && signal != 0 {
            payload.set("exit_signal", names::signal(signal));
            payload.set("core_dumped", r.exit_code & 0x80 != 0);
        }
        let lived = r.common.ktime_boot_ns.saturating_sub(r.common.start_boottime_ns);
        payload.set("duration_ms", lived / 1_000_000);
        if !r.common.lacks(missing::CPU_TIME) {
            payload.set("cpu_user_ms", r.cpu_user_ns / 1_000_000);
            payload.set("cpu_system_ms", r.cpu_system_ns / 1_000_000);
        }
        if !r.common.lacks(missing::RSS) && r.max_rss_bytes > 0 {
            payload.set("max_rss_bytes", r.max_rss_bytes);
        }
        payload.set_some("parent_process_id", parent.as_deref());
        payload.set("join", context.join);
        let flags = names::missing_flags(r.common.missing);
        if !flags.is_empty() {
            payload.set("flags", flags);
        }
        let code = (known_code && signal == 0).then(|| i64::from(exit_code));
        let status = match (known_code, r.exit_code & 0xffff) {
            (false, _) => Status::Unknown,
            (true, 0) => Status::Success,
            _ => Status::Failure,
        };
        let id = context.process_id.clone().unwrap_or_else(|| self.no_id());
        let actor = process_entity(&id, r.common.uid, r.common.gid, r.common.tgid);
        let at = r.common.ktime_boot_ns;
        self.emit(recorder, "process.exited", at, &context, Some(actor), Some(status), code, payload);
    }

    fn flow<D: Disk>(&mut self, recorder: &mut Recorder<D>, r: &FlowRecord, tell: bool) {
        let (common, at) = (&r.common, r.common.ktime_boot_ns);
        if !common.lacks(missing::OWNER) {
            self.effect_of(recorder, common.tgid, common.start_boottime_ns, at, tell);
        }
        if !tell {
            return;
        }
        let context = self.context(common);
        let mut payload = endpoints("tcp", r.direction, r.local, r.peer);
        let (name, status) = match r.phase {
            FlowPhase::Closed => ("network.flow.closed", flow_status(r)),
            FlowPhase::Established => ("network.flow.started", Status::Started),
            // The local port is not chosen yet; a connection that comes to nothing is told at its close.
            FlowPhase::Connecting | FlowPhase::Listening => return,
        };
        if r.phase == FlowPhase::Closed {
            if !common.lacks(missing::BYTES) {
                payload.set("bytes_sent", r.bytes_sent).set("bytes_received", r.bytes_received);
            }
            if !common.lacks(missing::PACKETS) {
                payload.set("packets_sent", r.segments_out).set("packets_received", r.segments_in);
            }
            payload.set("tcp_result", r.result.as_str());
            let wall = |ns| recorder.clock().wall_of(ns).to_string();
            payload.set("first_seen", wall(r.first_seen_ns)).set("last_seen", wall(at));
        }
        payload.set("payload_captured", false).set("join", context.join);
        payload.set("owner_basis", owner_basis(common, r.direction));
        let actor = context.process_id.clone().map(|id| process_entity_owned(&id, common));
        self.emit(recorder, name, at, &context, actor, Some(status), None, payload);
    }

    fn listen<D: Disk>(&mut self, recorder: &mut Recorder<D>, r: &FlowRecord, tell: bool) {
        let at = r.common.ktime_boot_ns;
        self.effect_of(recorder, r.common.tgid, r.common.start_boottime_ns, at, tell);
        if !tell {
            return;
        }
        let context = self.context(&r.common);
        let mut payload = Payload::new();
        payload.set("family", family(r.local)).set("protocol", "tcp");
        payload.set("local_address", r.local.ip().to_string()).set("local_port", i64::from(r.local.port()));
        payload.set("payload_captured", false).set("join", context.join);
        let actor = context.process_id.clone().map(|id| process_entity_owned(&id, &r.common));
        self.emit(recorder, "network.listen", at, &context, actor, Some(Status::Success), None, payload);
    }

    /// A UDP flow from the kernel's map: that it ended, or else that it is there.
    pub fn udp<D: Disk>(&mut self, recorder: &mut Recorder<D>, flow: &UdpFlow, ended: bool) {
        let context = self.context(&flow.common);
        let mut payload = endpoints("udp", flow.direction, flow.local, flow.peer);
        let (name, at, status) = if ended {
            payload.set("bytes_sent", flow.bytes_sent).set("bytes_received", flow.bytes_received);
            payload.set("packets_sent", flow.packets_sent).set("packets_received", flow.packets_received);
            let wall = |ns| recorder.clock().wall_of(ns).to_string();
            payload.set("first_seen", wall(flow.first_seen_ns)).set("last_seen", wall(flow.last_seen_ns));
            ("network.flow.closed", flow.last_seen_ns, Status::Success)
        } else {
            ("network.flow.started", flow.first_seen_ns, Status::Started)
        };
        payload.set("payload_captured", false).set("join", context.join);
        payload.set("owner_basis", owner_basis(&flow.common, FlowDirection::Outbound));
        let actor = context.process_id.clone().map(|id| process_entity_owned(&id, &flow.common));
        self.emit(recorder, name, at, &context, actor, Some(status), None, payload);
    }

    /// Kernel losses, by sandbox.
    pub fn lost<D: Disk>(&mut self, recorder: &mut Recorder<D>, loss: &KernelLoss) {
        // Nothing is missing by itself: what cannot be placed without it is told by `tell_unplaced`.
        if loss.kind == RecordKind::Cgroup {
            return;
        }
        // A cgroup that is no sandbox's is nobody's, which is not the same as not to be placed.
        let known = loss.cgroup_id.and_then(|id| self.sandboxes.resolve(id, 0));
        if recorder.only_own && known.as_ref().is_some_and(|i| i.instance_id != self.no_instance.instance_id)
        {
            return;
        }
        let wall = |ns: u64| recorder.clock().wall_of(ns);
        let (first_time, last_time) = (wall(loss.first_ns), wall(loss.last_ns));
        let reason = match loss.reason {
            kernel::LossReason::MapFull => LossReason::MapEvicted,
            kernel::LossReason::RingFull | kernel::LossReason::Nested => LossReason::RingFull,
        };
        let source = format!("kernel/{}", loss.kind.as_str());
        let mut told = Loss::of(reason, &source, names::events_of(loss.kind), (first_time, last_time))
            .counted(loss.count, loss.exact)
            .of_instance(known.map(|i| i.instance_id.clone()));
        told.key.cgroup = loss.cgroup_id.map(|id| id.to_string());
        recorder.lose(told);
    }

    /// `agent.scope.opened` or `.closed`.
    pub fn scope_event<D: Disk>(
        &self,
        recorder: &mut Recorder<D>,
        name: &'static str,
        scope: &Scope,
        instance: &Instance,
        at: Timestamp,
        join: &'static str,
    ) {
        let mut payload = Payload::new();
        payload.set("scope_id", scope_text(scope.number));
        payload.set_some("parent_scope_id", scope.parent.map(scope_text));
        payload.set("scope_kind", scope.kind.as_str()).set("root_process", scope.root.as_str());
        payload.set("join", join).set("basis", "socket");
        let mut draft = Draft::observed(name, at, instance, payload);
        // The tree is the kernel's word; which session and call it belongs to is the agent's.
        draft.trust = Trust::SelfReported;
        draft.ids = Ids {
            agent_id: Some(&scope.agent_id),
            session_id: Some(&scope.session_id),
            tool_call_id: scope.tool_call_id.as_deref(),
            command_id: scope.command_id.as_deref(),
            process_id: Some(&scope.root),
            ..Ids::default()
        };
        warn_refused(name, recorder.record(draft));
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of an event; each caller names all of them once"
    )]
    fn emit<'a, D: Disk>(
        &self,
        recorder: &mut Recorder<D>,
        name: &'a str,
        at_ns: u64,
        context: &'a Context,
        actor: Option<Entity<'a>>,
        status: Option<Status>,
        exit_code: Option<i64>,
        payload: Payload<'a>,
    ) {
        let mut draft = Draft::observed(name, recorder.clock().wall_of(at_ns), &context.instance, payload);
        draft.ids = context.ids();
        draft.actor = actor;
        draft.outcome = status.map(|status| Outcome { status, exit_code, reason: None });
        warn_refused(name, recorder.record(draft));
    }
}

pub(crate) fn warn_refused(name: &str, result: Result<uuid::Uuid, activity_schema::admit::Refusal>) {
    if let Err(refusal) = result {
        tracing::error!(name, %refusal, "an event of our own was refused by the catalogue");
    }
}

fn join_of(number: u64, scope: Option<&Scope>, process_id: Option<&str>) -> &'static str {
    match scope {
        Some(scope) if Some(scope.root.as_str()) == process_id => "registered",
        Some(_) => "inherited",
        None if number != 0 => "inherited",
        None => "none",
    }
}

fn process_entity<'a>(id: &str, uid: u32, gid: u32, pid: u32) -> Entity<'a> {
    Entity {
        kind: "process".into(),
        id: id.to_owned().into(),
        uid: Some(u64::from(uid)),
        gid: Some(u64::from(gid)),
        pid: Some(u64::from(pid)),
    }
}

fn process_entity_owned<'a>(id: &str, common: &Common) -> Entity<'a> {
    process_entity(id, common.uid, common.gid, common.tgid)
}

fn family(address: SocketAddr) -> &'static str {
    if address.is_ipv4() { "ipv4" } else { "ipv6" }
}

fn endpoints(protocol: &str, direction: FlowDirection, local: SocketAddr, peer: SocketAddr) -> Payload<'_> {
    let mut payload = Payload::new();
    payload.set("family", family(peer)).set("protocol", protocol);
    payload.set("local_address", local.ip().to_string()).set("local_port", i64::from(local.port()));
    payload.set("peer_address", peer.ip().to_string()).set("peer_port", i64::from(peer.port()));
    payload.set("direction", names::direction(direction));
    payload
}

fn owner_basis(common: &Common, direction: FlowDirection) -> &'static str {
    if common.lacks(missing::OWNER) {
        "unknown"
    } else if direction == FlowDirection::Inbound {
        "listener"
    } else {
        "socket"
    }
}

fn flow_status(r: &FlowRecord) -> Status {
    match r.result {
        TcpResult::Refused => Status::Failure,
        _ if r.established => Status::Success,
        _ => Status::Failure,
    }
}
