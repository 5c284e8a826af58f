//! POP: brokers of 5.x keep track of each message, and members need no queues of their own.
//!
//! A popped message is out of the sight of other members for some time. If it is acknowledged in
//! that time it is done, otherwise it comes again, to any member, until the broker gives it up to
//! the dead letters. So a group can have more members than queues, a slow member holds nothing up,
//! and nothing is divided anew when members come and go. RingMQ and brokers of 4.9 have no POP.
//!
//! Source of the rules: Apache RocketMQ 5.5.0, `DefaultMQPushConsumerImpl.popMessage`,
//! `ExtraInfoUtil`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ringmq_protocol::{
    body::{ConsumeFromWhere, ConsumeType, ConsumerData, MessageModel},
    codes::{request, response},
    headers::{AckRequest, ChangeInvisibleResponse, PopRequest, PopResponse},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::receipt::{Receipt, Starts};
use crate::{
    Client, Delivery, Error, Filter, Invalid, Listener, ReceivedMessage, Verdict,
    client::{Membership, Shared},
    clock,
    consumer::member::check_topic,
    message,
    remoting::{refused, unexpected},
    subscription::Subscription,
};

mod receipt;

/// Most messages of one pop. Source: Apache RocketMQ 5.5.0, `PopMessageProcessor`.
const POP_MAX: u16 = 32;

/// How much longer than the hold time an answer may take. Source: Apache RocketMQ 5.5.0,
/// `DefaultMQPushConsumerImpl`.
const HOLD_SLACK: Duration = Duration::from_secs(10);

/// Pause after a pop that failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// After how long a message that failed for the first, second, ... time comes again. Unit:
/// seconds. Source: Apache RocketMQ 5.5.0, `ConsumeMessagePopConcurrentlyService`.
const RETRY_SECONDS: [u64; 16] =
    [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];

/// A member of a group whose messages brokers keep track of one by one. Made by
/// [`Client::pop_consumer`].
///
/// ```no_run
/// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
/// use std::time::Duration;
///
/// let mut consumer = client.pop_consumer("thumbnails").subscribe("Images", "*").start().await?;
/// for popped in consumer.receive(10, Duration::from_secs(5)).await? {
///     println!("{:?}", popped.message().body());
///     consumer.ack(&popped).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PopConsumer {
    inner: Arc<Inner>,
    /// Pops under way: at most one for each topic and broker.
    pops: JoinSet<(Source, Result<Vec<Popped>, Error>)>,
    busy: Vec<Source>,
    ready: VecDeque<Popped>,
    membership: Membership,
}

/// A topic on a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    topic: String,
    broker_name: String,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    group: String,
    subscriptions: BTreeMap<String, Subscription>,
    invisible: Duration,
    hold: Duration,
    init_mode: i32,
}

/// A message that is out of the sight of other members, for some time.
#[derive(Clone, Debug)]
pub struct Popped {
    message: ReceivedMessage,
    /// That it was sent to, as brokers call it.
    topic: Arc<str>,
    receipt: Receipt,
    /// When others may see it again.
    until: Instant,
}

impl Popped {
    /// The message.
    pub const fn message(&self) -> &ReceivedMessage {
        &self.message
    }

    /// How long nobody else gets it, from now on.
    pub fn time_left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// Where a group begins that has never popped a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PopFrom {
    /// At the first message.
    First,
    /// Behind the last message.
    Last,
}

/// How a POP consumer is set up. Made by [`Client::pop_consumer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct PopConsumerBuilder {
    client: Client,
    group: String,
    filters: BTreeMap<String, Filter>,
    invisible: Duration,
    hold: Duration,
    start_from: PopFrom,
}

impl PopConsumerBuilder {
    pub(crate) fn new(client: Client, group: &str) -> Self {
        Self {
            group: client.shared.namespace.wrap(group).into(),
            client,
            filters: BTreeMap::new(),
            invisible: Duration::from_secs(60),
            hold: Duration::from_secs(15),
            start_from: PopFrom::Last,
        }
    }

    /// Subscribes to a topic.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// let builder = client.pop_consumer("thumbnails").subscribe("Images", "png || jpeg");
    /// # }
    /// ```
    pub fn subscribe(mut self, topic: &str, filter: impl Into<Filter>) -> Self {
        self.filters.insert(topic.into(), filter.into());
        self
    }

    /// How long a popped message is out of the sight of others: 5 s to 300 s; 60 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.pop_consumer("thumbnails").invisible(Duration::from_secs(30));
    /// # }
    /// ```
    pub const fn invisible(mut self, time: Duration) -> Self {
        self.invisible = time;
        self
    }

