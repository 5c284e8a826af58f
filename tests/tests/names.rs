//! A name that could leave a folder is refused wherever a topic or group might come into being.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{fs, path::Path};

use ringmq_protocol::{
    batch::{self, Item},
    body::{
        self, ConsumerData, DataVersion, HeartbeatData, LockBatchRequest, RegisterBrokerBody,
        SubscriptionData, TopicConfig, TopicConfigTable, TopicList,
    },
    codes::{
        request::{
            CONSUMER_SEND_MSG_BACK, GET_ALL_TOPIC_CONFIG, GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            GET_ROUTEINFO_BY_TOPIC, HEART_BEAT, LOCK_BATCH_MQ, REGISTER_BROKER, SEND_BATCH_MESSAGE,
            SEND_MESSAGE, SEND_MESSAGE_V2, UPDATE_CONSUMER_OFFSET,
        },
        response::{SUCCESS, TOPIC_NOT_EXIST},
    },
    headers::{RegisterBrokerRequest, RouteRequest, SendRequest, UpdateConsumerOffsetRequest},
    text::Text,
};
use ringmq_tests::{
    client::{Client, Reply},
    folder::Folder,
    messages::{Pull, create_topic, send},
    server::{Ringmq, Settings},
};

/// Names that must not come into being, as topic or as group.
const BAD: [&str; 7] = ["../x", "..", "a/../../x", "/tmp/x", "x\0y", "x y", "x/y"];

#[test]
fn names_that_leave_a_folder_are_refused_on_every_path() {
    let folder = Folder::new("names");
    let data = folder.path().join("data");
    let server = Ringmq::start(&Settings::new(&data));
    let mut broker = Client::connect(server.broker()).unwrap();
    let mut namesrv = Client::connect(server.namesrv()).unwrap();
    let good = send(&mut broker, "good", 0, "key", b"body").unwrap();
    assert_eq!(good.code, SUCCESS);

    for bad in BAD {
        check_refused(bad, "creation", &create_topic(&mut broker, bad, 4).unwrap());
        for topic in [bad.to_owned(), format!("%RETRY%{bad}"), format!("%DLQ%{bad}")] {
            for code in [SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE] {
                let what = format!("send {code}");
                check_refused(&topic, &what, &send_any(&mut broker, code, &topic, "TBW102"));
            }
        }
        check_refused(bad, "template", &send_any(&mut broker, SEND_MESSAGE_V2, "new", bad));
        check_refused(bad, "send back", &send_back(&mut broker, bad));
        check_refused(bad, "heartbeat", &heartbeat(&mut broker, bad));
        check_refused(bad, "lock", &lock(&mut broker, bad));
        check_refused(bad, "commit", &commit(&mut broker, bad));
        pull(&mut broker, bad);
        register(&mut namesrv, bad);
        let route = RouteRequest { topic: bad.into(), accept_standard_json_only: None };
        let reply = namesrv.call(GET_ROUTEINFO_BY_TOPIC, |out| route.encode(out), &[]).unwrap();
        assert_eq!(reply.code, TOPIC_NOT_EXIST, "route of {bad:?}");
    }

    check_nothing_came_of_it(&mut broker, &mut namesrv, folder.path());
    // Nor does it stand in the way of the next start.
    assert!(server.stop());
    let server = Ringmq::start(&Settings::new(&data));
    let mut broker = Client::connect(server.broker()).unwrap();
    let mut namesrv = Client::connect(server.namesrv()).unwrap();
    check_nothing_came_of_it(&mut broker, &mut namesrv, folder.path());
}

#[track_caller]
fn check_refused(name: &str, path: &str, reply: &Reply) {
    assert_ne!(reply.code, SUCCESS, "{path} of {name:?} was accepted");
}

fn send_any(client: &mut Client, code: i32, topic: &str, default_topic: &str) -> Reply {
    let header = SendRequest {
        producer_group: "producers".into(),
        topic: topic.into(),
        default_topic: default_topic.into(),
        default_topic_queue_nums: 4,
        queue_id: 0,
        sys_flag: 0,
        born_timestamp_ms: 0,
        flag: 0,
        properties: Some(Text::from("")),
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch: code == SEND_BATCH_MESSAGE,
        broker_name: None,
    };
    let mut body = b"body".to_vec();
    if code == SEND_BATCH_MESSAGE {
        let item = Item { flag: 0, body: b"body", properties: b"" };
        body.clear();
        batch::append(&mut body, &item).unwrap();
    }
    client.call(code, |out| header.encode(code, out), &body).unwrap()
}

