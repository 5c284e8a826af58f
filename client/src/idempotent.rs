//! Consuming each message's effect once, although messages are delivered at least once.
//!
//! A broker delivers a message again after a crash, a slow listener or a change of queues, and a
//! producer that sends again after a timeout makes two messages of one event. [`Once`] stands before
//! a listener and asks a store about each message's key:
//!
//! | The store has | What happens |
//! |---|---|
//! | nothing | the key is claimed for a time, the listener runs; then it is marked as consumed, or after a failure free again |
//! | a claim | somebody is at it: the message comes again later |
//! | that it is consumed | the message is done without the listener |
//!
//! ```no_run
//! # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
//! use std::time::Duration;
//! use ringmq_client::{Delivery, Verdict, idempotent::{Memory, Once}};
//!
//! let charge = |delivery: Delivery| async move {
//!     println!("charging for {:?}", delivery[0].keys().next());
//!     Verdict::Done
//! };
//! let once = Once::new(charge, Memory::new(100_000))
//!     .claim_time(Duration::from_secs(60))
//!     .memory_time(Duration::from_secs(24 * 3600));
//! let consumer = client.push_consumer("charges").subscribe("Orders", "*").start(once).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The key
//!
//! Unless [`Once::key`] says otherwise, it is the message's first key (`KEYS`), which should name
//! the event in the application's own terms, such as an order's number; without one it is the
//! producer's message id. That id stays the same over redeliveries, but two sends of one event have
//! two of them. The consumer group is part of what the store sees, so that groups can share one.
//!
//! # Limits
//!
//! - A listener that takes longer than the claim may run twice: choose the claim longer than the
//!   longest run. A claim belongs to one run: another one can neither mark nor free it.
//! - After a crash between the effect and the mark, the effect happens again once the claim is
//!   over. Where that must not be, make the effect and the mark one transaction of a database.
//! - A store that forgets, by a restart of [`Memory`] or of a Redis without persistence, forgets
//!   what was consumed.
//! - A store that cannot be reached decides nothing: by default the message comes again later, so
//!   that nothing happens twice; [`Once::when_store_fails`] can choose to consume instead.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use crate::{Delivery, Listener, ReceivedMessage, Verdict, push, unique};

mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use memory::Memory;
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisError};

/// What a store knows about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// Nothing was known: the key is claimed now.
    Granted,
    /// Another run has claimed it, and its time is not over.
    Held,
    /// It was consumed.
    Consumed,
}

