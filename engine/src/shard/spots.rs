//! Records that are read from the device one by one.
//!
//! A queue whose records lie far apart in the log would have nearly all of the log read for it, chunk by
//! chunk (see `cold`), and again for the next such queue. That pays as long as other readers find what
//! they want in the same chunks. When they do not, which the cache learns from what of a chunk was used
//! before it was dropped, only the blocks of the wanted records are read, many at a time; each record
//! is checked by the checksum that its queue entry has.
//!
//! When many readers want records of the same chunk within a short time, it is read as a whole again.

use std::collections::{HashMap, VecDeque};
use std::io;

use super::cold::{ChunkKey, Miss};
use super::read::UsedBlock;
use super::{Purpose, Shard};
use crate::error::ReadError;
use crate::format::index_block::QueueEntry;
use crate::layout::Place;
use crate::mem::{ChunkTail, RecordSlice, Region};
use crate::op::{FileId, Op, ReadBuffer};
use crate::units::{LogOffset, QueueOffset, index, wide};
use crate::view::QueueNo;
use crate::view::queue::TagFilter;

/// Records that are asked for at once.
const BATCH_MAX: usize = 64;
/// Entries that are looked at for them.
const SCAN_MAX: usize = 4 * BATCH_MAX;
/// Longer records are read with what lies around them.
const LEN_MAX: usize = 16 << 10;
/// Records lie far apart when only one byte in so many, or fewer, is wanted.
const APART: usize = 4;
/// Memory for one record is a multiple of this.
const PAGE: usize = 4096;
/// Reads under way at once while appends go on.
const GENTLE_READS: usize = 4;
/// A chunk is read as a whole when one byte in so many of it was wanted lately: since about so many
/// chunks were looked at as the cache has room for.
const WHOLE: usize = 3;
/// Ticks after which a record that nobody has come for is dropped.
const TICKS_MAX: u32 = 20;

/// A record that was read, with the blocks around it.
struct Spot {
    bytes: RecordSlice,
    /// Bytes before the record.
    skip: usize,
    used: bool,
    /// The tick of its arrival.
    tick: u32,
}

/// A record that is to be read.
struct Wanted {
    batch: usize,
    position: LogOffset,
    place: Place,
    len: usize,
    memory: ChunkTail,
}

/// What a reader waits for.
struct Batch {
    left: usize,
    tokens: Vec<u64>,
}

/// What an operation reads.
#[derive(Clone, Copy)]
pub(super) struct SpotRead {
    batch: usize,
    position: LogOffset,
    ordinal: u64,
    /// Bytes before the record.
    skip: usize,
    /// Bytes of memory that it has.
    room: usize,
}

#[derive(Default)]
pub(super) struct Spots {
    /// By the position of the record.
    kept: HashMap<LogOffset, Spot>,
    /// The same in the order of their arrival.
    order: VecDeque<LogOffset>,
    /// Bytes of memory of what is kept and what is being read.
    bytes: usize,
    /// Records that were read and not used yet, or are being read.
    unused: usize,
    wanted: VecDeque<Wanted>,
    /// Records that are wanted or being read, and the batch that they are in.
    loading: HashMap<LogOffset, usize>,
    batches: slab::Slab<Batch>,
    /// Reads under way by the ordinal of their segment.
    reading: HashMap<u64, usize>,
    /// Bytes that were wanted lately, by chunk.
    lately: HashMap<ChunkKey, usize>,
    ticks: u32,
    /// A read that failed, for the next look-up of its record.
    failed: Option<(LogOffset, String)>,
}

impl Spots {
    pub(super) fn is_loading(&self) -> bool {
        !self.batches.is_empty()
    }

    pub(super) fn is_loading_of(&self, ordinal: u64) -> bool {
        self.reading.contains_key(&ordinal)
            || self.wanted.iter().any(|wanted| wanted.place.ordinal == ordinal)
    }

    fn reading(&self) -> usize {
        self.reading.values().sum()
    }

    /// Makes room for `len` more bytes by dropping what was used, in the order of arrival.
    fn make_room(&mut self, len: usize, budget: usize) -> bool {
        for _ in 0..self.order.len() {
            if self.bytes + len <= budget {
                break;
            }
            let Some(oldest) = self.order.pop_front() else { break };
            match self.kept.get(&oldest) {
                Some(spot) if !spot.used => self.order.push_back(oldest),
                _ => self.drop_kept(oldest),
            }
        }
        self.bytes + len <= budget
    }

