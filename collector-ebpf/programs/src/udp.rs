//! UDP, which has no connections to trace: cgroup hooks learn who owns a socket, packet hooks count per
//! (socket, peer), and the collector reads the map.

use activity_ebpf_abi::maps::{Owner, UdpFlowCount, UdpFlowKey, UdpSocket};
use activity_ebpf_abi::records::{AF_INET, AF_INET6, FlowDirection, missing};
use activity_ebpf_abi::{LossReason, RecordKind};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_skb_cgroup_id, bpf_skb_load_bytes};
use aya_ebpf::macros::{cgroup_skb, cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SkBuffContext, SockAddrContext, SockContext};

use crate::loss::{add, lost};
use crate::maps::{UDP_FLOWS, UDP_SOCKETS};
use crate::task;

const IPPROTO_UDP: u32 = 17;
const ETH_P_IP: u32 = 0x0800;
const ETH_P_IPV6: u32 = 0x86dd;
/// What every program here answers: go on.
const ALLOW: i32 = 1;
const UDP_HEADER_BYTES: u64 = 8;

#[cgroup_sock_addr(connect4)]
pub fn udp_connect4(ctx: SockAddrContext) -> i32 {
    sock_addr(&ctx)
}

#[cgroup_sock_addr(connect6)]
pub fn udp_connect6(ctx: SockAddrContext) -> i32 {
    sock_addr(&ctx)
}

#[cgroup_sock_addr(sendmsg4)]
pub fn udp_sendmsg4(ctx: SockAddrContext) -> i32 {
    sock_addr(&ctx)
}

#[cgroup_sock_addr(sendmsg6)]
pub fn udp_sendmsg6(ctx: SockAddrContext) -> i32 {
    sock_addr(&ctx)
}

#[cgroup_sock(post_bind4)]
pub fn udp_bind4(ctx: SockContext) -> i32 {
    bind(&ctx)
}

#[cgroup_sock(post_bind6)]
pub fn udp_bind6(ctx: SockContext) -> i32 {
    bind(&ctx)
}

#[inline(always)]
fn sock_addr(ctx: &SockAddrContext) -> i32 {
    // SAFETY: a field of the program's context.
    if unsafe { core::ptr::read_volatile(&raw const (*ctx.sock_addr).protocol) } == IPPROTO_UDP {
        // SAFETY: a helper on the program's own context.
        note_owner(unsafe { bpf_get_socket_cookie(ctx.as_ptr()) });
    }
    ALLOW
}

#[inline(always)]
fn bind(ctx: &SockContext) -> i32 {
    // SAFETY: a field of the program's context.
    if unsafe { core::ptr::read_volatile(&raw const (*ctx.sock).protocol) } == IPPROTO_UDP {
        // SAFETY: a helper on the program's own context.
        note_owner(unsafe { bpf_get_socket_cookie(ctx.as_ptr()) });
    }
    ALLOW
}

/// The process that used the socket last owns it.
#[inline(always)]
fn note_owner(cookie: u64) {
    let owner = task::owner();
    if let Some(socket) = UDP_SOCKETS.get_ptr_mut(&cookie) {
        // SAFETY: a non-null map value.
        unsafe {
            if (*socket).owner.tgid != owner.tgid || (*socket).owner.scope != owner.scope {
                (*socket).owner = owner;
            }
        }
        return;
    }
    let socket = UdpSocket { owner, closed_ns: 0, flows: 0 };
    if UDP_SOCKETS.insert(&cookie, &socket, u64::from(BPF_NOEXIST)).is_err()
        && UDP_SOCKETS.get_ptr(&cookie).is_none()
    {
        lost(RecordKind::UdpFlow, LossReason::MapFull, owner.cgroup_id);
    }
}

#[cgroup_sock(sock_release)]
pub fn udp_release(ctx: SockContext) -> i32 {
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    if let Some(socket) = UDP_SOCKETS.get_ptr_mut(&cookie) {
        // SAFETY: a non-null map value.
        if unsafe { (*socket).flows } == 0 {
            let _ = UDP_SOCKETS.remove(&cookie);
        } else {
            // The collector removes it once it has read the flows.
            // SAFETY: as above.
            unsafe { (*socket).closed_ns = task::now() };
        }
    }
    ALLOW
}

#[cgroup_skb(egress)]
pub fn udp_egress(ctx: SkBuffContext) -> i32 {
    packet(&ctx, FlowDirection::Outbound);
    ALLOW
}

#[cgroup_skb(ingress)]
pub fn udp_ingress(ctx: SkBuffContext) -> i32 {
    packet(&ctx, FlowDirection::Inbound);
    ALLOW
}

struct Datagram {
    family: u16,
    source: [u8; 16],
    destination: [u8; 16],
    source_port: u16,
    destination_port: u16,
    payload: u64,
}

