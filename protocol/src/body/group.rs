//! Configuration of consumer groups: requests 200, 201 and 352.

use alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

use super::{Body, DataVersion, lenient};

/// A consumer group on one broker.
///
/// Source: Apache RocketMQ 4.9.8, `SubscriptionGroupConfig`, with its defaults; what 5.x adds is
/// passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupConfig {
    /// Where the group reads, by broker id.
    #[serde(deserialize_with = "lenient::int")]
    pub broker_id: i64,
    /// Whether broadcasting members may pull.
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_broadcast_enable: bool,
    /// Whether members may pull at all.
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_enable: bool,
    /// Legacy.
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_from_min_enable: bool,
    /// The group.
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_name: String,
    /// Whether members are told about each other's coming and going.
    #[serde(deserialize_with = "lenient::boolean")]
    pub notify_consumer_ids_changed_enable: bool,
    /// After how many deliveries a message goes to the dead letters.
    #[serde(deserialize_with = "lenient::int")]
    pub retry_max_times: i32,
    /// Queues of the group's retry topic.
    #[serde(deserialize_with = "lenient::int")]
    pub retry_queue_nums: i32,
    /// Where the group reads when it lags, by broker id.
    #[serde(deserialize_with = "lenient::int")]
    pub which_broker_when_consume_slowly: i64,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        Self {
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            group_name: String::new(),
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            which_broker_when_consume_slowly: 1,
        }
    }
}

impl Body for SubscriptionGroupConfig {}

/// The body that answers GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201).
///
/// Source: Apache RocketMQ 4.9.8, `SubscriptionGroupWrapper`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionGroupTable {
    /// The table's state.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    /// Groups by name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

impl Body for SubscriptionGroupTable {
    const LEN_MAX: usize = crate::frame::FRAME_LEN_MAX;
}
