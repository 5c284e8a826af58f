//! Answers of a real broker, Apache RocketMQ 4.9.7, as they were recorded.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what fails in a helper fails the test"
)]

mod fake;

use fake::{Fake, Reaction, Seen, ok, route};
use ringmq_client::{Client, Message, QueueOffset, admin::OffsetMessageId};
use ringmq_protocol::{
    command::Command,
    frame::{self, FRAME_LEN_MAX},
};

const FRAMES: &str = include_str!("../../protocol/tests/data/frames/java498-json.jsonl");

/// The last recorded answer to a request, with this code, as an answer to another request.
fn replay(seen: &Seen, code: i64) -> Reaction {
    let frames =
        FRAMES.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut recorded = frames.rev().filter(|frame| {
        frame["response"] == true
            && frame["requestCode"] == i64::from(seen.code)
            && frame["code"] == code
            && frame["from"] != "client"
    });
    let recorded = recorded.next().expect("there is such a frame");
    let hex = recorded["frame"].as_str().unwrap();
    let bytes: Vec<_> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    let frame = frame::decode(&bytes, FRAME_LEN_MAX).unwrap().unwrap();
    let command = Command::parse(frame.encoding, frame.header).unwrap();
    let ext: Vec<_> =
        command.ext.iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let remark = command.remark.as_deref();
    Reaction::Raw(fake::encode(seen.opaque, command.code, remark, &ext, frame.body))
}

async fn broker() -> Fake {
    Fake::start(|own, seen| match seen.code {
        105 => route(&[("b0", own, 4)]),
        34 | 35 => ok(),
        _ => replay(seen, 0),
    })
    .await
}

#[tokio::test]
async fn sends_are_understood() {
    let fake = broker().await;
    let producer = Client::connect(&fake.addr).await.unwrap().producer("g").start().unwrap();
    let receipt = producer.send(Message::new("GoldenTopic", "x")).await.unwrap();
    assert!(OffsetMessageId::parse(&receipt.offset_message_id).is_some(), "{receipt:?}");
    let batch = ["one", "two"].map(|body| Message::new("GoldenTopic", body));
    let receipt = producer.send_batch(batch).await.unwrap();
    let ids = receipt.offset_message_id.split(',');
    assert!(ids.map(OffsetMessageId::parse).all(|id| id.is_some()), "{receipt:?}");
}

#[tokio::test]
async fn pulls_offsets_and_single_messages_are_understood() {
    let fake = broker().await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let consumer = client.pull_consumer("g").start().await.unwrap();
    let queue = consumer.queues("GoldenTopic").await.unwrap().remove(0);
    let pulled = consumer.pull(&queue, QueueOffset::ZERO).await.unwrap();
    assert!(!pulled.messages.is_empty());
    for message in &pulled.messages {
        assert!(message.property("UNIQ_KEY").is_some() && !message.is_packed(), "{message:?}");
        assert!(message.queue_offset() < pulled.next_offset);
    }
    assert!(
        consumer.min_offset(&queue).await.unwrap() <= consumer.max_offset(&queue).await.unwrap()
    );
    assert!(consumer.committed(&queue).await.unwrap().is_some());
    let mut id = pulled.messages[0].offset_message_id();
    id.host = fake.addr.parse().unwrap();
    assert!(!client.admin().message(&id).await.unwrap().body().is_empty());
}
