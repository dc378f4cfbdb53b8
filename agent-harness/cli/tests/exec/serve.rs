//! `iteron serve`: front ends in other processes, over pipes and over a socket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::lab::{Lab, Run, alive, binary, pid_of, until};

/// Only what hangs gets there.
const PATIENCE: Duration = Duration::from_secs(30);

fn served(lab: &Lab, arguments: &[&str]) -> Child {
    let plain = lab.command(&[]);
    let mut command = Command::new(binary());
    command.arg("serve").args(arguments).current_dir(lab.dir.path());
    for (name, value) in plain.as_std().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

/// A front end.
struct Client {
    input: Lines<BufReader<Box<dyn AsyncRead + Unpin>>>,
    output: Box<dyn AsyncWrite + Unpin>,
    /// What was told besides answers, in order.
    told: Vec<Value>,
    next: u64,
}

impl Client {
    fn new(input: impl AsyncRead + Unpin + 'static, output: impl AsyncWrite + Unpin + 'static) -> Self {
        let input: Box<dyn AsyncRead + Unpin> = Box::new(input);
        Self { input: BufReader::new(input).lines(), output: Box::new(output), told: Vec::new(), next: 0 }
    }

    fn of(child: &mut Child) -> Self {
        Self::new(child.stdout.take().unwrap(), child.stdin.take().unwrap())
    }

    async fn connect(path: &Path) -> Self {
        until("the socket", || path.exists()).await;
        let (input, output) = UnixStream::connect(path).await.unwrap().into_split();
        Self::new(input, output)
    }

    async fn send(&mut self, line: &str) {
        self.output.write_all(line.as_bytes()).await.unwrap();
        self.output.write_all(b"\n").await.unwrap();
        self.output.flush().await.unwrap();
    }

    /// The next message; nothing at the end.
    async fn next(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(PATIENCE, self.input.next_line()).await.expect("no message");
        line.unwrap().map(|line| serde_json::from_str(&line).unwrap())
    }

    /// Calls a method, and gives its result or its error's code.
    async fn call(&mut self, method: &str, params: Value) -> Result<Value, i64> {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
        loop {
            let message = self.next().await.expect("the connection ended");
            assert_eq!(message["jsonrpc"], "2.0");
            if message["id"] != json!(id) {
                self.told.push(message);
                continue;
            }
            return match message.get("error") {
                Some(error) => Err(error["code"].as_i64().unwrap()),
                None => Ok(message["result"].clone()),
            };
        }
    }

    async fn begin(&mut self) -> Value {
        let about = self.call("initialize", json!({"protocol_version": 1})).await.unwrap();
        assert_eq!(self.call("subscribe", json!({})).await.unwrap(), json!({}));
        about
    }

    async fn submit(&mut self, id: &str, prompt: &str) {
        let params = json!({"submission_id": id, "prompt": prompt});
        assert_eq!(self.call("submit", params).await.unwrap(), json!({}));
    }

    async fn control(&mut self, id: &str, operation: Value) {
        let params = json!({"submission_id": id, "operation": operation});
        assert_eq!(self.call("control", params).await.unwrap(), json!({}));
    }

    /// Reads until something is told, and gives it.
    async fn until(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        let mut at = 0;
        loop {
            if let Some(found) = self.told[at..].iter().find(|told| what(told)) {
                return found.clone();
            }
            at = self.told.len();
            let message = self.next().await.expect("the connection ended");
            self.told.push(message);
        }
    }

    async fn rest(&mut self) {
        while let Some(message) = self.next().await {
            self.told.push(message);
        }
    }

    /// States of a submission, in the order in which they were told.
    fn states(&self, id: &str) -> Vec<String> {
        let told = self.told.iter().filter(|told| told["method"] == "acknowledgement");
        let of_it = told.filter(|told| told["params"]["submission_id"] == id);
        of_it.map(|told| told["params"]["state"].as_str().unwrap().to_owned()).collect()
    }

    fn events(&self) -> Vec<String> {
        let events = self.told.iter().filter(|told| told["method"] == "event");
        events.map(|told| told["params"]["type"].as_str().unwrap().to_owned()).collect()
    }
}

fn is_end_of(id: &str) -> impl Fn(&Value) -> bool {
    move |told| {
        let state = &told["params"]["state"];
        told["params"]["submission_id"] == id
            && state != "received"
            && state != "admitted"
            && !state.is_null()
    }
}

fn is_event(kind: &str) -> impl Fn(&Value) -> bool {
    move |told| told["params"]["type"] == kind
}

async fn ended(child: Child) -> Run {
    Run::of(child).await
}

#[tokio::test]
async fn a_session_is_steered_over_standard_input_and_output() {
    let lab = Lab::new(r#"[{"text": "one"}, {"text": "two"}]"#).await;
    let mut child = served(&lab, &["--stdio", "--session", "s-1", "--record", "records"]);
    let mut client = Client::of(&mut child);
    let about = client.begin().await;
    assert_eq!((&about["session_id"], &about["protocol_version"]), (&json!("s-1"), &json!(1)));
    client.submit("p-1", "first").await;
    client.submit("p-2", "second").await;
    client.until(is_end_of("p-2")).await;
    client.control("q", json!({"op": "quit_frontend"})).await;
    client.rest().await;
    for id in ["p-1", "p-2"] {
        assert_eq!(client.states(id), ["received", "admitted", "applied"]);
    }
    assert_eq!(client.states("q"), ["received", "applied"]);
    assert_eq!(client.events().last().unwrap(), "session.ended");
    assert_eq!(client.events().iter().filter(|kind| *kind == "model.completed").count(), 2);
    assert_eq!(ended(child).await.code, Some(0));
}

#[tokio::test]
async fn front_ends_on_a_socket_hear_the_same_and_any_of_them_cancels() {
    let silent = json!({"text": "never", "faults": {"stall_ms": 600_000, "stall_at_event": 3}});
    let lab = Lab::new(&json!([silent, {"text": "ok"}]).to_string()).await;
    let child = served(&lab, &["--socket", "iteron.sock"]);
    let path = lab.path("iteron.sock");
    let (mut first, mut second) = (Client::connect(&path).await, Client::connect(&path).await);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(first.begin().await, second.begin().await);
    first.submit("p-1", "hang").await;
    first.submit("p-2", "wait").await;
    second.until(is_event("model.text")).await;
    let begun = Instant::now();
    second.control("c-1", json!({"op": "cancel_turn", "expected": "p-1"})).await;
    first.until(is_end_of("p-2")).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(first.states("p-2"), ["received", "requeued"]);
    // A stale cancel stops nothing, and the same id again is told where it is.
    second.control("c-2", json!({"op": "cancel_turn", "expected": "p-1"})).await;
    second.until(is_end_of("c-2")).await;
    assert_eq!(second.states("c-2"), ["received", "rejected"]);
    first.submit("p-2", "wait").await;
    first.until(is_end_of("c-2")).await;
    first.submit("p-3", "go on").await;
    first.until(is_end_of("p-3")).await;
    assert_eq!(first.states("p-2"), ["received", "requeued", "requeued"]);

    // One that leaves takes nothing with it.
    drop(second);
    first.until(|told| told["params"]["type"] == "model.completed").await;
    first.control("d", json!({"op": "quit_frontend"})).await;
    first.rest().await;
    assert_eq!(first.events().last().unwrap(), "session.ended");
    assert_eq!(ended(child).await.code, Some(0));
    assert!(!path.exists(), "the socket is left behind");
}

#[tokio::test]
async fn what_is_out_of_order_or_too_long_is_refused_and_harms_nobody() {
    let lab = Lab::new(r#"[{"text": "ok"}]"#).await;
    let child = served(&lab, &["--socket", "iteron.sock"]);
    let path = lab.path("iteron.sock");
    let mut client = Client::connect(&path).await;
    let prompt = json!({"submission_id": "p-1", "prompt": "x"});
    assert_eq!(client.call("submit", prompt.clone()).await, Err(-32002));
    assert_eq!(client.call("initialize", json!({"protocol_version": 2})).await, Err(-32001));
    assert_eq!(client.call("initialize", json!({"protocol_version": 1, "more": 1})).await, Err(-32602));
    client.begin().await;
    assert_eq!(client.call("initialize", json!({"protocol_version": 1})).await, Err(-32002));
    assert_eq!(client.call("reboot", json!({})).await, Err(-32601));
    client.send("{nonsense").await;
    let error = client.until(|told| told.get("error").is_some()).await;
    assert_eq!((&error["id"], &error["error"]["code"]), (&Value::Null, &json!(-32700)));
    client.submit("empty", " ").await;
    client.until(is_end_of("empty")).await;
    assert_eq!(client.states("empty"), ["received", "rejected"]);

    let mut other = Client::connect(&path).await;
    // 24 MiB and 64 KiB: the longest prompt, all of it escaped.
    let line = vec![b'x'; 6 * 4 * 1024 * 1024 + 64 * 1024 + 1];
    let _ = other.output.write_all(&line).await;
    let refused = other.next().await.expect("no answer");
    assert_eq!(refused["error"]["code"], -32700);
    assert_eq!(other.next().await, None);

    // A notification is carried out and not answered.
    client.send(r#"{"jsonrpc":"2.0","method":"submit","params":{"submission_id":"p-1","prompt":"x"}}"#).await;
    client.until(is_end_of("p-1")).await;
    client.control("q", json!({"op": "quit_frontend"})).await;
    client.rest().await;
    assert_eq!(ended(child).await.code, Some(0));
}

/// It is cut off when its 4,096 messages are full for two seconds, and the others hear all.
#[tokio::test]
async fn a_front_end_that_does_not_read_holds_up_nobody() {
    // Eight letters an event, and more events than the queue and the socket hold.
    let script = json!([{"text": "x".repeat(160_000)}, {"text": "ok"}]);
    let lab = Lab::new(&script.to_string()).await;
    let child = served(&lab, &["--socket", "iteron.sock"]);
    let path = lab.path("iteron.sock");
    let (mut reads, mut sleeps) = (Client::connect(&path).await, Client::connect(&path).await);
    reads.begin().await;
    sleeps.begin().await;
    reads.submit("p-1", "talk").await;
    reads.until(is_event("model.completed")).await;
    let letters = |client: &Client| -> usize {
        let text = client.told.iter().filter(|told| told["params"]["type"] == "model.text");
        text.map(|told| told["params"]["text"].as_str().unwrap().len()).sum()
    };
    assert_eq!(letters(&reads), 160_000);
    reads.submit("p-2", "go on").await;
    reads.until(is_end_of("p-2")).await;
    sleeps.rest().await;
    assert!(letters(&sleeps) < 160_000, "it was not cut off");
    reads.control("q", json!({"op": "quit_frontend"})).await;
    reads.rest().await;
    let run = ended(child).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("does not read, and is disconnected"), "{}", run.stderr);
}

#[tokio::test]
async fn a_process_of_another_user_is_turned_away() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let lab = Lab::new("[]").await;
    let child = served(&lab, &["--socket", "iteron.sock"]);
    let path = lab.path("iteron.sock");
    until("the socket", || path.exists()).await;
    let ask = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.settimeout(20)\ns.connect(sys.argv[1])\n\
        s.sendall(b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocol_version\":1}}\\n')\n\
        print(len(s.recv(100)))";
    let as_user = |uid: u32| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", ask]).arg(&path);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        let output = command.output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    std::fs::set_permissions(lab.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(as_user(65_534).1.contains("PermissionError"), "the socket's mode let it in");
    // Even if somebody opens the socket to all.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (answered, error) = as_user(65_534);
    assert!(
        answered == "0\n" || error.contains("ConnectionResetError") || error.contains("BrokenPipe"),
        "{answered} {error}"
    );
    assert_eq!(as_user(0).0, "100\n");
    kill(Pid::from_raw(pid_of(&child)), Signal::SIGTERM).unwrap();
    assert_eq!(ended(child).await.code, Some(130));
}

/// Nobody is left who could say anything: everything ends.
#[tokio::test]
async fn the_end_of_standard_input_drains_the_session() {
    let call = json!({"tool_use": [{"name": "shell", "input":
        {"command": "trap '' TERM; echo $$ > root.pid; while :; do sleep 0.1; done"}}]});
    let lab = Lab::new(&json!([call]).to_string()).await;
    let mut child = served(&lab, &["--stdio"]);
    let mut client = Client::of(&mut child);
    client.begin().await;
    client.submit("p-1", "hang").await;
    let root =
        || std::fs::read_to_string(lab.path("root.pid")).unwrap_or_default().trim().parse().unwrap_or(0);
    until("the tool", || root() != 0).await;
    client.output = Box::new(tokio::io::sink());
    client.rest().await;
    assert_eq!(client.events().last().unwrap(), "session.ended");
    assert!(!alive(root()));
    assert_eq!(ended(child).await.code, Some(130));
}
