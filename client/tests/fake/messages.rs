//! Queues of a fake broker, and the answers that are about them.

use std::net::SocketAddr;

use ringmq_protocol::record::{MessageParts, PropertiesParts};

use super::{Reaction, Seen, answer};

/// A stored message with this tag, its offset as its body.
pub(crate) fn record(queue_id: i32, offset: i64, tag: &str) -> Vec<u8> {
    let properties = format!("UNIQ_KEY\x01ID{offset}\x02TAGS\x01{tag}\x02KEYS\x01a b");
    encoded("T", queue_id, offset, &properties, 0)
}

/// A stored message of the first queue of a topic.
pub(crate) fn record_of(topic: &str, offset: i64) -> Vec<u8> {
    encoded(topic, 0, offset, &format!("UNIQ_KEY\x01ID{offset}"), 0)
}

/// A message of a group's retry topic that was sent to another topic first.
pub(crate) fn retried(group: &str, offset: i64, topic: &str, times: i32) -> Vec<u8> {
    let properties = format!("UNIQ_KEY\x01ID{offset}\x02RETRY_TOPIC\x01{topic}");
    encoded(&format!("%RETRY%{group}"), 0, offset, &properties, times)
}

fn encoded(
    topic: &str,
    queue_id: i32,
    offset: i64,
    properties: &str,
    reconsume_times: i32,
) -> Vec<u8> {
    let host: SocketAddr = "127.0.0.1:10911".parse().unwrap();
    let body = offset.to_string();
    let parts = MessageParts {
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: host,
        store_host: host,
        reconsume_times,
        prepared_transaction_offset: 0,
        body: body.as_bytes(),
        body_crc: None,
        topic: topic.as_bytes(),
        properties: PropertiesParts::default().with(properties.as_bytes()),
    };
    let mut bytes = vec![0; parts.encoded_len()];
    parts.write(offset, 4096 + offset, 1_700_000_000_001, &mut bytes);
    bytes
}

pub(crate) fn pulled(code: i32, next: i64, end: i64, body: &[u8]) -> Reaction {
    let (next, end) = (next.to_string(), end.to_string());
    let fields = [
        ("suggestWhichBrokerId", "0"),
        ("nextBeginOffset", next.as_str()),
        ("minOffset", "0"),
        ("maxOffset", end.as_str()),
    ];
    answer(code, &fields, body)
}

pub(crate) fn offset(value: &str) -> Reaction {
    answer(0, &[("offset", value)], b"")
}

/// Answers a pull from queues with `count` messages each, three at a time; every other message has
/// another tag. Holds pulls at the end for ever.
pub(crate) fn serve_pull(seen: &Seen, count: i64) -> Reaction {
    let (from, queue): (i64, i32) =
        (seen.ext("queueOffset").parse().unwrap(), seen.ext("queueId").parse().unwrap());
    if from >= count {
        return Reaction::Silence;
    }
    let offsets = from..count.min(from + 3);
    let next = offsets.end;
    let tag = |offset: i64| if offset % 2 == 0 { "Even" } else { "Odd" };
    let records: Vec<_> = offsets.map(|at| record(queue, at, tag(at))).collect();
    pulled(0, next, count, &records.concat())
}

/// The answer to a question for the members of a group.
pub(crate) fn members(ids: &[&str]) -> Reaction {
    let ids: Vec<_> = ids.iter().map(|id| format!("\"{id}\"")).collect();
    answer(0, &[], format!(r#"{{"consumerIdList":[{}]}}"#, ids.join(",")).as_bytes())
}
