//! TCP: `inet_sock_set_state(const struct sock *sk, const int oldstate, const int newstate)`.
//!
//! connect() and listen() change the state in the caller's context, so the owner is the current process. A
//! connection that is accepted is established in softirq context, whoever runs there; its owner is that of the
//! listening socket, found by network namespace, address and port.

use activity_ebpf_abi::maps::{ListenerKey, Owner, TcpSocket};
use activity_ebpf_abi::offsets::ABSENT;
use activity_ebpf_abi::records::{
    AF_INET6, FLOW_BYTES, FlowBody, FlowDirection, FlowPhase, Header, flow_flags, missing,
};
use activity_ebpf_abi::{LossReason, RecordKind};
use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

use crate::loss::{FLOW, lost, reserve, submit};
use crate::maps::{TCP_LISTENERS, TCP_SOCKETS};
use crate::offset;
use crate::read::{Missing, at};
use crate::task;

/// States of include/net/tcp_states.h.
const TCP_ESTABLISHED: u32 = 1;
const TCP_SYN_SENT: u32 = 2;
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
const IPPROTO_TCP: u16 = 6;

#[repr(C)]
struct FlowRecord {
    header: Header,
    body: FlowBody,
}

#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub fn on_tcp_state(ctx: RawTracePointContext) -> i32 {
    let sk: u64 = ctx.arg(0);
    let old_state: u64 = ctx.arg(1);
    let new_state: u64 = ctx.arg(2);
    let (old_state, new_state) = (old_state as u32, new_state as u32);
    // Others share the tracepoint, MPTCP (262) among them: its sockets are no `tcp_sock`, its subflows are.
    if at::<u16>(sk, offset!(sock_protocol)).is_some_and(|protocol| protocol != IPPROTO_TCP) {
        return 0;
    }
    let mut socket = TcpSocket::default();
    let phase = match (old_state, new_state) {
        (_, TCP_SYN_SENT) => connecting(sk, &mut socket),
        (_, TCP_LISTEN) => listening(sk, &mut socket),
        (_, TCP_ESTABLISHED) => established(sk, &mut socket, old_state),
        (TCP_LISTEN, TCP_CLOSE) => {
            if let Some(key) = listener_key(sk) {
                let _ = TCP_LISTENERS.remove(&key);
            }
            return 0;
        }
        (_, TCP_CLOSE) => closed(sk, &mut socket),
        _ => return 0,
    };
    if socket.owner.ignored == 0 {
        report(sk, &socket, phase, old_state);
    }
    0
}

#[inline(always)]
fn connecting(sk: u64, socket: &mut TcpSocket) -> FlowPhase {
    begin(socket, FlowDirection::Outbound);
    socket.owner = task::owner();
    remember(sk, socket);
    FlowPhase::Connecting
}

#[inline(always)]
fn listening(sk: u64, socket: &mut TcpSocket) -> FlowPhase {
    begin(socket, FlowDirection::Inbound);
    socket.owner = task::owner();
    if let Some(key) = listener_key(sk) {
        if TCP_LISTENERS.insert(&key, &socket.owner, 0).is_err() {
            lost(RecordKind::Listen, LossReason::MapFull, socket.owner.cgroup_id);
        }
    }
    FlowPhase::Listening
}

#[inline(always)]
fn established(sk: u64, socket: &mut TcpSocket, old_state: u32) -> FlowPhase {
    if let Some(known) = TCP_SOCKETS.get_ptr_mut(&sk) {
        // SAFETY: a non-null map value; the socket's own lock serialises its state changes.
        unsafe {
            (*known).flags |= u32::from(flow_flags::ESTABLISHED);
            *socket = *known;
        }
        return FlowPhase::Established;
    }
    // An outbound socket that is not in the map was connecting before the programs were there.
    let inbound = old_state != TCP_SYN_SENT;
    begin(socket, if inbound { FlowDirection::Inbound } else { FlowDirection::Outbound });
    socket.flags = u32::from(flow_flags::ESTABLISHED);
    if !(inbound && accepting_owner(sk, &mut socket.owner)) {
        unknown_owner(sk, &mut socket.owner);
    }
    remember(sk, socket);
    FlowPhase::Established
}

