//! Message traces: what became of which message, as messages of their own that upstream's tools read.
//!
//! Records are put together in memory and sent by a producer of its own, which is not traced. What
//! does not fit into the queue of [`QUEUE_MAX`] records is dropped: traces never hold up messages.
//!
//! Source: Apache RocketMQ 4.9.8, `AsyncTraceDispatcher`, `TraceDataEncoder`.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use ringmq_protocol::headers::DEFAULT_REGION;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::{Client, Error, Message, Producer, clock};

/// Most records that wait to be put together.
const QUEUE_MAX: usize = 1024;

/// Longest trace message, and from which length on one is sent. Unit: bytes.
const TEXT_LEN_MAX: usize = 128_000;
const TEXT_LEN_FULL: usize = TEXT_LEN_MAX - 10_000;

/// Length of the keys from which on a trace message is sent, since properties have a bound.
const KEYS_LEN_FULL: usize = 16_000;

/// How long the first record of a message waits for others.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a trace message may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Stands between fields, and behind records.
const FIELD: char = '\u{1}';
const RECORD: char = '\u{2}';

/// What kind of message a record is about. Source: `MessageType`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Normal = 0,
    Half = 1,
    Settled = 2,
    Delayed = 3,
}

/// The record of a send.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) region: &'a str,
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) message_id: &'a str,
    pub(crate) tag: Option<&'a str>,
    pub(crate) keys: &'a str,
    pub(crate) addr: &'a str,
    pub(crate) body_len: usize,
    pub(crate) cost: Duration,
    pub(crate) kind: Kind,
    pub(crate) offset_message_id: Option<&'a str>,
}

/// The record of how a transaction ended.
#[derive(Debug)]
pub(crate) struct Settled<'a> {
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) message_id: &'a str,
    pub(crate) tag: Option<&'a str>,
    pub(crate) keys: &'a str,
    pub(crate) addr: &'a str,
    pub(crate) transaction_id: Option<&'a str>,
    /// Java's name of the state.
    pub(crate) state: &'static str,
    /// Whether the broker asked for it.
    pub(crate) is_asked: bool,
}

/// A message in a delivery.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) region: String,
    pub(crate) message_id: String,
    pub(crate) keys: String,
    pub(crate) retries: i32,
}

/// How a delivery ended. Source: `ConsumeReturnType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Done = 0,
    TooLate = 1,
    Panicked = 2,
    Failed = 4,
}

/// A record, and the keys by which its trace message is found.
#[derive(Debug)]
struct Record {
    text: String,
    keys: Vec<String>,
}

/// Takes records. Dropping it sends what is left.
#[derive(Debug)]
pub(crate) struct Tracer {
    queue: mpsc::Sender<Record>,
}

impl Tracer {
    /// Sends records to this topic through a producer of their own, for the producers or consumers
    /// of a group; `role` is PRODUCE or CONSUME.
    ///
    /// # Errors
    ///
    /// Those of starting a producer.
    pub(crate) fn start(
        client: &Client,
        group: &str,
        role: &str,
        topic: &str,
    ) -> Result<Self, Error> {
        let group = format!("_INNER_TRACE_PRODUCER-{group}-{role}");
        let producer = client.producer(&group).send_timeout(SEND_TIMEOUT).start()?;
        let (queue, records) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(run(producer, topic.into(), records));
        Ok(Self { queue })
    }

    /// Notes what became of an attempt to send.
    pub(crate) fn sent(&self, sent: &Sent<'_>) {
        let keys = sent.message_id.split(',').chain(sent.keys.split_whitespace());
        self.put(sent_text(sent, clock::epoch_ms()), keys);
    }

    /// Notes how a transaction ended.
    pub(crate) fn settled(&self, settled: &Settled<'_>) {
        let keys = std::iter::once(settled.message_id).chain(settled.keys.split_whitespace());
        self.put(settled_text(settled, clock::epoch_ms()), keys);
    }

    /// Notes that messages are about to be given to a listener.
    pub(crate) fn before(&self, group: &str, request_id: &str, messages: &[Delivered]) {
        let text = before_text(group, request_id, messages, clock::epoch_ms());
        self.put(text, messages.iter().flat_map(Delivered::all_keys));
    }

    /// Notes how a listener ended with messages.
    pub(crate) fn after(
        &self,
        group: &str,
        request_id: &str,
        messages: &[Delivered],
        cost: Duration,
        ended: Ended,
    ) {
        let text = after_text(group, request_id, messages, (cost, ended), clock::epoch_ms());
        self.put(text, messages.iter().flat_map(Delivered::all_keys));
    }

    fn put<'k>(&self, text: String, keys: impl Iterator<Item = &'k str>) {
        let record = Record { text, keys: keys.map(Into::into).collect() };
        if self.queue.try_send(record).is_err() {
            tracing::debug!("a trace record was dropped");
        }
    }
}

impl Delivered {
    fn all_keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.message_id).chain(self.keys.split_whitespace())
    }
}

/// A record of fields.
fn record(text: &mut String, kind: &str, fields: &[&dyn std::fmt::Display]) {
    text.push_str(kind);
    for field in fields {
        // Writing to a string does not fail.
        let _ = write!(text, "{FIELD}{field}");
    }
    text.push(RECORD);
}

/// Missing keys are `null`, as Java prints them.
const fn shown(keys: &str) -> &str {
    if keys.is_empty() { "null" } else { keys }
}

