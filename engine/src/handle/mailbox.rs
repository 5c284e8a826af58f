//! What the handles of a shard and the thread that runs it have in common.
//!
//! Handles copy what they append into the inbox, so nothing of a caller is borrowed once a call has
//! returned, and dropping a future frees nothing that is still in use. The shard's thread takes the
//! whole inbox at once, against an empty one that it keeps for that, and gives results back in one
//! go: the lock is held for one copy, or for a moment per turn, and nothing is allocated once the
//! buffers have grown to their bounds.
//!
//! The thread says under the same lock that it is about to sleep, so a handle that finds it asleep
//! rings the bell, and no wake is lost.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use slab::Slab;

use super::task::Task;
use crate::driver::ring::Bell;
use crate::error::{AppendError, Closed};
use crate::format::group::KEY_LEN;
use crate::record::KeyHash;
use crate::shard::Appended;
use crate::view::QueueNo;

/// How much may wait between the handles and a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Bytes of records and their keys. One record that is longer is taken when nothing else waits.
    pub bytes: usize,
    /// Appends and other requests.
    pub requests: usize,
    /// Appends that were taken and have not been answered.
    pub appends: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { bytes: 4 << 20, requests: 16_384, appends: 65_536 }
    }
}

/// One record to append through a handle. An empty one takes an offset, but no reader is given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRecord<'a> {
    /// A number by which readers filter; 0 when unused.
    pub tag: i64,
    /// Hashes of the keys by which it is to be found.
    pub keys: &'a [KeyHash],
    /// The stored form.
    pub bytes: &'a [u8],
}

impl<'a> NewRecord<'a> {
    /// The record, to be found by these keys too; see [`KeyScope`](crate::KeyScope).
    #[must_use]
    pub fn with_keys(self, keys: &'a [KeyHash]) -> Self {
        Self { keys, ..self }
    }

    /// Bytes that it takes of the log, but for its entry in a table.
    fn len(&self) -> usize {
        self.bytes.len() + self.keys.len() * KEY_LEN
    }
}

impl<'a> From<&'a [u8]> for NewRecord<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { tag: 0, keys: &[], bytes }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for NewRecord<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self { tag: 0, keys: &[], bytes }
    }
}

/// A request in the order of the calls.
pub(super) enum Request {
    /// Append the next `count` records of the inbox.
    Append { slot: usize, queue: QueueNo, count: usize },
    /// Anything else. The token names it until it is answered.
    Task { token: u64, task: Box<dyn Task> },
}

/// What the inbox knows of a record beside its bytes.
#[derive(Clone, Copy)]
pub(super) struct RecordHead {
    pub(super) tag: i64,
    pub(super) len: usize,
    /// How many keys it has.
    pub(super) keys: usize,
}

/// Requests, and the bytes of those that append.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) requests: VecDeque<Request>,
    /// Of every record.
    pub(super) records: Vec<RecordHead>,
    /// The keys of all records, one after the other.
    pub(super) keys: Vec<KeyHash>,
    pub(super) bytes: Vec<u8>,
}

/// The state of one append between its acceptance and the end of its future.
enum Slot {
    Waiting(Option<Waker>),
    Done(Result<Appended, AppendError>),
    /// The future is gone; the slot is free once the shard has answered.
    Abandoned,
}

/// What became of a request.
pub(super) enum Asked {
    /// The shard has it, under this token.
    Taken(u64),
    /// There is no room for it now.
    Full(Box<dyn Task>),
    Closed,
}

/// Where a future waits for room: a place in the list of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomKey {
    round: u64,
    key: Option<usize>,
}

/// Why a shard takes no more requests.
#[derive(Clone, Debug)]
pub(super) enum End {
    Closed,
    /// The ring failed or the thread panicked.
    Failed(String),
}

struct State {
    inbox: Inbox,
    slots: Slab<Slot>,
    /// Appends that were taken and not answered.
    unanswered: usize,
    /// Futures that wait for room in the inbox, or for the end. All are woken together, and a new
    /// round begins.
    room: Slab<Waker>,
    round: u64,
    next_token: u64,
    /// Requests whose futures are gone.
    cancelled: Vec<u64>,
    asleep: bool,
    closing: bool,
    end: Option<End>,
}

pub(super) struct Mailbox {
    state: Mutex<State>,
    bell: Bell,
    limits: InboxLimits,
    /// Bytes of the longest append that the log can take.
    append_len_max: usize,
}

/// What the shard's thread finds when it looks for requests.
pub(super) struct Taken {
    /// All handles are gone, or one of them has closed the engine.
    pub(super) closing: bool,
}

