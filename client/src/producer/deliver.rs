//! Attempts: the way of a message to a broker.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultMQProducerImpl.sendDefaultImpl`.

use std::time::Duration;

use ringmq_protocol::{headers::DEFAULT_REGION, template::Varied};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use super::{
    Inner, SendReceipt, SendStatus,
    fault::Event,
    outbound::{Outbound, Traced},
};
use crate::{
    Error, Invalid, Message, MessageQueue, QueueOffset,
    error::is_retried_send,
    remoting::{Request, Stored},
    route::Route,
    select,
    trace::{self, Tracer},
};

/// Pause before the same broker is tried again; twice as long before each further attempt.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Where a message is sent.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// To the next queue in turn.
    Any,
    /// To the queue of this sharding key.
    Key(&'a str),
    /// To this queue, in the application's name for it.
    Queue(&'a MessageQueue),
    /// To this queue, in its broker's name for it.
    Exactly(&'a MessageQueue),
    /// To this queue, and to another broker when that fails.
    First(&'a MessageQueue),
    /// To the one with this index.
    Selected(&'a (dyn Fn(&[MessageQueue]) -> usize + Send + Sync)),
}

impl<'a> Target<'a> {
    /// Where a message goes by itself.
    pub(super) fn of(message: &'a Message) -> Self {
        message.ordering_key().map_or(Self::Any, Self::Key)
    }

    /// Where a message goes that the application sends anywhere.
    pub(super) fn or(self, message: &'a Message) -> Self {
        match self {
            Self::Any => Self::of(message),
            target => target,
        }
    }
}

/// A message that was stored.
pub(super) struct Sent {
    pub(super) receipt: SendReceipt,
    pub(super) transaction_id: Option<String>,
}

/// What became of the last attempt that failed.
pub(super) struct Failed {
    queue: MessageQueue,
    error: Error,
}

impl Inner {
    /// Sends until a broker has taken it, attempts and time permitting.
    pub(super) async fn deliver(
        &self,
        outbound: &Outbound,
        target: Target<'_>,
        deadline: Instant,
    ) -> Result<SendReceipt, Error> {
        Ok(self.deliver_with_details(outbound, target, deadline).await?.receipt)
    }

    /// As [`Inner::deliver`], with what only transactions need.
    pub(super) async fn deliver_with_details(
        &self,
        outbound: &Outbound,
        target: Target<'_>,
        deadline: Instant,
    ) -> Result<Sent, Error> {
        let started = self.figures.start();
        let span =
            tracing::debug_span!("send", topic = &*outbound.topic, id = &*outbound.message_id);
        let result = self.attempts(outbound, target, deadline).instrument(span).await;
        self.figures.end(started, result.is_ok());
        result
    }

    async fn attempts(
        &self,
        outbound: &Outbound,
        target: Target<'_>,
        deadline: Instant,
    ) -> Result<Sent, Error> {
        let mut last: Option<Failed> = None;
        let mut weak: Option<Sent> = None;
        for attempt in 0..=self.retries {
            let route = match self.client.shared.publish_route(&outbound.topic, deadline).await {
                Ok(route) => route,
                Err(error) => return finish(weak, last, error),
            };
            let Some(queue) = self.choose(&route, target, last.as_ref())? else {
                return finish(weak, last, no_route(&outbound.topic));
            };
            let is_same =
                last.as_ref().is_some_and(|last| last.queue.broker_name() == queue.broker_name());
            if is_same && !pause(attempt, deadline).await {
                break;
            }
            if attempt > 0 {
                self.figures.retry();
            }
            match self.attempt(outbound, &route, &queue, deadline).await {
                Ok(stored) => {
                    let sent = self.sent(stored, outbound, &queue);
                    if sent.receipt.status == SendStatus::Stored || !self.retries_if_not_stored {
                        return Ok(sent);
                    }
                    weak = Some(sent);
                    let error = Error::NoBroker { broker_name: queue.broker_name().into() };
                    last = Some(Failed { queue, error });
                }
                Err(error) if !is_worth_a_retry(&error) => return finish(weak, None, error),
                Err(error) => {
                    tracing::debug!(%queue, attempt, %error, "send failed");
                    self.client.shared.routes.doubt(&outbound.topic);
                    last = Some(Failed { queue, error });
                }
            }
            if deadline <= Instant::now() {
                break;
            }
        }
        finish(weak, last, no_route(&outbound.topic))
    }

    /// Sends once, without an answer.
    pub(super) async fn throw(
        &self,
        outbound: &Outbound,
        target: Target<'_>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let shared = &self.client.shared;
        let route = shared.publish_route(&outbound.topic, deadline).await?;
        let queue = self.choose(&route, target, None)?.ok_or_else(|| no_route(&outbound.topic))?;
        let addr = route.master(queue.broker_name()).ok_or_else(|| no_broker(&queue))?;
        let header = outbound.header(&self.group, &queue);
        let (code, body) = (outbound.code, outbound.body.clone());
        let request = shared.remoting.oneway_request(code, |ext| header.encode(code, ext), body)?;
        shared.remoting.oneway(addr, request, deadline).await
    }

    /// The queue of the next attempt; `None` if the topic has none.
    pub(super) fn choose(
        &self,
        route: &Route,
        target: Target<'_>,
        last: Option<&Failed>,
    ) -> Result<Option<MessageQueue>, Invalid> {
        let selected = |at: usize| {
            let count = route.publish().len();
            match route.publish().get(at) {
                Some(queue) => Ok(Some(queue.clone())),
                None if count == 0 => Ok(None),
                None => Err(Invalid::Selection { index: at, count }),
            }
        };
        let namespace = &self.client.shared.namespace;
        match (target, last) {
            (Target::First(queue) | Target::Exactly(queue), None) => Ok(Some(queue.clone())),
            (Target::Any | Target::First(_), last) => {
                let avoid = last.map(|last| last.queue.broker_name());
                match self.faults.is_on() {
                    true => Ok(self.faults.pick(route, avoid, Instant::now())),
                    false => Ok(route.pick(avoid).cloned()),
                }
            }
            // A message that belongs to a queue stays there: another one has no order with it.
            (_, Some(last)) => Ok(Some(last.queue.clone())),
            (Target::Key(key), None) => selected(select::by_key(key)(route.publish())),
            (Target::Queue(queue), None) => Ok(Some(namespace.wrap_queue(queue))),
            (Target::Selected(select), None) if namespace.name().is_none() => {
                selected(select(route.publish()))
            }
            (Target::Selected(select), None) => {
                let queues = route.publish().iter().map(|queue| namespace.unwrap_queue(queue));
                selected(select(&queues.collect::<Vec<_>>()))
            }
        }
    }

    async fn attempt(
        &self,
        outbound: &Outbound,
        route: &Route,
        queue: &MessageQueue,
        deadline: Instant,
    ) -> Result<Stored, Error> {
        if !self.faults.is_on() {
            return self.send_once(outbound, route, queue, deadline).await;
        }
        let started = Instant::now();
        let result = self.send_once(outbound, route, queue, deadline).await;
        let now = Instant::now();
        let event = match &result {
            Ok(_) => Event::Answered(now - started),
            Err(Error::NoBroker { .. }) => Event::NotTried,
            Err(Error::Refused { code, .. }) if is_retried_send(*code) => Event::Refused,
            Err(error) if error.retry_can_help() => Event::Unreachable,
            Err(_) => return result,
        };
        self.faults.note(queue.shared_broker_name(), event, now);
        result
    }

    async fn send_once(
        &self,
        outbound: &Outbound,
        route: &Route,
        queue: &MessageQueue,
        deadline: Instant,
    ) -> Result<Stored, Error> {
        let addr = route.master(queue.broker_name()).ok_or_else(|| no_broker(queue))?;
        let remoting = &self.client.shared.remoting;
        let request = self.request(outbound, queue)?;
        let deadline = match self.attempt_timeout {
            Some(timeout) => deadline.min(Instant::now() + timeout),
            None => deadline,
        };
        let (Some(tracer), Some(traced)) = (&self.tracer, &outbound.traced) else {
            return remoting.send(addr, &request, deadline).await;
        };
        let started = Instant::now();
        let result = remoting.send(addr, &request, deadline).await;
        self.note(tracer, traced, outbound, addr, &result, started.elapsed());
        result
    }

    /// The request that sends a message to a queue.
    fn request(&self, outbound: &Outbound, queue: &MessageQueue) -> Result<Request, Error> {
        let remoting = &self.client.shared.remoting;
        let (code, body) = (outbound.code, outbound.body.clone());
        let is_usual = outbound.is_usual() && !remoting.is_signing();
        if is_usual && let Some(kind) = self.heads.find(outbound, queue) {
            return remoting.written_request(code, body, |opaque, body_len, head| {
                let varied = Varied {
                    opaque,
                    queue_id: queue.queue_id(),
                    born_timestamp_ms: outbound.born_ms,
                    properties: outbound.properties(),
                };
                kind.template.write(varied, body_len, head)
            });
        }
        let header = outbound.header(&self.group, queue);
        let request = remoting.request(code, |ext| header.encode(code, ext), body)?;
        if is_usual {
            self.heads.learn(outbound, queue, request.header());
        }
        Ok(request)
    }

    /// Leaves a trace of an attempt, unless the broker wants none.
    fn note(
        &self,
        tracer: &Tracer,
        traced: &Traced,
        outbound: &Outbound,
        addr: &str,
        result: &Result<Stored, Error>,
        cost: Duration,
    ) {
        let stored = result.as_ref().ok();
        if stored.is_some_and(|stored| stored.is_trace_off) {
            return;
        }
        let details = stored.and_then(|stored| stored.details.as_ref());
        let region = details.and_then(|details| details.region.as_deref());
        let namespace = &self.client.shared.namespace;
        tracer.sent(&trace::Sent {
            region: region.unwrap_or(DEFAULT_REGION),
            group: &namespace.unwrap(&self.group),
            topic: &namespace.unwrap(&outbound.topic),
            message_id: &outbound.message_id,
            tag: traced.tag.as_deref(),
            keys: &traced.keys,
            addr,
            body_len: traced.body_len,
            cost,
            kind: traced.kind,
            offset_message_id: stored.map(|stored| &*stored.offset_message_id),
        });
    }

    /// What the application gets to know about a stored message.
    fn sent(&self, stored: Stored, outbound: &Outbound, queue: &MessageQueue) -> Sent {
        let queue = self.client.shared.namespace.unwrap_queue(queue);
        // A broker may choose another queue than the one it was asked for.
        let queue = match stored.queue_id == queue.queue_id() {
            true => queue,
            false => MessageQueue::new(queue.topic(), queue.broker_name(), stored.queue_id),
        };
        let details = stored.details.map(|details| *details).unwrap_or_default();
        let receipt = SendReceipt {
            status: stored.status,
            message_id: outbound.message_id.clone(),
            offset_message_id: stored.offset_message_id,
            queue,
            queue_offset: QueueOffset::new(stored.queue_offset),
            recall_handle: details.recall_handle,
        };
        Sent { receipt, transaction_id: details.transaction_id }
    }
}

/// What the application gets: a message that is stored, though not as well as wished, before the
/// failure that came later, and the first failure before one that only says that there is no way.
fn finish(weak: Option<Sent>, last: Option<Failed>, error: Error) -> Result<Sent, Error> {
    weak.ok_or_else(|| last.map_or(error, |last| last.error))
}

pub(super) fn no_route(topic: &str) -> Error {
    Error::NoRoute { topic: topic.into() }
}

fn no_broker(queue: &MessageQueue) -> Error {
    Error::NoBroker { broker_name: queue.broker_name().into() }
}

/// Whether another attempt may succeed where this one failed.
fn is_worth_a_retry(error: &Error) -> bool {
    match error {
        Error::Refused { code, .. } => is_retried_send(*code),
        Error::Protocol { .. } => false,
        error => error.retry_can_help(),
    }
}

/// Waits before a broker that just failed is tried again; false if there is no time left for it.
async fn pause(attempt: u32, deadline: Instant) -> bool {
    let len = PAUSE_MIN.saturating_mul(1 << attempt.saturating_sub(1).min(6));
    let until = Instant::now() + len;
    if deadline <= until {
        return false;
    }
    sleep_until(until).await;
    true
}
