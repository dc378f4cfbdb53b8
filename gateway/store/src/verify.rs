//! Offline verification of a store: reads the evidence files and nothing else, trusts neither index nor memory.
//!
//! Of every batch: signature of an enrolled key, hash, Merkle root over the lines, receipt, place in the log, chain of
//! its stream. Of every tenant: leaves, checkpoints, consistency with a checkpoint kept from before. Of the store:
//! signed `meta.json`, control journal chain, every frame of every file, and after a clean close how far each file
//! reached. Damage is named by file and batch; what cannot be proven from the store alone is said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use activity_schema::checkpoint::Checkpoint;
use activity_schema::ids::{CollectorId, Epoch, TenantId};
use activity_schema::keys::{KeyId, PublicKey};

use crate::closing::{self, Ends};
use crate::control::{ControlRecord, scan_journal};
use crate::env::Env;
use crate::keyring::{FileKeyring, Keyring};
use crate::store::read_meta;
use crate::verify_report::{Problem, Progress, Severity, VerifyReport};
use crate::verify_tenant::{TenantCheck, kept_checkpoint};

#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// The gateway key as it is known from elsewhere.
    pub trust: Option<PublicKey>,
    /// A signed checkpoint kept from before.
    pub checkpoint: Option<String>,
    /// Unfinished ends and what is not established count as failures.
    pub strict: bool,
}

/// Every evidence file of a store, in the order of verification.
pub fn evidence_files(dir: &Path) -> Vec<PathBuf> {
    list_files(&Env::system(), dir).into_iter().map(|name| dir.join(name)).collect()
}

/// Relative names.
pub(crate) fn list_files(env: &Env, dir: &Path) -> Vec<String> {
    let list = |sub: &str| env.storage.list(&dir.join(sub)).unwrap_or_default();
    let mut files = Vec::new();
    if env.storage.len(&dir.join("meta.json")).is_ok() {
        files.push("meta.json".to_owned());
    }
    files.extend(list("control").iter().map(|name| format!("control/{name}")));
    files.extend(list("commit").iter().map(|name| format!("commit/{name}")));
    for tenant in list("tenants") {
        for sub in ["log", "segments"] {
            let base = format!("tenants/{tenant}/{sub}");
            files.extend(list(&base).iter().map(|name| format!("{base}/{name}")));
        }
    }
    if env.storage.len(&dir.join(closing::NAME)).is_ok() {
        files.push(closing::NAME.to_owned());
    }
    files.retain(|name| !name.ends_with(".tmp"));
    files
}

/// Verifies a store; `progress` hears of each file before it is read.
pub fn verify_store(dir: &Path, options: &VerifyOptions, progress: &mut dyn FnMut(Progress)) -> VerifyReport {
    let env = Env::system();
    match FileKeyring::open(env.clone(), dir.join("keys"), true) {
        Ok(keyring) => verify_with(&env, dir, &(Arc::new(keyring) as Arc<dyn Keyring>), options, progress),
        Err(error) => {
            let mut findings = Findings::default();
            findings.damage("keys", None, None, format!("the keyring does not open: {error}"));
            findings.report
        }
    }
}

/// Keys that sign batches, as the control journal enrolled them.
pub(crate) type Enrolled = BTreeMap<(TenantId, CollectorId, KeyId, Epoch), PublicKey>;

#[derive(Default)]
pub(crate) struct Findings {
    pub report: VerifyReport,
}

impl Findings {
    pub(crate) fn damage(
        &mut self,
        file: &str,
        tenant: Option<&TenantId>,
        leaf: Option<u64>,
        what: impl Into<String>,
    ) {
        self.problem(Severity::Damage, file, tenant, leaf, what.into());
    }

    pub(crate) fn unfinished(&mut self, file: &str, what: impl Into<String>) {
        self.problem(Severity::Unfinished, file, None, None, what.into());
    }

    fn problem(
        &mut self,
        severity: Severity,
        file: &str,
        tenant: Option<&TenantId>,
        leaf: Option<u64>,
        what: String,
    ) {
        let (file, tenant) = (file.to_owned(), tenant.cloned());
        self.report.problems.push(Problem { severity, file, tenant, leaf_index: leaf, what });
    }

    pub(crate) fn not_established(&mut self, what: impl Into<String>) {
        self.report.not_established.push(what.into());
    }
}

