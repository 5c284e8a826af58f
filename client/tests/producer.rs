//! What a producer does, seen from a broker's side of the socket.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fake::{Fake, Reaction, Seen, answer, ok, refuse, route, stored};
use ringmq_client::{Client, Error, Invalid, Message, Producer, SendStatus};
use ringmq_protocol::{
    batch,
    encode::{Head, begin_frame},
    frame::Encoding,
};

const SEND: i32 = 310;
const ROUTE: i32 = 105;

/// A fake with one broker of this many queues that answers sends as told.
async fn one_broker(queues: i32, send: impl Fn(&Seen) -> Reaction + Send + Sync + 'static) -> Fake {
    Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, queues)]),
        10 | 310 | 320 => send(seen),
        _ => ok(),
    })
    .await
}

/// Two brokers behind one name server, which are also the name of each.
async fn two_brokers(
    first: impl Fn(&Seen) -> Reaction + Send + Sync + 'static,
    second: impl Fn(&Seen) -> Reaction + Send + Sync + 'static,
) -> (Fake, Fake) {
    let b = Fake::start(move |_, seen| if seen.code == SEND { second(seen) } else { ok() }).await;
    let b_addr = b.addr.clone();
    let a = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 2), ("b", &b_addr, 2)]),
        SEND => first(seen),
        _ => ok(),
    })
    .await;
    (a, b)
}

async fn producer(fake: &Fake) -> Producer {
    Client::connect(&fake.addr).await.unwrap().producer("g").start().unwrap()
}

#[tokio::test]
async fn a_send_says_what_java_says() {
    let fake = one_broker(1, stored).await;
    let message = Message::new("T", "hello").tag("TagA").key("k").property("p", "v").flag(3);
    let receipt = producer(&fake).await.send(message).await.unwrap();
    let [send] = fake.seen(SEND).try_into().unwrap();
    for (name, want) in
        [("a", "g"), ("b", "T"), ("c", "TBW102"), ("d", "4"), ("e", "0"), ("f", "0"), ("h", "3")]
    {
        assert_eq!(send.ext(name), want, "field {name}");
    }
    for (name, want) in [("j", "0"), ("k", "false"), ("m", "false"), ("n", "a")] {
        assert_eq!(send.ext(name), want, "field {name}");
    }
    for (name, want) in [("TAGS", "TagA"), ("KEYS", "k"), ("p", "v")] {
        assert_eq!(send.property(name).as_deref(), Some(want));
    }
    assert_eq!(
        (send.body.as_slice(), send.flag, send.language.as_str()),
        (&b"hello"[..], 0, "RUST")
    );
    assert_eq!(send.property("UNIQ_KEY"), Some(receipt.message_id));
    assert_eq!(receipt.offset_message_id, "7F00000100002A9F0000000000001000");
    assert_eq!((receipt.status, receipt.queue_offset.get()), (SendStatus::Stored, 7));
    assert_eq!(receipt.queue.to_string(), "T@a:0");
}

#[tokio::test]
async fn sends_go_to_all_queues_in_turn() {
    let fake = one_broker(4, stored).await;
    let producer = producer(&fake).await;
    for _ in 0..12 {
        producer.send(Message::new("T", "x")).await.unwrap();
    }
    let queues: Vec<_> = fake.seen(SEND).iter().map(|send| send.ext("e").to_owned()).collect();
    for id in ["0", "1", "2", "3"] {
        assert_eq!(queues.iter().filter(|queue| *queue == id).count(), 3, "{queues:?}");
    }
    assert_eq!(fake.seen(ROUTE).len(), 1, "the route is asked for once");
}

#[tokio::test]
async fn a_failed_send_goes_to_another_broker_as_the_same_message() {
    for code in [1, 2, 14, 16, 17, 204, 205] {
        let (a, b) = two_brokers(move |_| refuse(code), stored).await;
        let producer = producer(&a).await;
        for _ in 0..3 {
            let receipt = producer.send(Message::new("T", "x")).await.unwrap();
            assert_eq!(receipt.queue.broker_name(), "b", "code {code}");
        }
        let (first, second) = (a.seen(SEND), b.seen(SEND));
        assert!(!first.is_empty() && second.len() == 3, "code {code}");
        for send in first {
            let id = send.property("UNIQ_KEY");
            assert!(second.iter().any(|again| again.property("UNIQ_KEY") == id));
        }
    }
}

#[tokio::test]
async fn other_codes_are_the_callers_at_once() {
    for code in [3, 13, 26, 29] {
        let fake = one_broker(4, move |_| refuse(code)).await;
        let error = producer(&fake).await.send(Message::new("T", "x")).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert!(!error.outcome_is_unknown());
        assert_eq!(fake.seen(SEND).len(), 1, "code {code}");
    }
}

