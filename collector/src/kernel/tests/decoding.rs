//! The decoder takes any bytes.

use proptest::prelude::*;

use crate::kernel::{ABI_VERSION, DecodeError, RingSizes, decode};

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..700), kind in 0u8..10, valid in any::<bool>()) {
        if valid && bytes.len() >= 8 {
            bytes[0] = kind;
            bytes[2..4].copy_from_slice(&ABI_VERSION.to_ne_bytes());
            let length = u32::try_from(bytes.len()).unwrap();
            bytes[4..8].copy_from_slice(&length.to_ne_bytes());
        }
        let _ = decode(&bytes);
    }
}

#[test]
fn another_version_is_refused() {
    let is_refused = |version: u16| {
        let mut bytes = [0; 64];
        bytes[2..4].copy_from_slice(&version.to_ne_bytes());
        decode(&bytes) == Err(DecodeError::Version { found: version })
    };
    assert!([0, 1, 3, 256].into_iter().all(is_refused) && !is_refused(2));
}

#[test]
fn rings_stay_inside_their_budget() {
    for page_bytes in [4096, 16384, 65536] {
        let sizes = RingSizes::HOST.within(2 << 20, page_bytes);
        assert!(sizes.total_bytes(page_bytes) <= 2 << 20, "{page_bytes}: {sizes:?}");
        for bytes in [sizes.vital, sizes.process, sizes.flow, sizes.file] {
            assert!(bytes.is_power_of_two() && bytes as usize >= page_bytes);
        }
    }
}
