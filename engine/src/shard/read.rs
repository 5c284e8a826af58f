//! Reading: from a queue offset, a position or a time to records.

use super::Shard;
use super::cold::{Found, Miss};
use crate::error::ReadError;
use crate::format::group::{Entry, Group, Header, Kind};
use crate::format::index_block::{self, QueueEntry};
use crate::mem::RecordSlice;
use crate::units::{EpochMillis, LogOffset, QueueOffset, index, wide};
use crate::view::QueueNo;
use crate::view::queue::{Block, EntryPlace, TagFilter};

/// When a read stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Records to give at most.
    pub records_max: u32,
    /// Bytes to give at most; the first record is given whatever its length.
    pub bytes_max: usize,
    /// Entries to look at, matching or not.
    pub scanned_max: u32,
}

/// A record as it lies in the log.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// Its place in the queue. Unit: records.
    pub queue_offset: QueueOffset,
    /// Where it starts in the log. Unit: bytes.
    pub log_offset: LogOffset,
    /// What [`Record::tag`](crate::Record::tag) said.
    pub tag: i64,
    /// Its stored form.
    pub bytes: RecordSlice,
}

/// What a read found.
#[derive(Debug)]
pub enum ReadOutcome {
    /// `count` records of `bytes` bytes are in the caller's vector; read on at `next`.
    Found {
        /// Where to read on.
        next: QueueOffset,
        /// Sum of the record lengths.
        bytes: usize,
        /// Number of records.
        count: u32,
    },
    /// Entries were looked at, none could be given; read on at `next`.
    NoMatch {
        /// Where to read on.
        next: QueueOffset,
    },
    /// The offset is the committed end: nothing there yet.
    AtEnd,
    /// The offset lies behind the committed end.
    BeyondEnd {
        /// The committed end.
        max: QueueOffset,
    },
    /// The offset lies before the first record that is kept.
    BelowMin {
        /// The first offset that can be read.
        min: QueueOffset,
    },
    /// The device is being read; repeat the call when the token comes from
    /// [`Shard::take_ready`].
    Pending,
    /// The record could not be read.
    Failed(ReadError),
}

/// What lies at a position.
#[derive(Debug)]
pub enum ReadAtOutcome {
    /// This record.
    Found(RecordSlice),
    /// No record of a queue starts there, or it is not committed.
    Missing,
    /// As [`ReadOutcome::Pending`].
    Pending,
    /// The record could not be read.
    Failed(ReadError),
}

/// What a search by time found.
#[derive(Debug)]
pub enum SearchOutcome {
    /// The first record that was stored at or after the time; the committed end if there is none.
    Found(QueueOffset),
    /// As [`ReadOutcome::Pending`].
    Pending,
    /// A record on the way could not be read.
    Failed(ReadError),
}

impl Shard {
    /// Reads records of a queue from `from` on into `out`. Records that lie side by side come as
    /// one slice.
    pub fn read(
        &mut self,
        queue: QueueNo,
        from: QueueOffset,
        limits: &ReadLimits,
        filter: &TagFilter,
        token: u64,
        out: &mut Vec<RecordSlice>,
    ) -> ReadOutcome {
        let first_slice = out.len();
        let outcome = self.read_each(queue, from, limits, filter, token, &mut |_, _, slice| {
            push_slice(out, first_slice, slice);
        });
        if self.is_much_pinned() {
            out.iter_mut().skip(first_slice).for_each(|slice| *slice = slice.detached());
        }
        outcome
    }

    /// As [`read`](Self::read), with every record apart, for records that do not tell their own
    /// length.
    pub fn read_records(
        &mut self,
        queue: QueueNo,
        from: QueueOffset,
        limits: &ReadLimits,
        filter: &TagFilter,
        token: u64,
        out: &mut Vec<StoredRecord>,
    ) -> ReadOutcome {
        let first = out.len();
        let outcome =
            self.read_each(queue, from, limits, filter, token, &mut |at, entry, bytes| {
                let (log_offset, tag) = (entry.position, entry.tag);
                out.push(StoredRecord { queue_offset: at, log_offset, tag, bytes });
            });
        if self.is_much_pinned() {
            out.iter_mut().skip(first).for_each(|record| record.bytes = record.bytes.detached());
        }
        outcome
    }

