//! Text as the tools see it: lines that end in `\n`, whatever the file has.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::place::FileError;

/// How the lines of a file end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Lf,
    /// All of them in `\r\n`: shown and compared as `\n`, and written as they were.
    CrLf,
    /// Some of each: left as they are.
    Mixed,
}

/// A text file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    /// With `\n`, unless the ends are mixed.
    pub content: String,
    pub ends: Ends,
}

impl Text {
    /// Text that can be written back unharmed.
    pub(crate) fn exactly(bytes: Vec<u8>, path: &Path) -> Result<Self, FileError> {
        let shown = || path.display().to_string();
        if bytes.contains(&0) {
            return Err(FileError::Binary(shown()));
        }
        let content = String::from_utf8(bytes).map_err(|_| FileError::NotUtf8(shown()))?;
        Ok(Self::of(content))
    }

    pub(crate) fn of(content: String) -> Self {
        let lines = content.matches('\n').count();
        let crlf = content.matches("\r\n").count();
        match crlf {
            0 => Self { content, ends: Ends::Lf },
            _ if crlf == lines => Self { content: content.replace("\r\n", "\n"), ends: Ends::CrLf },
            _ => Self { content, ends: Ends::Mixed },
        }
    }

    /// What the model gives, in the form of this text.
    pub(crate) fn in_form_of_this(&self, given: &str) -> String {
        match self.ends {
            Ends::CrLf => given.replace("\r\n", "\n"),
            Ends::Lf | Ends::Mixed => given.to_owned(),
        }
    }

    /// The file's bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self.ends {
            Ends::CrLf => self.content.replace('\n', "\r\n").into_bytes(),
            Ends::Lf | Ends::Mixed => self.content.into_bytes(),
        }
    }
}

/// A name on one line: bytes that are not UTF-8 and control characters as escapes.
pub(crate) fn shown_name(name: &OsStr) -> String {
    let mut shown = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                shown.extend(letter.escape_default());
            } else {
                shown.push(letter);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// At most `bytes` bytes of a line, and whether that is all of it.
pub(crate) fn cut(line: &str, bytes: usize) -> (&str, bool) {
    if line.len() <= bytes {
        return (line, true);
    }
    (&line[..line.floor_char_boundary(bytes)], false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_as_they_were_read() {
        for (bytes, ends) in [
            ("a\nb\n", Ends::Lf),
            ("a\r\nb\r\n", Ends::CrLf),
            ("a\r\nb", Ends::CrLf),
            ("a\r\nb\n", Ends::Mixed),
            ("a\rb\n", Ends::Lf),
            ("", Ends::Lf),
        ] {
            let text = Text::exactly(bytes.into(), Path::new("f")).unwrap();
            assert_eq!(text.ends, ends, "{bytes:?}");
            assert_eq!(text.into_bytes(), bytes.as_bytes(), "{bytes:?}");
        }
    }

    #[test]
    fn a_name_stays_on_one_line() {
        let name = OsStr::from_bytes(b"caf\xe9\n\x1b[2J\xc3\xa9");
        assert_eq!(shown_name(name), "caf\\xe9\\n\\u{1b}[2J\u{e9}");
    }

    #[test]
    fn lines_are_cut_between_characters() {
        assert_eq!(cut("\u{e9}\u{e9}", 3), ("\u{e9}", false));
        assert_eq!(cut("\u{e9}\u{e9}", 4), ("\u{e9}\u{e9}", true));
    }
}
