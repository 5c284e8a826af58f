//! JSON bodies that the control plane emits, borrowed from its tables.
//!
//! They follow the tables' own types instead of copying a quarter of a million topics into owned
//! ones first; what is small goes through `ringmq_protocol::body`. Members are in alphabetical
//! order, as upstream's.
//!
//! Source: Apache RocketMQ 4.9.8, `TopicConfigSerializeWrapper`, `SubscriptionGroupWrapper`,
//! `ProducerTableInfo`.

use std::sync::Arc;

use imbl::HashMap;
use serde::{Serialize, Serializer};

use super::{GroupConfig, TopicConfig, facts::Version, members::Member};

/// When a table changed last.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct VersionShape {
    counter: i64,
    timestamp: i64,
}

impl From<Version> for VersionShape {
    fn from(version: Version) -> Self {
        Self { counter: version.counter, timestamp: version.changed_ms }
    }
}

/// The values of a table in the order of their names, for bodies that are the same every time.
pub(crate) fn in_order<T>(table: &HashMap<Arc<str>, Arc<T>>) -> Vec<&T> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_unstable_by_key(|(name, _)| *name);
    entries.into_iter().map(|(_, value)| &**value).collect()
}

/// A map written from an iterator of pairs.
struct Map<I>(I);

impl<I, K, V> Serialize for Map<I>
where
    I: Iterator<Item = (K, V)> + Clone,
    K: Serialize,
    V: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

/// A list written from an iterator.
struct List<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for List<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopicShape<'a> {
    order: bool,
    perm: u32,
    read_queue_nums: u32,
    topic_filter_type: &'static str,
    topic_name: &'a str,
    topic_sys_flag: u32,
    write_queue_nums: u32,
}

impl<'a> TopicShape<'a> {
    fn new(config: &'a TopicConfig, perm: u32) -> Self {
        Self {
            order: config.order,
            perm,
            read_queue_nums: config.read_queue_nums,
            topic_filter_type: config.filter_type.name(),
            topic_name: &config.name,
            topic_sys_flag: config.sys_flag,
            write_queue_nums: config.write_queue_nums,
        }
    }
}

/// Topics by name, with their version: the answer to 21, and `topics.json`.
pub(crate) fn topic_table<'a>(
    version: Version,
    topics: &'a [&'a TopicConfig],
) -> impl Serialize + 'a {
    topic_table_with(version, topics, |config| config.perm)
}

/// The same with other permissions than the topics' own.
fn topic_table_with<'a>(
    version: Version,
    topics: &'a [&'a TopicConfig],
    perm: impl Fn(&TopicConfig) -> u32 + Clone + 'a,
) -> impl Serialize + 'a {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<T> {
        data_version: VersionShape,
        topic_config_table: T,
    }
    let topics = topics.iter();
    let topics = topics.map(move |topic| (&*topic.name, TopicShape::new(topic, perm(topic))));
    Shape { data_version: version.into(), topic_config_table: Map(topics) }
}

/// The body of a registration.
pub(crate) fn register_body<'a>(
    version: Version,
    topics: &'a [&'a TopicConfig],
    perm: impl Fn(&TopicConfig) -> u32 + Clone + 'a,
) -> impl Serialize + 'a {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<T> {
        filter_server_list: [&'static str; 0],
        topic_config_serialize_wrapper: T,
    }
    let wrapper = topic_table_with(version, topics, perm);
    Shape { filter_server_list: [], topic_config_serialize_wrapper: wrapper }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupShape<'a> {
    broker_id: i64,
    consume_broadcast_enable: bool,
    consume_enable: bool,
    consume_from_min_enable: bool,
    group_name: &'a str,
    notify_consumer_ids_changed_enable: bool,
    retry_max_times: i32,
    retry_queue_nums: i32,
    which_broker_when_consume_slowly: i64,
}

impl<'a> From<&'a GroupConfig> for GroupShape<'a> {
    fn from(config: &'a GroupConfig) -> Self {
        Self {
            broker_id: config.broker_id,
            consume_broadcast_enable: config.consume_broadcast_enable,
            consume_enable: config.consume_enable,
            consume_from_min_enable: config.consume_from_min_enable,
            group_name: &config.name,
            notify_consumer_ids_changed_enable: config.notify_consumer_ids_changed_enable,
            retry_max_times: config.retry_max_times,
            retry_queue_nums: config.retry_queue_nums,
            which_broker_when_consume_slowly: config.which_broker_when_consume_slowly,
        }
    }
}

/// Groups by name, with their version: the answer to 201, and `subscriptionGroup.json`.
pub(crate) fn group_table<'a>(version: Version, groups: &'a [&'a GroupConfig]) -> impl Serialize {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<T> {
        data_version: VersionShape,
        subscription_group_table: T,
    }
    let groups = groups.iter().map(|group| (&*group.name, GroupShape::from(*group)));
    Shape { data_version: version.into(), subscription_group_table: Map(groups) }
}

/// The answer to 328.
pub(crate) fn producer_table<'a, M: Iterator<Item = &'a Member> + Clone>(
    groups: impl Iterator<Item = (&'a str, M)> + Clone,
) -> impl Serialize {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<T> {
        data: T,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ProducerShape<'a> {
        client_id: &'a str,
        language: &'static str,
        last_update_timestamp: i64,
        #[serde(rename = "remoteIP")]
        remote_ip: String,
        version: i32,
    }
    let producer = |member: &'a Member| ProducerShape {
        client_id: &member.client_id,
        language: member.language.name(),
        last_update_timestamp: member.seen_ms,
        remote_ip: member.peer.to_string(),
        version: member.version,
    };
    let groups = groups.map(move |(name, members)| (name, List(members.map(producer))));
    Shape { data: Map(groups) }
}
