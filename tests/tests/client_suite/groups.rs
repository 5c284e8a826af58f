//! Push consumers and their groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use ringmq_client::{Client, Delivery, Filter, Message, OrderedVerdict, PushConsumer, StartFrom};
use tokio::sync::mpsc;

use crate::context::{
    Context, PATIENCE, body, gather, once, producer, reporting, send, soon, until,
};

pub(crate) async fn push(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let producer = producer(&client);
    send(&producer, &topic, 0..100).await;
    let group = context.fresh("g");
    let (listener, mut received) = reporting();
    let consumer = context.push(&client, &group, &topic).start(listener).await.unwrap();
    assert_eq!(gather(&mut received, 100).await, once(0..100));
    send(&producer, &topic, 100..200).await;
    assert_eq!(gather(&mut received, 100).await, once(100..200));
    consumer.shutdown(PATIENCE).await.unwrap();
    let (listener, mut received) = reporting();
    let consumer = context.push(&client, &group, &topic).start(listener).await.unwrap();
    send(&producer, &topic, 200..201).await;
    assert_eq!(gather(&mut received, 1).await, once(200..201), "nothing comes twice");
    consumer.shutdown(PATIENCE).await.unwrap();
}

#[expect(clippy::disallowed_methods, reason = "the time of a message is by the clock")]
pub(crate) async fn starts(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let producer = producer(&client);
    send(&producer, &topic, 0..5).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let time = SystemTime::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let last = send(&producer, &topic, 5..10).await.pop().unwrap();
    let puller = client.pull_consumer(&context.fresh("ends")).start().await.unwrap();
    let indexed = async {
        while puller.max_offset(&last.queue).await.unwrap() != last.queue_offset.next() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(indexed).await;
    for (start_from, want) in [(StartFrom::First, 0..10), (StartFrom::Time(time), 5..10)] {
        let (listener, mut received) = reporting();
        let builder = client.push_consumer(&context.fresh("g")).subscribe(&topic, "*");
        let _consumer = builder.start_from(start_from).start(listener).await.unwrap();
        let first = body(&soon(received.recv()).await.unwrap());
        // Brokers of Apache start a new group of a young topic at its first message in any case.
        assert!(first == want.start || first == 0, "{start_from:?} starts at {first}");
        let rest = gather(&mut received, 9 - first).await;
        assert_eq!(rest, once(first + 1..10), "{start_from:?}");
    }
}

pub(crate) async fn tags(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 2).await;
    let producer = producer(&client);
    let (listener, mut received) = reporting();
    let builder = client.push_consumer(&context.fresh("g")).start_from(StartFrom::First);
    let builder = builder.subscribe(&topic, "TagA || TagC");
    let _consumer = builder.start(listener).await.unwrap();
    for (n, tag) in (0..40).zip(["TagA", "TagB", "TagC", "TagD"].iter().cycle()) {
        producer.send(Message::new(&*topic, n.to_string()).tag(*tag)).await.unwrap();
    }
    let want: BTreeMap<usize, usize> = (0..40).step_by(2).map(|n| (n, 1)).collect();
    assert_eq!(gather(&mut received, 20).await, want);
}

pub(crate) async fn sql(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 2).await;
    let producer = producer(&client);
    let (listener, mut received) = reporting();
    let builder = client.push_consumer(&context.fresh("g")).start_from(StartFrom::First);
    let builder = builder.subscribe(&topic, Filter::sql("n > 5 AND color = 'red'"));
    let _consumer = builder.start(listener).await.unwrap();
    for (n, color) in (0..20).zip(["red", "blue"].iter().cycle()) {
        let message = Message::new(&*topic, n.to_string()).property("n", n.to_string());
        producer.send(message.property("color", *color)).await.unwrap();
    }
    let want: BTreeMap<usize, usize> = (6..20).step_by(2).map(|n| (n, 1)).collect();
    assert_eq!(gather(&mut received, 7).await, want);
}

