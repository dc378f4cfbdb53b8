//! Batch frames, as they come in `POST /v1/batches`: `activity_schema::batch`.

use activity_schema::batch::{
    BATCH_EVENTS_MAX, BATCH_RAW_BYTES_MAX, FRAME_BYTES_MAX, decompress, split_lines,
};
use activity_schema::{BatchHeader, Class, SignedBatch};
use bytes::Bytes;

use crate::fixture;
use activity_tests::sim::disk::MemoryDisk;

pub fn run(data: &[u8]) {
    let mut rest = Bytes::copy_from_slice(data);
    while !rest.is_empty() {
        let before = rest.clone();
        let Ok(batch) = SignedBatch::decode(&mut rest) else { return };
        let mut again = Vec::new();
        batch.encode(&mut again);
        assert!(again.len() <= FRAME_BYTES_MAX);
        assert_eq!(again, before[..before.len() - rest.len()], "what is read is written the same");
        check_header(&batch.header, &batch.header_bytes);
        let Some(body) = &batch.body else { continue };
        let Ok(raw) = decompress(body, batch.header.raw_bytes) else { continue };
        assert!(raw.len() as u64 == batch.header.raw_bytes && batch.header.raw_bytes <= BATCH_RAW_BYTES_MAX);
        if let Ok(lines) = split_lines(&raw, batch.header.count) {
            assert_eq!(lines.join(&b'\n'), raw, "nothing is lost between the lines");
        }
    }
}

/// What the sender's and the receiver's arithmetic builds on.
fn check_header(header: &BatchHeader, bytes: &[u8]) {
    assert_eq!(header.to_bytes(), bytes, "the signed bytes are canonical");
    assert!(header.count >= 1 && header.count <= BATCH_EVENTS_MAX);
    assert_eq!(header.last_sequence - header.first_sequence + 1, header.count);
    assert!(header.batch_number >= 1 && header.occurred_min <= header.occurred_max);
}

/// Batches that a collector sealed, one by one and all in one request.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for batch in batches() {
        let mut frame = Vec::new();
        batch.encode(&mut frame);
        frames.push(frame);
        let mut alone = Vec::new();
        SignedBatch { body: None, ..batch }.encode(&mut alone);
        frames.push(alone);
    }
    frames.push(frames.concat());
    frames
}

/// The examples of the catalogue as a collector's spool seals them, a few events a batch.
pub fn batches() -> Vec<SignedBatch> {
    let mut spool = fixture::spool(&MemoryDisk::default());
    let lines: Vec<_> = fixture::lines().collect();
    for (n, some) in lines.chunks(40).enumerate() {
        let class = Class::ALL[n % 2];
        let lines: Vec<_> = some.iter().map(|line| super::spool::line(line)).collect();
        spool.append(class, &lines, &[], fixture::CLOCK.boot_ns).expect("there is room");
        fixture::seal(&mut spool, class);
    }
    let reader = spool.current().reader();
    let of =
        |class: &Class| reader.pending(*class).into_iter().map(|b| (*class, b.number)).collect::<Vec<_>>();
    let all = Class::ALL.iter().flat_map(of);
    all.map(|(class, number)| SignedBatch::clone(&reader.read(class, number).expect("it was just sealed")))
        .collect()
}
