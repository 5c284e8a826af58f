//! What rests on committed offsets, which data threads have: GET_ALL_CONSUMER_OFFSET (43) and
//! QUERY_TOPIC_CONSUME_BY_WHO (300).
//!
//! Source: Apache RocketMQ 4.9.8, `AdminBrokerProcessor`.

use std::collections::BTreeSet;

use ringmq_protocol::{
    body::{OffsetTable, admin::GroupList},
    codes::request,
    command::Command,
};

use crate::control::{
    ConsumerOffset,
    answer::{Answer, required},
    broker::Broker,
};

/// A request that is answered once the offsets are there.
#[derive(Debug)]
pub(in crate::control) enum WithOffsets {
    /// All offsets.
    All,
    /// The groups of a topic: those that are online, to which those with an offset are added.
    GroupsOf { topic: String, groups: BTreeSet<String> },
}

impl WithOffsets {
    /// The request as one of these, `None` for other codes.
    pub(in crate::control) fn of(
        broker: &Broker,
        command: &Command<'_>,
    ) -> Option<Result<Self, Answer>> {
        match command.code {
            request::GET_ALL_CONSUMER_OFFSET => Some(Ok(Self::All)),
            request::QUERY_TOPIC_CONSUME_BY_WHO => Some(required(command, "topic").map(|topic| {
                let groups = broker.members.subscribers(&topic).map(str::to_owned).collect();
                Self::GroupsOf { topic, groups }
            })),
            _ => None,
        }
    }

    /// The answer, `None` being a store that does not list its offsets.
    pub(in crate::control) fn answer(self, offsets: Option<Vec<ConsumerOffset>>) -> Answer {
        match self {
            Self::All => all(offsets.unwrap_or_default()),
            Self::GroupsOf { topic, mut groups } => {
                let of_topic = offsets.into_iter().flatten().filter(|at| *at.topic == *topic);
                groups.extend(of_topic.map(|at| at.group.into_string()));
                Answer::json(&GroupList { group_list: groups.into_iter().collect() })
            }
        }
    }
}

fn all(offsets: Vec<ConsumerOffset>) -> Answer {
    let mut table = OffsetTable::default();
    for at in offsets {
        let queues = table.offset_table.entry(format!("{}@{}", at.topic, at.group)).or_default();
        if let Ok(queue_id) = i32::try_from(at.queue_id) {
            queues.insert(queue_id, at.queue_offset);
        }
    }
    if table.offset_table.is_empty() {
        return Answer::failed("No consumer offset in this broker");
    }
    Answer::json(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets() -> Option<Vec<ConsumerOffset>> {
        let at = |topic: &str, group: &str, queue_id, queue_offset| ConsumerOffset {
            topic: topic.into(),
            group: group.into(),
            queue_id,
            queue_offset,
        };
        Some(vec![at("T", "G", 1, 7), at("T", "G", 0, 12), at("U", "H", 0, 1)])
    }

    #[track_caller]
    fn check(asked: WithOffsets, offsets: Option<Vec<ConsumerOffset>>, want: &str) {
        let answer = asked.answer(offsets);
        assert_eq!((answer.code, std::str::from_utf8(&answer.body)), (0, Ok(want)));
    }

    #[test]
    fn all_offsets_are_listed_by_topic_and_group() {
        let want = r#"{"offsetTable":{"T@G":{"0":12,"1":7},"U@H":{"0":1}}}"#;
        check(WithOffsets::All, offsets(), want);
        assert_eq!(WithOffsets::All.answer(None).code, 1);
        assert_eq!(WithOffsets::All.answer(Some(Vec::new())).code, 1);
    }

    #[test]
    fn groups_of_a_topic_are_online_or_have_an_offset() {
        let asked = || WithOffsets::GroupsOf {
            topic: "T".into(),
            groups: BTreeSet::from(["A".to_owned(), "G".to_owned()]),
        };
        check(asked(), offsets(), r#"{"groupList":["A","G"]}"#);
        check(asked(), None, r#"{"groupList":["A","G"]}"#);
        let other = WithOffsets::GroupsOf { topic: "U".into(), groups: BTreeSet::new() };
        check(other, offsets(), r#"{"groupList":["H"]}"#);
    }
}
