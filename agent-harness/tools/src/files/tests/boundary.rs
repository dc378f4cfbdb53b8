//! Nothing outside is seen or changed, by whatever path.

use std::ffi::CString;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A call of every tool on `path`, with what each would do.
fn calls(path: &str) -> Vec<(&'static str, Value)> {
    let name = path.rsplit('/').next().unwrap();
    vec![
        ("read", json!({"path": path})),
        ("write", json!({"path": path, "content": "overwritten"})),
        ("edit", json!({"path": path, "old": SECRET, "new": "overwritten"})),
        (
            "patch",
            json!({"patch": format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-{SECRET}\n\\ No newline at end of file\n+x\n")}),
        ),
        ("patch", json!({"patch": format!("--- /dev/null\n+++ {path}.new\n@@ -0,0 +1 @@\n+{name}\n")})),
        ("search", json!({"path": path, "pattern": "."})),
        ("list", json!({"path": path})),
    ]
}

fn untouched(lab: &Lab) {
    let outside: Vec<_> =
        fs::read_dir(lab.outside()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["secret"], "something was made outside");
    assert_eq!(fs::read_to_string(lab.outside().join("secret")).unwrap(), SECRET);
}

#[test]
fn no_path_leads_out() {
    let lab = Lab::new();
    fs::create_dir(lab.path("sub")).unwrap();
    symlink(lab.outside(), lab.path("absolute-link")).unwrap();
    symlink("../outside", lab.path("relative-link")).unwrap();
    symlink("../../outside/secret", lab.path("sub/file-link")).unwrap();
    symlink("relative-link", lab.path("link-to-link")).unwrap();
    symlink(format!("/proc/self/cwd/{}", lab.outside().display()), lab.path("by-proc")).unwrap();
    let absolute = lab.outside().join("secret").display().to_string();
    for path in [
        "../outside/secret",
        "sub/../../outside/secret",
        "./sub/./../.././outside/secret",
        absolute.as_str(),
        "/proc/self/root/etc/passwd",
        "absolute-link/secret",
        "relative-link/secret",
        "link-to-link/secret",
        "by-proc/secret",
        "sub/../relative-link/secret",
    ] {
        for (tool, input) in calls(path) {
            let (word, told) = lab.refused(tool, &input);
            assert_eq!(word, "outside_workspace", "{tool} {path}: {told}");
            assert!(told.contains("leads out of the workspace") || told.contains("is absolute"), "{told}");
        }
        untouched(&lab);
    }
    // The last part being a link, what changes files says so, and what looks is stopped by the kernel.
    for (tool, input) in calls("sub/file-link") {
        let refused = lab.call(tool, &input);
        let made_beside = tool == "patch" && refused.is_ok();
        assert!(made_beside || ["outside_workspace", "bad_path"].contains(&refused.unwrap_err().0), "{tool}");
    }
    untouched(&lab);
    assert_eq!(lab.get("sub/file-link.new"), "file-link\n");
}

#[test]
fn magic_links_are_not_followed() {
    let workspace = Workspace::open(Path::new("/proc/self")).unwrap();
    for path in ["exe", "cwd/Cargo.toml", "root/etc/passwd", "fd/0"] {
        assert!(workspace.file(Path::new(path)).is_err(), "{path} was followed");
    }
    assert!(workspace.file(Path::new("stat")).is_ok());
}

#[test]
fn links_inside_are_followed_to_read_and_refused_to_write() {
    let lab = Lab::new();
    lab.put("real", "text\n");
    symlink("real", lab.path("link")).unwrap();
    symlink("loop", lab.path("loop")).unwrap();
    assert_eq!(lab.call("read", &json!({"path": "link"})).unwrap(), "     1\ttext\n");
    for (tool, input) in [
        ("write", json!({"path": "link", "content": "x"})),
        ("edit", json!({"path": "link", "old": "text", "new": "x"})),
    ] {
        let (word, told) = lab.refused(tool, &input);
        assert_eq!(word, "bad_path");
        assert!(told.contains("link is a symbolic link"), "{told}");
    }
    assert_eq!(lab.refused("read", &json!({"path": "loop"})).0, "bad_path");
    assert!(fs::symlink_metadata(lab.path("link")).unwrap().is_symlink());
    assert_eq!(lab.get("real"), "text\n");
}

/// Somebody exchanges a directory for a link that leads out, again and again, while the tools work on
/// what is in it.
#[test]
fn a_link_that_is_put_in_place_meanwhile_leads_nowhere() {
    let lab = Lab::new();
    lab.put("dir/secret", "inside\n");
    lab.put("dir/deep/secret", "inside\n");
    fs::create_dir(lab.outside().join("deep")).unwrap();
    fs::write(lab.outside().join("deep/secret"), SECRET).unwrap();
    symlink(lab.outside(), lab.path("other")).unwrap();
    let [dir, other] =
        ["dir", "other"].map(|name| CString::new(lab.path(name).display().to_string()).unwrap());
    let (done, swaps) = (AtomicBool::new(false), std::sync::atomic::AtomicU32::new(0));
    let (mut seen, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
                let here = nix::fcntl::AT_FDCWD;
                nix::fcntl::renameat2(here, dir.as_c_str(), here, other.as_c_str(), exchange).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
                // Other tests look at the clock.
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        let _done = Done(&done);
        for round in 0..200 {
            for (tool, input) in [
                ("read", json!({"path": "dir/secret"})),
                ("read", json!({"path": "dir/deep/secret"})),
                ("search", json!({"pattern": ".", "all": true})),
                ("list", json!({"depth": 5})),
                ("write", json!({"path": "dir/secret", "content": format!("inside {round}\n")})),
                ("write", json!({"path": "dir/made/new", "content": "new\n"})),
            ] {
                match lab.call(tool, &input) {
                    Ok(told) => {
                        assert!(!told.contains(SECRET), "{tool} saw what is outside: {told}");
                        seen += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    });
    assert!(
        seen > 100 && refused > 0 && swaps.load(Ordering::Relaxed) > 100,
        "{seen} seen, {refused} refused"
    );
    for file in ["secret", "deep/secret"] {
        assert_eq!(fs::read_to_string(lab.outside().join(file)).unwrap(), SECRET, "{file} was written to");
    }
    assert!(!lab.outside().join("made").exists());
}

#[test]
fn what_is_no_file_is_refused_and_waited_for_by_nobody() {
    let lab = Lab::new();
    nix::unistd::mkfifo(&lab.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(lab.path("socket")).unwrap();
    fs::create_dir(lab.path("dir")).unwrap();
    for (path, says) in [("pipe", "neither"), ("socket", "neither"), ("dir", "is a directory")] {
        for (tool, input) in [
            ("read", json!({"path": path})),
            ("write", json!({"path": path, "content": "x"})),
            ("edit", json!({"path": path, "old": "a", "new": "b"})),
        ] {
            let (word, told) = lab.refused(tool, &input);
            assert!(word == "bad_path" && told.contains(says), "{tool} {path}: {told}");
        }
    }
    lab.put("file", "x");
    for (path, word) in
        [("", "bad_path"), ("a\0b", "bad_path"), ("missing", "not_found"), ("file/below", "bad_path")]
    {
        assert_eq!(lab.refused("read", &json!({"path": path})).0, word, "{path:?}");
    }
    for path in [".", "dir/..", "dir/", "file/"] {
        assert_eq!(lab.refused("write", &json!({"path": path, "content": "x"})).0, "bad_path", "{path:?}");
    }
}
