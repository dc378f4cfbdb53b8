//! The task that opens and closes scopes, one request at a time.
//!
//! It remembers what it opened under the caller's numbers. So a caller that did not wait for an
//! answer can still close its scope, and name it as a parent, once the answer has come.

use std::collections::BTreeMap;

use bytes::Bytes;
use iteron_protocol::{AgentId, Join, ScopeId, SessionId, ToolCallId};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::connection::Connection;

/// Requests waiting: a session opens and closes one scope a tool call.
pub(crate) const QUEUE_REQUESTS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeKind {
    Session,
    ToolCall,
}

#[derive(Debug)]
pub(crate) enum ScopeRequest {
    Open {
        number: u64,
        kind: ScopeKind,
        tool_call_id: Option<ToolCallId>,
        pid: u32,
        parent: Option<u64>,
        done: oneshot::Sender<Join>,
    },
    Close {
        number: u64,
    },
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Wire<'a> {
    Open {
        kind: ScopeKind,
        session_id: &'a SessionId,
        agent_id: &'a AgentId,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_call_id: Option<ToolCallId>,
        pid: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_scope_id: Option<&'a ScopeId>,
    },
    Close {
        scope_id: &'a ScopeId,
    },
}

#[derive(Deserialize)]
struct Opened {
    scope_id: ScopeId,
    join: String,
}

/// Runs until every sender is gone.
pub(crate) async fn run(
    mut connection: Connection,
    mut queue: mpsc::Receiver<ScopeRequest>,
    session_id: SessionId,
    agent_id: AgentId,
) {
    let mut open: BTreeMap<u64, ScopeId> = BTreeMap::new();
    while let Some(request) = queue.recv().await {
        match request {
            ScopeRequest::Open { number, kind, tool_call_id, pid, parent, done } => {
                if done.is_closed() {
                    // The process has gone on: its pid may be another's by now.
                    continue;
                }
                let parent_scope_id = parent.and_then(|number| open.get(&number));
                let wire = Wire::Open {
                    kind,
                    session_id: &session_id,
                    agent_id: &agent_id,
                    tool_call_id,
                    pid,
                    parent_scope_id,
                };
                if let Some(opened) = post_open(&mut connection, &wire).await {
                    let registered = opened.join == "registered";
                    open.insert(number, opened.scope_id);
                    let _ = done.send(if registered { Join::Registered } else { Join::Inferred });
                }
            }
            ScopeRequest::Close { number } => {
                if let Some(scope_id) = open.remove(&number) {
                    post(&mut connection, &Wire::Close { scope_id: &scope_id }).await;
                }
            }
        }
    }
}

async fn post_open(connection: &mut Connection, wire: &Wire<'_>) -> Option<Opened> {
    let body = post(connection, wire).await?;
    let opened = serde_json::from_slice(&body);
    if opened.is_err() {
        tracing::warn!("the collector's answer to a scope is not the documented one");
    }
    opened.ok()
}

/// Sends a request; nothing when it failed or was refused. A scope is a claim that can be made
/// only now: there is no second attempt.
async fn post(connection: &mut Connection, wire: &Wire<'_>) -> Option<Bytes> {
    let body = match serde_json::to_vec(wire) {
        Ok(body) => Bytes::from(body),
        Err(error) => {
            tracing::error!(%error, "cannot encode a scope request");
            return None;
        }
    };
    match connection.post("/v1/scopes", body).await {
        Ok(answer) if answer.status.is_success() => Some(answer.body),
        Ok(answer) => {
            tracing::warn!(status = answer.status.as_u16(), "the collector refused a scope request");
            None
        }
        Err(error) => {
            tracing::debug!(%error, "a scope request failed");
            None
        }
    }
}
