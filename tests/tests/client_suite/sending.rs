//! Sending, and what becomes of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ringmq_client::{Client, Message, QueueOffset, admin::OffsetMessageId};

use crate::context::{Context, PATIENCE, eventually, producer, soon};

pub(crate) async fn round_trip(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let producer = producer(&client);
    let mut sent = BTreeSet::new();
    for n in 0..200 {
        let message = Message::new(&*topic, format!("{n}")).tag("TagA").key("k").property("p", "v");
        assert!(sent.insert(producer.send(message).await.unwrap().message_id));
    }
    let batch = (0..50).map(|n| Message::new(&*topic, format!("batch {n}")));
    let receipt = producer.send_batch(batch).await.unwrap();
    sent.extend(receipt.message_id.split(',').map(String::from));

    let group = context.fresh("g");
    let mut consumer = client.pull_consumer(&group).topic(&topic).start().await.unwrap();
    let mut received = BTreeSet::new();
    let mut ends = BTreeMap::new();
    while received.len() < sent.len() {
        let message = soon(consumer.next()).await.unwrap();
        let end = ends.entry(message.queue().clone()).or_insert(QueueOffset::ZERO);
        assert_eq!(message.queue_offset(), *end, "{}", message.queue());
        *end = end.next();
        assert!(received.insert(message.message_id()), "{message:?}");
    }
    assert_eq!(received, sent);
    consumer.shutdown(PATIENCE).await.unwrap();

    // Another member of the group goes on behind them.
    let last = producer.send(Message::new(&*topic, "last")).await.unwrap();
    let mut consumer = client.pull_consumer(&group).topic(&topic).start().await.unwrap();
    assert_eq!(soon(consumer.next()).await.unwrap().message_id(), last.message_id);
    consumer.shutdown(PATIENCE).await.unwrap();
    client.shutdown(PATIENCE).await.unwrap();
}

pub(crate) async fn auto_create(context: Context) {
    let client = context.client().await;
    let (topic, group) = (context.fresh("auto"), context.fresh("g"));
    let receipt = producer(&client).send(Message::new(&*topic, "x")).await.unwrap();
    let start = || client.pull_consumer(&group).topic(&topic).start();
    let mut consumer = eventually(start).await;
    assert_eq!(soon(consumer.next()).await.unwrap().message_id(), receipt.message_id);
    assert_eq!(consumer.queues(&topic).await.unwrap().len(), 4);
}

pub(crate) async fn offset_id(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let message = Message::new(&*topic, "look at me").tag("t").flag(9);
    let receipt = producer(&client).send(message).await.unwrap();
    let id = OffsetMessageId::parse(&receipt.offset_message_id).unwrap();
    let message = client.admin().message(&id).await.unwrap();
    assert_eq!(message.body(), &"look at me");
    assert_eq!((message.topic(), message.tag(), message.flag()), (&*topic, Some("t"), 9));
    let nothing = OffsetMessageId { log_offset: id.log_offset + 1, ..id };
    assert_eq!(client.admin().message(&nothing).await.unwrap_err().code(), Some(1));
    total_is(&client, &topic, 1).await;
    assert!(client.admin().topics().await.unwrap().contains(&topic));
}

pub(crate) async fn limits(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let builder = client.producer("suite-producers").body_len_max(8 << 20);
    let producer = builder.send_timeout(PATIENCE).start().unwrap();
    let longest = 4 << 20;
    // Random bytes, so that no client makes them shorter.
    let mut state = 1_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let byte = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        };
        (0..len).map(byte).collect()
    };
    let receipt = producer.send(Message::new(&*topic, noise(longest))).await.unwrap();
    let consumer = client.pull_consumer(&context.fresh("g")).start().await.unwrap();
    let pulled = consumer.pull_wait(&receipt.queue, receipt.queue_offset, PATIENCE).await.unwrap();
    assert_eq!(pulled.messages.first().unwrap().body().len(), longest);
    let error = producer.send(Message::new(&*topic, noise(longest + 1))).await.unwrap_err();
    assert_eq!(error.code(), Some(13));
}

pub(crate) async fn many(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let producer = Arc::new(producer(&client));
    let mut sends = tokio::task::JoinSet::new();
    for n in 0..2000 {
        let (producer, message) = (Arc::clone(&producer), Message::new(&*topic, format!("{n}")));
        sends.spawn(async move { producer.send(message).await });
    }
    let mut places = BTreeSet::new();
    while let Some(receipt) = sends.join_next().await {
        let receipt = receipt.unwrap().unwrap();
        assert!(places.insert((receipt.queue, receipt.queue_offset)));
    }
    total_is(&client, &topic, 2000).await;
    producer.send_oneway(Message::new(&*topic, "oneway")).await.unwrap();
    producer.shutdown(PATIENCE).await.unwrap();
    total_is(&client, &topic, 2001).await;
}

/// Waits until a topic has so many messages.
async fn total_is(client: &Client, topic: &str, count: i64) {
    let total = async {
        loop {
            let stats = client.admin().topic_stats(topic).await.unwrap();
            let ends = stats.iter().map(|stats| stats.max_offset.get() - stats.min_offset.get());
            if ends.sum::<i64>() == count {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    soon(total).await;
}
