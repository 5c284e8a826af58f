//! The Rust client against the running server: or, with `RINGMQ_TEST_NAMESRV=host:port`, against whatever
//! cluster that names, such as Apache RocketMQ's. It has to create topics by itself.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::{
    collections::BTreeSet,
    future::Future,
    time::{Duration, SystemTime},
};

use ringmq_client::{
    Client, Error, Message, MessageQueue, PullConsumer, QueueOffset, SendReceipt, StartFrom,
    admin::{NewTopic, OffsetMessageId},
};

/// How long a test waits for what must happen.
use ringmq_tests::{
    folder::Folder,
    server::{Ringmq, Settings},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// What keeps a server of the test's own alive.
type Own = Option<(Ringmq, Folder)>;

async fn cluster() -> (Own, Client) {
    let (own, addr) = match std::env::var("RINGMQ_TEST_NAMESRV") {
        Ok(addr) => (None, addr),
        Err(_) => {
            let folder = Folder::new("rust-client");
            let server = Ringmq::start(&Settings::new(&folder.path().join("data")));
            let addr = server.namesrv().to_string();
            (Some((server, folder)), addr)
        }
    };
    let builder = Client::builder(&addr).call_timeout(Duration::from_secs(10));
    (own, builder.connect().await.unwrap())
}

/// A name that no earlier run has used.
#[expect(clippy::disallowed_methods, reason = "it only has to be another one each time")]
fn fresh(name: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    format!("live-{name}-{}", since.as_nanos())
}

/// Creates a topic on all brokers, and waits until the name server knows it.
async fn topic(client: &Client, name: &str, queues: i32) -> String {
    let topic = fresh(name);
    let info = client.admin().clusters().await.unwrap();
    for broker in info.broker_addr_table.values() {
        let new = NewTopic::new(&topic, queues);
        client.admin().create_topic(broker.master_addr().unwrap(), &new).await.unwrap();
    }
    let known = || async { client.admin().route(&topic).await.map(drop) };
    eventually(known).await;
    topic
}

/// Repeats something until it succeeds.
async fn eventually<T, F: Future<Output = Result<T, Error>>>(mut what: impl FnMut() -> F) -> T {
    let tries = async {
        loop {
            match what().await {
                Ok(value) => return value,
                Err(error) => assert!(error.retry_can_help(), "{error}"),
            }
            tokio::task::yield_now().await;
        }
    };
    soon(tries).await
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

/// Waits until a queue ends there: Apache brokers answer a send before they index it.
async fn reaches(consumer: &PullConsumer, queue: &MessageQueue, end: QueueOffset) {
    let reached = async {
        while consumer.max_offset(queue).await.unwrap() != end {
            tokio::task::yield_now().await;
        }
    };
    soon(reached).await;
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
            tokio::task::yield_now().await;
        }
    };
    soon(total).await;
}

fn end_of(receipt: &SendReceipt) -> QueueOffset {
    receipt.queue_offset.next()
}

#[tokio::test]
async fn what_is_sent_is_received_once_and_in_order() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "round", 4).await;
    let producer = client.producer("live-producer").send_timeout(PATIENCE).start().unwrap();
    let mut sent = BTreeSet::new();
    for n in 0..200 {
        let message = Message::new(&*topic, format!("{n}")).tag("TagA").key("k").property("p", "v");
        assert!(sent.insert(producer.send(message).await.unwrap().message_id));
    }
    let batch = (0..50).map(|n| Message::new(&*topic, format!("batch {n}")));
    let receipt = producer.send_batch(batch).await.unwrap();
    sent.extend(receipt.message_id.split(',').map(String::from));

    let group = fresh("group");
    let mut consumer = client.pull_consumer(&group).topic(&topic).start().await.unwrap();
    let mut received = BTreeSet::new();
    let mut ends = std::collections::BTreeMap::new();
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

#[tokio::test]
async fn a_topic_is_created_by_its_first_message() {
    let (_own, client) = cluster().await;
    let topic = fresh("auto");
    let producer = client.producer("live-producer").send_timeout(PATIENCE).start().unwrap();
    let receipt = producer.send(Message::new(&*topic, "x")).await.unwrap();
    let start = || client.pull_consumer("live-auto").topic(&topic).start();
    let mut consumer = eventually(start).await;
    assert_eq!(soon(consumer.next()).await.unwrap().message_id(), receipt.message_id);
    assert_eq!(consumer.queues(&topic).await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_held_pull_is_woken_by_a_message_of_its_tag() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "hold", 1).await;
    let producer = client.producer("live-producer").send_timeout(PATIENCE).start().unwrap();
    let builder = client.pull_consumer("live-hold").topic(&topic).tags("Yes");
    let mut consumer = builder.start_from(StartFrom::Last).start().await.unwrap();
    for round in 0..20 {
        producer.send(Message::new(&*topic, "no").tag("No")).await.unwrap();
        let sent =
            producer.send(Message::new(&*topic, round.to_string()).tag("Yes")).await.unwrap();
        let received = soon(consumer.next()).await.unwrap();
        assert_eq!((received.message_id(), received.tag()), (sent.message_id, Some("Yes")));
    }
}

