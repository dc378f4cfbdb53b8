//! Real commands: exits, signals, time, size, and what is left of a process tree.

use std::fs;

use tempfile::TempDir;

use super::*;
use nix::sys::signal::Signal;

/// Releases at once, or after `delay`, and remembers what it saw.
#[derive(Default)]
struct Gate {
    delay: Duration,
    executable: Option<PathBuf>,
    pid: Option<u32>,
}

impl ScopeGate for Gate {
    async fn before_exec(&mut self, pid: u32) -> Join {
        self.pid = Some(pid);
        self.executable = fs::read_link(format!("/proc/{pid}/exe")).ok();
        sleep(self.delay).await;
        Join::Registered
    }
}

struct Lab {
    dir: TempDir,
    gate: Gate,
    stop: watch::Sender<StopLevel>,
    tool: ShellTool,
}

impl Lab {
    fn new() -> Self {
        Self::with(Ownership::of_library())
    }

    fn with(ownership: Ownership) -> Self {
        let dir = TempDir::new().unwrap();
        let mut config = ShellConfig::new(dir.path().to_owned(), Arc::new(ownership));
        config.hidden_variables = vec!["HOME".to_owned()];
        config.output_head_bytes = 1000;
        config.output_tail_bytes = 1000;
        Self {
            dir,
            gate: Gate::default(),
            stop: watch::channel(StopLevel::Run).0,
            tool: ShellTool::new(config),
        }
    }

    async fn run(&mut self, command: &str, timeout_ms: u64) -> ToolRun {
        let command = ShellCommand {
            command: command.to_owned(),
            timeout_ms: Some(timeout_ms),
            background: false,
            network: false,
        };
        let variables = [("ITERON_TOOL_CALL_ID", "call-1".to_owned())];
        self.tool.run(&command, &variables, &mut self.gate, self.stop.subscribe()).await
    }

    /// Pids that the command wrote to files in its directory.
    fn pids(&self) -> Vec<i32> {
        let files = fs::read_dir(self.dir.path()).unwrap();
        files
            .filter_map(|file| fs::read_to_string(file.unwrap().path()).unwrap().trim().parse().ok())
            .collect()
    }
}

fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| !fields.is_empty() && !fields.starts_with(" Z"))
}

#[tokio::test]
async fn exit_codes_and_both_streams_are_reported() {
    let mut lab = Lab::new();
    let run = lab.run("echo out; echo err >&2; pwd; exit 3", 10_000).await;
    assert!(matches!(run.end, RunEnd::Exited(3)), "{:?}", run.end);
    assert_eq!(run.output, format!("out\nerr\n{}\n", lab.dir.path().canonicalize().unwrap().display()));
    assert_eq!(run.output_bytes, u64::try_from(run.output.len()).unwrap());
}

#[tokio::test]
async fn death_by_a_signal_is_no_exit_code() {
    let run = Lab::new().run("kill -SEGV $$", 10_000).await;
    assert!(matches!(run.end, RunEnd::Signalled(11)), "{:?}", run.end);
}

#[tokio::test]
async fn a_command_sees_its_call_and_not_what_is_hidden() {
    let run = Lab::new().run("echo $ITERON_TOOL_CALL_ID-${HOME-hidden}; cat", 10_000).await;
    assert_eq!(run.output, "call-1-hidden\n");
}

#[tokio::test]
async fn the_process_is_seen_before_it_executes_and_leads_its_session() {
    let mut lab = Lab::new();
    let run = lab
        .run("echo $$; ps -o sid= -o pgid= -p $$ 2>/dev/null || cut -d' ' -f5,6 /proc/$$/stat", 10_000)
        .await;
    assert_eq!(run.join, Some(Join::Registered));
    assert_eq!(lab.gate.executable, Some(std::env::current_exe().unwrap()), "it had executed already");
    let pid = lab.gate.pid.unwrap().to_string();
    let words: Vec<&str> = run.output.split_whitespace().collect();
    assert_eq!(words, [&pid, &pid, &pid]);
}

