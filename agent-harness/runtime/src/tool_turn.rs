//! One tool call that runs: intent, scope, process, end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iteron_context::ToolResult;
use iteron_kernel::run::{Event as KernelEvent, StopCause};
use iteron_lifecycle::{Event, EventOutcome, ScopeHandle, ScopeKind, ToolPayload};
use iteron_protocol::{Join, OutputEvent, Termination, ToolCallId, ToolStatus};
use iteron_record::Entry;
use iteron_tools::{Request, ScopeGate, StopLevel};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::call::{Done, DoneKind, PendingCall};
use crate::evidence::{Evidence, millis};
use crate::run::{RunTask, lock};

/// Until when a scope may be answered and `agent.tool.invoked` be taken, from the moment that the
/// process waits. Less than its own patience ([`iteron_tools::GATE_WAIT`]), so that what the event
/// says about the join is true when it is sent.
const CLAIM_WAIT: Duration = Duration::from_millis(15);
const INVOKED_WAIT: Duration = Duration::from_millis(3);

impl RunTask {
    pub(crate) async fn tool_turn(&mut self, id: ToolCallId) {
        let Some(call) = self.take_call(id) else {
            debug_assert!(false, "the kernel invoked a call that it was not told of");
            return self.feed(KernelEvent::ToolEnded { id });
        };
        self.agent.evidence.record(Entry::ToolIntended {
            tool_call_id: id,
            provider_call_id: call.provider_id.clone(),
            tool_name: call.tool_name.clone(),
            input: call.input.clone(),
        });
        if self.agent.evidence.is_broken() {
            self.stop(StopCause::RecordBroken);
            let outcome = EventOutcome::Failure { exit_code: None, reason: "record_broken" };
            self.agent.evidence.tell(&Event::ToolCancelled(id, payload(&call), outcome));
            return self.feed(KernelEvent::ToolEnded { id });
        }
        let result = self.await_call(call).await;
        lock(&self.open).results.extend(result);
        self.feed(KernelEvent::ToolEnded { id });
    }

    /// Has the call carried out by a task of its own, which sees its processes to their end and
    /// records it even if this run is abandoned.
    async fn await_call(&mut self, call: PendingCall) -> Option<ToolResult> {
        let (level, levels) = watch::channel(StopLevel::Run);
        let carried = Arc::clone(&self.agent).carry_out(call, levels, self.stop.cancel.clone());
        let mut carrying = self.agent.calls.spawn(carried);
        let stop = self.stop.clone();
        let done = tokio::select! {
            biased;
            result = &mut carrying => result,
            () = stop.cancel.cancelled() => {
                self.is_stopped();
                level.send_replace(StopLevel::Graceful);
                tokio::select! {
                    biased;
                    result = &mut carrying => result,
                    () = stop.force.cancelled() => {
                        level.send_replace(StopLevel::Immediate);
                        carrying.await
                    }
                }
            }
        };
        done.inspect_err(|error| tracing::error!(%error, "a tool call failed inside the harness")).ok()
    }
}

impl Agent {
    async fn carry_out(
        self: Arc<Self>,
        call: PendingCall,
        levels: watch::Receiver<StopLevel>,
        cancel: CancellationToken,
    ) -> ToolResult {
        let Ok(request) = &call.request else { unreachable!("the kernel closes calls with an objection") };
        let mut gate =
            Gate { evidence: &self.evidence, call: &call, scope: None, announced: false, unshown: None };
        let done = self.execute(request, &mut gate, levels, &cancel).await;
        gate.leave(&cancel).await;
        self.conclude(&call, done, &cancel).await
    }

    async fn execute(
        &self,
        request: &Request,
        gate: &mut Gate<'_>,
        levels: watch::Receiver<StopLevel>,
        cancel: &CancellationToken,
    ) -> Done {
        let begun = Instant::now();
        let variables = [
            ("ITERON_SESSION_ID", self.config.session_id.to_string()),
            ("ITERON_TOOL_CALL_ID", gate.call.id.to_string()),
        ];
        match request {
            Request::Command(command) if command.background => {
                let started = self.jobs.start(&self.tools.shell, command, &variables, gate).await;
                let join = started.as_ref().ok().map(|(_, join)| *join);
                Done::job(Some(started.map(|(job, _)| format!("job {job} runs"))), join, begun.elapsed())
            }
            Request::Command(command) => {
                Done::command(self.tools.shell.run(command, &variables, gate, levels).await)
            }
            Request::Job(request) => {
                gate.announce(None);
                let answer = tokio::select! {
                    biased;
                    answer = request.carry_out(&self.jobs) => Some(answer),
                    () = cancel.cancelled() => None,
                };
                Done::job(answer, None, begun.elapsed())
            }
            Request::File(request) => {
                gate.announce_and_wait().await;
                let done = self.tools.files.carry_out(request, cancel.cancelled()).await;
                Done::file(done, begun.elapsed())
            }
            Request::Plan(request) => {
                gate.announce(None);
                Done::plan(request.told(), begun.elapsed())
            }
        }
    }

