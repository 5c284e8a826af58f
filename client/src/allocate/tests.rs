//! Upstream's results, and what holds for any lists.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{hash::hash, room::RoomOf, *};

/// Results of upstream's strategies; what else is in the file belongs to other modules.
const VECTORS: &str = include_str!("../../tests/data/allocate-vectors.json");

fn vectors(name: &str) -> Vec<Value> {
    let mut all: Value = serde_json::from_str(VECTORS).unwrap();
    serde_json::from_value(all[name].take()).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().into()
}

fn queue(topic: &str, value: &Value) -> MessageQueue {
    let id = i32::try_from(value[1].as_i64().unwrap()).unwrap();
    MessageQueue::new(topic, text(&value[0]), id)
}

fn queues(topic: &str, list: &Value) -> Vec<MessageQueue> {
    list.as_array().unwrap().iter().map(|value| queue(topic, value)).collect()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(text).collect()
}

fn before_dash(text: &str) -> String {
    text.split('-').next().unwrap_or_default().into()
}

fn strategy(vector: &Value) -> Box<dyn Allocate> {
    let params = &vector["params"];
    let nearby = |inner: Box<dyn Allocate>| {
        let room_of_queue: RoomOf<MessageQueue> =
            Box::new(|queue| before_dash(queue.broker_name()));
        Box::new(Nearby::boxed(inner, room_of_queue, Box::new(before_dash)))
    };
    match vector["strategy"].as_str().unwrap() {
        "AVG" => Box::new(Average),
        "AVG_BY_CIRCLE" => Box::new(Circle),
        "CONFIG" => {
            let list = params["messageQueueList"].as_array().unwrap().iter().map(|entry| {
                let id = i32::try_from(entry[2].as_i64().unwrap()).unwrap();
                MessageQueue::new(text(&entry[0]), text(&entry[1]), id)
            });
            Box::new(Fixed(list.collect()))
        }
        "MACHINE_ROOM" => Box::new(MachineRoom { rooms: texts(&params["consumeridcs"]) }),
        "MACHINE_ROOM_NEARBY" => match params["inner"].as_str().unwrap() {
            "AVG" => nearby(Box::new(Average)),
            "AVG_BY_CIRCLE" => nearby(Box::new(Circle)),
            inner => panic!("unknown inner strategy {inner}"),
        },
        "CONSISTENT_HASH" => {
            let places = params["virtualNodeCnt"].as_u64().unwrap();
            Box::new(ConsistentHash { places: u32::try_from(places).unwrap() })
        }
        name => panic!("unknown strategy {name}"),
    }
}

#[test]
fn all_divisions_are_upstreams() {
    let vectors = vectors("vectors");
    assert_eq!(vectors.len(), 92);
    for vector in &vectors {
        let id = &vector["id"];
        let topic = text(&vector["topic"]);
        let mut members = texts(&vector["consumersInput"]);
        let mut input = queues(&topic, &vector["queuesInput"]);
        sort(&mut members, &mut input);
        assert_eq!(members, texts(&vector["consumersSorted"]), "members of vector {id}");
        assert_eq!(input, queues(&topic, &vector["queuesSorted"]), "queues of vector {id}");
        let strategy = strategy(vector);
        assert_eq!(strategy.name(), text(&vector["name"]), "vector {id}");
        for (member, want) in vector["expected"].as_object().unwrap() {
            let got = strategy.allocate(member, &members, &input).unwrap();
            assert_eq!(got, queues(&topic, want), "vector {id}, {member}");
        }
    }
}

#[test]
fn places_on_the_ring_are_upstreams() {
    let vectors = vectors("md5First4Bytes");
    assert_eq!(vectors.len(), 6);
    for vector in vectors {
        assert_eq!(u64::from(hash(&text(&vector["text"]))), vector["hash"].as_u64().unwrap());
    }
}

#[test]
fn hashes_of_tags_are_javas() {
    let vectors = vectors("javaStringHashCode");
    assert_eq!(vectors.len(), 9);
    for vector in vectors {
        let hash = ringmq_protocol::tags::java_hash(&text(&vector["text"]));
        assert_eq!(i64::from(hash), vector["hashCode"].as_i64().unwrap(), "{vector}");
    }
}

