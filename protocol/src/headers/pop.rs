//! POP, the consumption of 5.x brokers in which they keep track of each message: requests 200050,
//! 200051 and 200053. Their codes need a JSON header.

use alloc::borrow::Cow;

use super::header;

header! {
    /// POP_MESSAGE (200050). Answered by [`PopResponse`], with records as the body.
    ///
    /// Source: Apache RocketMQ 5.5.0, `PopMessageRequestHeader`.
    PopRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue, or -1 for any of the broker.
        queue_id: i32, b"queueId";
        /// Most messages wanted: 1 to 32.
        max_msg_nums: i32, b"maxMsgNums";
        /// How long nobody else gets the messages. Unit: milliseconds.
        invisible_time_ms: i64, b"invisibleTime";
        /// How long the broker may hold the request. Unit: milliseconds.
        poll_time_ms: i64, b"pollTime";
        /// When the request was made, in milliseconds since 1970.
        born_time_ms: i64, b"bornTime";
        /// Where a group without offsets begins: 0 at the first message, 1 behind the last one.
        init_mode: i32, b"initMode";
        /// `TAG` or `SQL92`.
        exp_type: Option<Cow<'a, str>>, b"expType";
        /// Filter expression.
        exp: Option<Cow<'a, str>>, b"exp";
        /// Whether queues are to be popped in order.
        order: Option<bool>, b"order";
        /// The broker that the client believes to talk to.
        broker_name: Option<Cow<'a, str>>, b"bname";
    }
}

header! {
    /// The answer to POP_MESSAGE (200050).
    ///
    /// Source: Apache RocketMQ 5.5.0, `PopMessageResponseHeader`.
    PopResponse<'a> {
        /// When the messages were popped, in milliseconds since 1970.
        pop_time_ms: i64, b"popTime";
        /// How long nobody else gets them. Unit: milliseconds.
        invisible_time_ms: i64, b"invisibleTime";
        /// The queue of the broker's that brings them back.
        revive_queue_id: i32, b"reviveQid";
        /// Messages left.
        rest_num: i64, b"restNum" = 0;
        /// First offset of each queue: `retry queue offset`, joined with `;`.
        start_offset_info: Option<Cow<'a, str>>, b"startOffsetInfo";
        /// Offsets of each queue: `retry queue offset,offset`, joined with `;`.
        msg_offset_info: Option<Cow<'a, str>>, b"msgOffsetInfo";
    }
}

header! {
    /// ACK_MESSAGE (200051), and with a time CHANGE_MESSAGE_INVISIBLETIME (200053).
    ///
    /// Source: Apache RocketMQ 5.5.0, `AckMessageRequestHeader`,
    /// `ChangeInvisibleTimeRequestHeader`.
    AckRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The topic that the message lies in.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// The receipt.
        extra_info: Cow<'a, str>, b"extraInfo";
        /// Offset in messages.
        offset: i64, b"offset";
        /// With 200053: how long from now on nobody else gets the message. Unit: milliseconds.
        invisible_time_ms: Option<i64>, b"invisibleTime";
        /// The broker that the client believes to talk to.
        broker_name: Option<Cow<'a, str>>, b"bname";
    }
}

header! {
    /// The answer to CHANGE_MESSAGE_INVISIBLETIME (200053).
    ///
    /// Source: Apache RocketMQ 5.5.0, `ChangeInvisibleTimeResponseHeader`.
    ChangeInvisibleResponse {
        /// When the time began, in milliseconds since 1970.
        pop_time_ms: i64, b"popTime";
        /// Unit: milliseconds.
        invisible_time_ms: i64, b"invisibleTime";
        /// The queue of the broker's that brings the message back.
        revive_queue_id: i32, b"reviveQid";
    }
}
