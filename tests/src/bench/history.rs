//! Results are kept in `docs/bench/history.jsonl` of the checkout that this program was built from.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Appends a record with the commit and the host that it belongs to.
pub fn append(mut record: Value) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let commit = Command::new("git").arg("-C").arg(&root).args(["rev-parse", "HEAD"]).output()?;
    record["commit"] = json!(String::from_utf8(commit.stdout)?.trim());
    record["host"] = json!({
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        "cpus": std::thread::available_parallelism()?.get(),
    });
    std::fs::create_dir_all(root.join("docs/bench"))?;
    let path = root.join("docs/bench/history.jsonl");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    // One write: campaigns beside this one append too.
    file.write_all(format!("{record}\n").as_bytes())?;
    Ok(())
}
