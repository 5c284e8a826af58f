use std::{net::SocketAddr, time::Duration};

use ringmq_protocol::{
    encode::{self, FrameWriter},
    frame::{self, Encoding, FRAME_LEN_MAX},
    names::validate_topic,
};

use super::*;
use crate::{
    context::{ConnId, Principal, Transport},
    control::{
        BrokerControlConfig, ConsumeType, MessageModel, PERM_READ,
        testing::{self, recorded},
    },
};

struct Bench {
    broker: Broker,
    now: Now,
}

fn ctx(slot: u32) -> RequestContext {
    RequestContext {
        peer: SocketAddr::from(([127, 0, 0, 1], 40_000)),
        conn: ConnId { thread: 0, slot, generation: 1 },
        transport: Transport::Plain,
        principal: Principal::Anonymous,
    }
}

impl Bench {
    fn new() -> Self {
        Self::with_config(testing::broker_config())
    }

    fn with_config(config: BrokerControlConfig) -> Self {
        let broker = Broker::restore(config, [], 1_700_000_000_000).unwrap();
        let now = Now { instant: crate::clock::instant(), epoch_ms: 1_700_000_000_001 };
        Self { broker, now }
    }

    fn frame(&mut self, slot: u32, bytes: &[u8]) -> Answer {
        let frame = frame::decode(bytes, FRAME_LEN_MAX).unwrap().unwrap();
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        handle(&mut self.broker, &ctx(slot), &command, frame.body, self.now)
    }

    fn ask(&mut self, slot: u32, code: i32, entries: &[(&str, &str)], body: &str) -> Answer {
        let ext = |out: &mut FrameWriter<'_, '_>| {
            for (name, value) in entries {
                out.ext(name, value);
            }
        };
        let mut out = Vec::new();
        encode::request(&mut out, Encoding::Json, 1, code, 0, ext, body.as_bytes()).unwrap();
        self.frame(slot, &out)
    }

    fn beat(&mut self, slot: u32, group: &str, subscriptions: &str) -> Answer {
        let body = format!(
            r#"{{"clientID":"c{slot}","consumerDataSet":[{{"groupName":"{group}","subscriptionDataSet":[{subscriptions}]}}],"producerDataSet":[{{"groupName":"P"}}]}}"#
        );
        self.ask(slot, 34, &[], &body)
    }

    fn create(&mut self, topic: &str, change: &[(&str, &str)]) -> Answer {
        let mut entries = vec![
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", "4"),
            ("writeQueueNums", "5"),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "true"),
        ];
        for (name, value) in change {
            entries.retain(|(other, _)| other != name);
            entries.push((name, value));
        }
        self.ask(1, 17, &entries, "")
    }
}

fn text(answer: &Answer) -> &str {
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    std::str::from_utf8(&answer.body).unwrap()
}

#[track_caller]
fn check_refused(answer: &Answer, code: i32, remark: &str) {
    assert_eq!((answer.code, answer.remark.as_deref()), (code, Some(remark)));
}

#[test]
fn a_topic_is_created_and_changed_in_place() {
    let mut bench = Bench::new();
    let answer = bench.create("T", &[]);
    assert_eq!((answer.code, answer.remark.as_deref()), (0, Some("not set any response code")));
    let topic = bench.broker.topics.get("T").unwrap();
    assert_eq!((topic.read_queue_nums, topic.write_queue_nums, topic.perm), (4, 5, 6));
    assert!(!topic.order);
    assert_eq!(bench.create("T", &[("perm", "4"), ("topicFilterType", "MULTI_TAG")]).code, 0);
    let topic = bench.broker.topics.get("T").unwrap();
    assert_eq!((topic.perm, topic.filter_type.name()), (PERM_READ, "MULTI_TAG"));
    // Odd, but taken by upstream.
    assert_eq!(bench.create("U", &[("perm", "99"), ("readQueueNums", "0")]).code, 0);
}

