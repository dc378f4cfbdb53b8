//! The process tree in bounded memory: names, parents and scopes of what runs now.

mod memory;

pub use memory::{ProcessMemory, Remembered};

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::sandbox::Instance;

/// Processes remembered. A host that runs more loses parents of the oldest, counted.
pub const PROCESSES_MAX: usize = 65_536;
/// A fork that did not exec by then is told as `process.started`, nanoseconds.
pub const FORK_PATIENCE_NS: u64 = 1_000_000_000;

/// What is known of a running process.
#[derive(Debug, Clone)]
pub struct Process {
    pub id: Arc<str>,
    pub tgid: u32,
    pub start_ns: u64,
    pub parent: Option<Arc<str>>,
    /// tgid and start of the parent, where it was seen to fork.
    pub parent_key: (u32, u64),
    pub executable: Arc<str>,
    pub instance: Arc<Instance>,
    pub scope: u64,
    pub uid: u32,
    pub gid: u32,
    pub ns_pid: u32,
    pub session_leader: bool,
    /// `process.started` or `process.exec` was told.
    pub told: bool,
    pub forked_at_ns: u64,
}

#[derive(Default)]
pub struct ProcessTable {
    by_tgid: HashMap<u32, Process>,
    /// Forks not told yet, in order of time: (tgid, start).
    waiting: VecDeque<(u32, u64)>,
    /// Insertion order, for eviction.
    order: VecDeque<(u32, u64)>,
    pub evicted: u64,
    memory: Option<ProcessMemory>,
}

impl ProcessTable {
    pub fn len(&self) -> usize {
        self.by_tgid.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_tgid.is_empty()
    }

    /// The process with this pid, whatever its start.
    pub fn get(&self, tgid: u32) -> Option<&Process> {
        self.by_tgid.get(&tgid)
    }

    /// The very process. A start of 0 is not known and matches any.
    pub fn get_mut(&mut self, tgid: u32, start_ns: u64) -> Option<&mut Process> {
        self.by_tgid.get_mut(&tgid).filter(|p| start_ns == 0 || same_start(p.start_ns, start_ns))
    }

    /// From now on what runs is remembered across a kill.
    pub fn set_memory(&mut self, memory: ProcessMemory) {
        self.memory = Some(memory);
    }

    /// What an earlier run of this boot knew of a process.
    pub fn recall(&self, tgid: u32, start_ns: u64) -> Option<Remembered> {
        self.memory.as_ref()?.recall(tgid, start_ns)
    }

    /// Changes a process of the table, and what is remembered of it.
    pub fn update(
        &mut self,
        tgid: u32,
        start_ns: u64,
        change: impl FnOnce(&mut Process),
    ) -> Option<&Process> {
        let process =
            self.by_tgid.get_mut(&tgid).filter(|p| start_ns == 0 || same_start(p.start_ns, start_ns))?;
        change(process);
        remember(&mut self.memory, process);
        Some(process)
    }

    pub fn insert(&mut self, process: Process) {
        remember(&mut self.memory, &process);
        let key = (process.tgid, process.start_ns);
        if !process.told {
            self.waiting.push_back(key);
        }
        self.order.push_back(key);
        self.by_tgid.insert(process.tgid, process);
        while self.by_tgid.len() > PROCESSES_MAX || self.order.len() > 2 * PROCESSES_MAX {
            let Some((tgid, start_ns)) = self.order.pop_front() else { break };
            let live = self.by_tgid.get(&tgid).is_some_and(|p| p.start_ns == start_ns);
            if live && self.by_tgid.len() > PROCESSES_MAX {
                self.by_tgid.remove(&tgid);
                self.evicted += 1;
            } else if live {
                self.order.push_back((tgid, start_ns));
            }
        }
    }

    pub fn remove(&mut self, tgid: u32, start_ns: u64) -> Option<Process> {
        self.get_mut(tgid, start_ns)?;
        self.by_tgid.remove(&tgid)
    }

