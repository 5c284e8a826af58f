//! Pull consumers: the application asks for messages, and keeps track of what it has done.
//!
//! There are three ways to use one. With [`PullConsumerBuilder::subscribe`] it shares the queues of
//! its topics with the other members of its group; with [`PullConsumerBuilder::topic`] and
//! [`PullConsumerBuilder::queue`] it reads whole topics or single queues by itself. In both,
//! [`PullConsumer::next`], [`PullConsumer::poll`] and [`PullConsumer::messages`] give the messages
//! as they come, from where the group left off, and commits cover what was done. Or the application
//! pulls single queues from offsets of its own, with [`PullConsumer::pull`].
//!
//! Source of the rules: Apache RocketMQ 4.9.8, `DefaultLitePullConsumerImpl`.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::stream::{self, Stream};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    Client, Error, Filter, Invalid, MessageQueue, Pulled, QueueOffset, ReceivedMessage,
    consumer::{
        Member,
        held::Held,
        member::{Directly, Division, Sink, check_topic},
        request::Ask,
    },
    lock,
    subscription::Subscription,
};

mod builder;

pub use builder::PullConsumerBuilder;

/// Most failures that wait for the application; further ones say nothing new.
const FAILURES_MAX: usize = 16;

/// Reads queues.
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
    member: Arc<Member>,
    line: Arc<Line>,
    /// For pulls of single queues.
    subscription: Subscription,
    /// What was given last. It is done when the application asks for more.
    last: Option<(Arc<Held>, Vec<QueueOffset>)>,
    is_shut: bool,
}

/// Batches that have come and were not given yet, in the order in which they came.
#[derive(Debug, Default)]
struct Line {
    batches: Mutex<VecDeque<(Arc<Held>, usize)>>,
    failures: Mutex<VecDeque<Error>>,
    changed: Notify,
}

impl Line {
    /// The next messages of one queue; at least one.
    fn take(&self, count_max: usize) -> Option<(Arc<Held>, Vec<ReceivedMessage>)> {
        let mut batches = lock(&self.batches);
        loop {
            let (held, left) = batches.front_mut()?;
            let count = count_max.min(*left);
            let messages = match held.is_closing() {
                true => Vec::new(),
                false => held.change_quietly(|backlog| backlog.take(count, Instant::now())),
            };
            let held = Arc::clone(held);
            *left = left.saturating_sub(messages.len());
            if *left == 0 || messages.is_empty() {
                batches.pop_front();
            }
            if !messages.is_empty() {
                return Some((held, messages));
            }
        }
    }
}

/// What the member sees of the line.
#[derive(Debug)]
struct PullSink(Arc<Line>);

impl Sink for PullSink {
    fn arrived(&self, held: &Arc<Held>, count: usize) {
        lock(&self.0.batches).push_back((Arc::clone(held), count));
        self.0.changed.notify_waiters();
    }

    fn acquired(&self, _member: &Arc<Member>, _held: &Arc<Held>) {}

    fn failed(&self, error: Error) {
        let mut failures = lock(&self.0.failures);
        if failures.len() < FAILURES_MAX {
            failures.push_back(error);
        }
        drop(failures);
        self.0.changed.notify_waiters();
    }

    fn consume_directly(
        &self,
        _message: ReceivedMessage,
    ) -> Option<Pin<Box<dyn Future<Output = Directly> + Send>>> {
        None
    }

    fn concurrency(&self) -> usize {
        0
    }
}

