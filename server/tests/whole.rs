//! A whole server, name server and broker, over real sockets, as a client sees it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails where it stands")]

mod common;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use clap::Parser;
use common::Folder;
use ringmq::{
    config::{Config, cli::Cli},
    server::Server,
};
use ringmq_protocol::{
    codes::{request, response},
    command::Command,
    encode::{self, FrameWriter},
    frame::{self, Encoding, FRAME_LEN_MAX},
    record::records,
};

fn start(folder: &Folder, arguments: &[&str]) -> Server {
    start_on("127.0.0.1:0", folder, arguments)
}

/// A port that is free, as is the one two below it. It lies below those that the system gives to
/// whoever asks for any.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() % 1000 * 4;
    loop {
        let next = first + NEXT.fetch_add(1, Ordering::Relaxed) * 4;
        let port = u16::try_from(26_002 + next % 4000).unwrap();
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port - 2) {
            return port;
        }
    }
}

fn start_on(listen: &str, folder: &Folder, arguments: &[&str]) -> Server {
    let data = folder.0.to_str().unwrap();
    let fixed = ["ringmq", "--data", data, "--listen", listen];
    let namesrv = ["--namesrv-listen", "127.0.0.1:0"];
    let cli = Cli::try_parse_from([&fixed[..], &namesrv[..], arguments].concat()).unwrap();
    Server::start(&Config::load(&cli).unwrap()).unwrap()
}

#[track_caller]
fn stop(server: Server) {
    assert_eq!(server.stop(), [""; 0]);
}

struct Got {
    code: i32,
    remark: String,
    ext: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Client(TcpStream, Vec<u8>);

impl Client {
    fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(stream, Vec::new())
    }

    /// The next frame: whether it is a response, and what is in it.
    fn get(&mut self) -> (bool, i32, Got) {
        loop {
            if let Some(frame) = frame::decode(&self.1, FRAME_LEN_MAX).unwrap() {
                let command = Command::parse(frame.encoding, frame.header).unwrap();
                let got = Got {
                    code: command.code,
                    remark: command.remark.clone().unwrap_or_default().into_owned(),
                    ext: command
                        .ext
                        .iter()
                        .map(|(k, v)| (k.into_owned(), v.into_owned()))
                        .collect(),
                    body: frame.body.to_vec(),
                };
                let found = (command.is_response(), command.opaque, got);
                let len = frame.total_len;
                self.1.drain(..len);
                return found;
            }
            let mut chunk = vec![0; 64 << 10];
            let len = match self.0.read(&mut chunk) {
                // A signal to the process says nothing about the broker.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                result => result.expect("an answer in time"),
            };
            assert_ne!(len, 0, "the server closed the connection");
            self.1.extend_from_slice(&chunk[..len]);
        }
    }

