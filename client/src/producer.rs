//! Producers: messages to brokers, each to the next queue in turn, or to the one that it belongs to.
//!
//! A send picks a queue, round robin over all writable queues of the topic. If it fails in a way
//! that another broker may not share, it is tried again there, within one time limit for all
//! attempts together; the message keeps its id, so that consumers can tell a repeat.
//!
//! Elsewhere: settings are in `builder`, attempts in `deliver`, what may be in flight in `gate`,
//! slow brokers in `fault`, sends that travel together in `batching`.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `DefaultMQProducerImpl`.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use self::{
    batching::{Batcher, Load},
    deliver::Target,
    fault::Faults,
    gate::Gate,
    heads::Heads,
    outbound::{Form, Outbound},
    reply::Greeted,
};
use crate::{
    Client, Error, Message, MessageQueue, QueueOffset, client::Group, observe::Sends, trace::Tracer,
};

mod batching;
mod builder;
mod deliver;
mod fault;
mod gate;
mod heads;
mod outbound;
mod outcome;
mod reply;
mod split;
mod transaction;

pub use batching::Batching;
pub use builder::ProducerBuilder;
pub use fault::LatencyRule;
pub(crate) use reply::{Requests, pushed as reply_pushed};
pub use split::split;
pub(crate) use transaction::{Checks, check as check_transaction};
pub use transaction::{Transaction, TransactionState, TransactionalProducer};

/// Sends messages. Cheap to clone; all clones are one producer, and many tasks may share one: all
/// methods take `&self`.
///
/// ```no_run
/// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
/// use ringmq_client::Message;
///
/// let producer = client.producer("orders-producer").start()?;
/// let receipt = producer.send(Message::new("Orders", "hello")).await?;
/// println!("{} is at {} of {}", receipt.message_id, receipt.queue_offset, receipt.queue);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Producer {
    inner: Arc<Inner>,
}

/// The producer behind its handles.
struct Inner {
    client: Client,
    /// With the namespace.
    group: String,
    retries: u32,
    send_timeout: Duration,
    attempt_timeout: Option<Duration>,
    retries_if_not_stored: bool,
    form: Form,
    gate: Arc<Gate>,
    faults: Faults,
    greeted: Greeted,
    heads: Heads,
    batcher: Option<Batcher>,
    tracer: Option<Arc<Tracer>>,
    figures: Sends,
}

/// What a broker did with a message.
///
/// Source: Apache RocketMQ 4.9.8, `SendStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendStatus {
    /// Stored, in the way that the broker promises.
    Stored,
    /// Stored, but not yet flushed to disk.
    NotFlushed,
    /// Stored, but no replica is there to have it.
    NoReplica,
    /// Stored, but not yet on a replica.
    NotReplicated,
}

/// Where a message, or a batch, was stored.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SendReceipt {
    /// How well it is stored.
    pub status: SendStatus,
    /// The id that the producer gave it (property `UNIQ_KEY`); those of a batch joined with commas.
    pub message_id: String,
    /// The broker's own id for it, by which an admin tool finds it. Empty if the broker gave none.
    pub offset_message_id: String,
    /// The queue.
    pub queue: MessageQueue,
    /// Its position in the queue, in messages; of a batch that of the first one. A delayed message
    /// has its position in the queue where it waits.
    pub queue_offset: QueueOffset,
    /// By what the message can be recalled before it is delivered, if it has a time and the broker
    /// is one of 5.x.
    pub recall_handle: Option<String>,
}

/// Why [`Producer::try_send`] did not take a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum TrySendError {
    /// As much is in flight as the producer allows. Here is the message, for a later try.
    Full(Box<Message>),
    /// The message breaks a rule, or the producer was shut down.
    Failed(Error),
}

impl fmt::Display for TrySendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("as much is in flight as the producer allows"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TrySendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Full(_) => None,
            Self::Failed(error) => Some(error),
        }
    }
}

