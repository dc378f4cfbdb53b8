//! One connection: handshake, requests, and the reasons for which it ends early.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use activity_schema::Timestamp;
use axum::body::Body;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower::Service as _;

use super::socket::{Accepted, Stream};
use super::{Door, HANDSHAKE_TIMEOUT, Service, stopped};
use crate::clock;
use crate::gateway::Connection;
use crate::identity::{Identity, OperatorIdentity, Peer, Role};

/// A request's header arrives within this time; it also ends idle HTTP/1.1 connections.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest header, bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Requests at once on an HTTP/2 connection.
const STREAMS_MAX: u32 = 32;
/// Streams that a client may open and reset before it is cut off (CVE-2023-44487).
const RESETS_MAX: usize = 32;
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection without requests is asked to end after this.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// A connection without a certificate lives this long.
const ANONYMOUS_LIFE_MAX: Duration = Duration::from_secs(60);
/// From the request to end until the connection is cut.
const CLOSING_MAX: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(5);

/// How many at once; shared by the connections of a listener.
pub(super) struct Limits {
    pub handshakes: Arc<Semaphore>,
    pub anonymous: Arc<Semaphore>,
    pub connections: Arc<Semaphore>,
}

/// When requests began and ended, milliseconds since the connection began.
struct Pulse {
    start: Instant,
    under_way: AtomicU64,
    last_ms: AtomicU64,
}

pub(super) async fn run(accepted: Accepted, service: Service, limits: Arc<Limits>) {
    let metrics = &service.gateway.metrics;
    let refused = || {
        metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
    };
    let from = accepted.from.clone();
    let Ok(handshake) = Arc::clone(&limits.handshakes).try_acquire_owned() else { return refused() };
    let Some((stream, connection)) = open(accepted, &service).await else { return };
    drop(handshake);
    let pool = if connection.peer.is_some() { &limits.connections } else { &limits.anonymous };
    let Ok(permit) = Arc::clone(pool).try_acquire_owned() else {
        tracing::warn!(from, "too many connections; one was closed");
        return refused();
    };
    metrics.connections_open.fetch_add(1, Ordering::Relaxed);
    serve(stream, connection, &service, permit).await;
    metrics.connections_open.fetch_sub(1, Ordering::Relaxed);
}

/// Proves who is at the other end.
async fn open(accepted: Accepted, service: &Service) -> Option<(Box<dyn Stream>, Connection)> {
    match service.door {
        Door::LocalAdmin => {
            let uid = accepted.uid?;
            let own = nix::unistd::geteuid().as_raw();
            if uid != own && uid != 0 {
                tracing::warn!(
                    from = accepted.from,
                    "only this server's user and root may use the local socket"
                );
                return None;
            }
            let peer = Arc::new(local_admin(uid));
            Some((accepted.stream, Connection { peer: Some(peer) }))
        }
        Door::Tls => {
            let config = Arc::clone(&service.tls.borrow());
            let handshake = TlsAcceptor::from(config).accept(accepted.stream);
            let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => stream,
                failed => {
                    service.gateway.metrics.handshakes_failed.fetch_add(1, Ordering::Relaxed);
                    let error = failed.map_or_else(
                        |_| "too slow".to_owned(),
                        |r| r.err().map(|e| e.to_string()).unwrap_or_default(),
                    );
                    tracing::debug!(from = accepted.from, error, "handshake failed");
                    return None;
                }
            };
            let certificates = stream.get_ref().1.peer_certificates();
            let peer = certificates.and_then(|c| c.first()).and_then(|c| {
                Peer::from_certificate(c)
                    .inspect_err(
                        |error| tracing::warn!(from = accepted.from, %error, "certificate names nobody"),
                    )
                    .ok()
            });
            Some((Box::new(stream), Connection { peer: peer.map(Arc::new) }))
        }
    }
}

/// A local user is its own certificate; the kernel vouches for it (`unix(7)`, `SO_PEERCRED`).
fn local_admin(uid: u32) -> Peer {
    Peer {
        identity: Identity::Operator(OperatorIdentity { name: format!("uid-{uid}"), role: Role::Admin }),
        issued_ms: u64::MAX,
        not_after: Timestamp::MAX,
    }
}

async fn serve(
    stream: Box<dyn Stream>,
    connection: Connection,
    service: &Service,
    _permit: OwnedSemaphorePermit,
) {
    let pulse =
        Arc::new(Pulse { start: Instant::now(), under_way: AtomicU64::new(0), last_ms: AtomicU64::new(0) });
    let anonymous = connection.peer.is_none();
    let builder = builder();
    let handler = hyper::service::service_fn({
        let (connection, pulse) = (connection.clone(), Arc::clone(&pulse));
        move |request| handle(request, connection.clone(), service.clone(), Arc::clone(&pulse))
    });
    let mut http = pin!(builder.serve_connection(TokioIo::new(stream), handler));
    let mut stop = service.stop.clone();
    let mut revocations = service.gateway.access.watch();
    let mut tick = tokio::time::interval(TICK);
    let mut closing: Option<Instant> = None;
    loop {
        tokio::select! {
            ended = http.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error, "connection ended");
                }
                return;
            }
            () = stopped(&mut stop), if closing.is_none() => {
                http.as_mut().graceful_shutdown();
                closing = Some(Instant::now());
            }
            Ok(()) = revocations.changed() => {
                let refused = connection.peer.as_ref()
                    .is_some_and(|peer| service.gateway.access.check(peer, clock::now()).is_err());
                if refused {
                    service.gateway.metrics.connections_revoked.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            _ = tick.tick() => {
                if closing.is_some_and(|since| since.elapsed() > CLOSING_MAX && !pulse.is_busy()) {
                    return;
                }
                let too_old = anonymous && pulse.start.elapsed() > ANONYMOUS_LIFE_MAX;
                if closing.is_none() && (pulse.idle() > IDLE_MAX || too_old) {
                    http.as_mut().graceful_shutdown();
                    closing = Some(Instant::now());
                }
            }
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // No date header: equal answers are equal bytes.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(64 * 1024)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .auto_date_header(false);
    builder
}

async fn handle(
    request: http::Request<hyper::body::Incoming>,
    connection: Connection,
    service: Service,
    pulse: Arc<Pulse>,
) -> Result<axum::response::Response, std::convert::Infallible> {
    let _beat = pulse.begin();
    let path = request.uri().path().to_owned();
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(connection);
    let response = service.router.clone().call(request).await?;
    service.gateway.metrics.count_request(&path, response.status().as_u16());
    Ok(response)
}

/// A request under way.
struct Beat(Arc<Pulse>);

impl Pulse {
    fn begin(self: &Arc<Self>) -> Beat {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Beat(Arc::clone(self))
    }

    fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    fn idle(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        let ms = u64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_ms.store(ms, Ordering::Relaxed);
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
