//! Reading kernel memory at offsets that are known only when the programs are loaded.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel as bpf_probe_read_kernel_raw, bpf_probe_read_kernel_str, bpf_probe_read_user_str,
};
use aya_ebpf::programs::TracePointContext;

use activity_ebpf_abi::offsets::ABSENT;

/// One entry of the offset table. The volatile read keeps the compiler from using the value of the
/// unpatched table; the verifier then knows the patched one and drops the branches for absent fields.
#[macro_export]
macro_rules! offset {
    ($name:ident) => {
        // SAFETY: a static of this program, aligned, initialised.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::OFFSETS.$name) }
    };
}

/// Reads a `T` at `base + offset`; `None` for an absent field, a null base or a fault.
#[inline(always)]
pub fn at<T: Copy>(base: u64, offset: u32) -> Option<T> {
    if offset == ABSENT || base == 0 {
        return None;
    }
    // SAFETY: the helper checks the address and fails on a fault.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset)) as *const T) }.ok()
}

/// Bits of what could not be read, gathered while a record is filled.
pub struct Missing(pub u32);

impl Missing {
    /// Reads a `T` at `base + offset`; on a fault 0 and a bit in the record's flags. Without a branch: older
    /// verifiers would follow every combination of faults to the end of the program. A null base faults, so reads can
    /// be chained.
    #[inline(always)]
    pub fn read<T: Copy + Default>(&mut self, base: u64, offset: u32, flag: u32) -> T {
        if offset == ABSENT {
            self.0 |= flag;
            return T::default();
        }
        let mut value = T::default();
        let source = (base + u64::from(offset)) as *const core::ffi::c_void;
        // SAFETY: room for a `T`, which the helper fills or clears; it checks the source.
        let result = unsafe {
            bpf_probe_read_kernel_raw((&raw mut value).cast(), size_of::<T>() as u32, source.cast())
        };
        // The sign bit of the result, moved to the flag's place.
        self.0 |= ((opaque(result as u64) >> 63) << flag.trailing_zeros()) as u32;
        value
    }

    /// The value, or its default and a bit in the record's flags.
    #[inline(always)]
    pub fn or_flag<T: Copy + Default>(&mut self, value: Option<T>, flag: u32) -> T {
        match value {
            Some(value) => value,
            None => {
                self.0 |= flag;
                T::default()
            }
        }
    }
}

/// Sets bits of a word in memory, in memory: the verifier forgets what it was.
///
/// # Safety
/// `word` may be read and written.
#[inline(always)]
pub unsafe fn set_bits(word: *mut u32, bits: u32) {
    // SAFETY: see the function's contract.
    unsafe { word.write_volatile(word.read_volatile() | bits) };
}

/// Hides a value's provenance from the compiler, so that the bound that follows is really computed, where the
/// verifier can see it.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: an empty instruction sequence.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Bytes that one string read may write, terminator included.
pub const STRING_BYTES: u32 = 256;
/// `PATH_MAX` in steps of a string read.
const STRING_STEPS: u32 = 17;

#[inline(always)]
fn string(destination: *mut u8, source: u64, user: bool) -> i64 {
    // SAFETY: callers give room for STRING_BYTES; the helper checks the source.
    unsafe {
        if user {
            bpf_probe_read_user_str(destination.cast(), STRING_BYTES, source as *const _)
        } else {
            bpf_probe_read_kernel_str(destination.cast(), STRING_BYTES, source as *const _)
        }
    }
}

/// Copies the last 255 bytes of a string of up to `PATH_MAX`, and tells how many there are (at most 255) and
/// whether something before them was left out. `destination` has room for [`STRING_BYTES`].
#[inline(always)]
pub fn string_tail(destination: *mut u8, source: u64, user: bool) -> Option<(u32, bool)> {
    let length = string(destination, source, user);
    if length <= 0 {
        return None;
    }
    if length < i64::from(STRING_BYTES) {
        return Some((((length - 1) as u32) & 0xff, false));
    }
    let window = u64::from(STRING_BYTES) - 1;
    let mut end = source + window;
    let mut more = false;
    for _ in 0..STRING_STEPS {
        let length = string(destination, end, user);
        if length <= 0 {
            return None;
        }
        more |= length > 1;
        end += (length as u64) - 1;
        if length < i64::from(STRING_BYTES) {
            break;
        }
    }
    let length = string(destination, end - window, user);
    if length <= 0 {
        return None;
    }
    Some((((length - 1) as u32) & 0xff, more))
}

/// A field of a tracepoint's record, at its offset in the event's `format` file.
#[inline(always)]
pub fn field<T: Copy>(ctx: &TracePointContext, offset: usize) -> T {
    // SAFETY: the caller names a place that the tracepoint's record has.
    unsafe { core::ptr::read_volatile(ctx.as_ptr().cast::<u8>().add(offset).cast::<T>()) }
}
