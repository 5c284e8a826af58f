//! The whole thread, over real sockets: data threads are channels, the store is a list.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use ringmq_protocol::encode::FrameWriter;

use super::*;
use crate::{
    context::{Principal, Transport},
    control::{
        BoxFuture, BrokerControlConfig, ControlConfig, ControlHandle, Fact, NamesrvControlConfig,
        NewTopic, StoredFact, TO_CONTROL_CAPACITY, TO_THREAD_CAPACITY, facts::topic_fact, start,
        testing,
    },
};

/// Long enough for a machine that does something else meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Store {
    facts: Mutex<Vec<Fact>>,
    deleted: Mutex<Vec<Arc<str>>>,
    fails: AtomicBool,
}

impl Facts for Store {
    fn put(&self, facts: Vec<Fact>) -> BoxFuture<Result<(), String>> {
        if self.fails.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err("poisoned".to_owned())));
        }
        self.facts.lock().unwrap().extend(facts);
        Box::pin(std::future::ready(Ok(())))
    }

    fn delete_topic(&self, topic: Arc<str>) -> BoxFuture<Result<(), String>> {
        if self.fails.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err("poisoned".to_owned())));
        }
        self.deleted.lock().unwrap().push(topic);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A control thread with one data thread, which is the test.
struct Bench {
    control: ControlHandle,
    requests: mpsc::Sender<ToControl>,
    answers: mpsc::Receiver<ToThread>,
    published: Arc<Published>,
    store: Arc<Store>,
    _dir: testing::TempDir,
}

fn epoch_ms() -> i64 {
    1_700_000_000_000
}

