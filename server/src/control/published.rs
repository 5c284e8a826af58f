//! What the control thread publishes: topics, group configurations and group members, immutable.
//!
//! A snapshot shares nearly everything with the one before it, so publishing costs the change and not
//! the size of the broker. Readers load it once per request and never wait.

use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::HashMap;
pub use ringmq_protocol::body::{ConsumeType, MessageModel, TopicFilterType as FilterType};

/// A topic or broker may be read.
pub const PERM_READ: u32 = 4;
/// A topic or broker may be written.
pub const PERM_WRITE: u32 = 2;
/// A topic may serve as template of topics that are created by a send.
pub const PERM_INHERIT: u32 = 1;

/// The newest snapshots. The control thread alone stores; anyone loads.
#[derive(Debug)]
pub struct Published {
    /// Topics and the broker's own permission.
    pub catalog: ArcSwap<Catalog>,
    /// Consumer groups.
    pub groups: ArcSwap<Groups>,
}

impl Published {
    /// Nothing published yet: no topics, no groups, a broker that may be read and written.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            catalog: ArcSwap::from_pointee(Catalog::default()),
            groups: ArcSwap::from_pointee(Groups::default()),
        }
    }
}

/// Every topic of the broker.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// By name, system topics included.
    pub topics: HashMap<Arc<str>, Arc<TopicConfig>>,
    /// `brokerPermission`: [`PERM_READ`] and [`PERM_WRITE`].
    pub permission: u32,
}

impl Default for Catalog {
    fn default() -> Self {
        Self { topics: HashMap::new(), permission: PERM_READ | PERM_WRITE }
    }
}

impl Catalog {
    /// The topic of this name.
    #[must_use]
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicConfig>> {
        self.topics.get(name)
    }

    /// Whether the broker may be written.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.permission & PERM_WRITE != 0
    }

    /// Whether the broker may be read.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.permission & PERM_READ != 0
    }
}

/// One topic.
///
/// Source: `TopicConfig` of RocketMQ 4.9.8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// Name, of allowed characters and length.
    pub name: Arc<str>,
    /// Queues that consumers read, ids `0..read_queue_nums`.
    pub read_queue_nums: u32,
    /// Queues that producers write, ids `0..write_queue_nums`.
    pub write_queue_nums: u32,
    /// [`PERM_READ`], [`PERM_WRITE`], [`PERM_INHERIT`]; other bits are kept as given.
    pub perm: u32,
    /// 1 unit, 2 sub-unit.
    pub sys_flag: u32,
    /// One tag or many.
    pub filter_type: FilterType,
    /// Kept for readers of the configuration; nothing here depends on it.
    pub order: bool,
}

impl TopicConfig {
    /// Whether consumers may read it.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.perm & PERM_READ != 0
    }

    /// Whether producers may write it. The send path does not ask (neither does RocketMQ's).
    #[must_use]
    pub fn writable(&self) -> bool {
        self.perm & PERM_WRITE != 0
    }

    /// One more than the highest queue id that a send or a pull may name.
    #[must_use]
    pub fn queue_nums_max(&self) -> u32 {
        self.read_queue_nums.max(self.write_queue_nums)
    }
}

/// Every consumer group: those with a configuration and those with members.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// By name.
    pub groups: HashMap<Arc<str>, Arc<GroupView>>,
}

impl Groups {
    /// The group of this name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&Arc<GroupView>> {
        self.groups.get(name)
    }
}

/// One consumer group as the pull checks see it.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// `None`: members are registered, but the group may not be created (pull answers 26).
    pub config: Option<Arc<GroupConfig>>,
    /// Whether any member is registered. If not, the fields below mean nothing.
    pub online: bool,
    /// Of the latest heartbeat.
    pub message_model: MessageModel,
    /// Of the latest heartbeat.
    pub consume_type: ConsumeType,
    /// By topic, as the members' heartbeats say.
    pub subscriptions: HashMap<Arc<str>, Arc<SubscriptionView>>,
}

impl GroupView {
    /// A group without members.
    #[must_use]
    pub fn offline(config: Option<Arc<GroupConfig>>) -> Self {
        Self {
            config,
            online: false,
            message_model: MessageModel::Clustering,
            consume_type: ConsumeType::Passively,
            subscriptions: HashMap::new(),
        }
    }

    /// What the group subscribes to on this topic.
    #[must_use]
    pub fn subscription(&self, topic: &str) -> Option<&Arc<SubscriptionView>> {
        self.subscriptions.get(topic)
    }
}

/// Configuration of a consumer group.
///
/// Source: `SubscriptionGroupConfig` of RocketMQ 4.9.8, whose defaults [`GroupConfig::new`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Name.
    pub name: Arc<str>,
    /// Whether pulls are answered; 16 if not.
    pub consume_enable: bool,
    /// Kept for readers of the configuration.
    pub consume_from_min_enable: bool,
    /// Whether broadcasting members may pull.
    pub consume_broadcast_enable: bool,
    /// Whether members are told when the membership changes.
    pub notify_consumer_ids_changed_enable: bool,
    /// Queues of its retry topic.
    pub retry_queue_nums: i32,
    /// Deliveries before the dead-letter topic, unless the request says otherwise.
    pub retry_max_times: i32,
    /// Broker id that pulls are suggested.
    pub broker_id: i64,
    /// Broker id that slow pulls are suggested, where slaves may be read.
    pub which_broker_when_consume_slowly: i64,
}

impl GroupConfig {
    /// The configuration of a group that nobody configured.
    #[must_use]
    pub fn new(name: Arc<str>) -> Self {
        Self {
            name,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            notify_consumer_ids_changed_enable: true,
            retry_queue_nums: 1,
            retry_max_times: 16,
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
        }
    }
}

/// What a group wants of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionView {
    /// Topic.
    pub topic: Arc<str>,
    /// Rises with every change; milliseconds or nanoseconds, as the client likes.
    pub sub_version: i64,
    /// `TAG` or `SQL92`, or what else a client may send. Never empty.
    pub expression_type: Box<str>,
    /// The expression as sent; `*` or empty takes everything.
    pub expression: Box<str>,
    /// The tags in it, sorted.
    pub tags: Box<[Box<str>]>,
    /// Java hash of each tag, sorted, computed here. Empty with a `TAG` expression: everything.
    pub codes: Box<[i64]>,
}

impl SubscriptionView {
    /// Whether the expression is one of tags.
    #[must_use]
    pub fn is_tag(&self) -> bool {
        &*self.expression_type == "TAG"
    }
}
