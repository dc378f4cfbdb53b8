//! Which sandbox a cgroup belongs to, decided at event time and remembered.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use activity_schema::event::{Layer, Runtime};

use crate::kernel::CgroupRecord;

/// Instance of what is nobody's.
pub const UNKNOWN: &str = "unknown";
/// Resolved cgroup ids kept; beyond that the cache is emptied and filled anew.
const CACHE_MAX: usize = 16_384;
/// Deepest cgroup below a sandbox's own that is searched.
const DEPTH_MAX: usize = 8;

/// What every event of a sandbox carries.
#[derive(Debug, PartialEq, Eq)]
pub struct Instance {
    pub instance_id: String,
    pub agent_id: String,
    pub runtime: Runtime,
    pub layer: Layer,
    /// Path below the cgroup v2 root, `/` for the whole host.
    pub cgroup: String,
}

/// The sandboxes of this collector. The first is the host or guest itself.
pub struct Sandboxes {
    root: PathBuf,
    instances: Vec<Arc<Instance>>,
    by_cgroup: HashMap<u64, Option<Arc<Instance>>>,
    unknown: Arc<Instance>,
    /// Paths in the kernel's records are those that this process sees.
    learns: bool,
}

impl Sandboxes {
    /// `root` is the mount point of cgroup v2. `own` is what the collector itself stands for.
    pub fn new(root: PathBuf, own: Instance, others: Vec<Instance>) -> Self {
        let unknown = Arc::new(Instance {
            instance_id: UNKNOWN.to_owned(),
            agent_id: UNKNOWN.to_owned(),
            runtime: Runtime::Unknown,
            layer: own.layer,
            cgroup: String::new(),
        });
        let instances = std::iter::once(own).chain(others).map(Arc::new).collect();
        Sandboxes { root, instances, by_cgroup: HashMap::new(), unknown, learns: false }
    }

    pub fn own(&self) -> &Arc<Instance> {
        &self.instances[0]
    }

    /// What is nobody's.
    pub fn unknown(&self) -> &Arc<Instance> {
        &self.unknown
    }

    pub fn all(&self) -> &[Arc<Instance>] {
        &self.instances
    }

    /// Whom something can be told of: the sandboxes, and nobody.
    pub fn all_and_unknown(&self) -> Vec<Arc<Instance>> {
        self.instances.iter().chain([&self.unknown]).cloned().collect()
    }

    /// Where a sandbox's cgroup v2 files are.
    pub fn path_of(&self, instance: &Instance) -> PathBuf {
        self.root.join(instance.cgroup.trim_start_matches('/'))
    }

    /// The sandbox of a kernel cgroup id. `pid` is asked in procfs when the id is new. `None` when the cgroup is gone:
    /// it may have been any sandbox's, unless the only sandbox is the whole machine.
    pub fn resolve(&mut self, cgroup_id: u64, pid: u32) -> Option<Arc<Instance>> {
        if self.instances.len() == 1 && self.instances[0].cgroup == "/" {
            return Some(self.instances[0].clone());
        }
        if let Some(found) = self.by_cgroup.get(&cgroup_id) {
            return found.clone();
        }
        let path = cgroup_path(pid)
            .filter(|path| inode(&self.root.join(path.trim_start_matches('/'))) == Some(cgroup_id))
            .or_else(|| self.search(cgroup_id));
        // One that is gone does not come back: the kernel does not give its id again.
        let found = path.map(|path| self.owner(&path));
        self.keep(cgroup_id, found.clone());
        found
    }

    /// From now on paths in the kernel's records are taken for those that this process sees. What is there already is
    /// noted, as many cgroups as are kept.
    pub fn learn_all(&mut self) {
        self.learns = true;
        let mut left = vec![self.root.clone()];
        while let Some(dir) = left.pop() {
            let below = dir.strip_prefix(&self.root).ok().map(Path::to_string_lossy);
            if let (Some(id), Some(below)) = (inode(&dir), below)
                && self.by_cgroup.len() < CACHE_MAX
            {
                let owner = self.owner(&format!("/{below}"));
                self.keep(id, Some(owner));
                let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
                left.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
            }
        }
    }

