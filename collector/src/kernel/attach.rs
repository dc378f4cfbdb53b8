//! Loading, attaching and pinning. A set of pins is a directory named after the ABI and the object's digest;
//! whatever it holds is used again, so that the programs of a collector that died go on without a gap.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use activity_ebpf_abi::offsets::{ABSENT, Offsets};
use activity_ebpf_abi::{ABI_VERSION, RecordKind};
use aya::maps::{Map, MapData};
use aya::programs::links::{CgroupAttachMode, FdLink, PinnedLink};
use aya::programs::{CgroupSkb, CgroupSock, CgroupSockAddr, Program, RawTracePoint, TracePoint};
use aya::{Ebpf, EbpfLoader};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, statfs};
use thiserror::Error;

use super::btf::Btf;
use super::loss::Running;
use super::probes::{CLASSES, Class, Hook, MAPS, Probe};
use super::{AttachReport, ClassSupport, KernelConfig, ReplacedSet, Support, object, offsets, ring, sys};

pub(super) const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
const TRACEFS_PATH: &str = "/sys/kernel/tracing";

#[derive(Debug, Error)]
pub enum AttachError {
    #[error("loading kernel programs needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")]
    NotPrivileged(#[source] Box<aya::EbpfError>),
    #[error("cannot make the pin directory {path}: mount a bpffs there (mount -t bpf bpffs /sys/fs/bpf)")]
    PinDirectory { path: PathBuf, source: io::Error },
    #[error(
        "{path} is not on a bpffs: mount one (mount -t bpf bpffs /sys/fs/bpf) or choose another directory"
    )]
    NotBpffs { path: PathBuf },
    #[error("cannot load the kernel programs' maps")]
    Load(#[source] Box<aya::EbpfError>),
    #[error("the object has no usable map {0}: it was built from other sources")]
    Map(&'static str),
    #[error("cannot map the ring {ring}")]
    Ring { ring: &'static str, source: io::Error },
    #[error("cannot watch the rings")]
    Poll(#[source] io::Error),
    #[error("no program can be attached on this kernel: {0}")]
    Nothing(String),
    /// What the process apart said.
    #[error("{0}")]
    Apart(String),
}

/// What a source keeps while it is attached.
pub(super) struct Attached {
    pub(super) maps: BTreeMap<&'static str, OwnedFd>,
    pub(super) running: Vec<Running>,
    pub(super) set: Option<Set>,
    pub(super) report: AttachReport,
    pub(super) keeper: Keeper,
}

/// What holds the programs that are not pinned: they end with it.
pub(super) enum Keeper {
    None,
    Here { _programs: Box<Ebpf>, _links: Vec<PinnedLink> },
    Apart(super::apart::Helper),
}

/// A set of pins, reached through a descriptor of the folder that it is in: the way to that folder may be closed to
/// who removes the set.
pub(super) struct Set {
    pub(super) folder: OwnedFd,
    pub(super) name: String,
}

impl Set {
    pub(super) fn folder_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder_path().join(&self.name)
    }
}

/// Where pins are wanted and cannot be had, attaches without.
pub(super) fn attach(config: &KernelConfig) -> Result<Attached, AttachError> {
    let unpinned = KernelConfig { pin_dir: None, ..config.clone() };
    match attach_as(config) {
        Err(error) if config.pin_dir.is_some() => {
            let mut attached = attach_as(&unpinned)?;
            attached.report.not_pinned = Some(crate::uplink::full(&error));
            Ok(attached)
        }
        other => other,
    }
}

fn attach_as(config: &KernelConfig) -> Result<Attached, AttachError> {
    // Kernels before 5.11 charge maps to this limit; where it cannot be raised, loading says so.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let set = config.pin_dir.as_deref().map(prepare_set).transpose()?;
    let set_path = set.as_ref().map(Set::path);
    let btf = fs::read(BTF_PATH).ok().and_then(|bytes| Btf::parse(bytes, &offsets::wanted()).ok());
    let mut table = btf.as_ref().map_or(Offsets::ABSENT, offsets::resolve);
    let cgroup = File::open(&config.cgroup_root).ok();
    let unified =
        statfs(&config.cgroup_root).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC);
    let cgroup_hierarchy = if unified { "v2" } else { use_v1(&mut table, btf.as_ref()) };

    let mut programs = load(config, &table, set_path.as_deref())?;
    let maps = take_maps(&mut programs)?;
    let mut attacher = Attacher {
        programs: &mut programs,
        set: set_path.as_deref(),
        cgroup: cgroup.filter(|_| unified),
        links: Vec::new(),
        running: Vec::new(),
        reused: 0,
        fresh: 0,
        unpinned: 0,
        slot: 0,
    };
    let mut classes = Vec::new();
    for class in CLASSES {
        let (support, probes) = attacher.class(class, &table, btf.is_some());
        for &kind in class.kinds {
            classes.push(ClassSupport {
                kind,
                support: support.clone(),
                probes: probes.iter().map(|p| (*p).into()).collect(),
            });
        }
    }
    let (links, running) = (attacher.links, attacher.running);
    let (reused, fresh) = (attacher.reused, attacher.fresh);
    let pinned = set.is_some() && attacher.unpinned == 0;
    if classes.iter().all(|class| matches!(class.support, Support::Unsupported(_))) {
        if let Some(set) = &set_path {
            remove_set(set);
        }
        return Err(AttachError::Nothing(first_reason(&classes)));
    }
    let replaced = set.as_ref().map(replace_other_sets).unwrap_or_default();
    // Not before: programs that are loaded name their maps by these very descriptors.
    let maps = maps
        .into_iter()
        .map(|(name, map)| Ok((name, map.fd().as_fd().try_clone_to_owned().map_err(AttachError::Poll)?)))
        .collect::<Result<BTreeMap<_, _>, AttachError>>()?;
    let map_bytes = maps.values().map(|map| sys::memory_bytes(map.as_fd())).sum();
    let report = AttachReport {
        classes,
        reused_pins: reused > 0 && fresh == 0,
        pinned,
        not_pinned: None,
        btf: btf.is_some(),
        map_bytes,
        cgroup_hierarchy: cgroup_hierarchy.into(),
        replaced,
    };
    let keeper = Keeper::Here { _programs: Box::new(programs), _links: links };
    Ok(Attached { maps, running, set, report, keeper })
}

fn first_reason(classes: &[ClassSupport]) -> String {
    classes
        .iter()
        .find_map(|class| match &class.support {
            Support::Unsupported(reason) => Some(reason.clone()),
            _ => None,
        })
        .unwrap_or_default()
}

/// Without a v2 hierarchy the pids (or memory) controller's names the sandbox.
fn use_v1(table: &mut Offsets, btf: Option<&Btf>) -> &'static str {
    for (enumerator, name) in [("pids_cgrp_id", "v1 pids"), ("memory_cgrp_id", "v1 memory")] {
        if let Some(index) = btf.and_then(|btf| btf.enumerator("cgroup_subsys_id", enumerator)) {
            table.cgroup_subsys = index;
            return name;
        }
    }
    "unknown"
}

