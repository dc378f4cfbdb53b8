//! Each form as its API documents it.

use super::*;
use crate::{Block, ToolResult};

fn conversation() -> Conversation {
    let mut conversation = Conversation::new("be brief");
    conversation.push_user("hello").unwrap();
    let blocks = vec![
        Block::Thinking { thinking: "hm".into(), signature: "c2ln".into() },
        Block::Text { text: "I look.".into() },
        Block::ToolUse { id: "call-1".into(), name: "shell".into(), input: json!({"command": "ls"}) },
        Block::ToolUse { id: "call-2".into(), name: "shell".into(), input: json!({}) },
    ];
    conversation.push_assistant(blocks).unwrap();
    let result = |id: &str, content: &str, is_error| ToolResult {
        tool_use_id: id.into(),
        content: content.into(),
        is_error,
    };
    conversation.push_tool_results(vec![result("call-1", "a", false), result("call-2", "no", true)]).unwrap();
    conversation
}

fn tool() -> ToolSpec {
    ToolSpec { name: "shell".into(), description: "runs".into(), input_schema: json!({"type": "object"}) }
}

#[test]
fn the_form_of_messages() {
    let mut conversation = Conversation::new("be brief");
    conversation.push_user("hello").unwrap();
    let tools = [tool()];
    let question =
        Question { model: "some-model", max_tokens: 64, tools: &tools, conversation: &conversation };
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        serde_json::to_value(question.messages()).unwrap(),
        json!({
            "model": "some-model", "max_tokens": 64, "stream": true,
            "tools": [{"name": "shell", "description": "runs", "input_schema": {"type": "object"}}],
            "system": [{"type": "text", "text": "be brief", "cache_control": mark}],
            "messages": [{"role": "user", "content":
                [{"type": "text", "text": "hello", "cache_control": mark}]}],
        })
    );
}

#[test]
fn the_form_of_responses() {
    let (conversation, tools) = (conversation(), [tool()]);
    let question = Question { model: "m", max_tokens: 64, tools: &tools, conversation: &conversation };
    assert_eq!(
        serde_json::to_value(question.responses()).unwrap(),
        json!({
            "model": "m", "max_output_tokens": 64, "stream": true, "store": false,
            "tools": [{"type": "function", "name": "shell", "description": "runs",
                "parameters": {"type": "object"}, "strict": false}],
            "instructions": "be brief",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "message", "role": "assistant",
                    "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "call-1", "name": "shell",
                    "arguments": "{\"command\":\"ls\"}"},
                {"type": "function_call", "call_id": "call-2", "name": "shell", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call-1", "output": "a"},
                {"type": "function_call_output", "call_id": "call-2", "output": "no"},
            ],
        })
    );
}

#[test]
fn the_form_of_chat() {
    let (conversation, tools) = (conversation(), [tool()]);
    let question = Question { model: "m", max_tokens: 64, tools: &tools, conversation: &conversation };
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "shell", "arguments": arguments}});
    assert_eq!(
        serde_json::to_value(question.chat()).unwrap(),
        json!({
            "model": "m", "max_tokens": 64, "stream": true, "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function":
                {"name": "shell", "description": "runs", "parameters": {"type": "object"}}}],
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "I look.",
                    "tool_calls": [call("call-1", "{\"command\":\"ls\"}"), call("call-2", "{}")]},
                {"role": "tool", "tool_call_id": "call-1", "content": "a"},
                {"role": "tool", "tool_call_id": "call-2", "content": "no"},
            ],
        })
    );
}
