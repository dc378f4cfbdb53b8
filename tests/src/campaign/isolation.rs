//! Field case 34, its timing: whether a foreign tenant is answered in another time than one that does not exist.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::lab::{Lab, TENANT};

/// Largest median difference (the project's requirement).
const DIFFERENCE_MAX: Duration = Duration::from_micros(50);
/// Two names of equal length: one has evidence, the other does not exist.
const NAMES: [&str; 2] = ["rival", "nobdy"];
const ROUTES: [&str; 9] = [
    "GET /v1/timeline?instance=sandbox-1&tenant=",
    "GET /v1/query?tenant=",
    "GET /v1/coverage?tenant=",
    "GET /v1/streams?tenant=",
    "GET /v1/collectors?tenant=",
    "GET /v1/checkpoint?tenant=",
    "GET /v1/proof/01980000-0000-7000-8000-000000000001?tenant=",
    "GET /v1/consistency/0/1?tenant=",
    "POST /v1/exports?tenant=",
];
/// Pairs asked before any is counted.
const WARMUP: u32 = 500;

/// Asks `pairs` pairs with a reader's certificate of another tenant over one TLS connection, each pair in random order.
pub fn isolation(pairs: u32, seed: u64) -> anyhow::Result<Value> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(None)?;
    lab.init_gateway()?;
    let events = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/events.jsonl");
    let gateway = lab.operator();
    for tenant in [TENANT, NAMES[0]] {
        let output = crate::lab::binary("activity")?
            .args(["--gateway", &gateway, "--tenant", tenant, "--format", "json", "import", events])
            .output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        ensure!(answer["stored"].as_u64() > Some(0), "nothing was imported: {answer}");
    }
    let credentials = lab.path("reader").display().to_string();
    let role = format!("reader@{TENANT}");
    let made = lab.activity(&["enroll", "--operator", "ann", "--role", &role, "--out", &credentials])?;
    ensure!(made.status.success(), "no certificate: {}", String::from_utf8_lossy(&made.stderr));
    let mut connection = Connection::open(&lab)?;
    let (mut differences, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    for n in 0..pairs + WARMUP {
        let route = ROUTES[rng.random_range(0..ROUTES.len())];
        let first = rng.random_range(0..2_usize);
        let mut answers = [(Duration::ZERO, Vec::new()), (Duration::ZERO, Vec::new())];
        for which in [first, 1 - first] {
            answers[which] = connection.ask(&format!("{route}{}", NAMES[which]))?;
        }
        let [(existing, there), (missing, nowhere)] = &answers;
        ensure!(there.starts_with(b"HTTP/1.1 403"), "{route}: {}", String::from_utf8_lossy(there));
        ensure!(there == nowhere, "{route}: the answers differ");
        if n >= WARMUP {
            let nanos = |time: &Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            differences.push(nanos(existing) - nanos(missing));
            times[0].push(nanos(existing));
            times[1].push(nanos(missing));
        }
    }
    let us = |nanos: i64| json!(format!("{}.{:03}", nanos / 1_000, (nanos % 1_000).abs()));
    let difference = median(&mut differences);
    let result = json!({
        "pairs": pairs,
        "median_difference_ns": difference,
        "median_existing_us": us(median(&mut times[0])),
        "median_missing_us": us(median(&mut times[1])),
        "limit_us": DIFFERENCE_MAX.as_micros().to_string(),
    });
    ensure!(
        u128::from(difference.unsigned_abs()) <= DIFFERENCE_MAX.as_nanos(),
        "a tenant that exists can be told by the time of the answer: {result}"
    );
    Ok(result)
}

/// Where operators connect over TLS, as the gateway's log says it.
fn operators(lab: &Lab) -> anyhow::Result<String> {
    let log = std::fs::read_to_string(lab.path("gateway.log"))?;
    let address = log.split("operators=Some(").nth(1).and_then(|rest| rest.split(')').next());
    Ok(address.context("the gateway's log names no operators' address")?.to_owned())
}

fn median(values: &mut [i64]) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

struct Connection(StreamOwned<ClientConnection, TcpStream>);

impl Connection {
    fn open(lab: &Lab) -> anyhow::Result<Self> {
        let file = |name: &str| lab.path("reader").join(name);
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_file_iter(file("ca.pem"))? {
            roots.add(authority?)?;
        }
        let chain = CertificateDer::pem_file_iter(file("ann.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(file("ann.key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let stream = TcpStream::connect(operators(lab)?)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let client = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost")?)?;
        Ok(Connection(StreamOwned::new(client, stream)))
    }

    /// One question; how long its answer took, and its bytes without the date.
    fn ask(&mut self, question: &str) -> anyhow::Result<(Duration, Vec<u8>)> {
        let request = format!("{question} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
        let begun = Instant::now();
        self.0.write_all(request.as_bytes())?;
        self.0.flush()?;
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let read = self.0.read(&mut buffer)?;
            ensure!(read > 0, "the gateway closed the connection");
            answer.extend_from_slice(&buffer[..read]);
            if is_whole(&answer)? {
                break;
            }
        }
        let took = begun.elapsed();
        let text = String::from_utf8_lossy(&answer);
        let kept = text.split("\r\n").filter(|line| !line.starts_with("date:"));
        Ok((took, kept.collect::<Vec<_>>().join("\r\n").into_bytes()))
    }
}

/// Whether the head is there, and as much of a body as it declares.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(false) };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("the answer has no length")?.trim().parse()?;
    Ok(body.len() >= length)
}
