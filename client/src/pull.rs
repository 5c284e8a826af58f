//! Pull consumers: the application asks for messages, and keeps track of what it has done.
//!
//! There are two ways to use one. [`PullConsumer::next`] gives the messages of all assigned queues
//! as they come, from where the group left off, and commits what was done. Or the application
//! pulls single queues from offsets of its own, with [`PullConsumer::pull`].
//!
//! Behind `next` one task per queue pulls ahead into a bounded channel, see `fetch`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    headers::{PullRequest, PullResponse, pull_flag},
    tags::TagSet,
};
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use self::fetch::Batch;
use crate::{
    Client, Error, MessageQueue, QueueOffset, ReceivedMessage,
    client::Membership,
    lock, message,
    remoting::{refused, unexpected},
};

mod builder;
mod fetch;

pub use builder::{PullConsumerBuilder, StartFrom};

/// How much longer than the hold time an answer may take: brokers look for held requests whose
/// time is up every 5 s only. Source: Apache RocketMQ 4.9.8, `DefaultMQPullConsumer`, whose two
/// timeouts are 10 s apart.
const HOLD_SLACK: Duration = Duration::from_secs(10);

/// Reads queues.
///
/// Everybody who reads the same group's queues gets the same messages: queues are assigned by hand,
/// not shared out among the members of the group. Use a group of its own for each consumer.
///
/// ```no_run
/// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
/// use std::time::Duration;
///
/// let mut consumer = client.pull_consumer("orders-audit").topic("Orders").start().await?;
/// for _ in 0..10 {
///     let message = consumer.next().await?;
///     println!("{}: {:?}", message.queue(), message.body());
/// }
/// consumer.shutdown(Duration::from_secs(3)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PullConsumer {
    inner: Arc<Inner>,
    batches: mpsc::Receiver<Result<Batch, Error>>,
    /// What is left of the batch that `next` is in.
    current: Option<Batch>,
    /// Where the message that `next` gave last is done, once the application asks for another one.
    last: Option<(MessageQueue, QueueOffset)>,
    supervisor: AbortHandle,
    commits_by_itself: bool,
    membership: Membership,
}

/// What the consumer and its tasks share.
#[derive(Debug)]
struct Inner {
    client: Client,
    group: String,
    expression: String,
    tags: TagSet,
    batch_count_max: i32,
    hold: Duration,
    progress: Mutex<HashMap<MessageQueue, Progress>>,
}

/// How far a queue is done.
#[derive(Clone, Copy, Debug)]
struct Progress {
    done: QueueOffset,
    committed: Option<QueueOffset>,
}

/// What a pull brought.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The messages, in the order of the queue, without those of other tags.
    pub messages: Vec<ReceivedMessage>,
    /// Where to pull from next. Also moves on without a message, over those of other tags.
    pub next_offset: QueueOffset,
    /// First offset that the queue has.
    pub min_offset: QueueOffset,
    /// Offset that the queue's next message will have.
    pub max_offset: QueueOffset,
    /// Whether the offset asked for lies outside the queue, so that `next_offset` may have gone
    /// back or left messages out.
    pub is_moved: bool,
}

