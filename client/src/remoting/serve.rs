//! What brokers ask of clients.
//!
//! [`HANDLERS`] has one handler for each request code. A handler gets the client and the request,
//! and returns the answer; a oneway request's answer is dropped. Handlers may take their time: each
//! runs as a task of its own, at most [`REQUESTS_MAX`] for one connection.
//!
//! Source: Apache RocketMQ 4.9.8, `ClientRemotingProcessor`.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    command::{Command, HeaderError},
    encode,
    frame::Encoding,
};
use tokio::sync::Semaphore;

use super::link::State;
use crate::{client::Shared, consumer::answers, producer};

/// Most requests of one connection that are worked on. Further ones are told that the client is
/// busy.
const REQUESTS_MAX: usize = 64;

type Handling = Pin<Box<dyn Future<Output = Reply> + Send>>;

type Handler = fn(Arc<Shared>, Inbound) -> Handling;

/// Who handles which request.
const HANDLERS: [(i32, Handler); 7] = [
    (request::NOTIFY_CONSUMER_IDS_CHANGED, |c, r| Box::pin(answers::members_changed(c, r))),
    (request::RESET_CONSUMER_CLIENT_OFFSET, |c, r| Box::pin(answers::reset(c, r))),
    (request::GET_CONSUMER_STATUS_FROM_CLIENT, |c, r| Box::pin(answers::status(c, r))),
    (request::GET_CONSUMER_RUNNING_INFO, |c, r| Box::pin(answers::running_info(c, r))),
    (request::CONSUME_MESSAGE_DIRECTLY, |c, r| Box::pin(answers::consume_directly(c, r))),
    (request::CHECK_TRANSACTION_STATE, |c, r| Box::pin(producer::check_transaction(c, r))),
    (request::PUSH_REPLY_MESSAGE_TO_CLIENT, |c, r| Box::pin(producer::reply_pushed(c, r))),
];

/// A broker's request.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Where it comes from: the address that this client connected to, as `host:port`.
    pub(crate) addr: Arc<str>,
    encoding: Encoding,
    header: Bytes,
    pub(crate) body: Bytes,
}

impl Inbound {
    /// # Errors
    ///
    /// None in practice: the connection has parsed the header before.
    pub(crate) fn command(&self) -> Result<Command<'_>, HeaderError> {
        Command::parse(self.encoding, &self.header)
    }
}

/// The answer to a broker's request.
#[derive(Debug)]
pub(crate) struct Reply {
    code: i32,
    remark: Option<String>,
    body: Bytes,
}

impl Reply {
    pub(crate) const fn ok(body: Bytes) -> Self {
        Self { code: response::SUCCESS, remark: None, body }
    }

    pub(crate) fn failed(remark: impl Into<String>) -> Self {
        Self { code: response::SYSTEM_ERROR, remark: Some(remark.into()), body: Bytes::new() }
    }

    fn unsupported() -> Self {
        let code = response::REQUEST_CODE_NOT_SUPPORTED;
        Self { code, ..Self::failed("request code not supported") }
    }

    fn frame(&self, encoding: Encoding, opaque: i32) -> Vec<u8> {
        let mut frame = Vec::new();
        let remark = self.remark.as_deref();
        encode::response(&mut frame, encoding, opaque, self.code, remark, |_| {}, &self.body);
        frame
    }
}

/// Where requests of one connection arrive.
#[derive(Debug)]
pub(super) struct Desk {
    addr: Arc<str>,
    client: Weak<Shared>,
    /// Where answers go. Weak, so that a slow handler keeps no connection open.
    connection: Weak<State>,
    room: Arc<Semaphore>,
}

impl Desk {
    pub(super) fn new(addr: &str, client: Weak<Shared>, connection: Weak<State>) -> Self {
        let room = Arc::new(Semaphore::new(REQUESTS_MAX));
        Self { addr: addr.into(), client, connection, room }
    }

    pub(super) fn addr(&self) -> &str {
        &self.addr
    }

    /// Starts to work on a request.
    pub(super) fn take(&self, encoding: Encoding, header: Bytes, body: Bytes) {
        let request = Inbound { addr: Arc::clone(&self.addr), encoding, header, body };
        let Ok(command) = request.command() else { return };
        let (code, opaque) = (command.code, command.opaque);
        let is_oneway = command.is_oneway();
        drop(command);
        let name = request::name(code).unwrap_or("unknown request");
        tracing::debug!(addr = &*self.addr, code, name, "request from a broker");
        let connection = Weak::clone(&self.connection);
        let answer = move |reply: Reply| {
            if !is_oneway && let Some(connection) = connection.upgrade() {
                connection.answer(reply.frame(encoding, opaque));
            }
        };
        let handler = HANDLERS.iter().find(|(handled, _)| *handled == code);
        let Some((_, handler)) = handler else { return answer(Reply::unsupported()) };
        let Some(client) = self.client.upgrade() else { return };
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            return answer(Reply::failed("the client is busy"));
        };
        let handling = handler(client, request);
        tokio::spawn(async move {
            answer(handling.await);
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{
        command::FLAG_ONEWAY,
        encode::{Head, begin_frame},
        frame,
    };

    use super::*;
    use crate::remoting::{link::Taken, queue::Queue};

    /// The code that answers a request with this code and flag at a client that is gone.
    async fn answered(code: i32, flag: i32) -> Option<i32> {
        let mut out = Vec::new();
        begin_frame(&mut out, Head::request(Encoding::Json, 7, code, flag)).finish(0).unwrap();
        let header = frame::decode(&out, out.len()).unwrap().unwrap().header.to_vec();
        let connection = Arc::new(State::new(None));
        let desk = Desk::new("b:1", Weak::new(), Arc::downgrade(&connection));
        desk.take(Encoding::Json, header.into(), Bytes::new());
        let (mut queue, mut bytes) = (Queue::default(), Vec::new());
        if connection.take(&mut queue) != Taken::Frames {
            return None;
        }
        queue.write_to(&mut bytes).await.unwrap();
        let response = frame::decode(&bytes, bytes.len()).unwrap().unwrap();
        let command = Command::parse(response.encoding, response.header).unwrap();
        assert!(command.is_response() && command.opaque == 7);
        Some(command.code)
    }

    #[tokio::test]
    async fn unknown_requests_are_answered_unless_they_are_oneway() {
        assert_eq!(answered(2, 0).await, Some(response::REQUEST_CODE_NOT_SUPPORTED));
        assert_eq!(answered(2, FLAG_ONEWAY).await, None);
    }

    #[tokio::test]
    async fn a_client_that_is_gone_answers_nothing() {
        assert_eq!(answered(request::PUSH_REPLY_MESSAGE_TO_CLIENT, 0).await, None);
    }
}