#[inline(always)]
fn closed(sk: u64, socket: &mut TcpSocket) -> FlowPhase {
    if let Some(known) = TCP_SOCKETS.get_ptr(&sk) {
        // SAFETY: a non-null map value.
        *socket = unsafe { *known };
        let _ = TCP_SOCKETS.remove(&sk);
    } else {
        // Older than the programs, or it did not fit: its end is still worth a record.
        unknown_owner(sk, &mut socket.owner);
    }
    FlowPhase::Closed
}

/// The id is unique while the machine is up: one CPU sees a nanosecond once.
#[inline(always)]
fn begin(socket: &mut TcpSocket, direction: FlowDirection) {
    let now = task::now();
    // SAFETY: a helper without arguments.
    socket.flow_id = (now << 10) | u64::from(unsafe { bpf_get_smp_processor_id() } & 0x3ff);
    socket.first_seen_ns = now;
    socket.direction = direction as u32;
}

#[inline(always)]
fn remember(sk: u64, socket: &TcpSocket) {
    if TCP_SOCKETS.insert(&sk, socket, 0).is_err() {
        lost(RecordKind::Flow, LossReason::MapFull, socket.owner.cgroup_id);
    }
}

/// Nobody is known to own the socket; its cgroup is, where the kernel keeps one.
#[inline(always)]
fn unknown_owner(sk: u64, owner: &mut Owner) {
    owner.missing = missing::OWNER | missing::START;
    match cgroup_of(sk) {
        Some(id) => owner.cgroup_id = id,
        None => owner.missing |= missing::CGROUP,
    }
}

/// The cgroup that a socket was made in; an accepted one has its listener's.
#[inline(always)]
fn cgroup_of(sk: u64) -> Option<u64> {
    let data = offset!(sock_cgroup_data);
    let cgroup = offset!(sock_cgroup);
    if data == ABSENT || cgroup == ABSENT || offset!(cgroup_subsys) != ABSENT {
        return None;
    }
    // Before 5.15 the word may be tagged in its low bit and then is no pointer.
    match at::<u64>(sk, data + cgroup) {
        Some(pointer) if pointer & 1 == 0 => task::cgroup_id(pointer),
        _ => None,
    }
}

/// `None` when any part cannot be read.
#[inline(always)]
fn listener_key(sk: u64) -> Option<ListenerKey> {
    let family: u16 = at(sk, offset!(sock_family))?;
    let net: u64 = at(sk, offset!(sock_net))?;
    let port: u16 = at(sk, offset!(inet_sport))?;
    let mut key =
        ListenerKey { net, address: [0; 16], port: u32::from(u16::from_be(port)), family: u32::from(family) };
    if family == AF_INET6 {
        key.address = at(sk, offset!(sock_saddr6))?;
    } else {
        let address: [u8; 4] = at(sk, offset!(sock_saddr))?;
        key.address[..4].copy_from_slice(&address);
    }
    Some(key)
}

/// Owner of the listening socket behind an accepted one: the one on its address, else on the wildcard, else on
/// the dual-stack wildcard (an IPv4 peer of which makes a v6 socket with mapped addresses).
#[inline(always)]
fn accepting_owner(sk: u64, owner: &mut Owner) -> bool {
    let Some(mut key) = listener_key(sk) else { return false };
    let mut found = TCP_LISTENERS.get_ptr(&key);
    if found.is_none() {
        key.address = [0; 16];
        found = TCP_LISTENERS.get_ptr(&key);
    }
    if found.is_none() {
        key.family = u32::from(AF_INET6);
        found = TCP_LISTENERS.get_ptr(&key);
    }
    let Some(found) = found else { return false };
    // Several sockets may listen on one address (SO_REUSEPORT), also of several sandboxes: the one that was found is then
    // another's.
    // SAFETY: a non-null map value.
    if cgroup_of(sk).is_some_and(|own| own != unsafe { (*found).cgroup_id }) {
        return false;
    }
    // SAFETY: as above, copied at once.
    *owner = unsafe { *found };
    true
}