    fn read_each(
        &mut self,
        queue: QueueNo,
        from: QueueOffset,
        limits: &ReadLimits,
        filter: &TagFilter,
        token: u64,
        give: &mut impl FnMut(QueueOffset, &QueueEntry, RecordSlice),
    ) -> ReadOutcome {
        let (min, max) = (self.min_offset(queue), self.max_offset(queue));
        if from < min {
            return ReadOutcome::BelowMin { min };
        }
        if from >= max {
            return if from == max { ReadOutcome::AtEnd } else { ReadOutcome::BeyondEnd { max } };
        }
        let (mut bytes, mut count, mut at) = (0, 0, from);
        let (mut block, mut near) = (UsedBlock::default(), None);
        // Records that cannot be read were passed. What told so may have left memory when the next one
        // has come, and the other way round: a caller who began again would wait for both.
        let mut passed = false;
        while at < max && count < limits.records_max && at.since(from) < scanned(limits) {
            let entry = match self.entry(queue, at, token, &mut block) {
                Ok(entry) => entry,
                Err(Miss::Pending) if count == 0 && !passed => return ReadOutcome::Pending,
                Err(Miss::Failed(error)) if count == 0 => return ReadOutcome::Failed(error),
                Err(_) => break,
            };
            let len = index(u64::from(entry.len));
            if len == 0 || !filter.matches(entry.tag) {
                at = at.plus(1);
                continue;
            }
            if count > 0 && bytes + len > limits.bytes_max {
                break;
            }
            let miss = match self.bytes_at(&entry, &mut near) {
                Ok(Found::Here(slice)) => {
                    slice.prefetch();
                    give(at, &entry, slice);
                    (bytes, count, at) = (bytes + len, count + 1, at.plus(1));
                    continue;
                }
                Ok(Found::On(key)) => {
                    // What is at hand goes out first, and nobody waits yet for what follows.
                    let token = (count == 0 && !passed).then_some(token);
                    let apart = self.load_spots(queue, at, filter, token);
                    if apart { Miss::Pending } else { self.load_chunk(key, token) }
                }
                Err(miss) => miss,
            };
            match miss {
                // Outside: its segment is gone, but what would have raised the minimum was damaged.
                Miss::Failed(ReadError::Damaged(_)) | Miss::Outside => {
                    at = at.plus(1);
                    passed = true;
                }
                _ if count > 0 => break,
                Miss::Pending if passed => break,
                Miss::Pending => return ReadOutcome::Pending,
                Miss::Failed(error) => return ReadOutcome::Failed(error),
            }
        }
        self.cold.note_given(near.as_mut());
        if count > 0 {
            self.stats.read += u64::from(count);
            self.stats.read_bytes += wide(bytes);
            ReadOutcome::Found { next: at, bytes, count }
        } else {
            ReadOutcome::NoMatch { next: at }
        }
    }

    /// Readers may hold at most half of the tail's memory; beyond it they get copies.
    fn is_much_pinned(&mut self) -> bool {
        self.stats.pinned_chunks = self.stats.pinned_chunks.max(wide(self.tail.pinned()));
        self.tail.is_much_pinned()
    }

    /// The entry of a visible offset. `used` keeps the block that it came from for the next call.
    fn entry(
        &mut self,
        queue: QueueNo,
        at: QueueOffset,
        token: u64,
        used: &mut UsedBlock,
    ) -> Result<QueueEntry, Miss> {
        if let Some(entry) = used.entry(at) {
            return Ok(entry);
        }
        let block = match self.entry_place(queue, at).ok_or(Miss::Outside)? {
            EntryPlace::Here(entry) => return Ok(entry),
            EntryPlace::Block(block) => block,
        };
        let bytes = self.index_block(block.at, &block.head(queue.0), Some(token))?;
        used.0 = Some((block, bytes));
        used.entry(at).ok_or(Miss::Outside)
    }

    fn entry_place(&self, queue: QueueNo, at: QueueOffset) -> Option<EntryPlace> {
        self.views.queue(queue)?.entry(u64::try_from(at.get()).ok()?)
    }

    /// As [`entry`](Self::entry), but only if nothing has to be read for it.
    pub(super) fn entry_at_hand(
        &mut self,
        queue: QueueNo,
        at: QueueOffset,
        used: &mut UsedBlock,
    ) -> Option<QueueEntry> {
        if let Some(entry) = used.entry(at) {
            return Some(entry);
        }
        let block = match self.entry_place(queue, at)? {
            EntryPlace::Here(entry) => return Some(entry),
            EntryPlace::Block(block) => block,
        };
        let bytes = self.views.index.block(block.at, &block.head(queue.0))?.ok()?;
        used.0 = Some((block, bytes));
        used.entry(at)
    }