#[test]
fn ids_of_messages_are_the_brokers() {
    let vectors = vectors("offsetMessageId");
    assert_eq!(vectors.len(), 4);
    for vector in vectors {
        let ip: std::net::IpAddr = text(&vector["ip"]).parse().unwrap();
        let port = u16::try_from(vector["port"].as_u64().unwrap()).unwrap();
        let log_offset = vector["commitLogOffset"].as_i64().unwrap();
        let host = std::net::SocketAddr::new(ip, port);
        let id = ringmq_protocol::message_id::OffsetMessageId { host, log_offset };
        assert_eq!(id.to_string(), text(&vector["id"]));
    }
}

/// A small generator of numbers that a seed decides (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).unwrap()).unwrap()
    }

    fn members(&mut self) -> Vec<String> {
        let rooms = self.below(4) + 1;
        let names = (0..=self.below(40)).map(|number| {
            let (room, host, pid) = (self.below(rooms), self.below(250), self.below(60_000));
            format!("room{room}-10.0.0.{host}@{pid}#{number}")
        });
        names.collect()
    }

    fn queues(&mut self) -> Vec<MessageQueue> {
        let mut queues = Vec::new();
        for broker in 0..=self.below(6) {
            let name = format!("room{}-{broker}@x", self.below(5));
            for id in 0..=self.below(20) {
                queues.push(MessageQueue::new("T", &*name, i32::try_from(id).unwrap()));
            }
        }
        queues
    }
}

#[test]
fn every_queue_is_owned_exactly_once() {
    let rooms = (0..5).flat_map(|room| (0..7).map(move |broker| format!("room{room}-{broker}")));
    let nearby = |inner: Box<dyn Allocate>| {
        Nearby::boxed(inner, Box::new(|q| before_dash(q.broker_name())), Box::new(before_dash))
    };
    let strategies: [Box<dyn Allocate>; 6] = [
        Box::new(Average),
        Box::new(Circle),
        Box::new(ConsistentHash::default()),
        Box::new(MachineRoom { rooms: rooms.collect() }),
        Box::new(nearby(Box::new(Average))),
        Box::new(nearby(Box::new(ConsistentHash { places: 3 }))),
    ];
    for seed in 1..=60 {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (mut members, mut queues) = (numbers.members(), numbers.queues());
        sort(&mut members, &mut queues);
        for strategy in &strategies {
            let mut owners: BTreeMap<MessageQueue, Vec<&str>> = BTreeMap::new();
            for member in &members {
                for queue in strategy.allocate(member, &members, &queues).unwrap() {
                    owners.entry(queue).or_default().push(member);
                }
            }
            let name = strategy.name();
            assert!(owners.keys().eq(&queues), "SEED={seed}, {name}: queues without an owner");
            let twice = owners.iter().find(|(_, owners)| owners.len() != 1);
            assert_eq!(twice, None, "SEED={seed}, {name}");
        }
    }
}

#[test]
fn even_shares_differ_by_one() {
    for (queue_count, member_count) in (1..40).flat_map(|m| (1..20).map(move |c| (m, c))) {
        let mut members: Vec<_> = (0..member_count).map(|n| format!("m{n}")).collect();
        let mut queues: Vec<_> = (0..queue_count).map(|n| MessageQueue::new("T", "a", n)).collect();
        sort(&mut members, &mut queues);
        for strategy in [&Average as &dyn Allocate, &Circle] {
            let share =
                |member: &String| strategy.allocate(member, &members, &queues).unwrap().len();
            let shares: Vec<_> = members.iter().map(share).collect();
            let spread = shares.iter().max().unwrap() - shares.iter().min().unwrap();
            assert!(spread <= 1, "{queue_count} queues, {member_count} members: {shares:?}");
        }
    }
}

#[test]
fn without_members_or_queues_nothing_is_divided() {
    let (members, queues) = (["m".to_owned()], [MessageQueue::new("T", "a", 0)]);
    for strategy in [&Average as &dyn Allocate, &Circle, &ConsistentHash::default()] {
        assert!(strategy.allocate("m", &[], &queues).is_err());
        assert!(strategy.allocate("m", &members, &[]).is_err());
        assert!(strategy.allocate(" ", &members, &queues).is_err());
        assert_eq!(strategy.allocate("other", &members, &queues), Ok(Vec::new()));
    }
}

#[test]
fn names_are_ordered_as_java_orders_them() {
    let mut members = ["\u{ffff}", "\u{10000}", "b", "B", "_", "9"].map(String::from);
    sort(&mut members, &mut []);
    assert_eq!(members, ["9", "B", "_", "b", "\u{10000}", "\u{ffff}"]);
}
