//! Producers: messages to brokers, each to the next queue in turn.
//!
//! A send picks a queue, round robin over all writable queues of the topic. If it fails in a way
//! that another broker may not share, it is tried again there, within one time limit for all
//! attempts together; the message keeps its id, so that consumers can tell a repeat.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `DefaultMQProducerImpl.sendDefaultImpl`.

use std::{sync::Arc, time::Duration};

use ringmq_protocol::limits::MESSAGE_LEN_MAX;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep_until, timeout_at},
};

use self::outbound::Outbound;
use crate::{
    Client, Error, Message, MessageQueue, QueueOffset, client::Group, error::is_retried_send,
    remoting::Stored,
};

mod outbound;

/// Pause before the same broker is tried again; twice as long before each further attempt.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Sends messages. Many tasks may share one: all methods take `&self`.
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
#[derive(Debug)]
pub struct Producer {
    client: Client,
    group: String,
    retries: u32,
    send_timeout: Duration,
    body_len_max: usize,
    in_flight: Semaphore,
    in_flight_max: u32,
}

/// How a producer is set up. Made by [`Client::producer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct ProducerBuilder {
    client: Client,
    group: String,
    retries: u32,
    send_timeout: Duration,
    body_len_max: usize,
    in_flight_max: u32,
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
}

impl ProducerBuilder {
    pub(crate) fn new(client: Client, group: &str) -> Self {
        Self {
            client,
            group: group.into(),
            retries: 2,
            send_timeout: Duration::from_secs(3),
            body_len_max: MESSAGE_LEN_MAX,
            in_flight_max: 1024,
        }
    }

