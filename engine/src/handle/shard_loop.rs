//! The shard's side of its handles: takes their requests, runs the ring, gives answers back.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::mailbox::{End, Inbox, InboxLimits, Mailbox, RecordHead, Request};
use super::task::{Again, Task, Visit};
use crate::driver::ring::RingShard;
use crate::error::AppendError;
use crate::record::{KeyHash, Record, Stamp};
use crate::shard::{Appended, Shard};
use crate::store::StoreGuard;
use crate::units::{EpochMillis, Sequence};
use crate::view::QueueNo;

/// Tokens of handles have this bit; those without are the caller's own.
const OURS: u64 = 1 << 63;
/// How often the shard does what depends on time alone.
const TICK_MS: u64 = 100;
/// Longest sleep, so that ticks come.
const SLEEP: Duration = Duration::from_millis(TICK_MS);
/// Appends that were refused are tried again this often: a reader on another thread that gives
/// memory back tells nobody.
const REFUSED_SLEEP: Duration = Duration::from_millis(2);

/// What a turn has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// More requests wait: take another turn at once.
    Busy,
    /// Nothing to do before the descriptor is readable or a tenth of a second has passed.
    Idle,
    /// The engine is being closed, and everything that was accepted has been answered. Call
    /// [`ShardLoop::close`].
    Closing,
}

/// A shard that is reached through handles, for a thread of the caller's choice.
///
/// The thread calls [`run`](Self::run), or it has a loop of its own: it takes a
/// [`turn`](Self::turn) when [`event_fd`](Self::event_fd) is readable and at least ten times a
/// second, or [`turn_blocking`](Self::turn_blocking) when it has nothing else to wait for.
///
/// The thread that owns the shard can also use it directly, without locks or hand-over, through
/// [`shard`](Self::shard). Tokens below 2^63 are its own; they come back in
/// [`take_tokens`](Self::take_tokens).
///
/// When it is dropped without [`close`](Self::close), everything that waits for an answer is told
/// that the engine is closed; what was committed is safe.
pub struct ShardLoop {
    ring: RingShard,
    mailbox: Arc<Mailbox>,
    inbox: Inbox,
    /// What of the inbox is appended.
    done: Done,
    /// An append was refused; nothing behind it runs before it.
    refused: bool,
    closing: bool,
    /// Appends whose groups are not committed, in log order.
    uncommitted: VecDeque<(Appended, usize)>,
    answers: Vec<(usize, Result<Appended, AppendError>)>,
    /// Tasks that wait, by their token.
    waiting: HashMap<u64, Waiting>,
    /// Tasks that wait for a commit, in the order of their sequences as far as they have one.
    at_commit: VecDeque<(Sequence, u64)>,
    /// Tasks that wait for room after their first step.
    at_room: Vec<u64>,
    ticked: EpochMillis,
    cancelled: Vec<u64>,
    wakers: Vec<Waker>,
    tokens: Vec<u64>,
    callers_tokens: Vec<u64>,
    _guard: Arc<StoreGuard>,
}

/// How far into the inbox the appends have come.
#[derive(Clone, Copy, Default)]
struct Done {
    bytes: usize,
    records: usize,
    keys: usize,
}

struct Waiting {
    task: Box<dyn Task>,
    /// The queue whose next record it waits for.
    queue: Option<QueueNo>,
}

/// A record as it lies in the inbox.
struct InInbox<'a> {
    tag: i64,
    keys: &'a [KeyHash],
    bytes: &'a [u8],
}

impl Record for InInbox<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn tag(&self) -> i64 {
        self.tag
    }

    fn keys(&self, each: &mut dyn FnMut(KeyHash)) {
        self.keys.iter().copied().for_each(each);
    }

    fn write(&self, _stamp: &Stamp, dst: &mut [u8]) {
        dst.copy_from_slice(self.bytes);
    }
}

impl ShardLoop {
    pub(super) fn new(
        mut ring: RingShard,
        limits: InboxLimits,
        guard: Arc<StoreGuard>,
    ) -> io::Result<(Self, Arc<Mailbox>)> {
        let bell = ring.bell()?;
        let append_len_max = ring.shard().append_len_max();
        let mailbox = Arc::new(Mailbox::new(bell, limits, append_len_max));
        let shard_loop = Self {
            ring,
            mailbox: Arc::clone(&mailbox),
            inbox: Inbox::default(),
            done: Done::default(),
            refused: false,
            closing: false,
            uncommitted: VecDeque::new(),
            answers: Vec::new(),
            waiting: HashMap::new(),
            at_commit: VecDeque::new(),
            at_room: Vec::new(),
            ticked: EpochMillis::default(),
            cancelled: Vec::new(),
            wakers: Vec::new(),
            tokens: Vec::new(),
            callers_tokens: Vec::new(),
            _guard: guard,
        };
        Ok((shard_loop, mailbox))
    }

    /// The shard itself.
    pub fn shard(&mut self) -> &mut Shard {
        self.ring.shard()
    }

