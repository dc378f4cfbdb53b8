//! Applying unified diffs; those of diff(1) and git are the judge.

use std::process::Command;

use super::*;

const TEN: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n";

fn patch(lab: &Lab, text: &str) -> Result<String, (&'static str, String)> {
    lab.call("patch", &json!({"patch": text}))
}

#[test]
fn files_are_changed_made_and_removed_by_one_patch() {
    let lab = Lab::new();
    lab.put("a.txt", TEN);
    lab.put("gone", "bye\n");
    let text = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n@@ -9,2 +9,3 @@\n 9\n 10\n+11\n\
        --- /dev/null\n+++ b/new/deep/file\n@@ -0,0 +1,2 @@\n+x\n+y\n\
        --- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n";
    assert_eq!(patch(&lab, text).unwrap(), "changed a.txt\nmade new/deep/file\nremoved gone\n");
    assert_eq!(lab.get("a.txt"), "1\ntwo\n3\n4\n5\n6\n7\n8\n9\n10\n11\n");
    assert_eq!(lab.get("new/deep/file"), "x\ny\n");
    assert_eq!(lab.names(), ["a.txt", "new", "new/deep", "new/deep/file"]);
}

/// Whatever diff(1) and git say between two texts makes the one from the other.
#[test]
fn patches_of_diff_and_git_apply() {
    let pairs = [
        (TEN.to_owned(), TEN.replace("5\n", "five\nfive and a half\n")),
        (TEN.to_owned(), format!("0\n{TEN}11")),
        ("no end".to_owned(), "no end\n".to_owned()),
        ("a\r\nb\r\nc\r\n".to_owned(), "a\r\nB\r\nc\r\nd\r\n".to_owned()),
        ("--- x\n+++ y\n".to_owned(), "--- x\n@@ z\n".to_owned()),
        ("\u{e9}\n".to_owned(), "\u{4e2d}\n".to_owned()),
        (String::new(), "first\n".to_owned()),
    ];
    let mut judged = 0;
    for program in [&["diff", "-u"][..], &["git", "diff", "--no-index", "--no-color"]] {
        for (old, new) in &pairs {
            let lab = Lab::new();
            lab.put("f", old);
            fs::create_dir_all(lab.dir.path().join("b")).unwrap();
            fs::create_dir_all(lab.dir.path().join("a")).unwrap();
            fs::write(lab.dir.path().join("a/f"), old).unwrap();
            fs::write(lab.dir.path().join("b/f"), new).unwrap();
            let said = Command::new(program[0])
                .args(&program[1..])
                .args(["a/f", "b/f"])
                .current_dir(lab.dir.path())
                .output();
            let Ok(said) = said else {
                println!("skipped: no {} here", program[0]);
                break;
            };
            // git puts its own letters before both names.
            let said = String::from_utf8(said.stdout).unwrap().replace("a/a/", "a/").replace("b/b/", "b/");
            // Line ends are shown to the model as \n, and its patches have those.
            let said = said.replace("\r\n", "\n");
            patch(&lab, &said).unwrap_or_else(|refused| panic!("{refused:?}\n{said}"));
            assert_eq!(&lab.get("f"), new, "{said}");
            judged += 1;
        }
    }
    assert!(judged > 0 || Command::new("diff").output().is_err());
}

#[test]
fn a_patch_that_does_not_fit_everywhere_changes_nothing() {
    let lab = Lab::new();
    lab.put("a", TEN);
    lab.put("b", TEN);
    let good = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-1\n+one\n 2\n";
    let made = "--- /dev/null\n+++ b/made/new\n@@ -0,0 +1 @@\n+x\n";
    for (text, word, says) in [
        ("--- a/b\n+++ b/b\n@@ -1,2 +1,2 @@\n-1\n+one\n 3\n", "no_match", "b is not what the patch expects"),
        ("--- a/c\n+++ b/c\n@@ -1 +1 @@\n-1\n+2\n", "not_found", "c does not exist"),
        ("--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+x\n", "exists", "b exists already"),
        ("--- a/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", "no_match", "leaves something"),
        ("--- a/b\n+++ b/c\n@@ -1 +1 @@\n-1\n+2\n", "bad_patch", "moving files"),
        ("--- a/a\n+++ b/a\n@@ -5 +5 @@\n-5\n+five\n", "bad_patch", "a is in the patch twice"),
        (
            "--- a/../../outside/secret\n+++ b/../../outside/secret\n@@ -1 +1 @@\n-x\n+y\n",
            "outside_workspace",
            "leads out",
        ),
        ("--- a/b\n+++ b/b\n@@ -1,9 +1,9 @@\n-1\n+one\n", "bad_patch", "no unified diff"),
    ] {
        let (found, told) = patch(&lab, &format!("{good}{made}{text}")).expect_err(text);
        assert!(found == word && told.contains(says), "{text}: {found}, {told}");
        assert_eq!((lab.get("a"), lab.get("b")), (TEN.to_owned(), TEN.to_owned()), "{text}");
        assert_eq!(lab.names(), ["a", "b"], "{text}");
    }
    for text in ["", "hello", "*** Begin Patch\n*** End Patch\n"] {
        assert_eq!(patch(&lab, text).unwrap_err().0, "bad_patch", "{text}");
    }
    assert_eq!(fs::read_to_string(lab.outside().join("secret")).unwrap(), SECRET);
}

#[test]
fn a_hunk_is_found_at_other_lines_and_a_patch_has_256_files() {
    let lab = Lab::new();
    lab.put("f", format!("0\n0\n0\n{TEN}"));
    patch(&lab, "--- f\n+++ f\n@@ -5,2 +5,2 @@\n 5\n-6\n+six\n").unwrap();
    assert_eq!(lab.get("f"), format!("0\n0\n0\n{}", TEN.replace("6\n", "six\n")));
    let many = |count| -> String {
        (0..count).map(|at| format!("--- /dev/null\n+++ b/m/{at}\n@@ -0,0 +1 @@\n+x\n")).collect()
    };
    assert_eq!(patch(&lab, &many(257)).unwrap_err().0, "bad_patch");
    assert_eq!(patch(&lab, &many(256)).unwrap().lines().count(), 256);
}
