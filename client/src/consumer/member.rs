//! A member of a consumer group: what all kinds of consumers are made of.
//!
//! A member knows its group, what it is subscribed to and which queues it holds. One task divides
//! the queues anew from time to time (`rebalance`), each held queue has one that pulls (`fetch`),
//! and one commits (`commit`). What happens with the messages is up to the kind of consumer, which
//! is a [`Sink`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use ringmq_protocol::body::{
    ConsumeFromWhere, ConsumeType, ConsumerData, MessageModel, SubscriptionData,
};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, timeout},
};

use super::{backlog::Limits, commit::Tables, held::Held, local::LocalFile, stats::Stats};
use crate::{
    Client, Error, Invalid, MessageQueue, QueueOffset, ReceivedMessage, allocate::Allocate,
    client::Membership, clock, lock, observe::Consumption, subscription::Subscription,
    trace::Tracer,
};

/// Where to start reading a queue for which the group has not committed an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartFrom {
    /// At the first message that the queue has.
    First,
    /// After the last message that the queue has when the consumer starts. Brokers of 4.9 start a
    /// new group at the first message all the same, if the queue still has that.
    Last,
    /// At the first message that was stored at this time or later.
    Time(SystemTime),
}

impl StartFrom {
    const fn wire(self) -> ConsumeFromWhere {
        match self {
            Self::First => ConsumeFromWhere::FirstOffset,
            Self::Last => ConsumeFromWhere::LastOffset,
            Self::Time(_) => ConsumeFromWhere::Timestamp,
        }
    }
}

/// How a member behaves.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) group: String,
    pub(crate) consume_type: ConsumeType,
    pub(crate) model: MessageModel,
    /// Whether brokers lock the queues for one member.
    pub(crate) is_ordered: bool,
    pub(crate) division: Division,
    pub(crate) start_from: StartFrom,
    pub(crate) limits: Limits,
    /// Like `limits`, but for all queues of a topic that the member holds together.
    pub(crate) topic_count_max: Option<usize>,
    /// Unit: bytes.
    pub(crate) topic_len_max: Option<usize>,
    pub(crate) pull_count_max: i32,
    /// How long brokers hold a pull while there is no message.
    pub(crate) hold: Duration,
    /// Pause after each pull that brought messages.
    pub(crate) pull_pause: Duration,
    pub(crate) rebalance_period: Duration,
    /// `None` leaves commits to the application.
    pub(crate) commit_period: Option<Duration>,
    /// Where offsets of broadcasting members are.
    pub(crate) file: Option<LocalFile>,
    /// Takes traces of deliveries.
    pub(crate) tracer: Option<Arc<Tracer>>,
}

/// Which queues a member holds.
#[derive(Debug)]
pub(crate) enum Division {
    /// Its part of those of all members.
    Shared(Arc<dyn Allocate>),
    /// All queues of its topics. Of topics that one of these queues belongs to, only those queues.
    All(BTreeSet<MessageQueue>),
    /// Those that the application names.
    Assigned(Mutex<Vec<MessageQueue>>),
}

/// What a kind of consumer does with messages.
pub(crate) trait Sink: Send + Sync {
    /// Messages have come into a queue's backlog.
    fn arrived(&self, held: &Arc<Held>, count: usize);

    /// A queue is held from now on.
    fn acquired(&self, member: &Arc<Member>, held: &Arc<Held>);

    /// What went wrong in a way that no further try will change.
    fn failed(&self, error: Error);

    /// Gives one message to the listener at once; `None` if there is no listener.
    fn consume_directly(
        &self,
        message: ReceivedMessage,
    ) -> Option<Pin<Box<dyn Future<Output = Directly> + Send>>>;

    /// How many messages, or queues in order, are worked on at once; 0 without a listener.
    fn concurrency(&self) -> usize;
}

/// What came of a message that was given to the listener at once.
///
/// Source: Apache RocketMQ 4.9.8, `CMResult`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directly {
    pub(crate) result: &'static str,
    pub(crate) remark: Option<String>,
}

