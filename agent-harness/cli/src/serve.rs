//! `iteron serve`: a session that front ends steer by JSON-RPC.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use iteron_protocol::Outcome;
use iteron_rpc::{AtEnd, Hub, Listener, Session as RpcSession, serve as serve_connection};
use iteron_runtime::Session;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::arguments::ServeArguments;
use crate::setup::{self, Setup};
use crate::signals::Signals;

/// At the end, for what front ends have not read yet.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(1);

pub fn run(arguments: ServeArguments) -> ExitCode {
    setup::run(|| prepare(arguments), serve)
}

struct Prepared {
    setup: Setup,
    /// Nothing: standard input and output.
    listener: Option<Listener>,
}

fn prepare(arguments: ServeArguments) -> anyhow::Result<Prepared> {
    let setup = Setup::prepare(arguments.session)?;
    let listener = arguments.socket.as_deref().map(Listener::bind).transpose()?;
    Ok(Prepared { setup, listener })
}

async fn serve(prepared: Prepared, ownership: setup::Owner) -> anyhow::Result<Outcome> {
    let Prepared { setup, listener } = prepared;
    let signals = Signals::listen().context("cannot listen for signals")?;
    let (session_id, agent_id) = setup.ids();
    let Session { submitter, output, acknowledgements, ended } = setup.start(ownership).await?;
    let hub = Hub::default();
    tokio::spawn(hub.clone().run(output, acknowledgements));
    let front_end = RpcSession { session_id, agent_id, submitter: submitter.clone(), hub };
    let (told_over, over) = oneshot::channel::<()>();
    let serving = match listener {
        Some(listener) => {
            // Signals and the listener hold ways to submit: the session waits for front ends.
            tokio::spawn(signals.submit_to(submitter));
            tokio::spawn(async move {
                let over = async { drop(over.await) };
                if let Err(error) = listener.serve(front_end, over).await {
                    tracing::error!(%error, "the socket cannot be served");
                }
            })
        }
        None => {
            tokio::spawn(signals.submit_to(submitter));
            let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
            tokio::spawn(serve_connection(input, output, front_end, AtEnd::Drain))
        }
    };
    let outcome = ended.await.context("the session failed inside the harness")?;
    let _ = told_over.send(());
    let _ = timeout(LAST_WORDS_WAIT, serving).await;
    Ok(outcome)
}
