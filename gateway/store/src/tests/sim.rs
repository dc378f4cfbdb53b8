//! A disk that forgets: unsynced writes and names are lost in any subset at a crash, any call can fail, and the
//! process can be killed between any two calls.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::env::{Clock, Entropy};
use crate::storage::Storage;
use activity_schema::Timestamp;

/// Unit in which a torn write is torn.
const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Inode {
    data: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

impl Change {
    fn apply(&self, data: &mut Vec<u8>, keep: &mut dyn FnMut() -> bool) {
        match self {
            Change::Truncate(len) => {
                if keep() {
                    data.resize(usize::try_from(*len).unwrap(), 0);
                }
            }
            Change::Write(offset, bytes) => {
                let offset = usize::try_from(*offset).unwrap();
                for (i, part) in bytes.chunks(SECTOR).enumerate() {
                    if keep() {
                        let at = offset + i * SECTOR;
                        if data.len() < at + part.len() {
                            data.resize(at + part.len(), 0);
                        }
                        data[at..at + part.len()].copy_from_slice(part);
                    }
                }
            }
        }
    }
}

#[derive(Clone)]
enum NameChange {
    Create(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// This call and every later one fail: the process is dead.
    Kill(u64),
    /// Each call fails with one chance in so many.
    Random(u64, io::ErrorKind),
    /// Whoever calls panics.
    Panic,
}

#[derive(Clone, Default)]
struct Model {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    pending_names: BTreeMap<PathBuf, Vec<NameChange>>,
    calls: u64,
    seed: u64,
}

impl Model {
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }

    fn name(&mut self, path: &Path, change: NameChange) {
        self.pending_names.entry(path.parent().unwrap().to_owned()).or_default().push(change);
    }

    fn inode(&mut self, path: &Path) -> &mut Inode {
        let at = match self.names.get(path) {
            Some(at) => *at,
            None => {
                self.inodes.push(Inode::default());
                let at = self.inodes.len() - 1;
                self.names.insert(path.to_owned(), at);
                self.name(path, NameChange::Create(path.to_owned(), at));
                at
            }
        };
        &mut self.inodes[at]
    }
}

fn apply_names(names: &mut BTreeMap<PathBuf, usize>, change: &NameChange) {
    match change {
        NameChange::Create(path, at) => {
            names.insert(path.clone(), *at);
        }
        NameChange::Remove(path) => {
            names.remove(path);
        }
        NameChange::Rename(from, to) => {
            if let Some(at) = names.remove(from) {
                names.insert(to.clone(), at);
            }
        }
    }
}

pub(crate) struct SimDisk {
    model: Mutex<Model>,
    fault: Mutex<Fault>,
}

impl SimDisk {
    pub(crate) fn new(seed: u64) -> Self {
        SimDisk { model: Mutex::new(Model { seed, ..Model::default() }), fault: Mutex::new(Fault::None) }
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.model.lock().calls = 0;
        *self.fault.lock() = fault;
    }

    pub(crate) fn calls(&self) -> u64 {
        self.model.lock().calls
    }

    /// The disk after power was lost: synced bytes and names, and any subset of the rest.
    pub(crate) fn crash(&self) -> SimDisk {
        let mut model = self.model.lock().clone();
        let mut after = Model { seed: model.random() ^ 0x5eed, ..Model::default() };
        let all = model.random().is_multiple_of(4);
        let none = !all && model.random().is_multiple_of(3);
        for at in 0..model.inodes.len() {
            let inode = model.inodes[at].clone();
            let mut data = inode.durable.clone();
            for change in &inode.pending {
                change.apply(&mut data, &mut || all || (!none && model.random().is_multiple_of(2)));
            }
            after.inodes.push(Inode { data: data.clone(), durable: data, pending: Vec::new() });
        }
        after.durable_names = model.durable_names.clone();
        // A directory's changes are journalled in order: some prefix of them is kept.
        for changes in model.pending_names.clone().into_values() {
            let kept = if all { changes.len() } else { model.random() as usize % (changes.len() + 1) };
            for change in &changes[..if none { 0 } else { kept }] {
                apply_names(&mut after.durable_names, change);
            }
        }
        after.names = after.durable_names.clone();
        SimDisk { model: Mutex::new(after), fault: Mutex::new(Fault::None) }
    }

    /// Counts the call; what the fault says to it.
    fn call(&self) -> io::Result<()> {
        let mut model = self.model.lock();
        model.calls += 1;
        match *self.fault.lock() {
            Fault::Kill(at) if model.calls >= at => Err(io::Error::other("killed")),
            Fault::Random(one_in, kind) if model.random().is_multiple_of(one_in) => Err(kind.into()),
            Fault::Panic => panic!("a fault of the test"),
            _ => Ok(()),
        }
    }
}

impl Storage for SimDisk {
    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fails = self.call();
        let mut model = self.model.lock();
        // A write that fails may have written its front.
        let cut = if fails.is_err() { model.random() as usize % (bytes.len() + 1) } else { bytes.len() };
        let inode = model.inode(path);
        let change = Change::Write(offset, bytes[..cut].to_vec());
        change.apply(&mut inode.data, &mut || true);
        inode.pending.push(change);
        fails
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.call()?;
        let mut model = self.model.lock();
        let at = *model.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        let change = Change::Truncate(len);
        let inode = &mut model.inodes[at];
        change.apply(&mut inode.data, &mut || true);
        inode.pending.push(change);
        Ok(())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let fails = self.call();
        let mut model = self.model.lock();
        let at = *model.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        let inode = &mut model.inodes[at];
        if fails.is_ok() {
            inode.durable = inode.data.clone();
        }
        // After a failed fsync Linux drops what was dirty: it is in memory, and may never reach the disk.
        if fails.is_ok() {
            inode.pending.clear();
        }
        fails
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call()?;
        let mut model = self.model.lock();
        let changes = model.pending_names.remove(dir).unwrap_or_default();
        for change in &changes {
            apply_names(&mut model.durable_names, change);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        let mut model = self.model.lock();
        let at = model.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        model.names.insert(to.to_owned(), at);
        model.name(to, NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        let mut model = self.model.lock();
        model.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        model.name(path, NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        self.call()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.call()?;
        let model = self.model.lock();
        let at = *model.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(model.inodes[at].data.clone())
    }

    fn read_at(&self, path: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.call()?;
        let model = self.model.lock();
        let at = *model.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(offset).unwrap();
        let bytes = model.inodes[at].data.get(start..start + len);
        bytes.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        let model = self.model.lock();
        let at = *model.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(model.inodes[at].data.len() as u64)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call()?;
        let model = self.model.lock();
        let mut names: Vec<String> = model
            .names
            .keys()
            .filter_map(|path| path.strip_prefix(dir).ok())
            .filter_map(|rest| rest.components().next())
            .filter_map(|part| part.as_os_str().to_str().map(str::to_owned))
            .collect();
        names.dedup();
        Ok(names)
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// Moves on by a second at each look.
pub(crate) struct SimClock(pub Mutex<i64>);

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let mut at = self.0.lock();
        *at += 1_000_000;
        Timestamp::from_nanos(*at)
    }
}

pub(crate) struct SimEntropy(pub Mutex<u64>);

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock();
        for byte in bytes {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (*state >> 56) as u8;
        }
    }
}
