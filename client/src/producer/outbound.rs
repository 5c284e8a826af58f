//! A message or batch, ready to be sent to whichever queue.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use ringmq_protocol::{
    batch,
    codes::request,
    headers::SendRequest,
    names::{AUTO_CREATE_TOPIC, RETRY_PREFIX},
    record::sys_flag,
    text::Text,
};

use crate::{
    Compression, Invalid, Message, MessageQueue, clock, message::Reconsume, namespace::Namespace,
    route::CREATED_QUEUES_MAX, trace::Kind, unique::UniqueIds,
};

/// How messages of one producer are made ready.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) namespace: Namespace,
    /// Longest body or batch. Unit: bytes.
    pub(super) body_len_max: usize,
    pub(super) compression: Option<Compression>,
    /// 0 to 9.
    pub(super) compression_level: u32,
    /// Shortest body that is compressed. Unit: bytes.
    pub(super) compressed_len_min: usize,
    pub(super) is_traced: bool,
}

/// What a trace says about a message beside what is sent.
#[derive(Debug)]
pub(super) struct Traced {
    pub(super) tag: Option<String>,
    pub(super) keys: String,
    pub(super) body_len: usize,
    pub(super) kind: Kind,
}

/// What all attempts of one send have in common.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Request code. The long names of code 10 would say the same as 310 in more bytes.
    pub(super) code: i32,
    /// With the namespace.
    pub(super) topic: Arc<str>,
    pub(super) body: Bytes,
    /// The unique id, or those of a batch joined with commas.
    pub(super) message_id: String,
    pub(super) born_ms: i64,
    pub(super) is_hasty: bool,
    pub(super) traced: Option<Box<Traced>>,
    flag: i32,
    sys_flag: i32,
    properties: Vec<u8>,
    reconsume: Reconsume,
}

impl Outbound {
    /// # Errors
    ///
    /// [`Invalid`], naming the first rule that the message breaks.
    pub(super) fn single(message: &Message, ids: &UniqueIds, form: &Form) -> Result<Self, Invalid> {
        message.check(form.body_len_max)?;
        let born_ms = clock::epoch_ms();
        let message_id = ids.next(born_ms);
        let properties = message.properties_text(&message_id, form.namespace.name())?;
        let (body, sys_flag) = form.pack(message.body());
        Ok(Self {
            code: request::SEND_MESSAGE_V2,
            topic: form.topic(message),
            body,
            properties,
            message_id: message_id.to_string(),
            is_hasty: message.is_hasty(),
            traced: form.is_traced.then(|| Box::new(Traced::new(message))),
            flag: message.flag_bits(),
            sys_flag,
            born_ms,
            reconsume: message.reconsume().unwrap_or_default(),
        })
    }

    /// A half message of a transaction.
    ///
    /// # Errors
    ///
    /// As [`Outbound::single`].
    pub(super) fn half(message: &Message, ids: &UniqueIds, form: &Form) -> Result<Self, Invalid> {
        let mut outbound = Self::single(message, ids, form)?;
        outbound.sys_flag |= sys_flag::TRANSACTION_PREPARED;
        if let Some(traced) = &mut outbound.traced {
            traced.kind = Kind::Half;
        }
        Ok(outbound)
    }

    /// A reply to a request.
    ///
    /// # Errors
    ///
    /// As [`Outbound::single`].
    pub(super) fn reply(message: &Message, ids: &UniqueIds, form: &Form) -> Result<Self, Invalid> {
        Ok(Self { code: request::SEND_REPLY_MESSAGE_V2, ..Self::single(message, ids, form)? })
    }

    /// # Errors
    ///
    /// [`Invalid`], naming the first rule that a message or the batch breaks.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `MessageBatch.generateFromList`.
    pub(super) fn batch(
        messages: &[Message],
        ids: &UniqueIds,
        form: &Form,
    ) -> Result<Self, Invalid> {
        let first = messages.first().ok_or(Invalid::Batch("it is empty"))?;
        let born_ms = clock::epoch_ms();
        let mut body = Vec::with_capacity(messages.iter().map(Message::len_estimate).sum());
        let mut message_id = String::new();
        for message in messages {
            check_member(first, message)?;
            message.check(form.body_len_max)?;
            let id = ids.next(born_ms);
            append(&mut body, message, &id, form)?;
            if !message_id.is_empty() {
                message_id.push(',');
            }
            message_id.push_str(&id);
        }
        if body.len() > form.body_len_max {
            return Err(Invalid::TooLong { len: body.len(), max: form.body_len_max });
        }
        Ok(Self {
            code: request::SEND_BATCH_MESSAGE,
            topic: form.topic(first),
            body: body.into(),
            message_id,
            is_hasty: first.is_hasty(),
            traced: form.is_traced.then(|| Box::new(Traced::new(first))),
            flag: 0,
            sys_flag: 0,
            properties: wait(first.is_hasty()).to_vec(),
            born_ms,
            reconsume: Reconsume::default(),
        })
    }

