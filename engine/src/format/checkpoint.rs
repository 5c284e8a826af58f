//! The checkpoint: the views of a shard as of one group, so that opening reads only what follows.
//!
#![doc = include_str!("../../format/checkpoint.md")]

use std::collections::{BTreeMap, HashMap};

use super::bytes::{Put, Reader};
use super::index_block::QueueEntry;
use crate::layout::{Geometry, GroupMap, Place};
use crate::units::{EpochMillis, Sequence, narrow};
use crate::view::facts::Facts;
use crate::view::index::Index;
use crate::view::queue::Queue;
use crate::view::{Covered, QueueNo, Views};

const MAGIC: u64 = u64::from_be_bytes(*b"RINGMQCP");
const VERSION: u32 = 1;

pub(crate) fn encode(views: &Views, geometry: &Geometry) -> Vec<u8> {
    let mut out = Vec::with_capacity(4096 + views.queues.len() * 128);
    out.put_u64(MAGIC);
    out.put_u32(VERSION);
    out.put_u128(geometry.store());
    out.put_u32(geometry.shard());
    put_covered(&mut out, &views.covered);
    out.put_u32(views.index.next_block());
    out.put_u32(narrow(views.maps.len()));
    for (&ordinal, map) in &views.maps {
        out.put_u64(ordinal);
        out.put_u64(map.end());
        out.put_u32(narrow(map.starts().len()));
        map.starts().iter().for_each(|&start| out.put_u32(start));
    }
    // Queues that are only opened, not committed, come again when their group is replayed.
    let committed = || views.queues.iter().take_while(|queue| queue.is_committed());
    out.put_u32(narrow(committed().count()));
    committed().for_each(|queue| put_queue(&mut out, queue));
    out.put_u32(narrow(views.facts.iter().len()));
    for (key, value) in views.facts.iter() {
        out.put_sized(key);
        out.put_sized(value);
    }
    out.put_u32(crate::crc::crc32c(&out));
    out
}

fn put_covered(out: &mut Vec<u8>, covered: &Covered) {
    out.put_u64(covered.sequence.get());
    out.put_u32(covered.header_crc);
    out.put_u64(covered.place.ordinal);
    out.put_u64(covered.place.byte);
    out.put_u64(covered.next.byte);
    out.put_i64(covered.store_time.get());
    out.put_u64(covered.epoch);
}

fn put_queue(out: &mut Vec<u8>, queue: &Queue) {
    out.put_u32(queue.incarnation());
    out.put_sized(queue.key());
    out.put_u64(queue.min());
    let (from, blocks) = queue.blocks();
    out.put_u64(from);
    out.put_u32(narrow(blocks.len()));
    blocks.iter().for_each(|&block| out.put_u32(block));
    out.put_u32(narrow(queue.tail().len()));
    queue.tail().iter().for_each(|entry| entry.put(out));
}

/// The views of a sound checkpoint of this shard; `None` for any other bytes.
pub(crate) fn decode(bytes: &[u8], geometry: &Geometry) -> Option<Views> {
    let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    if crate::crc::crc32c(body) != Reader::new(crc).u32()? {
        return None;
    }
    let mut fields = Reader::new(body);
    let ours = fields.u64()? == MAGIC
        && fields.u32()? == VERSION
        && fields.u128()? == geometry.store()
        && fields.u32()? == geometry.shard();
    if !ours {
        return None;
    }
    let covered = take_covered(&mut fields)?;
    let index = Index::restored(fields.u32()?);
    let maps = take_maps(&mut fields)?;
    let mut queues = Vec::new();
    let mut by_key = HashMap::new();
    for number in 0..fields.u32()? {
        let queue = take_queue(&mut fields)?;
        if !queue.key().is_empty() {
            by_key.insert(queue.key().into(), QueueNo(number));
        }
        queues.push(queue);
    }
    let mut facts = Facts::default();
    for _ in 0..fields.u32()? {
        let key = fields.sized()?;
        facts.apply(key, Some(fields.sized()?), covered.sequence);
    }
    Some(Views { covered, queues, by_key, facts, index, maps, unreadable: 0 })
}

fn take_covered(fields: &mut Reader<'_>) -> Option<Covered> {
    let sequence = Sequence::new(fields.u64()?);
    let header_crc = fields.u32()?;
    let place = Place { ordinal: fields.u64()?, byte: fields.u64()? };
    let next = Place { byte: fields.u64()?, ..place };
    let store_time = EpochMillis::new(fields.i64()?);
    Some(Covered { sequence, header_crc, place, next, store_time, epoch: fields.u64()? })
}

fn take_maps(fields: &mut Reader<'_>) -> Option<BTreeMap<u64, GroupMap>> {
    let mut maps = BTreeMap::new();
    for _ in 0..fields.u32()? {
        let ordinal = fields.u64()?;
        let end = fields.u64()?;
        let count = fields.u32()?;
        let starts = (0..count).map(|_| fields.u32()).collect::<Option<Vec<_>>>()?;
        maps.insert(ordinal, GroupMap::restored(starts, end));
    }
    Some(maps)
}

fn take_queue(fields: &mut Reader<'_>) -> Option<Queue> {
    let incarnation = fields.u32()?;
    let key = fields.sized()?;
    let min = fields.u64()?;
    let from = fields.u64()?;
    let count = fields.u32()?;
    let blocks = (0..count).map(|_| fields.u32()).collect::<Option<Vec<_>>>()?;
    let count = fields.u32()?;
    let tail = (0..count).map(|_| QueueEntry::take(fields)).collect::<Option<Vec<_>>>()?;
    Some(Queue::restored(key, incarnation, min, (from, blocks), tail))
}
