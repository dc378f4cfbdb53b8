//! A real task from its prompt to its end: looking, changing, running the tests, fixing, in a sandbox.

use serde_json::{Value, json};

use crate::lab::Lab;

const PROGRAM: &str = "def mean(values):\n    return sum(values) / len(values)\n\n\ndef spread(values):\n    \
    return max(values) - min(values)\n";
const TESTS: &str = "import unittest\nfrom stats import mean, spread\n\n\nclass Tests(unittest.TestCase):\n    \
    def test_mean(self):\n        self.assertEqual(mean([1, 3]), 2)\n\n    \
    def test_mean_of_nothing(self):\n        self.assertIsNone(mean([]))\n\n    \
    def test_spread(self):\n        self.assertEqual(spread([1, 3]), 2)\n";

fn call(name: &str, input: &Value) -> Value {
    json!({"tool_use": [{"name": name, "input": input}]})
}

fn plan(states: [&str; 3]) -> Value {
    let steps: Vec<Value> = ["find the fault", "fix it", "run the tests"]
        .iter()
        .zip(states)
        .map(|(text, state)| json!({"text": text, "state": state}))
        .collect();
    call("plan", &json!({"steps": steps}))
}

#[tokio::test]
async fn a_failing_test_is_made_to_pass_in_a_sandbox() {
    let tests = call("shell", &json!({"command": "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -q"}));
    let script = json!([
        plan(["doing", "open", "open"]),
        call("list", &json!({"depth": 3})),
        tests,
        call("search", &json!({"pattern": "def mean", "glob": "*.py"})),
        call("read", &json!({"path": "stats.py"})),
        plan(["done", "doing", "open"]),
        // The first try does not stand there, the second is wrong, the third is right.
        call("edit", &json!({"path": "stats.py", "old": "return sum(values)/len(values)", "new": "x"})),
        call("edit", &json!({"path": "stats.py", "old": "    return sum(values) / len(values)",
            "new": "    return sum(values) / len(values) if values else 0"})),
        tests,
        call("patch", &json!({"patch": "--- a/stats.py\n+++ b/stats.py\n@@ -1,2 +1,2 @@\n def mean(values):\n\
            -    return sum(values) / len(values) if values else 0\n\
            +    return sum(values) / len(values) if values else None\n"})),
        plan(["done", "done", "doing"]),
        tests,
        {"text": "The mean of nothing is None now; all tests pass."},
    ]);
    let lab = Lab::new(&script.to_string()).await;
    std::fs::write(lab.path("stats.py"), PROGRAM).unwrap();
    std::fs::write(lab.path("test_stats.py"), TESTS).unwrap();
    let records = tempfile::TempDir::new().unwrap();
    let dir = records.path().display().to_string();
    let arguments = ["--json", "--sandbox", "workspace", "--record", &dir, "make the failing test pass"];
    let run = lab.run(&arguments).await;
    if run.code == Some(2) && run.stderr.contains("the sandbox is unsupported here") {
        println!("skipped: {}", run.stderr);
        return;
    }
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(lab.model.refused().is_empty(), "{:?}", lab.model.refused());
    let ended: Vec<_> = run.lines().into_iter().filter(|line| line["type"] == "tool.ended").collect();
    let of_tests: Vec<_> = ended
        .iter()
        .filter(|line| line["tool_name"] == "shell")
        .map(|line| line["exit_code"].clone())
        .collect();
    assert_eq!(of_tests, [json!(1), json!(1), json!(0)], "{ended:?}");
    let refused: Vec<_> = ended.iter().filter(|line| line["status"] == "failed").collect();
    assert_eq!((refused.len(), &refused[1]["reason"]), (3, &json!("no_match")));

    // What the model says is not what counts: the tests are run again by nobody of the session.
    let judge = std::process::Command::new("python3")
        .args(["-m", "unittest", "-q"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(lab.dir.path())
        .output()
        .unwrap();
    assert!(judge.status.success(), "{}", String::from_utf8_lossy(&judge.stderr));
    assert_eq!(std::fs::read_to_string(lab.path("test_stats.py")).unwrap(), TESTS, "the tests were changed");
    let mut names: Vec<_> = std::fs::read_dir(lab.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["stats.py", "test_stats.py"], "something is left behind");
}
