//! Queues, who holds them, and maps whose keys are queues.

use alloc::{string::String, vec::Vec};
use core::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use super::{Body, lenient, standardize};
use crate::encode::{push_int, push_json_escaped};

/// A queue of a topic on a broker.
///
/// Source: Apache RocketMQ 4.9.8, `MessageQueue`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageQueue {
    /// The broker's name.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    /// The queue's number on that broker.
    #[serde(default, deserialize_with = "lenient::int")]
    pub queue_id: i32,
    /// The topic.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub topic: String,
}

/// The body that answers GET_CONSUMER_LIST_BY_GROUP (38).
///
/// Source: Apache RocketMQ 4.9.8, `GetConsumerListByGroupResponseBody`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerList {
    /// Client ids, one for each connection.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub consumer_id_list: Vec<String>,
}

impl Body for ConsumerList {}

/// The body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).
///
/// Source: Apache RocketMQ 5.3.3, `LockBatchRequestBody`, `UnlockBatchRequestBody`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockBatchRequest {
    /// Who wants or has the locks.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub client_id: String,
    /// The group.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub consumer_group: String,
    /// The queues.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub mq_set: Vec<MessageQueue>,
    /// 5.x: not to be passed on to other brokers.
    #[serde(
        default,
        deserialize_with = "lenient::boolean",
        skip_serializing_if = "core::ops::Not::not"
    )]
    pub only_this_broker: bool,
}

impl Body for LockBatchRequest {}

/// The body that answers LOCK_BATCH_MQ (41).
///
/// Source: Apache RocketMQ 4.9.8, `LockBatchResponseBody`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockBatchResponse {
    /// Queues that the client now holds.
    #[serde(rename = "lockOKMQSet", default, deserialize_with = "lenient::or_default")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}

impl Body for LockBatchResponse {}

/// How a map from queues is written; each client reads only some forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKeys {
    /// `{{mq}:value}`: fastjson's own, for Java and Go. Not standard JSON.
    Fastjson,
    /// `[[{mq},value]]`: Gson's, which Go reads, too.
    Pairs,
    /// `[{"brokerName":..,"offset":value,..}]`: what C++ reads. For numbers only.
    List,
}

/// The body of RESET_CONSUMER_CLIENT_OFFSET (220) and of what answers 222: offsets by queue.
///
/// Source: Apache RocketMQ 4.9.8, `ResetOffsetBody`, `ResetOffsetBodyForC`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OffsetsByQueue {
    /// Offset in messages of each queue.
    #[serde(default, deserialize_with = "object_keyed")]
    pub offset_table: Vec<(MessageQueue, i64)>,
}

impl OffsetsByQueue {
    /// Longest text that is parsed. Unit: bytes.
    const LEN_MAX: usize = 1024 * 1024;

    /// Reads any of the three forms.
    ///
    /// # Errors
    ///
    /// [`super::BodyError`] as for [`super::decode`].
    pub fn decode(text: &[u8]) -> Result<Self, super::BodyError> {
        if text.len() > Self::LEN_MAX {
            return Err(super::BodyError::TooLong { len: text.len(), max: Self::LEN_MAX });
        }
        super::parse(text)
    }

    /// Writes the form that a client of some language reads.
    pub fn encode(&self, keys: ObjectKeys) -> Vec<u8> {
        let mut out = Vec::from(&b"{\"offsetTable\":"[..]);
        write_object_keyed(&mut out, keys, &self.offset_table, |offset, out| {
            push_int(out, *offset)
        });
        out.push(b'}');
        out
    }
}

/// Appends a map from queues; `value` appends each value's JSON.
pub(super) fn write_object_keyed<V>(
    out: &mut Vec<u8>,
    keys: ObjectKeys,
    entries: &[(MessageQueue, V)],
    value: impl Fn(&V, &mut Vec<u8>),
) {
    let (open, between, close): (&[u8], &[u8], &[u8]) = match keys {
        ObjectKeys::Fastjson => (b"{", b":", b"}"),
        ObjectKeys::Pairs | ObjectKeys::List => (b"[", b",", b"]"),
    };
    out.extend_from_slice(open);
    for (index, (queue, entry)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if keys == ObjectKeys::Pairs {
            out.push(b'[');
        }
        out.extend_from_slice(b"{\"brokerName\":\"");
        push_json_escaped(out, queue.broker_name.as_bytes());
        if keys == ObjectKeys::List {
            out.extend_from_slice(b"\",\"offset\":");
            value(entry, out);
            out.extend_from_slice(b",\"queueId\":");
        } else {
            out.extend_from_slice(b"\",\"queueId\":");
        }
        push_int(out, queue.queue_id.into());
        out.extend_from_slice(b",\"topic\":\"");
        push_json_escaped(out, queue.topic.as_bytes());
        out.extend_from_slice(b"\"}");
        if keys != ObjectKeys::List {
            out.extend_from_slice(between);
            value(entry, out);
        }
        if keys == ObjectKeys::Pairs {
            out.push(b']');
        }
    }
    out.extend_from_slice(close);
}

/// Reads a map from queues in any form; after [`standardize`], fastjson's has strings as keys.
pub(super) fn object_keyed<'de, D, V>(deserializer: D) -> Result<Vec<(MessageQueue, V)>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    deserializer.deserialize_any(ObjectKeyedVisitor(PhantomData))
}

struct ObjectKeyedVisitor<V>(PhantomData<V>);

/// An element of the list forms.
struct Element<V>(MessageQueue, V);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ObjectKeyedVisitor<V> {
    type Value = Vec<(MessageQueue, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from message queues")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, V>()? {
            let key = standardize(key.as_bytes()).map_err(A::Error::custom)?;
            let queue = serde_json::from_slice(&key).map_err(A::Error::custom)?;
            entries.push((queue, value));
        }
        Ok(entries)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(Element(queue, value)) = seq.next_element()? {
            entries.push((queue, value));
        }
        Ok(entries)
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Element<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor(PhantomData))
    }
}

struct ElementVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ElementVisitor<V> {
    type Value = Element<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pair of queue and value, or a queue with an offset")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let queue = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let value = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
        Ok(Element(queue, value))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut queue =
            MessageQueue { broker_name: String::new(), queue_id: 0, topic: String::new() };
        let mut value = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "brokerName" => queue.broker_name = map.next_value()?,
                "queueId" => queue.queue_id = map.next_value()?,
                "topic" => queue.topic = map.next_value()?,
                "offset" => value = Some(map.next_value()?),
                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        let value = value.ok_or_else(|| A::Error::missing_field("offset"))?;
        Ok(Element(queue, value))
    }
}