    /// Drops what nobody has come for.
    pub(super) fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        let now = self.ticks;
        let given_up = |spot: &Spot| !spot.used && now.wrapping_sub(spot.tick) > TICKS_MAX;
        let old: Vec<_> = self.kept.iter().filter(|(_, spot)| given_up(spot)).collect();
        let old: Vec<LogOffset> = old.into_iter().map(|(&position, _)| position).collect();
        old.into_iter().for_each(|position| self.drop_kept(position));
    }

    fn drop_kept(&mut self, position: LogOffset) {
        if let Some(spot) = self.kept.remove(&position) {
            self.bytes -= spot.bytes.chunk().len();
            self.unused -= usize::from(!spot.used);
        }
    }

    fn keep(&mut self, position: LogOffset, skip: usize, bytes: RecordSlice) {
        self.drop_kept(position);
        self.bytes += bytes.chunk().len();
        self.unused += 1;
        let spot = Spot { bytes, skip, used: false, tick: self.ticks };
        self.kept.insert(position, spot);
        self.order.push_back(position);
    }

    /// A read has ended: what it has brought is counted anew.
    fn ended(&mut self, read: &SpotRead) {
        self.loading.remove(&read.position);
        self.bytes -= read.room;
        self.unused -= 1;
        if let Some(reading) = self.reading.get_mut(&read.ordinal) {
            *reading -= 1;
            if *reading == 0 {
                self.reading.remove(&read.ordinal);
            }
        }
    }

    /// Notes what is wanted of a chunk. True when so much was wanted lately that it pays to read all.
    fn is_wanted_as_a_whole(&mut self, key: ChunkKey, wanted: usize, chunk_len: usize) -> bool {
        let lately = self.lately.entry(key).or_default();
        *lately += wanted;
        *lately * WHOLE > chunk_len
    }
}

impl Shard {
    /// A record that was read by itself.
    pub(super) fn spot(&mut self, entry: &QueueEntry) -> Option<Result<RecordSlice, Miss>> {
        let position = entry.position;
        if let Some((_, cause)) = self.spots.failed.take_if(|(failed, _)| *failed == position) {
            return Some(Err(Miss::Failed(ReadError::Io(cause))));
        }
        let spot = self.spots.kept.get_mut(&position)?;
        let first_use = !std::mem::replace(&mut spot.used, true);
        self.spots.unused -= usize::from(first_use);
        let record = spot.bytes.part(spot.skip..spot.skip + index(u64::from(entry.len)));
        if let Some(record) = record.filter(|record| crate::crc::crc32c(record) == entry.crc) {
            return Some(Ok(record));
        }
        if first_use {
            self.stats.unreadable += 1;
            tracing::error!(position = position.get(), "the log is damaged");
        }
        Some(Err(Miss::Failed(ReadError::Damaged(position))))
    }