#[test]
fn topics_that_upstream_refuses_are_refused_with_its_remarks() {
    let mut bench = Bench::new();
    let illegal =
        "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$";
    check_refused(&bench.create("../x", &[]), 1, illegal);
    check_refused(&bench.create(" ", &[]), 1, "The specified topic is blank.");
    let long = "x".repeat(128);
    let too_long = "The specified topic is longer than topic max length.";
    check_refused(&bench.create(&long, &[]), 1, too_long);
    for system in ["TBW102", "SELF_TEST_TOPIC", "rmq_sys_x", "DefaultCluster", "broker-a"] {
        let remark = format!("The topic[{system}] is conflict with system topic.");
        check_refused(&bench.create(system, &[]), 1, &remark);
    }
    let remark = "topicFilterType = [x] value invalid";
    check_refused(&bench.create("T", &[("topicFilterType", "x")]), 1, remark);
    for (field, value) in
        [("readQueueNums", "-1"), ("writeQueueNums", "70000"), ("perm", "-1"), ("perm", "x")]
    {
        assert_eq!(bench.create("T", &[(field, value)]).code, 1, "{field}={value}");
    }
    assert_eq!(bench.ask(1, 17, &[("topic", "T")], "").code, 1);
    assert_eq!(bench.broker.topics.get("T"), None);
}

