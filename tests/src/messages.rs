//! The few requests that most tests need, with the values that clients send.

use std::{borrow::Cow, collections::BTreeMap, io};

use ringmq_protocol::{
    codes::{
        request::{GET_MAX_OFFSET, PULL_MESSAGE, SEND_MESSAGE_V2, UPDATE_AND_CREATE_TOPIC},
        response::{PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS},
    },
    encode::FrameWriter,
    headers::{CreateTopicRequest, PullRequest, QueueRequest, SendRequest, pull_flag},
    names::AUTO_CREATE_TOPIC,
    record::records,
    text::Text,
};

use crate::client::{Client, Reply};

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Position in its queue.
    pub queue_offset: i64,
    /// Property `KEYS`.
    pub key: String,
    /// Body.
    pub body: Vec<u8>,
}

/// Creates a topic with `queues` queues.
///
/// # Errors
///
/// Those of [`Client::call`].
pub fn create_topic(client: &mut Client, topic: &str, queues: i32) -> io::Result<Reply> {
    let header = CreateTopicRequest {
        topic: topic.into(),
        default_topic: AUTO_CREATE_TOPIC.into(),
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm: 6,
        topic_filter_type: "SINGLE_TAG".into(),
        topic_sys_flag: Some(0),
        order: false,
        attributes: None,
        force: None,
    };
    client.call(UPDATE_AND_CREATE_TOPIC, |out| header.encode(out), &[])
}

/// Writes the header of a send with key and tag.
pub fn send_header(out: &mut FrameWriter<'_, '_>, topic: &str, queue: i32, key: &str, tag: &str) {
    let properties = format!("KEYS\u{1}{key}\u{2}TAGS\u{1}{tag}\u{2}WAIT\u{1}true");
    let header = SendRequest {
        producer_group: "producers".into(),
        topic: topic.into(),
        default_topic: AUTO_CREATE_TOPIC.into(),
        default_topic_queue_nums: 4,
        queue_id: queue,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        flag: 0,
        properties: Some(Text::from(properties.as_str())),
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch: false,
        broker_name: None,
    };
    header.encode(SEND_MESSAGE_V2, out);
}

/// Sends one message without waiting for the answer; returns the number of the request.
///
/// # Errors
///
/// Those of the socket.
pub fn post_send(
    client: &mut Client,
    topic: &str,
    queue: i32,
    key: &str,
    body: &[u8],
) -> io::Result<i32> {
    client.post(SEND_MESSAGE_V2, |out| send_header(out, topic, queue, key, "A"), body)
}

/// Sends one message and waits for the answer.
///
/// # Errors
///
/// Those of [`Client::call`].
pub fn send(
    client: &mut Client,
    topic: &str,
    queue: i32,
    key: &str,
    body: &[u8],
) -> io::Result<Reply> {
    client.call(SEND_MESSAGE_V2, |out| send_header(out, topic, queue, key, "A"), body)
}

/// What a pull asks for.
#[derive(Clone, Copy, Debug)]
pub struct Pull<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue.
    pub queue: i32,
    /// First offset wanted.
    pub offset: i64,
    /// Tag expression.
    pub tags: &'a str,
    /// How long the broker may hold it; 0 is not at all.
    pub hold_ms: i64,
}

impl Pull<'_> {
    /// Sends it without waiting for the answer.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn post(self, client: &mut Client) -> io::Result<i32> {
        let hold = if self.hold_ms > 0 { pull_flag::SUSPEND } else { 0 };
        let header = PullRequest {
            consumer_group: Cow::Borrowed("consumers"),
            topic: self.topic.into(),
            queue_id: self.queue,
            queue_offset: self.offset,
            max_msg_nums: 32,
            sys_flag: pull_flag::SUBSCRIPTION | hold,
            commit_offset: 0,
            suspend_timeout_ms: self.hold_ms,
            subscription: Some(self.tags.into()),
            sub_version: 0,
            expression_type: Some("TAG".into()),
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
        };
        client.post(PULL_MESSAGE, |out| header.encode(out), &[])
    }
}

/// The messages in the body of a pull's answer.
///
/// # Panics
///
/// If there is anything else in it.
pub fn stored_in(body: &[u8]) -> Vec<Stored> {
    records(body)
        .map(|record| {
            let record = record.expect("a pull is answered with whole records");
            assert!(record.body_is_intact(), "offset {}", record.queue_offset);
            let key = record.property("KEYS").unwrap_or_default();
            Stored {
                queue_offset: record.queue_offset,
                key: String::from_utf8_lossy(key).into_owned(),
                body: record.body.to_vec(),
            }
        })
        .collect()
}

/// All messages of a queue, from offset 0 to its end, which must be dense.
///
/// # Errors
///
/// Those of the connection.
///
/// # Panics
///
/// If an answer is an error, or an offset is missing.
pub fn pull_all(client: &mut Client, topic: &str, queue: i32) -> io::Result<Vec<Stored>> {
    let mut all: Vec<Stored> = Vec::new();
    let mut offset = 0;
    loop {
        Pull { topic, queue, offset, tags: "*", hold_ms: 0 }.post(client)?;
        let reply = client.reply()?;
        match reply.code {
            SUCCESS => all.extend(stored_in(&reply.body)),
            PULL_RETRY_IMMEDIATELY => {}
            PULL_NOT_FOUND => break,
            code => panic!("pull of {topic} {queue} at {offset}: {code} {:?}", reply.remark),
        }
        offset = reply.number("nextBeginOffset");
    }
    for (position, message) in (0..).zip(&all) {
        assert_eq!(message.queue_offset, position, "{topic} {queue} is not dense");
    }
    Ok(all)
}

/// All messages of a topic's queues by queue and key.
///
/// # Errors
///
/// Those of the connection.
///
/// # Panics
///
/// As [`pull_all`], and if a key is stored twice.
pub fn pull_topic(
    client: &mut Client,
    topic: &str,
    queues: i32,
) -> io::Result<BTreeMap<String, (i32, Stored)>> {
    let mut by_key = BTreeMap::new();
    for queue in 0..queues {
        for message in pull_all(client, topic, queue)? {
            let twice = by_key.insert(message.key.clone(), (queue, message));
            assert!(twice.is_none(), "stored twice: {twice:?}");
        }
    }
    Ok(by_key)
}

/// The offset that a queue's next message will get.
///
/// # Errors
///
/// Those of the connection.
pub fn max_offset(client: &mut Client, topic: &str, queue: i32) -> io::Result<i64> {
    let header = QueueRequest { topic: topic.into(), queue_id: queue, committed: None };
    let reply = client.call(GET_MAX_OFFSET, |out| header.encode(out), &[])?;
    Ok(reply.number("offset"))
}
