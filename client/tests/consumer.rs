//! What a pull consumer does, seen from a broker's side of the socket.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use fake::{
    Fake, Reaction,
    messages::{offset, pulled, serve_pull},
    ok, refuse, route,
};
use ringmq_client::{Client, Error, Invalid, MessageQueue, QueueOffset, StartFrom};
use tokio::time::Instant;

const ROUTE: i32 = 105;
const PULL: i32 = 11;
const COMMIT: i32 = 15;
const COMMITTED: i32 = 14;

/// A broker with some queues of one topic, for whose group nothing is committed.
async fn broker(queues: i32, count: i64) -> Fake {
    Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, queues)]),
        COMMITTED => refuse(22),
        30 => offset(&count.to_string()),
        31 => offset("0"),
        PULL => serve_pull(seen, count),
        _ => ok(),
    })
    .await
}

async fn client(fake: &Fake) -> Client {
    Client::connect(&fake.addr).await.unwrap()
}

#[tokio::test]
async fn all_messages_of_all_queues_come_in_the_order_of_each() {
    let fake = broker(3, 10).await;
    let mut consumer = client(&fake).await.pull_consumer("g").topic("T").start().await.unwrap();
    let mut next = [0; 3];
    for _ in 0..30 {
        let message = consumer.next().await.unwrap();
        let queue = usize::try_from(message.queue().queue_id()).unwrap();
        assert_eq!(message.queue_offset().get(), next[queue], "queue {queue}");
        assert_eq!(message.body(), &next[queue].to_string());
        next[queue] += 1;
    }
    assert_eq!(next, [10; 3]);
    let pull = &fake.seen(PULL)[0];
    for (name, want) in [
        ("consumerGroup", "g"),
        ("topic", "T"),
        ("maxMsgNums", "32"),
        ("sysFlag", "6"),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ] {
        assert_eq!(pull.ext(name), want, "field {name}");
    }
}

#[tokio::test]
async fn a_message_has_what_the_broker_stored() {
    let fake = broker(1, 1).await;
    let mut consumer = client(&fake).await.pull_consumer("g").topic("T").start().await.unwrap();
    let message = consumer.next().await.unwrap();
    assert_eq!((message.topic(), message.tag()), ("T", Some("Even")));
    assert_eq!(message.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(message.message_id(), "ID0");
    assert_eq!(message.offset_message_id().to_string(), "7F00000100002A9F0000000000001000");
    let stored = message.store_time().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(stored.as_millis(), 1_700_000_000_001);
    assert_eq!(message.queue(), &MessageQueue::new("T", "a", 0));
}

#[tokio::test]
async fn messages_of_other_tags_are_left_out_and_counted_as_done() {
    let fake = broker(1, 10).await;
    let builder = client(&fake).await.pull_consumer("g").topic("T").tags("Odd || Other");
    let mut consumer = builder.start().await.unwrap();
    for want in [1, 3, 5, 7, 9] {
        let message = consumer.next().await.unwrap();
        assert_eq!((message.queue_offset().get(), message.tag()), (want, Some("Odd")));
    }
    assert_eq!(fake.seen(PULL)[0].ext("subscription"), "Odd || Other");
    consumer.commit_received().await.unwrap();
    assert_eq!(fake.seen(COMMIT).last().unwrap().ext("commitOffset"), "10");
}

#[tokio::test]
async fn a_message_is_done_when_the_next_one_is_asked_for() {
    let fake = broker(1, 3).await;
    let builder = client(&fake).await.pull_consumer("g").topic("T");
    let mut consumer = builder.auto_commit(Some(Duration::from_millis(20))).start().await.unwrap();
    consumer.next().await.unwrap();
    consumer.next().await.unwrap();
    // The second one is in the application's hands.
    assert_eq!(fake.wait_for(COMMIT, 1).await[0].ext("commitOffset"), "1");
    consumer.shutdown(Duration::from_secs(5)).await.unwrap();
    let commits = fake.seen(COMMIT);
    let offsets: Vec<_> = commits.iter().map(|commit| commit.ext("commitOffset")).collect();
    assert_eq!(offsets, ["1", "2"], "nothing is committed twice");
    assert_eq!(commits[0].flag, 0, "the broker has to confirm it");
    assert_eq!(fake.seen(35)[0].ext("consumerGroup"), "g");
}

#[tokio::test]
async fn the_first_commit_of_a_topic_is_answered_before_others_are_sent() {
    // As slow as a broker may be: whoever does not wait for the answer is seen before it.
    const PAUSE: Duration = Duration::from_millis(50);
    let first: Arc<OnceLock<Instant>> = Arc::default();
    let began = Arc::clone(&first);
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 4)]),
        COMMITTED => refuse(22),
        31 => offset("0"),
        PULL => serve_pull(seen, 3),
        COMMIT if began.set(Instant::now()).is_ok() => Reaction::Later(PAUSE, Box::new(ok())),
        COMMIT => {
            assert!(PAUSE <= began.get().unwrap().elapsed(), "the first one is not answered");
            ok()
        }
        _ => ok(),
    })
    .await;
    let builder = client(&fake).await.pull_consumer("g").topic("T").auto_commit(None);
    let mut consumer = builder.start().await.unwrap();
    for _ in 0..12 {
        consumer.next().await.unwrap();
    }
    consumer.commit_received().await.unwrap();
    let commits = fake.seen(COMMIT).into_iter();
    let offsets: BTreeMap<_, _> =
        commits.map(|c| (c.ext("queueId").to_owned(), c.ext("commitOffset").to_owned())).collect();
    let want = ["0", "1", "2", "3"].map(|queue| (queue.to_owned(), "3".to_owned()));
    assert_eq!(offsets, want.into());
}

