//! A cgroup for each process tree (cgroups(7), version 2): what is in it is known without guessing,
//! and dies by one write, however it forks, leaves its session, or clears its environment.
//!
//! A home is made below this process's own cgroup, where that may be written; trees get rooms in it.
//! No controller is switched on. A room whose tree is gone is used again. Empty rooms and homes are
//! removed at the end; what a killed process left is removed by the next one beside it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::ProcError;
use procfs::process::Process;

const HOME_PREFIX: &str = "iteron-";
/// Rooms in a home: far above the trees that live at one time.
const ROOMS_MAX: u32 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot find this process's cgroup")]
    Find(#[from] ProcError),
    #[error("this process is in no cgroup of version 2 that is mounted here")]
    NotMounted,
    #[error("cannot make a cgroup at {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("all {ROOMS_MAX} rooms are taken")]
    Full,
}

/// The cgroup under which this process puts what it starts.
#[derive(Debug)]
pub(crate) struct CgroupHome {
    path: PathBuf,
    taken: Arc<Mutex<BTreeSet<u32>>>,
}

impl CgroupHome {
    /// Makes a home for this process, and removes those that earlier ones left empty.
    pub(crate) fn make() -> Result<Self, CgroupError> {
        static HOMES: AtomicU32 = AtomicU32::new(0);
        let own = own_cgroup()?;
        remove_abandoned(&own);
        let number = HOMES.fetch_add(1, Ordering::Relaxed);
        let path = own.join(format!("{HOME_PREFIX}{}-{number}", std::process::id()));
        make_dir(&path)?;
        // The home proves that a process may be moved here before anything relies on it.
        Ok(Self { path, taken: Arc::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An empty room.
    pub(crate) fn room(&self) -> Result<Cgroup, CgroupError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..ROOMS_MAX {
            let path = self.path.join(number.to_string());
            if taken.contains(&number) || is_populated(&path) {
                continue;
            }
            make_dir(&path)?;
            taken.insert(number);
            return Ok(Cgroup { path, number, taken: Arc::clone(&self.taken) });
        }
        Err(CgroupError::Full)
    }
}

/// The cgroup of one process tree. Dropped, it may be given to another tree once it is empty.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    number: u32,
    taken: Arc<Mutex<BTreeSet<u32>>>,
}

impl Cgroup {
    /// The file into which a process writes `0` to come in.
    pub(crate) fn door(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Pids of living processes in it and below.
    pub(crate) fn members(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        collect(&self.path, &mut found);
        found
    }

    pub(crate) fn is_populated(&self) -> bool {
        is_populated(&self.path)
    }

    pub(crate) fn kill(&self) {
        kill_all(&self.path);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// Kills everything in a cgroup and below: at once where the kernel can (5.14), else one by one.
pub(crate) fn kill_all(path: &Path) {
    let whole = OpenOptions::new().write(true).open(path.join("cgroup.kill"));
    if whole.and_then(|mut file| file.write_all(b"1")).is_ok() {
        return;
    }
    let mut members = BTreeSet::new();
    collect(path, &mut members);
    for pid in members {
        // One that is gone already needs no signal.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// Whether a living process is in a cgroup or below it.
pub(crate) fn is_populated(path: &Path) -> bool {
    let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

fn make_dir(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Make { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn collect(path: &Path, found: &mut BTreeSet<i32>) {
    let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    found.extend(members.lines().filter_map(|line| line.parse::<i32>().ok()));
    for below in subdirectories(path) {
        collect(&below, found);
    }
}

fn subdirectories(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_abandoned(own: &Path) {
    for home in subdirectories(own) {
        let name = home.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pid = name.strip_prefix(HOME_PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_tree(&home);
        }
    }
}

/// Removes a cgroup and those below it, as far as nobody is in them.
pub(crate) fn remove_tree(path: &Path) {
    for below in subdirectories(path) {
        remove_tree(&below);
    }
    let _ = fs::remove_dir(path);
}

/// Where this process's own cgroup is mounted.
fn own_cgroup() -> Result<PathBuf, CgroupError> {
    let me = Process::myself()?;
    let own = me.cgroups()?.into_iter().find(|group| group.hierarchy == 0).ok_or(CgroupError::NotMounted)?;
    let mounted = me.mountinfo()?.into_iter().find_map(|mount| {
        // A mount shows a part of the hierarchy: what is below its root.
        let below = Path::new(&own.pathname).strip_prefix(&mount.root).ok()?;
        (mount.fs_type == "cgroup2").then(|| mount.mount_point.join(below))
    });
    mounted.ok_or(CgroupError::NotMounted)
}
