//! A message as a broker delivers it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use ringmq_protocol::{
    headers::PushReplyRequest,
    message_id::OffsetMessageId,
    names,
    properties::{self, name},
    record::{self, MessageView},
};

use super::compress::unpack;
use crate::{MessageQueue, QueueOffset, clock, namespace::Namespace};

/// A message as a broker delivers it.
///
/// Cheap to clone: body and properties are shared. They are parts of the answer in which the message
/// came, so that keeping one message keeps all of the answer's bytes.
///
/// ```no_run
/// # async fn example(mut consumer: ringmq_client::PullConsumer) -> Result<(), ringmq_client::Error> {
/// let message = consumer.next().await?;
/// println!("{} of {}", message.queue_offset(), message.queue());
/// println!("from {} at {:?}", message.born_host(), message.born_time());
/// println!("tag {:?}, region {:?}", message.tag(), message.property("region"));
/// for key in message.keys() {
///     println!("key {key}");
/// }
/// println!("{}: {:?}", message.message_id(), message.body());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReceivedMessage {
    queue: MessageQueue,
    /// The topic that it was sent to, if the queue is one of another topic: it is a retry.
    topic: Option<Arc<str>>,
    body: Bytes,
    /// Bits of the sys flag about compression; 0 for a body that is not compressed any more.
    packing: i32,
    properties: Bytes,
    flag: i32,
    queue_offset: QueueOffset,
    log_offset: i64,
    born_ms: i64,
    born_host: SocketAddr,
    store_ms: i64,
    store_host: SocketAddr,
    reconsume_times: i32,
}

impl ReceivedMessage {
    /// The queue that it was read from.
    pub const fn queue(&self) -> &MessageQueue {
        &self.queue
    }

    /// The topic that it was sent to. A message that comes again comes from a queue of its group's
    /// retry topic.
    pub fn topic(&self) -> &str {
        self.topic.as_deref().unwrap_or(self.queue.topic())
    }

    /// Its position in the queue, in messages.
    pub const fn queue_offset(&self) -> QueueOffset {
        self.queue_offset
    }

    /// The body, unpacked unless [`ReceivedMessage::is_packed`].
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether the body is still compressed, because the feature of its [`Compression`] is off, or it
    /// unpacks to more than 64 MiB, or it is damaged.
    ///
    /// [`Compression`]: crate::Compression
    pub const fn is_packed(&self) -> bool {
        self.packing != 0
    }

    /// The tag.
    pub fn tag(&self) -> Option<&str> {
        self.property(name::TAGS)
    }

