//! What a session tells, copied to everybody who subscribed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iteron_protocol::rpc::RpcNotification;
use iteron_protocol::{Acknowledgement, OutputEvent};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::message;

/// Messages that a front end has not read yet.
pub const QUEUE_MAX: usize = 4096;
/// Of these, kept free of events for acknowledgements and answers: a full control lane, and all prompts
/// that wait coming back.
const ROOM_FOR_CONTROL: usize = 512;
/// How long a front end whose queue is full may hold up the events of all; then it is disconnected.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);

/// A front end as the hub knows it.
#[derive(Debug, Clone)]
pub(crate) struct Subscriber {
    pub queue: mpsc::Sender<Arc<str>>,
    /// Cancelled when it did not read.
    pub cut: CancellationToken,
}

impl Subscriber {
    /// Whether an event may be queued. One that is gone is in nobody's way.
    fn has_room(&self) -> bool {
        self.queue.is_closed() || self.queue.capacity() > ROOM_FOR_CONTROL
    }

    /// Disconnects it; it is not kept.
    fn cut_off(&self) -> bool {
        tracing::warn!("a front end does not read, and is disconnected");
        self.cut.cancel();
        false
    }
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
        let mut full_since = None;
        while events_open || acknowledgements_open {
            let has_room = self.has_room();
            full_since = if has_room { None } else { full_since.or_else(|| Some(Instant::now())) };
            if full_since.is_some_and(|since| since.elapsed() > PATIENCE) {
                self.cut_full();
            }
            tokio::select! {
                // What became of a wish is worth more than what else happens.
                biased;
                told = acknowledgements.recv(), if acknowledgements_open => match told {
                    Some(told) => self.tell(&RpcNotification::Acknowledgement(told)),
                    None => acknowledgements_open = false,
                },
                () = sleep(POLL), if !has_room => {}
                // A run goes at the pace at which it is read.
                event = output.recv(), if events_open && has_room => match event {
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

    fn has_room(&self) -> bool {
        self.subscribers().iter().all(Subscriber::has_room)
    }

    fn cut_full(&self) {
        self.subscribers().retain(|subscriber| subscriber.has_room() || subscriber.cut_off());
    }

    fn tell(&self, notification: &RpcNotification) {
        let line: Arc<str> = match message::notification(notification) {
            Ok(line) => line.into(),
            Err(error) => {
                debug_assert!(false, "{error}");
                return tracing::error!(%error, "a notification cannot be written");
            }
        };
        self.subscribers().retain(|subscriber| match subscriber.queue.try_send(Arc::clone(&line)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => subscriber.cut_off(),
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }

    fn subscribers(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
