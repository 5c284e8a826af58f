//! Who is in which group: connections that sent a heartbeat, and what consumer groups subscribe to.
//!
//! Membership is of a connection, not of a client id: a client with two connections is listed twice,
//! as with upstream. A member leaves when its connection ends, when it says so, or 120 s after its
//! last heartbeat. What a group subscribes to is what its latest heartbeats say, so members with
//! different subscriptions fight; that is upstream's behaviour and documented there.
//!
//! Invariants: `by_conn` lists exactly the groups that list the connection; a group without members
//! is in no table.
//!
//! Source: Apache RocketMQ 4.9.8, `ConsumerManager`, `ConsumerGroupInfo`, `ProducerManager`.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ringmq_protocol::{body::ConsumeFromWhere, command::Language};

use super::{ConsumeType, MessageModel, SubscriptionView};
use crate::context::ConnId;

/// How long a member stays without a heartbeat. Source: `CHANNEL_EXPIRED_TIMEOUT`.
pub(crate) const MEMBER_LIFETIME: Duration = Duration::from_secs(120);
/// Memberships of all groups at most, of consumers and producers together.
pub(crate) const MEMBERS_MAX: usize = 1_000_000;
/// Groups that one connection may be in at most, of consumers and producers together.
pub(crate) const GROUPS_PER_CONNECTION_MAX: usize = 2048;
/// Topics that one group may subscribe to at most.
pub(crate) const SUBSCRIPTIONS_PER_GROUP_MAX: usize = 4096;

/// One connection in one group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) client_id: Arc<str>,
    pub(crate) peer: SocketAddr,
    pub(crate) language: Language,
    pub(crate) version: i32,
    /// When its latest heartbeat came, for expiry.
    pub(crate) seen: Instant,
    /// The same in milliseconds since 1970, for people.
    pub(crate) seen_ms: i64,
}

/// What a heartbeat says of a group as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) consume_type: ConsumeType,
    pub(crate) message_model: MessageModel,
    /// Kept for those who ask; the client decides where it starts.
    pub(crate) consume_from: ConsumeFromWhere,
}

impl Default for Terms {
    /// Of a client that says nothing: those of a push consumer.
    fn default() -> Self {
        Self {
            consume_type: ConsumeType::Passively,
            message_model: MessageModel::Clustering,
            consume_from: ConsumeFromWhere::LastOffset,
        }
    }
}

/// One consumer group with members.
#[derive(Debug, Default)]
pub(crate) struct ConsumerGroup {
    pub(crate) members: HashMap<ConnId, Member>,
    pub(crate) terms: Terms,
    pub(crate) subscriptions: imbl::HashMap<Arc<str>, Arc<SubscriptionView>>,
}

/// A bound would be exceeded; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What changed in consumer groups since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Groups whose subscriptions, terms or being online changed.
    pub(crate) groups: BTreeSet<Arc<str>>,
    /// Groups whose members must be told that the membership changed.
    pub(crate) notify: BTreeSet<Arc<str>>,
}

/// All groups with members.
#[derive(Debug, Default)]
pub(crate) struct Members {
    consumers: HashMap<Arc<str>, ConsumerGroup>,
    producers: HashMap<Arc<str>, HashMap<ConnId, Member>>,
    by_conn: HashMap<ConnId, GroupsOf>,
    count: usize,
    changes: Changes,
}

/// The groups that one connection is in.
#[derive(Debug, Default)]
struct GroupsOf {
    consumer: Vec<Arc<str>>,
    producer: Vec<Arc<str>>,
}

impl GroupsOf {
    fn count(&self) -> usize {
        self.consumer.len() + self.producer.len()
    }
}

impl Members {
    /// Enters or renews a member of a consumer group, and merges what the group subscribes to.
    pub(crate) fn heartbeat_consumer(
        &mut self,
        group: &str,
        conn: ConnId,
        member: Member,
        terms: Terms,
        subscriptions: Vec<SubscriptionView>,
    ) -> Result<(), Full> {
        if subscriptions.len() > SUBSCRIPTIONS_PER_GROUP_MAX {
            return Err(Full);
        }
        let known = self.consumers.get_key_value(group);
        let is_new = known.is_none_or(|(_, info)| !info.members.contains_key(&conn));
        let name = known.map_or_else(|| Arc::from(group), |(name, _)| Arc::clone(name));
        if is_new {
            let room = self.room_for(conn)?;
            room.consumer.push(Arc::clone(&name));
            self.count += 1;
        }
        let info = self.consumers.entry(Arc::clone(&name)).or_default();
        let was_empty = info.members.is_empty();
        info.members.insert(conn, member);
        let (topics_changed, view_changed) = info.merge(subscriptions);
        if was_empty || view_changed || info.terms != terms {
            self.changes.groups.insert(Arc::clone(&name));
        }
        info.terms = terms;
        if is_new || topics_changed {
            self.changes.notify.insert(name);
        }
        Ok(())
    }

    /// Enters or renews a member of a producer group.
    pub(crate) fn heartbeat_producer(
        &mut self,
        group: &str,
        conn: ConnId,
        member: Member,
    ) -> Result<(), Full> {
        let known = self.producers.get_key_value(group);
        let is_new = known.is_none_or(|(_, members)| !members.contains_key(&conn));
        let name = known.map_or_else(|| Arc::from(group), |(name, _)| Arc::clone(name));
        if is_new {
            self.room_for(conn)?.producer.push(Arc::clone(&name));
            self.count += 1;
        }
        self.producers.entry(name).or_default().insert(conn, member);
        Ok(())
    }

