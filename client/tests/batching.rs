//! Automatic batching, seen from a broker's side of the socket.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use fake::{Fake, Reaction, Seen, answer, ok, refuse, route, stored};
use ringmq_client::{Batching, Client, Message, MessageQueue, Producer, SendReceipt};
use ringmq_protocol::{batch, properties};

const SEND: i32 = 310;
const BATCH: i32 = 320;
const ROUTE: i32 = 105;

/// A broker that stores batches as real ones do: offsets without a gap, an id for each message.
async fn broker(queues: i32, delay: Duration) -> Fake {
    let next: Arc<[AtomicI64; 16]> = Arc::default();
    Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, queues)]),
        SEND | BATCH => {
            let queue: usize = seen.ext("e").parse().unwrap();
            let bodies = bodies(seen);
            let count = i64::try_from(bodies.len()).unwrap();
            let offset = next.get(queue).unwrap().fetch_add(count, Ordering::SeqCst).to_string();
            let ids: Vec<_> = bodies.iter().map(|body| format!("id-{body}")).collect();
            let ids = ids.join(",");
            let fields =
                [("msgId", ids.as_str()), ("queueId", seen.ext("e")), ("queueOffset", &offset)];
            Reaction::Later(delay, Box::new(answer(0, &fields, b"")))
        }
        _ => ok(),
    })
    .await
}

/// The messages of a send.
fn bodies(seen: &Seen) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match seen.code {
        BATCH => batch::items(&seen.body).map(|item| text(item.unwrap().body)).collect(),
        _ => vec![text(&seen.body)],
    }
}

fn sends(fake: &Fake) -> Vec<Seen> {
    let mut all = fake.seen(SEND);
    all.extend(fake.seen(BATCH));
    all
}

async fn producer(fake: &Fake, batching: Batching) -> Producer {
    let client = Client::connect(&fake.addr).await.unwrap();
    client.producer("g").batching(batching).start().unwrap()
}

/// Sends numbered messages at once, in their order.
async fn send_all(producer: &Producer, count: usize) -> Vec<SendReceipt> {
    let sends: Vec<_> = (0..count)
        .map(|n| tokio::spawn(producer.try_send(Message::new("T", n.to_string())).unwrap()))
        .collect();
    let mut receipts = Vec::new();
    for send in sends {
        receipts.push(send.await.unwrap().unwrap());
    }
    receipts
}

#[tokio::test]
async fn sends_that_are_in_flight_together_travel_together() {
    let fake = broker(4, Duration::from_millis(5)).await;
    let producer = producer(&fake, Batching::new()).await;
    let receipts = send_all(&producer, 1000).await;
    let requests = sends(&fake);
    assert!(requests.len() < 100, "{} requests", requests.len());
    let sent: usize = requests.iter().map(|seen| bodies(seen).len()).sum();
    assert_eq!(sent, 1000, "each message once");
    let mut places = HashMap::new();
    for (n, receipt) in receipts.iter().enumerate() {
        assert_eq!(receipt.offset_message_id, format!("id-{n}"));
        assert_eq!(receipt.message_id.len(), 32);
        let place = (receipt.queue.queue_id(), receipt.queue_offset.get());
        assert_eq!(places.insert(place, n), None, "two messages have one place");
    }
    // Where a request says that a message is, there it is.
    let mut offsets: HashMap<String, i64> = HashMap::new();
    for seen in requests {
        for body in bodies(&seen) {
            let offset = offsets.entry(seen.ext("e").to_owned()).or_default();
            let place = (seen.ext("e").parse().unwrap(), *offset);
            *offset += 1;
            // Single sends and batches are listed apart, so that only queues without single ones
            // can be compared.
            if fake.seen(SEND).iter().all(|single| single.ext("e") != seen.ext("e")) {
                assert_eq!(places.get(&place), Some(&body.parse().unwrap()));
            }
        }
    }
    producer.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[test]
fn a_long_batch_is_on_its_way_before_everybody_has_sent() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (arrived, arrivals) = mpsc::channel();
    let (started, addr) = mpsc::channel();
    let (over, end) = tokio::sync::oneshot::channel::<()>();
    let broker = thread::spawn(move || {
        runtime().block_on(async {
            let fake = Fake::start(move |own, seen| {
                if seen.code == BATCH {
                    // Only the first one is waited for.
                    let _ = arrived.send(bodies(seen).len());
                }
                if seen.code == ROUTE { route(&[("a", own, 4)]) } else { stored(seen) }
            });
            let fake = fake.await;
            started.send(fake.addr.clone()).unwrap();
            drop(end.await);
        });
    });
    runtime().block_on(async {
        let client = Client::connect(&addr.recv().unwrap()).await.unwrap();
        let producer = client.producer("g").batching(Batching::new()).start().unwrap();
        // The connection is there, and so is the route.
        producer.send(Message::new("T", "first")).await.unwrap();
        let sends: Vec<_> = (0..100)
            .map(|_| tokio::spawn(producer.try_send(Message::new("T", vec![b'x'; 1024])).unwrap()))
            .collect();
        let last = tokio::spawn(async move {
            // Nothing else runs meanwhile: what arrives has left before this one had its turn.
            arrivals.recv_timeout(Duration::from_secs(10))
        });
        let count = last.await.unwrap().expect("a batch");
        assert!((20..50).contains(&count), "{count} messages");
        for send in sends {
            send.await.unwrap().unwrap();
        }
    });
    drop(over);
    broker.join().unwrap();
}

