//! The changes: what the views have learned from one checkpoint to the next.
//!
//! The layout is described with the checkpoint, in `format::checkpoint`.

use super::bytes::{Cursor, Put, Reader};
use super::index_block::{KeyEntry, QueueEntry};
use crate::crc::crc32c_of;
use crate::layout::{Geometry, GroupMap};
use crate::units::{EpochMillis, LogOffset, Sequence, index, narrow, wide};
use crate::view::ends::{EndsBlock, SegmentEnds};
use crate::view::facts::FactState;
use crate::view::keys::{Bucket, KeyBlock, SavedKeys};
use crate::view::queue::{Block, Queue, Slot};
use crate::view::{QueueNo, Views};

pub(crate) const PIECE_LEN: usize = 256 * 1024;
pub(crate) const PIECE_HEADER_LEN: usize = 52;
/// Pieces start at multiples of this.
pub(crate) const ALIGN: usize = 4096;
const MAGIC: u64 = u64::from_be_bytes(*b"RINGMQCH");
const CHECKED_LEN: usize = 48;

const QUEUE: u8 = 1;
const QUEUE_CHANGES: u8 = 2;
const DELETION: u8 = 3;
const FREE: u8 = 4;
const FACT: u8 = 5;
const NO_FACT: u8 = 6;
const SEGMENT: u8 = 7;
const KEYS: u8 = 8;
const KEY_CHANGES: u8 = 9;

/// Writes the header of a piece whose payload is in its place, and gives the padded length.
pub(crate) fn seal_piece(
    dst: &mut [u8],
    payload_len: usize,
    geometry: &Geometry,
    generation: u64,
    at: u64,
) -> usize {
    let len = PIECE_HEADER_LEN + payload_len;
    let padded = len.next_multiple_of(ALIGN);
    dst.get_mut(len..padded).expect("pieces end on a page").fill(0);
    let mut out = Cursor::new(dst);
    out.put_u64(MAGIC);
    out.put_u128(geometry.store());
    out.put_u32(geometry.shard());
    out.put_u32(narrow(payload_len));
    out.put_u64(generation);
    out.put_u64(at);
    out.put_u32(0);
    let crc = checksum(dst.get(..len).unwrap_or_default()).expect("a piece has a header");
    Cursor::new(dst.get_mut(CHECKED_LEN..).expect("a piece has a header")).put_u32(crc);
    padded
}

fn checksum(piece: &[u8]) -> Option<u32> {
    Some(crc32c_of(&[piece.get(..CHECKED_LEN)?, piece.get(PIECE_HEADER_LEN..)?]))
}

/// The payload of the piece at the front of `bytes`, and the piece's padded length. `None` unless it
/// is sound and of this generation and place.
pub(crate) fn parse_piece<'a>(
    bytes: &'a [u8],
    geometry: &Geometry,
    generation: u64,
    at: u64,
) -> Option<(&'a [u8], usize)> {
    let mut fields = Reader::new(bytes);
    let ours = fields.u64()? == MAGIC
        && fields.u128()? == geometry.store()
        && fields.u32()? == geometry.shard();
    let len = PIECE_HEADER_LEN + index(u64::from(fields.u32()?));
    let ours = ours && fields.u64()? == generation && fields.u64()? == at;
    let piece = bytes.get(..len)?;
    let sound = ours && fields.u32()? == checksum(piece)?;
    sound.then_some((piece.get(PIECE_HEADER_LEN..)?, len.next_multiple_of(ALIGN)))
}

/// Tells a queue, or what has changed since this generation told it last.
pub(crate) fn put_queue(out: &mut Vec<u8>, number: u32, queue: &mut Queue, generation: u64) {
    match queue.slot {
        // It comes again when its group is replayed.
        Slot::Opened => return,
        Slot::Free => {
            out.put_u8(FREE);
            out.put_u32(number);
            queue.saved.generation = 0;
            return;
        }
        Slot::Deleted { last } => {
            out.put_u8(DELETION);
            out.put_u32(number);
            out.put_i64(queue.incarnation().map_or(-1, LogOffset::get));
            out.put_u64(last);
            queue.saved.generation = 0;
            return;
        }
        Slot::Live | Slot::Leaving => {}
    }
    let known = queue.saved.generation == generation;
    let saved = if known { queue.saved } else { Default::default() };
    out.put_u8(if known { QUEUE_CHANGES } else { QUEUE });
    out.put_u32(number);
    if !known {
        out.put_i64(queue.incarnation().map_or(-1, LogOffset::get));
        out.put_sized(queue.key());
    }
    out.put_var(queue.home);
    out.put_var(queue.min());
    let (segment, first) = queue.segment();
    // None at all is the highest number: it comes as 0.
    out.put_var(segment.wrapping_add(1));
    out.put_var(first);
    out.put_var(queue.tail_from());
    let told = queue.blocks().partition_point(|block| block.end() <= saved.blocks_to);
    let blocks = queue.blocks().get(told..).unwrap_or_default();
    out.put_var(wide(blocks.len()));
    for block in blocks {
        out.put_var(block.at);
        out.put_var(block.first);
        out.put_var(block.position.get().cast_unsigned());
        out.put_var(u64::from(block.count));
    }
    let from = saved.entries_to.max(queue.tail_from());
    let entries = queue.tail().get(index(from - queue.tail_from())..).unwrap_or_default();
    out.put_var(from);
    out.put_var(wide(entries.len()));
    entries.iter().for_each(|entry| entry.put_short(out));
    queue.saved.generation = generation;
    queue.saved.blocks_to = queue.tail_from();
    queue.saved.entries_to = queue.visible();
}

