//! What the log means: queues, facts and where groups start.
//!
//! A view changes only when a group reaches the committed frontier, live and in recovery by the
//! same code, so that nothing above the frontier is ever seen and cutting the log needs no undo.

pub(crate) mod facts;
pub(crate) mod index;
pub(crate) mod queue;

use std::collections::{BTreeMap, HashMap};

use crate::format::group::{Group, GroupRecord, Kind};
use crate::format::index_block::QueueEntry;
use crate::format::payload;
use crate::layout::{GroupMap, Place};
use crate::units::{EpochMillis, LogOffset, Sequence, index as to_index};
use facts::Facts;
use index::Index;
use queue::Queue;

/// A queue of one shard, as long as the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNo(pub(crate) u32);

/// How far the views have followed the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) sequence: Sequence,
    pub(crate) header_crc: u32,
    /// Where the last covered group lies.
    pub(crate) place: Place,
    /// Where the next group starts if it follows in the same segment.
    pub(crate) next: Place,
    pub(crate) store_time: EpochMillis,
    pub(crate) epoch: u64,
}

impl Covered {
    pub(crate) fn nothing() -> Self {
        let start = Place { ordinal: 0, byte: 0 };
        Self {
            sequence: Sequence::default(),
            header_crc: 0,
            place: start,
            next: start,
            store_time: EpochMillis::default(),
            epoch: 0,
        }
    }
}

pub(crate) struct Views {
    pub(crate) covered: Covered,
    pub(crate) queues: Vec<Queue>,
    pub(crate) by_key: HashMap<Box<[u8]>, QueueNo>,
    pub(crate) facts: Facts,
    pub(crate) index: Index,
    pub(crate) maps: BTreeMap<u64, GroupMap>,
    /// Records that recovery found damaged.
    pub(crate) unreadable: u64,
}

impl Views {
    pub(crate) fn empty() -> Self {
        Self {
            covered: Covered::nothing(),
            queues: Vec::new(),
            by_key: HashMap::new(),
            facts: Facts::default(),
            index: Index::default(),
            maps: BTreeMap::new(),
            unreadable: 0,
        }
    }

    pub(crate) fn queue(&self, queue: QueueNo) -> Option<&Queue> {
        self.queues.get(to_index(u64::from(queue.0)))
    }

    pub(crate) fn queue_mut(&mut self, queue: QueueNo) -> Option<&mut Queue> {
        self.queues.get_mut(to_index(u64::from(queue.0)))
    }

    /// Makes a group's records visible. Tokens of waiters that it satisfies go to `woken`.
    ///
    /// With `check`, a record whose checksum fails keeps its queue offset and becomes unreadable.
    pub(crate) fn apply(
        &mut self,
        group: &Group<'_>,
        place: Place,
        padded_len: usize,
        check: bool,
        woken: &mut Vec<u64>,
    ) {
        let header = &group.header;
        self.maps.entry(place.ordinal).or_default().note(place.byte, padded_len);
        for record in group.records() {
            let sound = !check || record.is_sound();
            self.unreadable += u64::from(!sound);
            match record.entry.kind {
                Kind::Message => self.apply_message(&record, sound, header.sequence, woken),
                Kind::Fact if sound => {
                    if let Some((key, value)) = payload::parse_fact(record.bytes) {
                        self.facts.apply(key, value, header.sequence);
                    }
                }
                Kind::QueueOpen if sound => self.apply_open(&record),
                Kind::Fact | Kind::QueueOpen | Kind::Note => {}
            }
        }
        self.covered = Covered {
            sequence: header.sequence,
            header_crc: group.header_crc,
            place,
            next: Place { byte: place.byte + crate::units::wide(padded_len), ..place },
            store_time: header.store_time,
            epoch: header.epoch,
        };
    }