/// A member of a consumer group.
pub(crate) struct Member {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) stats: Stats,
    pub(crate) figures: Consumption,
    pub(crate) started_ms: i64,
    subscriptions: Mutex<BTreeMap<String, Arc<Subscription>>>,
    held: Mutex<BTreeMap<MessageQueue, Arc<Held>>>,
    pub(super) tables: Tables,
    /// Queues of the topic with most of them, which share the limits of a topic.
    widest: AtomicUsize,
    is_paused: AtomicBool,
    is_stopping: AtomicBool,
    /// Asks for a division at once.
    pub(crate) wake: Notify,
    /// Counts divisions.
    pub(super) rounds: watch::Sender<u64>,
    /// Ends what must not be aborted.
    pub(super) stopped: watch::Sender<bool>,
    tasks: Mutex<Vec<AbortHandle>>,
    membership: Membership,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("group", &self.settings.group).finish_non_exhaustive()
    }
}

impl Member {
    /// Joins the group, and starts to divide and to commit.
    ///
    /// # Errors
    ///
    /// [`Invalid::Group`] or [`Invalid::GroupInUse`], [`Error::Closed`].
    pub(crate) fn join(
        client: Client,
        settings: Settings,
        subscriptions: BTreeMap<String, Arc<Subscription>>,
        sink: impl FnOnce(&Weak<Self>) -> Box<dyn Sink>,
    ) -> Result<Arc<Self>, Error> {
        client.shared.check_open()?;
        let data = heartbeat_data(&settings, subscription_data(&subscriptions));
        let membership = Membership::join(Arc::clone(&client.shared), data)?;
        let figures = Consumption::new(&settings.group);
        let member = Arc::new_cyclic(|member| Self {
            client,
            settings,
            sink: sink(member),
            stats: Stats::default(),
            figures,
            started_ms: clock::epoch_ms(),
            subscriptions: Mutex::new(subscriptions),
            held: Mutex::default(),
            tables: Tables::default(),
            widest: AtomicUsize::new(1),
            is_paused: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            wake: Notify::new(),
            rounds: watch::Sender::new(0),
            stopped: watch::Sender::new(false),
            tasks: Mutex::default(),
            membership,
        });
        member.client.shared.groups.register(&member.settings.group, Arc::downgrade(&member));
        Ok(member)
    }

    /// Starts what goes on until the member leaves.
    pub(crate) fn start(self: &Arc<Self>) {
        self.own(tokio::spawn(super::rebalance::run(Arc::clone(self))).abort_handle());
        // It ends by itself: an offset that is on its way must arrive before the last one.
        drop(tokio::spawn(super::commit::run(Arc::clone(self))));
        if self.has_locks() {
            self.own(tokio::spawn(super::rebalance::keep_locks(Arc::clone(self))).abort_handle());
        }
    }

    /// Waits until the queues were divided once, for at most so long.
    pub(crate) async fn first_round(&self, patience: Duration) {
        let mut rounds = self.rounds.subscribe();
        let divided = timeout(patience, rounds.wait_for(|count| *count > 0)).await;
        if divided.is_err() {
            tracing::warn!(group = self.group(), "started, but holds no queues yet");
        }
    }

    /// Gives a task to the member, which ends with it.
    pub(crate) fn own(&self, task: AbortHandle) {
        let mut tasks = lock(&self.tasks);
        tasks.retain(|task| !task.is_finished());
        match self.is_stopping() {
            true => task.abort(),
            false => tasks.push(task),
        }
    }

    pub(crate) fn group(&self) -> &str {
        &self.settings.group
    }

    pub(crate) fn is_broadcasting(&self) -> bool {
        self.settings.model == MessageModel::Broadcasting
    }

