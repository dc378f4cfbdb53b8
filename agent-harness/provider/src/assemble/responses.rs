//! OpenAI Responses: <https://platform.openai.com/docs/api-reference/responses-streaming>.
//!
//! Items are taken whole, when they are done; deltas of text are for whoever watches. Reasoning is
//! not kept: without the provider's store it could not be sent back.

use std::collections::{BTreeMap, BTreeSet};

use iteron_context::Block;
use iteron_protocol::Usage;
use serde::Deserialize;

use super::{Answer, BLOCKS_MAX, Step, call, tool_input, usage_with_cached};
use crate::error::{ProviderError, WireError};

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
pub(crate) enum Event {
    #[serde(rename = "response.output_item.added")]
    Added { output_index: u64 },
    #[serde(rename = "response.output_text.delta")]
    TextDelta { delta: String },
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta { delta: String },
    #[serde(rename = "response.output_item.done")]
    Done { output_index: u64, item: Item },
    #[serde(rename = "response.completed")]
    Completed { response: Response },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Response },
    #[serde(rename = "response.failed")]
    Failed { response: Response },
    #[serde(rename = "error")]
    Error(WireError),
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    Message {
        content: Vec<Part>,
    },
    FunctionCall {
        call_id: String,
        name: String,
        arguments: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part {
    OutputText {
        text: String,
    },
    Refusal {
        refusal: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Response {
    #[serde(default)]
    usage: Option<WireUsage>,
    #[serde(default)]
    error: Option<WireError>,
    #[serde(default)]
    incomplete_details: Option<Incomplete>,
}

#[derive(Debug, Deserialize)]
struct Incomplete {
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WireUsage {
    input_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
    output_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    begun: BTreeSet<u64>,
    items: BTreeMap<u64, Item>,
    stop_reason: &'static str,
    usage: Usage,
}

impl Assembler {
    pub(crate) fn take(&mut self, event: Event) -> Result<Step, ProviderError> {
        match event {
            Event::Unknown => {}
            Event::Error(error) => return Err(error.into()),
            Event::Failed { response } => {
                let unsaid = ProviderError::Protocol("a failure without an error");
                return Err(response.error.map_or(unsaid, ProviderError::from));
            }
            Event::TextDelta { delta } | Event::RefusalDelta { delta } => return Ok(Step::Text(delta)),
            Event::Added { output_index } => {
                self.begun.insert(output_index);
                if self.begun.len() > BLOCKS_MAX {
                    return Err(ProviderError::Protocol("too many items"));
                }
            }
            Event::Done { output_index, item } => {
                self.begun.remove(&output_index);
                if self.items.insert(output_index, item).is_some() {
                    return Err(ProviderError::Protocol("an item was done twice"));
                }
                if self.items.len() > BLOCKS_MAX {
                    return Err(ProviderError::Protocol("too many items"));
                }
            }
            Event::Completed { .. } if !self.begun.is_empty() => {
                return Err(ProviderError::Protocol("completed, with an item that is not done"));
            }
            Event::Completed { response } => return Ok(self.end(response, None)),
            Event::Incomplete { response } => {
                let reason = response.incomplete_details.as_ref().and_then(|why| why.reason.as_deref());
                let stop_reason = match reason {
                    Some("max_output_tokens") => "max_tokens",
                    Some("content_filter") => "refusal",
                    _ => "incomplete",
                };
                return Ok(self.end(response, Some(stop_reason)));
            }
        }
        Ok(Step::Nothing)
    }

    fn end(&mut self, response: Response, stop_reason: Option<&'static str>) -> Step {
        let of_kind = |wanted: fn(&Item) -> bool| self.items.values().any(wanted);
        let refuses = |item: &Item| match item {
            Item::Message { content } => content.iter().any(|part| matches!(part, Part::Refusal { .. })),
            _ => false,
        };
        self.stop_reason = match stop_reason {
            Some(stop_reason) => stop_reason,
            None if of_kind(refuses) => "refusal",
            None if of_kind(|item| matches!(item, Item::FunctionCall { .. })) => "tool_use",
            None => "end_turn",
        };
        if let Some(WireUsage { input_tokens, input_tokens_details, output_tokens }) = response.usage {
            let cached = input_tokens_details.and_then(|details| details.cached_tokens);
            self.usage = usage_with_cached(input_tokens, cached, output_tokens);
        }
        Step::Done
    }

    pub(crate) fn finish(self) -> Answer {
        let (mut blocks, mut calls) = (Vec::new(), Vec::new());
        for item in self.items.into_values() {
            match item {
                Item::Message { content } => {
                    blocks.extend(content.into_iter().filter_map(|part| match part {
                        Part::OutputText { text } | Part::Refusal { refusal: text } => {
                            Some(Block::Text { text })
                        }
                        Part::Unknown => None,
                    }))
                }
                Item::FunctionCall { call_id, name, arguments } => {
                    let (block, call) = call(call_id, name, tool_input(&arguments));
                    blocks.push(block);
                    calls.push(call);
                }
                Item::Unknown => {}
            }
        }
        Answer { blocks, calls, stop_reason: self.stop_reason.to_owned(), usage: self.usage }
    }
}
