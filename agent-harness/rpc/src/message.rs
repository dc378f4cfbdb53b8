//! From a line to a call, and from an answer to a line.

use iteron_protocol::rpc::{RpcCall, RpcErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A request, or a notification when it has no id.
#[derive(Debug)]
pub(crate) struct Request {
    pub id: Option<Value>,
    pub call: RpcCall,
}

/// Why a line is no request, and whom to tell.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub id: Option<Value>,
    pub code: RpcErrorCode,
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    jsonrpc: String,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    method: String,
    #[serde(default)]
    params: Option<Value>,
}

/// An id that is there, `null` included.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

const METHODS: &[&str] = &["initialize", "subscribe", "submit", "control"];

pub(crate) fn parse(line: &str) -> Result<Request, Refusal> {
    // An error of a request that cannot be read has the id null.
    let unread = |code, message| Refusal { id: Some(Value::Null), code, message };
    let value: Value =
        serde_json::from_str(line).map_err(|error| unread(RpcErrorCode::Parse, error.to_string()))?;
    let given = value.get("id").cloned();
    let Raw { jsonrpc, id, method, params } = serde_json::from_value(value).map_err(|error| {
        let id = Some(given.filter(is_id).unwrap_or(Value::Null));
        Refusal { id, code: RpcErrorCode::InvalidRequest, message: error.to_string() }
    })?;
    if jsonrpc != "2.0" || !id.as_ref().is_none_or(is_id) {
        let message = "not a request of JSON-RPC 2.0".to_owned();
        return Err(unread(RpcErrorCode::InvalidRequest, message));
    }
    if !METHODS.contains(&method.as_str()) {
        let message = format!("there are {}", METHODS.join(", "));
        return Err(Refusal { id, code: RpcErrorCode::MethodNotFound, message });
    }
    let call = json!({"method": method, "params": params.unwrap_or_else(|| json!({}))});
    match serde_json::from_value(call) {
        Ok(call) => Ok(Request { id, call }),
        Err(error) => Err(Refusal { id, code: RpcErrorCode::InvalidParams, message: error.to_string() }),
    }
}

const fn is_id(id: &Value) -> bool {
    matches!(id, Value::String(_) | Value::Number(_) | Value::Null)
}

#[derive(Serialize)]
struct Told<'a, T> {
    jsonrpc: &'static str,
    #[serde(flatten)]
    notification: &'a T,
}

pub(crate) fn notification(of: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Told { jsonrpc: "2.0", notification: of })
}

pub(crate) fn result(id: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// Nothing for a notification, which is not answered.
pub(crate) fn error(refusal: &Refusal) -> Option<String> {
    let Refusal { id, code, message } = refusal;
    let error = json!({"code": code.code(), "message": message});
    id.as_ref().map(|id| json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// JSON that is nearly a request, and text that is nearly JSON.
    fn line() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "jsonrpc",
            "2.0",
            "id",
            "method",
            "params",
            "submit",
            "control",
            "initialize",
            "submission_id",
            "prompt",
            "operation",
            "op",
            "cancel_turn",
            "protocol_version",
            "s-1",
            "",
        ]);
        let leaf = prop_oneof![
            word.clone().prop_map(|word| json!(word)),
            any::<i64>().prop_map(|number| json!(number)),
            Just(json!(null)),
        ];
        let json = leaf.prop_recursive(4, 32, 6, move |inner| {
            let object =
                prop::collection::btree_map(word.clone().prop_map(str::to_owned), inner.clone(), 0..6);
            prop_oneof![
                object.prop_map(|object| json!(object)),
                prop::collection::vec(inner, 0..4).prop_map(|list| json!(list)),
            ]
        });
        let cut = (json, any::<prop::sample::Index>(), any::<bool>());
        cut.prop_map(|(json, at, whole)| {
            let text = json.to_string();
            if whole { text } else { text.chars().take(at.index(text.len() + 1)).collect() }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 5000, ..ProptestConfig::default() })]

        /// Whatever comes, its answer is one object of JSON-RPC, or none where none is due.
        #[test]
        fn whatever_comes_is_a_request_or_is_refused_in_form(line in line()) {
            if let Err(refusal) = parse(&line)
                && let Some(answer) = error(&refusal)
            {
                let answer: Value = serde_json::from_str(&answer).unwrap();
                prop_assert_eq!(&answer["jsonrpc"], "2.0");
                prop_assert!(answer.get("id").is_some_and(is_id));
                prop_assert!(answer["error"]["code"].as_i64().is_some_and(|code| (-32700..=-32600).contains(&code)));
            }
        }
    }

    #[test]
    fn what_is_no_request_is_refused_by_its_code() {
        for (line, id, code) in [
            ("{", Some(json!(null)), -32700),
            ("[]", Some(json!(null)), -32600),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"subscribe"}]"#, Some(json!(null)), -32600),
            (r#"{"id":1,"method":"subscribe"}"#, Some(json!(1)), -32600),
            (r#"{"jsonrpc":"1.0","id":1,"method":"subscribe"}"#, Some(json!(null)), -32600),
            (r#"{"jsonrpc":"2.0","id":{},"method":"subscribe"}"#, Some(json!(null)), -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":"subscribe","more":1}"#, Some(json!(1)), -32600),
            (r#"{"jsonrpc":"2.0","id":"a","method":"reboot"}"#, Some(json!("a")), -32601),
            (r#"{"jsonrpc":"2.0","method":"reboot"}"#, None, -32601),
            (r#"{"jsonrpc":"2.0","id":2,"method":"submit","params":{"prompt":"x"}}"#, Some(json!(2)), -32602),
            (r#"{"jsonrpc":"2.0","id":2,"method":"submit","params":[]}"#, Some(json!(2)), -32602),
            (
                r#"{"jsonrpc":"2.0","id":2,"method":"control","params":{"submission_id":"../x","operation":{"op":"drain_session"}}}"#,
                Some(json!(2)),
                -32602,
            ),
        ] {
            let refusal = parse(line).unwrap_err();
            assert_eq!((refusal.id, refusal.code.code()), (id, code), "{line}");
        }
    }

    #[test]
    fn requests_and_notifications_are_told_apart_by_the_id() {
        for (line, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"subscribe"}"#, Some(json!(7))),
            (r#"{"jsonrpc":"2.0","id":null,"method":"subscribe","params":{}}"#, Some(json!(null))),
            (r#"{"jsonrpc":"2.0","method":"subscribe"}"#, None),
        ] {
            assert_eq!(parse(line).unwrap().id, id, "{line}");
        }
    }
}