    /// The messages as the application sees them.
    pub(crate) fn shown(&self, messages: Vec<ReceivedMessage>) -> Vec<ReceivedMessage> {
        let namespace = &self.client.shared.namespace;
        match namespace.name() {
            None => messages,
            Some(_) => messages.into_iter().map(|message| message.unwrapped(namespace)).collect(),
        }
    }

    /// The queues that it holds and does not give up, as the application calls them, each with the
    /// offset of its first message that is not done.
    pub(crate) fn shown_queues(&self) -> Vec<(MessageQueue, QueueOffset)> {
        let namespace = &self.client.shared.namespace;
        let held = self.all_held().into_iter().filter(|held| !held.is_closing());
        held.map(|held| (namespace.unwrap_queue(&held.queue), held.done())).collect()
    }

    /// Whether queues are locked at brokers.
    pub(crate) fn has_locks(&self) -> bool {
        self.settings.is_ordered && !self.is_broadcasting()
    }

    pub(crate) fn subscription(&self, topic: &str) -> Option<Arc<Subscription>> {
        lock(&self.subscriptions).get(topic).cloned()
    }

    pub(crate) fn topics(&self) -> Vec<String> {
        lock(&self.subscriptions).keys().cloned().collect()
    }

    pub(crate) fn subscription_data(&self) -> Vec<SubscriptionData> {
        subscription_data(&lock(&self.subscriptions))
    }

    /// Subscribes to a topic, or changes the subscription.
    pub(crate) fn subscribe(&self, topic: &str, subscription: Subscription) {
        lock(&self.subscriptions).insert(topic.into(), Arc::new(subscription));
        self.subscriptions_changed();
    }

    pub(crate) fn unsubscribe(&self, topic: &str) {
        lock(&self.subscriptions).remove(topic);
        self.subscriptions_changed();
    }

    fn subscriptions_changed(&self) {
        self.membership.update(|data| data.subscription_data_set = self.subscription_data());
        self.wake.notify_one();
    }

    pub(crate) fn all_held(&self) -> Vec<Arc<Held>> {
        lock(&self.held).values().cloned().collect()
    }

    pub(crate) fn held(&self, queue: &MessageQueue) -> Option<Arc<Held>> {
        lock(&self.held).get(queue).cloned()
    }

    /// Holds a queue from now on. Without effect on a member that is leaving.
    pub(super) fn hold(self: &Arc<Self>, held: Arc<Held>) {
        if self.is_stopping() {
            return;
        }
        lock(&self.held).insert(held.queue.clone(), Arc::clone(&held));
        tracing::info!(group = self.group(), queue = %held.queue, from = %held.done(), "holds");
        self.count_queues();
        self.sink.acquired(self, &held);
        held.own(
            tokio::spawn(super::fetch::run(Arc::clone(self), Arc::clone(&held))).abort_handle(),
        );
    }

    /// Holds a queue no longer; it must have been dropped.
    pub(super) fn remove(&self, held: &Arc<Held>) {
        if self.is_current(held) {
            lock(&self.held).remove(&held.queue);
        }
        tracing::info!(group = self.group(), queue = %held.queue, at = %held.done(), "gave up");
        self.count_queues();
    }

    /// Whether its queue is not held anew, nor given up.
    pub(super) fn is_current(&self, held: &Arc<Held>) -> bool {
        lock(&self.held).get(&held.queue).is_some_and(|current| Arc::ptr_eq(current, held))
    }

    /// Goes on with a queue at another offset: what was pulled before has no effect any more.
    pub(crate) fn move_to(self: &Arc<Self>, held: &Arc<Held>, offset: QueueOffset) {
        if !held.drop_it() {
            return;
        }
        self.remove(held);
        let turns = Arc::clone(&held.turns);
        let moved = Held::new(held.queue.clone(), offset, None, turns);
        moved.set_locked(held.lock_age().and_then(|age| Instant::now().checked_sub(age)));
        moved.pause(held.is_paused());
        self.hold(Arc::new(moved));
        let member = Arc::clone(self);
        let queue = held.queue.clone();
        // The broker has to have it before someone else asks for it.
        self.own(tokio::spawn(async move { member.commit_queue(&queue).await }).abort_handle());
    }

