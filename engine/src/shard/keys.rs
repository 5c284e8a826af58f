//! Searching for records by key.
//!
//! A search goes from the newest record back to the oldest: the newest entries of the key's bucket,
//! then its blocks one by one, a few of them read ahead. An entry whose part of the hash fits leads to
//! a record; it counts if its queue still has it and the caller says that it has the key. The search is
//! a value of the caller's, repeated when its token comes, so that any number of them costs the shard
//! no memory.
//!
//! A time is a position of the log, exactly (see `time`), so a search within a time looks only at
//! blocks that have entries of it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cold::Miss;
use super::read::{StoredRecord, find_record};
use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::index_block::{self, KeyEntry};
use crate::mem::{ChunkTail, RecordSlice};
use crate::op::{FileId, Op, ReadBuffer};
use crate::record::KeyHash;
use crate::units::{EpochMillis, LogOffset, index};
use crate::view::QueueNo;
use crate::view::keys::{KeyBlock, bucket_of, mark_of};

/// Blocks that one search has read at once.
const READS_MAX: usize = 8;
/// Blocks and records that one call looks at, so that no turn of the shard is long.
const STEPS_MAX: usize = 64;
/// Reads start and end at multiples of this.
const READ_ALIGN: u64 = 4096;

/// When a search for a key stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// Records to give at most.
    pub records_max: u32,
    /// Bytes to give at most; the first record is given whatever its length.
    pub bytes_max: usize,
    /// Records to look at at most, whether they have the key or only its hash.
    pub scanned_max: u32,
}

impl Default for KeyLimits {
    /// 64 records or 4 MiB, from at most 1,024 that are looked at.
    fn default() -> Self {
        Self { records_max: 64, bytes_max: 4 << 20, scanned_max: 1024 }
    }
}

/// A record that was found by its key.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// Its queue.
    pub queue: QueueNo,
    /// When it was stored.
    pub store_time: EpochMillis,
    /// The record, in memory of its own.
    pub record: StoredRecord,
}

/// What a call of [`Shard::search_key`] has led to.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// The search is over; [`KeySearch::into_found`] has what it found.
    Done,
    /// The device is being read, or other work goes first; repeat the call when the token comes from
    /// [`Shard::take_ready`].
    Pending,
    /// The index or a record could not be read.
    Failed(ReadError),
}

/// Blocks that were read for a search, by their place in the index.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox(Arc<Mutex<Arrivals>>);

#[derive(Debug, Default)]
struct Arrivals {
    token: u64,
    arrived: Vec<(u64, Result<RecordSlice, ReadError>)>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Arrivals> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A search for the records of one shard that have a key, newest first.
#[derive(Debug)]
pub struct KeySearch {
    hash: KeyHash,
    times: (EpochMillis, EpochMillis),
    limits: KeyLimits,
    /// Where the log ended when the search began: what comes later is not looked for.
    end: Option<LogOffset>,
    /// The positions that the times stand for, once they are known: from the first to before the
    /// second.
    range: Option<(LogOffset, LogOffset)>,
    /// Entries of blocks at or behind this byte of the index have been taken; `None` before those in
    /// memory have.
    blocks_to: Option<u64>,
    /// Where records may be that have the key, oldest first, of what was taken last.
    places: Vec<LogOffset>,
    /// The place that was looked at last: a record may be listed twice.
    last: Option<LogOffset>,
    inbox: Inbox,
    /// The blocks that are being read.
    reading: Vec<u64>,
    scanned: u32,
    bytes: usize,
    complete: bool,
    found: Vec<FoundRecord>,
}

impl KeySearch {
    /// A search for records that were stored at or after the first time and not later than the
    /// second.
    pub fn new(hash: KeyHash, times: (EpochMillis, EpochMillis), limits: KeyLimits) -> Self {
        Self {
            hash,
            times,
            limits,
            end: None,
            range: None,
            blocks_to: None,
            places: Vec::new(),
            last: None,
            inbox: Inbox::default(),
            reading: Vec::new(),
            scanned: 0,
            bytes: 0,
            complete: false,
            found: Vec::new(),
        }
    }

    /// True when the search has gone back to the first time; false when a limit has ended it, or
    /// nothing has yet.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// What was found, newest first.
    pub fn into_found(self) -> Vec<FoundRecord> {
        self.found
    }

    fn is_full(&self) -> bool {
        let records = self.found.len() >= index(u64::from(self.limits.records_max));
        let bytes = !self.found.is_empty() && self.bytes >= self.limits.bytes_max;
        records || bytes || self.scanned >= self.limits.scanned_max
    }

