//! One connection: requests go out in few large writes, answers come in many a read.
//!
//! A request is copied behind those that wait to be written, and one task writes all that waits at
//! once, after everybody who is ready to send has had a turn. A request that is alone on its
//! connection, or long, is written where it is made instead: nothing would join it. So is all that
//! waits once it is some tens of KiB: the peer works on it while others make their requests. The first
//! request after many answers is not alone, for those who got them are about to send, too: a broker
//! would flush it by itself, and the others with the next flush.
//!
//! Answers to sends, which are short and many, are read where they lie in the receive buffer; the
//! others are handed over as slices of it.
//!
//! Bounds: [`CALLS_MAX`] requests wait for an answer, [`QUEUED_LEN_MAX`] bytes wait to be written. A
//! caller waits for room, within its own time. One task looks after the time of all calls. When the
//! connection ends, for whatever reason, all who wait are told.
//!
//! Elsewhere: the tasks are in `pump`, what waits to be written in `queue`.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use foldhash::fast::FixedState;
use ringmq_protocol::frame::FRAME_LEN_MAX;
use tokio::{
    net::tcp::OwnedWriteHalf,
    sync::{Notify, oneshot},
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{Answer, Stored, pump, queue::Queue, serve::Desk, spin::Spin, stream::Stream};
use crate::{Error, client::Shared, lock};

/// Most requests of one connection that wait for an answer. Each queue that is read has one held
/// pull among them, so there is room for many queues and for sends beside them.
const CALLS_MAX: usize = 65_536;

/// Most bytes that wait to be written, besides those that are being written: two of the longest
/// frames.
const QUEUED_LEN_MAX: usize = 2 * FRAME_LEN_MAX;

/// A connection on which a call's time ran out while nothing at all came in for this long is given
/// up, since its peer may be gone without a word. Upstream gives it up after every such call.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// A connection. Dropping it lets its tasks write what is queued, then close.
#[derive(Debug)]
pub(super) struct Link {
    state: Arc<State>,
}

/// What callers share with the connection's tasks.
#[derive(Debug)]
pub(super) struct State {
    core: Mutex<Core>,
    /// Something waits to be written.
    pub(super) write: Notify,
    /// Something that waited was taken to be written.
    room: Notify,
    /// A call's time ends before the one that is waited for.
    pub(super) hurry: Notify,
    pub(super) close: Notify,
    /// Reads that brought something.
    received: AtomicU64,
    /// Answers that the last read brought.
    burst: AtomicUsize,
    spin: Spin,
    /// Whether [`Phase::Ended`] is reached.
    is_ended: AtomicBool,
}

#[derive(Debug)]
struct Core {
    phase: Phase,
    /// For requests that are written where they are made. `None` if all bytes have to go through
    /// the task, as with TLS, and when the connection has ended.
    direct: Option<Arc<OwnedWriteHalf>>,
    /// Who waits for which answer. Removed by whoever comes first: the answer, the end of its time,
    /// or the caller that stops waiting.
    calls: HashMap<i32, Call, FixedState>,
    queue: Queue,
    /// Whether the writing task has work, or knows that it has.
    is_writing: bool,
    away: Away,
    /// Memory of frames that were written, for those to come.
    spare: Queue,
    /// When the time of calls is looked at next.
    sweep_at: Option<Instant>,
}

/// Who has frames that left the queue and are not all written yet: others wait behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    Nobody,
    /// The writing task.
    Task,
    /// Someone who made a request.
    Caller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nobody has the connection any more: what is queued is written, then it closes.
    Finishing,
    Ended,
}

impl Core {
    /// Whether so much waits that it is worth a write of its own, and nothing is before it.
    const fn may_write_early(&self) -> bool {
        matches!(self.away, Away::Nobody) && self.direct.is_some() && self.queue.is_due()
    }
}

#[derive(Debug)]
struct Call {
    caller: Caller,
    started: Instant,
    deadline: Instant,
    /// What [`State::received`] was when the call started.
    received: u64,
}