impl Mailbox {
    pub(super) fn new(bell: Bell, limits: InboxLimits, append_len_max: usize) -> Self {
        let state = State {
            inbox: Inbox::default(),
            slots: Slab::new(),
            unanswered: 0,
            room: Slab::new(),
            round: 1,
            next_token: 0,
            cancelled: Vec::new(),
            asleep: false,
            closing: false,
            end: None,
        };
        Self { state: Mutex::new(state), bell, limits, append_len_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies records into the inbox. Gives the slot of their answer.
    pub(super) fn append(
        &self,
        queue: QueueNo,
        records: &[NewRecord<'_>],
    ) -> Result<usize, AppendError> {
        let len = records.iter().map(NewRecord::len).sum();
        if len > self.append_len_max {
            return Err(AppendError::TooLarge { len, max: self.append_len_max });
        }
        let mut state = self.lock();
        state.check_open()?;
        let (inbox, limits) = (&state.inbox, &self.limits);
        let used = inbox.bytes.len() + inbox.keys.len() * KEY_LEN;
        let fits = used + len <= limits.bytes || used == 0;
        let full = inbox.requests.len() >= limits.requests || state.unanswered >= limits.appends;
        if full || !fits {
            return Err(AppendError::Backlogged);
        }
        for record in records {
            state.inbox.bytes.extend_from_slice(record.bytes);
            state.inbox.keys.extend_from_slice(record.keys);
            let (len, keys) = (record.bytes.len(), record.keys.len());
            state.inbox.records.push(RecordHead { tag: record.tag, len, keys });
        }
        let slot = state.slots.insert(Slot::Waiting(None));
        state.unanswered += 1;
        state.inbox.requests.push_back(Request::Append { slot, queue, count: records.len() });
        self.wake_shard(state);
        Ok(slot)
    }

    /// Puts a request into the inbox.
    pub(super) fn ask(&self, task: Box<dyn Task>) -> Asked {
        let mut state = self.lock();
        if state.check_open().is_err() {
            drop(state);
            return Asked::Closed;
        }
        if state.inbox.requests.len() >= self.limits.requests {
            return Asked::Full(task);
        }
        let token = state.next_token;
        state.next_token += 1;
        state.inbox.requests.push_back(Request::Task { token, task });
        self.wake_shard(state);
        Asked::Taken(token)
    }

    fn wake_shard(&self, mut state: MutexGuard<'_, State>) {
        let asleep = mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.bell.ring();
        }
    }

    /// The answer to an append, or `None` and the waker is woken when it is there.
    pub(super) fn poll_slot(
        &self,
        slot: usize,
        waker: &Waker,
    ) -> Option<Result<Appended, AppendError>> {
        let mut state = self.lock();
        match state.slots.get_mut(slot) {
            Some(Slot::Waiting(known)) => {
                match known {
                    Some(known) => known.clone_from(waker),
                    None => *known = Some(waker.clone()),
                }
                None
            }
            _ => match state.slots.try_remove(slot) {
                Some(Slot::Done(result)) => Some(result),
                _ => Some(Err(AppendError::Closed)),
            },
        }
    }

    /// Gives up an answer that was not taken. The append itself goes on.
    pub(super) fn abandon_slot(&self, slot: usize) {
        let mut state = self.lock();
        match state.slots.get_mut(slot) {
            Some(waiting @ Slot::Waiting(_)) => *waiting = Slot::Abandoned,
            _ => drop(state.slots.try_remove(slot)),
        }
    }

    /// Notes that nobody waits for a request any more; the shard forgets it within a tick.
    pub(super) fn cancel(&self, token: u64) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.cancelled.push(token);
        }
    }

    /// True when there is room, or no use in waiting for it. If not, the waker is woken when that may
    /// have changed.
    pub(super) fn poll_room(&self, at: &mut RoomKey, waker: &Waker) -> bool {
        let mut state = self.lock();
        let ready = state.has_room(&self.limits) || state.check_open().is_err();
        if !ready {
            state.wake_later(at, waker);
        }
        ready
    }

    /// Takes a waker back that was not woken.
    pub(super) fn forget_room(&self, at: RoomKey) {
        let mut state = self.lock();
        if at.round == state.round
            && let Some(key) = at.key
        {
            state.room.try_remove(key);
        }
    }

