//! One front end: reads its calls, answers them, and passes on what the hub tells.

use std::sync::Arc;

use futures_util::StreamExt;
use iteron_protocol::rpc::{
    Control, Initialize, Initialized, MESSAGE_BYTES_MAX, RpcCall, RpcErrorCode, Submit,
};
use iteron_protocol::{AgentId, ControlOp, Operation, PROTOCOL_VERSION, SessionId, SubmissionEnvelope};
use iteron_runtime::{SubmitError, Submitter};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::sync::CancellationToken;

use crate::hub::{Hub, QUEUE_MAX, Subscriber};
use crate::message::{self, Refusal, Request};

/// What a connection needs of the session.
#[derive(Debug, Clone)]
pub struct Session {
    pub session_id: SessionId,
    pub agent_id: AgentId,
    pub submitter: Submitter,
    pub hub: Hub,
}

/// What the end of a front end's input means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// It left; the session goes on.
    Leave,
    /// Nobody else will come: the session is drained, and what it still tells is written.
    Drain,
}

/// Serves one front end, until its input ends, it does not read, or the session has told it all.
pub async fn serve(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Send + Unpin + 'static,
    session: Session,
    at_end: AtEnd,
) {
    let (queue, queued) = mpsc::channel(QUEUE_MAX);
    let mut writing = tokio::spawn(write(output, queued));
    let subscriber = Subscriber { queue, cut: CancellationToken::new() };
    let cut = subscriber.cut.clone();
    let mut connection = Connection { session, subscriber, initialized: false };
    let mut lines = FramedRead::new(input, LinesCodec::new_with_max_length(MESSAGE_BYTES_MAX));
    loop {
        let line = tokio::select! {
            biased;
            () = cut.cancelled() => return writing.abort(),
            () = connection.session.hub.over() => break,
            // It is gone.
            _ = &mut writing => return connection.leave(at_end),
            line = lines.next() => line,
        };
        match line {
            Some(Ok(line)) if line.trim().is_empty() => {}
            Some(Ok(line)) => connection.line(&line),
            Some(Err(error)) => {
                connection.unreadable(&error);
                connection.leave(at_end);
                break;
            }
            None => {
                connection.leave(at_end);
                break;
            }
        }
    }
    // What is queued, or still comes, is written.
    drop(connection);
    tokio::select! {
        () = cut.cancelled() => writing.abort(),
        _ = &mut writing => {}
    }
}

async fn write(output: impl AsyncWrite + Unpin, mut queued: mpsc::Receiver<Arc<str>>) {
    let mut output = BufWriter::new(output);
    while let Some(line) = queued.recv().await {
        let written = async {
            output.write_all(line.as_bytes()).await?;
            output.write_all(b"\n").await?;
            // Sent when nothing else waits.
            if queued.is_empty() { output.flush().await } else { Ok(()) }
        };
        if let Err(error) = written.await {
            return tracing::debug!(%error, "a front end is gone");
        }
    }
}

struct Connection {
    session: Session,
    subscriber: Subscriber,
    initialized: bool,
}

impl Connection {
    fn line(&mut self, line: &str) {
        let answer = match message::parse(line) {
            Ok(Request { id, call }) => match self.carry_out(call) {
                Ok(result) => id.map(|id| message::result(&id, &result)),
                Err((code, message)) => message::error(&Refusal { id, code, message }),
            },
            Err(refusal) => message::error(&refusal),
        };
        if let Some(answer) = answer {
            self.answer(answer);
        }
    }

    fn carry_out(&mut self, call: RpcCall) -> Result<Value, (RpcErrorCode, String)> {
        let refuse = |code, message: &str| Err((code, message.to_owned()));
        let Session { session_id, agent_id, submitter, hub } = &self.session;
        match call {
            RpcCall::Initialize(Initialize { protocol_version }) if protocol_version != PROTOCOL_VERSION => {
                refuse(RpcErrorCode::Version, &format!("version {PROTOCOL_VERSION} is spoken here"))
            }
            RpcCall::Initialize(_) if self.initialized => {
                refuse(RpcErrorCode::NotInitialized, "initialize comes once")
            }
            RpcCall::Initialize(_) => {
                self.initialized = true;
                Ok(json!(Initialized {
                    protocol_version: PROTOCOL_VERSION,
                    session_id: session_id.clone(),
                    agent_id: agent_id.clone(),
                    server_version: env!("CARGO_PKG_VERSION").to_owned(),
                }))
            }
            _ if !self.initialized => refuse(RpcErrorCode::NotInitialized, "initialize comes first"),
            RpcCall::Subscribe(_) => {
                if hub.subscribe(self.subscriber.clone()) {
                    Ok(json!({}))
                } else {
                    refuse(RpcErrorCode::Ended, "the session has ended")
                }
            }
            RpcCall::Submit(Submit { submission_id, prompt }) => {
                submit(submitter, SubmissionEnvelope::new(submission_id, Operation::Prompt(prompt)))
            }
            RpcCall::Control(Control { submission_id, operation }) => {
                submit(submitter, SubmissionEnvelope::new(submission_id, Operation::Control(operation)))
            }
        }
    }

    fn unreadable(&self, error: &LinesCodecError) {
        let message = match error {
            LinesCodecError::MaxLineLengthExceeded => {
                format!("a message has more than {MESSAGE_BYTES_MAX} bytes")
            }
            LinesCodecError::Io(error) => error.to_string(),
        };
        let refusal = Refusal { id: Some(Value::Null), code: RpcErrorCode::Parse, message };
        if let Some(answer) = message::error(&refusal) {
            self.answer(answer);
        }
    }

    fn answer(&self, line: String) {
        if self.subscriber.queue.try_send(line.into()).is_err() {
            tracing::warn!("a front end does not read its answers, and is disconnected");
            self.subscriber.cut.cancel();
        }
    }

    fn leave(&self, at_end: AtEnd) {
        match at_end {
            AtEnd::Leave => self.session.hub.unsubscribe(&self.subscriber),
            AtEnd::Drain => {
                // Fails only when the session has ended.
                let _ = self.session.submitter.control(ControlOp::DrainSession);
            }
        }
    }
}

fn submit(submitter: &Submitter, envelope: SubmissionEnvelope) -> Result<Value, (RpcErrorCode, String)> {
    submitter.submit(envelope).map(|()| json!({})).map_err(|error| {
        let code = match error {
            SubmitError::Full => RpcErrorCode::Full,
            SubmitError::Ended => RpcErrorCode::Ended,
        };
        (code, error.to_string())
    })
}
