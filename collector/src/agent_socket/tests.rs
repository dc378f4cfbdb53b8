use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::*;

#[test]
fn no_uid_shuts_the_others_out_and_places_come_back() {
    let places = Arc::new(Places::default());
    let mut held: Vec<_> = (0..64).map(|_| Places::take(&places, 7).unwrap()).collect();
    assert!(Places::take(&places, 7).is_none());
    held.pop();
    let other = Places::take(&places, 8).unwrap();
    assert!(Places::take(&places, 7).is_none(), "what is left is the others'");
    drop(other);
    held.push(Places::take(&places, 7).unwrap());
    for uid in 8..16 {
        held.extend((0..8).map(|_| Places::take(&places, uid).unwrap()));
        assert!(Places::take(&places, uid).is_none(), "{uid} has its share");
    }
    assert!(Places::take(&places, 16).is_none(), "all together are bounded");
    drop(held);
    assert!(places.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_socket_that_was_removed_or_replaced_is_not_reachable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let listening = Listening::at(&path);
    assert!(!listening.is_reachable());
    let _first = listening.bind().unwrap();
    assert!(listening.is_reachable());
    let _other = {
        std::fs::remove_file(&path).unwrap();
        assert!(!listening.is_reachable(), "removed");
        std::os::unix::net::UnixListener::bind(&path).unwrap()
    };
    assert!(!listening.is_reachable(), "replaced");
    let _second = listening.bind().unwrap();
    assert!(listening.is_reachable());
    listening.remove();
    std::fs::write(&path, "text").unwrap();
    assert!(listening.bind().is_err(), "no socket: left alone");
    assert_eq!(std::fs::read(&path).unwrap(), b"text");
}

/// Takes everything, or has room for nothing.
#[derive(Clone, Copy)]
struct Sink {
    room: bool,
}

impl RequestSink for Sink {
    fn send(&self, request: AgentRequest) -> bool {
        if let AgentRequest::Events { reply, .. } = request {
            let _ = reply.send(Answer::Ok(EventsAnswer::default()));
        }
        self.room
    }
}

/// What is answered to these bytes, and after which time. The client sends no more and waits.
async fn answer_to(sink: Sink, bytes: &[u8]) -> (String, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let listening = Listening::at(&dir.path().join("agent.sock"));
    let listener = listening.bind().unwrap();
    let server = tokio::spawn(serve(listener, listening.clone(), Arc::new([]), sink));
    let (mut read, mut write) = UnixStream::connect(&listening.path).await.unwrap().into_split();
    let start = Instant::now();
    let mut answer = [0; 12];
    // A body that is refused is not read to its end.
    let (_, read) = tokio::join!(write.write_all(bytes), read.read(&mut answer));
    let text = String::from_utf8_lossy(&answer[..read.unwrap_or(0)]).into_owned();
    server.abort();
    (text, start.elapsed())
}

fn post(declared: usize, body: &[u8]) -> Vec<u8> {
    let head = format!("POST /v1/events HTTP/1.1\r\nhost: x\r\ncontent-length: {declared}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

const ROOM: Sink = Sink { room: true };

#[tokio::test(start_paused = true)]
async fn a_body_of_more_than_256_kib_is_refused() {
    for (bytes, answer) in [(262_144, "HTTP/1.1 200"), (262_145, "HTTP/1.1 413")] {
        assert_eq!(answer_to(ROOM, &post(bytes, &vec![b'\n'; bytes])).await.0, answer, "{bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_or_a_body_that_does_not_come_is_waited_for_5_s() {
    for (sent, answer) in
        [(&b"POST /v1/events HTTP/1.1\r\nhost"[..], ""), (&post(10, b"12345"), "HTTP/1.1 408")]
    {
        let (found, after) = answer_to(ROOM, sent).await;
        assert!(found == answer && after.as_millis() / 10 == 500, "{found:?} after {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_told_to_come_back_when_the_recorder_has_no_room() {
    assert_eq!(answer_to(Sink { room: false }, &post(1, b"\n")).await.0, "HTTP/1.1 429");
}

/// On a kernel before 6.5 the process is not known, and nothing is refused for that.
#[tokio::test]
async fn a_peer_that_ended_is_not_taken_for_whoever_has_its_pid() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listening::at(&dir.path().join("s")).bind().unwrap();
    let path = dir.path().join("s");
    let script = "import socket,sys;s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);sys.stdin.read()";
    let Ok(mut child) = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .spawn()
    else {
        eprintln!("skipped: no python3");
        return;
    };
    let peer = peer_of(&listener.accept().await.unwrap().0).unwrap();
    assert_eq!(peer.pid, child.id());
    assert!(peer.is_there());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(peer.is_there(), peer.process.is_none());
}
