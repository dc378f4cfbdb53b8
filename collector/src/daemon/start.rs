//! Becoming the daemon: privileges, the lock, names, the spool, kernel programs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use activity_schema::ids::{CollectorId, Epoch, HostId, TenantId};
use anyhow::Context as _;

use super::duties::Timers;
use super::hearing::Hearing;
use super::rings::Rings;
use super::{Daemon, agent};
use crate::clock::ClockReading;
use crate::config::Config;
use crate::identity::{self, ProcessIds};
use crate::kernel::{AttachReport, Helper, KernelConfig, KernelSource, RingSizes};
use crate::observe::Observer;
use crate::observe::procfs::PolledProcesses;
use crate::privilege::{self, Owner};
use crate::process::ProcessMemory;
use crate::recorder::Recorder;
use crate::resource::ResourceSource;
use crate::sandbox::{Instance, Sandboxes, cgroup2_root, is_whole_hierarchy};
use crate::scope::ScopeTable;
use crate::spool::{EpochIdentity, OsDisk, Spool, SpoolLimits};
use crate::uplink::full;
use crate::uplink::identity::Identity;

/// Names of this run.
pub(super) struct Names {
    pub tenant: TenantId,
    pub host: HostId,
    pub collector_id: CollectorId,
    pub instance_id: String,
    /// The enrolment covers no other instance.
    pub only_instance: bool,
}

impl Daemon {
    pub(super) fn start(config: &Config, names: &Names, helper: Option<Helper>) -> anyhow::Result<Self> {
        let clock = ClockReading::now();
        let boot_id = identity::boot_id().context("cannot read the boot id")?;
        let nonce = match &config.nonce_file {
            Some(path) => nonce_in(path).with_context(|| format!("nonce_file {}", path.display()))?,
            None => String::new(),
        };
        let epoch = Epoch::new(uuid::Uuid::now_v7().to_string())?;
        let wanted = EpochIdentity {
            format: 1,
            epoch,
            tenant: names.tenant.clone(),
            host: names.host.clone(),
            collector_id: names.collector_id.clone(),
            boot_id: boot_id.clone(),
            nonce: nonce.clone(),
            created: clock.wall,
        };
        let limits = SpoolLimits::of_total(config.spool_bytes_max);
        let spool_dir = config.state_dir.join("spool");
        let seed: [u8; 32] = rand::random();
        let (mut spool, recovery) = Spool::open(OsDisk, &spool_dir, limits, wanted, &seed, clock.state)
            .with_context(|| format!("cannot open the spool {}", spool_dir.display()))?;
        spool.set_policy_digest(config.policy_digest());

        let cgroup_root = cgroup2_root().unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
        let (kernel, attach, no_kernel) = attach_kernel(config, names, &cgroup_root, helper);
        let own = Instance {
            instance_id: names.instance_id.clone(),
            agent_id: config.agent_id.clone(),
            runtime: config.runtime,
            layer: config.layer,
            cgroup: config.cgroup.clone(),
        };
        let others = config.sandbox.iter().map(|s| Instance {
            instance_id: s.instance_id.clone(),
            agent_id: s.agent_id.clone(),
            runtime: s.runtime,
            layer: config.layer,
            cgroup: s.cgroup.clone(),
        });
        let mut sandboxes = Sandboxes::new(cgroup_root.clone(), own, others.collect());
        let unified = attach.as_ref().is_some_and(|a| a.cgroup_hierarchy == "v2");
        if unified && is_whole_hierarchy(&cgroup_root) {
            sandboxes.learn_all();
        }
        let resources =
            sandboxes.all().iter().map(|i| (i.clone(), ResourceSource::new(&cgroup_root, i))).collect();
        let (scope_log, kept) = agent::ScopeLog::open(&config.state_dir.join("scopes.jsonl"), &boot_id)?;
        let mut scopes = ScopeTable::default();
        kept.into_iter().for_each(|scope| scopes.restore(scope));
        let ids = ProcessIds::new(&boot_id, &nonce);
        let mut recorder = Recorder::new(spool, sandboxes.own().clone(), clock);
        recorder.only_own = names.only_instance;
        let (rings, same_rings) = match &kernel {
            Some(kernel) => {
                let file = config.state_dir.join("rings");
                Rings::open(&OsDisk, &file, &boot_id, kernel.ring_ids()?, &recovery.cursors)
                    .with_context(|| format!("cannot write {}", file.display()))?
            }
            None => (Rings::default(), false),
        };
        let watched = same_rings && attach.as_ref().is_some_and(|a| a.reused_pins);
        let mut observer = Observer::new(ids, sandboxes, scopes, recovery.cursors.clone());
        match ProcessMemory::open(&config.state_dir.join("processes"), &boot_id) {
            Ok(memory) => observer.processes.set_memory(memory),
            Err(error) => {
                tracing::warn!(%error, "after a kill, parents of running processes will not be known")
            }
        }
        Ok(Daemon {
            config: config.clone(),
            recorder,
            observer,
            kernel,
            attach,
            no_kernel,
            rings,
            watched,
            polled: PolledProcesses::default(),
            resources,
            cgroup_root,
            boot_id,
            hearing: Hearing::new(clock.boot_ns, clock.wall),
            absent: Vec::new(),
            unkept: false,
            unheard: Arc::default(),
            quota: Default::default(),
            scope_log,
            rejected: 0,
            recovery,
            busy: false,
            complete_until: clock.wall,
            timers: Timers::default(),
            udp_told_until_ns: 0,
            canary_cpu: 0,
            canary_sent_ns: None,
            stopping: false,
        })
    }
}