/// Where keys are kept. All members of a group share one store.
pub trait Store: Send + Sync + 'static {
    /// Why it cannot say anything.
    type Error: fmt::Display + Send;

    /// Claims a key for `time`, in the name of `token`, unless something is known about it. One
    /// step: of two that claim at the same time, one gets it.
    ///
    /// # Errors
    ///
    /// The store could not be asked, or whether it has claimed the key is not known.
    fn claim(
        &self,
        key: &str,
        token: &str,
        time: Duration,
    ) -> impl Future<Output = Result<Claim, Self::Error>> + Send;

    /// Marks a key as consumed for `time`, if this token's claim is still there; whether it was.
    ///
    /// # Errors
    ///
    /// As [`Store::claim`].
    fn finish(
        &self,
        key: &str,
        token: &str,
        time: Duration,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Forgets this token's claim, if it is still there; whether it was.
    ///
    /// # Errors
    ///
    /// As [`Store::claim`].
    fn release(
        &self,
        key: &str,
        token: &str,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// What happens to messages while the store cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenStoreFails {
    /// They come again later: nothing happens twice, and nothing goes on.
    #[default]
    Retry,
    /// They are consumed as without a guard: everything goes on, and some of it twice.
    Consume,
}

type KeyOf = Box<dyn Fn(&ReceivedMessage) -> String + Send + Sync>;

/// A guard before a listener, itself a [`Listener`]. Each message of a delivery is judged by
/// itself, and the listener gets them one by one.
pub struct Once<L, S> {
    listener: L,
    store: S,
    scope: String,
    key_of: KeyOf,
    claim_time: Duration,
    memory_time: Duration,
    when_store_fails: WhenStoreFails,
}

impl<L, S> fmt::Debug for Once<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl<L: Listener, S: Store> Once<L, S> {
    /// Guards a listener: claims of 60 s, and keys that are remembered for 24 h.
    pub fn new(listener: L, store: S) -> Self {
        Self {
            listener,
            store,
            scope: String::new(),
            key_of: Box::new(default_key),
            claim_time: Duration::from_secs(60),
            memory_time: Duration::from_secs(24 * 3600),
            when_store_fails: WhenStoreFails::default(),
        }
    }

    /// Sets what keys of this guard begin with: normally the consumer group, when several share a
    /// store. Empty unless set.
    ///
    /// ```
    /// use ringmq_client::{Delivery, idempotent::{Memory, Once}};
    ///
    /// let once = Once::new(|_: Delivery| async {}, Memory::new(1000)).scope("charges");
    /// ```
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
        self
    }

    /// Sets what the key of a message is.
    ///
    /// ```
    /// use ringmq_client::{Delivery, ReceivedMessage, idempotent::{Memory, Once}};
    ///
    /// let order = |message: &ReceivedMessage| message.property("order").unwrap_or("?").to_owned();
    /// let once = Once::new(|_: Delivery| async {}, Memory::new(1000)).key(order);
    /// ```
    #[must_use]
    pub fn key(
        mut self,
        key_of: impl Fn(&ReceivedMessage) -> String + Send + Sync + 'static,
    ) -> Self {
        self.key_of = Box::new(key_of);
        self
    }

    /// Sets how long a run may take; 60 s unless set. After a crash the message waits for so long.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ringmq_client::{Delivery, idempotent::{Memory, Once}};
    ///
    /// let once = Once::new(|_: Delivery| async {}, Memory::new(1000))
    ///     .claim_time(Duration::from_secs(300));
    /// ```
    #[must_use]
    pub const fn claim_time(mut self, time: Duration) -> Self {
        self.claim_time = time;
        self
    }

    /// Sets how long it is remembered that a key was consumed; 24 h unless set. It should be longer
    /// than a message can come again: with 16 retries that is nearly 5 h.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ringmq_client::{Delivery, idempotent::{Memory, Once}};
    ///
    /// let once = Once::new(|_: Delivery| async {}, Memory::new(1000))
    ///     .memory_time(Duration::from_secs(72 * 3600));
    /// ```
    #[must_use]
    pub const fn memory_time(mut self, time: Duration) -> Self {
        self.memory_time = time;
        self
    }

    /// Sets what happens to messages while the store cannot be asked.
    ///
    /// ```
    /// use ringmq_client::{Delivery, idempotent::{Memory, Once, WhenStoreFails}};
    ///
    /// let once = Once::new(|_: Delivery| async {}, Memory::new(1000))
    ///     .when_store_fails(WhenStoreFails::Consume);
    /// ```
    #[must_use]
    pub const fn when_store_fails(mut self, what: WhenStoreFails) -> Self {
        self.when_store_fails = what;
        self
    }

    async fn judge(&self, message: ReceivedMessage) -> Verdict {
        let key = format!("{}:{}:{}", self.scope, message.topic(), (self.key_of)(&message));
        let token = format!("{:016x}{:016x}", unique::random(), unique::random());
        match self.store.claim(&key, &token, self.claim_time).await {
            Ok(Claim::Granted) => self.run(&key, &token, message).await,
            Ok(Claim::Held) => {
                tracing::debug!(key, "somebody is at it, the message comes again");
                Verdict::Retry
            }
            Ok(Claim::Consumed) => {
                tracing::debug!(key, "consumed before");
                Verdict::Done
            }
            Err(error) => {
                tracing::warn!(key, %error, "the store of consumed keys cannot be asked");
                match self.when_store_fails {
                    WhenStoreFails::Retry => Verdict::Retry,
                    WhenStoreFails::Consume => {
                        self.listener.consume(Delivery::new(vec![message])).await
                    }
                }
            }
        }
    }

    /// Runs the listener under a claim.
    async fn run(&self, key: &str, token: &str, message: ReceivedMessage) -> Verdict {
        let verdict = self.listener.consume(Delivery::new(vec![message]));
        let verdict = push::guarded(verdict).await.unwrap_or_else(|panic| {
            tracing::error!(panic, "the listener panicked, the message comes again");
            Verdict::Retry
        });
        let is_done = matches!(verdict, Verdict::Done | Verdict::DoneFirst(1..));
        let noted = match is_done {
            true => self.store.finish(key, token, self.memory_time).await,
            false => self.store.release(key, token).await,
        };
        match noted {
            Ok(true) => {}
            Ok(false) => tracing::warn!(key, "the listener took longer than its claim"),
            // The claim ends by itself. Until then the message waits; after it, it may run again.
            Err(error) => tracing::warn!(key, %error, "the end of a run was not noted"),
        }
        if is_done { Verdict::Done } else { verdict }
    }
}

impl<L: Listener, S: Store> Listener for Once<L, S> {
    async fn consume(&self, delivery: Delivery) -> Verdict {
        // The first failure ends the batch: what is behind it comes again, and is judged again.
        let mut done = 0;
        for message in delivery {
            match self.judge(message).await {
                Verdict::Done => done += 1,
                verdict if done == 0 => return verdict,
                _ => return Verdict::DoneFirst(done),
            }
        }
        Verdict::Done
    }
}

/// The message's first key, else its id.
fn default_key(message: &ReceivedMessage) -> String {
    let key = message.keys().next().map(String::from);
    key.unwrap_or_else(|| message.message_id())
}

impl<S: Store> Store for Arc<S> {
    type Error = S::Error;

    async fn claim(&self, key: &str, token: &str, time: Duration) -> Result<Claim, S::Error> {
        (**self).claim(key, token, time).await
    }

    async fn finish(&self, key: &str, token: &str, time: Duration) -> Result<bool, S::Error> {
        (**self).finish(key, token, time).await
    }

    async fn release(&self, key: &str, token: &str) -> Result<bool, S::Error> {
        (**self).release(key, token).await
    }
}

#[cfg(test)]
mod tests;
