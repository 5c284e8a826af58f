use alloc::{borrow::ToOwned, string::String};

use super::*;

/// Decodes `text` and checks that the value encodes to `standard`.
#[track_caller]
fn check<T: Body>(text: &str, standard: &str) -> T {
    let body: T = decode(text.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(encode(&body)).unwrap(), standard);
    body
}

/// Text that comes out as it went in.
#[track_caller]
fn same<T: Body>(text: &str) -> T {
    check(text, text)
}

/// The facts sheet's sample of section 3.9.
const HEARTBEAT: &str = r#"{"clientID":"10.0.0.1@1#2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicA"}],"unitMode":false}],"producerDataSet":[{"groupName":"PG"}]}"#;

#[test]
fn a_java_heartbeat_comes_out_as_it_went_in() {
    let heartbeat: HeartbeatData = same(HEARTBEAT);
    let consumer = &heartbeat.consumer_data_set[0];
    assert_eq!(consumer.message_model, Some(MessageModel::Clustering));
    assert!(consumer.subscription_data_set[0].is_tag());
}

#[test]
fn heartbeats_of_other_languages_are_understood() {
    // C++: ordinals, numbers as strings, no empty sets, a newline at the end.
    let text = "{\"clientID\":\"c\",\"consumerDataSet\":[{\"groupName\":\"g\",\"consumeType\":1,\
        \"messageModel\":\"1\",\"consumeFromWhere\":4,\"subscriptionDataSet\":[{\"topic\":\"t\",\
        \"subString\":\"*\",\"subVersion\":\"1700000000000\",\"codeSet\":[\"-5\"]}]}]}\n";
    let heartbeat: HeartbeatData = decode(text.as_bytes()).unwrap();
    let consumer = &heartbeat.consumer_data_set[0];
    assert_eq!(consumer.consume_type, Some(ConsumeType::Passively));
    assert_eq!(consumer.message_model, Some(MessageModel::Clustering));
    assert_eq!(consumer.consume_from_where, Some(ConsumeFromWhere::FirstOffset));
    let subscription = &consumer.subscription_data_set[0];
    assert_eq!((subscription.sub_version, &*subscription.code_set), (1_700_000_000_000, &[-5][..]));
    assert!(heartbeat.producer_data_set.is_empty());

    // 5.x, with nulls and members from the future.
    let text = r#"{"clientID":"c","consumerDataSet":null,"heartbeatFingerprint":7,"new":{"x":[1]},
        "producerDataSet":[{"groupName":"p","more":1}],"withoutSub":true}"#;
    let heartbeat: HeartbeatData = decode(text.as_bytes()).unwrap();
    assert_eq!((heartbeat.heartbeat_fingerprint, heartbeat.without_sub), (7, true));

    // Unknown names of enums are null for fastjson.
    let text = r#"{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"X"}]}"#;
    let heartbeat: HeartbeatData = decode(text.as_bytes()).unwrap();
    assert_eq!(heartbeat.consumer_data_set[0].consume_type, None);
}

