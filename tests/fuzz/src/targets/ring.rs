//! Records of the kernel rings: `activity_collector::kernel::decode`, and what the observer makes of them.
//!
//! ```text
//! u8 flags | (u16 LE length, record)*      flags & 1: length and ABI version of each record are made good
//! ```

use std::collections::BTreeMap;
use std::mem::offset_of;

use activity_collector::identity::ProcessIds;
use activity_collector::kernel::{RingId, RingPosition, decode};
use activity_collector::observe::Observer;
use activity_collector::sandbox::Sandboxes;
use activity_collector::scope::ScopeTable;
use activity_ebpf_abi::records::{
    CgroupBody, ExecBody, ExecFailedBody, ExitBody, FlowBody, ForkBody, HEADER_BYTES, Header, PATH_BYTES_MAX,
};
use activity_ebpf_abi::{ABI_VERSION, RecordKind};
use activity_schema::Event;
use activity_schema::admit::admit;
use activity_tests::sim::disk::MemoryDisk;

use crate::fixture;

pub fn run(data: &[u8]) {
    let Some((flags, mut rest)) = data.split_first() else { return };
    let mut recorder = fixture::recorder(fixture::spool(&MemoryDisk::default()));
    let mut sandboxes = Sandboxes::new("/nowhere".into(), fixture::instance(), Vec::new());
    sandboxes.learn_all();
    let ids = ProcessIds::new("boot", "");
    let mut observer = Observer::new(ids, sandboxes, ScopeTable::default(), BTreeMap::new());
    let mut position = 0;
    while let Some((mut record, behind)) = take(rest) {
        rest = behind;
        if flags & 1 != 0 {
            repair(&mut record);
        }
        let decoded = decode(&record);
        position += record.len() as u64;
        observer.record(&mut recorder, RingId::Process, RingPosition(position), decoded);
    }
    observer.tell_due(&mut recorder, u64::MAX);
    recorder.seal_all();
    fixture::finish(recorder.seal_due());
    // An event that the catalogue refuses would be lost without a trace.
    assert_eq!(recorder.refused, 0, "a record that decodes gives events that are admitted");
    fixture::sealed_lines(recorder.spool(), |line| {
        let event = Event::parse(line).expect("what is recorded is valid");
        admit(&event).expect("what is recorded is admitted");
    });
}

fn take(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    Some((rest[..len].to_vec(), &rest[len..]))
}

fn repair(record: &mut [u8]) {
    let len = u32::try_from(record.len()).unwrap_or(u32::MAX);
    if record.len() >= HEADER_BYTES {
        put(record, offset_of!(Header, length), &len.to_ne_bytes());
        put(record, offset_of!(Header, abi_version), &ABI_VERSION.to_ne_bytes());
    }
}

fn put(record: &mut [u8], at: usize, field: &[u8]) {
    record[at..at + field.len()].copy_from_slice(field);
}

/// A life (fork, exec, flow, exit), and each kind alone, with the longest texts that the kernel side sends.
pub fn seeds() -> Vec<Vec<u8>> {
    let kinds = [
        record(RecordKind::Fork, size_of::<ForkBody>(), &[(offset_of!(ForkBody, parent_tgid), 4, 1)], b""),
        exec(b"/usr/bin/sh", b"", b"sh", b"bin"),
        exec(&[b'/'; PATH_BYTES_MAX], &[0xff; PATH_BYTES_MAX], b"memfd:x", b"shm"),
        record(
            RecordKind::ExecFailed,
            size_of::<ExecFailedBody>(),
            &[(offset_of!(ExecFailedBody, errno), 4, 2), (offset_of!(ExecFailedBody, path_length), 2, 7)],
            b"missing",
        ),
        flow(RecordKind::Flow, 1),
        flow(RecordKind::Flow, 2),
        flow(RecordKind::Flow, 3),
        flow(RecordKind::Listen, 4),
        record(
            RecordKind::Cgroup,
            size_of::<CgroupBody>(),
            &[(offset_of!(CgroupBody, path_length), 2, 7)],
            b"/a/b/c\xff",
        ),
        record(RecordKind::Exit, size_of::<ExitBody>(), &[(offset_of!(ExitBody, exit_code), 4, 256)], b""),
    ];
    let framed = |record: &Vec<u8>| {
        [&u16::try_from(record.len()).unwrap_or(u16::MAX).to_le_bytes()[..], record].concat()
    };
    let mut inputs: Vec<Vec<u8>> = kinds.iter().map(|kind| [&[1][..], &framed(kind)].concat()).collect();
    inputs.push([vec![1], kinds.iter().flat_map(framed).collect()].concat());
    // A process without a pid.
    let mut nobody = kinds[1].clone();
    put(&mut nobody, offset_of!(Header, tgid), &[0; 4]);
    inputs.push([&[1][..], &framed(&nobody)].concat());
    inputs.push([vec![0], kinds.iter().flat_map(framed).collect()].concat());
    inputs
}

fn exec(path: &[u8], interpreter: &[u8], name: &[u8], mount: &[u8]) -> Vec<u8> {
    let fields = [
        (offset_of!(ExecBody, argc), 4, 3),
        (offset_of!(ExecBody, inode), 8, 77),
        (offset_of!(ExecBody, path_length), 2, path.len() as u64),
        (offset_of!(ExecBody, interpreter_length), 2, interpreter.len() as u64),
        (offset_of!(ExecBody, name_length), 2, name.len() as u64),
        (offset_of!(ExecBody, mount_length), 2, mount.len() as u64),
    ];
    record(RecordKind::Exec, size_of::<ExecBody>(), &fields, &[path, interpreter, name, mount].concat())
}

fn flow(kind: RecordKind, phase: u64) -> Vec<u8> {
    let fields = [
        (offset_of!(FlowBody, flow_id), 8, 9),
        (offset_of!(FlowBody, bytes_sent), 8, 100),
        (offset_of!(FlowBody, family), 2, 2),
        (offset_of!(FlowBody, local_address), 4, 0x0100_007f),
        (offset_of!(FlowBody, peer_port), 2, 443),
        (offset_of!(FlowBody, phase), 1, phase),
    ];
    record(kind, size_of::<FlowBody>(), &fields, b"")
}

/// A record of process 4242: header, body of zeros but for `fields` (offset, width, value), text.
fn record(kind: RecordKind, body: usize, fields: &[(usize, usize, u64)], text: &[u8]) -> Vec<u8> {
    let mut record = vec![0; HEADER_BYTES + body];
    record[offset_of!(Header, kind)] = kind as u8;
    let header = [
        (offset_of!(Header, ktime_boot_ns), 8, 1_000_000_000),
        (offset_of!(Header, cgroup_id), 8, 1),
        (offset_of!(Header, start_boottime_ns), 8, 999_000_000),
        (offset_of!(Header, tgid), 4, 4242),
        (offset_of!(Header, pid), 4, 4242),
    ];
    for (at, width, value) in header {
        put(&mut record, at, &u64::to_le_bytes(value)[..width]);
    }
    for (at, width, value) in fields {
        put(&mut record, HEADER_BYTES + at, &value.to_le_bytes()[..*width]);
    }
    record.extend_from_slice(text);
    repair(&mut record);
    record
}
