//! What tests say of themselves that they did not do: lines `skipped: …` of their output, kept for the end.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Runs `cargo test` and shows what it shows without the output of tests that passed; returns what was skipped.
pub fn run_tests(command: &mut Command) -> anyhow::Result<Vec<String>> {
    command.args(["--", "--show-output"]).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let mut reader = Reader::default();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        if reader.read(&line) {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(reader.skipped)
}

#[derive(Default)]
struct Reader {
    /// Between `successes:` and what comes after it.
    passed: bool,
    test: String,
    skipped: Vec<String>,
}

impl Reader {
    /// Takes a line of libtest's output; whether it is to be shown.
    fn read(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.passed = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.passed = false;
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            name.clone_into(&mut self.test);
        } else if let Some(reason) = line.strip_prefix("skipped: ") {
            self.skipped.push(format!("{}: {reason}", self.test));
        }
        !self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_tests_skipped_is_kept_and_the_rest_of_their_output_is_not_shown() {
        let output = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nskipped: not root\n\
            noise\n\nsuccesses:\n    a\n\nfailures:\n\n---- b stdout ----\npanicked\n\ntest result: FAILED.";
        let mut reader = Reader::default();
        let shown: Vec<&str> = output.lines().filter(|line| reader.read(line)).collect();
        assert_eq!(reader.skipped, ["a: not root"]);
        assert!(shown.contains(&"panicked") && !shown.contains(&"noise"), "{shown:?}");
    }
}