#[tokio::test]
async fn attempts_end_with_the_retries() {
    let fake = one_broker(4, |_| refuse(14)).await;
    let error = producer(&fake).await.send(Message::new("T", "x")).await.unwrap_err();
    assert!(error.retry_can_help(), "{error}");
    assert_eq!(fake.seen(SEND).len(), 3);
}

#[tokio::test]
async fn stored_but_not_safe_is_a_status_and_no_error() {
    let codes = [
        (10, SendStatus::NotFlushed),
        (11, SendStatus::NoReplica),
        (12, SendStatus::NotReplicated),
    ];
    for (code, status) in codes {
        let fields = [("msgId", ""), ("queueId", "0"), ("queueOffset", "0")];
        let fake = one_broker(1, move |_| answer(code, &fields, b"")).await;
        let receipt = producer(&fake).await.send(Message::new("T", "x")).await.unwrap();
        assert_eq!(receipt.status, status);
        assert_eq!(fake.seen(SEND).len(), 1);
    }
}

#[tokio::test]
async fn an_unknown_topic_is_sent_by_the_template_until_it_is_known() {
    let created = Arc::new(AtomicUsize::new(0));
    let sent = Arc::clone(&created);
    let fake = Fake::start(move |own, seen| match (seen.code, seen.ext("topic")) {
        (ROUTE, "TBW102") => route(&[("a", own, 8)]),
        (ROUTE, _) if sent.load(Ordering::SeqCst) == 0 => refuse(17),
        (ROUTE, _) => route(&[("a", own, 2)]),
        (SEND, _) => {
            sent.fetch_add(1, Ordering::SeqCst);
            stored(seen)
        }
        _ => ok(),
    })
    .await;
    let producer = producer(&fake).await;
    producer.send(Message::new("New", "x")).await.unwrap();
    let queue: i32 = fake.seen(SEND)[0].ext("e").parse().unwrap();
    assert!((0..4).contains(&queue), "at most four queues of eight: {queue}");
    let topics: Vec<_> = fake.seen(ROUTE).iter().map(|seen| seen.ext("topic").to_owned()).collect();
    assert_eq!(topics, ["New", "TBW102"]);

    // Once the template's route is a second old, the real one takes its place.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(1100)).await;
    tokio::time::resume();
    producer.send(Message::new("New", "x")).await.unwrap();
    producer.send(Message::new("New", "x")).await.unwrap();
    assert_eq!(fake.seen(ROUTE).len(), 3);
    assert!(fake.seen(SEND).iter().skip(1).all(|send| matches!(send.ext("e"), "0" | "1")));
}

#[tokio::test]
async fn a_topic_that_nobody_may_create_is_named() {
    let fake = Fake::start(|_, seen| if seen.code == ROUTE { refuse(17) } else { ok() }).await;
    let error = producer(&fake).await.send(Message::new("New", "x")).await.unwrap_err();
    assert!(matches!(&error, Error::NoRoute { topic } if topic == "New"), "{error}");
}

#[tokio::test]
async fn a_batch_is_one_request() {
    let fake = one_broker(1, stored).await;
    let messages = ["one", "two", "three"].map(|body| Message::new("T", body));
    let receipt = producer(&fake).await.send_batch(messages).await.unwrap();
    let [send] = fake.seen(320).try_into().unwrap();
    let bodies: Vec<_> = batch::items(&send.body).map(|item| item.unwrap().body).collect();
    assert_eq!(bodies, [&b"one"[..], b"two", b"three"]);
    assert_eq!(send.ext("m"), "true");
    assert_eq!(receipt.message_id.split(',').count(), 3);
}

#[tokio::test]
async fn a_oneway_send_has_the_flag_and_waits_for_nothing() {
    let fake = one_broker(1, |_| Reaction::Silence).await;
    producer(&fake).await.send_oneway(Message::new("T", "x")).await.unwrap();
    let [send] = fake.wait_for(SEND, 1).await.try_into().unwrap();
    assert_eq!(send.flag, 2);
}