    /// Becomes readable when a handle or the kernel has something for the next turn. Read it before
    /// the turn.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.ring.event_fd()
    }

    /// Moves the caller's own tokens to `out`, those of [`Shard::take_woken`] as well as those of
    /// [`Shard::take_ready`].
    pub fn take_tokens(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.callers_tokens);
    }

    /// Takes what handles ask for, runs the ring, and answers. Never blocks.
    ///
    /// # Errors
    ///
    /// The kernel's, when the ring itself fails; the shard cannot go on then, and dropping it tells
    /// the handles.
    pub fn turn(&mut self, now: EpochMillis) -> io::Result<Turn> {
        self.begin(now);
        self.ring.turn(now)?;
        self.finish(now);
        Ok(self.state())
    }

    /// As [`turn`](Self::turn), but when there is nothing to do it first waits, for a tenth of a
    /// second at most.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub fn turn_blocking(&mut self, now: EpochMillis) -> io::Result<Turn> {
        self.begin(now);
        if self.may_sleep() {
            self.ring.turn_blocking(now, self.sleep())?;
        } else {
            self.ring.turn(now)?;
        }
        self.finish(now);
        Ok(self.state())
    }

    /// Serves the handles until the engine is closed, then closes the shard. `now` gives the time.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn) and [`close`](Self::close). The handles are told as well.
    pub fn run(mut self, now: impl Fn() -> EpochMillis) -> io::Result<()> {
        loop {
            match self.turn_blocking(now()) {
                Ok(Turn::Closing) => return self.close(now),
                Ok(Turn::Busy | Turn::Idle) => {}
                Err(cause) => {
                    self.end(End::Failed(cause.to_string()));
                    return Err(cause);
                }
            }
        }
    }

    /// Writes everything that was appended, then a checkpoint, and closes the files. Blocks until it
    /// is done. Requests that are not answered yet are told that the engine is closed.
    ///
    /// # Errors
    ///
    /// The kernel's, or why the shard was poisoned. What was acknowledged is safe all the same.
    pub fn close(mut self, now: impl Fn() -> EpochMillis) -> io::Result<()> {
        let result = self.ring.finish(now);
        let end = match &result {
            Ok(()) => End::Closed,
            Err(cause) => End::Failed(cause.to_string()),
        };
        self.end(end);
        result
    }

    /// Whether this thread may sleep until the descriptor is readable; handles ring the bell then.
    pub(super) fn may_sleep(&self) -> bool {
        if self.ring.view().has_ready() {
            return false;
        }
        // What is refused stays in front of whatever the inbox gets, so nobody need ring.
        self.refused || (self.inbox.requests.is_empty() && self.mailbox.fall_asleep())
    }

    /// How long this thread may sleep at most.
    pub(super) fn sleep(&self) -> Duration {
        if self.refused { REFUSED_SLEEP } else { SLEEP }
    }

    fn state(&self) -> Turn {
        let answered = self.uncommitted.is_empty()
            && self.at_commit.is_empty()
            && self.at_room.is_empty()
            && self.inbox.requests.is_empty();
        // A poisoned shard answers everything with its error.
        if self.closing && answered {
            Turn::Closing
        } else if self.ring.view().has_ready() {
            Turn::Busy
        } else if self.refused || self.inbox.requests.is_empty() {
            Turn::Idle
        } else {
            Turn::Busy
        }
    }

    fn begin(&mut self, now: EpochMillis) {
        if self.inbox.requests.is_empty() {
            self.done = Done::default();
            let (inbox, cancelled) = (&mut self.inbox, &mut self.cancelled);
            let taken = self.mailbox.take(inbox, cancelled, &mut self.wakers);
            self.closing |= taken.closing;
        }
        self.forget_cancelled();
        self.wake();
        self.serve(now);
    }

    fn forget_cancelled(&mut self) {
        for token in self.cancelled.drain(..) {
            let token = token | OURS;
            if let Some(waiting) = self.waiting.remove(&token)
                && let Some(queue) = waiting.queue
            {
                self.ring.shard().cancel_wait(queue, token);
            }
        }
    }

    /// Runs requests in order, until one is refused for want of room.
    fn serve(&mut self, now: EpochMillis) {
        self.refused = false;
        while let Some(request) = self.inbox.requests.pop_front() {
            match request {
                Request::Append { slot, queue, count } => {
                    if !self.append(slot, queue, count, now) {
                        self.refuse(Request::Append { slot, queue, count });
                        return;
                    }
                }
                Request::Task { token, mut task } => {
                    let token_here = token | OURS;
                    let mut visit = Visit { shard: self.ring.shard(), now, token: token_here };
                    match task.step(&mut visit) {
                        Some(Again::Room) => {
                            self.refuse(Request::Task { token, task });
                            return;
                        }
                        Some(again) => self.park(token_here, task, again),
                        None => {}
                    }
                }
            }
        }
    }

    fn refuse(&mut self, request: Request) {
        self.inbox.requests.push_front(request);
        self.refused = true;
    }

    /// Appends records of the inbox. False when there is no room for them now.
    fn append(&mut self, slot: usize, queue: QueueNo, count: usize, now: EpochMillis) -> bool {
        let Done { bytes: byte, records: record, keys: key } = self.done;
        let heads = self.inbox.records.get(record..record + count).unwrap_or_default();
        let mut bytes = self.inbox.bytes.get(byte..).unwrap_or_default();
        let mut keys = self.inbox.keys.get(key..).unwrap_or_default();
        let mut take = |head: &RecordHead| {
            let (record, rest) = bytes.split_at_checked(head.len).unwrap_or_default();
            let (own_keys, other_keys) = keys.split_at_checked(head.keys).unwrap_or_default();
            (bytes, keys) = (rest, other_keys);
            InInbox { tag: head.tag, keys: own_keys, bytes: record }
        };
        let shard = self.ring.shard();
        let result = match heads {
            [head] => shard.append(queue, &[take(head)], now),
            heads => {
                let records: Vec<InInbox<'_>> = heads.iter().map(take).collect();
                shard.append(queue, &records, now)
            }
        };
        let len: usize = heads.iter().map(|head| head.len).sum();
        let keys: usize = heads.iter().map(|head| head.keys).sum();
        match result {
            Ok(appended) => self.uncommitted.push_back((appended, slot)),
            Err(AppendError::Backlogged) => return false,
            Err(error) => self.answers.push((slot, Err(error))),
        }
        self.done = Done { bytes: byte + len, records: record + count, keys: key + keys };
        true
    }

    fn park(&mut self, token: u64, task: Box<dyn Task>, again: Again) {
        let queue = match again {
            Again::Token(queue) => queue,
            Again::Commit(sequence) => {
                self.at_commit.push_back((sequence, token));
                None
            }
            Again::Room => {
                self.at_room.push(token);
                None
            }
        };
        self.waiting.insert(token, Waiting { task, queue });
    }

    /// Follows what the ring has brought.
    fn finish(&mut self, now: EpochMillis) {
        self.tick(now);
        self.step_tokens(now);
        self.follow_commits(now);
        self.step_refused(now);
        self.mailbox.answer(&mut self.answers, &mut self.wakers);
        self.wake();
    }

    fn tick(&mut self, now: EpochMillis) {
        // A clock that was set back must not stop the ticks.
        if now.since(self.ticked) >= TICK_MS || now < self.ticked {
            self.ticked = now;
            self.ring.shard().tick(now);
        }
    }

    fn step_tokens(&mut self, now: EpochMillis) {
        let mut tokens = std::mem::take(&mut self.tokens);
        self.ring.shard().take_woken(&mut tokens);
        self.ring.shard().take_ready(&mut tokens);
        for token in tokens.drain(..) {
            if token & OURS == 0 {
                self.callers_tokens.push(token);
            } else {
                self.step(token, now);
            }
        }
        self.tokens = tokens;
    }

    fn step(&mut self, token: u64, now: EpochMillis) {
        let Some(mut waiting) = self.waiting.remove(&token) else { return };
        let mut visit = Visit { shard: self.ring.shard(), now, token };
        if let Some(again) = waiting.task.step(&mut visit) {
            self.park(token, waiting.task, again);
        }
    }

    fn follow_commits(&mut self, now: EpochMillis) {
        let shard = self.ring.shard();
        let committed = shard.committed();
        let poison = shard.poisoned().map(str::to_owned);
        while let Some((appended, slot)) = self.uncommitted.front().copied() {
            let result = match &poison {
                _ if appended.sequence <= committed => Ok(appended),
                Some(cause) => Err(AppendError::Poisoned(cause.clone())),
                None => break,
            };
            self.uncommitted.pop_front();
            self.answers.push((slot, result));
        }
        let decided = |sequence: Sequence| sequence <= committed || poison.is_some();
        for _ in 0..self.at_commit.len() {
            let Some((sequence, token)) = self.at_commit.pop_front() else { break };
            if decided(sequence) {
                self.step(token, now);
            } else {
                self.at_commit.push_back((sequence, token));
            }
        }
        if poison.is_some() {
            self.tell_waiting(now);
        }
    }

    /// Whoever waits for a further record of a poisoned shard waits for something that cannot come.
    fn tell_waiting(&mut self, now: EpochMillis) {
        let at_queue = |(&token, waiting): (&u64, &Waiting)| Some((token, waiting.queue?));
        let told: Vec<(u64, QueueNo)> = self.waiting.iter().filter_map(at_queue).collect();
        for (token, queue) in told {
            self.ring.shard().cancel_wait(queue, token);
            self.step(token, now);
        }
    }

    fn step_refused(&mut self, now: EpochMillis) {
        for token in std::mem::take(&mut self.at_room) {
            self.step(token, now);
        }
    }

    /// Lets go of everything that waits, which tells its futures.
    fn end(&mut self, end: End) {
        self.waiting.clear();
        self.inbox.requests.clear();
        self.mailbox.end(end, &mut self.wakers);
        self.wake();
    }

    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Drop for ShardLoop {
    fn drop(&mut self) {
        let end = if std::thread::panicking() {
            End::Failed("the shard's thread has panicked".to_owned())
        } else {
            End::Closed
        };
        self.end(end);
    }
}

impl fmt::Debug for ShardLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardLoop").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}
