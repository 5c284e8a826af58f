//! Dividing the queues of a group: which of them this member holds.
//!
//! A division happens at the start, when a broker says that members came or went, when a route
//! changes, and every 20 s all the same. A member that cannot learn what it needs keeps what it
//! has, and tries again after a second.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `RebalanceImpl`, `RebalanceService`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ringmq_protocol::{
    body::{self, ConsumerList},
    codes::request,
    headers::ConsumerGroupRequest,
    names,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep, timeout},
};

use super::{
    held::{Held, LOCK_AGE_MAX},
    locks::{RENEWAL_PERIOD, by_broker},
    member::{Division, Member, StartFrom, new_held},
};
use crate::{Error, MessageQueue, allocate, client::Shared, lock, remoting::unexpected, unique};

/// Pause before a division that could not be completed is tried again. Source: 5.3.3,
/// `RebalanceService.minInterval`.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Pause before a queue that another member still has locked is asked for again. Source: 5.3.3,
/// `RebalanceImpl.updateProcessQueueTableInRebalance`.
const LOCK_PAUSE: Duration = Duration::from_millis(500);

/// First renewal of locks. Source: `ConsumeMessageOrderlyService.start`.
const FIRST_RENEWAL: Duration = Duration::from_secs(1);

/// How long a lost queue waits for the listener that has its messages. Source:
/// `RebalancePushImpl.removeUnnecessaryMessageQueue`.
const TURN_WAIT: Duration = Duration::from_secs(1);

/// How long a broker keeps a lock that is not renewed. Source: `RebalanceLockManager`.
const LOCK_LIFE: Duration = Duration::from_secs(60);

/// Whether all is as it should be until something changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balance {
    Complete,
    /// Something could not be learned.
    Incomplete,
    /// Another member still has the lock of a queue.
    Locked,
}

/// Divides for ever.
pub(super) async fn run(member: Arc<Member>) {
    let shared = Arc::clone(&member.client.shared);
    let (mut members, mut routes) = (shared.groups.changes(), shared.routes.changes());
    // Brokers name only those as members whose heartbeat they have had.
    for topic in member.topics() {
        let _ = shared.route(&topic, shared.deadline()).await;
    }
    shared.heartbeat().await;
    loop {
        let pause = match member.is_paused() {
            true => member.settings.rebalance_period,
            false => match member.divide().await {
                Balance::Complete => member.settings.rebalance_period,
                Balance::Incomplete => RETRY_PAUSE,
                Balance::Locked => LOCK_PAUSE,
            },
        };
        member.rounds.send_modify(|count| *count = count.wrapping_add(1));
        tokio::select! {
            () = sleep(pause) => {}
            () = member.wake.notified() => {}
            changed = members.changed() => if changed.is_err() { return },
            changed = routes.changed() => if changed.is_err() { return },
        }
    }
}

/// Renews the locks of held queues for ever.
pub(super) async fn keep_locks(member: Arc<Member>) {
    let mut ticks = interval_at(Instant::now() + FIRST_RENEWAL, RENEWAL_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        member.renew_locks().await;
    }
}

impl Member {
    /// Divides the queues of all topics once.
    async fn divide(self: &Arc<Self>) -> Balance {
        let topics: BTreeSet<_> = self.topics().into_iter().collect();
        let mut balance = Balance::Complete;
        for topic in &topics {
            let now = match self.part_of(topic).await {
                Ok(Some(queues)) => self.hold_exactly(topic, queues).await,
                Ok(None) => Balance::Complete,
                Err(error) => {
                    tracing::warn!(group = self.group(), topic, %error, "cannot divide queues");
                    Balance::Incomplete
                }
            };
            if now != Balance::Complete {
                balance = now;
            }
        }
        for held in self.all_held() {
            if !topics.contains(held.queue.topic()) {
                self.release(&held).await;
            }
        }
        balance
    }

