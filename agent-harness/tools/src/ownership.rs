//! How this process owns what it starts: a cgroup home, the role of subreaper, and a supervisor.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use tokio::time::sleep;
use uuid::Uuid;

use crate::cgroup::{self, Cgroup, CgroupHome};
use crate::processes::{self, Root, Tree};
use crate::reaper;
use crate::supervisor::{Belongings, Supervisor};

/// After KILL, until everything is gone: only processes in uninterruptible sleep take longer.
const END_WAIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);

/// Made once by the program that owns tools, and shared by all of them.
#[derive(Debug)]
pub struct Ownership {
    cgroups: Option<CgroupHome>,
    supervisor: Mutex<Option<Supervisor>>,
    mark: String,
    trees: AtomicU64,
    adopts_orphans: bool,
}

impl Ownership {
    /// For a whole program: orphans come to it, and a supervisor cleans up if it is killed. Call it
    /// before there are threads.
    pub fn of_program() -> io::Result<Self> {
        set_child_subreaper(true)?;
        let mut ownership = Self::of_library();
        ownership.adopts_orphans = true;
        let home = ownership.cgroups.as_ref().map(|home| home.path().to_owned());
        let supervisor = Supervisor::start(&Belongings { home, mark: ownership.mark.clone() })?;
        reaper::leave(supervisor.pid());
        ownership.supervisor = Mutex::new(Some(supervisor));
        Ok(ownership)
    }

    /// For a part of a program that is not a subreaper: trees are known by their cgroups.
    #[must_use]
    pub fn of_library() -> Self {
        let mut ownership = Self::without_cgroups();
        match CgroupHome::make() {
            Ok(home) => ownership.cgroups = Some(home),
            Err(error) => tracing::info!(%error, "no cgroups for tools"),
        }
        ownership
    }

    /// Trees are known by descent, session and mark alone.
    #[must_use]
    pub fn without_cgroups() -> Self {
        Self {
            cgroups: None,
            supervisor: Mutex::new(None),
            mark: Uuid::now_v7().to_string(),
            trees: AtomicU64::new(0),
            adopts_orphans: false,
        }
    }

    /// Whether trees have cgroups.
    #[must_use]
    pub const fn has_cgroups(&self) -> bool {
        self.cgroups.is_some()
    }

    /// What a new tree is known by, to be made before its root.
    pub(crate) fn prepare(&self) -> Prepared {
        let number = self.trees.fetch_add(1, Ordering::Relaxed);
        let cgroup = self.cgroups.as_ref().and_then(|home| {
            home.room().inspect_err(|error| tracing::warn!(%error, "a tool runs without a cgroup")).ok()
        });
        Prepared {
            mark: format!("{}.{number}", self.mark),
            cgroup,
            before: self.adopts_orphans.then(processes::descendants_now),
        }
    }

    /// Takes a new root in. `joined`: it is in its cgroup.
    pub(crate) fn adopt(&self, root: Root, prepared: Prepared, joined: bool) -> Tree {
        if let Some(supervisor) = &*self.supervisor.lock().unwrap_or_else(PoisonError::into_inner) {
            supervisor.note(root);
        }
        let Prepared { mark, cgroup, before } = prepared;
        Tree::new(root, mark, cgroup.filter(|_| joined), before)
    }

    /// Kills whatever was started here and still lives, left in the background on purpose or not.
    /// Whether all of it is gone.
    pub async fn end_everything(&self) -> bool {
        let deadline = Instant::now() + END_WAIT;
        let spared =
            self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Supervisor::pid);
        loop {
            if let Some(home) = &self.cgroups {
                cgroup::kill_all(home.path());
            }
            let mut living = if self.adopts_orphans { processes::kill_descendants(spared) } else { 0 };
            living +=
                usize::from(self.cgroups.as_ref().is_some_and(|home| cgroup::is_populated(home.path())));
            let reaped = !self.adopts_orphans || reaper::reap_adopted().is_some();
            if living == 0 && reaped {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(POLL).await;
        }
    }

    /// The program ends in good order: what lives on was left on purpose.
    pub fn release(&self) {
        if let Some(supervisor) = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take() {
            supervisor.dismiss();
        }
        if let Some(home) = &self.cgroups {
            cgroup::remove_tree(home.path());
        }
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.release();
    }
}

/// What a tree will be known by.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub mark: String,
    pub cgroup: Option<Cgroup>,
    before: Option<BTreeSet<(i32, u64)>>,
}
