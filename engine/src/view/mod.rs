//! What the log means: queues, facts and where groups start.
//!
//! A view changes only when a group reaches the committed frontier, live and in recovery by the
//! same code, so that nothing above the frontier is ever seen and cutting the log needs no undo.
//! Applying a group again changes nothing: a record whose queue offset is known already, an older
//! value of a fact and a state of a queue that is deleted are passed over. Checkpoints rest on this,
//! for they are written bit by bit while the log goes on.
//!
//! What lives in a segment is what has its home there: the last record that says it, copies aside. Of
//! what was logged at the end of a segment only the last copies may lie behind it, within one group.

pub(crate) mod ends;
pub(crate) mod facts;
pub(crate) mod index;
pub(crate) mod keys;
pub(crate) mod queue;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::format::group::{Entry, Group, GroupRecord, Kind};
use crate::format::index_block::QueueEntry;
use crate::format::payload::{self, QueueState};
use crate::layout::{GroupMap, Place};
use crate::units::{EpochMillis, LogOffset, Sequence, index as to_index, narrow, wide};
use ends::Ends;
use facts::Facts;
use index::Index;
use keys::{Keys, KeysAhead};
use queue::{Queue, Slot};

/// Queues that one look for idle tails visits.
const SPILL_VISITS: usize = 2000;

/// A queue of one shard, as long as the store is open and the queue is not deleted.
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
    /// Nothing is covered of a log that begins with this segment.
    pub(crate) fn nothing(first: u64) -> Self {
        let start = Place { ordinal: first, byte: 0 };
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
    pub(crate) keys: Keys,
    pub(crate) index: Index,
    pub(crate) maps: BTreeMap<u64, GroupMap>,
    pub(crate) ends: Ends,
    /// Ordinal of the first segment that is kept.
    pub(crate) first: u64,
    /// Nothing lives in the segments below this ordinal.
    pub(crate) trimmed: u64,
    /// Numbers whose queue has changed since they were last taken for a checkpoint.
    pub(crate) changed: Vec<u32>,
    /// Segments of which something new is known since then.
    pub(crate) changed_segments: BTreeSet<u64>,
    /// Numbers that can be given to queues.
    free: Vec<u32>,
    /// Deleted queues by the segment up to which the log may have records of them.
    graves: BTreeMap<u64, Vec<u32>>,
    /// Entries in the tails of all queues.
    tail_entries: usize,
    /// The next queue to look at for an idle tail.
    spill_hand: usize,
    /// Records that recovery found damaged.
    pub(crate) unreadable: u64,
}

impl Views {
    /// The views of a log that begins with this segment.
    pub(crate) fn empty(first: u64, index: Index) -> Self {
        Self {
            covered: Covered::nothing(first),
            queues: Vec::new(),
            by_key: HashMap::new(),
            facts: Facts::default(),
            keys: Keys::default(),
            index,
            maps: BTreeMap::new(),
            ends: Ends::default(),
            first,
            trimmed: 0,
            changed: Vec::new(),
            changed_segments: BTreeSet::new(),
            free: Vec::new(),
            graves: BTreeMap::new(),
            tail_entries: 0,
            spill_hand: 0,
            unreadable: 0,
        }
    }

    pub(crate) fn queue(&self, queue: QueueNo) -> Option<&Queue> {
        self.queues.get(to_index(u64::from(queue.0)))
    }

    pub(crate) fn queue_mut(&mut self, queue: QueueNo) -> Option<&mut Queue> {
        self.queues.get_mut(to_index(u64::from(queue.0)))
    }

    /// The number that the next queue gets.
    pub(crate) fn next_number(&self) -> u32 {
        self.free.last().copied().unwrap_or_else(|| narrow(self.queues.len()))
    }

    /// Takes a queue whose first state was just appended under [`next_number`](Self::next_number).
    pub(crate) fn open(&mut self, key: &[u8], incarnation: LogOffset) -> QueueNo {
        let number = self.next_number();
        self.free.pop();
        let queue = Queue::opened(key, incarnation);
        match self.queues.get_mut(to_index(u64::from(number))) {
            Some(slot) => *slot = queue,
            None => self.queues.push(queue),
        }
        self.by_key.insert(key.into(), QueueNo(number));
        QueueNo(number)
    }