fn namesrv(dir: &testing::TempDir, listen: SocketAddr) -> NamesrvControlConfig {
    NamesrvControlConfig { listen, data_dir: dir.path().to_owned(), order_messages: false }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn standalone_namesrv(dir: &testing::TempDir, listen: SocketAddr) -> ControlHandle {
    let namesrv = Some(namesrv(dir, listen));
    start(ControlConfig { broker: None, namesrv, metrics: None, epoch_ms }).unwrap()
}

impl Bench {
    /// A broker and a name server in one process.
    fn standalone() -> Self {
        Self::new(testing::broker_config(), true)
    }

    fn new(config: BrokerControlConfig, with_namesrv: bool) -> Self {
        Self::with_stored(config, with_namesrv, Vec::new())
    }

    fn with_stored(
        config: BrokerControlConfig,
        with_namesrv: bool,
        stored: Vec<StoredFact>,
    ) -> Self {
        let dir = testing::TempDir::new("service");
        let (requests, receiver) = mpsc::channel(TO_CONTROL_CAPACITY);
        let (thread, answers) = mpsc::channel(TO_THREAD_CAPACITY);
        let (published, store) = (Arc::new(Published::empty()), Arc::new(Store::default()));
        let broker = BrokerControl {
            config,
            facts: Arc::clone(&store) as Arc<dyn Facts>,
            stored,
            published: Arc::clone(&published),
            requests: receiver,
            threads: vec![thread],
        };
        let namesrv = with_namesrv.then(|| namesrv(&dir, any_port()));
        let control =
            start(ControlConfig { broker: Some(broker), namesrv, metrics: None, epoch_ms })
                .unwrap();
        control.wait_registered();
        Self { control, requests, answers, published, store, _dir: dir }
    }

    fn send(&self, slot: u32, bytes: &[u8]) {
        let ctx = RequestContext {
            peer: SocketAddr::from(([127, 0, 0, 1], 40_000)),
            conn: conn(slot),
            transport: Transport::Plain,
            principal: Principal::Anonymous,
        };
        let frame = Bytes::copy_from_slice(bytes);
        self.requests.blocking_send(ToControl::Request { ctx, frame }).unwrap();
    }

    /// The next message that is no notice.
    fn answer(&mut self) -> (ConnId, i32, Vec<u8>) {
        loop {
            match self.answers.blocking_recv().unwrap() {
                ToThread::Send { conn, bytes } => {
                    let (code, body) = parse(&bytes);
                    return (conn, code, body);
                }
                ToThread::Notify { .. } => {}
                ToThread::Close { conn } => panic!("{conn:?} is to be closed"),
            }
        }
    }

    fn ask(
        &mut self,
        slot: u32,
        code: i32,
        entries: &[(&str, &str)],
        body: &str,
    ) -> (i32, Vec<u8>) {
        self.send(slot, &request_frame(code, 0, entries, body));
        let (conn, code, body) = self.answer();
        assert_eq!(conn.slot, slot);
        (code, body)
    }

    fn create(&self, topic: &str) -> Result<Arc<TopicConfig>, CreateTopicError> {
        let (reply, created) = oneshot::channel();
        let default_topic = "TBW102".into();
        let how = NewTopic::FromTemplate { default_topic, queue_nums: 4, unit_mode: false };
        let message = ToControl::CreateTopic { topic: topic.into(), how, reply };
        self.requests.blocking_send(message).unwrap();
        created.blocking_recv().unwrap()
    }
}

const fn conn(slot: u32) -> ConnId {
    ConnId { thread: 0, slot, generation: 1 }
}

fn heartbeat(group: &str) -> String {
    format!(
        r#"{{"clientID":"c","consumerDataSet":[{{"groupName":"{group}","subscriptionDataSet":[{{"topic":"T"}}]}}]}}"#
    )
}

fn request_frame(code: i32, flag: i32, entries: &[(&str, &str)], body: &str) -> Vec<u8> {
    let ext = |out: &mut FrameWriter<'_, '_>| {
        for (name, value) in entries {
            out.ext(name, value);
        }
    };
    let mut out = Vec::new();
    encode::request(&mut out, Encoding::Json, 9, code, flag, ext, body.as_bytes()).unwrap();
    out
}

fn parse(bytes: &[u8]) -> (i32, Vec<u8>) {
    let frame = frame::decode(bytes, FRAME_LEN_MAX).unwrap().unwrap();
    let command = Command::parse(frame.encoding, frame.header).unwrap();
    assert_eq!((command.is_response(), command.opaque, command.version), (true, 9, 409));
    (command.code, frame.body.to_vec())
}

/// A client of a name server.
struct Client(TcpStream);

impl Client {
    fn connect(control: &ControlHandle) -> Self {
        let stream = TcpStream::connect(control.namesrv_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn ask(&mut self, code: i32, entries: &[(&str, &str)]) -> (i32, String) {
        self.0.write_all(&request_frame(code, 0, entries, "")).unwrap();
        let mut len = [0; 4];
        self.0.read_exact(&mut len).unwrap();
        let mut bytes = len.to_vec();
        bytes.resize(4 + usize::try_from(u32::from_be_bytes(len)).unwrap(), 0);
        self.0.read_exact(&mut bytes[4..]).unwrap();
        let (code, body) = parse(&bytes);
        (code, String::from_utf8(body).unwrap())
    }

    fn route(&mut self, topic: &str) -> (i32, String) {
        self.ask(105, &[("topic", topic)])
    }

    /// Whether the other side has ended the connection.
    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// Waits until something is so that another thread makes so.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = clock::instant() + PATIENCE;
    while !so() {
        assert!(clock::instant() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_broker_is_known_before_it_says_that_it_is_ready() {
    let bench = Bench::standalone();
    let mut client = Client::connect(&bench.control);
    let (code, route) = client.route("TBW102");
    assert_eq!(code, 0);
    assert!(route.contains(r#""brokerAddrs":{"0":"127.0.0.1:10911"}"#), "{route}");
    bench.control.stop().unwrap();
}

#[test]
fn a_created_topic_is_durable_published_and_known_to_the_name_server() {
    let bench = Bench::standalone();
    let mut client = Client::connect(&bench.control);
    let topic = bench.create("T").unwrap();
    assert_eq!((topic.read_queue_nums, topic.perm), (4, 6));
    assert!(bench.store.facts.lock().unwrap().iter().any(|fact| &*fact.key == b"control/topic/T"));
    assert!(bench.published.catalog.load().topic("T").is_some());
    let (code, route) = client.route("T");
    assert!(code == 0 && route.contains("\"writeQueueNums\":4"), "{code} {route}");
    for number in 0..20 {
        bench.create(&format!("T{number}")).unwrap();
        assert_eq!(client.route(&format!("T{number}")).0, 0, "T{number}");
    }
    // An incremental registration keeps what was there.
    assert_eq!((client.route("T").0, client.route("TBW102").0), (0, 0));
    assert!(matches!(bench.create("../x"), Err(CreateTopicError::Name(_))));
    bench.control.stop().unwrap();
}

#[test]
fn thousands_of_stored_topics_are_registered_in_one_large_frame() {
    let topics = (0..3000).map(|number| {
        let name = format!("a_topic_with_a_name_of_usual_length_{number}");
        let config = TopicConfig { name: name.as_str().into(), ..(*sample_topic()).clone() };
        let fact = topic_fact(&name, Some(&config));
        (fact.key, fact.value.unwrap())
    });
    let bench = Bench::with_stored(testing::broker_config(), true, topics.collect());
    let mut client = Client::connect(&bench.control);
    assert_eq!(client.route("a_topic_with_a_name_of_usual_length_2999").0, 0);
    bench.create("T").unwrap();
    assert_eq!(client.route("T").0, 0);
    bench.control.stop().unwrap();
}

fn sample_topic() -> Arc<TopicConfig> {
    let broker = testing::broker();
    Arc::clone(broker.topics.get("SELF_TEST_TOPIC").unwrap())
}

#[test]
fn what_the_store_does_not_take_is_not_told() {
    let mut bench = Bench::standalone();
    bench.store.fails.store(true, Ordering::SeqCst);
    assert_eq!(bench.create("T"), Err(CreateTopicError::Store("poisoned".into())));
    assert!(bench.published.catalog.load().topic("T").is_none());
    let entries = [
        ("topic", "U"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "4"),
        ("writeQueueNums", "4"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
    ];
    assert_eq!(bench.ask(1, 17, &entries, "").0, 1);
    let (reply, ensured) = oneshot::channel();
    let message = ToControl::EnsureGroup { group: "G".into(), reply };
    bench.requests.blocking_send(message).unwrap();
    assert_eq!(ensured.blocking_recv().unwrap(), None);
    // Members do not depend on the store.
    assert_eq!(bench.ask(1, 34, &[], &heartbeat("G")).0, 0);
    assert_eq!(bench.ask(1, 38, &[("consumerGroup", "G")], "").0, 0);
    bench.store.fails.store(false, Ordering::SeqCst);
    assert_eq!(bench.ask(1, 17, &entries, "").0, 0);
    assert_eq!(Client::connect(&bench.control).route("U").0, 0);
    bench.control.stop().unwrap();
}

#[test]
fn a_deleted_topic_leaves_the_store_before_it_can_be_made_again() {
    let mut bench = Bench::standalone();
    bench.create("T").unwrap();
    bench.store.facts.lock().unwrap().clear();
    assert_eq!(bench.ask(1, 215, &[("topic", "T")], "").0, 0);
    assert_eq!(*bench.store.deleted.lock().unwrap(), ["T".into()]);
    assert!(bench.published.catalog.load().topic("T").is_none());
    let removal = topic_fact("T", None);
    assert!(bench.store.facts.lock().unwrap().contains(&removal));
    // There is nothing of it to delete now, and a system topic stays.
    assert_eq!(bench.ask(1, 215, &[("topic", "T")], "").0, 0);
    for refused in ["TBW102", "SELF_TEST_TOPIC", " "] {
        assert_eq!(bench.ask(1, 215, &[("topic", refused)], "").0, 1, "{refused}");
    }
    assert_eq!(bench.store.deleted.lock().unwrap().len(), 1);
    // Both wait in the channel at once, and one comes after the other all the same.
    bench.create("T").unwrap();
    bench.send(1, &request_frame(215, 0, &[("topic", "T")], ""));
    bench.create("T").unwrap();
    assert_eq!(bench.answer().1, 0);
    assert_eq!(bench.store.deleted.lock().unwrap().len(), 2);
    assert!(bench.published.catalog.load().topic("T").is_some());

    bench.store.fails.store(true, Ordering::SeqCst);
    assert_eq!(bench.ask(1, 215, &[("topic", "T")], "").0, 1);
    assert!(bench.published.catalog.load().topic("T").is_some(), "it is not deleted");
    bench.control.stop().unwrap();
}

#[test]
fn members_come_and_go_with_their_connections() {
    let mut bench = Bench::standalone();
    for slot in [1, 2] {
        assert_eq!(bench.ask(slot, 34, &[], &heartbeat("G")).0, 0);
    }
    let (_, list) = bench.ask(2, 38, &[("consumerGroup", "G")], "");
    assert_eq!(list, br#"{"consumerIdList":["c","c"]}"#);
    bench.requests.blocking_send(ToControl::Closed { conn: conn(1) }).unwrap();
    loop {
        let message = bench.answers.blocking_recv().unwrap();
        let ToThread::Notify { conns, bytes } = message else { panic!("{message:?}") };
        // Earlier notices may still be on their way.
        if conns == [conn(2)] {
            let frame = frame::decode(&bytes, FRAME_LEN_MAX).unwrap().unwrap();
            let command = Command::parse(frame.encoding, frame.header).unwrap();
            assert!(command.is_oneway() && command.code == 40 && command.opaque > 0);
            assert_eq!(command.ext.get("consumerGroup").unwrap().to_str(), "G");
            break;
        }
    }
    let (_, list) = bench.ask(2, 38, &[("consumerGroup", "G")], "");
    assert_eq!(list, br#"{"consumerIdList":["c"]}"#);
    assert!(bench.published.groups.load().group("G").unwrap().online);
    bench.control.stop().unwrap();
}

#[test]
fn oneway_requests_are_never_answered_and_unknown_codes_always() {
    let mut bench = Bench::standalone();
    for code in [17, 34, 38, 777] {
        bench.send(1, &request_frame(code, FLAG_ONEWAY, &[], ""));
    }
    assert_eq!(bench.ask(2, 777, &[], "").0, 3);
    bench.control.stop().unwrap();
    assert!(bench.answers.try_recv().is_err());
}

#[test]
fn requests_about_offsets_are_answered_too() {
    let mut bench = Bench::standalone();
    assert_eq!(bench.ask(1, 43, &[], "").0, 1);
    assert_eq!(bench.ask(1, 34, &[], &heartbeat("G")).0, 0);
    let (code, groups) = bench.ask(1, 300, &[("topic", "T")], "");
    assert_eq!((code, &*groups), (0, &br#"{"groupList":["G"]}"#[..]));
    assert_eq!(bench.ask(1, 300, &[], "").0, 1);
    bench.send(1, &request_frame(300, FLAG_ONEWAY, &[("topic", "T")], ""));
    assert_eq!(bench.ask(2, 777, &[], "").0, 3);
    bench.control.stop().unwrap();
}

#[test]
fn five_thousand_heartbeats_at_once_are_all_answered() {
    let mut bench = Bench::standalone();
    for slot in 0..5000 {
        bench.send(slot, &request_frame(34, 0, &[], &heartbeat("G")));
        while let Ok(message) = bench.answers.try_recv() {
            drop(message);
        }
    }
    eventually("the last member is registered", || {
        while bench.answers.try_recv().is_ok() {}
        bench.send(9999, &request_frame(38, 0, &[("consumerGroup", "G")], ""));
        let (_, _, body) = bench.answer();
        body.len() == r#"{"consumerIdList":[]}"#.len() + 5000 * r#""c","#.len() - 1
    });
    bench.control.stop().unwrap();
}

#[test]
fn a_name_server_that_comes_back_knows_the_broker_again() {
    let dir = testing::TempDir::new("comeback");
    let first = standalone_namesrv(&dir, any_port());
    let addr = first.namesrv_addr().unwrap();
    let mut config = testing::broker_config();
    config.namesrv_addrs = vec![addr.to_string()];
    let bench = Bench::new(config, false);
    assert_eq!(Client::connect(&first).route("TBW102").0, 0);
    first.stop().unwrap();
    // Nobody waits for a name server that is not there.
    bench.create("T").unwrap();
    let second = standalone_namesrv(&dir, addr);
    eventually("the broker registers again", || Client::connect(&second).route("T").0 == 0);
    bench.control.stop().unwrap();
    assert_eq!(Client::connect(&second).route("T").0, 17, "the broker has said good-bye");
    second.stop().unwrap();
}

#[test]
fn several_brokers_register_with_several_name_servers() {
    let dirs = [testing::TempDir::new("several"), testing::TempDir::new("several")];
    let namesrvs = dirs.each_ref().map(|dir| standalone_namesrv(dir, any_port()));
    let brokers = ["broker-a", "broker-b"].map(|name| {
        let mut config = testing::broker_config();
        config.broker_name = name.into();
        config.advertised_addr = format!("{name}:10911");
        config.namesrv_addrs =
            namesrvs.iter().map(|ns| ns.namesrv_addr().unwrap().to_string()).collect();
        Bench::new(config, false)
    });
    brokers[0].create("T").unwrap();
    brokers[1].create("T").unwrap();
    for namesrv in &namesrvs {
        let mut client = Client::connect(namesrv);
        let (_, route) = client.route("T");
        assert!(route.contains("broker-a:10911") && route.contains("broker-b:10911"), "{route}");
        let (_, clusters) = client.ask(106, &[]);
        assert!(clusters.contains(r#""DefaultCluster":["broker-a","broker-b"]"#), "{clusters}");
    }
    for broker in brokers {
        broker.control.stop().unwrap();
    }
    for namesrv in namesrvs {
        namesrv.stop().unwrap();
    }
}

#[test]
fn bytes_that_are_no_frame_cost_their_connection_only() {
    let dir = testing::TempDir::new("malformed");
    let namesrv = standalone_namesrv(&dir, any_port());
    let mut healthy = Client::connect(&namesrv);
    let good = request_frame(105, 0, &[("topic", "T")], "");
    let mut no_header = good.clone();
    no_header[9] = b'!';
    for bad in [&[0xff; 64][..], &[0, 0, 0, 2, 0, 0, 0, 0], &[1, 0, 0, 1, 0, 0, 0, 0], &no_header] {
        let mut client = Client::connect(&namesrv);
        client.0.write_all(bad).unwrap();
        assert!(client.is_closed(), "{bad:02x?}");
        assert_eq!(healthy.route("T").0, 17);
    }
    // Many frames in one write, and one in many.
    healthy.0.write_all(&good.repeat(3)).unwrap();
    for byte in &good {
        healthy.0.write_all(&[*byte]).unwrap();
    }
    let mut answers = [0; 4];
    for _ in 0..4 {
        healthy.0.read_exact(&mut answers).unwrap();
        let len = u32::from_be_bytes(answers);
        let mut rest = vec![0; usize::try_from(len).unwrap()];
        healthy.0.read_exact(&mut rest).unwrap();
    }
    assert_eq!(healthy.route("T").0, 17);
    namesrv.stop().unwrap();
}

#[test]
fn kv_entries_survive_a_restart() {
    let dir = testing::TempDir::new("kv");
    let first = standalone_namesrv(&dir, any_port());
    let entry = [("namespace", "NS"), ("key", "k"), ("value", "v")];
    assert_eq!(Client::connect(&first).ask(100, &entry).0, 0);
    first.stop().unwrap();
    let second = standalone_namesrv(&dir, any_port());
    assert_eq!(Client::connect(&second).ask(101, &entry).0, 0);
    second.stop().unwrap();
    std::fs::write(dir.path().join("kvConfig.json"), b"{").unwrap();
    let config = ControlConfig {
        broker: None,
        namesrv: Some(namesrv(&dir, any_port())),
        metrics: None,
        epoch_ms,
    };
    assert!(start(config).unwrap_err().to_string().contains("repair or remove it"));
}

#[test]
fn a_port_in_use_is_said_in_one_line() {
    let dir = testing::TempDir::new("port");
    let taken = TcpListener::bind(any_port()).unwrap();
    let namesrv = Some(namesrv(&dir, taken.local_addr().unwrap()));
    let error = start(ControlConfig { broker: None, namesrv, metrics: None, epoch_ms })
        .unwrap_err()
        .to_string();
    assert!(error.contains("is in use") && !error.contains('\n'), "{error}");
}
