//! Frames recorded between real clients and real servers: every one decodes, and means the same
//! after it is encoded again, in both encodings.
//!
//! `data/frames/README.md` says who talked to whom.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

mod common;

use common::{Recorded, recorded};
use ringmq_protocol::{
    batch,
    body::{self, Body, admin},
    codes::request as code,
    command::Command,
    encode::{FrameWriter, Head, begin_frame},
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::*,
    message_id::OffsetMessageId,
    record::{self, MessageParts, PropertiesParts},
};

#[test]
fn every_frame_decodes_to_what_was_recorded() {
    for recorded in recorded() {
        let (frame, command) = recorded.parse();
        assert_eq!(frame.total_len, recorded.bytes.len(), "{recorded}");
        assert_eq!(frame.body.len(), recorded.body_len, "{recorded}");
        assert_eq!(frame.encoding.type_byte(), recorded.type_byte, "{recorded}");
        assert_eq!((command.code, command.flag), (recorded.code, recorded.flag), "{recorded}");
        assert_eq!(command.is_response(), recorded.response, "{recorded}");
        assert_eq!(command.remark.as_deref(), recorded.remark.as_deref(), "{recorded}");
        assert_eq!(entries(&command), recorded.ext, "{recorded}");
        for cut in 0..frame.total_len.min(200) {
            let part = &recorded.bytes[..cut];
            assert_eq!(frame::decode(part, FRAME_LEN_MAX), Ok(None), "{recorded}, cut at {cut}");
        }
    }
}

#[test]
fn every_header_means_the_same_when_encoded_again() {
    for recorded in recorded() {
        let (frame, command) = recorded.parse();
        for encoding in [Encoding::Json, Encoding::Binary] {
            if encoding == Encoding::Binary && i16::try_from(command.code).is_err() {
                continue;
            }
            let mut out = Vec::new();
            let head = Head { encoding, ..Head::from(&command) };
            let mut writer = begin_frame(&mut out, head);
            writer.copy_ext(&command.ext);
            writer.finish(frame.body.len()).unwrap();
            out.extend_from_slice(frame.body);
            let again = frame::decode(&out, FRAME_LEN_MAX).unwrap().unwrap();
            assert_eq!((again.encoding, again.body), (encoding, frame.body), "{recorded}");
            let same = Command::parse(again.encoding, again.header).unwrap();
            assert_eq!(
                (same.code, same.language, same.version, same.opaque, same.flag),
                (command.code, command.language, command.version, command.opaque, command.flag),
                "{recorded}"
            );
            // The binary form has no empty remark, only none.
            let remark = |c: &Command<'_>| c.remark.clone().unwrap_or_default().into_owned();
            assert_eq!(remark(&same), remark(&command), "{recorded}");
            assert_eq!(entries(&same), recorded.ext, "{recorded}");
        }
    }
}

fn entries(command: &Command<'_>) -> Vec<(String, String)> {
    let mut entries: Vec<_> =
        command.ext.iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect();
    entries.sort();
    entries
}

/// Writes a typed header and checks that all its entries are the recorded ones.
#[track_caller]
fn check_header(recorded: &Recorded, encode: impl Fn(&mut FrameWriter<'_, '_>)) {
    let mut out = Vec::new();
    let (frame, command) = recorded.parse();
    let mut writer = begin_frame(&mut out, Head { encoding: frame.encoding, ..(&command).into() });
    encode(&mut writer);
    writer.finish(0).unwrap();
    let again = frame::decode(&out, FRAME_LEN_MAX).unwrap().unwrap();
    let same = Command::parse(again.encoding, again.header).unwrap();
    // Booleans that C++ sends as `0` come out as `false`, and defaults appear.
    for (name, value) in entries(&same) {
        if let Some((_, original)) = recorded.ext.iter().find(|(n, _)| *n == name) {
            let want = if original == "0" && value == "false" { "false" } else { original };
            assert_eq!(value, want, "{recorded}: {name}");
        }
    }
    // Entries that are no part of the typed header: what newer clients and ACL add.
    let extra = ["AccessKey", "OnsChannel", "Signature", "ReqT", "bname", "lo", "ns", "nsd"];
    for (name, _) in &recorded.ext {
        let written = entries(&same).iter().any(|(n, _)| n == name);
        assert!(written || extra.contains(&name.as_str()), "{recorded}: {name} is lost");
    }
}

