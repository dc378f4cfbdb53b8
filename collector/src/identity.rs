//! Who is observed: boot, instance nonce, and processes that keep their names when pids are reused.

use std::fs;
use std::io;

use activity_schema::hex;
use activity_schema::merkle::Hash;

/// Nanoseconds of one clock tick of `/proc/<pid>/stat` (USER_HZ is 100 on every Linux ABI).
pub const TICK_NS: u64 = 10_000_000;

/// The kernel's id of this boot.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A stable name of the machine: machine-id, hashed so that the id itself does not leave the machine
/// (machine-id(5)); the host name where there is none.
pub fn default_host_id() -> String {
    match fs::read_to_string("/etc/machine-id") {
        Ok(id) if id.trim().len() == 32 => {
            format!("h-{}", hex::encode(&Hash::of(&[b"activity-host\0", id.trim().as_bytes()]).0[..8]))
        }
        _ => {
            fs::read_to_string("/proc/sys/kernel/hostname").map_or("host".to_owned(), |n| n.trim().to_owned())
        }
    }
}

/// Makes process ids of one boot of one instance.
#[derive(Debug, Clone)]
pub struct ProcessIds {
    prefix: String,
}

impl ProcessIds {
    pub fn new(boot_id: &str, nonce: &str) -> Self {
        let digest = Hash::of(&[b"activity-process\0", boot_id.as_bytes(), b"\0", nonce.as_bytes()]);
        ProcessIds { prefix: hex::encode(&digest.0[..8]) }
    }

    /// `<16 hex of boot and nonce>-<tgid>-<start in ticks since boot>`. Ticks, because procfs knows no finer start
    /// time; a pid does not come round within one.
    pub fn of(&self, tgid: u32, start_boottime_ns: u64) -> String {
        format!("{}-{tgid}-{}", self.prefix, start_boottime_ns / TICK_NS)
    }
}
