//! Pull consumers.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, TryStreamExt};
use ringmq_client::{Error, Invalid, Message, MessageQueue, PullConsumer, QueueOffset, StartFrom};

use crate::context::{Context, PATIENCE, body, producer, send, soon, until};

/// Waits until a queue ends there: Apache brokers answer a send before they index it.
async fn reaches(consumer: &PullConsumer, queue: &MessageQueue, end: QueueOffset) {
    let reached = async {
        while consumer.max_offset(queue).await.unwrap() != end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(reached).await;
}

pub(crate) async fn held_pull(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let producer = producer(&client);
    let builder = client.pull_consumer(&context.fresh("g")).topic(&topic).tags("Yes");
    let mut consumer = builder.start_from(StartFrom::Last).start().await.unwrap();
    for round in 0..20 {
        producer.send(Message::new(&*topic, "no").tag("No")).await.unwrap();
        let message = Message::new(&*topic, round.to_string()).tag("Yes");
        let sent = producer.send(message).await.unwrap();
        let received = soon(consumer.next()).await.unwrap();
        assert_eq!((received.message_id(), received.tag()), (sent.message_id, Some("Yes")));
    }
}

pub(crate) async fn empty_hold(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let consumer = client.pull_consumer(&context.fresh("g")).start().await.unwrap();
    let [queue] = consumer.queues(&topic).await.unwrap().try_into().unwrap();
    let pulled = consumer.pull_wait(&queue, QueueOffset::ZERO, Duration::from_millis(500)).await;
    let pulled = pulled.unwrap();
    assert!(pulled.messages.is_empty() && !pulled.is_moved);
    assert_eq!(pulled.next_offset, QueueOffset::ZERO);
}

pub(crate) async fn offsets(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let receipts = send(&producer(&client), &topic, 0..5).await;
    let (queue, end) = (receipts[0].queue.clone(), receipts[4].queue_offset.next());
    let consumer = client.pull_consumer(&context.fresh("g")).start().await.unwrap();
    assert_eq!(consumer.min_offset(&queue).await.unwrap(), QueueOffset::ZERO);
    reaches(&consumer, &queue, end).await;
    for offset in [3, 5, 2] {
        consumer.commit(&queue, QueueOffset::new(offset)).await.unwrap();
        let committed = consumer.committed(&queue).await.unwrap();
        assert_eq!(committed, Some(QueueOffset::new(offset)));
    }
    let first = consumer.search_offset(&queue, SystemTime::UNIX_EPOCH).await.unwrap();
    assert_eq!(first, QueueOffset::ZERO);
    let beyond = consumer.pull(&queue, QueueOffset::new(1000)).await.unwrap();
    assert!(beyond.is_moved && beyond.next_offset == end, "{beyond:?}");
    let absent = MessageQueue::new(&*topic, queue.broker_name(), 99);
    let refused = consumer.pull(&absent, QueueOffset::ZERO).await;
    assert!(matches!(refused, Err(Error::Refused { .. })));
}

pub(crate) async fn seek_and_pause(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let producer = producer(&client);
    let receipts = send(&producer, &topic, 0..20).await;
    let queue = receipts[0].queue.clone();
    let group = context.fresh("g");
    let mut consumer = client.pull_consumer(&group).topic(&topic).start().await.unwrap();
    reaches(&consumer, &queue, QueueOffset::new(20)).await;
    let first = consumer.poll(5, PATIENCE).await.unwrap();
    assert!((1..=5).contains(&first.len()) && body(&first[0]) == 0, "{first:?}");
    consumer.seek(&queue, QueueOffset::new(15)).await.unwrap();
    for want in 15..20 {
        assert_eq!(body(&soon(consumer.next()).await.unwrap()), want);
    }
    consumer.seek(&queue, QueueOffset::new(3)).await.unwrap();
    assert_eq!(body(&soon(consumer.next()).await.unwrap()), 3);
    let beyond = consumer.seek(&queue, QueueOffset::new(21)).await.unwrap_err();
    assert!(matches!(beyond, Error::Invalid(Invalid::OutsideQueue { .. })), "{beyond}");

    consumer.seek(&queue, QueueOffset::new(20)).await.unwrap();
    consumer.pause(std::slice::from_ref(&queue)).unwrap();
    // The pull that is held already may still bring one.
    send(&producer, &topic, 20..21).await;
    while consumer.poll(32, Duration::from_secs(2)).await.unwrap().is_empty().eq(&false) {}
    send(&producer, &topic, 21..22).await;
    let none = consumer.poll(32, Duration::from_secs(1)).await.unwrap();
    assert!(none.is_empty(), "{none:?}");
    consumer.resume(std::slice::from_ref(&queue)).unwrap();
    let last = soon(async {
        loop {
            let message = consumer.next().await.unwrap();
            if body(&message) == 21 {
                return message;
            }
        }
    });
    assert_eq!(last.await.queue_offset(), QueueOffset::new(21));
    consumer.shutdown(PATIENCE).await.unwrap();
    let again = client.pull_consumer(&group).topic(&topic).start().await.unwrap();
    assert_eq!(again.assignment(), [(queue, QueueOffset::new(22))]);
}

pub(crate) async fn as_stream(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 2).await;
    send(&producer(&client), &topic, 0..50).await;
    let builder = client.pull_consumer(&context.fresh("g")).topic(&topic);
    let mut consumer = builder.start().await.unwrap();
    let bodies = consumer.messages().map_ok(|message| body(&message)).take(50);
    let bodies: BTreeSet<usize> = soon(bodies.try_collect()).await.unwrap();
    assert_eq!(bodies, (0..50).collect());
}

pub(crate) async fn assign(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 2).await;
    send(&producer(&client), &topic, 0..40).await;
    let mut consumer = client.pull_consumer(&context.fresh("g")).start().await.unwrap();
    let queues = consumer.queues(&topic).await.unwrap();
    for queue in &queues {
        consumer.assign(std::slice::from_ref(queue)).unwrap();
        until(|| consumer.assignment().iter().map(|(queue, _)| queue).eq([queue])).await;
        for _ in 0..20 {
            assert_eq!(soon(consumer.next()).await.unwrap().queue(), queue);
        }
    }
    let mixed = consumer.subscribe(&topic, "*").unwrap_err();
    assert!(matches!(mixed, Error::Invalid(Invalid::Division)), "{mixed}");
}

pub(crate) async fn shared(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let group = context.fresh("g");
    let mut members = Vec::new();
    for _ in 0..2 {
        let client = context.client().await;
        let consumer = client.pull_consumer(&group).subscribe(&topic, "*").start().await.unwrap();
        members.push(consumer);
    }
    until(|| members.iter().all(|member| member.assignment().len() == 2)).await;
    send(&producer(&client), &topic, 0..40).await;
    let mut bodies = BTreeSet::new();
    for member in &mut members {
        for _ in 0..20 {
            assert!(bodies.insert(body(&soon(member.next()).await.unwrap())));
        }
    }
    assert_eq!(bodies, (0..40).collect());
    let left = members.remove(0);
    left.shutdown(PATIENCE).await.unwrap();
    until(|| members[0].assignment().len() == 4).await;
}