    /// Takes a deletion that was just appended: the key is free, the number is not.
    pub(crate) fn leave(&mut self, number: QueueNo) {
        let Some(queue) = self.queue_mut(number) else { return };
        queue.slot = Slot::Leaving;
        let key: Box<[u8]> = queue.key().into();
        self.by_key.remove(&key);
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
        let ordinal = place.ordinal;
        if self.ends.segment(ordinal).is_none() || self.covered.place.ordinal != ordinal {
            self.enter(ordinal);
        }
        self.maps.entry(ordinal).or_default().note(place.byte, padded_len, header.store_time);
        let mut keys = group.keys().peekable();
        let mut ahead = KeysAhead::new(group, &self.keys);
        for (n, record) in (0..).zip(group.records()) {
            self.prefetch(group, to_index(u64::from(n)));
            while let Some((_, hash)) = keys.next_if(|&(of, _)| of == n) {
                ahead.prefetch_next(&self.keys);
                self.keys.note(hash, record.position, header.sequence, &mut self.index);
            }
            let sound = !check || record.is_sound();
            self.unreadable += u64::from(!sound);
            match record.entry.kind {
                Kind::Message => {
                    self.apply_message(&record, sound, header.sequence, ordinal, woken);
                }
                _ if !sound => {}
                Kind::Fact => {
                    if let Some((key, value)) = payload::parse_fact(record.bytes) {
                        let known = self.facts.state(key).filter(|_| record.is_copy());
                        let home = known.map_or(ordinal, |known| known.home);
                        self.facts.apply(key, value, header.sequence, home);
                    }
                }
                Kind::QueueState => self.apply_state(&record, ordinal),
                Kind::QueueDeletion => self.apply_deletion(&record, ordinal, woken),
                Kind::Trim => {
                    let below = payload::parse_trim(record.bytes);
                    self.trimmed = self.trimmed.max(below.unwrap_or(0));
                }
                // They say nothing new unless damage has hidden records; see `apply_ends`.
                Kind::Ends | Kind::Note => {}
            }
        }
        self.covered = Covered {
            sequence: header.sequence,
            header_crc: group.header_crc,
            place,
            next: Place { byte: place.byte + wide(padded_len), ..place },
            store_time: header.store_time,
            epoch: header.epoch,
        };
    }

    /// With many queues, each record meets one that the processor has long forgotten: it fetches those of
    /// the next records meanwhile.
    fn prefetch(&self, group: &Group<'_>, n: usize) {
        const QUEUE_AHEAD: usize = 12;
        const TAIL_AHEAD: usize = 6;
        let queue = |n| self.queue(QueueNo(group.queue_of(n)?));
        if let Some(queue) = queue(n + QUEUE_AHEAD) {
            crate::mem::prefetch(queue);
        }
        if let Some(queue) = queue(n + TAIL_AHEAD) {
            queue.prefetch_tail();
        }
    }

    /// The log goes on in another segment.
    fn enter(&mut self, ordinal: u64) {
        // Where queues go on is known only as long as they are at most one segment further.
        while self.put_ends_aside() {}
        self.ends.enter(ordinal, self.index.next());
        self.changed_segments.insert(ordinal);
    }

    /// Puts a part of what is known of a finished segment into the index. True when it did.
    pub(crate) fn put_ends_aside(&mut self) -> bool {
        if self.ends.unfinished().is_none() {
            return false;
        }
        let covered = self.covered.sequence;
        let done = self.ends.put_part(&self.queues, covered, &mut self.index);
        self.changed_segments.extend(done);
        true
    }

    fn apply_message(
        &mut self,
        record: &GroupRecord<'_>,
        sound: bool,
        sequence: Sequence,
        ordinal: u64,
        woken: &mut Vec<u64>,
    ) {
        let number = record.entry.queue;
        self.ensure(number);
        let slot = to_index(u64::from(number));
        let queue = self.queues.get_mut(slot).expect("ensured in the lines before");
        if queue.slot == Slot::Free {
            *queue = Queue::unnamed();
        }
        let waits = matches!(queue.slot, Slot::Deleted { .. });
        // Without its state the queue may have lost records to retention, unless there was none.
        if waits || queue.incarnation().is_none() && self.first > 0 {
            queue.start_at(record.entry.queue_offset);
        }
        if queue.enter_segment(ordinal, record.entry.queue_offset) {
            self.ends.note(ordinal, number);
        }
        if queue.visible() > record.entry.queue_offset {
            return;
        }
        let before = queue.tail().len();
        // Offsets that damage has swallowed stay taken, so that the ones behind keep theirs.
        while queue.visible() < record.entry.queue_offset {
            let gap = QueueEntry { position: record.position, len: 0, crc: 0, tag: 0 };
            queue.push(gap, number, sequence, &mut self.index);
        }
        let len = if sound { record.entry.len } else { 0 };
        let Entry { crc, tag, .. } = record.entry;
        let entry = QueueEntry { position: record.position, len, crc, tag };
        queue.push(entry, number, sequence, &mut self.index);
        self.tail_entries = (self.tail_entries + queue.tail().len()).saturating_sub(before);
        if sound && queue.has_waiters() {
            queue.wake(record.entry.tag, woken);
        }
        if !std::mem::replace(&mut queue.changed, true) {
            self.changed.push(number);
        }
    }

