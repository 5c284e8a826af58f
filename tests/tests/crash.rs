//! SIGKILL under load: what was acknowledged is there afterwards, where it was.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use ringmq_protocol::codes::response::SUCCESS;
use ringmq_tests::{
    client::Client,
    folder::Folder,
    messages::{Stored, create_topic, post_send, pull_topic, send},
    server::{Ringmq, Settings},
    wait::{PATIENCE, timed},
};

const KILLS: u32 = 5;
const PRODUCERS: i32 = 8;
const IN_FLIGHT: usize = 16;
const QUEUES: i32 = 8;
const ACKNOWLEDGED_PER_ROUND: usize = 2_000;
const TOPIC: &str = "crash";

/// An acknowledgement: key, queue, offset.
type Acknowledged = (String, i32, i64);

#[test]
fn acknowledged_messages_survive_sigkill_at_their_offsets() {
    survive(&Folder::new("crash"), &[]);
}

#[test]
fn messages_acknowledged_from_memory_survive_sigkill_at_their_offsets() {
    let (folder, memory) = (Folder::new("crash-buffered"), Folder::in_memory("crash-buffered"));
    let memory_dir = memory.path().display().to_string();
    survive(&folder, &["--ack", "buffered", "--buffer-dir", &memory_dir]);
    assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 0, "a clean end leaves nothing");
}

#[expect(clippy::print_stdout, reason = "how long a start took is of interest when a test fails")]
fn survive(folder: &Folder, ack: &[&str]) {
    let data = folder.path().join("data");
    let mut settings = Settings::new(&data);
    let arguments = ["--shards", "2"].iter().chain(ack);
    settings.arguments = arguments.map(|argument| (*argument).to_owned()).collect();
    let mut acknowledged: Vec<Acknowledged> = Vec::new();
    let mut seen: BTreeMap<String, (i32, Stored)> = BTreeMap::new();

    for round in 0..KILLS {
        let (server, start) = timed(|| Ringmq::start(&settings));
        if round == 0 {
            let mut client = Client::connect(server.broker()).unwrap();
            assert_eq!(create_topic(&mut client, TOPIC, QUEUES).unwrap().code, SUCCESS);
        }
        println!("start {round}: {start:?}");
        seen = verify(server.broker(), &acknowledged, seen);
        acknowledged.extend(load_until_killed(server, round));
    }
    let server = Ringmq::start(&settings);
    seen = verify(server.broker(), &acknowledged, seen);
    assert!(seen.len() >= acknowledged.len());
    assert!(server.stop(), "a server that was killed before stops in good order");
}

/// Sends from all producers, kills the server in the middle, and returns what it acknowledged.
fn load_until_killed(server: Ringmq, round: u32) -> Vec<Acknowledged> {
    let (sender, acknowledgements) = channel();
    let address = server.broker();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let sender = sender.clone();
            thread::spawn(move || produce(address, &format!("{round}-{producer}"), &sender))
        })
        .collect();
    drop(sender);
    let mut acknowledged = Vec::new();
    while acknowledged.len() < ACKNOWLEDGED_PER_ROUND {
        acknowledged.push(next(&acknowledgements).expect("the server runs, so producers go on"));
    }
    server.kill();
    acknowledged.extend(acknowledgements.iter());
    for producer in producers {
        producer.join().unwrap();
    }
    acknowledged
}

fn next(acknowledgements: &Receiver<Acknowledged>) -> Option<Acknowledged> {
    acknowledgements.recv_timeout(PATIENCE).ok()
}

/// Keeps some sends in flight until the connection breaks.
fn produce(address: SocketAddr, name: &str, acknowledgements: &Sender<Acknowledged>) {
    let mut client = Client::connect(address).unwrap();
    let mut waiting: HashMap<i32, (String, i32)> = HashMap::new();
    for number in 0.. {
        let key = format!("{name}-{number}");
        let queue = number % QUEUES;
        match post_send(&mut client, TOPIC, queue, &key, key.as_bytes()) {
            Ok(opaque) => waiting.insert(opaque, (key, queue)),
            Err(_) => return,
        };
        if waiting.len() < IN_FLIGHT {
            continue;
        }
        let Ok(reply) = client.reply() else { return };
        assert_eq!(reply.code, SUCCESS, "{:?}", reply.remark);
        let (key, queue) = waiting.remove(&reply.opaque).expect("an answer to a request of ours");
        let _ = acknowledgements.send((key, queue, reply.number("queueOffset")));
    }
}

/// Pulls everything and compares it with what was acknowledged, and with what an earlier pull saw.
fn verify(
    address: SocketAddr,
    acknowledged: &[Acknowledged],
    seen: BTreeMap<String, (i32, Stored)>,
) -> BTreeMap<String, (i32, Stored)> {
    let mut client = Client::connect(address).unwrap();
    let stored = pull_topic(&mut client, TOPIC, QUEUES).unwrap();
    for (key, queue, offset) in acknowledged {
        let (at_queue, message) =
            stored.get(key).unwrap_or_else(|| panic!("{key} was acknowledged and is lost"));
        assert_eq!((at_queue, &message.queue_offset), (queue, offset), "{key} moved");
        assert_eq!(message.body, key.as_bytes());
    }
    for (key, before) in seen {
        assert_eq!(stored.get(&key), Some(&before), "{key} was seen before");
    }
    stored
}

/// As long as a broker takes them.
const LONG: usize = 4 << 20;
const LONG_PRODUCERS: usize = 20;

#[test]
fn the_longest_messages_sent_all_at_once_survive_sigkill() {
    let folder = Folder::new("crash-long");
    let data = folder.path().join("data");
    let mut settings = Settings::new(&data);
    settings.arguments = ["--shards", "2"].map(str::to_owned).into();
    let server = Ringmq::start(&settings);
    let address = server.broker();
    let mut clients: Vec<_> =
        (0..LONG_PRODUCERS).map(|_| Client::connect(address).unwrap()).collect();
    assert_eq!(create_topic(&mut clients[0], TOPIC, QUEUES).unwrap().code, SUCCESS);
    // Bodies differ, so that one in the place of another shows.
    let body = |n: usize| -> Vec<u8> {
        let n = u8::try_from(n).unwrap();
        (0..LONG).map(|at| u8::try_from(at % 251).unwrap() ^ n).collect()
    };
    let producers: Vec<_> = (0..LONG_PRODUCERS)
        .zip(clients)
        .map(|(n, mut client)| {
            thread::spawn(move || {
                let queue = i32::try_from(n).unwrap() % QUEUES;
                send(&mut client, TOPIC, queue, &format!("long-{n}"), &body(n)).unwrap()
            })
        })
        .collect();
    let places: Vec<_> = producers.into_iter().map(|producer| producer.join().unwrap()).collect();
    assert!(places.iter().all(|reply| reply.code == SUCCESS), "{places:?}");
    server.kill();
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    let stored = pull_topic(&mut client, TOPIC, QUEUES).unwrap();
    for (n, reply) in places.iter().enumerate() {
        let (queue, message) = stored.get(&format!("long-{n}")).expect("it was acknowledged");
        assert_eq!(usize::try_from(*queue).unwrap(), n % usize::try_from(QUEUES).unwrap());
        assert_eq!(message.queue_offset, reply.number("queueOffset"));
        assert!(message.body == body(n), "the body of message {n}");
    }
    assert!(server.stop());
}
