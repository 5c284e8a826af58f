//! Which queue and broker a message goes to, and how much is in flight.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use fake::{Fake, Reaction, Seen, ok, refuse, route, stored};
use ringmq_client::{
    Client, Error, Invalid, LatencyRule, Message, MessageQueue, Producer, ProducerBuilder,
    TrySendError, select,
};
use tokio::time::Instant;

const SEND: i32 = 310;
const ROUTE: i32 = 105;

async fn one_broker(queues: i32, send: impl Fn(&Seen) -> Reaction + Send + Sync + 'static) -> Fake {
    Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, queues)]),
        SEND => send(seen),
        _ => ok(),
    })
    .await
}

fn queues_of(fake: &Fake) -> Vec<String> {
    fake.seen(SEND).iter().map(|send| send.ext("e").to_owned()).collect()
}

#[tokio::test]
async fn a_message_goes_to_the_queue_that_it_is_told() {
    let fake = one_broker(4, stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    let message = || Message::new("T", "x");
    let queue = MessageQueue::new("T", "a", 3);
    assert_eq!(producer.send_to(&queue, message()).await.unwrap().queue, queue);
    producer.send_by(message(), |queues| queues.len() - 2).await.unwrap();
    producer.send_by(message(), select::by_hash(-5)).await.unwrap();
    producer.send_by(message(), select::by_key("order-17")).await.unwrap();
    producer.send(message().sharding_key("order-17")).await.unwrap();
    producer.send_oneway(message().sharding_key("order-17")).await.unwrap();
    fake.wait_for(SEND, 6).await;
    assert_eq!(queues_of(&fake), ["3", "2", "1", "1", "1", "1"]);
    assert_eq!(fake.seen(SEND)[4].property("__SHARDINGKEY").as_deref(), Some("order-17"));

    let error = producer.send_by(message(), |queues| queues.len()).await.unwrap_err();
    let want = Invalid::Selection { index: 4, count: 4 };
    assert!(matches!(&error, Error::Invalid(invalid) if *invalid == want), "{error}");
    let elsewhere = MessageQueue::new("T", "nowhere", 0);
    let error = producer.send_to(&elsewhere, message()).await.unwrap_err();
    assert!(matches!(error, Error::NoBroker { .. }), "{error}");
}

#[tokio::test]
async fn a_message_of_a_key_is_tried_again_in_its_own_queue() {
    let other = Fake::start(|_, seen| if seen.code == SEND { stored(seen) } else { ok() }).await;
    let other_addr = other.addr.clone();
    let count = AtomicUsize::new(0);
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1), ("b", &other_addr, 1)]),
        SEND if count.fetch_add(1, Ordering::SeqCst) == 0 => refuse(14),
        SEND => stored(seen),
        _ => ok(),
    })
    .await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    producer.send_by(Message::new("T", "x"), |_| 0).await.unwrap();
    assert_eq!((fake.seen(SEND).len(), other.seen(SEND).len()), (2, 0));
}

