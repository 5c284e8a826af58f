//! Requests that are more than an append: code that runs on the shard's thread, and the future that
//! waits for what it finds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::mailbox::{Asked, Mailbox, RoomKey};
use super::park;
use crate::error::{AppendError, Closed};
use crate::shard::Shard;
use crate::units::{EpochMillis, Sequence};
use crate::view::QueueNo;

/// The shard, as a task finds it.
pub(super) struct Visit<'a> {
    pub(super) shard: &'a mut Shard,
    pub(super) now: EpochMillis,
    /// What the task is called: the token of its reads and waits.
    pub(super) token: u64,
}

/// When a task that is not done runs again.
pub(super) enum Again {
    /// When the shard gives back its token; after a wait on this queue, if it is one.
    Token(Option<QueueNo>),
    /// When this is committed, or never will be.
    Commit(Sequence),
    /// When there is room for appends.
    Room,
}

/// A request that runs on the shard's thread, in one step or several.
pub(super) trait Task: Send {
    /// Gives `None` when it is done, answered or not.
    fn step(&mut self, visit: &mut Visit<'_>) -> Option<Again>;
}

/// What a step has led to.
pub(super) enum Step<T> {
    Done(T),
    Later(Again),
}

struct Ask<T, F> {
    step: F,
    sender: Sender<T>,
}

impl<T: Send, F: FnMut(&mut Visit<'_>) -> Step<T> + Send> Task for Ask<T, F> {
    fn step(&mut self, visit: &mut Visit<'_>) -> Option<Again> {
        if Arc::strong_count(&self.sender.0) == 1 {
            // The future is gone.
            return None;
        }
        match (self.step)(visit) {
            Step::Done(value) => {
                self.sender.send(value);
                None
            }
            Step::Later(again) => Some(again),
        }
    }
}

struct Shared<T> {
    value: Option<T>,
    waker: Option<Waker>,
    /// The task has given its answer, or is gone without one.
    done: bool,
}

struct Sender<T>(Arc<Mutex<Shared<T>>>);

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Sender<T> {
    fn send(&self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.done = true;
        let waker = shared.waker.take();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The answer to a request, as a future for any executor or, through [`wait`](Self::wait), for a
/// thread that blocks.
///
/// The request goes to the shard at the first poll; while too many wait there, the future waits for
/// room. Dropping the future takes the request back if the shard has not begun with it; one that has
/// begun takes effect all the same.
#[must_use = "nothing is asked before the future is polled or waited for"]
pub struct Answer<T, E> {
    mailbox: Arc<Mailbox>,
    /// The request, until the shard has it.
    task: Option<Box<dyn Task>>,
    shared: Arc<Mutex<Shared<Result<T, E>>>>,
    token: Option<u64>,
    room: RoomKey,
}

impl<T: Send + 'static, E: From<Closed> + Send + 'static> Answer<T, E> {
    pub(super) fn new(
        mailbox: Arc<Mailbox>,
        step: impl FnMut(&mut Visit<'_>) -> Step<Result<T, E>> + Send + 'static,
    ) -> Self {
        let shared = Shared { value: None, waker: None, done: false };
        let shared = Arc::new(Mutex::new(shared));
        let task: Box<dyn Task> = Box::new(Ask { step, sender: Sender(Arc::clone(&shared)) });
        Self { mailbox, task: Some(task), shared, token: None, room: RoomKey::default() }
    }

    /// Blocks the thread until the answer is there.
    ///
    /// # Errors
    ///
    /// Those of the future.
    pub fn wait(self) -> Result<T, E> {
        park::block_on(self)
    }
}

impl<T, E: From<Closed>> Future for Answer<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let this = &mut *self;
        if let Some(task) = this.task.take() {
            match this.mailbox.ask(task) {
                Asked::Taken(token) => this.token = Some(token),
                Asked::Full(task) => {
                    this.task = Some(task);
                    if this.mailbox.poll_room(&mut this.room, context.waker()) {
                        context.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
                Asked::Closed => return Poll::Ready(Err(Closed.into())),
            }
        }
        let mut shared = lock(&this.shared);
        if !shared.done {
            match &mut shared.waker {
                Some(known) => known.clone_from(context.waker()),
                None => shared.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        this.token = None;
        Poll::Ready(shared.value.take().unwrap_or_else(|| Err(Closed.into())))
    }
}

impl<T, E> Drop for Answer<T, E> {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.mailbox.forget_room(self.room);
        }
        if let Some(token) = self.token {
            self.mailbox.cancel(token);
        }
    }
}

impl<T, E> fmt::Debug for Answer<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("accepted", &self.task.is_none()).finish_non_exhaustive()
    }
}

/// Runs an append-like call until it is committed: `call` is tried until the shard has room, and its
/// sequence waited for.
pub(super) fn until_committed<T: Clone + Send + 'static>(
    mut call: impl FnMut(&mut Shard, EpochMillis) -> Result<(Sequence, T), AppendError> + Send + 'static,
) -> impl FnMut(&mut Visit<'_>) -> Step<Result<T, AppendError>> + Send + 'static {
    let mut appended: Option<(Sequence, T)> = None;
    move |visit| {
        if let Some((sequence, value)) = &appended {
            return committed(visit.shard, *sequence)
                .map_or(Step::Later(Again::Commit(*sequence)), |result| {
                    Step::Done(result.map(|()| value.clone()))
                });
        }
        match call(visit.shard, visit.now) {
            Ok((sequence, value)) => {
                appended = Some((sequence, value));
                Step::Later(Again::Commit(sequence))
            }
            Err(AppendError::Backlogged) => Step::Later(Again::Room),
            Err(error) => Step::Done(Err(error)),
        }
    }
}

/// Whether a sequence is committed; `None` when it is not decided.
pub(super) fn committed(shard: &Shard, sequence: Sequence) -> Option<Result<(), AppendError>> {
    if sequence <= shard.committed() {
        return Some(Ok(()));
    }
    shard.poisoned().map(|cause| Err(AppendError::Poisoned(cause.to_owned())))
}
