//! UDP flows, read from the map where the packet hooks count them.
#![allow(unsafe_code, reason = "marks map values as plain integers")]

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use activity_ebpf_abi::maps::{UdpFlowCount, UdpFlowKey, UdpSocket};
use activity_ebpf_abi::records::FlowDirection;

use super::record::{Common, Plain, plain, socket_address};
use super::sys::ByteMap;

/// Keys read in one walk: twice what the maps hold, since a walk restarts when a key vanishes.
const KEYS_MAX: usize = 16384;

/// Flows by what became of them since the last look.
#[derive(Debug, Default)]
pub struct UdpFlows {
    /// Seen for the first time, and not ended.
    pub opened: Vec<UdpFlow>,
    /// Each once: the socket is closed, or there was no packet for a while.
    pub ended: Vec<UdpFlow>,
}

/// Keys of the flows that were told as opened.
pub(super) type Opened = HashSet<[u8; 32]>;

/// A flow as it stands. `common.ktime_boot_ns` is its last packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpFlow {
    pub common: Common,
    pub first_seen_ns: u64,
    pub last_seen_ns: u64,
    pub direction: FlowDirection,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Payload, without headers.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub packets_sent: u64,
    pub packets_received: u64,
    /// The socket is gone, rather than silent.
    pub closed: bool,
}

// SAFETY: repr(C) integers; the ABI crate asserts the sizes, which leave no room for padding.
unsafe impl Plain for UdpFlowKey {}
// SAFETY: see above.
unsafe impl Plain for UdpFlowCount {}
// SAFETY: see above.
unsafe impl Plain for UdpSocket {}

/// Takes the flows whose socket is closed or that have been silent for `idle_ns` out of the map, and notes the others.
pub(super) fn look(
    flows: BorrowedFd<'_>,
    sockets: BorrowedFd<'_>,
    opened: &mut Opened,
    now_ns: u64,
    idle_ns: u64,
) -> io::Result<UdpFlows> {
    let flows = ByteMap::<32, 120>(flows);
    let sockets = ByteMap::<8, 64>(sockets);
    // Sockets first: a flow of one that is closed by now is complete.
    let mut closed = Vec::new();
    for cookie in sockets.keys(KEYS_MAX)? {
        let socket = sockets.get(&cookie)?.and_then(|bytes| plain::<UdpSocket>(&bytes, 0).ok());
        if socket.is_some_and(|socket| socket.closed_ns != 0) {
            closed.push(cookie);
        }
    }
    let mut found = UdpFlows::default();
    for key_bytes in flows.keys(KEYS_MAX)? {
        let Ok(key) = plain::<UdpFlowKey>(&key_bytes, 0) else { continue };
        let is_closed = closed.contains(&key.cookie.to_ne_bytes());
        let Some(count) = flows.get(&key_bytes)?.and_then(|bytes| plain::<UdpFlowCount>(&bytes, 0).ok())
        else {
            continue;
        };
        if !is_closed && now_ns.saturating_sub(count.last_seen_ns) < idle_ns {
            if opened.insert(key_bytes) {
                found.opened.extend(flow(&key, &count, false));
            }
            continue;
        }
        opened.remove(&key_bytes);
        let taken = flows.take(&key_bytes)?.and_then(|bytes| plain::<UdpFlowCount>(&bytes, 0).ok());
        found.ended.extend(taken.and_then(|count| flow(&key, &count, is_closed)));
    }
    for cookie in closed {
        sockets.remove(&cookie)?;
    }
    Ok(found)
}

fn flow(key: &UdpFlowKey, count: &UdpFlowCount, closed: bool) -> Option<UdpFlow> {
    let family = u16::try_from(key.family).ok()?;
    let port = |value| u16::try_from(value).ok();
    let owner = &count.owner;
    Some(UdpFlow {
        common: Common {
            ktime_boot_ns: count.last_seen_ns,
            cgroup_id: owner.cgroup_id,
            tgid: owner.tgid,
            pid: owner.pid,
            start_boottime_ns: owner.start_boottime_ns,
            scope: owner.scope,
            uid: owner.uid,
            gid: owner.gid,
            cpu: 0,
            missing: owner.missing,
            canary: false,
        },
        first_seen_ns: count.first_seen_ns,
        last_seen_ns: count.last_seen_ns,
        direction: FlowDirection::from_u8(u8::try_from(count.direction).unwrap_or(0)),
        local: socket_address(family, &count.local_address, port(count.local_port)?)?,
        peer: socket_address(family, &key.peer_address, port(key.peer_port)?)?,
        bytes_sent: count.bytes_sent,
        bytes_received: count.bytes_received,
        packets_sent: count.packets_sent,
        packets_received: count.packets_received,
        closed,
    })
}
