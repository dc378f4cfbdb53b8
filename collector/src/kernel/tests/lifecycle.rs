//! Processes: each once, with the parent that forked, the right end, the right class of file.

use super::harness::{Cgroup, Seen, attach, config, execs, exits, forks, read, run};
use crate::kernel::{ExecutableClass, RingSizes};

#[test]
fn every_fork_exec_and_exit_is_seen_once() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, seen) = run(&mut source, &cgroup, "execs 200");
    let parent = truth.one("parent")[0];
    let children = truth.all("exec");
    assert_eq!(children.len(), 200);
    for &[pid, status] in children.iter().map(|line| <&[i64; 2]>::try_from(*line).unwrap()) {
        let [fork] = forks(&seen, pid)[..] else { panic!("forks of {pid}: {:?}", forks(&seen, pid)) };
        assert_eq!(i64::from(fork.parent_tgid), parent);
        let [Seen::Exec { common, basename, class, argc, missing, .. }] = execs(&seen, pid)[..] else {
            panic!("execs of {pid}")
        };
        assert_eq!((basename.as_str(), *class, *argc, *missing), ("true", ExecutableClass::File, 1, 0));
        let [exit] = exits(&seen, pid)[..] else { panic!("exits of {pid}") };
        assert_eq!((i64::from(exit.exit_code), exit.common.missing), (status, 0));
        assert!(exit.max_rss_bytes > 0);
        assert_eq!(common.start_boottime_ns, fork.common.start_boottime_ns);
        assert_eq!(exit.common.start_boottime_ns, fork.common.start_boottime_ns);
    }
    assert!(source.losses().iter().all(|loss| loss.cgroup_id != Some(cgroup.id)));
}

/// Their paths are known before anything runs in them, and after they are gone.
#[test]
fn new_cgroups_are_seen_with_their_paths() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let name = cgroup.path.file_name().unwrap().to_str().unwrap();
    let mut seen = Vec::new();
    read(&mut source, &cgroup, &mut seen);
    let [Seen::Cgroup { common, path, truncated: false }] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((common.tgid, path.as_str()), (std::process::id(), format!("/{name}").as_str()));

    // The longest path that fits its place, and a longer one.
    for (bytes, is_longer) in [(255, false), (256, true)] {
        let nested = cgroup.below(bytes - name.len() - 2);
        let mut seen = Vec::new();
        read(&mut source, &nested, &mut seen);
        let [Seen::Cgroup { path, truncated, .. }] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((path.len(), *truncated), (255, is_longer), "{path}");
        assert!(path.starts_with(&format!("/{name}/")), "{path}");
    }
}

#[test]
fn a_reparented_child_keeps_the_parent_that_forked_it() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, seen) = run(&mut source, &cgroup, "lineage");
    let [grandchild, child] = *truth.one("grandchild") else { panic!("{truth:?}") };
    let [fork] = forks(&seen, grandchild)[..] else { panic!("forks of {grandchild}") };
    assert_eq!(i64::from(fork.parent_tgid), child);
    let [exit] = exits(&seen, grandchild)[..] else { panic!("exits of {grandchild}") };
    assert_eq!(exit.status(), Some(5));
    assert_ne!(i64::from(exit.parent_tgid), child, "its reaper at the end");

    let [killed, status] = *truth.one("killed") else { panic!("{truth:?}") };
    let [exit] = exits(&seen, killed)[..] else { panic!("exits of {killed}") };
    assert_eq!((i64::from(exit.exit_code), exit.signal()), (status, Some(9)));
}

#[test]
fn threads_neither_add_nor_hide_a_process() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, seen) = run(&mut source, &cgroup, "threads");
    let [pid, status] = *truth.one("thread_exec") else { panic!("{truth:?}") };
    assert_eq!(forks(&seen, pid).len(), 1);
    let [Seen::Exec { old_pid, argc, .. }] = execs(&seen, pid)[..] else { panic!("execs of {pid}") };
    assert_ne!(i64::from(*old_pid), pid, "the caller was no leader");
    assert_eq!(*argc, 2);
    let [exit] = exits(&seen, pid)[..] else { panic!("exits of {pid}") };
    assert_eq!(i64::from(exit.exit_code), status);

    let [pid, status] = *truth.one("leader_first") else { panic!("{truth:?}") };
    let [exit] = exits(&seen, pid)[..] else { panic!("exits of {pid}: {:?}", exits(&seen, pid)) };
    assert_eq!(i64::from(exit.exit_code), status);
    assert!(exit.duration_ns() >= 50_000_000, "the last thread left after 60 ms");
}