#[test]
fn bodies_of_the_wrong_shape_are_errors() {
    for text in ["", "[]", "1", "{\"consumerDataSet\":[{}]}", "{\"clientID\":{}}", "{\"a\":1}x"] {
        assert!(decode::<HeartbeatData>(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn length_is_checked_before_anything_is_parsed() {
    let long = "{".repeat(HeartbeatData::LEN_MAX + 1);
    let error = decode::<HeartbeatData>(long.as_bytes()).unwrap_err();
    assert!(matches!(error, BodyError::TooLong { .. }), "{error}");
}

/// The facts sheet's samples of section 4.4: old form, standard form, 5.x.
#[test]
fn routes_are_read_in_every_form_and_written_with_quoted_keys() {
    let old = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:20911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    let standard = old.replace("{0:", "{\"0\":").replace(",1:", ",\"1\":");
    let route: TopicRouteData = check(old, &standard);
    assert_eq!(same::<TopicRouteData>(&standard), route);
    assert_eq!(route.broker_datas[0].master_addr(), Some("127.0.0.1:10911"));
    let five = standard.replace("\"}],\"filter", "\",\"enableActingMaster\":false}],\"filter");
    assert_eq!(same::<TopicRouteData>(&five).broker_datas[0].enable_acting_master, Some(false));
    let ordered = standard.replace(",\"queueDatas", ",\"orderTopicConf\":\"a:4;b:4\",\"queueDatas");
    assert_eq!(same::<TopicRouteData>(&ordered).order_topic_conf.as_deref(), Some("a:4;b:4"));
}

#[test]
fn bodies_of_the_facts_sheet_come_out_as_they_went_in() {
    same::<LockBatchRequest>(
        r#"{"clientId":"cid","consumerGroup":"CG","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}]}"#,
    );
    same::<LockBatchResponse>(
        r#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}]}"#,
    );
    same::<ConsumerList>(r#"{"consumerIdList":["cid1","cid2"]}"#);
    same::<TopicConfigTable>(
        r#"{"dataVersion":{"counter":0,"timestamp":1700000000000},"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,"writeQueueNums":16}}}"#,
    );
    same::<RegisterBrokerBody>(
        r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":1700000000000},"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,"writeQueueNums":16}}}}"#,
    );
    check::<ClusterInfo>(
        r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"ip:port"},"brokerName":"broker-a","cluster":"C"}},"clusterAddrTable":{"C":["broker-a"]}}"#,
        r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"ip:port"},"brokerName":"broker-a","cluster":"C"}},"clusterAddrTable":{"C":["broker-a"]}}"#,
    );
    same::<TopicList>(r#"{"topicList":["A","B"]}"#);
    same::<KvTable>(r#"{"table":{"k":"v"}}"#);
    let group: SubscriptionGroupConfig = same(
        r#"{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"CG","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#,
    );
    assert_eq!(
        group,
        SubscriptionGroupConfig { group_name: "CG".to_owned(), ..Default::default() }
    );
    let offsets: OffsetTable = check(
        r#"{"offsetTable":{"topic@group":{0:12,1:7}}}"#,
        r#"{"offsetTable":{"topic@group":{"0":12,"1":7}}}"#,
    );
    assert_eq!(offsets.offset_table["topic@group"][&1], 7);
    check::<DelayOffsetTable>(
        r#"{"offsetTable":{1:100,2:50}}"#,
        r#"{"offsetTable":{"1":100,"2":50}}"#,
    );
    same::<CheckClientConfig>(
        r#"{"clientId":"cid","group":"CG","subscriptionData":{"classFilterMode":false,"codeSet":[],"expressionType":"SQL92","subString":"a > 1","subVersion":1,"tagsSet":[],"topic":"T"}}"#,
    );
    same::<admin::ConsumerConnection>(
        r#"{"connectionSet":[{"clientAddr":"1.1.1.1:2","clientId":"cid","language":"JAVA","version":409}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{}}"#,
    );
    same::<admin::GroupList>(r#"{"groupList":["CG"]}"#);
}

#[test]
fn a_sparse_topic_has_javas_defaults() {
    let topic: TopicConfig = decode(br#"{"topicName":"t","attributes":{"+k":"v"}}"#).unwrap();
    assert_eq!((topic.read_queue_nums, topic.write_queue_nums, topic.perm), (16, 16, 6));
    assert_eq!(topic.attributes["+k"], "v");
}

/// The facts sheet's three forms of section 3.18.
#[test]
fn offsets_by_queue_have_three_forms() {
    let queue = |queue_id| MessageQueue {
        broker_name: "broker-a".to_owned(),
        queue_id,
        topic: "TopicA".to_owned(),
    };
    let body = OffsetsByQueue { offset_table: Vec::from([(queue(1), 200), (queue(0), 100)]) };
    for (keys, text) in [
        (
            ObjectKeys::Fastjson,
            r#"{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:200,{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:100}}"#,
        ),
        (
            ObjectKeys::Pairs,
            r#"{"offsetTable":[[{"brokerName":"broker-a","queueId":1,"topic":"TopicA"},200],[{"brokerName":"broker-a","queueId":0,"topic":"TopicA"},100]]}"#,
        ),
        (
            ObjectKeys::List,
            r#"{"offsetTable":[{"brokerName":"broker-a","offset":200,"queueId":1,"topic":"TopicA"},{"brokerName":"broker-a","offset":100,"queueId":0,"topic":"TopicA"}]}"#,
        ),
    ] {
        assert_eq!(String::from_utf8(body.encode(keys)).unwrap(), text);
        assert_eq!(OffsetsByQueue::decode(text.as_bytes()).unwrap(), body);
    }
    let string_keys = r#"{"offsetTable":{"{\"brokerName\":\"broker-a\",\"queueId\":1,\"topic\":\"TopicA\"}":200}}"#;
    assert_eq!(OffsetsByQueue::decode(string_keys.as_bytes()).unwrap().offset_table.len(), 1);
}

#[test]
fn statistics_survive_the_fastjson_form() {
    let text = r#"{"offsetTable":{{"brokerName":"b0","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":1796037985096,"maxOffset":11,"minOffset":0}}}"#;
    let stats = admin::TopicStatsTable::decode(text.as_bytes()).unwrap();
    assert_eq!(stats.offset_table[0].1.max_offset, 11);
    assert_eq!(String::from_utf8(stats.encode()).unwrap(), text);
    let text = r#"{"consumeTps":0.45,"offsetTable":{{"brokerName":"b0","queueId":0,"topic":"T"}:{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1796037985050}}}"#;
    let stats = admin::ConsumeStats::decode(text.as_bytes()).unwrap();
    assert_eq!(stats.offset_table[0].1.consumer_offset, 2);
    assert_eq!(String::from_utf8(stats.encode()).unwrap(), text);
}

fn registration() -> RegisterBrokerBody {
    let mut body = RegisterBrokerBody::default();
    let table = &mut body.topic_config_serialize_wrapper;
    table.data_version = DataVersion { counter: 3, state_version: 0, timestamp: 1_700_000_000_000 };
    for (name, queues) in [("TopicA", 4), ("%RETRY%g", 1)] {
        let topic = TopicConfig::new(name.to_owned(), queues, 6);
        table.topic_config_table.insert(name.to_owned(), topic);
    }
    body.filter_server_list.push("1.2.3.4:5".to_owned());
    body
}

#[test]
fn the_text_form_of_a_registration_means_the_same() {
    let body = registration();
    let mut text = body.to_text();
    assert_eq!(RegisterBrokerBody::from_text(&text).unwrap(), body);
    // 5.x appends queue mappings.
    text.extend_from_slice(&[0, 0, 0, 0]);
    assert_eq!(RegisterBrokerBody::from_text(&text).unwrap(), body);
    let attributes = b"T 1 2 6 MULTI_TAG {\"k\":\"v\"}";
    let mut text = Vec::from([0, 0, 0, 2, b'{', b'}', 0, 0, 0, 1, 0, 0, 0, 27]);
    text.extend_from_slice(attributes);
    text.extend_from_slice(&[0, 0, 0, 2, b'[', b']']);
    let body = RegisterBrokerBody::from_text(&text).unwrap();
    let topic = &body.topic_config_serialize_wrapper.topic_config_table["T"];
    assert_eq!((topic.read_queue_nums, topic.write_queue_nums), (1, 2));
    assert_eq!(
        (topic.topic_filter_type, topic.attributes.len()),
        (Some(TopicFilterType::MultiTag), 1)
    );
}

#[test]
fn every_cut_of_the_text_form_is_an_error() {
    let text = registration().to_text();
    for cut in 0..text.len() {
        assert!(RegisterBrokerBody::from_text(&text[..cut]).is_err(), "cut at {cut}");
    }
    // A huge topic count ends with the text, not with the memory.
    let endless = [0, 0, 0, 2, b'{', b'}', 0x7f, 0xff, 0xff, 0xff];
    assert!(RegisterBrokerBody::from_text(&endless).is_err());
}
