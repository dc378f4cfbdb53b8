//! Flows: each once, with its owner and its bytes.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use super::harness::{Cgroup, Seen, Truth, attach, config, read_all, run, spawn};
use crate::kernel::{FlowDirection, FlowPhase, FlowRecord, RingSizes, TcpResult, UdpFlow};

#[test]
fn a_short_tcp_connection_has_its_owner_and_its_bytes() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, seen) = run(&mut source, &cgroup, "tcp 12345 678");
    let flows: Vec<&FlowRecord> =
        seen.iter().filter_map(|seen| if let Seen::Flow(flow) = seen { Some(flow) } else { None }).collect();
    assert!(!truth.all("tcp").is_empty());
    for line in truth.all("tcp") {
        let [pid, client, server] = *line else { panic!("{truth:?}") };
        let side = |local: i64, peer: i64, direction| {
            let ended: Vec<&&FlowRecord> = flows
                .iter()
                .filter(|flow| {
                    flow.phase == FlowPhase::Closed
                        && i64::from(flow.local.port()) == local
                        && i64::from(flow.peer.port()) == peer
                })
                .collect();
            let [flow] = ended[..] else { panic!("{local} to {peer}: {ended:?}") };
            assert_eq!(i64::from(flow.common.tgid), pid);
            assert_eq!((flow.direction, flow.result), (direction, TcpResult::Completed));
            assert!(flow.segments_out > 0 && flow.segments_in > 0);
            let begun =
                |phase| flows.iter().filter(|at| at.flow_id == flow.flow_id && at.phase == phase).count();
            assert_eq!(begun(FlowPhase::Established), 1);
            assert_eq!(begun(FlowPhase::Connecting), usize::from(direction == FlowDirection::Outbound));
            (flow.bytes_sent, flow.bytes_received)
        };
        assert_eq!(side(client, server, FlowDirection::Outbound), (12345, 678));
        assert_eq!(side(server, client, FlowDirection::Inbound), (678, 12345));
        let listens = seen
            .iter()
            .filter(|seen| matches!(seen, Seen::Listen(flow) if i64::from(flow.local.port()) == server))
            .count();
        assert_eq!(listens, 1);
    }
    let [pid, port] = *truth.one("refused") else { panic!("{truth:?}") };
    let refused: Vec<_> = flows
        .iter()
        .filter(|flow| i64::from(flow.peer.port()) == port && flow.phase == FlowPhase::Closed)
        .map(|flow| (i64::from(flow.common.tgid), flow.result, flow.established))
        .collect();
    assert_eq!(refused, [(pid, TcpResult::Refused, false)]);
}

/// SO_REUSEPORT: one address, listeners of two sandboxes.
#[test]
fn an_accepted_connection_is_of_the_sandbox_whose_socket_took_it() {
    const CONNECTIONS: i64 = 60;
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut seen: Vec<(u64, Seen)> = Vec::new();
    let listens = |seen: &[(u64, Seen)], cgroup: &Cgroup| {
        seen.iter().any(|(of, seen)| *of == cgroup.id && matches!(seen, Seen::Listen(_)))
    };
    let cgroups = [Cgroup::new(), Cgroup::new()];
    let children = cgroups.each_ref().map(|cgroup| {
        let child = spawn(Some(cgroup), "load::load", &format!("share {port}"));
        // One after the other, so that it is known which one listened last.
        let found = (0..1_000).any(|_| {
            sleep(Duration::from_millis(5));
            read_all(&mut source, &mut seen);
            listens(&seen, cgroup)
        });
        assert!(found, "it does not listen");
        child
    });
    for _ in 0..CONNECTIONS {
        drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
        read_all(&mut source, &mut seen);
    }
    let accepted = children.map(|mut child| {
        assert!(child.wait().unwrap().success());
        Truth::read(&mut child).one("accepted")[0]
    });
    read_all(&mut source, &mut seen);
    let told = cgroups.each_ref().map(|cgroup| {
        let inbound = |seen: &Seen| {
            matches!(seen, Seen::Flow(flow) if flow.phase == FlowPhase::Closed
                && flow.direction == FlowDirection::Inbound && flow.local.port() == port)
        };
        seen.iter().filter(|(of, seen)| *of == cgroup.id && inbound(seen)).count()
    });
    assert_eq!(accepted.iter().sum::<i64>(), CONNECTIONS);
    assert!(accepted.iter().all(|n| *n > 0), "the kernel gives all to one: {accepted:?}");
    assert_eq!(told.map(|n| i64::try_from(n).unwrap()), accepted);
}