impl Producer {
    /// Sends a message and waits until a broker has stored it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] before anything is sent. Otherwise what the last attempt met; after one
    /// whose [outcome is unknown](Error::outcome_is_unknown) the message may have been stored.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Message;
    ///
    /// let receipt = producer.send(Message::new("Orders", "hello").tag("created")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Many at a time: the futures are independent of each other.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// # use ringmq_client::Message;
    /// let (one, two) = tokio::join!(
    ///     producer.send(Message::new("Orders", "one")),
    ///     producer.send(Message::new("Orders", "two")),
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, message: Message) -> Result<SendReceipt, Error> {
        self.inner.send(message, Target::Any).await
    }

    /// Sends a message if there is room for one more in flight, and never waits for it: neither for
    /// other sends nor for memory. The future, which may be spawned, is the send itself.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`] with the message, or [`TrySendError::Failed`]. Those of
    /// [`Producer::send`] come from the future.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Message, TrySendError};
    ///
    /// match producer.try_send(Message::new("Clicks", "button-1")) {
    ///     Ok(sending) => drop(tokio::spawn(sending)),
    ///     Err(TrySendError::Full(message)) => println!("dropped {:?}", message.body()),
    ///     Err(TrySendError::Failed(error)) => return Err(error),
    ///     Err(_) => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_send(
        &self,
        message: Message,
    ) -> Result<impl Future<Output = Result<SendReceipt, Error>> + Send + use<>, TrySendError> {
        let deadline = Instant::now() + self.inner.send_timeout;
        let inner = Arc::clone(&self.inner);
        let entered = inner.client.shared.check_open();
        let entered = entered.and_then(|()| inner.gate.try_enter(message.len_estimate()));
        let permit = match entered {
            Ok(permit) => permit,
            Err(Error::Busy { .. }) => return Err(TrySendError::Full(message.into())),
            Err(error) => return Err(TrySendError::Failed(error)),
        };
        let outbound = inner.outbound(&message).map_err(TrySendError::Failed)?;
        Ok(async move {
            let target = Target::of(&message);
            let Some(batcher) = inner.batcher.as_ref().filter(|_| message.can_join()) else {
                let receipt = inner.deliver(&outbound, target, deadline).await;
                drop(permit);
                return receipt;
            };
            let load = Load { message: &message, ready: Some(outbound), permit, deadline };
            inner.join(batcher, load, target).await
        })
    }

    /// Sends a message to this queue and no other. Further attempts go there as well.
    ///
    /// # Errors
    ///
    /// As [`Producer::send`]; [`Error::NoBroker`] if the queue's broker is not known.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Message, MessageQueue};
    ///
    /// let queue = MessageQueue::new("Orders", "broker-a", 2);
    /// producer.send_to(&queue, Message::new("Orders", "hello")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_to(
        &self,
        queue: &MessageQueue,
        message: Message,
    ) -> Result<SendReceipt, Error> {
        self.inner.send(message, Target::Queue(queue)).await
    }

    /// Sends a message to the queue that a selector chooses: the index of one of the topic's queues,
    /// in the order of broker names and queue ids. See [`select`](crate::select) for those of other
    /// clients.
    ///
    /// # Errors
    ///
    /// As [`Producer::send`]; [`Invalid::Selection`](crate::Invalid::Selection) if there is no such
    /// queue.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Message, select};
    ///
    /// producer.send_by(Message::new("Orders", "paid"), select::by_key("order-17")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_by(
        &self,
        message: Message,
        selector: impl Fn(&[MessageQueue]) -> usize + Send + Sync,
    ) -> Result<SendReceipt, Error> {
        self.inner.send(message, Target::Selected(&selector)).await
    }

    /// Sends messages of one topic in one request. They are stored in one queue, in this order,
    /// one right behind the other, or not at all.
    ///
    /// # Errors
    ///
    /// As [`Producer::send`]; [`Invalid::Batch`](crate::Invalid::Batch) if they cannot be a batch.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Message;
    ///
    /// let lines = ["one", "two", "three"];
    /// let receipt = producer.send_batch(lines.map(|line| Message::new("Lines", line))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_batch(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<SendReceipt, Error> {
        let messages: Vec<_> = messages.into_iter().collect();
        self.inner.send_batch(&messages, Target::Any).await
    }

    /// As [`Producer::send_batch`], to this queue.
    ///
    /// # Errors
    ///
    /// As [`Producer::send_batch`] and [`Producer::send_to`].
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Message, MessageQueue};
    ///
    /// let queue = MessageQueue::new("Lines", "broker-a", 2);
    /// producer.send_batch_to(&queue, ["one", "two"].map(|line| Message::new("Lines", line))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_batch_to(
        &self,
        queue: &MessageQueue,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<SendReceipt, Error> {
        let messages: Vec<_> = messages.into_iter().collect();
        self.inner.send_batch(&messages, Target::Queue(queue)).await
    }

    /// Sends any number of messages of one topic as batches of at most `len_max` bytes, one after
    /// the other; see [`split`]. There is a receipt for each batch that was stored. After a batch
    /// that was not, its error is the last item, and the messages from there on were not sent.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Message;
    ///
    /// let lines = (0..100_000).map(|n| Message::new("Lines", n.to_string()));
    /// for receipt in producer.send_batches(lines, 1024 * 1024).await {
    ///     println!("first at {}", receipt?.queue_offset);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_batches(
        &self,
        messages: impl IntoIterator<Item = Message>,
        len_max: usize,
    ) -> Vec<Result<SendReceipt, Error>> {
        let mut results = Vec::new();
        let batches: Vec<_> = split(messages, len_max).collect();
        for batch in batches {
            let result = self.inner.send_batch(&batch, Target::Any).await;
            let is_failed = result.is_err();
            results.push(result);
            if is_failed {
                break;
            }
        }
        results
    }

    /// Sends a message without waiting for an answer: whether it arrives is not told. Waits until
    /// the message is queued on a connection.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], or why there is no connection to a broker.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Message;
    ///
    /// producer.send_oneway(Message::new("Clicks", "button-1")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_oneway(&self, message: Message) -> Result<(), Error> {
        let deadline = Instant::now() + self.inner.send_timeout;
        let outbound = self.inner.outbound(&message)?;
        let _permit = self.inner.enter(outbound.len(), deadline).await?;
        self.inner.throw(&outbound, Target::of(&message), deadline).await
    }

    /// The queues of a topic that can be written, in the order that selectors see.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoute`], or why no name server could be asked.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// println!("{} queues", producer.queues("Orders").await?.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn queues(&self, topic: &str) -> Result<Vec<MessageQueue>, Error> {
        let shared = &self.inner.client.shared;
        let namespace = &shared.namespace;
        let route = shared.publish_route(&namespace.wrap(topic), shared.deadline()).await?;
        Ok(route.publish().iter().map(|queue| namespace.unwrap_queue(queue)).collect())
    }

    /// Turns [latency faults](ProducerBuilder::latency_faults) on or off, at any time. What was
    /// learnt about brokers is forgotten.
    ///
    /// ```no_run
    /// # fn example(producer: ringmq_client::Producer) {
    /// producer.set_latency_faults(true);
    /// # }
    /// ```
    pub fn set_latency_faults(&self, is_on: bool) {
        self.inner.faults.switch(is_on);
    }

    /// Sends that are in flight now.
    ///
    /// ```no_run
    /// # fn example(producer: ringmq_client::Producer) {
    /// println!("{} in flight", producer.in_flight());
    /// # }
    /// ```
    pub fn in_flight(&self) -> u32 {
        self.inner.gate.in_flight()
    }

    /// Waits for the sends in flight, then leaves the group. Further sends end with
    /// [`Error::Closed`].
    ///
    /// # Errors
    ///
    /// [`Error::Unfinished`] if sends were still in flight at the deadline; they go on.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// producer.shutdown(std::time::Duration::from_secs(3)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), Error> {
        let until = Instant::now() + deadline;
        let all = timeout_at(until, self.inner.gate.drained()).await;
        if self.inner.gate.close() {
            let group = Group::Producer(&self.inner.group);
            self.inner.client.shared.leave(group, until).await;
        }
        all.map_err(|_| Error::Unfinished { deadline })
    }
}