    fn apply_state(&mut self, record: &GroupRecord<'_>, ordinal: u64) {
        let Some(state) = QueueState::parse(record.bytes) else { return };
        let number = record.entry.queue;
        self.ensure(number);
        let slot = to_index(u64::from(number));
        let queue = self.queues.get_mut(slot).expect("ensured in the line before");
        let known = queue.incarnation();
        if known.is_some_and(|known| known > state.incarnation) {
            return;
        }
        let other = known.is_some_and(|known| known < state.incarnation);
        match queue.slot {
            Slot::Deleted { .. } if !other => return,
            Slot::Deleted { .. } => queue.become_next(state.incarnation),
            Slot::Free => *queue = Queue::unnamed(),
            // Damage has hidden the deletion of the number's queue before.
            _ if other => {
                let key: Box<[u8]> = queue.key().into();
                *queue = Queue::unnamed();
                if self.by_key.get(&key) == Some(&QueueNo(number)) {
                    self.by_key.remove(&key);
                }
            }
            Slot::Opened | Slot::Live | Slot::Leaving => {}
        }
        let queue = self.queues.get_mut(slot).expect("ensured above");
        if self.first > 0 {
            // Its records may have been recycled; what comes next goes on behind them.
            queue.start_at(state.next);
        }
        // Damage has swallowed these, or they were recycled.
        self.fill_up(number, state.next, record.position, self.covered.sequence);
        let queue = self.queues.get_mut(slot).expect("ensured above");
        let is_named = known == Some(state.incarnation);
        let is_copy = record.is_copy() && is_named;
        let home = if is_copy { queue.home } else { ordinal };
        queue.state(state.key, state.incarnation, state.min, home);
        if queue.is_live() && !is_named {
            self.name(state.key, number);
        }
        self.mark(number);
    }

    /// Of two queues with the same key the younger one has it.
    fn name(&mut self, key: &[u8], number: u32) {
        let incarnation = |no: QueueNo| self.queue(no).and_then(Queue::incarnation);
        let taken = self.by_key.get(key).copied().filter(|no| no.0 != number);
        if taken.is_none_or(|no| incarnation(no) < incarnation(QueueNo(number))) {
            self.by_key.insert(key.into(), QueueNo(number));
        }
    }

    fn apply_deletion(&mut self, record: &GroupRecord<'_>, ordinal: u64, woken: &mut Vec<u64>) {
        let number = record.entry.queue;
        let Some(incarnation) = payload::parse_deletion(record.bytes) else { return };
        self.ensure(number);
        let slot = to_index(u64::from(number));
        let queue = self.queues.get_mut(slot).expect("ensured in the line before");
        let ours = queue.incarnation().is_none_or(|known| known == incarnation);
        // A copy of the deletion may come when the number is free already.
        if !ours || queue.slot == Slot::Free {
            return;
        }
        if let Slot::Deleted { last } = queue.slot {
            queue.become_slot(Queue::deleted(queue.incarnation(), last));
            return;
        }
        queue.wake_all(woken);
        self.tail_entries = self.tail_entries.saturating_sub(queue.tail().len());
        let gone = Queue::deleted(Some(incarnation), ordinal);
        let key: Box<[u8]> = queue.become_slot(gone).key().into();
        if self.by_key.get(&key) == Some(&QueueNo(number)) {
            self.by_key.remove(&key);
        }
        self.graves.entry(ordinal).or_default().push(number);
        self.mark(number);
    }