impl PullConsumer {
    /// The next message of any assigned queue; waits until there is one. Messages of one queue come
    /// in its order.
    ///
    /// Asking for a message says that the one before it is done: then, and not earlier, the next
    /// commit covers it. After a crash, messages that were not committed come again.
    ///
    /// Cancel safe: a message is never lost when the future is dropped.
    ///
    /// # Errors
    ///
    /// What a broker says that no further try will change, once a second. Connections and brokers
    /// that fail are tried again behind the scenes. [`Error::Closed`] after the shutdown.
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PullConsumer) {
    /// while let Ok(message) = consumer.next().await {
    ///     println!("{:?}", message.body());
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<ReceivedMessage, Error> {
        self.finish_last();
        loop {
            if let Some(batch) = &mut self.current {
                if let Some(message) = batch.messages.pop_front() {
                    let done = match batch.messages.is_empty() {
                        true => batch.next_offset,
                        false => message.queue_offset().next(),
                    };
                    self.last = Some((batch.queue.clone(), done));
                    return Ok(message);
                }
                self.inner.finish(&batch.queue, batch.next_offset);
                self.current = None;
            }
            self.current = Some(self.batches.recv().await.ok_or(Error::Closed)??);
        }
    }

    /// Commits all that was received through [`PullConsumer::next`], the last message included.
    ///
    /// # Errors
    ///
    /// The first failure; queues after it are not committed.
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// let message = consumer.next().await?;
    /// consumer.commit_received().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn commit_received(&mut self) -> Result<(), Error> {
        self.finish_last();
        self.inner.commit_done().await
    }

    /// Pulls a queue once, without waiting for messages that are still to come.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// for queue in consumer.queues("Orders").await? {
    ///     let mut offset = consumer.min_offset(&queue).await?;
    ///     while offset < consumer.max_offset(&queue).await? {
    ///         let pulled = consumer.pull(&queue, offset).await?;
    ///         println!("{} messages", pulled.messages.len());
    ///         offset = pulled.next_offset;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pull(&self, queue: &MessageQueue, from: QueueOffset) -> Result<Pulled, Error> {
        self.inner.pull(queue, from, Duration::ZERO).await
    }

    /// Pulls a queue once; if it has no message yet, the broker holds the request for so long.
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::pull`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    /// use ringmq_client::MessageQueue;
    ///
    /// let queue = MessageQueue::new("Orders", "broker-a", 0);
    /// let end = consumer.max_offset(&queue).await?;
    /// let pulled = consumer.pull_wait(&queue, end, Duration::from_secs(15)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pull_wait(
        &self,
        queue: &MessageQueue,
        from: QueueOffset,
        hold: Duration,
    ) -> Result<Pulled, Error> {
        self.inner.pull(queue, from, hold).await
    }

    /// The queues of a topic that can be read.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoute`], or why no name server could be asked.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// println!("{} queues", consumer.queues("Orders").await?.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn queues(&self, topic: &str) -> Result<Vec<MessageQueue>, Error> {
        let shared = &self.inner.client.shared;
        Ok(shared.route(topic, shared.deadline()).await?.subscribe().to_vec())
    }

    /// Offset of the first message that the queue still has.
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::pull`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// println!("from {}", consumer.min_offset(&queue).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn min_offset(&self, queue: &MessageQueue) -> Result<QueueOffset, Error> {
        self.inner.client.shared.min_offset(queue).await
    }

    /// Offset that the queue's next message will have.
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::pull`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// println!("up to {}", consumer.max_offset(&queue).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn max_offset(&self, queue: &MessageQueue) -> Result<QueueOffset, Error> {
        self.inner.client.shared.max_offset(queue).await
    }

    /// Offset of the first message that was stored at this time or later. Brokers of 4.9 answer
    /// with the last message, and not with the end of the queue, if all are older.
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::pull`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// use std::time::{Duration, SystemTime};
    ///
    /// let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    /// let from = consumer.search_offset(&queue, hour_ago).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn search_offset(
        &self,
        queue: &MessageQueue,
        time: SystemTime,
    ) -> Result<QueueOffset, Error> {
        self.inner.client.shared.search_offset(queue, time).await
    }

    /// The offset that the group has committed, from which it goes on; `None` if there is none.
    /// Brokers of 4.9 answer with 0 for a queue that still has its first message.
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::pull`]. An error is never the same as `None`.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// let from = consumer.committed(&queue).await?.unwrap_or_default();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn committed(&self, queue: &MessageQueue) -> Result<Option<QueueOffset>, Error> {
        self.inner.client.shared.committed(&self.inner.group, queue).await
    }

    /// Commits an offset: that of the first message which is not done. May go back.
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::pull`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// let pulled = consumer.pull(&queue, ringmq_client::QueueOffset::ZERO).await?;
    /// consumer.commit(&queue, pulled.next_offset).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn commit(&self, queue: &MessageQueue, offset: QueueOffset) -> Result<(), Error> {
        self.inner.client.shared.commit(&self.inner.group, queue, offset).await
    }

    /// Stops receiving, commits what was received, the last message included, unless
    /// [commits are left to the application](PullConsumerBuilder::auto_commit), and leaves the
    /// group.
    ///
    /// # Errors
    ///
    /// [`Error::Unfinished`], or why the commit failed. The messages since the last commit then
    /// come again.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// consumer.shutdown(std::time::Duration::from_secs(3)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(mut self, deadline: Duration) -> Result<(), Error> {
        let until = Instant::now() + deadline;
        self.supervisor.abort();
        self.finish_last();
        let committed = match self.commits_by_itself {
            true => timeout_at(until, self.inner.commit_done()).await,
            false => Ok(Ok(())),
        };
        self.membership.leave(until).await;
        committed.unwrap_or(Err(Error::Unfinished { deadline }))
    }

    /// Counts the message that `next` gave last as done.
    fn finish_last(&mut self) {
        if let Some((queue, done)) = self.last.take() {
            self.inner.finish(&queue, done);
        }
    }
}

impl Drop for PullConsumer {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl Inner {
    async fn pull(
        &self,
        queue: &MessageQueue,
        from: QueueOffset,
        hold: Duration,
    ) -> Result<Pulled, Error> {
        let shared = &self.client.shared;
        let addr = shared.addr_of(queue, shared.deadline()).await?;
        let suspend = if hold.is_zero() { 0 } else { pull_flag::SUSPEND };
        let header = PullRequest {
            consumer_group: self.group.as_str().into(),
            topic: queue.topic().into(),
            queue_id: queue.queue_id(),
            queue_offset: from.get(),
            max_msg_nums: self.batch_count_max,
            sys_flag: pull_flag::SUBSCRIPTION | suspend,
            commit_offset: 0,
            suspend_timeout_ms: i64::try_from(hold.as_millis()).unwrap_or(i64::MAX),
            subscription: Some(self.expression.as_str().into()),
            sub_version: 0,
            expression_type: Some("TAG".into()),
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
        };
        let request = shared.remoting.request(
            request::PULL_MESSAGE,
            |ext| header.encode(ext),
            Bytes::new(),
        )?;
        let slack = if hold.is_zero() { shared.call_timeout } else { HOLD_SLACK };
        let answer = shared.remoting.call(&addr, request, Instant::now() + hold + slack).await?;
        let command = answer.parse(&addr)?;
        let messages = match command.code {
            response::SUCCESS => message::parse_all(&answer.body, queue.broker_name())
                .map_err(|error| unexpected(&addr, error))?,
            response::PULL_NOT_FOUND
            | response::PULL_RETRY_IMMEDIATELY
            | response::PULL_OFFSET_MOVED => Vec::new(),
            _ => return Err(refused(&addr, &command)),
        };
        let header = PullResponse::decode(&command).map_err(|error| unexpected(&addr, error))?;
        Ok(Pulled {
            messages: self.filter(messages),
            next_offset: QueueOffset::new(header.next_begin_offset),
            min_offset: QueueOffset::new(header.min_offset),
            max_offset: QueueOffset::new(header.max_offset),
            is_moved: command.code == response::PULL_OFFSET_MOVED,
        })
    }

    /// Drops messages of other tags, which brokers let through when their hashes are equal.
    fn filter(&self, mut messages: Vec<ReceivedMessage>) -> Vec<ReceivedMessage> {
        messages.retain(|message| self.tags.matches(message.tag()));
        messages
    }

    fn finish(&self, queue: &MessageQueue, done: QueueOffset) {
        lock(&self.progress)
            .entry(queue.clone())
            .and_modify(|progress| progress.done = done)
            .or_insert(Progress { done, committed: None });
    }

    /// Commits the queues that went on since the last time.
    async fn commit_done(&self) -> Result<(), Error> {
        let all: Vec<_> = lock(&self.progress).iter().map(|(q, p)| (q.clone(), *p)).collect();
        for (queue, progress) in all.iter().filter(|(_, p)| p.committed != Some(p.done)) {
            self.client.shared.commit(&self.group, queue, progress.done).await?;
            if let Some(known) = lock(&self.progress).get_mut(queue) {
                known.committed = Some(progress.done);
            }
        }
        Ok(())
    }
}
