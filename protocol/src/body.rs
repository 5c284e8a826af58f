//! JSON bodies: what clients, brokers and name servers tell each other about themselves.
//!
//! [`encode`] writes standard, compact JSON with members in Java's alphabetical order. [`decode`]
//! also takes what fastjson writes and takes: unquoted number and object keys, numbers as strings,
//! enums by number, `null` for anything, unknown members, white space at the end.
//!
//! Each type has a bound on its encoded length, checked before anything is parsed: a list of empty
//! objects takes a multiple of its length in memory.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, the classes of `protocol.body`, `protocol.route` and
//! `protocol.heartbeat`; liberties as in the facts sheet, section 5.3.

pub mod admin;
mod fastjson;
mod group;
mod heartbeat;
mod lenient;
mod queue;
mod register;
mod route;
mod topic;

use alloc::vec::Vec;
use core::fmt;

use serde::{Serialize, de::DeserializeOwned};

pub use fastjson::standardize;
pub use group::{SubscriptionGroupConfig, SubscriptionGroupTable};
pub use heartbeat::{
    CheckClientConfig, ConsumeFromWhere, ConsumeType, ConsumerData, HeartbeatData, MessageModel,
    ProducerData, SubscriptionData,
};
pub use queue::{
    ConsumerList, LockBatchRequest, LockBatchResponse, MessageQueue, ObjectKeys, OffsetsByQueue,
};
pub use register::RegisterBrokerBody;
pub use route::{BrokerData, BrokerMemberGroup, ClusterInfo, MASTER_ID, QueueData, TopicRouteData};
pub use topic::{
    DataVersion, DelayOffsetTable, KvTable, OffsetTable, TopicConfig, TopicConfigTable,
    TopicFilterType, TopicList,
};

/// A body that travels as JSON.
pub trait Body: Serialize + DeserializeOwned {
    /// Longest text that is parsed. Unit: bytes.
    const LEN_MAX: usize = 1024 * 1024;
}

/// Why a body was not understood: answer `SYSTEM_ERROR`.
#[derive(Debug)]
#[non_exhaustive]
pub enum BodyError {
    /// The text is longer than its type's bound. Both in bytes.
    TooLong {
        /// Its length.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// The text is not JSON, not even fastjson's, from this byte on.
    NotJson {
        /// Bytes from the start of the body.
        position: usize,
    },
    /// The text is JSON, but not of this type.
    WrongShape(serde_json::Error),
    /// A registration's text form is cut or has a wrong length in it.
    WrongText,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { len, max } => write!(f, "body of {len} bytes, at most {max} allowed"),
            Self::NotJson { position } => write!(f, "body is no JSON at byte {position}"),
            Self::WrongShape(error) => write!(f, "unexpected body: {error}"),
            Self::WrongText => f.write_str("the registration's text form is damaged"),
        }
    }
}

impl core::error::Error for BodyError {}

/// Reads a body, standard or fastjson's.
///
/// # Errors
///
/// [`BodyError`]: answer `SYSTEM_ERROR`, as real brokers do.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `RemotingSerializable.decode`.
pub fn decode<T: Body>(text: &[u8]) -> Result<T, BodyError> {
    if text.len() > T::LEN_MAX {
        return Err(BodyError::TooLong { len: text.len(), max: T::LEN_MAX });
    }
    parse(text)
}

/// Parses an object whose length is within bounds.
fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, BodyError> {
    // A struct would also be read from an array of its members, which no peer sends.
    if text.trim_ascii_start().first() != Some(&b'{') {
        return Err(BodyError::WrongShape(serde::de::Error::custom("not an object")));
    }
    serde_json::from_slice(&standardize(text)?).map_err(BodyError::WrongShape)
}

/// Writes a body as standard, compact JSON.
///
/// # Panics
///
/// Never: all maps here have strings or integers as keys, and the writer is a `Vec`.
pub fn encode<T: Body>(body: &T) -> Vec<u8> {
    serde_json::to_vec(body).expect("keys are strings or integers")
}

#[cfg(test)]
mod tests;
