//! Rooms: members that read from brokers near to them.
//!
//! Source: Apache RocketMQ 4.9.8, `AllocateMessageQueueByMachineRoom`,
//! `AllocateMachineRoomNearby`.

use std::{collections::BTreeMap, fmt};

use super::{Allocate, CannotAllocate, java_order, place};
use crate::MessageQueue;

/// Only queues of brokers in some rooms, in even shares. A broker named `room1@broker-a` is in
/// `room1`; brokers with other names are in none.
///
/// Don't mix with Go members: they divide other queues than those of the rooms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRoom {
    /// Names of the rooms.
    pub rooms: Vec<String>,
}

impl MachineRoom {
    fn has(&self, queue: &MessageQueue) -> bool {
        let mut parts: Vec<_> = queue.broker_name().split('@').collect();
        // As Java splits: empty parts at the end don't count.
        while parts.last().is_some_and(|part| part.is_empty()) {
            parts.pop();
        }
        matches!(*parts, [room, _] if self.rooms.iter().any(|name| name == room))
    }
}

impl Allocate for MachineRoom {
    fn name(&self) -> String {
        "MACHINE_ROOM".into()
    }

    fn allocate(
        &self,
        member: &str,
        members: &[String],
        queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate> {
        let Some(index) = place(member, members, queues)? else { return Ok(Vec::new()) };
        let near: Vec<_> = queues.iter().filter(|queue| self.has(queue)).collect();
        let (share, rest) = (near.len() / members.len(), near.len() % members.len());
        let block = near.iter().skip(share * index).take(share);
        // What does not divide evenly lies behind all blocks, one for each of the first members.
        let extra = near.iter().skip(share * members.len() + index).take(usize::from(index < rest));
        Ok(block.chain(extra).map(|queue| (*queue).clone()).collect())
    }
}

/// Names the room of something.
pub(super) type RoomOf<T> = Box<dyn Fn(&T) -> String + Send + Sync>;

/// Each room's queues to the members of that room; queues of rooms without a member to all members.
///
/// ```
/// use ringmq_client::allocate::{Average, Nearby};
///
/// // Members and brokers are named `room-...`.
/// let room = |name: &str| name.split('-').next().unwrap_or_default().to_owned();
/// let strategy =
///     Nearby::new(Average, move |queue| room(queue.broker_name()), move |member| room(member));
/// ```
pub struct Nearby {
    inner: Box<dyn Allocate>,
    room_of_queue: RoomOf<MessageQueue>,
    room_of_member: RoomOf<str>,
}

impl Nearby {
    /// Divides each room's queues with `inner`. The other two name the room that a queue's broker,
    /// or a member (by its client id), is in.
    pub fn new(
        inner: impl Allocate,
        room_of_queue: impl Fn(&MessageQueue) -> String + Send + Sync + 'static,
        room_of_member: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        Self::boxed(Box::new(inner), Box::new(room_of_queue), Box::new(room_of_member))
    }

    pub(super) const fn boxed(
        inner: Box<dyn Allocate>,
        room_of_queue: RoomOf<MessageQueue>,
        room_of_member: RoomOf<str>,
    ) -> Self {
        Self { inner, room_of_queue, room_of_member }
    }
}

impl fmt::Debug for Nearby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nearby").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Allocate for Nearby {
    fn name(&self) -> String {
        format!("MACHINE_ROOM_NEARBY-{}", self.inner.name())
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
        let queues = by_room(queues, |queue| (self.room_of_queue)(queue))?;
        let members_by_room = by_room(members, |name| (self.room_of_member)(name))?;
        let own_room = (self.room_of_member)(member);
        let mut own = Vec::new();
        if let (Some(queues), Some(members)) =
            (queues.get(&own_room), members_by_room.get(&own_room))
        {
            own.extend(self.inner.allocate(member, members, queues)?);
        }
        let mut left: Vec<_> =
            queues.iter().filter(|(room, _)| !members_by_room.contains_key(*room)).collect();
        left.sort_by(|(a, _), (b, _)| java_order(a, b));
        for (_, queues) in left {
            own.extend(self.inner.allocate(member, members, queues)?);
        }
        Ok(own)
    }
}

fn by_room<T: Clone>(
    items: &[T],
    room_of: impl Fn(&T) -> String,
) -> Result<BTreeMap<String, Vec<T>>, CannotAllocate> {
    let mut rooms: BTreeMap<_, Vec<T>> = BTreeMap::new();
    for item in items {
        let room = room_of(item);
        if room.is_empty() {
            return Err(CannotAllocate("a broker or a member is in no room".into()));
        }
        rooms.entry(room).or_default().push(item.clone());
    }
    Ok(rooms)
}