#[tokio::test]
async fn names_have_the_namespace_towards_brokers_only() {
    let fake = one_broker(1, stored).await;
    let client = Client::builder(&fake.addr).namespace("ns").connect().await.unwrap();
    let producer = client.producer("g").start().unwrap();
    let receipt = producer.send(Message::new("T", "x")).await.unwrap();
    assert_eq!(receipt.queue.to_string(), "T@a:0");
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let select = move |queues: &[MessageQueue]| {
        seen.lock().unwrap().extend(queues.iter().map(ToString::to_string));
        0
    };
    producer.send_by(Message::new("T", "x"), select).await.unwrap();
    assert_eq!(*names.lock().unwrap(), ["T@a:0"]);
    producer.send_to(&receipt.queue, Message::new("T", "x")).await.unwrap();
    assert_eq!(producer.queues("T").await.unwrap(), [receipt.queue]);
    for send in fake.seen(SEND) {
        assert_eq!((send.ext("a"), send.ext("b")), ("ns%g", "ns%T"));
        assert_eq!(send.property("INSTANCE_ID").as_deref(), Some("ns"));
    }
    assert_eq!(fake.seen(ROUTE)[0].ext("topic"), "ns%T");
    let beat = String::from_utf8(fake.wait_for(34, 1).await.remove(0).body).unwrap();
    assert!(beat.contains(r#""groupName":"ns%g""#), "{beat}");
}

#[tokio::test]
async fn long_bodies_are_compressed() {
    let fake = one_broker(1, stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let body = "hello".repeat(10_000);
    let send = async |builder: ProducerBuilder| {
        let producer = builder.start().unwrap();
        producer.send(Message::new("T", body.clone())).await.unwrap();
        let send = fake.seen(SEND).pop().unwrap();
        (send.ext("f").to_owned(), send.body.len())
    };
    let (flag, len) = send(client.producer("g")).await;
    assert!(flag == "769" && len < 1000, "{flag} {len}");
    let plain = ("0".to_owned(), body.len());
    assert_eq!(send(client.producer("g").compression(None)).await, plain);
    assert_eq!(send(client.producer("g").compressed_len_min(body.len() + 1)).await, plain);
    #[cfg(feature = "lz4")]
    assert_eq!(
        send(client.producer("g").compression(ringmq_client::Compression::Lz4)).await.0,
        "257"
    );
    #[cfg(feature = "zstd")]
    assert_eq!(
        send(client.producer("g").compression(ringmq_client::Compression::Zstd)).await.0,
        "513"
    );
}

#[tokio::test]
async fn a_full_producer_gives_the_message_back() {
    let is_mute = Arc::new(AtomicBool::new(true));
    let mute = Arc::clone(&is_mute);
    let fake = one_broker(1, move |seen| match mute.load(Ordering::SeqCst) {
        true => Reaction::Silence,
        false => stored(seen),
    })
    .await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").in_flight_max(2).start().unwrap();
    let message = || Message::new("T", "x").key("k");
    let first = tokio::spawn(producer.try_send(message()).unwrap());
    let second = tokio::spawn(producer.try_send(message()).unwrap());
    fake.wait_for(SEND, 2).await;
    let Err(TrySendError::Full(returned)) = producer.try_send(message()) else {
        panic!("two are in flight");
    };
    assert_eq!((returned.body(), producer.in_flight()), (message().body(), 2));
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    is_mute.store(false, Ordering::SeqCst);
    producer.try_send(*returned).unwrap().await.unwrap();
    second.abort();

    // The bytes in flight have a bound as well.
    let producer = client.producer("g").in_flight_len_max(64 * 1024).start().unwrap();
    let long = || Message::new("T", vec![0; 40 * 1024]);
    let sending = producer.try_send(long()).unwrap();
    assert!(matches!(producer.try_send(long()), Err(TrySendError::Full(_))));
    sending.await.unwrap();
    producer.try_send(long()).unwrap().await.unwrap();
    producer.shutdown(Duration::from_secs(5)).await.unwrap();
    let closed = producer.try_send(message());
    assert!(matches!(closed, Err(TrySendError::Failed(Error::Closed))));
}

/// Three brokers; `slow` says whether the second one takes 2 s for an answer.
struct Three {
    name_server: Fake,
    slow: Arc<AtomicBool>,
}

async fn three_brokers() -> (Three, Vec<Fake>) {
    let slow = Arc::new(AtomicBool::new(true));
    let quick = || Fake::start(|_, seen| if seen.code == SEND { stored(seen) } else { ok() });
    let is_slow = Arc::clone(&slow);
    let second = Fake::start(move |_, seen| match seen.code {
        SEND if is_slow.load(Ordering::SeqCst) => {
            Reaction::Later(Duration::from_secs(2), Box::new(stored(seen)))
        }
        SEND => stored(seen),
        _ => ok(),
    });
    let brokers = vec![quick().await, second.await, quick().await];
    let addrs: Vec<_> = brokers.iter().map(|broker| broker.addr.clone()).collect();
    let name_server = Fake::start(move |_, seen| match seen.code {
        ROUTE => {
            let named = ["a", "b", "c"].into_iter().zip(&addrs);
            route(&named.map(|(name, addr)| (name, &**addr, 4)).collect::<Vec<_>>())
        }
        _ => ok(),
    })
    .await;
    (Three { name_server, slow }, brokers)
}

/// How many messages each broker got.
fn counts(brokers: &[Fake]) -> Vec<usize> {
    brokers.iter().map(|broker| broker.seen(SEND).len()).collect()
}

/// Sends 240 messages at once, and waits for all; how many of them each broker got.
async fn send_many(producer: &Producer, brokers: &[Fake]) -> Vec<usize> {
    let before = counts(brokers);
    let sends: Vec<_> = (0..240)
        .map(|_| tokio::spawn(producer.try_send(Message::new("T", "x")).unwrap()))
        .collect();
    for send in sends {
        send.await.unwrap().unwrap();
    }
    counts(brokers).iter().zip(before).map(|(now, before)| now - before).collect()
}

/// Tasks count for themselves, so that shares of many tasks are about a third only.
fn is_about_a_third(count: usize) -> bool {
    (50..=110).contains(&count)
}

/// Sends one message after the other for so long; how many of them each broker got.
async fn send_for(producer: &Producer, brokers: &[Fake], time: Duration) -> Vec<usize> {
    let (before, until) = (counts(brokers), Instant::now() + time);
    while Instant::now() < until {
        producer.send(Message::new("T", "x")).await.unwrap();
    }
    counts(brokers).iter().zip(before).map(|(now, before)| now - before).collect()
}

#[tokio::test]
async fn a_slow_broker_gets_little_while_latency_faults_are_on() {
    for rule in [LatencyRule::V4, LatencyRule::V5] {
        let (three, brokers) = three_brokers().await;
        let client = Client::connect(&three.name_server.addr).await.unwrap();
        let builder = client.producer("g").latency_rule(rule).latency_faults(true);
        let producer = builder.start().unwrap();
        let first = send_many(&producer, &brokers).await;
        assert!(is_about_a_third(first[1]), "{rule:?}: nothing is known yet: {first:?}");
        // Every answer that took 2 s was at hand by now.
        let then = send_for(&producer, &brokers, Duration::from_millis(500)).await;
        let all: usize = then.iter().sum();
        assert!(100 < all && then[1] * 50 < all, "{rule:?}: under 2 %: {then:?}");
        if rule == LatencyRule::V5 {
            three.slow.store(false, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(5)).await;
            let back = send_for(&producer, &brokers, Duration::from_millis(500)).await;
            let all: usize = back.iter().sum();
            assert!((all / 4..all / 2).contains(&back[1]), "after 5 s it is back: {back:?}");
        }
    }
}

#[tokio::test]
async fn without_latency_faults_a_slow_broker_keeps_its_share_and_the_switch_is_at_hand() {
    let (three, brokers) = three_brokers().await;
    let client = Client::connect(&three.name_server.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    for _ in 0..2 {
        let counts = send_many(&producer, &brokers).await;
        assert!(counts.iter().all(|count| is_about_a_third(*count)), "{counts:?}");
    }
    producer.set_latency_faults(true);
    send_many(&producer, &brokers).await;
    let counts = send_many(&producer, &brokers).await;
    assert_eq!(counts[1], 0, "{counts:?}");
    producer.set_latency_faults(false);
    let counts = send_many(&producer, &brokers).await;
    assert!(counts.iter().all(|count| is_about_a_third(*count)), "{counts:?}");
}

#[tokio::test]
async fn a_silent_broker_costs_one_attempts_time() {
    let quick = Fake::start(|_, seen| if seen.code == SEND { stored(seen) } else { ok() }).await;
    let addr = quick.addr.clone();
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1), ("b", &addr, 1)]),
        SEND => Reaction::Silence,
        _ => ok(),
    })
    .await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let builder = client.producer("g").attempt_timeout(Duration::from_millis(50));
    let producer = builder.start().unwrap();
    for _ in 0..4 {
        producer.send(Message::new("T", "x")).await.unwrap();
    }
    assert_eq!(quick.seen(SEND).len(), 4);
}