pub(crate) async fn ordered(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 3).await;
    send(&producer(&client), &topic, 0..150).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let failures = Arc::new(AtomicUsize::new(0));
    let listener = move |delivery: Delivery| {
        let message = delivery[0].clone();
        let fails = body(&message) % 50 == 17 && message.reconsume_times() < 2;
        failures.fetch_add(usize::from(fails), Ordering::Relaxed);
        let (sender, failures) = (sender.clone(), failures.load(Ordering::Relaxed));
        async move {
            tokio::task::yield_now().await;
            sender.send((message, failures)).unwrap();
            if fails { OrderedVerdict::Suspend } else { OrderedVerdict::Done }
        }
    };
    let builder = context.push(&client, &context.fresh("g"), &topic);
    let builder = builder.suspend_pause(Duration::from_millis(20));
    let consumer = builder.start_ordered(listener).await.unwrap();
    let mut queues: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for _ in 0..156 {
        let (message, _) = soon(received.recv()).await.unwrap();
        let entry = (message.queue_offset().get(), message.reconsume_times());
        queues.entry(message.queue().clone()).or_default().push(entry);
    }
    for (queue, mut entries) in queues {
        assert!(entries.is_sorted(), "{queue}: {entries:?}");
        entries.dedup_by_key(|(offset, _)| *offset);
        assert!(entries.iter().map(|(offset, _)| *offset).eq(0..50), "{queue}");
    }
    consumer.shutdown(PATIENCE).await.unwrap();
}

/// How many queues of a topic a member holds.
fn held(consumer: &PushConsumer, topic: &str) -> usize {
    consumer.queues().iter().filter(|(queue, _)| queue.topic() == topic).count()
}

pub(crate) async fn take_over(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let producer = producer(&client);
    let group = context.fresh("g");
    let (first, mut received) = reporting();
    let first = context.push(&client, &group, &topic).start(first).await.unwrap();
    until(|| held(&first, &topic) == 4).await;
    let other = context.client().await;
    let (second, mut received_too) = reporting();
    let second = context.push(&other, &group, &topic).start(second).await.unwrap();
    until(|| held(&first, &topic) == 2 && held(&second, &topic) == 2).await;
    send(&producer, &topic, 0..80).await;
    let mut all = gather(&mut received, 40).await;
    all.extend(gather(&mut received_too, 40).await);
    assert_eq!(all, once(0..80));
    first.shutdown(PATIENCE).await.unwrap();
    until(|| held(&second, &topic) == 4).await;
    send(&producer, &topic, 80..120).await;
    assert_eq!(gather(&mut received_too, 40).await, once(80..120));
}

/// Counts deliveries of a queue that run at the same time.
#[derive(Default)]
struct Watch {
    running: Mutex<BTreeSet<String>>,
    overlaps: AtomicUsize,
}

