//! What OpenAI's APIs refuse.

use std::collections::BTreeSet;

use http::HeaderMap;
use serde_json::Value;

use super::{Fault, invalid};
use crate::scripted_model::ScriptedApi;

pub(super) fn check(api: ScriptedApi, headers: &HeaderMap, body: &[u8]) -> Result<Value, Fault> {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    if !authorization.is_some_and(|value| value.starts_with("Bearer ")) {
        return Err(invalid("the key is not given as a bearer token"));
    }
    let body: Value =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is not JSON: {error}")))?;
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Err(invalid("you must provide a model parameter"));
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        let function = if api == ScriptedApi::Chat { &tool["function"] } else { tool };
        let is_whole = function["name"].is_string() && function["parameters"]["type"] == "object";
        if tool["type"] != "function" || !is_whole {
            return Err(invalid(format!("not a function: {tool}")));
        }
    }
    match api {
        ScriptedApi::Responses => check_items(&body["input"])?,
        _ => check_messages(&body["messages"])?,
    }
    Ok(body)
}

/// Every call is answered once, after it was made.
fn check_items(input: &Value) -> Result<(), Fault> {
    let mut open = BTreeSet::new();
    let items = input.as_array().filter(|items| !items.is_empty());
    for item in items.ok_or_else(|| invalid("input: missing"))? {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or_default() {
            "message" => {
                let expected = if item["role"] == "user" { "input_text" } else { "output_text" };
                let parts = item["content"].as_array().into_iter().flatten();
                if parts.clone().count() == 0 || parts.clone().any(|part| part["type"] != expected) {
                    return Err(invalid(format!("a message of {} has other parts: {item}", item["role"])));
                }
            }
            "function_call" if item["arguments"].is_string() && open.insert(id) => {}
            "function_call_output" if item["output"].is_string() && open.remove(id) => {}
            _ => return Err(invalid(format!("an item that does not fit: {item}"))),
        }
    }
    match open.first() {
        None => Ok(()),
        Some(id) => Err(invalid(format!("No tool output found for function call {id}."))),
    }
}

/// The messages after a call of tools are their answers, and no others are.
fn check_messages(messages: &Value) -> Result<(), Fault> {
    let mut open = BTreeSet::new();
    let messages = messages.as_array().filter(|messages| !messages.is_empty());
    for message in messages.ok_or_else(|| invalid("messages: missing"))? {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            if !message["content"].is_string() || !open.remove(id) {
                return Err(invalid(format!("a tool message that answers nothing: {message}")));
            }
            continue;
        }
        if let Some(id) = open.first() {
            return Err(invalid(format!("tool_call_id {id} has no response message")));
        }
        let calls = message["tool_calls"].as_array();
        match role {
            "system" | "user" if message["content"].is_string() => {}
            "assistant" if message["content"].is_string() || calls.is_some() => {}
            _ => return Err(invalid(format!("a message that does not fit: {message}"))),
        }
        for call in calls.into_iter().flatten() {
            let function = &call["function"];
            if call["type"] != "function"
                || !function["arguments"].is_string()
                || !function["name"].is_string()
            {
                return Err(invalid(format!("not a call of a function: {call}")));
            }
            open.insert(call["id"].as_str().unwrap_or_default());
        }
    }
    match open.first() {
        None => Ok(()),
        Some(id) => Err(invalid(format!("tool_call_id {id} has no response message"))),
    }
}