    /// The message and others, which were encoded as a batch.
    pub(super) fn into_batch(self, body: Vec<u8>) -> Self {
        Self {
            code: request::SEND_BATCH_MESSAGE,
            body: body.into(),
            flag: 0,
            properties: wait(self.is_hasty).to_vec(),
            ..self
        }
    }

    /// The message as a part of a batch.
    pub(super) fn item(&self) -> batch::Item<'_> {
        batch::Item { flag: self.flag, body: &self.body, properties: &self.properties }
    }

    pub(super) const fn is_compressed(&self) -> bool {
        self.sys_flag & sys_flag::COMPRESSED != 0
    }

    /// What its header says about the message itself.
    pub(super) const fn flags(&self) -> (i32, i32) {
        (self.flag, self.sys_flag)
    }

    pub(super) fn properties(&self) -> &[u8] {
        &self.properties
    }

    /// Whether its header is like those of most other sends.
    pub(super) fn is_usual(&self) -> bool {
        self.code == request::SEND_MESSAGE_V2 && self.reconsume == Reconsume::default()
    }

    /// The header that sends it to this queue.
    pub(super) fn header<'a>(&'a self, group: &'a str, queue: &'a MessageQueue) -> SendRequest<'a> {
        SendRequest {
            producer_group: group.into(),
            topic: Cow::Borrowed(&self.topic),
            default_topic: AUTO_CREATE_TOPIC.into(),
            default_topic_queue_nums: CREATED_QUEUES_MAX,
            queue_id: queue.queue_id(),
            sys_flag: self.sys_flag,
            born_timestamp_ms: self.born_ms,
            flag: self.flag,
            properties: Some(Text::plain(&self.properties)),
            reconsume_times: self.reconsume.times,
            unit_mode: false,
            max_reconsume_times: self.reconsume.times_max,
            batch: self.code == request::SEND_BATCH_MESSAGE,
            broker_name: Some(queue.broker_name().into()),
        }
    }

    /// What it takes in memory while it is in flight. Unit: bytes.
    pub(super) fn len(&self) -> usize {
        self.body.len() + self.properties.len()
    }
}

impl Traced {
    fn new(message: &Message) -> Self {
        Self {
            tag: message.tag_text().map(Into::into),
            keys: message.keys_text().into(),
            body_len: message.body().len(),
            kind: if message.is_delayed() { Kind::Delayed } else { Kind::Normal },
        }
    }
}

impl Form {
    /// A message's topic with the namespace.
    pub(super) fn topic(&self, message: &Message) -> Arc<str> {
        match self.namespace.wrap(message.topic()) {
            Cow::Borrowed(_) => message.shared_topic(),
            Cow::Owned(topic) => topic.into(),
        }
    }

    /// Whether a body is long enough to be packed.
    pub(super) const fn packs(&self, body: &Bytes) -> bool {
        self.compression.is_some() && self.compressed_len_min <= body.len()
    }

    /// The body, packed if it is long enough and gets shorter, and its sys flag.
    fn pack(&self, body: &Bytes) -> (Bytes, i32) {
        let packed = self
            .compression
            .filter(|_| self.packs(body))
            .and_then(|compression| compression.pack(body, self.compression_level));
        packed.unwrap_or_else(|| (body.clone(), 0))
    }
}

/// The properties of a batch itself.
const fn wait(is_hasty: bool) -> &'static [u8] {
    if is_hasty { b"WAIT\x01false" } else { b"WAIT\x01true" }
}

/// Whether a message may be in the batch of another one.
///
/// # Errors
///
/// [`Invalid::Batch`].
fn check_member(first: &Message, message: &Message) -> Result<(), Invalid> {
    let reason = if message.topic().starts_with(RETRY_PREFIX) {
        "retry topics take no batches"
    } else if message.topic() != first.topic() {
        "its messages have different topics"
    } else if message.is_delayed() {
        "a message of it is delayed"
    } else if message.is_hasty() != first.is_hasty() {
        "its messages differ in whether they wait for the store"
    } else {
        return Ok(());
    };
    Err(Invalid::Batch(reason))
}

