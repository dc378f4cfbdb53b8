//! Replacing a piece of a file.

use super::*;

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"path": path, "old": old, "new": new})
}

#[test]
fn an_exact_piece_is_replaced() {
    let lab = Lab::new();
    lab.put("f", "one\ntwo\nthree\n");
    assert_eq!(lab.call("edit", &edit("f", "two\nthr", "2\n3")).unwrap(), "replaced 1 at line 2");
    assert_eq!(lab.get("f"), "one\n2\n3ee\n");
    assert_eq!(lab.names(), ["f"]);
}

#[test]
fn what_does_not_stand_there_once_is_refused_with_its_reason() {
    let lab = Lab::new();
    let content = "let x = 1;\n    let y = 2;\nlet x = 1;\nend\n";
    lab.put("f", content);
    for (old, word, says) in [
        ("absent", "no_match", "does not stand in f"),
        ("let y = 2;\n\tmore", "no_match", "line 2 begins alike but for white space"),
        ("let x = 1;", "ambiguous_match", "stands 2 times in f, at lines 1, 3"),
        ("", "no_change", "old is empty"),
    ] {
        let (found, told) = lab.refused("edit", &edit("f", old, "new"));
        assert!(found == word && told.contains(says), "{old:?}: {found}, {told}");
    }
    assert_eq!(lab.refused("edit", &edit("f", "end", "end")).0, "no_change");
    assert_eq!(lab.refused("edit", &edit("missing", "a", "b")).0, "not_found");
    assert_eq!(lab.get("f"), content);
}

#[test]
fn all_of_them_are_replaced_when_that_is_asked_for() {
    let lab = Lab::new();
    lab.put("f", "a\n".repeat(12));
    let input = json!({"path": "f", "old": "a", "new": "aa", "all": true});
    let told = lab.call("edit", &input).unwrap();
    assert_eq!(told, "replaced 12 at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …");
    assert_eq!(lab.get("f"), "aa\n".repeat(12));
}

#[test]
fn line_ends_stay_as_they_are() {
    let lab = Lab::new();
    lab.put("dos", "one\r\ntwo\r\nthree\r\n");
    lab.call("edit", &edit("dos", "one\ntwo", "1\nand\n2")).unwrap();
    assert_eq!(lab.get("dos"), "1\r\nand\r\n2\r\nthree\r\n");
    lab.call("edit", &edit("dos", "2\r\nthree", "2\r\n3")).unwrap();
    assert_eq!(lab.get("dos"), "1\r\nand\r\n2\r\n3\r\n");

    lab.put("mixed", "one\r\ntwo\nthree\n");
    assert_eq!(lab.refused("edit", &edit("mixed", "one\ntwo", "x")).0, "no_match");
    lab.call("edit", &edit("mixed", "one\r\ntwo", "1\n2")).unwrap();
    assert_eq!(lab.get("mixed"), "1\n2\nthree\n");
}

#[test]
fn what_is_no_text_is_not_touched() {
    let lab = Lab::new();
    lab.put("binary", b"a\0b");
    lab.put("latin", b"caf\xe9 b");
    for (path, says) in [("binary", "NUL bytes"), ("latin", "not UTF-8")] {
        let before = fs::read(lab.path(path)).unwrap();
        let (word, told) = lab.refused("edit", &edit(path, "b", "c"));
        assert!(word == "not_text" && told.contains(says), "{told}");
        assert_eq!(fs::read(lab.path(path)).unwrap(), before);
    }
}
