//! Message traces: what became of which message, as messages of their own that upstream's tools read.
//!
//! Records are put together in memory and sent by a producer of its own, which is not traced. What
//! does not fit into the queue of [`QUEUE_MAX`] records is dropped: traces never hold up messages.
//!
//! Source: Apache RocketMQ 4.9.8, `AsyncTraceDispatcher`, `TraceDataEncoder`.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::{Error, Message, Producer, clock};

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
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Stands between fields, and behind records.
const FIELD: char = '\u{1}';
const RECORD: char = '\u{2}';

/// What kind of message a record is about. Source: `MessageType`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Normal = 0,
    Half = 1,
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
    /// Sends records to this topic through a producer of their own.
    pub(crate) fn start(producer: Producer, topic: &str) -> Self {
        let (queue, records) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(run(producer, topic.into(), records));
        Self { queue }
    }

    /// Notes what became of an attempt to send.
    pub(crate) fn sent(&self, sent: &Sent<'_>) {
        let keys = sent.message_id.split(',').chain(sent.keys.split_whitespace());
        let record = Record {
            text: sent_text(sent, clock::epoch_ms()),
            keys: keys.map(Into::into).collect(),
        };
        if self.queue.try_send(record).is_err() {
            tracing::debug!("a trace record was dropped");
        }
    }
}

/// Missing values are `null`, as Java prints them.
fn sent_text(sent: &Sent<'_>, now_ms: i64) -> String {
    let start_ms = now_ms.saturating_sub(millis(sent.cost));
    let mut text = String::with_capacity(256);
    text.push_str("Pub");
    let mut field = |value: &dyn std::fmt::Display| {
        // Writing to a string does not fail.
        let _ = write!(text, "{FIELD}{value}");
    };
    field(&start_ms);
    field(&sent.region);
    field(&sent.group);
    field(&sent.topic);
    field(&sent.message_id);
    field(&sent.tag.unwrap_or("null"));
    field(&if sent.keys.is_empty() { "null" } else { sent.keys });
    field(&sent.addr);
    field(&sent.body_len);
    field(&millis(sent.cost));
    field(&(sent.kind as u8));
    field(&sent.offset_message_id.unwrap_or("null"));
    field(&sent.offset_message_id.is_some());
    text.push(RECORD);
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
        let shown = |text: String| text.replace(FIELD, "|").replace(RECORD, ";");
        assert_eq!(shown(sent_text(&sent, 1000)), want);
        let failed = Sent { tag: Some("x"), keys: "", offset_message_id: None, ..sent };
        let want = "Pub|993|DefaultRegion|g|T|ID|x|null|h:1|5|7|0|null|false;";
        assert_eq!(shown(sent_text(&failed, 1000)), want);
    }
}