    /// How often a failed send is tried again; twice unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").retries(5).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// How long a send may take, all attempts together; 3 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    ///
    /// let producer =
    ///     client.producer("orders-producer").send_timeout(Duration::from_secs(10)).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    /// Longest body or batch, in bytes; 4 MiB unless set. The broker's own limit holds as well.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").body_len_max(64 * 1024).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn body_len_max(mut self, len: usize) -> Self {
        self.body_len_max = len;
        self
    }

    /// Most sends that wait for an answer at one time, at least 1; 1,024 unless set. Further ones
    /// wait for their turn, and their time runs.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").in_flight_max(64).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn in_flight_max(mut self, count: u32) -> Self {
        self.in_flight_max = count;
        self
    }

    /// Starts the producer. Brokers are looked for when the first message is sent.
    ///
    /// # Errors
    ///
    /// [`Invalid::Group`](crate::Invalid::Group) or [`Error::Closed`].
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self) -> Result<Producer, Error> {
        self.client.shared.check_open()?;
        self.client.shared.groups.join_as_producer(&self.group)?;
        // The semaphore's own limit is far above what a connection takes.
        let in_flight_max = self.in_flight_max.clamp(1, 1 << 20);
        Ok(Producer {
            client: self.client,
            group: self.group,
            retries: self.retries,
            send_timeout: self.send_timeout,
            body_len_max: self.body_len_max,
            in_flight: Semaphore::new(usize::try_from(in_flight_max).unwrap_or(1)),
            in_flight_max,
        })
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
        self.deliver(&self.outbound(&message)?).await
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
        let ids = &self.client.shared.unique_ids;
        self.deliver(&Outbound::batch(&messages, ids, self.body_len_max)?).await
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
        let outbound = self.outbound(&message)?;
        let deadline = Instant::now() + self.send_timeout;
        let _permit = self.permit(deadline).await?;
        let shared = &self.client.shared;
        let route = shared.publish_route(&outbound.topic, deadline).await?;
        let queue = route.pick(None).ok_or_else(|| no_route(&outbound))?;
        let addr = route.master(queue.broker_name()).ok_or_else(|| no_broker(queue))?;
        let header = outbound.header(&self.group, queue);
        let (code, body) = (outbound.code, outbound.body.clone());
        let request = shared.remoting.oneway_request(code, |ext| header.encode(code, ext), body)?;
        shared.remoting.oneway(addr, request, deadline).await
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
        let all = timeout_at(until, self.in_flight.acquire_many(self.in_flight_max)).await;
        let was_closed = self.in_flight.is_closed();
        self.in_flight.close();
        if !was_closed {
            self.client.shared.leave(Group::Producer(&self.group), until).await;
        }
        all.map(drop).map_err(|_| Error::Unfinished { deadline })
    }

    fn outbound(&self, message: &Message) -> Result<Outbound, Error> {
        Ok(Outbound::single(message, &self.client.shared.unique_ids, self.body_len_max)?)
    }

    /// The right to have one more send in flight.
    async fn permit(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, Error> {
        self.client.shared.check_open()?;
        match timeout_at(deadline, self.in_flight.acquire()).await {
            Ok(permit) => permit.map_err(|_| Error::Closed),
            Err(_) => Err(Error::Busy { in_flight_max: self.in_flight_max }),
        }
    }

    /// Sends until a broker has taken it, attempts and time permitting.
    async fn deliver(&self, outbound: &Outbound) -> Result<SendReceipt, Error> {
        let deadline = Instant::now() + self.send_timeout;
        let _permit = self.permit(deadline).await?;
        let mut last: Option<(Arc<str>, Error)> = None;
        for attempt in 0..=self.retries {
            let avoid = last.as_ref().map(|(broker_name, _)| &**broker_name);
            let route = match self.client.shared.publish_route(&outbound.topic, deadline).await {
                Ok(route) => route,
                Err(error) => return Err(last.map_or(error, |(_, error)| error)),
            };
            let queue = route.pick(avoid).ok_or_else(|| no_route(outbound))?;
            let is_same = avoid == Some(queue.broker_name());
            if is_same && !pause(attempt, deadline).await {
                break;
            }
            match self.attempt(outbound, queue, route.master(queue.broker_name()), deadline).await {
                Ok(receipt) => return Ok(receipt),
                Err(error) if !is_worth_a_retry(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(%queue, attempt, %error, "send failed");
                    last = Some((queue.broker_name().into(), error));
                }
            }
            if deadline <= Instant::now() {
                break;
            }
        }
        Err(last.map_or_else(|| no_route(outbound), |(_, error)| error))
    }

    async fn attempt(
        &self,
        outbound: &Outbound,
        queue: &MessageQueue,
        addr: Option<&str>,
        deadline: Instant,
    ) -> Result<SendReceipt, Error> {
        let addr = addr.ok_or_else(|| no_broker(queue))?;
        let remoting = &self.client.shared.remoting;
        let header = outbound.header(&self.group, queue);
        let (code, body) = (outbound.code, outbound.body.clone());
        let request = remoting.request(code, |ext| header.encode(code, ext), body)?;
        Ok(receipt(remoting.send(addr, &request, deadline).await?, outbound, queue))
    }
}

fn no_route(outbound: &Outbound) -> Error {
    Error::NoRoute { topic: outbound.topic.clone() }
}

fn no_broker(queue: &MessageQueue) -> Error {
    Error::NoBroker { broker_name: queue.broker_name().into() }
}

/// Whether another attempt may succeed where this one failed.
fn is_worth_a_retry(error: &Error) -> bool {
    match error {
        Error::Refused { code, .. } => is_retried_send(*code),
        Error::Protocol { .. } => false,
        error => error.retry_can_help(),
    }
}

/// Waits before a broker that just failed is tried again; false if there is no time left for it.
async fn pause(attempt: u32, deadline: Instant) -> bool {
    let len = PAUSE_MIN.saturating_mul(1 << attempt.saturating_sub(1).min(6));
    let until = Instant::now() + len;
    if deadline <= until {
        return false;
    }
    sleep_until(until).await;
    true
}

/// What the application gets to know about a stored message.
fn receipt(stored: Stored, outbound: &Outbound, queue: &MessageQueue) -> SendReceipt {
    // A broker may choose another queue than the one it was asked for.
    let queue = match stored.queue_id == queue.queue_id() {
        true => queue.clone(),
        false => MessageQueue::new(queue.topic(), queue.broker_name(), stored.queue_id),
    };
    SendReceipt {
        status: stored.status,
        message_id: outbound.message_id.clone(),
        offset_message_id: stored.offset_message_id,
        queue,
        queue_offset: QueueOffset::new(stored.queue_offset),
    }
}
