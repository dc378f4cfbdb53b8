//! A question to a model, and its form in each API.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{Conversation, Message};

mod chat;
mod responses;

pub use chat::ChatRequest;
pub use responses::ResponsesRequest;

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the input, an object.
    pub input_schema: Value,
}

/// What a model is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub model: &'a str,
    pub max_tokens: u32,
    pub tools: &'a [ToolSpec],
    pub conversation: &'a Conversation,
}

/// The body of `POST /v1/messages`, streaming. Tools, system and messages come in the order in which
/// the API's prompt cache reads them, with one cache mark after the stable prefix and one after the
/// last message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessagesRequest {
    pub model: String,
    pub max_tokens: u32,
    pub stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    pub system: Value,
    pub messages: Value,
}

impl Question<'_> {
    #[must_use]
    pub fn messages(&self) -> MessagesRequest {
        MessagesRequest {
            model: self.model.to_owned(),
            max_tokens: self.max_tokens,
            stream: true,
            tools: self.tools.to_vec(),
            system: json!([{
                "type": "text",
                "text": self.conversation.system(),
                "cache_control": {"type": "ephemeral"},
            }]),
            messages: marked(self.conversation.messages()),
        }
    }

    #[must_use]
    pub fn responses(&self) -> ResponsesRequest {
        ResponsesRequest::new(self)
    }

    #[must_use]
    pub fn chat(&self) -> ChatRequest {
        ChatRequest::new(self)
    }
}

fn marked(messages: &[Message]) -> Value {
    let mut value = json!(messages);
    let last = value.as_array_mut().and_then(|messages| messages.last_mut());
    let block = last.and_then(|message| message["content"].as_array_mut()?.last_mut());
    if let Some(block) = block
        // The API refuses a mark on a thinking block.
        && matches!(block["type"].as_str(), Some("text" | "tool_use" | "tool_result"))
    {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
    value
}

#[cfg(test)]
mod tests;
