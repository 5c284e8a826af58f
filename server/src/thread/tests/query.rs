use ringmq_protocol::headers::QueryMessageRequest;

use super::*;

/// A question for the messages with a key, of any time.
fn question<'a>(topic: &'a str, key: &'a str) -> QueryMessageRequest<'a> {
    QueryMessageRequest {
        topic: topic.into(),
        key: key.into(),
        max_num: 64,
        begin_timestamp_ms: 0,
        end_timestamp_ms: i64::MAX,
        index_type: None,
        unique_key_query: false,
    }
}

impl Client {
    fn query(&mut self, question: &QueryMessageRequest<'_>) -> Got {
        self.call(request::QUERY_MESSAGE, |ext| question.encode(ext), &[])
    }

    /// Bodies of the messages with a key, in the order of the alphabet: those of different shards may
    /// have been stored in the same millisecond.
    fn found(&mut self, question: &QueryMessageRequest<'_>) -> Vec<String> {
        let got = self.query(question);
        let times: Vec<i64> = got.messages().iter().map(|m| m.store_timestamp_ms).collect();
        assert!(times.is_sorted(), "oldest first");
        let body = |message: &MessageView<'_>| String::from_utf8_lossy(message.body).into_owned();
        let mut found: Vec<String> = got.messages().iter().map(body).collect();
        found.sort();
        let code = if found.is_empty() { response::QUERY_NOT_FOUND } else { response::SUCCESS };
        assert_eq!(got.code, code, "{got:?}");
        let is_zero = |name| got.number(name) == 0;
        assert_eq!(is_zero("indexLastUpdateTimestamp"), found.is_empty());
        assert_eq!(is_zero("indexLastUpdatePhyoffset"), found.is_empty());
        found
    }
}

/// The properties of message `n`: a unique id, and two keys.
fn properties(n: usize) -> String {
    format!("UNIQ_KEY\u{1}7F00{n:04}\u{2}KEYS\u{1}all k{}\u{2}WAIT\u{1}true\u{2}", n % 4)
}

#[test]
fn messages_are_found_by_key_on_all_shards_and_after_a_restart() {
    let folder = Folder::new();
    let arguments = ["--shards", "4", "--threads", "2"];
    let numbers = |numbers: std::ops::Range<usize>, step: usize| -> Vec<String> {
        numbers.step_by(step).map(|n| format!("body-{n:02}")).collect()
    };
    let check = |client: &mut Client| {
        assert_eq!(client.found(&question("T", "k1")), numbers(1..100, 4));
        let newest = client.query(&question("T", "all"));
        let oldest = newest.messages()[0].store_timestamp_ms;
        assert_eq!(newest.messages().len(), 64);
        let few = QueryMessageRequest { max_num: 3, ..question("T", "k2") };
        assert_eq!(client.found(&few).len(), 3);
        let before = QueryMessageRequest { end_timestamp_ms: oldest - 1, ..question("T", "all") };
        assert!(client.found(&before).len() <= 36, "the newest 64 were given");
        assert!(client.found(&before).contains(&"body-00".to_owned()));
        let unique = |key| QueryMessageRequest { unique_key_query: true, ..question("T", key) };
        assert_eq!(client.found(&unique("7F000042")), numbers(42..43, 1));
        let of_all = QueryMessageRequest { max_num: 1, ..unique("all") };
        assert_eq!(client.found(&of_all).len(), 32, "whatever was asked for");
        for (topic, key) in [("T", "k"), ("T", "k4"), ("T", "all k1"), ("T", ""), ("U", "k2")] {
            assert_eq!(client.found(&question(topic, key)), [""; 0], "{topic} {key}");
        }
        assert_eq!(client.found(&question("U", "all")), ["another topic"]);
        for max_num in [0, -1] {
            let none = QueryMessageRequest { max_num, ..question("T", "all") };
            assert_eq!(client.found(&none), [""; 0]);
        }
    };
    {
        let broker = Broker::start(&folder.0, &arguments).with_topic("T", 8).with_topic("U", 1);
        let mut client = broker.client();
        for n in 0..100 {
            let queue = i32::try_from(n % 8).unwrap();
            client.send("T", queue, &properties(n), format!("body-{n:02}").as_bytes()).ok();
        }
        client.send("U", 0, &properties(1), b"another topic").ok();
        check(&mut client);
        let last = client.query(&QueryMessageRequest { max_num: 1, ..question("T", "k3") });
        let time = last.messages()[0].store_timestamp_ms;
        assert!(last.number("indexLastUpdateTimestamp") >= time);
        let within = |begin_timestamp_ms, end_timestamp_ms| QueryMessageRequest {
            begin_timestamp_ms,
            end_timestamp_ms,
            ..question("T", "k3")
        };
        assert!(client.found(&within(time, time)).contains(&"body-99".to_owned()));
        assert_eq!(client.found(&within(time + 1, i64::MAX)), [""; 0]);
        assert_eq!(client.found(&within(time, time - 1)), [""; 0]);
    }
    let broker = Broker::start(&folder.0, &arguments).with_topic("T", 8).with_topic("U", 1);
    check(&mut broker.client());
}

#[test]
fn a_batch_is_found_by_the_keys_of_its_messages() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2", "--threads", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        let mut body = Vec::new();
        for n in 0..3 {
            let properties = format!("UNIQ_KEY\u{1}ID{queue}{n}\u{2}KEYS\u{1}n{n}");
            let text = format!("{queue}-{n}");
            let item = ringmq_protocol::batch::Item {
                flag: 0,
                body: text.as_bytes(),
                properties: properties.as_bytes(),
            };
            ringmq_protocol::batch::append(&mut body, &item).unwrap();
        }
        let header = SendRequest { batch: true, ..send_header("T", queue, "KEYS\u{1}whole") };
        client.call(request::SEND_BATCH_MESSAGE, |ext| header.encode(320, ext), &body).ok();
    }
    assert_eq!(client.found(&question("T", "n1")), ["0-1", "1-1"]);
    assert_eq!(client.found(&question("T", "ID12")), ["1-2"]);
    assert_eq!(client.found(&question("T", "whole")), [""; 0], "each has keys of its own");
}
