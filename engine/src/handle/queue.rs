//! A queue, as handles reach it.

use std::fmt;
use std::sync::Arc;

use super::append::{Append, Commit, Records, Room};
use super::mailbox::NewRecord;
use super::read::Read;
use super::shard::ShardHandle;
use super::task::{Again, Answer, Step};
use crate::error::{AppendError, Closed, ReadError};
use crate::shard::SearchOutcome;
use crate::units::{EpochMillis, QueueOffset};
use crate::view::QueueNo;

/// A queue of records in an open engine. Cheap to clone and to send to other threads; it keeps the
/// engine open.
#[derive(Clone)]
pub struct Queue {
    shard: ShardHandle,
    number: QueueNo,
}

/// The offsets that a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOffsets {
    /// The first record that can be read. Unit: records.
    pub min: QueueOffset,
    /// The committed end: the offset that follows the last committed record. Unit: records.
    pub max: QueueOffset,
}

impl Queue {
    pub(super) fn new(shard: ShardHandle, number: QueueNo) -> Self {
        Self { shard, number }
    }

    /// The shard that the queue lies on.
    pub fn shard(&self) -> &ShardHandle {
        &self.shard
    }

    /// The queue's number, for calls of [`Shard`](crate::Shard) itself.
    pub fn number(&self) -> QueueNo {
        self.number
    }

    /// Appends a record. The future answers once the record is committed: durable, and visible to
    /// readers.
    ///
    /// Records are stored in the order in which the shard takes them, which happens when their
    /// futures are first polled; a caller that wants both an order and several at once calls
    /// [`try_append`](Self::try_append).
    ///
    /// # Errors
    ///
    /// - [`AppendError::TooLarge`]: it never fits; nothing was stored.
    /// - [`AppendError::DiskFull`]: nothing was stored; a later try may succeed.
    /// - [`AppendError::Poisoned`]: it may have been stored or not; a new opening tells.
    /// - [`AppendError::Closed`]: as for `Poisoned` when the engine was closed meanwhile, otherwise
    ///   nothing was stored.
    pub fn append<'a>(&self, record: impl Into<NewRecord<'a>>) -> Append<'a> {
        let mailbox = Arc::clone(self.shard.mailbox());
        Append::new(mailbox, self.number, Records::One(record.into()))
    }

    /// Appends records, all or none, with neighbouring offsets.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append); the records must fit one group of the log together.
    pub fn append_all<'a>(&self, records: &'a [NewRecord<'a>]) -> Append<'a> {
        let mailbox = Arc::clone(self.shard.mailbox());
        Append::new(mailbox, self.number, Records::All(records))
    }

    /// Gives a record to the shard at once. Records are stored in the order of these calls; the
    /// future, which need not be polled for that, answers once the record is committed.
    ///
    /// # Errors
    ///
    /// [`AppendError::Backlogged`] when too much waits for the shard: nothing was stored, and
    /// [`room`](Self::room) tells when to try again. Others as for [`append`](Self::append).
    pub fn try_append<'a>(&self, record: impl Into<NewRecord<'a>>) -> Result<Commit, AppendError> {
        let mailbox = self.shard.mailbox();
        let slot = mailbox.append(self.number, &[record.into()])?;
        Ok(Commit::new(Arc::clone(mailbox), slot))
    }

    /// Waits until the shard takes appends again after [`AppendError::Backlogged`]. Others may be
    /// quicker, so the next try can be refused too.
    pub fn room(&self) -> Room {
        Room::new(Arc::clone(self.shard.mailbox()))
    }

    /// Reads committed records from an offset on. The batch is empty at the end of the queue, unless
    /// the read [follows](Read::follow) it.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. One record that is damaged does not fail a read: it is passed over.
    pub fn read(&self, from: QueueOffset) -> Read {
        Read::new(self.clone(), from)
    }

    /// The offsets that the queue has now.
    ///
    /// # Errors
    ///
    /// [`Closed`].
    pub fn offsets(&self) -> Answer<QueueOffsets, Closed> {
        let number = self.number;
        self.shard.ask(move |visit| {
            let (min, max) = (visit.shard.min_offset(number), visit.shard.max_offset(number));
            Step::Done(Ok(QueueOffsets { min, max }))
        })
    }

    /// The first offset whose record was stored at or after a time; the committed end if there is
    /// none.
    ///
    /// # Errors
    ///
    /// [`ReadError`], when a record on the way could not be read.
    pub fn search_time(&self, time: EpochMillis) -> Answer<QueueOffset, ReadError> {
        let number = self.number;
        self.shard.ask(move |visit| match visit.shard.search_time(number, time, visit.token) {
            SearchOutcome::Found(offset) => Step::Done(Ok(offset)),
            SearchOutcome::Pending => Step::Later(Again::Token(None)),
            SearchOutcome::Failed(error) => Step::Done(Err(error)),
        })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("shard", &self.shard.number())
            .field("number", &self.number)
            .finish()
    }
}
