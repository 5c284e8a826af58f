//! Consistent hashing: a member that comes or goes moves only the queues next to it.
//!
//! Each member stands at several places of a ring of 2^32; a queue belongs to the next member from
//! its own place on. Places are the first four bytes of an MD5: it only spreads here, and every
//! member has to compute the same.
//!
//! Source: Apache RocketMQ 4.9.8, `AllocateMessageQueueConsistentHash`, `ConsistentHashRouter`.

use std::collections::BTreeMap;

use md5::{Digest, Md5};

use super::{Allocate, CannotAllocate, place};
use crate::MessageQueue;

/// Queues on a ring among the members.
///
/// Don't mix with Go members: their ring is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsistentHash {
    /// Places that each member has on the ring. With 0 nobody gets anything.
    pub places: u32,
}

impl Default for ConsistentHash {
    /// 10 places, as upstream.
    fn default() -> Self {
        Self { places: 10 }
    }
}

impl Allocate for ConsistentHash {
    fn name(&self) -> String {
        "CONSISTENT_HASH".into()
    }

    fn allocate(
        &self,
        member: &str,
        members: &[String],
        queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate> {
        if place(member, members, queues)?.is_none() {
            return Ok(Vec::new());
        }
        let ring = self.ring(members);
        let owner = |queue: &MessageQueue| {
            let at = hash(&upstream_text(queue));
            let next = ring.range(at..).next().or_else(|| ring.iter().next());
            next.map(|(_, owner)| *owner)
        };
        Ok(queues.iter().filter(|queue| owner(queue) == Some(member)).cloned().collect())
    }
}

impl ConsistentHash {
    fn ring<'a>(&self, members: &'a [String]) -> BTreeMap<u32, &'a str> {
        let mut ring = BTreeMap::new();
        for member in members {
            // A member that is listed twice gets further places, not the same ones again.
            let taken = ring.values().filter(|owner| **owner == member.as_str()).count();
            for number in 0..self.places {
                let number = usize::try_from(number).unwrap_or(usize::MAX) + taken;
                ring.insert(hash(&format!("{member}-{number}")), member.as_str());
            }
        }
        ring
    }
}

/// The text of Java's `MessageQueue.toString`.
fn upstream_text(queue: &MessageQueue) -> String {
    let (topic, broker, id) = (queue.topic(), queue.broker_name(), queue.queue_id());
    format!("MessageQueue [topic={topic}, brokerName={broker}, queueId={id}]")
}

/// Where a text stands on the ring.
pub(super) fn hash(text: &str) -> u32 {
    let digest = Md5::digest(text.as_bytes());
    digest.iter().take(4).fold(0, |at, byte| (at << 8) | u32::from(*byte))
}
