//! A full ring: what was issued is what was read and what was counted as lost, cgroup by cgroup.

use super::harness::{Cgroup, Seen, Truth, attach, config, read, spawn};
use crate::kernel::{KernelLoss, LossReason, RecordKind, RingSizes};

const FORKS: usize = 1500;

fn lost(losses: &[KernelLoss], cgroup: &Cgroup, kind: RecordKind) -> u64 {
    let of = losses.iter().filter(|loss| loss.cgroup_id == Some(cgroup.id) && loss.kind == kind);
    of.inspect(|loss| {
        assert!(loss.exact && loss.reason == LossReason::RingFull && loss.first_ns <= loss.last_ns)
    })
    .map(|loss| loss.count)
    .sum()
}

#[test]
fn issued_is_emitted_and_lost_for_each_cgroup() {
    let small = RingSizes { process: 1 << 15, ..RingSizes::GUEST };
    let Some(mut source) = attach(&config(small, None)) else { return };
    let (noisy, quiet) = (Cgroup::new(), Cgroup::new());
    let before = source.issued();
    source.losses();
    // Nobody reads.
    let mut child = spawn(Some(&noisy), "load::load", &format!("forks {FORKS}"));
    assert!(child.wait().unwrap().success());
    assert_eq!(Truth::read(&mut child).all("parent").len(), 1);
    let losses = source.losses();
    let mut seen = Vec::new();
    read(&mut source, &noisy, &mut seen);
    let count = |wanted: fn(&Seen) -> bool| seen.iter().filter(|seen| wanted(seen)).count() as u64;
    let forks = count(|seen| matches!(seen, Seen::Fork(_)));
    let exits = count(|seen| matches!(seen, Seen::Exit(_)));
    assert!(lost(&losses, &noisy, RecordKind::Fork) > 0, "the ring was too large for this test");
    assert_eq!(forks + lost(&losses, &noisy, RecordKind::Fork), FORKS as u64);
    // The load's own exit is one more; its fork happened outside the cgroup.
    assert_eq!(exits + lost(&losses, &noisy, RecordKind::Exit), FORKS as u64 + 1);

    // The ring has room again, and the other cgroup pays nothing for its neighbour.
    let (_, seen) = super::harness::run(&mut source, &quiet, "forks 20");
    assert_eq!(seen.iter().filter(|seen| matches!(seen, Seen::Fork(_))).count(), 20);
    let later = source.losses();
    assert!(losses.iter().chain(&later).all(|loss| loss.cgroup_id != Some(quiet.id)), "{later:?}");
    assert!(later.iter().all(|loss| loss.cgroup_id != Some(noisy.id)), "told once: {later:?}");

    let after = source.issued();
    let kind = RecordKind::Fork;
    let attempts = after[&kind].emitted + after[&kind].lost - before[&kind].emitted - before[&kind].lost;
    assert!(attempts >= FORKS as u64 + 20 && after[&kind].lost > before[&kind].lost, "{after:?}");
}