#[tokio::test]
async fn a_gate_that_dawdles_does_not_hold_the_process() {
    let mut lab = Lab::new();
    lab.gate.delay = Duration::from_millis(400);
    let run = lab.run("echo > began", 10_000).await;
    // It claims to have registered in time; the child knows better.
    assert_eq!(run.join, Some(Join::Inferred));
    let written = fs::metadata(lab.dir.path().join("began")).unwrap().modified().unwrap();
    let waited = written.elapsed().unwrap();
    assert!(waited >= Duration::from_millis(200), "it wrote only {waited:?} before the gate gave way");
}

/// Everything a tree may do to stay: a root, a child and a grandchild that ignore TERM, one that left
/// the session, and a daemon without parents and environment. The last one is beyond descent,
/// session and mark.
const STUBBORN: &str = "trap '' TERM; echo $$ > root; \
    (trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do sleep 0.1; done' & \
     echo $BASHPID > child; while :; do sleep 0.1; done) & \
    setsid sh -c 'trap \"\" TERM; echo $$ > strayed; while :; do sleep 0.1; done' &";
const DAEMON: &str =
    "(env -i setsid sh -c 'trap \"\" TERM; echo $$ > daemon; while :; do sleep 0.1; done' &);";
const FOREVER: &str = "while :; do sleep 0.1; done";

async fn overruns(mut lab: Lab, command: &str, processes: usize) {
    let begun = Instant::now();
    let run = lab.run(command, 700).await;
    assert!(matches!(run.end, RunEnd::TimedOut(_)), "{:?}", run.end);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!(run.termination, Termination::Forced);
    let pids = lab.pids();
    assert_eq!(pids.len(), processes, "the tree did not come to be: {pids:?}");
    assert!(pids.iter().all(|pid| !alive(*pid)), "survivors among {pids:?}");
    let root = run.reaped.first().unwrap();
    let written = fs::read_to_string(lab.dir.path().join("root")).unwrap();
    assert_eq!((root.pid.to_string(), root.signal), (written.trim().to_owned(), Some(9)));
}

#[tokio::test]
async fn an_overrun_kills_a_tree_that_ignores_term() {
    overruns(Lab::with(Ownership::without_cgroups()), &format!("{STUBBORN} {FOREVER}"), 4).await;
}

/// Field case 35, the process that nothing but its cgroup betrays.
#[tokio::test]
async fn a_cgroup_holds_what_left_its_session_its_parents_and_its_environment() {
    let lab = Lab::new();
    if !lab.tool.config.ownership.has_cgroups() {
        println!("skipped: no cgroup of version 2 can be made here");
        return;
    }
    overruns(lab, &format!("{STUBBORN} {DAEMON} {FOREVER}"), 5).await;
}

#[tokio::test]
async fn a_tree_that_forks_faster_than_it_can_be_looked_at_is_ended() {
    for ownership in [Ownership::of_library(), Ownership::without_cgroups()] {
        let mut lab = Lab::with(ownership);
        let run = lab.run("trap '' TERM; f() { sleep 0.01; [ $SECONDS -lt 10 ] && f & }; f; f; f; while [ $SECONDS -lt 10 ]; do f; done", 500).await;
        assert_eq!(run.termination, Termination::Forced);
        let tree = lab.gate.pid.unwrap().to_string();
        let left: Vec<String> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok())
            .filter(|stat| stat.rsplit(')').next().unwrap().split_whitespace().nth(3) == Some(&tree))
            .filter(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn a_stop_lets_a_willing_command_end_by_itself() {
    let mut lab = Lab::new();
    let stop = lab.stop.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(300)).await;
        stop.send_replace(StopLevel::Graceful);
    });
    let run =
        lab.run("trap 'echo bye; exit 0' TERM; echo $$ > root; while :; do sleep 0.01; done", 20_000).await;
    assert!(matches!(run.end, RunEnd::Stopped), "{:?}", run.end);
    assert!(run.output.contains("bye"), "{:?}", run.output);
    assert_eq!(run.termination, Termination::Cooperative);
    assert_eq!(run.reaped[0].exit_code, Some(0));
    assert!(lab.pids().iter().all(|pid| !alive(*pid)));
}