    /// The answer to a request; requests of the server in between are passed over.
    fn call(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Got {
        let mut out = Vec::new();
        let entries = |writer: &mut FrameWriter<'_, '_>| {
            for (name, value) in ext {
                writer.ext(name, value);
            }
        };
        encode::request(&mut out, Encoding::Json, code, code, 0, entries, body).unwrap();
        self.0.write_all(&out).unwrap();
        loop {
            let (is_response, opaque, got) = self.get();
            if is_response && opaque == code {
                return got;
            }
        }
    }

    fn send(&mut self, topic: &str, body: &[u8]) -> Got {
        self.first_send(topic, "4", body)
    }

    /// A send that asks for so many queues if the topic is new.
    fn first_send(&mut self, topic: &str, queues: &str, body: &[u8]) -> Got {
        let ext = [
            ("a", "PG"),
            ("b", topic),
            ("c", "TBW102"),
            ("d", queues),
            ("e", "0"),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", "TAGS\u{1}a"),
        ];
        self.call(request::SEND_MESSAGE_V2, &ext, body)
    }

    fn pull(&mut self, group: &str, topic: &str, from: &str) -> Got {
        let ext = [
            ("consumerGroup", group),
            ("topic", topic),
            ("queueId", "0"),
            ("queueOffset", from),
            ("maxMsgNums", "32"),
            ("sysFlag", "2"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "15000"),
            ("subVersion", "1"),
        ];
        self.call(request::PULL_MESSAGE, &ext, b"")
    }

    fn heartbeat(&mut self, group: &str, topic: &str, tag: &str) -> Got {
        let body = format!(
            r#"{{"clientID":"me","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"CLUSTERING","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"{tag}","subVersion":1,"tagsSet":["{tag}"],"topic":"{topic}"}}],"unitMode":false}}],"producerDataSet":[{{"groupName":"PG"}}]}}"#
        );
        self.call(request::HEART_BEAT, &[], body.as_bytes())
    }
}

#[track_caller]
fn check(got: &Got, code: i32) {
    assert_eq!(got.code, code, "{}", got.remark);
}

#[test]
fn a_message_finds_its_way_from_producer_to_consumer() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let broker = server.broker_addr().unwrap();
    let mut names = Client::connect(server.namesrv_addr().unwrap());
    let template = names.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "TBW102")], b"");
    check(&template, response::SUCCESS);
    assert!(String::from_utf8(template.body).unwrap().contains(&broker.to_string()));
    let unknown = names.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "Hello")], b"");
    check(&unknown, response::TOPIC_NOT_EXIST);

    let mut producer = Client::connect(broker);
    check(&producer.send("Hello", b"first"), response::SUCCESS);
    let route = names.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "Hello")], b"");
    check(&route, response::SUCCESS);

    let mut consumer = Client::connect(broker);
    check(&consumer.pull("CG", "Hello", "0"), response::SUBSCRIPTION_NOT_EXIST);
    check(&consumer.heartbeat("CG", "Hello", "a"), response::SUCCESS);
    let got = consumer.pull("CG", "Hello", "0");
    check(&got, response::SUCCESS);
    let bodies: Vec<_> = records(&got.body).map(|record| record.unwrap().body.to_vec()).collect();
    assert_eq!(bodies, [b"first"]);

    let waiting = std::thread::spawn(move || consumer.pull("CG", "Hello", "1"));
    check(&producer.send("Hello", b"second"), response::SUCCESS);
    let got = waiting.join().unwrap();
    check(&got, response::SUCCESS);
    assert_eq!(got.ext["nextBeginOffset"], "2");
    stop(server);
}

/// Each change is on the disk before it is answered; others must not wait for that.
#[test]
fn a_flood_of_kv_changes_does_not_keep_routes_waiting() {
    const CHANGES: i32 = 500;
    let folder = Folder::new();
    let server = start(&folder, &["namesrv"]);
    let addr = server.namesrv_addr().unwrap();
    let (mut flood, mut names) = (Client::connect(addr), Client::connect(addr));
    let mut out = Vec::new();
    for change in 0..CHANGES {
        let entries = |writer: &mut FrameWriter<'_, '_>| {
            writer.ext("namespace", "N");
            writer.ext("key", &format!("key-{change}"));
            writer.ext("value", "v");
        };
        let code = request::PUT_KV_CONFIG;
        encode::request(&mut out, Encoding::Json, change, code, 0, entries, b"").unwrap();
    }
    flood.0.write_all(&out).unwrap();
    let unknown = names.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "Hello")], b"");
    check(&unknown, response::TOPIC_NOT_EXIST);
    let last = ("key", format!("key-{}", CHANGES - 1));
    let last = [("namespace", "N"), (last.0, &*last.1)];
    let not_yet = names.call(request::GET_KV_CONFIG, &last, b"");
    check(&not_yet, response::QUERY_NOT_FOUND);
    for change in 0..CHANGES {
        let (_, opaque, got) = flood.get();
        check(&got, response::SUCCESS);
        assert_eq!(opaque, change, "answers keep the order of the changes");
    }
    check(&names.call(request::GET_KV_CONFIG, &last, b""), response::SUCCESS);
    stop(server);
}

#[test]
fn topics_and_groups_are_there_after_a_restart() {
    let folder = Folder::new();
    for round in 0..2 {
        let server = start(&folder, &[]);
        let mut client = Client::connect(server.broker_addr().unwrap());
        if round == 0 {
            check(&client.send("Kept", b"x"), response::SUCCESS);
            check(&client.heartbeat("KeptGroup", "Kept", "*"), response::SUCCESS);
        }
        let mut names = Client::connect(server.namesrv_addr().unwrap());
        for topic in ["Kept", "%RETRY%KeptGroup"] {
            let route = names.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", topic)], b"");
            check(&route, response::SUCCESS);
        }
        stop(server);
    }
}

