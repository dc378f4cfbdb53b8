//! Foreign lines taken in as derived evidence.

use std::fs::File;
use std::io::Read;

use activity_schema::ids::TenantId;
use activity_store::{ImportDefaults, StoreConfig};
use anyhow::Context as _;

use super::args::{Format, ImportArgs, Place};
use super::client::Client;
use super::output::{Output, complain};
use super::{CliError, Ending};
use crate::evidence::Evidence;
use crate::story::escape;
use crate::wire::{IMPORT_BYTES_MAX, ImportAnswer, ImportParams};

/// Refusals named on standard error; the rest is counted.
const REFUSALS_SHOWN_MAX: usize = 20;

pub(super) async fn import(place: &Place, args: ImportArgs, out: &Output) -> Result<Ending, CliError> {
    let tenant =
        place.tenant.clone().ok_or_else(|| CliError::Usage("name the tenant with --tenant".into()))?;
    let input: Box<dyn Read + Send> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        let opened = File::open(&args.file);
        Box::new(opened.with_context(|| format!("cannot read {}", args.file.display()))?)
    };
    let answer = match (&place.gateway, &place.store) {
        (Some(url), _) => through_gateway(&Client::new(url, place)?, tenant, &args, input).await?,
        (None, Some(dir)) => {
            let evidence = Evidence::open(StoreConfig { dir: dir.clone(), ..StoreConfig::default() })?;
            let defaults = ImportDefaults { host: args.host.clone(), instance: args.instance.clone() };
            let report = evidence.import(&tenant, defaults, input).await;
            evidence.close().await?;
            report?.into()
        }
        (None, None) => {
            return Err(CliError::Usage(
                "say where to: --gateway URL, or --store DIR while no gateway runs".into(),
            ));
        }
    };
    show(&answer, out)?;
    // A refused line is a failure of the import, not of the evidence.
    if answer.refused == 0 { Ok(Ending::Complete) } else { Err(refused(&answer)) }
}

async fn through_gateway(
    client: &Client,
    tenant: TenantId,
    args: &ImportArgs,
    mut input: Box<dyn Read + Send>,
) -> Result<ImportAnswer, CliError> {
    let params = ImportParams { tenant, host: args.host.clone(), instance: args.instance.clone() };
    let query = serde_urlencoded::to_string(&params).context("the parameters")?;
    let mut lines = Vec::new();
    input.by_ref().take(IMPORT_BYTES_MAX as u64 + 1).read_to_end(&mut lines).context("reading the lines")?;
    if lines.len() > IMPORT_BYTES_MAX {
        let why = "a gateway takes at most 64 MiB at once, and nothing is sent yet: split the file by lines; a line that \
                   is there already is not stored twice";
        return Err(CliError::Usage(why.to_owned()));
    }
    let answer = client.post_bytes(&format!("/v1/import?{query}"), lines.into()).await?;
    Ok(serde_json::from_slice(&answer)?)
}

fn show(answer: &ImportAnswer, out: &Output) -> Result<(), CliError> {
    if out.format != Format::Text {
        return out.document(answer);
    }
    Ok(out.text(&format!(
        "{} lines stored as derived evidence, {} were there already, {} refused, {} payload keys stripped, {} names unknown\n",
        answer.stored, answer.already, answer.refused, answer.keys_stripped, answer.unknown_names
    ))?)
}

fn refused(answer: &ImportAnswer) -> CliError {
    for refusal in answer.refusals.iter().take(REFUSALS_SHOWN_MAX) {
        complain(&format!("line {}: {}", refusal.line, escape(&refusal.reason)));
    }
    CliError::Other(anyhow::anyhow!("{} lines were refused; the others are stored", answer.refused))
}