    /// Offsets that damaged groups had given out, as a later group repeats them, stay taken.
    pub(crate) fn apply_ends(&mut self, group: &Group<'_>) {
        let sequence = group.header.sequence;
        let told = group.records().filter(|record| record.entry.kind == Kind::Ends);
        for record in told.filter(GroupRecord::is_sound) {
            for (number, next) in payload::ends(record.bytes) {
                let live = |queue: &Queue| matches!(queue.slot, Slot::Live | Slot::Leaving);
                let known = self.queue(QueueNo(number)).filter(|queue| live(queue));
                if known.is_some_and(|queue| queue.visible() < next) {
                    self.fill_up(number, next, record.position, sequence);
                    self.mark(number);
                }
            }
        }
    }

    /// Gives a queue entries up to the offset `next` that cannot be read.
    fn fill_up(&mut self, number: u32, next: u64, position: LogOffset, sequence: Sequence) {
        let slot = to_index(u64::from(number));
        let Some(queue) = self.queues.get_mut(slot) else { return };
        let before = queue.tail().len();
        while queue.visible() < next {
            let gap = QueueEntry { position, len: 0, crc: 0, tag: 0 };
            queue.push(gap, number, sequence, &mut self.index);
        }
        self.tail_entries = (self.tail_entries + queue.tail().len()).saturating_sub(before);
    }

    /// The next checkpoint has to take this queue.
    pub(crate) fn mark(&mut self, number: u32) {
        if let Some(queue) = self.queue_mut(QueueNo(number))
            && !std::mem::replace(&mut queue.changed, true)
        {
            self.changed.push(number);
        }
    }

    /// Numbers that damage or a checkpoint has left out get an empty slot.
    pub(crate) fn ensure(&mut self, number: u32) {
        while self.queues.len() <= to_index(u64::from(number)) {
            self.queues.push(Queue::default());
        }
    }

    /// Replay goes on in this segment: finds which queues have records in it and in later ones.
    pub(crate) fn go_on_from(&mut self, ordinal: u64) {
        self.ends.enter(ordinal, self.index.next());
        for (number, queue) in (0..).zip(&self.queues) {
            let (segment, _) = queue.segment();
            if segment == u64::MAX || segment < ordinal {
                continue;
            }
            // It may have records in both, or only in the later one: its end tells the same.
            self.ends.note(ordinal, number);
            if segment > ordinal {
                self.ends.note(segment, number);
            }
        }
    }

    /// What recovery has put together is complete: finds what is derived from it.
    pub(crate) fn settle(&mut self) {
        self.keys.settle();
        self.by_key.clear();
        self.free.clear();
        self.graves.clear();
        self.tail_entries = 0;
        for number in 0..narrow(self.queues.len()) {
            let Some(queue) = self.queue(QueueNo(number)) else { continue };
            let tail_entries = queue.tail().len();
            match queue.slot {
                Slot::Deleted { last } if last < self.first => {
                    if let Some(queue) = self.queue_mut(QueueNo(number)) {
                        *queue = Queue::default();
                    }
                    self.free.push(number);
                }
                Slot::Deleted { last } => {
                    if let Some(queue) = self.queue_mut(QueueNo(number)) {
                        queue.become_slot(Queue::deleted(queue.incarnation(), last));
                    }
                    self.graves.entry(last).or_default().push(number);
                    continue;
                }
                Slot::Free => self.free.push(number),
                Slot::Opened | Slot::Live | Slot::Leaving if queue.key().is_empty() => {}
                Slot::Opened | Slot::Live | Slot::Leaving => {
                    let key: Box<[u8]> = queue.key().into();
                    self.name(&key, number);
                }
            }
            self.tail_entries += tail_entries;
        }
    }

    /// Undoes what appends have changed ahead of the commit.
    pub(crate) fn take_back(&mut self) {
        self.facts.take_back();
        for number in 0..narrow(self.queues.len()) {
            let Some(queue) = self.queue_mut(QueueNo(number)) else { continue };
            if queue.slot != Slot::Opened {
                continue;
            }
            let key: Box<[u8]> = std::mem::take(queue).key().into();
            self.by_key.remove(&key);
            self.free.push(number);
        }
        for number in 0..narrow(self.queues.len()) {
            let Some(queue) = self.queue_mut(QueueNo(number)) else { continue };
            let left = queue.slot == Slot::Leaving;
            queue.take_back();
            if left {
                let key: Box<[u8]> = queue.key().into();
                self.by_key.insert(key, QueueNo(number));
            }
        }
    }

