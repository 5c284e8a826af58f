//! Topics: requests 17, 215, 216 and those that name a topic only.

use alloc::borrow::Cow;

use super::header;

header! {
    /// UPDATE_AND_CREATE_TOPIC (17).
    ///
    /// Source: Apache RocketMQ 5.3.3, `CreateTopicRequestHeader`.
    CreateTopicRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// Template topic, not used by brokers.
        default_topic: Cow<'a, str>, b"defaultTopic";
        /// Queues to read from.
        read_queue_nums: i32, b"readQueueNums";
        /// Queues to write to.
        write_queue_nums: i32, b"writeQueueNums";
        /// Bits of [`crate::names::perm`].
        perm: i32, b"perm";
        /// `SINGLE_TAG` or `MULTI_TAG`.
        topic_filter_type: Cow<'a, str>, b"topicFilterType";
        /// Bits of the topic's flag.
        topic_sys_flag: Option<i32>, b"topicSysFlag";
        /// Whether queue counts are fixed for ordering; 4.9.8 ignores it.
        order: bool, b"order" = false;
        /// 5.x: `+key=value,-key`.
        attributes: Option<Cow<'a, str>>, b"attributes";
        /// 5.x: static topics.
        force: Option<bool>, b"force";
    }
}

header! {
    /// Requests that name a topic only: DELETE_TOPIC_IN_BROKER (215), GET_TOPIC_STATS_INFO (202),
    /// QUERY_TOPIC_CONSUME_BY_WHO (300), GET_TOPIC_CONFIG (351).
    ///
    /// Source: Apache RocketMQ 4.9.8, `DeleteTopicRequestHeader` and its siblings.
    TopicRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
    }
}

header! {
    /// DELETE_TOPIC_IN_NAMESRV (216).
    ///
    /// Source: Apache RocketMQ 4.9.8, `DeleteTopicFromNamesrvRequestHeader`.
    DeleteTopicInNamesrvRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// Only brokers of this cluster, if present.
        cluster_name: Option<Cow<'a, str>>, b"clusterName";
    }
}

header! {
    /// GET_ROUTEINFO_BY_TOPIC (105).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetRouteInfoRequestHeader`.
    RouteRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// Whether only standard JSON is understood.
        accept_standard_json_only: Option<bool>, b"acceptStandardJsonOnly";
    }
}