    /// The record of a queue that starts at a position, wherever the position comes from: only a
    /// place where a committed group's table has a record counts.
    pub fn read_at(&mut self, position: LogOffset, token: u64) -> ReadAtOutcome {
        let end = self.views.end(&self.geometry);
        if end.is_none_or(|end| position >= end) {
            return ReadAtOutcome::Missing;
        }
        match self.groups_at(position, token) {
            Ok((base, groups)) => find_record(base, &groups, position, self.geometry.block_len())
                .map_or(ReadAtOutcome::Missing, |(_, _, record)| ReadAtOutcome::Found(record)),
            Err(Miss::Pending) => ReadAtOutcome::Pending,
            Err(Miss::Outside) => ReadAtOutcome::Missing,
            Err(Miss::Failed(error)) => ReadAtOutcome::Failed(error),
        }
    }

    /// When the record at a queue offset was stored.
    ///
    /// # Errors
    ///
    /// [`ReadError`] when the device fails or the log is damaged there.
    pub fn store_time(
        &mut self,
        queue: QueueNo,
        at: QueueOffset,
        token: u64,
    ) -> Result<StoreTime, ReadError> {
        match self.store_time_at(queue, at, token) {
            Ok(time) => Ok(StoreTime::At(time)),
            Err(Miss::Pending) => Ok(StoreTime::Pending),
            Err(Miss::Outside) => Ok(StoreTime::Missing),
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    fn store_time_at(
        &mut self,
        queue: QueueNo,
        at: QueueOffset,
        token: u64,
    ) -> Result<EpochMillis, Miss> {
        let entry = self.entry(queue, at, token, &mut UsedBlock::default())?;
        let (base, groups) = self.groups_at(entry.position, token)?;
        headers(base, &groups, self.geometry.block_len())
            .find(|(_, header, padded)| entry.position < header.position.plus(*padded))
            .map(|(_, header, _)| header.store_time)
            .ok_or(Miss::Outside)
    }
}

/// The block that the last entry of a queue came from: the next one is most likely in it, too.
#[derive(Default)]
pub(super) struct UsedBlock(Option<(Block, RecordSlice)>);

impl UsedBlock {
    fn entry(&self, at: QueueOffset) -> Option<QueueEntry> {
        let (block, bytes) = self.0.as_ref()?;
        let at = u64::try_from(at.get()).ok().filter(|&at| at < block.end())?;
        index_block::entry(bytes, index(at.checked_sub(block.first)?))
    }
}

/// What is known of a record's store time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreTime {
    /// This time.
    At(EpochMillis),
    /// The queue has no record there.
    Missing,
    /// As [`ReadOutcome::Pending`].
    Pending,
}

fn scanned(limits: &ReadLimits) -> usize {
    index(u64::from(limits.scanned_max.max(1)))
}

fn push_slice(out: &mut Vec<RecordSlice>, first: usize, slice: RecordSlice) {
    let joined =
        out.get_mut(first..).and_then(<[_]>::last_mut).is_some_and(|last| last.join(&slice));
    if !joined {
        out.push(slice);
    }
}

/// The headers of checked groups that lie back to back, with their place in the bytes.
pub(super) fn headers(
    base: LogOffset,
    groups: &RecordSlice,
    block_len: usize,
) -> impl Iterator<Item = (usize, Header, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = groups.get(at..).filter(|rest| !rest.is_empty())?;
            let header = Header::read(rest).map(|(header, _)| header);
            let Some(header) = header.filter(|header| header.position == base.plus(at)) else {
                // Damage: the next group that can be read starts at some later block.
                at += block_len;
                continue;
            };
            let padded = header.padded_len(block_len);
            let here = (at, header, padded);
            at += padded;
            return Some(here);
        }
    })
}

/// The record of a queue that starts at a position in checked groups, and what header and table say of
/// it.
pub(super) fn find_record(
    base: LogOffset,
    groups: &RecordSlice,
    position: LogOffset,
    block_len: usize,
) -> Option<(Header, Entry, RecordSlice)> {
    let (at, header, _) = headers(base, groups, block_len)
        .find(|(_, header, padded)| position < header.position.plus(*padded))?;
    let group = Group::parse(groups.get(at..)?)?;
    let record = group.records().find(|record| record.position == position)?;
    if record.entry.kind != Kind::Message || !record.is_sound() {
        return None;
    }
    let start = at + index(u64::try_from(position.get() - header.position.get()).ok()?);
    let bytes = groups.part(start..start + record.bytes.len())?;
    Some((header, record.entry, bytes))
}