    /// How long brokers hold a pop while there is no message; 15 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use std::time::Duration;
    ///
    /// let builder = client.pop_consumer("thumbnails").hold(Duration::from_secs(5));
    /// # }
    /// ```
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Where a group begins that has never popped a topic; [`PopFrom::Last`] unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) {
    /// use ringmq_client::PopFrom;
    ///
    /// let builder = client.pop_consumer("thumbnails").start_from(PopFrom::First);
    /// # }
    /// ```
    pub const fn start_from(mut self, start_from: PopFrom) -> Self {
        self.start_from = start_from;
        self
    }

    /// Joins the group. Brokers are looked for when messages are asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Closed`].
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pop_consumer("thumbnails").subscribe("Images", "*").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(self) -> Result<PopConsumer, Error> {
        let shared = Arc::clone(&self.client.shared);
        shared.check_open()?;
        let range = Duration::from_secs(5)..=Duration::from_secs(300);
        if !range.contains(&self.invisible) {
            return Err(Invalid::Setting { name: "invisible", max: 300 }.into());
        }
        let mut subscriptions = BTreeMap::new();
        for (topic, filter) in self.filters {
            check_topic(&topic)?;
            let topic = shared.namespace.wrap(&topic).into_owned();
            subscriptions.insert(topic, Subscription::new(filter)?);
        }
        let membership =
            Membership::join(Arc::clone(&shared), heartbeat_data(&self.group, &subscriptions))?;
        let init_mode = match self.start_from {
            PopFrom::First => 0,
            PopFrom::Last => 1,
        };
        let inner = Arc::new(Inner {
            client: self.client,
            group: self.group,
            subscriptions,
            invisible: self.invisible,
            hold: self.hold,
            init_mode,
        });
        let (pops, busy, ready) = (JoinSet::new(), Vec::new(), VecDeque::new());
        Ok(PopConsumer { inner, pops, busy, ready, membership })
    }
}

fn heartbeat_data(group: &str, subscriptions: &BTreeMap<String, Subscription>) -> ConsumerData {
    ConsumerData {
        consume_from_where: Some(ConsumeFromWhere::LastOffset),
        consume_type: Some(ConsumeType::Pop),
        group_name: group.into(),
        message_model: Some(MessageModel::Clustering),
        subscription_data_set: subscriptions.iter().map(|(t, s)| s.data(t)).collect(),
        unit_mode: false,
    }
}

