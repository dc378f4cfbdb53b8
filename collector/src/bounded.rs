//! Files that somebody names are read up to a bound: a device, or a file that was meant for something else, costs no memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Longest configuration, certificate file or token, bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A whole file of at most [`FILE_BYTES_MAX`]; `-` is standard input.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let input: Box<dyn Read> =
        if path.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let mut bytes = Vec::new();
    if input.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)? as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("longer than 1 MiB"));
    }
    Ok(bytes)
}

/// [`read`], as text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::other("not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_1_mib_is_read_and_a_longer_one_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(read(file.path()).unwrap().len(), 1 << 20);
        file.as_file().set_len((1 << 20) + 1).unwrap();
        assert!(read(file.path()).is_err() && read(Path::new("/dev/zero")).is_err());
    }
}
