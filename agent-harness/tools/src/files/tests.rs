//! The file tools on real files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

mod boundary;
mod changes;
mod edits;
mod looks;
mod patches;

/// A workspace, and beside it what must neither be seen nor changed.
struct Lab {
    dir: TempDir,
    workspace: Workspace,
}

const SECRET: &str = "outside-secret";

impl Lab {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/secret"), SECRET).unwrap();
        let workspace = Workspace::open(&dir.path().join("work")).unwrap();
        Self { dir, workspace }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), content).unwrap();
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// What a tool answers; a refusal as its word and text.
    fn call(&self, tool: &str, input: &Value) -> Result<String, (&'static str, String)> {
        self.call_within(tool, input, &Halt::at(Instant::now() + WALK_WAIT))
    }

    fn call_within(&self, tool: &str, input: &Value, halt: &Halt) -> Result<String, (&'static str, String)> {
        let request = FileRequest::parse(tool, input).expect("no such tool").expect("not the schema");
        carry_out(&self.workspace, &request, halt).map_err(|error| (error.word(), error.told()))
    }

    fn refused(&self, tool: &str, input: &Value) -> (&'static str, String) {
        self.call(tool, input).expect_err("it was done")
    }

    /// Everything in the workspace, by the names that the kernel gives.
    fn names(&self) -> Vec<String> {
        fn below(dir: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                found.push(entry.path().strip_prefix(root).unwrap().display().to_string());
                if entry.file_type().unwrap().is_dir() {
                    below(&entry.path(), root, found);
                }
            }
        }
        let mut found = Vec::new();
        below(&self.path(""), &self.path(""), &mut found);
        found.sort();
        found
    }
}

/// Says so when it is dropped, also by a failing assertion, so that nobody waits for ever.
struct Done<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The schema that the model is given admits what the tool takes, and nothing besides.
#[test]
fn every_tool_takes_the_keys_of_its_schema_and_no_other() {
    for (name, class, _, schema) in specs() {
        let sample = |key: &str| match schema["properties"][key]["type"].as_str().unwrap() {
            "string" => json!("x"),
            "integer" => json!(1),
            "boolean" => json!(true),
            other => panic!("{other}"),
        };
        let keys: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let all: Value = keys.iter().map(|key| ((*key).clone(), sample(key))).collect();
        let request = FileRequest::parse(name, &all).unwrap();
        assert_eq!(request.expect("the tool does not take its schema").class(), class, "{name}");
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().map(|key| key.as_str().unwrap()).collect();
        for key in &keys {
            let mut less = all.clone();
            less.as_object_mut().unwrap().remove(*key);
            let taken = FileRequest::parse(name, &less).unwrap().is_ok();
            assert_eq!(taken, !required.contains(&key.as_str()), "{name} without {key}");
        }
        let mut more = all;
        more["colour"] = json!("red");
        assert!(FileRequest::parse(name, &more).unwrap().is_err(), "{name} takes what it does not know");
        assert_eq!(schema["additionalProperties"], json!(false));
    }
    assert!(FileRequest::parse("remove", &json!({})).is_none());
}
