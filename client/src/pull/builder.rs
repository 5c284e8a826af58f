//! How a pull consumer is set up and started.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use ringmq_protocol::{
    body::{ConsumeFromWhere, ConsumeType, ConsumerData, MessageModel, SubscriptionData},
    names,
    tags::{TagSet, java_hash},
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    Inner, PullConsumer,
    fetch::{self, Supervisor},
};
use crate::{Client, Error, Invalid, MessageQueue, QueueOffset, client::Membership, clock};

/// Batches that the tasks of all queues may have received ahead of the application, besides the
/// one that each task holds.
const BATCHES_MAX: usize = 16;

/// Where to start reading a queue for which the group has not committed an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartFrom {
    /// At the first message that the queue has.
    First,
    /// After the last message that the queue has when the consumer starts.
    Last,
    /// At the first message that was stored at this time or later.
    Time(SystemTime),
}

/// How a pull consumer is set up. Made by [`Client::pull_consumer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct PullConsumerBuilder {
    client: Client,
    group: String,
    topics: BTreeSet<String>,
    queues: BTreeSet<MessageQueue>,
    expression: String,
    start_from: StartFrom,
    batch_count_max: u16,
    hold: Duration,
    commit_period: Option<Duration>,
}

impl PullConsumerBuilder {
    pub(crate) fn new(client: Client, group: &str) -> Self {
        Self {
            client,
            group: group.into(),
            topics: BTreeSet::new(),
            queues: BTreeSet::new(),
            expression: "*".into(),
            start_from: StartFrom::First,
            batch_count_max: 32,
            hold: Duration::from_secs(15),
            commit_period: Some(Duration::from_secs(5)),
        }
    }

    /// Assigns all queues of a topic, those included that it gets later.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pull_consumer("audit").topic("Orders").topic("Returns").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn topic(mut self, topic: &str) -> Self {
        self.topics.insert(topic.into());
        self
    }

    /// Assigns one queue.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::MessageQueue;
    ///
    /// let queue = MessageQueue::new("Orders", "broker-a", 3);
    /// let consumer = client.pull_consumer("audit").queue(queue).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue(mut self, queue: MessageQueue) -> Self {
        self.queues.insert(queue);
        self
    }

    /// Receives only messages with one of these tags, separated by `||`; `*`, as unless set, stands
    /// for all messages.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer =
    ///     client.pull_consumer("audit").topic("Orders").tags("created || paid").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tags(mut self, expression: &str) -> Self {
        self.expression = expression.into();
        self
    }

    /// Where to start in queues without a committed offset; [`StartFrom::First`] unless set.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::StartFrom;
    ///
    /// let consumer =
    ///     client.pull_consumer("audit").topic("Orders").start_from(StartFrom::Last).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn start_from(mut self, start_from: StartFrom) -> Self {
        self.start_from = start_from;
        self
    }

    /// Most messages that a pull brings, at least 1; 32 unless set. Brokers have limits of their
    /// own.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pull_consumer("audit").batch_count_max(8).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn batch_count_max(mut self, count: u16) -> Self {
        self.batch_count_max = count;
        self
    }

    /// How long brokers hold a pull while there is no message; 15 s unless set.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    ///
    /// let consumer = client.pull_consumer("audit").hold(Duration::from_secs(5)).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How often offsets are committed of what [`PullConsumer::next`] gave; every 5 s unless set,
    /// `None` leaves it to the application.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pull_consumer("audit").auto_commit(None).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn auto_commit(mut self, period: Option<Duration>) -> Self {
        self.commit_period = period;
        self
    }

    /// Finds the queues and where to start in each of them, then starts to receive.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::NoRoute`] if a topic does not exist, or what a broker says when
    /// it is asked for offsets.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pull_consumer("audit").topic("Orders").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(self) -> Result<PullConsumer, Error> {
        let shared = Arc::clone(&self.client.shared);
        shared.check_open()?;
        let data = self.consumer_data()?;
        let tags = TagSet::parse(&self.expression)
            .map_err(|_| Invalid::TagExpression(self.expression.clone()))?;
        let membership = Membership::join(Arc::clone(&shared), data)?;
        let inner = Arc::new(Inner {
            client: self.client,
            group: self.group,
            expression: self.expression,
            tags,
            batch_count_max: i32::from(self.batch_count_max.max(1)),
            hold: self.hold,
            progress: Mutex::new(HashMap::new()),
        });
        let queues = find_queues(&inner, &self.topics, self.queues, self.start_from).await?;
        let (batches, receiver) = mpsc::channel(BATCHES_MAX);
        let supervisor = Supervisor::new(Arc::clone(&inner), self.topics, batches);
        let supervisor = tokio::spawn(supervisor.run(queues, self.commit_period)).abort_handle();
        let commits_by_itself = self.commit_period.is_some();
        Ok(PullConsumer {
            inner,
            batches: receiver,
            current: None,
            last: None,
            supervisor,
            commits_by_itself,
            membership,
        })
    }

    /// What the heartbeat says about the consumer.
    fn consumer_data(&self) -> Result<ConsumerData, Invalid> {
        let mut topics = self.topics.clone();
        topics.extend(self.queues.iter().map(|queue| queue.topic().to_owned()));
        let subscriptions = topics.into_iter().map(|topic| {
            names::validate_topic(&topic).map_err(|_| Invalid::Topic(topic.clone()))?;
            subscription(topic, &self.expression)
        });
        Ok(ConsumerData {
            consume_from_where: Some(ConsumeFromWhere::LastOffset),
            consume_type: Some(ConsumeType::Actively),
            group_name: self.group.clone(),
            message_model: Some(MessageModel::Clustering),
            subscription_data_set: subscriptions.collect::<Result<_, Invalid>>()?,
            unit_mode: false,
        })
    }
}

