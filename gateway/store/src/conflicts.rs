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
    /// Both halves of an id, and the beginning of its line's hash.
    slots: Mutex<Vec<[u64; 3]>>,
}

impl RecentIds {
    pub(crate) fn new() -> Self {
        RecentIds { slots: Mutex::new(vec![[0; 3]; SLOTS]) }
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
            let conflict = slot[..2] == [high, low] && slot[2] != line;
            *slot = [high, low, line];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_ids_have_131_072_places_in_3_mib() {
        let recent = RecentIds::new();
        let tenant = "tenant-a".parse().unwrap();
        let mut word = 1u64;
        let ids: Vec<_> = std::iter::repeat_with(|| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (Uuid::from_u64_pair(7, word ^ word >> 29), Hash::of(&[b"line"]))
        })
        .take(1_000_000)
        .collect();
        assert!(recent.conflicts(&tenant, &ids).is_empty(), "an id with its own line is no conflict");
        let slots = recent.slots.lock();
        assert_eq!(size_of_val(slots.as_slice()), 3_145_728);
        let used = slots.iter().filter(|slot| slot[2] != 0).count();
        assert!((130_000..=131_072).contains(&used), "{used}");
    }
}