fn prepare_set(directory: &Path) -> Result<Set, AttachError> {
    fs::create_dir_all(directory)
        .map_err(|source| AttachError::PinDirectory { path: directory.to_owned(), source })?;
    // Asked before the set is made, so that nothing is left behind elsewhere.
    if !statfs(directory).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Err(AttachError::NotBpffs { path: directory.to_owned() });
    }
    let name = format!("abi{ABI_VERSION}-{}", object::short_digest());
    let failed = |source| AttachError::PinDirectory { path: directory.join(&name), source };
    fs::create_dir_all(directory.join(&name)).map_err(failed)?;
    let folder = File::open(directory).map_err(failed)?.into();
    Ok(Set { folder, name })
}

fn load(config: &KernelConfig, table: &Offsets, set: Option<&Path>) -> Result<Ebpf, AttachError> {
    let words = table.to_words();
    let sizes = config.ring_bytes.rounded(ring::page_bytes());
    let mut loader = EbpfLoader::new();
    loader
        .override_global("OFFSETS", &words, true)
        .map_max_entries("ring_vital", sizes.vital)
        .map_max_entries("ring_process", sizes.process)
        .map_max_entries("ring_flow", sizes.flow)
        .map_max_entries("ring_file", sizes.file);
    if let Some(set) = set {
        for name in MAPS {
            loader.map_pin_path(name, set.join(format!("map_{name}")));
        }
    }
    loader.load(object::bytes()).map_err(|error| {
        if not_permitted(&error) {
            AttachError::NotPrivileged(Box::new(error))
        } else {
            AttachError::Load(Box::new(error))
        }
    })
}

