//! What brokers ask of clients.
//!
//! A client of producers and pull consumers has no listener and no cached queues, so that oneway
//! requests mean nothing to it yet, and the others get the answer of a client without the group.
//!
//! Source: Apache RocketMQ 4.9.8, `ClientRemotingProcessor`.

use ringmq_protocol::{
    codes::{request, response},
    command::Command,
    encode,
    frame::Encoding,
};

/// The frame that answers a broker's request; `None` if it must not be answered.
pub(super) fn answer(encoding: Encoding, command: &Command<'_>) -> Option<Vec<u8>> {
    let name = request::name(command.code).unwrap_or("unknown request");
    tracing::debug!(code = command.code, name, "request from a broker");
    if command.is_oneway() {
        return None;
    }
    let (code, remark, body): (_, _, &[u8]) = match command.code {
        request::GET_CONSUMER_STATUS_FROM_CLIENT => {
            (response::SUCCESS, None, br#"{"consumerTable":{},"messageQueueTable":{}}"#)
        }
        request::GET_CONSUMER_RUNNING_INFO | request::CONSUME_MESSAGE_DIRECTLY => {
            (response::SYSTEM_ERROR, Some("this client has no such push consumer"), b"")
        }
        // A reply that nobody waits for is taken all the same.
        request::PUSH_REPLY_MESSAGE_TO_CLIENT => (response::SUCCESS, None, b""),
        _ => (response::REQUEST_CODE_NOT_SUPPORTED, Some("request code not supported"), b""),
    };
    let mut frame = Vec::new();
    encode::response(&mut frame, encoding, command.opaque, code, remark, |_| {}, body);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{
        command::FLAG_ONEWAY,
        encode::{Head, begin_frame},
        frame,
    };

    use super::*;

    /// The code that answers a request with this code and flag.
    fn answered(code: i32, flag: i32) -> Option<i32> {
        let mut out = Vec::new();
        begin_frame(&mut out, Head::request(Encoding::Json, 7, code, flag)).finish(0).unwrap();
        let request = frame::decode(&out, out.len()).unwrap().unwrap();
        let command = Command::parse(request.encoding, request.header).unwrap();
        let bytes = answer(request.encoding, &command)?;
        let response = frame::decode(&bytes, bytes.len()).unwrap().unwrap();
        let command = Command::parse(response.encoding, response.header).unwrap();
        assert!(command.is_response() && command.opaque == 7);
        Some(command.code)
    }

    #[test]
    fn requests_are_answered_as_by_a_client_without_the_group() {
        for (code, want) in [(221, 0), (307, 1), (309, 1), (326, 0), (2, 3)] {
            assert_eq!(answered(code, 0), Some(want), "request {code}");
        }
    }

    #[test]
    fn oneway_requests_are_not_answered() {
        for code in [39, 40, 220, 221, 12345] {
            assert_eq!(answered(code, FLAG_ONEWAY), None, "request {code}");
        }
    }
}
