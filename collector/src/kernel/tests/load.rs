//! The load program: does what its orders say and prints what it did. Runs as a process of its own.
#![allow(clippy::print_stdout, reason = "the truth goes to stdout")]

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::harness::LOAD;

#[test]
#[ignore = "the load program of other tests"]
fn load() {
    let Ok(orders) = std::env::var(LOAD) else { return };
    let mut words = orders.split(' ');
    let order = words.next().unwrap();
    let mut number = || words.next().map_or(0, |word| word.parse::<usize>().unwrap());
    println!();
    match order {
        "execs" => execs(number()),
        "forks" => forks(number()),
        "lineage" => lineage(),
        "threads" => threads(),
        "classes" => classes(),
        "tcp" => tcp(number(), number()),
        "udp" => udp(),
        "share" => share(u16::try_from(number()).unwrap()),
        "mptcp" => mptcp(),
        "together" => together(number()),
        other => panic!("unknown order {other}"),
    }
}

macro_rules! truth {
    ($($argument:tt)*) => { println!("TRUTH {}", format_args!($($argument)*)) };
}

/// A child that runs `f` and leaves with its result.
fn fork(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls only, apart from what each caller answers for.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = f();
        // SAFETY: ends this process.
        unsafe { libc::_exit(status) };
    }
    pid
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Never returns if the exec succeeds; otherwise gives the errno.
fn exec(path: &CStr, arguments: &[&CStr]) -> i32 {
    let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: null-terminated arrays of strings.
    unsafe { libc::execve(path.as_ptr(), pointers.as_ptr(), [std::ptr::null()].as_ptr()) };
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn execs(count: usize) {
    for _ in 0..count {
        let pid = fork(|| exec(c"/bin/true", &[c"true"]));
        truth!("exec {pid} {}", wait(pid));
    }
    truth!("parent {}", std::process::id());
}

fn forks(count: usize) {
    for number in 0..count {
        let status = i32::try_from(number % 200).unwrap();
        let pid = fork(|| status);
        assert_eq!(wait(pid), status << 8);
    }
    truth!("parent {}", std::process::id());
}

/// A child that forks and leaves at once; the grandchild becomes a session leader and leaves with 5. And one that dies
/// by a signal.
fn lineage() {
    let mut pipe = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let child = fork(|| {
        fork(|| {
            // SAFETY: system calls only.
            unsafe {
                libc::setsid();
                let pid = libc::getpid();
                // The parent must be gone, so that the reaper is the parent by now.
                libc::usleep(30_000);
                libc::write(pipe[1], (&raw const pid).cast(), 4);
            }
            5
        });
        0
    });
    wait(child);
    let mut pid = [0; 4];
    // SAFETY: the descriptors made above.
    unsafe {
        libc::close(pipe[1]);
        fs::File::from(OwnedFd::from_raw_fd(pipe[0])).read_exact(&mut pid).unwrap();
    }
    truth!("grandchild {} {child}", i32::from_ne_bytes(pid));
    let killed = fork(|| {
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        0
    });
    truth!("killed {killed} {}", wait(killed));
    std::thread::sleep(Duration::from_millis(50));
}

/// A thread that is not the leader execs; a leader that leaves before its thread.
fn threads() {
    let pid =
        fork(|| std::thread::spawn(|| exec(c"/bin/true", &[c"true", c"from-a-thread"])).join().unwrap_or(99));
    truth!("thread_exec {pid} {}", wait(pid));
    let pid = fork(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(60));
            // SAFETY: ends this thread only, the last one.
            unsafe { libc::syscall(libc::SYS_exit, 9) };
        });
        // SAFETY: ends the leader only; wait(2) reports its status for the process.
        unsafe { libc::syscall(libc::SYS_exit, 3) };
        0
    });
    truth!("leader_first {pid} {}", wait(pid));
}

/// Groups whose threads all leave at once.
fn together(count: usize) {
    for _ in 0..count {
        let pid = fork(|| {
            let barrier = std::sync::Arc::new(std::sync::Barrier::new(4));
            for _ in 0..3 {
                let barrier = barrier.clone();
                std::thread::spawn(move || {
                    barrier.wait();
                    // SAFETY: ends this thread only.
                    unsafe { libc::syscall(libc::SYS_exit, 0) };
                });
            }
            barrier.wait();
            // SAFETY: ends the leader only.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            0
        });
        truth!("group {pid} {}", wait(pid));
    }
}

