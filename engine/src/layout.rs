//! Where things are: shards of queues, segments of positions.

use crate::format::manifest::Manifest;
use crate::units::{EpochMillis, LogOffset, index, wide};

/// Which shard a queue belongs to: `(hash(topic) + queue id) mod shards`, so that the queues of
/// one topic differ by at most one per shard. The hash is FNV-1a (32 bits), named in the manifest.
///
/// # Panics
///
/// When `shards` is 0.
pub fn shard_of(topic: &[u8], queue_id: u32, shards: u32) -> u32 {
    assert!(shards > 0, "a store has at least one shard");
    let hash = topic
        .iter()
        .fold(0x811C_9DC5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.wrapping_add(queue_id) % shards
}

/// The numbers that turn positions into places of one shard and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    store: u128,
    shards: u32,
    shard: u32,
    segment_len: u64,
    block_len: u32,
}

/// A place in a shard's log: the segment's ordinal and a byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) ordinal: u64,
    pub(crate) byte: u64,
}

impl Geometry {
    pub(crate) fn new(manifest: &Manifest, shard: u32) -> Self {
        assert!(shard < manifest.shards, "shard {shard} of {}", manifest.shards);
        Self {
            store: manifest.store,
            shards: manifest.shards,
            shard,
            segment_len: manifest.segment_len,
            block_len: manifest.block_len,
        }
    }

    pub(crate) fn store(&self) -> u128 {
        self.store
    }

    /// Number of this shard.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Bytes of a segment.
    pub fn segment_len(&self) -> u64 {
        self.segment_len
    }

    /// Bytes of a block: groups start at its multiples.
    pub fn block_len(&self) -> usize {
        index(u64::from(self.block_len))
    }

    /// The position of a place. `None` when a signed 64-bit number cannot carry it.
    pub(crate) fn position(&self, place: Place) -> Option<LogOffset> {
        let segment = place
            .ordinal
            .checked_mul(u64::from(self.shards))?
            .checked_add(u64::from(self.shard))?
            .checked_mul(self.segment_len)?;
        LogOffset::new(i64::try_from(segment.checked_add(place.byte)?).ok()?)
    }

    /// The place of a position; `None` when it lies on another shard.
    pub(crate) fn place(&self, position: LogOffset) -> Option<Place> {
        let bytes = u64::try_from(position.get()).ok()?;
        let segment = bytes / self.segment_len;
        let shards = u64::from(self.shards);
        (segment % shards == u64::from(self.shard))
            .then(|| Place { ordinal: segment / shards, byte: bytes % self.segment_len })
    }

    pub(crate) fn shard_of_position(&self, position: LogOffset) -> u32 {
        let bytes = u64::try_from(position.get()).unwrap_or(0);
        let shard = (bytes / self.segment_len) % u64::from(self.shards);
        u32::try_from(shard).expect("a remainder of a 32-bit divisor")
    }

    /// The first block boundary at or behind `len`.
    pub(crate) fn padded(&self, len: usize) -> usize {
        len.next_multiple_of(self.block_len())
    }

    /// The longest group that fits a segment.
    pub(crate) fn group_len_max(&self) -> usize {
        index(self.segment_len)
    }
}

/// How many bytes of a segment one step of its group map covers.
const MAP_STEP: u64 = 256 * 1024;
/// How many steps a chunk has: what is read back from the device at once.
const CHUNK_STEPS: usize = 4;

/// For every 256 KiB of a segment: where the group starts that covers this boundary. From a record's
/// position alone it tells which stretch of whole groups to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupMap {
    starts: Vec<u32>,
    /// Store times of the groups that start there; they never fall.
    times: Vec<EpochMillis>,
    /// Where the last group of the segment ends, and its store time.
    end: u64,
    last_time: EpochMillis,
}

impl GroupMap {
    /// Notes a group at `byte` of the segment. Groups come in order.
    pub(crate) fn note(&mut self, byte: u64, padded_len: usize, store_time: EpochMillis) {
        let end = byte + wide(padded_len);
        if end <= self.end {
            // Replay goes over what a checkpoint knew already.
            return;
        }
        self.end = end;
        self.last_time = store_time;
        while wide(self.starts.len()) * MAP_STEP < self.end {
            self.starts.push(u32::try_from(byte).expect("segments are shorter than 4 GiB"));
            self.times.push(store_time);
        }
    }

    /// Where a chunk starts: with the group that covers its multiple of 1 MiB.
    fn chunk_start(&self, number: u32) -> Option<u64> {
        let at = index(u64::from(number)) * CHUNK_STEPS;
        self.starts.get(at).map(|&start| u64::from(start))
    }

    /// The chunk that holds the group around `byte`.
    pub(crate) fn chunk_of(&self, byte: u64) -> Option<u32> {
        if byte >= self.end {
            return None;
        }
        let steps = MAP_STEP * wide(CHUNK_STEPS);
        let mut number = u32::try_from(byte / steps).ok()?;
        // The group may cover the next border already, or several of them.
        while self.chunk_start(number + 1).is_some_and(|start| start <= byte) {
            number += 1;
        }
        self.chunk_start(number).is_some().then_some(number)
    }

