//! Groups: what brokers know about this client, by heartbeat.
//!
//! Source: Apache RocketMQ 4.9.8, `MQClientInstance.sendHeartbeatToAllBroker` and
//! `unregisterClient`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, Weak},
};

use bytes::Bytes;
use ringmq_protocol::{
    body::{self, ConsumerData, HeartbeatData, ProducerData},
    codes::request,
    headers::UnregisterClientRequest,
    names,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::Instant,
};

use super::Shared;
use crate::{Error, Invalid, consumer::Member, lock};

/// The groups that this client is in.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Producers by group; several may share one.
    producers: Mutex<BTreeMap<String, usize>>,
    consumers: Mutex<BTreeMap<String, ConsumerData>>,
    /// Wakes the upkeep for a heartbeat before its time.
    beat: Arc<Notify>,
    /// Counts notices that members of any group came or went.
    changes: watch::Sender<u64>,
    /// Consumers by group, for what brokers ask about them.
    members: Mutex<BTreeMap<String, Weak<Member>>>,
}

/// A group to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Group<'a> {
    Producer(&'a str),
    Consumer(&'a str),
}

/// A consumer's place in its group. Dropping it takes the group out of the heartbeats.
pub(crate) struct Membership {
    shared: Arc<Shared>,
    group: String,
}

impl Membership {
    /// # Errors
    ///
    /// [`Invalid::Group`], or [`Invalid::GroupInUse`].
    pub(crate) fn join(shared: Arc<Shared>, data: ConsumerData) -> Result<Self, Invalid> {
        let group = data.group_name.clone();
        shared.groups.join_as_consumer(data)?;
        Ok(Self { shared, group })
    }

    /// Changes what the heartbeat says about the consumer, and sends one.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ConsumerData)) {
        if let Some(data) = lock(&self.shared.groups.consumers).get_mut(&self.group) {
            change(data);
        }
        self.shared.groups.request_heartbeat();
    }

    /// Leaves the group at all brokers.
    pub(crate) async fn leave(&self, deadline: Instant) {
        self.shared.leave(Group::Consumer(&self.group), deadline).await;
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Membership").field(&self.group).finish()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.groups.remove(Group::Consumer(&self.group));
    }
}

/// Checks a group name as upstream's client does.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `Validators.checkGroup`, `DefaultMQProducerImpl.checkConfig`.
fn check(group: &str) -> Result<(), Invalid> {
    let is_reserved = matches!(group, "DEFAULT_PRODUCER" | "DEFAULT_CONSUMER");
    match names::validate_group(group) {
        Ok(()) if !is_reserved => Ok(()),
        _ => Err(Invalid::Group(group.into())),
    }
}

impl Groups {
    pub(super) fn beat(&self) -> Arc<Notify> {
        Arc::clone(&self.beat)
    }

    pub(crate) fn request_heartbeat(&self) {
        self.beat.notify_one();
    }

    /// Tells of notices that members of any group came or went.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Makes a consumer known to what brokers ask.
    pub(crate) fn register(&self, group: &str, member: Weak<Member>) {
        lock(&self.members).insert(group.into(), member);
    }

    /// The consumer of a group.
    pub(crate) fn member(&self, group: &str) -> Option<Arc<Member>> {
        lock(&self.members).get(group)?.upgrade()
    }

    /// Takes a broker's word that members of some group came or went.
    pub(crate) fn members_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// # Errors
    ///
    /// [`Invalid::Group`].
    pub(crate) fn join_as_producer(&self, group: &str) -> Result<(), Invalid> {
        check(group)?;
        *lock(&self.producers).entry(group.into()).or_default() += 1;
        self.request_heartbeat();
        Ok(())
    }

    /// Takes a producer that was dropped out of the heartbeats.
    pub(crate) fn forget_producer(&self, group: &str) {
        self.remove(Group::Producer(group));
    }

    /// # Errors
    ///
    /// [`Invalid::Group`], or [`Invalid::GroupInUse`]: brokers tell members apart by client.
    fn join_as_consumer(&self, data: ConsumerData) -> Result<(), Invalid> {
        check(&data.group_name)?;
        let mut consumers = lock(&self.consumers);
        if consumers.contains_key(&data.group_name) {
            return Err(Invalid::GroupInUse(data.group_name));
        }
        consumers.insert(data.group_name.clone(), data);
        drop(consumers);
        self.request_heartbeat();
        Ok(())
    }

    /// Whether a consumer of this client reads the topic.
    pub(super) fn is_subscribed(&self, topic: &str) -> bool {
        let consumers = lock(&self.consumers);
        let mut subscriptions = consumers.values().flat_map(|data| &data.subscription_data_set);
        subscriptions.any(|subscription| subscription.topic == topic)
    }