#[tokio::test]
async fn an_empty_queue_answers_when_its_hold_is_over() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "empty", 1).await;
    let consumer = client.pull_consumer("live-empty").start().await.unwrap();
    let [queue] = consumer.queues(&topic).await.unwrap().try_into().unwrap();
    let pulled = consumer.pull_wait(&queue, QueueOffset::ZERO, Duration::from_millis(500)).await;
    let pulled = pulled.unwrap();
    assert!(pulled.messages.is_empty() && !pulled.is_moved);
    assert_eq!(pulled.next_offset, QueueOffset::ZERO);
}

#[tokio::test]
async fn offsets_are_what_brokers_say() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "offsets", 1).await;
    let producer = client.producer("live-producer").send_timeout(PATIENCE).start().unwrap();
    let mut receipts = Vec::new();
    for n in 0..5 {
        receipts.push(producer.send(Message::new(&*topic, n.to_string())).await.unwrap());
    }
    let queue = receipts[0].queue.clone();
    let group = fresh("offsets");
    let consumer = client.pull_consumer(&group).start().await.unwrap();
    assert_eq!(consumer.min_offset(&queue).await.unwrap(), QueueOffset::ZERO);
    reaches(&consumer, &queue, end_of(&receipts[4])).await;
    for offset in [3, 5, 2] {
        consumer.commit(&queue, QueueOffset::new(offset)).await.unwrap();
        let committed = consumer.committed(&queue).await.unwrap();
        assert_eq!(committed, Some(QueueOffset::new(offset)));
    }
    let first = consumer.search_offset(&queue, SystemTime::UNIX_EPOCH).await.unwrap();
    assert_eq!(first, QueueOffset::ZERO);
    let beyond = consumer.pull(&queue, QueueOffset::new(1000)).await.unwrap();
    assert!(beyond.is_moved && beyond.next_offset == end_of(&receipts[4]), "{beyond:?}");
    let absent = MessageQueue::new(&*topic, queue.broker_name(), 99);
    let refused = consumer.pull(&absent, QueueOffset::ZERO).await;
    assert!(matches!(refused, Err(Error::Refused { .. })));
}

#[tokio::test]
async fn a_message_is_found_by_its_offset_id() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "view", 1).await;
    let producer = client.producer("live-producer").send_timeout(PATIENCE).start().unwrap();
    let receipt =
        producer.send(Message::new(&*topic, "look at me").tag("t").flag(9)).await.unwrap();
    let id = OffsetMessageId::parse(&receipt.offset_message_id).unwrap();
    let message = client.admin().message(&id).await.unwrap();
    assert_eq!(message.body(), &"look at me");
    assert_eq!((message.topic(), message.tag(), message.flag()), (&*topic, Some("t"), 9));
    let nothing = OffsetMessageId { log_offset: id.log_offset + 1, ..id };
    assert_eq!(client.admin().message(&nothing).await.unwrap_err().code(), Some(1));
    total_is(&client, &topic, 1).await;
    assert!(client.admin().topics().await.unwrap().contains(&topic));
}

#[tokio::test]
async fn limits_are_the_brokers_too() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "limits", 1).await;
    let producer = client.producer("live-producer").body_len_max(8 << 20).send_timeout(PATIENCE);
    let producer = producer.start().unwrap();
    let longest = 4 << 20;
    let receipt = producer.send(Message::new(&*topic, vec![7; longest])).await.unwrap();
    let consumer = client.pull_consumer("live-limits").start().await.unwrap();
    let pulled = consumer.pull_wait(&receipt.queue, receipt.queue_offset, PATIENCE).await.unwrap();
    assert_eq!(pulled.messages[0].body().len(), longest);
    let error = producer.send(Message::new(&*topic, vec![7; longest + 1])).await.unwrap_err();
    assert_eq!(error.code(), Some(13));
}

#[tokio::test]
async fn many_sends_share_one_connection() {
    let (_own, client) = cluster().await;
    let topic = topic(&client, "many", 4).await;
    let producer = client.producer("live-producer").send_timeout(PATIENCE).start().unwrap();
    let producer = std::sync::Arc::new(producer);
    let mut sends = tokio::task::JoinSet::new();
    for n in 0..2000 {
        let (producer, message) = (producer.clone(), Message::new(&*topic, format!("{n}")));
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
