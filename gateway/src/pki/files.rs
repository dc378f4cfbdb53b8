//! Files that hold secrets: 0600, durable before they count.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::PkiError;

pub fn create_dir(dir: &Path) -> Result<(), PkiError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| error("create", dir, e))
}

/// Writes a file that must not exist yet.
pub fn write_new(path: &Path, text: &str) -> Result<(), PkiError> {
    write(path, text, true).map_err(|e| error("create", path, e))
}

/// Replaces a file in one step.
pub fn write_over(path: &Path, text: &str) -> Result<(), PkiError> {
    let fresh = path.with_extension("new");
    let result = match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => write(&fresh, text, true).and_then(|()| fs::rename(&fresh, path)).and_then(|()| sync_dir(path)),
    };
    result.map_err(|e| error("write", path, e))
}

pub fn read_text(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|e| error("read", path, e))
}

fn write(path: &Path, text: &str, new: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(new).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    sync_dir(path)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

fn error(what: &'static str, path: &Path, source: io::Error) -> PkiError {
    PkiError::File { what, path: path.to_owned(), source }
}