#[test]
fn threads_that_leave_together_make_one_exit() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, seen) = run(&mut source, &cgroup, "together 100");
    for line in truth.all("group") {
        assert_eq!(exits(&seen, line[0]).len(), 1);
    }
}

#[test]
fn executables_are_classed_and_failures_named() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, seen) = run(&mut source, &cgroup, "classes");
    let class_of = |name: &str| {
        let pid = truth.one(name)[0];
        let [Seen::Exec { class, missing, .. }] = execs(&seen, pid)[..] else { panic!("execs for {name}") };
        assert_eq!(*missing, 0, "{name}");
        *class
    };
    assert_eq!(class_of("memfd"), ExecutableClass::Memfd);
    assert_eq!(class_of("deleted"), ExecutableClass::Deleted);
    assert_eq!(class_of("script"), ExecutableClass::Interpreter);
    if truth.all("shm").is_empty() {
        eprintln!("not tested: nothing can be written to /dev/shm");
    } else {
        assert_eq!(class_of("shm"), ExecutableClass::Shm);
    }
    let pid = truth.one("script")[0];
    let [Seen::Exec { basename, .. }] = execs(&seen, pid)[..] else { panic!("execs for script") };
    assert_eq!(basename, "script");

    let pid = truth.one("empty_argument")[0];
    let [Seen::Exec { argc, argv_bytes, .. }] = execs(&seen, pid)[..] else { panic!("execs for echo") };
    assert_eq!((*argc, *argv_bytes), (3, "echo\0a\0\0".len() as u64));

    let pid = truth.one("deep")[0];
    let [Seen::Exec { basename, path_truncated, .. }] = execs(&seen, pid)[..] else {
        panic!("execs for deep")
    };
    assert_eq!((basename.as_str(), *path_truncated), ("leaf", true));

    for (name, is_truncated) in [("path_of_255", false), ("path_of_256", true)] {
        let pid = truth.one(name)[0];
        let [Seen::Exec { path_truncated, .. }] = execs(&seen, pid)[..] else { panic!("execs for {name}") };
        assert_eq!(*path_truncated, is_truncated, "{name}");
    }

    for (name, file) in [("enoent", "no-such-program"), ("eacces", "not-executable")] {
        let [pid, errno] = *truth.one(name) else { panic!("{truth:?}") };
        let failed: Vec<_> = seen
            .iter()
            .filter_map(|seen| match seen {
                Seen::ExecFailed { common, basename, errno } if i64::from(common.tgid) == pid => {
                    Some((basename.as_str(), i64::from(*errno)))
                }
                _ => None,
            })
            .collect();
        assert_eq!(failed, [(file, errno)]);
        assert!(execs(&seen, pid).is_empty());
    }
}

#[test]
fn a_scope_follows_every_descendant() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    source.bind_scope(std::process::id(), 77).unwrap();
    let (truth, seen) = run(&mut source, &cgroup, "lineage");
    assert!(source.unbind_scope(std::process::id()).unwrap());
    let grandchild = truth.one("grandchild")[0];
    assert_eq!(forks(&seen, grandchild)[0].common.scope, 77);
    assert!(seen.iter().all(|seen| seen.common().scope == 77));
    assert_eq!(source.scope_of(u32::try_from(grandchild).unwrap()), None, "removed at its end");
}

#[test]
fn a_canary_comes_back() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    source.send_canary(0).unwrap();
    super::harness::read(&mut source, &cgroup, &mut Vec::new());
    let canary = source.last_canary_seen().expect("its fork came through");
    assert!(canary.exec_failed && canary.exit, "{canary:?}");
}
