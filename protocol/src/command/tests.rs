use alloc::string::{String, ToString};
use std::format;
use std::vec::Vec;

use super::*;
use crate::frame;

fn parse(json: &str) -> Result<Command<'_>, HeaderError> {
    Command::parse(Encoding::Json, json.as_bytes())
}

fn entries(command: &Command<'_>) -> Vec<(String, String)> {
    command.ext.iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect()
}

/// The facts sheet's request 105 with topic `T`, opaque 7, in both encodings (section 1.3).
#[test]
fn both_encodings_of_a_header_mean_the_same() {
    let json = br#"{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}"#;
    let mut json_frame = Vec::from([0, 0, 0, 0x7f, 0, 0, 0, 0x7b]);
    json_frame.extend_from_slice(json);
    let binary_frame = [
        0, 0, 0, 0x25, 1, 0, 0, 0x21, 0, 0x69, 0, 1, 0x99, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0x0c, 0, 5, 0x74, 0x6f, 0x70, 0x69, 0x63, 0, 0, 0, 1, 0x54,
    ];
    for bytes in [&json_frame[..], &binary_frame[..]] {
        let frame = frame::decode(bytes, frame::FRAME_LEN_MAX).unwrap().unwrap();
        assert_eq!(frame.total_len, bytes.len());
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        assert_eq!((command.code, command.version, command.opaque), (105, 409, 7));
        assert_eq!((command.flag, command.language), (0, Language::Java));
        assert_eq!(command.remark, None);
        assert_eq!(entries(&command), [("topic".to_string(), "T".to_string())]);
    }
}

#[test]
fn liberties_of_real_clients_are_taken_as_java_takes_them() {
    let command = parse(concat!(
        r#" { "code":"10", "unknown":[1,{"a":null}], "language":9,"opaque":"-3","flag":3,"#,
        r#""remark":null,"extFields":{"q":0,"b":true,"n":null,"s":"a\"b","o":{"x":[1]}} } "#,
        "\n"
    ))
    .unwrap();
    assert_eq!((command.code, command.opaque, command.flag, command.version), (10, -3, 3, 0));
    assert_eq!(command.language, Language::Go);
    assert!(command.is_response());
    assert!(!command.is_oneway());
    let want = [("q", "0"), ("b", "true"), ("s", "a\"b"), ("o", r#"{"x":[1]}"#)];
    assert_eq!(entries(&command), want.map(|(k, v)| (k.to_string(), v.to_string())));
}

#[test]
fn absent_parts_have_javas_defaults() {
    for json in ["{}", r#"{"extFields":null}"#, r#"{"language":"KLINGON"}"#] {
        let command = parse(json).unwrap();
        assert_eq!((command.code, command.language), (0, Language::Unknown));
        assert!(command.ext.is_empty());
    }
    assert_eq!(parse(r#"{"remark":""}"#).unwrap().remark.as_deref(), Some(""));
}

#[test]
fn what_is_no_header_is_an_error() {
    for json in [
        "",
        "[]",
        "{",
        "{}x",
        r#"{"code"}"#,
        r#"{"code":1"#,
        r#"{"code":1,}"#,
        r#"{"code":nope}"#,
        r#"{"code":2147483648}"#,
        r#"{"extFields":[]}"#,
        r#"{"extFields":{"a":"b",}}"#,
        r#"{"extFields":{"a":"\u00g0"}}"#,
        r#"{"extFields":{"a"}}"#,
    ] {
        assert!(parse(json).is_err(), "{json}");
    }
}

#[test]
fn every_cut_of_a_binary_header_is_an_error() {
    let mut header = Vec::from([0, 0x69, 0, 1, 0x99, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2]);
    header.extend_from_slice(b"hi");
    header
        .extend_from_slice(&[0, 0, 0, 0x0c, 0, 5, 0x74, 0x6f, 0x70, 0x69, 0x63, 0, 0, 0, 1, 0x54]);
    assert_eq!(Command::parse(Encoding::Binary, &header).unwrap().remark.as_deref(), Some("hi"));
    for cut in 0..header.len() {
        assert!(Command::parse(Encoding::Binary, &header[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn more_entries_than_the_table_holds_are_all_there() {
    let mut json = String::from(r#"{"extFields":{"n":null"#);
    for number in 0..50 {
        json += &format!(r#", "k{number}" : "v\n{number}","z{number}":null"#);
    }
    json += r#","k3":"last" } }"#;
    let command = parse(&json).unwrap();
    assert_eq!(command.ext.entries().count(), 51);
    assert_eq!(command.ext.get("k49").unwrap().to_str(), "v\n49");
    assert_eq!(command.ext.get("k3").unwrap().to_str(), "last");
    assert_eq!(command.ext.get("k50"), None);

    let mut block = Vec::new();
    for number in 0..50_u8 {
        block.extend_from_slice(&[0, 1, number, 0, 0, 0, 1, number]);
    }
    let mut header = Vec::from([0; 17]);
    header.extend_from_slice(&u32::try_from(block.len()).unwrap().to_be_bytes());
    header.extend_from_slice(&block);
    let command = Command::parse(Encoding::Binary, &header).unwrap();
    assert_eq!(command.ext.entries().count(), 50);
    assert_eq!(command.ext.get("\u{31}").unwrap().to_str(), "\u{31}");
}

#[test]
fn a_name_with_escapes_is_the_same_name() {
    let command = parse(r#"{"c\u006fde":7,"extFields":{"t\u006fpic":"T"}}"#).unwrap();
    assert_eq!(command.code, 7);
    assert_eq!(command.ext.get("topic").unwrap().to_str(), "T");
}

#[test]
fn bytes_that_are_not_utf8_become_replacements() {
    let mut header = Vec::from(&br#"{"remark":"a"#[..]);
    header.push(0xff);
    header.extend_from_slice(br#"b"}"#);
    let command = Command::parse(Encoding::Json, &header).unwrap();
    assert_eq!(command.remark.as_deref(), Some("a\u{fffd}b"));
}