fn sent_text(sent: &Sent<'_>, now_ms: i64) -> String {
    let (mut text, start_ms) = (String::new(), now_ms.saturating_sub(millis(sent.cost)));
    record(
        &mut text,
        "Pub",
        &[
            &start_ms,
            &sent.region,
            &sent.group,
            &sent.topic,
            &sent.message_id,
            &sent.tag.unwrap_or("null"),
            &shown(sent.keys),
            &sent.addr,
            &sent.body_len,
            &millis(sent.cost),
            &(sent.kind as u8),
            &sent.offset_message_id.unwrap_or("null"),
            &sent.offset_message_id.is_some(),
        ],
    );
    text
}

fn settled_text(settled: &Settled<'_>, now_ms: i64) -> String {
    let mut text = String::new();
    record(
        &mut text,
        "EndTransaction",
        &[
            &now_ms,
            &DEFAULT_REGION,
            &settled.group,
            &settled.topic,
            &settled.message_id,
            &settled.tag.unwrap_or("null"),
            &shown(settled.keys),
            &settled.addr,
            &(Kind::Settled as u8),
            &settled.transaction_id.unwrap_or("null"),
            &settled.state,
            &settled.is_asked,
        ],
    );
    text
}

fn before_text(group: &str, request_id: &str, messages: &[Delivered], now_ms: i64) -> String {
    let mut text = String::new();
    for message in messages {
        let Delivered { region, message_id, keys, retries } = message;
        let keys = shown(keys);
        let fields: [&dyn std::fmt::Display; 7] =
            [&now_ms, region, &group, &request_id, message_id, retries, &keys];
        record(&mut text, "SubBefore", &fields);
    }
    text
}

fn after_text(
    group: &str,
    request_id: &str,
    messages: &[Delivered],
    (cost, ended): (Duration, Ended),
    now_ms: i64,
) -> String {
    let mut text = String::new();
    let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
    let cost_ms = millis(cost.checked_div(count).unwrap_or_default());
    for Delivered { message_id, keys, .. } in messages {
        let (is_done, code, keys) = (ended == Ended::Done, ended as u8, shown(keys));
        let fields: [&dyn std::fmt::Display; 8] =
            [&request_id, message_id, &cost_ms, &is_done, &keys, &code, &now_ms, &group];
        record(&mut text, "SubAfter", &fields);
    }
    text
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

async fn run(producer: Producer, topic: std::sync::Arc<str>, mut records: mpsc::Receiver<Record>) {
    while let Some(first) = records.recv().await {
        let until = Instant::now() + PATIENCE;
        let (mut text, mut keys) = (first.text, BTreeSet::from_iter(first.keys));
        let mut keys_len: usize = keys.iter().map(String::len).sum();
        while text.len() < TEXT_LEN_FULL && keys_len < KEYS_LEN_FULL {
            let Ok(Some(record)) = timeout_at(until, records.recv()).await else { break };
            text.push_str(&record.text);
            keys_len += record.keys.iter().map(|key| key.len() + 1).sum::<usize>();
            keys.extend(record.keys);
        }
        let message = keys.iter().fold(Message::new(topic.clone(), text), |m, key| m.key(key));
        if let Err(error) = producer.send(message).await {
            tracing::debug!(%error, "a trace message was lost");
        }
    }
    if let Err::<(), Error>(error) = producer.shutdown(SEND_TIMEOUT).await {
        tracing::debug!(%error, "the last trace message may be lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(text: String) -> String {
        text.replace(FIELD, "|").replace(RECORD, ";")
    }

    #[test]
    fn records_have_upstreams_fields() {
        let sent = Sent {
            region: "DefaultRegion",
            group: "g",
            topic: "T",
            message_id: "ID",
            tag: None,
            keys: "a b",
            addr: "h:1",
            body_len: 5,
            cost: Duration::from_millis(7),
            kind: Kind::Normal,
            offset_message_id: Some("OFF"),
        };
        let want = "Pub|993|DefaultRegion|g|T|ID|null|a b|h:1|5|7|0|OFF|true;";
        assert_eq!(readable(sent_text(&sent, 1000)), want);
        let failed = Sent { tag: Some("x"), keys: "", offset_message_id: None, ..sent };
        let want = "Pub|993|DefaultRegion|g|T|ID|x|null|h:1|5|7|0|null|false;";
        assert_eq!(readable(sent_text(&failed, 1000)), want);
        let settled = Settled {
            group: "g",
            topic: "T",
            message_id: "ID",
            tag: Some("x"),
            keys: "a b",
            addr: "h:1",
            transaction_id: Some("TX"),
            state: "COMMIT_MESSAGE",
            is_asked: false,
        };
        let want = "EndTransaction|1000|DefaultRegion|g|T|ID|x|a b|h:1|2|TX|COMMIT_MESSAGE|false;";
        assert_eq!(readable(settled_text(&settled, 1000)), want);
    }

    #[test]
    fn each_message_of_a_delivery_has_a_record_before_and_one_after() {
        let message = |id: &str, keys: &str| Delivered {
            region: "DefaultRegion".into(),
            message_id: id.into(),
            keys: keys.into(),
            retries: 2,
        };
        let messages = [message("ID1", "a b"), message("ID2", "")];
        let want = "SubBefore|1000|DefaultRegion|g|R|ID1|2|a b;SubBefore|1000|DefaultRegion|g|R|ID2|2|null;";
        assert_eq!(readable(before_text("g", "R", &messages, 1000)), want);
        let ended = (Duration::from_millis(9), Ended::Failed);
        let want = "SubAfter|R|ID1|4|false|a b|4|1000|g;SubAfter|R|ID2|4|false|null|4|1000|g;";
        assert_eq!(readable(after_text("g", "R", &messages, ended, 1000)), want);
        let ended = (Duration::from_millis(9), Ended::Done);
        let want = "SubAfter|R|ID2|9|true|null|0|1000|g;";
        assert_eq!(readable(after_text("g", "R", &messages[1..], ended, 1000)), want);
    }
}
