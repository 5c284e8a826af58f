//! What clients say about themselves: HEART_BEAT (34) and CHECK_CLIENT_CONFIG (46).

use alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    Body,
    lenient::{self, wire_enum},
};

/// The body of HEART_BEAT (34).
///
/// Source: Apache RocketMQ 5.3.3, `HeartbeatData`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatData {
    /// The client's identity in its groups; empty if absent, which brokers answer with an error.
    #[serde(rename = "clientID", default, deserialize_with = "lenient::or_default")]
    pub client_id: String,
    /// Consumer groups that the client is a member of.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub consumer_data_set: Vec<ConsumerData>,
    /// 5.x: hash of the whole, 0 if not used.
    #[serde(default, deserialize_with = "lenient::int", skip_serializing_if = "is_zero")]
    pub heartbeat_fingerprint: i32,
    /// Producer groups that the client is a member of.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub producer_data_set: Vec<ProducerData>,
    /// 5.x: the subscriptions were left out, because the broker has them.
    #[serde(
        default,
        deserialize_with = "lenient::boolean",
        skip_serializing_if = "core::ops::Not::not"
    )]
    pub without_sub: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_zero(value: &i32) -> bool {
    *value == 0
}

impl Body for HeartbeatData {}

/// A producer group of a heartbeat.
///
/// Source: Apache RocketMQ 4.9.8, `ProducerData`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProducerData {
    /// The group.
    pub group_name: String,
}

/// A consumer group of a heartbeat.
///
/// Source: Apache RocketMQ 4.9.8, `ConsumerData`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerData {
    /// Where a group without offsets begins.
    #[serde(
        default,
        deserialize_with = "lenient::constant",
        skip_serializing_if = "Option::is_none"
    )]
    pub consume_from_where: Option<ConsumeFromWhere>,
    /// How the client consumes.
    #[serde(
        default,
        deserialize_with = "lenient::constant",
        skip_serializing_if = "Option::is_none"
    )]
    pub consume_type: Option<ConsumeType>,
    /// The group.
    pub group_name: String,
    /// Who gets which message.
    #[serde(
        default,
        deserialize_with = "lenient::constant",
        skip_serializing_if = "Option::is_none"
    )]
    pub message_model: Option<MessageModel>,
    /// What the group is subscribed to.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub subscription_data_set: Vec<SubscriptionData>,
    /// Legacy.
    #[serde(default, deserialize_with = "lenient::boolean")]
    pub unit_mode: bool,
}

/// One subscription of a group.
///
/// Source: Apache RocketMQ 4.9.8, `SubscriptionData`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionData {
    /// Legacy.
    #[serde(default, deserialize_with = "lenient::boolean")]
    pub class_filter_mode: bool,
    /// Hashes of the tags as the client computed them; better computed again.
    #[serde(default, deserialize_with = "lenient::ints")]
    pub code_set: Vec<i32>,
    /// `TAG` (also if absent) or `SQL92`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression_type: Option<String>,
    /// The expression; empty means `*`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub sub_string: String,
    /// Rises with every change: milliseconds since 1970 from Java, nanoseconds from Go.
    #[serde(default, deserialize_with = "lenient::int")]
    pub sub_version: i64,
    /// The tags; empty for `*`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub tags_set: Vec<String>,
    /// The topic.
    pub topic: String,
}

impl SubscriptionData {
    /// Whether the expression is one of tags, and not of SQL.
    pub fn is_tag(&self) -> bool {
        self.expression_type.as_deref().is_none_or(|kind| kind.is_empty() || kind == "TAG")
    }
}

wire_enum! {
    /// How a client consumes.
    ///
    /// Source: Apache RocketMQ 5.3.3, `ConsumeType`.
    ConsumeType {
        /// The application pulls.
        Actively = "CONSUME_ACTIVELY",
        /// The client pulls and calls a listener.
        Passively = "CONSUME_PASSIVELY",
        /// 5.x: the broker assigns messages.
        Pop = "CONSUME_POP",
    }
}

wire_enum! {
    /// Who gets which message.
    ///
    /// Source: Apache RocketMQ 4.9.8, `MessageModel`.
    MessageModel {
        /// Every member gets every message.
        Broadcasting = "BROADCASTING",
        /// Members share the messages.
        Clustering = "CLUSTERING",
    }
}

wire_enum! {
    /// Where a group without offsets begins.
    ///
    /// Source: Apache RocketMQ 4.9.8, `ConsumeFromWhere`; four are deprecated there.
    ConsumeFromWhere {
        /// At the end of each queue.
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        /// Deprecated.
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        /// Deprecated.
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        /// Deprecated.
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
        /// At the start of each queue.
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        /// At a time.
        Timestamp = "CONSUME_FROM_TIMESTAMP",
    }
}

/// The body of CHECK_CLIENT_CONFIG (46).
///
/// Source: Apache RocketMQ 4.9.8, `CheckClientRequestBody`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckClientConfig {
    /// The client's id.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub client_id: String,
    /// The group.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub group: String,
    /// The namespace, if the client has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The subscription to check.
    pub subscription_data: SubscriptionData,
}

impl Body for CheckClientConfig {}
