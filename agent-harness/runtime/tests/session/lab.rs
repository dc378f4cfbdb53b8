//! A session, and a front end that keeps everything it hears.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iteron_protocol::{
    ClientSubmissionId, ControlOp, Operation, Outcome, OutputEvent, Permissions, SubmissionEnvelope,
    SubmissionState,
};
use iteron_provider::{Api, ApiKey, Limits, Provider, ProviderConfig};
use iteron_record::{HeadKey, verify};
use iteron_runtime::{Session, SessionConfig, SessionParts, SessionRecord, Submitter};
use iteron_testkit::scripted_model::{Script, ScriptedModel};
use iteron_tools::{FileTools, Ownership, ShellConfig, ShellTool, Toolbox};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Only what hangs gets there.
const PATIENCE: Duration = Duration::from_secs(30);

/// States of each submission in the order in which they were told, and when.
pub type Heard = BTreeMap<ClientSubmissionId, Vec<(SubmissionState, Instant)>>;

pub struct Lab {
    pub dir: TempDir,
    pub model: ScriptedModel,
    pub submitter: Submitter,
    heard: Arc<Mutex<Heard>>,
    output: Arc<Mutex<Vec<OutputEvent>>>,
    ended: JoinHandle<Outcome>,
    next: u32,
}

impl Lab {
    pub async fn new(script: &Value) -> Self {
        Self::with(script, Permissions::default()).await
    }

    pub async fn with(script: &Value, permissions: Permissions) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        let script = Script::from_json(&script.to_string()).unwrap();
        let model = ScriptedModel::start(script, listen).await.unwrap();
        let dir = TempDir::new().unwrap();
        let config = SessionConfig {
            session_id: "s".parse().unwrap(),
            agent_id: "iteron".parse().unwrap(),
            model: "scripted".into(),
            max_tokens: 100,
            turns_max: 1000,
            cwd: dir.path().to_owned(),
            permissions,
            resume: false,
        };
        let key = ApiKey::new("sk-test").unwrap();
        let provider = ProviderConfig::new(Api::Messages, &model.base_url(), key, Limits::default()).unwrap();
        let ownership = Arc::new(Ownership::of_library());
        let record =
            SessionRecord::open(dir.path(), &config.session_id, HeadKey::from_seed([7; 32])).unwrap();
        let parts = SessionParts {
            provider: Provider::new(provider).unwrap(),
            tools: Toolbox {
                shell: ShellTool::new(ShellConfig::new(dir.path().to_owned(), ownership)),
                files: FileTools::open(dir.path()).unwrap(),
            },
            record: Some(record),
            lifecycle: None,
            clock: || 0,
        };
        let Session { submitter, mut output, mut acknowledgements, ended } = Session::start(config, parts);
        let (heard, shown) = (Arc::new(Mutex::new(Heard::new())), Arc::new(Mutex::new(Vec::new())));
        let into = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Some(told) = acknowledgements.recv().await {
                into.lock()
                    .unwrap()
                    .entry(told.submission_id)
                    .or_default()
                    .push((told.state, Instant::now()));
            }
        });
        let into = Arc::clone(&shown);
        tokio::spawn(async move {
            while let Some(event) = output.recv().await {
                into.lock().unwrap().push(event);
            }
        });
        Self { dir, model, submitter, heard, output: shown, ended, next: 0 }
    }

    pub fn id(&mut self) -> ClientSubmissionId {
        self.next += 1;
        format!("s-{}", self.next).parse().unwrap()
    }

    pub fn prompt(&mut self, text: &str) -> ClientSubmissionId {
        self.submit(Operation::Prompt(text.to_owned()))
    }

    pub fn control(&mut self, op: ControlOp) -> ClientSubmissionId {
        self.submit(Operation::Control(op))
    }

    pub fn cancel(&mut self) -> ClientSubmissionId {
        self.control(ControlOp::CancelTurn { expected: None })
    }

    fn submit(&mut self, operation: Operation) -> ClientSubmissionId {
        let id = self.id();
        self.submitter.submit(SubmissionEnvelope::new(id.clone(), operation)).unwrap();
        id
    }

    pub fn heard(&self) -> Heard {
        self.heard.lock().unwrap().clone()
    }

    /// When a state of a submission was told.
    pub async fn told(&self, id: &ClientSubmissionId, what: impl Fn(SubmissionState) -> bool) -> Instant {
        let found = || {
            let heard = self.heard.lock().unwrap();
            heard.get(id)?.iter().find(|(state, _)| what(*state)).map(|(_, at)| *at)
        };
        self.until(&format!("a state of {id}"), || found().is_some()).await;
        found().unwrap()
    }

    /// The end of a submission.
    pub async fn end_of(&self, id: &ClientSubmissionId) -> SubmissionState {
        self.told(id, SubmissionState::is_terminal).await;
        self.heard()[id].last().unwrap().0
    }

    /// Tool calls that ended so far.
    pub fn tools_ended(&self) -> usize {
        let output = self.output.lock().unwrap();
        output.iter().filter(|event| matches!(event, OutputEvent::ToolEnded { .. })).count()
    }

    pub fn output(&self) -> Vec<OutputEvent> {
        self.output.lock().unwrap().clone()
    }

    /// Entries of the record of this kind, so far.
    pub fn entries(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.record_path()).unwrap();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let entries = whole.map(|line| serde_json::from_str::<Value>(line).unwrap()["entry"].take());
        entries.filter(|entry| entry["kind"] == kind).collect()
    }

    pub async fn until(&self, what: &str, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "{what} did not happen; output: {:?}", self.output());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends the session by `op`, checks that its record verifies and that every submission ended
    /// once, and gives its outcome and what was heard.
    pub async fn finish(&mut self, op: ControlOp) -> (Outcome, Heard) {
        self.control(op);
        let outcome =
            tokio::time::timeout(PATIENCE, &mut self.ended).await.expect("it does not end").unwrap();
        let verified = verify(std::fs::File::open(self.record_path()).unwrap()).unwrap();
        assert!(verified.entries > 1 && verified.torn_bytes == 0);
        let heard = self.heard.lock().unwrap().clone();
        for (id, states) in &heard {
            assert_eq!(states[0].0, SubmissionState::Received, "{id}");
            let ends = states.iter().filter(|(state, _)| state.is_terminal()).count();
            assert_eq!(ends, 1, "{id}: {states:?}");
        }
        (outcome, heard)
    }

    fn record_path(&self) -> PathBuf {
        self.dir.path().join("s.jsonl")
    }
}

/// A model answer that calls the shell.
pub fn shell(command: &str) -> Value {
    serde_json::json!({"tool_use": [{"name": "shell", "input": {"command": command, "timeout_ms": 60_000}}]})
}

pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(" Z"))
}