#[test]
fn clients_of_the_vip_channel_are_served_like_all_others() {
    let folder = Folder::new();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let server = start_on(&listen, &folder, &[]);
    let vip = SocketAddr::from(([127, 0, 0, 1], port - 2));
    assert_eq!(server.vip_addr(), Some(vip));
    assert!(server.about().iter().any(|(_, value)| value.starts_with(&vip.to_string())));

    let mut old = Client::connect(vip);
    check(&old.send("Vip", b"fast"), response::SUCCESS);
    let mut new = Client::connect(server.broker_addr().unwrap());
    for (client, group) in [(&mut old, "OldGroup"), (&mut new, "NewGroup")] {
        check(&client.heartbeat(group, "Vip", "a"), response::SUCCESS);
        let got = client.pull(group, "Vip", "0");
        check(&got, response::SUCCESS);
        assert_eq!(records(&got.body).count(), 1);
    }
    stop(server);
    assert!(TcpStream::connect(vip).is_err(), "the port is closed with the broker");
}

#[test]
fn a_broker_without_its_vip_port_works_for_all_others() {
    let folder = Folder::new();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let busy = TcpListener::bind(("127.0.0.1", port - 2)).unwrap();
    let server = start_on(&listen, &folder, &[]);
    assert_eq!(server.vip_addr(), None);
    let mut client = Client::connect(server.broker_addr().unwrap());
    check(&client.send("Plain", b"x"), response::SUCCESS);
    stop(server);
    drop(busy);

    let conf = folder.0.join("broker.conf");
    std::fs::write(&conf, "vipChannelEnable=false").unwrap();
    let server = start_on(&listen, &folder, &["-c", conf.to_str().unwrap()]);
    assert_eq!(server.vip_addr(), None);
    assert!(TcpStream::connect(("127.0.0.1", port - 2)).is_err());
    stop(server);
    let server = start(&folder, &[]);
    assert_eq!(server.vip_addr(), None, "none beside a port that is any");
    stop(server);
}

#[test]
fn the_vip_channel_takes_no_port_that_the_name_server_was_given() {
    let folder = Folder::new();
    let port = free_port();
    let data = folder.0.to_str().unwrap();
    let (listen, namesrv) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port - 2));
    let arguments = ["ringmq", "--data", data, "--listen", &listen, "--namesrv-listen", &namesrv];
    let cli = Cli::try_parse_from(arguments).unwrap();
    let server = Server::start(&Config::load(&cli).unwrap()).unwrap();
    assert_eq!(server.namesrv_addr(), Some(namesrv.parse().unwrap()));
    assert_eq!(server.vip_addr(), None);
    stop(server);
}

#[test]
fn a_topic_without_queues_does_not_come_into_being_by_a_send() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let mut client = Client::connect(server.broker_addr().unwrap());
    for queues in ["0", "-1"] {
        let refused = client.first_send("Dry", queues, b"x");
        check(&refused, response::SYSTEM_ERROR);
        assert!(refused.remark.contains("defaultTopicQueueNums"), "{}", refused.remark);
    }
    let mut names = Client::connect(server.namesrv_addr().unwrap());
    let route = names.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "Dry")], b"");
    check(&route, response::TOPIC_NOT_EXIST);
    check(&client.first_send("Dry", "1", b"x"), response::SUCCESS);
    stop(server);
}

#[test]
fn unknown_requests_are_answered() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    for addr in [server.broker_addr().unwrap(), server.namesrv_addr().unwrap()] {
        let got = Client::connect(addr).call(4711, &[], b"");
        check(&got, response::REQUEST_CODE_NOT_SUPPORTED);
    }
    stop(server);
}

#[test]
fn a_name_server_alone_and_a_broker_alone_find_each_other() {
    let folders = [Folder::new(), Folder::new()];
    let names = start(&folders[0], &["namesrv"]);
    let addr = names.namesrv_addr().unwrap().to_string();
    assert_eq!(names.broker_addr(), None);
    let broker = start(&folders[1], &["broker", "-n", &addr]);
    let mut client = Client::connect(broker.broker_addr().unwrap());
    // The answer comes when the name server knows the topic.
    check(&client.send("Apart", b"x"), response::SUCCESS);
    let mut asked = Client::connect(names.namesrv_addr().unwrap());
    let route = asked.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "Apart")], b"");
    check(&route, response::SUCCESS);
    stop(broker);
    let route = asked.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", "Apart")], b"");
    check(&route, response::TOPIC_NOT_EXIST);
    stop(names);
}
