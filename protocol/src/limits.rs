//! Sizes that RocketMQ peers agree on, and the check that every stored message passes.
//!
//! Source: Apache RocketMQ 4.9.8, `MessageStoreConfig`, `CommitLog`, `Validators`.

use core::fmt;

/// Longest body of a message or batch, as sent and stored (after compression). Unit: bytes.
/// Source: `MessageStoreConfig.maxMessageSize`; a client may lower its own, the broker's holds.
pub const MESSAGE_LEN_MAX: usize = 4 * 1024 * 1024;

/// How much longer than the longest body a whole record may be. Unit: bytes.
pub const RECORD_OVERHEAD_MAX: usize = 64 * 1024;

/// Longest properties text, what the broker adds included: its length field is a signed 16-bit
/// number. Unit: bytes.
pub const PROPERTIES_LEN_MAX: usize = 32_767;

/// Longest topic name. Unit: bytes. Source: `Validators.TOPIC_MAX_LENGTH`; the record's length
/// field is a signed byte.
pub const TOPIC_LEN_MAX: usize = 127;

/// Longest consumer or producer group name. Unit: bytes. Source: `Validators.CHARACTER_MAX_LENGTH`.
pub const GROUP_LEN_MAX: usize = 255;

/// Highest delay level; larger ones mean this one. Source: `messageDelayLevel`.
pub const DELAY_LEVEL_MAX: i32 = 18;

/// Why a message is not stored: answer `MESSAGE_ILLEGAL`. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageIllegal {
    /// The body is longer than the limit.
    BodyTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The properties are longer than [`PROPERTIES_LEN_MAX`].
    PropertiesTooLong(usize),
    /// The topic is longer than [`TOPIC_LEN_MAX`].
    TopicTooLong(usize),
}

impl fmt::Display for MessageIllegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BodyTooLong { len, max } => {
                write!(f, "message body of {len} bytes, at most {max} allowed")
            }
            Self::PropertiesTooLong(len) => {
                write!(f, "properties of {len} bytes, at most {PROPERTIES_LEN_MAX} allowed")
            }
            Self::TopicTooLong(len) => {
                write!(f, "topic of {len} bytes, at most {TOPIC_LEN_MAX} allowed")
            }
        }
    }
}

impl core::error::Error for MessageIllegal {}

/// Checks the parts of a record against `body_len_max` (normally [`MESSAGE_LEN_MAX`]) and the
/// format's own bounds. What passes also keeps the record within
/// `body_len_max + RECORD_OVERHEAD_MAX`.
///
/// # Errors
///
/// [`MessageIllegal`] with the first part that is too long.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `CommitLog.MessageExtEncoder`, `DefaultMessageStore.checkMessage`.
pub const fn check_message(
    topic_len: usize,
    properties_len: usize,
    body_len: usize,
    body_len_max: usize,
) -> Result<(), MessageIllegal> {
    if topic_len > TOPIC_LEN_MAX {
        return Err(MessageIllegal::TopicTooLong(topic_len));
    }
    if properties_len > PROPERTIES_LEN_MAX {
        return Err(MessageIllegal::PropertiesTooLong(properties_len));
    }
    if body_len > body_len_max {
        return Err(MessageIllegal::BodyTooLong { len: body_len, max: body_len_max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_message_passes_and_one_byte_more_does_not() {
        let check =
            |topic, properties, body| check_message(topic, properties, body, MESSAGE_LEN_MAX);
        assert_eq!(check(TOPIC_LEN_MAX, PROPERTIES_LEN_MAX, MESSAGE_LEN_MAX), Ok(()));
        assert_eq!(check(128, 0, 0), Err(MessageIllegal::TopicTooLong(128)));
        assert_eq!(check(1, 32_768, 0), Err(MessageIllegal::PropertiesTooLong(32_768)));
        let (len, max) = (MESSAGE_LEN_MAX + 1, MESSAGE_LEN_MAX);
        assert_eq!(check(1, 0, len), Err(MessageIllegal::BodyTooLong { len, max }));
    }
}
