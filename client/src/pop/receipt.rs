//! Receipts: what a broker wants to hear about a popped message.
//!
//! A receipt is eight fields with a space between them: first offset of the pop, time of the pop,
//! time out of sight, revive queue, kind of topic, broker, queue, offset of the message.
//!
//! Source: Apache RocketMQ 5.5.0, `ExtraInfoUtil`, `KeyBuilder`.

use std::{collections::HashMap, fmt};

use ringmq_protocol::{
    headers::{ChangeInvisibleResponse, PopResponse},
    names::RETRY_PREFIX,
    properties::name,
};

use crate::ReceivedMessage;

/// A receipt, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    start: i64,
    pop_time_ms: i64,
    invisible_ms: i64,
    revive_queue_id: i32,
    kind: Kind,
    pub(super) broker_name: String,
    pub(super) queue_id: i32,
    /// Offset in messages.
    pub(super) offset: i64,
}

/// What kind of topic a message lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// The one that it was sent to.
    Normal,
    /// The group's retry topic of it, in the first form.
    Retry1,
    /// In the second form.
    Retry2,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "0" => Some(Self::Normal),
            "1" => Some(Self::Retry1),
            "2" => Some(Self::Retry2),
            _ => None,
        }
    }

    /// That of a message in this topic.
    fn of_topic(topic: &str, group: &str) -> Self {
        match topic.strip_prefix(RETRY_PREFIX).and_then(|rest| rest.strip_prefix(group)) {
            Some(rest) if rest.starts_with('_') => Self::Retry1,
            Some(rest) if rest.starts_with('+') => Self::Retry2,
            _ => Self::Normal,
        }
    }
}

/// First offsets of a pop, by kind of topic and queue.
#[derive(Debug, Default)]
pub(super) struct Starts(HashMap<(Kind, i32), i64>);

impl Starts {
    /// Reads `kind queue offset`, joined with `;`. What it cannot read is left out.
    pub(super) fn parse(text: &str) -> Self {
        let entry = |part: &str| {
            let mut fields = part.split(' ');
            let kind = Kind::parse(fields.next()?)?;
            Some(((kind, fields.next()?.parse().ok()?), fields.next()?.parse().ok()?))
        };
        Self(text.split(';').filter_map(entry).collect())
    }
}

impl Receipt {
    /// The receipt of a popped message: its own, or that which follows from the answer. `None` if
    /// the answer does not have its queue.
    pub(super) fn of(
        message: &ReceivedMessage,
        answer: &PopResponse<'_>,
        starts: &Starts,
        group: &str,
    ) -> Option<Self> {
        if let Some(own) = message.property(name::POP_CK) {
            return Self::parse(own);
        }
        let queue = message.queue();
        let kind = Kind::of_topic(queue.topic(), group);
        Some(Self {
            start: *starts.0.get(&(kind, queue.queue_id()))?,
            pop_time_ms: answer.pop_time_ms,
            invisible_ms: answer.invisible_time_ms,
            revive_queue_id: answer.revive_queue_id,
            kind,
            broker_name: queue.broker_name().into(),
            queue_id: queue.queue_id(),
            offset: message.queue_offset().get(),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        Some(Self {
            start: fields.next()?.parse().ok()?,
            pop_time_ms: fields.next()?.parse().ok()?,
            invisible_ms: fields.next()?.parse().ok()?,
            revive_queue_id: fields.next()?.parse().ok()?,
            kind: Kind::parse(fields.next()?)?,
            broker_name: fields.next()?.into(),
            queue_id: fields.next()?.parse().ok()?,
            offset: fields.next()?.parse().ok()?,
        })
    }

    /// The topic that the message lies in, which was sent to `topic`.
    pub(super) fn topic(&self, group: &str, topic: &str) -> String {
        match self.kind {
            Kind::Normal => topic.into(),
            Kind::Retry1 => format!("{RETRY_PREFIX}{group}_{topic}"),
            Kind::Retry2 => format!("{RETRY_PREFIX}{group}+{topic}"),
        }
    }

    /// The receipt after a change of the time out of sight.
    pub(super) const fn renew(&mut self, changed: &ChangeInvisibleResponse) {
        self.start = self.offset;
        self.pop_time_ms = changed.pop_time_ms;
        self.invisible_ms = changed.invisible_time_ms;
        self.revive_queue_id = changed.revive_queue_id;
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, pop_time_ms, invisible_ms, revive_queue_id, .. } = self;
        let kind = match self.kind {
            Kind::Normal => 0,
            Kind::Retry1 => 1,
            Kind::Retry2 => 2,
        };
        let (broker_name, queue_id, offset) = (&self.broker_name, self.queue_id, self.offset);
        write!(
            f,
            "{start} {pop_time_ms} {invisible_ms} {revive_queue_id} {kind} {broker_name} {queue_id} \
             {offset}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests_support::received;

    const TEXT: &str = "5 1700000000000 60000 3 1 broker-a 2 7";

    #[test]
    fn receipts_are_read_and_written_as_upstream_has_them() {
        let receipt = Receipt::parse(TEXT).unwrap();
        assert_eq!(receipt.to_string(), TEXT);
        assert_eq!(receipt.topic("g", "T"), "%RETRY%g_T");
        for bad in ["", "5 1 2 3 4 a 1 7", "5 1 2 3 1 a 1", "x 1 2 3 1 a 1 7"] {
            assert_eq!(Receipt::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_message_without_receipt_gets_the_one_of_its_pop() {
        let answer = PopResponse {
            pop_time_ms: 1000,
            invisible_time_ms: 60_000,
            revive_queue_id: 4,
            rest_num: 0,
            start_offset_info: None,
            msg_offset_info: None,
        };
        let starts = Starts::parse("1 0 9;0 0 5;0 1 6;nonsense");
        let mut receipt = Receipt::of(&received(7, "body"), &answer, &starts, "g").unwrap();
        assert_eq!(receipt.to_string(), "5 1000 60000 4 0 a 0 7");
        let changed = ChangeInvisibleResponse {
            pop_time_ms: 2000,
            invisible_time_ms: 10_000,
            revive_queue_id: 1,
        };
        receipt.renew(&changed);
        assert_eq!(receipt.to_string(), "7 2000 10000 1 0 a 0 7");
        assert_eq!(Receipt::of(&received(7, "body"), &answer, &Starts::default(), "g"), None);
    }
}