    /// Counts a record that is appended but not committed, after the views were taken back.
    pub(crate) fn reappend(&mut self, record: &GroupRecord<'_>, sequence: Sequence) {
        let number = QueueNo(record.entry.queue);
        match record.entry.kind {
            Kind::Message => {
                if let Some(queue) = self.queue_mut(number) {
                    queue.advance(1);
                }
            }
            Kind::Fact => {
                if let Some((key, value)) = payload::parse_fact(record.bytes) {
                    self.facts.appended(key, value, sequence);
                }
            }
            Kind::QueueState => {
                if let Some(state) = QueueState::parse(record.bytes)
                    && self.queue(number).is_none_or(|queue| queue.slot == Slot::Free)
                {
                    self.ensure(number.0);
                    self.free.retain(|&free| free != number.0);
                    if let Some(queue) = self.queue_mut(number) {
                        *queue = Queue::opened(state.key, state.incarnation);
                    }
                    self.by_key.insert(state.key.into(), number);
                }
            }
            Kind::QueueDeletion => self.leave(number),
            Kind::Note | Kind::Trim | Kind::Ends => {}
        }
    }

    /// The segment is about to be recycled: what lay in it is gone, and its list of ends is applied.
    pub(crate) fn drop_segment(&mut self, ordinal: u64) {
        self.maps.remove(&ordinal);
        self.ends.forget(ordinal);
        self.first = ordinal + 1;
        while let Some(grave) = self.graves.first_entry().filter(|grave| *grave.key() < self.first)
        {
            for number in grave.remove() {
                if let Some(queue) = self.queue_mut(QueueNo(number)) {
                    queue.become_slot(Queue::default());
                }
                self.free.push(number);
                self.mark(number);
            }
        }
    }

    /// Changes may tell of segments that were let go after they were written.
    pub(crate) fn forget_before_first(&mut self) {
        let kept = self.maps.split_off(&self.first);
        for (ordinal, _) in std::mem::replace(&mut self.maps, kept) {
            self.ends.forget(ordinal);
        }
        self.keys.forget_before(self.index_live_from(self.first));
    }

    /// Takes one end of a segment that is recycled: the queue cannot be read before `end` any more.
    /// Gives the minimum that it had, when that has changed.
    pub(crate) fn raise_min(&mut self, number: u32, end: u64) -> Option<u64> {
        let queue = self.queue_mut(QueueNo(number))?;
        let (before, entries) = (queue.min(), queue.tail().len());
        let end = end.min(queue.visible());
        if !matches!(queue.slot, Slot::Live | Slot::Leaving) || !queue.raise_min(end) {
            return None;
        }
        let given_up = entries - queue.tail().len();
        self.tail_entries = self.tail_entries.saturating_sub(given_up);
        self.mark(number);
        Some(before)
    }

    /// Where the index may be given back to: what lies before it speaks of segments below `first`.
    pub(crate) fn index_live_from(&self, first: u64) -> u64 {
        self.ends.segment(first).map_or(0, |segment| segment.index_from)
    }

    /// Moves entries of idle queues and of keys out of memory, when all tails together take more than
    /// `bytes_max` and `key_bytes_max`. One call visits a bounded number of queues.
    pub(crate) fn spill(&mut self, bytes_max: usize, key_bytes_max: usize) {
        self.keys.spill(key_bytes_max, self.covered.sequence, &mut self.index);
        if self.tail_entries * size_of::<QueueEntry>() <= bytes_max || self.queues.is_empty() {
            return;
        }
        for _ in 0..SPILL_VISITS.min(self.queues.len()) {
            self.spill_hand = (self.spill_hand + 1) % self.queues.len();
            let number = narrow(self.spill_hand);
            let Some(queue) = self.queues.get_mut(self.spill_hand) else { return };
            if std::mem::take(&mut queue.used) {
                continue;
            }
            let entries = queue.tail().len();
            if queue.spill(number, self.covered.sequence, &mut self.index) {
                self.tail_entries = self.tail_entries.saturating_sub(entries);
                self.mark(number);
            }
        }
    }

    /// The position right behind everything that is visible.
    pub(crate) fn end(&self, geometry: &crate::Geometry) -> Option<LogOffset> {
        geometry.position(self.covered.next)
    }
}
