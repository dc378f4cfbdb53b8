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

struct Addresses {
    family: u16,
    local_port: u16,
    peer_port: u16,
    local: [u8; 16],
    peer: [u8; 16],
}

#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub fn on_tcp_state(ctx: RawTracePointContext) -> i32 {
    let sk: u64 = ctx.arg(0);
    let old_state: u64 = ctx.arg(1);
    let new_state: u64 = ctx.arg(2);
    let (old_state, new_state) = (old_state as u32, new_state as u32);
    // MPTCP and others share the tracepoint.
    if at::<u16>(sk, offset!(sock_protocol)).is_some_and(|protocol| protocol & 0xff != IPPROTO_TCP) {
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
    let mut absent = Missing(missing::OWNER | missing::START);
    let data = offset!(sock_cgroup_data);
    let cgroup = offset!(sock_cgroup);
    let id = if data == ABSENT || cgroup == ABSENT || offset!(cgroup_subsys) != ABSENT {
        None
    } else {
        // Before 5.15 the word may be tagged in its low bit and then is no pointer.
        match at::<u64>(sk, data + cgroup) {
            Some(pointer) if pointer & 1 == 0 => task::cgroup_id(pointer),
            _ => None,
        }
    };
    owner.cgroup_id = absent.or_flag(id, missing::CGROUP);
    owner.missing = absent.0;
}

#[inline(always)]
fn addresses(sk: u64, absent: &mut Missing) -> Addresses {
    let family = absent.or_flag(at::<u16>(sk, offset!(sock_family)), missing::ADDRESS);
    let mut addresses = Addresses {
        family,
        // inet_num is cleared when the port is given back, before the last transition; inet_sport is not.
        local_port: match at::<u16>(sk, offset!(inet_sport)) {
            Some(port) => u16::from_be(port),
            None => absent.or_flag(at(sk, offset!(sock_num)), missing::ADDRESS),
        },
        peer_port: u16::from_be(absent.or_flag(at(sk, offset!(sock_dport)), missing::ADDRESS)),
        local: [0; 16],
        peer: [0; 16],
    };
    if family == AF_INET6 {
        addresses.local = absent.or_flag(at(sk, offset!(sock_saddr6)), missing::ADDRESS);
        addresses.peer = absent.or_flag(at(sk, offset!(sock_daddr6)), missing::ADDRESS);
    } else {
        let local: [u8; 4] = absent.or_flag(at(sk, offset!(sock_saddr)), missing::ADDRESS);
        let peer: [u8; 4] = absent.or_flag(at(sk, offset!(sock_daddr)), missing::ADDRESS);
        addresses.local[..4].copy_from_slice(&local);
        addresses.peer[..4].copy_from_slice(&peer);
    }
    addresses
}

#[inline(always)]
fn listener_key(sk: u64) -> Option<ListenerKey> {
    let mut absent = Missing(0);
    let found = addresses(sk, &mut absent);
    let net: u64 = at(sk, offset!(sock_net))?;
    if absent.0 != 0 {
        return None;
    }
    Some(ListenerKey {
        net,
        address: found.local,
        port: u32::from(found.local_port),
        family: u32::from(found.family),
    })
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
    match found {
        Some(found) => {
            // SAFETY: a non-null map value, copied at once.
            *owner = unsafe { *found };
            true
        }
        None => false,
    }
}

#[inline(always)]
fn report(sk: u64, socket: &TcpSocket, phase: FlowPhase, old_state: u32) {
    let kind = if matches!(phase, FlowPhase::Listening) { RecordKind::Listen } else { RecordKind::Flow };
    let Some(record) = reserve::<FlowRecord>(FLOW, kind, socket.owner.cgroup_id) else { return };
    let mut absent = Missing(socket.owner.missing);
    let found = addresses(sk, &mut absent);
    let net: u64 = at(sk, offset!(sock_net)).unwrap_or(0);
    let mut flags = socket.flags as u8;
    let done = offset!(sock_done_bit);
    let sock_flags: u64 = absent.or_flag(at(sk, offset!(sock_flags)), missing::BYTES);
    if done < 64 && (sock_flags >> done) & 1 != 0 {
        flags |= flow_flags::PEER_FINISHED;
    }
    let body = FlowBody {
        flow_id: socket.flow_id,
        first_seen_ns: socket.first_seen_ns,
        bytes_sent: absent.or_flag(at(sk, offset!(tcp_bytes_sent)), missing::BYTES),
        bytes_retransmitted: absent.or_flag(at(sk, offset!(tcp_bytes_retrans)), missing::BYTES),
        bytes_received: absent.or_flag(at(sk, offset!(tcp_bytes_received)), missing::BYTES),
        segments_out: absent.or_flag(at(sk, offset!(tcp_segs_out)), missing::PACKETS),
        segments_in: absent.or_flag(at(sk, offset!(tcp_segs_in)), missing::PACKETS),
        net_namespace: at(net, offset!(net_inum)).unwrap_or(0),
        local_port: found.local_port,
        peer_port: found.peer_port,
        local_address: found.local,
        peer_address: found.peer,
        family: found.family,
        socket_error: absent.or_flag(at::<u32>(sk, offset!(sock_err)), missing::RESULT) as u16,
        phase: phase as u8,
        direction: socket.direction as u8,
        old_state: old_state as u8,
        flags,
    };
    let mut header = task::header_for(&socket.owner, kind, FLOW_BYTES as u32);
    header.missing = absent.0;
    // SAFETY: reserved above for a FlowRecord.
    unsafe {
        (&raw mut (*record).header).write(header);
        (&raw mut (*record).body).write(body);
    }
    submit(FLOW, kind, record);
}
