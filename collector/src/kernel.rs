//! Evidence from the kernel: eBPF programs, the rings that carry their records, and the maps beside them.
//!
//! The programs are pinned and outlive the collector; a new one goes on where the last had committed. Reading
//! ([`KernelSource::drain`]) and giving space back ([`KernelSource::commit`]) are separate steps, so that a record
//! leaves the ring only after its event is in the spool.
//!
//! Waiting: the programs wake the reader at most once in [`WAKEUP_INTERVAL_MS`], so that a busy workload does not pay
//! an interrupt for each record. So after a drain that found something, drain again [`LOOK_AGAIN`] later, whatever
//! [`KernelSource::poll_fd`] says; after one that found nothing, the next record makes it readable.

mod apart;
mod attach;
mod btf;
mod canary;
mod loss;
mod object;
mod offsets;
mod probes;
mod record;
mod ring;
mod sys;
mod udp;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use activity_ebpf_abi::records::{FlowDirection, FlowPhase, exec_flags, missing};
pub use activity_ebpf_abi::{ABI_VERSION, LossReason, RecordKind, WAKEUP_INTERVAL_MS};
pub use apart::Helper;
pub use attach::AttachError;
pub use canary::CanarySeen;
pub use loss::KernelLoss;
pub use record::{
    CgroupRecord, Common, DecodeError, ExecFailedRecord, ExecRecord, ExecutableClass, ExitRecord, FlowRecord,
    ForkRecord, PathClass, Record, TcpResult, decode, has_owner, known,
};
pub use ring::RingPosition;
pub use udp::{UdpFlow, UdpFlows};

use loss::{Ledger, LossMaps};
use ring::Ring;
use sys::{ByteMap, PerCpu};

/// Longer than the programs' interval, whatever a timer's granularity.
pub const LOOK_AGAIN: Duration = Duration::from_millis(2 * WAKEUP_INTERVAL_MS as u64);

/// Where programs are attached and how much memory their rings may take.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelConfig {
    /// A directory on a bpffs, one for each spool; `None` ties the programs to this process.
    pub pin_dir: Option<PathBuf>,
    /// Sizes of new rings. Pinned rings keep theirs.
    pub ring_bytes: RingSizes,
    /// Mount point of cgroup v2.
    pub cgroup_root: PathBuf,
    /// Leaves out the flows of this process.
    pub ignore_self_flows: bool,
}

/// Bytes of each ring; rounded down to a power of two of pages when used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingSizes {
    pub vital: u32,
    pub process: u32,
    pub flow: u32,
    pub file: u32,
}

impl RingSizes {
    pub const HOST: Self = Self { vital: 1 << 18, process: 8 << 20, flow: 2 << 20, file: 1 << 16 };
    pub const GUEST: Self = Self { vital: 1 << 16, process: 1 << 20, flow: 1 << 19, file: 1 << 16 };

    /// These sizes, halved together until their sum with positions and bookkeeping pages fits into `budget_bytes`.
    /// The number of CPUs does not enter: the rings are shared by all.
    #[must_use]
    pub fn within(self, budget_bytes: u64, page_bytes: usize) -> Self {
        let mut sizes = self.rounded(page_bytes);
        let page = u32::try_from(page_bytes).unwrap_or(4096);
        while sizes.total_bytes(page_bytes) > budget_bytes {
            let halved = Self {
                vital: (sizes.vital / 2).max(page),
                process: (sizes.process / 2).max(page),
                flow: (sizes.flow / 2).max(page),
                file: (sizes.file / 2).max(page),
            };
            if halved == sizes {
                break;
            }
            sizes = halved;
        }
        sizes
    }

    /// Kernel memory: the data, two position pages and about one page of bookkeeping for each ring.
    #[must_use]
    pub fn total_bytes(&self, page_bytes: usize) -> u64 {
        let data: u64 = [self.vital, self.process, self.flow, self.file].into_iter().map(u64::from).sum();
        data + 4 * 3 * page_bytes as u64
    }

