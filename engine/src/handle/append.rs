//! Futures of appends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::mailbox::{Mailbox, NewRecord, RoomKey};
use super::park;
use crate::error::AppendError;
use crate::shard::Appended;
use crate::view::QueueNo;

/// Records that the shard has been given: the future of their commit.
///
/// Dropping it changes nothing about the append: the records are stored, and nobody is told.
#[must_use = "the records are safe only once this has answered"]
pub struct Commit {
    mailbox: Arc<Mailbox>,
    /// `None` once the answer was given.
    slot: Option<usize>,
}

impl Commit {
    pub(super) fn new(mailbox: Arc<Mailbox>, slot: usize) -> Self {
        Self { mailbox, slot: Some(slot) }
    }

    /// Blocks the thread until the records are committed.
    ///
    /// # Errors
    ///
    /// As for [`Queue::append`](super::Queue::append).
    pub fn wait(self) -> Result<Appended, AppendError> {
        park::block_on(self)
    }
}

impl Future for Commit {
    type Output = Result<Appended, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else { return Poll::Ready(Err(AppendError::Closed)) };
        match self.mailbox.poll_slot(slot, context.waker()) {
            Some(result) => {
                self.slot = None;
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.mailbox.abandon_slot(slot);
        }
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit").field("answered", &self.slot.is_none()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
pub(super) enum Records<'a> {
    One(NewRecord<'a>),
    All(&'a [NewRecord<'a>]),
}

impl Records<'_> {
    fn as_slice(&self) -> &[NewRecord<'_>] {
        match self {
            Self::One(record) => std::slice::from_ref(record),
            Self::All(records) => records,
        }
    }
}

enum Stage<'a> {
    Offering(Records<'a>),
    Taken(Commit),
}

/// The future of an append. Nothing happens before it is polled or waited for; while too much waits
/// for the shard, it waits for room.
///
/// Dropping it before the shard has taken the records stores nothing; later it changes nothing.
#[must_use = "nothing is appended before the future is polled or waited for"]
pub struct Append<'a> {
    mailbox: Arc<Mailbox>,
    queue: QueueNo,
    stage: Stage<'a>,
    room: RoomKey,
}

impl<'a> Append<'a> {
    pub(super) fn new(mailbox: Arc<Mailbox>, queue: QueueNo, records: Records<'a>) -> Self {
        Self { mailbox, queue, stage: Stage::Offering(records), room: RoomKey::default() }
    }

    /// Blocks the thread until the records are committed.
    ///
    /// # Errors
    ///
    /// As for [`Queue::append`](super::Queue::append).
    pub fn wait(self) -> Result<Appended, AppendError> {
        park::block_on(self)
    }
}

impl Future for Append<'_> {
    type Output = Result<Appended, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::Offering(records) = this.stage {
            match this.mailbox.append(this.queue, records.as_slice()) {
                Ok(slot) => {
                    this.stage = Stage::Taken(Commit::new(Arc::clone(&this.mailbox), slot));
                }
                Err(AppendError::Backlogged) => {
                    if this.mailbox.poll_room(&mut this.room, context.waker()) {
                        // Room has come back in between: offer the records again.
                        context.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        match &mut this.stage {
            Stage::Taken(commit) => Pin::new(commit).poll(context),
            Stage::Offering(_) => Poll::Pending,
        }
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Offering(_)) {
            self.mailbox.forget_room(self.room);
        }
    }
}

impl fmt::Debug for Append<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = matches!(self.stage, Stage::Taken(_));
        f.debug_struct("Append").field("taken", &taken).finish_non_exhaustive()
    }
}

/// The future of room for more appends; see [`Queue::room`](super::Queue::room).
#[must_use = "it must be polled or waited for"]
pub struct Room {
    mailbox: Arc<Mailbox>,
    at: RoomKey,
}

impl Room {
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, at: RoomKey::default() }
    }

    /// Blocks the thread until there is room.
    pub fn wait(self) {
        park::block_on(self);
    }
}

impl Future for Room {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.mailbox.poll_room(&mut this.at, context.waker()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.mailbox.forget_room(self.at);
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}