impl PopConsumer {
    /// At most so many messages, at least one unless there is none within `patience`. Those whose
    /// time was over before they were asked for are left out: they come again.
    ///
    /// Cancel safe: what has been popped when the future is dropped is given next time.
    ///
    /// # Errors
    ///
    /// What a broker says that no further try will change, such as
    /// [code 3](Error::code) from one without POP. Brokers that cannot be reached are tried again.
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PopConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// let popped = consumer.receive(32, std::time::Duration::from_secs(5)).await?;
    /// println!("{} messages", popped.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn receive(
        &mut self,
        count_max: usize,
        patience: Duration,
    ) -> Result<Vec<Popped>, Error> {
        timeout(patience, self.take(count_max.max(1))).await.unwrap_or_else(|_| Ok(Vec::new()))
    }

    async fn take(&mut self, count_max: usize) -> Result<Vec<Popped>, Error> {
        loop {
            self.ready.retain(|popped| !popped.time_left().is_zero());
            if !self.ready.is_empty() {
                let count = count_max.min(self.ready.len());
                return Ok(self.ready.drain(..count).collect());
            }
            self.start_pops(count_max).await?;
            let Some(ended) = self.pops.join_next().await else {
                sleep(FAILURE_PAUSE).await;
                continue;
            };
            // The tasks cannot panic, and only dropping the consumer aborts them.
            let Ok((source, popped)) = ended else { continue };
            self.busy.retain(|busy| *busy != source);
            self.ready.extend(popped?);
        }
    }

    /// Sees to it that a pop is under way for each topic and broker.
    async fn start_pops(&mut self, count_max: usize) -> Result<(), Error> {
        let shared = &self.inner.client.shared;
        shared.check_open()?;
        let count_max = u16::try_from(count_max).unwrap_or(POP_MAX).min(POP_MAX);
        for topic in self.inner.subscriptions.keys() {
            let route = match shared.route(topic, shared.deadline()).await {
                Ok(route) => route,
                Err(error) if error.retry_can_help() => {
                    tracing::debug!(topic, %error, "cannot pop");
                    continue;
                }
                Err(error) => return Err(error),
            };
            for broker in &route.data.broker_datas {
                let broker_name = broker.broker_name.clone();
                let Some(addr) = broker.master_addr().map(String::from) else { continue };
                let source = Source { topic: topic.clone(), broker_name };
                if self.busy.contains(&source) {
                    continue;
                }
                self.busy.push(source.clone());
                let inner = Arc::clone(&self.inner);
                self.pops.spawn(async move {
                    let popped = inner.pop(&source, &addr, count_max).await;
                    (source, popped)
                });
            }
        }
        Ok(())
    }

    /// Tells the broker that a message is done.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says: the message comes again. Code 208 if its queue does
    /// not have it.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PopConsumer, popped: ringmq_client::Popped)
    /// # -> Result<(), ringmq_client::Error> {
    /// consumer.ack(&popped).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ack(&self, popped: &Popped) -> Result<(), Error> {
        self.inner.ack(&popped.receipt, &popped.topic).await
    }

    /// Keeps a message out of the sight of others for this long from now on, or lets it come again
    /// after that time. The message is worth a new receipt, which takes the place of the old one.
    ///
    /// # Errors
    ///
    /// As [`PopConsumer::ack`].
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PopConsumer, mut popped: ringmq_client::Popped)
    /// # -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    ///
    /// consumer.change_invisible(&mut popped, Duration::from_secs(300)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change_invisible(&self, popped: &mut Popped, time: Duration) -> Result<(), Error> {
        self.inner.change_invisible(popped, time).await
    }

    /// Gives messages to a listener until an error ends it, so many at once. What the listener has
    /// done is acknowledged; what failed comes again after 10 s, 30 s, 1 min and so on. Dropping
    /// the future stops the listener, too.
    ///
    /// [`Verdict::DeadLetter`] counts as [`Verdict::Retry`]: the broker alone writes dead letters
    /// here, when a message has come too often.
    ///
    /// # Errors
    ///
    /// As [`PopConsumer::receive`].
    ///
    /// ```no_run
    /// # async fn example(mut consumer: ringmq_client::PopConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Delivery;
    ///
    /// let listener = |delivery: Delivery| async move { println!("{}", delivery.len()) };
    /// consumer.consume(20, listener).await
    /// # }
    /// ```
    pub async fn consume(
        &mut self,
        concurrency: usize,
        listener: impl Listener,
    ) -> Result<(), Error> {
        let listener = Arc::new(listener);
        let mut running = JoinSet::new();
        loop {
            while running.len() >= concurrency.max(1) {
                running.join_next().await;
            }
            while running.try_join_next().is_some() {}
            let room = concurrency.max(1) - running.len();
            for popped in self.receive(room, self.inner.hold).await? {
                let (inner, listener) = (Arc::clone(&self.inner), Arc::clone(&listener));
                running.spawn(async move { inner.consume(&*listener, popped).await });
            }
        }
    }

    /// Leaves the group. What was popped and not acknowledged comes again when its time is over.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PopConsumer) {
    /// consumer.shutdown(std::time::Duration::from_secs(3)).await;
    /// # }
    /// ```
    pub async fn shutdown(self, deadline: Duration) {
        self.membership.leave(Instant::now() + deadline).await;
    }
}

impl Inner {
    fn shared(&self) -> &Shared {
        &self.client.shared
    }

    /// Pops once. Failures that may pass become nothing after a pause.
    async fn pop(&self, source: &Source, addr: &str, count: u16) -> Result<Vec<Popped>, Error> {
        match self.ask(source, addr, count).await {
            Ok(popped) => Ok(popped),
            Err(error) => {
                tracing::debug!(topic = source.topic, %error, "pop failed");
                sleep(FAILURE_PAUSE).await;
                if error.retry_can_help() { Ok(Vec::new()) } else { Err(error) }
            }
        }
    }

