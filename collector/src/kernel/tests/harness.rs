//! What the tests share: a cgroup, a source, a load program, and the records that it caused.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kernel::attach::{AttachError, BTF_PATH};
use crate::kernel::{
    Common, ExecutableClass, ExitRecord, FlowRecord, ForkRecord, KernelConfig, KernelSource, Record, RingId,
    RingPosition, RingSizes,
};

/// Where the load program's orders are.
pub(super) const LOAD: &str = "ACTIVITY_KERNEL_LOAD";

#[derive(Debug, Clone)]
pub(super) enum Seen {
    Fork(ForkRecord),
    Exec {
        common: Common,
        basename: String,
        class: ExecutableClass,
        argc: u32,
        argv_bytes: u64,
        old_pid: u32,
        missing: u32,
        path_truncated: bool,
    },
    ExecFailed {
        common: Common,
        basename: String,
        errno: u32,
    },
    Exit(ExitRecord),
    Flow(FlowRecord),
    Listen(FlowRecord),
    Cgroup {
        common: Common,
        path: String,
        truncated: bool,
    },
}

impl Seen {
    pub(super) fn of(record: &Record<'_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match record {
            Record::Fork(record) => Self::Fork(*record),
            Record::Exec(record) => Self::Exec {
                common: record.common,
                basename: text(record.basename()),
                class: record.class,
                argc: record.argc,
                argv_bytes: record.argv_bytes,
                old_pid: record.old_pid,
                missing: record.common.missing,
                path_truncated: record.path_truncated(),
            },
            Record::ExecFailed(record) => Self::ExecFailed {
                common: record.common,
                basename: text(record.basename()),
                errno: record.errno,
            },
            Record::Exit(record) => Self::Exit(*record),
            Record::Flow(record) => Self::Flow(*record),
            Record::Listen(record) => Self::Listen(*record),
            Record::Cgroup(record) => Self::Cgroup {
                common: record.common,
                path: text(record.path),
                truncated: record.path_truncated,
            },
        }
    }

    pub(super) fn common(&self) -> &Common {
        match self {
            Self::Fork(record) => &record.common,
            Self::Exec { common, .. } | Self::ExecFailed { common, .. } | Self::Cgroup { common, .. } => {
                common
            }
            Self::Exit(record) => &record.common,
            Self::Flow(record) | Self::Listen(record) => &record.common,
        }
    }
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A name that no other test of any process uses.
pub(super) fn unique(prefix: &str) -> String {
    format!("{prefix}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn cgroup_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// A cgroup v2 that disappears with the value.
pub(super) struct Cgroup {
    pub(super) path: PathBuf,
    pub(super) id: u64,
}

impl Cgroup {
    pub(super) fn new() -> Self {
        Self::at(cgroup_root().unwrap().join(unique("activity-test")))
    }

    /// One below this one with a name of so many bytes.
    pub(super) fn below(&self, name_bytes: usize) -> Self {
        Self::at(self.path.join("n".repeat(name_bytes)))
    }

    fn at(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let id = fs::metadata(&path).unwrap().ino();
        Self { path, id }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    }
}

pub(super) fn config(ring_bytes: RingSizes, pin_dir: Option<PathBuf>) -> KernelConfig {
    KernelConfig {
        pin_dir,
        ring_bytes,
        cgroup_root: cgroup_root().unwrap_or_default(),
        ignore_self_flows: false,
    }
}

/// A source, or the reason printed why there is none here.
pub(super) fn attach(config: &KernelConfig) -> Option<KernelSource> {
    if cgroup_root().is_none() {
        eprintln!("skipped: no cgroup v2 is mounted");
        return None;
    }
    match KernelSource::attach(config) {
        Ok((source, _)) => Some(source),
        Err(error) if matches!(error, AttachError::NotPrivileged(_)) || !Path::new(BTF_PATH).exists() => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{}", crate::uplink::full(&error)),
    }
}

/// A fresh pin directory, if a bpffs can be had.
pub(super) fn pin_dir() -> Option<PathBuf> {
    let root = Path::new("/sys/fs/bpf");
    let is_bpffs = || {
        nix::sys::statfs::statfs(root)
            .is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::BPF_FS_MAGIC)
    };
    if !is_bpffs() {
        let flags = nix::mount::MsFlags::empty();
        let _ = nix::mount::mount(Some("bpffs"), root, Some("bpf"), flags, None::<&str>);
    }
    if is_bpffs() {
        Some(root.join(unique("activity-test")))
    } else {
        eprintln!("skipped: no bpffs at {}", root.display());
        None
    }
}

/// This test binary again, as another program, inside `cgroup`.
pub(super) fn spawn(cgroup: Option<&Cgroup>, test: &str, orders: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let module = module_path!().split("::").skip(1).take(2).collect::<Vec<_>>().join("::");
    command
        .args([
            format!("{module}::{test}").as_str(),
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(LOAD, orders)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    if let Some(cgroup) = cgroup {
        let procs = std::ffi::CString::new(format!("{}/cgroup.procs", cgroup.path.display())).unwrap();
        // SAFETY: system calls only, between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let fd = nix::libc::open(procs.as_ptr(), nix::libc::O_WRONLY);
                let written = nix::libc::write(fd, c"0".as_ptr().cast(), 1);
                nix::libc::close(fd);
                if written == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
    }
    command.spawn().unwrap()
}

/// Runs a load to its end while the rings are read. Returns what the load said and what was seen of its cgroup.
pub(super) fn run(source: &mut KernelSource, cgroup: &Cgroup, orders: &str) -> (Truth, Vec<Seen>) {
    let mut child = spawn(Some(cgroup), "load::load", orders);
    let mut seen = Vec::new();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        read(source, cgroup, &mut seen);
        sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "the load failed: {status}");
    let truth = Truth::read(&mut child);
    let end = Instant::now() + Duration::from_millis(150);
    while Instant::now() < end {
        read(source, cgroup, &mut seen);
        sleep(Duration::from_millis(10));
    }
    // Its own making came before the load.
    seen.retain(|seen| !matches!(seen, Seen::Cgroup { .. }));
    (truth, seen)
}

/// Drains and commits all rings, keeping the records of one cgroup.
pub(super) fn read(source: &mut KernelSource, cgroup: &Cgroup, seen: &mut Vec<Seen>) {
    let mut all = Vec::new();
    read_all(source, &mut all);
    seen.extend(all.into_iter().filter(|(of, _)| *of == cgroup.id).map(|(_, seen)| seen));
}

/// Drains and commits all rings, keeping each record with its cgroup.
pub(super) fn read_all(source: &mut KernelSource, seen: &mut Vec<(u64, Seen)>) {
    for ring in RingId::ALL {
        let mut end: Option<RingPosition> = None;
        source.drain(ring, usize::MAX, &mut |position, record| {
            let record = record.unwrap();
            seen.push((record.common().cgroup_id, Seen::of(&record)));
            end = Some(position);
        });
        if let Some(end) = end {
            source.commit(ring, end);
        }
    }
}

/// What a load says that it did: lines of a word and numbers.
#[derive(Debug)]
pub(super) struct Truth(Vec<(String, Vec<i64>)>);

impl Truth {
    pub(super) fn read(child: &mut Child) -> Self {
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        Self(
            text.lines()
                // The test harness may leave its own words on the line.
                .filter_map(|line| line.split_once("TRUTH ").map(|(_, rest)| rest))
                .map(|line| {
                    let mut words = line.split_whitespace();
                    let name = words.next().unwrap().to_owned();
                    (name, words.map(|word| word.parse().unwrap()).collect())
                })
                .collect(),
        )
    }

    /// All lines of that name.
    pub(super) fn all(&self, name: &str) -> Vec<&[i64]> {
        self.0.iter().filter(|(line, _)| line == name).map(|(_, numbers)| numbers.as_slice()).collect()
    }

    /// The one line of that name.
    pub(super) fn one(&self, name: &str) -> &[i64] {
        let all = self.all(name);
        assert_eq!(all.len(), 1, "{name}: {self:?}");
        all[0]
    }
}

pub(super) fn forks(seen: &[Seen], tgid: i64) -> Vec<&ForkRecord> {
    of(seen, tgid)
        .filter_map(|seen| if let Seen::Fork(record) = seen { Some(record) } else { None })
        .collect()
}

pub(super) fn exits(seen: &[Seen], tgid: i64) -> Vec<&ExitRecord> {
    of(seen, tgid)
        .filter_map(|seen| if let Seen::Exit(record) = seen { Some(record) } else { None })
        .collect()
}

pub(super) fn execs(seen: &[Seen], tgid: i64) -> Vec<&Seen> {
    of(seen, tgid).filter(|seen| matches!(seen, Seen::Exec { .. })).collect()
}

fn of(seen: &[Seen], tgid: i64) -> impl Iterator<Item = &Seen> {
    seen.iter().filter(move |seen| i64::from(seen.common().tgid) == tgid)
}
