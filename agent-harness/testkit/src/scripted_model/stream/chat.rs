//! A turn in the chunks of chat completions.

use serde_json::{Value, json};

use super::{TEXT_DELTA_CHARS, pieces};
use crate::scripted_model::script::Turn;

pub(super) fn events(turn: &Turn, number: usize, model: &str) -> Vec<Value> {
    let chunk = |choices: Value| {
        json!({"id": format!("chatcmpl-scripted-{number}"), "object": "chat.completion.chunk", "model": model,
            "choices": choices, "usage": null})
    };
    let delta = |delta: Value| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]));
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}))];
    if let Some(text) = &turn.text {
        let letters: Vec<char> = text.chars().collect();
        events.extend(
            letters
                .chunks(TEXT_DELTA_CHARS)
                .map(|chunk| delta(json!({"content": chunk.iter().collect::<String>()}))),
        );
    }
    if turn.faults.unknown_event {
        events.push(json!({"object": "future.chunk", "payload": {"deep": [1]}}));
        events.push(delta(json!({"future_content": {"x": 1}})));
    }
    for (at, (id, call)) in turn.calls(number).enumerate() {
        let arguments = call.raw_input.clone().unwrap_or_else(|| call.input.to_string());
        events.push(delta(json!({"tool_calls": [{"index": at, "id": id, "type": "function",
            "function": {"name": call.name, "arguments": ""}}]})));
        events.extend(
            pieces(&arguments, turn.faults.delta_bytes)
                .into_iter()
                .map(|piece| delta(json!({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))),
        );
    }
    let finish = match turn.stop_reason() {
        "tool_use" => "tool_calls",
        "max_tokens" => "length",
        "refusal" => "content_filter",
        _ => "stop",
    };
    events.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": finish}])));
    if !turn.faults.no_usage {
        let mut last = chunk(json!([]));
        last["usage"] = usage(turn);
        if turn.faults.duplicate_usage {
            events.push(last.clone());
        }
        events.push(last);
    }
    events.push(json!("[DONE]"));
    events
}

/// As in the other APIs, 5 tokens come from the cache; here they are among the prompt's.
fn usage(turn: &Turn) -> Value {
    let (input, output) = (turn.input_tokens.unwrap_or(100) + 5, turn.output_tokens.unwrap_or(20));
    json!({
        "prompt_tokens": input, "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens": output,
        "completion_tokens_details": {"reasoning_tokens": 7}, "total_tokens": input + output,
    })
}
