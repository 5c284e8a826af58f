use std::time::Instant;

use super::*;

/// A pull that may be held for this long.
fn held(topic: &str, queue_id: i32, from: i64, hold_ms: i64) -> PullRequest<'_> {
    PullRequest { sys_flag: 6, suspend_timeout_ms: hold_ms, ..pull_header(topic, queue_id, from) }
}

#[expect(clippy::disallowed_methods, reason = "the test measures how long an answer takes")]
fn instant() -> Instant {
    Instant::now()
}

#[track_caller]
fn check(got: &Got, code: i32, status: &str, (next, min, max): (i64, i64, i64)) {
    assert_eq!((got.code, got.remark.as_str()), (code, status));
    let ends = ["nextBeginOffset", "minOffset", "maxOffset"].map(|name| got.number(name));
    assert_eq!(ends, [next, min, max]);
}

#[test]
fn every_place_in_a_queue_has_its_status() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        check(&client.pull("T", queue, 0), 19, "NO_MESSAGE_IN_QUEUE", (0, 0, 0));
        check(&client.pull("T", queue, 5), 21, "NO_MESSAGE_IN_QUEUE", (0, 0, 0));
        for _ in 0..3 {
            client.send("T", queue, "", b"x").ok();
        }
        check(&client.pull("T", queue, 1), 0, "FOUND", (3, 0, 3));
        check(&client.pull("T", queue, 3), 19, "OFFSET_OVERFLOW_ONE", (3, 0, 3));
        check(&client.pull("T", queue, 4), 21, "OFFSET_OVERFLOW_BADLY", (3, 0, 3));
        check(&client.pull("T", queue, -1), 21, "OFFSET_TOO_SMALL", (0, 0, 3));
    }
}

#[test]
fn a_pull_is_checked_in_upstreams_order() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut client = broker.client();
    let mut code = |header: PullRequest<'_>| {
        client.call(request::PULL_MESSAGE, |ext| header.encode(ext), &[]).code
    };
    let usual = || pull_header("T", 0, 0);
    assert_eq!(code(usual()), 19);
    assert_eq!(code(PullRequest { consumer_group: "RefusedGroup".into(), ..usual() }), 26);
    assert_eq!(code(pull_header("Unknown", 0, 0)), 17);
    assert_eq!(code(pull_header("T", 1, 0)), 1);
    assert_eq!(code(pull_header("T", -1, 0)), 1);
    assert_eq!(code(PullRequest { subscription: Some("||".into()), ..usual() }), 23);
    assert_eq!(code(PullRequest { expression_type: Some("SQL92".into()), ..usual() }), 1);
    assert_eq!(code(PullRequest { sys_flag: 0, ..usual() }), 24);
    assert_eq!(code(PullRequest { max_msg_nums: -1, ..usual() }), 1);
    client.version = 479;
    let mut code = |header: PullRequest<'_>| {
        client.call(request::LITE_PULL_MESSAGE, |ext| header.encode(ext), &[]).code
    };
    assert_eq!(code(pull_header("T", 1, 0)), 29);
    assert_eq!(code(PullRequest { max_msg_nums: -1, ..usual() }), 19);
}

#[test]
fn tags_are_filtered_by_the_broker() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        for tag in ["a", "b", "c", "a", ""] {
            client.send("T", queue, &format!("TAGS\u{1}{tag}"), tag.as_bytes()).ok();
        }
        let mut bodies = |expression: &'static str| {
            let header =
                PullRequest { subscription: Some(expression.into()), ..pull_header("T", queue, 0) };
            let got = client.call(request::PULL_MESSAGE, |ext| header.encode(ext), &[]);
            let bodies: Vec<_> = got.messages().iter().map(|m| m.body.to_vec()).collect();
            (got.code, got.number("nextBeginOffset"), bodies.concat())
        };
        assert_eq!(bodies("a"), (0, 5, b"aa".to_vec()));
        assert_eq!(bodies("c || b"), (0, 5, b"bc".to_vec()));
        assert_eq!(bodies("*"), (0, 5, b"abca".to_vec()));
        assert_eq!(bodies("d"), (20, 5, Vec::new()));
    }
}