    /// Asks the shard to answer what it was given, to write a checkpoint and to end.
    pub(super) fn close(&self) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        state.closing = true;
        state.wake_waiting(&mut wakers);
        self.wake_shard(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// How the shard has ended, or `None` and the waker is woken when it has.
    pub(super) fn poll_end(&self, at: &mut RoomKey, waker: &Waker) -> Option<End> {
        let mut state = self.lock();
        if let Some(end) = &state.end {
            return Some(end.clone());
        }
        state.wake_later(at, waker);
        None
    }

    /// Exchanges the inbox for an empty one. Wakers that got room go to `wakers`.
    pub(super) fn take(
        &self,
        inbox: &mut Inbox,
        cancelled: &mut Vec<u64>,
        wakers: &mut Vec<Waker>,
    ) -> Taken {
        inbox.clear(&self.limits);
        let mut state = self.lock();
        state.asleep = false;
        if !state.inbox.requests.is_empty() {
            mem::swap(&mut state.inbox, inbox);
        }
        cancelled.append(&mut state.cancelled);
        if state.has_room(&self.limits) {
            state.wake_waiting(wakers);
        }
        Taken { closing: state.closing }
    }

    /// Says that the thread is about to sleep. False when there is something to do instead.
    pub(super) fn fall_asleep(&self) -> bool {
        let mut state = self.lock();
        state.asleep = state.inbox.requests.is_empty() && !state.closing;
        state.asleep
    }

    /// Gives answers to the futures that wait for them.
    pub(super) fn answer(
        &self,
        answers: &mut Vec<(usize, Result<Appended, AppendError>)>,
        wakers: &mut Vec<Waker>,
    ) {
        if answers.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (slot, result) in answers.drain(..) {
            state.unanswered -= 1;
            state.answer(slot, result, wakers);
        }
        if state.has_room(&self.limits) {
            state.wake_waiting(wakers);
        }
    }

    /// Answers everything that is left, and refuses what comes later.
    pub(super) fn end(&self, end: End, wakers: &mut Vec<Waker>) {
        let mut state = self.lock();
        let error = end.refusal();
        state.end.get_or_insert(end);
        let left = mem::take(&mut state.inbox);
        state.cancelled.clear();
        let slots: Vec<usize> = state.slots.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            state.answer(slot, Err(error.clone()), wakers);
        }
        state.wake_waiting(wakers);
        drop(state);
        // Tasks wake their futures when they are dropped, which must not happen under the lock.
        drop(left);
    }
}

impl State {
    fn check_open(&self) -> Result<(), AppendError> {
        match &self.end {
            Some(end) => Err(end.refusal()),
            None if self.closing => Err(AppendError::Closed),
            None => Ok(()),
        }
    }

    fn has_room(&self, limits: &InboxLimits) -> bool {
        self.inbox.requests.is_empty() && self.unanswered < limits.appends
    }

    /// Keeps the waker until the next round, in place of the one that the same future left before.
    fn wake_later(&mut self, at: &mut RoomKey, waker: &Waker) {
        let known = at.key.filter(|_| at.round == self.round);
        match known.and_then(|key| self.room.get_mut(key)) {
            Some(known) => known.clone_from(waker),
            None => {
                let key = Some(self.room.insert(waker.clone()));
                *at = RoomKey { round: self.round, key };
            }
        }
    }

    fn wake_waiting(&mut self, wakers: &mut Vec<Waker>) {
        if !self.room.is_empty() {
            wakers.extend(self.room.drain());
            self.round += 1;
        }
    }

    fn answer(
        &mut self,
        slot: usize,
        result: Result<Appended, AppendError>,
        wakers: &mut Vec<Waker>,
    ) {
        match self.slots.get_mut(slot) {
            Some(state @ Slot::Waiting(_)) => {
                if let Slot::Waiting(Some(waker)) = mem::replace(state, Slot::Done(result)) {
                    wakers.push(waker);
                }
            }
            Some(Slot::Abandoned) => drop(self.slots.remove(slot)),
            Some(Slot::Done(_)) | None => {}
        }
    }
}

impl End {
    fn refusal(&self) -> AppendError {
        match self {
            Self::Closed => AppendError::from(Closed),
            Self::Failed(cause) => AppendError::Poisoned(cause.clone()),
        }
    }
}

impl Inbox {
    /// Empties it; what one long record has made it grow by is given back.
    fn clear(&mut self, limits: &InboxLimits) {
        self.requests.clear();
        self.records.clear();
        self.keys.clear();
        self.keys.shrink_to(limits.bytes / KEY_LEN);
        self.bytes.clear();
        if self.bytes.capacity() > limits.bytes.saturating_mul(2) {
            self.bytes.shrink_to(limits.bytes);
        }
    }
}