#[tokio::test]
async fn answers_find_their_requests_in_any_order() {
    // The first request is held until the second has come, and answered behind it.
    let held: Mutex<Option<i32>> = Mutex::new(None);
    let fake = one_broker(1, move |seen| {
        let frame = |opaque: i32, offset: &str| {
            let fields = [("msgId", ""), ("queueId", "0"), ("queueOffset", offset)];
            let fields: Vec<_> = fields.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
            fake::encode(opaque, 0, None, &fields, b"")
        };
        let mut held = held.lock().unwrap();
        match held.take() {
            None => {
                *held = Some(seen.opaque);
                Reaction::Silence
            }
            Some(first) => Reaction::Raw([frame(seen.opaque, "2"), frame(first, "1")].concat()),
        }
    })
    .await;
    let producer = producer(&fake).await;
    let (one, two) =
        tokio::join!(producer.send(Message::new("T", "1")), producer.send(Message::new("T", "2")));
    let sends = fake.seen(SEND);
    let first = sends[0].property("UNIQ_KEY").unwrap();
    for receipt in [one.unwrap(), two.unwrap()] {
        let want = if receipt.message_id == first { 1 } else { 2 };
        assert_eq!(receipt.queue_offset.get(), want);
    }
    assert_eq!(sends[0].connection, sends[1].connection, "one connection for both");
}

#[tokio::test]
async fn no_answer_is_a_timeout_with_unknown_outcome() {
    let fake = one_broker(1, |_| Reaction::Silence).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let timeout = Duration::from_millis(200);
    let producer = client.producer("g").send_timeout(timeout).start().unwrap();
    let error = producer.send(Message::new("T", "x")).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { request: "SEND_MESSAGE_V2", .. }), "{error}");
    assert!(error.outcome_is_unknown() && error.retry_can_help());
    assert_eq!(fake.seen(SEND).len(), 1, "the time is that of all attempts together");
}

#[tokio::test]
async fn more_sends_than_allowed_wait_for_their_turn() {
    let fake = one_broker(1, |_| Reaction::Silence).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let builder = client.producer("g").in_flight_max(1).send_timeout(Duration::from_millis(100));
    let producer = builder.start().unwrap();
    let (one, two) =
        tokio::join!(producer.send(Message::new("T", "1")), producer.send(Message::new("T", "2")));
    assert!(matches!(one, Err(Error::TimedOut { .. })), "{one:?}");
    let error = two.unwrap_err();
    assert!(matches!(error, Error::Busy { in_flight_max: 1 }), "{error}");
    assert!(error.retry_can_help() && !error.outcome_is_unknown());
    assert_eq!(fake.seen(SEND).len(), 1);
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let count = AtomicUsize::new(0);
    let fake = one_broker(1, move |seen| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Reaction::Close,
        _ => stored(seen),
    })
    .await;
    let producer = producer(&fake).await;
    producer.send(Message::new("T", "x")).await.unwrap();
    let sends = fake.seen(SEND);
    assert_eq!(sends.len(), 2);
    assert_ne!(sends[0].connection, sends[1].connection);
    assert_eq!(sends[0].property("UNIQ_KEY"), sends[1].property("UNIQ_KEY"));
}

#[tokio::test]
async fn a_broker_that_goes_away_is_asked_again_on_a_new_connection() {
    let fake = one_broker(1, |seen| match seen.connection {
        0 | 1 => refuse(1500),
        _ => stored(seen),
    })
    .await;
    // The name server is on the same address, so its connection is the first to be given up.
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").retries(1).start().unwrap();
    producer.send(Message::new("T", "x")).await.unwrap();
    let sends = fake.seen(SEND);
    let connections: Vec<_> = sends.iter().map(|send| send.connection).collect();
    assert!(connections.windows(2).all(|pair| pair[0] < pair[1]), "{connections:?}");
    let id = sends[0].property("UNIQ_KEY");
    assert!(sends.iter().all(|send| send.property("UNIQ_KEY") == id));
}

#[tokio::test]
async fn a_connection_without_a_word_is_given_up_when_a_call_runs_out_of_time() {
    let fake = Fake::start(|own, seen| match (seen.code, seen.connection) {
        (ROUTE, _) => route(&[("a", own, 1)]),
        (_, 0 | 1) => Reaction::Silence,
        (SEND, _) => stored(seen),
        _ => ok(),
    })
    .await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let builder = client.producer("g").retries(0).send_timeout(Duration::from_millis(1100));
    let producer = builder.start().unwrap();
    let error = producer.send(Message::new("T", "x")).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    producer.send(Message::new("T", "x")).await.unwrap();
}

#[tokio::test]
async fn a_broker_that_is_down_is_left_out() {
    let dead = fake::nobody().await;
    assert!(!fake::is_listening(&dead).await);
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", &dead, 2), ("b", own, 2)]),
        SEND => stored(seen),
        _ => ok(),
    })
    .await;
    let producer = producer(&fake).await;
    for _ in 0..8 {
        let receipt = producer.send(Message::new("T", "x")).await.unwrap();
        assert_eq!(receipt.queue.broker_name(), "b");
    }
}

