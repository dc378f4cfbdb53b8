//! New cgroups, before anything can run in them: what runs there is known to be a sandbox's even when the cgroup is gone
//! by the time that somebody looks. `events/cgroup/cgroup_mkdir/format`: `int root`, `int level`, `u64 id`,
//! `__data_loc char[] path`.

use activity_ebpf_abi::RecordKind;
use activity_ebpf_abi::records::{CGROUP_BYTES, CgroupBody, Header, PATH_BYTES_MAX};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;

use crate::loss::{PROCESS, emit};
use crate::read::field;
use crate::task;

const ROOT: usize = 8;
const ID: usize = 16;
const PATH: usize = 24;

#[repr(C)]
struct CgroupRecord {
    header: Header,
    body: CgroupBody,
    path: [u8; PATH_BYTES_MAX + 1],
}

const _: () = assert!(size_of::<CgroupRecord>() == CGROUP_BYTES);

#[tracepoint(category = "cgroup", name = "cgroup_mkdir")]
pub fn on_cgroup_mkdir(ctx: TracePointContext) -> u32 {
    // The v2 hierarchy is number 0 (cgroups(7), /proc/[pid]/cgroup).
    if field::<u32>(&ctx, ROOT) != 0 {
        return 0;
    }
    let id: u64 = field(&ctx, ID);
    let place: u32 = field(&ctx, PATH);
    let mut record = CgroupRecord {
        header: task::header(RecordKind::Cgroup, CGROUP_BYTES as u32),
        body: CgroupBody::default(),
        path: [0; PATH_BYTES_MAX + 1],
    };
    record.header.cgroup_id = id;
    // SAFETY: the helper checks the source; the destination has as many bytes as it is told.
    let length = unsafe {
        bpf_probe_read_kernel_str(
            record.path.as_mut_ptr().cast(),
            record.path.len() as u32,
            ctx.as_ptr().cast::<u8>().add((place & 0xffff) as usize).cast(),
        )
    };
    // With its terminator; the place tells the same of the whole path.
    record.body.path_length = length.clamp(1, record.path.len() as i64) as u16 - 1;
    record.body.path_truncated = u16::from(place >> 16 > record.path.len() as u32);
    emit(PROCESS, RecordKind::Cgroup, id, (&raw const record).cast(), CGROUP_BYTES as u64);
    0
}
