//! One model request: its attempts, its answer, and what interrupts it.

use std::time::Instant;

use iteron_context::MessagesRequest;
use iteron_kernel::run::{Action, Event as KernelEvent, StopCause, StopReason};
use iteron_lifecycle::{Event, ModelPayload};
use iteron_protocol::{OutputEvent, ProviderErrorClass, TurnId};
use iteron_provider::{Answer, Progress, ProviderError};
use iteron_record::Entry;
use serde_json::json;

use crate::call::PendingCall;
use crate::evidence::{Evidence, millis, model_payload};
use crate::session::Session;

/// How a request ended.
enum Asked {
    Answered(Answer),
    Failed(ProviderError),
    Cancelled,
}

impl Session<'_> {
    pub(crate) async fn model_turn(&mut self, turn: u32) {
        let turn_id = TurnId::fresh();
        if let Err(error) = self.push_results() {
            // Both sides of the check are ours, so this is a broken invariant.
            debug_assert!(false, "{error}");
            tracing::error!(%error, "the conversation is broken");
            return self.feed(KernelEvent::ModelFailed { class: ProviderErrorClass::InvalidRequest });
        }
        self.evidence.record(Entry::ModelRequested { turn_id, turn });
        if self.evidence.record_broken {
            self.stop(StopCause::RecordBroken);
            return self.feed(KernelEvent::ModelFailed { class: ProviderErrorClass::Cancelled });
        }
        self.evidence.show(OutputEvent::TurnStarted { turn_id, turn });
        let (asked, attempt) = self.ask(turn_id).await;
        match asked {
            Asked::Answered(answer) => self.answered(turn_id, &attempt, answer),
            Asked::Failed(error) => self.failed(turn_id, &attempt, error.class(), &with_source(&error)),
            Asked::Cancelled => {
                if attempt.open {
                    let class = ProviderErrorClass::Cancelled;
                    self.evidence.tell(&attempt.failed(&self.config.model, class));
                }
                self.failed(turn_id, &attempt, ProviderErrorClass::Cancelled, "interrupted");
            }
        }
    }

    async fn ask(&mut self, turn_id: TurnId) -> (Asked, Attempt) {
        let model = self.config.model.clone();
        let request = MessagesRequest::new(&model, self.config.max_tokens, &self.tools, &self.conversation);
        let mut attempt = Attempt::default();
        let asked = {
            let provider = self.provider.clone();
            let (evidence, kernel, todo) = (&mut self.evidence, &mut self.kernel, &mut self.todo);
            let observe = |progress: Progress<'_>| attempt.observe(evidence, &model, turn_id, &progress);
            let mut asking = std::pin::pin!(provider.ask(&request, observe));
            loop {
                tokio::select! {
                    answer = &mut asking => break match answer {
                        Ok(answer) => Asked::Answered(answer),
                        Err(error) => Asked::Failed(error),
                    },
                    changed = self.interrupts.changed() => {
                        let cause = KernelEvent::Stop(StopCause::Operator);
                        let actions = kernel.reduce(cause);
                        todo.extend(actions.iter().filter(|action| **action != Action::CancelModel));
                        if actions.contains(&Action::CancelModel) || changed.is_err() {
                            break Asked::Cancelled;
                        }
                    }
                }
            }
        };
        (asked, attempt)
    }

    fn answered(&mut self, turn_id: TurnId, attempt: &Attempt, answer: Answer) {
        let Answer { blocks, calls, stop_reason, usage } = answer;
        self.usage.add(usage);
        let content = json!(blocks);
        if let Err(error) = self.conversation.push_assistant(blocks) {
            self.evidence.tell(&attempt.failed(&self.config.model, ProviderErrorClass::Protocol));
            return self.failed(turn_id, attempt, ProviderErrorClass::Protocol, &error.to_string());
        }
        self.evidence.record(Entry::ModelCompleted {
            turn_id,
            stop_reason: stop_reason.clone(),
            content,
            usage,
        });
        let duration_ms = millis(attempt.begun.elapsed());
        self.evidence.tell(&Event::ModelCompleted(ModelPayload {
            input_tokens: Some(usage.input_tokens),
            output_tokens: Some(usage.output_tokens),
            cache_read_tokens: Some(usage.cache_read_tokens),
            cache_write_tokens: Some(usage.cache_write_tokens),
            duration_ms: Some(duration_ms),
            ..model_payload(&self.config.model, attempt.number)
        }));
        let attempt = attempt.number;
        self.evidence.show(OutputEvent::ModelCompleted { turn_id, usage, duration_ms, attempt });
        self.calls = calls
            .into_iter()
            .map(|(id, name, input)| PendingCall::new(&self.shell, id, name, input))
            .collect();
        let calls = self.calls.iter().map(PendingCall::for_kernel).collect();
        self.feed(KernelEvent::ModelCompleted { stop: StopReason::parse(&stop_reason), calls });
    }

    fn failed(&mut self, turn_id: TurnId, attempt: &Attempt, class: ProviderErrorClass, message: &str) {
        let message = message.to_owned();
        self.evidence.record(Entry::ModelFailed { turn_id, error_class: class, message: message.clone() });
        let attempt = attempt.number;
        self.evidence.show(OutputEvent::ModelFailed { turn_id, attempt, error_class: class, message });
        self.feed(KernelEvent::ModelFailed { class });
    }

    /// Puts the results of the last turn's calls into the conversation.
    fn push_results(&mut self) -> Result<(), iteron_context::ConversationError> {
        if self.conversation.open_calls().is_empty() {
            return Ok(());
        }
        self.conversation.push_tool_results(std::mem::take(&mut self.results))
    }
}

/// The attempt that is under way, or was last.
struct Attempt {
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

impl Attempt {
    fn observe(
        &mut self,
        evidence: &mut Evidence<'_>,
        model: &str,
        turn_id: TurnId,
        progress: &Progress<'_>,
    ) {
        match *progress {
            Progress::Attempt { attempt } => {
                *self = Self { number: attempt, begun: Instant::now(), open: true };
                evidence.tell(&Event::ModelRequested(model_payload(model, attempt)));
            }
            Progress::Text { text } => {
                evidence.show(OutputEvent::ModelText { turn_id, text: text.to_owned() });
            }
            Progress::Failed { attempt, class, retry_in, .. } => {
                self.open = false;
                evidence.tell(&self.failed(model, class));
                if let Some(delay) = retry_in {
                    let delay_ms = millis(delay);
                    evidence.show(OutputEvent::ModelRetrying {
                        turn_id,
                        attempt,
                        error_class: class,
                        delay_ms,
                    });
                }
            }
        }
    }

    fn failed(&self, model: &str, class: ProviderErrorClass) -> Event {
        let payload = ModelPayload {
            duration_ms: Some(millis(self.begun.elapsed())),
            error_class: Some(class.as_str()),
            ..model_payload(model, self.number)
        };
        Event::ModelFailed(payload, class.as_str())
    }
}

fn with_source(error: &ProviderError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
