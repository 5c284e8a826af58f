//! Appends: from a record to the open group.

use std::mem;
use std::ops::Range;

use super::commit::PendingGroup;
use super::repeat::{What, state_of};
use super::{Acknowledge, Shard};
use crate::error::AppendError;
use crate::format::group::{self, ENTRY_LEN, Entry, HEADER_LEN, Header, KEY_LEN, Kind};
use crate::format::payload::{self, QueueState};
use crate::layout::Place;
use crate::mem::ChunkTail;
use crate::record::{Record, Stamp};
use crate::units::{EpochMillis, LogOffset, QueueOffset, Sequence, narrow, wide};
use crate::view::QueueNo;
use crate::view::queue::Slot;

/// What an append was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The group that it rides in: it may be acknowledged once
    /// [`Shard::committed`] has reached this.
    pub sequence: Sequence,
    /// Offset of the first record in its queue; the others follow without gap.
    pub first_queue_offset: QueueOffset,
    /// Position of the first record; the others lie right behind it.
    pub first_log_offset: LogOffset,
    /// When the records were stored.
    pub store_time: EpochMillis,
}

/// The group that appends go to.
pub(super) struct OpenGroup {
    memory: ChunkTail,
    place: Place,
    position: LogOffset,
    store_time: EpochMillis,
    /// Bytes of header and records so far.
    used: usize,
    /// Bytes that header, records, table and keys may take together.
    capacity: usize,
    table: Vec<u8>,
    /// Where the last record lies, as long as its checksum is not in the table.
    unsummed: Range<usize>,
    /// Keys of the records, as they will stand behind the table.
    keys: Vec<u8>,
    only_notes: bool,
}

impl OpenGroup {
    pub(super) fn fits(&self, records_len: usize, count: usize) -> bool {
        records_len + count * ENTRY_LEN <= self.room()
    }

    /// Bytes that are left for records and their entries.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len())
    }

    /// Appends a record of the engine that an earlier group has already.
    pub(super) fn push_copy(
        &mut self,
        len: usize,
        (kind, queue): (Kind, u32),
        write: impl FnOnce(&mut [u8]),
    ) {
        let only_notes = self.only_notes;
        self.push(len, (kind, queue, 0, group::COPY), |_, dst| write(dst));
        self.only_notes = only_notes;
    }

    fn end(&self) -> LogOffset {
        self.position.plus(self.used)
    }

    /// The place that the next record gets in the table.
    fn count(&self) -> u32 {
        narrow(self.table.len() / ENTRY_LEN)
    }

    /// Behind the last byte of log that the group may take.
    pub(super) fn end_of_room(&self) -> Place {
        Place { byte: self.place.byte + wide(self.capacity), ..self.place }
    }

    /// Bytes that the group has now.
    fn len(&self) -> usize {
        self.used + self.table.len() + self.keys.len()
    }

    pub(super) fn into_memory(self) -> ChunkTail {
        self.memory
    }

    /// Appends one record, written by `write`, and its table entry.
    pub(super) fn push(
        &mut self,
        len: usize,
        (kind, queue, queue_offset, tag): (Kind, u32, u64, i64),
        write: impl FnOnce(&Stamp, &mut [u8]),
    ) {
        let stamp = Stamp {
            log_offset: self.end(),
            queue_offset: super::offset(queue_offset),
            store_time: self.store_time,
        };
        let end = self.used + len;
        let dst = self.memory.buffer().get_mut(self.used..end).expect("the group has room");
        write(&stamp, dst);
        self.sum_up();
        let entry = Entry { kind, len: narrow(len), crc: 0, queue, queue_offset, tag };
        self.table.extend_from_slice(&entry.encode());
        self.unsummed = self.used..end;
        self.used = end;
        // The next record is probably as long, and comes after its request was read.
        self.memory.prefetch(end, len);
        self.only_notes &= kind == Kind::Note;
    }

    /// Completes the table: the checksum of a record is taken when the next one has come, or the group
    /// closes. Taken at once, it would wait until the record has left the processor's store buffer.
    fn sum_up(&mut self) {
        let record = mem::take(&mut self.unsummed);
        if !record.is_empty() {
            let bytes = self.memory.buffer().get(record).expect("it was written there");
            Entry::set_last_crc(&mut self.table, crate::crc::crc32c(bytes));
        }
    }
}

