//! Listeners: accept, TLS, HTTP/1.1 or HTTP/2, every bound in one place.

mod connection;
mod socket;
mod tls;

pub use socket::{BindError, Bound};
pub use tls::server_config;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::gateway::Gateway;
use connection::Limits;

/// A TLS handshake takes at most this long.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at once; a flood of half-open connections takes nothing from those who are through.
const HANDSHAKES_MAX: usize = 256;
/// Connections without a certificate at once; they can do nothing but enrol.
const ANONYMOUS_MAX: usize = 64;
/// Wait after `accept` failed (for lack of descriptors, most likely).
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Who is expected at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// TLS with a client certificate.
    Tls,
    /// A local socket whose peer's uid decides; no TLS.
    LocalAdmin,
}

/// What a listener serves.
#[derive(Clone)]
pub struct Service {
    pub gateway: Arc<Gateway>,
    pub router: axum::Router,
    pub door: Door,
    pub connections_max: usize,
    pub drain_max: Duration,
    pub tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    /// Becomes true when the server stops.
    pub stop: watch::Receiver<bool>,
}

/// Serves until the server stops; returns when every connection has ended, or the drain time is over.
pub async fn serve(bound: Bound, service: Service) {
    let limits = Arc::new(Limits {
        handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        anonymous: Arc::new(Semaphore::new(ANONYMOUS_MAX)),
        connections: Arc::new(Semaphore::new(service.connections_max)),
    });
    let mut stop = service.stop.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = bound.accept() => match accepted {
                Ok(stream) => {
                    service.gateway.metrics.connections_total.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connection::run(stream, service.clone(), Arc::clone(&limits)));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop(bound);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(service.drain_max, drained).await.is_err() {
        tracing::warn!(open = connections.len(), "connections did not end in time and are closed");
        connections.shutdown().await;
    }
}

/// Resolves when the server stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A closed channel means that the server is gone, which is no reason to go on.
    let _ = stop.wait_for(|stop| *stop).await;
}
