//! The topics of a broker: those it always has, and how others come to be and change.
//!
//! The table is a persistent map, so that a turn keeps the state from before it for nothing and goes
//! back to it if its facts do not become durable. System topics follow from the configuration at
//! each start and are no facts; every other topic is one.
//!
//! Source: Apache RocketMQ 4.9.8, `TopicConfigManager`, `TopicValidator`.

use std::{collections::BTreeSet, sync::Arc};

use imbl::HashMap;
use ringmq_protocol::names::{self, AUTO_CREATE_TOPIC};

use super::{
    BrokerControlConfig, CreateTopicError, Fact, FilterType, NewTopic, PERM_INHERIT, PERM_READ,
    PERM_WRITE, TopicConfig,
    facts::{Version, topic_fact, topics_version_fact},
};

/// Topics of one broker at most, system topics included.
pub(crate) const TOPICS_MAX: usize = 250_000;
/// Queues of one topic at most, for reading and for writing. RocketMQ has no such bound; without it
/// one request would make every client of a topic build a list of two billion queues.
pub const QUEUES_PER_TOPIC_MAX: u32 = 65_536;

const READ_WRITE: u32 = PERM_READ | PERM_WRITE;
/// Source: `TopicSysFlag`.
const FLAG_UNIT: u32 = 1;
const FLAG_UNIT_SUB: u32 = 2;

/// All topics.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    all: HashMap<Arc<str>, Arc<TopicConfig>>,
    version: Version,
    /// Names that changed since the last [`Topics::take_changes`].
    changed: BTreeSet<Arc<str>>,
    /// Names that were taken out since the last [`Topics::take_deleted`].
    deleted: Vec<Arc<str>>,
    rules: Arc<Rules>,
}

/// What does not change while the broker runs.
#[derive(Debug)]
struct Rules {
    auto_create: bool,
    /// The topics of this broker that are no facts.
    system: BTreeSet<Arc<str>>,
    /// System names of this broker beyond [`names::is_system_topic`].
    own_names: [String; 3],
}

/// Topics that changed in a turn, and what keeps them.
#[derive(Debug)]
pub(crate) struct TopicChanges {
    pub(crate) facts: Vec<Fact>,
    /// The topics that were added or changed.
    pub(crate) updated: Vec<Arc<TopicConfig>>,
}

impl Topics {
    /// The topics that this broker has by its configuration.
    pub(crate) fn new(config: &BrokerControlConfig) -> Self {
        let mut all = HashMap::new();
        for topic in system_topics(config) {
            all.insert(Arc::clone(&topic.name), Arc::new(topic));
        }
        let rules = Rules {
            auto_create: config.auto_create_topic,
            system: all.keys().cloned().collect(),
            own_names: [
                config.cluster_name.clone(),
                config.broker_name.clone(),
                reply_topic(&config.cluster_name),
            ],
        };
        Self {
            all,
            version: Version::default(),
            changed: BTreeSet::new(),
            deleted: Vec::new(),
            rules: Arc::new(rules),
        }
    }

    /// Takes a topic that the store kept. What the configuration defines counts more.
    pub(crate) fn restore(&mut self, config: TopicConfig) {
        if !self.rules.system.contains(&config.name) {
            self.all.insert(Arc::clone(&config.name), Arc::new(config));
        }
    }

    /// Goes on from a stored version. One higher, so that name servers which still know this broker
    /// take its topics again.
    pub(crate) fn start_version(&mut self, stored: Option<Version>, epoch_ms: i64) {
        self.version = stored.unwrap_or_default().next(epoch_ms);
    }

    /// By name.
    pub(crate) fn all(&self) -> &HashMap<Arc<str>, Arc<TopicConfig>> {
        &self.all
    }

