//! What can go wrong, by what the application can do about it.

use std::{fmt, io, time::Duration};

use ringmq_protocol::codes::response;

use crate::QueueOffset;

/// Why a call failed. [`Error::retry_can_help`] says whether the same call may succeed later,
/// [`Error::outcome_is_unknown`] whether it may have succeeded already.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection to this address. Nothing was sent.
    Connect {
        /// The address, as `host:port`.
        addr: String,
        /// Why.
        source: io::Error,
    },
    /// The connection ended before the answer came.
    Disconnected {
        /// The address, as `host:port`.
        addr: String,
    },
    /// No answer within the call's time.
    TimedOut {
        /// The address, as `host:port`.
        addr: String,
        /// Upstream's name of the request.
        request: &'static str,
    },
    /// As many sends were in flight as the producer allows, for the whole of the call's time.
    /// Nothing was sent.
    Busy {
        /// How many it allows.
        in_flight_max: u32,
    },
    /// A broker or name server refused the request.
    Refused {
        /// The address, as `host:port`.
        addr: String,
        /// Response code, one of `ringmq_protocol::codes::response`.
        code: i32,
        /// What the server says about it.
        remark: String,
    },
    /// No name server knows the topic, and it cannot be created by sending to it.
    NoRoute {
        /// The topic.
        topic: String,
    },
    /// The topic's route has no address for this broker name.
    NoBroker {
        /// The broker's name.
        broker_name: String,
    },
    /// The message was stored, but nobody replied to it in time.
    NoReply {
        /// Its id.
        message_id: String,
    },
    /// The input breaks a rule of the protocol.
    Invalid(Invalid),
    /// The peer answered something that is no answer to the request.
    Protocol {
        /// The address, as `host:port`.
        addr: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file with the offsets of a broadcasting consumer cannot be read or written.
    OffsetFile(io::Error),
    /// The client, producer or consumer was shut down.
    Closed,
    /// The shutdown's time was over before everything was finished.
    Unfinished {
        /// How long it was given.
        deadline: Duration,
    },
}

/// A rule that an input breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalid {
    /// Not a topic name: empty, too long, or with characters other than letters, digits and `%|-_`.
    Topic(String),
    /// Not a group name: the same rule, or a name that upstream reserves.
    Group(String),
    /// A consumer of this group exists already in this client.
    GroupInUse(String),
    /// The message has no body.
    EmptyBody,
    /// The message, or the batch, is longer than its bound. Both in bytes.
    TooLong {
        /// Its length.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// A property with this name cannot be set: the name is empty or reserved, or name or value
    /// hold one of the characters 1 and 2.
    Property(String),
    /// A batch needs one message or more, all of one topic, alike in whether they wait for the store,
    /// none delayed.
    Batch(&'static str),
    /// A selector chose a queue that there is none of.
    Selection {
        /// The index that it chose.
        index: usize,
        /// How many queues there are.
        count: usize,
    },
    /// Not a message that somebody waits for a reply to.
    NotARequest,
    /// Not a tag expression: `*`, or tags separated by `||`.
    TagExpression(String),
    /// The consumer divides its queues in another way: subscribed to with its group, all of a topic,
    /// or assigned by hand.
    Division,
    /// The consumer does not read this queue.
    NotAssigned(String),
    /// The queue does not have this offset.
    OutsideQueue {
        /// The offset.
        offset: QueueOffset,
        /// The queue's first one.
        min: QueueOffset,
        /// That of its next message.
        max: QueueOffset,
    },
    /// A setting of a consumer is 0, or above its bound.
    Setting {
        /// The method that sets it.
        name: &'static str,
        /// The bound.
        max: u64,
    },
    /// Not a list of name server addresses `host:port;host:port`.
    NameServers(String),
    /// Not the place of an address server: `host`, `host:port`, or `http://host:port/path`.
    AddressServer(String),
}

impl Error {
    /// Whether the same call may succeed later, or at another broker.
    ///
    /// ```
    /// use ringmq_client::{Error, Invalid};
    ///
    /// assert!(Error::Disconnected { addr: "127.0.0.1:10911".into() }.retry_can_help());
    /// assert!(!Error::Invalid(Invalid::EmptyBody).retry_can_help());
    /// ```
    pub const fn retry_can_help(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Disconnected { .. } | Self::TimedOut { .. } => true,
            Self::NoRoute { .. } | Self::NoBroker { .. } | Self::Busy { .. } => true,
            Self::OffsetFile(_) | Self::NoReply { .. } => true,
            Self::Refused { code, .. } => code_can_change(*code),
            Self::Invalid(_) | Self::Protocol { .. } | Self::Closed | Self::Unfinished { .. } => {
                false
            }
        }
    }

    /// Whether the server may have done what was asked although no answer says so. A message sent
    /// again after such an error may then exist twice.
    ///
    /// ```
    /// use ringmq_client::Error;
    ///
    /// assert!(Error::Disconnected { addr: "127.0.0.1:10911".into() }.outcome_is_unknown());
    /// assert!(!Error::Closed.outcome_is_unknown());
    /// ```
    pub const fn outcome_is_unknown(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. }
                | Self::TimedOut { .. }
                | Self::NoReply { .. }
                | Self::Protocol { .. }
                | Self::Unfinished { .. }
        )
    }

    /// The same error for somebody else whom it concerns as well.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Connect { addr, source } => {
                Self::Connect { addr: addr.clone(), source: source.kind().into() }
            }
            Self::Disconnected { addr } => Self::Disconnected { addr: addr.clone() },
            Self::TimedOut { addr, request } => Self::TimedOut { addr: addr.clone(), request },
            Self::Busy { in_flight_max } => Self::Busy { in_flight_max: *in_flight_max },
            Self::Refused { addr, code, remark } => {
                Self::Refused { addr: addr.clone(), code: *code, remark: remark.clone() }
            }
            Self::NoRoute { topic } => Self::NoRoute { topic: topic.clone() },
            Self::NoBroker { broker_name } => Self::NoBroker { broker_name: broker_name.clone() },
            Self::NoReply { message_id } => Self::NoReply { message_id: message_id.clone() },
            Self::Invalid(invalid) => Self::Invalid(invalid.clone()),
            Self::Protocol { addr, reason } => {
                Self::Protocol { addr: addr.clone(), reason: reason.clone() }
            }
            Self::OffsetFile(error) => Self::OffsetFile(error.kind().into()),
            Self::Closed => Self::Closed,
            Self::Unfinished { deadline } => Self::Unfinished { deadline: *deadline },
        }
    }

    /// The response code, if a server refused the request.
    pub const fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Codes that depend on the server's state and not on the request alone.
