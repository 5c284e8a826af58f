//! Messages, as an application makes them and as it gets them.

use bytes::Bytes;
use ringmq_protocol::{
    limits::PROPERTIES_LEN_MAX,
    names,
    properties::{self, name},
};

use crate::Invalid;

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
    topic: String,
    body: Bytes,
    flag: i32,
    tag: Option<String>,
    keys: String,
    delay_level: Option<i32>,
    properties: Vec<(String, String)>,
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
    pub fn new(topic: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            topic: topic.into(),
            body: body.into(),
            flag: 0,
            tag: None,
            keys: String::new(),
            delay_level: None,
            properties: Vec::new(),
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
        self.delay_level = Some(level);
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

    pub(crate) const fn flag_bits(&self) -> i32 {
        self.flag
    }

    pub(crate) const fn is_delayed(&self) -> bool {
        self.delay_level.is_some()
    }

    /// Checks topic and body.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `Validators.checkMessage`.
    pub(crate) fn check(&self, body_len_max: usize) -> Result<(), Invalid> {
        let is_sendable = !names::is_not_for_clients(&self.topic);
        if names::validate_topic(&self.topic).is_err() || !is_sendable {
            return Err(Invalid::Topic(self.topic.clone()));
        }
        if self.body.is_empty() {
            return Err(Invalid::EmptyBody);
        }
        if self.body.len() > body_len_max {
            return Err(Invalid::TooLong { len: self.body.len(), max: body_len_max });
        }
        Ok(())
    }

    /// The properties text with this unique id.
    pub(crate) fn properties_text(&self, unique_id: &str) -> Result<Vec<u8>, Invalid> {
        let mut text = Vec::with_capacity(64 + self.keys.len());
        let mut append = |name: &str, value: &str| {
            properties::append(&mut text, name, value).map_err(|_| Invalid::Property(name.into()))
        };
        append(name::UNIQ_KEY, unique_id)?;
        if let Some(tag) = self.tag.as_deref().filter(|tag| !tag.is_empty()) {
            append(name::TAGS, tag)?;
        }
        if !self.keys.is_empty() {
            append(name::KEYS, &self.keys)?;
        }
        if let Some(level) = self.delay_level {
            append(name::DELAY, &level.to_string())?;
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
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_upstreams_form() {
        let message = Message::new("T", "x").tag("TagA").key("k1").key("k2").property("a", "b");
        let text = message.delay_level(3).properties_text("ID").unwrap();
        let want = "UNIQ_KEY\x01ID\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02DELAY\x013\x02a\x01b";
        assert_eq!(String::from_utf8(text).unwrap(), want);
    }

    #[track_caller]
    fn check(message: Message, want: Invalid) {
        let refused = message.check(10).and_then(|()| message.properties_text("ID").map(drop));
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
        let len = PROPERTIES_LEN_MAX + "UNIQ_KEY\x01ID\x02a\x01".len();
        check(long, Invalid::TooLong { len, max: PROPERTIES_LEN_MAX });
    }
}
