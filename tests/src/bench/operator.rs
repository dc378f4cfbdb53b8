//! Asks the gateway's local socket.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::lab::{Lab, TENANT};

pub struct Operator {
    socket: PathBuf,
}

impl Operator {
    pub fn of(lab: &Lab) -> Self {
        Operator { socket: lab.path("gateway/operator.sock") }
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        self.ask(Request::get(path), Bytes::new()).await
    }

    pub async fn get_json(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.get(path).await?)?)
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.ask(Request::post(path), body.to_string().into()).await?)?)
    }

    /// A one-time token for a host of the lab's tenant.
    pub async fn token(&self, host: &str) -> anyhow::Result<String> {
        let asked = serde_json::json!({ "tenant": TENANT, "host": host, "ttl_seconds": 600 });
        let made = self.post("/v1/tokens", &asked).await?;
        Ok(made["token"].as_str().context("the gateway gave no token")?.to_owned())
    }

    /// A counter of the gateway's store.
    pub async fn counter(&self, name: &str) -> anyhow::Result<u64> {
        let status = self.get_json("/v1/status").await?;
        status["health"]["counters"][name].as_u64().with_context(|| format!("no counter {name}: {status}"))
    }

    /// Events of a session, as `activity timeline` asks for them.
    pub async fn timeline(&self, session: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/timeline?tenant={TENANT}&session={session}&limit=10000");
        let answer = self.get(&path).await?;
        let last = answer.trim_ascii_end().rsplit(|b| *b == b'\n').next().unwrap_or_default();
        let tail: Value = serde_json::from_slice(last)?;
        tail["events"].as_u64().with_context(|| format!("no count of events: {tail}"))
    }

    async fn ask(&self, request: hyper::http::request::Builder, body: Bytes) -> anyhow::Result<Bytes> {
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = request
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}
