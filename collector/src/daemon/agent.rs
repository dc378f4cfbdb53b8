//! What agents ask on the socket, decided by who they are.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use activity_schema::catalog;
use activity_schema::coverage::LossReason;
use activity_schema::event::{Entity, Layer, Trust};
use activity_schema::submission::{
    AcceptedEvent, EventsAnswer, RejectedEvent, ScopeAnswer, ScopeRequest, SubmittedEvent,
};
use activity_schema::{Timestamp, event::Payload};
use serde::{Deserialize, Serialize};

use super::quota::Quotas;
use crate::agent_socket::{AgentRequest, Answer, Peer};
use crate::identity::TICK_NS;
use crate::kernel::KernelSource;
use crate::observe::Observer;
use crate::recorder::{Draft, Ids, Recorder};
use crate::sandbox::UNKNOWN;
use crate::scope::{
    Caller, Life, OpenRequest, Root, Scope, ScopeRefusal, ScopeTable, parse_scope, scope_text,
};
use crate::spool::{Disk, Loss};

/// Longest chain of parents that is followed from a scope's root to its caller.
const ANCESTORS_MAX: usize = 256;

/// Scopes on disk: one line an opening or closing, read back by the collector that continues this boot.
pub struct ScopeLog {
    file: Option<File>,
}

#[derive(Serialize, Deserialize)]
struct ScopeLine {
    boot_id: String,
    scope: Scope,
}

impl ScopeLog {
    /// Reads the scopes of this boot and starts the file anew with them.
    pub fn open(path: &Path, boot_id: &str) -> io::Result<(Self, Vec<Scope>)> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        let mut scopes: std::collections::BTreeMap<u64, Scope> = std::collections::BTreeMap::new();
        let mut order = Vec::new();
        for line in bytes.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice::<ScopeLine>(l).ok()) {
            if line.boot_id == boot_id && scopes.insert(line.scope.number, line.scope.clone()).is_none() {
                order.push(line.scope.number);
            }
        }
        let kept: Vec<Scope> = order.iter().filter_map(|n| scopes.remove(n)).collect();
        let beside = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        let mut log = ScopeLog { file: Some(file) };
        for scope in &kept {
            log.write(boot_id, scope);
        }
        std::fs::rename(&beside, path)?;
        Ok((log, kept))
    }

    pub fn write(&mut self, boot_id: &str, scope: &Scope) {
        let line = ScopeLine { boot_id: boot_id.to_owned(), scope: scope.clone() };
        let Ok(mut bytes) = serde_json::to_vec(&line) else { return };
        bytes.push(b'\n');
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(&bytes)
        {
            tracing::warn!(%error, "a scope cannot be kept for a restart");
        }
    }
}

/// Everything a request may touch.
pub struct Parts<'a, D: Disk> {
    pub recorder: &'a mut Recorder<D>,
    pub observer: &'a mut Observer,
    pub kernel: Option<&'a KernelSource>,
    pub quota: &'a mut Quotas,
    pub log: &'a mut ScopeLog,
    pub boot_id: &'a str,
    /// Events refused since the last telling, by reason.
    pub rejected: &'a mut u64,
}

pub fn handle<D: Disk>(parts: &mut Parts<'_, D>, request: AgentRequest) {
    match request {
        AgentRequest::Events { peer, body, reply } => {
            let answer = parts.foreign(&peer);
            let _ = reply.send(answer.unwrap_or_else(|| parts.events(&peer, &body)));
        }
        AgentRequest::Scope { peer, request, reply } => {
            let answer = parts.foreign(&peer);
            let _ = reply.send(answer.unwrap_or_else(|| parts.scope_answer(&peer, request)));
        }
        AgentRequest::TurnedAway { peer } => parts.lose(parts.known_instance(&peer), 1),
        AgentRequest::Unseen => parts.lose(None, 1),
    }
}

