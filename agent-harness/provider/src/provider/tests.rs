//! Streams cut at every byte, and the faults of a provider over a real connection, for every API.

use std::time::Instant;

use futures_util::stream;
use iteron_context::{Block, Conversation};
use iteron_protocol::Usage;
use iteron_testkit::scripted_model::{Script, ScriptedApi, ScriptedModel, Turn};
use serde_json::json;

use super::*;
use crate::{ApiKey, ToolInput};

mod faults;
mod streams;

fn turn(text: &str) -> Turn {
    Script::from_json(&format!("[{text}]")).unwrap().turns.remove(0)
}

fn sse_bytes(api: Api, turn: &Turn) -> Vec<u8> {
    let api = match api {
        Api::Messages => ScriptedApi::Messages,
        Api::Responses => ScriptedApi::Responses,
        Api::Chat => ScriptedApi::Chat,
    };
    iteron_testkit::scripted_model::sse_bytes(api, turn)
}

fn question(provider: &Provider) -> Encoded {
    let mut conversation = Conversation::new("system");
    conversation.push_user("hello").unwrap();
    let question = Question { model: "scripted", max_tokens: 1024, tools: &[], conversation: &conversation };
    provider.encode(&question).unwrap()
}

fn config(api: Api, base: &str, limits: Limits) -> ProviderConfig {
    let base = if api == Api::Messages { base.to_owned() } else { format!("{base}/v1") };
    ProviderConfig::new(api, &base, ApiKey::new("test-key").unwrap(), limits).unwrap()
}

/// Asks a server with `script`; gives the answer and what was observed, one word each.
async fn ask(
    api: Api,
    script: &str,
    limits: Limits,
) -> (Result<Answer, ProviderError>, Vec<String>, ScriptedModel) {
    let listen = "127.0.0.1:0".parse().unwrap();
    let server = ScriptedModel::start(Script::from_json(script).unwrap(), listen).await.unwrap();
    let (answer, seen) = ask_with(config(api, &server.base_url(), limits)).await;
    (answer, seen, server)
}

async fn ask_with(config: ProviderConfig) -> (Result<Answer, ProviderError>, Vec<String>) {
    let mut seen = Vec::new();
    let provider = Provider::new(config).unwrap();
    let answer = provider
        .ask(&question(&provider), |progress| {
            seen.push(match progress {
                Progress::Attempt { attempt } => format!("attempt {attempt}"),
                Progress::Text { .. } => "text".to_owned(),
                Progress::Failed { class, retry_in, .. } => {
                    format!("{} {}", class.as_str(), if retry_in.is_some() { "retried" } else { "final" })
                }
            });
        })
        .await;
    seen.dedup();
    (answer, seen)
}

fn quick() -> Limits {
    Limits {
        idle_timeout: Duration::from_millis(300),
        backoff_first: Duration::from_millis(10),
        attempts_max: 3,
        ..Limits::default()
    }
}
