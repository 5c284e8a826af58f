//! Request headers, written after earlier ones.
//!
//! Most sends of a producer go to few topics and brokers, and differ in their number, queue, time
//! and properties only. The first one of a kind is encoded field by field and learned; of those
//! that follow, everything else is copied.
//!
//! Bounds: [`KINDS_MAX`] headers are kept. A producer with more kinds of sends has the others
//! encoded, and forgets a kind for them now and then.

use std::sync::{Arc, Mutex};

use ringmq_protocol::template::SendTemplate;

use super::outbound::Outbound;
use crate::{MessageQueue, lock};

/// Most headers that are kept.
const KINDS_MAX: usize = 16;

/// Sends of unknown kinds for each of which one is learned: learning costs as much as some ten
/// copied headers save.
const SENDS_PER_LESSON: usize = 16;

/// The headers of one producer.
#[derive(Debug, Default)]
pub(super) struct Heads {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    kinds: Vec<Arc<Kind>>,
    /// Sends of kinds that were not known.
    unknown: usize,
}

/// Sends that have the same header, but for what a template leaves open.
#[derive(Debug)]
pub(super) struct Kind {
    topic: Arc<str>,
    broker_name: Arc<str>,
    flags: (i32, i32),
    pub(super) template: SendTemplate,
}

impl Kind {
    fn is_of(&self, outbound: &Outbound, queue: &MessageQueue) -> bool {
        self.flags == outbound.flags()
            && is_same(&self.topic, &outbound.topic)
            && is_same(&self.broker_name, queue.shared_broker_name())
    }
}

fn is_same(a: &Arc<str>, b: &Arc<str>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

impl Heads {
    /// The kind of a usual send, if it is known.
    pub(super) fn find(&self, outbound: &Outbound, queue: &MessageQueue) -> Option<Arc<Kind>> {
        let known = lock(&self.known);
        known.kinds.iter().find(|kind| kind.is_of(outbound, queue)).cloned()
    }

    /// Learns the kind of a usual send from its header, unless there are too many.
    pub(super) fn learn(&self, outbound: &Outbound, queue: &MessageQueue, header: &[u8]) {
        let mut known = lock(&self.known);
        known.unknown = known.unknown.wrapping_add(1);
        let is_full = KINDS_MAX <= known.kinds.len();
        if is_full && !known.unknown.is_multiple_of(SENDS_PER_LESSON) {
            return;
        }
        let template = SendTemplate::learn(header).filter(SendTemplate::has_properties);
        let Some(template) = template else { return };
        if is_full {
            known.kinds.remove(0);
        }
        known.kinds.push(Arc::new(Kind {
            topic: Arc::clone(&outbound.topic),
            broker_name: Arc::clone(queue.shared_broker_name()),
            flags: outbound.flags(),
            template,
        }));
    }
}
