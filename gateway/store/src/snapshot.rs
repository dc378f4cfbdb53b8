//! Coverage kept in the index, so that a start does not read every batch again.

use crate::store::Shared;

/// Saves every tenant's coverage. A failure costs time at the next start, nothing else.
pub(crate) fn save_coverage(shared: &Shared) {
    for tenant in shared.all_tenants() {
        let bytes = {
            let state = tenant.state.read();
            let Some(newest) = state.segments.keys().next_back() else { continue };
            state.coverage.snapshot(*newest)
        };
        match bytes {
            Ok(bytes) => {
                if let Err(error) = shared.index.put_coverage(&tenant.id, &bytes) {
                    tracing::warn!(%error, tenant = %tenant.id, "coverage is not saved");
                }
            }
            Err(error) => tracing::warn!(%error, tenant = %tenant.id, "coverage does not serialise"),
        }
    }
}