    async fn ask(&self, source: &Source, addr: &str, count: u16) -> Result<Vec<Popped>, Error> {
        let Some(subscription) = self.subscriptions.get(&source.topic) else {
            return Ok(Vec::new());
        };
        let header = PopRequest {
            consumer_group: self.group.as_str().into(),
            topic: source.topic.as_str().into(),
            queue_id: -1,
            max_msg_nums: count.into(),
            invisible_time_ms: millis(self.invisible),
            poll_time_ms: millis(self.hold),
            born_time_ms: clock::epoch_ms(),
            init_mode: self.init_mode,
            exp_type: Some(subscription.kind().into()),
            exp: Some(subscription.text().into()),
            order: Some(false),
            broker_name: Some(source.broker_name.as_str().into()),
        };
        let remoting = &self.shared().remoting;
        let code = request::POP_MESSAGE;
        let request = remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        let asked = Instant::now();
        let answer = remoting.call(addr, request, asked + self.hold + HOLD_SLACK).await?;
        let command = answer.parse(addr)?;
        match command.code {
            response::SUCCESS => {}
            response::POLLING_TIMEOUT | response::PULL_NOT_FOUND => return Ok(Vec::new()),
            _ => return Err(refused(addr, &command)),
        }
        let header = PopResponse::decode(&command).map_err(|error| unexpected(addr, error))?;
        let messages = message::parse_all(&answer.body, &source.broker_name)
            .map_err(|error| unexpected(addr, error))?;
        let starts = Starts::parse(header.start_offset_info.as_deref().unwrap_or_default());
        let until = Instant::now() + self.invisible;
        let topic: Arc<str> = source.topic.as_str().into();
        let mut popped = Vec::with_capacity(messages.len());
        for message in messages {
            let receipt = Receipt::of(&message, &header, &starts, &self.group);
            let receipt = receipt.ok_or_else(|| unexpected(addr, "a message without receipt"))?;
            match subscription.wants(&message) {
                true => {
                    let message = message.unwrapped(&self.shared().namespace);
                    popped.push(Popped { message, topic: Arc::clone(&topic), receipt, until });
                }
                // The broker compares hashes only; this member has no use for it.
                false => self.ack(&receipt, &source.topic).await?,
            }
        }
        Ok(popped)
    }

    async fn ack(&self, receipt: &Receipt, topic: &str) -> Result<(), Error> {
        let text = receipt.to_string();
        let addr = self.master_of(receipt, topic).await?;
        let topic = receipt.topic(&self.group, topic);
        let header = self.ack_header(receipt, &topic, &text, None);
        let (remoting, code) = (&self.shared().remoting, request::ACK_MESSAGE);
        let request = remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        remoting.call_ok(&addr, request, self.shared().deadline()).await.map(drop)
    }

    async fn change_invisible(&self, popped: &mut Popped, time: Duration) -> Result<(), Error> {
        let text = popped.receipt.to_string();
        let topic = popped.receipt.topic(&self.group, &popped.topic);
        let addr = self.master_of(&popped.receipt, &popped.topic).await?;
        let header = self.ack_header(&popped.receipt, &topic, &text, Some(millis(time)));
        let (remoting, code) = (&self.shared().remoting, request::CHANGE_MESSAGE_INVISIBLETIME);
        let request = remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        let answer = remoting.call_ok(&addr, request, self.shared().deadline()).await?;
        let command = answer.parse(&addr)?;
        let changed =
            ChangeInvisibleResponse::decode(&command).map_err(|error| unexpected(&addr, error))?;
        popped.receipt.renew(&changed);
        popped.until = Instant::now() + time;
        Ok(())
    }

    fn ack_header<'a>(
        &'a self,
        receipt: &'a Receipt,
        topic: &'a str,
        text: &'a str,
        invisible_time_ms: Option<i64>,
    ) -> AckRequest<'a> {
        AckRequest {
            consumer_group: self.group.as_str().into(),
            topic: topic.into(),
            queue_id: receipt.queue_id,
            extra_info: text.into(),
            offset: receipt.offset,
            invisible_time_ms,
            broker_name: Some(receipt.broker_name.as_str().into()),
        }
    }

    /// Where the broker of a receipt is, by the route of a topic that it has.
    async fn master_of(&self, receipt: &Receipt, topic: &str) -> Result<String, Error> {
        let shared = self.shared();
        let route = shared.route(topic, shared.deadline()).await?;
        let addr = route.master(&receipt.broker_name).map(String::from);
        addr.ok_or_else(|| Error::NoBroker { broker_name: receipt.broker_name.clone() })
    }

    async fn consume(&self, listener: &impl Listener, mut popped: Popped) {
        let delivery = Delivery::new(vec![popped.message.clone()]);
        let verdict = crate::push::guarded(listener.consume(delivery)).await;
        let verdict = verdict.unwrap_or_else(|panic| {
            tracing::error!(panic, "the listener panicked, the message comes again");
            Verdict::Retry
        });
        let settled = match verdict {
            Verdict::Done | Verdict::DoneFirst(1..) => {
                self.ack(&popped.receipt, &popped.topic).await
            }
            _ => {
                let times = usize::try_from(popped.message.reconsume_times()).unwrap_or_default();
                let index = times.min(RETRY_SECONDS.len() - 1);
                let seconds = RETRY_SECONDS.get(index).copied().unwrap_or(10);
                self.change_invisible(&mut popped, Duration::from_secs(seconds)).await
            }
        };
        if let Err(error) = settled {
            let (group, id) = (&self.group, popped.message.message_id());
            tracing::warn!(group, id, %error, "the message comes again");
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