    /// Forks that have waited long enough and still run untold.
    pub fn due(&mut self, now_ns: u64) -> Vec<Process> {
        let mut due = Vec::new();
        while let Some((tgid, start_ns)) = self.waiting.front().copied() {
            match self.by_tgid.get_mut(&tgid).filter(|p| p.start_ns == start_ns && !p.told) {
                Some(p) if now_ns < p.forked_at_ns.saturating_add(FORK_PATIENCE_NS) => break,
                Some(p) => {
                    p.told = true;
                    remember(&mut self.memory, p);
                    due.push(p.clone());
                }
                None => {}
            }
            self.waiting.pop_front();
        }
        due
    }

    pub fn next_due_ns(&self) -> Option<u64> {
        let (tgid, _) = self.waiting.front()?;
        Some(self.by_tgid.get(tgid).map_or(0, |p| p.forked_at_ns.saturating_add(FORK_PATIENCE_NS)))
    }

    /// When the oldest fork happened that is not told yet, boot clock.
    pub fn oldest_untold_ns(&self) -> Option<u64> {
        let process = |(tgid, start_ns): &(u32, u64)| {
            self.by_tgid.get(tgid).filter(|p| p.start_ns == *start_ns && !p.told)
        };
        self.waiting.iter().find_map(process).map(|p| p.forked_at_ns)
    }
}

fn remember(memory: &mut Option<ProcessMemory>, process: &Process) {
    if let Some(memory) = memory {
        let known = Remembered {
            start_ns: process.start_ns,
            parent: process.parent_key,
            told: process.told,
            executable: process.executable.to_string(),
        };
        memory.remember(process.tgid, &known);
    }
}

/// Procfs knows starts to a tick only.
fn same_start(a: u64, b: u64) -> bool {
    a / crate::identity::TICK_NS == b / crate::identity::TICK_NS
}

#[cfg(test)]
mod tests {
    use activity_schema::event::{Layer, Runtime};

    use super::*;

    fn instance() -> Arc<Instance> {
        Arc::new(Instance {
            instance_id: "i".to_owned(),
            agent_id: "a".to_owned(),
            runtime: Runtime::Host,
            layer: Layer::Host,
            cgroup: "/".to_owned(),
        })
    }

    fn process(n: u32, instance: &Arc<Instance>) -> Process {
        Process {
            id: n.to_string().into(),
            tgid: n,
            start_ns: u64::from(n) * crate::identity::TICK_NS,
            parent: None,
            parent_key: (0, 0),
            executable: "sh".into(),
            instance: instance.clone(),
            scope: 0,
            uid: 0,
            gid: 0,
            ns_pid: 0,
            session_leader: false,
            told: true,
            forked_at_ns: 0,
        }
    }

    /// Field case 4.
    #[test]
    fn field_case_4_the_table_is_bounded_after_churn_and_what_it_forgets_is_counted() {
        let instance = instance();
        let max = 65_536;
        let mut table = ProcessTable::default();
        for n in 1..=4 * max {
            table.insert(process(n, &instance));
            table.remove(n, u64::from(n) * crate::identity::TICK_NS).unwrap();
        }
        assert!(table.is_empty() && table.evicted == 0, "who ended is not forgotten but gone");
        assert!(table.order.len() <= 2 * 65_536, "{} places are kept", table.order.len());
        for n in 1..=max + 1_000 {
            table.insert(process(n, &instance));
        }
        assert_eq!((table.len(), table.evicted), (65_536, 1_000));
        assert!(table.get(1_000).is_none() && table.get(1_001).is_some(), "the oldest go first");
    }

    #[test]
    fn a_fork_that_did_not_exec_for_a_second_is_told_once() {
        let mut table = ProcessTable::default();
        table.insert(Process { told: false, forked_at_ns: 5, ..process(1, &instance()) });
        table.insert(Process { told: false, forked_at_ns: 9, ..process(2, &instance()) });
        assert_eq!((table.next_due_ns(), table.oldest_untold_ns()), (Some(1_000_000_005), Some(5)));
        assert!(table.due(1_000_000_004).is_empty());
        assert_eq!(table.due(1_000_000_005).len(), 1);
        assert_eq!(table.oldest_untold_ns(), Some(9));
        assert_eq!(table.due(1_000_000_009).len(), 1);
        assert_eq!(table.oldest_untold_ns(), None);
        assert!(table.due(9_000_000_000).is_empty());
    }
}
