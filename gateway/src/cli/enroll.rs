//! Letting in and shutting out.

use std::path::Path;
use std::time::Duration;

use activity_store::{ControlRecord, Revocation, StoreConfig};
use anyhow::Context as _;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

use super::args::{EnrollArgs, Format, Place, RevokeArgs};
use super::output::Output;
use super::source::Source;
use super::{CliError, Ending};
use crate::config::parse_duration;
use crate::evidence::Evidence;
use crate::tokens::Grant;
use crate::wire::{OperatorAnswer, OperatorRequest, RevokeAnswer, RevokeRequest, TokenAnswer, TokenRequest};
use crate::{clock, daemon, pki};

pub(super) async fn enroll(place: &Place, args: EnrollArgs, out: &Output) -> Result<Ending, CliError> {
    if let (Some(name), Some(role), Some(dir)) = (&args.operator, &args.role, &args.out) {
        return operator(place, name, role, dir, out).await;
    }
    let ttl = parse_duration(&args.ttl)
        .ok_or_else(|| CliError::Usage(format!("--ttl {:?} is not a duration such as 1h", args.ttl)))?;
    let request = TokenRequest {
        tenant: named_tenant(place)?,
        host: args.host,
        instance: args.instance,
        ttl_seconds: ttl.as_secs(),
    };
    let answer = match &place.store {
        Some(store) => token_beside(store, request)?,
        None => {
            let client = Source::open(place).await?.gateway("a token")?;
            serde_json::from_slice::<TokenAnswer>(&client.post("/v1/tokens", &request).await?)?
        }
    };
    match out.format {
        Format::Text => out.text(&format!("{}\n", answer.token))?,
        Format::Json | Format::Ndjson => out.document(&answer)?,
    }
    Ok(Ending::Complete)
}

/// Makes a token in the data directory that holds the store; a running gateway reads it there.
fn token_beside(store: &Path, request: TokenRequest) -> Result<TokenAnswer, CliError> {
    let now = clock::now();
    let ttl = i64::try_from(Duration::from_secs(request.ttl_seconds).as_nanos()).unwrap_or(i64::MAX);
    let grant = Grant {
        tenant: request.tenant,
        host: request.host,
        instance: request.instance,
        expires_at: now.saturating_add_nanos(ttl),
    };
    let data = store.canonicalize().with_context(|| format!("cannot find {}", store.display()))?;
    let data = data.parent().unwrap_or(Path::new("/"));
    Ok(daemon::issue_token(data, &grant, now).map_err(anyhow::Error::new)?)
}

/// Makes a key here, and has its certificate issued by the gateway.
async fn operator(
    place: &Place,
    name: &str,
    role: &str,
    dir: &Path,
    out: &Output,
) -> Result<Ending, CliError> {
    let client = Source::open(place).await?.gateway("an operator's certificate")?;
    let key = KeyPair::generate().context("making a key")?;
    let csr = CertificateParams::default().serialize_request(&key).context("making a certificate request")?;
    let request = OperatorRequest {
        name: name.to_owned(),
        role: role.to_owned(),
        csr_pem: csr.pem().context("making a certificate request")?,
    };
    let answer: OperatorAnswer = serde_json::from_slice(&client.post("/v1/operators", &request).await?)?;
    std::fs::create_dir_all(dir)?;
    let files = [
        (dir.join(format!("{name}.key")), key.serialize_pem()),
        (dir.join(format!("{name}.pem")), answer.certificate_pem),
        (dir.join("ca.pem"), answer.ca_pem),
    ];
    for (path, text) in &files {
        pki::write_over(path, text).map_err(anyhow::Error::new)?;
    }
    out.document(&json!({
        "key": files[0].0, "certificate": files[1].0, "ca": files[2].0, "not_after": answer.not_after,
    }))?;
    Ok(Ending::Complete)
}

pub(super) async fn revoke(place: &Place, args: RevokeArgs, out: &Output) -> Result<Ending, CliError> {
    let request = match (args.collector, args.operator) {
        (Some(collector), _) => {
            RevokeRequest::Collector { tenant: named_tenant(place)?, collector, reason: args.reason }
        }
        (None, Some(name)) => RevokeRequest::Operator { name, reason: args.reason },
        (None, None) => return Err(CliError::Usage("name whom to revoke: --collector or --operator".into())),
    };
    let answer = match &place.store {
        Some(store) => revoke_in(store, request).await?,
        None => {
            let client = Source::open(place).await?.gateway("a revocation")?;
            serde_json::from_slice::<RevokeAnswer>(&client.post("/v1/revoke", &request).await?)?
        }
    };
    match out.format {
        Format::Text => out.text(&format!("revoked at {}\n", answer.revoked_at))?,
        Format::Json | Format::Ndjson => out.document(&answer)?,
    }
    Ok(Ending::Complete)
}

/// Revokes in a store that no gateway runs on; the lock sees to it.
async fn revoke_in(store: &Path, request: RevokeRequest) -> Result<RevokeAnswer, CliError> {
    let RevokeRequest::Collector { tenant, collector, reason } = request else {
        return Err(CliError::Usage(
            "an operator is revoked through its gateway: name it with --gateway".into(),
        ));
    };
    let revoked_at = clock::now();
    let evidence = Evidence::open(StoreConfig { dir: store.to_owned(), ..StoreConfig::default() })?;
    let enrolled = evidence.enrolments();
    let known = enrolled.iter().any(|e| e.tenant == tenant && e.collector_id == collector)
        || evidence.revocations().iter().any(|r| r.tenant == tenant && r.collector_id == collector);
    if !known {
        evidence.close().await?;
        let what = format!("nobody is revoked: tenant {tenant} has no collector {collector}");
        return Err(CliError::Other(anyhow::Error::msg(what)));
    }
    let record = ControlRecord::Revoked(Revocation {
        tenant,
        collector_id: collector,
        key_id: None,
        certificate_serial: None,
        reason,
        revoked_at,
    });
    let recorded = evidence.record(record).await;
    evidence.close().await?;
    recorded?;
    Ok(RevokeAnswer { revoked_at })
}

fn named_tenant(place: &Place) -> Result<activity_schema::ids::TenantId, CliError> {
    place.tenant.clone().ok_or_else(|| CliError::Usage("name the tenant with --tenant".into()))
}
