//! A Unix socket that only this user may use.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use crate::connection::{AtEnd, Session, serve};

/// Front ends at one time.
const CONNECTIONS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {path}")]
    Bind {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0} is in use")]
    InUse(PathBuf),
    #[error("{0} is there already, and is no socket")]
    NoSocket(PathBuf),
}

/// A socket that is bound, and removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    listener: Option<StdListener>,
    path: PathBuf,
    /// Device and inode, so that another socket of the name is not taken for it.
    identity: (u64, u64),
}

impl Listener {
    /// Binds the socket with mode 0600. Changes the mask of new files for a moment: call it before there
    /// are threads. A socket that nobody listens on any more is replaced.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { path: path.to_owned(), source };
        if let Ok(there) = path.symlink_metadata() {
            if !there.file_type().is_socket() {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
            let answers = UnixStream::connect(path);
            if !answers.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                return Err(ListenError::InUse(path.to_owned()));
            }
        }
        // Bound beside its place: the name is there once somebody listens, so that nobody who waits for it
        // is refused, and no other process takes it for one that was left behind.
        let beside = path.with_file_name(format!(".i{}", std::process::id()));
        let mask = umask(Mode::from_bits_truncate(0o177));
        let bound = StdListener::bind(&beside);
        umask(mask);
        let listener = bound.map_err(failed)?;
        let placed = listener.set_nonblocking(true).and_then(|()| std::fs::rename(&beside, path));
        if let Err(source) = placed {
            let _ = std::fs::remove_file(&beside);
            return Err(failed(source));
        }
        let there = path.symlink_metadata().map_err(failed)?;
        let identity = (there.dev(), there.ino());
        Ok(Self { listener: Some(listener), path: path.to_owned(), identity })
    }

    /// Serves front ends of this user until `over` resolves, and then those that are there to their end.
    pub async fn serve(mut self, session: Session, over: impl Future<Output = ()>) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let listener = UnixListener::from_std(listener)?;
        let mut connections = JoinSet::new();
        let mut over = std::pin::pin!(over);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut over => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // As of too many open files: it may pass.
                    tracing::warn!(%error, "a front end cannot be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == geteuid().as_raw() => {}
                peer => {
                    tracing::warn!(?peer, "a process of another user is turned away");
                    continue;
                }
            }
            let session = session.clone();
            connections.spawn(async move {
                let (input, output) = stream.into_split();
                serve(input, output, session, AtEnd::Leave).await;
            });
        }
        drop(session);
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let there = self.path.symlink_metadata().map(|there| (there.dev(), there.ino()));
        if there.is_ok_and(|there| there == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_socket_is_its_users_alone_and_goes_with_its_listener() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path), Err(ListenError::InUse(_))));
        drop(listener);
        assert!(!path.exists());
        // One that was left behind is replaced; a file of somebody is not.
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists() && Listener::bind(&path).is_ok());
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert!(matches!(Listener::bind(Path::new("/nonexistent/s")), Err(ListenError::Bind { .. })));
    }
}
