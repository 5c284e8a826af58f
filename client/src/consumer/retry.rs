//! Messages that failed: back to the broker, which delivers them again later, or to the dead
//! letters.
//!
//! The broker is asked to do it with what it has stored. If it cannot, the message is sent to the
//! group's retry topic as a new one, which says where it comes from.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultMQPushConsumerImpl.sendMessageBack`,
//! `ConsumeMessageOrderlyService.sendMessageBack`.

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    headers::{SendBackRequest, SendRequest},
    limits::PROPERTIES_LEN_MAX,
    names::{self, AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER},
    properties::{self, NAME_SEPARATOR, PAIR_SEPARATOR, name},
    text::Text,
};
use tokio::time::Instant;

use super::member::Member;
use crate::{Error, Invalid, ReceivedMessage, clock, remoting::refused};

/// How long a broker may take. Source: as above, which waits 5 s.
const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Deliveries before the dead letters, unless set. Source: `DefaultMQPushConsumer`.
pub(crate) const DELIVERIES_MAX: i32 = 16;

/// First delay level of a retry that the broker chooses: 10 s, with its default levels.
const FIRST_LEVEL: i32 = 3;

/// Properties that a retried message gets anew, or that belong to the earlier delivery.
const REPLACED: [&str; 8] = [
    name::DELAY,
    name::RETRY_TOPIC,
    name::ORIGIN_MESSAGE_ID,
    name::RECONSUME_TIME,
    name::MAX_RECONSUME_TIMES,
    name::TRAN_MSG,
    name::MIN_OFFSET,
    name::MAX_OFFSET,
];

/// When a failed message comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Later and later, as the broker has it: after 10 s, 30 s, 1 min and so on by default.
    Later,
    /// After the delay of this level.
    At(i32),
    /// Never: it goes to the dead letters.
    Never,
}

impl Again {
    const fn wire(self) -> i32 {
        match self {
            Self::Later => 0,
            Self::At(level) => level,
            Self::Never => -1,
        }
    }
}

