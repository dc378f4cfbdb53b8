//! Checkpoints: C2SP signed notes that an operator keeps and gives back.

use activity_schema::Hash;
use activity_schema::checkpoint::{Checkpoint, CheckpointError};
use activity_schema::keys::Signer;

pub fn run(data: &[u8]) {
    let Ok(note) = std::str::from_utf8(data) else { return };
    let (signer, other) = (Signer::from_seed(&[7; 32]), Signer::from_seed(&[8; 32]));
    assert!(Checkpoint::verify(note, other.public()).is_err(), "nobody has signed with this key");
    let Ok(checkpoint) = Checkpoint::parse(note) else {
        return assert!(matches!(Checkpoint::verify(note, signer.public()), Err(CheckpointError::Form(_))));
    };
    let own = checkpoint.sign(&signer);
    // An origin with a line break of its own would be another note.
    assert_eq!(Checkpoint::verify(&own, signer.public()).as_ref(), Ok(&checkpoint), "{own:?}");
    if Checkpoint::verify(note, signer.public()).is_ok() {
        assert!(seeds().iter().any(|seed| Checkpoint::parse(as_text(seed)).ok() == Some(checkpoint.clone())));
    }
}

fn as_text(note: &[u8]) -> &str {
    std::str::from_utf8(note).expect("a note is text")
}

pub fn seeds() -> Vec<Vec<u8>> {
    let signer = Signer::from_seed(&[7; 32]);
    let sizes = [0, 1, 1000, u64::MAX];
    let note = |size| Checkpoint { origin: "activity.log/0f".into(), size, root: Hash::of(&[b"root"]) };
    sizes.map(|size| note(size).sign(&signer).into_bytes()).to_vec()
}
