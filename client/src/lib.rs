//! A RocketMQ client for Rust: producers and pull consumers on tokio, against RingMQ and Apache
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
//! Errors are typed and say whether a retry can help ([`Error::retry_can_help`]). Everything that
//! can grow has a bound: requests and bytes in flight per connection, sends in flight per
//! producer, batches received ahead per consumer, cached routes.
//!
//! Inside: `remoting` is one connection per address, with requests and answers; `route` turns what
//! a name server says into queues; `client` keeps routes fresh and groups registered; on top of
//! them stand `producer`, `pull` and `admin`.

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