#[test]
fn a_pull_gives_at_most_its_count_and_a_quarter_megabyte() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 2);
    let mut client = broker.client();
    for _ in 0..40 {
        client.send("T", 0, "", b"small").ok();
    }
    for _ in 0..4 {
        client.send("T", 1, "", &vec![1; 100_000]).ok();
    }
    assert_eq!(client.pull("T", 0, 0).messages().len(), 32);
    assert_eq!(client.pull("T", 1, 0).messages().len(), 2);
    let one = PullRequest { max_msg_nums: 0, ..pull_header("T", 0, 0) };
    let got = client.call(request::PULL_MESSAGE, |ext| one.encode(ext), &[]);
    assert_eq!(got.messages().len(), 1);
}

#[test]
fn a_held_pull_is_answered_by_the_message_that_comes() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 4);
    let (mut producer, mut consumer) = (broker.client(), broker.client());
    let header = |queue| held("T", queue, 0, 20_000);
    let mut asked = BTreeMap::new();
    for queue in 0..4 {
        let header = header(queue);
        asked.insert(consumer.put(request::PULL_MESSAGE, |ext| header.encode(ext), &[]), queue);
    }
    // Behind the pulls on the same connection, so they are held when this is answered.
    consumer.offset(request::GET_MAX_OFFSET, "", "T", 0).ok();
    for queue in [3, 0, 2, 1] {
        let body = [u8::try_from(queue).unwrap()];
        producer.send("T", queue, "", &body).ok();
        let got = consumer.get().ok();
        assert_eq!(asked[&got.opaque], queue);
        assert_eq!(got.messages()[0].body, body);
    }
}

#[test]
fn a_held_pull_sleeps_through_messages_that_it_does_not_want() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let (mut producer, mut consumer) = (broker.client(), broker.client());
    for queue in 0..2 {
        producer.send("T", queue, "TAGS\u{1}a", b"first").ok();
        let header = PullRequest { subscription: Some("b".into()), ..held("T", queue, 1, 20_000) };
        let opaque = consumer.put(request::PULL_MESSAGE, |ext| header.encode(ext), &[]);
        consumer.offset(request::GET_MAX_OFFSET, "", "T", queue).ok();
        producer.send("T", queue, "TAGS\u{1}a", b"other").ok();
        producer.send("T", queue, "TAGS\u{1}b", b"wanted").ok();
        let got = consumer.get().ok();
        assert_eq!(got.opaque, opaque);
        let bodies: Vec<_> = got.messages().iter().map(|m| m.body.to_vec()).collect();
        assert_eq!(bodies, [b"wanted"]);
        check(&got, 0, "FOUND", (3, 0, 3));
    }
}

#[test]
fn the_hold_time_ends_exactly() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut consumer = broker.client();
    for queue in 0..2 {
        let start = instant();
        let header = held("T", queue, 0, 300);
        let got = consumer.call(request::PULL_MESSAGE, |ext| header.encode(ext), &[]);
        let took = start.elapsed();
        check(&got, 19, "NO_MESSAGE_IN_QUEUE", (0, 0, 0));
        assert!(Duration::from_millis(295) <= took, "{took:?}");
        assert!(took < Duration::from_millis(1500), "{took:?}");
        let header = held("T", queue, 0, 0);
        let got = consumer.call(request::PULL_MESSAGE, |ext| header.encode(ext), &[]);
        assert_eq!(got.code, 19, "no hold time, no hold");
    }
}

#[test]
fn pulls_of_a_connection_that_has_gone_are_forgotten() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut producer = broker.client();
    for round in 0..20 {
        let mut consumer = broker.client();
        for queue in 0..2 {
            let header = held("T", queue, round, 60_000);
            consumer.put(request::PULL_MESSAGE, |ext| header.encode(ext), &[]);
        }
        consumer.offset(request::GET_MAX_OFFSET, "", "T", 0).ok();
        drop(consumer);
        for queue in 0..2 {
            producer.send("T", queue, "", b"x").ok();
        }
    }
    assert_eq!(producer.pull("T", 0, 0).ok().messages().len(), 20);
}

#[test]
fn a_pull_raises_the_offset_of_its_group_and_never_lowers_it() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        for (commit, want) in [(7, 7), (3, 7), (9, 9)] {
            let header =
                PullRequest { sys_flag: 5, commit_offset: commit, ..pull_header("T", queue, 0) };
            client.call(request::PULL_MESSAGE, |ext| header.encode(ext), &[]);
            let got = client.offset(request::QUERY_CONSUMER_OFFSET, "CG", "T", queue).ok();
            assert_eq!(got.number("offset"), want);
        }
    }
}
