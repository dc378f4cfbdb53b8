//! The server's life: start, serve, take up new certificates, stop without losing what was accepted.

mod setup;

pub use setup::{Made, SetupError, init, issue_token};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::evidence::{Evidence, EvidenceError};
use crate::gateway::{Gateway, Settings};
use crate::listen::{self, BindError, Bound, Door, Service};
use crate::pki::{Authority, PkiError};
use crate::{audit, clock, collector_api, operator_api};

/// Anybody may reach the collectors' socket; TLS decides who is let in.
const COLLECTOR_SOCKET_MODE: u32 = 0o666;
const OPERATOR_SOCKET_MODE: u32 = 0o600;
/// How often the server's certificate is looked at.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(24 * 3600);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the evidence store cannot be opened")]
    Store(#[from] EvidenceError),
    #[error("the certificates cannot be used; `activity-gateway init` makes them")]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("{} is not a gateway's data directory; `activity-gateway init --data {}` makes one", .0.display(), .0.display())]
    Absent(PathBuf),
    #[error("the data directory cannot be used")]
    Data(#[from] std::io::Error),
}

/// A running server.
pub struct Server {
    pub gateway: Arc<Gateway>,
    /// Addresses in use; ports that were asked as 0 are known here.
    pub collector_address: Option<SocketAddr>,
    pub operator_address: Option<SocketAddr>,
    config: Config,
    tls: watch::Sender<Arc<rustls::ServerConfig>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    background: JoinSet<()>,
}

impl Server {
    pub async fn start(config: Config) -> Result<Self, StartError> {
        // Before anything is made: a mistyped path must not become a new gateway.
        if !config.data.join("pki/ca.pem").exists() {
            return Err(StartError::Absent(config.data));
        }
        let evidence = Evidence::open(config.store.clone())?;
        let authority = Authority::load(&config.data.join("pki"))?;
        let (tls, tls_watch) = watch::channel(listen::server_config(&authority, clock::now())?);
        let settings = Settings {
            certificate_lifetime: config.collector_lifetime,
            operator_lifetime: config.operator_lifetime,
            stall_max: config.stall_max,
        };
        let gateway = Arc::new(Gateway::new(&config.data, evidence, authority, settings)?);
        let (stop, stop_watch) = watch::channel(false);
        let mut server = Server {
            gateway: Arc::clone(&gateway),
            collector_address: None,
            operator_address: None,
            config: config.clone(),
            tls,
            stop,
            tasks: JoinSet::new(),
            background: JoinSet::new(),
        };
        let service = |router, door| Service {
            gateway: Arc::clone(&gateway),
            router,
            door,
            connections_max: config.connections_max,
            drain_max: config.drain_max,
            tls: tls_watch.clone(),
            stop: stop_watch.clone(),
        };
        let collectors = || service(collector_api::router(Arc::clone(&gateway)), Door::Tls);
        let operators = |door| service(operator_api::router(Arc::clone(&gateway)), door);
        if let Some(address) = config.collector_listen {
            let bound = Bound::tcp(address).await?;
            server.collector_address = bound.address();
            server.tasks.spawn(listen::serve(bound, collectors()));
        }
        if let Some(path) = &config.collector_unix {
            let bound = Bound::unix(path, COLLECTOR_SOCKET_MODE)?;
            server.tasks.spawn(listen::serve(bound, collectors()));
        }
        if let Some(address) = config.operator_listen {
            let bound = Bound::tcp(address).await?;
            server.operator_address = bound.address();
            server.tasks.spawn(listen::serve(bound, operators(Door::Tls)));
        }
        if let Some(path) = &config.operator_unix {
            let bound = Bound::unix(path, OPERATOR_SOCKET_MODE)?;
            server.tasks.spawn(listen::serve(bound, operators(Door::LocalAdmin)));
        }
        server.background.spawn(flush_audit(Arc::clone(&gateway)));
        tracing::info!(
            collectors = ?server.collector_address,
            operators = ?server.operator_address,
            data = %config.data.display(),
            "listening"
        );
        Ok(server)
    }

    /// Takes up the certificates that are on disk now, for new connections.
    pub fn reload_certificates(&self) -> Result<(), PkiError> {
        self.gateway.reload_authority(&self.config.data)?;
        self.tls.send_replace(listen::server_config(&self.gateway.authority(), clock::now())?);
        Ok(())
    }

    /// Serves until `stopped` resolves, taking up new certificates at `reload` and once a day.
    pub async fn run(
        self,
        stopped: impl Future<Output = ()>,
        mut reload: tokio::signal::unix::Signal,
    ) -> Result<(), EvidenceError> {
        let mut daily = tokio::time::interval(CERTIFICATE_CHECK);
        let mut stopped = std::pin::pin!(stopped);
        loop {
            tokio::select! {
                () = &mut stopped => return self.stop().await,
                Some(()) = reload.recv() => {}
                _ = daily.tick() => {}
            }
            match self.reload_certificates() {
                Ok(()) => tracing::info!("certificates are up to date"),
                Err(e) => {
                    tracing::error!(error = &e as &dyn std::error::Error, "certificates were not taken up");
                }
            }
        }
    }

    /// Accepts no more, answers what is under way, makes everything durable.
    pub async fn stop(mut self) -> Result<(), EvidenceError> {
        tracing::info!("stopping");
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        self.background.shutdown().await;
        self.gateway.audit.flush(&self.gateway.evidence).await;
        self.gateway.evidence.close().await?;
        tracing::info!("stopped");
        Ok(())
    }
}

async fn flush_audit(gateway: Arc<Gateway>) {
    let mut tick = tokio::time::interval(audit::FLUSH_INTERVAL);
    loop {
        tick.tick().await;
        gateway.audit.flush(&gateway.evidence).await;
    }
}

#[cfg(test)]
mod tests {
    use activity_store::{ControlRecord, Store};

    use super::*;
    use crate::gateway::tests::Lab;

    #[tokio::test(start_paused = true)]
    async fn refused_reads_are_written_every_10_s() {
        let lab = Lab::new();
        let written = || {
            let store = Store::open_read_only(&lab.dir.path().join("store")).unwrap();
            let records = store.control_records(1, 100).into_iter();
            records.filter(|(_, record)| matches!(record, ControlRecord::Read(read) if read.refused)).count()
        };
        let flushing = tokio::spawn(flush_audit(lab.gateway.clone()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        lab.gateway.audit.refused("somebody", "/v1/query");
        tokio::time::sleep(Duration::from_millis(9_900)).await;
        assert_eq!(written(), 0);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(written(), 1);
        flushing.abort();
    }
}