#[tokio::test]
async fn commits_can_be_left_to_the_application() {
    let fake = broker(1, 3).await;
    let builder = client(&fake).await.pull_consumer("g").topic("T").auto_commit(None);
    let mut consumer = builder.start().await.unwrap();
    consumer.next().await.unwrap();
    consumer.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(fake.seen(COMMIT).is_empty());
}

#[tokio::test]
async fn a_group_goes_on_where_it_left_off() {
    let fake = Fake::start(|own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        COMMITTED => offset("7"),
        PULL => serve_pull(seen, 10),
        _ => refuse(1),
    })
    .await;
    let builder = client(&fake).await.pull_consumer("g").topic("T").start_from(StartFrom::Last);
    let mut consumer = builder.start().await.unwrap();
    assert_eq!(consumer.next().await.unwrap().queue_offset().get(), 7);
}

#[tokio::test]
async fn a_new_group_starts_where_it_is_told() {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    for (start_from, want) in
        [(StartFrom::First, "2"), (StartFrom::Last, "8"), (StartFrom::Time(time), "5")]
    {
        let fake = Fake::start(|own, seen| match seen.code {
            ROUTE => route(&[("a", own, 1)]),
            COMMITTED => refuse(22),
            31 => offset("2"),
            30 => offset("8"),
            29 if seen.ext("timestamp") == "1700000000123" => offset("5"),
            PULL => Reaction::Silence,
            _ => ok(),
        })
        .await;
        let builder = client(&fake).await.pull_consumer("g").topic("T").start_from(start_from);
        let _consumer = builder.start().await.unwrap();
        assert_eq!(fake.wait_for(PULL, 1).await[0].ext("queueOffset"), want, "{start_from:?}");
    }
}

#[tokio::test]
async fn an_unknown_offset_is_never_taken_for_none() {
    let fake = Fake::start(|own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        COMMITTED => refuse(1),
        _ => offset("0"),
    })
    .await;
    let error = client(&fake).await.pull_consumer("g").topic("T").start().await.unwrap_err();
    assert_eq!(error.code(), Some(1));
    assert!(fake.seen(PULL).is_empty());
}

#[tokio::test]
async fn an_offset_outside_the_queue_goes_where_the_broker_says() {
    let fake = Fake::start(|own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        COMMITTED => offset("100"),
        PULL if seen.ext("queueOffset") == "100" => pulled(21, 4, 6, b""),
        PULL => serve_pull(seen, 6),
        _ => ok(),
    })
    .await;
    let mut consumer = client(&fake).await.pull_consumer("g").topic("T").start().await.unwrap();
    assert_eq!(consumer.next().await.unwrap().queue_offset().get(), 4);
}

#[tokio::test]
async fn pulls_are_tried_again_when_that_can_help_and_told_when_not() {
    let failed = Arc::new(AtomicBool::new(false));
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        COMMITTED => offset("0"),
        PULL if !failed.swap(true, Ordering::SeqCst) => refuse(215),
        PULL => refuse(23),
        _ => ok(),
    })
    .await;
    let mut consumer = client(&fake).await.pull_consumer("g").topic("T").start().await.unwrap();
    let error = consumer.next().await.unwrap_err();
    assert_eq!(error.code(), Some(23), "{error}");
    assert_eq!(fake.seen(PULL).len(), 2);
}

