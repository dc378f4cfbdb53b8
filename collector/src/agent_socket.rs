//! The sandbox's Unix socket: declared events and scopes, from peers that the kernel names.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use activity_schema::submission::{ErrorAnswer, EventsAnswer, ScopeAnswer, ScopeRequest};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::libc::c_int;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{GetSockOpt, getsockopt};
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, oneshot};

/// Largest request body, bytes.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Connections at once. Who comes beyond that is told to come back, and it is accounted for.
const CONNECTIONS_MAX: usize = 128;
/// So many of them one uid can have alone. Of the others a uid gets few, so that none shuts the others out.
const CONNECTIONS_SHARED: usize = 64;
const CONNECTIONS_FEW: usize = 8;
/// A peer has this long to send its request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The peer of a connection, from SO_PEERCRED (unix(7)): credentials at connect, in our pid namespace.
#[derive(Debug, Clone)]
pub struct Peer {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    /// The process itself (SO_PEERPIDFD, since 6.5), so that a pid that was given again is not taken for it.
    pub process: Option<Arc<OwnedFd>>,
}

impl Peer {
    /// Whether the process that connected still runs. What procfs told about its pid before this was asked, it told
    /// about this process. Before 6.5 the answer is always yes.
    pub fn is_there(&self) -> bool {
        let Some(process) = &self.process else { return true };
        // A pidfd becomes readable when its process ends (pidfd_open(2)).
        let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
    }
}

/// What the recorder answers.
#[derive(Debug)]
pub enum Answer<T> {
    Ok(T),
    /// 4xx with the reason.
    Refused(String),
    /// 429: the agent's quota is used up for now.
    Later {
        retry_after_s: u64,
    },
}

/// Requests to the recorder.
#[derive(Debug)]
pub enum AgentRequest {
    Events {
        peer: Peer,
        body: Bytes,
        reply: oneshot::Sender<Answer<EventsAnswer>>,
    },
    Scope {
        peer: Peer,
        request: ScopeRequest,
        reply: oneshot::Sender<Answer<Option<ScopeAnswer>>>,
    },
    /// There was no room for its connection.
    TurnedAway {
        peer: Peer,
    },
    /// It runs in a pid namespace that cannot be seen from here.
    Unseen,
}

/// Where requests go; `false` when the recorder has no room now.
pub trait RequestSink: Clone + Send + Sync + 'static {
    fn send(&self, request: AgentRequest) -> bool;
}

/// The socket's place in the file system: whether agents can still find it there.
pub struct Listening {
    path: PathBuf,
    /// Device and inode of what was bound.
    bound: Mutex<Option<(u64, u64)>>,
    again: Notify,
}

impl Listening {
    #[must_use]
    pub fn at(path: &Path) -> Arc<Self> {
        Arc::new(Listening { path: path.to_owned(), bound: Mutex::new(None), again: Notify::new() })
    }

    /// Whether the path leads to the socket that is served.
    pub fn is_reachable(&self) -> bool {
        let bound = self.bound.lock().map_or(None, |bound| *bound);
        bound.is_some() && bound == inode(&self.path)
    }

    /// Has the socket bound once more, since it was removed or replaced.
    pub fn bind_again(&self) {
        self.again.notify_one();
    }

    /// Binds the socket. A stale one of a collector that died is replaced; any other file is left alone.
    pub fn bind(&self) -> io::Result<UnixListener> {
        let path = &self.path;
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a file that is no socket is there",
                ));
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        // Anyone in the sandbox may declare; what they may say is decided by who they are.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        if let Ok(mut bound) = self.bound.lock() {
            *bound = inode(path);
        }
        Ok(listener)
    }

    /// Removes the socket, if it is still ours.
    pub fn remove(&self) {
        if self.is_reachable() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Serves until the task is dropped.
pub async fn serve(
    mut listener: UnixListener,
    listening: Arc<Listening>,
    uids: Arc<[u32]>,
    sink: impl RequestSink,
) {
    let places = Arc::new(Places::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = listening.again.notified() => {
                match listening.bind() {
                    Ok(new) => listener = new,
                    Err(error) => tracing::warn!(%error, "the agent socket cannot be bound again"),
                }
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the agent socket cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(peer) = peer_of(&stream) else {
            let _ = stream.try_write(UNSEEN);
            sink.send(AgentRequest::Unseen);
            continue;
        };
        if !uids.is_empty() && peer.uid != 0 && !uids.contains(&peer.uid) {
            continue;
        }
        let Some(place) = Places::take(&places, peer.uid) else {
            let _ = stream.try_write(TURNED_AWAY);
            sink.send(AgentRequest::TurnedAway { peer });
            continue;
        };
        let sink = sink.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| handle(request, peer.clone(), sink.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(32 * 1024)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "agent connection ended");
            }
            drop(place);
        });
    }
}