/// Writes a field of a reserved record.
macro_rules! put {
    ($record:expr, $field:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: see `report`.
        unsafe { (&raw mut (*$record).body.$field).write_volatile(value) }
    }};
}

#[inline(always)]
fn report(sk: u64, socket: &TcpSocket, phase: FlowPhase, old_state: u32) {
    let kind = if matches!(phase, FlowPhase::Listening) { RecordKind::Listen } else { RecordKind::Flow };
    let Some(record) = reserve::<FlowRecord>(FLOW, kind, socket.owner.cgroup_id) else { return };
    // SAFETY: `record` is reserved for a FlowRecord; every byte is written here before the fields follow.
    unsafe {
        (&raw mut (*record).header).write(task::header_for(&socket.owner, kind, FLOW_BYTES as u32));
        (&raw mut (*record).body).write(FlowBody {
            flow_id: socket.flow_id,
            first_seen_ns: socket.first_seen_ns,
            phase: phase as u8,
            direction: socket.direction as u8,
            old_state: old_state as u8,
            flags: socket.flags as u8,
            ..FlowBody::default()
        });
    }
    let mut absent = Missing(socket.owner.missing);
    put!(record, bytes_sent, absent.read(sk, offset!(tcp_bytes_sent), missing::BYTES));
    put!(record, bytes_retransmitted, absent.read(sk, offset!(tcp_bytes_retrans), missing::BYTES));
    put!(record, bytes_received, absent.read(sk, offset!(tcp_bytes_received), missing::BYTES));
    put!(record, segments_out, absent.read(sk, offset!(tcp_segs_out), missing::PACKETS));
    put!(record, segments_in, absent.read(sk, offset!(tcp_segs_in), missing::PACKETS));
    let error: u32 = absent.read(sk, offset!(sock_err), missing::RESULT);
    put!(record, socket_error, error as u16);
    let net: u64 = absent.read(sk, offset!(sock_net), missing::ADDRESS);
    put!(record, net_namespace, absent.read(net, offset!(net_inum), missing::ADDRESS));
    let done = offset!(sock_done_bit);
    if done < 64 {
        let sock_flags: u64 = absent.read(sk, offset!(sock_flags), missing::BYTES);
        let finished = ((sock_flags >> done) & 1) as u8 * flow_flags::PEER_FINISHED;
        put!(record, flags, socket.flags as u8 | finished);
    } else {
        absent.0 |= missing::BYTES;
    }
    report_addresses(sk, record, &mut absent);
    // SAFETY: as above.
    unsafe { (&raw mut (*record).header.missing).write_volatile(absent.0) };
    submit(FLOW, kind, record);
}

#[inline(always)]
fn report_addresses(sk: u64, record: *mut FlowRecord, absent: &mut Missing) {
    let family: u16 = absent.read(sk, offset!(sock_family), missing::ADDRESS);
    put!(record, family, family);
    // inet_num is cleared when the port is given back, before the last transition; inet_sport is not.
    let local_port: u16 = absent.read(sk, offset!(inet_sport), missing::ADDRESS);
    put!(record, local_port, u16::from_be(local_port));
    let peer_port: u16 = absent.read(sk, offset!(sock_dport), missing::ADDRESS);
    put!(record, peer_port, u16::from_be(peer_port));
    if family == AF_INET6 {
        put!(record, local_address, absent.read(sk, offset!(sock_saddr6), missing::ADDRESS));
        put!(record, peer_address, absent.read(sk, offset!(sock_daddr6), missing::ADDRESS));
    } else {
        let local: [u8; 4] = absent.read(sk, offset!(sock_saddr), missing::ADDRESS);
        let peer: [u8; 4] = absent.read(sk, offset!(sock_daddr), missing::ADDRESS);
        // SAFETY: four of sixteen bytes, the others of which are 0 already.
        unsafe {
            (&raw mut (*record).body.local_address).cast::<[u8; 4]>().write_volatile(local);
            (&raw mut (*record).body.peer_address).cast::<[u8; 4]>().write_volatile(peer);
        }
    }
}
