//! What a push consumer does, seen from a broker's side of the socket.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use fake::{
    Fake, Reaction, Seen, answer,
    messages::{members, offset, pulled, record, serve_pull},
    ok, refuse, route, stored,
};
use ringmq_client::{
    Client, Delivery, Error, Filter, Invalid, OrderedVerdict, PushConsumerBuilder, ReceivedMessage,
    StartFrom, Verdict,
};
use ringmq_protocol::{
    encode::{Head, begin_frame},
    frame::Encoding,
};
use tokio::sync::{Semaphore, mpsc};

const ROUTE: i32 = 105;
const PULL: i32 = 11;
const COMMITTED: i32 = 14;
const COMMIT: i32 = 15;
const SEND_BACK: i32 = 36;
const MEMBERS: i32 = 38;
const LOCK: i32 = 41;
const UNLOCK: i32 = 42;
const UNREGISTER: i32 = 35;
const SEND: i32 = 310;
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers what every group asks: a route to `queues` queues of each topic but retry topics, the
/// client alone in its group, nothing committed.
fn group(own: &str, seen: &Seen, queues: i32, count: i64) -> Reaction {
    match seen.code {
        ROUTE if seen.ext("topic").starts_with("%RETRY%") => refuse(17),
        ROUTE => route(&[("a", own, queues)]),
        MEMBERS => members(&[MEMBER]),
        COMMITTED => refuse(22),
        30 => offset(&count.to_string()),
        31 => offset("0"),
        PULL => serve_pull(seen, count),
        LOCK => granted(seen),
        _ => ok(),
    }
}

/// All locks that are asked for.
fn granted(seen: &Seen) -> Reaction {
    let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
    let granted = serde_json::json!({ "lockOKMQSet": body.get("mqSet") });
    answer(0, &[], granted.to_string().as_bytes())
}

async fn stage(queues: i32, count: i64) -> Fake {
    Fake::start(move |own, seen| group(own, seen, queues, count)).await
}

const MEMBER: &str = "127.0.0.1@m1";

async fn client(fake: &Fake) -> Client {
    Client::builder(&fake.addr).instance_name("m1").connect().await.unwrap()
}

async fn consumer(fake: &Fake) -> PushConsumerBuilder {
    let builder = client(fake).await.push_consumer("g").subscribe("T", "*");
    builder.start_from(StartFrom::First).commit_period(Duration::from_millis(20))
}

/// A listener that hands messages to the test.
fn reporting() -> (
    impl Fn(Delivery) -> std::future::Ready<()> + Send + Sync + 'static,
    mpsc::UnboundedReceiver<ReceivedMessage>,
) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        delivery.into_iter().for_each(|message| drop(sender.send(message)));
        std::future::ready(())
    };
    (listener, receiver)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

/// The last commit of each queue.
fn committed(fake: &Fake) -> BTreeMap<String, String> {
    let commits = fake.seen(COMMIT).into_iter();
    commits.map(|c| (c.ext("queueId").to_owned(), c.ext("commitOffset").to_owned())).collect()
}

/// A broker's request.
fn request(code: i32, flag: i32, ext: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = begin_frame(&mut out, Head::request(Encoding::Json, 4711, code, flag));
    for (name, value) in ext {
        writer.ext(name, value);
    }
    writer.finish(body.len()).unwrap();
    out.extend_from_slice(body);
    out
}

const ONEWAY: i32 = 2;