#[tokio::test]
async fn a_hundred_megabytes_stay_bounded_and_counted() {
    let run = Lab::new().run("head -c 100000000 /dev/zero | tr '\\0' x; echo end", 60_000).await;
    assert!(matches!(run.end, RunEnd::Exited(0)), "{:?}", run.end);
    assert_eq!(run.output_bytes, 100_000_004);
    assert!(run.output.len() < 2100, "{}", run.output.len());
    assert!(run.output.ends_with("xend\n"));
    assert!(run.output.contains("of 100000004 bytes left out"));
}

#[tokio::test]
async fn a_background_process_outlives_its_command_and_does_not_hold_it() {
    let mut lab = Lab::new();
    let begun = Instant::now();
    let run = lab.run("sleep 30 & echo $! > left; echo done", 20_000).await;
    assert!(matches!(run.end, RunEnd::Exited(0)));
    assert_eq!(run.output, "done\n");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let left = lab.pids()[0];
    assert!(alive(left));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn each_tree_has_its_own_cgroup_and_an_empty_one_is_used_again() {
    let mut lab = Lab::new();
    if !lab.tool.config.ownership.has_cgroups() {
        println!("skipped: no cgroup of version 2 can be made here");
        return;
    }
    let home = "sed -n 's/^0:://p' /proc/self/cgroup";
    let first = lab.run(&format!("{home}; sleep 30 > /dev/null 2>&1 & echo $! > left; {home}"), 10_000).await;
    let room = |output: &str| output.lines().last().unwrap().rsplit('/').next().unwrap().to_owned();
    assert_eq!(room(&first.output), "0");
    // The first is held by what was left in the background.
    assert_eq!(room(&lab.run(home, 10_000).await.output), "1");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(lab.pids()[0]), Signal::SIGKILL).unwrap();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(room(&lab.run(home, 10_000).await.output), "0");
}

#[tokio::test]
async fn a_missing_directory_is_said() {
    let mut lab = Lab::new();
    lab.tool.config.cwd = "/nonexistent".into();
    let run = lab.run("true", 1000).await;
    assert!(matches!(run.end, RunEnd::NotStarted(_)));
    assert!(run.output.contains("No such file"), "{}", run.output);
    assert_eq!((run.join, lab.gate.pid), (None, None));
}

#[test]
fn input_is_checked_before_anything_runs() {
    let tool = Lab::new().tool;
    assert!(tool.parse(&json!({"command": "ls"})).is_ok());
    for bad in [
        json!({}),
        json!({"command": " "}),
        json!({"command": "a\0b"}),
        json!({"command": 7}),
        json!({"command": "ls", "cwd": "/"}),
        json!({"command": "x".repeat(COMMAND_BYTES_MAX + 1)}),
    ] {
        assert!(tool.parse(&bad).is_err());
    }
}

#[test]
fn a_command_line_has_127_kib() {
    let tool = Lab::new().tool;
    let parsed = |bytes| tool.parse(&json!({"command": "x".repeat(bytes)}));
    assert!(parsed(130_048).is_ok());
    assert!(matches!(parsed(130_049), Err(InputError::TooLong)));
}

/// It would take a second to leave.
#[tokio::test]
async fn from_term_to_kill_are_50_ms() {
    let mut lab = Lab::new();
    let leisurely = "trap 'sleep 1; echo late; exit 0' TERM; echo $$ > root; while :; do sleep 0.01; done";
    let run = lab.run(leisurely, 300).await;
    let grace = run.duration.saturating_sub(Duration::from_millis(300));
    assert!(run.termination == Termination::Forced && !run.output.contains("late"), "{:?}", run.output);
    // The rest is a busy machine.
    assert!((Duration::from_millis(50)..Duration::from_millis(900)).contains(&grace), "{grace:?}");
}