/// The answer to a process that the kernel does not name to us.
const UNSEEN: &[u8] =
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: 72\r\nconnection: close\r\n\r\n{\"error\":\"your process is in a pid namespace that the collector lacks\"}\n";
/// The answer to a connection that has no place.
const TURNED_AWAY: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Connections of each uid.
#[derive(Default)]
struct Places(Mutex<HashMap<u32, usize>>);

struct Place {
    places: Arc<Places>,
    uid: u32,
}

impl Places {
    fn take(this: &Arc<Self>, uid: u32) -> Option<Place> {
        let mut taken = this.0.lock().ok()?;
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&uid).copied().unwrap_or(0));
        if all >= CONNECTIONS_MAX || (all >= CONNECTIONS_SHARED && own >= CONNECTIONS_FEW) {
            return None;
        }
        taken.insert(uid, own + 1);
        drop(taken);
        Some(Place { places: this.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Ok(mut taken) = self.places.0.lock() else { return };
        if let Some(own) = taken.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

fn peer_of(stream: &UnixStream) -> Option<Peer> {
    let credentials = stream.peer_cred().ok()?;
    let pid = u32::try_from(credentials.pid()?).ok().filter(|pid| *pid != 0)?;
    let process = getsockopt(stream, PeerPidfd).ok().map(Arc::new);
    Some(Peer { pid, uid: credentials.uid(), gid: credentials.gid(), process })
}

#[derive(Clone, Copy)]
struct PeerPidfd;

impl GetSockOpt for PeerPidfd {
    type Val = OwnedFd;

    #[allow(unsafe_code, reason = "an option that nix does not name")]
    fn get<F: AsFd>(&self, fd: &F) -> nix::Result<OwnedFd> {
        let mut pidfd: c_int = -1;
        const SIZE: nix::libc::socklen_t = 4;
        let mut length = SIZE;
        // SAFETY: the kernel writes one int into the place and size given.
        let result = unsafe {
            nix::libc::getsockopt(
                fd.as_fd().as_raw_fd(),
                nix::libc::SOL_SOCKET,
                nix::libc::SO_PEERPIDFD,
                (&raw mut pidfd).cast(),
                &raw mut length,
            )
        };
        nix::errno::Errno::result(result)?;
        // SAFETY: a descriptor that the kernel just made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
    }
}

async fn handle(
    request: Request<Incoming>,
    peer: Peer,
    sink: impl RequestSink,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let route = (request.method().clone(), request.uri().path().to_owned());
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            let text = format!("the body is longer than {BODY_BYTES_MAX} bytes or was cut short");
            return Ok(refused(StatusCode::PAYLOAD_TOO_LARGE, &text));
        }
        Err(_) => return Ok(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    };
    Ok(match (route.0, route.1.as_str()) {
        (Method::POST, "/v1/events") => {
            let (reply, answer) = oneshot::channel();
            respond(sink.send(AgentRequest::Events { peer, body, reply }), answer).await
        }
        (Method::POST, "/v1/scopes") => match serde_json::from_slice::<ScopeRequest>(&body) {
            Ok(request) => {
                let (reply, answer) = oneshot::channel();
                let sent = sink.send(AgentRequest::Scope { peer, request, reply });
                let answer = async { answer.await.map(nothing_as_object) };
                respond_with(sent, answer).await
            }
            Err(error) => refused(StatusCode::BAD_REQUEST, &format!("not a scope request: {error}")),
        },
        _ => refused(StatusCode::NOT_FOUND, "this socket has POST /v1/events and POST /v1/scopes"),
    })
}

/// A closed scope answers `{}`.
fn nothing_as_object(answer: Answer<Option<ScopeAnswer>>) -> Answer<serde_json::Value> {
    match answer {
        Answer::Ok(scope) => Answer::Ok(
            scope.and_then(|s| serde_json::to_value(s).ok()).unwrap_or_else(|| serde_json::json!({})),
        ),
        Answer::Refused(reason) => Answer::Refused(reason),
        Answer::Later { retry_after_s } => Answer::Later { retry_after_s },
    }
}

async fn respond<T: Serialize>(sent: bool, answer: oneshot::Receiver<Answer<T>>) -> Response<Full<Bytes>> {
    respond_with(sent, answer).await
}

async fn respond_with<T: Serialize, E>(
    sent: bool,
    answer: impl Future<Output = Result<Answer<T>, E>>,
) -> Response<Full<Bytes>> {
    if !sent {
        return later(1);
    }
    match answer.await {
        Ok(Answer::Ok(value)) => json(StatusCode::OK, &value),
        Ok(Answer::Refused(reason)) => refused(StatusCode::FORBIDDEN, &reason),
        Ok(Answer::Later { retry_after_s }) => later(retry_after_s),
        Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "the collector is stopping"),
    }
}

fn later(seconds: u64) -> Response<Full<Bytes>> {
    let mut response = refused(StatusCode::TOO_MANY_REQUESTS, "the quota of declared events is used up");
    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    response
}

fn refused(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    json(status, &ErrorAnswer { error: error.to_owned() })
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests;