impl Shard {
    /// The queue with this key; opened, and made durable with its first record, if it is new.
    ///
    /// # Errors
    ///
    /// [`AppendError::TooLarge`] for a key above 4,096 bytes, and those of
    /// [`append`](Self::append).
    pub fn open_queue(&mut self, key: &[u8], now: EpochMillis) -> Result<QueueNo, AppendError> {
        if let Some(queue) = self.queue(key) {
            return Ok(queue);
        }
        check_key(key)?;
        let number = self.views.next_number();
        let len = QueueState { incarnation: LogOffset::START, next: 0, min: 0, key }.len();
        let open = self.opened(len, 1, now)?;
        let incarnation = open.end();
        let state = QueueState { incarnation, next: 0, min: 0, key };
        open.push(len, (Kind::QueueState, number, 0, 0), |_, dst| state.write(dst));
        self.stats.records += 1;
        let queue = self.views.open(key, incarnation);
        if self.repeats.note(What::State(queue), len)
            && let Some(slot) = self.views.queue_mut(queue)
        {
            slot.confirm();
        }
        Ok(queue)
    }

    /// Deletes a queue. From now on its key is free: a queue that is opened with it is another one,
    /// which begins at offset 0 and never meets anything of this one. Readers of this one still get
    /// its records until the deletion is committed; then its waiters are woken. Facts about the queue
    /// are the caller's to remove.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); [`AppendError::Deleted`] when the queue is deleted already.
    pub fn delete_queue(
        &mut self,
        queue: QueueNo,
        now: EpochMillis,
    ) -> Result<Sequence, AppendError> {
        let live = |slot| matches!(slot, Slot::Opened | Slot::Live);
        let slot = self.views.queue(queue).filter(|queue| live(queue.slot));
        let incarnation = slot.ok_or(AppendError::Deleted)?.incarnation();
        let incarnation = incarnation.unwrap_or(LogOffset::START);
        let deletion = payload::deletion(incarnation);
        let sequence = self.append_own(Kind::QueueDeletion, queue.0, &deletion, now)?;
        self.views.leave(queue);
        self.repeats.forget_queue(queue);
        self.repeats.note(What::Deletion(queue, incarnation), deletion.len());
        Ok(sequence)
    }

    /// Appends records to a queue, all or none, back to back in one group.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; nothing was stored then, and no offset was used.
    ///
    /// # Panics
    ///
    /// When the queue is of another shard or store.
    pub fn append<R: Record>(
        &mut self,
        queue: QueueNo,
        records: &[R],
        now: EpochMillis,
    ) -> Result<Appended, AppendError> {
        self.gather_keys(records);
        let records_len: usize = records.iter().map(Record::len).sum();
        let len = records_len + self.new_keys.len() * KEY_LEN;
        self.confirm_queue(queue, now);
        self.keep_reserve(len)?;
        self.ensure_open(len, records.len(), Some(queue), now)?;
        let slot = self.views.queue_mut(queue).expect("queues are opened before they are used");
        if !matches!(slot.slot, Slot::Opened | Slot::Live) {
            return Err(AppendError::Deleted);
        }
        let first = slot.next();
        slot.advance(records.len());
        self.repeats.note_end(queue, slot.next(), &mut slot.end_noted);
        let open = self.open.as_mut().expect("ensured above");
        let first_log_offset = open.end();
        let place = open.count();
        for &(record, hash) in &self.new_keys {
            group::put_key(&mut open.keys, place + record, hash);
        }
        for (queue_offset, record) in (first..).zip(records) {
            let entry = (Kind::Message, queue.0, queue_offset, record.tag());
            open.push(record.len(), entry, |stamp, dst| record.write(stamp, dst));
        }
        self.stats.records += wide(records.len());
        self.stats.appended += wide(records.len());
        self.stats.appended_bytes += wide(records_len);
        Ok(Appended {
            sequence: self.appended.next(),
            first_queue_offset: super::offset(first),
            first_log_offset,
            store_time: open.store_time,
        })
    }

    /// Collects the keys of new records, before there is a group for them. Only what the record says
    /// twice in a row is left out: a key that comes twice is found once all the same.
    fn gather_keys<R: Record>(&mut self, records: &[R]) {
        let keys = &mut self.new_keys;
        keys.clear();
        for (n, record) in (0..).zip(records) {
            record.keys(&mut |hash| {
                if keys.last() != Some(&(n, hash)) {
                    keys.push((n, hash));
                }
            });
        }
    }

