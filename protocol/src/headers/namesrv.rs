//! Name server: registration, KV configuration, write permissions.

use alloc::borrow::Cow;

use super::header;

header! {
    /// REGISTER_BROKER (103).
    ///
    /// Source: Apache RocketMQ 5.3.3, `RegisterBrokerRequestHeader`; the zone is
    /// `MixAll.ZONE_NAME`.
    RegisterBrokerRequest<'a> {
        /// The broker's name, shared by a master and its replicas.
        broker_name: Cow<'a, str>, b"brokerName";
        /// `ip:port` that clients dial.
        broker_addr: Cow<'a, str>, b"brokerAddr";
        /// The cluster.
        cluster_name: Cow<'a, str>, b"clusterName";
        /// `ip:port` that replicas dial.
        ha_server_addr: Cow<'a, str>, b"haServerAddr";
        /// 0 is the master.
        broker_id: i64, b"brokerId";
        /// Whether the body is a zlib stream of the text form.
        compressed: bool, b"compressed" = false;
        /// Masked CRC-32 of the body; 0 is not checked.
        body_crc32: i32, b"bodyCrc32" = 0;
        /// 5.x: how long the registration holds.
        heartbeat_timeout_ms: Option<i64>, b"heartbeatTimeoutMillis";
        /// 5.x: whether a replica may act as master.
        enable_acting_master: Option<bool>, b"enableActingMaster";
        /// 5.x: the broker's zone.
        zone_name: Option<Cow<'a, str>>, b"__ZONE_NAME";
    }
}

header! {
    /// The answer to REGISTER_BROKER (103); its body is a KV table or absent.
    ///
    /// Source: Apache RocketMQ 4.9.8, `RegisterBrokerResponseHeader`.
    RegisterBrokerResponse<'a> {
        /// For replicas: where the master's replication listens.
        ha_server_addr: Option<Cow<'a, str>>, b"haServerAddr";
        /// For replicas: the master's address.
        master_addr: Option<Cow<'a, str>>, b"masterAddr";
    }
}

header! {
    /// UNREGISTER_BROKER (104) and QUERY_DATA_VERSION (322).
    ///
    /// Source: Apache RocketMQ 4.9.8, `UnRegisterBrokerRequestHeader`,
    /// `QueryDataVersionRequestHeader`.
    BrokerIdentity<'a> {
        /// The broker's name.
        broker_name: Cow<'a, str>, b"brokerName";
        /// `ip:port` that clients dial.
        broker_addr: Cow<'a, str>, b"brokerAddr";
        /// The cluster.
        cluster_name: Cow<'a, str>, b"clusterName";
        /// 0 is the master.
        broker_id: i64, b"brokerId";
    }
}

header! {
    /// The answer to QUERY_DATA_VERSION (322); its body is the data version known so far.
    ///
    /// Source: Apache RocketMQ 4.9.8, `QueryDataVersionResponseHeader`.
    QueryDataVersionResponse {
        /// Whether the broker has to register again.
        changed: bool, b"changed";
    }
}

header! {
    /// BROKER_HEARTBEAT (904) of 5.x.
    ///
    /// Source: Apache RocketMQ 5.3.3, `BrokerHeartbeatRequestHeader`.
    BrokerHeartbeatRequest<'a> {
        /// The cluster.
        cluster_name: Cow<'a, str>, b"clusterName";
        /// `ip:port` that clients dial.
        broker_addr: Cow<'a, str>, b"brokerAddr";
        /// The broker's name.
        broker_name: Cow<'a, str>, b"brokerName";
        /// 0 is the master.
        broker_id: Option<i64>, b"brokerId";
    }
}

header! {
    /// PUT_KV_CONFIG (100).
    ///
    /// Source: Apache RocketMQ 4.9.8, `PutKVConfigRequestHeader`.
    PutKvRequest<'a> {
        /// The namespace, such as `ORDER_TOPIC_CONFIG`.
        namespace: Cow<'a, str>, b"namespace";
        /// The key.
        key: Cow<'a, str>, b"key";
        /// The value.
        value: Cow<'a, str>, b"value";
    }
}

header! {
    /// GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetKVConfigRequestHeader`.
    KvKeyRequest<'a> {
        /// The namespace.
        namespace: Cow<'a, str>, b"namespace";
        /// The key.
        key: Cow<'a, str>, b"key";
    }
}

header! {
    /// The answer to GET_KV_CONFIG (101).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetKVConfigResponseHeader`.
    KvValueResponse<'a> {
        /// The value.
        value: Option<Cow<'a, str>>, b"value";
    }
}

header! {
    /// GET_KVLIST_BY_NAMESPACE (219).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetKVListByNamespaceRequestHeader`.
    KvNamespaceRequest<'a> {
        /// The namespace.
        namespace: Cow<'a, str>, b"namespace";
    }
}

header! {
    /// WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327).
    ///
    /// Source: Apache RocketMQ 4.9.8, `WipeWritePermOfBrokerRequestHeader`.
    BrokerNameRequest<'a> {
        /// The broker's name.
        broker_name: Cow<'a, str>, b"brokerName";
    }
}

header! {
    /// The answer to 205.
    ///
    /// Source: Apache RocketMQ 4.9.8, `WipeWritePermOfBrokerResponseHeader`.
    WipeWritePermResponse {
        /// Topics whose queues on the broker lost the permission.
        wipe_topic_count: i32, b"wipeTopicCount";
    }
}

header! {
    /// The answer to 327.
    ///
    /// Source: Apache RocketMQ 4.9.8, `AddWritePermOfBrokerResponseHeader`.
    AddWritePermResponse {
        /// Topics whose queues on the broker got the permission.
        add_topic_count: i32, b"addTopicCount";
    }
}

header! {
    /// GET_TOPICS_BY_CLUSTER (224).
    ///
    /// Source: Apache RocketMQ 4.9.8, `GetTopicsByClusterRequestHeader`.
    ClusterRequest<'a> {
        /// The cluster.
        cluster: Cow<'a, str>, b"cluster";
    }
}

header! {
    /// GET_BROKER_MEMBER_GROUP (901) of 5.x.
    ///
    /// Source: Apache RocketMQ 5.3.3, `GetBrokerMemberGroupRequestHeader`.
    BrokerMemberGroupRequest<'a> {
        /// The cluster.
        cluster_name: Cow<'a, str>, b"clusterName";
        /// The broker's name.
        broker_name: Cow<'a, str>, b"brokerName";
    }
}
