//! Sending: requests 10, 310, 320, 324, 325, and their answer.

use alloc::borrow::Cow;

use super::{Field, HeaderError, field, for_each_entry, header};
use crate::{
    codes::request::{SEND_MESSAGE, SEND_REPLY_MESSAGE},
    command::Command,
    encode::FrameWriter,
    text::Text,
};

/// The header of every send: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320),
/// SEND_REPLY_MESSAGE (324) and its V2 (325).
///
/// 10 and 324 spell the field names out, the others use one letter each; the code decides.
///
/// Source: Apache RocketMQ 4.9.8, `SendMessageRequestHeader`, `SendMessageRequestHeaderV2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// The producer's group.
    pub producer_group: Cow<'a, str>,
    /// Where the message goes.
    pub topic: Cow<'a, str>,
    /// The template for a topic that does not exist yet, normally `TBW102`.
    pub default_topic: Cow<'a, str>,
    /// Queues that the producer wants a created topic to have.
    pub default_topic_queue_nums: i32,
    /// The queue; negative lets the broker pick one.
    pub queue_id: i32,
    /// Bits of [`crate::record::sys_flag`], as the client claims them.
    pub sys_flag: i32,
    /// Milliseconds since 1970 by the producer's clock.
    pub born_timestamp_ms: i64,
    /// The application's own number.
    pub flag: i32,
    /// The message's properties in the form of [`crate::properties`], undecoded.
    pub properties: Option<Text<'a>>,
    /// How often the message was delivered before.
    pub reconsume_times: i32,
    /// Legacy; sets a topic flag on creation.
    pub unit_mode: bool,
    /// After how many deliveries a retried message goes to the dead letters.
    pub max_reconsume_times: Option<i32>,
    /// Whether the body is a batch. Code 320 makes it one by itself.
    pub batch: bool,
    /// The broker that the client believes to talk to.
    pub broker_name: Option<Cow<'a, str>>,
}

/// Where each field's entry was found.
#[derive(Default)]
struct Found<'a> {
    texts: [Option<Text<'a>>; FIELDS.len()],
}

/// Names of the fields, long and short, in the order of the short ones: `a` is index 0.
const FIELDS: [(&str, &str); 14] = [
    ("producerGroup", "a"),
    ("topic", "b"),
    ("defaultTopic", "c"),
    ("defaultTopicQueueNums", "d"),
    ("queueId", "e"),
    ("sysFlag", "f"),
    ("bornTimestamp", "g"),
    ("flag", "h"),
    ("properties", "i"),
    ("reconsumeTimes", "j"),
    ("unitMode", "k"),
    ("maxReconsumeTimes", "l"),
    ("batch", "m"),
    ("bname", "n"),
];

const fn has_long_names(code: i32) -> bool {
    matches!(code, SEND_MESSAGE | SEND_REPLY_MESSAGE)
}

impl<'a> Found<'a> {
    #[inline(always)]
    fn note(&mut self, index: usize, value: Text<'a>) {
        if let Some(slot) = self.texts.get_mut(index) {
            *slot = Some(value);
        }
    }

    fn short(command: &Command<'a>) -> Self {
        let mut found = Self::default();
        for_each_entry(command, |name, value| {
            if let [letter] = name {
                found.note(letter.wrapping_sub(b'a').into(), value);
            }
        });
        found
    }

    fn long(command: &Command<'a>) -> Self {
        let mut found = Self::default();
        for_each_entry(command, |name, value| {
            if let Some(index) = FIELDS.iter().position(|(long, _)| long.as_bytes() == name) {
                found.note(index, value);
            }
        });
        found
    }

    #[inline]
    fn read<T: Field<'a>>(&self, index: usize, default: Option<T>) -> Result<T, HeaderError> {
        let name = FIELDS.get(index).map_or("", |(long, _)| long);
        field(name, self.texts.get(index).copied().flatten(), default)
    }
}

impl<'a> SendRequest<'a> {
    /// Reads the header from a command's entries, by the command's code.
    ///
    /// # Errors
    ///
    /// [`HeaderError::Missing`] or [`HeaderError::Invalid`], naming the field in its long form.
    pub fn decode(command: &Command<'a>) -> Result<Self, HeaderError> {
        let found = match has_long_names(command.code) {
            true => Found::long(command),
            false => Found::short(command),
        };
        Ok(Self {
            producer_group: found.read(0, None)?,
            topic: found.read(1, None)?,
            default_topic: found.read(2, None)?,
            default_topic_queue_nums: found.read(3, None)?,
            queue_id: found.read(4, None)?,
            sys_flag: found.read(5, None)?,
            born_timestamp_ms: found.read(6, None)?,
            flag: found.read(7, None)?,
            properties: found.read(8, None)?,
            reconsume_times: found.read(9, Some(0))?,
            unit_mode: found.read(10, Some(false))?,
            max_reconsume_times: found.read(11, None)?,
            batch: found.read(12, Some(false))?,
            broker_name: found.read(13, None)?,
        })
    }

