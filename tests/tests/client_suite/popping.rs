//! POP consumers.

use std::{collections::BTreeSet, time::Duration};

use ringmq_client::{Client, Delivery, PopConsumer, PopFrom, Verdict};
use tokio::sync::mpsc;

use crate::context::{Context, PATIENCE, body, producer, send, soon};

async fn consumer(client: &Client, group: &str, topic: &str) -> PopConsumer {
    let builder = client.pop_consumer(group).subscribe(topic, "*").start_from(PopFrom::First);
    builder.invisible(Duration::from_secs(5)).hold(Duration::from_secs(3)).start().await.unwrap()
}

pub(crate) async fn acknowledged(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let group = context.fresh("g");
    send(&producer(&client), &topic, 0..50).await;
    let mut members = Vec::new();
    for _ in 0..2 {
        members.push(consumer(&context.client().await, &group, &topic).await);
    }
    let mut bodies = BTreeSet::new();
    while bodies.len() < 50 {
        for member in &mut members {
            for popped in member.receive(8, Duration::from_secs(4)).await.unwrap() {
                assert!(bodies.insert(body(popped.message())), "{popped:?} comes twice");
                member.ack(&popped).await.unwrap();
            }
        }
    }
    // Longer than the time out of sight.
    let more = members[0].receive(8, Duration::from_secs(8)).await.unwrap();
    assert!(more.is_empty(), "{more:?}");
}

pub(crate) async fn again(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    send(&producer(&client), &topic, 0..1).await;
    let mut consumer = consumer(&client, &context.fresh("g"), &topic).await;
    let first = consumer.receive(1, PATIENCE).await.unwrap().remove(0);
    let second = consumer.receive(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(second.message().message_id(), first.message().message_id());
    assert_eq!(second.message().topic(), topic);
    assert_eq!(second.message().reconsume_times(), 1);
    consumer.ack(&second).await.unwrap();
    let more = consumer.receive(1, Duration::from_secs(8)).await.unwrap();
    assert!(more.is_empty(), "{more:?}");
}

pub(crate) async fn changed(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    send(&producer(&client), &topic, 0..1).await;
    let mut consumer = consumer(&client, &context.fresh("g"), &topic).await;
    let mut popped = consumer.receive(1, PATIENCE).await.unwrap().remove(0);
    consumer.change_invisible(&mut popped, Duration::from_secs(12)).await.unwrap();
    assert!(popped.time_left() > Duration::from_secs(10));
    let early = consumer.receive(1, Duration::from_secs(8)).await.unwrap();
    assert!(early.is_empty(), "{early:?}");
    // The new receipt counts.
    consumer.ack(&popped).await.unwrap();
    let more = consumer.receive(1, Duration::from_secs(10)).await.unwrap();
    assert!(more.is_empty(), "{more:?}");
}

pub(crate) async fn listener(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 2).await;
    send(&producer(&client), &topic, 0..10).await;
    let mut consumer = consumer(&client, &context.fresh("g"), &topic).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        let message = &delivery[0];
        let (body, times) = (body(message), message.reconsume_times());
        sender.send((body, times)).unwrap();
        std::future::ready(if body == 3 && times == 0 { Verdict::Retry } else { Verdict::Done })
    };
    let consuming = tokio::spawn(async move { consumer.consume(4, listener).await });
    let mut seen = BTreeSet::new();
    while seen.len() < 11 {
        assert!(seen.insert(soon(received.recv()).await.unwrap()));
    }
    let want = (0..10).map(|body| (body, 0)).chain([(3, 1)]);
    assert_eq!(seen, want.collect());
    consuming.abort();
}
