//! What admin tools read: connections, statistics of queues and groups.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    Body, BodyError, ConsumeFromWhere, ConsumeType, MessageModel, MessageQueue, ObjectKeys,
    SubscriptionData, lenient,
    queue::{object_keyed, write_object_keyed},
};
use crate::{encode::push_int, frame::FRAME_LEN_MAX};

/// One connected client.
///
/// Source: Apache RocketMQ 4.9.8, `Connection`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// `ip:port` of the client.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub client_addr: String,
    /// The client's id.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub client_id: String,
    /// [`crate::command::Language`] by name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub language: String,
    /// The client's version ordinal.
    #[serde(default, deserialize_with = "lenient::int")]
    pub version: i32,
}

/// The body that answers GET_CONSUMER_CONNECTION_LIST (203).
///
/// Source: Apache RocketMQ 4.9.8, `ConsumerConnection`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerConnection {
    /// The members.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub connection_set: Vec<Connection>,
    /// As the latest heartbeat said.
    #[serde(
        default,
        deserialize_with = "lenient::constant",
        skip_serializing_if = "Option::is_none"
    )]
    pub consume_from_where: Option<ConsumeFromWhere>,
    /// As the latest heartbeat said.
    #[serde(
        default,
        deserialize_with = "lenient::constant",
        skip_serializing_if = "Option::is_none"
    )]
    pub consume_type: Option<ConsumeType>,
    /// As the latest heartbeat said.
    #[serde(
        default,
        deserialize_with = "lenient::constant",
        skip_serializing_if = "Option::is_none"
    )]
    pub message_model: Option<MessageModel>,
    /// Subscriptions by topic.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub subscription_table: BTreeMap<String, SubscriptionData>,
}

impl Body for ConsumerConnection {}

/// The body that answers GET_PRODUCER_CONNECTION_LIST (204).
///
/// Source: Apache RocketMQ 4.9.8, `ProducerConnection`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProducerConnection {
    /// The members.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub connection_set: Vec<Connection>,
}

impl Body for ProducerConnection {}

/// The body that answers QUERY_TOPIC_CONSUME_BY_WHO (300).
///
/// Source: Apache RocketMQ 4.9.8, `GroupList`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupList {
    /// The groups.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub group_list: Vec<String>,
}

impl Body for GroupList {}

/// The extent of a queue.
///
/// Source: Apache RocketMQ 4.9.8, `TopicOffset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicOffset {
    /// Store time of the last message, milliseconds since 1970; 0 if there is none.
    pub last_update_timestamp: i64,
    /// Offset that the next message will have.
    pub max_offset: i64,
    /// First offset of the queue.
    pub min_offset: i64,
}

/// The body that answers GET_TOPIC_STATS_INFO (202).
///
/// Source: Apache RocketMQ 4.9.8, `TopicStatsTable`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicStatsTable {
    /// The topic's queues.
    #[serde(default, deserialize_with = "object_keyed")]
    pub offset_table: Vec<(MessageQueue, TopicOffset)>,
}

impl TopicStatsTable {
    /// Reads the fastjson form.
    ///
    /// # Errors
    ///
    /// [`BodyError`] as for [`super::decode`].
    pub fn decode(text: &[u8]) -> Result<Self, BodyError> {
        read(text)
    }

    /// Writes the fastjson form, the only one that all Java tools read.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::from(&b"{\"offsetTable\":"[..]);
        write_object_keyed(&mut out, ObjectKeys::Fastjson, &self.offset_table, |queue, out| {
            push_members(
                out,
                [
                    ("lastUpdateTimestamp", queue.last_update_timestamp),
                    ("maxOffset", queue.max_offset),
                    ("minOffset", queue.min_offset),
                ],
            );
        });
        out.push(b'}');
        out
    }
}

/// How far a group has read a queue.
///
/// Source: Apache RocketMQ 4.9.8, `OffsetWrapper`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumedOffset {
    /// Offset that the queue's next message will have.
    pub broker_offset: i64,
    /// Offset in messages that the group has committed.
    pub consumer_offset: i64,
    /// Store time of the last consumed message, milliseconds since 1970.
    pub last_timestamp: i64,
}

/// The body that answers GET_CONSUME_STATS (208).
///
/// Source: Apache RocketMQ 4.9.8, `ConsumeStats`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumeStats {
    /// Messages a second.
    #[serde(default)]
    pub consume_tps: f64,
    /// The group's queues.
    #[serde(default, deserialize_with = "object_keyed")]
    pub offset_table: Vec<(MessageQueue, ConsumedOffset)>,
}

impl ConsumeStats {
    /// Reads the fastjson form.
    ///
    /// # Errors
    ///
    /// [`BodyError`] as for [`super::decode`].
    pub fn decode(text: &[u8]) -> Result<Self, BodyError> {
        read(text)
    }

    /// Writes the fastjson form, the only one that all Java tools read.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::from(&b"{\"consumeTps\":"[..]);
        out.extend_from_slice(&serde_json::to_vec(&self.consume_tps).unwrap_or_default());
        out.extend_from_slice(b",\"offsetTable\":");
        write_object_keyed(&mut out, ObjectKeys::Fastjson, &self.offset_table, |queue, out| {
            push_members(
                out,
                [
                    ("brokerOffset", queue.broker_offset),
                    ("consumerOffset", queue.consumer_offset),
                    ("lastTimestamp", queue.last_timestamp),
                ],
            );
        });
        out.push(b'}');
        out
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, BodyError> {
    if text.len() > FRAME_LEN_MAX {
        return Err(BodyError::TooLong { len: text.len(), max: FRAME_LEN_MAX });
    }
    super::parse(text)
}

/// Appends an object with three numbers.
fn push_members(out: &mut Vec<u8>, members: [(&str, i64); 3]) {
    let mut before: &[u8] = b"{\"";
    for (name, value) in members {
        out.extend_from_slice(before);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        push_int(out, value);
        before = b",\"";
    }
    out.push(b'}');
}