    /// Takes the places of entries, oldest first, that may lead to the key.
    fn take(&mut self, entries: impl Iterator<Item = KeyEntry>) {
        let (from, to) = self.range.unwrap_or((LogOffset::START, LogOffset::START));
        let mark = mark_of(self.hash);
        let fits = |entry: &KeyEntry| {
            let position = entry.position();
            entry.mark() == mark && from <= position && position < to
        };
        self.places.extend(entries.filter(fits).map(|entry| entry.position()));
    }
}

impl Shard {
    /// Goes on with a search. `has_key` says whether a stored record really has the key, since
    /// different keys may have the same hash.
    pub fn search_key(
        &mut self,
        search: &mut KeySearch,
        has_key: impl Fn(&[u8]) -> bool,
        token: u64,
    ) -> KeyOutcome {
        search.inbox.lock().token = token;
        for _ in 0..STEPS_MAX {
            match self.search_step(search, &has_key, token) {
                Ok(false) => {}
                Ok(true) => return KeyOutcome::Done,
                Err(Miss::Pending) => return KeyOutcome::Pending,
                // Nothing was ever stored where the search leads to.
                Err(Miss::Outside) => {
                    search.complete = true;
                    return KeyOutcome::Done;
                }
                Err(Miss::Failed(error)) => return KeyOutcome::Failed(error),
            }
        }
        self.ready.push(token);
        KeyOutcome::Pending
    }

    /// Looks at one record, or takes the entries of one block. True at the end.
    fn search_step(
        &mut self,
        search: &mut KeySearch,
        has_key: &impl Fn(&[u8]) -> bool,
        token: u64,
    ) -> Result<bool, Miss> {
        if search.range.is_none() {
            let end = *search.end.get_or_insert(self.committed_end());
            search.range = Some(self.positions_of(search.times, end, token)?);
        }
        if search.is_full() {
            return Ok(true);
        }
        if let Some(&position) = search.places.last() {
            if search.last != Some(position) {
                self.look_at(search, position, has_key, token)?;
            }
            search.last = Some(position);
            search.places.pop();
            return Ok(false);
        }
        search.complete = !self.take_older(search)?;
        Ok(search.complete)
    }

    /// The positions of the records that were stored within a time and lie before `log_end`.
    fn positions_of(
        &mut self,
        (begin, end): (EpochMillis, EpochMillis),
        log_end: LogOffset,
        token: u64,
    ) -> Result<(LogOffset, LogOffset), Miss> {
        let from = self.first_since(begin, token)?.unwrap_or(log_end);
        let behind = end.get().checked_add(1).map(EpochMillis::new);
        let to = match behind.filter(|_| end < self.committed_time()) {
            Some(behind) => self.first_since(behind, token)?.unwrap_or(log_end),
            None => log_end,
        };
        Ok((from, to.min(log_end)))
    }

    /// Looks at the record at a position: whether it is there, and has the key.
    fn look_at(
        &mut self,
        search: &mut KeySearch,
        position: LogOffset,
        has_key: &impl Fn(&[u8]) -> bool,
        token: u64,
    ) -> Result<(), Miss> {
        let found = match self.record_at(position, token) {
            Ok(found) => found,
            // Retention has taken its segment, or damage has hit it.
            Err(Miss::Outside | Miss::Failed(ReadError::Damaged(_))) => None,
            Err(miss) => return Err(miss),
        };
        search.scanned += 1;
        if let Some(found) = found.filter(|found| has_key(&found.record.bytes)) {
            search.bytes += found.record.bytes.len();
            if search.found.is_empty() || search.bytes <= search.limits.bytes_max {
                // A copy, since the memory around it may be a hundred times as much.
                let bytes = found.record.bytes.detached();
                let record = StoredRecord { bytes, ..found.record };
                search.found.push(FoundRecord { record, ..found });
            }
        }
        Ok(())
    }

    /// The record that starts at a position, if it belongs to a queue that still has it.
    fn record_at(&mut self, position: LogOffset, token: u64) -> Result<Option<FoundRecord>, Miss> {
        let (base, groups) = self.groups_at(position, token)?;
        let found = find_record(base, &groups, position, self.geometry.block_len());
        let Some((header, entry, bytes)) = found else { return Ok(None) };
        let has_it = self.views.queue(QueueNo(entry.queue)).is_some_and(|queue| {
            // A queue that was deleted may have left its number to another one.
            let its_own = queue.incarnation().is_none_or(|opened| opened <= position);
            let offsets = queue.min()..queue.visible();
            its_own && offsets.contains(&entry.queue_offset)
        });
        let record = StoredRecord {
            queue_offset: super::offset(entry.queue_offset),
            log_offset: position,
            tag: entry.tag,
            bytes,
        };
        let (queue, store_time) = (QueueNo(entry.queue), header.store_time);
        Ok(has_it.then_some(FoundRecord { queue, store_time, record }))
    }

