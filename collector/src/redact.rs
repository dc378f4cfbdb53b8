//! The secret scan at the source: a declared string that looks like a credential is refused, never stored.

/// Prefixes of well-known credential formats, with the least length of a whole token.
const TOKENS: &[(&str, usize)] = &[
    ("sk-", 20),
    ("sk_live_", 20),
    ("ghp_", 36),
    ("gho_", 36),
    ("ghs_", 36),
    ("github_pat_", 40),
    ("glpat-", 20),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("AKIA", 20),
    ("ASIA", 20),
    ("AIza", 35),
    ("ya29.", 20),
    ("eyJ", 40),
    ("npm_", 36),
    ("pypi-", 40),
    ("hf_", 30),
];

/// Whether a text holds something that looks like a secret. Heuristic: the allowlists are the first line.
pub fn is_secret(text: &str) -> bool {
    if text.contains("-----BEGIN ") && text.contains("PRIVATE KEY") {
        return true;
    }
    let token_byte = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+');
    text.split(|c: char| !token_byte(c))
        .any(|word| TOKENS.iter().any(|(prefix, len)| word.starts_with(prefix) && word.len() >= *len))
        || has_bearer(text)
        || has_password_in_url(text)
}

fn has_bearer(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["authorization:", "bearer ", "basic "].iter().any(|key| {
        lower.split_once(key).is_some_and(|(_, rest)| {
            rest.trim_start()
                .split(char::is_whitespace)
                .any(|w| w.len() >= 16 && w.chars().all(|c| c.is_ascii_graphic()))
        })
    })
}

fn has_password_in_url(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', ' ', '?', '#']).next().unwrap_or("");
        authority
            .split_once('@')
            .is_some_and(|(user, _)| user.split_once(':').is_some_and(|(_, p)| !p.is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_seen_and_names_are_not() {
        for secret in [
            "ghp_0123456789abcdefghijABCDEFGHIJ012345",
            "key=sk-proj-0123456789abcdefghij",
            "Authorization: Bearer abcdefghijklmnop1234",
            "https://user:hunter2@example.org/x",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "AKIAIOSFODNN7EXAMPLE",
        ] {
            assert!(is_secret(secret), "{secret}");
        }
        for plain in ["shell", "claude-sonnet-4", "sk-", "task-12", "https://example.org/a@b", "basic auth"] {
            assert!(!is_secret(plain), "{plain}");
        }
    }
}
