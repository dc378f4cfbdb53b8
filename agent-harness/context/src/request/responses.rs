//! OpenAI Responses: the conversation as a list of items. Nothing is left at the provider (`store`),
//! so each question carries all of it.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Question, ToolSpec};
use crate::{Block, Message, Role};

/// The body of `POST /responses`, streaming.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResponsesRequest {
    pub model: String,
    pub max_output_tokens: u32,
    pub stream: bool,
    pub store: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    pub instructions: String,
    pub input: Vec<Value>,
}

impl ResponsesRequest {
    pub(super) fn new(question: &Question<'_>) -> Self {
        Self {
            model: question.model.to_owned(),
            max_output_tokens: question.max_tokens,
            stream: true,
            store: false,
            tools: question.tools.iter().map(tool).collect(),
            instructions: question.conversation.system().to_owned(),
            input: question.conversation.messages().iter().flat_map(items).collect(),
        }
    }
}

fn tool(tool: &ToolSpec) -> Value {
    json!({
        "type": "function", "name": tool.name, "description": tool.description,
        "parameters": tool.input_schema, "strict": false,
    })
}

fn items(message: &Message) -> impl Iterator<Item = Value> {
    message.content.iter().filter_map(|block| item(message.role, block))
}

/// Nothing for what is another API's own.
fn item(role: Role, block: &Block) -> Option<Value> {
    match block {
        Block::Text { text } => {
            let kind = if role == Role::User { "input_text" } else { "output_text" };
            Some(json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
        }
        Block::ToolUse { id, name, input } => Some(json!({
            "type": "function_call", "call_id": id, "name": name, "arguments": input.to_string(),
        })),
        Block::ToolResult { tool_use_id, content, .. } => {
            Some(json!({"type": "function_call_output", "call_id": tool_use_id, "output": content}))
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    }
}