    /// Takes the entries of the next older block. False when there is none.
    fn take_older(&mut self, search: &mut KeySearch) -> Result<bool, Miss> {
        let number = bucket_of(search.hash);
        let Some(bucket) = self.views.keys.bucket(number) else { return Ok(false) };
        let Some(blocks_to) = search.blocks_to else {
            search.take(bucket.tail().iter().copied());
            // What is in memory now goes to a block at or behind this byte.
            search.blocks_to = Some(self.views.index.next());
            return Ok(true);
        };
        let older = older_blocks(bucket.blocks(), search, blocks_to);
        let Some(&block) = older.first() else { return Ok(false) };
        let head = block.head(number);
        let bytes = match self.views.index.block(block.at, &head) {
            Some(found) => found.ok(),
            None => {
                let arrived = self.arrived(search, number, &older)?;
                index_block::is_sound(&arrived, &head).then_some(arrived)
            }
        };
        let Some(bytes) = bytes else {
            self.views.index.forget(block.at);
            self.distrust_checkpoints();
            let what = format!("the index is damaged at byte {}", block.at);
            return Err(Miss::Failed(ReadError::Io(what)));
        };
        search.take(index_block::key_entries(&bytes));
        search.blocks_to = Some(block.at);
        Ok(true)
    }

    /// The first of some blocks, if it has been read; otherwise as many of them are being read from
    /// here on as a search may.
    fn arrived(
        &mut self,
        search: &mut KeySearch,
        bucket: u32,
        blocks: &[KeyBlock],
    ) -> Result<RecordSlice, Miss> {
        let Some(block) = blocks.first() else { return Err(Miss::Outside) };
        let arrived = {
            let mut inbox = search.inbox.lock();
            let n = inbox.arrived.iter().position(|(at, _)| *at == block.at);
            n.map(|n| inbox.arrived.swap_remove(n).1)
        };
        if let Some(bytes) = arrived {
            search.reading.retain(|&at| at != block.at);
            return bytes.map_err(Miss::Failed);
        }
        for block in blocks {
            let (at, head) = (block.at, block.head(bucket));
            let here = self.views.index.block(at, &head).is_some();
            if !here && !search.reading.contains(&at) && search.reading.len() < READS_MAX {
                search.reading.push(at);
                self.read_key_block(at, head.len(), search.inbox.clone());
            }
        }
        Err(Miss::Pending)
    }

    fn read_key_block(&mut self, at: u64, len: usize, inbox: Inbox) {
        let from = at / READ_ALIGN * READ_ALIGN;
        let range = index(at - from)..index(at - from) + len;
        let len = range.end.next_multiple_of(index(READ_ALIGN));
        let id = self.op(Purpose::KeyRead { at, range, inbox });
        let buffer = ReadBuffer(ChunkTail::alone(len));
        self.ops.push_back(Op::Read { id, file: FileId::Index, at: from, len, buffer });
    }

    pub(super) fn key_read(
        &mut self,
        (at, range): (u64, Range<usize>),
        inbox: &Inbox,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let block = match (result, buffer) {
            (Ok(len), Some(ReadBuffer(mut memory))) => {
                // A file that ends before has lost a part of the index: what is left is not sound.
                let range = range.start.min(len)..range.end.min(len);
                memory.freeze(len).part(range).ok_or("the read is too long".to_owned())
            }
            (Ok(_), None) => Err("the read lost its buffer".to_owned()),
            (Err(cause), _) => Err(format!("reading the index failed: {cause}")),
        };
        let mut inbox = inbox.lock();
        inbox.arrived.push((at, block.map_err(ReadError::Io)));
        self.ready.push(inbox.token);
    }
}

/// The next blocks that a search has to look at, the newest first: those with entries within its
/// range that lie before a byte of the index.
fn older_blocks(blocks: &[KeyBlock], search: &KeySearch, blocks_to: u64) -> Vec<KeyBlock> {
    let Some((from, to)) = search.range else { return Vec::new() };
    let before = blocks.partition_point(|block| block.at < blocks_to && block.first < to);
    // Only the block before the first one that begins in the range can have entries of it too.
    let begun = blocks.partition_point(|block| block.first < from).saturating_sub(1);
    let wanted = blocks.get(begun..before).unwrap_or_default();
    wanted.iter().rev().take(READS_MAX).copied().collect()
}