#[test]
fn a_slave_changes_neither_topics_nor_groups() {
    let mut bench =
        Bench::with_config(BrokerControlConfig { broker_id: 1, ..testing::broker_config() });
    check_refused(&bench.create("T", &[]), 1, ON_SLAVE);
    check_refused(&bench.ask(1, 200, &[], r#"{"groupName":"G"}"#), 1, ON_SLAVE);
}

#[test]
fn all_topics_and_system_topics_are_listed() {
    let mut bench = Bench::new();
    bench.create("T", &[]);
    let answer = bench.ask(1, 21, &[], "");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["dataVersion"]["timestamp"], 1_700_000_000_001_i64);
    assert_eq!(body["topicConfigTable"]["T"]["writeQueueNums"], 5);
    assert!(text(&answer).contains(
        r#""TBW102":{"order":false,"perm":7,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8}"#
    ));
    let system = bench.ask(1, 305, &[], "");
    assert!(text(&system).contains("SCHEDULE_TOPIC_XXXX") && !text(&system).contains("\"T\""));
}

#[test]
fn a_heartbeat_makes_group_retry_topic_and_members() {
    let mut bench = Bench::new();
    let subscription = r#"{"topic":"T","subString":"TagA || TagB","tagsSet":["TagB","TagA"],"codeSet":["1"],"subVersion":"7"}"#;
    let answer = bench.beat(1, "G", subscription);
    assert_eq!(answer, Answer::ok());
    let retry = bench.broker.topics.get("%RETRY%G").unwrap();
    assert_eq!((retry.read_queue_nums, retry.write_queue_nums, retry.perm), (1, 1, 6));
    let list = bench.ask(1, 38, &[("consumerGroup", "G")], "");
    assert_eq!(text(&list), r#"{"consumerIdList":["c1"]}"#);
    bench.broker.take_facts();
    let outcome = bench.broker.decide(true);
    let groups = outcome.groups.unwrap();
    let view = groups.group("G").unwrap();
    assert!(view.online && view.config.is_some());
    let view = view.subscription("T").unwrap();
    assert_eq!((view.sub_version, &*view.codes), (7, &[2_598_919, 2_598_920][..]));
    assert_eq!(bench.broker.take_notices().len(), 1);
}

#[test]
fn tags_come_from_the_expression_where_the_set_is_absent() {
    let mut bench = Bench::new();
    bench.beat(1, "G", r#"{"topic":"T","subString":"TagA||TagB"},{"topic":"U","subString":"*"}"#);
    let group = bench.broker.members.consumers("G").unwrap();
    assert_eq!(&*group.subscriptions["T"].codes, [2_598_919, 2_598_920]);
    assert!(group.subscriptions["U"].codes.is_empty());
    assert!(group.subscriptions["U"].is_tag());
}

#[test]
fn heartbeats_without_a_client_or_of_no_shape_are_refused() {
    let mut bench = Bench::new();
    for body in ["", "[]", "{}", "{\"clientID\":\"\"}", "{\"clientID\":null}", "{\"clientID\":7"] {
        assert_eq!(bench.ask(1, 34, &[], body).code, 1, "{body}");
    }
    let groups = vec![r#"{"groupName":"P"}"#; 1025].join(",");
    let many = format!(r#"{{"clientID":"c","producerDataSet":[{groups}]}}"#);
    assert_eq!(bench.ask(1, 34, &[], &many).code, 1);
    let long = "x".repeat(2000);
    assert_eq!(bench.ask(1, 34, &[], &format!("{{\"clientID\":\"{long}\"}}")).code, 1);
}

#[test]
fn a_group_that_may_not_be_created_still_has_members() {
    let mut bench = Bench::with_config(BrokerControlConfig {
        auto_create_group: false,
        ..testing::broker_config()
    });
    assert_eq!(bench.beat(1, "G", r#"{"topic":"T"}"#).code, 0);
    assert_eq!(bench.ask(1, 38, &[("consumerGroup", "G")], "").code, 0);
    assert_eq!(bench.broker.topics.get("%RETRY%G"), None);
    assert!(bench.broker.decide(true).groups.unwrap().group("G").unwrap().config.is_none());
}

#[test]
fn a_group_name_never_becomes_a_bad_topic() {
    let mut bench = Bench::new();
    let (long, longer) = ("g".repeat(121), "g".repeat(256));
    for (group, code) in [("../x", 1), ("", 1), ("a b", 1), (&longer, 1), (&long, 0)] {
        let body = format!(r#"{{"clientId":"c","consumerGroup":"{group}","mqSet":[]}}"#);
        assert_eq!(bench.beat(1, group, r#"{"topic":"T"}"#).code, code, "34 {group}");
        assert_eq!(bench.ask(1, 38, &[("consumerGroup", group)], "").code, code, "38 {group}");
        assert_eq!(bench.ask(1, 41, &[], &body).code, code, "41 {group}");
        assert_eq!(bench.ask(1, 42, &[], &body).code, code, "42 {group}");
        assert_eq!(bench.broker.groups.all().contains_key(group), code == 0, "{group}");
    }
    assert!(bench.broker.topics.all().keys().all(|topic| !topic.starts_with("%RETRY%")));
}

#[test]
fn a_bad_group_name_costs_the_other_groups_of_its_heartbeat_nothing() {
    let mut bench = Bench::new();
    let traces = "t".repeat(300);
    let groups = |names: &[&str]| {
        let names: Vec<_> =
            names.iter().map(|name| format!(r#"{{"groupName":"{name}"}}"#)).collect();
        names.join(",")
    };
    let body = format!(
        r#"{{"clientID":"c","consumerDataSet":[{}],"producerDataSet":[{}]}}"#,
        groups(&["G", "../x", "H"]),
        groups(&["P", "a.b", &traces])
    );
    let answer = bench.ask(1, 34, &[], &body);
    assert_eq!(answer.code, 1);
    assert!(answer.remark.as_deref().unwrap().contains("a.b"), "{:?}", answer.remark);
    for group in ["G", "H"] {
        assert_eq!(bench.ask(1, 38, &[("consumerGroup", group)], "").code, 0, "{group}");
    }
    for (group, known) in [("P", true), ("a.b", false), (&traces, true)] {
        assert_eq!(bench.broker.members.producers(group).is_some(), known, "{group}");
    }
}

#[test]
fn a_queue_whose_topic_can_have_none_is_never_locked() {
    let mut bench = Bench::new();
    let queues = ["../x", "", "T"]
        .map(|topic| format!(r#"{{"brokerName":"b","queueId":0,"topic":"{topic}"}}"#));
    let body = format!(r#"{{"clientId":"c","consumerGroup":"G","mqSet":[{}]}}"#, queues.join(","));
    let granted = bench.ask(1, 41, &[], &body);
    assert_eq!(text(&granted), format!(r#"{{"lockOKMQSet":[{}]}}"#, queues[2]));
}

#[test]
fn members_leave_by_request_and_unknown_groups_get_1() {
    let mut bench = Bench::new();
    bench.beat(1, "G", r#"{"topic":"T"}"#);
    bench.beat(2, "G", r#"{"topic":"T"}"#);
    let leave = [("clientID", "anything"), ("consumerGroup", "G"), ("producerGroup", "")];
    assert_eq!(bench.ask(1, 35, &leave, ""), Answer::ok());
    let list = bench.ask(2, 38, &[("consumerGroup", "G")], "");
    assert_eq!(text(&list), r#"{"consumerIdList":["c2"]}"#);
    assert_eq!(bench.ask(2, 35, &leave, ""), Answer::ok());
    let empty = bench.ask(2, 38, &[("consumerGroup", "G")], "");
    check_refused(&empty, 1, "no consumer for this group, G");
    assert_eq!(bench.ask(2, 35, &leave, ""), Answer::ok());
    assert_eq!(bench.ask(2, 35, &[], "").code, 1);
}

#[test]
fn locks_are_granted_to_one_client_at_a_time() {
    let mut bench = Bench::new();
    let body = |client: &str, queues: &str| {
        format!(r#"{{"clientId":"{client}","consumerGroup":"G","mqSet":[{queues}]}}"#)
    };
    let queue = |id: i32| format!(r#"{{"brokerName":"b","queueId":{id},"topic":"T"}}"#);
    let both = format!("{},{}", queue(0), queue(1));
    let granted = bench.ask(1, 41, &[], &body("a", &queue(0)));
    assert_eq!(text(&granted), format!(r#"{{"lockOKMQSet":[{}]}}"#, queue(0)));
    let rest = bench.ask(2, 41, &[], &body("b", &both));
    assert_eq!(text(&rest), format!(r#"{{"lockOKMQSet":[{}]}}"#, queue(1)));
    assert_eq!(bench.ask(1, 42, &[], &body("a", &both)), Answer::ok());
    let free = bench.ask(2, 41, &[], &body("b", &both));
    assert_eq!(text(&free), format!(r#"{{"lockOKMQSet":[{both}]}}"#));
    bench.now.instant += Duration::from_secs(61);
    assert_eq!(
        text(&bench.ask(1, 41, &[], &body("a", &queue(1)))),
        text(&Answer::body(format!(r#"{{"lockOKMQSet":[{}]}}"#, queue(1)).into_bytes()))
    );
    assert_eq!(bench.ask(1, 41, &[], "").code, 1);
    assert_eq!(bench.ask(1, 41, &[], r#"{"mqSet":[]}"#).code, 1);
}

#[test]
fn only_tag_expressions_pass_the_check() {
    let mut bench = Bench::new();
    for (kind, code) in [("null", 0), ("\"\"", 0), ("\"TAG\"", 0), ("\"SQL92\"", 1)] {
        let body = format!(r#"{{"subscriptionData":{{"topic":"T","expressionType":{kind}}}}}"#);
        assert_eq!(bench.ask(1, 46, &[], &body).code, code, "{kind}");
    }
    let sql = r#"{"subscriptionData":{"topic":"T","expressionType":"SQL92"}}"#;
    let remark = "The broker does not support consumer to filter message by SQL92";
    check_refused(&bench.ask(1, 46, &[], sql), 1, remark);
}

#[test]
fn groups_are_configured_and_listed() {
    let mut bench = Bench::new();
    let body = r#"{"groupName":"adm_group","consumeBroadcastEnable":false,"retryMaxTimes":3}"#;
    assert_eq!(bench.ask(1, 200, &[], body), Answer::ok());
    assert_eq!(bench.ask(1, 200, &[], r#"{"groupName":"../x"}"#).code, 1);
    assert!(text(&bench.ask(1, 201, &[], "")).contains(
        r#""adm_group":{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"adm_group","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#
    ));
}

#[test]
fn connections_are_listed_for_admin_tools() {
    let mut bench = Bench::new();
    let nobody = bench.ask(1, 203, &[("consumerGroup", "nc")], "");
    check_refused(&nobody, 206, "the consumer group[nc] not online");
    let nobody = bench.ask(1, 204, &[("producerGroup", "P")], "");
    check_refused(&nobody, 1, "the producer group[P] not exist");
    bench.beat(1, "G", r#"{"topic":"T","subString":"*"}"#);
    let connection =
        r#"{"clientAddr":"127.0.0.1:40000","clientId":"c1","language":"JAVA","version":409}"#;
    let consumers = bench.ask(1, 203, &[("consumerGroup", "G")], "");
    assert!(text(&consumers).starts_with(&format!(r#"{{"connectionSet":[{connection}],"#)));
    assert!(text(&consumers).contains(r#""consumeType":"CONSUME_PASSIVELY""#));
    let producers = bench.ask(1, 204, &[("producerGroup", "P")], "");
    assert_eq!(text(&producers), format!(r#"{{"connectionSet":[{connection}]}}"#));
    assert!(text(&bench.ask(1, 328, &[], "")).starts_with(r#"{"data":{"P":[{"clientId":"c1""#));
}

#[test]
fn unknown_codes_get_code_3() {
    let mut bench = Bench::new();
    for code in [0, 12, 99, 200_050] {
        let remark = format!(" request type {code} not supported");
        check_refused(&bench.ask(1, code, &[], ""), 3, &remark);
    }
}

/// What clients of all languages sent to real brokers is understood, and answered with the code,
/// remark and body that those gave.
#[test]
fn recorded_requests_are_answered_as_recorded() {
    let mut answered = 0;
    for file in [
        "java498-json.jsonl",
        "java498-binary.jsonl",
        "java550-json.jsonl",
        "go-v2.jsonl",
        "node-ali-ons.jsonl",
        "cpp-python.jsonl",
    ] {
        let mut bench = Bench::new();
        for frame in recorded(file).iter().filter(|frame| !frame.response) {
            if matches!(frame.code, 34 | 35 | 41 | 42) && !frame.to_namesrv {
                let answer = bench.frame(1, &frame.bytes);
                assert_eq!((answer.code, &answer.remark), (0, &None), "{file}: {}", frame.code);
                answered += 1;
            }
        }
    }
    assert!(answered > 20, "only {answered} requests found");
}

#[test]
fn a_recorded_cpp_heartbeat_registers_what_it_says() {
    let mut bench = Bench::new();
    for frame in recorded("cpp-python.jsonl") {
        if frame.code == 34 && !frame.response {
            bench.frame(1, &frame.bytes);
        }
    }
    let group = bench.broker.members.consumers("PyC").unwrap();
    assert_eq!(group.terms.consume_type, ConsumeType::Passively);
    assert_eq!(group.terms.message_model, MessageModel::Clustering);
    assert_eq!(group.subscriptions["PyT"].sub_version, 1_796_037_938_511);
    assert_eq!(bench.broker.members.producers("PyG").unwrap().len(), 1);
}

#[test]
fn damaged_requests_get_answers_and_leave_only_allowed_topics() {
    let mut bench = Bench::new();
    let mut refused = 0;
    testing::mutated(20_000, |bytes| refused += i32::from(bench.frame(1, bytes).code != 0));
    assert!(refused > 1000, "{refused}");
    let names = bench.broker.topics.all().keys();
    assert_eq!(names.filter(|name| validate_topic(name).is_err()).count(), 0);
}