/// Who gets an answer, and in which form.
#[derive(Debug)]
pub(super) enum Caller {
    Any(oneshot::Sender<Outcome<Answer>>),
    Sent(oneshot::Sender<Outcome<Result<Stored, Error>>>),
}

/// What became of a call. A connection that ends drops the sender instead.
#[derive(Debug)]
pub(super) enum Outcome<T> {
    Answered(T),
    /// Its time is over.
    Late,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untaken {
    /// The connection has ended.
    Ended,
    /// There was no room for it within its time.
    Late,
}

/// Whether a request was taken.
enum Taking {
    Done,
    Full,
    Ended,
}

/// What there is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Frames,
    Nothing,
    Finished,
}

impl Link {
    pub(super) fn start(addr: &str, stream: Stream, client: Weak<Shared>) -> Self {
        let (reader, writer, direct) = stream.split();
        let state = Arc::new(State::new(direct));
        let desk = Desk::new(addr, client, Arc::downgrade(&state));
        tokio::spawn(pump::run(desk, reader, writer, Arc::clone(&state)));
        Self { state }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.is_ended.load(Ordering::Acquire)
    }

    /// Ends the connection at once.
    pub(super) fn close(&self) {
        self.state.close.notify_one();
    }

    /// Waits until all that was handed over is written, or the connection has ended.
    pub(super) async fn flushed(&self) {
        loop {
            let room = self.state.room.notified();
            {
                let core = lock(&self.state.core);
                if core.phase == Phase::Ended || !core.is_writing {
                    return;
                }
            }
            room.await;
        }
    }

    /// Queues a request. The inner future gives its answer, or `None` if the connection ended.
    ///
    /// # Errors
    ///
    /// [`Untaken`].
    pub(super) async fn call(
        &self,
        opaque: i32,
        head: &[u8],
        body: &Bytes,
        deadline: Instant,
    ) -> Result<Waiting<Answer>, Untaken> {
        let (sender, receiver) = oneshot::channel();
        self.register(opaque, head, body, Caller::Any(sender), deadline).await?;
        Ok(self.waiting(opaque, receiver))
    }

    /// Queues a send, as [`Link::call`].
    ///
    /// # Errors
    ///
    /// [`Untaken`].
    pub(super) async fn send(
        &self,
        opaque: i32,
        head: &[u8],
        body: &Bytes,
        deadline: Instant,
    ) -> Result<Waiting<Result<Stored, Error>>, Untaken> {
        let (sender, receiver) = oneshot::channel();
        self.register(opaque, head, body, Caller::Sent(sender), deadline).await?;
        Ok(self.waiting(opaque, receiver))
    }

    /// Queues a request that gets no answer.
    ///
    /// # Errors
    ///
    /// [`Untaken`].
    pub(super) async fn oneway(
        &self,
        head: &[u8],
        body: &Bytes,
        deadline: Instant,
    ) -> Result<(), Untaken> {
        self.queued(head, body, &mut None, deadline).await
    }

    async fn register(
        &self,
        opaque: i32,
        head: &[u8],
        body: &Bytes,
        caller: Caller,
        deadline: Instant,
    ) -> Result<(), Untaken> {
        let started = Instant::now();
        let received = self.state.received.load(Ordering::Relaxed);
        let call = Call { caller, started, deadline, received };
        self.queued(head, body, &mut Some((opaque, call)), deadline).await
    }

    async fn queued(
        &self,
        head: &[u8],
        body: &Bytes,
        call: &mut Option<(i32, Call)>,
        deadline: Instant,
    ) -> Result<(), Untaken> {
        loop {
            match self.state.queue(head, body, call) {
                Taking::Done => return Ok(()),
                Taking::Ended => return Err(Untaken::Ended),
                Taking::Full => {}
            }
            let room = self.state.room.notified();
            // Room that was made before this moment has told nobody.
            match self.state.queue(head, body, call) {
                Taking::Done => return Ok(()),
                Taking::Ended => return Err(Untaken::Ended),
                Taking::Full => timeout_at(deadline, room).await.map_err(|_| Untaken::Late)?,
            }
        }
    }