/// Tells a fact, or that there is none.
pub(crate) fn put_fact(out: &mut Vec<u8>, key: &[u8], state: Option<FactState<'_>>) {
    let Some(FactState { value, sequence, home }) = state else {
        out.put_u8(NO_FACT);
        out.put_sized(key);
        return;
    };
    out.put_u8(FACT);
    out.put_u64(sequence.get());
    out.put_u64(home);
    out.put_sized(key);
    out.put_sized(value);
}

/// Tells what is known of a segment.
pub(crate) fn put_segment(out: &mut Vec<u8>, ordinal: u64, map: &GroupMap, ends: &SegmentEnds) {
    out.put_u8(SEGMENT);
    out.put_u64(ordinal);
    out.put_u64(map.end());
    out.put_i64(map.last_time().get());
    out.put_u32(narrow(map.steps().len()));
    for (start, time) in map.steps() {
        out.put_u32(start);
        out.put_i64(time.get());
    }
    out.put_u64(ends.index_from);
    out.put_u32(narrow(ends.blocks.len()));
    for block in &ends.blocks {
        out.put_u64(block.at);
        out.put_u32(block.count);
    }
}

/// Tells the keys of a bucket, or what has come since this generation told them last.
pub(crate) fn put_keys(out: &mut Vec<u8>, number: u32, bucket: &mut Bucket, generation: u64) {
    let known = bucket.saved.generation == generation;
    let saved = if known { bucket.saved } else { Default::default() };
    out.put_u8(if known { KEY_CHANGES } else { KEYS });
    out.put_u32(number);
    out.put_i64(bucket.newest().map_or(-1, LogOffset::get));
    out.put_u64(bucket.tail_from());
    let told = bucket.blocks().partition_point(|block| block.at < saved.blocks_to);
    let blocks = bucket.blocks().get(told..).unwrap_or_default();
    out.put_u32(narrow(blocks.len()));
    for block in blocks {
        out.put_u64(block.at);
        out.put_i64(block.first.get());
        out.put_u32(block.count);
    }
    let blocks_to = blocks.last().map_or(saved.blocks_to, |block| block.at + 1);
    let from = saved.entries_to.max(bucket.tail_from());
    let entries = bucket.tail().get(index(from - bucket.tail_from())..).unwrap_or_default();
    out.put_u64(from);
    out.put_u32(narrow(entries.len()));
    entries.iter().for_each(|entry| entry.put(out));
    let entries_to = from + wide(entries.len());
    bucket.saved = SavedKeys { generation, entries_to, blocks_to };
}

/// Takes whole items from the front of `bytes` into the views; gives how many bytes they took.
/// `None` when an item contradicts what came before it.
pub(crate) fn take_items(bytes: &[u8], views: &mut Views) -> Option<usize> {
    let mut rest = Reader::new(bytes);
    let mut taken = 0;
    loop {
        match take_item(rest, views) {
            Ok(Some(behind)) => {
                rest = behind;
                taken = bytes.len() - rest.rest().len();
            }
            Ok(None) => return Some(taken),
            Err(Contradiction) => return None,
        }
    }
}

struct Contradiction;

/// One item; `None` when its bytes are not all there.
fn take_item<'a>(
    fields: Reader<'a>,
    views: &mut Views,
) -> Result<Option<Reader<'a>>, Contradiction> {
    let mut fields = fields;
    let Some(kind) = fields.u8() else { return Ok(None) };
    match kind {
        QUEUE | QUEUE_CHANGES => take_queue(fields, kind == QUEUE, views),
        DELETION => Ok((|| {
            let number = fields.u32()?;
            let (incarnation, last) = (fields.i64()?, fields.u64()?);
            let incarnation = LogOffset::new(incarnation);
            views.ensure(number);
            *views.queue_mut(QueueNo(number))? = Queue::deleted(incarnation, last);
            Some(fields)
        })()),
        FREE => Ok((|| {
            let number = fields.u32()?;
            views.ensure(number);
            *views.queue_mut(QueueNo(number))? = Queue::default();
            Some(fields)
        })()),
        FACT => Ok((|| {
            let (sequence, home) = (Sequence::new(fields.u64()?), fields.u64()?);
            let (key, value) = (fields.sized()?, fields.sized()?);
            views.facts.restore(key, Some(FactState { value, sequence, home }));
            Some(fields)
        })()),
        NO_FACT => Ok((|| {
            views.facts.restore(fields.sized()?, None);
            Some(fields)
        })()),
        SEGMENT => Ok(take_segment(fields, views)),
        KEYS | KEY_CHANGES => take_keys(fields, kind == KEYS, views),
        _ => Err(Contradiction),
    }
}

