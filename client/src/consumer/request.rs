//! One pull: a request for the next messages of a queue.
//!
//! A pull could bring an offset to commit on its way, and upstream's does. This one does not: a
//! broker works on pulls and on commits in different threads, so that an offset which rides along
//! may overwrite a later one that was committed by itself, and messages come twice after a stop in
//! good order.

use std::time::Duration;

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    headers::{PullRequest, PullResponse, pull_flag},
};
use tokio::time::Instant;

use crate::{
    Error, MessageQueue, QueueOffset, ReceivedMessage,
    client::Shared,
    message,
    remoting::{refused, unexpected},
    subscription::Subscription,
};

/// How much longer than the hold time an answer may take: brokers look for held requests whose
/// time is up every 5 s only. Source: Apache RocketMQ 4.9.8, `DefaultMQPullConsumer`, whose two
/// timeouts are 10 s apart.
const HOLD_SLACK: Duration = Duration::from_secs(10);

/// What a pull asks for.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) group: &'a str,
    pub(crate) queue: &'a MessageQueue,
    pub(crate) from: QueueOffset,
    pub(crate) count_max: i32,
    /// How long the broker may wait for a message; zero is not at all.
    pub(crate) hold: Duration,
    pub(crate) subscription: &'a Subscription,
    /// The broker's replica to ask, if the route has it; 0 is the master.
    pub(crate) broker_id: i64,
}

/// What a pull brought.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The messages, in the order of the queue, without those of other tags.
    pub messages: Vec<ReceivedMessage>,
    /// Where to pull from next. Also moves on without a message, over those of other tags.
    pub next_offset: QueueOffset,
    /// First offset that the queue has.
    pub min_offset: QueueOffset,
    /// Offset that the queue's next message will have.
    pub max_offset: QueueOffset,
    /// Whether the offset asked for lies outside the queue, so that `next_offset` may have gone
    /// back or left messages out.
    pub is_moved: bool,
    /// The replica that the broker wants to be asked next.
    pub(crate) broker_id: i64,
}

impl Pulled {
    /// What a pull at this offset brings if nothing is known of the queue.
    pub(super) const fn nothing(at: QueueOffset) -> Self {
        Self {
            messages: Vec::new(),
            next_offset: at,
            min_offset: QueueOffset::new(0),
            max_offset: QueueOffset::new(0),
            is_moved: false,
            broker_id: 0,
        }
    }
}

impl Shared {
    /// Pulls a queue once.
    ///
    /// # Errors
    ///
    /// As [`Shared::route`], or what the broker or the way to it says.
    pub(crate) async fn pull(&self, ask: &Ask<'_>) -> Result<Pulled, Error> {
        let addr = self.replica(ask.queue, ask.broker_id).await?;
        let header = ask.header();
        let request =
            self.remoting.request(request::PULL_MESSAGE, |ext| header.encode(ext), Bytes::new())?;
        let slack = if ask.hold.is_zero() { self.call_timeout } else { HOLD_SLACK };
        let answer = self.remoting.call(&addr, request, Instant::now() + ask.hold + slack).await?;
        let command = answer.parse(&addr)?;
        let mut messages = match command.code {
            response::SUCCESS => message::parse_all(&answer.body, ask.queue.broker_name())
                .map_err(|error| unexpected(&addr, error))?,
            response::PULL_NOT_FOUND
            | response::PULL_RETRY_IMMEDIATELY
            | response::PULL_OFFSET_MOVED => Vec::new(),
            _ => return Err(refused(&addr, &command)),
        };
        messages.retain(|message| ask.subscription.wants(message));
        let header = PullResponse::decode(&command).map_err(|error| unexpected(&addr, error))?;
        Ok(Pulled {
            messages,
            next_offset: QueueOffset::new(header.next_begin_offset),
            min_offset: QueueOffset::new(header.min_offset),
            max_offset: QueueOffset::new(header.max_offset),
            is_moved: command.code == response::PULL_OFFSET_MOVED,
            broker_id: header.suggest_which_broker_id,
        })
    }

    /// Address of a queue's broker, of this replica if the route has it.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `MQClientInstance.findBrokerAddressInSubscribe`.
    async fn replica(&self, queue: &MessageQueue, id: i64) -> Result<String, Error> {
        self.check_open()?;
        let route = self.route(queue.topic(), self.deadline()).await?;
        let brokers = &route.data.broker_datas;
        let broker = brokers.iter().find(|broker| broker.broker_name == queue.broker_name());
        let found = broker.and_then(|broker| {
            let addrs = &broker.broker_addrs;
            let next = (id > 0).then(|| addrs.get(&(id + 1))).flatten();
            addrs.get(&id).or(next).or_else(|| addrs.values().next()).cloned()
        });
        found.ok_or_else(|| Error::NoBroker { broker_name: queue.broker_name().into() })
    }
}

impl Ask<'_> {
    fn header(&self) -> PullRequest<'_> {
        let suspend = if self.hold.is_zero() { 0 } else { pull_flag::SUSPEND };
        // An expression of SQL is compiled once, when the heartbeat brings it.
        let is_sent = !self.subscription.is_sql();
        let subscription_flag = if is_sent { pull_flag::SUBSCRIPTION } else { 0 };
        PullRequest {
            consumer_group: self.group.into(),
            topic: self.queue.topic().into(),
            queue_id: self.queue.queue_id(),
            queue_offset: self.from.get(),
            max_msg_nums: self.count_max,
            sys_flag: subscription_flag | suspend,
            commit_offset: 0,
            suspend_timeout_ms: i64::try_from(self.hold.as_millis()).unwrap_or(i64::MAX),
            subscription: is_sent.then(|| self.subscription.text().into()),
            sub_version: if is_sent { 0 } else { self.subscription.version() },
            expression_type: Some(self.subscription.kind().into()),
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
        }
    }
}