#[tokio::test]
async fn all_messages_come_once_and_are_committed() {
    let fake = stage(3, 100).await;
    let (listener, mut received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    let mut places = BTreeSet::new();
    for _ in 0..300 {
        let message = soon(received.recv()).await.unwrap();
        assert!(places.insert((message.queue().clone(), message.queue_offset())), "{message:?}");
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    let want = [0, 1, 2].map(|queue| (queue.to_string(), "100".to_owned()));
    assert_eq!(committed(&fake), want.into());
    let pull = &fake.seen(PULL)[0];
    for (name, want) in [
        ("consumerGroup", "g"),
        ("maxMsgNums", "32"),
        ("sysFlag", "6"),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "*"),
    ] {
        assert_eq!(pull.ext(name), want, "field {name}");
    }
}

#[tokio::test]
async fn the_listener_runs_as_often_at_once_as_it_may() {
    let fake = stage(2, 1000).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (enough, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let consumer = consumer(&fake).await.concurrency(7);
    let listener = {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        let (enough, go) = (Arc::clone(&enough), Arc::clone(&go));
        move |_: Delivery| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let (enough, go) = (Arc::clone(&enough), Arc::clone(&go));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                enough.add_permits(1);
                go.acquire().await.unwrap().forget();
                running.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    let consumer = consumer.start(listener).await.unwrap();
    soon(enough.acquire_many(7)).await.unwrap().forget();
    go.add_permits(500);
    soon(enough.acquire_many(400)).await.unwrap().forget();
    assert_eq!(most.load(Ordering::SeqCst), 7);
    drop(consumer);
}

#[tokio::test]
async fn a_batch_holds_what_is_there_and_no_more_than_it_may() {
    let fake = Fake::start(|own, seen| match seen.code {
        PULL if seen.ext("queueOffset") == "0" => {
            let records: Vec<_> = (0..10).map(|at| record(0, at, "A")).collect();
            pulled(0, 10, 10, &records.concat())
        }
        PULL => Reaction::Silence,
        _ => group(own, seen, 1, 10),
    })
    .await;
    let (sender, mut sizes) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        sender.send(delivery.len()).unwrap();
        std::future::ready(Verdict::Done)
    };
    let builder = consumer(&fake).await.batch(4).concurrency(1);
    let _consumer = builder.start(listener).await.unwrap();
    for want in [4, 4, 2] {
        assert_eq!(soon(sizes.recv()).await, Some(want));
    }
}

#[tokio::test]
async fn what_fails_goes_back_to_its_broker() {
    let fake = stage(1, 6).await;
    let listener = |delivery: Delivery| async move {
        match delivery[0].queue_offset().get() {
            0 => Verdict::Retry,
            1 => Verdict::RetryAt(5),
            2 => Verdict::DeadLetter,
            3 => panic!("the listener fails"),
            4 => Err::<(), _>("an error").into(),
            _ => Verdict::Done,
        }
    };
    let builder = consumer(&fake).await.retries_max(9);
    let consumer = builder.start(listener).await.unwrap();
    let backs = fake.wait_for(SEND_BACK, 5).await;
    let levels: BTreeMap<_, _> =
        backs.iter().map(|back| (back.ext("offset"), back.ext("delayLevel"))).collect();
    let want = [("4096", "0"), ("4097", "5"), ("4098", "-1"), ("4099", "0"), ("4100", "0")];
    assert_eq!(levels, want.into());
    for (name, want) in [
        ("group", "g"),
        ("originTopic", "T"),
        ("maxReconsumeTimes", "9"),
        ("bname", "a"),
        ("unitMode", "false"),
    ] {
        assert_eq!(backs[0].ext(name), want, "field {name}");
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(committed(&fake)["0"], "6");
    assert!(fake.seen(SEND).is_empty());
}

#[tokio::test]
async fn the_rest_of_a_batch_fails_after_those_that_are_done() {
    let fake = stage(1, 3).await;
    let listener = |_: Delivery| async { Verdict::DoneFirst(1) };
    let builder = consumer(&fake).await.batch(3).concurrency(1);
    let consumer = builder.start(listener).await.unwrap();
    let backs = fake.wait_for(SEND_BACK, 2).await;
    let offsets: Vec<_> = backs.iter().map(|back| back.ext("offset")).collect();
    assert_eq!(offsets, ["4097", "4098"]);
    consumer.shutdown(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_broker_that_cannot_take_messages_back_gets_them_anew() {
    let fake = Fake::start(|own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        PULL if seen.ext("topic") != "T" => Reaction::Silence,
        SEND_BACK => refuse(3),
        SEND => stored(seen),
        _ => group(own, seen, 1, 2),
    })
    .await;
    let listener = |delivery: Delivery| async move {
        if delivery[0].queue_offset().get() == 0 { Verdict::Retry } else { Verdict::DeadLetter }
    };
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    let mut sends = fake.wait_for(SEND, 2).await;
    sends.sort_by_key(|send| send.body.clone());
    for (send, level, times) in [(&sends[0], Some("3"), "1"), (&sends[1], None, "17")] {
        for (name, want) in
            [("a", "CLIENT_INNER_PRODUCER"), ("b", "%RETRY%g"), ("j", times), ("l", "17")]
        {
            assert_eq!(send.ext(name), want, "field {name}");
        }
        assert_eq!(send.property("RETRY_TOPIC").as_deref(), Some("T"));
        assert_eq!(send.property("DELAY").as_deref(), level);
        let id = format!("ID{}", String::from_utf8(send.body.clone()).unwrap());
        assert_eq!(send.property("UNIQ_KEY"), Some(id.clone()));
        assert_eq!(send.property("ORIGIN_MESSAGE_ID"), Some(id));
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(committed(&fake)["0"], "2");
}

#[tokio::test]
async fn what_no_broker_takes_back_is_tried_again_here_and_not_committed() {
    let fake = Fake::start(|own, seen| match seen.code {
        SEND_BACK => refuse(3),
        _ => group(own, seen, 1, 3),
    })
    .await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        let message = &delivery[0];
        let (at, times) = (message.queue_offset().get(), message.reconsume_times());
        sender.send((at, times)).unwrap();
        std::future::ready(if at == 1 && times == 0 { Verdict::Retry } else { Verdict::Done })
    };
    let consumer = consumer(&fake).await.concurrency(1).start(listener).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(soon(received.recv()).await.unwrap());
    }
    assert_eq!(seen, [(0, 0), (1, 0), (2, 0)]);
    fake.wait_for(COMMIT, 1).await;
    assert_eq!(committed(&fake)["0"], "1", "the failed one is not passed");
    assert_eq!(soon(received.recv()).await, Some((1, 1)));
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(committed(&fake)["0"], "3");
}

#[tokio::test]
async fn a_message_that_comes_again_has_its_first_topic() {
    let fake = Fake::start(|own, seen| match (seen.code, seen.ext("topic")) {
        (ROUTE, _) => route(&[("a", own, 1)]),
        (PULL, "%RETRY%g") if seen.ext("queueOffset") == "0" => {
            pulled(0, 1, 1, &fake::messages::retried("g", 0, "T", 3))
        }
        (PULL, _) => Reaction::Silence,
        _ => group(own, seen, 1, 0),
    })
    .await;
    let (listener, mut received) = reporting();
    let _consumer = consumer(&fake).await.start(listener).await.unwrap();
    let message = soon(received.recv()).await.unwrap();
    assert_eq!((message.topic(), message.queue().topic()), ("T", "%RETRY%g"));
    assert_eq!(message.reconsume_times(), 3);
}

#[tokio::test]
async fn failing_questions_for_offsets_commit_nothing_and_read_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let fake = Fake::start(move |own, seen| match seen.code {
        COMMITTED if asked.fetch_add(1, Ordering::SeqCst) < 20 => refuse(1),
        COMMITTED => offset("7"),
        _ => group(own, seen, 1, 10),
    })
    .await;
    let (listener, mut received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    for count in 2..=21 {
        // Being told of a change brings the next division.
        fake.push(&request(40, ONEWAY, &[("consumerGroup", "g")], b"")).await;
        fake.wait_for(COMMITTED, count).await;
        if count <= 20 {
            assert!(fake.seen(PULL).is_empty() && fake.seen(COMMIT).is_empty());
        }
    }
    for want in [7, 8, 9] {
        assert_eq!(soon(received.recv()).await.unwrap().queue_offset().get(), want);
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    let offsets: Vec<i64> =
        fake.seen(COMMIT).iter().map(|c| c.ext("commitOffset").parse().unwrap()).collect();
    assert!(offsets.iter().all(|at| *at > 7), "{offsets:?}");
}

#[tokio::test]
async fn a_shutdown_finishes_commits_and_leaves_in_this_order() {
    let fake = stage(1, 100).await;
    let go = Arc::new(Semaphore::new(0));
    let begun = Arc::new(Semaphore::new(0));
    let listener = {
        let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
        move |_: Delivery| {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            async move {
                begun.add_permits(1);
                go.acquire().await.unwrap().forget();
            }
        }
    };
    let builder = consumer(&fake).await.concurrency(5);
    let consumer = builder.start(listener).await.unwrap();
    soon(begun.acquire_many(5)).await.unwrap().forget();
    let shutdown = tokio::spawn(consumer.shutdown(PATIENCE));
    go.add_permits(1000);
    soon(shutdown).await.unwrap().unwrap();
    // The workers finished what they had, and took nothing more.
    assert_eq!(begun.available_permits(), 0);
    assert_eq!(committed(&fake)["0"], "5");
    let codes: Vec<_> = fake.all().iter().map(|seen| seen.code).collect();
    let last_commit = codes.iter().rposition(|code| *code == COMMIT).unwrap();
    let left = codes.iter().position(|code| *code == UNREGISTER).unwrap();
    assert!(last_commit < left, "{codes:?}");
}

#[tokio::test]
async fn a_shutdown_that_runs_out_of_time_says_so_and_commits_what_is_done() {
    let fake = stage(1, 100).await;
    let begun = Arc::new(Semaphore::new(0));
    let listener = {
        let begun = Arc::clone(&begun);
        move |delivery: Delivery| {
            let begun = Arc::clone(&begun);
            async move {
                begun.add_permits(1);
                if delivery[0].queue_offset().get() == 3 {
                    std::future::pending::<()>().await;
                }
            }
        }
    };
    let builder = consumer(&fake).await.concurrency(1);
    let consumer = builder.start(listener).await.unwrap();
    soon(begun.acquire_many(4)).await.unwrap().forget();
    let error = consumer.shutdown(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }), "{error}");
    assert_eq!(committed(&fake)["0"], "3");
    assert_eq!(fake.seen(UNREGISTER).len(), 1);
}

#[tokio::test]
async fn queues_are_shared_with_members_that_come_and_go() {
    let others = Arc::new(Mutex::new(vec![MEMBER]));
    let list = Arc::clone(&others);
    let fake = Fake::start(move |own, seen| match seen.code {
        MEMBERS => members(&list.lock().unwrap()),
        _ => group(own, seen, 4, 3),
    })
    .await;
    let (listener, mut received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    for _ in 0..12 {
        soon(received.recv()).await.unwrap();
    }
    let queues = || consumer.queues().iter().map(|(q, _)| q.queue_id()).collect::<Vec<_>>();
    assert_eq!(queues(), [0, 1, 2, 3]);
    // One that sorts before this one, and gets the first queues.
    *others.lock().unwrap() = vec![MEMBER, "10.0.0.1@x"];
    fake.push(&request(40, ONEWAY, &[("consumerGroup", "g")], b"")).await;
    let shared = async {
        while queues() != [2, 3] {
            tokio::task::yield_now().await;
        }
    };
    soon(shared).await;
    let given_up = async {
        while !["0", "1"].iter().all(|queue| committed(&fake).contains_key(*queue)) {
            tokio::task::yield_now().await;
        }
    };
    soon(given_up).await;
    let last = committed(&fake);
    assert_eq!((last["0"].as_str(), last["1"].as_str()), ("3", "3"), "given up at the end");
    *others.lock().unwrap() = vec![MEMBER];
    fake.push(&request(40, ONEWAY, &[("consumerGroup", "g")], b"")).await;
    let alone = async {
        while queues().len() != 4 {
            tokio::task::yield_now().await;
        }
    };
    soon(alone).await;
}

#[tokio::test]
async fn a_broker_that_has_forgotten_the_member_hears_of_it_first() {
    let beats = Arc::new(AtomicUsize::new(0));
    let fake = Fake::start(move |own, seen| match seen.code {
        34 => {
            beats.fetch_add(1, Ordering::SeqCst);
            ok()
        }
        MEMBERS if beats.load(Ordering::SeqCst) < 2 => members(&["10.0.0.1@other"]),
        _ => group(own, seen, 2, 0),
    })
    .await;
    let (listener, _received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    assert_eq!(consumer.queues().len(), 2);
}

#[tokio::test]
async fn an_offset_outside_the_queue_is_corrected_at_once_and_committed() {
    let fake = Fake::start(|own, seen| match seen.code {
        COMMITTED => offset("100"),
        PULL if seen.ext("queueOffset") == "100" => pulled(21, 4, 6, b""),
        _ => group(own, seen, 1, 6),
    })
    .await;
    let (listener, mut received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    for want in [4, 5] {
        assert_eq!(soon(received.recv()).await.unwrap().queue_offset().get(), want);
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(committed(&fake)["0"], "6");
}

/// Where pulls began, in the order in which they came.
fn pulls_from(fake: &Fake) -> Vec<i64> {
    fake.seen(PULL).iter().map(|pull| pull.ext("queueOffset").parse().unwrap()).collect()
}

#[tokio::test]
async fn a_queue_with_more_has_a_few_pulls_on_their_way() {
    let fake = Fake::start(|own, seen| match seen.code {
        PULL if seen.ext("queueOffset") != "0" => Reaction::Silence,
        _ => group(own, seen, 1, 100),
    })
    .await;
    let (listener, _received) = reporting();
    let builder = consumer(&fake).await.pull_count_max(3);
    let _consumer = builder.start(listener).await.unwrap();
    fake.wait_for(PULL, 5).await;
    // A commit comes after what could have been asked meanwhile.
    fake.wait_for(COMMIT, 1).await;
    assert_eq!(pulls_from(&fake), [0, 3, 6, 9, 12]);
}

#[tokio::test]
async fn pulls_end_before_the_end_that_is_known() {
    let fake = stage(1, 8).await;
    let (listener, mut received) = reporting();
    let builder = consumer(&fake).await.pull_count_max(3);
    let consumer = builder.start(listener).await.unwrap();
    for want in 0..8 {
        assert_eq!(soon(received.recv()).await.unwrap().queue_offset().get(), want);
    }
    fake.wait_for(PULL, 4).await;
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(pulls_from(&fake), [0, 3, 6, 8]);
}

#[tokio::test]
async fn pulls_behind_one_that_did_not_come_full_are_asked_anew() {
    let fake = Fake::start(move |own, seen| match (seen.code, seen.ext("queueOffset")) {
        // Some answers are short, and late: those behind them come first.
        (PULL, "6" | "29") => {
            let from: i64 = seen.ext("queueOffset").parse().unwrap();
            let answer = pulled(0, from + 1, 50, &record(0, from, "Even"));
            Reaction::Later(Duration::from_millis(20), Box::new(answer))
        }
        _ => group(own, seen, 1, 50),
    })
    .await;
    let (listener, mut received) = reporting();
    let builder = consumer(&fake).await.pull_count_max(3);
    let consumer = builder.start(listener).await.unwrap();
    for want in 0..50 {
        assert_eq!(soon(received.recv()).await.unwrap().queue_offset().get(), want);
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(committed(&fake)["0"], "50");
    // Those at 9 and behind it had to be left.
    assert!(pulls_from(&fake).starts_with(&[0, 3, 6, 9, 12]), "{:?}", pulls_from(&fake));
    assert!(pulls_from(&fake).contains(&7), "{:?}", pulls_from(&fake));
}

#[tokio::test]
async fn pulls_ahead_count_before_they_come() {
    let fake = Fake::start(|own, seen| match seen.code {
        PULL if seen.ext("queueOffset") != "0" => Reaction::Silence,
        _ => group(own, seen, 1, 100),
    })
    .await;
    let listener = |delivery: Delivery| async move {
        if delivery[0].queue_offset().get() > 0 {
            std::future::pending::<()>().await;
        }
    };
    // Two or three are here, three may come: six more would be too many.
    let builder = consumer(&fake).await.pull_count_max(3).queue_limits(7, 1 << 20);
    let _consumer = builder.start(listener).await.unwrap();
    fake.wait_for(PULL, 3).await;
    fake.wait_for(COMMIT, 1).await;
    assert_eq!(pulls_from(&fake), [0, 3, 6]);
}

#[tokio::test]
async fn unfinished_messages_stop_the_pulls_of_their_queue() {
    let fake = stage(1, 100_000).await;
    let go = Arc::new(Semaphore::new(0));
    let wait = Arc::clone(&go);
    let listener = move |_: Delivery| {
        let wait = Arc::clone(&wait);
        async move { wait.acquire().await.unwrap().forget() }
    };
    let builder = consumer(&fake).await.queue_limits(50, 1 << 20);
    let consumer = builder.start(listener).await.unwrap();
    // Three messages a pull: the seventeenth one exceeds fifty.
    fake.wait_for(PULL, 17).await;
    fake.wait_for(34, 1).await;
    assert_eq!(fake.seen(PULL).len(), 17);
    go.add_permits(1000);
    fake.wait_for(PULL, 200).await;
    drop(consumer);
}

#[tokio::test]
async fn a_message_that_is_stuck_goes_back_and_the_offset_goes_on() {
    let fake = stage(1, 3).await;
    let listener = |delivery: Delivery| async move {
        if delivery[0].queue_offset().get() == 0 {
            std::future::pending::<()>().await;
        }
    };
    let builder = consumer(&fake).await.consume_time_max(Duration::from_millis(100));
    let _consumer = builder.start(listener).await.unwrap();
    let [back] = fake.wait_for(SEND_BACK, 1).await.try_into().unwrap();
    assert_eq!((back.ext("offset"), back.ext("delayLevel")), ("4096", "3"));
    let done = async {
        while committed(&fake).get("0").map(String::as_str) != Some("3") {
            tokio::task::yield_now().await;
        }
    };
    soon(done).await;
}

#[tokio::test]
async fn a_paused_consumer_pulls_no_more_until_it_goes_on() {
    let fake = stage(1, 100_000).await;
    let (listener, mut received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    soon(received.recv()).await.unwrap();
    consumer.pause();
    // The pull that was under way is the last one.
    let quiet = async {
        loop {
            let before = fake.seen(PULL).len();
            tokio::time::sleep(Duration::from_millis(50)).await;
            if fake.seen(PULL).len() == before {
                return before;
            }
        }
    };
    let before = soon(quiet).await;
    consumer.resume();
    fake.wait_for(PULL, before + 10).await;
}

#[tokio::test]
async fn each_queue_is_read_in_order_under_the_brokers_lock() {
    let fake = stage(3, 50).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let tries = Arc::new(AtomicI64::new(0));
    let listener = move |delivery: Delivery| {
        let message = delivery[0].clone();
        let (queue, at) = (message.queue().queue_id(), message.queue_offset().get());
        sender.send((queue, at, message.reconsume_times())).unwrap();
        let tries = Arc::clone(&tries);
        async move {
            tokio::task::yield_now().await;
            let fails = queue == 1 && at == 10 && tries.fetch_add(1, Ordering::SeqCst) < 2;
            if fails { OrderedVerdict::Suspend } else { OrderedVerdict::Done }
        }
    };
    let builder = consumer(&fake).await.suspend_pause(Duration::from_millis(20));
    let consumer = builder.start_ordered(listener).await.unwrap();
    let mut queues: BTreeMap<i32, Vec<(i64, i32)>> = BTreeMap::new();
    for _ in 0..152 {
        let (queue, at, times) = soon(received.recv()).await.unwrap();
        queues.entry(queue).or_default().push((at, times));
    }
    let in_order: Vec<_> = (0..50).map(|at| (at, 0)).collect();
    assert_eq!((&queues[&0], &queues[&2]), (&in_order, &in_order));
    let mut with_repeats = in_order.clone();
    with_repeats.splice(10..11, [(10, 0), (10, 1), (10, 2)]);
    assert_eq!(queues[&1], with_repeats);
    assert!(
        fake.seen(LOCK)[0].body.starts_with(br#"{"clientId":"127.0.0.1@m1","consumerGroup":"g""#)
    );
    consumer.shutdown(PATIENCE).await.unwrap();
    assert_eq!(fake.seen(UNLOCK).len(), 1);
    assert!(fake.seen(SEND_BACK).is_empty());
    assert_eq!(committed(&fake)["1"], "50");
}

#[tokio::test]
async fn held_messages_are_committed_with_the_next_one_that_is_done_and_roll_back_together() {
    let fake = stage(1, 4).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let rolled = Arc::new(AtomicBool::new(false));
    let listener = move |delivery: Delivery| {
        let at = delivery[0].queue_offset().get();
        sender.send(at).unwrap();
        std::future::ready(match at {
            2 if !rolled.swap(true, Ordering::SeqCst) => OrderedVerdict::Rollback,
            3 => OrderedVerdict::Done,
            _ => OrderedVerdict::Hold,
        })
    };
    let builder = consumer(&fake).await.suspend_pause(Duration::from_millis(20));
    let consumer = builder.start_ordered(listener).await.unwrap();
    for want in [0, 1, 2, 0, 1, 2, 3] {
        assert_eq!(soon(received.recv()).await, Some(want));
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    assert!(fake.seen(COMMIT).iter().all(|commit| commit.ext("commitOffset") == "4"));
}

#[tokio::test]
async fn an_ordered_message_that_fails_too_often_goes_to_the_dead_letters() {
    let fake = Fake::start(|own, seen| match (seen.code, seen.ext("topic")) {
        (ROUTE, _) => route(&[("a", own, 1)]),
        (PULL, "%RETRY%g") => Reaction::Silence,
        (SEND, _) => stored(seen),
        _ => group(own, seen, 1, 3),
    })
    .await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        let at = delivery[0].queue_offset().get();
        sender.send(at).unwrap();
        std::future::ready(if at == 0 { OrderedVerdict::Suspend } else { OrderedVerdict::Done })
    };
    let builder = consumer(&fake).await.suspend_pause(Duration::from_millis(10)).retries_max(2);
    let consumer = builder.start_ordered(listener).await.unwrap();
    for want in [0, 0, 0, 1, 2] {
        assert_eq!(soon(received.recv()).await, Some(want));
    }
    let [dead] = fake.seen(SEND).try_into().unwrap();
    assert_eq!((dead.ext("b"), dead.ext("j"), dead.ext("l")), ("%RETRY%g", "3", "3"));
    assert_eq!(dead.property("DELAY"), None);
    consumer.shutdown(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_queue_that_another_member_has_locked_is_not_read() {
    let is_free = Arc::new(AtomicBool::new(false));
    let free = Arc::clone(&is_free);
    let fake = Fake::start(move |own, seen| match seen.code {
        LOCK if free.load(Ordering::SeqCst) => granted(seen),
        LOCK => answer(0, &[], br#"{"lockOKMQSet":[]}"#),
        _ => group(own, seen, 1, 3),
    })
    .await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        sender.send(delivery.len()).unwrap();
        std::future::ready(OrderedVerdict::Done)
    };
    let _consumer = consumer(&fake).await.start_ordered(listener).await.unwrap();
    fake.wait_for(LOCK, 2).await;
    assert!(fake.seen(PULL).is_empty() && fake.seen(COMMITTED).is_empty());
    is_free.store(true, Ordering::SeqCst);
    assert_eq!(soon(received.recv()).await, Some(1));
}

#[tokio::test]
async fn a_broadcasting_member_reads_all_and_keeps_its_offsets_here() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start(|own, seen| match seen.code {
        MEMBERS => members(&[MEMBER, "10.0.0.1@x"]),
        _ => group(own, seen, 2, 5),
    })
    .await;
    for (round, want) in [(0, 10), (1, 0)] {
        let (listener, mut received) = reporting();
        let builder = consumer(&fake).await.broadcasting().offsets_folder(folder.path());
        let consumer = builder.start(listener).await.unwrap();
        for _ in 0..want {
            soon(received.recv()).await.unwrap();
        }
        fake.wait_for(PULL, (round + 1) * 2).await;
        consumer.shutdown(PATIENCE).await.unwrap();
        assert!(received.recv().await.is_none(), "round {round}");
    }
    for code in [MEMBERS, COMMITTED, COMMIT, LOCK] {
        assert!(fake.seen(code).is_empty(), "request {code}");
    }
    let file = folder.path().join(MEMBER).join("g").join("offsets.json");
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(",5]").count(), 2, "{text}");
}

#[tokio::test]
async fn sql_is_checked_at_the_start_and_not_sent_with_pulls() {
    let refuses = Arc::new(AtomicBool::new(true));
    let refused = Arc::clone(&refuses);
    let fake = Fake::start(move |own, seen| match seen.code {
        46 if refused.load(Ordering::SeqCst) => refuse(23),
        _ => group(own, seen, 1, 0),
    })
    .await;
    let builder =
        || async { client(&fake).await.push_consumer("g").subscribe("T", Filter::sql("a > 5")) };
    let (listener, _received) = reporting();
    let error = builder().await.start(listener).await.unwrap_err();
    assert_eq!(error.code(), Some(23));
    refuses.store(false, Ordering::SeqCst);
    let (listener, _received) = reporting();
    let _consumer = builder().await.start(listener).await.unwrap();
    let pull = fake.wait_for(PULL, 1).await[0].clone();
    assert_eq!((pull.ext("sysFlag"), pull.ext("expressionType")), ("2", "SQL92"));
    let beat = String::from_utf8(fake.seen(34).last().unwrap().body.clone()).unwrap();
    assert!(beat.contains(r#""expressionType":"SQL92","subString":"a > 5""#), "{beat}");
    assert!(beat.contains(r#""subString":"*""#) && beat.contains("%RETRY%g"), "{beat}");
}

#[tokio::test]
async fn a_broker_can_set_offsets_while_messages_come() {
    let fake = stage(2, 9).await;
    let (listener, mut received) = reporting();
    let consumer = consumer(&fake).await.start(listener).await.unwrap();
    for _ in 0..18 {
        soon(received.recv()).await.unwrap();
    }
    let body = br#"{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"T"}:6}}"#;
    let ext = [("topic", "T"), ("group", "g"), ("timestamp", "0"), ("isForce", "true")];
    fake.push(&request(220, ONEWAY, &ext, body)).await;
    for want in [6, 7, 8] {
        let message = soon(received.recv()).await.unwrap();
        assert_eq!((message.queue().queue_id(), message.queue_offset().get()), (1, want));
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    let of_queue = |id: &str| {
        let commits = fake.seen(COMMIT).into_iter().filter(|commit| commit.ext("queueId") == id);
        commits.map(|commit| commit.ext("commitOffset").to_owned()).collect::<Vec<_>>()
    };
    let commits = of_queue("1");
    let back = commits.iter().position(|at| at == "6").expect("the reset is committed");
    assert!(commits[back..].ends_with(&["9".to_owned()]), "{commits:?}");
}

#[tokio::test]
async fn brokers_are_told_about_a_consumer() {
    let fake = stage(1, 3).await;
    let (listener, mut received) = reporting();
    let _consumer = consumer(&fake).await.start(listener).await.unwrap();
    for _ in 0..3 {
        soon(received.recv()).await.unwrap();
    }
    let ext = [("consumerGroup", "g"), ("clientId", MEMBER), ("topic", "T"), ("group", "g")];
    let answered = |code: i32, body: Vec<u8>| {
        let fake = &fake;
        async move {
            let before = fake.answers().len();
            fake.push(&request(code, 0, &ext, &body)).await;
            fake.wait_for_answers(before + 1).await.last().unwrap().clone()
        }
    };
    let status = answered(221, Vec::new()).await;
    let text = String::from_utf8(status.body).unwrap();
    let key = r#"{"brokerName":"a","queueId":0,"topic":"T"}"#;
    assert_eq!(text, format!(r#"{{"consumerTable":{{}},"messageQueueTable":{{{key}:3}}}}"#));

    let info = answered(307, Vec::new()).await;
    let text = String::from_utf8(info.body).unwrap();
    for part in [
        &format!(r#""mqTable":{{{key}:{{"cachedMsgCount":0"#),
        r#""commitOffset":3,"droped":false"#,
        r#""PROP_CONSUMEORDERLY":"false""#,
        r#""PROP_THREADPOOL_CORE_SIZE":"20""#,
        r#""statusTable":{"T":{"consumeFailedMsgs":0"#,
        r#""subString":"*""#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }

    let directly = answered(309, record(0, 77, "A")).await;
    let text = String::from_utf8(directly.body).unwrap();
    assert!(text.contains(r#""consumeResult":"CR_SUCCESS","order":false"#), "{text}");
    assert_eq!(soon(received.recv()).await.unwrap().queue_offset().get(), 77);
}

#[tokio::test]
async fn settings_outside_their_range_are_refused() {
    let fake = stage(1, 0).await;
    let (listener, _received) = reporting();
    let error = consumer(&fake).await.concurrency(0).start(listener).await.unwrap_err();
    let want = Invalid::Setting { name: "concurrency", max: 1000 };
    assert!(matches!(error, Error::Invalid(invalid) if invalid == want));
}

#[tokio::test]
async fn a_namespace_is_before_every_name_that_brokers_see() {
    let fake = Fake::start(|own, seen| match (seen.code, seen.ext("topic")) {
        (ROUTE, "%RETRY%ns%g") => refuse(17),
        (ROUTE, _) => route(&[("a", own, 1)]),
        (PULL, _) if seen.ext("queueOffset") == "0" => {
            pulled(0, 1, 1, &fake::messages::record_of("ns%T", 0))
        }
        (PULL, _) => Reaction::Silence,
        _ => group(own, seen, 1, 0),
    })
    .await;
    let builder = Client::builder(&fake.addr).instance_name("m1").namespace("ns");
    let client = builder.connect().await.unwrap();
    let (listener, mut received) = reporting();
    let builder = client.push_consumer("g").subscribe("T", "*").start_from(StartFrom::First);
    let builder = builder.commit_period(Duration::from_millis(20));
    let consumer = builder.start(listener).await.unwrap();
    let message = soon(received.recv()).await.unwrap();
    assert_eq!((message.topic(), message.queue().topic()), ("T", "T"));
    assert!(consumer.queues().iter().all(|(queue, _)| queue.topic() == "T"));
    for code in [PULL, COMMITTED, COMMIT] {
        let seen = fake.wait_for(code, 1).await[0].clone();
        assert_eq!((seen.ext("topic"), seen.ext("consumerGroup")), ("ns%T", "ns%g"), "{code}");
    }
    let beat = String::from_utf8(fake.seen(34).last().unwrap().body.clone()).unwrap();
    for part in [r#""groupName":"ns%g""#, r#""topic":"ns%T""#, r#""topic":"%RETRY%ns%g""#] {
        assert!(beat.contains(part), "{part} in {beat}");
    }
    consumer.shutdown(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn deliveries_leave_traces_before_and_after_the_listener() {
    let fake = Fake::start(move |own, seen| match seen.code {
        SEND => fake::stored(seen),
        _ => group(own, seen, 1, 3),
    })
    .await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        let message = delivery[0].clone();
        let is_second = message.queue_offset().get() == 1;
        sender.send(message).unwrap();
        std::future::ready(if is_second { Verdict::DeadLetter } else { Verdict::Done })
    };
    let builder = consumer(&fake).await.concurrency(1).traced();
    let consumer = builder.start(listener).await.unwrap();
    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.push(soon(received.recv()).await.unwrap());
    }
    consumer.shutdown(PATIENCE).await.unwrap();
    let sends = fake.wait_for(SEND, 1).await;
    let trace = sends.iter().find(|send| send.ext("b") == "RMQ_SYS_TRACE_TOPIC").unwrap();
    assert_eq!(trace.ext("a"), "_INNER_TRACE_PRODUCER-g-CONSUME");
    let text = String::from_utf8(trace.body.clone()).unwrap();
    let records: Vec<Vec<_>> =
        text.split_terminator('\u{2}').map(|text| text.split('\u{1}').collect()).collect();
    assert_eq!(records.len(), 6, "{text:?}");
    for (pair, message) in records.chunks(2).zip(&messages) {
        let id = message.message_id();
        assert_eq!((pair[0][0], pair[0][3], pair[0][5]), ("SubBefore", "g", &*id));
        assert_eq!((pair[1][0], pair[1][1], pair[1][2]), ("SubAfter", pair[0][4], &*id));
        let is_done = message.queue_offset().get() != 1;
        assert_eq!((pair[1][4], pair[1][6]), if is_done { ("true", "0") } else { ("false", "4") });
    }
}
