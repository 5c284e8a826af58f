//! A topic that is deleted and made again meets nothing of the one before, also across SIGKILL.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{io, net::SocketAddr, thread};

use ringmq_protocol::codes::{
    request,
    response::{SUCCESS, TOPIC_NOT_EXIST},
};
use ringmq_tests::{
    client::{Client, Reply},
    folder::Folder,
    messages::{Pull, create_topic, max_offset, pull_all, send},
    server::{Ringmq, Settings},
};

const TOPIC: &str = "deleted";
const GROUP: &str = "readers";
const QUEUES: i32 = 8;

fn call(client: &mut Client, code: i32, ext: &[(&str, &str)]) -> Reply {
    let entries = |out: &mut ringmq_protocol::encode::FrameWriter<'_, '_>| {
        ext.iter().for_each(|(name, value)| out.ext(name, value));
    };
    client.call(code, entries, b"").unwrap()
}

fn delete(client: &mut Client) -> i32 {
    call(client, request::DELETE_TOPIC_IN_BROKER, &[("topic", TOPIC)]).code
}

/// What a group is told to go on at: 0 where it has committed nothing.
fn committed(client: &mut Client, queue: i32) -> i64 {
    let queue = queue.to_string();
    let ext = [("consumerGroup", GROUP), ("topic", TOPIC), ("queueId", &*queue)];
    let reply = call(client, request::QUERY_CONSUMER_OFFSET, &ext);
    assert_eq!(reply.code, SUCCESS, "{reply:?}");
    reply.number("offset")
}

fn commit(client: &mut Client, queue: i32, offset: i64) {
    let (queue, offset) = (queue.to_string(), offset.to_string());
    let ext = [
        ("consumerGroup", GROUP),
        ("topic", TOPIC),
        ("queueId", &*queue),
        ("commitOffset", &*offset),
    ];
    assert_eq!(call(client, request::UPDATE_CONSUMER_OFFSET, &ext).code, SUCCESS);
}

fn fill(client: &mut Client, life: &str) {
    assert_eq!(create_topic(client, TOPIC, QUEUES).unwrap().code, SUCCESS);
    for queue in 0..QUEUES {
        for n in 0..20 {
            assert_eq!(
                send(client, TOPIC, queue, &format!("{life}-{n}"), b"x").unwrap().code,
                SUCCESS
            );
        }
        commit(client, queue, 15);
    }
}

/// The topic exists anew, and nothing of its earlier life is met.
fn check_new(client: &mut Client) {
    assert_eq!(create_topic(client, TOPIC, QUEUES).unwrap().code, SUCCESS);
    for queue in 0..QUEUES {
        assert_eq!(max_offset(client, TOPIC, queue).unwrap(), 0, "queue {queue}");
        assert_eq!(committed(client, queue), 0, "queue {queue}");
        assert!(pull_all(client, TOPIC, queue).unwrap().is_empty(), "queue {queue}");
    }
}

#[test]
fn a_topic_of_the_same_name_meets_nothing_of_the_one_before() {
    let folder = Folder::new("delete-topic");
    let mut settings = Settings::new(&folder.path().join("data"));
    settings.arguments = ["--shards", "3"].map(str::to_owned).to_vec();
    settings.conf = vec!["threads=2".to_owned()];
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    fill(&mut client, "first");
    assert_eq!(delete(&mut client), SUCCESS);
    check_new(&mut client);
    fill(&mut client, "second");
    for queue in 0..QUEUES {
        let stored = pull_all(&mut client, TOPIC, queue).unwrap();
        assert_eq!(stored.len(), 20);
        assert!(stored.iter().all(|message| message.key.starts_with("second-")));
    }
    assert_eq!(delete(&mut client), SUCCESS);
    server.kill();

    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    Pull { topic: TOPIC, queue: 0, offset: 0, tags: "*", hold_ms: 0 }.post(&mut client).unwrap();
    assert_eq!(client.reply().unwrap().code, TOPIC_NOT_EXIST, "SIGKILL does not bring it back");
    check_new(&mut client);
    fill(&mut client, "third");
    server.kill();

    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    for queue in 0..QUEUES {
        let stored = pull_all(&mut client, TOPIC, queue).unwrap();
        assert!(
            stored.len() == 20 && stored.iter().all(|message| message.key.starts_with("third-"))
        );
        assert_eq!(committed(&mut client, queue), 15);
    }
    assert!(server.stop());
}

/// Sends until the broker says that there is no such topic. Gives how many were stored.
fn send_until_refused(broker: SocketAddr, queue: i32) -> io::Result<u32> {
    let mut client = Client::connect(broker)?;
    for sent in 0.. {
        let reply = send(&mut client, TOPIC, queue, "k", b"x")?;
        if reply.code != SUCCESS {
            assert_eq!(reply.code, TOPIC_NOT_EXIST, "{reply:?}");
            return Ok(sent);
        }
    }
    unreachable!("the loop has no end of its own")
}

#[test]
fn nothing_is_stored_behind_a_deletion_that_races_with_sends() {
    let folder = Folder::new("delete-race");
    let mut settings = Settings::new(&folder.path().join("data"));
    settings.arguments = ["--shards", "2"].map(str::to_owned).to_vec();
    settings.conf = ["threads=2", "autoCreateTopicEnable=false"].map(str::to_owned).to_vec();
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    for _ in 0..10 {
        assert_eq!(create_topic(&mut client, TOPIC, QUEUES).unwrap().code, SUCCESS);
        let broker = server.broker();
        let senders: Vec<_> = (0..QUEUES)
            .map(|queue| thread::spawn(move || send_until_refused(broker, queue)))
            .collect();
        while max_offset(&mut client, TOPIC, QUEUES - 1).unwrap() < 20 {}
        assert_eq!(delete(&mut client), SUCCESS);
        let sent: u32 = senders.into_iter().map(|sender| sender.join().unwrap().unwrap()).sum();
        assert!(sent >= 20);
        check_new(&mut client);
        assert_eq!(delete(&mut client), SUCCESS);
    }
    assert!(server.stop());
}
