//! Configurations of consumer groups: those that every broker has, and those that come to be when a
//! group is first seen.
//!
//! Persistent like the topic table, and for the same reason.
//!
//! Source: Apache RocketMQ 4.9.8, `SubscriptionGroupManager`.

use std::{collections::BTreeSet, sync::Arc};

use imbl::HashMap;
use ringmq_protocol::names;

use super::{
    Fact, GroupConfig,
    facts::{Version, group_fact, groups_version_fact},
};

/// Configured groups of one broker at most.
pub(crate) const GROUPS_MAX: usize = 100_000;

/// All group configurations.
#[derive(Clone, Debug)]
pub(crate) struct GroupConfigs {
    all: HashMap<Arc<str>, Arc<GroupConfig>>,
    version: Version,
    /// Names that changed since the last [`GroupConfigs::take_changes`].
    changed: BTreeSet<Arc<str>>,
    auto_create: bool,
}

/// Groups that changed in a turn, and what keeps them.
#[derive(Debug)]
pub(crate) struct GroupChanges {
    pub(crate) facts: Vec<Fact>,
    pub(crate) names: BTreeSet<Arc<str>>,
}

impl GroupConfigs {
    /// The groups that every broker has.
    pub(crate) fn new(auto_create: bool) -> Self {
        let all = names::BUILT_IN_GROUPS
            .into_iter()
            .map(|name| (Arc::from(name), Arc::new(GroupConfig::new(name.into()))))
            .collect();
        Self { all, version: Version::default(), changed: BTreeSet::new(), auto_create }
    }

    /// Takes a group that the store kept.
    pub(crate) fn restore(&mut self, config: GroupConfig) {
        self.all.insert(Arc::clone(&config.name), Arc::new(config));
    }

    /// Goes on from a stored version.
    pub(crate) fn start_version(&mut self, stored: Option<Version>, epoch_ms: i64) {
        self.version = stored.unwrap_or_default().next(epoch_ms);
    }

    /// By name.
    pub(crate) fn all(&self) -> &HashMap<Arc<str>, Arc<GroupConfig>> {
        &self.all
    }

    /// Of the whole table.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The configuration of this group, which is created if that is allowed.
    ///
    /// A name with other characters than upstream's clients allow is not created; 4.9.8 would, 5.x
    /// does not either.
    pub(crate) fn find_or_create(&mut self, name: &str, epoch_ms: i64) -> Option<Arc<GroupConfig>> {
        if let Some(config) = self.all.get(name) {
            return Some(Arc::clone(config));
        }
        let allowed = self.auto_create || names::is_system_group(name);
        if !allowed || names::validate_group(name).is_err() {
            return None;
        }
        self.put(GroupConfig::new(name.into()), epoch_ms)
    }

    /// Adds or replaces a group whose name has been checked; `None` if there are too many.
    pub(crate) fn put(&mut self, config: GroupConfig, epoch_ms: i64) -> Option<Arc<GroupConfig>> {
        if self.all.len() >= GROUPS_MAX && !self.all.contains_key(&config.name) {
            return None;
        }
        let name = Arc::clone(&config.name);
        let config = Arc::new(config);
        self.all.insert(Arc::clone(&name), Arc::clone(&config));
        self.changed.insert(name);
        self.version = self.version.next(epoch_ms);
        Some(config)
    }

    /// What changed since the last call, `None` if nothing did.
    pub(crate) fn take_changes(&mut self) -> Option<GroupChanges> {
        let names = std::mem::take(&mut self.changed);
        if names.is_empty() {
            return None;
        }
        let mut facts: Vec<_> = names
            .iter()
            .map(|name| group_fact(name, self.all.get(name).map(|config| &**config)))
            .collect();
        facts.push(groups_version_fact(self.version));
        Some(GroupChanges { facts, names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_groups_exist_from_the_start() {
        let groups = GroupConfigs::new(false);
        for name in names::BUILT_IN_GROUPS {
            assert!(groups.all().contains_key(name), "{name}");
        }
    }

    #[test]
    fn a_new_group_is_created_with_the_defaults_of_upstream() {
        let mut groups = GroupConfigs::new(true);
        let config = groups.find_or_create("G", 5).unwrap();
        assert!(config.consume_enable && config.consume_broadcast_enable);
        assert_eq!((config.retry_queue_nums, config.retry_max_times), (1, 16));
        assert_eq!((config.broker_id, config.which_broker_when_consume_slowly), (0, 1));
        let changes = groups.take_changes().unwrap();
        assert_eq!(
            changes.facts,
            [group_fact("G", Some(&config)), groups_version_fact(groups.version())]
        );
        assert_eq!(changes.names, BTreeSet::from([Arc::from("G")]));
        assert!(Arc::ptr_eq(&groups.find_or_create("G", 6).unwrap(), &config));
        assert!(groups.take_changes().is_none());
    }

    #[test]
    fn without_auto_creation_only_system_groups_come_to_be() {
        let mut groups = GroupConfigs::new(false);
        assert_eq!(groups.find_or_create("G", 5), None);
        assert!(groups.find_or_create("CID_RMQ_SYS_TRANS", 5).is_some());
    }

    #[test]
    fn names_that_clients_would_refuse_are_not_created() {
        let mut groups = GroupConfigs::new(true);
        let long = "g".repeat(256);
        for name in ["", " ", "../g", "a.b", &long] {
            assert_eq!(groups.find_or_create(name, 5), None, "{name}");
        }
        assert!(groups.take_changes().is_none());
    }

    #[test]
    fn a_changed_group_replaces_the_old_one() {
        let mut groups = GroupConfigs::new(true);
        let before = groups.clone();
        let config = GroupConfig { consume_enable: false, ..GroupConfig::new("G".into()) };
        groups.put(config.clone(), 5).unwrap();
        assert_eq!(groups.find_or_create("G", 6).as_deref(), Some(&config));
        assert!(!before.all().contains_key("G"));
    }
}
