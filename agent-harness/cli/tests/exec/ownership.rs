//! What is left of a session's processes: nothing, when it is stopped or killed.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::json;
use tokio::process::Command;

use crate::lab::{Lab, Run, alive, binary, pid_of, until};

/// A tree that ignores TERM: a root, a child, one that left the session, and a daemon whose parents
/// are gone. `MARKLESS` also cleared its environment, and only a cgroup finds it after the harness
/// was killed.
const TREE: &str = "trap '' TERM INT; \
    sh -c 'trap \"\" TERM INT; echo $$ > child.pid; while :; do sleep 0.1; done' & \
    setsid sh -c 'trap \"\" TERM INT; echo $$ > strayed.pid; while :; do sleep 0.1; done' & \
    (setsid sh -c 'trap \"\" TERM INT; echo $$ > daemon.pid; while :; do sleep 0.1; done' &) ; ";
const MARKLESS: &str =
    "(env -i setsid sh -c 'trap \"\" TERM; echo $$ > markless.pid; while :; do sleep 0.1; done' &) ; ";
const FOREVER: &str = "echo $$ > root.pid; while :; do sleep 0.1; done";

async fn lab_with(command: &str) -> Lab {
    let script = json!([{"tool_use": [{"name": "shell", "input": {"command": command}}]}]);
    Lab::new(&script.to_string()).await
}

fn pids(lab: &Lab) -> Vec<i32> {
    let files = std::fs::read_dir(lab.dir.path()).unwrap().map(|file| file.unwrap().path());
    let pids = files.filter(|path| path.extension().is_some_and(|extension| extension == "pid"));
    pids.filter_map(|path| std::fs::read_to_string(path).unwrap().trim().parse().ok()).collect()
}

/// Whether this machine lets a cgroup be made, told by the kernel and not by the harness.
fn has_cgroups() -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else { return false };
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    mount.and_then(|line| line.split(' ').nth(1)).is_some_and(|mount| {
        let probe = std::path::Path::new(mount).join(own).join(format!("probe-{}", std::process::id()));
        std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe)).is_ok()
    })
}

async fn survivors_after(lab: &Lab, processes: usize, how: impl FnOnce(i32), mut command: Command) -> Run {
    let child = command.spawn().unwrap();
    let pid = pid_of(&child);
    until("the tree", || pids(lab).len() == processes).await;
    let begun = Instant::now();
    how(pid);
    let run = Run::of(child).await;
    let pids = pids(lab);
    until("the end of every process", || pids.iter().all(|pid| !alive(*pid))).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    run
}

/// No survivor of a killed harness: the supervisor finishes the job, within the cgroup.
#[tokio::test]
async fn nothing_survives_a_killed_harness() {
    if !has_cgroups() {
        println!("skipped: no cgroup of version 2 can be made here");
        return;
    }
    let lab = lab_with(&format!("{TREE} {MARKLESS} {FOREVER}")).await;
    let command = lab.command(&["do it"]);
    let run =
        survivors_after(&lab, 5, |pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap(), command).await;
    assert_eq!(run.code, None);
}

#[tokio::test]
async fn nothing_survives_a_killed_process_group() {
    let lab = lab_with(&format!("{TREE} {FOREVER}")).await;
    let mut command = lab.command(&["do it"]);
    command.process_group(0);
    survivors_after(&lab, 4, |pid| killpg(Pid::from_raw(pid), Signal::SIGKILL).unwrap(), command).await;
}

/// Where no cgroup can be made, as in most containers: found by mark, session and descent.
#[tokio::test]
async fn nothing_survives_a_killed_harness_without_cgroups() {
    let lab = lab_with(&format!("{TREE} {FOREVER}")).await;
    let mut command = Command::new("unshare");
    let plain = lab.command(&["do it"]);
    let hide = "for m in $(awk '$3 == \"cgroup2\" {print $2}' /proc/self/mounts); do umount -l $m; done; exec \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", hide]).arg(binary()).args(plain.as_std().get_args());
    for (name, value) in plain.as_std().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(lab.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let probe = std::process::Command::new("unshare").args(["--mount", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: no mount namespace can be made here");
        return;
    }
    survivors_after(&lab, 4, |pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap(), command).await;
}

/// Field case 35, in its headless form: an interrupted session leaves nothing, not even what an
/// earlier call left in the background, and the port is free.
#[tokio::test]
async fn field_case_35_an_interrupt_leaves_no_process_and_no_port() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let serve = format!(
        "import os,signal,socket,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); \
         s=socket.socket(); s.bind((\"127.0.0.1\",{})); s.listen(); \
         open(\"server.pid\",\"w\").write(str(os.getpid())); time.sleep(600)",
        free.port()
    );
    let script = json!([
        {"tool_use": [{"name": "shell", "input":
            {"command": "(setsid sleep 600 > /dev/null 2>&1 & echo $! > earlier.pid)"}}]},
        {"tool_use": [{"name": "shell", "input":
            {"command": format!("setsid python3 -c '{serve}' & {TREE} {FOREVER}")}}]},
    ]);
    let lab = Lab::new(&script.to_string()).await;
    let command = lab.command(&["do it"]);
    let run =
        survivors_after(&lab, 6, |pid| kill(Pid::from_raw(pid), Signal::SIGINT).unwrap(), command).await;
    assert_eq!(run.code, Some(130), "{}", run.stderr);
    TcpListener::bind(free).unwrap();
}

/// What a command left in the background on purpose stays when the session ends by itself.
#[tokio::test]
async fn a_session_that_ends_in_good_order_leaves_what_was_left_on_purpose() {
    let lab =
        Lab::new(&crate::lab::shell_then_done("setsid sleep 600 > /dev/null 2>&1 & echo $! > left.pid"))
            .await;
    let run = lab.run(&["do it"]).await;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let left = pids(&lab)[0];
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(alive(left));
    kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
}
