//! A queue that this member holds.
//!
//! A queue is held from when its start is known until another member gets it, the application
//! stops, or its offset is set from outside. Then it is dropped, for good: what is still being
//! worked on ends without effect. Held again, it is another `Held`.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, task::AbortHandle, time::Instant};

use super::backlog::Backlog;
use crate::{MessageQueue, QueueOffset, clock, lock};

/// How long a broker's lock on a queue counts without being renewed; brokers keep it 60 s.
/// Source: Apache RocketMQ 4.9.8, `ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME`.
pub(super) const LOCK_AGE_MAX: Duration = Duration::from_secs(30);

/// A queue that this member holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) queue: MessageQueue,
    backlog: Mutex<Backlog>,
    is_dropped: AtomicBool,
    /// About to be dropped, as soon as the listener is done with its messages.
    is_closing: AtomicBool,
    is_paused: AtomicBool,
    /// Tells of everything that someone may wait for: messages, room, an end.
    changed: Notify,
    /// Whether someone waits for messages to end: telling of each one costs.
    wants_room: AtomicBool,
    pub(crate) turns: Arc<Turns>,
    /// When the broker's lock was last taken or renewed.
    locked: Mutex<Option<Instant>>,
    /// The offset that the broker, or the file, is known to have.
    committed: Mutex<Option<QueueOffset>>,
    /// The replica to pull from, as the broker suggests.
    pub(crate) broker_id: AtomicI64,
    tasks: Mutex<Vec<AbortHandle>>,
    pub(crate) marks: Marks,
}

/// Times for people to look at. Unit: milliseconds since 1970, 0 for never.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) pulled_ms: AtomicI64,
    pub(crate) consumed_ms: AtomicI64,
    pub(crate) locked_ms: AtomicI64,
}

/// What only one at a time may do with a queue. Handed on when it is held anew at another offset.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Held while the messages of an ordered queue are in the listener's hands.
    pub(crate) listener: tokio::sync::Mutex<()>,
    /// Held while an offset is on its way: brokers may work on two such requests in any order.
    pub(super) commit: tokio::sync::Mutex<()>,
}

impl Held {
    pub(super) fn new(
        queue: MessageQueue,
        start: QueueOffset,
        committed: Option<QueueOffset>,
        turns: Arc<Turns>,
    ) -> Self {
        Self {
            queue,
            backlog: Mutex::new(Backlog::new(start)),
            is_dropped: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            changed: Notify::new(),
            wants_room: AtomicBool::new(false),
            turns,
            locked: Mutex::new(None),
            committed: Mutex::new(committed),
            broker_id: AtomicI64::new(0),
            tasks: Mutex::default(),
            marks: Marks::default(),
        }
    }

    /// Looks at the backlog.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Backlog) -> T) -> T {
        look(&lock(&self.backlog))
    }

    /// Changes the backlog, and tells those who wait.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Backlog) -> T) -> T {
        let result = change(&mut lock(&self.backlog));
        self.changed.notify_waiters();
        result
    }

    /// Changes the backlog in a way that nobody waits for.
    pub(crate) fn change_quietly<T>(&self, change: impl FnOnce(&mut Backlog) -> T) -> T {
        change(&mut lock(&self.backlog))
    }

    /// Notes that messages have ended. Without effect once the queue is dropped.
    pub(crate) fn finish(&self, offsets: impl IntoIterator<Item = QueueOffset>) {
        if self.is_dropped() {
            return;
        }
        let mut backlog = lock(&self.backlog);
        offsets.into_iter().for_each(|offset| backlog.finish(offset));
        drop(backlog);
        self.marks.consumed_ms.store(clock::epoch_ms(), Ordering::Relaxed);
        if self.wants_room.load(Ordering::Acquire) {
            self.changed.notify_waiters();
        }
    }

    /// Waits until more may be pulled.
    pub(crate) async fn room(&self, has_room: impl Fn(&Self) -> bool) {
        self.wants_room.store(true, Ordering::Release);
        self.until(|| has_room(self).then_some(())).await;
        self.wants_room.store(false, Ordering::Release);
    }

    /// The offset to commit.
    pub(crate) fn done(&self) -> QueueOffset {
        self.with(Backlog::done)
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// Whether it is dropped, or about to be.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire) || self.is_dropped()
    }

    /// Ends pulling, and gives no more messages to an ordered listener.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.stop_tasks();
        self.changed.notify_waiters();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    pub(crate) fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Ends pulling and the effect of whatever goes on. True for the first who does it.
    pub(crate) fn drop_it(&self) -> bool {
        let is_first = !self.is_dropped.swap(true, Ordering::AcqRel);
        self.stop_tasks();
        self.changed.notify_waiters();
        is_first
    }

    /// Ends pulling only: what has come may still be finished.
    pub(crate) fn stop_tasks(&self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
    }

    /// Gives a task to the queue, which ends with it.
    pub(crate) fn own(&self, task: AbortHandle) {
        let mut tasks = lock(&self.tasks);
        match self.is_dropped() {
            true => task.abort(),
            false => tasks.push(task),
        }
    }

    /// Waits until `ready` gives something; it is asked again after every change of the queue.
    pub(crate) async fn until<T>(&self, ready: impl Fn() -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = ready() {
                return value;
            }
            changed.await;
        }
    }

    /// Tells of a change outside of the queue that its waiters depend on.
    pub(crate) fn nudge(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn committed(&self) -> Option<QueueOffset> {
        *lock(&self.committed)
    }

    pub(crate) fn set_committed(&self, offset: QueueOffset) {
        *lock(&self.committed) = Some(offset);
    }

    /// Notes what the broker said about the queue's lock.
    pub(crate) fn set_locked(&self, at: Option<Instant>) {
        *lock(&self.locked) = at;
        if at.is_some() {
            self.marks.locked_ms.store(clock::epoch_ms(), Ordering::Relaxed);
        }
        self.changed.notify_waiters();
    }

    /// How long ago the broker's lock was taken or renewed; `None` if it is not held.
    pub(crate) fn lock_age(&self) -> Option<Duration> {
        lock(&self.locked).map(|at| at.elapsed())
    }

    /// Whether the broker's lock can be relied on.
    pub(crate) fn is_locked(&self) -> bool {
        self.lock_age().is_some_and(|age| age <= LOCK_AGE_MAX)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}