    fn waiting<T>(&self, opaque: i32, receiver: oneshot::Receiver<Outcome<T>>) -> Waiting<T> {
        Waiting { receiver, state: Some(Arc::clone(&self.state)), opaque }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut core = lock(&self.state.core);
        if core.phase == Phase::Open {
            core.phase = Phase::Finishing;
        }
        drop(core);
        self.state.write.notify_one();
    }
}

/// Waits for what becomes of a call: `None` if the connection ends. Dropped before, it takes the
/// call off the list.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    receiver: oneshot::Receiver<Outcome<T>>,
    /// `None` once it is known.
    state: Option<Arc<State>>,
    opaque: i32,
}

impl<T> Waiting<T> {
    /// Waits awake for a while first, if answers tend to come that soon.
    pub(super) async fn awake(mut self) -> Option<Outcome<T>> {
        if let Some(state) = self.state.clone()
            && let Some(look) = state.spin.start()
        {
            while look.goes_on() {
                let seen = poll_fn(|context| Poll::Ready(Pin::new(&mut self).poll(context))).await;
                if let Poll::Ready(outcome) = seen {
                    if outcome.is_some() {
                        look.succeeded();
                    }
                    return outcome;
                }
                yield_now().await;
            }
        }
        self.await
    }
}

impl<T> Future for Waiting<T> {
    type Output = Option<Outcome<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.receiver).poll(context));
        self.state = None;
        Poll::Ready(outcome.ok())
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        if let Some(state) = &self.state {
            state.remove(self.opaque);
        }
    }
}

impl State {
    pub(super) fn new(direct: Option<Arc<OwnedWriteHalf>>) -> Self {
        let core = Core {
            phase: Phase::Open,
            direct,
            calls: HashMap::default(),
            queue: Queue::default(),
            is_writing: false,
            away: Away::Nobody,
            spare: Queue::default(),
            sweep_at: None,
        };
        Self {
            core: Mutex::new(core),
            write: Notify::new(),
            room: Notify::new(),
            hurry: Notify::new(),
            close: Notify::new(),
            received: AtomicU64::new(0),
            burst: AtomicUsize::new(0),
            spin: Spin::default(),
            is_ended: AtomicBool::new(false),
        }
    }

    /// Takes a request to be written, and the call that waits for its answer.
    fn queue(&self, head: &[u8], body: &Bytes, call: &mut Option<(i32, Call)>) -> Taking {
        let mut core = lock(&self.core);
        if core.phase != Phase::Open {
            return Taking::Ended;
        }
        let is_full = !core.queue.is_empty()
            && QUEUED_LEN_MAX < core.queue.len() + head.len() + body.len()
            || CALLS_MAX <= core.calls.len();
        if is_full {
            return Taking::Full;
        }
        let (mut is_hurry, mut is_alone) = (false, false);
        if let Some((opaque, call)) = call.take() {
            is_hurry = core.sweep_at.is_none_or(|at| call.deadline < at);
            if is_hurry {
                core.sweep_at = Some(call.deadline);
            }
            core.calls.insert(opaque, call);
            // Nothing would be written together with a body that is not copied.
            let is_single = core.calls.len() == 1 && self.burst.load(Ordering::Relaxed) <= 1;
            is_alone = !core.is_writing && (is_single || Queue::is_long(body));
        }
        let written = match &core.direct {
            Some(direct) if is_alone => Queue::try_write(direct, head, body),
            _ => 0,
        };
        if written < head.len() + body.len() {
            core.queue.push(head, body, written);
            match core.may_write_early() {
                true => self.write_early(core),
                false => self.wake_writer(core),
            }
        } else {
            drop(core);
        }
        if is_hurry {
            self.hurry.notify_one();
        }
        Taking::Done
    }

    /// Queues the answer to a request of the peer. One that asks faster than it reads goes without.
    pub(super) fn answer(&self, frame: Vec<u8>) {
        let mut core = lock(&self.core);
        if core.phase == Phase::Open && core.queue.len() + frame.len() <= QUEUED_LEN_MAX {
            core.queue.push(&frame, &Bytes::new(), 0);
            self.wake_writer(core);
        }
    }