    /// The queues of a topic that this member is to hold; `None` leaves things as they are.
    async fn part_of(&self, topic: &str) -> Result<Option<BTreeSet<MessageQueue>>, Error> {
        let shared = &self.client.shared;
        if let Division::Assigned(queues) = &self.settings.division {
            let queues = lock(queues).clone().into_iter();
            return Ok(Some(queues.filter(|queue| queue.topic() == topic).collect()));
        }
        let route = match shared.route(topic, shared.deadline()).await {
            Ok(route) => route,
            // Brokers create the topic of a group's retries when they hear of the group.
            Err(Error::NoRoute { .. }) if names::group_of_retry_topic(topic).is_some() => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut queues = route.subscribe().to_vec();
        let strategy = match &self.settings.division {
            Division::Shared(strategy) => strategy,
            Division::All(single) => {
                let single = single.iter().filter(|queue| queue.topic() == topic);
                let single: BTreeSet<_> = single.cloned().collect();
                let all = || queues.into_iter().collect();
                return Ok(Some(if single.is_empty() { all() } else { single }));
            }
            Division::Assigned(_) => return Ok(None),
        };
        if queues.is_empty() {
            return Ok(None);
        }
        let addrs: Vec<_> = route.data.broker_datas.iter().filter_map(any_addr).collect();
        let mut members = shared.members_of(self.group(), &addrs).await?;
        if !members.contains(&shared.client_id) {
            // The broker has forgotten this client, or not heard of it yet.
            shared.heartbeat().await;
            members = shared.members_of(self.group(), &addrs).await?;
        }
        allocate::sort(&mut members, &mut queues);
        match strategy.allocate(&shared.client_id, &members, &queues) {
            Ok(part) => Ok(Some(part.into_iter().collect())),
            Err(error) => {
                tracing::warn!(group = self.group(), topic, %error, "cannot divide queues");
                Ok(None)
            }
        }
    }

    /// Releases what is held too much, and holds what is missing.
    async fn hold_exactly(
        self: &Arc<Self>,
        topic: &str,
        queues: BTreeSet<MessageQueue>,
    ) -> Balance {
        let held = self.all_held().into_iter().filter(|held| held.queue.topic() == topic);
        let mut missing = queues.clone();
        let mut balance = Balance::Complete;
        for held in held {
            if queues.contains(&held.queue) && !held.is_closing() {
                missing.remove(&held.queue);
            } else if !self.release(&held).await {
                balance = Balance::Locked;
                missing.remove(&held.queue);
            }
        }
        if missing.is_empty() {
            return balance;
        }
        let locked = if self.has_locks() { self.lock(&missing).await } else { missing.clone() };
        if locked.len() < missing.len() {
            balance = Balance::Locked;
        }
        // What a topic gets while it is being read has nothing in it that came before.
        let has_grown =
            missing.len() < queues.len() && !matches!(self.settings.division, Division::Shared(_));
        let start_from = if has_grown { StartFrom::First } else { self.settings.start_from };
        if let Err(error) = self.begin(locked, start_from).await {
            // The offset of a queue is unknown, so that it is not read yet.
            tracing::warn!(group = self.group(), topic, %error, "no start of a queue");
            balance = Balance::Incomplete;
        }
        balance
    }

    /// Finds where to start in each queue, and holds it.
    ///
    /// # Errors
    ///
    /// The first failure; the other queues are held all the same.
    async fn begin(
        self: &Arc<Self>,
        queues: BTreeSet<MessageQueue>,
        start_from: StartFrom,
    ) -> Result<(), Error> {
        let mut starts = JoinSet::new();
        for queue in queues {
            let member = Arc::clone(self);
            starts.spawn(async move { (member.start_of(&queue, start_from).await, queue) });
        }
        let mut result = Ok(());
        while let Some(start) = starts.join_next().await {
            match start {
                Ok((Ok(start), queue)) => {
                    let held = new_held(queue, start.offset, start.committed);
                    held.set_locked(self.has_locks().then(Instant::now));
                    self.hold(Arc::new(held));
                }
                Ok((Err(error), _)) => result = result.and(Err(error)),
                // The tasks cannot panic, and nobody aborts them.
                Err(_) => result = result.and(Err(Error::Closed)),
            }
        }
        result
    }

    /// Holds all queues that it reads by itself.
    ///
    /// # Errors
    ///
    /// The first failure.
    pub(crate) async fn hold_all(self: &Arc<Self>) -> Result<(), Error> {
        let mut all = BTreeSet::new();
        for topic in self.topics() {
            all.extend(self.part_of(&topic).await?.unwrap_or_default());
        }
        self.begin(all, self.settings.start_from).await
    }

    /// Gives a queue up for another member. False if the listener still has messages of it, whose
    /// order would be lost.
    async fn release(self: &Arc<Self>, held: &Arc<Held>) -> bool {
        held.close();
        let turn = match self.has_locks() {
            true => match timeout(TURN_WAIT, held.turns.listener.lock()).await {
                Ok(turn) => Some(turn),
                Err(_) => return false,
            },
            false => None,
        };
        held.drop_it();
        // After this the next holder may have gone further: nothing is committed later.
        self.commit_held(held).await;
        drop(turn);
        self.remove(held);
        if self.has_locks() {
            self.unlock([&held.queue]).await;
        }
        true
    }

    /// Locks queues; returns those that were granted.
    async fn lock(&self, queues: &BTreeSet<MessageQueue>) -> BTreeSet<MessageQueue> {
        let mut granted = BTreeSet::new();
        for queues in by_broker(queues).into_values() {
            match self.client.shared.lock_queues(self.group(), &queues).await {
                Ok(locked) => granted.extend(locked.into_iter().filter(|q| queues.contains(&q))),
                Err(error) => tracing::warn!(group = self.group(), %error, "cannot lock queues"),
            }
        }
        granted
    }

    pub(super) async fn unlock(&self, queues: impl IntoIterator<Item = &MessageQueue>) {
        for queues in by_broker(queues).into_values() {
            if let Err(error) = self.client.shared.unlock_queues(self.group(), &queues).await {
                tracing::warn!(group = self.group(), %error, "cannot unlock queues");
            }
        }
    }

    async fn renew_locks(self: &Arc<Self>) {
        let held: BTreeMap<_, _> =
            self.all_held().into_iter().map(|held| (held.queue.clone(), held)).collect();
        for queues in by_broker(held.keys()).into_values() {
            let asked = Instant::now();
            match self.client.shared.lock_queues(self.group(), &queues).await {
                Ok(granted) => {
                    for queue in queues {
                        let Some(held) = held.get(queue) else { continue };
                        self.lock_renewed(held, granted.contains(queue).then_some(asked));
                    }
                }
                // Until they are too old, the locks are as good as before.
                Err(error) => tracing::warn!(group = self.group(), %error, "cannot renew locks"),
            }
        }
    }

    /// Takes the broker's word for a lock. A queue whose lock another member has, or may have had
    /// meanwhile, is given up, since its offset may have moved.
    fn lock_renewed(&self, held: &Arc<Held>, granted: Option<Instant>) {
        let was_held = held.lock_age().is_some_and(|age| age + LOCK_AGE_MAX / 2 < LOCK_LIFE);
        if granted.is_some() && was_held {
            return held.set_locked(granted);
        }
        if held.is_closing() {
            return;
        }
        tracing::warn!(group = self.group(), queue = %held.queue, "lost the lock");
        held.set_locked(None);
        held.drop_it();
        self.remove(held);
        self.wake.notify_one();
    }
}

impl Shared {
    /// The members of a group, from one of these brokers, a random one first.
    ///
    /// # Errors
    ///
    /// What the last of them said.
    async fn members_of(&self, group: &str, addrs: &[&str]) -> Result<Vec<String>, Error> {
        let count = u64::try_from(addrs.len()).unwrap_or(u64::MAX).max(1);
        let start = usize::try_from(unique::random() % count).unwrap_or_default();
        let (before, after) = addrs.split_at(start.min(addrs.len()));
        let mut failure = Error::Closed;
        for addr in after.iter().chain(before) {
            match self.ask_members(group, addr).await {
                Ok(members) => return Ok(members),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn ask_members(&self, group: &str, addr: &str) -> Result<Vec<String>, Error> {
        let header = ConsumerGroupRequest { consumer_group: group.into() };
        let code = request::GET_CONSUMER_LIST_BY_GROUP;
        let request = self.remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        let answer = self.remoting.call_ok(addr, request, self.deadline()).await?;
        let list: ConsumerList =
            body::decode(&answer.body).map_err(|error| unexpected(addr, error))?;
        Ok(list.consumer_id_list)
    }
}

/// Address of a broker's master, else of any replica.
fn any_addr(broker: &body::BrokerData) -> Option<&str> {
    broker.master_addr().or_else(|| broker.broker_addrs.values().next().map(String::as_str))
}
