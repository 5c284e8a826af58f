//! Request codes, response codes and version ordinals.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `RequestCode`, `ResponseCode`, `RemotingSysResponseCode`,
//! `MQVersion`.

/// Ordinal of 4.9.8 in upstream's `MQVersion`: what every header that this project writes carries.
pub const VERSION_4_9_8: i32 = 409;

/// Ordinal of 5.0.0: requesters at or above it may be answered in the 5.x way.
pub const VERSION_5_0_0: i32 = 413;

/// From this version on a request's `maxReconsumeTimes` is honoured (`V3_4_9`).
pub const VERSION_MAX_RECONSUME_TIMES: i32 = 121;

/// From this version on a client answers requests 307 and 309 (`V3_1_8_SNAPSHOT`).
pub const VERSION_CALL_CONSUMER: i32 = 62;

/// From this version on a client understands requests 220 and 221 (`V3_0_7_SNAPSHOT`).
pub const VERSION_RESET_OFFSET: i32 = 28;

/// From this version on route JSON is standard, with quoted keys (`V4_9_4`).
pub const VERSION_STANDARD_ROUTE_JSON: i32 = 401;

/// From this version on a broker registers with a `RegisterBrokerBody` (`V3_0_11`).
pub const VERSION_REGISTER_BODY: i32 = 37;

