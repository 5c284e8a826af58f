//! How a push consumer is set up and started.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use ringmq_protocol::{
    body::{ConsumeType, MessageModel},
    names,
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    Drain, PushConsumer, check_range, concurrent,
    listener::{Listener, OrderedListener},
    ordered,
};
use crate::{
    Client, Error, Filter, StartFrom,
    allocate::{Allocate, Average},
    consumer::{
        Member,
        backlog::Limits,
        local::LocalFile,
        member::{Division, Settings, Sink, check_topic},
        retry::DELIVERIES_MAX,
    },
    subscription::Subscription,
    trace::Tracer,
};

/// How a push consumer is set up. Made by [`Client::push_consumer`]. The defaults are upstream's.
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct PushConsumerBuilder {
    client: Client,
    group: String,
    filters: BTreeMap<String, Filter>,
    is_broadcasting: bool,
    offsets_folder: Option<PathBuf>,
    strategy: Arc<dyn Allocate>,
    start_from: StartFrom,
    concurrency: u16,
    batch: u16,
    pull_count_max: u16,
    pull_pause: Duration,
    hold: Duration,
    queue_count_max: u32,
    queue_len_max: usize,
    queue_span_max: u32,
    topic_count_max: Option<usize>,
    topic_len_max: Option<usize>,
    deliveries_max: Option<u16>,
    consume_time_max: Duration,
    suspend_pause: Duration,
    rebalance_period: Duration,
    commit_period: Duration,
    trace_topic: Option<String>,
}

impl PushConsumerBuilder {
    pub(crate) fn new(client: Client, group: &str) -> Self {
        Self {
            group: client.shared.namespace.wrap(group).into(),
            client,
            filters: BTreeMap::new(),
            is_broadcasting: false,
            offsets_folder: None,
            strategy: Arc::new(Average),
            start_from: StartFrom::Last,
            concurrency: 20,
            batch: 1,
            pull_count_max: 32,
            pull_pause: Duration::ZERO,
            hold: Duration::from_secs(15),
            queue_count_max: 1000,
            queue_len_max: 100 * 1024 * 1024,
            queue_span_max: 2000,
            topic_count_max: None,
            topic_len_max: None,
            deliveries_max: None,
            consume_time_max: Duration::from_secs(15 * 60),
            suspend_pause: Duration::from_secs(1),
            rebalance_period: Duration::from_secs(20),
            commit_period: Duration::from_secs(5),
            trace_topic: None,
        }
    }

    /// Subscribes to a topic. All members of a group need the same subscriptions: brokers keep one
    /// set of them for the group, and members with other ones take turns in replacing it.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use ringmq_client::Filter;
    ///
    /// let builder = client
    ///     .push_consumer("billing")
    ///     .subscribe("Orders", "created || paid")
    ///     .subscribe("Refunds", Filter::All);
    /// # }
    /// ```
    pub fn subscribe(mut self, topic: &str, filter: impl Into<Filter>) -> Self {
        self.filters.insert(topic.into(), filter.into());
        self
    }

    /// Gives every member all messages, instead of sharing them among the members. How far it has
    /// come is kept in a file of this machine; messages that fail are not delivered again.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("caches").subscribe("Prices", "*").broadcasting();
    /// # }
    /// ```
    pub const fn broadcasting(mut self) -> Self {
        self.is_broadcasting = true;
        self
    }

