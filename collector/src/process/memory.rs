//! What must be known of a running process after the collector was killed: who forked it, what it runs, whether it
//! was told. A file mapped into memory, one slot a pid: it survives SIGKILL, costs no system call, and is bounded by
//! the kernel's `pid_max`. Of another boot it means nothing.
#![allow(unsafe_code, reason = "mmap(2) of a file of our own")]

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use activity_schema::merkle::Hash;
use memmap2::MmapMut;

const SLOT_BYTES: usize = 64;
const NAME_BYTES_MAX: usize = 38;
/// 8 MiB; with more pids than that, one is forgotten for another.
const SLOTS_MAX: usize = 128 * 1024;

/// A slot: `start_ns | parent_start_ns | parent_tgid | told | name length | name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub start_ns: u64,
    /// tgid and start of the process that forked it; 0 when not known.
    pub parent: (u32, u64),
    pub told: bool,
    pub executable: String,
}

pub struct ProcessMemory {
    map: MmapMut,
}

impl ProcessMemory {
    /// Opens the memory of this boot, or begins one.
    pub fn open(path: &Path, boot_id: &str) -> io::Result<Self> {
        let pid_max = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
        let slots = pid_max.trim().parse().unwrap_or(SLOTS_MAX).min(SLOTS_MAX);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // Slot 0, which no process has, says which boot the rest is of.
        let len = (slots as u64 + 1) * SLOT_BYTES as u64;
        let tag = Hash::of(&[b"activity-process-memory-1\0", boot_id.as_bytes()]);
        if file.metadata()?.len() != len {
            renew(&file, len)?;
        }
        // SAFETY: the file is in a folder that only this user can enter, the state folder's lock is held, and nobody
        // shortens the file while it is mapped.
        let mut map = unsafe { MmapMut::map_mut(&file)? };
        if map[..32] != tag.0 {
            drop(map);
            renew(&file, len)?;
            // SAFETY: as above.
            map = unsafe { MmapMut::map_mut(&file)? };
            map[..32].copy_from_slice(&tag.0);
        }
        Ok(ProcessMemory { map })
    }

    fn slot(&self, tgid: u32) -> Option<std::ops::Range<usize>> {
        let slots = self.map.len() / SLOT_BYTES - 1;
        let start = (1 + usize::try_from(tgid).ok()?.checked_rem(slots)?) * SLOT_BYTES;
        (tgid != 0).then_some(start..start + SLOT_BYTES)
    }

    pub fn remember(&mut self, tgid: u32, process: &Remembered) {
        let Some(range) = self.slot(tgid) else { return };
        let name = process.executable.as_bytes();
        let name = &name[..name.len().min(NAME_BYTES_MAX)];
        let slot = &mut self.map[range];
        slot[0..8].copy_from_slice(&process.start_ns.to_le_bytes());
        slot[8..16].copy_from_slice(&process.parent.1.to_le_bytes());
        slot[16..20].copy_from_slice(&process.parent.0.to_le_bytes());
        slot[20] = u8::from(process.told);
        slot[21] = u8::try_from(name.len()).unwrap_or(0);
        slot[22..22 + name.len()].copy_from_slice(name);
        slot[60..64].copy_from_slice(&tgid.to_le_bytes());
    }

    /// What is known of this pid's process, if it is the one that began then.
    pub fn recall(&self, tgid: u32, start_ns: u64) -> Option<Remembered> {
        let slot = &self.map[self.slot(tgid)?];
        let number = |at: usize| slot.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let start = number(0)?;
        let owner = slot.get(60..64) == Some(&tgid.to_le_bytes());
        if start == 0 || !owner || !super::same_start(start, start_ns) {
            return None;
        }
        let name = slot.get(22..22 + usize::from(slot[21]).min(NAME_BYTES_MAX))?;
        Some(Remembered {
            start_ns: start,
            parent: (u32::from_le_bytes(slot.get(16..20)?.try_into().ok()?), number(8)?),
            told: slot[20] != 0,
            executable: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

/// Empties the file and takes its whole space: a write to a mapped page cannot fail for want of it.
fn renew(file: &std::fs::File, len: u64) -> io::Result<()> {
    file.set_len(0)?;
    let whole = i64::try_from(len).map_err(io::Error::other)?;
    nix::fcntl::posix_fallocate(file, 0, whole).inspect_err(|_| drop(file.set_len(0)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_collectors_memory_is_there_and_another_boots_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("processes");
        let known =
            Remembered { start_ns: 70_000_000, parent: (1, 5), told: true, executable: "x".repeat(60) };
        let mut memory = ProcessMemory::open(&path, "boot-a").unwrap();
        memory.remember(4000, &known);
        // Never dropped: as after SIGKILL.
        std::mem::forget(memory);
        let memory = ProcessMemory::open(&path, "boot-a").unwrap();
        let recalled = memory.recall(4000, 70_000_001).unwrap();
        assert_eq!((recalled.parent, recalled.told), ((1, 5), true));
        assert_eq!(recalled.executable.len(), NAME_BYTES_MAX);
        assert_eq!(memory.recall(4000, 90_000_000), None, "another process of the same pid");
        assert_eq!(memory.recall(4001, 70_000_000), None);
        assert_eq!(memory.recall(u32::MAX, 1), None);
        drop(memory);
        assert_eq!(ProcessMemory::open(&path, "boot-b").unwrap().recall(4000, 70_000_000), None);
    }
}