impl Member {
    /// Hands a failed message over to the broker.
    ///
    /// # Errors
    ///
    /// Why neither way worked: the message is still this member's.
    pub(crate) async fn send_back(
        &self,
        message: &ReceivedMessage,
        again: Again,
        deliveries_max: i32,
    ) -> Result<(), Error> {
        match self.ask_back(message, again, deliveries_max).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let (group, id) = (self.group(), message.message_id());
                tracing::debug!(group, id, %error, "send back refused, sending it anew");
                self.send_anew(message, again, deliveries_max).await
            }
        }
    }

    async fn ask_back(
        &self,
        message: &ReceivedMessage,
        again: Again,
        deliveries_max: i32,
    ) -> Result<(), Error> {
        let shared = &self.client.shared;
        let queue = message.queue();
        let route = shared.route(queue.topic(), shared.deadline()).await?;
        // Where its broker was when it stored the message, if the route does not have it.
        let addr = route.master(queue.broker_name()).map(String::from);
        let addr = addr.unwrap_or_else(|| message.store_host().to_string());
        let header = SendBackRequest {
            log_offset: message.log_offset(),
            group: self.group().into(),
            delay_level: again.wire(),
            origin_msg_id: Some(message.message_id().into()),
            origin_topic: Some(message.topic().into()),
            unit_mode: false,
            max_reconsume_times: Some(deliveries_max),
            broker_name: Some(queue.broker_name().into()),
        };
        let code = request::CONSUMER_SEND_MSG_BACK;
        let request = shared.remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        shared.remoting.call_ok(&addr, request, Instant::now() + ANSWER_TIME).await.map(drop)
    }

    /// Sends a message to the group's retry topic. The broker puts one that was delivered too often
    /// to the dead letters.
    pub(crate) async fn send_anew(
        &self,
        message: &ReceivedMessage,
        again: Again,
        deliveries_max: i32,
    ) -> Result<(), Error> {
        let shared = &self.client.shared;
        let deadline = Instant::now() + ANSWER_TIME;
        let topic = names::retry_topic(self.group());
        let route = shared.route(&topic, deadline).await?;
        let no_route = || Error::NoRoute { topic: topic.clone() };
        let queue = route.pick(None).ok_or_else(no_route)?;
        let addr = route.master(queue.broker_name()).ok_or_else(no_route)?;
        let times = message.reconsume_times();
        let is_dead = again == Again::Never || times >= deliveries_max;
        let level = match again {
            _ if is_dead => None,
            Again::At(level) => Some(level),
            _ => Some(FIRST_LEVEL.saturating_add(times)),
        };
        let properties = retry_properties(message, level)?;
        let header = SendRequest {
            producer_group: CLIENT_INNER_PRODUCER.into(),
            topic: topic.as_str().into(),
            default_topic: AUTO_CREATE_TOPIC.into(),
            default_topic_queue_nums: 4,
            queue_id: queue.queue_id(),
            sys_flag: message.packing(),
            born_timestamp_ms: clock::epoch_ms(),
            flag: message.flag(),
            properties: Some(Text::plain(&properties)),
            reconsume_times: if is_dead { times.max(deliveries_max) } else { times }
                .saturating_add(1),
            unit_mode: false,
            // The broker compares the count after this delivery, not the one before it as when it is
            // asked to take a message back: one more makes both ways end after as many deliveries.
            max_reconsume_times: Some(deliveries_max.saturating_add(1)),
            batch: false,
            broker_name: Some(queue.broker_name().into()),
        };
        let (code, body) = (request::SEND_MESSAGE_V2, message.body().clone());
        let request = shared.remoting.request(code, |ext| header.encode(code, ext), body)?;
        let answer = shared.remoting.call(addr, request, deadline).await?;
        let command = answer.parse(addr)?;
        match command.code {
            response::SUCCESS
            | response::FLUSH_DISK_TIMEOUT
            | response::FLUSH_SLAVE_TIMEOUT
            | response::SLAVE_NOT_AVAILABLE => Ok(()),
            _ => Err(refused(addr, &command)),
        }
    }
}

/// The properties of a message that is sent anew: its own, and where it comes from.
fn retry_properties(message: &ReceivedMessage, level: Option<i32>) -> Result<Vec<u8>, Invalid> {
    let mut text = Vec::with_capacity(message.properties_bytes().len() + 128);
    for (name, value) in properties::iter(message.properties_bytes()) {
        if !REPLACED.iter().any(|replaced| replaced.as_bytes() == name) {
            text.extend_from_slice(name);
            text.push(NAME_SEPARATOR);
            text.extend_from_slice(value);
            text.push(PAIR_SEPARATOR);
        }
    }
    let mut append = |name: &str, value: &str| {
        properties::append(&mut text, name, value).map_err(|_| Invalid::Property(name.into()))
    };
    append(name::RETRY_TOPIC, message.topic())?;
    match message.property(name::ORIGIN_MESSAGE_ID) {
        Some(id) => append(name::ORIGIN_MESSAGE_ID, id)?,
        None => append(name::ORIGIN_MESSAGE_ID, &message.message_id())?,
    }
    if let Some(level) = level {
        append(name::DELAY, &level.to_string())?;
    }
    match text.len() {
        len if len > PROPERTIES_LEN_MAX => Err(Invalid::TooLong { len, max: PROPERTIES_LEN_MAX }),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests_support::received;

    #[test]
    fn a_message_sent_anew_says_where_it_comes_from() {
        let text = retry_properties(&received(7, "body"), Some(3)).unwrap();
        let want = [
            ("UNIQ_KEY", "ID"),
            ("KEYS", "k"),
            ("RETRY_TOPIC", "T"),
            ("ORIGIN_MESSAGE_ID", "ID"),
            ("DELAY", "3"),
        ];
        let found: Vec<_> = properties::iter(&text).collect();
        assert_eq!(found, want.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let dead = retry_properties(&received(7, "body"), None).unwrap();
        assert_eq!(properties::get(&dead, "DELAY"), None);
    }
}