/// Encodes a message as a part of a batch.
///
/// # Errors
///
/// [`Invalid`], naming the rule that it breaks.
fn append(body: &mut Vec<u8>, message: &Message, id: &str, form: &Form) -> Result<(), Invalid> {
    let properties = message.properties_text(id, form.namespace.name())?;
    let item =
        batch::Item { flag: message.flag_bits(), body: message.body(), properties: &properties };
    batch::append(body, &item).map_err(|_| Invalid::Batch("a message is too long"))
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{limits::MESSAGE_LEN_MAX, properties};

    use super::*;

    fn ids() -> UniqueIds {
        UniqueIds::new([127, 0, 0, 1].into(), 1)
    }

    fn form() -> Form {
        Form {
            namespace: Namespace::default(),
            body_len_max: MESSAGE_LEN_MAX,
            compression: Some(Compression::Zlib),
            compression_level: 5,
            compressed_len_min: 4096,
            is_traced: false,
        }
    }

    #[track_caller]
    fn check_batch(messages: &[Message], want: Invalid) {
        let form = Form { body_len_max: 100, ..form() };
        assert_eq!(Outbound::batch(messages, &ids(), &form).map(|_| ()), Err(want));
    }

    #[test]
    fn each_message_of_a_batch_has_its_own_id() {
        let messages = ["one", "two"].map(|body| Message::new("T", body).tag(body));
        let batch = Outbound::batch(&messages, &ids(), &form()).unwrap();
        let items: Vec<_> = batch::items(&batch.body).map(Result::unwrap).collect();
        let found = items.iter().map(|item| properties::get(item.properties, "UNIQ_KEY").unwrap());
        let found: Vec<_> = found.map(|id| String::from_utf8(id.to_vec()).unwrap()).collect();
        assert_eq!(found.join(","), batch.message_id);
        assert_ne!(found[0], found[1]);
        assert_eq!(items[1].body, b"two");
        let queue = MessageQueue::new("T", "b", 3);
        let header = batch.header("g", &queue);
        assert!(header.batch && header.queue_id == 3);
    }

    #[test]
    fn what_cannot_be_a_batch_is_refused() {
        let message = || Message::new("T", "x");
        check_batch(&[], Invalid::Batch("it is empty"));
        let other = Message::new("U", "x");
        check_batch(&[message(), other], Invalid::Batch("its messages have different topics"));
        check_batch(&[message().delay_level(1)], Invalid::Batch("a message of it is delayed"));
        check_batch(&[message(), Message::new("T", "")], Invalid::EmptyBody);
        let retry = Message::new("%RETRY%g", "x");
        check_batch(&[retry], Invalid::Batch("retry topics take no batches"));
        let hasty = message().wait_for_store(false);
        let reason = "its messages differ in whether they wait for the store";
        check_batch(&[message(), hasty], Invalid::Batch(reason));
        let many = vec![message(); 10];
        let item_len = batch::ITEM_OVERHEAD + 1 + "UNIQ_KEY\x01\x02WAIT\x01true".len() + 32;
        check_batch(&many, Invalid::TooLong { len: 10 * item_len, max: 100 });
    }

    #[test]
    fn long_bodies_are_compressed_and_say_so() {
        let (ids, form) = (ids(), form());
        let flag = |body: Vec<u8>| {
            let outbound = Outbound::single(&Message::new("T", body), &ids, &form).unwrap();
            (outbound.sys_flag, outbound.body.len())
        };
        assert_eq!(flag(vec![7; 4095]), (0, 4095));
        let (flags, len) = flag(vec![7; 4096]);
        assert!(flags == 0x301 && len < 100, "{flags:#x} {len}");
    }

    #[test]
    fn a_namespace_is_in_the_topic_and_the_properties() {
        let form = Form { namespace: Namespace::new("ns"), ..form() };
        let outbound = Outbound::single(&Message::new("T", "x"), &ids(), &form).unwrap();
        assert_eq!(&*outbound.topic, "ns%T");
        assert_eq!(properties::get(&outbound.properties, "INSTANCE_ID"), Some(&b"ns"[..]));
    }
}
