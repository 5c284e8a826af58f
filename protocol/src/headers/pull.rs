//! Pulling: requests 11 and 361, and their answer.

use alloc::borrow::Cow;

use super::header;

/// Bits of [`PullRequest::sys_flag`]. Source: Apache RocketMQ 5.3.3, `PullSysFlag`.
pub mod pull_flag {
    /// `commit_offset` is to be stored.
    pub const COMMIT_OFFSET: i32 = 0x1;
    /// The request may be held until a message comes.
    pub const SUSPEND: i32 = 0x2;
    /// The request brings its own filter expression.
    pub const SUBSCRIPTION: i32 = 0x4;
    /// Legacy filter classes.
    pub const CLASS_FILTER: i32 = 0x8;
    /// Sent by a lite pull consumer.
    pub const LITE_PULL: i32 = 0x10;
}

header! {
    /// PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).
    ///
    /// Source: Apache RocketMQ 5.3.3, `PullMessageRequestHeader`. Absent numbers that real brokers
    /// take as 0 (measured) have that default.
    PullRequest<'a> {
        /// The pulling group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// Offset in messages of the first wanted message.
        queue_offset: i64, b"queueOffset";
        /// Most messages wanted; 0 still gives one.
        max_msg_nums: i32, b"maxMsgNums";
        /// Bits of [`pull_flag`].
        sys_flag: i32, b"sysFlag";
        /// Offset in messages up to which the group has consumed.
        commit_offset: i64, b"commitOffset" = 0;
        /// How long the broker may hold the request.
        suspend_timeout_ms: i64, b"suspendTimeoutMillis" = 0;
        /// Filter expression.
        subscription: Option<Cow<'a, str>>, b"subscription";
        /// Version of the subscription; 0 for those that do not register one.
        sub_version: i64, b"subVersion" = 0;
        /// `TAG` (also if absent) or `SQL92`.
        expression_type: Option<Cow<'a, str>>, b"expressionType";
        /// Most bytes wanted; sent by 5.x and ignored by its brokers.
        max_msg_bytes: Option<i32>, b"maxMsgBytes";
        /// Who pulls on whose behalf, in 5.x.
        request_source: Option<i32>, b"requestSource";
        /// The client behind a 5.x proxy; spelling as upstream.
        proxy_forward_client_id: Option<Cow<'a, str>>, b"proxyFrowardClientId";
    }
}

header! {
    /// The answer to a pull with codes 0, 19, 20 and 21: all four numbers, always, because Java
    /// unboxes them. Other codes carry none.
    ///
    /// Source: Apache RocketMQ 5.3.3, `PullMessageResponseHeader`.
    PullResponse {
        /// Broker id to pull this queue from next.
        suggest_which_broker_id: i64, b"suggestWhichBrokerId";
        /// Offset in messages to pull from next.
        next_begin_offset: i64, b"nextBeginOffset";
        /// First offset of the queue.
        min_offset: i64, b"minOffset";
        /// Offset that the queue's next message will have.
        max_offset: i64, b"maxOffset";
        /// Legacy of static topics in 5.x.
        offset_delta: Option<i64>, b"offsetDelta";
        /// The topic's flags, in 5.x.
        topic_sys_flag: Option<i32>, b"topicSysFlag";
        /// The group's flags, in 5.x.
        group_sys_flag: Option<i32>, b"groupSysFlag";
        /// Why a pull is forbidden, in 5.x: 1 broker, 2 group, 3 topic, 4 broadcast,
        /// 5 subscription.
        forbidden_type: Option<i32>, b"forbiddenType";
    }
}

impl PullResponse {
    /// An answer as 4.9.8 gives it.
    pub const fn new(next_begin_offset: i64, min_offset: i64, max_offset: i64) -> Self {
        Self {
            suggest_which_broker_id: 0,
            next_begin_offset,
            min_offset,
            max_offset,
            offset_delta: None,
            topic_sys_flag: None,
            group_sys_flag: None,
            forbidden_type: None,
        }
    }
}
