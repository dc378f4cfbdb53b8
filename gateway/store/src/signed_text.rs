//! Small documents that the gateway signs and keeps in files of their own:
//!
//! ```text
//! title | base64 of the signature | "\n" | JSON | "\n"
//! ```
//! The title ends with a newline. The signature is over title, JSON and last newline, in the manifest domain.

use activity_schema::keys::{PublicKey, Purpose, Signer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn sign(
    title: &[u8],
    document: &impl Serialize,
    signer: &Signer,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut json = serde_json::to_vec(document)?;
    json.push(b'\n');
    let signature = BASE64.encode(signer.sign(Purpose::Manifest, &[title, &json].concat()));
    Ok([title, signature.as_bytes(), b"\n", &json].concat())
}

/// The document, when it is as the gateway signed it.
pub(crate) fn read<T: DeserializeOwned>(title: &[u8], bytes: &[u8], key: PublicKey) -> Option<T> {
    let rest = bytes.strip_prefix(title)?;
    let (signature, json) = rest.split_at_checked(memchr::memchr(b'\n', rest)?)?;
    let json = &json[1..];
    let signature: [u8; 64] = BASE64.decode(signature).ok()?.try_into().ok()?;
    let signed = key.verify(Purpose::Manifest, &[title, json].concat(), &signature);
    if signed { serde_json::from_slice(json).ok() } else { None }
}
