//! Maps. Sizes given here are defaults; the loader replaces those that belong to a budget.

use activity_ebpf_abi::maps::{
    Issued, KIND_SLOTS, ListenerKey, LossCount, LossKey, Owner, PROGRAM_SLOTS, TcpSocket, UdpFlowCount,
    UdpFlowKey, UdpSocket,
};
use activity_ebpf_abi::offsets::Offsets;
use activity_ebpf_abi::records::{ExecBody, ExecFailedBody, Header};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};

/// Written by the loader before the programs are loaded, constant afterwards.
#[unsafe(no_mangle)]
pub static OFFSETS: Offsets = Offsets::ABSENT;

#[map(name = "ring_vital")]
pub static RING_VITAL: RingBuf = RingBuf::with_byte_size(1 << 18, 0);
#[map(name = "ring_process")]
pub static RING_PROCESS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);
#[map(name = "ring_flow")]
pub static RING_FLOW: RingBuf = RingBuf::with_byte_size(1 << 20, 0);
#[map(name = "ring_file")]
pub static RING_FILE: RingBuf = RingBuf::with_byte_size(1 << 12, 0);

/// When the reader of each ring was last woken.
#[map(name = "wakeups")]
pub static WAKEUPS: Array<u64> = Array::with_max_entries(4, 0);

#[map(name = "issued")]
pub static ISSUED: PerCpuArray<Issued> = PerCpuArray::with_max_entries(KIND_SLOTS, 0);
#[map(name = "losses")]
pub static LOSSES: HashMap<LossKey, LossCount> = HashMap::with_max_entries(4096, 0);
/// What `losses` has already told the collector; written by user space only, kept beside it so that both
/// outlive a restart.
#[map(name = "losses_reported")]
pub static LOSSES_REPORTED: HashMap<LossKey, u64> = HashMap::with_max_entries(4096, 0);
#[map(name = "loss_overflow")]
pub static LOSS_OVERFLOW: Array<LossCount> = Array::with_max_entries(KIND_SLOTS, 0);
#[map(name = "overflow_reported")]
pub static OVERFLOW_REPORTED: Array<u64> = Array::with_max_entries(KIND_SLOTS, 0);

/// Events that the kernel skipped, as far as the collector told of them; written by user space only.
#[map(name = "misses_reported")]
pub static MISSES_REPORTED: Array<u64> = Array::with_max_entries(PROGRAM_SLOTS, 0);

/// Thread group → scope.
#[map(name = "scopes")]
pub static SCOPES: HashMap<u32, u64> = HashMap::with_max_entries(16384, 0);
/// Thread groups whose flows are not recorded.
#[map(name = "ignored")]
pub static IGNORED: HashMap<u32, u32> = HashMap::with_max_entries(64, 0);

/// An execve under way, keyed by pid_tgid.
#[repr(C)]
pub struct ExecAttempt {
    pub path_pointer: u64,
    pub euid: u32,
    pub egid: u32,
    /// [`Self::UNREAD`] when the path was not resident.
    pub path_length: u32,
    pub flags: u32,
    pub path: [u8; 256],
}

impl ExecAttempt {
    pub const UNREAD: u32 = u32::MAX;
}

#[map(name = "exec_attempts")]
pub static EXEC_ATTEMPTS: HashMap<u64, ExecAttempt> = HashMap::with_max_entries(2048, 0);

/// A record under construction that does not fit on the stack.
#[repr(C)]
pub struct ExecScratch {
    pub header: Header,
    pub body: ExecBody,
    pub text: [u8; 1280],
    /// Programs on this CPU that use the buffer; more than one means that it must be left alone.
    pub users: u64,
}

#[map(name = "exec_scratch")]
pub static EXEC_SCRATCH: PerCpuArray<ExecScratch> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
pub struct ExecFailedScratch {
    pub header: Header,
    pub body: ExecFailedBody,
    pub text: [u8; 512],
    pub users: u64,
}

#[map(name = "failed_scratch")]
pub static EXEC_FAILED_SCRATCH: PerCpuArray<ExecFailedScratch> = PerCpuArray::with_max_entries(1, 0);

/// Groups whose exit was reported, for kernels whose tracepoint does not say which thread was the last:
/// two threads that leave together both see `signal->live == 0`.
#[repr(C)]
pub struct ExitKey {
    pub start_boottime_ns: u64,
    pub tgid: u64,
}

#[map(name = "exits_seen")]
pub static EXITS_SEEN: LruHashMap<ExitKey, u32> = LruHashMap::with_max_entries(2048, 0);

#[map(name = "tcp_sockets")]
pub static TCP_SOCKETS: HashMap<u64, TcpSocket> = HashMap::with_max_entries(8192, 0);
#[map(name = "tcp_listeners")]
pub static TCP_LISTENERS: HashMap<ListenerKey, Owner> = HashMap::with_max_entries(2048, 0);
#[map(name = "udp_sockets")]
pub static UDP_SOCKETS: HashMap<u64, UdpSocket> = HashMap::with_max_entries(4096, 0);
#[map(name = "udp_flows")]
pub static UDP_FLOWS: HashMap<UdpFlowKey, UdpFlowCount> = HashMap::with_max_entries(8192, 0);
