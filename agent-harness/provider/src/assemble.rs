//! Puts an answer together from its stream: pure state machines, one an API.
//!
//! Whatever the API, a counter of tokens that comes more than once is taken once, the latest; and
//! `input_tokens` leaves out what came from or went to the cache.

use iteron_context::Block;
use iteron_protocol::Usage;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ProviderError;

mod chat;
pub(crate) mod messages;
mod responses;

/// Blocks, items or calls in one answer: far above the largest real one.
const BLOCKS_MAX: usize = 4096;

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// To be sent back with the next request.
    pub blocks: Vec<Block>,
    /// The calls among the blocks, in order, each with its input or the fault in it.
    pub calls: Vec<(String, String, ToolInput)>,
    /// As the Messages API names it.
    pub stop_reason: String,
    pub usage: Usage,
}

/// A tool call's input. One that is no JSON object stands as `{}` in the conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolInput {
    Valid(Value),
    /// Its size in bytes, since nothing else about it is known.
    Invalid(usize),
}

/// What an event means to the outside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Text(String),
    Done,
}

#[derive(Debug)]
pub(crate) enum Assembler {
    Messages(messages::Assembler),
    Responses(responses::Assembler),
    Chat(chat::Assembler),
}

impl Assembler {
    pub(crate) fn of(api: Api) -> Self {
        match api {
            Api::Messages => Self::Messages(messages::Assembler::default()),
            Api::Responses => Self::Responses(responses::Assembler::default()),
            Api::Chat => Self::Chat(chat::Assembler::default()),
        }
    }

    /// Takes the data of one event.
    pub(crate) fn take(&mut self, data: &str) -> Result<Step, ProviderError> {
        match self {
            Self::Messages(assembler) => assembler.take(parse(data)?),
            Self::Responses(assembler) => assembler.take(parse(data)?),
            Self::Chat(assembler) => assembler.take(data),
        }
    }

    pub(crate) fn finish(self) -> Answer {
        match self {
            Self::Messages(assembler) => assembler.finish(),
            Self::Responses(assembler) => assembler.finish(),
            Self::Chat(assembler) => assembler.finish(),
        }
    }
}

fn parse<'a, T: serde::Deserialize<'a>>(data: &'a str) -> Result<T, ProviderError> {
    serde_json::from_str(data)
        .map_err(|_| ProviderError::Protocol("an event's data is not its documented JSON"))
}

/// A call, and its block in the conversation.
fn call(id: String, name: String, input: ToolInput) -> (Block, (String, String, ToolInput)) {
    let shown = match &input {
        ToolInput::Valid(value) => value.clone(),
        ToolInput::Invalid(_) => json!({}),
    };
    (Block::ToolUse { id: id.clone(), name: name.clone(), input: shown }, (id, name, input))
}

/// The input that `json` is.
fn tool_input(json: &str) -> ToolInput {
    if json.is_empty() {
        return ToolInput::Valid(json!({}));
    }
    match serde_json::from_str::<Value>(json) {
        Ok(value) if value.is_object() => ToolInput::Valid(value),
        _ => ToolInput::Invalid(json.len()),
    }
}

/// Of counters in which cached tokens are among the input's, as OpenAI's APIs have them.
fn usage_with_cached(input: Option<u64>, cached: Option<u64>, output: Option<u64>) -> Usage {
    let (input, cached) = (input.unwrap_or(0), cached.unwrap_or(0));
    Usage {
        input_tokens: input.saturating_sub(cached),
        output_tokens: output.unwrap_or(0),
        cache_read_tokens: cached.min(input),
        cache_write_tokens: 0,
    }
}
