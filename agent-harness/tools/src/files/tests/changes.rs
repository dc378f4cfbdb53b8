//! What is written: whole, or not at all.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::files::place::Place;

#[test]
fn a_file_is_made_with_the_directories_above_it() {
    let lab = Lab::new();
    let told = lab.call("write", &json!({"path": "a/b/c.txt", "content": "h\u{e9}\r\n"})).unwrap();
    assert_eq!(told, "made a/b/c.txt, 5 bytes");
    assert_eq!(fs::read(lab.path("a/b/c.txt")).unwrap(), "h\u{e9}\r\n".as_bytes());
    assert_eq!(lab.names(), ["a", "a/b", "a/b/c.txt"], "something else is left");
    let told = lab.call("write", &json!({"path": "a/b/c.txt", "content": ""})).unwrap();
    assert_eq!(told, "replaced a/b/c.txt, 0 bytes");
}

#[test]
fn mode_and_owner_stay() {
    let lab = Lab::new();
    lab.put("run.sh", "old");
    fs::set_permissions(lab.path("run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
    let is_root = nix::unistd::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(lab.path("run.sh"), Some(1234), Some(2345)).unwrap();
    }
    lab.call("write", &json!({"path": "run.sh", "content": "new"})).unwrap();
    let now = fs::metadata(lab.path("run.sh")).unwrap();
    assert_eq!(now.mode() & 0o7777, 0o751);
    if is_root {
        assert_eq!((now.uid(), now.gid()), (1234, 2345));
    }
    assert_eq!(lab.get("run.sh"), "new");
}

/// Whoever reads meanwhile has all of the old text or all of the new one.
#[test]
fn nobody_sees_a_part_of_a_file() {
    let lab = Lab::new();
    let text = |letter: &str| letter.repeat(200_000);
    lab.put("f", text("a"));
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                let seen = fs::read_to_string(lab.path("f")).unwrap();
                assert!(seen == text("a") || seen == text("b"), "a part: {} bytes", seen.len());
                reads += 1;
                // Other tests look at the clock.
                std::thread::sleep(Duration::from_micros(100));
            }
            reads
        });
        let all_written = Done(&done);
        for round in 0..100 {
            let content = text(if round % 2 == 0 { "b" } else { "a" });
            lab.call("write", &json!({"path": "f", "content": content})).unwrap();
        }
        drop(all_written);
        reader.join().unwrap()
    });
    assert!(reads > 10, "{reads} reads");
    assert_eq!(lab.names(), ["f"]);
}

#[test]
fn what_another_changed_meanwhile_is_not_overwritten() {
    let lab = Lab::new();
    lab.put("f", "old");
    let place = Place::of(&lab.workspace, Path::new("f"), false).unwrap();
    let (_, before) = place.read().unwrap();
    fs::write(lab.path("f"), "ours").unwrap();
    assert!(matches!(place.put(b"mine", Some(&before)), Err(FileError::Changed(_))));
    assert!(matches!(place.remove(&before), Err(FileError::Changed(_))));
    assert!(matches!(place.put(b"mine", None), Err(FileError::Exists(_))));
    assert_eq!(lab.get("f"), "ours");
    fs::remove_file(lab.path("f")).unwrap();
    assert!(matches!(place.put(b"mine", Some(&before)), Err(FileError::Changed(_))));
    assert_eq!(lab.names(), [""; 0], "a file that was put aside is left");
}

#[test]
fn files_have_16_mib() {
    let lab = Lab::new();
    let content = "x".repeat(16 * 1024 * 1024 + 1);
    assert!(lab.call("write", &json!({"path": "d/f", "content": &content[1..]})).is_ok());
    let (word, told) = lab.refused("write", &json!({"path": "e/f", "content": content}));
    assert!(word == "too_large" && told.contains("16777217"), "{told}");
    assert!(!lab.path("e").exists(), "a directory was made for nothing");
    fs::File::create(lab.path("huge")).unwrap().set_len(16 * 1024 * 1024 + 1).unwrap();
    for (tool, input) in
        [("read", json!({"path": "huge"})), ("edit", json!({"path": "huge", "old": "a", "new": "b"}))]
    {
        assert_eq!(lab.refused(tool, &input).0, "too_large");
    }
}

#[test]
fn a_disk_that_takes_nothing_leaves_the_old_file() {
    let lab = Lab::new();
    lab.put("dir/f", "old");
    if nix::unistd::geteuid().is_root() {
        // Root may write anywhere but where nothing may be written.
        let workspace = Workspace::open(Path::new("/proc/self")).unwrap();
        let request = FileRequest::Write(WriteRequest { path: "net/new".into(), content: "x".into() });
        let error = carry_out(&workspace, &request, &Halt::at(Instant::now() + WALK_WAIT)).unwrap_err();
        assert!(["io", "not_found"].contains(&error.word()), "{}", error.told());
        return;
    }
    fs::set_permissions(lab.path("dir"), fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(lab.refused("write", &json!({"path": "dir/f", "content": "new"})).0, "io");
    assert_eq!(lab.get("dir/f"), "old");
}
