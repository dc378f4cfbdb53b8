#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers of tests"
)]
use proptest::prelude::*;

use super::*;

/// A valid header to vary.
pub(crate) fn header() -> BatchHeader {
    BatchHeader {
        batch_number: 1,
        boot_id: "3f1b0c9e-1c1e-4bb1-9d63-0c8f3a3f9a11".into(),
        class: Class::Critical,
        clock: ClockState { error_ns: 1_000_000, offset_ns: -25, synchronised: true },
        collector_id: CollectorId::new("collector-1").unwrap(),
        count: 3,
        epoch: Epoch::new("01980000-0000-7000-8000-000000000001").unwrap(),
        first_sequence: 1,
        host: HostId::new("host-1").unwrap(),
        key_id: Signer::from_seed(&[1; 32]).id().clone(),
        last_sequence: 3,
        merkle_root: merkle::empty_root(),
        occurred_max: Timestamp::from_nanos(2_000),
        occurred_min: Timestamp::from_nanos(1_000),
        policy_digest: Hash::default(),
        previous_batch_hash: Hash::default(),
        raw_bytes: 5,
        ring_cursors: BTreeMap::from([("process".to_owned(), 4096)]),
        sealed_at: Timestamp::from_nanos(3_000),
        tenant: TenantId::new("tenant-a").unwrap(),
        version: BATCH_VERSION,
    }
}

fn batch(lines: &[&[u8]]) -> SignedBatch {
    let raw = join_lines(lines.iter().copied());
    let mut h = header();
    h.count = lines.len() as u64;
    h.last_sequence = h.first_sequence + h.count - 1;
    h.raw_bytes = raw.len() as u64;
    h.merkle_root = lines_root(lines.iter().map(|l| Leaf::Line(l)));
    SignedBatch::sign(h, Some(compress(&raw).unwrap().into()), &Signer::from_seed(&[1; 32]))
}

#[test]
fn header_bytes_are_rfc_8785() {
    let bytes = header().to_bytes();
    let text = std::str::from_utf8(&bytes).unwrap();
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    // serde_json's map sorts keys; compact output of sorted ASCII keys and whole numbers is RFC 8785.
    assert_eq!(serde_json::to_string(&value).unwrap(), text);
}

#[test]
fn a_frame_round_trips_and_every_cut_is_refused() {
    let batch = batch(&[b"{\"a\":1}", b"{\"b\":2}", b"{}"]);
    let mut frame = Vec::new();
    batch.encode(&mut frame);
    let mut input = Bytes::from(frame.clone());
    assert_eq!(SignedBatch::decode(&mut input).unwrap(), batch);
    assert!(input.is_empty());
    for cut in 0..frame.len() {
        assert!(SignedBatch::decode(&mut Bytes::copy_from_slice(&frame[..cut])).is_err(), "cut {cut}");
    }
    let raw = decompress(batch.body.as_ref().unwrap(), batch.header.raw_bytes).unwrap();
    let lines = split_lines(&raw, batch.header.count).unwrap();
    assert_eq!(lines_root(lines.iter().map(|l| Leaf::Line(l))), batch.header.merkle_root);
    let elided = [Leaf::Line(lines[0]), Leaf::Elided(merkle::leaf_hash(lines[1])), Leaf::Line(lines[2])];
    assert_eq!(lines_root(elided), batch.header.merkle_root, "an elided line keeps the root");
}

#[test]
fn a_changed_bit_in_what_is_signed_breaks_the_signature() {
    let key = Signer::from_seed(&[1; 32]).public();
    let good = batch(&[b"{}"]);
    assert!(good.is_signed_by(key));
    assert!(!good.is_signed_by(Signer::from_seed(&[2; 32]).public()));
    for byte in 0..good.header_bytes.len() {
        let mut bad = good.clone();
        let mut bytes = good.header_bytes.to_vec();
        bytes[byte] ^= 1;
        bad.header_bytes = bytes.into();
        assert!(!bad.is_signed_by(key), "byte {byte}");
    }
}

#[test]
fn a_compression_bomb_is_refused_at_the_declared_size() {
    let bomb = zstd::bulk::compress(&vec![0u8; 64 * 1024 * 1024], 1).unwrap();
    assert!(matches!(decompress(&bomb, 1000), Err(BodyError::Zstd(_))));
    assert!(decompress(&bomb, u64::MAX).is_err());
    let zeros = |n: usize| zstd::bulk::compress(&vec![0u8; n], 1).unwrap();
    assert!(decompress(&zeros(1_048_576), 1_048_576).is_ok());
    assert!(decompress(&zeros(1_048_577), 1_048_577).is_err(), "declared, and more than a batch may hold");
}