/// # Source
///
/// Apache RocketMQ 4.9.8, `FilterAPI.buildSubscriptionData`.
fn subscription(topic: String, expression: &str) -> Result<SubscriptionData, Invalid> {
    let tags = match TagSet::parse(expression) {
        Ok(TagSet::All) => Vec::new(),
        Ok(TagSet::Tags(tags)) => tags,
        Err(_) => return Err(Invalid::TagExpression(expression.into())),
    };
    Ok(SubscriptionData {
        class_filter_mode: false,
        code_set: tags.iter().map(|tag| java_hash(tag)).collect(),
        expression_type: Some("TAG".into()),
        sub_string: if expression.is_empty() { "*".into() } else { expression.into() },
        sub_version: clock::epoch_ms(),
        tags_set: tags,
        topic,
    })
}

/// All queues assigned, each with the offset to start from. A message that is sent once this has
/// returned is received, also with [`StartFrom::Last`].
async fn find_queues(
    inner: &Arc<Inner>,
    topics: &BTreeSet<String>,
    mut queues: BTreeSet<MessageQueue>,
    start_from: StartFrom,
) -> Result<Vec<(MessageQueue, QueueOffset)>, Error> {
    let shared = &inner.client.shared;
    for topic in topics {
        let route = shared.route(topic, shared.deadline()).await?;
        queues.extend(route.subscribe().iter().cloned());
    }
    let mut starts: JoinSet<Result<_, Error>> = JoinSet::new();
    for queue in queues {
        let inner = Arc::clone(inner);
        starts.spawn(async move {
            let start = fetch::start_offset(&inner, &queue, start_from).await?;
            Ok((queue, start))
        });
    }
    let mut found = Vec::new();
    while let Some(start) = starts.join_next().await {
        // The tasks cannot panic, and nobody aborts them.
        found.push(start.map_err(|_| Error::Closed)??);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_have_upstreams_form() {
        let some = subscription("T".into(), "TagA || TagB").unwrap();
        assert_eq!(some.code_set, [2_598_919, 2_598_920]);
        assert_eq!(some.tags_set, ["TagA", "TagB"]);
        assert_eq!(some.sub_string, "TagA || TagB");
        let all = subscription("T".into(), "").unwrap();
        assert_eq!((all.sub_string.as_str(), all.tags_set.len()), ("*", 0));
        let none = subscription("T".into(), "||");
        assert_eq!(none, Err(Invalid::TagExpression("||".into())));
    }
}
