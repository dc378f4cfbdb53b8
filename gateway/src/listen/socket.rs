//! TCP and Unix sockets as one.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// A bound socket. A Unix socket is removed when dropped.
pub enum Bound {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf },
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {name}")]
pub struct BindError {
    name: String,
    #[source]
    source: io::Error,
}

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An accepted connection.
pub struct Accepted {
    pub stream: Box<dyn Stream>,
    /// Of the peer, on a Unix socket.
    pub uid: Option<u32>,
    /// For the log.
    pub from: String,
}

impl Bound {
    pub async fn tcp(address: SocketAddr) -> Result<Self, BindError> {
        let bound = TcpListener::bind(address).await;
        bound.map(Bound::Tcp).map_err(|source| BindError { name: address.to_string(), source })
    }

    /// Binds a socket with these permissions; a socket left over by a process that died is replaced.
    pub fn unix(path: &Path, mode: u32) -> Result<Self, BindError> {
        let bind = || {
            remove_stale(path)?;
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
            Ok(listener)
        };
        match bind() {
            Ok(listener) => Ok(Bound::Unix { listener, path: path.to_owned() }),
            Err(source) => Err(BindError { name: path.display().to_string(), source }),
        }
    }

    /// The address in use, for TCP; port 0 asks for any.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Bound::Tcp(listener) => listener.local_addr().ok(),
            Bound::Unix { .. } => None,
        }
    }

    pub async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Bound::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                // Answers are small and waited for.
                stream.set_nodelay(true)?;
                Ok(Accepted { stream: Box::new(stream), uid: None, from: from.to_string() })
            }
            Bound::Unix { listener, path } => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                let from = format!("unix:{} uid {uid}", path.display());
                Ok(Accepted { stream: Box::new(stream), uid: Some(uid), from })
            }
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Bound::Unix { path, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
    }
    std::fs::remove_file(path)
}
