//! Messages, as an application makes them and as it gets them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use ringmq_protocol::{
    limits::PROPERTIES_LEN_MAX,
    names,
    properties::{self, name},
};

use crate::{Invalid, clock};

pub(crate) mod compress;
mod received;

pub use received::ReceivedMessage;
pub(crate) use received::parse_all;
#[cfg(test)]
pub(crate) use received::tests_support;

/// Properties that an application sets through methods of their own, or not at all.
///
/// Source: Apache RocketMQ 4.9.8, `MessageConst.STRING_HASH_SET`.
const RESERVED: [&str; 30] = [
    name::TRACE_ON,
    name::MSG_REGION,
    name::KEYS,
    name::TAGS,
    name::WAIT,
    name::DELAY,
    name::RETRY_TOPIC,
    name::REAL_TOPIC,
    name::REAL_QID,
    name::TRAN_MSG,
    name::PGROUP,
    name::MIN_OFFSET,
    name::MAX_OFFSET,
    "BUYER_ID",
    name::ORIGIN_MESSAGE_ID,
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    name::RECONSUME_TIME,
    name::UNIQ_KEY,
    name::MAX_RECONSUME_TIMES,
    name::CONSUME_START_TIME,
    name::INSTANCE_ID,
    name::CORRELATION_ID,
    name::REPLY_TO_CLIENT,
    name::TTL,
    name::ARRIVE_TIME,
    name::PUSH_REPLY_TIME,
    name::CLUSTER,
    name::MSG_TYPE,
];

/// A message to send: a topic, a body, and what else consumers may want to know.
///
/// Whether everything in it is allowed shows when it is sent.
///
/// ```
/// use ringmq_client::Message;
///
/// let message = Message::new("Orders", r#"{"id":17}"#)
///     .tag("created")
///     .key("order-17")
///     .property("region", "eu");
/// assert_eq!(message.topic(), "Orders");
/// ```
#[derive(Clone, Debug)]
pub struct Message {
    topic: Arc<str>,
    body: Bytes,
    flag: i32,
    tag: Option<String>,
    keys: String,
    delay: Option<Delay>,
    sharding_key: Option<String>,
    /// Whether the broker answers before the message is flushed and replicated.
    is_hasty: bool,
    properties: Vec<(String, String)>,
    /// Properties of the protocol that this crate sets.
    system: Vec<(&'static str, String)>,
    /// How often a message that is sent back was delivered, and the bound of it.
    reconsume: Option<Reconsume>,
}

/// When a message is delivered.
#[derive(Clone, Copy, Debug)]
enum Delay {
    Level(i32),
    Wait(Duration),
    At(SystemTime),
}

/// What the header of a message in a retry topic says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reconsume {
    pub(crate) times: i32,
    pub(crate) times_max: Option<i32>,
}

impl Message {
    /// A message with nothing but a body.
    ///
    /// ```
    /// use ringmq_client::Message;
    ///
    /// let text = Message::new("Orders", "hello");
    /// let bytes = Message::new("Orders", vec![1, 2, 3]);
    /// assert_eq!((text.body().len(), bytes.body().len()), (5, 3));
    /// ```
    pub fn new(topic: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        Self {
            topic: topic.into(),
            body: body.into(),
            flag: 0,
            tag: None,
            keys: String::new(),
            delay: None,
            sharding_key: None,
            is_hasty: false,
            properties: Vec::new(),
            system: Vec::new(),
            reconsume: None,
        }
    }

