use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    policy: PolicyArguments,
}

fn rules(file: Option<&str>, flags: &[&str]) -> Result<Permissions, String> {
    policy_of(file, flags).map(|policy| policy.permissions)
}

/// What holds by a file and flags; an error as its text.
fn policy_of(file: Option<&str>, flags: &[&str]) -> Result<Policy, String> {
    let mut kept = tempfile::NamedTempFile::new().unwrap();
    let mut arguments = Cli::try_parse_from([&["iteron"], flags].concat()).unwrap().policy;
    if let Some(text) = file {
        std::io::Write::write_all(&mut kept, text.as_bytes()).unwrap();
        arguments.policy = Some(kept.path().to_owned());
    }
    policy(&arguments).map_err(|error| match std::error::Error::source(&error) {
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
        sandbox: None,
        writable: vec![],
    };
    assert!(matches!(policy(&missing), Err(PolicyError::Read { .. })));
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

#[test]
fn walls_enforce_rules_on_writing_and_on_the_network_and_deny_the_network_by_default() {
    let sandboxed = |flags: &[&str]| rules(None, &[&["--sandbox", "workspace"], flags].concat());
    assert_eq!(sandboxed(&[]).unwrap(), Permissions { network: Rule::Deny, ..Permissions::default() });
    assert_eq!(sandboxed(&["--allow", "network"]).unwrap(), Permissions::default());
    assert!(sandboxed(&["--deny", "write"]).is_ok() && sandboxed(&["--ask", "network"]).is_ok());
    assert!(sandboxed(&["--deny", "read"]).unwrap_err().contains("commands could read files"));
    let file = "[permissions]\nnetwork = \"ask\"\n[sandbox]\nmode = \"workspace\"\nwritable = [\"/a\"]\n";
    let found = policy_of(Some(file), &["--writable", "/b"]).unwrap();
    assert_eq!((found.sandbox, found.writable), (Mode::Workspace, vec!["/a".into(), "/b".into()]));
    assert_eq!(found.permissions.network, Rule::Ask);
    assert_eq!(
        policy_of(Some("[sandbox]\nmode = \"workspace\"\n"), &["--sandbox", "off"]).unwrap().sandbox,
        Mode::Off
    );
    assert!(rules(None, &["--writable", "/b"]).unwrap_err().contains("no sandbox"));
    assert!(rules(Some("[sandbox]\nmod = \"off\"\n"), &[]).unwrap_err().contains("nearest is mode"));
}
