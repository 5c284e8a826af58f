//! The state of a broker's control plane and the turn that changes it, without any I/O.
//!
//! A turn takes any number of requests, then yields what must become durable, and once that is
//! decided, the snapshots that follow and later the notices. If the facts could not be stored, the topics and
//! groups are as before the turn; memberships and locks stay, since they rest on no fact.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use super::{
    BrokerControlConfig, Catalog, Fact, GroupView, Groups, TopicConfig,
    facts::{self, FactError, Stored},
    groups::GroupConfigs,
    locks::Locks,
    members::{Changes, Members},
    topics::Topics,
};
use crate::context::ConnId;

/// One point in time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For lifetimes.
    pub(crate) instant: Instant,
    /// For versions and people: milliseconds since 1970.
    pub(crate) epoch_ms: i64,
}

/// Everything that the control plane of a broker knows.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) config: Arc<BrokerControlConfig>,
    pub(crate) topics: Topics,
    pub(crate) groups: GroupConfigs,
    pub(crate) members: Members,
    pub(crate) locks: Locks,
    /// As published last.
    views: Groups,
    /// Topics and groups from before the turn.
    before: (Topics, GroupConfigs),
    /// What the turn changed; between its end and its outcome.
    open: Open,
    /// Consumer groups whose members are still to be told of a change.
    notify: BTreeSet<Arc<str>>,
}

/// What a turn changed.
#[derive(Debug, Default)]
struct Open {
    topics: Option<Vec<Arc<TopicConfig>>>,
    groups: BTreeSet<Arc<str>>,
}

/// What follows from a turn whose facts are decided.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Topics that were added or changed, if any were.
    pub(crate) topics_updated: Option<Vec<Arc<TopicConfig>>>,
    /// The snapshot of topics, if it changed.
    pub(crate) catalog: Option<Catalog>,
    /// The snapshot of groups, if it changed.
    pub(crate) groups: Option<Groups>,
}

impl Broker {
    /// The state at start: what the configuration says, and what the store kept.
    pub(crate) fn restore<'a>(
        config: BrokerControlConfig,
        stored: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        epoch_ms: i64,
    ) -> Result<Self, FactError> {
        let mut topics = Topics::new(&config);
        let mut groups = GroupConfigs::new(config.auto_create_group);
        let (mut topics_version, mut groups_version) = (None, None);
        for (key, value) in stored {
            match facts::decode(key, value)? {
                Stored::Topic(topic) => topics.restore(topic),
                Stored::Group(group) => groups.restore(group),
                Stored::TopicsVersion(version) => topics_version = Some(version),
                Stored::GroupsVersion(version) => groups_version = Some(version),
            }
        }
        topics.start_version(topics_version, epoch_ms);
        groups.start_version(groups_version, epoch_ms);
        let mut broker = Self {
            config: Arc::new(config),
            before: (topics.clone(), groups.clone()),
            topics,
            groups,
            members: Members::default(),
            locks: Locks::default(),
            views: Groups::default(),
            open: Open::default(),
            notify: BTreeSet::new(),
        };
        broker.refresh_views(broker.groups.all().keys().cloned().collect());
        Ok(broker)
    }

    /// The snapshot of topics.
    pub(crate) fn catalog(&self) -> Catalog {
        Catalog { topics: self.topics.all().clone(), permission: self.config.permission }
    }

    /// The snapshot of groups, as of the latest turn.
    pub(crate) fn views(&self) -> &Groups {
        &self.views
    }

    /// Ends a turn: what must be durable before anything of it is told. Follow with
    /// [`Broker::decide`].
    pub(crate) fn take_facts(&mut self) -> Vec<Fact> {
        let mut facts = Vec::new();
        if let Some(changes) = self.topics.take_changes() {
            facts.extend(changes.facts);
            self.open.topics = Some(changes.updated);
        }
        if let Some(changes) = self.groups.take_changes() {
            facts.extend(changes.facts);
            self.open.groups = changes.names;
        }
        facts
    }

    /// Goes on after the facts of [`Broker::take_facts`] are durable, or undoes what they were for.
    pub(crate) fn decide(&mut self, durable: bool) -> Outcome {
        let open = std::mem::take(&mut self.open);
        let mut outcome = Outcome::default();
        let Changes { groups: mut changed, notify } = self.members.take_changes();
        let any = open.topics.is_some() || !open.groups.is_empty();
        if durable && any {
            self.before = (self.topics.clone(), self.groups.clone());
            outcome.catalog = open.topics.is_some().then(|| self.catalog());
            outcome.topics_updated = open.topics;
            changed.extend(open.groups);
        } else if any {
            (self.topics, self.groups) = self.before.clone();
        }
        if !changed.is_empty() {
            self.refresh_views(changed);
            outcome.groups = Some(self.views.clone());
        }
        self.notify.extend(notify);
        outcome
    }

    fn refresh_views(&mut self, names: BTreeSet<Arc<str>>) {
        for name in names {
            let config = self.groups.all().get(&name).cloned();
            let members = self.members.consumers(&name);
            if config.is_none() && members.is_none() {
                self.views.groups.remove(&name);
                continue;
            }
            let view = match members {
                None => GroupView::offline(config),
                Some(members) => GroupView {
                    config,
                    online: true,
                    message_model: members.terms.message_model,
                    consume_type: members.terms.consume_type,
                    subscriptions: members.subscriptions.clone(),
                },
            };
            self.views.groups.insert(name, Arc::new(view));
        }
    }

    /// Whether members of any group are to be told of a change.
    pub(crate) fn has_notices(&self) -> bool {
        !self.notify.is_empty()
    }

    /// The consumer groups that changed since the last call and the members they have now, as far
    /// as the configuration lets them be told.
    pub(crate) fn take_notices(&mut self) -> BTreeMap<Arc<str>, Vec<ConnId>> {
        let mut notices = BTreeMap::new();
        for name in std::mem::take(&mut self.notify) {
            let config = self.groups.all().get(&name);
            let wanted = self.config.notify_consumer_ids_changed
                && config.is_none_or(|config| config.notify_consumer_ids_changed_enable);
            if let Some(group) = self.members.consumers(&name).filter(|_| wanted) {
                notices.insert(name, group.members.keys().copied().collect());
            }
        }
        notices
    }
}

#[cfg(test)]
mod tests;