    fn count_queues(&self) {
        let held = lock(&self.held);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for queue in held.keys() {
            *counts.entry(queue.topic()).or_default() += 1;
        }
        self.figures.holds(held.len());
        self.widest.store(counts.into_values().max().unwrap_or(1), Ordering::Relaxed);
    }

    /// How much of one queue may be held at once: the limits of a topic are shared among its queues.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `RebalancePushImpl.messageQueueChanged`.
    pub(crate) fn limits(&self) -> Limits {
        let queues = self.widest.load(Ordering::Relaxed).max(1);
        let share =
            |own: usize, topic: Option<usize>| topic.map_or(own, |max| (max / queues).max(1));
        let limits = self.settings.limits;
        Limits {
            count_max: share(limits.count_max, self.settings.topic_count_max),
            len_max: share(limits.len_max, self.settings.topic_len_max),
            ..limits
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// Pauses pulling and dividing, or goes on with them.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
        self.all_held().iter().for_each(|held| held.nudge());
        if !is_paused {
            self.wake.notify_one();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Stops dividing and pulling; what has come can still be finished.
    pub(crate) fn stop_pulling(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.stopped.send_replace(true);
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
        self.all_held().iter().for_each(|held| held.stop_tasks());
    }

    /// Commits what is done, gives locks back and leaves the group, in this order: whoever gets the
    /// queues next reads the offsets at once.
    ///
    /// # Errors
    ///
    /// Why an offset could not be committed: its messages come again.
    pub(crate) async fn leave(self: &Arc<Self>, until: Instant) -> Result<(), Error> {
        self.stop_pulling();
        let deadline = until.saturating_duration_since(Instant::now());
        let committed = match self.settings.commit_period {
            Some(_) => tokio::time::timeout_at(until, self.commit_all()).await,
            None => Ok(Ok(())),
        };
        let all = self.all_held();
        for held in &all {
            held.drop_it();
        }
        lock(&self.held).clear();
        if self.has_locks() {
            let queues: Vec<_> = all.iter().map(|held| &held.queue).collect();
            let unlocked = tokio::time::timeout_at(until, self.unlock(queues)).await;
            if unlocked.is_err() {
                tracing::warn!(group = self.group(), "locks were not given back in time");
            }
        }
        self.membership.leave(until).await;
        committed.unwrap_or(Err(Error::Unfinished { deadline }))
    }

    /// Ends everything at once, without a word to brokers.
    pub(crate) fn abandon(&self) {
        self.stop_pulling();
        for (_, held) in std::mem::take(&mut *lock(&self.held)) {
            held.drop_it();
        }
    }
}

fn subscription_data(subscriptions: &BTreeMap<String, Arc<Subscription>>) -> Vec<SubscriptionData> {
    subscriptions.iter().map(|(topic, subscription)| subscription.data(topic)).collect()
}

fn heartbeat_data(settings: &Settings, subscriptions: Vec<SubscriptionData>) -> ConsumerData {
    ConsumerData {
        consume_from_where: Some(settings.start_from.wire()),
        consume_type: Some(settings.consume_type),
        group_name: settings.group.clone(),
        message_model: Some(settings.model),
        subscription_data_set: subscriptions,
        unit_mode: false,
    }
}

/// A queue that nobody of this member held before.
pub(super) fn new_held(
    queue: MessageQueue,
    start: QueueOffset,
    committed: Option<QueueOffset>,
) -> Held {
    Held::new(queue, start, committed, Arc::default())
}

/// Checks the topic of a subscription.
pub(crate) fn check_topic(topic: &str) -> Result<(), Invalid> {
    ringmq_protocol::names::validate_topic(topic).map_err(|_| Invalid::Topic(topic.into()))
}
