//! A directory with everything a run needs.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use iteron_testkit::fake_collector::{Behaviour, FakeCollector};
use iteron_testkit::scripted_model::{Script, ScriptedModel};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

pub const KEY: &str = "sk-test-0123456789-secret";

/// Longest time for a whole run; only a hanging harness gets there.
const RUN_MAX: Duration = Duration::from_secs(60);

pub struct Lab {
    pub dir: TempDir,
    pub model: ScriptedModel,
    pub collector: Option<FakeCollector>,
}

impl Lab {
    pub async fn new(script: &str) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        let model = ScriptedModel::start(Script::from_json(script).unwrap(), listen).await.unwrap();
        Self { dir: TempDir::new().unwrap(), model, collector: None }
    }

    pub async fn observed(script: &str, behaviour: Behaviour) -> Self {
        let mut lab = Self::new(script).await;
        lab.collector = Some(FakeCollector::start(&lab.dir.path().join("agent.sock"), behaviour).unwrap());
        lab
    }

    pub fn collector(&self) -> &FakeCollector {
        self.collector.as_ref().unwrap()
    }

    /// `iteron exec … <arguments>`, working in the lab's directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .arg("exec")
            .args(arguments)
            .current_dir(self.dir.path())
            .env("ANTHROPIC_API_KEY", KEY)
            .env("ANTHROPIC_BASE_URL", self.model.base_url())
            .env("OPENAI_API_KEY", KEY)
            .env("OPENAI_BASE_URL", format!("{}/v1", self.model.base_url()))
            .env_remove("ITERON_MODEL")
            .env_remove("ITERON_PROVIDER")
            .env_remove("ITERON_POLICY")
            .env_remove("ACTIVITY_SOCKET")
            .env_remove("ITERON_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(collector) = &self.collector {
            command.env("ACTIVITY_SOCKET", collector.path());
        }
        command
    }

    pub async fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments).spawn().unwrap()).await
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub async fn of(child: Child) -> Self {
        let output: Output =
            tokio::time::timeout(RUN_MAX, child.wait_with_output()).await.expect("the run hangs").unwrap();
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The lines of `--json`.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The types of the lines, text left out.
    pub fn types(&self) -> Vec<String> {
        let kinds = self.lines().into_iter().map(|line| line["type"].as_str().unwrap().to_owned());
        kinds.filter(|kind| kind != "model.text").collect()
    }
}

pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_iteron"))
}

/// A script of one shell call and a last word.
pub fn shell_then_done(command: &str) -> String {
    let call = serde_json::json!([
        {"text": "I look.", "tool_use": [{"name": "shell", "input": {"command": command}}]},
        {"text": "Done."},
    ]);
    call.to_string()
}

/// Waits until `done` holds; fails after a generous time.
pub async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen");
}

pub fn pid_of(child: &Child) -> i32 {
    child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap()
}

pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(" Z"))
}
