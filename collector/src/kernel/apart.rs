//! The process apart that loads and attaches kernel programs. It is forked before anything else happens, does what it
//! is told with the privileges that the collector started with, and hands descriptors over (unix(7), SCM_RIGHTS). The
//! collector meanwhile gives its own privileges up. Where all programs could be pinned it ends with its answer; where
//! one could not, it stays, doing nothing, since that program ends with it.
#![allow(unsafe_code, reason = "fork(2) of a process with one thread")]

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use activity_ebpf_abi::RecordKind;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use serde::{Deserialize, Serialize};

use super::attach::{self, AttachError, Attached, Keeper, Set};
use super::loss::Running;
use super::probes::MAPS;
use super::{AttachReport, KernelConfig};
use crate::privilege::Owner;

/// Longest request or answer, bytes.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most descriptors of one message (SCM_MAX_FD of the kernel is 253).
const DESCRIPTORS_MAX: usize = 128;

/// The other end of the process apart. Dropped, that process ends.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    /// `None` once it was waited for.
    pid: Option<Pid>,
}

/// What was attached, without its descriptors. These follow in this order: one for each map, one for each running
/// program, the folder of pins if there is a set.
#[derive(Serialize, Deserialize)]
struct Handed {
    report: AttachReport,
    /// Kind and slot of each running program.
    running: Vec<(u8, u32)>,
    /// Name of the set in the folder of pins.
    set: Option<String>,
}

impl Helper {
    /// Forks. Call it while this process has one thread. `owner` will own the folders of the pins, so that the
    /// collector can remove them when it ends.
    pub fn start(owner: Owner) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: there is one thread, so the child finds no lock held.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Helper { socket: ours, pid: Some(child) }),
            ForkResult::Child => {
                drop(ours);
                live_as_long_as_the_collector();
                serve(&theirs, owner);
                std::process::exit(0);
            }
        }
    }

    /// Has programs attached.
    pub(super) fn attach(self, config: &KernelConfig) -> Result<Attached, AttachError> {
        let gone = || AttachError::Apart("the process that attaches programs is gone".to_owned());
        let request = serde_json::to_vec(config).map_err(|e| AttachError::Apart(e.to_string()))?;
        send(&self.socket, &request, &[]).map_err(|_| gone())?;
        let (bytes, descriptors) = receive(&self.socket).map_err(|_| gone())?.ok_or_else(gone)?;
        let answer: Result<Handed, String> =
            serde_json::from_slice(&bytes).map_err(|e| AttachError::Apart(e.to_string()))?;
        let handed = answer.map_err(AttachError::Apart)?;
        take(handed, descriptors, self).ok_or_else(gone)
    }

    /// Whether it ended, and with it the programs that are not pinned.
    pub(super) fn has_ended(&mut self) -> bool {
        let Some(pid) = self.pid else { return true };
        let runs = matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
        if !runs {
            self.pid = None;
        }
        !runs
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Its read ends with ours closed.
        let _ = nix::sys::socket::shutdown(self.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(pid) = self.pid {
            let _ = waitpid(pid, None);
        }
    }
}

/// Ends with the collector, and not at a signal that asks the collector to end: its last records come before.
fn live_as_long_as_the_collector() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    for asked in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: no handler of ours is replaced.
        let _ = unsafe { signal(asked, SigHandler::SigIgn) };
    }
}

fn take(handed: Handed, descriptors: Vec<OwnedFd>, helper: Helper) -> Option<Attached> {
    let mut descriptors = descriptors.into_iter();
    let maps: BTreeMap<_, _> =
        MAPS.iter().map(|name| Some((*name, descriptors.next()?))).collect::<Option<_>>()?;
    let running = handed
        .running
        .into_iter()
        .map(|(kind, slot)| {
            Some(Running { kind: RecordKind::from_u8(kind)?, slot, program: descriptors.next()? })
        })
        .collect::<Option<_>>()?;
    let set = match handed.set {
        Some(name) => Some(Set { folder: descriptors.next()?, name }),
        None => None,
    };
    // A program that is not pinned ends with the helper.
    let keeper = if handed.report.pinned { Keeper::None } else { Keeper::Apart(helper) };
    Some(Attached { maps, running, set, report: handed.report, keeper })
}

/// The process apart: answers the one request, and holds what it attached until the other end is gone.
fn serve(socket: &OwnedFd, owner: Owner) {
    if let Ok(Some((request, _))) = receive(socket) {
        let attached = serde_json::from_slice::<KernelConfig>(&request)
            .map_err(|e| e.to_string())
            .and_then(|config| attach::attach(&config).map_err(|e| reason(&e)))
            .and_then(|attached| give_pins(&attached, owner).map(|()| attached));
        let answer = attached.as_ref().map(|a| Handed {
            report: a.report.clone(),
            running: a.running.iter().map(|r| (r.kind as u8, r.slot)).collect(),
            set: a.set.as_ref().map(|set| set.name.clone()),
        });
        let descriptors: Vec<RawFd> = attached.iter().flat_map(descriptors).collect();
        let Ok(bytes) = serde_json::to_vec(&answer) else { return };
        let sent = send(socket, &bytes, &descriptors).is_ok();
        if sent && attached.as_ref().is_ok_and(|attached| !attached.report.pinned) {
            let _ = receive(socket);
        }
    }
}

fn reason(error: &AttachError) -> String {
    match error {
        // What the kernel answered to which call adds nothing.
        AttachError::NotPrivileged(_) => error.to_string(),
        _ => crate::uplink::full(error),
    }
}

fn descriptors(attached: &Attached) -> impl Iterator<Item = RawFd> {
    let maps = MAPS.iter().filter_map(|name| attached.maps.get(name));
    let programs = attached.running.iter().map(|r| &r.program);
    maps.chain(programs).chain(attached.set.as_ref().map(|s| &s.folder)).map(std::os::fd::AsRawFd::as_raw_fd)
}

/// The folders of the pins go to the collector's user; the pins in them stay ours, so that only descriptors open them.
fn give_pins(attached: &Attached, owner: Owner) -> Result<(), String> {
    let Some(set) = attached.set.as_ref().filter(|_| owner.is_another()) else { return Ok(()) };
    for path in [set.path(), set.folder_path()] {
        std::os::unix::fs::chown(&path, Some(owner.uid), Some(owner.gid))
            .map_err(|e| format!("cannot give the pins to user {}: {e}", owner.uid))?;
    }
    Ok(())
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// `None` when the other end is closed.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let length = message.bytes;
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: descriptors that the kernel just made for us.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    bytes.truncate(length);
    Ok((length > 0).then_some((bytes, descriptors)))
}