    /// Writes what waits as far as the socket takes it now. What went wrong shows when the writing
    /// task writes the rest.
    fn write_early(&self, mut core: MutexGuard<'_, Core>) {
        let Some(direct) = core.direct.clone() else { return self.wake_writer(core) };
        core.away = Away::Caller;
        core.is_writing = true;
        let spare = std::mem::take(&mut core.spare);
        let mut queue = std::mem::replace(&mut core.queue, spare);
        drop(core);
        queue.write_some(&direct);
        let mut core = lock(&self.core);
        core.away = Away::Nobody;
        if core.phase != Phase::Ended {
            std::mem::swap(&mut core.queue, &mut queue);
            core.queue.append(&mut queue);
            core.spare = queue;
        }
        drop(core);
        // It may have looked in the meantime, and found that it was not its turn.
        self.write.notify_one();
    }

    fn wake_writer(&self, mut core: MutexGuard<'_, Core>) {
        let is_awake = std::mem::replace(&mut core.is_writing, true);
        drop(core);
        if !is_awake {
            self.write.notify_one();
        }
    }

    /// Takes all that waits to be written into an empty queue.
    pub(super) fn take(&self, queue: &mut Queue) -> Taken {
        let mut core = lock(&self.core);
        if core.away == Away::Caller {
            // Whoever it is tells when they are back.
            return Taken::Nothing;
        }
        let taken = match (core.queue.is_empty(), core.phase) {
            (false, _) => Taken::Frames,
            (true, Phase::Open) => Taken::Nothing,
            (true, Phase::Finishing | Phase::Ended) => Taken::Finished,
        };
        std::mem::swap(&mut core.queue, queue);
        core.is_writing = taken == Taken::Frames;
        core.away = if core.is_writing { Away::Task } else { Away::Nobody };
        drop(core);
        self.room.notify_waiters();
        taken
    }

    /// Notes that something came in.
    pub(super) fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes how many answers came in together.
    pub(super) fn answered(&self, count: usize) {
        self.burst.store(count, Ordering::Relaxed);
    }

    /// Takes the one who waits for an answer off the list.
    pub(super) fn remove(&self, opaque: i32) -> Option<Caller> {
        let mut core = lock(&self.core);
        let was_full = CALLS_MAX <= core.calls.len();
        let call = core.calls.remove(&opaque);
        drop(core);
        if was_full {
            self.room.notify_waiters();
        }
        call.map(|call| call.caller)
    }

    /// When the time of calls has to be looked at.
    pub(super) fn sweep_at(&self) -> Option<Instant> {
        lock(&self.core).sweep_at
    }

    /// Tells callers whose time is over. Whether the peer has been silent for so long that the
    /// connection is given up.
    pub(super) fn sweep(&self, now: Instant) -> bool {
        let received = self.received.load(Ordering::Relaxed);
        let mut is_silent = false;
        let mut core = lock(&self.core);
        let was_full = CALLS_MAX <= core.calls.len();
        let late: Vec<_> = core.calls.extract_if(|_, call| call.deadline <= now).collect();
        core.sweep_at = core.calls.values().map(|call| call.deadline).min();
        drop(core);
        for (_, call) in late {
            is_silent |= call.received == received && call.started + SILENCE_MAX <= now;
            call.caller.late();
        }
        if was_full {
            self.room.notify_waiters();
        }
        is_silent
    }

    /// Refuses requests from now on, and tells those who wait: their senders are dropped.
    pub(super) fn end(&self) {
        let mut core = lock(&self.core);
        core.phase = Phase::Ended;
        self.is_ended.store(true, Ordering::Release);
        core.queue = Queue::default();
        core.direct = None;
        let calls = std::mem::take(&mut core.calls);
        drop(core);
        drop(calls);
        self.room.notify_waiters();
    }
}

impl Caller {
    fn late(self) {
        // The caller may have gone in this moment.
        match self {
            Self::Any(sender) => drop(sender.send(Outcome::Late)),
            Self::Sent(sender) => drop(sender.send(Outcome::Late)),
        }
    }
}