#[test]
fn headers_that_disagree_with_themselves_are_refused() {
    let bad: [fn(&mut BatchHeader); 8] = [
        |h| h.count = 0,
        |h| h.last_sequence += 1,
        |h| h.first_sequence = 0,
        |h| h.raw_bytes = 0,
        |h| h.batch_number = 0,
        |h| h.occurred_max = Timestamp::from_nanos(0),
        |h| h.version = 2,
        |h| h.clock.error_ns = -1,
    ];
    for (i, change) in bad.iter().enumerate() {
        let mut h = header();
        change(&mut h);
        assert!(BatchHeader::parse(&h.to_bytes()).is_err(), "case {i}");
    }
    let mut spaced = header().to_bytes();
    spaced.insert(1, b' ');
    assert!(matches!(BatchHeader::parse(&spaced), Err(HeaderError::NotCanonical)));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = SignedBatch::decode(&mut Bytes::from(bytes.clone()));
        let _ = decompress(&bytes, 100);
    }
}

/// A change that is within a bound, and the same change one past it.
type Bound = [fn(&mut BatchHeader); 2];

fn count(h: &mut BatchHeader, n: u64) {
    (h.count, h.last_sequence) = (n, h.first_sequence + n - 1);
}

fn last(h: &mut BatchHeader, n: u64) {
    (h.first_sequence, h.last_sequence) = (n - h.count + 1, n);
}

fn cursors(h: &mut BatchHeader, n: usize, name_bytes: usize, position: u64) {
    h.ring_cursors = (0..n).map(|n| (format!("{n:0>name_bytes$}"), position)).collect();
}

#[test]
fn a_header_is_read_up_to_each_bound_and_not_beyond() {
    let bounds: [(&str, Bound); 9] = [
        ("events", [|h| count(h, 4_096), |h| count(h, 4_097)]),
        ("raw bytes", [|h| h.raw_bytes = 1_048_576, |h| h.raw_bytes = 1_048_577]),
        ("boot id", [|h| h.boot_id = "b".repeat(64), |h| h.boot_id = "b".repeat(65)]),
        ("rings", [|h| cursors(h, 16, 32, 1), |h| cursors(h, 17, 32, 1)]),
        ("ring names", [|h| cursors(h, 16, 32, 1), |h| cursors(h, 16, 33, 1)]),
        (
            "ring positions",
            [|h| cursors(h, 1, 1, 9_007_199_254_740_991), |h| cursors(h, 1, 1, 9_007_199_254_740_992)],
        ),
        ("sequences", [|h| last(h, 9_007_199_254_740_991), |h| last(h, 9_007_199_254_740_992)]),
        (
            "clock error",
            [|h| h.clock.error_ns = 9_007_199_254_740_991, |h| h.clock.error_ns = 9_007_199_254_740_992],
        ),
        (
            "clock offset",
            [|h| h.clock.offset_ns = -9_007_199_254_740_991, |h| h.clock.offset_ns = -9_007_199_254_740_992],
        ),
    ];
    for (what, [within, beyond]) in bounds {
        let read = |change: fn(&mut BatchHeader)| {
            let mut h = header();
            change(&mut h);
            BatchHeader::parse(&h.to_bytes())
        };
        assert!(read(within).is_ok(), "{what}");
        assert!(matches!(read(beyond), Err(HeaderError::Range(_))), "{what}");
    }
}

#[test]
fn the_largest_header_fits_and_a_longer_one_is_not_read() {
    let mut h = header();
    count(&mut h, 4_096);
    last(&mut h, 9_007_199_254_740_991);
    h.boot_id = "\u{1}".repeat(64);
    h.tenant = TenantId::new("t".repeat(128)).unwrap();
    h.host = HostId::new("h".repeat(128)).unwrap();
    h.collector_id = CollectorId::new("c".repeat(128)).unwrap();
    h.epoch = Epoch::new("e".repeat(128)).unwrap();
    cursors(&mut h, 16, 32, 9_007_199_254_740_991);
    assert!(BatchHeader::parse(&h.to_bytes()).is_ok());
    let is_too_long =
        |n| matches!(BatchHeader::parse(&vec![b' '; n]), Err(HeaderError::TooLong(long)) if long == n);
    assert!(!is_too_long(4_096) && is_too_long(4_097));
    let declares = |header_bytes: u32| {
        SignedBatch::decode(&mut Bytes::copy_from_slice(&header_bytes.to_le_bytes())).unwrap_err()
    };
    assert!(matches!(declares(4_096), DecodeError::Truncated { missing: 4_096 }));
    assert!(matches!(declares(4_097), DecodeError::Header(HeaderError::TooLong(4_097))));
}

#[test]
fn a_body_of_the_largest_batch_fits_and_a_longer_one_is_not_read() {
    let mut word = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()[3]
    })
    .take(1_048_576)
    .collect();
    let longest = 1_048_576 + 16_384;
    assert!(compress(&noise).unwrap().len() <= longest);
    let declares = |body_bytes: usize| {
        let mut frame = Vec::new();
        SignedBatch::sign(header(), None, &Signer::from_seed(&[1; 32])).encode(&mut frame);
        let at = frame.len() - 4;
        frame[at..].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        SignedBatch::decode(&mut Bytes::from(frame)).unwrap_err()
    };
    assert!(matches!(declares(longest), DecodeError::Truncated { .. }));
    assert!(matches!(declares(longest + 1), DecodeError::BodyTooLong(_)));
}
