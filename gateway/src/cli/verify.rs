//! Offline verification of a store.

use super::args::VerifyArgs;
use super::output::Output;
use super::{CliError, Ending};

pub(super) fn verify(args: VerifyArgs, out: &Output) -> Result<Ending, CliError> {
    let _ = (args, out);
    Err(CliError::Usage("verify is not served yet".into()))
}
