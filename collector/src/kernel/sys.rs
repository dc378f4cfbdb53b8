//! The few `bpf(2)` commands that aya does not offer in the form needed here, over map values as plain bytes.
#![allow(unsafe_code, reason = "raw system calls on maps; every length is checked against the map's own")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::libc;

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_long = 4;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_MAP_LOOKUP_AND_DELETE_ELEM: libc::c_long = 21;

/// The part of `union bpf_attr` that the map commands use (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct ObjectAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct IdAttr {
    id: u32,
    next: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<()> {
    call(command, attr).map(|_| ())
}

/// For commands that return a descriptor.
fn descriptor<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: a descriptor that the kernel just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a prefix of union bpf_attr of the size given; the pointers in it are valid for the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as usize as u64
}

/// A map of keys of `K` bytes and values of `V` bytes. `V` is the whole value: per-CPU maps need
/// `possible CPUs × value size rounded up to 8`, which [`PerCpu`] handles.
pub(super) struct ByteMap<'a, const K: usize, const V: usize>(pub(super) BorrowedFd<'a>);

impl<const K: usize, const V: usize> ByteMap<'_, K, V> {
    fn element(&self, command: libc::c_long, key: &[u8; K], value: u64, flags: u64) -> io::Result<()> {
        bpf(command, &mut ElementAttr { map_fd: raw(self.0), padding: 0, key: address(key), value, flags })
    }

    /// `None` when the key is not in the map.
    pub(super) fn get(&self, key: &[u8; K]) -> io::Result<Option<[u8; V]>> {
        let mut value = [0; V];
        let place = value.as_mut_ptr() as usize as u64;
        absent_is_none(self.element(BPF_MAP_LOOKUP_ELEM, key, place, 0)).map(|found| found.map(|()| value))
    }

    pub(super) fn put(&self, key: &[u8; K], value: &[u8; V]) -> io::Result<()> {
        self.element(BPF_MAP_UPDATE_ELEM, key, address(value), 0)
    }

    /// Whether the key was there.
    pub(super) fn remove(&self, key: &[u8; K]) -> io::Result<bool> {
        absent_is_none(self.element(BPF_MAP_DELETE_ELEM, key, 0, 0)).map(|found| found.is_some())
    }

    /// Removes and returns in one step (hash maps: Linux 5.14). Falls back to two steps, between which a count
    /// can be lost, on older kernels.
    pub(super) fn take(&self, key: &[u8; K]) -> io::Result<Option<[u8; V]>> {
        let mut value = [0; V];
        let place = value.as_mut_ptr() as usize as u64;
        match absent_is_none(self.element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, key, place, 0)) {
            Ok(found) => Ok(found.map(|()| value)),
            Err(_) => {
                let value = self.get(key)?;
                self.remove(key)?;
                Ok(value)
            }
        }
    }

    /// Keys present while the map was walked; at most `limit`, since a walk restarts when a key vanishes.
    pub(super) fn keys(&self, limit: usize) -> io::Result<Vec<[u8; K]>> {
        let mut keys: Vec<[u8; K]> = Vec::new();
        let mut next = [0; K];
        while keys.len() < limit {
            let previous = keys.last().map_or(0, |key| address(key));
            let place = next.as_mut_ptr() as usize as u64;
            let mut attr =
                ElementAttr { map_fd: raw(self.0), padding: 0, key: previous, value: place, flags: 0 };
            match absent_is_none(bpf(BPF_MAP_GET_NEXT_KEY, &mut attr))? {
                Some(()) => keys.push(next),
                None => break,
            }
        }
        Ok(keys)
    }
}

fn absent_is_none(result: io::Result<()>) -> io::Result<Option<()>> {
    match result {
        Ok(()) => Ok(Some(())),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A per-CPU array with values of `V` bytes, a multiple of 8.
pub(super) struct PerCpu<'a, const V: usize> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) possible_cpus: usize,
}

impl<const V: usize> PerCpu<'_, V> {
    /// One value for each possible CPU.
    pub(super) fn get(&self, index: u32) -> io::Result<Vec<[u8; V]>> {
        let key = index.to_ne_bytes();
        let mut bytes = vec![0u8; V * self.possible_cpus];
        let mut attr = ElementAttr {
            map_fd: raw(self.fd),
            padding: 0,
            key: address(&key),
            value: bytes.as_mut_ptr() as usize as u64,
            flags: 0,
        };
        bpf(BPF_MAP_LOOKUP_ELEM, &mut attr)?;
        Ok(bytes.chunks_exact(V).filter_map(|chunk| chunk.try_into().ok()).collect())
    }
}

/// `max_entries` of a map: the size in bytes of a ring buffer.
pub(super) fn max_entries(map: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(map_info(map)?[4])
}

/// The kernel's id of a map.
pub(super) fn map_id(map: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(map_info(map)?[1])
}

fn map_info(map: BorrowedFd<'_>) -> io::Result<[u32; 22]> {
    // struct bpf_map_info: type, id, key_size, value_size, max_entries, …
    let mut info = [0u32; 22];
    bpf(
        BPF_OBJ_GET_INFO_BY_FD,
        &mut InfoAttr { fd: raw(map), length: 88, info: info.as_mut_ptr() as usize as u64 },
    )?;
    Ok(info)
}

/// Events for which the kernel did not run a program since it was at work already on that CPU; `None` where the
/// kernel does not say (before 5.12).
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // struct bpf_prog_info up to and with recursion_misses, its last word here.
    let mut info = [0u64; 27];
    let mut attr = InfoAttr { fd: raw(program), length: 216, info: info.as_mut_ptr() as usize as u64 };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok((attr.length >= 216).then_some(info[26]))
}

/// The program behind a pinned link.
pub(super) fn program_of_pinned_link(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut get = ObjectAttr { path: path.as_ptr() as usize as u64, ..ObjectAttr::default() };
    let link = descriptor(BPF_OBJ_GET, &mut get)?;
    // struct bpf_link_info: type, id, prog_id, …
    let mut info = [0u32; 4];
    let place = info.as_mut_ptr() as usize as u64;
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut InfoAttr { fd: raw(link.as_fd()), length: 16, info: place })?;
    descriptor(BPF_PROG_GET_FD_BY_ID, &mut IdAttr { id: info[2], ..IdAttr::default() })
}

/// Bytes of kernel memory that a map is charged for, as its fdinfo says.
pub(super) fn memory_bytes(map: BorrowedFd<'_>) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd())).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("memlock:"))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}