    /// The keys that the message can be looked up by.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.property(name::KEYS).unwrap_or_default().split_whitespace()
    }

    /// A property; `None` also if it is no UTF-8.
    pub fn property(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(properties::get(&self.properties, name)?).ok()
    }

    /// All properties that are UTF-8, those of the protocol included.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        properties::iter(&self.properties).filter_map(|(name, value)| {
            Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
        })
    }

    /// The id that the producer gave it, else the broker's.
    pub fn message_id(&self) -> String {
        match self.property(name::UNIQ_KEY) {
            Some(id) => id.into(),
            None => self.offset_message_id().to_string(),
        }
    }

    /// The id by which its broker finds it.
    pub const fn offset_message_id(&self) -> OffsetMessageId {
        OffsetMessageId { host: self.store_host, log_offset: self.log_offset }
    }

    /// When the producer made it, by the producer's clock.
    pub fn born_time(&self) -> SystemTime {
        clock::from_epoch_ms(self.born_ms)
    }

    /// When the broker stored it, by the broker's clock.
    pub fn store_time(&self) -> SystemTime {
        clock::from_epoch_ms(self.store_ms)
    }

    /// The producer's address as the broker saw it.
    pub const fn born_host(&self) -> SocketAddr {
        self.born_host
    }

    /// The broker's address.
    pub const fn store_host(&self) -> SocketAddr {
        self.store_host
    }

    /// How often the message was delivered and sent back before.
    pub const fn reconsume_times(&self) -> i32 {
        self.reconsume_times
    }

    /// The application's own number.
    pub const fn flag(&self) -> i32 {
        self.flag
    }

    /// Position of the record in its broker's log. Unit: bytes.
    pub(crate) const fn log_offset(&self) -> i64 {
        self.log_offset
    }

    /// All properties as they came.
    pub(crate) const fn properties_bytes(&self) -> &Bytes {
        &self.properties
    }

    /// Bits of the record's sys flag that say how the body still is compressed.
    pub(crate) const fn packing(&self) -> i32 {
        self.packing
    }

    /// Counts a delivery that the broker does not know of.
    pub(crate) const fn count_delivery(&mut self) {
        self.reconsume_times = self.reconsume_times.saturating_add(1);
    }

    /// Shows the topic that a retried message was sent to first.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `DefaultMQPushConsumerImpl.resetRetryAndNamespace`.
    pub(crate) fn show_first_topic(&mut self) {
        if names::group_of_retry_topic(self.queue.topic()).is_some() {
            self.topic = self.property(name::RETRY_TOPIC).map(Arc::from);
        }
    }

    /// A reply, as a broker pushes it. It has no position in any queue.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `ClientRemotingProcessor.receiveReplyMessage`.
    pub(crate) fn reply(header: &PushReplyRequest<'_>, body: Bytes) -> Self {
        let (body, packing) = unpack(body, header.sys_flag);
        let mut properties = header.properties.map(|text| text.bytes().into_owned());
        let text = properties.get_or_insert_default();
        // Decimal digits are allowed in any property.
        let _ = properties::append(text, name::ARRIVE_TIME, &clock::epoch_ms().to_string());
        let host = |text: &str| {
            text.trim_start_matches('/').parse().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
        };
        Self {
            queue: MessageQueue::new(&*header.topic, "", header.queue_id),
            topic: None,
            body,
            packing,
            properties: properties.unwrap_or_default().into(),
            flag: header.flag,
            queue_offset: QueueOffset::ZERO,
            log_offset: 0,
            born_ms: header.born_timestamp_ms,
            born_host: host(&header.born_host),
            store_ms: header.store_timestamp_ms,
            store_host: host(&header.store_host),
            reconsume_times: header.reconsume_times,
        }
    }

    /// The message as the application of a client with this namespace sees it.
    pub(crate) fn unwrapped(mut self, namespace: &Namespace) -> Self {
        self.queue = namespace.unwrap_queue(&self.queue);
        self.topic = self.topic.map(|topic| namespace.unwrap(&topic).into());
        self
    }

    fn new(
        view: &MessageView<'_>,
        answer: &Bytes,
        topic: &Arc<str>,
        broker_name: &Arc<str>,
    ) -> Self {
        let (body, packing) = unpack(answer.slice_ref(view.body), view.sys_flag);
        Self {
            queue: MessageQueue::new(Arc::clone(topic), Arc::clone(broker_name), view.queue_id),
            topic: None,
            body,
            packing,
            properties: answer.slice_ref(view.properties),
            flag: view.flag,
            queue_offset: QueueOffset::new(view.queue_offset),
            log_offset: view.log_offset,
            born_ms: view.born_timestamp_ms,
            born_host: view.born_host,
            store_ms: view.store_timestamp_ms,
            store_host: view.store_host,
            reconsume_times: view.reconsume_times,
        }
    }
}

/// Reads the messages of an answer's body.
///
/// # Errors
///
/// A record that is none; the messages before it are lost with it, since a broker that writes
/// such bodies cannot be trusted with offsets either.
pub(crate) fn parse_all(
    answer: &Bytes,
    broker_name: &str,
) -> Result<Vec<ReceivedMessage>, record::RecordError> {
    let broker_name: Arc<str> = broker_name.into();
    let mut topic: Arc<str> = "".into();
    let mut messages = Vec::new();
    for view in record::records(answer) {
        let view = view?;
        let name = String::from_utf8_lossy(view.topic);
        // A pull brings messages of one topic.
        if *topic != *name {
            topic = (&*name).into();
        }
        messages.push(ReceivedMessage::new(&view, answer, &topic, &broker_name));
    }
    Ok(messages)
}

#[cfg(test)]
pub(crate) mod tests_support {
    use ringmq_protocol::record::{MessageParts, PropertiesParts};

    use super::*;

    /// A message of queue `T@a:0` with this offset, as a broker delivers it.
    pub(crate) fn received(offset: i64, body: &str) -> ReceivedMessage {
        let host = "127.0.0.1:10911".parse().unwrap();
        let parts = MessageParts {
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1_700_000_000_000,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: body.as_bytes(),
            body_crc: None,
            topic: b"T",
            properties: PropertiesParts::default().with(b"UNIQ_KEY\x01ID\x02KEYS\x01k"),
        };
        let mut bytes = vec![0; parts.encoded_len()];
        parts.write(offset, 4096 + offset, 1_700_000_000_001, &mut bytes);
        parse_all(&bytes.into(), "a").unwrap().remove(0)
    }
}