    /// Takes note of a new cgroup, which may be gone by the time that something of it is read.
    pub fn learn(&mut self, cgroup: &CgroupRecord<'_>) {
        if self.learns && !cgroup.path_truncated {
            let owner = self.owner(&String::from_utf8_lossy(cgroup.path));
            self.keep(cgroup.common.cgroup_id, Some(owner));
        }
    }

    fn keep(&mut self, cgroup_id: u64, owner: Option<Arc<Instance>>) {
        if self.by_cgroup.len() >= CACHE_MAX {
            self.by_cgroup.clear();
        }
        self.by_cgroup.insert(cgroup_id, owner);
    }

    /// The sandbox whose cgroup is the nearest at or above `path`; the unknown one where none is.
    pub fn owner(&self, path: &str) -> Arc<Instance> {
        let below = |instance: &&Arc<Instance>| {
            let own = instance.cgroup.trim_end_matches('/');
            path == own || path.strip_prefix(own).is_some_and(|rest| rest.starts_with('/'))
        };
        let nearest = self.instances.iter().filter(below).max_by_key(|i| i.cgroup.len());
        nearest.unwrap_or(&self.unknown).clone()
    }

    /// The sandbox that a process is in now; nobody's when its cgroup cannot be read.
    pub fn owner_of(&self, pid: u32) -> Arc<Instance> {
        cgroup_path(pid).map_or_else(|| self.unknown.clone(), |path| self.owner(&path))
    }

    /// Looks for a cgroup id below the sandboxes and at the top of the hierarchy.
    fn search(&self, cgroup_id: u64) -> Option<String> {
        self.instances.iter().rev().find_map(|instance| {
            let start = self.path_of(instance);
            let depth = if instance.cgroup == "/" { 3 } else { DEPTH_MAX };
            find_inode(&start, cgroup_id, depth)
                .and_then(|p| Some(format!("/{}", p.strip_prefix(&self.root).ok()?.to_string_lossy())))
        })
    }
}

/// Path of a process in cgroup v2, from `/proc/<pid>/cgroup` (cgroups(7)). A name below a sandbox's need not be text: what
/// is not is replaced, and the sandbox's own path before it stays as it is.
pub fn cgroup_path(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned)
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|m| m.ino())
}

fn find_inode(dir: &Path, wanted: u64, depth: usize) -> Option<PathBuf> {
    if inode(dir) == Some(wanted) {
        return Some(dir.to_owned());
    }
    if depth == 0 {
        return None;
    }
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .find_map(|e| find_inode(&e.path(), wanted, depth - 1))
}

/// Whether paths below `root` are those of the whole hierarchy, as the kernel names them: this process is in the initial
/// cgroup namespace, and the mount does not begin deeper (cgroup_namespaces(7), proc_pid_mountinfo(5)).
pub fn is_whole_hierarchy(root: &Path) -> bool {
    /// `PROC_CGROUP_INIT_INO` (include/linux/proc_ns.h).
    const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFB;
    let initial = inode(Path::new("/proc/self/ns/cgroup")) == Some(INITIAL_NAMESPACE);
    let mounts = procfs::process::Process::myself().and_then(|process| process.mountinfo());
    initial && mounts.is_ok_and(|all| all.0.iter().any(|m| m.mount_point == root && m.root == "/"))
}

/// Mount point of cgroup v2, unified or hybrid.
pub fn cgroup2_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_16384_cgroups_it_is_remembered_whose_they_are() {
        let root = tempfile::tempdir().unwrap();
        let own = Instance {
            instance_id: "i".to_owned(),
            agent_id: "a".to_owned(),
            runtime: Runtime::Host,
            layer: Layer::Host,
            cgroup: "/own".to_owned(),
        };
        let mut sandboxes = Sandboxes::new(root.path().to_owned(), own, Vec::new());
        let mut remembered = |cgroup_id| {
            assert!(sandboxes.resolve(cgroup_id, 0).is_none());
            sandboxes.by_cgroup.len()
        };
        assert_eq!((1..=16_384).map(&mut remembered).max(), Some(16_384));
        assert_eq!(remembered(1), 16_384);
        assert_eq!(remembered(20_000), 1, "filled anew");
    }
}