#[tokio::test]
async fn a_queue_keeps_the_order_of_its_sends() {
    let fake = broker(4, Duration::from_millis(2)).await;
    let producer = producer(&fake, Batching::new().count_max(7)).await;
    let queue = MessageQueue::new("T", "a", 2);
    let sends: Vec<_> = (0..200)
        .map(|n| {
            let (producer, queue) = (producer.clone(), queue.clone());
            let message = Message::new("T", n.to_string());
            tokio::spawn(async move { producer.send_to(&queue, message).await })
        })
        .collect();
    for (n, send) in (0..).zip(sends) {
        let receipt = send.await.unwrap().unwrap();
        assert_eq!((receipt.queue.queue_id(), receipt.queue_offset.get()), (2, n));
    }
    let keyed: Vec<_> = (0..200)
        .map(|n| {
            let message = Message::new("T", n.to_string()).sharding_key("k");
            tokio::spawn(producer.try_send(message).unwrap())
        })
        .collect();
    let mut last = -1;
    for send in keyed {
        let receipt = send.await.unwrap().unwrap();
        assert!(last < receipt.queue_offset.get(), "{receipt:?} after {last}");
        last = receipt.queue_offset.get();
    }
}

#[tokio::test]
async fn a_message_that_is_alone_is_a_single_send_at_once() {
    let fake = broker(1, Duration::ZERO).await;
    let producer = producer(&fake, Batching::new()).await;
    for n in 0..3 {
        producer.send(Message::new("T", n.to_string())).await.unwrap();
    }
    assert_eq!((fake.seen(SEND).len(), fake.seen(BATCH).len()), (3, 0));
}

#[tokio::test]
async fn a_linger_collects_and_a_full_batch_does_not_wait_for_it() {
    let fake = broker(1, Duration::ZERO).await;
    let hour = Batching::new().linger(Duration::from_secs(3600)).count_max(10);
    let full = producer(&fake, hour).await;
    send_all(&full, 20).await;
    let lens: Vec<_> = sends(&fake).iter().map(|seen| bodies(seen).len()).collect();
    assert_eq!(lens, [10, 10]);

    // Without a linger, the first one would be on its way before the second one is sent.
    let brief = producer(&fake, Batching::new().linger(Duration::from_secs(1))).await;
    let one = tokio::spawn(brief.try_send(Message::new("T", "a")).unwrap());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let two = tokio::spawn(brief.try_send(Message::new("T", "b")).unwrap());
    one.await.unwrap().unwrap();
    two.await.unwrap().unwrap();
    assert_eq!(bodies(fake.seen(BATCH).last().unwrap()), ["a", "b"]);
}

#[tokio::test]
async fn what_cannot_travel_together_does_not() {
    let fake = broker(1, Duration::ZERO).await;
    let producer = producer(&fake, Batching::new().len_max(8 * 1024)).await;
    let messages = vec![
        Message::new("T", "0").delay_level(3),
        Message::new("T", "1".repeat(20_000)),
        Message::new("T", "2").wait_for_store(false),
        Message::new("T", "3"),
        Message::new("U", "4"),
    ];
    let sends: Vec<_> =
        messages.into_iter().map(|m| tokio::spawn(producer.try_send(m).unwrap())).collect();
    for send in sends {
        send.await.unwrap().unwrap();
    }
    assert_eq!((fake.seen(SEND).len(), fake.seen(BATCH).len()), (5, 0));
    let compressed = fake.seen(SEND).iter().filter(|seen| seen.ext("f") == "769").count();
    assert_eq!(compressed, 1);
}

#[tokio::test]
async fn a_batch_that_fails_goes_to_another_broker_and_a_refusal_concerns_all() {
    let refuses = Arc::new(AtomicBool::new(false));
    let refusing = Arc::clone(&refuses);
    let first = Arc::new(Mutex::new(Vec::new()));
    let seen_first = Arc::clone(&first);
    let good = Fake::start(move |_, seen| match seen.code {
        SEND | BATCH if refusing.load(Ordering::SeqCst) => refuse(13),
        SEND | BATCH => stored(seen),
        _ => ok(),
    })
    .await;
    let good_addr = good.addr.clone();
    let bad = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1), ("b", &good_addr, 1)]),
        SEND | BATCH => {
            seen_first.lock().unwrap().push(seen.clone());
            refuse(14)
        }
        _ => ok(),
    })
    .await;
    let producer = producer(&bad, Batching::new().linger(Duration::from_millis(20))).await;
    // Where the round of queues begins is drawn by lot, so it takes some rounds to come by the first.
    for round in 0.. {
        let receipts = send_all(&producer, 10).await;
        assert!(receipts.iter().all(|receipt| receipt.queue.broker_name() == "b"));
        if !first.lock().unwrap().is_empty() {
            break;
        }
        assert!(round < 100, "the first broker was never tried");
    }
    let tried = first.lock().unwrap().clone();
    assert!(!tried.is_empty());
    let ids = |seen: &Seen| {
        let items = batch::items(&seen.body).map(Result::unwrap);
        items
            .map(|item| properties::get(item.properties, "UNIQ_KEY").unwrap().to_vec())
            .collect::<Vec<_>>()
    };
    assert!(good.seen(BATCH).iter().any(|seen| ids(seen) == ids(&tried[0])), "the same messages");

    refuses.store(true, Ordering::SeqCst);
    let sends: Vec<_> = (0..10)
        .map(|n| tokio::spawn(producer.try_send(Message::new("T", n.to_string())).unwrap()))
        .collect();
    for send in sends {
        assert_eq!(send.await.unwrap().unwrap_err().code(), Some(13));
    }
    assert_eq!(producer.in_flight(), 0);
}
