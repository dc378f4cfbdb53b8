//! A turn in the events of the OpenAI Responses API.

use serde_json::{Value, json};

use super::{TEXT_DELTA_CHARS, pieces};
use crate::scripted_model::script::Turn;

pub(super) fn events(turn: &Turn, number: usize, model: &str) -> Vec<Value> {
    let id = format!("resp_scripted_{number}");
    let response =
        json!({"id": id, "object": "response", "model": model, "status": "in_progress", "output": []});
    let mut events = vec![
        json!({"type": "response.created", "response": response}),
        json!({"type": "response.in_progress", "response": response}),
    ];
    let mut output = Vec::new();
    if let Some(thinking) = &turn.thinking {
        let item = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": thinking}]});
        let delta = json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_1",
            "output_index": output.len(), "summary_index": 0, "delta": thinking});
        push_item(&mut events, &mut output, item, vec![delta]);
    }
    if let Some(text) = &turn.text {
        let refuses = turn.stop_reason.as_deref() == Some("refusal");
        let part = if refuses {
            json!({"type": "refusal", "refusal": text})
        } else {
            json!({"type": "output_text", "text": text, "annotations": []})
        };
        let kind = if refuses { "response.refusal.delta" } else { "response.output_text.delta" };
        let letters: Vec<char> = text.chars().collect();
        let at = output.len();
        let mut deltas = vec![json!({"type": "response.content_part.added", "item_id": "msg_1",
            "output_index": at, "content_index": 0, "part": {}})];
        deltas.extend(letters.chunks(TEXT_DELTA_CHARS).map(|chunk| {
            json!({"type": kind, "item_id": "msg_1", "output_index": at, "content_index": 0,
                "delta": chunk.iter().collect::<String>()})
        }));
        deltas.push(json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": at,
            "content_index": 0, "text": text}));
        let item = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [part]});
        push_item(&mut events, &mut output, item, deltas);
    }
    if turn.faults.unknown_event {
        events.push(json!({"type": "response.future_event", "payload": {"deep": [1]}}));
        let item = json!({"type": "future_item", "x": 1});
        push_item(&mut events, &mut output, item, vec![]);
    }
    for (id, call) in turn.calls(number) {
        let arguments = call.raw_input.clone().unwrap_or_else(|| call.input.to_string());
        let deltas = pieces(&arguments, turn.faults.delta_bytes).into_iter().map(|piece| {
            json!({"type": "response.function_call_arguments.delta", "output_index": output.len(), "delta": piece})
        });
        let deltas = deltas.collect();
        let item = json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": call.name,
            "arguments": arguments});
        push_item(&mut events, &mut output, item, deltas);
    }
    let mut last =
        json!({"id": id, "object": "response", "model": model, "status": "completed", "output": output});
    if !turn.faults.no_usage {
        last["usage"] = usage(turn);
    }
    let kind = match turn.stop_reason.as_deref() {
        Some("max_tokens") => {
            last["incomplete_details"] = json!({"reason": "max_output_tokens"});
            "response.incomplete"
        }
        _ => "response.completed",
    };
    if turn.faults.duplicate_usage {
        events.push(json!({"type": "response.in_progress", "response": last}));
    }
    events.push(json!({"type": kind, "response": last}));
    for (at, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(at);
    }
    events
}

/// As in the other APIs, 5 tokens come from the cache; here they are among the input's.
fn usage(turn: &Turn) -> Value {
    let (input, output) = (turn.input_tokens.unwrap_or(100) + 5, turn.output_tokens.unwrap_or(20));
    json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 7}, "total_tokens": input + output,
    })
}

fn push_item(events: &mut Vec<Value>, output: &mut Vec<Value>, item: Value, deltas: Vec<Value>) {
    let at = output.len();
    events.push(json!({"type": "response.output_item.added", "output_index": at,
        "item": {"type": item["type"], "id": item["id"]}}));
    events.extend(deltas);
    events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
    output.push(item);
}
