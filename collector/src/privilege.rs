//! Least privilege after attach: what parses, spools and sends keeps one capability at the most.
//!
//! The programs, maps and links are open by then. Left over is `CAP_BPF`, for loss counters and the scope map: before
//! 5.19, or with `kernel.unprivileged_bpf_disabled`, the kernel asks for it on every call. See capabilities(7).

use caps::{CapSet, Capability, CapsHashSet};

const KEPT: [Capability; 1] = [Capability::CAP_BPF];

/// Drops everything else of the calling thread, for threads that it starts from now on, and for ever: the bounding
/// set too, and no program that is executed can gain anything.
pub fn drop_after_attach() -> Result<(), caps::errors::CapsError> {
    nix::sys::prctl::set_no_new_privs().map_err(|e| caps::errors::CapsError::from(e.to_string()))?;
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = KEPT.iter().copied().filter(|c| permitted.contains(c)).collect();
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding)? {
            if !kept.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability)?;
            }
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_what_is_needed_is_left() {
        // Capabilities are a thread's own: this one's loss touches no other test.
        std::thread::spawn(|| {
            drop_after_attach().unwrap();
            let left = caps::read(None, CapSet::Permitted).unwrap();
            assert!(left.iter().all(|c| KEPT.contains(c)), "{left:?}");
            assert_eq!(caps::read(None, CapSet::Effective).unwrap(), left);
        })
        .join()
        .unwrap();
    }
}