fn take_queue<'a>(
    mut fields: Reader<'a>,
    whole: bool,
    views: &mut Views,
) -> Result<Option<Reader<'a>>, Contradiction> {
    let read = (|| {
        let number = fields.u32()?;
        let name = if whole { Some((fields.i64()?, fields.sized()?)) } else { None };
        let (home, min) = (fields.var()?, fields.var()?);
        let segment = (fields.var()?.wrapping_sub(1), fields.var()?);
        let tail_from = fields.var()?;
        let count = fields.var()?;
        let blocks = (0..count).map(|_| take_block(&mut fields)).collect::<Option<Vec<_>>>()?;
        let from = fields.var()?;
        let count = fields.var()?;
        let entries =
            (0..count).map(|_| QueueEntry::take_short(&mut fields)).collect::<Option<Vec<_>>>()?;
        Some((number, name, home, min, segment, tail_from, blocks, from, entries))
    })();
    let Some((number, name, home, min, segment, tail_from, blocks, from, entries)) = read else {
        return Ok(None);
    };
    views.ensure(number);
    let queue = views.queue_mut(QueueNo(number)).ok_or(Contradiction)?;
    if let Some((incarnation, key)) = name {
        *queue = Queue::restored(key, LogOffset::new(incarnation));
    } else if queue.slot != Slot::Live {
        return Err(Contradiction);
    }
    queue.home = home;
    queue.restore_segment(segment);
    queue.restore_entries(tail_from, blocks, (from, &entries)).ok_or(Contradiction)?;
    queue.raise_min(min);
    Ok(Some(fields))
}

fn take_block(fields: &mut Reader<'_>) -> Option<Block> {
    let (at, first) = (fields.var()?, fields.var()?);
    let position = LogOffset::new(fields.var()?.cast_signed())?;
    Some(Block { at, first, position, count: fields.var_u32()? })
}

fn take_segment<'a>(mut fields: Reader<'a>, views: &mut Views) -> Option<Reader<'a>> {
    let (ordinal, end) = (fields.u64()?, fields.u64()?);
    let last_time = EpochMillis::new(fields.i64()?);
    let count = fields.u32()?;
    let steps = (0..count)
        .map(|_| Some((fields.u32()?, EpochMillis::new(fields.i64()?))))
        .collect::<Option<Vec<_>>>()?;
    let index_from = fields.u64()?;
    let count = fields.u32()?;
    let blocks = (0..count)
        .map(|_| Some(EndsBlock { at: fields.u64()?, count: fields.u32()? }))
        .collect::<Option<Vec<_>>>()?;
    views.maps.insert(ordinal, GroupMap::restored(steps, end, last_time));
    views.ends.restore(ordinal, SegmentEnds { index_from, blocks });
    Some(fields)
}

fn take_keys<'a>(
    mut fields: Reader<'a>,
    whole: bool,
    views: &mut Views,
) -> Result<Option<Reader<'a>>, Contradiction> {
    let read = (|| {
        let (number, newest) = (fields.u32()?, LogOffset::new(fields.i64()?));
        let tail_from = fields.u64()?;
        let count = fields.u32()?;
        let blocks = (0..count).map(|_| take_key_block(&mut fields)).collect::<Option<Vec<_>>>()?;
        let from = fields.u64()?;
        let count = fields.u32()?;
        let entries =
            (0..count).map(|_| KeyEntry::take(&mut fields)).collect::<Option<Vec<_>>>()?;
        Some((number, newest, tail_from, blocks, from, entries))
    })();
    let Some((number, newest, tail_from, blocks, from, entries)) = read else {
        return Ok(None);
    };
    let bucket = views.keys.make(number).ok_or(Contradiction)?;
    if whole {
        *bucket = Bucket::restored(tail_from);
    }
    bucket.restore(newest, (tail_from, blocks), (from, &entries)).ok_or(Contradiction)?;
    Ok(Some(fields))
}

fn take_key_block(fields: &mut Reader<'_>) -> Option<KeyBlock> {
    let at = fields.u64()?;
    let first = LogOffset::new(fields.i64()?)?;
    Some(KeyBlock { at, first, count: fields.u32()? })
}