#[tokio::test]
async fn single_pulls_are_the_applications_own() {
    let fake = broker(1, 10).await;
    let consumer = client(&fake).await.pull_consumer("g").start().await.unwrap();
    let [queue] = consumer.queues("T").await.unwrap().try_into().unwrap();
    assert_eq!(consumer.min_offset(&queue).await.unwrap(), QueueOffset::ZERO);
    assert_eq!(consumer.max_offset(&queue).await.unwrap().get(), 10);
    assert_eq!(consumer.committed(&queue).await.unwrap(), None);
    let pulled = consumer.pull(&queue, QueueOffset::new(2)).await.unwrap();
    assert_eq!((pulled.messages.len(), pulled.next_offset.get()), (3, 5));
    assert_eq!((pulled.min_offset.get(), pulled.max_offset.get(), pulled.is_moved), (0, 10, false));
    assert_eq!(fake.seen(PULL)[0].ext("sysFlag"), "4", "not to be held");
    consumer.commit(&queue, pulled.next_offset).await.unwrap();
    let [commit] = fake.seen(COMMIT).try_into().unwrap();
    assert_eq!((commit.ext("commitOffset"), commit.ext("queueId")), ("5", "0"));
    let other = MessageQueue::new("T", "nobody", 0);
    let error = consumer.pull(&other, QueueOffset::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::NoBroker { .. }), "{error}");
}

#[tokio::test]
async fn queues_that_a_topic_gets_later_are_read_from_their_start() {
    let grown = Arc::new(AtomicBool::new(false));
    let has_grown = Arc::clone(&grown);
    let fake = Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, if has_grown.load(Ordering::SeqCst) { 2 } else { 1 })]),
        COMMITTED => refuse(22),
        30 => offset("6"),
        31 => offset("0"),
        PULL => serve_pull(seen, 6),
        _ => ok(),
    })
    .await;
    let builder = Client::builder(&fake.addr).upkeep_period(Duration::from_millis(20));
    let client = builder.connect().await.unwrap();
    let builder = client.pull_consumer("g").topic("T").start_from(StartFrom::Last);
    let mut consumer = builder.start().await.unwrap();
    fake.wait_for(PULL, 1).await;
    grown.store(true, Ordering::SeqCst);
    for want in 0..6 {
        let message = consumer.next().await.unwrap();
        assert_eq!((message.queue().queue_id(), message.queue_offset().get()), (1, want));
    }
}

#[tokio::test]
async fn brokers_hear_of_the_subscription() {
    let fake = broker(1, 0).await;
    let client = client(&fake).await;
    let builder = client.pull_consumer("g").topic("T").tags("TagA||TagB");
    let _consumer = builder.start().await.unwrap();
    let beats = fake.wait_for(34, 1).await;
    let beat = String::from_utf8(beats.last().unwrap().body.clone()).unwrap();
    for part in [
        r#""consumeType":"CONSUME_ACTIVELY""#,
        r#""groupName":"g""#,
        r#""codeSet":[2598919,2598920]"#,
        r#""subString":"TagA||TagB""#,
        r#""tagsSet":["TagA","TagB"],"topic":"T""#,
    ] {
        assert!(beat.contains(part), "{part} in {beat}");
    }
    let error = client.pull_consumer("g").start().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(Invalid::GroupInUse(_))), "{error}");
}

#[tokio::test]
async fn a_consumer_that_failed_to_start_is_out_of_its_group() {
    let fake = Fake::start(|_, seen| if seen.code == ROUTE { refuse(17) } else { ok() }).await;
    let client = client(&fake).await;
    for _ in 0..2 {
        let error = client.pull_consumer("g").topic("T").start().await.unwrap_err();
        assert!(matches!(error, Error::NoRoute { .. }), "{error}");
    }
    let error = client.pull_consumer("g").topic("T").tags("||").start().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(Invalid::TagExpression(_))), "{error}");
}

#[tokio::test]
async fn a_slow_application_slows_the_pulls() {
    let fake = broker(1, 1_000_000).await;
    let builder = client(&fake).await.pull_consumer("g").topic("T").queue_limits(50, 1 << 20);
    let mut consumer = builder.start().await.unwrap();
    consumer.next().await.unwrap();
    // Three messages a pull: the seventeenth one exceeds fifty.
    let ahead = fake.wait_for(PULL, 17).await.len();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    consumer.min_offset(&MessageQueue::new("T", "a", 0)).await.unwrap();
    assert_eq!((ahead, fake.seen(PULL).len()), (17, 17));
    for want in 1..10 {
        assert_eq!(consumer.next().await.unwrap().queue_offset().get(), want);
    }
    fake.wait_for(PULL, 19).await;
}