    /// Takes a member off the list; whether brokers have to be told that the group is left.
    fn remove(&self, group: Group<'_>) -> bool {
        match group {
            Group::Consumer(group) => {
                lock(&self.members).remove(group);
                lock(&self.consumers).remove(group).is_some()
            }
            Group::Producer(group) => {
                let mut producers = lock(&self.producers);
                match producers.get_mut(group) {
                    Some(count) if *count > 1 => {
                        *count -= 1;
                        false
                    }
                    _ => producers.remove(group).is_some(),
                }
            }
        }
    }

    /// The heartbeat, and whether it says anything about consumers. `None` without groups.
    fn heartbeat(&self, client_id: &str) -> Option<(HeartbeatData, bool)> {
        let producers = lock(&self.producers).keys().cloned().collect::<Vec<_>>();
        let consumers = lock(&self.consumers).values().cloned().collect::<Vec<_>>();
        if producers.is_empty() && consumers.is_empty() {
            return None;
        }
        let has_consumers = !consumers.is_empty();
        let data = HeartbeatData {
            client_id: client_id.into(),
            consumer_data_set: consumers,
            producer_data_set: producers
                .into_iter()
                .map(|group_name| ProducerData { group_name })
                .collect(),
            ..HeartbeatData::default()
        };
        Some((data, has_consumers))
    }
}

impl Shared {
    /// Tells all brokers known about the groups: masters, and replicas if there are consumers.
    pub(crate) async fn heartbeat(self: &Arc<Self>) {
        let Some((data, has_consumers)) = self.groups.heartbeat(&self.client_id) else { return };
        let body = Bytes::from(body::encode(&data));
        let mut calls = JoinSet::new();
        for (addr, _) in self.routes.addrs().filter(|(_, is_master)| *is_master || has_consumers) {
            let (shared, body) = (Arc::clone(self), body.clone());
            calls.spawn(async move {
                let request = shared.remoting.request(request::HEART_BEAT, |_| {}, body)?;
                let deadline = shared.deadline();
                shared.remoting.call_ok(&addr, request, deadline).await.map(drop)
            });
        }
        while let Some(call) = calls.join_next().await {
            if let Ok(Err(error)) = call {
                tracing::warn!(%error, "heartbeat failed");
            }
        }
    }

    /// Leaves a group at all brokers. What they answer does not matter: they also notice when the
    /// connection ends.
    pub(crate) async fn leave(&self, group: Group<'_>, deadline: Instant) {
        if self.groups.remove(group) {
            self.unregister(group, deadline).await;
        }
    }

    /// Leaves all groups.
    pub(super) async fn leave_all(&self, deadline: Instant) {
        let producers = std::mem::take(&mut *lock(&self.groups.producers));
        let consumers = std::mem::take(&mut *lock(&self.groups.consumers));
        let groups = producers.keys().map(|group| Group::Producer(group));
        for group in groups.chain(consumers.keys().map(|group| Group::Consumer(group))) {
            self.unregister(group, deadline).await;
        }
    }

    async fn unregister(&self, group: Group<'_>, deadline: Instant) {
        let (producer_group, consumer_group) = match group {
            Group::Producer(group) => (Some(group.into()), None),
            Group::Consumer(group) => (None, Some(group.into())),
        };
        let client_id = self.client_id.as_str().into();
        let header = UnregisterClientRequest { client_id, producer_group, consumer_group };
        for (addr, _) in self.routes.addrs() {
            let left = async {
                let code = request::UNREGISTER_CLIENT;
                let request =
                    self.remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
                self.remoting.call_ok(&addr, request, deadline.min(self.deadline())).await
            };
            if let Err::<_, Error>(error) = left.await {
                tracing::debug!(addr, %error, "could not leave a group");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_and_illegal_groups_are_refused() {
        for group in ["DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "", "a b", "../x"] {
            let groups = Groups::default();
            let refused = groups.join_as_producer(group);
            assert_eq!(refused, Err(Invalid::Group(group.into())));
        }
    }

    #[test]
    fn a_group_is_left_with_its_last_producer() {
        let groups = Groups::default();
        groups.join_as_producer("g").unwrap();
        groups.join_as_producer("g").unwrap();
        assert!(!groups.remove(Group::Producer("g")));
        assert_eq!(groups.heartbeat("c").unwrap().0.producer_data_set.len(), 1);
        assert!(groups.remove(Group::Producer("g")));
        assert!(groups.heartbeat("c").is_none());
        assert!(!groups.remove(Group::Producer("g")));
    }
}
