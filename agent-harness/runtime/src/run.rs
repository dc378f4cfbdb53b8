//! One run, as its own task: asks the model, runs what it calls, and asks again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iteron_context::ToolResult;
use iteron_kernel::run::{Action, Closing, Event as KernelEvent, Run, StopCause};
use iteron_protocol::{ClientSubmissionId, Outcome, ProviderErrorClass, ToolCallId};
use iteron_record::Entry;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::call::PendingCall;
use crate::model_turn::Request;

/// How a run is told to stop. Every wait of the run ends at `cancel`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    pub cancel: CancellationToken,
    /// Kill at once what has been given time to end.
    pub force: CancellationToken,
}

/// What of a run is open, in reach of whoever has to close it if the run itself cannot.
#[derive(Default)]
pub(crate) struct Open {
    pub request: Option<Request>,
    /// Calls that have not begun.
    pub calls: Vec<PendingCall>,
    /// Results that the model has not been given yet.
    pub results: Vec<ToolResult>,
    /// What came of an answer that was not finished.
    pub partial: String,
    /// How the run ended, once that is recorded.
    ended: Option<Outcome>,
}

pub(crate) type SharedOpen = Arc<Mutex<Open>>;

pub(crate) fn lock(open: &SharedOpen) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct RunTask {
    pub agent: Arc<Agent>,
    pub stop: Stop,
    pub open: SharedOpen,
    pub kernel: Run,
    todo: VecDeque<Action>,
    /// It was told of the cancellation.
    kernel_knows: bool,
}

impl RunTask {
    pub(crate) fn new(agent: Arc<Agent>, stop: Stop, open: SharedOpen) -> Self {
        let kernel = Run::new(agent.config.turns_max);
        Self { agent, stop, open, kernel, todo: VecDeque::new(), kernel_knows: false }
    }

    /// Runs to the end. The prompt is in the conversation already. Cancel it by its [`Stop`];
    /// aborted, it leaves in [`Open`] what must be closed.
    pub(crate) async fn drive(mut self) -> Outcome {
        self.feed(KernelEvent::Submitted);
        tokio::select! {
            biased;
            () = self.stop.cancel.cancelled() => {}
            // A call of an abandoned run may still be ending: one effect at a time.
            () = self.agent.calls.wait() => {}
        }
        let mut outcome = Outcome::HarnessFailed;
        while let Some(action) = self.todo.pop_front() {
            match action {
                Action::RequestModel { .. } if self.is_stopped() => {
                    self.feed(KernelEvent::ModelFailed { class: ProviderErrorClass::Cancelled });
                }
                Action::InvokeTool { id } if self.is_stopped() => {
                    self.close_call(id, Closing::Cancelled).await;
                    self.feed(KernelEvent::ToolEnded { id });
                }
                Action::RequestModel { turn } => self.model_turn(turn).await,
                Action::InvokeTool { id } => self.tool_turn(id).await,
                Action::CloseTool { id, closing } => self.close_call(id, closing).await,
                // Never queued: see `stop`.
                Action::CancelModel | Action::CancelTool { .. } => {}
                Action::End(end) => outcome = end,
            }
        }
        outcome
    }

    /// Lets the kernel decide on `event`, and queues what it wants done.
    pub(crate) fn feed(&mut self, event: KernelEvent) {
        let actions = self.kernel.reduce(event);
        self.todo.extend(actions);
    }

    /// Whether the run was cancelled. Tells the kernel, the first time.
    pub(crate) fn is_stopped(&mut self) -> bool {
        let stopped = self.stop.cancel.is_cancelled();
        if stopped && !std::mem::replace(&mut self.kernel_knows, true) {
            self.stop(StopCause::Operator);
        }
        stopped
    }

    /// Tells the kernel to stop, and queues what it wants done but what concerns what runs now: that
    /// is the caller's.
    pub(crate) fn stop(&mut self, cause: StopCause) {
        let actions = self.kernel.reduce(KernelEvent::Stop(cause)).into_iter();
        let now = |action: &Action| matches!(action, Action::CancelModel | Action::CancelTool { .. });
        self.todo.extend(actions.filter(|action| !now(action)));
    }

    async fn close_call(&self, id: ToolCallId, closing: Closing) {
        if let Some(call) = self.take_call(id) {
            let result = self.agent.close_call(&call, closing, &self.stop.cancel).await;
            lock(&self.open).results.push(result);
        }
    }

    pub(crate) fn take_call(&self, id: ToolCallId) -> Option<PendingCall> {
        let calls = &mut lock(&self.open).calls;
        let at = calls.iter().position(|call| call.id == id)?;
        Some(calls.swap_remove(at))
    }
}

impl Agent {
    /// Closes what a run left open, in evidence and in the conversation, and the run itself; gives
    /// how it ended. `abandoned`: it did not come to an end by itself. May be aborted at any wait and
    /// called again: what is taken out of [`Open`] is in the record before the next wait.
    pub(crate) async fn settle(
        &self,
        open: &SharedOpen,
        submission_id: ClientSubmissionId,
        outcome: Outcome,
        abandoned: bool,
    ) -> Outcome {
        let over = CancellationToken::new();
        over.cancel();
        self.close_request(open, ProviderErrorClass::Cancelled, "interrupted", &over).await;
        while let Some(call) = next_call(open) {
            let result = self.close_call(&call, Closing::Cancelled, &over).await;
            lock(open).results.push(result);
        }
        let (results, partial) = {
            let mut open = lock(open);
            (std::mem::take(&mut open.results), std::mem::take(&mut open.partial))
        };
        let closed = self.conversation().interrupt(results, &partial);
        if let Err(error) = closed {
            debug_assert!(false, "{error}");
            tracing::error!(%error, "the conversation is broken");
        }
        let earlier = lock(open).ended;
        if let Some(outcome) = earlier {
            return outcome;
        }
        lock(open).ended = Some(outcome);
        self.evidence.record_end(Entry::RunEnded { submission_id, outcome, abandoned }).await;
        outcome
    }
}

fn next_call(open: &SharedOpen) -> Option<PendingCall> {
    let calls = &mut lock(open).calls;
    if calls.is_empty() { None } else { Some(calls.remove(0)) }
}
