//! Anthropic Messages: <https://docs.anthropic.com/en/api/messages-streaming>.

use std::collections::BTreeMap;

use iteron_context::Block;
use iteron_protocol::Usage;
use serde_json::Value;

use super::{Answer, BLOCKS_MAX, Step, ToolInput, call, tool_input};
use crate::error::ProviderError;

mod events;

pub(crate) use events::StreamEvent;
use events::{Delta, StartedBlock, WireUsage};

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    started: bool,
    blocks: BTreeMap<usize, Building>,
    stop_reason: Option<String>,
    usage: WireUsage,
}

#[derive(Debug)]
enum Building {
    Text(String),
    Thinking {
        thinking: String,
        signature: String,
    },
    Redacted(String),
    ToolUse {
        id: String,
        name: String,
        input: Value,
        json: String,
    },
    /// A kind of block that this version does not know; it asked for none.
    Ignored,
}

impl Assembler {
    pub(crate) fn take(&mut self, event: StreamEvent) -> Result<Step, ProviderError> {
        match event {
            StreamEvent::Ping | StreamEvent::Unknown => return Ok(Step::Nothing),
            StreamEvent::Error { error } => {
                return Err(error.into());
            }
            StreamEvent::MessageStart { message } if !self.started => {
                self.started = true;
                self.merge_usage(message.usage);
                return Ok(Step::Nothing);
            }
            StreamEvent::MessageStart { .. } => {
                return Err(ProviderError::Protocol("a second message_start"));
            }
            _ if !self.started => return Err(ProviderError::Protocol("an event before message_start")),
            StreamEvent::ContentBlockStart { index, content_block } => self.begin(index, content_block)?,
            StreamEvent::ContentBlockDelta { index, delta } => return self.extend(index, delta),
            StreamEvent::ContentBlockStop { index } => {
                if !self.blocks.contains_key(&index) {
                    return Err(ProviderError::Protocol("the end of a block that did not begin"));
                }
            }
            StreamEvent::MessageDelta { delta, usage } => {
                self.merge_usage(usage);
                self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
            }
            StreamEvent::MessageStop if self.stop_reason.is_none() => {
                return Err(ProviderError::Protocol("message_stop without a stop_reason"));
            }
            StreamEvent::MessageStop => return Ok(Step::Done),
        }
        Ok(Step::Nothing)
    }

    pub(crate) fn finish(self) -> Answer {
        let mut blocks = Vec::with_capacity(self.blocks.len());
        let mut calls = Vec::new();
        for building in self.blocks.into_values() {
            blocks.push(match building {
                Building::Ignored => continue,
                Building::Text(text) => Block::Text { text },
                Building::Thinking { thinking, signature } => Block::Thinking { thinking, signature },
                Building::Redacted(data) => Block::RedactedThinking { data },
                Building::ToolUse { id, name, input, json } => {
                    let input = match input {
                        Value::Object(_) if json.is_empty() => ToolInput::Valid(input),
                        _ => tool_input(&json),
                    };
                    let (block, call) = call(id, name, input);
                    calls.push(call);
                    block
                }
            });
        }
        Answer {
            blocks,
            calls,
            stop_reason: self.stop_reason.unwrap_or_default(),
            usage: Usage {
                input_tokens: self.usage.input_tokens.unwrap_or(0),
                output_tokens: self.usage.output_tokens.unwrap_or(0),
                cache_read_tokens: self.usage.cache_read_input_tokens.unwrap_or(0),
                cache_write_tokens: self.usage.cache_creation_input_tokens.unwrap_or(0),
            },
        }
    }

    fn begin(&mut self, index: usize, block: StartedBlock) -> Result<(), ProviderError> {
        if self.blocks.len() >= BLOCKS_MAX {
            return Err(ProviderError::Protocol("too many blocks"));
        }
        let building = match block {
            StartedBlock::Text { text } => Building::Text(text),
            StartedBlock::Thinking { thinking, signature } => Building::Thinking { thinking, signature },
            StartedBlock::RedactedThinking { data } => Building::Redacted(data),
            StartedBlock::ToolUse { id, name, input } => {
                Building::ToolUse { id, name, input, json: String::new() }
            }
            StartedBlock::Unknown => Building::Ignored,
        };
        match self.blocks.insert(index, building) {
            None => Ok(()),
            Some(_) => Err(ProviderError::Protocol("a block began twice")),
        }
    }

    fn extend(&mut self, index: usize, delta: Delta) -> Result<Step, ProviderError> {
        let Some(block) = self.blocks.get_mut(&index) else {
            return Err(ProviderError::Protocol("a delta for a block that did not begin"));
        };
        match (block, delta) {
            (Building::Ignored, _) | (_, Delta::Unknown) => {}
            (Building::Text(all), Delta::Text { text }) => {
                all.push_str(&text);
                return Ok(Step::Text(text));
            }
            (Building::ToolUse { json, .. }, Delta::InputJson { partial_json }) => {
                json.push_str(&partial_json);
            }
            (Building::Thinking { thinking: all, .. }, Delta::Thinking { thinking }) => {
                all.push_str(&thinking);
            }
            (Building::Thinking { signature: all, .. }, Delta::Signature { signature }) => {
                all.push_str(&signature);
            }
            _ => return Err(ProviderError::Protocol("a delta that does not fit its block")),
        }
        Ok(Step::Nothing)
    }

    /// Reports are cumulative and may repeat: the latest value of each counter is the right one.
    fn merge_usage(&mut self, usage: Option<WireUsage>) {
        let Some(usage) = usage else { return };
        let all = &mut self.usage;
        all.input_tokens = usage.input_tokens.or(all.input_tokens);
        all.output_tokens = usage.output_tokens.or(all.output_tokens);
        all.cache_read_input_tokens = usage.cache_read_input_tokens.or(all.cache_read_input_tokens);
        all.cache_creation_input_tokens =
            usage.cache_creation_input_tokens.or(all.cache_creation_input_tokens);
    }
}
