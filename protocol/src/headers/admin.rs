//! What admin tools ask of a broker.

use alloc::borrow::Cow;

use super::header;

header! {
    /// GET_PRODUCER_CONNECTION_LIST (204).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetProducerConnectionListRequestHeader`.
    ProducerGroupRequest<'a> {
        /// The group.
        producer_group: Cow<'a, str>, b"producerGroup";
    }
}

header! {
    /// DELETE_SUBSCRIPTIONGROUP (207).
    ///
    /// Source: Apache RocketMQ 4.9.8 and 5.3.3, `DeleteSubscriptionGroupRequestHeader`.
    DeleteGroupRequest<'a> {
        /// The group.
        group_name: Cow<'a, str>, b"groupName";
        /// 4.x: whether its offsets go, too.
        remove_offset: bool, b"removeOffset" = false;
        /// 5.x: the same.
        clean_offset: bool, b"cleanOffset" = false;
    }
}

header! {
    /// GET_CONSUME_STATS (208).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetConsumeStatsRequestHeader`.
    ConsumeStatsRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// One topic; absent or blank means every topic that the group has an offset for.
        topic: Option<Cow<'a, str>>, b"topic";
    }
}

header! {
    /// QUERY_CONSUME_TIME_SPAN (303) and QUERY_SUBSCRIPTION_BY_CONSUMER (345).
    ///
    /// Source: Apache RocketMQ 4.9.8, `QueryConsumeTimeSpanRequestHeader`.
    TopicGroupRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The group.
        group: Cow<'a, str>, b"group";
    }
}

header! {
    /// QUERY_TOPICS_BY_CONSUMER (343) and GET_SUBSCRIPTIONGROUP_CONFIG (352) of 5.x.
    ///
    /// Source: Apache RocketMQ 5.3.3, `GetSubscriptionGroupConfigRequestHeader`.
    GroupRequest<'a> {
        /// The group.
        group: Cow<'a, str>, b"group";
    }
}

header! {
    /// QUERY_CORRECTION_OFFSET (308).
    ///
    /// Source: Apache RocketMQ 4.9.8, `QueryCorrectionOffsetHeader`.
    CorrectionOffsetRequest<'a> {
        /// Groups to leave out, separated by commas.
        filter_groups: Option<Cow<'a, str>>, b"filterGroups";
        /// The group to compare with.
        compare_group: Cow<'a, str>, b"compareGroup";
        /// The topic.
        topic: Cow<'a, str>, b"topic";
    }
}

header! {
    /// CLONE_GROUP_OFFSET (314).
    ///
    /// Source: Apache RocketMQ 4.9.8, `CloneGroupOffsetRequestHeader`.
    CloneGroupOffsetRequest<'a> {
        /// The group whose offsets are taken.
        src_group: Cow<'a, str>, b"srcGroup";
        /// The group that gets them.
        dest_group: Cow<'a, str>, b"destGroup";
        /// One topic only.
        topic: Option<Cow<'a, str>>, b"topic";
        /// Whether the group is offline.
        offline: bool, b"offline" = false;
    }
}

header! {
    /// VIEW_BROKER_STATS_DATA (315).
    ///
    /// Source: Apache RocketMQ 4.9.8, `ViewBrokerStatsDataRequestHeader`.
    BrokerStatsRequest<'a> {
        /// Name of the statistic.
        stats_name: Cow<'a, str>, b"statsName";
        /// Its key.
        stats_key: Cow<'a, str>, b"statsKey";
    }
}

header! {
    /// QUERY_CONSUME_QUEUE (321).
    ///
    /// Source: Apache RocketMQ 4.9.8, `QueryConsumeQueueRequestHeader`.
    QueryConsumeQueueRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The queue.
        queue_id: i32, b"queueId";
        /// First entry, in messages.
        index: i64, b"index";
        /// Most entries.
        count: i32, b"count";
        /// A group whose filter is shown, too.
        consumer_group: Option<Cow<'a, str>>, b"consumerGroup";
    }
}

header! {
    /// The answer to GET_BROKER_CONFIG (26); its body is properties text.
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetBrokerConfigResponseHeader`.
    BrokerConfigResponse<'a> {
        /// The topic table's data version, as JSON.
        version: Cow<'a, str>, b"version";
    }
}
