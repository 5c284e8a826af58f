//! Choosing the queue of a message: by hash, by key, at random, or by a function of one's own.
//!
//! A selector is a function from the queues of a topic, in the order that all clients have, to an
//! index. [`Producer::send_by`](crate::Producer::send_by) calls it once for a send; further attempts
//! go to the same queue.
//!
//! ```no_run
//! # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
//! use ringmq_client::{Message, select};
//!
//! producer.send_by(Message::new("Orders", "paid"), select::by_key("order-17")).await?;
//! producer.send_by(Message::new("Orders", "x"), |queues| queues.len() - 1).await?;
//! # Ok(())
//! # }
//! ```

use crate::{MessageQueue, unique};

/// The hash that Java gives a text, on which its selectors build.
///
/// ```
/// assert_eq!(ringmq_client::select::java_hash("order-17"), 1_234_255_109);
/// ```
///
/// # Source
///
/// Java, `String.hashCode`.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16()
        .fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// The queue that Java's `SelectMessageQueueByHash` chooses for an argument with this hash: the
/// text's [`java_hash`], or an `Integer`'s value.
///
/// ```
/// use ringmq_client::{MessageQueue, select};
///
/// let queues = [0, 1, 2, 3].map(|id| MessageQueue::new("T", "b", id));
/// assert_eq!(select::by_hash(-7)(&queues), 3);
/// ```
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `SelectMessageQueueByHash`.
pub fn by_hash(hash: i32) -> impl Fn(&[MessageQueue]) -> usize {
    move |queues| {
        let count = i64::try_from(queues.len()).unwrap_or(i64::MAX).max(1);
        usize::try_from((i64::from(hash) % count).abs()).unwrap_or_default()
    }
}

/// The queue that Java's `SelectMessageQueueByHash` chooses for this text. The same as
/// [`Message::sharding_key`](crate::Message::sharding_key), without the property.
///
/// ```
/// use ringmq_client::{MessageQueue, select};
///
/// let queues = [0, 1, 2, 3].map(|id| MessageQueue::new("T", "b", id));
/// assert_eq!(select::by_key("order-17")(&queues), 1);
/// ```
pub fn by_key(key: &str) -> impl Fn(&[MessageQueue]) -> usize + use<> {
    by_hash(java_hash(key))
}

/// The queue that Java's `SelectMessageQueueByHash` chooses for a `Long`.
///
/// ```
/// use ringmq_client::{MessageQueue, select};
///
/// let queues = [0, 1, 2, 3].map(|id| MessageQueue::new("T", "b", id));
/// assert_eq!(select::by_long(1 << 32 | 2)(&queues), 3);
/// ```
pub fn by_long(number: i64) -> impl Fn(&[MessageQueue]) -> usize {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    by_hash(i32::from_be_bytes([a, b, c, d]) ^ i32::from_be_bytes([e, f, g, h]))
}

/// The queue that the Go client's hash selector chooses for this sharding key. It is another one than
/// Java's.
///
/// ```
/// use ringmq_client::{MessageQueue, select};
///
/// let queues = [0, 1, 2, 3].map(|id| MessageQueue::new("T", "b", id));
/// assert_eq!(select::by_go_key("a")(&queues), 0);
/// ```
///
/// # Source
///
/// rocketmq-client-go v2, `NewHashQueueSelector`: FNV-1a of 32 bits.
pub fn by_go_key(key: &str) -> impl Fn(&[MessageQueue]) -> usize + use<> {
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = key.bytes().fold(0x811c_9dc5, step);
    move |queues| usize::try_from(hash).unwrap_or_default().checked_rem(queues.len()).unwrap_or(0)
}

/// Any queue.
///
/// ```
/// use ringmq_client::{MessageQueue, select};
///
/// let queues = [0, 1, 2, 3].map(|id| MessageQueue::new("T", "b", id));
/// assert!(select::at_random(&queues) < 4);
/// ```
pub fn at_random(queues: &[MessageQueue]) -> usize {
    let random = usize::try_from(unique::random() >> 33).unwrap_or_default();
    random.checked_rem(queues.len()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn vectors(name: &str) -> Vec<Value> {
        let all: Value =
            serde_json::from_str(include_str!("../tests/data/allocate-vectors.json")).unwrap();
        all[name].as_array().unwrap().clone()
    }

    #[test]
    fn hashes_and_queues_are_javas() {
        let hashes = vectors("javaStringHashCode");
        for vector in &hashes {
            let text = vector["text"].as_str().unwrap();
            assert_eq!(i64::from(java_hash(text)), vector["hashCode"].as_i64().unwrap(), "{text}");
        }
        let choices = vectors("hashSelector");
        for vector in &choices {
            let count = i32::try_from(vector["queues"].as_i64().unwrap()).unwrap();
            let queues: Vec<_> = (0..count).map(|id| MessageQueue::new("T", "b", id)).collect();
            let want = usize::try_from(vector["index"].as_u64().unwrap()).unwrap();
            assert_eq!(by_key(vector["arg"].as_str().unwrap())(&queues), want, "{vector}");
        }
        assert_eq!((hashes.len(), choices.len()), (9, 25));
    }
}