    /// The bytes of a chunk: whole groups. Empty where a group covers all of it.
    pub(crate) fn chunk_range(&self, number: u32) -> Option<(u64, u64)> {
        let start = self.chunk_start(number)?;
        Some((start, self.chunk_start(number + 1).unwrap_or(self.end)))
    }

    /// Forgets what lies at or behind `byte`, where the log has been cut.
    pub(crate) fn cut(&mut self, byte: u64) {
        self.starts.truncate(index(byte.div_ceil(MAP_STEP)));
        self.times.truncate(self.starts.len());
        self.end = self.end.min(byte);
    }

    /// The stretch in which the first group begins that was stored at or after `time`, which must not
    /// be later than the last one: it begins in it or at its end.
    pub(crate) fn step_around(&self, time: EpochMillis) -> (u64, u64) {
        let after = self.times.partition_point(|&step| step < time);
        let start = |step: usize| self.starts.get(step).map(|&start| u64::from(start));
        let from = after.checked_sub(1).and_then(start).unwrap_or(0);
        (from, start(after).unwrap_or(self.end).max(from))
    }

    /// Store time of the segment's newest group.
    pub(crate) fn last_time(&self) -> EpochMillis {
        self.last_time
    }

    /// Where the last group ends: nothing behind it is part of the log.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Starts of the groups at the steps, and their store times.
    pub(crate) fn steps(&self) -> impl ExactSizeIterator<Item = (u32, EpochMillis)> + '_ {
        self.starts.iter().copied().zip(self.times.iter().copied())
    }

    pub(crate) fn restored(
        steps: impl IntoIterator<Item = (u32, EpochMillis)>,
        end: u64,
        last_time: EpochMillis,
    ) -> Self {
        let (starts, times) = steps.into_iter().unzip();
        Self { starts, times, end, last_time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_dense_over_shards_and_turn_back_into_places() {
        let manifest = Manifest {
            store: 1,
            shards: 3,
            segment_len: 1 << 20,
            block_len: 512,
            created_ms: 0,
            acknowledge: crate::shard::Acknowledge::Durable,
            budget_bytes: 0,
        };
        let mut all = Vec::new();
        for shard in 0..3 {
            let geometry = Geometry::new(&manifest, shard);
            for ordinal in 0..4 {
                let place = Place { ordinal, byte: 512 };
                let position = geometry.position(place).unwrap();
                assert_eq!(geometry.place(position), Some(place));
                assert_eq!(geometry.shard_of_position(position), shard);
                all.push(position.get());
            }
        }
        all.sort_unstable();
        assert_eq!(all, (0..12).map(|n| (n << 20) + 512).collect::<Vec<_>>());
    }

    #[test]
    fn a_position_that_no_client_could_carry_is_refused() {
        let manifest = Manifest {
            store: 1,
            shards: 1,
            segment_len: 1 << 28,
            block_len: 512,
            created_ms: 0,
            acknowledge: crate::shard::Acknowledge::Durable,
            budget_bytes: 0,
        };
        let geometry = Geometry::new(&manifest, 0);
        assert!(geometry.position(Place { ordinal: u64::MAX >> 20, byte: 0 }).is_none());
    }

    #[test]
    fn the_queues_of_a_topic_spread_evenly() {
        for shards in 1..=5 {
            let mut counts = [0; 5];
            for queue in 0..8 {
                counts[shard_of(b"TopicTest", queue, shards) as usize] += 1;
            }
            let used = &counts[..shards as usize];
            assert!(used.iter().max().unwrap() - used.iter().min().unwrap() <= 1, "{used:?}");
        }
    }

    #[test]
    fn chunks_cover_every_group_once_and_whole() {
        let mut map = GroupMap::default();
        let mut groups = Vec::new();
        let mut byte = 0;
        for n in 0..400 {
            // Some groups are longer than a chunk.
            let blocks = if n % 90 == 7 { 9000 } else { 1 + (n * 7) % 900 };
            let len = 512 * blocks;
            map.note(byte, index(len), EpochMillis::new(n.cast_signed()));
            groups.push((byte, byte + len));
            byte += len;
        }
        assert_eq!(map.chunk_of(byte), None);
        for &(start, end) in &groups {
            for probe in [start, (start + end) / 2, end - 1] {
                let (from, to) = map.chunk_of(probe).and_then(|n| map.chunk_range(n)).unwrap();
                assert!(from <= start && end <= to, "{probe}: {from}..{to} of {start}..{end}");
                assert!(groups.iter().any(|&(start, _)| start == from));
            }
        }
        let ranges = (0..).map_while(|n| map.chunk_range(n));
        let mut covered = 0;
        for (from, to) in ranges {
            assert_eq!(from, covered);
            covered = to;
        }
        assert_eq!(covered, byte);
    }
}
