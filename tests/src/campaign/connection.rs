//! A TCP connection of some milliseconds: its flow has its bytes and its owner.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{lab_with, load_with};
use crate::lab::Arena;

/// What the flow must show.
pub struct Connection {
    pub sent: usize,
    pub received: usize,
    pub pid: u32,
    pub port: u16,
    /// `network.flow.closed` of the sandbox.
    pub flows: Vec<Value>,
}

pub fn short_connection() -> anyhow::Result<Connection> {
    let (sent, received) = (1_234, 567);
    let arena = Arena::new("connection")?;
    let lab = lab_with(&[&arena])?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut vec![0; sent])?;
        stream.write_all(&vec![9; received])?;
        // Until the client has closed.
        stream.read(&mut [0]).map(drop)
    });
    let arguments = ["--connect", &address.to_string(), &sent.to_string(), &received.to_string()];
    let mut client = load_with(&arena, &arguments)?;
    let pid = client.id();
    ensure!(client.wait()?.success(), "the client failed");
    server.join().map_err(|_| anyhow::anyhow!("the server was lost"))?.context("the server failed")?;
    let closed = ["--instance", arena.name(), "--event", "network.flow.closed"];
    lab.wait_for("the flow", |lab| Ok(!lab.events(&closed)?.is_empty()))?;
    Ok(Connection { sent, received, pid, port: address.port(), flows: lab.events(&closed)? })
}
