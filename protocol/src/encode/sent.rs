//! The answers to sends, which a busy broker writes more often than anything else.
//!
//! All answers of one broker begin with the same text, so it is made once. What is left is written into
//! room that is long enough for the longest numbers: nothing grows, and nothing is moved, on the way.

use alloc::{boxed::Box, vec::Vec};
use core::{mem, net::SocketAddr};

use crate::{
    codes::VERSION_4_9_8,
    frame::PREFIX_LEN,
    message_id::{OffsetMessageId, digits_of_offset},
};

const BEFORE_QUEUE: &[u8] = b"\",\"queueId\":\"";
const BEFORE_OFFSET: &[u8] = b"\",\"queueOffset\":\"";
const BEFORE_OPAQUE: &[u8] = b"\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":";
const END: &[u8] = b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}";
const _: () = assert!(VERSION_4_9_8 == 409, "the version is part of the text above");

/// Hex digits of a log offset.
const POSITION_LEN: usize = 16;
/// Characters of the longest 64-bit number.
const NUMBER_LEN_MAX: usize = 20;

/// What an answer has of its own.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The request's number.
    pub opaque: i32,
    /// Where the message lies in the log, in bytes.
    pub log_offset: i64,
    /// Its queue.
    pub queue_id: i32,
    /// Its offset in the queue, in messages.
    pub queue_offset: i64,
}

/// The responses of one broker to sends of one message, in JSON: the same bytes as
/// [`response`](super::response()) writes with these entries.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `SendMessageResponseHeader`, `RemotingCommand.encodeHeader`.
#[derive(Clone, Debug)]
pub struct SentAnswers {
    /// Room for the lengths, and the header up to the position in the message's id.
    front: Box<[u8]>,
}

impl SentAnswers {
    /// For a broker that clients reach at `host`. The region must have no characters that JSON
    /// escapes.
    pub fn new(host: SocketAddr, region: &str, trace_on: bool) -> Self {
        let id = OffsetMessageId { host, log_offset: 0 }.to_hex();
        let host_len = id.len() - POSITION_LEN;
        let trace_on: &[u8] = if trace_on { b"true" } else { b"false" };
        let parts: [&[u8]; 7] = [
            &[0; PREFIX_LEN],
            b"{\"code\":0,\"extFields\":{\"MSG_REGION\":\"",
            region.as_bytes(),
            b"\",\"TRACE_ON\":\"",
            trace_on,
            b"\",\"msgId\":\"",
            id.as_bytes().get(..host_len).unwrap_or_default(),
        ];
        Self { front: parts.concat().into() }
    }

    /// Appends the answer to one send.
    pub fn write(&self, sent: &Sent, out: &mut Vec<u8>) {
        const REST_LEN_MAX: usize = POSITION_LEN
            + BEFORE_QUEUE.len()
            + BEFORE_OFFSET.len()
            + BEFORE_OPAQUE.len()
            + END.len()
            + 3 * NUMBER_LEN_MAX;
        let start = out.len();
        out.reserve(self.front.len() + REST_LEN_MAX);
        out.extend_from_slice(&self.front);
        let rest_at = out.len();
        out.resize(rest_at + REST_LEN_MAX, 0);
        let mut rest = Rest(out.get_mut(rest_at..).unwrap_or_default());
        rest.put(&digits_of_offset(sent.log_offset));
        rest.put(BEFORE_QUEUE);
        rest.put_int(sent.queue_id);
        rest.put(BEFORE_OFFSET);
        rest.put_int(sent.queue_offset);
        rest.put(BEFORE_OPAQUE);
        rest.put_int(sent.opaque);
        rest.put(END);
        let left = rest.0.len();
        out.truncate(out.len() - left);
        let header_len = u32::try_from(out.len() - start - PREFIX_LEN).unwrap_or_default();
        // The JSON type byte is 0, so the second word is the header's length alone.
        let lens = [header_len + 4, header_len];
        if let Some(prefix) = out.get_mut(start..start + PREFIX_LEN) {
            for (field, value) in prefix.chunks_exact_mut(4).zip(lens) {
                field.copy_from_slice(&value.to_be_bytes());
            }
        }
    }
}

/// What is not written yet.
struct Rest<'o>(&'o mut [u8]);

impl Rest<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let (room, rest) = mem::take(&mut self.0).split_at_mut(bytes.len());
        room.copy_from_slice(bytes);
        self.0 = rest;
    }

    #[inline]
    fn put_int(&mut self, value: impl itoa::Integer) {
        self.put(itoa::Buffer::new().format(value).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codes::response::SUCCESS,
        encode::{FrameWriter, response},
        frame::Encoding,
    };

    #[track_caller]
    fn check(host: &str, trace_on: bool, sent: Sent) {
        let host = host.parse().unwrap();
        let region = "DefaultRegion";
        let mut fast = b"before".to_vec();
        SentAnswers::new(host, region, trace_on).write(&sent, &mut fast);
        let mut slow = b"before".to_vec();
        let ext = |ext: &mut FrameWriter<'_, '_>| {
            let id = OffsetMessageId { host, log_offset: sent.log_offset };
            ext.ext("MSG_REGION", region);
            ext.ext_bool("TRACE_ON", trace_on);
            ext.ext_ids("msgId", core::iter::once(id));
            ext.ext_int("queueId", sent.queue_id.into());
            ext.ext_int("queueOffset", sent.queue_offset);
        };
        response(&mut slow, Encoding::Json, sent.opaque, SUCCESS, None, ext, &[]);
        assert_eq!(fast, slow);
    }

    #[test]
    fn answers_are_those_that_are_encoded_entry_by_entry() {
        for host in ["10.1.2.9:10911", "[2001:db8::1]:65535"] {
            for (opaque, queue_id, queue_offset, log_offset, trace_on) in [
                (0, 0, 0, 0, true),
                (i32::MAX, i32::MAX, i64::MAX, i64::MAX, false),
                (i32::MIN, i32::MIN, i64::MIN, i64::MIN, false),
                (-7, -1, 1_234_567, 4096, true),
            ] {
                check(host, trace_on, Sent { opaque, log_offset, queue_id, queue_offset });
            }
        }
    }
}
