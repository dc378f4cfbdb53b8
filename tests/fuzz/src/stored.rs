//! A gateway's store with the examples of the catalogue in it.

use std::path::Path;

use activity_schema::SignedBatch;
use activity_schema::api::BatchResult;
use activity_schema::ids::Epoch;
use activity_schema::keys::Signer;
use activity_store::{Caller, ControlRecord, Enrolment, Store, StoreConfig};
use tokio::runtime::Runtime;

use crate::fixture;

/// A folder for a store.
pub fn folder() -> tempfile::TempDir {
    activity_tests::sim::gateway::folder().expect("a temporary folder can be made")
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made")
}

pub fn open(dir: &Path) -> Store {
    let config = StoreConfig { dir: dir.to_owned(), reserve_bytes: 0, ..StoreConfig::default() };
    Store::open(config).expect("the folder is the store's")
}

/// The collector of the fixtures, which signs for an epoch.
pub fn caller(epoch: &Epoch) -> Caller {
    let (identity, signer) = (fixture::identity(), Signer::from_seed(&fixture::KEY));
    Caller {
        tenant: identity.tenant,
        host: identity.host,
        collector_id: identity.collector_id,
        instances: fixture::instances(),
        keys: vec![(signer.id().clone(), signer.public(), epoch.clone())],
    }
}

pub fn ingest(
    runtime: &Runtime,
    store: &Store,
    caller: &Caller,
    batches: Vec<SignedBatch>,
) -> Vec<BatchResult> {
    let count = batches.len();
    let results = runtime.block_on(store.ingest(caller, batches)).expect("the disk does not fail");
    assert_eq!(results.len(), count, "one result a batch");
    results
}

/// Puts the enrolment and the examples into a new store: sealed segments, and a commit file that is not sealed.
pub fn fill(dir: &Path) {
    let (identity, signer) = (fixture::identity(), Signer::from_seed(&fixture::KEY));
    let batches = crate::targets::batch::batches();
    let (first, last) = batches.split_at(batches.len() / 2);
    let caller = caller(&identity.epoch);
    let runtime = runtime();
    let config = StoreConfig {
        dir: dir.to_owned(),
        reserve_bytes: 0,
        commit_rotate_bytes: 1,
        ..StoreConfig::default()
    };
    let store = Store::open(config).expect("the folder is empty");
    store
        .record_control(ControlRecord::Enrolled(Enrolment {
            tenant: identity.tenant.clone(),
            collector_id: identity.collector_id.clone(),
            host: identity.host.clone(),
            instances: fixture::instances(),
            signing_key: signer.public(),
            epoch: identity.epoch,
            certificate_serial: "0".to_owned(),
            enrolled_at: fixture::CLOCK.wall,
        }))
        .expect("the disk does not fail");
    ingest(&runtime, &store, &caller, first.to_vec());
    for _ in 0..100 {
        if store.health().counters.segments_sealed > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    store.close();
    drop(store);
    let store = open(dir);
    ingest(&runtime, &store, &caller, last.to_vec());
    store.close();
}