impl Inner {
    async fn send(
        self: &Arc<Self>,
        message: Message,
        target: Target<'_>,
    ) -> Result<SendReceipt, Error> {
        let deadline = Instant::now() + self.send_timeout;
        let target = target.or(&message);
        if let Some(batcher) = self.batcher.as_ref().filter(|_| message.can_join()) {
            message.check(self.form.body_len_max)?;
            let ready = match self.form.packs(message.body()) {
                true => Some(self.outbound(&message)?),
                false => None,
            };
            let permit = self.enter(message.len_estimate(), deadline).await?;
            let load = Load { message: &message, ready, permit, deadline };
            return self.join(batcher, load, target).await;
        }
        let outbound = self.outbound(&message)?;
        let _permit = self.enter(outbound.len(), deadline).await?;
        self.deliver(&outbound, target, deadline).await
    }

    async fn send_batch(
        &self,
        messages: &[Message],
        target: Target<'_>,
    ) -> Result<SendReceipt, Error> {
        let deadline = Instant::now() + self.send_timeout;
        let ids = &self.client.shared.unique_ids;
        let outbound = Outbound::batch(messages, ids, &self.form)?;
        let _permit = self.enter(outbound.len(), deadline).await?;
        self.deliver(&outbound, target, deadline).await
    }

    fn outbound(&self, message: &Message) -> Result<Outbound, Error> {
        Ok(Outbound::single(message, &self.client.shared.unique_ids, &self.form)?)
    }

    /// The right to have one more send in flight.
    async fn enter(&self, len: usize, deadline: Instant) -> Result<gate::Permit, Error> {
        self.client.shared.check_open()?;
        self.gate.enter(len, deadline).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.gate.close() {
            self.client.shared.groups.forget_producer(&self.group);
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("group", &self.group).finish_non_exhaustive()
    }
}
