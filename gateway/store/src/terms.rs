//! What an event can be found by: correlation ids, event name, peer and executable, as 64-bit keyed hashes.
//!
//! A term is SipHash-1-3 of `kind ‖ value` under a key of the tenant, so that neither a filter on disk nor the
//! index tells an outsider which address or session it holds. Values that are asked for by prefix are also
//! entered by their prefixes: event names by each `word.`, addresses by the networks of [`V4_PREFIXES`] and
//! [`V6_PREFIXES`].
//!
//! The top bit of a term tells its kind apart: see [`SEGMENT_BIT`].
//!
//! [`Filter`], the form on disk, is a Bloom filter of 16 bits a term and 8 probes (about 0.06 % false
//! positives): `bytes bits`, probe `i` at `(low + i · high) mod bits` of the term's halves.

use std::hash::Hasher as _;
use std::net::IpAddr;

use activity_schema::Event;
use activity_schema::catalog::Row;
use activity_schema::text::Text;
use siphasher::sip::SipHasher13;

use crate::aead::{Secret, derive};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TermKind {
    Instance = 1,
    Session = 2,
    Mission = 3,
    Task = 4,
    ToolCall = 5,
    Command = 6,
    Process = 7,
    EventName = 8,
    EventPrefix = 9,
    Peer = 10,
    Executable = 11,
}

/// Set in terms that a whole segment has few of, so that memory can keep a filter a segment: of instances, sessions,
/// missions, tasks and event names. Clear in those of tool calls, commands, processes, peers and executables.
const SEGMENT_BIT: u64 = 1 << 63;

impl TermKind {
    fn is_of_segments(self) -> bool {
        matches!(
            self,
            TermKind::Instance
                | TermKind::Session
                | TermKind::Mission
                | TermKind::Task
                | TermKind::EventName
                | TermKind::EventPrefix
        )
    }
}

/// Whether filters of segments hold terms of this kind.
pub(crate) fn is_of_segments(term: u64) -> bool {
    term & SEGMENT_BIT != 0
}

pub(crate) const V4_PREFIXES: [u8; 4] = [8, 16, 24, 32];
pub(crate) const V6_PREFIXES: [u8; 4] = [32, 48, 64, 128];

/// Hashes terms under a tenant's key.
#[derive(Clone)]
pub(crate) struct TermKey([u8; 16]);

impl TermKey {
    pub(crate) fn of(head: &Secret) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&derive(head, b"terms", b"").0[..16]);
        TermKey(key)
    }

    pub(crate) fn term(&self, kind: TermKind, value: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(&[kind as u8]);
        hasher.write(value);
        let hash = hasher.finish();
        if kind.is_of_segments() { hash | SEGMENT_BIT } else { hash & !SEGMENT_BIT }
    }

    /// The term of a network: the address cut to `prefix` bits.
    pub(crate) fn network(&self, address: IpAddr, prefix: u8) -> u64 {
        let mut value = [0u8; 18];
        value[1] = prefix;
        match address {
            IpAddr::V4(a) => {
                value[0] = 4;
                value[2..6].copy_from_slice(&cut_v4(a.to_bits(), prefix).to_be_bytes());
            }
            IpAddr::V6(a) => {
                value[0] = 6;
                value[2..].copy_from_slice(&cut_v6(a.to_bits(), prefix).to_be_bytes());
            }
        }
        self.term(TermKind::Peer, &value)
    }
}

pub(crate) fn cut_v4(bits: u32, prefix: u8) -> u32 {
    bits & u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

pub(crate) fn cut_v6(bits: u128, prefix: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

/// Parses an address; IPv4 in IPv6 is IPv4.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|a| a.to_canonical())
}

/// Payload keys that name a peer.
pub(crate) const PEER_KEYS: [&str; 2] = ["peer_address", "nat_peer"];

/// Gathers the terms of a run of events.
pub(crate) struct TermSet<'k> {
    key: &'k TermKey,
    terms: Vec<u64>,
    /// Runs of events mostly repeat their ids: a value equal to the one before adds nothing.
    last: [Vec<u8>; 9],
    names: Vec<&'static str>,
}

impl<'k> TermSet<'k> {
    pub(crate) fn new(key: &'k TermKey) -> Self {
        TermSet { key, terms: Vec::new(), last: Default::default(), names: Vec::new() }
    }

