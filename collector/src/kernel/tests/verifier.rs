//! The verifier's own figures: a program that it accepts here only just may be refused by an older one.

use aya::maps::Map;
use aya::programs::Program;

use crate::kernel::{btf::Btf, object, offsets};

/// The verifier gives up at 1,000,000 instructions; older ones prune less than this kernel's.
const INSTRUCTIONS_MAX: u32 = 100_000;

/// The programs and maps in this kernel, or the reason printed why there are none here.
fn load() -> Option<aya::Ebpf> {
    let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: no BTF on this kernel");
        return None;
    };
    let btf = Btf::parse(bytes, &offsets::wanted()).unwrap();
    let words = offsets::resolve(&btf).to_words();
    let mut loader = aya::EbpfLoader::new();
    loader
        .override_global("OFFSETS", &words, true)
        .load(object::bytes())
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()
}

#[test]
fn every_map_is_as_large_as_promised() {
    let Some(ebpf) = load() else { return };
    for (name, entries) in [
        ("losses", 4_096),
        ("scopes", 16_384),
        ("exec_attempts", 2_048),
        ("tcp_sockets", 8_192),
        ("tcp_listeners", 2_048),
        ("udp_sockets", 4_096),
        ("udp_flows", 8_192),
    ] {
        let Some(Map::HashMap(map)) = ebpf.map(name) else { panic!("{name} is not a hash map") };
        assert_eq!(map.info().unwrap().max_entries(), entries, "{name}");
    }
}

#[test]
fn every_program_is_verified_well_below_the_limit() {
    let Some(mut ebpf) = load() else { return };
    let only = std::env::var("PROGRAM").ok();
    let names: Vec<String> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let program = ebpf.program_mut(&name).unwrap();
        match program {
            Program::RawTracePoint(program) => program.load(),
            Program::TracePoint(program) => program.load(),
            Program::CgroupSkb(program) => program.load(),
            Program::CgroupSock(program) => program.load(),
            Program::CgroupSockAddr(program) => program.load(),
            other => panic!("{name} has an unexpected type: {other:?}"),
        }
        .unwrap_or_else(|error| panic!("{name} refused: {error:?}"));
        let instructions = program.info().unwrap().verified_instruction_count().unwrap_or(0);
        eprintln!("{name}: {instructions} instructions verified");
        assert!(instructions <= INSTRUCTIONS_MAX, "{name}: {instructions} instructions verified");
    }
}