    /// Bytes of the longest record without keys that an append can take, by the limits of the shard and the length
    /// of its segments.
    pub fn append_len_max(&self) -> usize {
        let max = self.geometry.group_len_max().min(self.limits.large_bytes);
        let blocks = max / self.geometry.block_len();
        (blocks * self.geometry.block_len()).saturating_sub(HEADER_LEN + ENTRY_LEN)
    }

    /// Messages leave a part of the log to facts, unless more log is there behind it or on its way.
    fn keep_reserve(&mut self, records_len: usize) -> Result<(), AppendError> {
        let len = wide(self.geometry.padded(HEADER_LEN + ENTRY_LEN + records_len));
        let place = self.place_for(self.geometry.padded(records_len));
        let kept = self.poison.is_some() || self.segments.keeps_reserve(self.head, place, len);
        if kept || self.more_is_coming() {
            return Ok(());
        }
        self.starve();
        self.prepare_more();
        Err(self.refusal())
    }

    /// Logs a queue's opening a second time, in another group, when there was no room to have it
    /// repeated: one damaged record must not cost the queue its name.
    fn confirm_queue(&mut self, queue: QueueNo, now: EpochMillis) {
        let slot = self.views.queue_mut(queue);
        let Some(slot) = slot.and_then(|slot| slot.take_confirmation().then_some(slot)) else {
            return;
        };
        let Some(incarnation) = slot.incarnation() else { return };
        let bytes = state_of(slot, incarnation);
        // A refusal leaves the queue with one state, as if this had never been tried.
        let _ = self.append_own(Kind::QueueState, queue.0, &bytes, now);
    }

    /// Appends a fact, or its removal. It counts, and may be acknowledged, once
    /// [`committed`](Self::committed) has reached the sequence.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); [`AppendError::TooLarge`] for a key above 4,096 bytes.
    pub fn put_fact(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        now: EpochMillis,
    ) -> Result<Sequence, AppendError> {
        check_key(key)?;
        let record = payload::fact(key, value);
        let sequence = self.append_own(Kind::Fact, 0, &record, now)?;
        self.views.facts.appended(key, value, sequence);
        self.repeats.note(What::Fact(key.into(), sequence), record.len());
        Ok(sequence)
    }

    /// Keeps a fact for the next group; it forces one only after a second. A later value of the
    /// same key replaces it, an unchanged one is dropped. A key above 4,096 bytes is ignored.
    pub fn stage_fact(&mut self, key: &[u8], value: &[u8], now: EpochMillis) {
        if check_key(key).is_ok() {
            self.views.facts.stage(key, value, now);
        }
    }

    /// Moves all staged facts into the open group. Gives the sequence to wait for; `None` when
    /// nothing was staged.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); what did not fit stays staged.
    pub fn flush_staged(&mut self, now: EpochMillis) -> Result<Option<Sequence>, AppendError> {
        let mut last = None;
        while let Some((key, value)) = self.views.facts.first_staged() {
            let (key, value) = (key.to_vec(), value.to_vec());
            last = Some(self.put_fact(&key, Some(&value), now)?);
        }
        Ok(last)
    }

    pub(super) fn force_staged(&mut self, now: EpochMillis) {
        const STAGED_MS_MAX: u64 = 1000;
        let due = self.views.facts.oldest_staged();
        // A clock that was set back must not make them wait longer.
        if due.is_some_and(|since| since > now || now.since(since) >= STAGED_MS_MAX) {
            // A refusal leaves them staged; the next tick tries again.
            let _ = self.flush_staged(now);
        }
    }

    /// Names the committed frontier in one more group, so that recovery can tell a torn tail from
    /// damage below everything that was acknowledged before the shard fell idle.
    pub(super) fn note_if_idle(&mut self, now: EpochMillis) {
        const IDLE_MS: u64 = 50;
        let idle = self.open.is_none()
            && self.pending.is_empty()
            && now.since(self.last_append) >= IDLE_MS;
        if idle && self.noted < self.last_data {
            // A refusal is no harm: the next tick tries again.
            let _ = self.append_own(Kind::Note, 0, &[], now);
        }
    }

    pub(super) fn append_own(
        &mut self,
        kind: Kind,
        queue: u32,
        bytes: &[u8],
        now: EpochMillis,
    ) -> Result<Sequence, AppendError> {
        self.ensure_open(bytes.len(), 1, None, now)?;
        let open = self.open.as_mut().expect("ensured above");
        open.push(bytes.len(), (kind, queue, 0, 0), |_, dst| dst.copy_from_slice(bytes));
        self.stats.records += 1;
        Ok(self.appended.next())
    }