pub(crate) fn verify_with(
    env: &Env,
    dir: &Path,
    keyring: &Arc<dyn Keyring>,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress),
) -> VerifyReport {
    /// A running gateway may seal a commit file, and remove it, while files are read: then all is read once more.
    const TRIES: usize = 3;
    let mut tries = 0;
    loop {
        tries += 1;
        let files = list_files(env, dir);
        let report = verify_listed(env, dir, keyring, options, &files, progress);
        let is_gone = |name: &String| {
            env.storage.len(&dir.join(name)).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        };
        let sealed = files.iter().any(|name| name.starts_with("commit/") && is_gone(name));
        if report.ok || !sealed || tries == TRIES {
            return report;
        }
    }
}

fn verify_listed(
    env: &Env,
    dir: &Path,
    keyring: &Arc<dyn Keyring>,
    options: &VerifyOptions,
    files: &[String],
    progress: &mut dyn FnMut(Progress),
) -> VerifyReport {
    let mut findings = Findings::default();
    let sizes: BTreeMap<&str, u64> =
        files.iter().map(|name| (name.as_str(), env.storage.len(&dir.join(name)).unwrap_or(0))).collect();
    findings.report.files = files.len() as u64;
    if let Some(key) = check_meta(env, dir, options, &mut findings) {
        let mut steps = Steps { sizes: &sizes, total: sizes.values().sum(), done: 0, progress };
        check_rest(env, dir, keyring, options, key, files, &mut steps, &mut findings);
    }
    let mut report = findings.report;
    report.ok = report.problems.iter().all(|p| p.severity < Severity::Damage)
        && (!options.strict || (report.problems.is_empty() && report.not_established.is_empty()));
    report
}

/// Tells how far the work is.
pub(crate) struct Steps<'a> {
    sizes: &'a BTreeMap<&'a str, u64>,
    total: u64,
    done: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl Steps<'_> {
    pub(crate) fn file(&mut self, name: &str) {
        (self.progress)(Progress { file: name.to_owned(), bytes_done: self.done, bytes_total: self.total });
        self.done += self.sizes.get(name).copied().unwrap_or(0);
    }
}

