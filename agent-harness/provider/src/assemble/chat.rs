//! Chat completions, as OpenAI and many others stream them:
//! <https://platform.openai.com/docs/api-reference/chat-streaming>.

use std::collections::BTreeMap;

use iteron_context::Block;
use iteron_protocol::Usage;
use serde::Deserialize;

use super::{Answer, BLOCKS_MAX, Step, call, parse, tool_input, usage_with_cached};
use crate::error::{ProviderError, WireError};

/// The last word of the stream, in place of JSON.
const DONE: &str = "[DONE]";

#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<WireUsage>,
    #[serde(default)]
    error: Option<WireError>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    #[serde(default)]
    delta: Delta,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Deserialize)]
struct CallDelta {
    index: u64,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: Option<FunctionDelta>,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    completion_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    text: String,
    is_refusal: bool,
    calls: BTreeMap<u64, Building>,
    finish_reason: Option<String>,
    usage: Usage,
}

#[derive(Debug, Default)]
struct Building {
    id: String,
    name: String,
    arguments: String,
}

impl Assembler {
    pub(crate) fn take(&mut self, data: &str) -> Result<Step, ProviderError> {
        if data.trim() == DONE {
            return self.done();
        }
        let Chunk { choices, usage, error } = parse(data)?;
        if let Some(error) = error {
            return Err(error.into());
        }
        if let Some(WireUsage { prompt_tokens, prompt_tokens_details, completion_tokens }) = usage {
            let cached = prompt_tokens_details.and_then(|details| details.cached_tokens);
            self.usage = usage_with_cached(prompt_tokens, cached, completion_tokens);
        }
        let mut shown = String::new();
        // One answer was asked for.
        for choice in choices.into_iter().filter(|choice| choice.index == 0) {
            let Delta { content, refusal, tool_calls } = choice.delta;
            self.is_refusal |= refusal.as_ref().is_some_and(|text| !text.is_empty());
            for text in [content, refusal].into_iter().flatten() {
                self.text.push_str(&text);
                shown.push_str(&text);
            }
            for delta in tool_calls.into_iter().flatten() {
                self.extend(delta)?;
            }
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
        }
        Ok(if shown.is_empty() { Step::Nothing } else { Step::Text(shown) })
    }

    fn extend(&mut self, delta: CallDelta) -> Result<(), ProviderError> {
        let building = self.calls.entry(delta.index).or_default();
        let FunctionDelta { name, arguments } = delta.function.unwrap_or_default();
        // Both come once; some servers repeat them with each piece.
        if building.id.is_empty() {
            building.id = delta.id.unwrap_or_default();
        }
        if building.name.is_empty() {
            building.name = name.unwrap_or_default();
        }
        building.arguments.push_str(&arguments.unwrap_or_default());
        if self.calls.len() > BLOCKS_MAX {
            return Err(ProviderError::Protocol("too many calls"));
        }
        Ok(())
    }

    fn done(&self) -> Result<Step, ProviderError> {
        if self.finish_reason.is_none() {
            return Err(ProviderError::Protocol("[DONE] without a finish_reason"));
        }
        if self.calls.values().any(|call| call.id.is_empty() || call.name.is_empty()) {
            return Err(ProviderError::Protocol("a call without an id or a name"));
        }
        Ok(Step::Done)
    }

    pub(crate) fn finish(self) -> Answer {
        let stop_reason = match self.finish_reason.as_deref() {
            _ if self.is_refusal => "refusal",
            Some("stop") => "end_turn",
            Some("length") => "max_tokens",
            Some("tool_calls" | "function_call") => "tool_use",
            Some("content_filter") => "refusal",
            Some(_) | None => "unknown",
        };
        let mut blocks = Vec::new();
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: self.text });
        }
        let mut calls = Vec::new();
        for Building { id, name, arguments } in self.calls.into_values() {
            let (block, call) = call(id, name, tool_input(&arguments));
            blocks.push(block);
            calls.push(call);
        }
        Answer { blocks, calls, stop_reason: stop_reason.to_owned(), usage: self.usage }
    }
}