    /// Where the offsets of a broadcasting member are kept: `.ringmq_offsets` in the user's home,
    /// unless set. Below it is a folder for each
    /// [instance name](crate::ClientBuilder::instance_name) of the machine, so two broadcasting
    /// processes of one group on one machine need names.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder =
    ///     client.push_consumer("caches").broadcasting().offsets_folder("/var/lib/prices");
    /// # }
    /// ```
    pub fn offsets_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.offsets_folder = Some(folder.as_ref().into());
        self
    }

    /// How queues are divided among the members; [`Average`] unless set. All members need the same
    /// strategy.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use ringmq_client::allocate::ConsistentHash;
    ///
    /// let builder = client.push_consumer("billing").strategy(ConsistentHash::default());
    /// # }
    /// ```
    pub fn strategy(mut self, strategy: impl Allocate) -> Self {
        self.strategy = Arc::new(strategy);
        self
    }

    /// Where to start in queues without a committed offset; [`StartFrom::Last`] unless set. Retries
    /// of a new group are never left out.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use ringmq_client::StartFrom;
    ///
    /// let builder = client.push_consumer("billing").start_from(StartFrom::First);
    /// # }
    /// ```
    pub const fn start_from(mut self, start_from: StartFrom) -> Self {
        self.start_from = start_from;
        self
    }

    /// How many deliveries, or queues in order, the listener works on at once: 1 to 1,000; 20
    /// unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").concurrency(100);
    /// # }
    /// ```
    pub const fn concurrency(mut self, concurrency: u16) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Most messages of a delivery: 1 to 1,024; 1 unless set. A listener is not kept waiting for a
    /// delivery to be full.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").batch(100);
    /// # }
    /// ```
    pub const fn batch(mut self, messages: u16) -> Self {
        self.batch = messages;
        self
    }

    /// Most messages that a pull brings: 1 to 1,024; 32 unless set. Brokers have limits of their
    /// own.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").pull_count_max(8);
    /// # }
    /// ```
    pub const fn pull_count_max(mut self, messages: u16) -> Self {
        self.pull_count_max = messages;
        self
    }

    /// Pause after each pull that brought messages; none unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.push_consumer("billing").pull_pause(Duration::from_millis(100));
    /// # }
    /// ```
    pub const fn pull_pause(mut self, pause: Duration) -> Self {
        self.pull_pause = pause;
        self
    }

    /// How long brokers hold a pull while there is no message; 15 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.push_consumer("billing").hold(Duration::from_secs(5));
    /// # }
    /// ```
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How many unfinished messages of one queue may be held before no more of it are pulled: up to
    /// 65,535 messages and 1 GiB of bodies, 1,000 and 100 MiB unless set. A pull may exceed both
    /// by what it brings.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").queue_limits(100, 16 * 1024 * 1024);
    /// # }
    /// ```
    pub const fn queue_limits(mut self, messages: u32, bytes: usize) -> Self {
        self.queue_count_max = messages;
        self.queue_len_max = bytes;
        self
    }

    /// How far one unfinished message may hold a queue back, in messages of the queue, before no
    /// more are pulled: up to 65,535; 2,000 unless set. Ordered consumers don't need it.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").queue_span_max(10_000);
    /// # }
    /// ```
    pub const fn queue_span_max(mut self, messages: u32) -> Self {
        self.queue_span_max = messages;
        self
    }

    /// How many unfinished messages, and bytes of bodies, of all queues of one topic may be held:
    /// each held queue gets its share. No limit unless set; takes the place of
    /// [`PushConsumerBuilder::queue_limits`].
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").topic_limits(10_000, 64 * 1024 * 1024);
    /// # }
    /// ```
    pub const fn topic_limits(mut self, messages: usize, bytes: usize) -> Self {
        self.topic_count_max = Some(messages);
        self.topic_len_max = Some(bytes);
        self
    }

    /// After how many deliveries beyond the first one a failing message goes to the dead letters.
    /// Unless set 16, and for ordered consumers never.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").retries_max(3);
    /// # }
    /// ```
    pub const fn retries_max(mut self, retries: u16) -> Self {
        self.deliveries_max = Some(retries);
        self
    }

    /// How long the listener may take for a delivery before its messages are given to the broker to
    /// deliver them again, so that the queue's offset can go on; 15 min unless set. The listener is
    /// not stopped. Not for ordered consumers.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.push_consumer("billing").consume_time_max(Duration::from_secs(60));
    /// # }
    /// ```
    pub const fn consume_time_max(mut self, time: Duration) -> Self {
        self.consume_time_max = time;
        self
    }

    /// Pause of a queue after a delivery that failed; 1 s unless set, at least 10 ms, at most 30 s.
    /// For ordered consumers.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.push_consumer("billing").suspend_pause(Duration::from_millis(100));
    /// # }
    /// ```
    pub const fn suspend_pause(mut self, pause: Duration) -> Self {
        self.suspend_pause = pause;
        self
    }

    /// How often queues are divided even if no broker tells of a change; 20 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.push_consumer("billing").rebalance_period(Duration::from_secs(5));
    /// # }
    /// ```
    pub const fn rebalance_period(mut self, period: Duration) -> Self {
        self.rebalance_period = period;
        self
    }

    /// How often offsets are committed; every 5 s unless set. After a crash the messages since then
    /// come again.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.push_consumer("billing").commit_period(Duration::from_secs(1));
    /// # }
    /// ```
    pub const fn commit_period(mut self, period: Duration) -> Self {
        self.commit_period = period;
        self
    }

    /// Leaves a trace of each delivery in the brokers' trace topic, `RMQ_SYS_TRACE_TOPIC`, which
    /// upstream's tools read; off unless set. Traces never hold up messages: under load some are
    /// dropped.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").traced();
    /// # }
    /// ```
    pub fn traced(self) -> Self {
        self.traced_in(names::TRACE_TOPIC)
    }

    /// As [`PushConsumerBuilder::traced`], in a topic of one's own.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.push_consumer("billing").traced_in("BillingTraces");
    /// # }
    /// ```
    pub fn traced_in(mut self, topic: &str) -> Self {
        self.trace_topic = Some(topic.into());
        self
    }

    /// Joins the group, and gives its messages to the listener as they come, many at a time. Returns
    /// when the queues have been divided once, or when that takes longer than a call may.
    ///
    /// A topic that does not exist yet, or brokers that cannot be reached, are waited for behind
    /// the scenes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Closed`], or what a broker says about an expression of SQL.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Delivery, Verdict};
    ///
    /// let consumer = client
    ///     .push_consumer("billing")
    ///     .subscribe("Orders", "*")
    ///     .start(|delivery: Delivery| async move {
    ///         match delivery.iter().all(|message| !message.body().is_empty()) {
    ///             true => Verdict::Done,
    ///             false => Verdict::DeadLetter,
    ///         }
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(self, listener: impl Listener) -> Result<PushConsumer, Error> {
        let deliveries_max = self.deliveries_max.map_or(DELIVERIES_MAX, i32::from);
        let terms = concurrent::Terms {
            workers: self.concurrency.into(),
            batch_max: self.batch.into(),
            deliveries_max,
            consume_time_max: self.consume_time_max,
        };
        let desk = concurrent::Desk::new(listener, terms);
        let sink = concurrent::ConcurrentSink(Arc::clone(&desk));
        let member = self.join(false, |_| Box::new(sink)).await?;
        let workers = desk.start(&member);
        Ok(begin(member, Box::new(Workers { desk, workers })).await)
    }

    /// As [`PushConsumerBuilder::start`], for a listener that gets the messages of each queue in
    /// their order. In clustering brokers lock each queue for one member.
    ///
    /// # Errors
    ///
    /// As [`PushConsumerBuilder::start`].
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Delivery, OrderedVerdict};
    ///
    /// let consumer = client
    ///     .push_consumer("ledger")
    ///     .subscribe("Payments", "*")
    ///     .start_ordered(|delivery: Delivery| async move {
    ///         println!("{}", delivery.queue());
    ///         OrderedVerdict::Done
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_ordered(
        self,
        listener: impl OrderedListener,
    ) -> Result<PushConsumer, Error> {
        let terms = ordered::Terms {
            workers: self.concurrency.into(),
            batch_max: self.batch.into(),
            deliveries_max: self.deliveries_max.map(i32::from),
            pause: self.suspend_pause,
        };
        let desk = ordered::Desk::new(listener, terms);
        let sink = ordered::OrderedSink(Arc::clone(&desk));
        let member = self.join(true, |_| Box::new(sink)).await?;
        Ok(begin(member, Box::new(Places { desk })).await)
    }

    async fn join(
        self,
        is_ordered: bool,
        sink: impl FnOnce(&Weak<Member>) -> Box<dyn Sink>,
    ) -> Result<Arc<Member>, Error> {
        self.check()?;
        let mut subscriptions = BTreeMap::new();
        for (topic, filter) in &self.filters {
            check_topic(topic)?;
            let topic = self.client.shared.namespace.wrap(topic).into_owned();
            subscriptions.insert(topic, Arc::new(Subscription::new(filter.clone())?));
        }
        if !self.is_broadcasting {
            let retries = Arc::new(Subscription::new(Filter::All)?);
            subscriptions.insert(names::retry_topic(&self.group), retries);
        }
        let client = self.client.clone();
        for (topic, subscription) in &subscriptions {
            if subscription.is_sql() {
                client.shared.check_subscription(&self.group, topic, subscription).await?;
            }
        }
        let group = client.shared.namespace.unwrap(&self.group);
        let topic = self.trace_topic.as_deref();
        let tracer = topic.map(|topic| Tracer::start(&client, &group, "CONSUME", topic));
        let tracer = tracer.transpose()?.map(Arc::new);
        let settings = Settings { tracer, ..self.settings(is_ordered) };
        Member::join(client, settings, subscriptions, sink)
    }

    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `DefaultMQPushConsumerImpl.checkConfig`.
    fn check(&self) -> Result<(), Error> {
        check_range("concurrency", self.concurrency.into(), 1000)?;
        check_range("batch", self.batch.into(), 1024)?;
        check_range("pull_count_max", self.pull_count_max.into(), 1024)?;
        check_range("queue_limits", self.queue_count_max.into(), 65_535)?;
        let len_max = u64::try_from(self.queue_len_max).unwrap_or(u64::MAX);
        check_range("queue_limits", len_max, 1 << 30)?;
        check_range("queue_span_max", self.queue_span_max.into(), 65_535)?;
        Ok(())
    }

    fn settings(self, is_ordered: bool) -> Settings {
        let (model, division, file) = match self.is_broadcasting {
            true => {
                let (folder, member) =
                    (self.offsets_folder.as_deref(), &self.client.shared.stable_id);
                let file = LocalFile::new(folder, member, &self.group);
                (MessageModel::Broadcasting, Division::All(BTreeSet::new()), Some(file))
            }
            false => (MessageModel::Clustering, Division::Shared(self.strategy), None),
        };
        let span_max = if is_ordered { i64::MAX } else { self.queue_span_max.into() };
        Settings {
            group: self.group,
            consume_type: ConsumeType::Passively,
            model,
            is_ordered,
            division,
            start_from: self.start_from,
            limits: Limits {
                count_max: usize::try_from(self.queue_count_max).unwrap_or(usize::MAX),
                len_max: self.queue_len_max,
                span_max,
            },
            topic_count_max: self.topic_count_max,
            topic_len_max: self.topic_len_max,
            pull_count_max: self.pull_count_max.into(),
            hold: self.hold,
            pull_pause: self.pull_pause,
            rebalance_period: self.rebalance_period.max(Duration::from_millis(10)),
            commit_period: Some(self.commit_period),
            file,
            tracer: None,
        }
    }
}

async fn begin(member: Arc<Member>, desk: Box<dyn Drain>) -> PushConsumer {
    let patience = member.client.shared.call_timeout;
    member.start();
    // Made first, so that dropping this future stops everything.
    let consumer = PushConsumer { member: Arc::clone(&member), desk: Some(desk) };
    member.first_round(patience).await;
    consumer
}

/// The workers of a concurrent consumer.
struct Workers<L> {
    desk: Arc<concurrent::Desk<L>>,
    workers: JoinSet<()>,
}

impl<L: Listener> Drain for Workers<L> {
    fn drain(mut self: Box<Self>, until: Instant) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        Box::pin(async move { self.desk.drain(&mut self.workers, until).await })
    }
}

/// The places of an ordered consumer.
struct Places<L> {
    desk: Arc<ordered::Desk<L>>,
}

impl<L: OrderedListener> Drain for Places<L> {
    fn drain(self: Box<Self>, until: Instant) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        Box::pin(async move { self.desk.drain(until).await })
    }
}
