use std::{vec, vec::Vec};

use super::*;
use crate::properties;

fn parts<'a>() -> MessageParts<'a> {
    MessageParts {
        queue_id: 3,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: "10.1.2.3:51000".parse().unwrap(),
        store_host: "10.1.2.9:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"hello",
        body_crc: None,
        topic: b"TopicTest",
        properties: PropertiesParts::from(&b"TAGS\x01TagA\x02KEYS\x01k1"[..]),
    }
}

fn write(parts: &MessageParts<'_>) -> Vec<u8> {
    let mut record = vec![0xee; parts.encoded_len()];
    parts.write(7, 4096, 1_700_000_000_005, &mut record);
    record
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The facts sheet's vector (storage A.3).
#[test]
fn a_record_has_upstreams_bytes() {
    let want = hex(
        "0000007a daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000001000 00000000
         0000018bcfe56800 0a010203 0000c738 0000018bcfe56805 0a010209 00002a9f 00000000
         0000000000000000 00000005 68656c6c6f 09 546f70696354657374 0011 54414753 01 54616741 02
         4b455953 01 6b31",
    );
    assert_eq!(write(&parts()), want);
    let view = MessageView::parse(&want).unwrap();
    assert_eq!((view.queue_id, view.queue_offset, view.log_offset), (3, 7, 4096));
    assert_eq!((view.body, view.topic), (&b"hello"[..], &b"TopicTest"[..]));
    assert_eq!(view.property("TAGS"), Some(&b"TagA"[..]));
    assert_eq!(view.born_host, "10.1.2.3:51000".parse().unwrap());
    assert!(view.body_is_intact());
    assert_eq!(&*view.offset_message_id().to_hex(), "0A01020900002A9F0000000000001000");
}

/// The facts sheet's vectors (storage A.2).
#[test]
fn checksums_are_masked() {
    assert_eq!(body_crc(b"hello"), 907_060_870);
    assert_eq!(body_crc(b""), 0);
    assert_eq!(body_crc(b"a"), 0x68b7_be43);
    assert_eq!(body_crc(b"Hello RocketMQ"), 0x69c8_65ed);
}

#[test]
fn hosts_decide_the_ipv6_bits() {
    let four = parts().encoded_len();
    let claims = sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6 | sys_flag::COMPRESSED;
    let liar = MessageParts { sys_flag: claims, ..parts() };
    let record = write(&liar);
    assert_eq!(MessageView::parse(&record).unwrap().sys_flag, sys_flag::COMPRESSED);

    let six = MessageParts { born_host: "[2001:db8::1]:1".parse().unwrap(), ..parts() };
    assert_eq!(six.encoded_len(), four + 12);
    let record = write(&six);
    let view = MessageView::parse(&record).unwrap();
    assert_eq!((view.sys_flag, view.born_host), (sys_flag::BORN_HOST_V6, six.born_host));
    assert_eq!(view.store_host, six.store_host);
}

#[test]
fn a_topic_too_long_for_v1_is_written_as_v2() {
    let topic = [b't'; 128];
    let record = write(&MessageParts { topic: &topic, ..parts() });
    assert_eq!(record[4..8], MAGIC_V2.to_be_bytes());
    assert_eq!(MessageView::parse(&record).unwrap().topic, topic);
    let record = write(&MessageParts { topic: &topic[..127], ..parts() });
    assert_eq!(record[4..8], MAGIC_V1.to_be_bytes());
}

#[test]
fn properties_are_joined_from_their_pieces() {
    let (head, tail) = properties::without(b"A\x011\x02WAIT\x01true\x02B\x012\x02", "WAIT");
    let parts = MessageParts {
        properties: PropertiesParts::from(head).with(tail).with_pair(b"CLUSTER\x01C"),
        ..parts()
    };
    let record = write(&parts);
    let view = MessageView::parse(&record).unwrap();
    assert_eq!(view.properties, b"A\x011\x02B\x012\x02CLUSTER\x01C");
    let only = PropertiesParts::default().with_pair(b"CLUSTER\x01C");
    assert_eq!(only.len(), 9);
    let two = PropertiesParts::from(&b"A\x011"[..]).with_pair(b"B\x012");
    assert_eq!(two.len(), 7);
}

#[test]
fn every_cut_and_every_wrong_length_is_an_error() {
    let record = write(&parts());
    for cut in 0..record.len() {
        assert_eq!(MessageView::parse(&record[..cut]), Err(RecordError::Truncated), "cut at {cut}");
    }
    // Total, body, topic and properties length, one up and one down.
    for (at, len) in [(3, 0x7a_u8), (87, 5), (93, 9), (104, 0x11)] {
        for wrong in [len - 1, len + 1, 0xff] {
            let mut damaged = record.clone();
            assert_eq!(damaged[at], len);
            damaged[at] = wrong;
            damaged.extend_from_slice(&[0; 200]);
            assert_eq!(MessageView::parse(&damaged), Err(RecordError::Inconsistent), "at {at}");
        }
    }
}

#[test]
fn a_body_of_records_ends_at_the_first_that_is_none() {
    let record = write(&parts());
    let mut body = [&record[..], &record[..]].concat();
    assert_eq!(records(&body).filter(Result::is_ok).count(), 2);
    body.extend_from_slice(&[0, 0, 0, 200]);
    let got: Vec<_> = records(&body).map(|record| record.map(|view| view.queue_id)).collect();
    assert_eq!(got, [Ok(3), Ok(3), Err(RecordError::Truncated)]);
    body.truncate(2 * record.len());
    body[4] = 0xcb;
    assert_eq!(records(&body).collect::<Vec<_>>(), [Err(RecordError::UnknownMagic(0xcba3_20a7))]);
}
