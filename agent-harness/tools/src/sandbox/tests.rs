//! Real commands behind the walls. What they try is judged by what is there afterwards.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use super::*;

struct Lab {
    dir: TempDir,
    sandbox: Sandbox,
}

/// Nothing where this kernel has no Landlock that is good for anything; then it says so.
fn lab() -> Option<Lab> {
    lab_with(|_| ())
}

fn lab_with(change: impl FnOnce(&mut SandboxConfig)) -> Option<Lab> {
    let dir = TempDir::new().unwrap();
    for name in ["work", "outside", "more"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("outside/file"), "untouched").unwrap();
    let mut config =
        SandboxConfig { workspace: dir.path().join("work"), write_workspace: true, writable: Vec::new() };
    change(&mut config);
    match Sandbox::prepare(&config) {
        Ok(sandbox) => Some(Lab { dir, sandbox }),
        Err(SandboxError::NoLandlock(_)) => {
            println!("skipped: no Landlock with ABI 3 here");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

impl Lab {
    /// Runs a command behind the walls, in the workspace.
    #[allow(unsafe_code, reason = "pre_exec is the only place between fork and exec")]
    fn run(&self, network: bool, program: &str, arguments: &[&str]) -> Output {
        let confinement = self.sandbox.confinement(network);
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.dir.path().join("work")).stdin(Stdio::null());
        // SAFETY: as in `try_out`.
        unsafe {
            command.pre_exec(move || confinement.enter());
        }
        command.output().unwrap()
    }

    fn shell(&self, line: &str) -> Output {
        self.run(false, "/bin/sh", &["-c", line])
    }

    fn python(&self, network: bool, program: &str) -> String {
        let output = self.run(network, "python3", &["-c", program]);
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn has(&self, wall: Wall) -> bool {
        let has = !self.sandbox.state().unsupported().any(|(missing, _)| missing == wall);
        if !has {
            println!("skipped: no wall {wall:?} here");
        }
        has
    }
}

#[test]
fn a_command_changes_the_workspace_and_nothing_else() {
    let Some(lab) = lab() else { return };
    let temporary = lab.sandbox.temporary().display().to_string();
    for line in [
        "echo x > new && mkdir -p a/b && mv new a/b/ && ln -s b a/link && chmod 700 a && rm -r a",
        &format!("echo x > {temporary}/scratch"),
        "echo x > /dev/null; head -c 4 /dev/urandom > random",
        "cat /etc/passwd ../outside/file > copy",
        "ls / /proc/self > listing",
    ] {
        let output = lab.shell(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let outside = lab.path("outside").display().to_string();
    for line in [
        "echo x > ../outside/file",
        "echo x >> ../outside/file",
        "truncate -s 0 ../outside/file",
        "python3 -c 'import os; os.truncate(\"../outside/file\", 0)'",
        "rm ../outside/file",
        "mv ../outside/file .",
        "mv ../outside/file ../outside/other",
        "touch ../outside/new",
        "mkdir ../outside/dir",
        "ln -s x ../outside/link",
        "ln ../outside/file linked && echo x > linked",
        &format!("ln -s {outside}/file link && echo x > link"),
        &format!("ln -s {outside} dir && echo x > dir/new"),
        "mkfifo ../outside/pipe",
        "cp copy /tmp/iteron-must-not-be-here",
        "echo 1 > /proc/sys/kernel/core_uses_pid",
        "echo x > /proc/self/root/tmp/iteron-must-not-be-here",
    ] {
        let output = lab.shell(line);
        assert!(!output.status.success(), "it was done: {line}");
    }
    assert_eq!(fs::read_to_string(lab.path("outside/file")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(lab.path("outside")).unwrap().count(), 1);
    assert!(!Path::new("/tmp/iteron-must-not-be-here").exists());
}

#[test]
fn what_may_be_written_to_is_the_operators_choice() {
    let Some(lab) = lab_with(|config| {
        config.write_workspace = false;
        config.writable = vec![config.workspace.with_file_name("more")];
    }) else {
        return;
    };
    assert!(!lab.shell("echo x > new").status.success());
    assert!(lab.shell("echo x > ../more/new").status.success());
    assert_eq!(fs::read_dir(lab.path("work")).unwrap().count(), 0);
    let missing = SandboxConfig {
        workspace: lab.path("work"),
        write_workspace: true,
        writable: vec![lab.path("nowhere")],
    };
    let refused = Sandbox::prepare(&missing).unwrap_err();
    assert!(matches!(refused, SandboxError::Writable { path, .. } if path.ends_with("nowhere")));
}

#[test]
fn without_network_nothing_is_reached_and_with_it_everything_is() {
    let Some(lab) = lab() else { return };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    let udp_port = udp.local_addr().unwrap().port();
    let path = lab.path("daemon");
    let unix = UnixListener::bind(&path).unwrap();
    let datagrams = std::os::unix::net::UnixDatagram::bind(lab.path("log")).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    tcp.set_nonblocking(true).unwrap();
    unix.set_nonblocking(true).unwrap();
    let tries = [
        format!("s=socket.socket(); s.connect(('127.0.0.1',{port}))"),
        format!("s=socket.socket(socket.AF_UNIX); s.connect('{}')", path.display()),
        format!("socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'x',('127.0.0.1',{udp_port}))"),
        format!(
            "socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM).sendto(b'x','{}')",
            lab.path("log").display()
        ),
    ];
    let closed = "socket.socket(socket.AF_NETLINK,socket.SOCK_RAW)";
    for program in tries.iter().map(String::as_str).chain([closed]) {
        let told = lab.python(false, &format!("import socket\n{program}\nprint('done')"));
        assert!(told.contains("PermissionError") && !told.contains("done"), "{program}: {told}");
    }
    let mut buffer = [0; 8];
    assert!(tcp.accept().is_err() && unix.accept().is_err());
    assert!(udp.recv(&mut buffer).is_err() && datagrams.recv(&mut buffer).is_err());
    // What needs no peer outside works.
    let told = lab.python(false, "import socket; a,b=socket.socketpair(); a.send(b'hi'); print(b.recv(2))");
    assert_eq!(told, "b'hi'\n");
    for program in &tries {
        let told = lab.python(true, &format!("import socket\n{program}\nprint('done')"));
        assert_eq!(told, "done\n", "{program}");
    }
    assert!(tcp.accept().is_ok() && unix.accept().is_ok());
    assert!(udp.recv(&mut buffer).is_ok() && datagrams.recv(&mut buffer).is_ok());
}

#[test]
fn a_command_has_its_own_network_and_no_capability_outside() {
    let Some(lab) = lab() else { return };
    if lab.has(Wall::NetworkNamespace) {
        let devices = String::from_utf8(lab.shell("cat /proc/self/net/dev").stdout).unwrap();
        let devices: Vec<&str> =
            devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        assert_eq!(devices, ["lo"]);
    }
    if lab.has(Wall::UserNamespace) {
        let read = |output: Output| String::from_utf8(output.stdout).unwrap();
        let inside = read(lab.shell("readlink /proc/self/ns/user /proc/self/ns/ipc; id -u"));
        let own = ["user", "ipc"].map(|name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap());
        assert!(own.iter().all(|own| !inside.contains(&own.display().to_string())), "{inside}");
        assert!(inside.ends_with(&format!("{}\n", nix::unistd::geteuid())), "{inside}");
    }
}

#[test]
fn what_reaches_beyond_a_process_is_refused() {
    let Some(lab) = lab() else { return };
    let before = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for line in [
        "mount -t tmpfs none .",
        "unshare -U true",
        "unshare -n true",
        "unshare -Ur mount -t tmpfs none .",
        "hostname changed",
    ] {
        assert!(!lab.shell(line).status.success(), "it was done: {line}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), before);
    let call = |number: i64, arguments: &str| {
        let program = format!(
            "import ctypes\nl=ctypes.CDLL(None,use_errno=True)\nr=l.syscall({number},{arguments})\nprint(r,ctypes.get_errno())"
        );
        lab.python(true, &program)
    };
    assert_eq!(call(libc::SYS_io_uring_setup, "1,0"), format!("-1 {}\n", libc::EPERM));
    assert_eq!(call(libc::SYS_bpf, "0,0,0"), format!("-1 {}\n", libc::EPERM));
    assert_eq!(call(libc::SYS_clone3, "0,0"), format!("-1 {}\n", libc::ENOSYS));
    assert_eq!(call(libc::SYS_clone, "0x10000000|17,0,0,0,0"), format!("-1 {}\n", libc::EPERM));
    // The numbers of another ABI are no way around.
    #[cfg(target_arch = "x86_64")]
    assert_eq!(call(0x4000_0000 | libc::SYS_getpid, "0"), format!("-1 {}\n", libc::EPERM));
    assert!(call(libc::SYS_getpid, "0").ends_with(" 0\n"));
    // Threads and processes are made as ever.
    let threads = "import threading,subprocess\nt=threading.Thread(target=print,args=('ran',))\nt.start(); t.join()\nsubprocess.run(['true'],check=True)";
    assert_eq!(lab.python(false, threads), "ran\n");
}

#[test]
fn a_command_signals_its_own_and_nobody_else() {
    let Some(lab) = lab() else { return };
    assert!(lab.shell("sleep 60 & kill $! && wait $!; test $? = 143").status.success());
    if !lab.has(Wall::Signals) {
        return;
    }
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let refused = lab.shell(&format!("kill -KILL {}", other.id()));
    assert!(!refused.status.success());
    assert!(other.try_wait().unwrap().is_none(), "it was killed");
    other.kill().unwrap();
    assert_eq!(other.wait().unwrap().signal(), Some(libc::SIGKILL));
}

/// Makes a system call answer with an error, as on a kernel without it, in a thread of its own.
fn without(call: libc::c_long, errno: i32, then: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            let rules = std::collections::BTreeMap::from([(call, Vec::new())]);
            let filter = seccompiler::SeccompFilter::new(
                rules,
                seccompiler::SeccompAction::Allow,
                seccompiler::SeccompAction::Errno(errno.unsigned_abs()),
                std::env::consts::ARCH.try_into().unwrap(),
            );
            let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
            seccompiler::apply_filter(&program).unwrap();
            then();
        });
        ended.join().unwrap();
    });
}

#[test]
fn without_landlock_there_is_no_sandbox_and_never_a_weaker_one() {
    let dir = TempDir::new().unwrap();
    let config =
        SandboxConfig { workspace: dir.path().to_owned(), write_workspace: true, writable: Vec::new() };
    without(libc::SYS_landlock_create_ruleset, libc::ENOSYS, || {
        assert!(matches!(Sandbox::prepare(&config), Err(SandboxError::NoLandlock(_))));
    });
    without(libc::SYS_landlock_restrict_self, libc::E2BIG, || {
        assert!(matches!(
            Sandbox::prepare(&config),
            Err(SandboxError::Start(_) | SandboxError::NoLandlock(_))
        ));
    });
}

#[test]
fn a_wall_that_cannot_be_built_is_told_with_its_reason_and_the_others_stand() {
    if lab().is_none() {
        return;
    }
    without(libc::SYS_unshare, libc::EPERM, || {
        let lab = lab().unwrap();
        let missing: Vec<_> =
            lab.sandbox.state().unsupported().map(|(wall, why)| (wall, why.to_owned())).collect();
        for wall in [Wall::UserNamespace, Wall::NetworkNamespace, Wall::IpcNamespace] {
            let (_, why) = missing.iter().find(|(missing, _)| *missing == wall).expect("it is said to stand");
            assert!(why.contains("not permitted"), "{why}");
        }
        assert!(!missing.iter().any(|(wall, _)| matches!(wall, Wall::Files | Wall::SystemCalls)));
        assert!(!lab.shell("echo x > ../outside/file").status.success());
        assert!(lab.python(false, "import socket; socket.socket()").contains("PermissionError"));
    });
}