fn not_permitted(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied) {
            return true;
        }
        next = error.source();
    }
    false
}

fn take_maps(programs: &mut Ebpf) -> Result<BTreeMap<&'static str, MapData>, AttachError> {
    MAPS.iter()
        .map(|&name| {
            let data = match programs.take_map(name) {
                Some(
                    Map::RingBuf(data)
                    | Map::HashMap(data)
                    | Map::LruHashMap(data)
                    | Map::Array(data)
                    | Map::PerCpuArray(data),
                ) => data,
                _ => return Err(AttachError::Map(name)),
            };
            Ok((name, data))
        })
        .collect()
}

struct Attacher<'a> {
    programs: &'a mut Ebpf,
    set: Option<&'a Path>,
    /// The v2 root.
    cgroup: Option<File>,
    links: Vec<PinnedLink>,
    running: Vec<Running>,
    reused: usize,
    /// Attached now: nothing watched there before.
    fresh: usize,
    unpinned: usize,
    /// Number of the next probe.
    slot: u32,
}

impl Attacher<'_> {
    fn class(&mut self, class: &Class, table: &Offsets, btf: bool) -> (Support, Vec<&'static str>) {
        let first = class.kinds.first().copied().unwrap_or(RecordKind::Fork);
        let (needed, wanted) = offsets::needed(first);
        let absent = offsets::absent(table, needed);
        if !btf {
            return (Support::Unsupported(format!("no BTF at {BTF_PATH}")), Vec::new());
        }
        if !absent.is_empty() {
            return (Support::Unsupported(format!("this kernel lacks {}", absent.join(", "))), Vec::new());
        }
        let mut degraded = Vec::new();
        let absent = offsets::absent(table, wanted);
        // Either cgroup hierarchy will do; the v1 index is absent on purpose otherwise.
        if !absent.is_empty() {
            degraded.push(format!("this kernel lacks {}", absent.join(", ")));
        }
        let mut attached = Vec::new();
        for probe in class.probes {
            let slot = self.slot;
            self.slot += 1;
            match self.probe(probe) {
                Ok(pinned) => {
                    self.running.extend(self.program_fd(probe).map(|program| Running {
                        kind: first,
                        slot,
                        program,
                    }));
                    attached.push(probe.name);
                    self.unpinned += usize::from(!pinned);
                    if self.set.is_some() && !pinned {
                        degraded.push(format!("{} cannot be pinned: a restart leaves a gap", probe.name));
                    }
                }
                Err(reason) if probe.essential => {
                    return (Support::Unsupported(format!("{}: {reason}", probe.name)), attached);
                }
                Err(reason) => degraded.push(format!("{}: {reason}", probe.name)),
            }
        }
        let support =
            if degraded.is_empty() { Support::Supported } else { Support::Degraded(degraded.join("; ")) };
        (support, attached)
    }

    /// The running program, for its own counters.
    fn program_fd(&self, probe: &Probe) -> Option<OwnedFd> {
        let pin = self.set.map(|set| set.join(format!("link_{}", probe.program)));
        if let Some(program) = pin.and_then(|pin| sys::program_of_pinned_link(&pin).ok()) {
            return Some(program);
        }
        self.programs.program(probe.program)?.fd().ok()?.as_fd().try_clone_to_owned().ok()
    }

    /// Attaches one program, or takes its pinned link. Tells whether it is pinned.
    fn probe(&mut self, probe: &Probe) -> Result<bool, String> {
        let pin = self.set.map(|set| set.join(format!("link_{}", probe.program)));
        if let Some(pin) = &pin
            && pin.exists()
        {
            let link = PinnedLink::from_pin(pin).map_err(|error| describe(&error))?;
            self.links.push(link);
            self.reused += 1;
            return Ok(true);
        }
        let program = self
            .programs
            .program_mut(probe.program)
            .ok_or_else(|| "the object lacks the program".to_owned())?;
        let link = start(program, probe.hook, self.cgroup.as_ref(), pin.is_some())?;
        self.fresh += 1;
        match (link, pin) {
            (Some(link), Some(pin)) => {
                let link = link.pin(&pin).map_err(|error| describe(&error))?;
                self.links.push(link);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Loads and attaches. The link is returned when it is wanted and the kernel has one that can be pinned;
/// otherwise the program keeps it.
fn start(
    program: &mut Program,
    hook: Hook,
    cgroup: Option<&File>,
    pin: bool,
) -> Result<Option<FdLink>, String> {
    let text = |error: &dyn std::error::Error| describe(error);
    let no_cgroup = || "no cgroup v2 hierarchy at the configured root".to_owned();
    // A link is exclusive of nothing: the kernel lets several programs share the hook.
    let mode = CgroupAttachMode::Single;
    macro_rules! attach {
        ($type:ty, $($argument:expr),*) => {{
            let program: &mut $type = program.try_into().map_err(|error: aya::programs::ProgramError| text(&error))?;
            program.load().map_err(|error| text(&error))?;
            let id = program.attach($($argument),*).map_err(|error| text(&error))?;
            if pin {
                let link = program.take_link(id).map_err(|error| text(&error))?;
                FdLink::try_from(link).map(Some).map_err(|error| describe(&error))
            } else {
                Ok(None)
            }
        }};
    }
    match hook {
        Hook::RawTracepoint(name) => attach!(RawTracePoint, name),
        Hook::Tracepoint(category, name) => {
            mount_tracefs();
            let program: &mut TracePoint =
                program.try_into().map_err(|error: aya::programs::ProgramError| text(&error))?;
            program.load().map_err(|error| text(&error))?;
            let id = program.attach(category, name).map_err(|error| text(&error))?;
            // Before 5.15 the attachment is an ioctl on a perf event, which no file system can hold.
            if pin && aya::features().bpf_perf_link() {
                let link = program.take_link(id).map_err(|error| text(&error))?;
                FdLink::try_from(link).map(Some).map_err(|error| describe(&error))
            } else {
                Ok(None)
            }
        }
        Hook::CgroupSock => attach!(CgroupSock, cgroup.ok_or_else(no_cgroup)?, mode),
        Hook::CgroupSockAddr => attach!(CgroupSockAddr, cgroup.ok_or_else(no_cgroup)?, mode),
        Hook::CgroupSkb(direction) => attach!(CgroupSkb, cgroup.ok_or_else(no_cgroup)?, direction, mode),
    }
}

fn mount_tracefs() {
    let mounted = Path::new(TRACEFS_PATH).join("events").exists()
        || Path::new("/sys/kernel/debug/tracing/events").exists();
    if !mounted {
        // Where this fails, attaching says what is missing.
        let _ = nix::mount::mount(
            Some("tracefs"),
            TRACEFS_PATH,
            Some("tracefs"),
            nix::mount::MsFlags::MS_NOSUID | nix::mount::MsFlags::MS_NODEV | nix::mount::MsFlags::MS_NOEXEC,
            None::<&str>,
        );
    }
}

/// An error with its causes, on one line and without the verifier's log.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    tracing::debug!(error = %text, "kernel program not attached");
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(200).collect()
}

/// Unpins the sets of other builds once this one is attached, so that no interval is without programs.
fn replace_other_sets(current: &Set) -> Vec<ReplacedSet> {
    let Ok(entries) = fs::read_dir(current.folder_path()) else { return Vec::new() };
    let mut replaced = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == current.name || !name.starts_with("abi") {
            continue;
        }
        let unread_bytes = ["map_ring_vital", "map_ring_process", "map_ring_flow", "map_ring_file"]
            .into_iter()
            .filter_map(|ring| MapData::from_pin(path.join(ring)).ok())
            .filter_map(|map| ring::Ring::open(map.fd().as_fd()).ok())
            .map(|ring| ring.used_bytes())
            .sum();
        remove_set(&path);
        replaced.push(ReplacedSet { name, unread_bytes });
    }
    replaced
}

/// Removes the pins of a set: links first, which detaches, then maps.
pub(super) fn remove_set(set: &Path) {
    for prefix in ["link_", "map_"] {
        let Ok(entries) = fs::read_dir(set) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
    let _ = fs::remove_dir(set);
}

const _: () = assert!(ABSENT == u32::MAX);
