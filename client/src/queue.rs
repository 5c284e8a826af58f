//! Queues and positions in them.

use std::{fmt, sync::Arc};

/// One queue of a topic on one broker: the unit in which messages have an order.
///
/// Cheap to clone. Ordered by topic, broker name and queue id, as upstream's `MessageQueue`.
///
/// Source: Apache RocketMQ 4.9.8, `MessageQueue`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageQueue {
    topic: Arc<str>,
    broker_name: Arc<str>,
    queue_id: i32,
}

impl MessageQueue {
    /// Names a queue; whether it exists shows when it is used.
    ///
    /// ```
    /// use ringmq_client::MessageQueue;
    ///
    /// let queue = MessageQueue::new("TopicTest", "broker-a", 3);
    /// assert_eq!(queue.to_string(), "TopicTest@broker-a:3");
    /// ```
    pub fn new(
        topic: impl Into<Arc<str>>,
        broker_name: impl Into<Arc<str>>,
        queue_id: i32,
    ) -> Self {
        Self { topic: topic.into(), broker_name: broker_name.into(), queue_id }
    }

    /// The queue with the same number on the same broker, of another topic.
    pub(crate) fn with_topic(&self, topic: Arc<str>) -> Self {
        Self { topic, broker_name: Arc::clone(&self.broker_name), queue_id: self.queue_id }
    }

    pub(crate) const fn shared_broker_name(&self) -> &Arc<str> {
        &self.broker_name
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Name of the broker that has the queue.
    pub fn broker_name(&self) -> &str {
        &self.broker_name
    }

    /// Number of the queue on its broker, from 0.
    pub const fn queue_id(&self) -> i32 {
        self.queue_id
    }
}

impl fmt::Display for MessageQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.topic, self.broker_name, self.queue_id)
    }
}

/// A position in one queue.
///
/// Unit: messages since the queue's first one, which has 0. Source: `MessageExt.queueOffset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueOffset(i64);

impl QueueOffset {
    /// The position of a queue's first message.
    pub const ZERO: Self = Self(0);

    /// The position as brokers count it.
    pub const fn new(messages: i64) -> Self {
        Self(messages)
    }

    /// The position as brokers count it.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The position of the next message.
    ///
    /// ```
    /// use ringmq_client::QueueOffset;
    ///
    /// assert_eq!(QueueOffset::new(7).next().get(), 8);
    /// ```
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