impl<D: Disk> Parts<'_, D> {
    /// There was no room for what an agent had to say. It is told to come back; whether it does is not known.
    fn lose(&mut self, instance: Option<String>, count: u64) {
        const DECLARED: &[&str] = &["session.started", "agent.tool.invoked"];
        let now = self.recorder.clock().wall;
        let loss = Loss::of(LossReason::RateLimit, "agent_socket", DECLARED, (now, now));
        self.recorder.lose(loss.counted(count, false).of_instance(instance));
    }

    /// Takes from the quota of the agent's sandbox; what there is none left for is told as lost.
    fn has_quota(&mut self, peer: &Peer, count: u64) -> bool {
        let instance = self.observer.sandboxes.owner_of(peer.pid);
        let has = self.quota.take(&instance.instance_id, count, self.recorder.clock().boot_ns);
        if !has {
            self.lose(self.known_instance(peer), count);
        }
        has
    }

    fn known_instance(&self, peer: &Peer) -> Option<String> {
        Some(self.observer.sandboxes.owner_of(peer.pid).instance_id.clone()).filter(|id| id != UNKNOWN)
    }

    /// Refuses an agent of an instance that the enrolment does not cover: nothing that it says would be recorded.
    fn foreign<T>(&mut self, peer: &Peer) -> Option<Answer<T>> {
        let own = &self.observer.sandboxes.own().instance_id;
        if !self.recorder.only_own || self.observer.sandboxes.owner_of(peer.pid).instance_id == *own {
            return None;
        }
        *self.rejected += 1;
        Some(Answer::Refused(
            "your process is outside the instance that this collector is enrolled for".to_owned(),
        ))
    }

    fn events(&mut self, peer: &Peer, body: &[u8]) -> Answer<EventsAnswer> {
        let Some(caller) = self.caller(peer) else {
            return Answer::Refused("the caller is gone".to_owned());
        };
        let lines: Vec<&[u8]> = body.split(|b| *b == b'\n').filter(|l| !l.is_empty()).collect();
        if !self.has_quota(peer, lines.len() as u64) {
            return Answer::Later { retry_after_s: 1 };
        }
        let mut answer = EventsAnswer::default();
        for (index, line) in lines.into_iter().enumerate() {
            let result = serde_json::from_slice::<SubmittedEvent<'_>>(line)
                .map_err(|e| e.to_string())
                .and_then(|event| self.event(peer, &caller, event));
            match result {
                Ok(event_id) => answer.accepted.push(AcceptedEvent { event_id }),
                Err(reason) => {
                    *self.rejected += 1;
                    answer.rejected.push(RejectedEvent { index, reason });
                }
            }
        }
        Answer::Ok(answer)
    }

    fn event(
        &mut self,
        peer: &Peer,
        caller: &Caller,
        event: SubmittedEvent<'_>,
    ) -> Result<uuid::Uuid, String> {
        let allowed = catalog::row(&event.event_name).is_some_and(|row| row.socket);
        if !allowed {
            return Err("event_name may not be submitted on this socket".to_owned());
        }
        let c = &event.correlation;
        if let Some(session) = &c.session_id
            && !self.observer.scopes.may_speak_for(session, &caller.process_id)
        {
            return Err("correlation.session_id belongs to another process".to_owned());
        }
        let ids = [
            ("agent_id", &c.agent_id),
            ("session_id", &c.session_id),
            ("mission_id", &c.mission_id),
            ("task_id", &c.task_id),
            ("tool_call_id", &c.tool_call_id),
            ("command_id", &c.command_id),
            ("trace_id", &c.trace_id),
            ("span_id", &c.span_id),
        ];
        let secret = |id: &str| crate::redact::is_secret(id);
        if let Some((key, _)) = ids.iter().find(|(_, id)| id.as_deref().is_some_and(secret)) {
            return Err(format!("correlation.{key} looks like a secret"));
        }
        if let Some((key, _)) =
            event.payload.iter().find(|(_, v)| v.as_str().is_some_and(crate::redact::is_secret))
        {
            return Err(format!("payload.{key} looks like a secret"));
        }
        let instance = self.observer.sandboxes.owner_of(peer.pid);
        let actor = Entity {
            kind: "process".into(),
            id: caller.process_id.clone().into(),
            uid: Some(u64::from(peer.uid)),
            gid: Some(u64::from(peer.gid)),
            pid: Some(u64::from(peer.pid)),
        };
        let draft = Draft {
            name: &event.event_name,
            occurred_at: self.recorder.clock().wall,
            instance: &instance,
            trust: Trust::SelfReported,
            layer: Some(Layer::Provider),
            ids: Ids {
                agent_id: c.agent_id.as_deref(),
                session_id: c.session_id.as_deref(),
                mission_id: c.mission_id.as_deref(),
                task_id: c.task_id.as_deref(),
                tool_call_id: c.tool_call_id.as_deref(),
                command_id: c.command_id.as_deref(),
                process_id: Some(&caller.process_id),
                trace_id: c.trace_id.as_deref(),
                span_id: c.span_id.as_deref(),
            },
            actor: Some(actor),
            target: event.target.clone(),
            outcome: event.outcome.clone(),
            payload: event.payload.clone(),
        };
        self.recorder.record(draft).map_err(|refusal| refusal.to_string())
    }

    fn scope_answer(&mut self, peer: &Peer, request: ScopeRequest) -> Answer<Option<ScopeAnswer>> {
        if !self.has_quota(peer, 1) {
            return Answer::Later { retry_after_s: 1 };
        }
        match self.scope(peer, request) {
            Ok(answer) => Answer::Ok(answer),
            Err(refusal) => {
                *self.rejected += 1;
                Answer::Refused(refusal.to_string())
            }
        }
    }

    fn scope(&mut self, peer: &Peer, request: ScopeRequest) -> Result<Option<ScopeAnswer>, ScopeRefusal> {
        let caller = self.caller(peer).ok_or(ScopeRefusal::Gone)?;
        let at = self.recorder.clock().wall;
        match request {
            ScopeRequest::Close { scope_id } => {
                let number = parse_scope(&scope_id).ok_or(ScopeRefusal::NotOpener)?;
                let scope = self.observer.scopes.close(number, &caller)?;
                self.tell("agent.scope.closed", peer.pid, &scope, at);
                Ok(None)
            }
            ScopeRequest::Open {
                kind,
                session_id,
                agent_id,
                tool_call_id,
                command_id,
                pid,
                parent_scope_id,
            } => {
                let parent = match parent_scope_id {
                    Some(text) => Some(parse_scope(&text).ok_or(ScopeRefusal::Parent)?),
                    None => None,
                };
                let pid = pid_in_our_namespace(peer.pid, pid).ok_or(ScopeRefusal::Gone)?;
                let start_ns = start_of(pid).ok_or(ScopeRefusal::Gone)?;
                let root = Root {
                    process_id: self.observer.ids.of(pid, start_ns),
                    life: Life { pid, start_ns },
                    scope: self.scope_of(pid),
                    is_callers: descends_from(pid, peer.pid),
                };
                let number = self.recorder.random().max(1);
                let request = OpenRequest { kind, session_id, agent_id, tool_call_id, command_id, parent };
                let scope = self.observer.scopes.open(number, &caller, &root, request, &lives)?;
                if let Err(refusal) = self.bind(pid, start_ns, number) {
                    self.observer.scopes.withdraw(number);
                    return Err(refusal);
                }
                self.tell("agent.scope.opened", peer.pid, &scope, at);
                let join = self.join();
                Ok(Some(ScopeAnswer {
                    scope_id: scope_text(number),
                    join: join.to_owned(),
                    process_id: scope.root,
                }))
            }
        }
    }

    fn bind(&mut self, pid: u32, start_ns: u64, number: u64) -> Result<(), ScopeRefusal> {
        match self.kernel {
            Some(kernel) => kernel.bind_scope(pid, number).map_err(|error| {
                tracing::warn!(%error, "a scope cannot be bound");
                ScopeRefusal::Full
            })?,
            None => self.observer.bind_polled(pid, start_ns, number),
        }
        if let Some(process) = self.observer.processes.get_mut(pid, start_ns) {
            process.scope = number;
        }
        Ok(())
    }

    fn tell(&mut self, name: &'static str, pid: u32, scope: &Scope, at: Timestamp) {
        let instance = self.observer.sandboxes.owner_of(pid);
        let join = self.join();
        self.observer.scope_event(self.recorder, name, scope, &instance, at, join);
        self.log.write(self.boot_id, scope);
    }

    /// Polling sees a tree only while it lives; what it says of descendants is inferred.
    fn join(&self) -> &'static str {
        if self.kernel.is_some() { "registered" } else { "inferred" }
    }

    /// `None` when it is gone: what procfs says of its pid may then be another's.
    fn caller(&self, peer: &Peer) -> Option<Caller> {
        let start_ns = start_of(peer.pid)?;
        let caller = Caller {
            process_id: self.observer.ids.of(peer.pid, start_ns),
            life: Life { pid: peer.pid, start_ns },
            instance: self.observer.sandboxes.owner_of(peer.pid).instance_id.clone(),
            scope: self.scope_of(peer.pid),
        };
        peer.is_there().then_some(caller)
    }

    fn scope_of(&self, pid: u32) -> u64 {
        match self.kernel {
            Some(kernel) => kernel.scope_of(pid).unwrap_or(0),
            None => self.observer.processes.get(pid).map_or(0, |p| p.scope),
        }
    }
}

