//! The answer to a send.

use ringmq_protocol::{
    codes::response,
    command::Command,
    headers::{DEFAULT_REGION, SendResponse},
    template::MatchedAnswer,
};

use super::{refused, unexpected};
use crate::{Error, SendStatus};

/// Where a broker stored a message.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) status: SendStatus,
    pub(crate) offset_message_id: String,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    /// Whether the broker wants no traces.
    pub(crate) is_trace_off: bool,
    pub(crate) details: Option<Box<Details>>,
}

/// What few answers have, or few callers need.
#[derive(Debug, Default)]
pub(crate) struct Details {
    pub(crate) transaction_id: Option<String>,
    pub(crate) recall_handle: Option<String>,
    /// The broker's region, unless it is the default one.
    pub(crate) region: Option<String>,
}

/// Reads the answer to a send.
///
/// # Errors
///
/// [`Error::Refused`], or [`Error::Protocol`].
pub(super) fn read(addr: &str, command: &Command<'_>) -> Result<Stored, Error> {
    let status = status(command.code).ok_or_else(|| refused(addr, command))?;
    let header = SendResponse::decode(command).map_err(|error| unexpected(addr, error))?;
    Ok(stored(status, header))
}

/// What an answer says that was read already; `None` if its code is no success.
pub(super) fn matched(answer: MatchedAnswer<'_>) -> Option<Stored> {
    Some(stored(status(answer.code)?, answer.response))
}

const fn status(code: i32) -> Option<SendStatus> {
    match code {
        response::SUCCESS => Some(SendStatus::Stored),
        response::FLUSH_DISK_TIMEOUT => Some(SendStatus::NotFlushed),
        response::SLAVE_NOT_AVAILABLE => Some(SendStatus::NoReplica),
        response::FLUSH_SLAVE_TIMEOUT => Some(SendStatus::NotReplicated),
        _ => None,
    }
}

fn stored(status: SendStatus, header: SendResponse<'_>) -> Stored {
    let region = header.region.filter(|region| region != DEFAULT_REGION);
    let is_plain =
        header.transaction_id.is_none() && header.recall_handle.is_none() && region.is_none();
    let details = (!is_plain).then(|| {
        Box::new(Details {
            transaction_id: header.transaction_id.map(Into::into),
            recall_handle: header.recall_handle.map(Into::into),
            region: region.map(Into::into),
        })
    });
    Stored {
        status,
        offset_message_id: header.msg_id.into_owned(),
        queue_id: header.queue_id,
        queue_offset: header.queue_offset,
        is_trace_off: header.trace_on == Some(false),
        details,
    }
}
