//! What the real APIs refuse: headers, roles, and tool results that answer nothing.

use std::collections::BTreeSet;

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::ScriptedApi;

mod openai;

/// Why a request is refused, as the API would answer.
#[derive(Debug)]
pub(crate) struct Fault {
    pub status: StatusCode,
    pub kind: &'static str,
    pub message: String,
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault { status: StatusCode::BAD_REQUEST, kind: "invalid_request_error", message: message.into() }
}

pub(crate) fn api_key(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = || text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    text("x-api-key").or_else(bearer).unwrap_or_default().to_owned()
}

/// Checks headers and body; gives the parsed body.
pub(crate) fn check(api: ScriptedApi, headers: &HeaderMap, body: &[u8]) -> Result<Value, Fault> {
    if api_key(headers).is_empty() {
        return Err(Fault {
            status: StatusCode::UNAUTHORIZED,
            kind: "authentication_error",
            message: "x-api-key header is required".into(),
        });
    }
    if api != ScriptedApi::Messages {
        return openai::check(api, headers, body);
    }
    if headers.get("anthropic-version").is_none_or(|version| version.is_empty()) {
        return Err(invalid("anthropic-version: header is required"));
    }
    let json = |value: &http::HeaderValue| value.as_bytes().starts_with(b"application/json");
    if !headers.get(http::header::CONTENT_TYPE).is_some_and(json) {
        return Err(invalid("content-type must be application/json"));
    }
    let body: Value =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is not JSON: {error}")))?;
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Err(invalid("model: Field required"));
    }
    if body["max_tokens"].as_u64().is_none_or(|count| count == 0) {
        return Err(invalid("max_tokens: Input should be greater than or equal to 1"));
    }
    check_tools(&body["tools"])?;
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
    check_messages(messages.ok_or_else(|| invalid("messages: at least one message is required"))?)?;
    Ok(body)
}

fn check_tools(tools: &Value) -> Result<(), Fault> {
    let mut names = BTreeSet::new();
    for (at, tool) in tools.as_array().into_iter().flatten().enumerate() {
        let name = tool["name"].as_str().unwrap_or_default();
        if name.is_empty() || !names.insert(name) {
            return Err(invalid(format!("tools.{at}.name: must be present and unique")));
        }
        if tool.get("type").is_none() && tool["input_schema"]["type"] != "object" {
            return Err(invalid(format!("tools.{at}.input_schema.type: Field required")));
        }
    }
    Ok(())
}

fn check_messages(messages: &[Value]) -> Result<(), Fault> {
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut used: BTreeSet<String> = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        if message["role"] != expected {
            return Err(invalid(format!("messages.{at}.role: expected {expected}: roles must alternate")));
        }
        let content = blocks(&message["content"]);
        if content.is_empty() {
            return Err(invalid(format!("messages.{at}: content must not be empty")));
        }
        check_results(at, &content, &mut open)?;
        for block in &content {
            let kind = block["type"].as_str().unwrap_or_default();
            match (kind, expected) {
                ("text", _) if block["text"].as_str().is_none_or(str::is_empty) => {
                    return Err(invalid(format!("messages.{at}: text content blocks must be non-empty")));
                }
                ("tool_use", "assistant") => {
                    let id = block["id"].as_str().unwrap_or_default().to_owned();
                    if id.is_empty() || !block["input"].is_object() || !used.insert(id.clone()) {
                        return Err(invalid(format!(
                            "messages.{at}: `tool_use` needs a unique id and an input"
                        )));
                    }
                    open.insert(id);
                }
                ("tool_use" | "thinking" | "redacted_thinking", "user") | ("tool_result", "assistant") => {
                    return Err(invalid(format!("messages.{at}: `{kind}` blocks are not allowed here")));
                }
                ("", _) => return Err(invalid(format!("messages.{at}: a content block has no type"))),
                _ => {}
            }
        }
    }
    if messages.len().is_multiple_of(2) {
        return Err(invalid("the conversation must end with a user message"));
    }
    Ok(())
}

/// Every call of the message before must be answered in this one, and nothing else.
fn check_results(at: usize, content: &[Value], open: &mut BTreeSet<String>) -> Result<(), Fault> {
    for block in content.iter().filter(|block| block["type"] == "tool_result") {
        let id = block["tool_use_id"].as_str().unwrap_or_default();
        if !open.remove(id) {
            return Err(invalid(format!(
                "messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
                 `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )));
        }
    }
    match open.first() {
        None => Ok(()),
        Some(id) => Err(invalid(format!(
            "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}"
        ))),
    }
}

/// Content as blocks: the API takes a bare string for one text block.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks.clone(),
        Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages_fault(messages: &Value) -> Option<String> {
        check_messages(messages.as_array().unwrap()).err().map(|fault| fault.message)
    }

    #[test]
    fn results_must_answer_the_calls_before_them() {
        let call = json!({"role": "assistant", "content":
            [{"type": "tool_use", "id": "a", "name": "shell", "input": {}}]});
        let result = |id: &str| json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "x"}]});
        let user = json!({"role": "user", "content": "hello"});
        assert_eq!(messages_fault(&json!([user, call, result("a")])), None);
        assert!(messages_fault(&json!([user, call, result("b")])).unwrap().contains("unexpected"));
        assert!(messages_fault(&json!([user, call, user])).unwrap().contains("without `tool_result`"));
        assert!(messages_fault(&json!([user, user])).unwrap().contains("alternate"));
        assert!(messages_fault(&json!([user, call])).unwrap().contains("end with a user"));
    }
}