macro_rules! codes {
    ($(#[$meta:meta])* $module:ident { $($name:ident = $code:literal, $doc:literal;)* }) => {
        $(#[$meta])*
        pub mod $module {
            $(
                #[doc = $doc]
                pub const $name: i32 = $code;
            )*

            /// Upstream's name of a code, for logs; `None` for a code that no version defines.
            pub const fn name(code: i32) -> Option<&'static str> {
                match code {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// What a request asks for. Codes above `i16::MAX` need a JSON header.
    request {
        SEND_MESSAGE = 10, "Client to broker.";
        PULL_MESSAGE = 11, "Client to broker.";
        QUERY_MESSAGE = 12, "Client or admin tool to broker.";
        QUERY_BROKER_OFFSET = 13, "Defined upstream, without sender or handler.";
        QUERY_CONSUMER_OFFSET = 14, "Client to broker.";
        UPDATE_CONSUMER_OFFSET = 15, "Client to broker.";
        UPDATE_AND_CREATE_TOPIC = 17, "Client or admin tool to broker.";
        UPDATE_AND_CREATE_TOPIC_LIST = 18, "Admin tool to broker.";
        GET_ALL_TOPIC_CONFIG = 21, "Replica or admin tool to broker.";
        GET_TOPIC_CONFIG_LIST = 22, "Defined upstream, without sender or handler.";
        GET_TOPIC_NAME_LIST = 23, "Defined upstream, without sender or handler.";
        UPDATE_BROKER_CONFIG = 25, "Admin tool to broker.";
        GET_BROKER_CONFIG = 26, "Admin tool to broker.";
        TRIGGER_DELETE_FILES = 27, "Defined upstream, without sender or handler.";
        GET_BROKER_RUNTIME_INFO = 28, "Admin tool to broker.";
        SEARCH_OFFSET_BY_TIMESTAMP = 29, "Client or admin tool to broker.";
        GET_MAX_OFFSET = 30, "Client or admin tool to broker.";
        GET_MIN_OFFSET = 31, "Client or admin tool to broker.";
        GET_EARLIEST_MSG_STORETIME = 32, "Client or admin tool to broker.";
        VIEW_MESSAGE_BY_ID = 33, "Client or admin tool to broker.";
        HEART_BEAT = 34, "Client to broker.";
        UNREGISTER_CLIENT = 35, "Client to broker.";
        CONSUMER_SEND_MSG_BACK = 36, "Client to broker.";
        END_TRANSACTION = 37, "Client to broker.";
        GET_CONSUMER_LIST_BY_GROUP = 38, "Client to broker.";
        CHECK_TRANSACTION_STATE = 39, "Broker to client, oneway.";
        NOTIFY_CONSUMER_IDS_CHANGED = 40, "Broker to client, oneway.";
        LOCK_BATCH_MQ = 41, "Client to broker.";
        UNLOCK_BATCH_MQ = 42, "Client to broker.";
        GET_ALL_CONSUMER_OFFSET = 43, "Replica to broker.";
        GET_ALL_DELAY_OFFSET = 45, "Replica to broker.";
        CHECK_CLIENT_CONFIG = 46, "Client to broker.";
        GET_CLIENT_CONFIG = 47, "Defined upstream, without sender or handler.";
        UPDATE_AND_CREATE_ACL_CONFIG = 50, "Admin tool to broker.";
        DELETE_ACL_CONFIG = 51, "Admin tool to broker.";
        GET_BROKER_CLUSTER_ACL_INFO = 52, "Admin tool to broker.";
        UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53, "Admin tool to broker.";
        GET_TIMER_CHECK_POINT = 60, "Replica or admin tool to broker.";
        GET_TIMER_METRICS = 61, "Replica or admin tool to broker.";
        PUT_KV_CONFIG = 100, "Admin tool to name server.";
        GET_KV_CONFIG = 101, "Admin tool to name server.";
        DELETE_KV_CONFIG = 102, "Admin tool to name server.";
        REGISTER_BROKER = 103, "Broker to name server.";
        UNREGISTER_BROKER = 104, "Broker to name server.";
        GET_ROUTEINFO_BY_TOPIC = 105, "Client to name server.";
        GET_BROKER_CLUSTER_INFO = 106, "Client or admin tool to name server.";
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200, "Admin tool or replica to broker.";
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201, "Admin tool or replica to broker.";
        GET_TOPIC_STATS_INFO = 202, "Admin tool to broker.";
        GET_CONSUMER_CONNECTION_LIST = 203, "Admin tool to broker.";
        GET_PRODUCER_CONNECTION_LIST = 204, "Admin tool to broker.";
        WIPE_WRITE_PERM_OF_BROKER = 205, "Admin tool to name server.";
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206, "Admin tool to name server.";
        DELETE_SUBSCRIPTIONGROUP = 207, "Admin tool or replica to broker.";
        GET_CONSUME_STATS = 208, "Admin tool to broker.";
        SUSPEND_CONSUMER = 209, "Defined upstream, without sender or handler.";
        RESUME_CONSUMER = 210, "Defined upstream, without sender or handler.";
        RESET_CONSUMER_OFFSET_IN_CONSUMER = 211, "Defined upstream, without sender or handler.";
        RESET_CONSUMER_OFFSET_IN_BROKER = 212, "Defined upstream, without sender or handler.";
        ADJUST_CONSUMER_THREAD_POOL = 213, "Defined upstream, without sender or handler.";
        WHO_CONSUME_THE_MESSAGE = 214, "Defined upstream, without sender or handler.";
        DELETE_TOPIC_IN_BROKER = 215, "Admin tool to broker or name server, by its name.";
        DELETE_TOPIC_IN_NAMESRV = 216, "Admin tool to broker or name server, by its name.";
        REGISTER_TOPIC_IN_NAMESRV = 217, "Admin tool to name server.";
        GET_KVLIST_BY_NAMESPACE = 219, "Admin tool or broker to name server.";
        RESET_CONSUMER_CLIENT_OFFSET = 220, "Broker to client, oneway.";
        GET_CONSUMER_STATUS_FROM_CLIENT = 221, "Broker to client, answered.";
        INVOKE_BROKER_TO_RESET_OFFSET = 222, "Admin tool to broker.";
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223, "Admin tool to broker.";
        GET_TOPICS_BY_CLUSTER = 224, "Admin tool to name server.";
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225, "Admin tool to broker.";
        QUERY_TOPIC_CONSUME_BY_WHO = 300, "Admin tool to broker.";
        REGISTER_FILTER_SERVER = 301, "From filter servers of 4.x; not used any more.";
        REGISTER_MESSAGE_FILTER_CLASS = 302, "From filter servers of 4.x; not used any more.";
        QUERY_CONSUME_TIME_SPAN = 303, "Admin tool to broker.";
        GET_SYSTEM_TOPIC_LIST_FROM_NS = 304, "Admin tool to name server or broker, by its name.";
        GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305, "Admin tool to name server or broker, by its name.";
        CLEAN_EXPIRED_CONSUMEQUEUE = 306, "Admin tool to broker.";
        GET_CONSUMER_RUNNING_INFO = 307, "Admin tool to broker, and on from broker to client.";
        QUERY_CORRECTION_OFFSET = 308, "Admin tool to broker.";
        CONSUME_MESSAGE_DIRECTLY = 309, "Admin tool to broker, and on from broker to client.";
        SEND_MESSAGE_V2 = 310, "Client to broker.";
        GET_UNIT_TOPIC_LIST = 311, "Admin tool to name server.";
        GET_HAS_UNIT_SUB_TOPIC_LIST = 312, "Admin tool to name server.";
        GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313, "Admin tool to name server.";
        CLONE_GROUP_OFFSET = 314, "Admin tool to broker.";
        VIEW_BROKER_STATS_DATA = 315, "Admin tool to broker.";
        CLEAN_UNUSED_TOPIC = 316, "Admin tool to broker.";
        GET_BROKER_CONSUME_STATS = 317, "Admin tool to broker.";
        UPDATE_NAMESRV_CONFIG = 318, "Admin tool to name server.";
        GET_NAMESRV_CONFIG = 319, "Admin tool to name server.";
        SEND_BATCH_MESSAGE = 320, "Client to broker.";
        QUERY_CONSUME_QUEUE = 321, "Admin tool to broker.";
        QUERY_DATA_VERSION = 322, "Broker to name server.";
        RESUME_CHECK_HALF_MESSAGE = 323, "Admin tool to broker.";
        SEND_REPLY_MESSAGE = 324, "Client to broker.";
        SEND_REPLY_MESSAGE_V2 = 325, "Client to broker.";
        PUSH_REPLY_MESSAGE_TO_CLIENT = 326, "Broker to client, answered.";
        ADD_WRITE_PERM_OF_BROKER = 327, "Admin tool to name server.";
        GET_ALL_PRODUCER_INFO = 328, "Admin tool to broker.";
        DELETE_EXPIRED_COMMITLOG = 329, "Admin tool to broker.";
        QUERY_TOPICS_BY_CONSUMER = 343, "Admin tool to broker.";
        QUERY_SUBSCRIPTION_BY_CONSUMER = 345, "Admin tool to broker.";
        GET_TOPIC_CONFIG = 351, "Admin tool to broker.";
        GET_SUBSCRIPTIONGROUP_CONFIG = 352, "Admin tool to broker.";
        UPDATE_AND_GET_GROUP_FORBIDDEN = 353, "Admin tool to broker.";
        CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354, "Admin tool to broker.";
        EXPORT_ROCKSDB_CONFIG_TO_JSON = 355, "Admin tool to broker.";
        LITE_PULL_MESSAGE = 361, "Client to broker.";
        RECALL_MESSAGE = 370, "Client to broker.";
        QUERY_ASSIGNMENT = 400, "Client to broker.";
        SET_MESSAGE_REQUEST_MODE = 401, "Admin tool or replica to broker.";
        GET_ALL_MESSAGE_REQUEST_MODE = 402, "Admin tool or replica to broker.";
        UPDATE_AND_CREATE_STATIC_TOPIC = 513, "Admin tool to broker.";
        GET_BROKER_MEMBER_GROUP = 901, "Broker to name server, or admin tool to broker container.";
        ADD_BROKER = 902, "Broker to name server, or admin tool to broker container.";
        REMOVE_BROKER = 903, "Broker to name server, or admin tool to broker container.";
        BROKER_HEARTBEAT = 904, "Broker to name server or controller.";
        NOTIFY_MIN_BROKER_ID_CHANGE = 905, "Between brokers and name servers.";
        EXCHANGE_BROKER_HA_INFO = 906, "Between brokers and name servers.";
        GET_BROKER_HA_STATUS = 907, "Between brokers and name servers.";
        RESET_MASTER_FLUSH_OFFSET = 908, "Between brokers and name servers.";
        CONTROLLER_ALTER_SYNC_STATE_SET = 1001, "Controller traffic of 5.x.";
        CONTROLLER_ELECT_MASTER = 1002, "Controller traffic of 5.x.";
        CONTROLLER_REGISTER_BROKER = 1003, "Controller traffic of 5.x.";
        CONTROLLER_GET_REPLICA_INFO = 1004, "Controller traffic of 5.x.";
        CONTROLLER_GET_METADATA_INFO = 1005, "Controller traffic of 5.x.";
        CONTROLLER_GET_SYNC_STATE_DATA = 1006, "Controller traffic of 5.x.";
        GET_BROKER_EPOCH_CACHE = 1007, "Controller traffic of 5.x.";
        NOTIFY_BROKER_ROLE_CHANGED = 1008, "Controller traffic of 5.x.";
        CONTROLLER_UPDATE_CONTROLLER_CONFIG = 1009, "Controller traffic of 5.x.";
        CONTROLLER_GET_CONTROLLER_CONFIG = 1010, "Controller traffic of 5.x.";
        CONTROLLER_CLEAN_BROKER_DATA = 1011, "Controller traffic of 5.x.";
        CONTROLLER_GET_NEXT_BROKER_ID = 1012, "Controller traffic of 5.x.";
        CONTROLLER_APPLY_BROKER_ID = 1013, "Controller traffic of 5.x.";
        BROKER_CLOSE_CHANNEL = 1014, "Raft-internal traffic of 5.x controllers.";
        CHECK_NOT_ACTIVE_BROKER = 1015, "Raft-internal traffic of 5.x controllers.";
        GET_BROKER_LIVE_INFO = 1016, "Raft-internal traffic of 5.x controllers.";
        RAFT_GET_SYNC_STATE_DATA = 1017, "Raft-internal traffic of 5.x controllers.";
        RAFT_BROKER_HEART_BEAT_EVENT = 1018, "Raft-internal traffic of 5.x controllers.";
        UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001, "Admin tool to broker.";
        REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002, "Admin tool to broker.";
        GET_COLD_DATA_FLOW_CTR_INFO = 2003, "Admin tool to broker.";
        SET_COMMITLOG_READ_MODE = 2004, "Admin tool to broker.";
        AUTH_CREATE_USER = 3001, "Admin tool to broker.";
        AUTH_UPDATE_USER = 3002, "Admin tool to broker.";
        AUTH_DELETE_USER = 3003, "Admin tool to broker.";
        AUTH_GET_USER = 3004, "Admin tool to broker.";
        AUTH_LIST_USER = 3005, "Admin tool to broker.";
        AUTH_CREATE_ACL = 3006, "Admin tool to broker.";
        AUTH_UPDATE_ACL = 3007, "Admin tool to broker.";
        AUTH_DELETE_ACL = 3008, "Admin tool to broker.";
        AUTH_GET_ACL = 3009, "Admin tool to broker.";
        AUTH_LIST_ACL = 3010, "Admin tool to broker.";
        POP_MESSAGE = 200050, "Client to broker.";
        ACK_MESSAGE = 200051, "Client to broker.";
        PEEK_MESSAGE = 200052, "Client to broker.";
        CHANGE_MESSAGE_INVISIBLETIME = 200053, "Client to broker.";
        NOTIFICATION = 200054, "Client to broker.";
        POLLING_INFO = 200055, "Client to broker.";
        POP_ROLLBACK = 200056, "Client to broker.";
        BATCH_ACK_MESSAGE = 200151, "Client to broker.";
    }
}

codes! {
    /// How a request ended. All fit `i16`, as Go clients demand.
    response {
        RPC_TIME_OUT = -1006, "A call between servers timed out (5.x, internal).";
        RPC_SEND_TO_CHANNEL_FAILED = -1004, "A call between servers could not be sent (5.x, internal).";
        RPC_ADDR_IS_NULL = -1002, "A call between servers had no address (5.x, internal).";
        RPC_UNKNOWN = -1000, "A call between servers failed (5.x, internal).";
        SUCCESS = 0, "Done.";
        SYSTEM_ERROR = 1, "Failed; Java producers retry on another queue.";
        SYSTEM_BUSY = 2, "Overloaded; 4.9 producers do not retry, 5.x ones do.";
        REQUEST_CODE_NOT_SUPPORTED = 3, "The receiver does not know the request code.";
        TRANSACTION_FAILED = 4, "Legacy.";
        FLUSH_DISK_TIMEOUT = 10, "Stored, but the flush did not complete in time; a send status, no failure.";
        SLAVE_NOT_AVAILABLE = 11, "Stored, but no replica was there; also END_TRANSACTION on a replica.";
        FLUSH_SLAVE_TIMEOUT = 12, "Stored, but the replica did not answer in time; a send status.";
        MESSAGE_ILLEGAL = 13, "Body, properties, topic or batch over a limit.";
        SERVICE_NOT_AVAILABLE = 14, "The store takes no writes now; producers retry elsewhere.";
        VERSION_NOT_SUPPORTED = 15, "Legacy.";
        NO_PERMISSION = 16, "Topic, group or broker does not allow it.";
        TOPIC_NOT_EXIST = 17, "Unknown topic, at broker and name server.";
        TOPIC_EXIST_ALREADY = 18, "Legacy.";
        PULL_NOT_FOUND = 19, "No message at the offset yet; clients pull again at once.";
        PULL_RETRY_IMMEDIATELY = 20, "Nothing matched; pull on from `nextBeginOffset`.";
        PULL_OFFSET_MOVED = 21, "The offset is outside the queue; push clients pause the queue for 10 s or more.";
        QUERY_NOT_FOUND = 22, "No such offset, message or value.";
        SUBSCRIPTION_PARSE_FAILED = 23, "The filter expression does not parse.";
        SUBSCRIPTION_NOT_EXIST = 24, "The group has no such subscription; its heartbeat may be on the way.";
        SUBSCRIPTION_NOT_LATEST = 25, "The group subscribed with an older version than the request names.";
        SUBSCRIPTION_GROUP_NOT_EXIST = 26, "No configuration for the group, and none may be created.";
        FILTER_DATA_NOT_EXIST = 27, "The SQL subscription has no compiled filter.";
        FILTER_DATA_NOT_LATEST = 28, "The compiled filter is older than the request.";
        INVALID_PARAMETER = 29, "A parameter is out of range (5.x).";
        TRANSACTION_SHOULD_COMMIT = 200, "Legacy.";
        TRANSACTION_SHOULD_ROLLBACK = 201, "Legacy.";
        TRANSACTION_STATE_UNKNOW = 202, "Legacy; spelling as upstream.";
        TRANSACTION_STATE_GROUP_WRONG = 203, "Legacy.";
        NO_BUYER_ID = 204, "Legacy; producers retry it.";
        NOT_IN_CURRENT_UNIT = 205, "Legacy; producers retry it.";
        CONSUMER_NOT_ONLINE = 206, "No member of the group is connected.";
        CONSUME_MSG_TIMEOUT = 207, "The client did not answer a forwarded request in time.";
        NO_MESSAGE = 208, "The offset has no message (5.x ACK).";
        POLLING_FULL = 209, "Too many polls wait (5.x; in 4.x UPDATE_AND_CREATE_ACL_CONFIG_FAILED).";
        POLLING_TIMEOUT = 210, "The poll ended without a message (5.x; in 4.x DELETE_ACL_CONFIG_FAILED).";
        BROKER_NOT_EXIST = 211, "Unknown broker (5.x; in 4.x UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED).";
        BROKER_DISPATCH_NOT_COMPLETE = 212, "The queue index lags behind the log (5.x).";
        BROADCAST_CONSUMPTION = 213, "The group consumes by broadcasting (5.x).";
        FLOW_CONTROL = 215, "Too fast; pull clients wait 20 ms.";
        NOT_LEADER_FOR_QUEUE = 501, "Another broker owns the static queue (5.x).";
        ILLEGAL_OPERATION = 604, "Not allowed in this state (5.x).";
        GO_AWAY = 1500, "The server shuts down; connect again (5.x).";
        CONTROLLER_FENCED_MASTER_EPOCH = 2000, "Answer of a 5.x controller.";
        CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001, "Answer of a 5.x controller.";
        CONTROLLER_INVALID_MASTER = 2002, "Answer of a 5.x controller.";
        CONTROLLER_INVALID_REPLICAS = 2003, "Answer of a 5.x controller.";
        CONTROLLER_MASTER_NOT_AVAILABLE = 2004, "Answer of a 5.x controller.";
        CONTROLLER_INVALID_REQUEST = 2005, "Answer of a 5.x controller.";
        CONTROLLER_BROKER_NOT_ALIVE = 2006, "Answer of a 5.x controller.";
        CONTROLLER_NOT_LEADER = 2007, "Answer of a 5.x controller.";
        CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008, "Answer of a 5.x controller.";
        CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009, "Answer of a 5.x controller.";
        CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010, "Answer of a 5.x controller.";
        CONTROLLER_MASTER_STILL_EXIST = 2011, "Answer of a 5.x controller.";
        CONTROLLER_ELECT_MASTER_FAILED = 2012, "Answer of a 5.x controller.";
        CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013, "Answer of a 5.x controller.";
        CONTROLLER_BROKER_ID_INVALID = 2014, "Answer of a 5.x controller.";
        CONTROLLER_JRAFT_INTERNAL_ERROR = 2015, "Answer of a 5.x controller.";
        CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016, "Answer of a 5.x controller.";
        USER_NOT_EXIST = 3001, "Unknown user (5.x ACL).";
        POLICY_NOT_EXIST = 3002, "Unknown policy (5.x ACL).";
    }
}

#[cfg(test)]
mod tests {
    use super::{request, response};

    #[test]
    fn codes_have_upstreams_names() {
        assert_eq!(request::name(310), Some("SEND_MESSAGE_V2"));
        assert_eq!(request::name(200_050), Some("POP_MESSAGE"));
        assert_eq!(request::name(16), None);
        assert_eq!(response::name(22), Some("QUERY_NOT_FOUND"));
        assert_eq!(response::QUERY_NOT_FOUND, 22);
    }
}
