//! How a pull consumer is set up and started.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use ringmq_protocol::body::{ConsumeType, MessageModel};

use super::{Line, PullConsumer, PullSink};
use crate::{
    Client, Error, Filter, Invalid, MessageQueue, StartFrom,
    allocate::{Allocate, Average},
    consumer::{
        Member,
        backlog::Limits,
        member::{Division, Settings, check_topic},
    },
    subscription::Subscription,
};

/// How a pull consumer is set up. Made by [`Client::pull_consumer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct PullConsumerBuilder {
    client: Client,
    group: String,
    filters: BTreeMap<String, Filter>,
    topics: BTreeSet<String>,
    queues: BTreeSet<MessageQueue>,
    expression: String,
    strategy: Arc<dyn Allocate>,
    start_from: StartFrom,
    batch_count_max: u16,
    hold: Duration,
    commit_period: Option<Duration>,
    queue_count_max: usize,
    queue_len_max: usize,
    rebalance_period: Duration,
}

impl PullConsumerBuilder {
    pub(crate) fn new(client: Client, group: &str) -> Self {
        Self {
            group: client.shared.namespace.wrap(group).into(),
            client,
            filters: BTreeMap::new(),
            topics: BTreeSet::new(),
            queues: BTreeSet::new(),
            expression: "*".into(),
            strategy: Arc::new(Average),
            start_from: StartFrom::First,
            batch_count_max: 32,
            hold: Duration::from_secs(15),
            commit_period: Some(Duration::from_secs(5)),
            queue_count_max: 1000,
            queue_len_max: 100 * 1024 * 1024,
            rebalance_period: Duration::from_secs(20),
        }
    }

    /// Shares the queues of a topic with the other members of the group. All of them need the same
    /// subscriptions. Not together with [`topic`](PullConsumerBuilder::topic) or
    /// [`queue`](PullConsumerBuilder::queue).
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer =
    ///     client.pull_consumer("audit").subscribe("Orders", "created || paid").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(mut self, topic: &str, filter: impl Into<Filter>) -> Self {
        self.filters.insert(topic.into(), filter.into());
        self
    }

    /// How subscribed queues are divided among the members; [`Average`] unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use ringmq_client::allocate::Circle;
    ///
    /// let builder = client.pull_consumer("audit").subscribe("Orders", "*").strategy(Circle);
    /// # }
    /// ```
    pub fn strategy(mut self, strategy: impl Allocate) -> Self {
        self.strategy = Arc::new(strategy);
        self
    }

    /// How many messages of one queue, and bytes of their bodies, may wait to be given before no
    /// more are pulled; 1,000 and 100 MiB unless set. A pull may exceed both by what it brings.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.pull_consumer("audit").queue_limits(100, 16 * 1024 * 1024);
    /// # }
    /// ```
    pub const fn queue_limits(mut self, messages: usize, bytes: usize) -> Self {
        self.queue_count_max = messages;
        self.queue_len_max = bytes;
        self
    }

    /// How often subscribed queues are divided even if no broker tells of a change; 20 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.pull_consumer("audit").rebalance_period(Duration::from_secs(5));
    /// # }
    /// ```
    pub const fn rebalance_period(mut self, period: Duration) -> Self {
        self.rebalance_period = period;
        self
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

    /// Starts to receive. Queues that it reads by itself are found, with where to start in each of
    /// them, before this returns: a message that is sent afterwards is received, also with
    /// [`StartFrom::Last`]. Subscribed ones are divided for the first time, or that takes longer
    /// than a call may.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]; for queues that it reads by itself also [`Error::NoRoute`] if a topic
    /// does not exist, or what a broker says when it is asked for offsets.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pull_consumer("audit").topic("Orders").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(self) -> Result<PullConsumer, Error> {
        let subscription = Subscription::new(Filter::tags(&*self.expression))?;
        let subscriptions = self.subscriptions(&subscription)?;
        let client = self.client.clone();
        for (topic, subscription) in &subscriptions {
            if subscription.is_sql() {
                client.shared.check_subscription(&self.group, topic, subscription).await?;
            }
        }
        let line = Arc::new(Line::default());
        let sink = PullSink(Arc::clone(&line));
        let settings = self.settings()?;
        let is_shared = matches!(settings.division, Division::Shared(_));
        let member = Member::join(client, settings, subscriptions, |_| Box::new(sink))?;
        // Made first, so that an error, or dropping this future, takes the group away again.
        let consumer = PullConsumer {
            member: Arc::clone(&member),
            line,
            subscription,
            last: None,
            is_shut: false,
        };
        match is_shared {
            true => {
                member.start();
                member.first_round(member.client.shared.call_timeout).await;
            }
            false => {
                member.hold_all().await?;
                member.start();
            }
        }
        Ok(consumer)
    }

    fn subscriptions(
        &self,
        by_itself: &Subscription,
    ) -> Result<BTreeMap<String, Arc<Subscription>>, Error> {
        let mut subscriptions = BTreeMap::new();
        for (topic, filter) in &self.filters {
            let subscription = Arc::new(Subscription::new(filter.clone())?);
            subscriptions.insert(self.wrapped(topic), subscription);
        }
        let queues = self.queues.iter().map(|queue| queue.topic().to_owned());
        for topic in self.topics.iter().cloned().chain(queues) {
            subscriptions.insert(self.wrapped(&topic), Arc::new(by_itself.clone()));
        }
        subscriptions.keys().try_for_each(|topic| check_topic(topic))?;
        Ok(subscriptions)
    }

    fn wrapped(&self, topic: &str) -> String {
        self.client.shared.namespace.wrap(topic).into_owned()
    }

    fn settings(self) -> Result<Settings, Invalid> {
        let is_by_itself = !self.topics.is_empty() || !self.queues.is_empty();
        let namespace = &self.client.shared.namespace;
        let queues = self.queues.iter().map(|queue| namespace.wrap_queue(queue));
        let division = match self.filters.is_empty() {
            false if is_by_itself => return Err(Invalid::Division),
            false => Division::Shared(self.strategy),
            true if self.topics.is_empty() => Division::Assigned(Mutex::new(queues.collect())),
            true => Division::All(queues.collect()),
        };
        Ok(Settings {
            group: self.group,
            consume_type: ConsumeType::Actively,
            model: MessageModel::Clustering,
            is_ordered: false,
            division,
            start_from: self.start_from,
            limits: Limits {
                count_max: self.queue_count_max,
                len_max: self.queue_len_max,
                span_max: i64::MAX,
            },
            topic_count_max: None,
            topic_len_max: None,
            pull_count_max: self.batch_count_max.max(1).into(),
            hold: self.hold,
            pull_pause: Duration::ZERO,
            rebalance_period: self.rebalance_period.max(Duration::from_millis(10)),
            commit_period: self.commit_period,
            file: None,
            tracer: None,
        })
    }
}
