//! Topics and their configuration, and tables of text and offsets.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    Body,
    lenient::{self, wire_enum},
};
use crate::names::perm;

wire_enum! {
    /// How many tags a message of a topic has.
    ///
    /// Source: Apache RocketMQ 4.9.8, `TopicFilterType`.
    TopicFilterType {
        /// At most one.
        SingleTag = "SINGLE_TAG",
        /// Several.
        MultiTag = "MULTI_TAG",
    }
}

/// A topic on one broker.
///
/// Source: Apache RocketMQ 5.3.3, `TopicConfig`, with its defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicConfig {
    /// 5.x: further settings.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub attributes: BTreeMap<String, String>,
    /// Whether the number of queues is fixed, for ordering.
    #[serde(default, deserialize_with = "lenient::boolean")]
    pub order: bool,
    /// Bits of [`perm`].
    #[serde(default = "default_perm", deserialize_with = "lenient::int")]
    pub perm: i32,
    /// Queues to read from.
    #[serde(default = "default_queue_nums", deserialize_with = "lenient::int")]
    pub read_queue_nums: i32,
    /// How many tags a message has.
    #[serde(default, deserialize_with = "lenient::constant")]
    pub topic_filter_type: Option<TopicFilterType>,
    /// The name; may be absent where the topic is the key of a table.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub topic_name: String,
    /// 1 unit, 2 unit subscription.
    #[serde(default, deserialize_with = "lenient::int")]
    pub topic_sys_flag: i32,
    /// Queues to write to.
    #[serde(default = "default_queue_nums", deserialize_with = "lenient::int")]
    pub write_queue_nums: i32,
}

const fn default_perm() -> i32 {
    perm::READ | perm::WRITE
}

const fn default_queue_nums() -> i32 {
    16
}

impl TopicConfig {
    /// A topic with as many queues to read from as to write to.
    pub const fn new(topic_name: String, queue_nums: i32, perm: i32) -> Self {
        Self {
            attributes: BTreeMap::new(),
            order: false,
            perm,
            read_queue_nums: queue_nums,
            topic_filter_type: Some(TopicFilterType::SingleTag),
            topic_name,
            topic_sys_flag: 0,
            write_queue_nums: queue_nums,
        }
    }
}

impl Body for TopicConfig {}

/// Which state of a broker's topics a message speaks of.
///
/// Source: Apache RocketMQ 5.3.3, `DataVersion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataVersion {
    /// Rises with every change.
    #[serde(default, deserialize_with = "lenient::int")]
    pub counter: i64,
    /// 5.x: rises when another replica becomes master.
    #[serde(default, deserialize_with = "lenient::int", skip_serializing_if = "is_zero")]
    pub state_version: i64,
    /// Time of the last change, milliseconds since 1970.
    #[serde(default, deserialize_with = "lenient::int")]
    pub timestamp: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl Body for DataVersion {}

/// The body that answers GET_ALL_TOPIC_CONFIG (21), and a part of registrations.
///
/// Source: Apache RocketMQ 4.9.8, `TopicConfigSerializeWrapper`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicConfigTable {
    /// The table's state.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    /// Topics by name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
}

impl Body for TopicConfigTable {
    const LEN_MAX: usize = crate::frame::FRAME_LEN_MAX;
}

/// The body that answers 206, 224, 304, 305, 311 to 313 and 343.
///
/// Source: Apache RocketMQ 4.9.8, `TopicList`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicList {
    /// Address of some broker, with 304.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The names.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub topic_list: Vec<String>,
}

impl Body for TopicList {
    const LEN_MAX: usize = crate::frame::FRAME_LEN_MAX;
}

/// A table of text: KV configuration (103, 219) and runtime information (28).
///
/// Source: Apache RocketMQ 4.9.8, `KVTable`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTable {
    /// Values by key.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub table: BTreeMap<String, String>,
}

impl Body for KvTable {}

/// All committed offsets: the body that answers GET_ALL_CONSUMER_OFFSET (43).
///
/// Source: Apache RocketMQ 4.9.8, `ConsumerOffsetSerializeWrapper`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OffsetTable {
    /// `topic@group`, then queue id, then offset in messages.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}

impl Body for OffsetTable {
    const LEN_MAX: usize = crate::frame::FRAME_LEN_MAX;
}

/// How far delayed messages were delivered: the body that answers GET_ALL_DELAY_OFFSET (45).
///
/// Source: Apache RocketMQ 4.9.8, `DelayOffsetSerializeWrapper`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DelayOffsetTable {
    /// Delay level, then offset in messages.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub offset_table: BTreeMap<i32, i64>,
}

impl Body for DelayOffsetTable {}