    fn room_for(&mut self, conn: ConnId) -> Result<&mut GroupsOf, Full> {
        let taken = self.by_conn.get(&conn).map_or(0, GroupsOf::count);
        if self.count >= MEMBERS_MAX || taken >= GROUPS_PER_CONNECTION_MAX {
            return Err(Full);
        }
        Ok(self.by_conn.entry(conn).or_default())
    }

    /// A connection leaves a consumer group; the others are told.
    pub(crate) fn leave_consumer(&mut self, group: &str, conn: ConnId) {
        if self.remove_consumer(group, conn) {
            self.changes.notify.insert(group.into());
        }
        self.unlist(conn, |groups| groups.consumer.retain(|name| **name != *group));
    }

    /// A connection leaves a producer group.
    pub(crate) fn leave_producer(&mut self, group: &str, conn: ConnId) {
        self.remove_producer(group, conn);
        self.unlist(conn, |groups| groups.producer.retain(|name| **name != *group));
    }

    /// A connection ended: it leaves all groups, whose members are told.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        let Some(groups) = self.by_conn.remove(&conn) else { return };
        for name in groups.consumer {
            self.remove_consumer(&name, conn);
            self.changes.notify.insert(name);
        }
        for name in groups.producer {
            self.remove_producer(&name, conn);
        }
    }

    /// Drops the members that were silent for too long, and returns their connections, which must
    /// be closed. Nobody is told, as with upstream; if the connection is in other groups too, its
    /// end tells those.
    pub(crate) fn expire(&mut self, now: Instant) -> BTreeSet<ConnId> {
        let silent = |member: &Member| now.saturating_duration_since(member.seen) > MEMBER_LIFETIME;
        let pick = |members: &HashMap<ConnId, Member>, name: &Arc<str>| -> Vec<_> {
            let gone = members.iter().filter(|(_, member)| silent(member));
            gone.map(|(conn, _)| (Arc::clone(name), *conn)).collect()
        };
        let consumers: Vec<_> =
            self.consumers.iter().flat_map(|(name, info)| pick(&info.members, name)).collect();
        let producers: Vec<_> =
            self.producers.iter().flat_map(|(name, members)| pick(members, name)).collect();
        for (name, conn) in &consumers {
            self.remove_consumer(name, *conn);
            self.unlist(*conn, |groups| groups.consumer.retain(|other| other != name));
        }
        for (name, conn) in &producers {
            self.leave_producer(name, *conn);
        }
        consumers.into_iter().chain(producers).map(|(_, conn)| conn).collect()
    }

    /// True if the connection was a member.
    fn remove_consumer(&mut self, group: &str, conn: ConnId) -> bool {
        let Some(info) = self.consumers.get_mut(group) else { return false };
        let removed = info.members.remove(&conn).is_some();
        self.count -= usize::from(removed);
        if info.members.is_empty()
            && let Some((name, _)) = self.consumers.remove_entry(group)
        {
            self.changes.groups.insert(name);
        }
        removed
    }

    fn remove_producer(&mut self, group: &str, conn: ConnId) {
        let Some(members) = self.producers.get_mut(group) else { return };
        self.count -= usize::from(members.remove(&conn).is_some());
        if members.is_empty() {
            self.producers.remove(group);
        }
    }

    fn unlist(&mut self, conn: ConnId, remove: impl FnOnce(&mut GroupsOf)) {
        if let Some(groups) = self.by_conn.get_mut(&conn) {
            remove(groups);
            if groups.count() == 0 {
                self.by_conn.remove(&conn);
            }
        }
    }

    /// A consumer group with members.
    pub(crate) fn consumers(&self, group: &str) -> Option<&ConsumerGroup> {
        self.consumers.get(group)
    }

    /// The consumer groups with members that subscribe to a topic.
    pub(crate) fn subscribers(&self, topic: &str) -> impl Iterator<Item = &str> {
        let groups = self.consumers.iter();
        groups
            .filter(move |(_, group)| group.subscriptions.contains_key(topic))
            .map(|(name, _)| &**name)
    }

    /// The members of a producer group.
    pub(crate) fn producers(&self, group: &str) -> Option<&HashMap<ConnId, Member>> {
        self.producers.get(group)
    }

    /// All producer groups.
    pub(crate) fn producer_groups(
        &self,
    ) -> impl Iterator<Item = (&Arc<str>, &HashMap<ConnId, Member>)> {
        self.producers.iter()
    }

    /// What changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

impl ConsumerGroup {
    /// Merges one heartbeat's subscriptions: adds what is new, takes what has a greater version,
    /// removes what is not listed. Returns whether the set of topics changed, and whether anything
    /// did.
    fn merge(&mut self, subscriptions: Vec<SubscriptionView>) -> (bool, bool) {
        let (mut topics_changed, mut replaced) = (false, false);
        let mut listed = BTreeSet::new();
        for subscription in subscriptions {
            let topic = Arc::clone(&subscription.topic);
            let known = self.subscriptions.get(&topic);
            match known {
                None => topics_changed = true,
                Some(old) if subscription.sub_version > old.sub_version => replaced = true,
                Some(_) => {
                    listed.insert(topic);
                    continue;
                }
            }
            self.subscriptions.insert(Arc::clone(&topic), Arc::new(subscription));
            listed.insert(topic);
        }
        if listed.len() < self.subscriptions.len() {
            self.subscriptions.retain(|topic, _| listed.contains(topic));
            topics_changed = true;
        }
        (topics_changed, topics_changed || replaced)
    }
}

#[cfg(test)]
mod tests;
