//! Export bundles: files that somebody hands over.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use activity_schema::keys::PublicKey;
use activity_store::{BundleStep, ExportRequest, Query, Store, VerifyOptions, verify_bundle};

use crate::{fixture, stored};

struct Whole {
    key: PublicKey,
    bundles: Vec<Vec<u8>>,
    /// Names of the batches in all of them.
    names: BTreeSet<String>,
}

/// Only an untouched bundle holds under the trusted key; without one, no batch holds that nobody signed.
pub fn run(data: &[u8]) {
    let whole = whole();
    let trusted = VerifyOptions { trust: Some(whole.key), ..VerifyOptions::default() };
    let report = verify_bundle(data, &trusted, &mut |_| {});
    assert_eq!(report.ok, whole.bundles.iter().any(|bundle| bundle == data), "{report:#?}");
    let mut names = BTreeSet::new();
    let report = verify_bundle(data, &VerifyOptions::default(), &mut |step| {
        if let BundleStep::Batch { name, .. } = step {
            names.insert(name);
        }
    });
    assert!(!report.ok || names.is_subset(&whole.names), "{names:?}");
}

fn whole() -> &'static Whole {
    static WHOLE: OnceLock<Whole> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = stored::folder();
        stored::fill(dir.path());
        let store = Store::open_read_only(dir.path()).expect("it was just filled");
        let bundles = ["process.*", "telemetry.*", "session.started", "network.dns"].map(|name| {
            let query = Query { events: vec![name.to_owned()], ..Query::default() };
            export(&store, query)
        });
        let mut names = BTreeSet::new();
        for bundle in &bundles {
            let options = VerifyOptions { strict: false, ..VerifyOptions::default() };
            let report = verify_bundle(&bundle[..], &options, &mut |step| {
                if let BundleStep::Batch { name, .. } = step {
                    names.insert(name);
                }
            });
            assert!(report.ok, "{report:#?}");
        }
        Whole { key: store.gateway_key(), bundles: bundles.to_vec(), names }
    })
}

fn export(store: &Store, query: Query) -> Vec<u8> {
    let request = ExportRequest { query, actor: "a fuzzer".to_owned(), kept_size: None };
    let mut export = store.export(&fixture::tenant(), request).expect("the tenant has evidence");
    let mut bundle = Vec::new();
    while let Some(part) = export.next_part().expect("the store is whole") {
        bundle.extend_from_slice(&part);
    }
    bundle
}

/// The bundles, and one that is not signed.
pub fn seeds() -> Vec<Vec<u8>> {
    let unsigned = whole().bundles.iter().map(|bundle| {
        let text = String::from_utf8_lossy(bundle).replace("\"signed\":true", "\"signed\":false");
        let end = text.rfind("\"signature\":\"").unwrap_or(text.len());
        let rest = text[end..].find(',').map_or("", |at| &text[end + at..]);
        format!("{}\"signature\":null{rest}", &text[..end]).into_bytes()
    });
    whole().bundles.iter().cloned().chain(unsigned).collect()
}
