use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    policy: PolicyArguments,
}

/// The rules of a file and flags; an error as its text.
fn rules(file: Option<&str>, flags: &[&str]) -> Result<Permissions, String> {
    let mut kept = tempfile::NamedTempFile::new().unwrap();
    let mut arguments = Cli::try_parse_from([&["iteron"], flags].concat()).unwrap().policy;
    if let Some(text) = file {
        std::io::Write::write_all(&mut kept, text.as_bytes()).unwrap();
        arguments.policy = Some(kept.path().to_owned());
    }
    permissions(&arguments).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

#[test]
fn flags_go_before_the_file_and_the_file_before_defaults() {
    let file = "[permissions]\nexecute = \"deny\"\nwrite = \"deny\"\nread = \"ask\"\non_ask = \"allow\"\n";
    let expected = Permissions {
        read: Rule::Ask,
        write: Rule::Ask,
        execute: Rule::Deny,
        network: Rule::Deny,
        on_ask: OnAsk::Allow,
    };
    assert_eq!(rules(Some(file), &["--ask", "write", "--deny", "network"]).unwrap(), expected);
    assert_eq!(rules(None, &[]).unwrap(), Permissions::default());
    assert_eq!(rules(Some(""), &[]).unwrap(), Permissions::default());
    let denied = rules(None, &["--deny", "read,write,execute,network"]).unwrap();
    assert!(
        [denied.read, denied.write, denied.execute, denied.network].iter().all(|rule| *rule == Rule::Deny)
    );
}

#[test]
fn what_is_not_known_is_refused_with_the_nearest_that_is() {
    for (file, says) in [
        ("[permission]\n", "key permission that is not known; the nearest is permissions"),
        ("[permissions]\nexcute = \"deny\"\n", "key excute that is not known; the nearest is execute"),
        ("[permissions]\nread = \"perhaps\"\n", "unknown variant `perhaps`"),
        ("permissions = 3\n", "is not valid"),
        ("[permissions\n", "is not valid"),
    ] {
        let told = rules(Some(file), &[]).unwrap_err();
        assert!(told.contains(says), "{file}: {told}");
    }
    assert!(rules(Some(&format!("#{}", "x".repeat(65_536))), &[]).unwrap_err().contains("65536 bytes"));
    let missing = PolicyArguments {
        policy: Some("/nonexistent/policy.toml".into()),
        allow: vec![],
        ask: vec![],
        deny: vec![],
        on_ask: None,
    };
    assert!(matches!(permissions(&missing), Err(PolicyError::Read { .. })));
}

#[test]
fn a_class_has_one_rule() {
    assert!(rules(None, &["--allow", "read", "--deny", "read"]).unwrap_err().contains("read is given two"));
    assert!(rules(None, &["--allow", "read,read"]).is_ok());
}

/// A command does what its process may: a rule against writing beside commands that may run would be
/// words.
#[test]
fn a_rule_that_nothing_enforces_is_refused() {
    for class in ["read", "write", "network"] {
        for flag in ["--deny", "--ask"] {
            let told = rules(None, &[flag, class]).unwrap_err();
            assert!(told.contains("commands could") && told.contains(class), "{told}");
            assert!(rules(None, &[flag, class, "--deny", "execute"]).is_ok());
            assert!(rules(None, &[flag, class, "--ask", "execute"]).is_ok());
        }
        assert!(rules(None, &["--ask", class, "--on-ask", "allow"]).is_ok());
    }
}
