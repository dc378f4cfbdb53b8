//! Flows: each once, with its owner and its bytes.

use std::net::UdpSocket;

use super::harness::{Cgroup, Seen, attach, config, run};
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
