//! A RocketMQ client for Rust: producers and consumers on tokio, against RingMQ and Apache
//! RocketMQ 4.9 and 5.x (remoting protocol).
//!
//! Start with a [`Client`], which finds brokers through a name server and has one connection to
//! each of them; its producers and consumers share them.
//!
//! ```no_run
//! use ringmq_client::{Client, Message};
//!
//! # async fn example() -> Result<(), ringmq_client::Error> {
//! let client = Client::connect("127.0.0.1:9876").await?;
//!
//! let producer = client.producer("orders-producer").start()?;
//! let receipt = producer.send(Message::new("TopicTest", "hello").tag("TagA")).await?;
//! println!("stored as {}", receipt.message_id);
//!
//! let mut consumer = client.pull_consumer("orders-consumer").topic("TopicTest").start().await?;
//! let message = consumer.next().await?;
//! println!("{} says {:?}", message.message_id(), message.body());
//! # Ok(())
//! # }
//! ```
//!
//! # Consuming
//!
//! | Consumer | Messages | Queues | For |
//! |---|---|---|---|
//! | [`PushConsumer`], [`start`](PushConsumerBuilder::start) | to a listener, many at a time | shared by the group | most applications |
//! | [`PushConsumer`], [`start_ordered`](PushConsumerBuilder::start_ordered) | to a listener, each queue in order | shared, locked by the broker | what must not overtake |
//! | [`PushConsumer`], [`broadcasting`](PushConsumerBuilder::broadcasting) | to a listener | all to every member | caches |
//! | [`PullConsumer`], [`subscribe`](PullConsumerBuilder::subscribe) | when asked for, or as a stream | shared by the group | a loop of one's own |
//! | [`PullConsumer`], [`topic`](PullConsumerBuilder::topic) or [`queue`](PullConsumerBuilder::queue) | when asked for | chosen by hand | audits, replays |
//! | [`PopConsumer`] | when asked for, each with a receipt | none: brokers of 5.x hand messages out | more members than queues |
//!
//! ```no_run
//! # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
//! use std::time::Duration;
//! use ringmq_client::{Delivery, StartFrom, Verdict};
//!
//! let consumer = client
//!     .push_consumer("billing")
//!     .subscribe("Orders", "created || paid")
//!     .start_from(StartFrom::First)
//!     .start(|delivery: Delivery| async move {
//!         for message in &delivery {
//!             if message.body().is_empty() {
//!                 return Verdict::DeadLetter;
//!             }
//!         }
//!         Verdict::Done
//!     })
//!     .await?;
//! // ... until the process is told to end:
//! consumer.shutdown(Duration::from_secs(10)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **What a member gets of a topic** is a [`Filter`]: tags, or an expression of SQL92 over the
//! properties of messages, with `=`, `<>`, `<`, `BETWEEN`, `IN`, `IS NULL`, `AND`, `OR` and `NOT`. A
//! property that a message lacks is `NULL`. The broker works it out (Apache's needs
//! `enablePropertyFilter=true`), and [`start`](PushConsumerBuilder::start) fails if it cannot.
//!
//! ```no_run
//! # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
//! use ringmq_client::{Delivery, Filter, Message};
//!
//! let producer = client.producer("shop").start()?;
//! let message = Message::new("Orders", "{}").property("region", "eu").property("price", "1200");
//! producer.send(message).await?;
//!
//! let consumer = client
//!     .push_consumer("expensive")
//!     .subscribe("Orders", Filter::sql("price > 1000 AND region IN ('eu', 'uk')"))
//!     .start(|delivery: Delivery| async move {
//!         println!("{:?}", delivery[0].property("price"));
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Delivery is at least once.** A message comes again after a crash, when its queue changes hands
//! while it is worked on, when the listener takes longer than
//! [`consume_time_max`](PushConsumerBuilder::consume_time_max), and when the listener says so. After
//! [`shutdown`](PushConsumer::shutdown) nothing comes twice; after a crash what was in flight does,
//! and what was done since the last commit, by default up to 5 s of it. Where an effect must happen
//! once, see [`idempotent`].
//!
//! **A group needs one mind.** All members need the same subscriptions and the same
//! [strategy](allocate); members in Java and Go may be among them. Each process needs a
//! [`Client`] of its own: brokers tell members apart by it.
//!
//! **A failed message comes again** after 10 s, 30 s, 1 min and so on, and after 16 retries goes to
//! the dead letters, topic `%DLQ%` and the group. An ordered queue waits for its message instead.
//!
//! **For production**: more queues than members, since a queue has one member at a time; a deadline
//! for `shutdown` that is longer than the listener takes; the number of
//! [dead letters](Verdict::DeadLetter) and the distance between [`PushConsumer::queues`] and the
//! ends of the queues watched.
//!
//! # Watching
//!
//! Sends and deliveries have spans of the `tracing` crate (`send`, `consume`, level debug). With the
//! feature `metrics` there are figures of both through that crate's facade: how many messages were
//! sent, pulled and consumed, how many failed, how long it took, how many queues a member holds.
//! [`ProducerBuilder::traced`] and [`PushConsumerBuilder::traced`] leave upstream's message traces,
//! which its console shows.
//!
//! # Errors and bounds
//!
//! Errors are typed and say whether a retry can help ([`Error::retry_can_help`]). Everything that
//! can grow has a bound: requests and bytes in flight per connection, sends in flight per
//! producer, batches received ahead per consumer, cached routes.
//!
//! In a runtime of one thread, a task that waits for the answer to a send looks for it for up to 300 µs
//! before its thread sleeps, yielding to other tasks, as long as answers tend to come that soon: near
//! brokers answer faster than a sleeping processor wakes. One task of a process does so at a time. That
//! time counts as processor time of the application.
//!
//! Inside: `remoting` is one connection per address, with requests and answers; `route` turns what
//! a name server says into queues; `client` keeps routes fresh and groups registered; on top of
//! them stand `producer`, `admin` and the consumers: `consumer` is a member of a group, `push` and
//! `pull` are kinds of members, `pop` is one that holds no queues.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod admin;
pub mod allocate;
mod client;
mod clock;
mod consumer;
mod error;
pub mod idempotent;
mod message;
mod namespace;
mod observe;
mod pop;
mod producer;
mod pull;
mod push;
mod queue;
mod remoting;
mod route;
pub mod select;
mod subscription;
#[cfg(feature = "tls")]
mod tls;
mod trace;
mod unique;

pub use client::{Client, ClientBuilder};
pub use consumer::{member::StartFrom, request::Pulled};
pub use error::{Error, Invalid};
pub use message::{Message, ReceivedMessage, compress::Compression};
pub use pop::{PopConsumer, PopConsumerBuilder, PopFrom, Popped};
pub use producer::{
    Batching, LatencyRule, Producer, ProducerBuilder, SendReceipt, SendStatus, Transaction,
    TransactionState, TransactionalProducer, TrySendError, split,
};
pub use pull::{PullConsumer, PullConsumerBuilder};
pub use push::{
    Delivery, Listener, OrderedListener, OrderedVerdict, PushConsumer, PushConsumerBuilder, Verdict,
};
pub use queue::{MessageQueue, QueueOffset};
pub use subscription::Filter;
#[cfg(feature = "tls")]
pub use tls::Tls;

/// Locks a mutex whose data no panic can leave half changed: maps with single insertions.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
