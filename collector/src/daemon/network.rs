//! The talking thread: uplink, agent socket, signals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use activity_schema::Class;

use super::{Daemon, Mailbox, Message};
use crate::agent_socket::{self, Listening};
use crate::config::Config;
use crate::spool::{OsDisk, Sealed};
use crate::uplink::identity::{Identity, IdentityDir};
use crate::uplink::{EpochFeed, ToUplink, Uplink};

/// How long a stop waits for acknowledgements.
pub(super) const LINGER: Duration = Duration::from_secs(3);

pub(super) struct Network {
    thread: Option<std::thread::JoinHandle<()>>,
    to_uplink: Option<tokio::sync::mpsc::UnboundedSender<ToUplink>>,
    stop: tokio::sync::watch::Sender<bool>,
    /// `None` where the agent socket could not be bound.
    pub(super) listening: Option<Arc<Listening>>,
}

impl Network {
    pub(super) fn start(
        config: &Config,
        enrolment: Option<Identity>,
        dir: IdentityDir,
        daemon: &Daemon,
        mailbox: Mailbox,
    ) -> anyhow::Result<Self> {
        let feeds = feeds(daemon);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listening = Listening::at(&config.agent_socket);
        let listener = {
            let _guard = runtime.enter();
            listening.bind()
        };
        if let Err(error) = &listener {
            tracing::warn!(%error, path = %config.agent_socket.display(), "no agent socket");
        }
        let served = listener.is_ok().then(|| listening.clone());
        let uplink = match enrolment {
            Some(mut identity) => {
                if let Some(gateway) = &config.gateway {
                    identity.gateway_url.clone_from(&gateway.url);
                    identity.server_name.clone_from(&gateway.server_name);
                }
                let to_recorder = mailbox.clone();
                let deliver = Arc::new(move |m| to_recorder.leave(Message::Uplink(m)));
                Some(Uplink::new(dir, identity, feeds, deliver)?)
            }
            None => {
                tracing::info!("not enrolled: events stay in the spool");
                None
            }
        };
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let (to_uplink, from_recorder) = tokio::sync::mpsc::unbounded_channel();
        let uids: Arc<[u32]> = config.agent_uids.clone().into();
        let thread = std::thread::Builder::new().name("network".to_owned()).spawn(move || {
            runtime.block_on(async move {
                if let Ok(listener) = listener {
                    tokio::spawn(agent_socket::serve(listener, listening, uids, mailbox.clone()));
                }
                tokio::spawn(signals(mailbox));
                match uplink {
                    Some(uplink) => uplink.run(from_recorder, LINGER).await,
                    None => {
                        drop(from_recorder);
                        let _ = stopped.wait_for(|s| *s).await;
                    }
                }
            });
        })?;
        Ok(Network { thread: Some(thread), to_uplink: Some(to_uplink), stop, listening: served })
    }

    /// Tells the uplink that a batch may be sent.
    pub(super) fn told_of_sealed(&self) -> impl Fn(Sealed) + Send + 'static {
        let to_uplink = self.to_uplink.clone();
        move |Sealed { epoch, class, number, bytes }| {
            if let Some(to_uplink) = &to_uplink {
                let _ = to_uplink.send(ToUplink::Sealed { epoch, class, number, bytes });
            }
        }
    }

    /// Waits until the uplink has done what it could; `meanwhile` takes what it says.
    pub(super) fn finish(mut self, mut meanwhile: impl FnMut()) {
        const LOOK_EVERY: Duration = Duration::from_millis(10);
        self.to_uplink = None;
        let _ = self.stop.send(true);
        if let Some(listening) = &self.listening {
            listening.remove();
        }
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() {
                meanwhile();
                std::thread::sleep(LOOK_EVERY);
            }
            let _ = thread.join();
        }
        meanwhile();
    }
}

fn feeds(daemon: &Daemon) -> Vec<EpochFeed<OsDisk>> {
    let epochs = daemon.recorder.spool().epochs();
    epochs
        .map(|epoch| {
            let acked = Class::ALL
                .iter()
                .filter_map(|c| Some((*c, epoch.acks.streams.get(c.as_str())?.batch_number)))
                .collect::<BTreeMap<_, _>>();
            EpochFeed {
                epoch: epoch.identity.epoch.clone(),
                reader: epoch.reader(),
                acked,
                key: epoch.signer.public(),
                registered: epoch.is_registered(),
            }
        })
        .collect()
}

async fn signals(mailbox: Mailbox) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    if let Err(error) = super::signals().thread_unblock() {
        tracing::warn!(%error, "signals are not heard");
    }
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    mailbox.deliver(Message::Stop);
}
