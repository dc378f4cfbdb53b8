//! Data is shown, never obeyed: characters that move the cursor, change colours, reverse the direction of text or
//! hide are written as escapes.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Text as it is safe on a terminal, on one line. A backslash is doubled, so that an escape cannot be forged.
pub fn escape(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_plain(c) => out.push(c),
            c if u32::from(c) < 0x80 => drop(write!(out, "\\x{:02x}", u32::from(c))),
            c => drop(write!(out, "\\u{{{:x}}}", u32::from(c))),
        }
    }
    Cow::Owned(out)
}

/// Neither a control character (Cc), nor one that formats invisibly (bidi controls of UAX #9, zero width, tags,
/// variation selectors), nor a line or paragraph separator.
fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(u32::from(c),
            0x5c | 0xad | 0x61c | 0x115f | 0x1160 | 0x180b..=0x180f | 0x200b..=0x200f | 0x2028..=0x202e
            | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffb
            | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(escape("plain ünïcode 漢字"), "plain ünïcode 漢字");
        assert_eq!(escape("a\x1b[31mred\x07"), "a\\x1b[31mred\\x07");
        assert_eq!(escape("two\nlines\r\tx"), "two\\nlines\\r\\tx");
        assert_eq!(escape("exe\u{202e}gpj.sh"), "exe\\u{202e}gpj.sh");
        assert_eq!(escape("c1\u{9b}31m"), "c1\\u{9b}31m");
        assert_eq!(escape("ba\u{200b}sh\u{e0041}"), "ba\\u{200b}sh\\u{e0041}");
        assert_eq!(escape("forged \\x1b"), "forged \\\\x1b");
    }
}