fn send_back(client: &mut Client, group: &str) -> Reply {
    let ext = |out: &mut ringmq_protocol::encode::FrameWriter<'_, '_>| {
        out.ext_int("delayLevel", 0);
        out.ext("group", group);
        out.ext_int("offset", 0);
        out.ext("originTopic", group);
    };
    client.call(CONSUMER_SEND_MSG_BACK, ext, &[]).unwrap()
}

fn heartbeat(client: &mut Client, name: &str) -> Reply {
    let subscription = SubscriptionData {
        sub_string: "*".to_owned(),
        sub_version: 1,
        topic: name.to_owned(),
        ..SubscriptionData::default()
    };
    let group = ConsumerData {
        consume_from_where: None,
        consume_type: None,
        group_name: name.to_owned(),
        message_model: None,
        subscription_data_set: vec![subscription],
        unit_mode: false,
    };
    let data = HeartbeatData {
        client_id: "client".to_owned(),
        consumer_data_set: vec![group],
        heartbeat_fingerprint: 0,
        producer_data_set: Vec::new(),
        without_sub: false,
    };
    client.call(HEART_BEAT, |_| {}, &body::encode(&data)).unwrap()
}

fn lock(client: &mut Client, name: &str) -> Reply {
    let data = LockBatchRequest {
        client_id: "client".to_owned(),
        consumer_group: name.to_owned(),
        mq_set: Vec::new(),
        only_this_broker: false,
    };
    client.call(LOCK_BATCH_MQ, |_| {}, &body::encode(&data)).unwrap()
}

fn commit(client: &mut Client, name: &str) -> Reply {
    let header = UpdateConsumerOffsetRequest {
        consumer_group: name.into(),
        topic: name.into(),
        queue_id: 0,
        commit_offset: 1,
    };
    client.call(UPDATE_CONSUMER_OFFSET, |out| header.encode(out), &[]).unwrap()
}

fn pull(client: &mut Client, name: &str) {
    Pull { topic: name, queue: 0, offset: 0, tags: "*", hold_ms: 0 }.post(client).unwrap();
    let reply = client.reply().unwrap();
    assert_ne!(reply.code, SUCCESS, "pull of {name:?}");
}

/// Another broker, which nobody has to trust, registers a topic of that name, and is named so.
fn register(client: &mut Client, name: &str) {
    let mut table = TopicConfigTable {
        data_version: DataVersion { counter: 1, timestamp: 1, ..DataVersion::default() },
        ..TopicConfigTable::default()
    };
    table.topic_config_table.insert(name.to_owned(), TopicConfig::new(name.to_owned(), 4, 6));
    let data = RegisterBrokerBody {
        filter_server_list: Vec::new(),
        topic_config_serialize_wrapper: table,
    };
    // A bad name costs that topic, or the broker that has it. A space leads nowhere.
    for (broker_name, taken) in [("broker-b", true), (name, name == "x y")] {
        let header = RegisterBrokerRequest {
            broker_name: broker_name.into(),
            broker_addr: "127.0.0.1:1".into(),
            cluster_name: "DefaultCluster".into(),
            ha_server_addr: "127.0.0.1:2".into(),
            broker_id: 0,
            compressed: false,
            body_crc32: 0,
            heartbeat_timeout_ms: None,
            enable_acting_master: None,
            zone_name: None,
        };
        let reply =
            client.call(REGISTER_BROKER, |out| header.encode(out), &body::encode(&data)).unwrap();
        assert_eq!(reply.code == SUCCESS, taken, "registration of {broker_name:?}");
    }
}

/// No topic list has a bad name, and no file lies where it should not.
#[track_caller]
fn check_nothing_came_of_it(broker: &mut Client, namesrv: &mut Client, folder: &Path) {
    let reply = broker.call(GET_ALL_TOPIC_CONFIG, |_| {}, &[]).unwrap();
    let table: TopicConfigTable = body::decode(&reply.body).unwrap();
    let of_broker: Vec<String> = table.topic_config_table.into_keys().collect();
    assert!(of_broker.iter().any(|topic| topic == "good"), "{of_broker:?}");
    let reply = namesrv.call(GET_ALL_TOPIC_LIST_FROM_NAMESERVER, |_| {}, &[]).unwrap();
    let list: TopicList = body::decode(&reply.body).unwrap();
    assert!(list.topic_list.iter().any(|topic| topic == "good"), "{list:?}");
    for topic in of_broker.iter().chain(&list.topic_list) {
        let harmless = |c: char| c.is_ascii_alphanumeric() || "%|_-".contains(c);
        assert!(topic.chars().all(harmless), "topic {topic:?} exists");
    }
    let beside: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(beside, [folder.join("data")]);
    check_files(&folder.join("data"));
}

#[track_caller]
fn check_files(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        assert_ne!(name, "x", "{:?}", entry.path());
        if entry.file_type().unwrap().is_dir() {
            check_files(&entry.path());
        }
    }
}
