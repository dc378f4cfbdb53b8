//! Results are kept in `docs/bench/history.jsonl` of the checkout that this program was built from.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Appends a record with the date, the commit and the host that it belongs to.
pub fn append(mut record: Value) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let temporary = std::env::temp_dir();
    shorten(
        &mut record,
        &[(temporary.to_string_lossy().as_ref(), "TMP"), (root.to_string_lossy().as_ref(), ".")],
    );
    let commit = Command::new("git").arg("-C").arg(&root).args(["rev-parse", "HEAD"]).output()?;
    record["commit"] = json!(String::from_utf8(commit.stdout)?.trim());
    record["date"] = json!(super::host::now()?.to_string());
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

/// Paths of this machine mean nothing elsewhere: each text loses the folders that `names` has, and a lab's random
/// part of its name.
fn shorten(value: &mut Value, names: &[(&str, &str)]) {
    match value {
        Value::String(text) => {
            for (folder, name) in names {
                *text = text.replace(folder, name);
            }
            *text = without_random_part(text, "TMP/activity-lab-");
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shorten(value, names)),
        Value::Object(fields) => fields.values_mut().for_each(|value| shorten(value, names)),
        _ => {}
    }
}

fn without_random_part(text: &str, before: &str) -> String {
    let mut parts = text.split(before);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str("LAB");
        whole.push_str(part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_of_this_machine_is_kept() {
        let names = [("/tmp", "TMP"), ("/home/somebody/activity", ".")];
        let mut record = json!({"result": ["/tmp/activity-lab-9KsG07/gateway/store: exit 0, /tmp/activity-lab-x1/b"],
            "log": "/home/somebody/activity/target/fuzz/event.log", "size": 3});
        shorten(&mut record, &names);
        let expected = json!({"result": ["LAB/gateway/store: exit 0, LAB/b"],
            "log": "./target/fuzz/event.log", "size": 3});
        assert_eq!(record, expected);
    }
}