impl ScopeTable {
    /// Whether a process may declare events of a session: anybody while nobody has registered it, then only the
    /// process that did. A tool cannot speak for the agent that runs it.
    fn may_speak_for(&self, session_id: &str, process_id: &str) -> bool {
        let mut openers = self.session_openers(session_id).peekable();
        openers.peek().is_none() || openers.any(|opener| opener == process_id)
    }
}

fn lives(life: Life) -> bool {
    life.pid != 0 && start_of(life.pid) == Some(life.start_ns)
}

/// Start of a process since boot, to the tick.
fn start_of(pid: u32) -> Option<u64> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    Some(stat.starttime.saturating_mul(TICK_NS))
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    u32::try_from(stat.ppid).ok()
}

fn descends_from(pid: u32, ancestor: u32) -> bool {
    std::iter::successors(Some(pid), |pid| parent_of(*pid)).take(ANCESTORS_MAX).any(|p| p == ancestor)
}

/// Translates a pid that the peer knows into ours (pid_namespaces(7)). `NSpid` of `/proc/<pid>/status` has one entry a
/// level: a peer with one is in the namespace of our procfs; below that, the process is looked for among the peer's
/// own descendants, the only ones that it may claim.
fn pid_in_our_namespace(peer: u32, pid: u32) -> Option<u32> {
    let levels = |process: &procfs::process::Process| process.status().ok()?.nspid;
    let own = levels(&procfs::process::Process::new(i32::try_from(peer).ok()?).ok()?)?;
    if own.len() <= 1 {
        return Some(pid);
    }
    let wanted = i32::try_from(pid).ok()?;
    procfs::process::all_processes().ok()?.flatten().find_map(|process| {
        let found = levels(&process)?;
        let candidate = u32::try_from(process.pid()).ok()?;
        let same = found.len() == own.len() && found.last() == Some(&wanted);
        (same && descends_from(candidate, peer)).then_some(candidate)
    })
}

/// What was refused on the socket since the last telling.
pub fn rejected_payload(count: u64) -> Payload<'static> {
    let mut payload = Payload::new();
    payload.set("count", count).set("reason", "admission").set("submitter", "agent_socket");
    payload
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_scope_reaches_256_generations_down() {
        const GENERATIONS: &str =
            "if [ $1 -gt 0 ]; then sh -c \"$ALL\" sh $(($1 - 1)); true; else echo $$; read end; fi";
        let mut eldest = Command::new("sh")
            .args(["-c", GENERATIONS, "sh", "260"])
            .env("ALL", GENERATIONS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(eldest.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let youngest = line.trim().parse().unwrap();
        let line: Vec<u32> = std::iter::successors(Some(youngest), |pid| parent_of(*pid)).take(258).collect();
        // The youngest is the first of them.
        assert!(descends_from(youngest, line[255]) && !descends_from(youngest, line[256]));
        drop(eldest.stdin.take());
        eldest.wait().unwrap();
    }
}