const fn code_can_change(code: i32) -> bool {
    is_retried_send(code)
        || matches!(
            code,
            response::SUBSCRIPTION_NOT_EXIST
                | response::SUBSCRIPTION_NOT_LATEST
                | response::SUBSCRIPTION_GROUP_NOT_EXIST
                | response::FLOW_CONTROL
        )
}

/// Codes after which a send is tried at another broker.
///
/// Source: Apache RocketMQ 5.3.3, `DefaultMQProducer.retryResponseCodes`; 4.9.8 has the same but
/// `SYSTEM_BUSY` and `GO_AWAY`.
pub(crate) const fn is_retried_send(code: i32) -> bool {
    matches!(
        code,
        response::SYSTEM_ERROR
            | response::SYSTEM_BUSY
            | response::SERVICE_NOT_AVAILABLE
            | response::NO_PERMISSION
            | response::TOPIC_NOT_EXIST
            | response::NO_BUYER_ID
            | response::NOT_IN_CURRENT_UNIT
            | response::GO_AWAY
    )
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { addr, source } => write!(f, "cannot connect to {addr}: {source}"),
            Self::Disconnected { addr } => write!(f, "{addr} closed the connection"),
            Self::TimedOut { addr, request } => write!(f, "no answer from {addr} to {request}"),
            Self::Refused { addr, code, remark } => {
                let name = response::name(*code).unwrap_or("UNKNOWN");
                write!(f, "{addr} answered {code} {name}")?;
                // Remarks may have several lines, of which the first one tells.
                match remark.lines().next().map(str::trim).filter(|line| !line.is_empty()) {
                    Some(line) => write!(f, ": {line}"),
                    None => Ok(()),
                }
            }
            Self::Busy { in_flight_max } => {
                write!(f, "{in_flight_max} sends wait for an answer, and no more are allowed")
            }
            Self::NoRoute { topic } => write!(f, "no broker has the topic {topic}"),
            Self::NoBroker { broker_name } => write!(f, "no address of the broker {broker_name}"),
            Self::NoReply { message_id } => write!(f, "nobody replied to the message {message_id}"),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Protocol { addr, reason } => write!(f, "unexpected answer of {addr}: {reason}"),
            Self::OffsetFile(error) => write!(f, "offsets of this machine: {error}"),
            Self::Closed => f.write_str("already shut down"),
            Self::Unfinished { deadline } => {
                write!(f, "shutdown was not finished within {} ms", deadline.as_millis())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { source, .. } | Self::OffsetFile(source) => Some(source),
            Self::Invalid(invalid) => Some(invalid),
            _ => None,
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(name) => write!(f, "not a topic name: {name:?}"),
            Self::Group(name) => write!(f, "not a group name: {name:?}"),
            Self::GroupInUse(name) => write!(f, "this client has a consumer of {name} already"),
            Self::EmptyBody => f.write_str("the message has no body"),
            Self::TooLong { len, max } => {
                write!(f, "message of {len} bytes, at most {max} allowed")
            }
            Self::Property(name) => write!(f, "not a property: {name:?}"),
            Self::Batch(reason) => write!(f, "not a batch: {reason}"),
            Self::Selection { index, count } => {
                write!(f, "the selector chose queue {index} of {count}")
            }
            Self::NotARequest => f.write_str("nobody waits for a reply to this message"),
            Self::TagExpression(text) => write!(f, "not a tag expression: {text:?}"),
            Self::Division => f.write_str("subscriptions, topics and assigned queues do not mix"),
            Self::NotAssigned(queue) => write!(f, "the consumer does not read {queue}"),
            Self::OutsideQueue { offset, min, max } => {
                write!(f, "offset {offset} is not in the queue, which has {min} to {max}")
            }
            Self::Setting { name, max } => write!(f, "{name} must be between 1 and {max}"),
            Self::NameServers(text) => write!(f, "not name server addresses: {text:?}"),
            Self::AddressServer(text) => write!(f, "not the place of an address server: {text:?}"),
        }
    }
}

impl std::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: i32, remark: &str) -> Error {
        Error::Refused { addr: "b:1".into(), code, remark: remark.into() }
    }

    #[test]
    fn codes_say_whether_a_retry_can_help() {
        for code in [1, 2, 14, 16, 17, 24, 25, 26, 204, 205, 215, 1500] {
            assert!(refused(code, "").retry_can_help(), "{code}");
        }
        for code in [3, 13, 22, 23, 29, -1] {
            assert!(!refused(code, "").retry_can_help(), "{code}");
        }
    }

    #[test]
    fn refusals_are_one_line() {
        let text = refused(17, "No topic route info\nSee http://x").to_string();
        assert_eq!(text, "b:1 answered 17 TOPIC_NOT_EXIST: No topic route info");
        assert_eq!(refused(99, "").to_string(), "b:1 answered 99 UNKNOWN");
    }
}
