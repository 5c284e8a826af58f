//! Reading through a handle.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::park;
use super::queue::Queue;
use super::task::{Again, Answer, Step, Visit};
use crate::error::ReadError;
use crate::shard::{ReadLimits, ReadOutcome, StoredRecord};
use crate::units::QueueOffset;
use crate::view::QueueNo;
use crate::view::queue::TagFilter;

/// Records of a queue, in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The records. Each holds memory of the shard (see [`RecordSlice`](crate::RecordSlice)) until
    /// it is dropped.
    pub records: Vec<StoredRecord>,
    /// Where to read on. Unit: records. Ahead of the last record's offset also where records that
    /// the filter does not want, or that are damaged, were passed over.
    pub next: QueueOffset,
}

impl Default for ReadLimits {
    /// 1,024 records or 1 MiB, from at most 65,536 that are looked at.
    fn default() -> Self {
        Self { records_max: 1024, bytes_max: 1 << 20, scanned_max: 65_536 }
    }
}

/// The future of a read; see [`Queue::read`].
#[must_use = "nothing is read before the future is polled or waited for"]
pub struct Read {
    queue: Queue,
    from: QueueOffset,
    limits: ReadLimits,
    filter: TagFilter,
    follow: bool,
    answer: Option<Answer<Batch, ReadError>>,
}

impl Read {
    pub(super) fn new(queue: Queue, from: QueueOffset) -> Self {
        let (limits, filter) = (ReadLimits::default(), TagFilter::All);
        Self { queue, from, limits, filter, follow: false, answer: None }
    }

    /// Reads at most this much.
    pub fn limits(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Gives only records with these tags.
    pub fn filter(mut self, filter: TagFilter) -> Self {
        self.filter = filter;
        self
    }

    /// At the end of the queue, waits for the next record that the filter wants instead of giving an
    /// empty batch.
    pub fn follow(mut self) -> Self {
        self.follow = true;
        self
    }

    /// Blocks the thread until the records are there.
    ///
    /// # Errors
    ///
    /// As for [`Queue::read`].
    pub fn wait(self) -> Result<Batch, ReadError> {
        park::block_on(self)
    }

    fn ask(&self) -> Answer<Batch, ReadError> {
        let plan = Plan {
            queue: self.queue.number(),
            at: self.from,
            limits: self.limits,
            filter: self.filter.clone(),
            follow: self.follow,
        };
        self.queue.shard().ask(plan.into_step())
    }
}

impl Future for Read {
    type Output = Result<Batch, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = self.answer.take().unwrap_or_else(|| self.ask());
        let polled = Pin::new(&mut answer).poll(context);
        self.answer = Some(answer);
        polled
    }
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("from", &self.from).finish_non_exhaustive()
    }
}

/// A read on the shard's thread.
struct Plan {
    queue: QueueNo,
    at: QueueOffset,
    limits: ReadLimits,
    filter: TagFilter,
    follow: bool,
}

impl Plan {
    fn into_step(mut self) -> impl FnMut(&mut Visit<'_>) -> Step<Result<Batch, ReadError>> + Send {
        move |visit| self.step(visit)
    }

    fn step(&mut self, visit: &mut Visit<'_>) -> Step<Result<Batch, ReadError>> {
        loop {
            let mut records = Vec::new();
            let outcome = visit.shard.read_records(
                self.queue,
                self.at,
                &self.limits,
                &self.filter,
                visit.token,
                &mut records,
            );
            let empty = |next| Batch { records: Vec::new(), next };
            return match outcome {
                ReadOutcome::Found { next, .. } => Step::Done(Ok(Batch { records, next })),
                ReadOutcome::NoMatch { next } if self.follow => {
                    self.at = next;
                    continue;
                }
                ReadOutcome::NoMatch { next } => Step::Done(Ok(empty(next))),
                ReadOutcome::AtEnd if self.follow => self.wait_for_more(visit),
                ReadOutcome::AtEnd => Step::Done(Ok(empty(self.at))),
                ReadOutcome::BeyondEnd { max } => Step::Done(Err(ReadError::BeyondEnd(max))),
                ReadOutcome::BelowMin { min } => Step::Done(Err(ReadError::BelowMin(min))),
                ReadOutcome::Pending => Step::Later(Again::Token(None)),
                ReadOutcome::Failed(error) => Step::Done(Err(error)),
            };
        }
    }

    fn wait_for_more(&self, visit: &mut Visit<'_>) -> Step<Result<Batch, ReadError>> {
        if let Some(cause) = visit.shard.poisoned() {
            return Step::Done(Err(ReadError::Poisoned(cause.to_owned())));
        }
        visit.shard.wait(self.queue, self.filter.clone(), visit.token);
        Step::Later(Again::Token(Some(self.queue)))
    }
}