/// The key that everything else is checked against.
fn check_meta(env: &Env, dir: &Path, options: &VerifyOptions, findings: &mut Findings) -> Option<PublicKey> {
    let meta = match read_meta(env, dir) {
        Ok(Some(meta)) => meta,
        Ok(None) => {
            findings.damage(
                "meta.json",
                None,
                None,
                "absent: this is no store, or its name plate was removed",
            );
            return None;
        }
        Err(error) => {
            findings.damage("meta.json", None, None, error.to_string());
            return options.trust;
        }
    };
    let written = env.storage.read(&dir.join("meta.json")).unwrap_or_default();
    if !meta.is_signed() || meta.to_bytes().ok() != Some(written) {
        findings.damage("meta.json", None, None, "it is not as the gateway signed it");
    }
    findings.report.store_id = Some(meta.store_id.clone());
    findings.report.gateway_key = Some(meta.gateway_key.to_base64());
    match options.trust {
        None => {
            findings.not_established(
                "signer not pinned: the gateway key is the one that the store names; give it with --trust",
            );
            Some(meta.gateway_key)
        }
        Some(key) => {
            if key == meta.gateway_key {
                return Some(key);
            }
            findings.damage("meta.json", None, None, "the gateway key is not the trusted one");
            // Of a store that another gateway made, all else is held against that one's key: one difference is not a
            // thousand.
            Some(if meta.is_signed() { meta.gateway_key } else { key })
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "one call, from verify_with")]
fn check_rest(
    env: &Env,
    dir: &Path,
    keyring: &Arc<dyn Keyring>,
    options: &VerifyOptions,
    key: PublicKey,
    files: &[String],
    steps: &mut Steps<'_>,
    findings: &mut Findings,
) {
    let (enrolled, erased, ends) = check_control(env, dir, key, files, steps, findings);
    note_ends(&ends, findings);
    if files.iter().any(|name| name == closing::NAME) {
        steps.file(closing::NAME);
    }
    let mut ids: Vec<TenantId> = Vec::new();
    for name in files {
        if let Some(id) = name.strip_prefix("tenants/").and_then(|rest| rest.split('/').next())
            && let Ok(id) = TenantId::new(id)
            && ids.last() != Some(&id)
        {
            ids.push(id);
        }
    }
    let mut tenants: BTreeMap<TenantId, TenantCheck<'_>> = BTreeMap::new();
    for id in &ids {
        match TenantCheck::open(env, dir, id, keyring, key, &enrolled, &erased) {
            Ok(check) => {
                tenants.insert(id.clone(), check);
            }
            Err(error) => findings.damage(&format!("keys/tenants/{id}"), Some(id), None, error.to_string()),
        }
    }
    crate::verify_files::check_segments(env, dir, files, &mut tenants, steps, findings);
    crate::verify_files::check_commit_files(env, dir, files, &mut tenants, steps, findings);
    let kept = options.checkpoint.as_deref().map(|note| kept_checkpoint(note, key));
    let mut kept_found = false;
    for (id, mut tenant) in tenants {
        tenant.catch_up(env, dir);
        for name in ["origin", "leaves", "checkpoints"] {
            steps.file(&format!("tenants/{id}/log/{name}"));
        }
        let own: Option<&Checkpoint> = match &kept {
            Some(Ok(checkpoint)) if checkpoint.origin == tenant.origin() => Some(checkpoint),
            _ => None,
        };
        kept_found |= own.is_some();
        tenant.finish(own, findings);
    }
    match kept {
        None if findings.report.closed_at.is_some() => findings.not_established(
            "tail not provable: the ends are as the gateway stated them when it closed the store, but a return of the whole store to an earlier state leaves no trace without a checkpoint kept from before; give one with --checkpoint",
        ),
        None => findings.not_established(
            "tail not provable: without a checkpoint kept from before, batches removed from the end together with their leaves and checkpoints leave no trace; give one with --checkpoint",
        ),
        Some(Err(error)) => findings.damage("(kept checkpoint)", None, None, error),
        Some(Ok(checkpoint)) if !kept_found => {
            let what = format!("the store has no log {}", checkpoint.origin);
            findings.damage("(kept checkpoint)", None, None, what);
        }
        Some(Ok(_)) => {}
    }
    report_changed(ends, findings);
}

/// Keys by the journal, and what it says was erased.
fn check_control(
    env: &Env,
    dir: &Path,
    key: PublicKey,
    files: &[String],
    steps: &mut Steps<'_>,
    findings: &mut Findings,
) -> (Enrolled, Vec<(TenantId, String, String)>, Ends) {
    let (mut enrolled, mut erased) = (Enrolled::new(), Vec::new());
    files.iter().filter(|name| name.starts_with("control/")).for_each(|name| steps.file(name));
    let scan = match scan_journal(env, &dir.join("control"), key) {
        Ok(scan) => scan,
        Err(error) => {
            findings.damage("control", None, None, format!("does not read: {error}"));
            return (enrolled, erased, Ends::Open);
        }
    };
    let ends = closing::judge(env, dir, key, findings.report.store_id.as_deref(), &scan);
    for finding in scan.findings {
        let (file, what) = finding.split_once(": ").unwrap_or(("control", &finding));
        if what.ends_with("are no record") {
            findings.unfinished(file, what);
        } else {
            findings.damage(file, None, None, what);
        }
    }
    findings.report.control_records = scan.entries.len() as u64;
    for (entry, _) in scan.entries {
        match entry.record {
            ControlRecord::Enrolled(e) => {
                let id = (e.tenant, e.collector_id, e.signing_key.id(), e.epoch);
                enrolled.insert(id, e.signing_key);
            }
            ControlRecord::KeyErased { tenant, retention, day, .. } => erased.push((tenant, retention, day)),
            _ => {}
        }
    }
    (enrolled, erased, ends)
}

/// How the store was closed, when nothing is amiss with it.
fn note_ends(ends: &Ends, findings: &mut Findings) {
    match ends {
        Ends::AsStated(at) => findings.report.closed_at = Some(*at),
        Ends::Open => findings.not_established(
            "not closed cleanly (a gateway runs on it, or it crashed): the ends of files are not provable, but for that of the control journal",
        ),
        Ends::Changed(_) => {}
    }
}

/// What was changed since the clean close. Comes last: what names a batch is of more use.
fn report_changed(ends: Ends, findings: &mut Findings) {
    let Ends::Changed(files) = ends else { return };
    for (file, what) in files {
        let tenant = file.strip_prefix("tenants/").and_then(|rest| rest.split('/').next());
        let tenant = tenant.and_then(|id| TenantId::new(id).ok());
        findings.damage(&file, tenant.as_ref(), None, what);
    }
}
