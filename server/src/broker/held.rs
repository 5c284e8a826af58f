//! Pulls that wait for messages, on the thread of their connections.
//!
//! Each has a token that the shard's thread gives back when a message has come; a token is good for
//! one wait. The token names thread and slot, and a generation, so that one that comes late means
//! nothing.

use std::collections::BTreeSet;

use slab::Slab;

use super::{Ticket, pull::PullOp};

/// Bits of the slot, of the generation above it, and of the thread above both.
const SLOT_BITS: u32 = 32;
const GENERATION_BITS: u32 = 16;

#[derive(Debug)]
struct Entry {
    generation: u16,
    ticket: Ticket,
    /// `None` while it is on its way to its shard.
    op: Option<Box<PullOp>>,
}

/// The held pulls of one thread.
#[derive(Debug)]
pub(crate) struct HeldPulls {
    thread: u16,
    generation: u16,
    entries: Slab<Entry>,
    /// End of each wait in milliseconds since 1970, with its token.
    ends: BTreeSet<(i64, u64)>,
}

/// The thread that a token belongs to.
pub(crate) fn thread_of(token: u64) -> usize {
    usize::try_from(token >> (SLOT_BITS + GENERATION_BITS)).unwrap_or(usize::MAX)
}

impl HeldPulls {
    pub(crate) fn new(thread: u16) -> Self {
        Self { thread, generation: 0, entries: Slab::new(), ends: BTreeSet::new() }
    }

    /// How many pulls wait, those on their way to their shard included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Makes a token for a pull that may be held. Never 0.
    pub(crate) fn reserve(&mut self, ticket: Ticket) -> u64 {
        self.generation = self.generation.wrapping_add(1).max(1);
        let entry = Entry { generation: self.generation, ticket, op: None };
        let slot = u64::try_from(self.entries.insert(entry)).unwrap_or(u64::MAX);
        u64::from(self.thread) << (SLOT_BITS + GENERATION_BITS)
            | u64::from(self.generation) << SLOT_BITS
            | slot
    }

    fn slot(&self, token: u64) -> Option<usize> {
        let slot = usize::try_from(token & ((1 << SLOT_BITS) - 1)).ok()?;
        let generation = u64::from(self.entries.get(slot)?.generation);
        let named = token >> SLOT_BITS & ((1 << GENERATION_BITS) - 1);
        (named == generation).then_some(slot)
    }

    /// The pull waits now, until `op.hold` says.
    pub(crate) fn hold(&mut self, token: u64, op: Box<PullOp>) {
        let Some(slot) = self.slot(token) else { return };
        self.ends.insert((op.until, token));
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.op = Some(op);
        }
    }

    /// Takes a pull out; `None` if its wait is over already, or its op is still on its way.
    pub(crate) fn take(&mut self, token: u64) -> Option<(Ticket, Box<PullOp>)> {
        let slot = self.slot(token)?;
        self.entries.get(slot)?.op.as_ref()?;
        let entry = self.entries.remove(slot);
        let op = entry.op?;
        self.ends.remove(&(op.until, token));
        Some((entry.ticket, op))
    }

    /// The token is not needed after all.
    pub(crate) fn free(&mut self, token: u64) {
        if let Some(slot) = self.slot(token) {
            self.entries.remove(slot);
        }
    }

    /// A token whose wait has ended by `now`.
    pub(crate) fn due(&self, now: i64) -> Option<u64> {
        self.ends.first().filter(|(end, _)| *end <= now).map(|(_, token)| *token)
    }

    /// When the next wait ends, in milliseconds since 1970.
    pub(crate) fn next_end(&self) -> Option<i64> {
        self.ends.first().map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{command::Command, frame::Encoding};

    use super::*;
    use crate::context::ConnId;

    fn ticket() -> Ticket {
        let command = Command::parse(Encoding::Json, br#"{"code":11,"opaque":1}"#).unwrap();
        let conn = ConnId { thread: 2, slot: 0, generation: 1 };
        Ticket::new(conn, Encoding::Json, &command)
    }

    fn op(until: i64) -> Box<PullOp> {
        Box::new(PullOp { until, ..PullOp::for_test() })
    }

    #[test]
    fn a_token_is_good_for_one_wait() {
        let mut held = HeldPulls::new(2);
        let token = held.reserve(ticket());
        assert_eq!(thread_of(token), 2);
        assert!(held.take(token).is_none(), "the pull is on its way");
        held.hold(token, op(100));
        assert!(held.take(token).is_some());
        assert!(held.take(token).is_none());
        let next = held.reserve(ticket());
        assert_ne!(next, token, "the slot is used again, the token is not");
        held.hold(next, op(100));
        assert!(held.take(token).is_none(), "a late nudge means nothing");
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn waits_end_in_order() {
        let mut held = HeldPulls::new(0);
        let ends = [30, 10, 20];
        let tokens = ends.map(|until| {
            let token = held.reserve(ticket());
            held.hold(token, op(until));
            token
        });
        assert_eq!((held.next_end(), held.due(9)), (Some(10), None));
        assert_eq!(held.due(10), Some(tokens[1]));
        held.take(tokens[1]);
        assert_eq!((held.next_end(), held.due(25)), (Some(20), Some(tokens[2])));
    }
}
