//! The records that the engine writes for itself.
//!
#![doc = include_str!("../../format/payload.md")]

use super::bytes::{Put, Reader};

/// Keys of facts and queues. Longer ones are refused before anything is allocated.
pub(crate) const KEY_LEN_MAX: usize = 4096;

pub(crate) fn fact(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + key.len() + value.map_or(0, <[u8]>::len));
    out.put_u8(u8::from(value.is_none()));
    out.put_sized(key);
    out.put(value.unwrap_or_default());
    out
}

/// Key and value (`None` = removed) of a fact.
pub(crate) fn parse_fact(bytes: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut fields = Reader::new(bytes);
    let removed = fields.u8()? & 1 == 1;
    let key = fields.sized()?;
    Some((key, (!removed).then_some(fields.rest())))
}

pub(crate) fn queue_open(incarnation: u32, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + key.len());
    out.put_u32(incarnation);
    out.put(key);
    out
}

pub(crate) fn parse_queue_open(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut fields = Reader::new(bytes);
    Some((fields.u32()?, fields.rest()))
}
