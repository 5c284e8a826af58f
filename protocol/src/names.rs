//! Names of topics and groups: which are allowed, and which mean something.
//!
//! An allowed name has no slash and no dot, so that it can never become a path.
//!
//! Source: Apache RocketMQ 4.9.8, `TopicValidator`, `Validators`, `MixAll`, `PermName`.

use alloc::{format, string::String};
use core::fmt;

use crate::limits::{GROUP_LEN_MAX, TOPIC_LEN_MAX};

/// Template for topics that are created by their first message.
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
/// Delayed messages wait here, one queue for each level.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// For upstream's benchmark programs.
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
/// Half messages of transactions.
pub const TRANS_HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Notes that a half message is settled.
pub const TRANS_OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Half messages that nobody settled.
pub const TRANS_CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// Message traces.
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
/// Upstream's self test.
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
/// Notes about pulls outside a queue.
pub const OFFSET_MOVED_EVENT_TOPIC: &str = "OFFSET_MOVED_EVENT";
/// Start of the names of 5.x system topics.
pub const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";
/// Start of the name of a group's retry topic.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Start of the name of a group's dead letter topic.
pub const DLQ_PREFIX: &str = "%DLQ%";
/// End of the name of a cluster's topic for replies.
pub const REPLY_SUFFIX: &str = "_REPLY_TOPIC";
/// Start of the names of groups that brokers use themselves.
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";
/// The producer group inside every Java client.
pub const CLIENT_INNER_PRODUCER: &str = "CLIENT_INNER_PRODUCER";

/// Consumer groups that exist on every broker from its start.
pub const BUILT_IN_GROUPS: [&str; 7] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
];

/// Topics that clients may not send to: answer `NO_PERMISSION`.
const NOT_FOR_CLIENTS: [&str; 6] = [
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT_TOPIC,
];

/// System topics that clients may send to.
const FOR_CLIENTS: [&str; 3] = [AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC];

/// What a topic allows. Source: `PermName`.
pub mod perm {
    /// Queues take precedence; unused upstream.
    pub const PRIORITY: i32 = 8;
    /// Consumers may pull.
    pub const READ: i32 = 4;
    /// Producers may send.
    pub const WRITE: i32 = 2;
    /// The topic may be the template of new ones.
    pub const INHERIT: i32 = 1;
}

/// Why a name is refused. `Display` is the remark that upstream's broker answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// Empty, or white space only.
    Blank,
    /// Characters other than `%`, `|`, `-`, `_`, letters and digits of ASCII.
    Illegal,
    /// Longer than [`TOPIC_LEN_MAX`] or [`GROUP_LEN_MAX`].
    TooLong,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blank => "The specified topic is blank.",
            Self::Illegal => {
                "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
            }
            Self::TooLong => "The specified topic is longer than topic max length.",
        })
    }
}

impl core::error::Error for NameError {}

fn validate(name: &str, len_max: usize) -> Result<(), NameError> {
    if name.trim().is_empty() {
        return Err(NameError::Blank);
    }
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'-' | b'_');
    if !name.bytes().all(legal) {
        return Err(NameError::Illegal);
    }
    if name.len() > len_max { Err(NameError::TooLong) } else { Ok(()) }
}

/// Checks a topic's name.
///
/// # Errors
///
/// [`NameError`]: refuse the request. Upstream answers `SYSTEM_ERROR` in 4.9 and
/// `INVALID_PARAMETER` in 5.x.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `TopicValidator.validateTopic`.
pub fn validate_topic(name: &str) -> Result<(), NameError> {
    validate(name, TOPIC_LEN_MAX)
}

/// Checks a group's name. The texts of [`NameError`] speak of a topic.
///
/// # Errors
///
/// [`NameError`]: refuse the request.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `Validators.checkGroup`.
pub fn validate_group(name: &str) -> Result<(), NameError> {
    validate(name, GROUP_LEN_MAX)
}

/// The topic where a group's failed messages come again.
pub fn retry_topic(group: &str) -> String {
    format!("{RETRY_PREFIX}{group}")
}

/// The topic where a group's messages end that failed too often.
pub fn dlq_topic(group: &str) -> String {
    format!("{DLQ_PREFIX}{group}")
}

/// The group of a retry topic, or `None` for another topic.
pub fn group_of_retry_topic(topic: &str) -> Option<&str> {
    topic.strip_prefix(RETRY_PREFIX)
}

/// Whether clients may not send to the topic.
pub fn is_not_for_clients(topic: &str) -> bool {
    NOT_FOR_CLIENTS.contains(&topic)
}

/// Whether admin requests may not create or change the topic. The topics named after cluster and
/// broker, and the cluster's reply topic, are system topics as well; their names are known to the
/// broker.
pub fn is_system_topic(topic: &str) -> bool {
    is_not_for_clients(topic)
        || FOR_CLIENTS.contains(&topic)
        || topic.starts_with(SYSTEM_TOPIC_PREFIX)
}

/// Whether a group is created on demand even where automatic creation is off.
pub fn is_system_group(group: &str) -> bool {
    group.starts_with(SYSTEM_GROUP_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_paths() {
        for bad in ["../x", "a/b", "a.b", "a b", "a\0", "\u{8ba2}", "a\\b"] {
            assert_eq!(validate_topic(bad), Err(NameError::Illegal), "{bad:?}");
        }
        assert_eq!(validate_topic(""), Err(NameError::Blank));
        assert_eq!(validate_topic(" "), Err(NameError::Blank));
        assert_eq!(validate_topic("%RETRY%a|b-c_D9"), Ok(()));
    }

    #[test]
    fn lengths_are_upstreams() {
        assert_eq!(validate_topic(&"a".repeat(127)), Ok(()));
        assert_eq!(validate_topic(&"a".repeat(128)), Err(NameError::TooLong));
        assert_eq!(validate_group(&"a".repeat(255)), Ok(()));
        assert_eq!(validate_group(&"a".repeat(256)), Err(NameError::TooLong));
    }

    #[test]
    fn system_topics_are_told_apart() {
        assert!(is_system_topic("TBW102") && !is_not_for_clients("TBW102"));
        assert!(
            is_system_topic("SCHEDULE_TOPIC_XXXX") && is_not_for_clients("SCHEDULE_TOPIC_XXXX")
        );
        assert!(is_system_topic("rmq_sys_anything") && !is_not_for_clients("rmq_sys_anything"));
        assert!(!is_system_topic("TopicTest"));
        assert_eq!(group_of_retry_topic(&retry_topic("g")), Some("g"));
        assert_eq!(group_of_retry_topic(&dlq_topic("g")), None);
    }
}
