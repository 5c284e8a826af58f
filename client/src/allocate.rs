//! Who of a group gets which queues.
//!
//! Members of a group don't talk to each other. Each asks a broker for the list of members, sorts
//! it and the list of queues, runs the same function over both, and takes its part. So all members,
//! in whatever language, must use the same strategy, and a strategy must be a pure function of its
//! input. The strategies here give the results of upstream's Java client for every input.
//!
//! | Strategy | Upstream's name | Moves when a member comes or goes |
//! |---|---|---|
//! | [`Average`], the default | `AVG` | many queues |
//! | [`Circle`] | `AVG_BY_CIRCLE` | nearly all queues |
//! | [`ConsistentHash`] | `CONSISTENT_HASH` | few queues, shares less even |
//! | [`Fixed`] | `CONFIG` | none: each member has a list of its own |
//! | [`MachineRoom`] | `MACHINE_ROOM` | as `Average`, over the brokers of some rooms |
//! | [`Nearby`] | `MACHINE_ROOM_NEARBY-` and its inner one's | as its inner one, within each room |
//!
//! Go's client agrees on the first two only: its consistent hash and its machine rooms differ.
//!
//! An own strategy implements [`Allocate`]. The recipe for "only this machine consumes" is in the
//! crate's example `this_machine_only`.

use std::{cmp::Ordering, error::Error, fmt};

use crate::MessageQueue;

mod average;
mod hash;
mod room;

pub use average::{Average, Circle, Fixed};
pub use hash::ConsistentHash;
pub use room::{MachineRoom, Nearby};

/// A strategy that divides the queues of a topic among the members of a group.
///
/// ```
/// use ringmq_client::{MessageQueue, allocate::{Allocate, CannotAllocate}};
///
/// /// Gives everything to the first member, so that the others only stand by.
/// #[derive(Debug)]
/// struct Leader;
///
/// impl Allocate for Leader {
///     fn name(&self) -> String {
///         "LEADER".into()
///     }
///
///     fn allocate(
///         &self,
///         member: &str,
///         members: &[String],
///         queues: &[MessageQueue],
///     ) -> Result<Vec<MessageQueue>, CannotAllocate> {
///         let is_leader = members.first().is_some_and(|first| first == member);
///         Ok(if is_leader { queues.to_vec() } else { Vec::new() })
///     }
/// }
/// ```
pub trait Allocate: fmt::Debug + Send + Sync + 'static {
    /// The name that brokers of 5.x are told when they divide the queues themselves.
    fn name(&self) -> String;

    /// The queues of `member`. `members` and `queues` are sorted, as [`sort`] sorts them; a member
    /// with two connections may be listed twice.
    ///
    /// Must be a pure function: the same lists give the same division in each member.
    ///
    /// # Errors
    ///
    /// [`CannotAllocate`]: the member keeps the queues that it has, and tries again later.
    fn allocate(
        &self,
        member: &str,
        members: &[String],
        queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate>;
}

/// Why a strategy has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannotAllocate(pub String);

impl fmt::Display for CannotAllocate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for CannotAllocate {}

/// Sorts members and queues as all members of a group do before they divide the queues: by UTF-16
/// code units, as Java compares strings, and queue ids by number.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `RebalanceImpl.rebalanceByTopic`, `MessageQueue.compareTo`.
pub fn sort(members: &mut [String], queues: &mut [MessageQueue]) {
    members.sort_by(|a, b| java_order(a, b));
    queues.sort_by(|a, b| {
        java_order(a.topic(), b.topic())
            .then_with(|| java_order(a.broker_name(), b.broker_name()))
            .then(a.queue_id().cmp(&b.queue_id()))
    });
}

/// The order of Java's `String.compareTo`. UTF-8 orders characters beyond the first 65,536 last,
/// UTF-16 does not.
pub(crate) fn java_order(a: &str, b: &str) -> Ordering {
    match a.is_ascii() && b.is_ascii() {
        true => a.cmp(b),
        false => a.encode_utf16().cmp(b.encode_utf16()),
    }
}

/// The member's place among `count` members; `None` if it is not among them, and then gets nothing.
///
/// # Errors
///
/// Nothing can be divided without a member's name, members and queues.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `AbstractAllocateMessageQueueStrategy.check`.
fn place(
    member: &str,
    members: &[String],
    queues: &[MessageQueue],
) -> Result<Option<usize>, CannotAllocate> {
    if member.trim().is_empty() {
        return Err(CannotAllocate("the member has no name".into()));
    }
    if queues.is_empty() {
        return Err(CannotAllocate("there are no queues".into()));
    }
    if members.is_empty() {
        return Err(CannotAllocate("there are no members".into()));
    }
    Ok(members.iter().position(|other| other == member))
}

#[cfg(test)]
mod tests;