    /// Has the records of a queue from an offset on read by themselves, if they lie far apart and it
    /// does not pay to read all that lies between. False: they are to be read in chunks.
    pub(super) fn load_spots(
        &mut self,
        queue: QueueNo,
        from: QueueOffset,
        filter: &TagFilter,
        token: Option<u64>,
    ) -> bool {
        if !self.cold.is_wasteful() && self.spots.loading.is_empty() {
            return false;
        }
        let wanted = self.entries_ahead(queue, from, filter);
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return false };
        if let Some(&batch) = self.spots.loading.get(&first.position) {
            if let Some(batch) = self.spots.batches.get_mut(batch) {
                batch.tokens.extend(token);
            }
            return true;
        }
        if !self.cold.is_wasteful() {
            return false;
        }
        let span = last.position.get() - first.position.get();
        let bytes: usize = wanted.iter().map(|entry| self.spot_range(entry).1).sum();
        let apart = wanted.len() == 1 || index(span.unsigned_abs()) >= bytes * APART;
        apart && self.start_batch(&wanted, token)
    }

    /// Entries that a reader will come to, as far as they are at hand and their records are not.
    fn entries_ahead(
        &mut self,
        queue: QueueNo,
        from: QueueOffset,
        filter: &TagFilter,
    ) -> Vec<QueueEntry> {
        let max = self.max_offset(queue);
        let (mut used, mut at, mut found) = (UsedBlock::default(), from, Vec::new());
        while at < max && found.len() < BATCH_MAX && at.since(from) < SCAN_MAX {
            let Some(entry) = self.entry_at_hand(queue, at, &mut used) else { break };
            at = at.plus(1);
            if self.tail.start().is_some_and(|tail| entry.position >= tail) {
                break;
            }
            if entry.len > 0 && filter.matches(entry.tag) {
                if index(u64::from(entry.len)) > LEN_MAX {
                    break;
                }
                found.push(entry);
            }
        }
        found
    }

    /// The stretch of blocks around a record: how far before it that begins, and its length.
    fn spot_range(&self, entry: &QueueEntry) -> (usize, usize) {
        let block_len = self.geometry.block_len();
        // Segments, and so positions, begin with a block.
        let skip = index(entry.position.get().unsigned_abs()) % block_len;
        (skip, (skip + index(u64::from(entry.len))).next_multiple_of(block_len))
    }

    fn start_batch(&mut self, entries: &[QueueEntry], token: Option<u64>) -> bool {
        let budget = self.limits.cold_bytes / 4;
        let longest = entries.iter().map(|entry| self.spot_range(entry).1).max().unwrap_or(0);
        let piece = longest.next_multiple_of(PAGE);
        if self.spots.unused * 2 * piece > budget {
            return false;
        }
        self.forget_lately();
        let mut places = Vec::new();
        for (n, entry) in entries.iter().take(budget / 2 / piece).enumerate() {
            let position = entry.position;
            let known = self.spots.kept.contains_key(&position)
                || self.spots.loading.contains_key(&position);
            let Some((place, key, chunk_len)) = self.chunk_around(position) else { break };
            let (skip, len) = self.spot_range(entry);
            let whole = self.spots.is_wanted_as_a_whole(key, len, chunk_len);
            if !known && !whole && !self.cold.has(key) {
                let place = Place { byte: place.byte - wide(skip), ..place };
                places.push((position, place, len));
            } else if n == 0 {
                // It is what the reader waits for.
                if whole {
                    self.cold.note_use(1, 1);
                }
                return false;
            }
        }
        let bytes = places.len() * piece;
        if places.is_empty() || !self.spots.make_room(bytes, budget) {
            return false;
        }
        let batch = self
            .spots
            .batches
            .insert(Batch { left: places.len(), tokens: token.into_iter().collect() });
        self.spots.bytes += bytes;
        self.spots.unused += places.len();
        self.spots.loading.extend(places.iter().map(|(position, ..)| (*position, batch)));
        let memory = ChunkTail::cut(&Region::new(bytes), piece);
        let wanted = places.into_iter().zip(memory);
        self.spots.wanted.extend(wanted.map(|((position, place, len), memory)| Wanted {
            batch,
            position,
            place,
            len,
            memory,
        }));
        self.issue_reads();
        true
    }

    /// What was wanted of chunks that the cache would have dropped by now does not count.
    fn forget_lately(&mut self) {
        if self.spots.lately.len() > self.cold.room() {
            self.spots.lately.clear();
        }
    }

    /// Asks the device for records that are wanted.
    pub(super) fn issue_spot_reads(&mut self, gently: bool) {
        let reads_max = if gently { GENTLE_READS } else { usize::MAX };
        while self.spots.reading() < reads_max
            && let Some(wanted) = self.spots.wanted.pop_front()
        {
            let Wanted { batch, position, place, len, memory } = wanted;
            let ordinal = place.ordinal;
            *self.spots.reading.entry(ordinal).or_default() += 1;
            self.stats.cold_reads += 1;
            self.stats.cold_bytes += wide(len);
            self.stats.spot_reads += 1;
            let start = self.position(place);
            let skip = index((position.get() - start.get()).unsigned_abs());
            let room = memory.room();
            let id = self.op(Purpose::Spot(SpotRead { batch, position, ordinal, skip, room }));
            let (file, buffer) = (FileId::Segment(ordinal), ReadBuffer(memory));
            self.ops.push_back(Op::Read { id, file, at: place.byte, len, buffer });
        }
    }

    /// Gives up what is wanted of a segment and not asked for yet.
    pub(super) fn give_up_spots(&mut self, ordinal: u64) {
        for wanted in std::mem::take(&mut self.spots.wanted) {
            if wanted.place.ordinal != ordinal {
                self.spots.wanted.push_back(wanted);
                continue;
            }
            let Wanted { batch, position, memory, .. } = wanted;
            self.spots.loading.remove(&position);
            self.spots.bytes -= memory.room();
            self.spots.unused -= 1;
            self.one_less(batch);
        }
    }

    /// One record of a batch is not waited for any more.
    fn one_less(&mut self, batch: usize) {
        if let Some(waiting) = self.spots.batches.get_mut(batch) {
            waiting.left -= 1;
            if waiting.left == 0 {
                let Batch { tokens, .. } = self.spots.batches.remove(batch);
                self.ready.extend(tokens);
            }
        }
    }

    pub(super) fn spot_read(
        &mut self,
        read: SpotRead,
        result: io::Result<usize>,
        buffer: Option<ReadBuffer>,
    ) {
        let SpotRead { batch, position, skip, .. } = read;
        self.spots.ended(&read);
        match (result, buffer) {
            (Ok(len), Some(ReadBuffer(mut memory))) => {
                let bytes = memory.freeze(len.min(memory.room()));
                self.spots.keep(position, skip, bytes);
            }
            (Err(cause), _) => self.spots.failed = Some((position, cause.to_string())),
            (Ok(_), None) => {
                self.spots.failed = Some((position, "the read lost its buffer".to_owned()));
            }
        }
        self.one_less(batch);
        self.issue_reads();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{SimDisk, SimShard};
    use crate::error::AppendError;
    use crate::shard::{ReadLimits, ReadOutcome, ShardLimits};
    use crate::units::EpochMillis;

    const QUEUES: usize = 40;
    const RECORDS: usize = 400;
    const LEN: usize = 1000;
    const WANTED: u64 = (QUEUES * RECORDS * LEN) as u64;
    const NOW: EpochMillis = EpochMillis::new(1_000_000);
    /// Later than appends are waited for.
    const LATER: EpochMillis = EpochMillis::new(1_100_000);

    fn drain(sim: &mut SimShard, now: EpochMillis) {
        sim.shard().input_drained(now);
        while sim.step(now) {
            sim.shard().input_drained(now);
        }
    }

    fn record(queue: usize, n: usize) -> [u8; LEN] {
        let mut bytes = [u8::try_from(queue).unwrap(); LEN];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        bytes
    }

    /// A store that has just been opened, with records of its queues in turn.
    fn filled() -> (SimShard, Vec<QueueNo>) {
        let limits = ShardLimits {
            tail_bytes: 1 << 20,
            cold_bytes: 6 << 20,
            group_bytes: 64 << 10,
            ..ShardLimits::default()
        };
        let mut sim = SimDisk::new(5, 1 << 20, limits).open(NOW).unwrap();
        drain(&mut sim, NOW);
        let open = |sim: &mut SimShard, n: usize| {
            let key = format!("queue {n}");
            while sim.shard().open_queue(key.as_bytes(), NOW).is_err() {
                drain(sim, NOW);
            }
            sim.shard().queue(key.as_bytes()).unwrap()
        };
        let queues: Vec<_> = (0..QUEUES).map(|n| open(&mut sim, n)).collect();
        for n in 0..RECORDS {
            for (number, &queue) in queues.iter().enumerate() {
                let bytes = record(number, n);
                while let Err(error) = sim.shard().append(queue, &[&bytes[..]], NOW) {
                    assert!(matches!(error, AppendError::Backlogged), "{error}");
                    drain(&mut sim, NOW);
                }
            }
        }
        drain(&mut sim, NOW);
        sim.shard().start_checkpoint(NOW);
        drain(&mut sim, NOW);
        let mut sim = sim.crash().open(NOW).unwrap();
        drain(&mut sim, LATER);
        let queues = (0..QUEUES).map(|n| open(&mut sim, n)).collect();
        (sim, queues)
    }

    /// Reads some more of a queue; gives how many records that was.
    fn read(sim: &mut SimShard, (number, queue): (usize, QueueNo), from: usize) -> usize {
        let limits = ReadLimits { records_max: 32, bytes_max: 1 << 20, scanned_max: 1000 };
        let offset = QueueOffset::new(i64::try_from(from).unwrap()).unwrap();
        loop {
            let mut found = Vec::new();
            let shard = sim.shard();
            match shard.read_records(queue, offset, &limits, &TagFilter::All, 7, &mut found) {
                ReadOutcome::Found { .. } => {
                    for (n, stored) in (from..).zip(&found) {
                        assert_eq!(*stored.bytes, record(number, n), "{n} of queue {number}");
                    }
                    return found.len();
                }
                ReadOutcome::Pending => {
                    let mut ready = Vec::new();
                    while ready.is_empty() {
                        sim.shard().take_ready(&mut ready);
                        assert!(sim.step(LATER) || !ready.is_empty(), "it waits for nothing");
                        sim.shard().input_drained(LATER);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn queues_that_lie_apart_are_read_one_after_another_without_all_that_lies_between() {
        let (mut sim, queues) = filled();
        for queue in queues.into_iter().enumerate() {
            let mut from = 0;
            while from < RECORDS {
                from += read(&mut sim, queue, from);
            }
        }
        let stats = sim.shard().stats();
        assert!(stats.cold_bytes < 4 * WANTED, "{stats:?}");
        assert!(stats.spot_reads > 1000, "{stats:?}");
    }

    #[test]
    fn readers_side_by_side_share_what_is_read() {
        let (mut sim, queues) = filled();
        let mut from = [0; QUEUES];
        while from.iter().any(|&from| from < RECORDS) {
            for queue in queues.iter().copied().enumerate() {
                if from[queue.0] < RECORDS {
                    from[queue.0] += read(&mut sim, queue, from[queue.0]);
                }
            }
        }
        let stats = sim.shard().stats();
        assert!(stats.cold_bytes < 2 * WANTED, "{stats:?}");
    }
}
