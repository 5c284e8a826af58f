//! Connections to all shards over the smallest hand-over rings, while half of them never read.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{net::SocketAddr, sync::mpsc, thread, time::Duration};

use ringmq_protocol::codes::response::SUCCESS;
use ringmq_tests::{
    client::Client,
    folder::Folder,
    messages::{Pull, create_topic, max_offset, post_send, pull_all, send},
    server::{Ringmq, Settings},
};

const CONNECTIONS: usize = 64;
const QUEUES: i32 = 16;
const REQUESTS: i32 = 200;
/// 50 MiB to each connection that reads none of it.
const UNREAD_PULLS: i32 = 400;
const LARGE_BODY_LEN: usize = 128 << 10;
const TOPIC: &str = "hand-over";

#[test]
fn every_request_of_those_who_read_is_answered_while_half_never_read() {
    let folder = Folder::new("hand-over");
    let mut settings = Settings::new(&folder.path().join("data"));
    settings.arguments = ["--shards", "4", "--threads", "2"].map(str::to_owned).into();
    // Those who never read keep their connections to the end, so nobody gets by on their closing.
    settings.conf = vec!["handOverEntries=2".to_owned(), "writeTimeoutMillis=600000".to_owned()];
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut client, TOPIC, QUEUES).unwrap().code, SUCCESS);

    for queue in 0..QUEUES {
        let reply = send(&mut client, TOPIC, queue, "large", &vec![b'x'; LARGE_BODY_LEN]).unwrap();
        assert_eq!(reply.code, SUCCESS);
    }

    let silent: Vec<_> = (0..CONNECTIONS / 2).map(|_| never_read(server.broker())).collect();
    let (sender, answered) = mpsc::channel();
    let readers: Vec<_> = (0..CONNECTIONS / 2)
        .map(|number| {
            let sender = sender.clone();
            let address = server.broker();
            thread::spawn(move || sender.send(send_and_read(address, number)).unwrap())
        })
        .collect();
    drop(sender);
    let answers: i32 = answered.iter().sum();
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(answers, REQUESTS * i32::try_from(CONNECTIONS / 2).unwrap());

    // Those who read find their messages in the queues that they sent to, dense and complete.
    let mut stored = 0;
    for queue in 0..QUEUES {
        let messages = pull_all(&mut client, TOPIC, queue).unwrap();
        stored += messages.iter().filter(|message| message.key.starts_with("read-")).count();
    }
    assert_eq!(i32::try_from(stored).unwrap(), answers);
    drop(silent);
    assert!(max_offset(&mut client, TOPIC, 0).is_ok());
}

/// A connection that asks for more than any buffer on the way holds, and takes none of it.
fn never_read(address: SocketAddr) -> Client {
    let mut client = Client::connect(address).unwrap();
    // Whatever the server takes: it may stop reading a connection that does not read.
    client.stream().set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    for number in 0..UNREAD_PULLS {
        let queue = number % QUEUES;
        let pull = Pull { topic: TOPIC, queue, offset: 0, tags: "*", hold_ms: 0 };
        if pull.post(&mut client).is_err() {
            break;
        }
    }
    client
}

/// Sends to all queues in turn, a few in flight, and counts the answers.
fn send_and_read(address: SocketAddr, connection: usize) -> i32 {
    let mut client = Client::connect(address).unwrap();
    let mut outstanding = 0;
    let mut answers = 0;
    for number in 0..REQUESTS {
        let queue = number % QUEUES;
        let key = format!("read-{connection}-{number}");
        post_send(&mut client, TOPIC, queue, &key, key.as_bytes()).unwrap();
        outstanding += 1;
        if outstanding == 8 || number == REQUESTS - 1 {
            for _ in 0..outstanding {
                let reply = client.reply().unwrap();
                assert_eq!(reply.code, SUCCESS, "{:?}", reply.remark);
                answers += 1;
            }
            outstanding = 0;
        }
    }
    answers
}
