//! Keys and values of the maps that both sides touch.

/// Entry in `losses`: what one cgroup lost of one kind for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct LossKey {
    pub cgroup_id: u64,
    pub kind: u32,
    pub reason: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LossCount {
    pub count: u64,
    /// Boot clock.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// Entry in `issued`, per CPU and kind: attempts are the sum of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Issued {
    pub emitted: u64,
    pub lost: u64,
}

/// Slots of `issued` and `loss_overflow`; indexed by `RecordKind as u32`.
pub const KIND_SLOTS: u32 = 16;

/// Slots of `misses_reported`, one for each program.
pub const PROGRAM_SLOTS: u32 = 32;

/// Who owns a socket.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Owner {
    pub cgroup_id: u64,
    pub scope: u64,
    pub start_boottime_ns: u64,
    pub tgid: u32,
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub missing: u32,
    /// 1 when the owner's flows are ignored.
    pub ignored: u32,
}

/// Entry in `tcp_sockets`, keyed by the address of the `struct sock`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TcpSocket {
    pub flow_id: u64,
    pub first_seen_ns: u64,
    pub owner: Owner,
    pub direction: u32,
    pub flags: u32,
}

/// Key of `tcp_listeners`: finds the owner of an accepted connection.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ListenerKey {
    /// Address of the `struct net`.
    pub net: u64,
    pub address: [u8; 16],
    pub port: u32,
    /// `AF_INET` or `AF_INET6`.
    pub family: u32,
}

/// Entry in `udp_sockets`, keyed by the socket's cookie.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct UdpSocket {
    pub owner: Owner,
    /// Set when the socket was released.
    pub closed_ns: u64,
    /// Entries in `udp_flows` that name this cookie.
    pub flows: u64,
}

/// Key of `udp_flows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UdpFlowKey {
    pub cookie: u64,
    pub peer_address: [u8; 16],
    pub peer_port: u32,
    pub family: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct UdpFlowCount {
    pub first_seen_ns: u64,
    pub last_seen_ns: u64,
    /// UDP payload, without headers.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub packets_sent: u64,
    pub packets_received: u64,
    pub owner: Owner,
    pub local_address: [u8; 16],
    pub local_port: u32,
    /// Direction of the first packet.
    pub direction: u32,
}

const _: () = {
    assert!(size_of::<LossKey>() == 16);
    assert!(size_of::<LossCount>() == 24);
    assert!(size_of::<Owner>() == 48);
    assert!(size_of::<TcpSocket>() == 72);
    assert!(size_of::<ListenerKey>() == 32);
    assert!(size_of::<UdpSocket>() == 64);
    assert!(size_of::<UdpFlowKey>() == 32);
    assert!(size_of::<UdpFlowCount>() == 120);
};
