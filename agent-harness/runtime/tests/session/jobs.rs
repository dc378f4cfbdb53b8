//! Background jobs over the life of a session.

use std::net::TcpStream;

use iteron_protocol::{ControlOp, JobId, SubmissionState};
use serde_json::{Value, json};

use crate::lab::{Lab, alive, shell};

fn background(command: &str) -> Value {
    json!({"tool_use": [{"name": "shell", "input": {"command": command, "background": true}}]})
}

fn job(input: &Value) -> Value {
    json!({"tool_use": [{"name": "job", "input": input}]})
}

const SERVER: &str = "exec python3 -c 'import os,socket,time; s=socket.socket(); s.bind((\"127.0.0.1\",0)); \
    s.listen(); open(\"port\",\"w\").write(f\"{s.getsockname()[1]} {os.getpid()}\\n\"); time.sleep(600)'";

/// Port and pid of the server that a job is.
async fn server(lab: &Lab) -> (u16, i32) {
    let read = || {
        let text = std::fs::read_to_string(lab.dir.path().join("port")).ok()?;
        let (port, pid) = text.trim_end().split_once(' ')?;
        text.ends_with('\n').then(|| (port.parse().unwrap(), pid.parse().unwrap()))
    };
    lab.until("the server", || read().is_some()).await;
    read().unwrap()
}

/// Field case 35: the foreground goes, the background lives on until it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_case_35_a_job_outlives_a_cancel_and_ends_when_it_is_told() {
    let mut lab = Lab::new(&json!([background(SERVER), shell("echo $$ > root.pid; sleep 600")])).await;
    lab.prompt("serve");
    let (port, pid) = server(&lab).await;
    let root = lab.dir.path().join("root.pid");
    lab.until("the tool", || std::fs::read_to_string(&root).is_ok_and(|text| text.ends_with('\n'))).await;
    lab.cancel();
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    let root: i32 = std::fs::read_to_string(&root).unwrap().trim().parse().unwrap();
    assert!(!alive(root) && alive(pid));
    TcpStream::connect(("127.0.0.1", port)).unwrap();

    let stop = lab.control(ControlOp::StopJob { job: JobId(1) });
    assert!(matches!(lab.end_of(&stop).await, SubmissionState::Applied { .. }));
    lab.until("the end of the job", || lab.entries("job_ended").len() == 1).await;
    assert!(!alive(pid));
    let ended = lab.entries("job_ended").remove(0);
    assert_eq!((&ended["job"], &ended["reaped"][0]["pid"]), (&json!(1), &json!(pid)));
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    lab.finish(ControlOp::QuitFrontend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_end_with_the_session_and_their_ends_are_recorded() {
    for op in [ControlOp::QuitFrontend, ControlOp::DrainSession] {
        let mut lab = Lab::new(&json!([background(SERVER), {"text": "It serves."}])).await;
        lab.prompt("serve");
        let (_, pid) = server(&lab).await;
        lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
        assert!(alive(pid));
        lab.finish(op).await;
        assert!(!alive(pid));
        assert_eq!(lab.entries("job_ended").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_lists_reads_writes_and_stops_jobs() {
    let mut lab = Lab::new(&json!([
        background("read line; echo got $line; sleep 600"),
        job(&json!({"action": "write", "job": 1, "text": "hello\n"})),
        job(&json!({"action": "read", "job": 1, "wait_ms": 500})),
        job(&json!({"action": "stop", "job": 1})),
        job(&json!({"action": "read", "job": 9})),
        job(&json!({"action": "fly", "job": 1})),
        {"text": "Done."},
    ]))
    .await;
    lab.prompt("talk to it");
    lab.until("the end of the run", || lab.entries("run_ended").len() == 1).await;
    let said: Vec<String> =
        lab.entries("tool_ended").iter().map(|entry| entry["output"].as_str().unwrap().to_owned()).collect();
    assert_eq!((said[0].as_str(), said[1].as_str()), ("job 1 runs", "written"));
    assert!(said[2].ends_with("got hello\n") && said[2].contains("\"running\""), "{}", said[2]);
    assert_eq!((said[3].as_str(), said[4].as_str()), ("told to stop", "there is no job 9"));
    let status: Vec<_> = lab.entries("tool_ended").iter().map(|entry| entry["status"].clone()).collect();
    assert_eq!(status[3..], ["completed", "failed", "denied"]);
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    lab.finish(ControlOp::QuitFrontend).await;
}