    /// Sets the tag, by which brokers filter for consumers.
    ///
    /// ```
    /// let message = ringmq_client::Message::new("Orders", "hello").tag("created");
    /// ```
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Adds a key, by which the message can be looked up. A key with spaces in it counts as several.
    ///
    /// ```
    /// let message = ringmq_client::Message::new("Orders", "hello").key("order-17").key("eu");
    /// ```
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        if !self.keys.is_empty() {
            self.keys.push(' ');
        }
        self.keys.push_str(key);
        self
    }

    /// Adds a property of the application's own.
    ///
    /// ```
    /// let message = ringmq_client::Message::new("Orders", "hello").property("region", "eu");
    /// ```
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// Delivers the message later: levels 1 to 18 are 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min,
    /// 30 min, 1 h and 2 h, unless the broker has other ones.
    ///
    /// ```
    /// let in_ten_seconds = ringmq_client::Message::new("Orders", "hello").delay_level(3);
    /// ```
    #[must_use]
    pub const fn delay_level(mut self, level: i32) -> Self {
        self.delay = Some(Delay::Level(level));
        self
    }

    /// Delivers the message so much later, to the millisecond. Brokers of 5.x, and RingMQ, know this;
    /// those of 4.9 deliver at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let soon = ringmq_client::Message::new("Orders", "hello").delay(Duration::from_millis(1500));
    /// ```
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(Delay::Wait(delay));
        self
    }

    /// Delivers the message at this time, by the broker's clock. Otherwise as [`Message::delay`].
    ///
    /// ```
    /// # use std::time::{Duration, SystemTime};
    /// let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    /// let message = ringmq_client::Message::new("Orders", "hello").deliver_at(midnight);
    /// ```
    #[must_use]
    pub const fn deliver_at(mut self, time: SystemTime) -> Self {
        self.delay = Some(Delay::At(time));
        self
    }

    /// Sends the message to the queue that this key has, so that all messages with one key have an
    /// order among each other: that of awaited sends. Java producers that choose the queue with
    /// `SelectMessageQueueByHash` and the same text choose the same queue.
    ///
    /// ```
    /// let message = ringmq_client::Message::new("Orders", "paid").sharding_key("order-17");
    /// ```
    #[must_use]
    pub fn sharding_key(mut self, key: impl Into<String>) -> Self {
        self.sharding_key = Some(key.into());
        self
    }

    /// Lets a broker that flushes or replicates before it answers answer earlier for this message.
    /// Such brokers wait unless told so.
    ///
    /// ```
    /// let message = ringmq_client::Message::new("Clicks", "x").wait_for_store(false);
    /// ```
    #[must_use]
    pub const fn wait_for_store(mut self, waits: bool) -> Self {
        self.is_hasty = !waits;
        self
    }

    /// Sets a number of the application's own that travels beside the properties.
    ///
    /// ```
    /// let message = ringmq_client::Message::new("Orders", "hello").flag(7);
    /// ```
    #[must_use]
    pub const fn flag(mut self, flag: i32) -> Self {
        self.flag = flag;
        self
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The body.
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Sets a property that applications may not set.
    #[must_use]
    pub(crate) fn system(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.system.push((name, value.into()));
        self
    }

    /// Half messages are not delayed. Source: `DefaultMQProducerImpl.sendMessageInTransaction`.
    #[must_use]
    pub(crate) const fn without_delay(mut self) -> Self {
        self.delay = None;
        self
    }

    pub(crate) fn shared_topic(&self) -> Arc<str> {
        Arc::clone(&self.topic)
    }

    /// Says how often a message that goes to a retry topic was delivered.
    #[must_use]
    #[allow(dead_code, reason = "for consumers that send messages back by themselves")]
    pub(crate) const fn reconsumed(mut self, times: i32, times_max: Option<i32>) -> Self {
        self.reconsume = Some(Reconsume { times, times_max });
        self
    }

    pub(crate) const fn reconsume(&self) -> Option<Reconsume> {
        self.reconsume
    }

    /// About what the message takes in a batch. Unit: bytes.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, example `ListSplitter`, which adds 20 bytes for each message.
    pub(crate) fn len_estimate(&self) -> usize {
        const UNIQUE_ID_LEN: usize = 64;
        let properties = self.properties.iter().map(|(name, value)| name.len() + value.len() + 2);
        let tag = self.tag.as_ref().map_or(0, |tag| tag.len() + 6);
        self.topic.len()
            + self.body.len()
            + properties.sum::<usize>()
            + tag
            + self.keys.len()
            + UNIQUE_ID_LEN
            + 20
    }

    pub(crate) const fn flag_bits(&self) -> i32 {
        self.flag
    }

    /// Whether it can be part of a batch.
    pub(crate) fn can_join(&self) -> bool {
        !self.is_delayed() && !self.topic.starts_with(names::RETRY_PREFIX)
    }

    pub(crate) const fn is_delayed(&self) -> bool {
        self.delay.is_some()
    }

    pub(crate) const fn is_hasty(&self) -> bool {
        self.is_hasty
    }

    pub(crate) fn ordering_key(&self) -> Option<&str> {
        self.sharding_key.as_deref()
    }

    pub(crate) fn tag_text(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| !tag.is_empty())
    }

    pub(crate) fn keys_text(&self) -> &str {
        &self.keys
    }

    /// Checks topic and body.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `Validators.checkMessage`.
    pub(crate) fn check(&self, body_len_max: usize) -> Result<(), Invalid> {
        let is_sendable = !names::is_not_for_clients(&self.topic);
        if names::validate_topic(&self.topic).is_err() || !is_sendable {
            return Err(Invalid::Topic(self.topic().into()));
        }
        if self.body.is_empty() {
            return Err(Invalid::EmptyBody);
        }
        if self.body.len() > body_len_max {
            return Err(Invalid::TooLong { len: self.body.len(), max: body_len_max });
        }
        Ok(())
    }

    /// The properties text, with this unique id and namespace.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `MessageDecoder.messageProperties2String`.
    pub(crate) fn properties_text(
        &self,
        unique_id: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<u8>, Invalid> {
        let mut text = Vec::with_capacity(96 + self.keys.len());
        self.write_properties(&mut text, unique_id, namespace)?;
        Ok(text)
    }

    /// Writes the properties text to an empty buffer, as [`Message::properties_text`].
    pub(crate) fn write_properties(
        &self,
        text: &mut Vec<u8>,
        unique_id: &str,
        namespace: Option<&str>,
    ) -> Result<(), Invalid> {
        let wait = if self.is_hasty { "false" } else { "true" };
        // What every message has needs no checks.
        for part in [name::UNIQ_KEY, "\x01", unique_id, "\x02", name::WAIT, "\x01", wait] {
            text.extend_from_slice(part.as_bytes());
        }
        let mut append = |name: &str, value: &str| {
            properties::append(text, name, value).map_err(|_| Invalid::Property(name.into()))
        };
        if let Some(namespace) = namespace {
            append(name::INSTANCE_ID, namespace)?;
        }
        if let Some(tag) = self.tag_text() {
            append(name::TAGS, tag)?;
        }
        if !self.keys.is_empty() {
            append(name::KEYS, &self.keys)?;
        }
        if let Some((name, value)) = self.delay.map(Delay::property) {
            append(name, &value)?;
        }
        if let Some(key) = &self.sharding_key {
            append(name::SHARDING_KEY, key)?;
        }
        for (name, value) in &self.system {
            append(name, value)?;
        }
        for (name, value) in &self.properties {
            if RESERVED.contains(&name.as_str()) {
                return Err(Invalid::Property(name.clone()));
            }
            append(name, value)?;
        }
        if text.len() > PROPERTIES_LEN_MAX {
            return Err(Invalid::TooLong { len: text.len(), max: PROPERTIES_LEN_MAX });
        }
        Ok(())
    }
}