#[tokio::test]
async fn a_failed_send_has_the_route_asked_for_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let dead = fake::nobody().await;
    let count = Arc::clone(&asked);
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE if count.fetch_add(1, Ordering::SeqCst) == 0 => route(&[("a", &dead, 1)]),
        ROUTE => route(&[("b", own, 1)]),
        SEND => stored(seen),
        _ => ok(),
    })
    .await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").retries(20).start().unwrap();
    let receipt = producer.send(Message::new("T", "x")).await.unwrap();
    assert_eq!(receipt.queue.broker_name(), "b", "the next attempts know the new route");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn sends_leave_traces_in_upstreams_format() {
    let fake = one_broker(1, stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").traced().start().unwrap();
    let message = |body: &'static str| Message::new("T", body).tag("x").key("k1").key("k2");
    let receipts = [
        producer.send(message("hello")).await.unwrap(),
        producer.send(message("hello again")).await.unwrap(),
    ];
    drop(producer);
    let sends = fake.wait_for(SEND, 3).await;
    let trace = sends.iter().find(|send| send.ext("b") == "RMQ_SYS_TRACE_TOPIC").unwrap();
    assert_eq!(trace.ext("a"), "_INNER_TRACE_PRODUCER-g-PRODUCE");
    let text = String::from_utf8(trace.body.clone()).unwrap();
    let records: Vec<Vec<_>> =
        text.split_terminator('\u{2}').map(|text| text.split('\u{1}').collect()).collect();
    assert_eq!(records.len(), 2, "{text:?}");
    let keys = trace.property("KEYS").unwrap();
    for (record, (receipt, len)) in records.iter().zip(receipts.iter().zip(["5", "11"])) {
        assert_eq!(record.len(), 14);
        let id = &*receipt.message_id;
        let [kind, _, region, group, topic, message_id, tag, record_keys] = record[..8] else {
            panic!("{record:?}")
        };
        assert_eq!((kind, region, group, topic), ("Pub", "DefaultRegion", "g", "T"));
        assert_eq!((message_id, tag, record_keys), (id, "x", "k1 k2"));
        assert_eq!((record[8], record[9], record[11]), (&*fake.addr, len, "0"));
        assert_eq!((record[12], record[13]), (&*receipt.offset_message_id, "true"));
        assert!(keys.contains(id) && keys.contains("k1"), "{keys}");
    }
}