#[test]
fn typed_headers_carry_every_recorded_entry() {
    let mut checked = 0;
    for recorded in recorded() {
        let (_, command) = recorded.parse();
        /// Decodes the header as the type, which must succeed, and checks its entries.
        macro_rules! header {
            ($type:ident) => {{
                let header = $type::decode(&command).unwrap_or_else(|e| panic!("{recorded}: {e}"));
                check_header(&recorded, |out| header.encode(out));
                checked += 1;
            }};
        }
        match (recorded.request_code, recorded.response) {
            (10 | 310 | 320, false) => {
                let send = SendRequest::decode(&command).unwrap();
                check_header(&recorded, |out| send.encode(command.code, out));
                checked += 1;
            }
            (10 | 310 | 320, true) if command.code == 0 => header!(SendResponse),
            (code::PULL_MESSAGE | code::LITE_PULL_MESSAGE, false) => header!(PullRequest),
            (code::PULL_MESSAGE | code::LITE_PULL_MESSAGE, true) => {
                if matches!(command.code, 0 | 19..=21) {
                    header!(PullResponse);
                }
            }
            (code::QUERY_MESSAGE, false) => header!(QueryMessageRequest),
            (code::QUERY_MESSAGE, true) => header!(QueryMessageResponse),
            (code::QUERY_CONSUMER_OFFSET, false) => header!(QueryConsumerOffsetRequest),
            (14 | 29 | 30 | 31, true) if command.code == 0 => header!(OffsetResponse),
            (code::UPDATE_CONSUMER_OFFSET, false) => header!(UpdateConsumerOffsetRequest),
            (code::UPDATE_AND_CREATE_TOPIC, false) => header!(CreateTopicRequest),
            (code::SEARCH_OFFSET_BY_TIMESTAMP, false) => header!(SearchOffsetRequest),
            (30..=32, false) => header!(QueueRequest),
            (code::GET_EARLIEST_MSG_STORETIME, true) => header!(TimestampResponse),
            (code::VIEW_MESSAGE_BY_ID, false) => header!(ViewMessageRequest),
            (code::UNREGISTER_CLIENT, false) => header!(UnregisterClientRequest),
            (code::CONSUMER_SEND_MSG_BACK, false) => header!(SendBackRequest),
            (code::END_TRANSACTION, false) => header!(EndTransactionRequest),
            (code::CHECK_TRANSACTION_STATE, false) => header!(CheckTransactionRequest),
            (38 | 40 | 203, false) => header!(ConsumerGroupRequest),
            (code::PUT_KV_CONFIG, false) => header!(PutKvRequest),
            (code::REGISTER_BROKER, false) => header!(RegisterBrokerRequest),
            (code::REGISTER_BROKER, true) => header!(RegisterBrokerResponse),
            (code::GET_ROUTEINFO_BY_TOPIC, false) => header!(RouteRequest),
            (202 | 215 | 300, false) => header!(TopicRequest),
            (code::GET_PRODUCER_CONNECTION_LIST, false) => header!(ProducerGroupRequest),
            (205 | 327, false) => header!(BrokerNameRequest),
            (205, true) => header!(WipeWritePermResponse),
            (327, true) => header!(AddWritePermResponse),
            (code::DELETE_SUBSCRIPTIONGROUP, false) => header!(DeleteGroupRequest),
            (code::GET_CONSUME_STATS, false) => header!(ConsumeStatsRequest),
            (code::DELETE_TOPIC_IN_NAMESRV, false) => header!(DeleteTopicInNamesrvRequest),
            (code::INVOKE_BROKER_TO_RESET_OFFSET, false) => header!(ResetOffsetRequest),
            (code::VIEW_BROKER_STATS_DATA, false) => header!(BrokerStatsRequest),
            _ => {}
        }
    }
    assert!(checked > 250, "{checked} headers");
}

/// Decodes a body, encodes it, and checks that the result is the same value.
#[track_caller]
fn check_body<T: Body + PartialEq + std::fmt::Debug>(recorded: &Recorded, text: &[u8]) {
    let decoded: T = body::decode(text).unwrap_or_else(|error| panic!("{recorded}: {error}"));
    let standard = body::encode(&decoded);
    assert!(serde_json::from_slice::<serde_json::Value>(&standard).is_ok(), "{recorded}");
    assert_eq!(body::decode::<T>(&standard).unwrap(), decoded, "{recorded}");
    // What Java wrote for 4.9 in standard JSON comes out byte for byte.
    if recorded.file.starts_with("java498") && serde_json::from_slice::<T>(text).is_ok() {
        let (got, want) = (String::from_utf8_lossy(&standard), String::from_utf8_lossy(text));
        assert_eq!(got, want, "{recorded}");
    }
}

