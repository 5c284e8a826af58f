//! Offsets of groups and queues: requests 14, 15, 29 to 33, and their answers.

use alloc::borrow::Cow;

use super::header;

header! {
    /// QUERY_CONSUMER_OFFSET (14). Answered by [`OffsetResponse`] or code 22.
    ///
    /// Source: Apache RocketMQ 5.3.3, `QueryConsumerOffsetRequestHeader`.
    QueryConsumerOffsetRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// 5.x: false asks for code 22 instead of a guessed 0.
        set_zero_if_not_found: Option<bool>, b"setZeroIfNotFound";
    }
}

header! {
    /// UPDATE_CONSUMER_OFFSET (15), often oneway. The answer has no entries.
    ///
    /// Source: Apache RocketMQ 4.9.8, `UpdateConsumerOffsetRequestHeader`.
    UpdateConsumerOffsetRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// Offset in messages of the next message to consume.
        commit_offset: i64, b"commitOffset";
    }
}

header! {
    /// GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and GET_EARLIEST_MSG_STORETIME (32).
    ///
    /// Source: Apache RocketMQ 5.3.3, `GetMaxOffsetRequestHeader`, `GetMinOffsetRequestHeader`,
    /// `GetEarliestMsgStoretimeRequestHeader`.
    QueueRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// 5.x, with 30: whether only committed messages count.
        committed: Option<bool>, b"committed";
    }
}

header! {
    /// SEARCH_OFFSET_BY_TIMESTAMP (29). Answered by [`OffsetResponse`].
    ///
    /// Source: Apache RocketMQ 5.3.3, `SearchOffsetRequestHeader`.
    SearchOffsetRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// Store time in milliseconds since 1970.
        timestamp_ms: i64, b"timestamp";
        /// 5.x: `LOWER` (also if absent or unknown) or `UPPER`, in any case.
        boundary_type: Option<Cow<'a, str>>, b"boundaryType";
    }
}

impl SearchOffsetRequest<'_> {
    /// Whether the last message at or before the time is wanted, instead of the first at or after.
    pub fn wants_upper(&self) -> bool {
        self.boundary_type.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("UPPER"))
    }
}

header! {
    /// The answer to 14, 29, 30 and 31.
    ///
    /// Source: Apache RocketMQ 4.9.8, `QueryConsumerOffsetResponseHeader` and its siblings.
    OffsetResponse {
        /// Offset in messages.
        offset: i64, b"offset";
    }
}

header! {
    /// The answer to GET_EARLIEST_MSG_STORETIME (32).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetEarliestMsgStoretimeResponseHeader`.
    TimestampResponse {
        /// Store time in milliseconds since 1970; -1 if the queue has no message.
        timestamp_ms: i64, b"timestamp";
    }
}

header! {
    /// VIEW_MESSAGE_BY_ID (33). The answer's body is one record.
    ///
    /// Source: Apache RocketMQ 5.3.3, `ViewMessageRequestHeader`.
    ViewMessageRequest<'a> {
        /// Position of the record in the log, in bytes.
        log_offset: i64, b"offset";
        /// 5.x: the topic, for routing only.
        topic: Option<Cow<'a, str>>, b"topic";
    }
}

header! {
    /// QUERY_MESSAGE (12): messages by key or unique id.
    ///
    /// Source: Apache RocketMQ 5.3.3, `QueryMessageRequestHeader`; the last entry is
    /// `MixAll.UNIQUE_MSG_QUERY_FLAG`.
    QueryMessageRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The key, or the unique id.
        key: Cow<'a, str>, b"key";
        /// Most messages wanted.
        max_num: i32, b"maxNum";
        /// Earliest store time in milliseconds since 1970.
        begin_timestamp_ms: i64, b"beginTimestamp";
        /// Latest store time in milliseconds since 1970.
        end_timestamp_ms: i64, b"endTimestamp";
        /// 5.5: `K` key, `U` unique id, `T` tag.
        index_type: Option<Cow<'a, str>>, b"indexType";
        /// Whether `key` is a unique id.
        unique_key_query: bool, b"_UNIQUE_KEY_QUERY" = false;
    }
}

header! {
    /// The answer to QUERY_MESSAGE (12); its body is records.
    ///
    /// Source: Apache RocketMQ 4.9.8, `QueryMessageResponseHeader`.
    QueryMessageResponse {
        /// Store time of the newest indexed message, in milliseconds since 1970.
        index_last_update_timestamp_ms: i64, b"indexLastUpdateTimestamp";
        /// Position of the newest indexed record in the log, in bytes.
        index_last_update_log_offset: i64, b"indexLastUpdatePhyoffset";
    }
}
