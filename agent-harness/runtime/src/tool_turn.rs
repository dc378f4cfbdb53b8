//! One tool call that runs: intent, scope, process, end.

use std::time::{Duration, Instant};

use iteron_kernel::run::{Action, Event as KernelEvent, StopCause, Urgency};
use iteron_lifecycle::{Event, EventOutcome, ScopeHandle, ScopeKind, ToolPayload};
use iteron_protocol::{Join, OutputEvent, Termination, ToolCallId, ToolStatus};
use iteron_record::Entry;
use iteron_tools::{ScopeGate, StopLevel, ToolRun};
use tokio::sync::watch;

use crate::call::{PendingCall, Verdict, VerdictKind, shown};
use crate::evidence::{Evidence, millis};
use crate::session::Session;

/// Until when a scope may be answered and `agent.tool.invoked` be taken, from the moment that the
/// process waits. Less than its own patience ([`iteron_tools::GATE_WAIT`]), so that what the event
/// says about the join is true when it is sent.
const CLAIM_WAIT: Duration = Duration::from_millis(15);
const INVOKED_WAIT: Duration = Duration::from_millis(3);

const TOOL_CLASS: &str = "shell";

impl Session<'_> {
    pub(crate) async fn tool_turn(&mut self, id: ToolCallId) {
        let Some(call) = self.take_call(id) else {
            debug_assert!(false, "the kernel invoked a call that it was not told of");
            return self.feed(KernelEvent::ToolEnded { id });
        };
        self.evidence.record(Entry::ToolIntended {
            tool_call_id: id,
            provider_call_id: call.provider_id.clone(),
            tool_name: call.tool_name.clone(),
            input: call.input.clone(),
        });
        if self.evidence.record_broken {
            self.stop(StopCause::RecordBroken);
            let outcome = EventOutcome::Failure { exit_code: None, reason: "record_broken" };
            self.evidence.tell(&Event::ToolCancelled(id, payload(&call), outcome));
            return self.feed(KernelEvent::ToolEnded { id });
        }
        let run = self.supervise(&call).await;
        self.conclude(&call, &run);
        self.feed(KernelEvent::ToolEnded { id });
    }

    /// Runs the call, and passes on what the kernel makes of interrupts meanwhile.
    async fn supervise(&mut self, call: &PendingCall) -> ToolRun {
        let Ok(command) = &call.plan else { unreachable!("the kernel closes calls with an objection") };
        let shell = self.shell.clone();
        let variables = [
            ("ITERON_SESSION_ID", self.config.submission.session_id.to_string()),
            ("ITERON_TOOL_CALL_ID", call.id.to_string()),
        ];
        let (level, levels) = watch::channel(StopLevel::Run);
        let Self { evidence, kernel, todo, interrupts, .. } = self;
        let mut gate = Gate { evidence, call, scope: None, announced: false };
        let run = {
            let mut running = std::pin::pin!(shell.run(command, &variables, &mut gate, levels));
            let mut listening = true;
            loop {
                tokio::select! {
                    run = &mut running => break run,
                    changed = interrupts.changed(), if listening => {
                        listening = changed.is_ok();
                        for action in kernel.reduce(KernelEvent::Stop(StopCause::Operator)) {
                            match action {
                                Action::CancelTool { urgency, .. } => {
                                    level.send_replace(match urgency {
                                        Urgency::Graceful => StopLevel::Graceful,
                                        Urgency::Immediate => StopLevel::Immediate,
                                    });
                                }
                                later => todo.push_back(later),
                            }
                        }
                    }
                }
            }
        };
        if !gate.announced {
            // No process came to be; the call was made all the same.
            gate.announce(None);
        }
        if let (Some(scope), Some(lifecycle)) = (gate.scope, &gate.evidence.lifecycle) {
            lifecycle.close_scope(scope);
        }
        run
    }

    fn conclude(&mut self, call: &PendingCall, run: &ToolRun) {
        let verdict = Verdict::of(run);
        let Verdict { exit_code, reason, .. } = verdict;
        let duration_ms = millis(run.duration);
        let join = run.join.filter(|_| self.evidence.lifecycle.is_some());
        if run.termination == Termination::TimedOut {
            tracing::error!(tool_call_id = %call.id, "processes of a tool call could not be killed");
        }
        let payload = ToolPayload {
            output_bytes: Some(run.output_bytes),
            duration_ms: Some(duration_ms),
            exit_code,
            join,
            ..payload(call)
        };
        let (status, event) = match verdict.kind {
            VerdictKind::Completed => {
                let outcome = EventOutcome::Success { exit_code };
                (ToolStatus::Completed, Event::ToolCompleted(call.id, payload, outcome))
            }
            VerdictKind::Failed => {
                let outcome = EventOutcome::Failure { exit_code, reason };
                (ToolStatus::Failed, Event::ToolFailed(call.id, payload, outcome))
            }
            VerdictKind::Cancelled => {
                let outcome = EventOutcome::Unknown { reason };
                (ToolStatus::Cancelled, Event::ToolCancelled(call.id, payload, outcome))
            }
        };
        let output = shown(run);
        self.evidence.record(Entry::ToolEnded {
            tool_call_id: call.id,
            status,
            exit_code,
            reason: Some(reason.to_owned()),
            join,
            output: output.clone(),
            output_bytes: run.output_bytes,
        });
        self.evidence.tell(&event);
        self.evidence.show(OutputEvent::ToolEnded {
            tool_call_id: call.id,
            tool_name: call.tool_name.clone(),
            status,
            exit_code,
            reason: Some(reason.to_owned()),
            output: output.clone(),
            output_bytes: run.output_bytes,
            duration_ms,
        });
        self.results.push(call.result(output, status != ToolStatus::Completed));
    }
}

/// Claims the call's root process and announces the call, while the process waits.
struct Gate<'a, 'b> {
    evidence: &'a mut Evidence<'b>,
    call: &'a PendingCall,
    scope: Option<ScopeHandle>,
    announced: bool,
}

impl ScopeGate for Gate<'_, '_> {
    async fn before_exec(&mut self, pid: u32) -> Join {
        let deadline = Instant::now() + CLAIM_WAIT;
        let Some(lifecycle) = &self.evidence.lifecycle else {
            self.announce(None);
            return Join::Inferred;
        };
        let (id, parent) = (self.call.id, self.evidence.session_scope);
        let scope = lifecycle.open_scope(ScopeKind::ToolCall, Some(id), pid, parent, deadline).await;
        self.scope = Some(scope);
        let left = deadline.saturating_duration_since(Instant::now());
        let invoked = self.announcement(Some(scope.join));
        self.evidence.tell_and_wait(&invoked, left.max(INVOKED_WAIT)).await;
        self.announced(Some(scope.join));
        scope.join
    }
}

impl Gate<'_, '_> {
    fn announce(&mut self, join: Option<Join>) {
        self.evidence.tell(&self.announcement(join));
        self.announced(join);
    }

    fn announcement(&self, join: Option<Join>) -> Event {
        let payload = ToolPayload { decision: Some("allowed"), join, ..payload(self.call) };
        Event::ToolInvoked(self.call.id, payload)
    }

    fn announced(&mut self, join: Option<Join>) {
        self.announced = true;
        self.evidence.show(OutputEvent::ToolInvoked {
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
        tool_class: Some(TOOL_CLASS),
        input_bytes: Some(call.input_bytes),
        ..ToolPayload::default()
    }
}
