//! A bounded memory of recent event ids: the same id with other bytes raises an alarm.
//!
//! A direct-mapped table: a newer id takes the place of an older one. It may miss a conflict with an old event;
//! it never reports one that is not there.

use activity_schema::Hash;
use activity_schema::ids::TenantId;
use parking_lot::Mutex;
use uuid::Uuid;

/// 2^17 ids of 24 bytes: 3 MiB.
const SLOTS: usize = 1 << 17;

pub(crate) struct RecentIds {
    slots: Mutex<Vec<(u128, u64)>>,
}

impl RecentIds {
    pub(crate) fn new() -> Self {
        RecentIds { slots: Mutex::new(vec![(0, 0); SLOTS]) }
    }

    /// Remembers the ids of a batch; those that were seen with another line.
    pub(crate) fn conflicts(&self, tenant: &TenantId, ids: &[(Uuid, Hash)]) -> Vec<Uuid> {
        let tag = tenant_tag(tenant);
        let mut slots = self.slots.lock();
        let seen = ids.iter().filter(|(id, leaf)| {
            let key = id.as_u128() ^ tag;
            let mut start = [0; 8];
            start.copy_from_slice(&leaf.0[..8]);
            let line = u64::from_le_bytes(start);
            // The low half of a version 7 id is random; the high half orders by time.
            let (high, low) = Uuid::from_u128(key).as_u64_pair();
            let mixed = low ^ high;
            let at = usize::try_from(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47).unwrap_or(0);
            let Some(slot) = slots.get_mut(at) else { return false };
            let conflict = slot.0 == key && slot.1 != line;
            *slot = (key, line);
            conflict
        });
        seen.map(|(id, _)| *id).collect()
    }
}

fn tenant_tag(tenant: &TenantId) -> u128 {
    let mut tag = 0xcbf2_9ce4_8422_2325u128;
    for byte in tenant.as_str().bytes() {
        tag = (tag ^ u128::from(byte)).wrapping_mul(0x0100_0000_01b3_0000_0000_0000_0000_0193);
    }
    tag
}
