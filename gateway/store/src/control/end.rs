//! How far the journal is durable. A crash loses or cuts nothing but what stands behind this.
//!
//! `control/end` (see `signed_text`) names the last record of the last append that was whole. Order of an append: its
//! records durable; the end durable; acknowledged. So the record that it names is in the journal, and everything
//! before it; what follows is one append at most, which nobody was told of. Behind a clean close nothing follows: the
//! end says so itself until, at the next opening, it is written anew before anything is appended. A store has its end
//! before it has its `meta.json`.

use std::io;
use std::path::Path;

use activity_schema::Hash;
use activity_schema::keys::{PublicKey, Signer};
use serde::{Deserialize, Serialize};

use super::ControlError;
use crate::env::Env;
use crate::signed_text;

const NAME: &str = "end";
const TITLE: &[u8] = b"activity-control-end-v1\n";
const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    /// The store is closed, and nothing is behind the record.
    pub closed: bool,
    /// Of the record; zeros before the first.
    pub hash: Hash,
    pub sequence: u64,
    version: u32,
}

impl End {
    pub(super) fn new(sequence: u64, hash: Hash, closed: bool) -> Self {
        End { closed, hash, sequence, version: VERSION }
    }

    pub(super) fn write(&self, env: &Env, dir: &Path, signer: &Signer) -> Result<(), ControlError> {
        let path = dir.join(NAME);
        let bytes = signed_text::sign(TITLE, self, signer)?;
        env.storage.replace(&path, &bytes).map_err(|source| ControlError::Io { path, source })
    }
}

/// `Err` says in words why there is none.
pub(super) fn read(env: &Env, dir: &Path, key: PublicKey) -> io::Result<Result<End, &'static str>> {
    let Some(bytes) = env.storage.read_if_present(&dir.join(NAME))? else {
        return Ok(Err("absent: the control journal, or how far it was durable, was taken away"));
    };
    let end = signed_text::read(TITLE, &bytes, key).filter(|end: &End| end.version == VERSION);
    Ok(end.ok_or("it is not as the gateway signed it"))
}

/// Makes the end of an empty journal durable, unless there is one.
pub(crate) fn begin(env: &Env, dir: &Path, signer: &Signer) -> Result<(), ControlError> {
    let path = dir.join(NAME);
    match env.storage.read_if_present(&path) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => End::new(0, Hash::default(), false).write(env, dir, signer),
        Err(source) => Err(ControlError::Io { path, source }),
    }
}
