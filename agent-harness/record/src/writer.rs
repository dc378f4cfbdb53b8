//! The file: opening with verification, and appending.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use iteron_protocol::SessionId;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::entry::{Entry, GENESIS, Line, seal, unseal};
use crate::signing::{HeadKey, is_signed};

/// Longest line that is read back, in bytes: an entry holds at most one model answer.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Longest wait for the lock of a writer that was killed: a child of it that has not executed yet
/// still holds the file.
const LOCK_WAIT: Duration = Duration::from_millis(500);
const LOCK_POLL: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open the record {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another process writes the record {path}")]
    Locked { path: PathBuf },
    #[error("the record {path} does not verify; keep it, and use another session id")]
    Verify {
        path: PathBuf,
        #[source]
        source: VerifyError,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("cannot read")]
    Io(#[from] io::Error),
    #[error("line {line} is not an entry with a right hash")]
    Entry { line: u64 },
    #[error("line {line} does not follow the one before it")]
    Chain { line: u64 },
    #[error("line {line} has a signature that is not of the line before it")]
    Signature { line: u64 },
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    TooLong { line: u64 },
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("cannot encode an entry")]
    Encode(#[from] serde_json::Error),
    #[error("cannot write the record")]
    Io(#[from] io::Error),
    #[error("the record failed before and takes no more entries")]
    Broken,
}

/// The record of one session, open for appending.
#[derive(Debug)]
pub struct Record {
    file: Flock<File>,
    path: PathBuf,
    next_seq: u64,
    head: String,
    broken: bool,
}

/// What was found when a record was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    pub entries: u64,
    /// Bytes of a torn last line, cut off.
    pub torn_bytes: u64,
}

/// What a verified record ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub entries: u64,
    pub head: String,
    pub intact_bytes: u64,
    pub torn_bytes: u64,
    /// The last entry that a signature vouches for; 0 when none does.
    pub signed_through: u64,
    /// Public keys that signed heads, in order of their first.
    pub signed_by: Vec<String>,
}

impl Record {
    /// Opens or creates `<dir>/<session>.jsonl`, verifies all of it, gives each line to `past`, and
    /// cuts off a torn tail.
    pub fn open(
        dir: &Path,
        session: &SessionId,
        past: impl FnMut(Line),
    ) -> Result<(Self, Opened), OpenError> {
        let path = dir.join(format!("{session}.jsonl"));
        let failed = |source| OpenError::Io { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let mut file = lock(file).map_err(|errno| {
            if errno == Errno::EWOULDBLOCK {
                OpenError::Locked { path: path.clone() }
            } else {
                failed(errno.into())
            }
        })?;
        let found =
            replay(&mut *file, past).map_err(|source| OpenError::Verify { path: path.clone(), source })?;
        if found.torn_bytes > 0 {
            file.set_len(found.intact_bytes).map_err(failed)?;
        }
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        // The name itself must survive as well.
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        let opened = Opened { entries: found.entries, torn_bytes: found.torn_bytes };
        let record = Self { file, path, next_seq: found.entries + 1, head: found.head, broken: false };
        Ok((record, opened))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an entry, which then survives this process, and gives its number. What must survive
    /// the machine is synced besides, through a [`Syncer`]. After a failure nothing more is taken,
    /// since a hole in the chain would not be a record.
    pub fn append(&mut self, at_ms: i64, entry: Entry) -> Result<u64, AppendError> {
        if self.broken {
            return Err(AppendError::Broken);
        }
        let seq = self.next_seq;
        let line = Line { seq, at_ms, prev: self.head.clone(), entry };
        let (bytes, hash) = seal(&line)?;
        if let Err(error) = self.file.write_all(&bytes) {
            self.broken = true;
            return Err(error.into());
        }
        self.next_seq += 1;
        self.head = hash;
        Ok(seq)
    }

    /// Signs the head, and appends that. The entry's number, or nothing while there are no others.
    pub fn sign(&mut self, at_ms: i64, key: &HeadKey) -> Result<Option<u64>, AppendError> {
        let signed = key.sign(self.next_seq - 1, &self.head).filter(|_| self.next_seq > 1);
        let Some(signature) = signed else { return Ok(None) };
        self.append(at_ms, Entry::HeadSigned { public_key: key.public(), signature }).map(Some)
    }

    /// A way to sync what was appended without holding up what is being appended.
    pub fn syncer(&self) -> io::Result<Syncer> {
        Ok(Syncer(self.file.try_clone()?))
    }
}

/// Locks the file, within [`LOCK_WAIT`].
fn lock(mut file: File) -> Result<Flock<File>, Errno> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((unlocked, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = unlocked,
            other => return other.map_err(|(_, errno)| errno),
        }
        std::thread::sleep(LOCK_POLL);
    }
}

/// Puts a record's bytes on disk.
#[derive(Debug)]
pub struct Syncer(File);

impl Syncer {
    /// When this returns, everything appended before the call is on disk. May take as long as the
    /// disk takes.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Reads a record from its beginning and checks every hash and link.
pub fn verify(file: impl io::Read + Seek) -> Result<Verified, VerifyError> {
    replay(file, |_| ())
}

/// Verifies a record, and gives each line to `each` once it is known to be right.
pub fn replay(file: impl io::Read + Seek, mut each: impl FnMut(Line)) -> Result<Verified, VerifyError> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(0))?;
    let mut found = Verified {
        entries: 0,
        head: GENESIS.to_owned(),
        intact_bytes: 0,
        torn_bytes: 0,
        signed_through: 0,
        signed_by: Vec::new(),
    };
    let mut bytes = Vec::new();
    loop {
        let line = found.entries + 1;
        bytes.clear();
        let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
        let read = io::Read::take(&mut reader, limit).read_until(b'\n', &mut bytes)?;
        if read == 0 {
            return Ok(found);
        }
        let Some(body) = bytes.strip_suffix(b"\n") else {
            if read == LINE_BYTES_MAX {
                return Err(VerifyError::TooLong { line });
            }
            found.torn_bytes = u64::try_from(read).unwrap_or(u64::MAX);
            return Ok(found);
        };
        let (entry, hash) = unseal(body).ok_or(VerifyError::Entry { line })?;
        if entry.seq != line || entry.prev != found.head {
            return Err(VerifyError::Chain { line });
        }
        if let Entry::HeadSigned { public_key, signature } = &entry.entry {
            if !is_signed(public_key, signature, found.entries, &found.head) {
                return Err(VerifyError::Signature { line });
            }
            found.signed_through = found.entries;
            if !found.signed_by.contains(public_key) {
                found.signed_by.push(public_key.clone());
            }
        }
        found.entries = line;
        found.head = hash;
        found.intact_bytes += u64::try_from(read).unwrap_or(u64::MAX);
        each(entry);
    }
}
