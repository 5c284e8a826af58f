//! Where topics and brokers are: what a name server answers.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Body, lenient};

/// Id of a master among the addresses of a broker name. Source: `MixAll.MASTER_ID`.
pub const MASTER_ID: i64 = 0;

/// The body that answers GET_ROUTEINFO_BY_TOPIC (105). Keys are always quoted: every client reads
/// that, and Go splits the raw text, so that it must be compact as well.
///
/// Source: Apache RocketMQ 5.3.3, `TopicRouteData`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicRouteData {
    /// Brokers that have the topic.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub broker_datas: Vec<BrokerData>,
    /// Legacy: filter servers by broker address.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues;...` for ordered topics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// The topic's queues on each broker.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub queue_datas: Vec<QueueData>,
}

impl Body for TopicRouteData {}

/// A broker name with its addresses.
///
/// Source: Apache RocketMQ 5.3.3, `BrokerData`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerData {
    /// `ip:port` by broker id; [`MASTER_ID`] is the master.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub broker_addrs: BTreeMap<i64, String>,
    /// The broker's name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    /// The cluster.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub cluster: String,
    /// 5.x, and always there: whether a replica may act as master.
    #[serde(
        default,
        deserialize_with = "lenient::some_boolean",
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_acting_master: Option<bool>,
    /// 5.x: the broker's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_name: Option<String>,
}

impl BrokerData {
    /// The master's address.
    pub fn master_addr(&self) -> Option<&str> {
        self.broker_addrs.get(&MASTER_ID).map(String::as_str)
    }
}

/// A topic's queues on one broker.
///
/// Source: Apache RocketMQ 4.9.8, `QueueData`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueData {
    /// The broker's name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    /// Bits of [`crate::names::perm`].
    #[serde(default, deserialize_with = "lenient::int")]
    pub perm: i32,
    /// Queues to read from.
    #[serde(default, deserialize_with = "lenient::int")]
    pub read_queue_nums: i32,
    /// 1 unit, 2 unit subscription. `topicSynFlag` in old versions.
    #[serde(default, alias = "topicSynFlag", deserialize_with = "lenient::int")]
    pub topic_sys_flag: i32,
    /// Queues to write to.
    #[serde(default, deserialize_with = "lenient::int")]
    pub write_queue_nums: i32,
}

/// The body that answers GET_BROKER_CLUSTER_INFO (106).
///
/// Source: Apache RocketMQ 4.9.8, `ClusterInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Brokers by name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

impl Body for ClusterInfo {}

/// The body that answers GET_BROKER_MEMBER_GROUP (901) of 5.x.
///
/// Source: Apache RocketMQ 5.3.3, `GetBrokerMemberGroupResponseBody`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    /// The broker's addresses; `None` if it is unknown.
    #[serde(default)]
    pub broker_member_group: Option<BrokerData>,
}

impl Body for BrokerMemberGroup {}
