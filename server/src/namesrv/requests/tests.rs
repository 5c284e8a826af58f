use ringmq_protocol::{
    body::{DataVersion, RegisterBrokerBody, TopicConfig},
    command::{FLAG_ONEWAY, Language},
    encode::{self, FrameWriter, Head, begin_frame},
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::{BrokerIdentity, RegisterBrokerRequest},
};

use std::io;

use super::*;
use crate::control::testing::{self, recorded};
use crate::namesrv::kv::KvChange;

struct Bench {
    server: NameServer,
    now: Instant,
    /// What `save` says.
    writable: bool,
}

impl Bench {
    fn new() -> Self {
        let server = NameServer::new(KvTable::default(), false);
        Self { server, now: crate::clock::instant(), writable: true }
    }

    fn frame(&mut self, bytes: &[u8]) -> Answer {
        let frame = frame::decode(bytes, FRAME_LEN_MAX).unwrap().unwrap();
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        let addr = "127.0.0.1:5".parse().unwrap();
        let writable = self.writable;
        if let Some(change) = KvChange::of(&command) {
            let save = |_: &[u8]| match writable {
                true => Ok(()),
                false => Err(io::Error::other("read-only")),
            };
            return match change {
                Ok(change) => self.server.kv_changed(change.apply(&self.server.kv(), save)),
                Err(error) => error.into(),
            };
        }
        self.server.handle(Peer(1), addr, &command, frame.body, self.now)
    }

    fn ask(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: &[u8],
    ) -> Answer {
        let mut out = Vec::new();
        encode::request(&mut out, Encoding::Json, 1, code, 0, ext, body).unwrap();
        self.frame(&out)
    }

    fn with(&mut self, code: i32, entries: &[(&str, &str)]) -> Answer {
        let ext = |out: &mut FrameWriter<'_, '_>| {
            for (name, value) in entries {
                out.ext(name, value);
            }
        };
        self.ask(code, ext, &[])
    }

    fn register(&mut self, id: i64, topics: &[&str], change: impl Fn(&mut Request)) -> Answer {
        let mut body = RegisterBrokerBody::default();
        let table = &mut body.topic_config_serialize_wrapper;
        table.data_version = DataVersion { counter: 1, timestamp: 5, state_version: 0 };
        for topic in topics {
            let config = TopicConfig::new((*topic).to_owned(), 4, 6);
            table.topic_config_table.insert((*topic).to_owned(), config);
        }
        let header = RegisterBrokerRequest {
            broker_name: "a".into(),
            broker_addr: format!("h:{id}").into(),
            cluster_name: "C".into(),
            ha_server_addr: "h:9".into(),
            broker_id: id,
            compressed: false,
            body_crc32: 0,
            heartbeat_timeout_ms: None,
            enable_acting_master: None,
            zone_name: None,
        };
        let mut request = Request { header, body: body::encode(&body) };
        change(&mut request);
        let Request { header, body } = request;
        self.ask(request::REGISTER_BROKER, |out| header.encode(out), &body)
    }
}

struct Request {
    header: RegisterBrokerRequest<'static>,
    body: Vec<u8>,
}

fn deflate(text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    out.write_all(text).unwrap();
    out.finish().unwrap()
}

fn text(answer: &Answer) -> &str {
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    std::str::from_utf8(&answer.body).unwrap()
}

#[test]
fn a_route_is_compact_standard_json() {
    let mut bench = Bench::new();
    assert_eq!(bench.register(0, &["T"], |_| {}).code, 0);
    assert_eq!(bench.register(1, &[], |_| {}).code, 0);
    assert_eq!(
        text(&bench.with(105, &[("topic", "T")])),
        r#"{"brokerDatas":[{"brokerAddrs":{"0":"h:0","1":"h:1"},"brokerName":"a","cluster":"C"}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#
    );
}