    /// Writes the entries under the names that request `code` uses.
    pub fn encode(&self, code: i32, out: &mut FrameWriter<'_, '_>) {
        let long = has_long_names(code);
        let mut names = FIELDS.iter().map(|(full, short)| if long { *full } else { *short });
        let mut name = || names.next().unwrap_or_default();
        self.producer_group.write(name(), out);
        self.topic.write(name(), out);
        self.default_topic.write(name(), out);
        self.default_topic_queue_nums.write(name(), out);
        self.queue_id.write(name(), out);
        self.sys_flag.write(name(), out);
        self.born_timestamp_ms.write(name(), out);
        self.flag.write(name(), out);
        self.properties.write(name(), out);
        self.reconsume_times.write(name(), out);
        self.unit_mode.write(name(), out);
        self.max_reconsume_times.write(name(), out);
        self.batch.write(name(), out);
        self.broker_name.write(name(), out);
    }
}

header! {
    /// The answer to every send, for codes 0, 10, 11 and 12. Error answers carry only the last two
    /// entries.
    ///
    /// Source: Apache RocketMQ 5.3.3, `SendMessageResponseHeader`; `MSG_REGION` and `TRACE_ON` are
    /// added by `SendMessageProcessor`.
    SendResponse<'a> {
        /// The offset message id, or those of a batch joined with commas.
        msg_id: Cow<'a, str>, b"msgId";
        /// The queue; the requested one for delayed and half messages.
        queue_id: i32, b"queueId";
        /// Offset in messages of the (first) message in the queue where it was stored.
        queue_offset: i64, b"queueOffset";
        /// The message's unique id, in answers of 5.x.
        transaction_id: Option<Cow<'a, str>>, b"transactionId";
        /// The unique id of a batch, in answers of 5.x.
        batch_uniq_id: Option<Cow<'a, str>>, b"batchUniqId";
        /// Handle to recall a timed message, in answers of 5.x.
        recall_handle: Option<Cow<'a, str>>, b"recallHandle";
        /// `DefaultRegion`, unless configured.
        region: Option<Cow<'a, str>>, b"MSG_REGION";
        /// Whether clients may trace; absent counts as true for them.
        trace_on: Option<bool>, b"TRACE_ON";
    }
}

/// Region that a broker reports when none is configured. Source: `MixAll.DEFAULT_TRACE_REGION_ID`.
pub const DEFAULT_REGION: &str = "DefaultRegion";

impl<'a> SendResponse<'a> {
    /// The answer of a broker with default region and tracing off or on.
    pub const fn new(
        msg_id: Cow<'a, str>,
        queue_id: i32,
        queue_offset: i64,
        trace_on: bool,
    ) -> Self {
        Self {
            msg_id,
            queue_id,
            queue_offset,
            transaction_id: None,
            batch_uniq_id: None,
            recall_handle: None,
            region: Some(Cow::Borrowed(DEFAULT_REGION)),
            trace_on: Some(trace_on),
        }
    }
}

header! {
    /// PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply on its way to the requester.
    ///
    /// Source: Apache RocketMQ 4.9.8, `ReplyMessageRequestHeader`.
    PushReplyRequest<'a> {
        /// The replier's producer group.
        producer_group: Cow<'a, str>, b"producerGroup";
        /// The reply topic.
        topic: Cow<'a, str>, b"topic";
        /// Template topic of the reply's send.
        default_topic: Cow<'a, str>, b"defaultTopic";
        /// Queues of a topic to create.
        default_topic_queue_nums: i32, b"defaultTopicQueueNums";
        /// Queue of the reply topic.
        queue_id: i32, b"queueId";
        /// Bits of [`crate::record::sys_flag`]; the body is compressed if they say so.
        sys_flag: i32, b"sysFlag";
        /// Milliseconds since 1970 by the replier's clock.
        born_timestamp_ms: i64, b"bornTimestamp";
        /// The application's own number.
        flag: i32, b"flag";
        /// Properties, with `PUSH_REPLY_TIME` added.
        properties: Option<Text<'a>>, b"properties";
        /// How often the reply was delivered before.
        reconsume_times: i32, b"reconsumeTimes" = 0;
        /// Legacy.
        unit_mode: bool, b"unitMode" = false;
        /// The replier's address as `ip:port`.
        born_host: Cow<'a, str>, b"bornHost";
        /// The broker's address as `ip:port`.
        store_host: Cow<'a, str>, b"storeHost";
        /// Milliseconds since 1970 by the broker's clock.
        store_timestamp_ms: i64, b"storeTimestamp";
    }
}