/// What is not TCP has none of its figures; the subflow has them.
#[test]
fn a_connection_with_mptcp_is_told_as_its_subflow() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let (truth, seen) = run(&mut source, &Cgroup::new(), "mptcp");
    let [line] = truth.all("mptcp")[..] else {
        eprintln!("skipped: this kernel has no MPTCP");
        return;
    };
    let ends = |seen: &&Seen| matches!(seen, Seen::Flow(flow) if flow.phase == FlowPhase::Closed);
    let mut sides: Vec<_> = seen
        .iter()
        .filter(ends)
        .filter_map(|seen| if let Seen::Flow(flow) = seen { Some(flow) } else { None })
        .map(|flow| (flow.direction == FlowDirection::Inbound, i64::from(flow.peer.port()) == line[0]))
        .collect();
    sides.sort_unstable();
    assert_eq!(sides, [(false, true), (true, false)], "{seen:?}");
    let listens = seen.iter().filter(|seen| matches!(seen, Seen::Listen(_))).count();
    assert_eq!(listens, 1);
}

#[test]
fn a_udp_exchange_is_two_flows() {
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let cgroup = Cgroup::new();
    let (truth, _) = run(&mut source, &cgroup, "udp");
    let flows = source.udp_flows(0, u64::MAX).ended;
    assert!(!truth.all("udp").is_empty());
    for line in truth.all("udp") {
        let [pid, client, server] = *line else { panic!("{truth:?}") };
        let side = |local: i64, peer: i64| {
            let found: Vec<_> = flows
                .iter()
                .filter(|flow| i64::from(flow.local.port()) == local && i64::from(flow.peer.port()) == peer)
                .collect();
            let [flow] = found[..] else { panic!("{local} to {peer}: {found:?}") };
            assert_eq!((i64::from(flow.common.tgid), flow.common.cgroup_id), (pid, cgroup.id));
            assert!(flow.closed);
            (flow.bytes_sent, flow.packets_sent, flow.bytes_received, flow.packets_received, flow.direction)
        };
        assert_eq!(side(client, server), (300, 3, 120, 3, FlowDirection::Outbound));
        assert_eq!(side(server, client), (120, 3, 300, 3, FlowDirection::Inbound));
    }
    assert!(
        source.udp_flows(0, u64::MAX).ended.iter().all(|flow| flow.common.cgroup_id != cgroup.id),
        "told once"
    );
}

#[test]
fn a_udp_flow_without_a_packet_for_30_s_is_told() {
    const IDLE_NS: u64 = 30_000_000_000;
    let Some(mut source) = attach(&config(RingSizes::HOST, None)) else { return };
    let (client, server) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let before = crate::clock::boot_ns();
    client.send_to(&[1; 100], server.local_addr().unwrap()).unwrap();
    let after = crate::clock::boot_ns();
    let port = client.local_addr().unwrap().port();
    let mut told = |now_ns| {
        let flows = source.udp_flows(now_ns, crate::daemon::duties::UDP_IDLE_NS);
        let is_told = |of: &[UdpFlow]| of.iter().any(|flow| flow.local.port() == port && !flow.closed);
        (is_told(&flows.opened), is_told(&flows.ended))
    };
    assert_eq!(told(before + IDLE_NS - 1), (true, false), "it is there");
    assert_eq!(told(before + IDLE_NS - 1), (false, false), "once");
    assert_eq!(told(after + IDLE_NS), (false, true), "it ended");
    assert_eq!(told(after + IDLE_NS), (false, false), "once");
}