    /// The open group, with room for these records.
    pub(super) fn opened(
        &mut self,
        records_len: usize,
        count: usize,
        now: EpochMillis,
    ) -> Result<&mut OpenGroup, AppendError> {
        self.ensure_open(records_len, count, None, now)?;
        Ok(self.open.as_mut().expect("ensured in the line before"))
    }

    /// Makes sure that a group is open which has room for these records, of this queue if it is
    /// messages.
    fn ensure_open(
        &mut self,
        records_len: usize,
        count: usize,
        messages_of: Option<QueueNo>,
        now: EpochMillis,
    ) -> Result<(), AppendError> {
        if let Some(cause) = &self.poison {
            return Err(AppendError::Poisoned(cause.clone()));
        }
        if self.open.as_ref().is_some_and(|open| open.fits(records_len, count)) {
            return Ok(());
        }
        let len = HEADER_LEN + records_len + count * ENTRY_LEN;
        let max = self.geometry.group_len_max().min(self.limits.large_bytes);
        if self.geometry.padded(len) > max {
            return Err(AppendError::TooLarge { len, max });
        }
        self.close_group();
        let with_repeats = self.geometry.padded(len + self.repeats.wanted_len());
        let len = if with_repeats <= max { with_repeats } else { self.geometry.padded(len) };
        let opened = self.open_group(len, now);
        if opened.is_err() {
            self.starve();
        }
        self.add_repeats(records_len, count, messages_of);
        opened
    }

    /// Whether appends go on: the device has other work beside them then, bit by bit.
    pub(super) fn has_appends(&self) -> bool {
        const APPENDS_MS: u64 = 10;
        self.now.since(self.last_append) <= APPENDS_MS
    }

    fn open_group(&mut self, len_min: usize, now: EpochMillis) -> Result<(), AppendError> {
        let place = self.place_for(len_min);
        let position = self.geometry.position(place).ok_or_else(|| self.disk_full())?;
        let writable = self.writable(place);
        if writable < len_min {
            self.prepare_more();
            let waits = self.is_reserved(place, len_min);
            return Err(if waits { AppendError::Backlogged } else { self.refusal() });
        }
        let wanted = self.limits.group_bytes.min(writable).max(len_min);
        let memory = self
            .tail
            .memory_for(position, len_min, wanted, self.settled())
            .ok_or(AppendError::Backlogged)?;
        // The store's time never goes back; a clock that does is reported by whoever reads it.
        self.store_time = self.store_time.max(now);
        self.last_append = now;
        let block_len = self.geometry.block_len();
        let capacity = wanted.min(memory.room()) / block_len * block_len;
        self.open = Some(OpenGroup {
            capacity: self.segments.on_page(place, len_min, capacity),
            memory,
            place,
            position,
            store_time: self.store_time,
            used: HEADER_LEN,
            table: self.tail.take_table(),
            keys: std::mem::take(&mut self.spare_keys),
            unsummed: 0..0,
            only_notes: true,
        });
        Ok(())
    }

    /// The head, or the start of the next segment when the group does not fit behind the head.
    fn place_for(&self, len_min: usize) -> Place {
        if self.head.byte + wide(len_min) <= self.geometry.segment_len() {
            self.head
        } else {
            Place { ordinal: self.head.ordinal + 1, byte: 0 }
        }
    }

    pub(super) fn may_have_room(&mut self) -> bool {
        let len = self.geometry.block_len();
        let place = self.place_for(len);
        let reserved = !self.segments.keeps_reserve(self.head, place, wide(len));
        self.writable(place) >= len
            && (!reserved || self.more_is_coming())
            && self.tail.may_have_room(self.settled())
    }

    /// Whether the open group should be closed now, although it is not full. Where closing it is what
    /// acknowledges it, it is: groups that lie back to back are written together.
    ///
    /// Elsewhere it is closed when the device should get it.
    /// The first write goes out at once. Behind it a group waits until it has grown with the number
    /// of writes in flight, or until they are done: many small writes cost more than they gain, in
    /// flushes of the device and in answers that go out one by one.
    pub(super) fn may_close(&self) -> bool {
        let Some(open) = &self.open else { return true };
        if self.acknowledge == Acknowledge::Buffered {
            return true;
        }
        self.unwritten.count == 0
            && self.writing < self.limits.writes_in_flight
            && open.used >= self.enough_for_another_write()
    }