pub(crate) async fn ordered_take_over(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let group = context.fresh("g");
    let watch = Arc::new(Watch::default());
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = || {
        let (watch, sender) = (Arc::clone(&watch), sender.clone());
        move |delivery: Delivery| {
            let (watch, sender) = (Arc::clone(&watch), sender.clone());
            async move {
                let queue = delivery.queue().to_string();
                if !watch.running.lock().unwrap().insert(queue.clone()) {
                    watch.overlaps.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
                watch.running.lock().unwrap().remove(&queue);
                for message in &delivery {
                    sender.send(body(message)).unwrap();
                }
            }
        }
    };
    let start = |client: Client| {
        let builder = context.push(&client, &group, &topic);
        builder.start_ordered(listener())
    };
    let first = start(client.clone()).await.unwrap();
    let load = {
        let (producer, topic) = (producer(&client), topic.clone());
        tokio::spawn(async move { send(&producer, &topic, 0..1000).await })
    };
    let second = start(context.client().await).await.unwrap();
    until(|| held(&first, &topic) == 2 && held(&second, &topic) == 2).await;
    first.shutdown(PATIENCE).await.unwrap();
    let third = start(context.client().await).await.unwrap();
    until(|| held(&second, &topic) == 2 && held(&third, &topic) == 2).await;
    load.await.unwrap();
    let mut bodies = BTreeSet::new();
    while bodies.len() < 1000 {
        bodies.insert(soon(received.recv()).await.unwrap());
    }
    assert_eq!(watch.overlaps.load(Ordering::Relaxed), 0);
}

pub(crate) async fn broadcasting(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 2).await;
    let group = context.fresh("g");
    let folders = [context.fresh("one"), context.fresh("two")];
    let folders = folders.map(|name| std::env::temp_dir().join(name));
    let producer = producer(&client);
    for round in 0..2 {
        let mut members = Vec::new();
        for folder in &folders {
            let client = context.client().await;
            let (listener, received) = reporting();
            let builder = context.push(&client, &group, &topic).broadcasting();
            let consumer = builder.offsets_folder(folder).start(listener).await.unwrap();
            members.push((consumer, received));
        }
        let bodies = round * 30..(round + 1) * 30;
        send(&producer, &topic, bodies.clone()).await;
        for (consumer, mut received) in members {
            assert_eq!(gather(&mut received, 30).await, once(bodies.clone()), "round {round}");
            consumer.shutdown(PATIENCE).await.unwrap();
        }
    }
    for folder in folders {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Sends about 10,000 messages a second in batches until it is told to stop; returns how many.
async fn load(client: Client, topic: String, stop: Arc<AtomicBool>) -> usize {
    let producer = producer(&client);
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let batch = (sent..sent + 50).map(|body| Message::new(&*topic, body.to_string()));
        producer.send_batch(batch).await.unwrap();
        sent += 50;
    }
    sent
}

/// Consumes under load with members that come one after the other, each ended by `end`; counts what
/// came by body.
async fn relay<F: Future<Output = ()>>(
    context: &Context,
    end: impl Fn(PushConsumer) -> F,
) -> (usize, BTreeMap<usize, usize>) {
    let client = context.client().await;
    let topic = context.topic(&client, 4).await;
    let group = context.fresh("g");
    let stop = Arc::new(AtomicBool::new(false));
    let sending = tokio::spawn(load(context.client().await, topic.clone(), Arc::clone(&stop)));
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for _ in 0..4 {
        let client = context.client().await;
        let (listener, mut received) = reporting();
        let consumer = context.push(&client, &group, &topic).start(listener).await.unwrap();
        for (body, count) in gather(&mut received, 5000).await {
            *counts.entry(body).or_default() += count;
        }
        end(consumer).await;
        while let Some(message) = received.recv().await {
            *counts.entry(body(&message)).or_default() += 1;
        }
        client.shutdown(PATIENCE).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let sent = sending.await.unwrap();
    let (listener, mut received) = reporting();
    let consumer = context.push(&client, &group, &topic).start(listener).await.unwrap();
    while counts.len() < sent {
        let message = soon(received.recv()).await.unwrap();
        *counts.entry(body(&message)).or_default() += 1;
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    (sent, counts)
}

pub(crate) async fn graceful(context: Context) {
    let end = |consumer: PushConsumer| async { consumer.shutdown(PATIENCE).await.unwrap() };
    let (sent, counts) = relay(&context, end).await;
    let twice = counts.values().filter(|count| **count > 1).count();
    assert_eq!((counts.len(), twice), (sent, 0));
}

pub(crate) async fn crash(context: Context) {
    let end = |consumer: PushConsumer| async { drop(consumer) };
    let (sent, counts) = relay(&context, end).await;
    assert_eq!(counts.len(), sent);
    let repeats: usize = counts.values().map(|count| count - 1).sum();
    // Four crashes, each with at most what comes in one commit period of 5 s, and what is in flight.
    assert!(repeats <= 4 * (5 * 15_000 + 4000), "{repeats} repeats of {sent}");
}

pub(crate) async fn pause(context: Context) {
    let client = context.client().await;
    let topic = context.topic(&client, 1).await;
    let producer = producer(&client);
    let (listener, mut received) = reporting();
    let builder = context.push(&client, &context.fresh("g"), &topic);
    let consumer = builder.start(listener).await.unwrap();
    send(&producer, &topic, 0..1).await;
    assert_eq!(gather(&mut received, 1).await, once(0..1));
    consumer.pause();
    // The pull that is held already may still bring these.
    send(&producer, &topic, 1..2).await;
    let _ = tokio::time::timeout(Duration::from_secs(2), received.recv()).await;
    send(&producer, &topic, 2..3).await;
    let paused = tokio::time::timeout(Duration::from_secs(1), received.recv()).await;
    assert!(paused.is_err(), "{paused:?}");
    consumer.resume();
    let message = soon(async {
        loop {
            let message = received.recv().await.unwrap();
            if body(&message) == 2 {
                return message;
            }
        }
    });
    message.await;
}