impl Delay {
    fn property(self) -> (&'static str, String) {
        match self {
            Self::Level(level) => (name::DELAY, level.to_string()),
            Self::Wait(delay) => (name::TIMER_DELAY_MS, delay.as_millis().to_string()),
            Self::At(time) => (name::TIMER_DELIVER_MS, clock::to_epoch_ms(time).to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_upstreams_form() {
        let message = Message::new("T", "x").tag("TagA").key("k1").key("k2").property("a", "b");
        let text = message.delay_level(3).properties_text("ID", None).unwrap();
        let want = "UNIQ_KEY\x01ID\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02DELAY\x013\x02a\x01b";
        assert_eq!(String::from_utf8(text).unwrap(), want);
    }

    #[test]
    fn what_has_a_method_of_its_own_becomes_a_property() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_900_000_000_123);
        let text = |message: Message, namespace| {
            String::from_utf8(message.properties_text("ID", namespace).unwrap()).unwrap()
        };
        let message = || Message::new("T", "x");
        let check = |message: Message, want: &str| {
            assert_eq!(text(message, None), format!("UNIQ_KEY\x01ID\x02WAIT\x01true\x02{want}"));
        };
        check(message().delay(Duration::from_millis(1500)), "TIMER_DELAY_MS\x011500");
        check(message().deliver_at(at), "TIMER_DELIVER_MS\x011900000000123");
        check(message().sharding_key("k"), "__SHARDINGKEY\x01k");
        check(message().system(name::TRAN_MSG, "true"), "TRAN_MSG\x01true");
        let want = "UNIQ_KEY\x01ID\x02WAIT\x01false\x02INSTANCE_ID\x01ns";
        assert_eq!(text(message().wait_for_store(false), Some("ns")), want);
    }

    #[track_caller]
    fn check(message: Message, want: Invalid) {
        let refused =
            message.check(10).and_then(|()| message.properties_text("ID", None).map(drop));
        assert_eq!(refused, Err(want));
    }

    #[test]
    fn what_brokers_would_refuse_is_refused_before_it_is_sent() {
        check(Message::new("", "x"), Invalid::Topic(String::new()));
        check(Message::new("../x", "x"), Invalid::Topic("../x".into()));
        let system = "SCHEDULE_TOPIC_XXXX";
        check(Message::new(system, "x"), Invalid::Topic(system.into()));
        check(Message::new("T", ""), Invalid::EmptyBody);
        check(Message::new("T", vec![0; 11]), Invalid::TooLong { len: 11, max: 10 });
        check(
            Message::new("T", "x").property("UNIQ_KEY", "x"),
            Invalid::Property("UNIQ_KEY".into()),
        );
        check(Message::new("T", "x").property("a", ""), Invalid::Property("a".into()));
        check(Message::new("T", "x").tag("a\x02b"), Invalid::Property("TAGS".into()));
        let long = Message::new("T", "x").property("a", "b".repeat(PROPERTIES_LEN_MAX));
        let len = PROPERTIES_LEN_MAX + "UNIQ_KEY\x01ID\x02WAIT\x01true\x02a\x01".len();
        check(long, Invalid::TooLong { len, max: PROPERTIES_LEN_MAX });
    }
}
