//! The kernel side of the collector: one module for each kind of record.
//!
//! Programs are raw tracepoints where the kernel has them (their links can be pinned and outlive the
//! collector), syscall tracepoints for failed execs, cgroup hooks for UDP. None of them takes a decision;
//! each returns what lets the workload go on.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod cgroup;
mod exec;
mod exec_failed;
mod exit;
mod fork;
mod loss;
mod maps;
mod read;
mod task;
mod tcp;
mod udp;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// Helpers such as bpf_probe_read_kernel are reserved by the kernel to GPL-compatible programs; this names
// the MIT terms alongside, as the kernel's list of compatible licences requires (include/linux/license.h).
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
