//! A message or batch, ready to be sent to whichever queue.

use std::borrow::Cow;

use bytes::Bytes;
use ringmq_protocol::{
    batch,
    codes::request,
    headers::SendRequest,
    names::{AUTO_CREATE_TOPIC, RETRY_PREFIX},
    text::Text,
};

use crate::{Invalid, Message, MessageQueue, clock, route::CREATED_QUEUES_MAX, unique::UniqueIds};

/// What all attempts of one send have in common.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Request code. The long names of code 10 would say the same as 310 in more bytes.
    pub(super) code: i32,
    pub(super) topic: String,
    pub(super) body: Bytes,
    /// The unique id, or those of a batch joined with commas.
    pub(super) message_id: String,
    flag: i32,
    properties: Vec<u8>,
    born_ms: i64,
}

impl Outbound {
    /// # Errors
    ///
    /// [`Invalid`], naming the first rule that the message breaks.
    pub(super) fn single(
        message: &Message,
        ids: &UniqueIds,
        body_len_max: usize,
    ) -> Result<Self, Invalid> {
        message.check(body_len_max)?;
        let born_ms = clock::epoch_ms();
        let message_id = ids.next(born_ms).to_string();
        Ok(Self {
            code: request::SEND_MESSAGE_V2,
            topic: message.topic().into(),
            body: message.body().clone(),
            properties: message.properties_text(&message_id)?,
            message_id,
            flag: message.flag_bits(),
            born_ms,
        })
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
        body_len_max: usize,
    ) -> Result<Self, Invalid> {
        let topic = messages.first().ok_or(Invalid::Batch("it is empty"))?.topic();
        if topic.starts_with(RETRY_PREFIX) {
            return Err(Invalid::Batch("retry topics take no batches"));
        }
        let born_ms = clock::epoch_ms();
        let (mut body, mut message_id) = (Vec::new(), String::new());
        for message in messages {
            if message.topic() != topic {
                return Err(Invalid::Batch("its messages have different topics"));
            }
            if message.is_delayed() {
                return Err(Invalid::Batch("a message of it is delayed"));
            }
            message.check(body_len_max)?;
            let id = ids.next(born_ms);
            let properties = message.properties_text(&id)?;
            let flag = message.flag_bits();
            let item = batch::Item { flag, body: message.body(), properties: &properties };
            batch::append(&mut body, &item).map_err(|_| Invalid::Batch("a message is too long"))?;
            if !message_id.is_empty() {
                message_id.push(',');
            }
            message_id.push_str(&id);
        }
        if body.len() > body_len_max {
            return Err(Invalid::TooLong { len: body.len(), max: body_len_max });
        }
        Ok(Self {
            code: request::SEND_BATCH_MESSAGE,
            topic: topic.into(),
            body: body.into(),
            message_id,
            flag: 0,
            properties: Vec::new(),
            born_ms,
        })
    }

    /// The header that sends it to this queue.
    pub(super) fn header<'a>(&'a self, group: &'a str, queue: &'a MessageQueue) -> SendRequest<'a> {
        SendRequest {
            producer_group: group.into(),
            topic: Cow::Borrowed(&self.topic),
            default_topic: AUTO_CREATE_TOPIC.into(),
            default_topic_queue_nums: CREATED_QUEUES_MAX,
            queue_id: queue.queue_id(),
            sys_flag: 0,
            born_timestamp_ms: self.born_ms,
            flag: self.flag,
            properties: Some(Text::plain(&self.properties)),
            reconsume_times: 0,
            unit_mode: false,
            max_reconsume_times: None,
            batch: self.code == request::SEND_BATCH_MESSAGE,
            broker_name: Some(queue.broker_name().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::properties;

    use super::*;

    fn ids() -> UniqueIds {
        UniqueIds::new([127, 0, 0, 1].into(), 1)
    }

    #[track_caller]
    fn check_batch(messages: &[Message], want: Invalid) {
        assert_eq!(Outbound::batch(messages, &ids(), 100).map(|_| ()), Err(want));
    }

    #[test]
    fn each_message_of_a_batch_has_its_own_id() {
        let messages = ["one", "two"].map(|body| Message::new("T", body).tag(body));
        let batch = Outbound::batch(&messages, &ids(), 1000).unwrap();
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
        let many = vec![message(); 10];
        let item_len = batch::ITEM_OVERHEAD + 1 + "UNIQ_KEY\x01".len() + 32;
        check_batch(&many, Invalid::TooLong { len: 10 * item_len, max: 100 });
    }
}