#[inline(always)]
fn load<const N: usize>(ctx: &SkBuffContext, offset: u32) -> Option<[u8; N]> {
    let mut bytes = [0u8; N];
    // SAFETY: room for N bytes; the helper checks the packet's length.
    let result =
        unsafe { bpf_skb_load_bytes(ctx.as_ptr().cast(), offset, bytes.as_mut_ptr().cast(), N as u32) };
    (result == 0).then_some(bytes)
}

/// The UDP datagram in a packet that begins at its IP header; `None` for anything else, later fragments
/// and extension headers included.
#[inline(always)]
fn datagram(ctx: &SkBuffContext) -> Option<Datagram> {
    // SAFETY: a field of the program's context.
    let protocol = unsafe { core::ptr::read_volatile(&raw const (*ctx.skb.skb).protocol) };
    let protocol = u32::from(u16::from_be(protocol as u16));
    let mut source = [0u8; 16];
    let mut destination = [0u8; 16];
    let (family, transport) = if protocol == ETH_P_IP {
        let fixed: [u8; 12] = load(ctx, 0)?;
        let fragment_offset = (u16::from(fixed[6] & 0x1f) << 8) | u16::from(fixed[7]);
        if u32::from(fixed[9]) != IPPROTO_UDP || fragment_offset != 0 {
            return None;
        }
        let addresses: [u8; 8] = load(ctx, 12)?;
        source[..4].copy_from_slice(&addresses[..4]);
        destination[..4].copy_from_slice(&addresses[4..]);
        (AF_INET, u32::from(fixed[0] & 0xf) * 4)
    } else if protocol == ETH_P_IPV6 {
        let fixed: [u8; 8] = load(ctx, 0)?;
        if u32::from(fixed[6]) != IPPROTO_UDP {
            return None;
        }
        source = load(ctx, 8)?;
        destination = load(ctx, 24)?;
        (AF_INET6, 40)
    } else {
        return None;
    };
    let udp: [u8; 6] = load(ctx, transport)?;
    Some(Datagram {
        family,
        source,
        destination,
        source_port: u16::from_be_bytes([udp[0], udp[1]]),
        destination_port: u16::from_be_bytes([udp[2], udp[3]]),
        payload: u64::from(u16::from_be_bytes([udp[4], udp[5]])).saturating_sub(UDP_HEADER_BYTES),
    })
}

#[inline(always)]
fn packet(ctx: &SkBuffContext, direction: FlowDirection) {
    let Some(datagram) = datagram(ctx) else { return };
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    if cookie == 0 {
        return;
    }
    let outbound = matches!(direction, FlowDirection::Outbound);
    let key = UdpFlowKey {
        cookie,
        peer_address: if outbound { datagram.destination } else { datagram.source },
        peer_port: u32::from(if outbound { datagram.destination_port } else { datagram.source_port }),
        family: u32::from(datagram.family),
    };
    if count(&key, outbound, datagram.payload) {
        return;
    }
    let owner = match UDP_SOCKETS.get_ptr_mut(&cookie) {
        // SAFETY: a non-null map value.
        Some(socket) => unsafe {
            add(&raw mut (*socket).flows, 1);
            (*socket).owner
        },
        None => Owner {
            // SAFETY: a helper on the program's own context.
            cgroup_id: unsafe { bpf_skb_cgroup_id(ctx.as_ptr().cast()) },
            missing: missing::OWNER | missing::START,
            ..Owner::default()
        },
    };
    if owner.ignored != 0 {
        return;
    }
    let now = task::now();
    let flow = UdpFlowCount {
        first_seen_ns: now,
        last_seen_ns: now,
        owner,
        local_address: if outbound { datagram.source } else { datagram.destination },
        local_port: u32::from(if outbound { datagram.source_port } else { datagram.destination_port }),
        direction: direction as u32,
        ..UdpFlowCount::default()
    };
    let _ = UDP_FLOWS.insert(&key, &flow, u64::from(BPF_NOEXIST));
    if !count(&key, outbound, datagram.payload) {
        lost(RecordKind::UdpFlow, LossReason::MapFull, owner.cgroup_id);
    }
}

#[inline(always)]
fn count(key: &UdpFlowKey, outbound: bool, payload: u64) -> bool {
    let Some(flow) = UDP_FLOWS.get_ptr_mut(key) else { return false };
    // SAFETY: a non-null map value; counters are added to atomically, since several CPUs may send.
    unsafe {
        let (bytes, packets) = if outbound {
            (&raw mut (*flow).bytes_sent, &raw mut (*flow).packets_sent)
        } else {
            (&raw mut (*flow).bytes_received, &raw mut (*flow).packets_received)
        };
        add(bytes, payload);
        add(packets, 1);
        (*flow).last_seen_ns = task::now();
    }
    true
}