    /// Of the whole table.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The topic of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<TopicConfig>> {
        self.all.get(name)
    }

    /// Whether requests may not create or change a topic of this name.
    pub(crate) fn is_system(&self, name: &str) -> bool {
        names::is_system_topic(name) || self.rules.own_names.iter().any(|own| own == name)
    }

    /// The names of the topics that follow from the configuration.
    pub(crate) fn system_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.system.iter()
    }

    /// Creates a topic unless it exists; either way it is in the table afterwards.
    ///
    /// Source: `createTopicInSendMessageMethod`, `createTopicInSendMessageBackMethod`.
    pub(crate) fn create(
        &mut self,
        name: &str,
        how: &NewTopic,
        epoch_ms: i64,
    ) -> Result<Arc<TopicConfig>, CreateTopicError> {
        if let Some(existing) = self.all.get(name) {
            return Ok(Arc::clone(existing));
        }
        names::validate_topic(name).map_err(CreateTopicError::Name)?;
        let config = match how {
            NewTopic::FromTemplate { default_topic, queue_nums, unit_mode } => {
                self.inherit(name, default_topic, *queue_nums, *unit_mode)?
            }
            NewTopic::OfGroup { queue_nums, unit_mode } => TopicConfig {
                sys_flag: if *unit_mode { FLAG_UNIT_SUB } else { 0 },
                ..plain(name, (*queue_nums).min(QUEUES_PER_TOPIC_MAX), READ_WRITE)
            },
        };
        self.put(config, epoch_ms)
    }

    fn inherit(
        &self,
        name: &str,
        default_topic: &str,
        queue_nums: i32,
        unit_mode: bool,
    ) -> Result<TopicConfig, CreateTopicError> {
        let template = self.all.get(default_topic).ok_or(CreateTopicError::NoTemplate)?;
        let inherits = template.perm & PERM_INHERIT != 0
            && (default_topic != AUTO_CREATE_TOPIC || self.rules.auto_create);
        if !inherits {
            return Err(CreateTopicError::NoTemplate);
        }
        // Upstream makes a topic that nobody can send to; here the sender learns what is wrong.
        let queue_nums = u32::try_from(queue_nums).unwrap_or(0).min(template.write_queue_nums);
        if queue_nums == 0 {
            return Err(CreateTopicError::NoQueues);
        }
        let retry = name.starts_with(names::RETRY_PREFIX);
        Ok(TopicConfig {
            sys_flag: match (unit_mode, retry) {
                (false, _) => 0,
                (true, false) => FLAG_UNIT,
                (true, true) => FLAG_UNIT_SUB,
            },
            filter_type: template.filter_type,
            ..plain(name, queue_nums, template.perm & !PERM_INHERIT)
        })
    }

    /// Adds or replaces a topic whose name has been checked.
    pub(crate) fn put(
        &mut self,
        config: TopicConfig,
        epoch_ms: i64,
    ) -> Result<Arc<TopicConfig>, CreateTopicError> {
        if self.all.len() >= TOPICS_MAX && !self.all.contains_key(&config.name) {
            return Err(CreateTopicError::TooMany(TOPICS_MAX));
        }
        let name = Arc::clone(&config.name);
        let config = Arc::new(config);
        self.all.insert(Arc::clone(&name), Arc::clone(&config));
        self.changed.insert(name);
        self.version = self.version.next(epoch_ms);
        Ok(config)
    }

    /// Takes a topic out, if there is one of this name.
    pub(crate) fn delete(&mut self, name: &str, epoch_ms: i64) {
        if let Some(config) = self.all.remove(name) {
            self.changed.insert(Arc::clone(&config.name));
            self.deleted.push(Arc::clone(&config.name));
            self.version = self.version.next(epoch_ms);
        }
    }

    /// Whether [`Topics::take_deleted`] would give any.
    pub(crate) fn has_deleted(&self) -> bool {
        !self.deleted.is_empty()
    }

    /// The topics that were taken out since the last call.
    pub(crate) fn take_deleted(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.deleted)
    }

    /// What changed since the last call, `None` if nothing did.
    pub(crate) fn take_changes(&mut self) -> Option<TopicChanges> {
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() {
            return None;
        }
        let updated: Vec<_> =
            changed.iter().filter_map(|name| self.all.get(name)).cloned().collect();
        let mut facts: Vec<_> = changed
            .iter()
            .map(|name| topic_fact(name, self.all.get(name).map(|config| &**config)))
            .collect();
        facts.push(topics_version_fact(self.version));
        Some(TopicChanges { facts, updated })
    }
}

fn plain(name: &str, queue_nums: u32, perm: u32) -> TopicConfig {
    TopicConfig {
        name: Arc::from(name),
        read_queue_nums: queue_nums,
        write_queue_nums: queue_nums,
        perm,
        sys_flag: 0,
        filter_type: FilterType::SingleTag,
        order: false,
    }
}

fn reply_topic(cluster_name: &str) -> String {
    format!("{cluster_name}_REPLY_TOPIC")
}

/// The topics that a broker of this configuration always has, in the order of upstream's
/// constructor: where names are equal the first counts.
fn system_topics(config: &BrokerControlConfig) -> Vec<TopicConfig> {
    let inherited = |enabled| if enabled { READ_WRITE | PERM_INHERIT } else { PERM_INHERIT };
    let mut topics = vec![plain(names::SELF_TEST_TOPIC, 1, READ_WRITE)];
    if config.auto_create_topic {
        topics.push(plain(
            AUTO_CREATE_TOPIC,
            config.default_topic_queue_nums,
            READ_WRITE | PERM_INHERIT,
        ));
    }
    topics.extend([
        plain(names::BENCHMARK_TOPIC, 1024, READ_WRITE),
        plain(&config.cluster_name, 16, inherited(config.cluster_topic)),
        plain(&config.broker_name, 1, inherited(config.broker_topic)),
        plain(names::OFFSET_MOVED_EVENT_TOPIC, 1, READ_WRITE),
        plain(names::SCHEDULE_TOPIC, 18, READ_WRITE),
    ]);
    if config.trace_topic {
        topics.push(plain(&config.trace_topic_name, 1, READ_WRITE));
    }
    topics.push(plain(&reply_topic(&config.cluster_name), 1, READ_WRITE));
    // A cluster or broker name that is no topic name gets no topic of its own.
    topics.retain(|topic| names::validate_topic(&topic.name).is_ok());
    topics
}

#[cfg(test)]
mod tests;