impl PullConsumer {
    /// The next message of any of its queues; waits until there is one. Messages of one queue come
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
    /// that fail are tried again behind the scenes. [`Error::Closed`] after the client's shutdown.
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PullConsumer) {
    /// while let Ok(message) = consumer.next().await {
    ///     println!("{:?}", message.body());
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<ReceivedMessage, Error> {
        loop {
            // A batch of one: there is a last one, and only one.
            if let Some(message) = self.take(1).await?.pop() {
                return Ok(message);
            }
        }
    }

    /// The next messages of one of its queues, at most `count_max` of them; none if there is none
    /// within `patience`. Otherwise as [`PullConsumer::next`].
    ///
    /// # Errors
    ///
    /// As [`PullConsumer::next`].
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// let messages = consumer.poll(100, std::time::Duration::from_secs(5)).await?;
    /// println!("{} messages", messages.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn poll(
        &mut self,
        count_max: usize,
        patience: Duration,
    ) -> Result<Vec<ReceivedMessage>, Error> {
        timeout(patience, self.take(count_max.max(1))).await.unwrap_or_else(|_| Ok(Vec::new()))
    }

    /// The messages as a stream, which ends with the first error. A message counts as done when the
    /// stream is asked for the next one.
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PullConsumer) {
    /// use futures_util::{StreamExt, TryStreamExt};
    ///
    /// let bodies = consumer.messages().map_ok(|message| message.body().clone());
    /// let ten: Result<Vec<_>, _> = bodies.take(10).try_collect().await;
    /// # }
    /// ```
    pub fn messages(&mut self) -> impl Stream<Item = Result<ReceivedMessage, Error>> + Send + '_ {
        stream::unfold(Some(self), |consumer| async {
            let consumer = consumer?;
            match consumer.next().await {
                Ok(message) => Some((Ok(message), Some(consumer))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Waits for messages.
    async fn take(&mut self, count_max: usize) -> Result<Vec<ReceivedMessage>, Error> {
        self.finish_last();
        let line = Arc::clone(&self.line);
        loop {
            let mut changed = pin!(line.changed.notified());
            changed.as_mut().enable();
            self.member.client.shared.check_open()?;
            if let Some((held, messages)) = line.take(count_max) {
                let offsets = messages.iter().map(ReceivedMessage::queue_offset).collect();
                self.last = Some((held, offsets));
                return Ok(self.member.shown(messages));
            }
            if let Some(failure) = lock(&line.failures).pop_front() {
                return Err(failure);
            }
            changed.await;
        }
    }

    /// Commits all that was received, the last message included.
    ///
    /// # Errors
    ///
    /// The first failure; the other queues are committed all the same.
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
        self.member.commit_all().await
    }

    /// The queues that it reads now, each with the offset of its first message which is not done.
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PullConsumer) {
    /// for (queue, offset) in consumer.assignment() {
    ///     println!("{queue} is done up to {offset}");
    /// }
    /// # }
    /// ```
    pub fn assignment(&self) -> Vec<(MessageQueue, QueueOffset)> {
        self.member.shown_queues()
    }

    /// Reads these queues from now on, and no others. Those that it did not read before begin where
    /// the group left off.
    ///
    /// # Errors
    ///
    /// [`Invalid::Division`] unless it was started with [`PullConsumerBuilder::queue`] or without
    /// any topic; [`Invalid::Topic`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// let queues = consumer.queues("Orders").await?;
    /// consumer.assign(&queues)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn assign(&self, queues: &[MessageQueue]) -> Result<(), Error> {
        let Division::Assigned(assigned) = &self.member.settings.division else {
            return Err(Invalid::Division.into());
        };
        queues.iter().try_for_each(|queue| check_topic(queue.topic()))?;
        let queues: Vec<_> = queues.iter().map(|queue| self.wrapped(queue)).collect();
        *lock(assigned) = queues.clone();
        let topics: Vec<_> = queues.iter().map(MessageQueue::topic).collect();
        for topic in self.member.topics() {
            if !topics.contains(&topic.as_str()) {
                self.member.unsubscribe(&topic);
            }
        }
        for topic in topics {
            if self.member.subscription(topic).is_none() {
                self.member.subscribe(topic, self.subscription.clone());
            }
        }
        self.member.wake.notify_one();
        Ok(())
    }

    /// Subscribes to one more topic, or to other messages of one. The other members of the group
    /// have to do the same.
    ///
    /// # Errors
    ///
    /// [`Invalid::Division`] unless it was started with [`PullConsumerBuilder::subscribe`],
    /// [`Invalid::Topic`] or [`Invalid::TagExpression`].
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PullConsumer) -> Result<(), ringmq_client::Error> {
    /// consumer.subscribe("Refunds", "*")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self, topic: &str, filter: impl Into<Filter>) -> Result<(), Error> {
        if !matches!(self.member.settings.division, Division::Shared(_)) {
            return Err(Invalid::Division.into());
        }
        check_topic(topic)?;
        let topic = self.client().shared.namespace.wrap(topic);
        self.member.subscribe(&topic, Subscription::new(filter.into())?);
        Ok(())
    }

    /// Gives the queues of a topic up.
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PullConsumer) {
    /// consumer.unsubscribe("Refunds");
    /// # }
    /// ```
    pub fn unsubscribe(&self, topic: &str) {
        self.member.unsubscribe(&self.client().shared.namespace.wrap(topic));
    }

    /// Goes on with a queue at this offset; what was received of it before counts no more, and the
    /// offset is what the next commit covers.
    ///
    /// # Errors
    ///
    /// [`Invalid::NotAssigned`] if it does not read the queue, [`Invalid::OutsideQueue`] if the
    /// queue has no such offset; as [`PullConsumer::pull`].
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PullConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// for (queue, _) in consumer.assignment() {
    ///     let begin = consumer.min_offset(&queue).await?;
    ///     consumer.seek(&queue, begin).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn seek(&mut self, queue: &MessageQueue, offset: QueueOffset) -> Result<(), Error> {
        let (min, max) = (self.min_offset(queue).await?, self.max_offset(queue).await?);
        if offset < min || max < offset {
            return Err(Invalid::OutsideQueue { offset, min, max }.into());
        }
        let held = self.held(queue)?;
        self.member.move_to(&held, offset);
        Ok(())
    }

    /// Stops receiving from these queues until [`PullConsumer::resume`]. What has been pulled is
    /// still given.
    ///
    /// # Errors
    ///
    /// [`Invalid::NotAssigned`].
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// consumer.pause(&[queue])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause(&self, queues: &[MessageQueue]) -> Result<(), Error> {
        queues.iter().try_for_each(|queue| self.held(queue).map(|held| held.pause(true)))
    }

    /// Goes on with queues after [`PullConsumer::pause`].
    ///
    /// # Errors
    ///
    /// [`Invalid::NotAssigned`].
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PullConsumer, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// consumer.resume(&[queue])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&self, queues: &[MessageQueue]) -> Result<(), Error> {
        queues.iter().try_for_each(|queue| self.held(queue).map(|held| held.pause(false)))
    }

    fn held(&self, queue: &MessageQueue) -> Result<Arc<Held>, Error> {
        let held = self.member.held(&self.wrapped(queue));
        held.ok_or_else(|| Invalid::NotAssigned(queue.to_string()).into())
    }

    /// The queue as brokers call it.
    fn wrapped(&self, queue: &MessageQueue) -> MessageQueue {
        self.client().shared.namespace.wrap_queue(queue)
    }

    fn client(&self) -> &Client {
        &self.member.client
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
        self.pull_once(queue, from, Duration::ZERO).await
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
        self.pull_once(queue, from, hold).await
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
        let shared = &self.client().shared;
        let route = shared.route(&shared.namespace.wrap(topic), shared.deadline()).await?;
        Ok(route.subscribe().iter().map(|queue| shared.namespace.unwrap_queue(queue)).collect())
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
        self.client().shared.min_offset(&self.wrapped(queue)).await
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
        self.client().shared.max_offset(&self.wrapped(queue)).await
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
        self.client().shared.search_offset(&self.wrapped(queue), time).await
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
        self.client().shared.committed(self.member.group(), &self.wrapped(queue)).await
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
        self.member.commit_at(&self.wrapped(queue), offset).await
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
        self.finish_last();
        self.is_shut = true;
        let left = self.member.leave(Instant::now() + deadline).await;
        left.map_err(|error| match error {
            Error::Unfinished { .. } => Error::Unfinished { deadline },
            error => error,
        })
    }

    async fn pull_once(
        &self,
        queue: &MessageQueue,
        from: QueueOffset,
        hold: Duration,
    ) -> Result<Pulled, Error> {
        let queue = self.wrapped(queue);
        let known = self.member.subscription(queue.topic());
        let ask = Ask {
            group: self.member.group(),
            queue: &queue,
            from,
            count_max: self.member.settings.pull_count_max,
            hold,
            subscription: known.as_deref().unwrap_or(&self.subscription),
            broker_id: 0,
        };
        let mut pulled = self.client().shared.pull(&ask).await?;
        pulled.messages = self.member.shown(pulled.messages);
        Ok(pulled)
    }

    /// Counts what was given last as done.
    fn finish_last(&mut self) {
        if let Some((held, offsets)) = mem::take(&mut self.last) {
            held.finish(offsets);
        }
    }
}

impl Drop for PullConsumer {
    fn drop(&mut self) {
        if !self.is_shut {
            self.member.abandon();
        }
    }
}
