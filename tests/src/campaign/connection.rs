//! A TCP connection of some milliseconds: its flow has its bytes and its owner.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{lab_with, load_with};
use crate::lab::{Arena, Lab};

/// What the flow must show.
pub struct Connection {
    pub sent: usize,
    pub received: usize,
    pub pid: u32,
    pub port: u16,
    /// `network.flow.closed` of the sandbox.
    pub flows: Vec<Value>,
}

/// A UDP socket that stays open: what was told of its flow while it was open, and after the collector had ended well.
pub fn open_datagram_socket() -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let arena = Arena::new("datagram")?;
    let mut lab = lab_with(&[&arena])?;
    let script = "exec 3<>/dev/udp/127.0.0.1/9; echo x >&3; read never < <(exec cat)";
    let mut command = Command::new("/bin/bash");
    let mut sender = arena.spawn(command.args(["-c", script]).stdin(Stdio::piped()).stderr(Stdio::null()))?;
    super::settle(&lab)?;
    let told = |lab: &Lab| -> anyhow::Result<Vec<String>> {
        let flows = lab.events(&["--instance", arena.name(), "--class", "network"])?;
        let udp = flows.iter().filter(|event| event["payload"]["protocol"] == "udp");
        Ok(udp.filter_map(|event| event["event_name"].as_str().map(str::to_owned)).collect())
    };
    let open = told(&lab)?;
    lab.collector.take().context("no collector")?.stop()?;
    let stopped = told(&lab)?;
    sender.kill()?;
    sender.wait()?;
    Ok((open, stopped))
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
