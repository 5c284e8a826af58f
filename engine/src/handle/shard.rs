//! A shard, as handles reach it: its queues and facts.

use std::fmt;
use std::sync::Arc;

use super::Inner;
use super::mailbox::Mailbox;
use super::queue::Queue;
use super::task::{self, Again, Answer, Step, Visit};
use crate::error::{AppendError, Closed, ReadError};
use crate::record::KeyHash;
use crate::shard::{FoundRecord, KeyLimits, KeyOutcome, KeySearch, Shard};
use crate::units::{EpochMillis, Sequence};
use crate::view::QueueNo;

/// One shard of an open engine. Cheap to clone and to send to other threads; it keeps the engine
/// open.
///
/// Facts are small values under keys, of which the newest counts, such as how far a consumer has
/// got. They ride in the same log as the records, so a fact about a queue belongs on that queue's
/// shard: [`Queue::shard`].
#[derive(Clone)]
pub struct ShardHandle {
    engine: Arc<Inner>,
    mailbox: Arc<Mailbox>,
    number: u32,
}

/// Key and value of a fact.
pub type Fact = (Box<[u8]>, Box<[u8]>);

impl ShardHandle {
    pub(super) fn new(engine: Arc<Inner>, mailbox: Arc<Mailbox>, number: u32) -> Self {
        Self { engine, mailbox, number }
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    pub(super) fn ask<T: Send + 'static, E: From<Closed> + Send + 'static>(
        &self,
        step: impl FnMut(&mut Visit<'_>) -> Step<Result<T, E>> + Send + 'static,
    ) -> Answer<T, E> {
        Answer::new(Arc::clone(&self.mailbox), step)
    }

    /// The shard's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The queue with this key on this shard; it is opened if it is new.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; [`AppendError::TooLarge`] for a key above 4,096 bytes.
    pub fn open_queue(&self, key: &[u8]) -> Answer<Queue, AppendError> {
        let (key, handle) = (Box::<[u8]>::from(key), self.clone());
        self.ask(move |visit| match visit.shard.open_queue(&key, visit.now) {
            Ok(number) => Step::Done(Ok(Queue::new(handle.clone(), number))),
            Err(AppendError::Backlogged) => Step::Later(Again::Room),
            Err(error) => Step::Done(Err(error)),
        })
    }

    /// The queue with this key on this shard, if it was ever opened.
    ///
    /// # Errors
    ///
    /// [`Closed`].
    pub fn queue(&self, key: &[u8]) -> Answer<Option<Queue>, Closed> {
        let (key, handle) = (Box::<[u8]>::from(key), self.clone());
        self.ask(move |visit| {
            let number = visit.shard.queue(&key);
            Step::Done(Ok(number.map(|number| Queue::new(handle.clone(), number))))
        })
    }

    /// Stores a fact, or with `None` removes it. The future answers once that is committed.
    ///
    /// # Errors
    ///
    /// As for [`Queue::append`]; [`AppendError::TooLarge`] for a key above 4,096 bytes.
    pub fn put_fact(&self, key: &[u8], value: Option<&[u8]>) -> Answer<(), AppendError> {
        let (key, value) = (Box::<[u8]>::from(key), value.map(Box::<[u8]>::from));
        self.ask(task::until_committed(move |shard, now| {
            Ok((shard.put_fact(&key, value.as_deref(), now)?, ()))
        }))
    }

    /// Stores a fact within about a second, with the next group that is written anyway: for values
    /// that change often and may fall back a little after a crash. A later value of the same key
    /// replaces one that still waits. A key above 4,096 bytes is ignored.
    ///
    /// # Errors
    ///
    /// [`Closed`].
    pub fn stage_fact(&self, key: &[u8], value: &[u8]) -> Answer<(), Closed> {
        let (key, value) = (Box::<[u8]>::from(key), Box::<[u8]>::from(value));
        self.ask(move |visit| {
            visit.shard.stage_fact(&key, &value, visit.now);
            Step::Done(Ok(()))
        })
    }

    /// The committed value of a fact.
    ///
    /// # Errors
    ///
    /// [`Closed`].
    pub fn fact(&self, key: &[u8]) -> Answer<Option<Box<[u8]>>, Closed> {
        let key = Box::<[u8]>::from(key);
        self.ask(move |visit| Step::Done(Ok(visit.shard.fact(&key).map(Box::from))))
    }

    /// Committed facts whose key begins with `prefix`, in the order of their keys.
    ///
    /// # Errors
    ///
    /// [`Closed`].
    pub fn facts_with_prefix(&self, prefix: &[u8]) -> Answer<Vec<Fact>, Closed> {
        let prefix = Box::<[u8]>::from(prefix);
        self.ask(move |visit| {
            let facts = visit.shard.facts_with_prefix(&prefix);
            Step::Done(Ok(facts.map(|(key, value)| (key.into(), value.into())).collect()))
        })
    }

    /// The records of this shard that have a key, newest first, as far as the limits go. `has_key`
    /// says whether a stored record has it, since different keys may have the same hash; it runs on
    /// the shard's thread and must not block.
    ///
    /// # Errors
    ///
    /// [`ReadError::Io`] when the device fails or the index is damaged; the next opening mends an index.
    pub fn find(
        &self,
        key: KeyHash,
        has_key: impl Fn(&[u8]) -> bool + Send + 'static,
        limits: KeyLimits,
    ) -> Answer<Vec<FoundRecord>, ReadError> {
        let all = (EpochMillis::new(i64::MIN), EpochMillis::new(i64::MAX));
        self.find_within(key, has_key, all, limits)
    }

    /// As [`find`](Self::find), of the records that were stored at or after the first time and not
    /// later than the second.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find).
    pub fn find_within(
        &self,
        key: KeyHash,
        has_key: impl Fn(&[u8]) -> bool + Send + 'static,
        times: (EpochMillis, EpochMillis),
        limits: KeyLimits,
    ) -> Answer<Vec<FoundRecord>, ReadError> {
        let mut search = Some(KeySearch::new(key, times, limits));
        self.ask(move |visit| {
            let Some(going) = &mut search else { return Step::Done(Err(Closed.into())) };
            match visit.shard.search_key(going, &has_key, visit.token) {
                KeyOutcome::Done => {
                    Step::Done(Ok(search.take().map(KeySearch::into_found).unwrap_or_default()))
                }
                KeyOutcome::Pending => Step::Later(Again::Token(None)),
                KeyOutcome::Failed(error) => Step::Done(Err(error)),
            }
        })
    }

    /// Runs code on the shard's thread, between two turns: for whatever [`Shard`] can do and handles
    /// cannot, such as appending a [`Record`](crate::Record) that carries its own position. It must
    /// not block. Tokens that it uses must have bit 63 set to zero, and reach only a thread that
    /// drives the shard itself.
    ///
    /// # Errors
    ///
    /// [`Closed`]; also when the code panicked, with the whole shard.
    pub fn with<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Shard, EpochMillis) -> T + Send + 'static,
    ) -> Answer<T, Closed> {
        let mut run = Some(run);
        self.ask(move |visit| {
            let run = run.take().ok_or(Closed);
            Step::Done(run.map(|run| run(visit.shard, visit.now)))
        })
    }

    /// Waits until a sequence that [`with`](Self::with) has given out is committed.
    ///
    /// # Errors
    ///
    /// [`AppendError::Poisoned`] when it never will be, [`AppendError::Closed`].
    pub fn committed(&self, sequence: Sequence) -> Answer<(), AppendError> {
        self.ask(task::until_committed(move |_, _| Ok((sequence, ()))))
    }

    /// The queue of this engine that has a number; for numbers that [`with`](Self::with) has given.
    pub fn queue_numbered(&self, number: QueueNo) -> Queue {
        Queue::new(self.clone(), number)
    }

    /// The engine that the shard belongs to.
    pub fn engine(&self) -> super::Engine {
        super::Engine::of(Arc::clone(&self.engine))
    }
}

impl fmt::Debug for ShardHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardHandle").field("number", &self.number).finish_non_exhaustive()
    }
}
