//! What collectors of labs leave on the bpffs: a killed one keeps its programs attached, and every exec pays for them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where a collector pins unless it is told otherwise.
const ROOT: &str = "/sys/fs/bpf/activity";
const PREFIX: &str = "lab-";

/// The id of a lab's collector: unique, so that labs side by side do not share pinned programs.
pub fn collector_id(port: u16) -> String {
    format!("{PREFIX}{}-{port}", std::process::id())
}

/// Removes what one collector pinned.
pub fn remove(collector_id: &str) -> std::io::Result<()> {
    remove_below(&Path::new(ROOT).join(collector_id))
}

/// Removes what collectors pinned whose lab's process is gone.
pub fn remove_abandoned() {
    let entries = std::fs::read_dir(ROOT).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_abandoned)) {
        // Another lab may be at the same; what is left is found by the next.
        let _ = remove_below(&entry.path());
    }
}

fn is_abandoned(name: &str) -> bool {
    let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    pid.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
}

fn remove_below(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sets_of_dead_labs_are_abandoned() {
        assert!(!is_abandoned(&collector_id(7)), "this process lives");
        // Pids end at 2^22 (PID_MAX_LIMIT in include/linux/threads.h).
        assert!(is_abandoned("lab-4194305-7"));
        assert!(!is_abandoned("collector-4194305-7"), "not a lab's");
    }
}
