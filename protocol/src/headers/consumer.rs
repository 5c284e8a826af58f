//! Clients and their groups: requests 35, 36, 38, 40, 220, 221, 307 and 309.

use alloc::borrow::Cow;

use super::header;

header! {
    /// UNREGISTER_CLIENT (35). C++ sends an empty text for the group that it does not mean.
    ///
    /// Source: Apache RocketMQ 4.9.8, `UnregisterClientRequestHeader`.
    UnregisterClientRequest<'a> {
        /// The client's id.
        client_id: Cow<'a, str>, b"clientID";
        /// Producer group to leave.
        producer_group: Option<Cow<'a, str>>, b"producerGroup";
        /// Consumer group to leave.
        consumer_group: Option<Cow<'a, str>>, b"consumerGroup";
    }
}

header! {
    /// CONSUMER_SEND_MSG_BACK (36): deliver a message again, later.
    ///
    /// Source: Apache RocketMQ 4.9.8, `ConsumerSendMsgBackRequestHeader`.
    SendBackRequest<'a> {
        /// Position of the message in the log, in bytes.
        log_offset: i64, b"offset";
        /// The consumer group.
        group: Cow<'a, str>, b"group";
        /// -1 dead letters at once, 0 the broker decides, else a delay level.
        delay_level: i32, b"delayLevel";
        /// The message's unique id.
        origin_msg_id: Option<Cow<'a, str>>, b"originMsgId";
        /// The message's topic.
        origin_topic: Option<Cow<'a, str>>, b"originTopic";
        /// Legacy.
        unit_mode: bool, b"unitMode" = false;
        /// After how many deliveries the message goes to the dead letters.
        max_reconsume_times: Option<i32>, b"maxReconsumeTimes";
        /// The broker that the client believes to talk to.
        broker_name: Option<Cow<'a, str>>, b"bname";
    }
}

header! {
    /// Requests that name a consumer group only: GET_CONSUMER_LIST_BY_GROUP (38),
    /// NOTIFY_CONSUMER_IDS_CHANGED (40), GET_CONSUMER_CONNECTION_LIST (203).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetConsumerListByGroupRequestHeader` and its siblings.
    ConsumerGroupRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
    }
}

header! {
    /// RESET_CONSUMER_CLIENT_OFFSET (220), broker to client; the body names the offsets.
    ///
    /// Source: Apache RocketMQ 4.9.8, `ResetOffsetRequestHeader`.
    ResetOffsetRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The group.
        group: Cow<'a, str>, b"group";
        /// Milliseconds since 1970; -1 means the end of the queues.
        timestamp_ms: i64, b"timestamp";
        /// Whether offsets may also go forward.
        is_force: bool, b"isForce" = false;
        /// 5.x: one queue, or -1 for all.
        queue_id: Option<i32>, b"queueId";
        /// 5.x: an explicit offset in messages.
        offset: Option<i64>, b"offset";
    }
}

header! {
    /// GET_CONSUMER_STATUS_FROM_CLIENT (221) and INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetConsumerStatusRequestHeader`.
    ConsumerStatusRequest<'a> {
        /// The topic.
        topic: Cow<'a, str>, b"topic";
        /// The group.
        group: Cow<'a, str>, b"group";
        /// A client id to restrict the question to.
        client_addr: Option<Cow<'a, str>>, b"clientAddr";
    }
}

header! {
    /// GET_CONSUMER_RUNNING_INFO (307).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetConsumerRunningInfoRequestHeader`.
    ConsumerRunningInfoRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The client asked.
        client_id: Cow<'a, str>, b"clientId";
        /// Whether a thread dump is wanted.
        jstack_enable: bool, b"jstackEnable" = false;
    }
}

header! {
    /// CONSUME_MESSAGE_DIRECTLY (309).
    ///
    /// Source: Apache RocketMQ 5.3.3, `ConsumeMessageDirectlyResultRequestHeader`.
    ConsumeDirectlyRequest<'a> {
        /// The group.
        consumer_group: Cow<'a, str>, b"consumerGroup";
        /// The client asked; absent lets the broker choose.
        client_id: Option<Cow<'a, str>>, b"clientId";
        /// Offset message id of the message.
        msg_id: Option<Cow<'a, str>>, b"msgId";
        /// The broker that has the message.
        broker_name: Option<Cow<'a, str>>, b"brokerName";
        /// 5.x: the message's topic.
        topic: Option<Cow<'a, str>>, b"topic";
    }
}
