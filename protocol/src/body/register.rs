//! A broker's registration: the body of REGISTER_BROKER (103).
//!
//! Uncompressed it is JSON. Compressed it is one zlib stream of a text form, which this module
//! reads and writes; inflating is the caller's part, with a bound of its own.

use alloc::{borrow::ToOwned, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Body, BodyError, TopicConfig, TopicConfigTable, TopicFilterType, lenient};
use crate::frame::FRAME_LEN_MAX;

/// What a broker registers.
///
/// Source: Apache RocketMQ 4.9.8, `RegisterBrokerBody`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegisterBrokerBody {
    /// Legacy: addresses of filter servers.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub filter_server_list: Vec<String>,
    /// The broker's topics.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub topic_config_serialize_wrapper: TopicConfigTable,
}

impl Body for RegisterBrokerBody {
    const LEN_MAX: usize = FRAME_LEN_MAX;
}

impl RegisterBrokerBody {
    /// Reads the inflated text form:
    /// `len | data version | topic count | (len | topic)* | len | filter servers`, each length and
    /// count 4 bytes. What 5.x appends (queue mappings of static topics) is passed over.
    ///
    /// # Errors
    ///
    /// [`BodyError::WrongText`] if a length does not fit, other [`BodyError`]s for the JSON parts.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 5.3.3, `RegisterBrokerBody.decode`.
    pub fn from_text(text: &[u8]) -> Result<Self, BodyError> {
        let mut rest = text;
        let mut body = Self::default();
        let table = &mut body.topic_config_serialize_wrapper;
        table.data_version = super::decode(block(&mut rest)?)?;
        for _ in 0..len(&mut rest)? {
            let topic = topic(block(&mut rest)?).ok_or(BodyError::WrongText)?;
            table.topic_config_table.insert(topic.topic_name.clone(), topic);
        }
        let servers = block(&mut rest)?;
        body.filter_server_list = serde_json::from_slice(servers).map_err(BodyError::WrongShape)?;
        Ok(body)
    }

    /// Writes the text form, to be deflated by the caller. It carries neither order nor flags of a
    /// topic, as upstream's does not.
    pub fn to_text(&self) -> Vec<u8> {
        let table = &self.topic_config_serialize_wrapper;
        let mut out = Vec::new();
        push_block(&mut out, &super::encode(&table.data_version));
        push_len(&mut out, table.topic_config_table.len());
        for (name, topic) in &table.topic_config_table {
            let filter = topic.topic_filter_type.unwrap_or(TopicFilterType::SingleTag).name();
            let (read, write) = (topic.read_queue_nums, topic.write_queue_nums);
            let text = format!("{name} {read} {write} {} {filter}", topic.perm);
            push_block(&mut out, text.as_bytes());
        }
        let servers = serde_json::to_vec(&self.filter_server_list).unwrap_or_default();
        push_block(&mut out, &servers);
        out
    }
}

fn len(rest: &mut &[u8]) -> Result<usize, BodyError> {
    let (field, tail) = rest.split_first_chunk::<4>().ok_or(BodyError::WrongText)?;
    *rest = tail;
    usize::try_from(i32::from_be_bytes(*field)).map_err(|_| BodyError::WrongText)
}

fn block<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], BodyError> {
    let len = len(rest)?;
    let (block, tail) = rest.split_at_checked(len).ok_or(BodyError::WrongText)?;
    *rest = tail;
    Ok(block)
}

/// Reads `name readQueueNums writeQueueNums perm filterType [attributes]`.
fn topic(text: &[u8]) -> Option<TopicConfig> {
    let text = core::str::from_utf8(text).ok()?;
    let mut parts = text.splitn(6, ' ');
    let mut topic = TopicConfig::new(parts.next()?.to_owned(), 0, 0);
    topic.read_queue_nums = parts.next()?.parse().ok()?;
    topic.write_queue_nums = parts.next()?.parse().ok()?;
    topic.perm = parts.next()?.parse().ok()?;
    topic.topic_filter_type = match parts.next()? {
        "SINGLE_TAG" => Some(TopicFilterType::SingleTag),
        "MULTI_TAG" => Some(TopicFilterType::MultiTag),
        _ => return None,
    };
    if let Some(attributes) = parts.next() {
        // Attributes only matter to the broker itself; one that cannot be read costs nothing.
        topic.attributes = serde_json::from_str(attributes).unwrap_or_default();
    }
    Some(topic)
}

/// Lengths here are of parts of a body, which is far below 2 GiB.
fn push_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or_default().to_be_bytes());
}

fn push_block(out: &mut Vec<u8>, block: &[u8]) {
    push_len(out, block.len());
    out.extend_from_slice(block);
}
