//! The body of a registration: JSON, or a deflated text form where that is asked for or needed.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::{Compression, write::ZlibEncoder};

use crate::control::{
    BrokerControlConfig, PERM_READ, PERM_WRITE, TopicConfig,
    bodies::{self, VersionShape},
    facts::Version,
};

/// A JSON body longer than this is sent in the deflated form, since a frame has 16 MiB.
const JSON_LEN_MAX: usize = 8 << 20;

/// An encoded body.
#[derive(Clone, Debug)]
pub(super) struct RegisterBody {
    pub(super) bytes: Bytes,
    pub(super) compressed: bool,
    /// Of `bytes`, masked as upstream does.
    pub(super) crc32: i32,
    /// All topics, and not only changed ones.
    pub(super) is_full: bool,
}

/// Encodes topics. Those of a broker that may not be read and written get its own permission.
pub(super) fn encode_topics(
    config: &BrokerControlConfig,
    version: Version,
    topics: &[&TopicConfig],
    is_full: bool,
) -> io::Result<RegisterBody> {
    let read_write = PERM_READ | PERM_WRITE;
    let broker_perm = config.permission;
    let perm = move |topic: &TopicConfig| {
        if broker_perm & read_write == read_write { topic.perm } else { broker_perm }
    };
    let json = serde_json::to_vec(&bodies::register_body(version, topics, perm))?;
    let compressed = config.compressed_register || json.len() > JSON_LEN_MAX;
    let bytes = if compressed { deflate(version, topics, perm)? } else { json };
    // The mask keeps the sign bit free.
    let crc32 = i32::try_from(crc32fast::hash(&bytes) & 0x7fff_ffff).unwrap_or(0);
    Ok(RegisterBody { bytes: bytes.into(), compressed, crc32, is_full })
}

/// `len | version | count | (len | topic)* | len | filter servers`, deflated. Order and unit flags
/// have no place in it.
///
/// Source: Apache RocketMQ 4.9.8, `RegisterBrokerBody.encode`.
fn deflate(
    version: Version,
    topics: &[&TopicConfig],
    perm: impl Fn(&TopicConfig) -> u32,
) -> io::Result<Vec<u8>> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
    block(&mut out, &serde_json::to_vec(&VersionShape::from(version))?)?;
    let count = u32::try_from(topics.len()).map_err(io::Error::other)?;
    out.write_all(&count.to_be_bytes())?;
    for topic in topics {
        let (name, filter) = (&topic.name, topic.filter_type.name());
        let (read, write) = (topic.read_queue_nums, topic.write_queue_nums);
        block(&mut out, format!("{name} {read} {write} {} {filter}", perm(topic)).as_bytes())?;
    }
    block(&mut out, b"[]")?;
    out.finish()
}

fn block(out: &mut impl Write, block: &[u8]) -> io::Result<()> {
    let len = u32::try_from(block.len()).map_err(io::Error::other)?;
    out.write_all(&len.to_be_bytes())?;
    out.write_all(block)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;
    use ringmq_protocol::body::{self, RegisterBrokerBody};

    use super::*;
    use crate::control::testing;

    fn encode(config: &BrokerControlConfig) -> (RegisterBody, RegisterBrokerBody) {
        let broker = testing::broker();
        let topics = bodies::in_order(broker.topics.all());
        let version = Version { counter: 3, changed_ms: 1_700_000_000_000 };
        let encoded = encode_topics(config, version, &topics, true).unwrap();
        assert_eq!(encoded.crc32.cast_unsigned(), crc32fast::hash(&encoded.bytes) & 0x7fff_ffff);
        let decoded = if encoded.compressed {
            let mut text = Vec::new();
            ZlibDecoder::new(&*encoded.bytes).read_to_end(&mut text).unwrap();
            RegisterBrokerBody::from_text(&text).unwrap()
        } else {
            body::decode(&encoded.bytes).unwrap()
        };
        (encoded, decoded)
    }

    #[test]
    fn both_forms_say_the_same() {
        let mut config = testing::broker_config();
        let (plain, from_json) = encode(&config);
        config.compressed_register = true;
        let (deflated, from_text) = encode(&config);
        assert!(!plain.compressed && deflated.compressed);
        assert_eq!(from_json, from_text);
        let table = from_json.topic_config_serialize_wrapper;
        assert_eq!(table.data_version.counter, 3);
        assert_eq!(table.topic_config_table["TBW102"].perm, 7);
        assert_eq!(table.topic_config_table.len(), 8);
    }

    #[test]
    fn a_broker_that_may_not_be_written_says_so_of_all_its_topics() {
        let mut config = testing::broker_config();
        config.permission = PERM_READ;
        let (_, body) = encode(&config);
        let topics = body.topic_config_serialize_wrapper.topic_config_table;
        assert!(topics.values().all(|topic| topic.perm == 4));
    }
}
