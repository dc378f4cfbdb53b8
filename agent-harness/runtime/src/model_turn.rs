//! One model request: its attempts, its answer, and what interrupts it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use iteron_context::Question;
use iteron_kernel::run::{Event as KernelEvent, StopCause, StopReason};
use iteron_lifecycle::{Event, ModelPayload};
use iteron_protocol::{OutputEvent, ProviderErrorClass, TurnId};
use iteron_provider::{Answer, Encoded, Progress, ProviderError};
use iteron_record::Entry;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::call::PendingCall;
use crate::evidence::{millis, model_payload};
use crate::run::{RunTask, SharedOpen, lock};

/// Longest part of an unfinished answer that is kept as evidence, in bytes.
const PARTIAL_BYTES_MAX: usize = 1024 * 1024;

/// How a request ended.
enum Asked {
    Answered(Answer),
    Failed(ProviderError),
    Cancelled,
}

/// [`Progress`] that can be kept until somebody has read what came before.
enum Step {
    Attempt { attempt: u32 },
    Text { text: String },
    Failed { attempt: u32, class: ProviderErrorClass, retry_in: Option<Duration> },
}

impl RunTask {
    pub(crate) async fn model_turn(&mut self, turn: u32) {
        let turn_id = TurnId::fresh();
        if let Err(error) = self.push_results() {
            // Both sides of the check are ours, so this is a broken invariant.
            debug_assert!(false, "{error}");
            tracing::error!(%error, "the conversation is broken");
            return self.feed(KernelEvent::ModelFailed { class: ProviderErrorClass::InvalidRequest });
        }
        self.agent.turns.fetch_add(1, Ordering::Relaxed);
        self.agent.evidence.record(Entry::ModelRequested { turn_id, turn });
        if self.agent.evidence.is_broken() {
            self.stop(StopCause::RecordBroken);
            return self.feed(KernelEvent::ModelFailed { class: ProviderErrorClass::Cancelled });
        }
        lock(&self.open).request = Some(Request { turn_id, attempt: Attempt::default() });
        self.agent.evidence.show(OutputEvent::TurnStarted { turn_id, turn }, &self.stop.cancel).await;
        let asked = self.ask(turn_id).await;
        match asked {
            Asked::Answered(answer) => self.answered(answer).await,
            Asked::Failed(error) => self.failed(error.class(), &with_source(&error)).await,
            Asked::Cancelled => {
                self.is_stopped();
                self.failed(ProviderErrorClass::Cancelled, "interrupted").await;
            }
        }
    }

    /// Dropping the question cancels it: no attempt begins afterwards.
    async fn ask(&self, turn_id: TurnId) -> Asked {
        let question = match self.agent.question() {
            Ok(question) => question,
            Err(error) => return Asked::Failed(error),
        };
        let (told, mut steps) = mpsc::unbounded_channel();
        let observe = move |progress: Progress<'_>| {
            // The receiver lives as long as the question.
            let _ = told.send(Step::from(progress));
        };
        let mut asking = std::pin::pin!(self.agent.provider.ask(&question, observe));
        let asked = loop {
            tokio::select! {
                biased;
                () = self.stop.cancel.cancelled() => return Asked::Cancelled,
                // While a step is being shown the stream is not read on, so that a slow reader slows
                // the model and fills no memory.
                Some(step) = steps.recv() => self.observe(turn_id, step).await,
                answer = &mut asking => break match answer {
                    Ok(answer) => Asked::Answered(answer),
                    Err(error) => Asked::Failed(error),
                },
            }
        };
        while let Ok(step) = steps.try_recv() {
            self.observe(turn_id, step).await;
        }
        asked
    }

    async fn observe(&self, turn_id: TurnId, step: Step) {
        let evidence = &self.agent.evidence;
        match step {
            Step::Attempt { attempt } => {
                lock(&self.open).attempt(Attempt { number: attempt, begun: Instant::now(), open: true });
                evidence.tell(&Event::ModelRequested(self.agent.model_payload(attempt)));
            }
            Step::Text { text } => {
                lock(&self.open).keep(&text);
                evidence.show(OutputEvent::ModelText { turn_id, text }, &self.stop.cancel).await;
            }
            Step::Failed { attempt, class, retry_in } => {
                if let Some(failed) = lock(&self.open).close_attempt() {
                    evidence.tell(&self.agent.failure(failed, class));
                }
                if let Some(delay) = retry_in {
                    let delay_ms = millis(delay);
                    let shown = OutputEvent::ModelRetrying { turn_id, attempt, error_class: class, delay_ms };
                    evidence.show(shown, &self.stop.cancel).await;
                }
            }
        }
    }

    async fn answered(&mut self, answer: Answer) {
        let Answer { blocks, calls, stop_reason, usage } = answer;
        let (agent, cancel) = (Arc::clone(&self.agent), self.stop.cancel.clone());
        agent.add_usage(usage);
        let content = json!(blocks);
        let pushed = agent.conversation().push_assistant(blocks);
        if let Err(error) = pushed {
            return self.failed(ProviderErrorClass::Protocol, &error.to_string()).await;
        }
        let mut calls: Vec<PendingCall> = calls
            .into_iter()
            .map(|(id, name, input)| PendingCall::new(&agent.tools, id, name, input))
            .collect();
        let decided: Vec<Entry> =
            calls.iter_mut().filter_map(|call| call.decide(&agent.config.permissions)).collect();
        let for_kernel = calls.iter().map(PendingCall::for_kernel).collect();
        let Some(Request { turn_id, attempt }) = ({
            let mut open = lock(&self.open);
            open.partial.clear();
            open.calls = calls;
            open.request.take()
        }) else {
            return;
        };
        let entry = Entry::ModelCompleted { turn_id, stop_reason: stop_reason.clone(), content, usage };
        agent.evidence.record_end(entry).await;
        for decision in decided {
            agent.evidence.record(decision);
        }
        let duration_ms = millis(attempt.begun.elapsed());
        agent.evidence.tell(&Event::ModelCompleted(ModelPayload {
            input_tokens: Some(usage.input_tokens),
            output_tokens: Some(usage.output_tokens),
            cache_read_tokens: Some(usage.cache_read_tokens),
            cache_write_tokens: Some(usage.cache_write_tokens),
            duration_ms: Some(duration_ms),
            ..agent.model_payload(attempt.number)
        }));
        let attempt = attempt.number;
        let shown = OutputEvent::ModelCompleted { turn_id, usage, duration_ms, attempt };
        agent.evidence.show(shown, &cancel).await;
        // An answer that overtook the cancellation is not acted on.
        self.is_stopped();
        self.feed(KernelEvent::ModelCompleted { stop: StopReason::parse(&stop_reason), calls: for_kernel });
    }

    async fn failed(&mut self, class: ProviderErrorClass, message: &str) {
        self.agent.close_request(&self.open, class, message, &self.stop.cancel).await;
        self.feed(KernelEvent::ModelFailed { class });
    }

    /// Puts the results of the last turn's calls into the conversation.
    fn push_results(&self) -> Result<(), iteron_context::ConversationError> {
        let mut conversation = self.agent.conversation();
        if conversation.open_calls().is_empty() {
            return Ok(());
        }
        conversation.push_tool_results(std::mem::take(&mut lock(&self.open).results))
    }
}

