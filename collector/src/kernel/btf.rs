//! A reader for the running kernel's type information (`/sys/kernel/btf/vmlinux`), enough to find where a
//! member lies and what an enumerator is. Format: Documentation/bpf/btf.rst. Total on arbitrary bytes.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

const MAGIC: u16 = 0xeb9f;
const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;
const TYPE_BYTES: usize = 12;
/// Anonymous members inside anonymous members, typedefs of typedefs: no kernel type nests deeper.
const DEPTH_MAX: u32 = 16;

#[derive(Debug, Error)]
pub enum BtfError {
    #[error("not BTF: the file ends early or has another magic number")]
    Header,
    #[error("damaged BTF: type {type_id} has unknown kind {kind} or runs past the end")]
    Type { type_id: u32, kind: u32 },
}

/// Where a member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub offset_bits: u32,
    /// Not 0 for a bit field.
    pub bits: u32,
}

pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    strings_end: usize,
    /// Offset of each type's header; type 0 is void.
    types: Vec<u32>,
    /// Named structures, unions, enums and typedefs that were asked for.
    names: BTreeMap<String, Vec<u32>>,
}

impl Btf {
    /// Indexes `bytes`, keeping the types named in `wanted`.
    pub fn parse(bytes: Vec<u8>, wanted: &BTreeSet<&str>) -> Result<Self, BtfError> {
        let word = |at: usize| read_u32(&bytes, at).map(|word| word as usize);
        let header = || -> Option<(usize, usize, usize, usize)> {
            if u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]) != MAGIC {
                return None;
            }
            let body = word(4)?;
            let types = body.checked_add(word(8)?)?;
            let types_end = types.checked_add(word(12)?)?;
            let strings = body.checked_add(word(16)?)?;
            let strings_end = strings.checked_add(word(20)?)?;
            (types_end <= bytes.len() && strings_end <= bytes.len()).then_some((
                types,
                types_end,
                strings,
                strings_end,
            ))
        };
        let (start, end, strings, strings_end) = header().ok_or(BtfError::Header)?;
        let mut btf = Self { bytes, strings, strings_end, types: vec![0], names: BTreeMap::new() };
        let mut at = start;
        while at < end {
            let type_id = u32::try_from(btf.types.len()).unwrap_or(u32::MAX);
            let info = read_u32(&btf.bytes, at + 4).ok_or(BtfError::Type { type_id, kind: 0 })?;
            let (kind, count) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
            let extra = match kind {
                KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
                KIND_ARRAY => 12,
                KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => count * 12,
                KIND_ENUM | KIND_FUNC_PROTO => count * 8,
                1..=KIND_ENUM64 => 0,
                _ => return Err(BtfError::Type { type_id, kind }),
            };
            let next = at + TYPE_BYTES + extra;
            if next > end {
                return Err(BtfError::Type { type_id, kind });
            }
            if matches!(kind, KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64 | KIND_TYPEDEF) {
                let name = btf.string(read_u32(&btf.bytes, at).unwrap_or(0));
                if wanted.contains(name) {
                    let name = name.to_owned();
                    btf.names.entry(name).or_default().push(type_id);
                }
            }
            btf.types.push(u32::try_from(at).unwrap_or(0));
            at = next;
        }
        Ok(btf)
    }

    /// Byte size of a structure.
    pub fn size(&self, structure: &str) -> Option<u32> {
        self.named(structure, &[KIND_STRUCT, KIND_UNION]).map(|id| self.word(id, 8))
    }

    /// A member by its path (`a.b.c`); anonymous structures and unions on the way need not be named.
    pub fn member(&self, structure: &str, path: &str) -> Option<Member> {
        let mut type_id = self.named(structure, &[KIND_STRUCT, KIND_UNION])?;
        let mut offset_bits = 0u32;
        let mut bits = 0;
        for name in path.split('.') {
            let (member, member_type) = self.find(self.resolve(type_id)?, name, 0)?;
            offset_bits = offset_bits.checked_add(member.offset_bits)?;
            bits = member.bits;
            type_id = member_type;
        }
        Some(Member { offset_bits, bits })
    }

    /// Value of an enumerator.
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        let id = self.named(enumeration, &[KIND_ENUM])?;
        let first = self.types.get(id as usize).copied()? as usize + TYPE_BYTES;
        (0..self.count(id)).find_map(|index| {
            let at = first + index * 8;
            (self.string(read_u32(&self.bytes, at)?) == name).then(|| read_u32(&self.bytes, at + 4))?
        })
    }

    /// Number of arguments of a tracepoint, its private data pointer not counted.
    pub fn tracepoint_arguments(&self, name: &str) -> Option<u32> {
        let typedef = self.named(&format!("btf_trace_{name}"), &[KIND_TYPEDEF])?;
        let pointer = self.word(typedef, 8);
        if self.kind(pointer)? != KIND_PTR {
            return None;
        }
        let prototype = self.word(pointer, 8);
        if self.kind(prototype)? != KIND_FUNC_PROTO {
            return None;
        }
        u32::try_from(self.count(prototype)).ok()?.checked_sub(1)
    }

    fn named(&self, name: &str, kinds: &[u32]) -> Option<u32> {
        let ids = self.names.get(name)?;
        ids.iter().copied().find(|&id| self.kind(id).is_some_and(|kind| kinds.contains(&kind)))
    }

    /// Follows typedefs and qualifiers to a structure or union.
    fn resolve(&self, mut type_id: u32) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            match self.kind(type_id)? {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    type_id = self.word(type_id, 8);
                }
                KIND_STRUCT | KIND_UNION => return Some(type_id),
                _ => return None,
            }
        }
        None
    }

    /// A member of one structure, or of anonymous ones inside it, with its type.
    fn find(&self, structure: u32, name: &str, depth: u32) -> Option<(Member, u32)> {
        if depth > DEPTH_MAX {
            return None;
        }
        let bit_fields = self.word(structure, 4) >> 31 != 0;
        let first = self.types.get(structure as usize).copied()? as usize + TYPE_BYTES;
        for index in 0..self.count(structure) {
            let at = first + index * 12;
            let member_name = self.string(read_u32(&self.bytes, at)?);
            let member_type = read_u32(&self.bytes, at + 4)?;
            let raw = read_u32(&self.bytes, at + 8)?;
            let (offset_bits, bits) = if bit_fields { (raw & 0x00ff_ffff, raw >> 24) } else { (raw, 0) };
            if member_name == name {
                return Some((Member { offset_bits, bits }, member_type));
            }
            if member_name.is_empty()
                && let Some(inner) = self.resolve(member_type)
                && let Some((member, found)) = self.find(inner, name, depth + 1)
            {
                let offset_bits = offset_bits.checked_add(member.offset_bits)?;
                return Some((Member { offset_bits, ..member }, found));
            }
        }
        None
    }

    fn kind(&self, type_id: u32) -> Option<u32> {
        if type_id == 0 {
            return None;
        }
        let at = *self.types.get(type_id as usize)? as usize;
        Some((read_u32(&self.bytes, at + 4)? >> 24) & 0x1f)
    }

    fn count(&self, type_id: u32) -> usize {
        (self.word(type_id, 4) & 0xffff) as usize
    }

    fn word(&self, type_id: u32, at: usize) -> u32 {
        self.types
            .get(type_id as usize)
            .and_then(|&offset| read_u32(&self.bytes, offset as usize + at))
            .unwrap_or(0)
    }

    fn string(&self, offset: u32) -> &str {
        let start = self.strings.saturating_add(offset as usize);
        let Some(bytes) = self.bytes.get(start..self.strings_end) else { return "" };
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
        std::str::from_utf8(bytes.get(..end).unwrap_or_default()).unwrap_or("")
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}