#[tokio::test]
async fn bytes_that_are_no_frame_end_the_connection_and_the_call() {
    let fake = one_broker(1, |_| Reaction::Raw(vec![0xff; 64])).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").retries(0).start().unwrap();
    let error = producer.send(Message::new("T", "x")).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_without_its_fields_is_no_success() {
    let fake = one_broker(1, |_| answer(0, &[("queueId", "0")], b"")).await;
    let error = producer(&fake).await.send(Message::new("T", "x")).await.unwrap_err();
    assert!(matches!(&error, Error::Protocol { .. }) && error.outcome_is_unknown(), "{error}");
}

#[tokio::test]
async fn bad_messages_never_reach_the_network() {
    let fake = one_broker(1, stored).await;
    let producer = producer(&fake).await;
    let error = producer.send(Message::new("../x", "x")).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(Invalid::Topic(_))), "{error}");
    let error = producer.send_batch([]).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(Invalid::Batch(_))), "{error}");
    assert!(fake.seen(ROUTE).is_empty() && fake.seen(SEND).is_empty());
}

#[tokio::test]
async fn brokers_hear_of_the_group_and_of_its_end() {
    let fake = one_broker(1, stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("orders").start().unwrap();
    producer.send(Message::new("T", "x")).await.unwrap();
    let beat = String::from_utf8(fake.wait_for(34, 1).await.remove(0).body).unwrap();
    let id = client.client_id();
    assert!(id.starts_with("127.0.0.1@"), "{id}");
    let want = format!(
        r#"{{"clientID":"{id}","consumerDataSet":[],"producerDataSet":[{{"groupName":"orders"}}]}}"#
    );
    assert_eq!(beat, want);

    producer.shutdown(Duration::from_secs(5)).await.unwrap();
    let [end] = fake.seen(35).try_into().unwrap();
    assert_eq!((end.ext("clientID"), end.ext("producerGroup")), (id, "orders"));
    let error = producer.send(Message::new("T", "x")).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(matches!(client.producer("orders").start(), Err(Error::Closed)));
}

#[tokio::test]
async fn a_shutdown_waits_for_sends_no_longer_than_it_may() {
    let fake = one_broker(1, |_| Reaction::Silence).await;
    let producer = Arc::new(producer(&fake).await);
    let sender = Arc::clone(&producer);
    let send = tokio::spawn(async move { sender.send(Message::new("T", "x")).await });
    fake.wait_for(SEND, 1).await;
    let error = producer.shutdown(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }), "{error}");
    send.abort();
}

#[tokio::test]
async fn what_brokers_ask_is_answered_unless_it_is_oneway() {
    let fake = one_broker(1, stored).await;
    producer(&fake).await.send(Message::new("T", "x")).await.unwrap();
    let mut frames = Vec::new();
    for (opaque, code, flag) in [(1, 40, 2), (2, 309, 0), (3, 12345, 0)] {
        // The numbers are also those of the client's own requests.
        begin_frame(&mut frames, Head::request(Encoding::Json, opaque, code, flag))
            .finish(0)
            .unwrap();
    }
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    producer.send(Message::new("T", "x")).await.unwrap();
    fake.push(&frames).await;
    // Answers have the code of their outcome: 1 to 309, 3 to the unknown request.
    for (code, opaque) in [(1, 2), (3, 3)] {
        let answers = fake.wait_for(code, 1).await;
        assert!(answers.iter().all(|seen| seen.opaque == opaque && seen.flag & 1 == 1));
    }
    producer.send(Message::new("T", "x")).await.unwrap();
    assert!(fake.seen(40).is_empty() && fake.seen(0).is_empty());
}

#[tokio::test]
async fn a_name_server_that_is_down_is_passed_over() {
    let (fake, dead) = (one_broker(1, stored).await, fake::nobody().await);
    for servers in [format!("{dead};{}", fake.addr), format!("{};{dead}", fake.addr)] {
        let client = Client::connect(&servers).await.unwrap();
        client.producer("g").start().unwrap().send(Message::new("T", "x")).await.unwrap();
    }
    // One that takes connections and never answers leaves time for the other.
    let mute = Fake::start(|_, _| Reaction::Silence).await;
    for servers in [format!("{};{}", mute.addr, fake.addr), format!("{};{}", fake.addr, mute.addr)]
    {
        let builder = Client::builder(&servers).call_timeout(Duration::from_millis(400));
        let client = builder.connect().await.unwrap();
        assert!(client.admin().route("T").await.is_ok());
    }
    let error = Client::connect(&dead).await.unwrap_err();
    assert!(matches!(&error, Error::Connect { addr, .. } if *addr == dead), "{error}");
}
