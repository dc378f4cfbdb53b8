//! What the kernel programs and the collector agree on: record layouts, map keys and values, and the
//! table of kernel fields whose offsets are resolved at load.
//!
//! Every structure is `repr(C)`, holds integers only and has no implicit padding, so that its bytes can be
//! copied through a ring buffer and a map. Integers are in host order unless a name ends in `_be`.
//! A change to anything here raises [`ABI_VERSION`].
#![no_std]

pub mod maps;
pub mod offsets;
pub mod records;

/// Version of everything in this crate; part of every record and of the pin directory's name.
pub const ABI_VERSION: u16 = 2;

/// The programs wake a ring's reader at most this often; it has to look once more after that long.
pub const WAKEUP_INTERVAL_MS: u32 = 25;

/// What a record, a loss counter or a class of evidence is about.
///
/// `UdpFlow` and `Scope` never cross a ring: the first is read from a map, the second names losses of the
/// scope map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RecordKind {
    Fork = 1,
    Exec = 2,
    ExecFailed = 3,
    Exit = 4,
    Flow = 5,
    Listen = 6,
    UdpFlow = 7,
    Scope = 8,
    Cgroup = 9,
}

impl RecordKind {
    pub const ALL: [Self; 9] = [
        Self::Fork,
        Self::Exec,
        Self::ExecFailed,
        Self::Exit,
        Self::Flow,
        Self::Listen,
        Self::UdpFlow,
        Self::Scope,
        Self::Cgroup,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Exec => "exec",
            Self::ExecFailed => "exec_failed",
            Self::Exit => "exit",
            Self::Flow => "flow",
            Self::Listen => "listen",
            Self::UdpFlow => "udp_flow",
            Self::Scope => "scope",
            Self::Cgroup => "cgroup",
        }
    }

    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Fork,
            2 => Self::Exec,
            3 => Self::ExecFailed,
            4 => Self::Exit,
            5 => Self::Flow,
            6 => Self::Listen,
            7 => Self::UdpFlow,
            8 => Self::Scope,
            9 => Self::Cgroup,
            _ => return None,
        })
    }
}

/// Why something could not be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LossReason {
    /// The record did not fit into its ring.
    RingFull = 1,
    /// A bookkeeping map was full: the value that it would have held (owner, scope, flow) is lost.
    MapFull = 2,
    /// The program was entered on a CPU where it (or its scratch buffer) was already in use.
    Nested = 3,
}

impl LossReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::MapFull => "map_full",
            Self::Nested => "nested",
        }
    }

    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::RingFull,
            2 => Self::MapFull,
            3 => Self::Nested,
            _ => return None,
        })
    }
}
