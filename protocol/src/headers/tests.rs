use alloc::vec::Vec;

use super::*;
use crate::{
    codes::request,
    encode::{Head, begin_frame},
    frame::{self, Encoding},
};

/// Writes entries with `encode`, parses the frame and hands the command to `check`.
#[track_caller]
fn through_the_wire(
    code: i32,
    encode: impl Fn(&mut FrameWriter<'_, '_>),
    check: impl Fn(&Command<'_>),
) {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut out = Vec::new();
        let mut writer = begin_frame(&mut out, Head::request(encoding, 1, code, 0));
        encode(&mut writer);
        writer.finish(0).unwrap();
        let frame = frame::decode(&out, frame::FRAME_LEN_MAX).unwrap().unwrap();
        check(&Command::parse(frame.encoding, frame.header).unwrap());
    }
}

fn send() -> SendRequest<'static> {
    SendRequest {
        producer_group: "PG".into(),
        topic: "TopicTest".into(),
        default_topic: "TBW102".into(),
        default_topic_queue_nums: 4,
        queue_id: -1,
        sys_flag: 0x301,
        born_timestamp_ms: 1_700_000_000_000,
        flag: 7,
        properties: Some(Text::from("TAGS\u{1}TagA\u{2}KEYS\u{1}a\"b")),
        reconsume_times: 2,
        unit_mode: true,
        max_reconsume_times: Some(16),
        batch: true,
        broker_name: Some("broker-a".into()),
    }
}

#[test]
fn a_send_survives_the_wire_under_every_code() {
    let codes = [
        request::SEND_MESSAGE,
        request::SEND_MESSAGE_V2,
        request::SEND_BATCH_MESSAGE,
        request::SEND_REPLY_MESSAGE,
        request::SEND_REPLY_MESSAGE_V2,
    ];
    for code in codes {
        let encode = |out: &mut FrameWriter<'_, '_>| send().encode(code, out);
        through_the_wire(code, encode, |command| {
            assert_eq!(SendRequest::decode(command), Ok(send()), "code {code}");
        });
    }
}

#[track_caller]
fn decode_json<T>(
    json: &str,
    decode: impl FnOnce(&Command<'_>) -> Result<T, HeaderError>,
) -> Result<T, HeaderError> {
    decode(&Command::parse(Encoding::Json, json.as_bytes()).unwrap())
}

#[test]
fn absent_and_wrong_send_fields_are_named() {
    let check = |ext: &str, want: HeaderError| {
        let json = std::format!(r#"{{"code":310,"extFields":{{{ext}}}}}"#);
        assert_eq!(decode_json(&json, |c| SendRequest::decode(c).map(|_| ())), Err(want));
    };
    check("", HeaderError::Missing("producerGroup"));
    check(r#""a":"g""#, HeaderError::Missing("topic"));
    check(
        r#""a":"g","b":"t","c":"d","d":"x""#,
        HeaderError::Invalid { field: "defaultTopicQueueNums" },
    );
}

#[test]
fn a_send_needs_only_its_required_fields() {
    let json = r#"{"code":310,"extFields":{"a":"g","b":"t","c":"d","d":4,"e":0,"f":0,"g":1,"h":0,
        "z":"unknown","zz":null,"k":"1"}}"#;
    let command = Command::parse(Encoding::Json, json.as_bytes()).unwrap();
    let send = SendRequest::decode(&command).unwrap();
    assert_eq!((send.properties, send.reconsume_times, send.max_reconsume_times), (None, 0, None));
    assert!(!send.unit_mode, "only `true` is true");
    assert!(matches!(send.topic, Cow::Borrowed("t")), "no escape, no copy");
}

#[test]
fn a_pull_has_javas_defaults() {
    let json = r#"{"code":11,"extFields":{"consumerGroup":"g","topic":"t","queueId":1,
        "queueOffset":"5","maxMsgNums":"32","sysFlag":6}}"#;
    let command = Command::parse(Encoding::Json, json.as_bytes()).unwrap();
    let pull = PullRequest::decode(&command).unwrap();
    assert_eq!((pull.commit_offset, pull.suspend_timeout_ms, pull.sub_version), (0, 0, 0));
    assert_eq!((pull.subscription, pull.max_msg_bytes), (None, None));
    let encode = |out: &mut FrameWriter<'_, '_>| PullRequest::decode(&command).unwrap().encode(out);
    through_the_wire(11, encode, |again| {
        assert_eq!(PullRequest::decode(again), PullRequest::decode(&command));
    });
}

#[test]
fn responses_survive_the_wire() {
    let send = SendResponse::new("7F00000100002A9F0000000000001000".into(), 3, 42, true);
    through_the_wire(
        0,
        |out| send.encode(out),
        |command| {
            assert_eq!(SendResponse::decode(command).as_ref(), Ok(&send));
        },
    );
    let pull = PullResponse::new(8, 0, 9);
    through_the_wire(
        19,
        |out| pull.encode(out),
        |command| {
            assert_eq!(PullResponse::decode(command).as_ref(), Ok(&pull));
        },
    );
    through_the_wire(
        0,
        |out| OffsetResponse { offset: -1 }.encode(out),
        |command| {
            assert_eq!(OffsetResponse::decode(command), Ok(OffsetResponse { offset: -1 }));
        },
    );
    through_the_wire(
        0,
        |_| {},
        |command| {
            assert_eq!(OffsetResponse::decode(command), Err(HeaderError::Missing("offset")));
        },
    );
}
