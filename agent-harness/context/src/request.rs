//! The body of `POST /v1/messages`.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{Conversation, Message};

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the input, an object.
    pub input_schema: Value,
}

/// A streaming request. Tools, system and messages come in the order in which the API's prompt
/// cache reads them, with one cache mark after the stable prefix and one after the last message.
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

impl MessagesRequest {
    #[must_use]
    pub fn new(model: &str, max_tokens: u32, tools: &[ToolSpec], conversation: &Conversation) -> Self {
        Self {
            model: model.to_owned(),
            max_tokens,
            stream: true,
            tools: tools.to_vec(),
            system: json!([{
                "type": "text",
                "text": conversation.system(),
                "cache_control": {"type": "ephemeral"},
            }]),
            messages: marked(conversation.messages()),
        }
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
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_form_of_the_api() {
        let mut conversation = Conversation::new("be brief");
        conversation.push_user("hello").unwrap();
        let tool = ToolSpec {
            name: "shell".into(),
            description: "runs".into(),
            input_schema: json!({"type": "object"}),
        };
        let request = MessagesRequest::new("some-model", 64, &[tool], &conversation);
        let mark = json!({"type": "ephemeral"});
        assert_eq!(
            serde_json::to_value(request).unwrap(),
            json!({
                "model": "some-model", "max_tokens": 64, "stream": true,
                "tools": [{"name": "shell", "description": "runs", "input_schema": {"type": "object"}}],
                "system": [{"type": "text", "text": "be brief", "cache_control": mark}],
                "messages": [{"role": "user", "content":
                    [{"type": "text", "text": "hello", "cache_control": mark}]}],
            })
        );
    }
}
