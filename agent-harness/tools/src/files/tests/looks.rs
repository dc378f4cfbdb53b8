//! What is shown: in order, bounded, and honest about what is left out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

#[test]
fn lines_come_numbered_and_in_part_when_asked_for() {
    let lab = Lab::new();
    lab.put("f", "one\ntwo\n\nfour");
    let read = |more: Value| {
        let mut input = json!({"path": "f"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lab.call("read", &input)
    };
    assert_eq!(read(json!({})).unwrap(), "     1\tone\n     2\ttwo\n     3\t\n     4\tfour\n");
    assert_eq!(read(json!({"line": 2, "lines": 1})).unwrap(), "     2\ttwo\n[lines 2 to 2 of 4]\n");
    let (word, told) = read(json!({"line": 5})).unwrap_err();
    assert_eq!((word, told.as_str()), ("beyond_the_end", "f has 4 lines"));
    lab.put("empty", "");
    assert_eq!(lab.call("read", &json!({"path": "empty"})).unwrap(), "[the file is empty]");
}

#[test]
fn what_is_odd_about_a_file_is_said() {
    let lab = Lab::new();
    for (name, content, says) in [
        ("dos", &b"a\r\nb\r\n"[..], "[lines end in \\r\\n]"),
        ("mixed", b"a\r\nb\n", "some in \\n]"),
        ("latin", b"caf\xe9\n", "[not UTF-8"),
    ] {
        lab.put(name, content);
        let told = lab.call("read", &json!({"path": name})).unwrap();
        assert!(told.contains(says), "{told:?}");
    }
    lab.put("binary", b"a\0b");
    let (word, told) = lab.refused("read", &json!({"path": "binary"}));
    assert!(word == "not_text" && told.contains("NUL bytes"), "{told}");
}

#[test]
fn of_a_file_2000_lines_64_kib_and_of_a_line_2000_bytes_are_shown() {
    let lab = Lab::new();
    lab.put("long", "x\n".repeat(5000));
    let told = lab.call("read", &json!({"path": "long"})).unwrap();
    assert_eq!(told.lines().count(), 2001);
    assert!(told.ends_with("[lines 1 to 2000 of 5000]\n"));
    let told = lab.call("read", &json!({"path": "long", "line": 4999})).unwrap();
    assert_eq!(told, "  4999\tx\n  5000\tx\n[lines 4999 to 5000 of 5000]\n");
    lab.put("wide", format!("{}\n", "y".repeat(1000)).repeat(100));
    let told = lab.call("read", &json!({"path": "wide"})).unwrap();
    assert!(told.matches('y').count() <= 64 * 1024 && told.ends_with("[lines 1 to 65 of 100]\n"));
    lab.put("one", "z".repeat(1_000_000));
    let told = lab.call("read", &json!({"path": "one"})).unwrap();
    assert!(told.matches('z').count() == 2000 && told.contains("[1 lines are cut after 2000 bytes]"));
}

#[test]
fn a_directory_is_listed_in_order_with_what_things_are() {
    let lab = Lab::new();
    lab.put("b.txt", "12345");
    lab.put("a/inner/deep", "");
    symlink("b.txt", lab.path("c")).unwrap();
    lab.put(".hidden", "");
    fs::write(lab.path("").join(OsStr::from_bytes(b"odd\xff\nname")), "").unwrap();
    let told = lab.call("list", &json!({})).unwrap();
    assert_eq!(
        told,
        ".hidden (0 bytes)\na/\nb.txt (5 bytes)\nc @ b.txt\nodd\\xff\\nname (0 bytes)\n\
         [names with \\x are not UTF-8, and can only be used in the shell]\n"
    );
    assert_eq!(
        lab.call("list", &json!({"path": "a", "depth": 9})).unwrap(),
        "a/inner/\na/inner/deep (0 bytes)\n"
    );
    fs::create_dir(lab.path("empty")).unwrap();
    assert_eq!(lab.call("list", &json!({"path": "empty"})).unwrap(), "[nothing]\n");
    assert_eq!(lab.refused("list", &json!({"path": "b.txt"})).0, "bad_path");
}

#[test]
fn of_a_directory_1000_entries_are_shown() {
    let lab = Lab::new();
    for at in 0..1001 {
        fs::write(lab.path(&format!("{at:04}")), "").unwrap();
    }
    let told = lab.call("list", &json!({})).unwrap();
    assert_eq!(told.lines().count(), 1001);
    assert!(
        told.contains("0999") && !told.contains("1000 (") && told.ends_with("list a part of it]\n"),
        "{told}"
    );
}

/// git is the judge of what its ignore files leave out.
#[test]
fn what_git_ignores_is_left_out_unless_asked_for() {
    let lab = Lab::new();
    for name in [
        "keep.rs",
        "build/out",
        "a.log",
        "keep.log",
        "sub/x.log",
        "sub/y.tmp",
        "sub/keep.tmp",
        "sub/build/z",
        "other/build/w",
        "deep/er/vendor/v",
        "deep/er/src/s",
        ".github/ci.yml",
    ] {
        lab.put(name, "needle\n");
    }
    lab.put(".gitignore", "*.log\n!keep.log\n/build/\nvendor/\n# a remark\n");
    lab.put("sub/.gitignore", "*.tmp\n!keep.tmp\nbuild\n");
    let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(lab.path("")).output();
    if git(&["init", "--quiet"]).is_err() {
        println!("skipped: no git here");
        return;
    }
    let said = git(&["ls-files", "--others", "--exclude-standard"]).unwrap();
    let mut expected: Vec<String> =
        String::from_utf8(said.stdout).unwrap().lines().map(str::to_owned).collect();
    expected.sort();
    assert!(expected.contains(&"keep.log".to_owned()), "{expected:?}");
    let told = lab.call("list", &json!({"depth": 9})).unwrap();
    let mut files: Vec<&str> = told.lines().filter_map(|line| Some(line.split_once(" (")?.0)).collect();
    files.sort_unstable();
    assert_eq!(files, expected);
    let told = lab.call("search", &json!({"pattern": "needle"})).unwrap();
    let mut files: Vec<&str> = told.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    files.sort_unstable();
    let expected: Vec<&String> = expected.iter().filter(|name| !name.ends_with(".gitignore")).collect();
    assert_eq!(files, expected);
    // Ignore files above the directory that is listed count as well.
    assert_eq!(lab.call("list", &json!({"path": "deep/er"})).unwrap(), "deep/er/src/\n");
    let told = lab.call("search", &json!({"pattern": "needle", "all": true})).unwrap();
    assert_eq!(told.lines().count(), 12);
}

/// grep is the judge of what is found.
#[test]
fn a_search_finds_what_grep_finds() {
    let lab = Lab::new();
    lab.put("a.rs", "fn main() {}\nlet x = 1;\n");
    lab.put("sub/b.rs", "Fn other\nfn f()\r\nno\n");
    lab.put("sub/c.txt", "fn in text\nfn (not utf-8) \u{fffd}\n");
    lab.put("dot.c", "a.b\naxb\n");
    let found = |input: &Value| {
        let told = lab.call("search", input).unwrap();
        told.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect::<Vec<_>>()
    };
    for (flags, pattern, more) in [
        ("-rnE", "fn", json!({})),
        ("-rniE", "fn", json!({"ignore_case": true})),
        ("-rnF", "a.b", json!({"literal": true})),
        ("-rnE", "a.b", json!({})),
        ("-rnE", "^(let|fn) [a-z]+", json!({})),
        ("-rnE", "absent", json!({})),
    ] {
        let said =
            Command::new("grep").args([flags, pattern, "."]).current_dir(lab.path("")).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let mut expected: Vec<String> =
            said.lines().map(|line| line.trim_start_matches("./").trim_end().to_owned()).collect();
        expected.sort();
        let mut input = json!({"pattern": pattern});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut lines: Vec<String> = found(&input).iter().map(|line| line.trim_end().to_owned()).collect();
        lines.sort();
        assert_eq!(lines, expected, "{flags} {pattern}");
    }
    assert_eq!(found(&json!({"pattern": "fn", "glob": "*.txt"})).len(), 2);
    assert_eq!(found(&json!({"pattern": "fn", "glob": "!*.txt"})).len(), 2);
    assert_eq!(found(&json!({"pattern": "fn", "path": "sub"})).len(), 3);
    assert_eq!(found(&json!({"pattern": "fn", "path": "sub/b.rs"})), ["sub/b.rs:2:fn f()"]);
    for input in
        [json!({"pattern": "("}), json!({"pattern": "x", "glob": "["}), json!({"pattern": "a{9999}{9999}"})]
    {
        assert_eq!(lab.refused("search", &input).0, "bad_pattern", "{input}");
    }
}

#[test]
fn of_matches_500_lines_and_400_bytes_of_each_are_shown_and_binary_files_are_counted() {
    let lab = Lab::new();
    lab.put("many", "hit\n".repeat(501));
    let told = lab.call("search", &json!({"pattern": "hit"})).unwrap();
    assert_eq!(told.matches("hit").count(), 500);
    assert!(told.ends_with("[cut after 500 lines: search for less]\n"), "{told}");
    lab.put("many", "");
    lab.put("wide", format!("hit{}\n", "w".repeat(100_000)));
    lab.put("binary", b"hit\0hit\n");
    let told = lab.call("search", &json!({"pattern": "hit"})).unwrap();
    assert_eq!(told.lines().next().unwrap(), format!("wide:1:hit{} [cut]", "w".repeat(397)));
    assert!(told.contains("[cut]\n[1 binary files were not searched]\n"), "{told}");
    // All of these lines together would be more than is shown.
    lab.put("wide", format!("hit{}\n", "w".repeat(390)).repeat(400));
    assert!(lab.call("search", &json!({"pattern": "hit"})).unwrap().len() < 50 * 1024);
}

#[test]
fn a_search_that_takes_too_long_says_how_far_it_came() {
    let lab = Lab::new();
    lab.put("f", "x\n");
    let told = lab.call_within("search", &json!({"pattern": "x"}), &Halt::at(Instant::now())).unwrap();
    assert!(told.contains("ended early"), "{told}");
}

/// A file without end: only the stop ends the search.
#[test]
fn a_search_is_stopped_in_the_middle_of_a_file() {
    use std::io::Write as _;

    let (endless, mut writer) = std::io::pipe().unwrap();
    let request = SearchRequest::deserialize(&json!({"pattern": "absent"})).unwrap();
    let halt = Halt::at(Instant::now() + WALK_WAIT);
    std::thread::scope(|scope| {
        scope.spawn(move || while writer.write_all("text\n".repeat(1000).as_bytes()).is_ok() {});
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            halt.stop();
        });
        let begun = Instant::now();
        let mut search = search::Search::new(&request, &halt).unwrap();
        search.file(fs::File::from(std::os::fd::OwnedFd::from(endless)), Path::new("endless"));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    });
}

#[tokio::test]
async fn what_is_stopped_before_it_began_is_not_begun() {
    let lab = Lab::new();
    let tools = FileTools::open(&lab.path("")).unwrap();
    let halt = Halt::at(Instant::now() + WALK_WAIT);
    halt.stop();
    let request = FileRequest::parse("write", &json!({"path": "f", "content": "x"})).unwrap().unwrap();
    assert!(matches!(carry_out(&lab.workspace, &request, &halt), Err(FileToolError::Stopped)));
    assert_eq!(lab.names(), [""; 0]);
    assert!(tools.carry_out(&request, std::future::pending()).await.is_ok());
    assert_eq!(lab.get("f"), "x");
}