    pub(crate) fn add(&mut self, event: &Event<'_>, row: Option<&'static Row>) {
        let c = &event.correlation;
        self.id(0, TermKind::Instance, Some(&c.instance_id));
        self.id(1, TermKind::Session, c.session_id.as_ref());
        self.id(2, TermKind::Mission, c.mission_id.as_ref());
        self.id(3, TermKind::Task, c.task_id.as_ref());
        self.id(4, TermKind::ToolCall, c.tool_call_id.as_ref());
        self.id(5, TermKind::Command, c.command_id.as_ref());
        self.id(6, TermKind::Process, c.process_id.as_ref());
        match row {
            Some(row) if self.names.iter().any(|n| std::ptr::eq(*n, row.name)) => {}
            Some(row) => {
                self.names.push(row.name);
                self.name(row.name);
            }
            None => self.name(&event.event_name),
        }
        for (key, value) in event.payload.iter() {
            let Some(text) = value.as_str() else { continue };
            if key == "executable" && self.is_new(7, text.as_bytes()) {
                self.terms.push(self.key.term(TermKind::Executable, text.as_bytes()));
            } else if PEER_KEYS.contains(&key) && self.is_new(8, text.as_bytes()) {
                self.peer(text);
            }
        }
    }

    fn id(&mut self, slot: usize, kind: TermKind, value: Option<&Text<'_>>) {
        if let Some(value) = value
            && self.is_new(slot, value.as_bytes())
        {
            self.terms.push(self.key.term(kind, value.as_bytes()));
        }
    }

    fn is_new(&mut self, slot: usize, value: &[u8]) -> bool {
        let last = &mut self.last[slot];
        if last == value {
            return false;
        }
        last.clear();
        last.extend_from_slice(value);
        true
    }

    fn name(&mut self, name: &str) {
        self.terms.push(self.key.term(TermKind::EventName, name.as_bytes()));
        for (at, _) in name.match_indices('.') {
            self.terms.push(self.key.term(TermKind::EventPrefix, &name.as_bytes()[..=at]));
        }
    }

    fn peer(&mut self, text: &str) {
        let Some(address) = address(text) else { return };
        let prefixes = if address.is_ipv4() { V4_PREFIXES } else { V6_PREFIXES };
        self.terms.extend(prefixes.map(|prefix| self.key.network(address, prefix)));
    }

    /// The terms, sorted, each once.
    pub(crate) fn finish(mut self) -> Box<[u64]> {
        self.terms.sort_unstable();
        self.terms.dedup();
        self.terms.into_boxed_slice()
    }
}

/// A set of terms that may also say yes to a term that is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filter<'a> {
    bits: &'a [u8],
}

const BITS_A_TERM: usize = 16;
const PROBES: u64 = 8;

impl<'a> Filter<'a> {
    /// The bits of a filter over distinct terms.
    pub(crate) fn build(terms: &[u64]) -> Vec<u8> {
        let mut bits = vec![0u8; (terms.len() * BITS_A_TERM).div_ceil(8).max(1)];
        for term in terms {
            for bit in probes(*term, bits.len()) {
                bits[bit / 8] |= 1 << (bit % 8);
            }
        }
        bits
    }

    pub(crate) fn new(bits: &'a [u8]) -> Self {
        Filter { bits }
    }

    pub(crate) fn holds(&self, term: u64) -> bool {
        !self.bits.is_empty()
            && probes(term, self.bits.len()).all(|bit| self.bits[bit / 8] & (1 << (bit % 8)) != 0)
    }
}

fn probes(term: u64, bytes: usize) -> impl Iterator<Item = usize> {
    let bits = bytes as u64 * 8;
    // Odd steps: probes of a short filter do not collapse onto one bit.
    let (low, high) = (term & 0xffff_ffff, (term >> 32) | 1);
    (0..PROBES).filter_map(move |i| usize::try_from((low + i * high) % bits).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_holds_its_terms_and_few_others() {
        let key = TermKey::of(&Secret([3; 32]));
        let term = |n: u32| key.term(TermKind::Process, &n.to_le_bytes());
        let terms: Vec<u64> = (0..2_000).map(term).collect();
        let bits = Filter::build(&terms);
        let filter = Filter::new(&bits);
        assert!(terms.iter().all(|t| filter.holds(*t)));
        let wrong = (10_000..110_000).filter(|n| filter.holds(term(*n))).count();
        assert!(wrong < 200, "{wrong} of 100,000");
    }

    #[test]
    fn networks_are_terms_of_their_addresses() {
        let key = TermKey::of(&Secret([3; 32]));
        let mut set = TermSet::new(&key);
        set.peer("10.1.2.3");
        set.peer("2001:db8:1:2::5");
        let terms = set.finish();
        let holds = |text: &str, prefix| terms.contains(&key.network(text.parse().unwrap(), prefix));
        assert!(holds("10.0.0.0", 8) && holds("10.1.2.3", 32) && holds("2001:db8:1:2::", 64));
        assert!(!holds("11.0.0.0", 8) && !holds("10.1.2.4", 32));
    }
}