    async fn conclude(&self, call: &PendingCall, done: Done, cancel: &CancellationToken) -> ToolResult {
        let Done { kind, exit_code, reason, output, output_bytes, duration, join, termination, reaped } =
            done;
        let duration_ms = millis(duration);
        let join = join.filter(|_| self.evidence.lifecycle.is_some());
        if termination == Some(Termination::TimedOut) {
            tracing::error!(tool_call_id = %call.id, "processes of a tool call could not be killed");
        }
        let payload = ToolPayload {
            output_bytes: Some(output_bytes),
            duration_ms: Some(duration_ms),
            exit_code,
            join,
            ..payload(call)
        };
        let (status, event) = match kind {
            DoneKind::Completed => {
                let outcome = EventOutcome::Success { exit_code };
                (ToolStatus::Completed, Event::ToolCompleted(call.id, payload, outcome))
            }
            DoneKind::Failed => {
                let outcome = EventOutcome::Failure { exit_code, reason };
                (ToolStatus::Failed, Event::ToolFailed(call.id, payload, outcome))
            }
            DoneKind::Cancelled => {
                let outcome = EventOutcome::Unknown { reason };
                (ToolStatus::Cancelled, Event::ToolCancelled(call.id, payload, outcome))
            }
        };
        let entry = Entry::ToolEnded {
            tool_call_id: call.id,
            provider_call_id: call.provider_id.clone(),
            status,
            exit_code,
            reason: Some(reason.to_owned()),
            join,
            output: output.clone(),
            output_bytes,
            termination,
            reaped,
        };
        self.evidence.record_end(entry).await;
        self.evidence.tell(&event);
        let event = OutputEvent::ToolEnded {
            tool_call_id: call.id,
            tool_name: call.tool_name.clone(),
            status,
            exit_code,
            reason: Some(reason.to_owned()),
            output: output.clone(),
            output_bytes,
            duration_ms,
        };
        self.evidence.show(event, cancel).await;
        call.result(output, status != ToolStatus::Completed)
    }
}

/// Claims the call's root process and announces the call, while the process waits.
struct Gate<'a> {
    evidence: &'a Evidence,
    call: &'a PendingCall,
    scope: Option<ScopeHandle>,
    announced: bool,
    /// What the front end had no room for while the process waited.
    unshown: Option<OutputEvent>,
}

impl ScopeGate for Gate<'_> {
    async fn before_exec(&mut self, pid: u32) -> Join {
        let deadline = Instant::now() + CLAIM_WAIT;
        let Some(lifecycle) = &self.evidence.lifecycle else {
            self.announce(None);
            return Join::Inferred;
        };
        let (id, parent) = (self.call.id, self.evidence.session_scope.get().copied());
        let scope = lifecycle.open_scope(ScopeKind::ToolCall, Some(id), pid, parent, deadline).await;
        self.scope = Some(scope);
        let left = deadline.saturating_duration_since(Instant::now());
        let invoked = self.announcement(Some(scope.join));
        self.evidence.tell_and_wait(&invoked, left.max(INVOKED_WAIT)).await;
        self.announced(Some(scope.join));
        scope.join
    }
}

impl Gate<'_> {
    /// Says what is left to say once the call is over.
    async fn leave(mut self, cancel: &CancellationToken) {
        if !self.announced {
            // No process came to be; the call was made all the same.
            self.announce(None);
        }
        if let Some(event) = self.unshown {
            self.evidence.show(event, cancel).await;
        }
        if let (Some(scope), Some(lifecycle)) = (self.scope, &self.evidence.lifecycle) {
            lifecycle.close_scope(scope);
        }
    }

    /// For what takes effect in this process: the collector has it, or had its time, before that.
    async fn announce_and_wait(&mut self) {
        self.evidence.tell_and_wait(&self.announcement(None), INVOKED_WAIT).await;
        self.announced(None);
    }

    fn announce(&mut self, join: Option<Join>) {
        self.evidence.tell(&self.announcement(join));
        self.announced(join);
    }

    fn announcement(&self, join: Option<Join>) -> Event {
        let payload = ToolPayload { decision: Some("allow"), join, ..payload(self.call) };
        Event::ToolInvoked(self.call.id, payload)
    }

    fn announced(&mut self, join: Option<Join>) {
        self.announced = true;
        self.unshown = self.evidence.try_show(OutputEvent::ToolInvoked {
            tool_call_id: self.call.id,
            tool_name: self.call.tool_name.clone(),
            input: self.call.input.clone(),
            join,
        });
    }
}

fn payload(call: &PendingCall) -> ToolPayload {
    ToolPayload {
        tool_name: call.tool_name.clone(),
        tool_class: call.class(),
        input_bytes: Some(call.input_bytes),
        ..ToolPayload::default()
    }
}
