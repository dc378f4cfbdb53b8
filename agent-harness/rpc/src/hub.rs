//! What a session tells, copied to everybody who subscribed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iteron_protocol::rpc::RpcNotification;
use iteron_protocol::{Acknowledgement, OutputEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::message;

/// Messages that a front end has not read yet. One that lets more come is disconnected.
pub const QUEUE_MAX: usize = 4096;

/// A front end as the hub knows it.
#[derive(Debug, Clone)]
pub(crate) struct Subscriber {
    pub queue: mpsc::Sender<Arc<str>>,
    /// Cancelled when it did not read.
    pub cut: CancellationToken,
}

/// Shared by all connections of a session.
#[derive(Debug, Clone, Default)]
pub struct Hub {
    subscribers: Arc<Mutex<Vec<Subscriber>>>,
    /// Cancelled when the session has told all it will.
    over: CancellationToken,
}

impl Hub {
    /// Copies what the session tells, until it has told all.
    pub async fn run(
        self,
        mut output: mpsc::Receiver<OutputEvent>,
        mut acknowledgements: mpsc::Receiver<Acknowledgement>,
    ) {
        let (mut events_open, mut acknowledgements_open) = (true, true);
        while events_open || acknowledgements_open {
            tokio::select! {
                // What became of a wish is worth more than what else happens.
                biased;
                told = acknowledgements.recv(), if acknowledgements_open => match told {
                    Some(told) => self.tell(&RpcNotification::Acknowledgement(told)),
                    None => acknowledgements_open = false,
                },
                event = output.recv(), if events_open => match event {
                    Some(event) => self.tell(&RpcNotification::Event(event)),
                    None => events_open = false,
                },
            }
        }
        let mut subscribers = self.subscribers();
        self.over.cancel();
        subscribers.clear();
    }

    /// Whether it is told from now on; not when there is nothing more to tell.
    pub(crate) fn subscribe(&self, subscriber: Subscriber) -> bool {
        let mut subscribers = self.subscribers();
        let is_over = self.over.is_cancelled();
        if !is_over && !subscribers.iter().any(|known| known.queue.same_channel(&subscriber.queue)) {
            subscribers.push(subscriber);
        }
        !is_over
    }

    pub(crate) fn unsubscribe(&self, subscriber: &Subscriber) {
        self.subscribers().retain(|known| !known.queue.same_channel(&subscriber.queue));
    }

    /// Resolves when the session has told all it will.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }

    fn tell(&self, notification: &RpcNotification) {
        let line: Arc<str> = match message::notification(notification) {
            Ok(line) => line.into(),
            Err(error) => {
                debug_assert!(false, "{error}");
                return tracing::error!(%error, "a notification cannot be written");
            }
        };
        self.subscribers().retain(|Subscriber { queue, cut }| {
            let sent = queue.try_send(Arc::clone(&line));
            if let Err(mpsc::error::TrySendError::Full(_)) = sent {
                tracing::warn!("a front end does not read, and is disconnected");
                cut.cancel();
            }
            sent.is_ok()
        });
    }

    fn subscribers(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