#[test]
fn clients_of_5_hear_that_no_replica_acts_as_master() {
    let mut bench = Bench::new();
    assert_eq!(bench.register(0, &["T"], |_| {}).code, 0);
    let mut ask = |code, version| {
        let mut out = Vec::new();
        let head = Head {
            encoding: Encoding::Json,
            code,
            language: Language::Rust,
            version,
            opaque: 1,
            flag: 0,
            remark: None,
        };
        let mut writer = begin_frame(&mut out, head);
        writer.ext("topic", "T");
        writer.finish(0).unwrap();
        text(&bench.frame(&out)).contains(r#""cluster":"C","enableActingMaster":false}"#)
    };
    for code in [request::GET_ROUTEINFO_BY_TOPIC, request::GET_BROKER_CLUSTER_INFO] {
        assert!(ask(code, VERSION_5_0_0) && !ask(code, VERSION_5_0_0 - 1), "request {code}");
    }
}

#[test]
fn an_unknown_topic_gets_code_17_with_the_remark_of_upstream() {
    let mut bench = Bench::new();
    let answer = bench.with(105, &[("topic", "GoldenTopic")]);
    let recorded = recorded("java498-json.jsonl");
    let upstream = recorded.iter().find(|frame| frame.response && frame.code == 17).unwrap();
    assert_eq!((answer.code, answer.remark.as_deref()), (17, upstream.remark.as_deref()));
    assert_eq!(bench.with(105, &[]).code, 1);
}

/// The registration of a 4.9.7 broker, as recorded; then what the name server of 4.9.7 said.
#[test]
fn a_recorded_broker_registers_and_is_found() {
    let mut bench = Bench::new();
    for frame in recorded("broker497-registers.jsonl").iter().filter(|frame| !frame.response) {
        let answer = bench.frame(&frame.bytes);
        assert_eq!((answer.code, &answer.body[..], answer.ext.len()), (0, &[][..], 0));
    }
    let upstream = recorded("mqadmin498.jsonl");
    let recorded_body = |code: i32, starts: &str| {
        let answers = upstream.iter().filter(|frame| frame.response && frame.request == code);
        answers.map(|frame| frame.body()).find(|body| body.starts_with(starts)).unwrap()
    };
    let route = bench.with(105, &[("topic", "TBW102")]);
    assert_eq!(text(&route), recorded_body(105, "{\"brokerDatas\""));
    let cluster = bench.with(106, &[]);
    // Upstream leaves the broker id unquoted, which is no standard JSON.
    assert_eq!(text(&cluster), recorded_body(106, "{").replace("{0:", "{\"0\":"));
    assert!(text(&bench.with(206, &[])).contains("\"GoldenTopic\""));
}

#[test]
fn deflated_and_old_registrations_are_read_too() {
    let mut bench = Bench::new();
    let answer = bench.register(0, &["T", "U"], |request| {
        let body: RegisterBrokerBody = body::decode(&request.body).unwrap();
        request.body = deflate(&body.to_text());
        request.header.compressed = true;
        request.header.body_crc32 =
            i32::try_from(crc32fast::hash(&request.body) & 0x7fff_ffff).unwrap();
    });
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(text(&bench.with(206, &[])), r#"{"topicList":["T","U"]}"#);
}

#[test]
fn registrations_that_cannot_be_read_are_refused() {
    let mut bench = Bench::new();
    let wrong_sum = bench.register(0, &["T"], |request| request.header.body_crc32 = 7);
    assert_eq!(wrong_sum.remark.as_deref(), Some("crc32 not match"));
    let no_json = bench.register(0, &[], |request| request.body = b"{".to_vec());
    assert_eq!(no_json.code, 1);
    let no_zlib = bench.register(0, &[], |request| request.header.compressed = true);
    assert_eq!(no_zlib.code, 1);
    let bomb = deflate(&vec![0; register::INFLATED_LEN_MAX + 1]);
    let too_long = bench.register(0, &[], |request| {
        request.header.compressed = true;
        request.body = bomb.clone();
    });
    assert!(too_long.remark.unwrap().contains("inflates to more than"));
    assert_eq!(text(&bench.with(106, &[])), r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#);
    // Without a body a broker is known, but none of its topics.
    assert_eq!(bench.register(0, &[], |request| request.body = Vec::new()).code, 0);
    assert!(text(&bench.with(106, &[])).contains("h:0"));
}

#[test]
fn a_slave_is_told_its_master_and_everyone_the_ordered_topics() {
    let mut bench = Bench::new();
    let entries = [("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T"), ("value", "a:4")];
    assert_eq!(bench.with(100, &entries).code, 0);
    let master = bench.register(0, &["T"], |_| {});
    assert_eq!(text(&master), r#"{"table":{"T":"a:4"}}"#);
    assert!(master.ext.is_empty());
    let slave = bench.register(1, &[], |_| {});
    let want = [("haServerAddr", "h:9".to_owned()), ("masterAddr", "h:0".to_owned())];
    assert_eq!(slave.ext, want);
}

#[test]
fn ordered_topics_are_in_routes_only_where_that_is_on() {
    let mut bench = Bench::new();
    bench.register(0, &["T"], |_| {});
    bench.with(100, &[("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T"), ("value", "a:4")]);
    assert!(!text(&bench.with(105, &[("topic", "T")])).contains("orderTopicConf"));
    assert_eq!(bench.ask(318, |_| {}, b"# on\norderMessageEnable = true\nother=1\n").code, 0);
    assert_eq!(text(&bench.with(319, &[])), "orderMessageEnable=true\n");
    let route = bench.with(105, &[("topic", "T")]);
    assert!(text(&route).contains(r#""orderTopicConf":"a:4""#));
    assert_eq!(bench.ask(318, |_| {}, b"kvConfigPath=/etc/passwd").code, 16);
}

#[test]
fn kv_entries_answer_as_upstream() {
    let mut bench = Bench::new();
    let key = [("namespace", "NS1"), ("key", "kk")];
    assert_eq!(bench.with(101, &key).code, 22);
    assert_eq!(bench.with(219, &[("namespace", "NS1")]).code, 22);
    assert_eq!(bench.with(100, &key).code, 1);
    assert_eq!(bench.with(100, &[key[0], key[1], ("value", "vv")]).code, 0);
    assert_eq!(bench.with(101, &key).ext, [("value", "vv".to_owned())]);
    assert_eq!(text(&bench.with(219, &[("namespace", "NS1")])), r#"{"table":{"kk":"vv"}}"#);
    assert_eq!(bench.with(102, &key).code, 0);
    assert_eq!(bench.with(101, &key).code, 22);
}

#[test]
fn a_kv_entry_that_cannot_be_written_is_not_there() {
    let mut bench = Bench::new();
    bench.writable = false;
    let key = [("namespace", "NS1"), ("key", "kk")];
    assert_eq!(bench.with(100, &[key[0], key[1], ("value", "vv")]).code, 1);
    assert_eq!(bench.with(101, &key).code, 22);
}

#[test]
fn versions_can_be_asked_for() {
    let mut bench = Bench::new();
    let version = body::encode(&DataVersion { counter: 1, timestamp: 5, state_version: 0 });
    let identity = BrokerIdentity {
        broker_name: "a".into(),
        broker_addr: "h:0".into(),
        cluster_name: "C".into(),
        broker_id: 0,
    };
    let unknown = bench.ask(322, |out| identity.encode(out), &version);
    assert_eq!(unknown.ext, [("changed", "true".to_owned())]);
    assert!(unknown.body.is_empty());
    bench.register(0, &["T"], |_| {});
    let same = bench.ask(322, |out| identity.encode(out), &version);
    assert_eq!(same.ext, [("changed", "false".to_owned())]);
    assert_eq!(same.body, version);
    let other = bench.ask(322, |out| identity.encode(out), b"{\"counter\":2,\"timestamp\":5}");
    assert_eq!(other.ext, [("changed", "true".to_owned())]);
    assert_eq!(bench.with(904, &[("brokerAddr", "h:0")]).code, 1);
    let heartbeat = [("brokerAddr", "x"), ("brokerName", "a"), ("clusterName", "C")];
    assert_eq!(bench.with(904, &heartbeat).code, 0);
    assert_eq!(bench.ask(104, |out| identity.encode(out), &[]).code, 0);
    assert_eq!(bench.with(105, &[("topic", "T")]).code, 17);
}

#[test]
fn lists_and_permissions_answer_as_upstream() {
    let mut bench = Bench::new();
    bench.register(0, &["T", "U"], |_| {});
    assert_eq!(text(&bench.with(224, &[("cluster", "C")])), r#"{"topicList":["T","U"]}"#);
    assert_eq!(text(&bench.with(224, &[("cluster", "D")])), r#"{"topicList":[]}"#);
    assert_eq!(text(&bench.with(304, &[])), r#"{"brokerAddr":"h:0","topicList":["C","a"]}"#);
    for code in [311, 312, 313] {
        assert_eq!(text(&bench.with(code, &[])), r#"{"topicList":[]}"#);
    }
    let wiped = bench.with(205, &[("brokerName", "a")]);
    assert_eq!(wiped.ext, [("wipeTopicCount", "2".to_owned())]);
    assert!(text(&bench.with(105, &[("topic", "T")])).contains("\"perm\":4"));
    let added = bench.with(327, &[("brokerName", "a")]);
    assert_eq!(added.ext, [("addTopicCount", "2".to_owned())]);
    assert_eq!(bench.with(216, &[("topic", "T"), ("clusterName", "C")]).code, 0);
    assert_eq!(bench.with(105, &[("topic", "T")]).code, 17);
    let group = bench.with(901, &[("clusterName", "C"), ("brokerName", "a")]);
    assert_eq!(
        text(&group),
        r#"{"brokerMemberGroup":{"brokerAddrs":{"0":"h:0"},"brokerName":"a","cluster":"C"}}"#
    );
}

#[test]
fn a_topic_can_be_added_by_request_but_not_as_a_path() {
    let mut bench = Bench::new();
    bench.register(0, &["T"], |_| {});
    let route = bench.with(105, &[("topic", "T")]).body;
    assert_eq!(bench.ask(217, |out| out.ext("topic", "V"), &route).code, 0);
    assert_eq!(bench.with(105, &[("topic", "V")]).code, 0);
    assert_eq!(bench.ask(217, |out| out.ext("topic", "../x"), &route).code, 1);
    assert_eq!(bench.ask(217, |out| out.ext("topic", "W"), b"").code, 1);
    assert_eq!(bench.register(0, &["../x"], |_| {}).code, 0);
    assert!(!text(&bench.with(206, &[])).contains(".."));
}

#[test]
fn unknown_codes_get_code_3() {
    let mut bench = Bench::new();
    for code in [0, 10, 34, 999, -1, 200_050] {
        let answer = bench.with(code, &[]);
        let remark = format!(" request type {code} not supported");
        assert_eq!((answer.code, answer.remark.as_deref()), (3, Some(&*remark)));
    }
    let mut oneway = Vec::new();
    encode::request(&mut oneway, Encoding::Binary, 1, 105, FLAG_ONEWAY, |_| {}, &[]).unwrap();
    assert_eq!(bench.frame(&oneway).code, 1);
}

/// Every request that was recorded with a real name server gets the same code and the same header
/// entries here, whatever its headers' encoding.
#[test]
fn recorded_requests_get_answers_of_the_recorded_shape() {
    for file in ["java498-json.jsonl", "java498-binary.jsonl", "mqadmin498.jsonl", "go-v2.jsonl"] {
        let mut bench = Bench::new();
        for frame in recorded("broker497-registers.jsonl").iter().filter(|frame| !frame.response) {
            bench.frame(&frame.bytes);
        }
        for frame in recorded(file).iter().filter(|frame| !frame.response && frame.to_namesrv) {
            let answer = bench.frame(&frame.bytes);
            assert!([0, 17].contains(&answer.code), "{file}: {} -> {answer:?}", frame.code);
        }
    }
}

#[test]
fn damaged_requests_get_answers_and_leave_only_allowed_topics() {
    let mut bench = Bench::new();
    let mut refused = 0;
    testing::mutated(20_000, |bytes| refused += i32::from(bench.frame(bytes).code != 0));
    assert!(refused > 1000, "{refused}");
    assert_eq!(bench.server.routes.topics().filter(|topic| topic.contains('.')).count(), 0);
}