impl Agent {
    fn question(&self) -> Result<Encoded, ProviderError> {
        let Self { config, provider, offered, .. } = self;
        provider.encode(&Question {
            model: &config.model,
            max_tokens: config.max_tokens,
            tools: offered,
            conversation: &self.conversation(),
        })
    }

    fn model_payload(&self, attempt: u32) -> ModelPayload {
        model_payload(self.provider.api().provider(), &self.config.model, attempt)
    }

    fn failure(&self, attempt: Attempt, class: ProviderErrorClass) -> Event {
        let payload = ModelPayload {
            duration_ms: Some(millis(attempt.begun.elapsed())),
            error_class: Some(class.as_str()),
            ..self.model_payload(attempt.number)
        };
        Event::ModelFailed(payload, class.as_str())
    }

    /// Ends a request that has no answer, and keeps what had come of one.
    pub(crate) async fn close_request(
        &self,
        open: &SharedOpen,
        class: ProviderErrorClass,
        message: &str,
        cancel: &CancellationToken,
    ) {
        let (request, unfinished, partial) = {
            let mut open = lock(open);
            let unfinished = open.close_attempt();
            (open.request.take(), unfinished, open.partial.clone())
        };
        let Some(Request { turn_id, attempt }) = request else { return };
        if let Some(attempt) = unfinished {
            self.evidence.tell(&self.failure(attempt, class));
        }
        let message = message.to_owned();
        let entry = Entry::ModelFailed { turn_id, error_class: class, message: message.clone(), partial };
        self.evidence.record_end(entry).await;
        let attempt = attempt.number;
        let shown = OutputEvent::ModelFailed { turn_id, attempt, error_class: class, message };
        self.evidence.show(shown, cancel).await;
    }
}

/// A request under way.
pub(crate) struct Request {
    pub turn_id: TurnId,
    pub attempt: Attempt,
}

/// The attempt that is under way, or was last.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    number: u32,
    begun: Instant,
    /// Requested, and neither completed nor failed yet.
    open: bool,
}

impl Default for Attempt {
    fn default() -> Self {
        Self { number: 0, begun: Instant::now(), open: false }
    }
}

impl crate::run::Open {
    fn attempt(&mut self, attempt: Attempt) {
        if let Some(request) = &mut self.request {
            request.attempt = attempt;
        }
    }

    /// The attempt under way, if there is one, which then is not any more.
    fn close_attempt(&mut self) -> Option<Attempt> {
        let attempt = &mut self.request.as_mut()?.attempt;
        std::mem::take(&mut attempt.open).then_some(*attempt)
    }

    fn keep(&mut self, text: &str) {
        if self.partial.len() + text.len() <= PARTIAL_BYTES_MAX {
            self.partial.push_str(text);
        }
    }
}

impl From<Progress<'_>> for Step {
    fn from(progress: Progress<'_>) -> Self {
        match progress {
            Progress::Attempt { attempt } => Self::Attempt { attempt },
            Progress::Text { text } => Self::Text { text: text.to_owned() },
            Progress::Failed { attempt, class, retry_in, .. } => Self::Failed { attempt, class, retry_in },
        }
    }
}

fn with_source(error: &ProviderError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
