//! Certificate requests (PEM, PKCS #10) of collectors and operators: `activity_gateway::pki`.

use std::sync::OnceLock;
use std::time::Duration;

use activity_gateway::identity::{CollectorIdentity, Identity, Peer};
use activity_gateway::pki::{Authority, certificates};
use tempfile::TempDir;

use crate::fixture::{self, CLOCK};
use crate::stored;

pub fn run(data: &[u8]) {
    let Ok(pem) = std::str::from_utf8(data) else { return };
    let (dir, authority) = authority();
    let own = fixture::identity();
    let identity = Identity::Collector(CollectorIdentity {
        tenant: own.tenant,
        host: own.host,
        instances: fixture::instances(),
        collector: own.collector_id,
    });
    let lifetime = Duration::from_secs(3600);
    let Ok(issued) = authority.issue_for_request(pem, &identity, lifetime, CLOCK.wall) else { return };
    let path = dir.path().join("issued.pem");
    std::fs::write(&path, &issued.certificate_pem).expect("the folder can be written");
    let issued = certificates(&path).expect("what is issued is a certificate");
    let named = Peer::from_certificate(&issued[0]).expect("it names somebody");
    assert_eq!(named.identity, identity, "nothing of the request but its key is used");
}

fn authority() -> &'static (TempDir, Authority) {
    static AUTHORITY: OnceLock<(TempDir, Authority)> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let dir = stored::folder();
        let names = ["localhost".to_owned()];
        let authority =
            Authority::create(&dir.path().join("pki"), &names, CLOCK.wall).expect("an empty folder");
        (dir, authority)
    })
}

/// Requests of the three kinds of key that are in use, made with `openssl req -new -subj /CN=x`.
pub fn seeds() -> Vec<Vec<u8>> {
    include_str!("requests.pem")
        .split_inclusive("-----END CERTIFICATE REQUEST-----\n")
        .map(|pem| pem.as_bytes().to_vec())
        .collect()
}
