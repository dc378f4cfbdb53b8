//! A gateway or a store on disk, asked in the same words.

use std::collections::BTreeMap;

use activity_schema::coverage::CoverageReport;
use activity_schema::ids::TenantId;
use activity_store::{ExportError, ExportRequest};
use anyhow::Context as _;
use serde_json::{Value, json};
use uuid::Uuid;

use super::CliError;
use super::args::Place;
use super::client::Client;
use super::page::Page;
use crate::evidence::{Evidence, EvidenceError};
use crate::wire::{self, Params};

/// Where answers come from.
pub(super) enum Source {
    Store(Evidence),
    Gateway(Client),
}

impl From<EvidenceError> for CliError {
    fn from(error: EvidenceError) -> Self {
        match error {
            EvidenceError::Question(source) => CliError::Usage(source.to_string()),
            EvidenceError::Export(
                source @ (ExportError::Empty | ExportError::Kept { .. } | ExportError::TooLong(_)),
            ) => CliError::Usage(source.to_string()),
            other => CliError::Other(other.into()),
        }
    }
}

impl Source {
    pub(super) async fn open(place: &Place) -> Result<Self, CliError> {
        match (&place.gateway, &place.store) {
            (Some(url), _) => Ok(Source::Gateway(Client::new(url, place)?)),
            (None, Some(dir)) => {
                let dir = dir.clone();
                let opened = tokio::task::spawn_blocking(move || Evidence::open_read_only(&dir)).await;
                Ok(Source::Store(opened.context("opening the store")??))
            }
            (None, None) => Err(CliError::Usage(
                "say where the evidence is: --gateway URL or --store DIR (or ACTIVITY_GATEWAY, ACTIVITY_STORE)".into(),
            )),
        }
    }

    /// The gateway, for what only a gateway can do.
    pub(super) fn gateway(self, what: &str) -> Result<Client, CliError> {
        match self {
            Source::Gateway(client) => Ok(client),
            Source::Store(_) => Err(CliError::Usage(format!(
                "{what} needs a running gateway: name it with --gateway URL (unix:DATA/operator.sock on its machine)"
            ))),
        }
    }

    pub(super) async fn query(&self, path: &str, params: &Params) -> Result<Page, CliError> {
        match self {
            Source::Store(evidence) => {
                let tenant = self.tenant(params).await?;
                let query = params.query().map_err(|e| CliError::Usage(e.to_string()))?;
                Ok(evidence.query(&tenant, query).await?.into())
            }
            Source::Gateway(client) => Page::parse(&client.get(&with(path, params)?).await?),
        }
    }

    pub(super) async fn coverage(&self, params: &Params) -> Result<CoverageReport, CliError> {
        match self {
            Source::Store(evidence) => {
                let tenant = self.tenant(params).await?;
                let query = params.coverage_query().map_err(|e| CliError::Usage(e.to_string()))?;
                Ok(evidence.coverage(&tenant, query).await?)
            }
            Source::Gateway(client) => {
                Ok(serde_json::from_slice(&client.get(&with("/v1/coverage", params)?).await?)?)
            }
        }
    }

    pub(super) async fn tenants(&self) -> Result<Vec<TenantId>, CliError> {
        match self {
            Source::Store(evidence) => {
                let mut tenants = evidence.tenants().await?;
                // A tenant whose collectors have sent nothing yet is known by their enrolments.
                tenants.extend(evidence.enrolments().into_iter().map(|e| e.tenant));
                tenants.sort();
                tenants.dedup();
                Ok(tenants)
            }
            Source::Gateway(client) => {
                let mut answer: Value = serde_json::from_slice(&client.get("/v1/tenants").await?)?;
                Ok(serde_json::from_value(answer["tenants"].take())?)
            }
        }
    }