/// Leaves what needs privileges to a process apart and gives them up: nothing that comes from outside has been read.
pub(super) fn step_down(config: &Config) -> anyhow::Result<Option<Helper>> {
    let state = &config.state_dir;
    let owner = Owner::of(state).with_context(|| format!("cannot make {}", state.display()))?;
    if let Some(folder) = config.agent_socket.parent() {
        owner.make_folder(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let helper = config.kernel.enabled.then(|| Helper::start(owner)).transpose();
    let helper = helper.context("cannot start the process that attaches kernel programs")?;
    owner.become_it()?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(state, private).with_context(|| format!("{}", state.display()))?;
    match privilege::seccomp::apply() {
        Ok(()) => {}
        Err(error) => tracing::warn!(error = %full(&error), "no filter of system calls"),
    }
    Ok(helper)
}

/// One collector a state folder. One that was killed a moment ago may still be on its way out.
pub(super) fn lock(state: &Path) -> anyhow::Result<nix::fcntl::Flock<std::fs::File>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    const TRIES: u32 = 20;
    const BETWEEN: Duration = Duration::from_millis(100);
    let path = state.join("lock");
    let open = || {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).open(&path)
    };
    let mut file = open().with_context(|| format!("cannot open {}", path.display()))?;
    for _ in 0..TRIES {
        match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, _)) => file = back,
        }
        std::thread::sleep(BETWEEN);
    }
    anyhow::bail!("another collector uses {}", state.display())
}

/// The nonce in a regular file of at most 4 KiB.
fn nonce_in(path: &Path) -> std::io::Result<String> {
    const NONCE_BYTES_MAX: u64 = 4096;
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > NONCE_BYTES_MAX {
        return Err(std::io::Error::other("it must be a regular file of at most 4096 bytes"));
    }
    let mut text = String::new();
    file.take(NONCE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

pub(super) fn names(config: &Config, enrolment: Option<&Identity>) -> anyhow::Result<Names> {
    if let Some(e) = enrolment {
        anyhow::ensure!(
            !e.only_instance || config.sandbox.is_empty(),
            "[[sandbox]]: this collector is enrolled for the instance {} alone; remove the section, or enrol with a \
             token for the host",
            e.instance
        );
        return Ok(Names {
            tenant: e.tenant.clone(),
            host: e.host.clone(),
            collector_id: e.collector_id.clone(),
            instance_id: e.instance.to_string(),
            only_instance: e.only_instance,
        });
    }
    let tenant = config.tenant.clone().context(
        "no tenant: enrol first (activity-collector enroll), or set `tenant` to record without a gateway",
    )?;
    let host = config.host_id.clone().unwrap_or_else(identity::default_host_id);
    Ok(Names {
        tenant: tenant.parse().context("tenant")?,
        collector_id: collector_id(config, &host).parse().context("collector_id")?,
        instance_id: config.instance_id.clone().unwrap_or_else(|| host.clone()),
        only_instance: false,
        host: host.parse().context("host_id")?,
    })
}

/// The configured id, else one made of the host's.
pub fn collector_id(config: &Config, host: &str) -> String {
    config.collector_id.clone().unwrap_or_else(|| format!("collector-{host}"))
}

fn attach_kernel(
    config: &Config,
    names: &Names,
    cgroup_root: &Path,
    helper: Option<Helper>,
) -> (Option<KernelSource>, Option<AttachReport>, String) {
    let Some(helper) = helper else {
        return (None, None, "kernel.enabled is false".to_owned());
    };
    let default = || Path::new("/sys/fs/bpf/activity").join(names.collector_id.as_str().replace('.', "_"));
    let page_bytes = usize::try_from(
        nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096),
    )
    .unwrap_or(4096);
    let attached = KernelSource::attach_by(
        helper,
        &KernelConfig {
            pin_dir: config.kernel.pin.then(|| config.kernel.pin_dir.clone().unwrap_or_else(default)),
            ring_bytes: RingSizes::HOST.within(config.kernel.ring_bytes_max, page_bytes),
            cgroup_root: cgroup_root.to_owned(),
            ignore_self_flows: true,
        },
    );
    match attached {
        Ok((source, report)) => {
            if let Some(reason) = &report.not_pinned {
                tracing::warn!(%reason, "without pins: a restart will have a blind spot");
            }
            (Some(source), Some(report), String::new())
        }
        Err(error) => {
            let reason = full(&error);
            tracing::warn!(%reason, "no kernel programs; processes are polled from procfs");
            (None, None, reason)
        }
    }
}
