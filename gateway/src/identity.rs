//! Who speaks: identities are SPIFFE URIs in client certificates, never fields of a body.
//!
//! | who | URI |
//! |---|---|
//! | a guest's collector | `spiffe://activity/tenant/<t>/host/<h>/instance/<i>/collector/<c>` |
//! | a host's collector | `spiffe://activity/tenant/<t>/host/<h>/collector/<c>` |
//! | a reader of one tenant | `spiffe://activity/operator/<name>/reader/<t>` |
//! | a scraper of metrics | `spiffe://activity/operator/<name>/monitor` |
//! | an administrator | `spiffe://activity/operator/<name>/admin` |

use std::fmt;
use std::str::FromStr;

use activity_schema::Timestamp;
use activity_schema::ids::{CollectorId, HostId, InstanceId, TenantId, is_id};
use activity_store::Instances;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

const TRUST_DOMAIN: &str = "spiffe://activity/";

/// Who a certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    Collector(CollectorIdentity),
    Operator(OperatorIdentity),
}

/// A collector, bound to one tenant and to one instance or host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorIdentity {
    pub tenant: TenantId,
    pub host: HostId,
    pub instances: Instances,
    pub collector: CollectorId,
}

/// A person or program that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorIdentity {
    pub name: String,
    pub role: Role,
}

/// What an operator may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Role {
    /// Reads one tenant.
    Reader(TenantId),
    /// Reads metrics and status.
    Monitor,
    /// Reads every tenant; issues tokens; revokes.
    Admin,
}

/// An identity as a connection proved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub identity: Identity,
    /// When the certificate was issued, from its serial number (a UUIDv7), milliseconds since 1970.
    pub issued_ms: u64,
    pub not_after: Timestamp,
}

/// Why a certificate or URI names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("the certificate does not parse")]
    Certificate,
    #[error("the certificate carries {0} URI names, exactly one is needed")]
    UriCount(usize),
    #[error("the URI is not an identity of this gateway")]
    Uri,
    #[error("the certificate's serial number was not given by this gateway")]
    Serial,
}

/// A role is written `admin`, `monitor` or `reader@<tenant>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a role: admin, monitor or reader@TENANT")]
pub struct RoleError(String);

impl Peer {
    /// Reads the identity from a certificate whose chain was already verified.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| IdentityError::Certificate)?;
        let names = parsed.subject_alternative_name().map_err(|_| IdentityError::Certificate)?;
        let names = names.map(|n| n.value.general_names.as_slice()).unwrap_or_default();
        let uris: Vec<&str> = names
            .iter()
            .filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None })
            .collect();
        let [uri] = uris[..] else { return Err(IdentityError::UriCount(uris.len())) };
        let serial: [u8; 16] = parsed.raw_serial().try_into().map_err(|_| IdentityError::Serial)?;
        let not_after = parsed.validity().not_after.timestamp();
        Ok(Peer {
            identity: uri.parse()?,
            issued_ms: issued_ms(&serial),
            not_after: Timestamp::from_nanos(not_after.saturating_mul(1_000_000_000)),
        })
    }
}

/// The milliseconds of a UUIDv7 (RFC 9562 section 5.7).
fn issued_ms(serial: &[u8; 16]) -> u64 {
    serial[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Collector(c) => {
                write!(f, "{TRUST_DOMAIN}tenant/{}/host/{}", c.tenant, c.host)?;
                if let Instances::One(instance) = &c.instances {
                    write!(f, "/instance/{instance}")?;
                }
                write!(f, "/collector/{}", c.collector)
            }
            Identity::Operator(OperatorIdentity { name, role }) => {
                write!(f, "{TRUST_DOMAIN}operator/{name}/")?;
                match role {
                    Role::Reader(tenant) => write!(f, "reader/{tenant}"),
                    Role::Monitor => f.write_str("monitor"),
                    Role::Admin => f.write_str("admin"),
                }
            }
        }
    }
}

impl FromStr for Identity {
    type Err = IdentityError;
    fn from_str(uri: &str) -> Result<Self, IdentityError> {
        let bad = |_| IdentityError::Uri;
        let path = uri.strip_prefix(TRUST_DOMAIN).ok_or(IdentityError::Uri)?;
        let parts: Vec<&str> = path.split('/').collect();
        let collector = |tenant: &str, host: &str, instances: Instances, collector: &str| {
            Ok(Identity::Collector(CollectorIdentity {
                tenant: tenant.parse().map_err(bad)?,
                host: host.parse().map_err(bad)?,
                instances,
                collector: collector.parse().map_err(bad)?,
            }))
        };
        let operator = |name: &str, role: Role| match is_id(name) {
            true => Ok(Identity::Operator(OperatorIdentity { name: name.to_owned(), role })),
            false => Err(IdentityError::Uri),
        };
        match parts[..] {
            ["tenant", t, "host", h, "instance", i, "collector", c] => {
                collector(t, h, Instances::One(InstanceId::new(i).map_err(bad)?), c)
            }
            ["tenant", t, "host", h, "collector", c] => collector(t, h, Instances::Host, c),
            ["operator", name, "reader", tenant] => {
                operator(name, Role::Reader(tenant.parse().map_err(bad)?))
            }
            ["operator", name, "monitor"] => operator(name, Role::Monitor),
            ["operator", name, "admin"] => operator(name, Role::Admin),
            _ => Err(IdentityError::Uri),
        }
    }
}

impl FromStr for Role {
    type Err = RoleError;
    fn from_str(text: &str) -> Result<Self, RoleError> {
        match text.split_once('@') {
            Some(("reader", tenant)) => {
                tenant.parse().map(Role::Reader).map_err(|_| RoleError(text.to_owned()))
            }
            None if text == "admin" => Ok(Role::Admin),
            None if text == "monitor" => Ok(Role::Monitor),
            _ => Err(RoleError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Role {
    type Error = RoleError;
    fn try_from(text: String) -> Result<Self, RoleError> {
        text.parse()
    }
}

impl From<Role> for String {
    fn from(role: Role) -> String {
        role.to_string()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Reader(tenant) => write!(f, "reader@{tenant}"),
            Role::Monitor => f.write_str("monitor"),
            Role::Admin => f.write_str("admin"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_round_trip_and_everything_else_is_nobody() {
        for uri in [
            "spiffe://activity/tenant/t/host/h/instance/i/collector/c",
            "spiffe://activity/tenant/t/host/h/collector/c",
            "spiffe://activity/operator/alice/reader/t",
            "spiffe://activity/operator/prom/monitor",
            "spiffe://activity/operator/root/admin",
        ] {
            assert_eq!(uri.parse::<Identity>().unwrap().to_string(), uri);
        }
        for uri in [
            "spiffe://other/tenant/t/host/h/collector/c",
            "spiffe://activity/tenant/t/host/h/instance//collector/c",
            "spiffe://activity/tenant/../host/h/collector/c",
            "spiffe://activity/tenant/t/host/h/collector/c/x",
            "spiffe://activity/operator/a/admin/t",
            "spiffe://activity/operator//admin",
            "",
        ] {
            assert_eq!(uri.parse::<Identity>(), Err(IdentityError::Uri), "{uri}");
        }
        for role in ["admin", "monitor", "reader@t"] {
            assert_eq!(role.parse::<Role>().unwrap().to_string(), role);
        }
        for role in ["reader", "reader@", "admin@t", "root"] {
            assert!(role.parse::<Role>().is_err(), "{role}");
        }
    }
}
