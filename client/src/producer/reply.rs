//! Requests and replies: a message that is answered by a message.
//!
//! The requester's message carries a number that ties the reply to it, and its client id. The reply
//! goes to a topic of the cluster, and the broker pushes it to that client.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultMQProducerImpl.request`, `RequestFutureHolder`,
//! `MessageUtil.createReplyMessage`, `ClientRemotingProcessor.receiveReplyMessage`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ringmq_protocol::{headers::PushReplyRequest, names::REPLY_SUFFIX, properties::name};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{Inner, Producer, SendReceipt, Target, outbound::Outbound};
use crate::{
    Error, Invalid, Message, ReceivedMessage,
    client::Shared,
    lock,
    remoting::{Inbound, Reply},
    unique,
};

/// Requests that wait for their reply, by the number that ties the two.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waiting: Mutex<HashMap<String, oneshot::Sender<ReceivedMessage>>>,
}

/// Takes a request off the list whose requester stops waiting.
struct Waiting<'a> {
    requests: &'a Requests,
    id: String,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.requests.waiting).remove(&self.id);
    }
}

/// Brokers that know of this producer, so that they can push replies to it.
#[derive(Debug, Default)]
pub(super) struct Greeted(Mutex<BTreeSet<String>>);

impl Producer {
    /// Sends a message and waits for the reply that its consumer gives, both within this time.
    ///
    /// # Errors
    ///
    /// Those of [`Producer::send`]; [`Error::NoReply`] if the message was stored and nobody replied.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    /// use ringmq_client::Message;
    ///
    /// let reply = producer.request(Message::new("Prices", "EUR"), Duration::from_secs(3)).await?;
    /// println!("{:?}", reply.body());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn request(
        &self,
        message: Message,
        timeout: Duration,
    ) -> Result<ReceivedMessage, Error> {
        let inner = &self.inner;
        let shared = &inner.client.shared;
        let deadline = Instant::now() + timeout;
        let id = format!("{:016x}{:016x}", unique::random(), unique::random());
        let message = message
            .system(name::CORRELATION_ID, id.clone())
            .system(name::REPLY_TO_CLIENT, shared.client_id.clone())
            .system(name::TTL, timeout.as_millis().to_string());
        let outbound = inner.outbound(&message)?;
        // Held until the reply is there, so that requests in flight are bounded as sends are.
        let _permit = inner.enter(outbound.len(), deadline).await?;
        inner.greet(&outbound.topic, deadline).await?;
        let (sender, receiver) = oneshot::channel();
        lock(&shared.requests.waiting).insert(id.clone(), sender);
        let _waiting = Waiting { requests: &shared.requests, id };
        let send = inner.deliver(&outbound, Target::of(&message), deadline);
        let receipt = send.await?;
        let reply = timeout_at(deadline, receiver).await;
        reply.ok().and_then(Result::ok).ok_or(Error::NoReply { message_id: receipt.message_id })
    }

    /// Replies to a message that was sent with [`Producer::request`], here or in another client.
    ///
    /// # Errors
    ///
    /// Those of [`Producer::send`]; [`Invalid::NotARequest`] if nobody waits for a reply to it.
    /// [`Error::Refused`] with code 1 if the requester is gone.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     producer: ringmq_client::Producer,
    /// #     mut consumer: ringmq_client::PullConsumer,
    /// # ) -> Result<(), ringmq_client::Error> {
    /// let request = consumer.next().await?;
    /// producer.reply(&request, "1.17").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reply(
        &self,
        request: &ReceivedMessage,
        body: impl Into<Bytes>,
    ) -> Result<SendReceipt, Error> {
        let inner = &self.inner;
        let deadline = Instant::now() + inner.send_timeout;
        let message = reply_to(request, body.into())?;
        let ids = &inner.client.shared.unique_ids;
        let outbound = Outbound::reply(&message, ids, &inner.form)?;
        let _permit = inner.enter(outbound.len(), deadline).await?;
        inner.deliver(&outbound, Target::Any, deadline).await
    }
}

impl Inner {
    /// Sees to it that the brokers of a topic know this client before it asks for a reply.
    async fn greet(&self, topic: &str, deadline: Instant) -> Result<(), Error> {
        let shared = &self.client.shared;
        let route = shared.publish_route(topic, deadline).await?;
        let masters = route.addrs().filter_map(|(addr, is_master)| is_master.then_some(addr));
        let masters: Vec<_> = masters.map(String::from).collect();
        if masters.iter().all(|addr| lock(&self.greeted.0).contains(addr)) {
            return Ok(());
        }
        shared.heartbeat().await;
        lock(&self.greeted.0).extend(masters);
        Ok(())
    }
}

fn reply_to(request: &ReceivedMessage, body: Bytes) -> Result<Message, Invalid> {
    let property = |name| request.property(name).ok_or(Invalid::NotARequest);
    let cluster = property(name::CLUSTER)?;
    Ok(Message::new(format!("{cluster}{REPLY_SUFFIX}"), body)
        .system(name::MSG_TYPE, "reply")
        .system(name::CORRELATION_ID, property(name::CORRELATION_ID)?)
        .system(name::REPLY_TO_CLIENT, property(name::REPLY_TO_CLIENT)?)
        .system(name::TTL, request.property(name::TTL).unwrap_or("3000")))
}

/// PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply has come.
pub(crate) async fn pushed(shared: Arc<Shared>, inbound: Inbound) -> Reply {
    let header = inbound.command().and_then(|command| {
        PushReplyRequest::decode(&command)
            .map(|header| ReceivedMessage::reply(&header, inbound.body.clone()))
    });
    let reply = match header {
        Ok(reply) => reply,
        Err(error) => return Reply::failed(error.to_string()),
    };
    let id = reply.property(name::CORRELATION_ID).unwrap_or_default();
    let sender = lock(&shared.requests.waiting).remove(id);
    match sender {
        // The requester may have gone in this moment.
        Some(sender) => drop(sender.send(reply.unwrapped(&shared.namespace))),
        // A reply that nobody waits for is taken all the same.
        None => tracing::debug!(addr = &*inbound.addr, id, "a reply that nobody waits for"),
    }
    Reply::ok(Bytes::new())
}