    pub(crate) fn rounded(self, page_bytes: usize) -> Self {
        let page = u32::try_from(page_bytes).unwrap_or(4096);
        let round = |bytes: u32| {
            let bytes = bytes.max(page);
            1u32 << (31 - bytes.leading_zeros())
        };
        Self {
            vital: round(self.vital),
            process: round(self.process),
            flow: round(self.flow),
            file: round(self.file),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RingId {
    Vital,
    Process,
    Flow,
    File,
}

impl RingId {
    pub const ALL: [Self; 4] = [Self::Vital, Self::Process, Self::Flow, Self::File];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vital => "vital",
            Self::Process => "process",
            Self::Flow => "flow",
            Self::File => "file",
        }
    }

    fn map(self) -> &'static str {
        match self {
            Self::Vital => "ring_vital",
            Self::Process => "ring_process",
            Self::Flow => "ring_flow",
            Self::File => "ring_file",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Vital => 0,
            Self::Process => 1,
            Self::Flow => 2,
            Self::File => 3,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Support {
    Supported,
    /// Some values or some cases are missing; the reason says which.
    Degraded(String),
    Unsupported(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSupport {
    #[serde(with = "kind_as_number")]
    pub kind: RecordKind,
    pub support: Support,
    /// Probes that are attached.
    pub probes: Vec<Cow<'static, str>>,
}

/// Programs of another build that were running, and were detached once the new ones ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedSet {
    pub name: String,
    /// What its rings held unread; it is gone.
    pub unread_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReport {
    pub classes: Vec<ClassSupport>,
    /// All programs were running already: what happened since is in the rings.
    pub reused_pins: bool,
    /// Every program goes on when the collector ends.
    pub pinned: bool,
    /// Why pins that were wanted could not be had.
    pub not_pinned: Option<String>,
    pub btf: bool,
    /// Kernel memory of all maps, rings included.
    pub map_bytes: u64,
    /// Which hierarchy `cgroup_id` is from: `v2`, `v1 pids`, `v1 memory` or `unknown`.
    pub cgroup_hierarchy: Cow<'static, str>,
    pub replaced: Vec<ReplacedSet>,
}

mod kind_as_number {
    use super::RecordKind;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(kind: &RecordKind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*kind as u8)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RecordKind, D::Error> {
        let number = u8::deserialize(deserializer)?;
        RecordKind::from_u8(number).ok_or_else(|| D::Error::custom("not a kind of record"))
    }
}

#[derive(Debug, Error)]
pub enum ScopeError {
    #[error("cannot bind scope {scope} to process {tgid}: the scope map is full")]
    Full { tgid: u32, scope: u64 },
    #[error("cannot change the scope of process {tgid}")]
    Map { tgid: u32, source: io::Error },
}

/// Records of one kind: attempts are the sum of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Issued {
    pub emitted: u64,
    pub lost: u64,
}

pub struct KernelSource {
    attached: attach::Attached,
    rings: [Ring; 4],
    epoll: Epoll,
    ledger: Ledger,
    udp_opened: udp::Opened,
    canaries: canary::Canaries,
    own_tgid: u32,
    possible_cpus: usize,
}

impl KernelSource {
    /// Loads and attaches what this kernel allows, or joins what is pinned. Degrades class by class; fails only when
    /// nothing can be attached at all.
    pub fn attach(config: &KernelConfig) -> Result<(Self, AttachReport), AttachError> {
        Self::of(attach::attach(config)?, config)
    }

    /// As [`Self::attach`], by a process apart, so that this one needs no privilege.
    pub fn attach_by(helper: Helper, config: &KernelConfig) -> Result<(Self, AttachReport), AttachError> {
        Self::of(helper.attach(config)?, config)
    }

    fn of(attached: attach::Attached, config: &KernelConfig) -> Result<(Self, AttachReport), AttachError> {
        let report = attached.report.clone();
        let open = |ring: RingId| {
            let map = map(&attached.maps, ring.map());
            Ring::open(map).map_err(|source| AttachError::Ring { ring: ring.as_str(), source })
        };
        let rings = [open(RingId::Vital)?, open(RingId::Process)?, open(RingId::Flow)?, open(RingId::File)?];
        let poll = |errno: nix::Error| AttachError::Poll(errno.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(poll)?;
        for (ring, id) in rings.iter().zip(0u64..) {
            epoll.add(ring.fd(), EpollEvent::new(EpollFlags::EPOLLIN, id)).map_err(poll)?;
        }
        let ledger = Ledger::load(&loss_maps(&attached.maps)).map_err(AttachError::Poll)?;
        let own_tgid = std::process::id();
        let source = Self {
            attached,
            rings,
            epoll,
            ledger,
            udp_opened: udp::Opened::default(),
            canaries: canary::Canaries::default(),
            own_tgid,
            possible_cpus: aya::util::nr_cpus().unwrap_or(1),
        };
        source.forget_ignored();
        if config.ignore_self_flows {
            // The map is empty now and has 64 places.
            let _ = source.ignore_flows_of(own_tgid);
        }
        Ok((source, report))
    }

    /// One descriptor for all rings: readable when they are to be drained.
    #[must_use]
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Reads up to `max` records of a ring in kernel order, without giving their space back. `f` gets the ring
    /// position behind each record. Returns how many were passed; call again to read on.
    pub fn drain(
        &mut self,
        ring: RingId,
        max: usize,
        f: &mut dyn FnMut(RingPosition, Result<Record<'_>, DecodeError>),
    ) -> usize {
        let (canaries, own_tgid) = (&mut self.canaries, self.own_tgid);
        self.rings[ring.index()].drain(max, &mut |position, bytes| {
            let mut record = decode(bytes);
            if let Ok(record) = &mut record {
                canaries.notice(record, own_tgid);
            }
            f(position, record);
        })
    }

    /// Gives the space of all records up to `position` back: call it once their events are safe.
    pub fn commit(&mut self, ring: RingId, position: RingPosition) {
        self.rings[ring.index()].commit(position);
    }

    /// The kernel's ids of the rings' maps, in the order of [`RingId::ALL`].
    pub fn ring_ids(&self) -> io::Result<[u32; 4]> {
        let [vital, process, flow, file] = &self.rings;
        let id = |ring: &Ring| sys::map_id(ring.fd());
        Ok([id(vital)?, id(process)?, id(flow)?, id(file)?])
    }

    /// The last committed position, which a later collector starts from.
    #[must_use]
    pub fn consumer_position(&self, ring: RingId) -> RingPosition {
        self.rings[ring.index()].consumer_position()
    }

    /// Size and uncommitted bytes of a ring.
    #[must_use]
    pub fn ring_usage(&self, ring: RingId) -> (u64, u64) {
        let ring = &self.rings[ring.index()];
        (ring.bytes() as u64, ring.used_bytes())
    }

    /// What was lost since the last call. What an earlier call told is kept beside the counters by the next call
    /// or by [`Self::commit_losses`], so a collector that dies in between tells it again rather than never.
    pub fn losses(&mut self) -> Vec<KernelLoss> {
        self.commit_losses();
        let maps = loss_maps(&self.attached.maps);
        let now_ns = boot_ns();
        let mut losses = self.ledger.differences(&maps, now_ns).unwrap_or_else(|error| {
            tracing::warn!(%error, "kernel loss counters cannot be read");
            Vec::new()
        });
        losses.extend(self.ledger.misses(&self.attached.running, now_ns));
        losses
    }

    /// Call it when the losses of the last [`Self::losses`] are in the spool.
    pub fn commit_losses(&mut self) {
        let maps = loss_maps(&self.attached.maps);
        if let Err(error) = self.ledger.commit(&maps) {
            tracing::warn!(%error, "kernel loss counters cannot be kept");
        }
    }

    /// Records emitted and lost by kind since the rings were made.
    #[must_use]
    pub fn issued(&self) -> BTreeMap<RecordKind, Issued> {
        let map = PerCpu::<16> { fd: self.map("issued"), possible_cpus: self.possible_cpus };
        RecordKind::ALL
            .into_iter()
            .map(|kind| {
                let mut sum = Issued::default();
                for value in map.get(kind as u32).unwrap_or_default() {
                    let [a, b, c, d, e, f, g, h, rest @ ..] = value;
                    sum.emitted += u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                    sum.lost += u64::from_ne_bytes(rest);
                }
                (kind, sum)
            })
            .collect()
    }

    /// Puts a process, and all that it forks from now on, into a scope.
    pub fn bind_scope(&self, tgid: u32, scope: u64) -> Result<(), ScopeError> {
        self.scopes().put(&tgid.to_ne_bytes(), &scope.to_ne_bytes()).map_err(|source| {
            if source.raw_os_error() == Some(nix::libc::E2BIG) {
                ScopeError::Full { tgid, scope }
            } else {
                ScopeError::Map { tgid, source }
            }
        })
    }

    #[must_use]
    pub fn scope_of(&self, tgid: u32) -> Option<u64> {
        self.scopes().get(&tgid.to_ne_bytes()).ok().flatten().map(u64::from_ne_bytes)
    }

    /// Takes a process out of its scope; those that it forked stay. Tells whether it was in one.
    pub fn unbind_scope(&self, tgid: u32) -> Result<bool, ScopeError> {
        self.scopes().remove(&tgid.to_ne_bytes()).map_err(|source| ScopeError::Map { tgid, source })
    }

    /// Leaves out the flows that a process opens from now on; its forks, execs and exit are still recorded.
    pub fn ignore_flows_of(&self, tgid: u32) -> io::Result<()> {
        self.ignored().put(&tgid.to_ne_bytes(), &1u32.to_ne_bytes())
    }

    /// UDP flows that are new, and those that ended or had no packet for `idle_ns` before `now_ns` (boot clock).
    pub fn udp_flows(&mut self, now_ns: u64, idle_ns: u64) -> UdpFlows {
        let (flows, sockets) =
            (map(&self.attached.maps, "udp_flows"), map(&self.attached.maps, "udp_sockets"));
        udp::look(flows, sockets, &mut self.udp_opened, now_ns, idle_ns).unwrap_or_else(|error| {
            tracing::warn!(%error, "udp flows cannot be read");
            UdpFlows::default()
        })
    }

    /// Makes a process on `cpu` that forks, fails an exec and exits, to be found by [`Self::drain`]. Costs about
    /// 100 µs.
    pub fn send_canary(&mut self, cpu: usize) -> io::Result<()> {
        let tgid = canary::run(cpu)?;
        self.canaries.expect(tgid);
        Ok(())
    }

    /// The last canary that came back through the rings.
    #[must_use]
    pub fn last_canary_seen(&self) -> Option<CanarySeen> {
        self.canaries.last
    }

    /// Whether the programs still run: what is not pinned ends with the process that holds it.
    pub fn is_held(&mut self) -> bool {
        match &mut self.attached.keeper {
            attach::Keeper::Apart(helper) => !helper.has_ended(),
            attach::Keeper::None | attach::Keeper::Here { .. } => true,
        }
    }

    /// Stops the programs and removes every pin: the graceful end. Dropping the source leaves what is pinned running.
    pub fn detach(self) {
        if let Some(set) = &self.attached.set {
            attach::remove_set(&set.path());
        }
        drop(self.attached.keeper);
    }

    fn forget_ignored(&self) {
        let ignored = self.ignored();
        for key in ignored.keys(64).unwrap_or_default() {
            let _ = ignored.remove(&key);
        }
    }

    fn scopes(&self) -> ByteMap<'_, 4, 8> {
        ByteMap(self.map("scopes"))
    }

    fn ignored(&self) -> ByteMap<'_, 4, 4> {
        ByteMap(self.map("ignored"))
    }

    fn map(&self, name: &'static str) -> BorrowedFd<'_> {
        map(&self.attached.maps, name)
    }
}

fn map<'a>(maps: &'a BTreeMap<&'static str, OwnedFd>, name: &'static str) -> BorrowedFd<'a> {
    // `attach` fails unless every name in probes::MAPS is there.
    maps.get(name).map(OwnedFd::as_fd).expect("every listed map is taken at attach")
}

fn loss_maps<'a>(maps: &'a BTreeMap<&'static str, OwnedFd>) -> LossMaps<'a> {
    LossMaps {
        losses: map(maps, "losses"),
        reported: map(maps, "losses_reported"),
        overflow: map(maps, "loss_overflow"),
        overflow_reported: map(maps, "overflow_reported"),
        misses_reported: map(maps, "misses_reported"),
    }
}

fn boot_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}
