//! Even shares, and lists made by hand.
//!
//! Source: Apache RocketMQ 4.9.8, `AllocateMessageQueueAveragely`,
//! `AllocateMessageQueueAveragelyByCircle`, `AllocateMessageQueueByConfig`.

use super::{Allocate, CannotAllocate, place};
use crate::MessageQueue;

/// Neighbouring queues together: of 8 queues and 3 members the first two have 3, the last has 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Average;

impl Allocate for Average {
    fn name(&self) -> String {
        "AVG".into()
    }

    fn allocate(
        &self,
        member: &str,
        members: &[String],
        queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate> {
        let Some(index) = place(member, members, queues)? else { return Ok(Vec::new()) };
        let (share, rest) = (queues.len() / members.len(), queues.len() % members.len());
        // The first members have one queue more, until the rest is used up.
        let start = index * share + index.min(rest);
        let len = share + usize::from(index < rest);
        Ok(queues.iter().skip(start).take(len).cloned().collect())
    }
}

/// Dealt in turn, so that the queues of one broker go to many members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circle;

impl Allocate for Circle {
    fn name(&self) -> String {
        "AVG_BY_CIRCLE".into()
    }

    fn allocate(
        &self,
        member: &str,
        members: &[String],
        queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate> {
        let Some(index) = place(member, members, queues)? else { return Ok(Vec::new()) };
        Ok(queues.iter().skip(index).step_by(members.len()).cloned().collect())
    }
}

/// The same list always, whoever else is in the group. Whoever configures the members sees to it
/// that every queue is in one list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fixed(pub Vec<MessageQueue>);

impl Allocate for Fixed {
    fn name(&self) -> String {
        "CONFIG".into()
    }

    fn allocate(
        &self,
        _member: &str,
        _members: &[String],
        _queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate> {
        Ok(self.0.clone())
    }
}