    fn apply_message(
        &mut self,
        record: &GroupRecord<'_>,
        sound: bool,
        sequence: Sequence,
        woken: &mut Vec<u64>,
    ) {
        let number = record.entry.queue;
        self.ensure(number);
        let queue =
            self.queues.get_mut(to_index(u64::from(number))).expect("ensured in the line before");
        // Offsets that damage has swallowed stay taken, so that the ones behind keep theirs.
        while queue.visible() < record.entry.queue_offset {
            let gap = QueueEntry { position: record.position, len: 0, tag: 0 };
            queue.push(gap, number, sequence, &mut self.index);
        }
        if queue.visible() > record.entry.queue_offset {
            return;
        }
        let len = if sound { record.entry.len } else { 0 };
        let entry = QueueEntry { position: record.position, len, tag: record.entry.tag };
        queue.push(entry, number, sequence, &mut self.index);
        if sound && queue.has_waiters() {
            queue.wake(record.entry.tag, woken);
        }
    }

    /// Counts a record that is appended but not committed, after the views were taken back.
    pub(crate) fn reappend(&mut self, record: &GroupRecord<'_>, sequence: Sequence) {
        match record.entry.kind {
            Kind::Message => {
                if let Some(queue) = self.queue_mut(QueueNo(record.entry.queue)) {
                    queue.advance(1);
                }
            }
            Kind::Fact => {
                if let Some((key, value)) = payload::parse_fact(record.bytes) {
                    self.facts.appended(key, value, sequence);
                }
            }
            Kind::QueueOpen if self.queue(QueueNo(record.entry.queue)).is_some() => {}
            Kind::QueueOpen => {
                if let Some((incarnation, key)) = payload::parse_queue_open(record.bytes) {
                    self.queues.push(Queue::opened(key, incarnation));
                    self.by_key.insert(key.into(), QueueNo(record.entry.queue));
                }
            }
            Kind::Note => {}
        }
    }

    fn apply_open(&mut self, record: &GroupRecord<'_>) {
        let Some((incarnation, key)) = payload::parse_queue_open(record.bytes) else { return };
        self.ensure(record.entry.queue);
        if let Some(queue) = self.queues.get_mut(to_index(u64::from(record.entry.queue))) {
            queue.name(key, incarnation);
            self.by_key.insert(key.into(), QueueNo(record.entry.queue));
        }
    }

    /// Queues are numbered densely; damage can hide an opening, then the number has no key.
    fn ensure(&mut self, number: u32) {
        while self.queues.len() <= to_index(u64::from(number)) {
            self.queues.push(Queue::unnamed());
        }
    }

    /// True when every block that a queue names is sound in the index file, which `read` reads.
    pub(crate) fn index_is_sound(
        &self,
        read: &mut dyn FnMut(u64, &mut [u8]) -> std::io::Result<usize>,
    ) -> bool {
        let mut owners: Vec<(u32, u32, u64)> = Vec::new();
        for (number, queue) in (0..).zip(&self.queues) {
            let (from, blocks) = queue.blocks();
            let firsts = (from..).step_by(crate::format::index_block::BLOCK_ENTRIES);
            owners.extend(blocks.iter().zip(firsts).map(|(&block, first)| (block, number, first)));
        }
        owners.sort_unstable();
        let mut piece = crate::mem::ChunkTail::alone(index::PIECE_LEN);
        let (mut piece_from, mut piece_len) = (0, 0);
        owners.iter().all(|&(block, queue, first)| {
            const BLOCK_LEN: usize = crate::format::index_block::BLOCK_LEN;
            let at = u64::from(block) * crate::units::wide(BLOCK_LEN);
            if at < piece_from || at + crate::units::wide(BLOCK_LEN) > piece_from + piece_len {
                piece_from = at;
                piece_len = read(at, piece.buffer()).map_or(0, crate::units::wide);
            }
            let start = to_index(at - piece_from);
            let bytes = piece.buffer().get(start..start + BLOCK_LEN).unwrap_or_default();
            at + crate::units::wide(BLOCK_LEN) <= piece_from + piece_len
                && crate::format::index_block::is_sound(bytes, queue, first)
        })
    }

    /// The position right behind everything that is visible.
    pub(crate) fn end(&self, geometry: &crate::Geometry) -> Option<LogOffset> {
        geometry.position(self.covered.next)
    }
}