    /// Whether so much is open that the device should get it although more input waits: it works
    /// while the rest is appended.
    pub(crate) fn is_worth_a_write(&self) -> bool {
        const FIRST_WRITE: usize = 32 << 10;
        const GROWTH: usize = 2;
        let Some(open) = &self.open else { return false };
        let enough = FIRST_WRITE.saturating_mul(GROWTH.saturating_pow(narrow(self.writing)));
        open.used >= enough && self.may_close()
    }

    /// Closes the open group if it [is worth a write](Self::is_worth_a_write).
    pub(crate) fn close_if_worth(&mut self) -> bool {
        let worth = self.is_worth_a_write();
        if worth {
            self.close_group();
        }
        worth
    }

    pub(super) fn enough_for_another_write(&self) -> usize {
        const SECOND_WRITE: usize = 16 << 10;
        const GROWTH: usize = 4;
        match self.writing.checked_sub(1) {
            None => 0,
            Some(others) => {
                let growth = GROWTH.saturating_pow(narrow(others));
                SECOND_WRITE.saturating_mul(growth).min(self.limits.group_bytes / 2)
            }
        }
    }

    /// Seals the open group and queues it for the device.
    pub(super) fn close_group(&mut self) {
        self.add_staged();
        self.fill_page();
        let Some(mut open) = self.open.take() else { return };
        open.sum_up();
        let header = Header {
            store: self.geometry.store(),
            shard: self.geometry.shard(),
            count: 0,
            position: open.position,
            epoch: self.epoch,
            sequence: self.appended.next(),
            // A later group that is found after a crash proves this much: it must be on the device.
            committed: self.settled(),
            store_time: open.store_time,
            records_len: 0,
            len: 0,
            life_start: self.life_start,
            previous: self.previous_crc,
            table_crc: 0,
            keys: 0,
        };
        let block_len = self.geometry.block_len();
        let buffer = open.memory.buffer();
        let behind = (&*open.table, &*open.keys);
        let (padded, header, crc) = group::seal(buffer, open.used, behind, block_len, header);
        let data = open.memory.freeze(padded);
        self.appended = header.sequence;
        self.previous_crc = crc;
        self.head = Place { byte: open.place.byte + wide(padded), ..open.place };
        if !open.only_notes {
            self.last_data = header.sequence;
        }
        let survives = self.tail.give_back(open.memory, open.position, header.sequence);
        self.tail.give_table(open.table);
        open.keys.clear();
        self.spare_keys = open.keys;
        self.stats.groups += 1;
        self.stats.log_bytes += wide(padded);
        self.enqueue(PendingGroup::new(header, crc, open.place, data, survives));
        self.segments.group_closed(padded);
        self.repeats.group_closed(padded);
        self.issue_writes();
    }

    /// Lets a note that says nothing end the open group on a page, where that matters.
    fn fill_page(&mut self) {
        let block_len = self.geometry.block_len();
        let Some(open) = &mut self.open else { return };
        let Some(missing) = self.segments.missing_to_page(open.place, open.len()) else { return };
        let has_room = open.len() + missing <= open.capacity;
        if let Some(len) =
            missing.checked_sub(ENTRY_LEN).filter(|_| has_room && missing >= block_len)
        {
            open.push_copy(len, (Kind::Note, 0), |dst| dst.fill(0));
        }
    }

    /// Staged facts ride along as far as the open group has room for them.
    fn add_staged(&mut self) {
        while let Some(open) = &mut self.open {
            let Some((key, value)) = self.views.facts.first_staged() else { return };
            let bytes = payload::fact(key, Some(value));
            if !open.fits(bytes.len(), 1) {
                return;
            }
            let (key, value) = (key.to_vec(), value.to_vec());
            open.push(bytes.len(), (Kind::Fact, 0, 0, 0), |_, dst| dst.copy_from_slice(&bytes));
            self.views.facts.appended(&key, Some(&value), self.appended.next());
        }
    }
}

fn check_key(key: &[u8]) -> Result<(), AppendError> {
    if key.len() <= payload::KEY_LEN_MAX {
        Ok(())
    } else {
        Err(AppendError::TooLarge { len: key.len(), max: payload::KEY_LEN_MAX })
    }
}