    pub(super) async fn collectors(&self, params: &Params) -> Result<Value, CliError> {
        match self {
            Source::Store(evidence) => {
                let tenant = self.tenant(params).await?;
                let seen = evidence.collectors(&tenant).await?;
                // The last of each: a collector has one enrolment an epoch.
                let own = evidence.enrolments().into_iter().filter(|e| e.tenant == tenant);
                let enrolled: BTreeMap<_, _> = own.map(|e| (e.collector_id.clone(), e)).collect();
                let revoked = evidence.revocations().into_iter().filter(|r| r.tenant == tenant);
                let revoked: BTreeMap<_, _> = revoked.map(|r| (r.collector_id, r.revoked_at)).collect();
                let gone = revoked.into_iter().filter(|(id, _)| !enrolled.contains_key(id));
                let enrolled: Vec<_> = enrolled.values().cloned().collect();
                Ok(wire::collectors(&seen, &enrolled, gone))
            }
            Source::Gateway(client) => {
                Ok(serde_json::from_slice(&client.get(&with("/v1/collectors", params)?).await?)?)
            }
        }
    }

    pub(super) async fn status(&self) -> Result<Value, CliError> {
        match self {
            Source::Store(evidence) => Ok(json!({
                "gateway_key": evidence.gateway_key(),
                "tenants": self.tenants().await?,
                "health": evidence.health(),
            })),
            Source::Gateway(client) => Ok(serde_json::from_slice(&client.get("/v1/status").await?)?),
        }
    }

    pub(super) async fn proof(&self, event: Uuid, params: &Params) -> Result<Value, CliError> {
        match self {
            Source::Store(evidence) => {
                let tenant = self.tenant(params).await?;
                let proof = evidence.inclusion(&tenant, event).await?;
                let proof = proof.ok_or_else(|| CliError::Usage("the tenant has no such event".into()))?;
                Ok(serde_json::to_value(proof)?)
            }
            Source::Gateway(client) => {
                let path = with(&format!("/v1/proof/{event}"), params)?;
                Ok(serde_json::from_slice(&client.get(&path).await?)?)
            }
        }
    }

    /// Writes a bundle; `progress` hears how many bytes are written.
    pub(super) async fn export(
        &self,
        params: &Params,
        file: &mut (impl std::io::Write + Send),
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<(), CliError> {
        let mut bytes = 0;
        let mut write = |part: &[u8]| {
            bytes += part.len() as u64;
            progress(bytes);
            file.write_all(part)
        };
        match self {
            Source::Store(evidence) => {
                let tenant = self.tenant(params).await?;
                let query = params.query().map_err(|e| CliError::Usage(e.to_string()))?;
                let actor = format!("uid {} on the disk of the store", nix::unistd::getuid());
                let request = ExportRequest { query, actor, kept_size: params.kept_size };
                let mut exporting = evidence.export(&tenant, request).await?;
                while let (next, Some(part)) = evidence.next_part(exporting).await? {
                    write(&part).context("writing the bundle")?;
                    exporting = next;
                }
                Ok(())
            }
            Source::Gateway(client) => client.post_to(&with("/v1/exports", params)?, write).await,
        }
    }

    /// The tenant that is asked about in a store on disk.
    async fn tenant(&self, params: &Params) -> Result<TenantId, CliError> {
        let all = self.tenants().await?;
        let names = || all.iter().map(TenantId::as_str).collect::<Vec<_>>().join(", ");
        match (&params.tenant, &all[..]) {
            (Some(name), _) => all.iter().find(|t| t.as_str() == name).cloned().ok_or_else(|| {
                CliError::Usage(format!("the store has no tenant {name:?}; it has: {}", names()))
            }),
            (None, [only]) => Ok(only.clone()),
            (None, []) => Err(CliError::Usage(
                "the store is empty: no collector is enrolled, and nothing was imported".into(),
            )),
            (None, _) => Err(CliError::Usage(format!(
                "the store has several tenants; choose with --tenant: {}",
                names()
            ))),
        }
    }
}

fn with(path: &str, params: &Params) -> Result<String, CliError> {
    let query = serde_urlencoded::to_string(params).context("the parameters")?;
    Ok(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
}
