//! The built kernel programs, embedded. `cargo xtask ebpf` makes the file and checks it against its sources.

/// Gives the bytes the alignment that an ELF reader expects.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../collector-ebpf/object/activity.bpf.o"
)));

/// SHA-256 of the object, as committed beside it: hexadecimal, then the file name.
const DIGEST: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../collector-ebpf/object/activity.bpf.o.sha256"));

pub(super) fn bytes() -> &'static [u8] {
    &OBJECT.0
}

/// First eight hexadecimal digits of the object's digest: tells one build's pinned programs from another's.
pub(super) fn short_digest() -> &'static str {
    DIGEST.get(..8).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    #[test]
    fn the_committed_digest_is_the_objects() {
        let digest: String =
            Sha256::digest(super::bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(super::DIGEST.split_whitespace().next(), Some(digest.as_str()));
    }
}