#[test]
fn json_bodies_mean_the_same_when_encoded_again() {
    let mut checked = 0;
    for recorded in recorded() {
        let (frame, _) = recorded.parse();
        if frame.body.is_empty() {
            continue;
        }
        let (r, text) = (&recorded, frame.body);
        match (recorded.request_code, recorded.response) {
            (code::HEART_BEAT, false) => check_body::<body::HeartbeatData>(r, text),
            (code::GET_CONSUMER_LIST_BY_GROUP, true) => check_body::<body::ConsumerList>(r, text),
            (41 | 42, false) => check_body::<body::LockBatchRequest>(r, text),
            (code::LOCK_BATCH_MQ, true) => check_body::<body::LockBatchResponse>(r, text),
            (code::REGISTER_BROKER, false) => check_body::<body::RegisterBrokerBody>(r, text),
            (code::GET_ROUTEINFO_BY_TOPIC, true) => check_body::<body::TopicRouteData>(r, text),
            (code::GET_BROKER_CLUSTER_INFO, true) => check_body::<body::ClusterInfo>(r, text),
            (206, true) => check_body::<body::TopicList>(r, text),
            (200, false) => check_body::<body::SubscriptionGroupConfig>(r, text),
            (203, true) => check_body::<admin::ConsumerConnection>(r, text),
            (300, true) => check_body::<admin::GroupList>(r, text),
            (code::GET_TOPIC_STATS_INFO, true) => {
                let stats = admin::TopicStatsTable::decode(text).unwrap();
                assert_eq!(stats.encode(), text, "{recorded}");
            }
            (code::GET_CONSUME_STATS, true) => {
                let stats = admin::ConsumeStats::decode(text).unwrap();
                assert_eq!(stats.encode(), text, "{recorded}");
            }
            _ => continue,
        }
        checked += 1;
    }
    assert!(checked > 60, "{checked} bodies");
}

#[test]
fn records_come_out_byte_for_byte() {
    let mut checked = 0;
    for recorded in recorded() {
        let (frame, command) = recorded.parse();
        let carries_records = match (recorded.request_code, recorded.response) {
            (11 | 12 | 33 | 361 | code::POP_MESSAGE, true) => command.code == 0,
            (code::CHECK_TRANSACTION_STATE, false) => true,
            _ => false,
        };
        if !carries_records {
            continue;
        }
        assert!(record::records(frame.body).next().is_some(), "{recorded}");
        for view in record::records(frame.body) {
            let view = view.unwrap_or_else(|error| panic!("{recorded}: {error}"));
            assert!(view.body_is_intact(), "{recorded}");
            let parts = MessageParts {
                queue_id: view.queue_id,
                flag: view.flag,
                sys_flag: view.sys_flag,
                born_timestamp_ms: view.born_timestamp_ms,
                born_host: view.born_host,
                store_host: view.store_host,
                reconsume_times: view.reconsume_times,
                prepared_transaction_offset: view.prepared_transaction_offset,
                body: view.body,
                body_crc: None,
                topic: view.topic,
                properties: PropertiesParts::from(view.properties),
            };
            let mut written = vec![0; parts.encoded_len()];
            parts.write(view.queue_offset, view.log_offset, view.store_timestamp_ms, &mut written);
            assert_eq!(written, view.bytes, "{recorded}");
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked} records");
}

#[test]
fn batches_come_out_byte_for_byte() {
    let mut checked = 0;
    for recorded in recorded() {
        if (recorded.request_code, recorded.response) != (code::SEND_BATCH_MESSAGE, false) {
            continue;
        }
        let (frame, _) = recorded.parse();
        let mut again = Vec::new();
        for item in batch::items(frame.body) {
            batch::append(&mut again, &item.unwrap()).unwrap();
            checked += 1;
        }
        assert_eq!(again, frame.body, "{recorded}");
    }
    assert!(checked >= 6, "{checked} items");
}

#[test]
fn ids_in_send_responses_are_offset_ids() {
    let mut checked = 0;
    for recorded in recorded() {
        let (_, command) = recorded.parse();
        if !matches!(recorded.request_code, 10 | 310 | 320) || !recorded.response {
            continue;
        }
        let ids = command.ext.get("msgId").unwrap().to_str();
        let parsed = ids.split(',').map(|id| OffsetMessageId::parse(id).unwrap());
        assert_eq!(OffsetMessageId::join(parsed), ids, "{recorded}");
        checked += 1;
    }
    assert!(checked > 15, "{checked} responses");
}
