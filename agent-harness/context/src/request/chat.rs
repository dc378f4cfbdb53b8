//! Chat completions, as OpenAI and many others take them.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Question, ToolSpec};
use crate::{Block, Message, Role};

/// The body of `POST /chat/completions`, streaming.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatRequest {
    pub model: String,
    /// The older name of the limit, which all servers know.
    pub max_tokens: u32,
    pub stream: bool,
    pub stream_options: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    pub messages: Vec<Value>,
}

impl ChatRequest {
    pub(super) fn new(question: &Question<'_>) -> Self {
        let system = json!({"role": "system", "content": question.conversation.system()});
        let messages = question.conversation.messages().iter().flat_map(said);
        Self {
            model: question.model.to_owned(),
            max_tokens: question.max_tokens,
            stream: true,
            stream_options: json!({"include_usage": true}),
            tools: question.tools.iter().map(tool).collect(),
            messages: std::iter::once(system).chain(messages).collect(),
        }
    }
}

fn tool(tool: &ToolSpec) -> Value {
    json!({"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
    }})
}

/// One message of the assistant; of the user one for the text, and one for each result.
fn said(message: &Message) -> Vec<Value> {
    let text: Vec<&str> = message
        .content
        .iter()
        .filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let text = text.join("\n\n");
    if message.role == Role::User {
        let results = message.content.iter().filter_map(|block| match block {
            Block::ToolResult { tool_use_id, content, .. } => {
                Some(json!({"role": "tool", "tool_call_id": tool_use_id, "content": content}))
            }
            _ => None,
        });
        let text = (!text.is_empty()).then(|| json!({"role": "user", "content": text}));
        return results.chain(text).collect();
    }
    let calls: Vec<Value> = message
        .content
        .iter()
        .filter_map(|block| match block {
            Block::ToolUse { id, name, input } => Some(json!({
                "id": id, "type": "function",
                "function": {"name": name, "arguments": input.to_string()},
            })),
            _ => None,
        })
        .collect();
    let mut said =
        json!({"role": "assistant", "content": if text.is_empty() { Value::Null } else { json!(text) }});
    if !calls.is_empty() {
        said["tool_calls"] = json!(calls);
    }
    vec![said]
}
