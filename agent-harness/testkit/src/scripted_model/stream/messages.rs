//! A turn in the events of the Anthropic Messages API.

use serde_json::{Value, json};

use super::{TEXT_DELTA_CHARS, pieces};
use crate::scripted_model::script::Turn;

pub(super) fn usage(turn: &Turn, output_tokens: u64) -> Value {
    json!({
        "input_tokens": turn.input_tokens.unwrap_or(100), "output_tokens": output_tokens,
        "cache_creation_input_tokens": 3, "cache_read_input_tokens": 5,
    })
}

pub(super) fn events(turn: &Turn, number: usize, model: &str) -> Vec<Value> {
    let mut start = json!({
        "id": format!("msg_scripted_{number}"), "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(turn, 1),
    });
    if turn.faults.no_usage {
        start["usage"] = Value::Null;
    }
    let mut events = vec![json!({"type": "message_start", "message": start})];
    let mut index = 0;
    if let Some(thinking) = &turn.thinking {
        let deltas = vec![
            json!({"type": "thinking_delta", "thinking": thinking}),
            json!({"type": "signature_delta", "signature": "c2NyaXB0ZWQ="}),
        ];
        let start = json!({"type": "thinking", "thinking": "", "signature": ""});
        block(&mut events, &mut index, &start, deltas);
    }
    if let Some(text) = &turn.text {
        let letters: Vec<char> = text.chars().collect();
        let deltas = letters
            .chunks(TEXT_DELTA_CHARS)
            .map(|chunk| json!({"type": "text_delta", "text": chunk.iter().collect::<String>()}));
        block(&mut events, &mut index, &json!({"type": "text", "text": ""}), deltas.collect());
    }
    if turn.faults.unknown_event {
        events.push(json!({"type": "ping"}));
        events.push(json!({"type": "future_event", "index": 99, "payload": {"deep": [1]}}));
        let delta = vec![json!({"type": "future_delta", "value": 1})];
        block(&mut events, &mut index, &json!({"type": "future_block", "x": 1}), delta);
    }
    for (id, call) in turn.calls(number) {
        let input = call.raw_input.clone().unwrap_or_else(|| call.input.to_string());
        let start = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
        let deltas = pieces(&input, turn.faults.delta_bytes)
            .into_iter()
            .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        block(&mut events, &mut index, &start, deltas.collect());
    }
    let mut last = json!({
        "type": "message_delta",
        "delta": {"stop_reason": turn.stop_reason(), "stop_sequence": null},
    });
    if !turn.faults.no_usage {
        last["usage"] = json!({"output_tokens": turn.output_tokens.unwrap_or(20)});
    }
    if turn.faults.duplicate_usage {
        events.push(last.clone());
    }
    events.push(last);
    events.push(json!({"type": "message_stop"}));
    events
}

fn block(events: &mut Vec<Value>, index: &mut u32, start: &Value, deltas: Vec<Value>) {
    events.push(json!({"type": "content_block_start", "index": *index, "content_block": start}));
    for delta in deltas {
        events.push(json!({"type": "content_block_delta", "index": *index, "delta": delta}));
    }
    events.push(json!({"type": "content_block_stop", "index": *index}));
    *index += 1;
}