fn classes() {
    let program = fs::read("/bin/true").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let write = |path: &std::path::Path, bytes: &[u8], mode: u32| {
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let text = |path: &std::path::Path| CString::new(path.to_str().unwrap()).unwrap();

    let file = memfd_create(c"in memory", MFdFlags::empty()).unwrap();
    fs::File::from(file.try_clone().unwrap()).write_all(&program).unwrap();
    let pid = fork(|| {
        let arguments = [c"m".as_ptr(), std::ptr::null()];
        // SAFETY: null-terminated arrays of strings.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                file.as_raw_fd(),
                c"".as_ptr(),
                arguments.as_ptr(),
                [std::ptr::null::<u8>()].as_ptr(),
                libc::AT_EMPTY_PATH,
            )
        };
        99
    });
    truth!("memfd {pid} {}", wait(pid));

    let shm = std::path::PathBuf::from(format!("/dev/shm/activity-test-{}", std::process::id()));
    if fs::write(&shm, &program).is_ok() {
        write(&shm, &program, 0o755);
        let path = text(&shm);
        let pid = fork(|| exec(&path, &[c"s"]));
        truth!("shm {pid} {}", wait(pid));
        fs::remove_file(&shm).unwrap();
    }

    write(&place("gone"), &program, 0o755);
    let gone = fs::File::open(place("gone")).unwrap();
    fs::remove_file(place("gone")).unwrap();
    let path = CString::new(format!("/proc/self/fd/{}", gone.as_raw_fd())).unwrap();
    let pid = fork(|| exec(&path, &[c"d"]));
    truth!("deleted {pid} {}", wait(pid));

    write(&place("script"), b"#!/bin/sh\nexit 4\n", 0o755);
    let path = text(&place("script"));
    let pid = fork(|| exec(&path, &[c"script"]));
    truth!("script {pid} {}", wait(pid));

    let pid = fork(|| exec(c"/bin/echo", &[c"echo", c"a", c""]));
    truth!("empty_argument {pid} {}", wait(pid));

    let deep = (0..5).fold(place("deep"), |path, _| path.join("d".repeat(100)));
    fs::create_dir_all(&deep).unwrap();
    write(&deep.join("leaf"), &program, 0o755);
    let path = text(&deep.join("leaf"));
    let pid = fork(|| exec(&path, &[c"l"]));
    truth!("deep {pid} {}", wait(pid));

    for bytes in [255, 256] {
        let mut path = place("edge").into_os_string().into_string().unwrap();
        while path.len() + 101 < bytes {
            path += &format!("/{}", "e".repeat(49));
        }
        fs::create_dir_all(&path).unwrap();
        let path = format!("{path}/{}", "f".repeat(bytes - 1 - path.len()));
        write(path.as_ref(), &program, 0o755);
        let path = text(path.as_ref());
        let pid = fork(|| exec(&path, &[c"e"]));
        truth!("path_of_{} {pid} {}", path.as_bytes().len(), wait(pid));
    }

    let pid = fork(|| exec(c"/nowhere/no-such-program", &[c"x"]));
    truth!("enoent {pid} {}", wait(pid) >> 8);
    write(&place("not-executable"), b"x", 0o644);
    let path = text(&place("not-executable"));
    let pid = fork(|| exec(&path, &[c"x"]));
    truth!("eacces {pid} {}", wait(pid) >> 8);
}

/// One connection for each family: the client sends `there` bytes and the server `back`, and both close.
fn tcp(there: usize, back: usize) {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let server = listener.local_addr().unwrap();
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&vec![b'b'; back]).unwrap();
            received.len()
        });
        let mut stream = TcpStream::connect(server).unwrap();
        let client = stream.local_addr().unwrap();
        stream.write_all(&vec![b'a'; there]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        drop(stream);
        assert_eq!((serve.join().unwrap(), received.len()), (there, back));
        truth!("tcp {} {} {}", std::process::id(), client.port(), server.port());
    }
    // A port that was free a moment ago and where nobody listens.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(TcpStream::connect(closed).is_err());
    truth!("refused {} {}", std::process::id(), closed.port());
    std::thread::sleep(Duration::from_millis(20));
}

fn udp() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(server) = UdpSocket::bind(address) else { continue };
        let client = UdpSocket::bind(address).unwrap();
        let mut buffer = [0; 2000];
        for _ in 0..3 {
            client.send_to(&[1; 100], server.local_addr().unwrap()).unwrap();
            let (length, peer) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length - 60], peer).unwrap();
            client.recv(&mut buffer).unwrap();
        }
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        truth!("udp {} {} {}", std::process::id(), port(&client), port(&server));
    }
}

fn stream_socket(protocol: i32) -> Option<OwnedFd> {
    // SAFETY: a new descriptor, owned from here on.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, protocol);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

type WithAddress = unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32;

/// bind(2) or connect(2) with an address of 127.0.0.1.
fn on_loopback(call: WithAddress, socket: &OwnedFd, port: u16) {
    let address = libc::sockaddr_in {
        sin_family: u16::try_from(libc::AF_INET).unwrap(),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let length = u32::try_from(size_of_val(&address)).unwrap();
    // SAFETY: an address of its length.
    let result = unsafe { call(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Listens on a port that others listen on too, and accepts until nobody has come for a second.
fn share(port: u16) {
    use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
    const PATIENCE: Duration = Duration::from_secs(1);
    let socket = stream_socket(0).unwrap();
    setsockopt(&socket, sockopt::ReusePort, &true).unwrap();
    on_loopback(libc::bind, &socket, port);
    listen(&socket, Backlog::new(100).unwrap()).unwrap();
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).unwrap();
    let (mut accepted, mut last) = (0, std::time::Instant::now());
    while last.elapsed() < PATIENCE {
        match listener.accept() {
            Ok(_) => (accepted, last) = (accepted + 1, std::time::Instant::now()),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    truth!("accepted {accepted}");
}

/// A connection with MPTCP at both ends; its subflow is TCP.
fn mptcp() {
    use nix::sys::socket::{Backlog, listen};
    const IPPROTO_MPTCP: i32 = 262;
    let (Some(server), Some(client)) = (stream_socket(IPPROTO_MPTCP), stream_socket(IPPROTO_MPTCP)) else {
        return;
    };
    on_loopback(libc::bind, &server, 0);
    listen(&server, Backlog::new(1).unwrap()).unwrap();
    let listener = TcpListener::from(server);
    let port = listener.local_addr().unwrap().port();
    on_loopback(libc::connect, &client, port);
    let mut client = TcpStream::from(client);
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(&[7; 321]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    accepted.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 321);
    truth!("mptcp {port}");
    drop((client, accepted));
    std::thread::sleep(Duration::from_millis(100));
}
