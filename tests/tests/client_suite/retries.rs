//! Messages that fail, and messages that come later.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ringmq_client::{
    Client, Delivery, Message, OrderedVerdict, PushConsumer, ReceivedMessage, Verdict,
};
use tokio::{sync::mpsc, time::Instant};

use crate::context::{Context, PATIENCE, body, eventually, gather, once, producer, send, soon};

/// Deliveries with the verdict that each got.
type Deliveries = mpsc::UnboundedReceiver<ReceivedMessage>;

async fn judging(
    context: &Context,
    client: &Client,
    (group, topic): (&str, &str),
    judge: impl Fn(&ReceivedMessage) -> Verdict + Send + Sync + 'static,
) -> (PushConsumer, Deliveries) {
    let (sender, received) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        let message = delivery[0].clone();
        let verdict = judge(&message);
        // The case may be over.
        let _ = sender.send(message);
        std::future::ready(verdict)
    };
    let builder = context.push(client, group, topic).retries_max(2);
    (builder.start(listener).await.unwrap(), received)
}

async fn failing_once(context: &Context) -> (ReceivedMessage, String, PushConsumer) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let group = context.fresh("g");
    let judge = |message: &ReceivedMessage| match message.reconsume_times() {
        0 => Verdict::RetryAt(1),
        _ => Verdict::Done,
    };
    let (consumer, mut received) = judging(context, &client, (&group, &topic), judge).await;
    let sent = producer(&client).send(Message::new(&*topic, "0").key("k")).await.unwrap();
    let first = soon(received.recv()).await.unwrap();
    let again = soon(received.recv()).await.unwrap();
    for message in [&first, &again] {
        assert_eq!(message.message_id(), sent.message_id);
        assert_eq!((message.topic(), message.body()), (&*topic, &"0".into()));
    }
    assert_eq!((first.reconsume_times(), again.reconsume_times()), (0, 1));
    (again, group, consumer)
}

pub(crate) async fn somewhere(context: Context) {
    failing_once(&context).await;
}

pub(crate) async fn retry(context: Context) {
    let (again, group, _consumer) = failing_once(&context).await;
    assert_eq!(again.queue().topic(), format!("%RETRY%{group}"));
}

/// Reads the dead letters of a group.
async fn dead_letters(client: &Client, context: &Context, group: &str) -> Vec<ReceivedMessage> {
    let topic = format!("%DLQ%{group}");
    // A topic of dead letters may be without permission to read: it is read all the same by those
    // who set it, which Apache's administrators do.
    let start = || client.pull_consumer(&context.fresh("dead")).topic(&topic).start();
    let mut consumer = eventually(start).await;
    let mut letters = Vec::new();
    loop {
        let more = consumer.poll(32, Duration::from_secs(3)).await.unwrap();
        if more.is_empty() && !letters.is_empty() {
            return letters;
        }
        letters.extend(more);
    }
}

pub(crate) async fn dead_letter(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let group = context.fresh("g");
    let judge = |message: &ReceivedMessage| match body(message) {
        1 => Verdict::DeadLetter,
        _ => Verdict::Done,
    };
    let (consumer, mut received) = judging(&context, &client, (&group, &topic), judge).await;
    send(&producer(&client), &topic, 0..3).await;
    assert_eq!(gather(&mut received, 3).await, once(0..3));
    let letters = dead_letters(&client, &context, &group).await;
    assert_eq!(letters.iter().map(body).collect::<Vec<_>>(), [1]);
    consumer.shutdown(PATIENCE).await.unwrap();
}

pub(crate) async fn too_often(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let group = context.fresh("g");
    let judge = |_: &ReceivedMessage| Verdict::RetryAt(1);
    let (_consumer, mut received) = judging(&context, &client, (&group, &topic), judge).await;
    send(&producer(&client), &topic, 0..1).await;
    let mut times = Vec::new();
    for _ in 0..3 {
        times.push(soon(received.recv()).await.unwrap().reconsume_times());
    }
    assert_eq!(times, [0, 1, 2]);
    let letters = dead_letters(&client, &context, &group).await;
    assert_eq!(letters.len(), 1);
}

pub(crate) async fn ordered_dead_letter(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let group = context.fresh("g");
    let (sender, mut received) = mpsc::unbounded_channel();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let listener = move |delivery: Delivery| {
        let message = delivery[0].clone();
        let fails = body(&message) == 2;
        counted.fetch_add(usize::from(fails), Ordering::Relaxed);
        let _ = sender.send(message);
        std::future::ready(if fails { OrderedVerdict::Suspend } else { OrderedVerdict::Done })
    };
    let builder = context.push(&client, &group, &topic).retries_max(2);
    let builder = builder.suspend_pause(Duration::from_millis(20));
    let _consumer = builder.start_ordered(listener).await.unwrap();
    send(&producer(&client), &topic, 0..5).await;
    let mut counts: BTreeMap<usize, usize> = gather(&mut received, 7).await;
    assert_eq!(counts.remove(&2), Some(3));
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 1, 3, 4]);
    let letters = dead_letters(&client, &context, &group).await;
    assert_eq!(letters.iter().map(body).collect::<Vec<_>>(), [2]);
}

pub(crate) async fn delayed(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let (listener, mut received) = crate::context::reporting();
    let builder = context.push(&client, &context.fresh("g"), &topic);
    let _consumer = builder.start(listener).await.unwrap();
    let sent = Instant::now();
    let message = Message::new(&*topic, "0").delay_level(2);
    producer(&client).send(message).await.unwrap();
    gather(&mut received, 1).await;
    let waited = sent.elapsed();
    // Brokers look for messages that are due every 100 ms, and count from when they stored them.
    assert!((4800..15_000).contains(&waited.as_millis()), "{waited:?}");
}
