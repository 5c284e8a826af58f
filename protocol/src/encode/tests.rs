use std::string::ToString;

use super::*;
use crate::{codes::request as codes, frame};

/// The facts sheet's vectors of section 1.3, written this time.
#[test]
fn frames_have_upstreams_bytes() {
    let mut out = Vec::new();
    let topic = |writer: &mut FrameWriter<'_, '_>| writer.ext("topic", "T");
    request(&mut out, Encoding::Json, 7, codes::GET_ROUTEINFO_BY_TOPIC, 0, topic, b"").unwrap();
    let json = br#"{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}"#;
    assert_eq!(out[..8], [0, 0, 0, 0x7f, 0, 0, 0, 0x7b]);
    assert_eq!(out[8..], json[..]);

    out.clear();
    request(&mut out, Encoding::Binary, 7, codes::GET_ROUTEINFO_BY_TOPIC, 0, topic, b"").unwrap();
    let binary = [
        0, 0, 0, 0x25, 1, 0, 0, 0x21, 0, 0x69, 0, 1, 0x99, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0x0c, 0, 5, 0x74, 0x6f, 0x70, 0x69, 0x63, 0, 0, 0, 1, 0x54,
    ];
    assert_eq!(out, binary);
}

#[test]
fn every_text_survives_both_encodings() {
    let hard = "a\"b\\c\u{1}\u{2}\n\r\t\u{0}\u{1f}/\u{8ba2}\u{1f600}";
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut out = Vec::from(b"before");
        response(
            &mut out,
            encoding,
            -5,
            1,
            Some(hard),
            |ext| {
                ext.ext("text", hard);
                ext.ext(hard, "");
                ext.ext_int("min", i64::MIN);
                ext.ext_int("zero", 0);
                ext.ext_bool("yes", true);
            },
            b"body",
        );
        let frame = frame::decode(&out[6..], frame::FRAME_LEN_MAX).unwrap().unwrap();
        assert_eq!((frame.total_len, frame.body), (out.len() - 6, &b"body"[..]));
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        assert_eq!((command.code, command.opaque, command.version), (1, -5, 409));
        assert_eq!(command.remark.as_deref(), Some(hard));
        let want = [
            ("text", hard),
            (hard, ""),
            ("min", "-9223372036854775808"),
            ("zero", "0"),
            ("yes", "true"),
        ];
        let got: Vec<_> = command.ext.iter().collect();
        assert_eq!(got, want.map(|(name, value)| (name.into(), value.into())));
    }
}

#[test]
fn a_frame_over_the_limit_leaves_nothing_behind() {
    let long = "x".repeat(FRAME_LEN_MAX);
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut out = Vec::from(b"kept");
        let result = request(&mut out, encoding, 1, 10, 0, |ext| ext.ext("i", &long), b"");
        assert!(result.is_err());
        assert_eq!(out, b"kept");
        let result = request(&mut out, encoding, 1, 10, 0, |_| {}, long.as_bytes());
        assert!(result.unwrap_err().to_string().starts_with("frame of 1677"));
        assert_eq!(out, b"kept");

        response(&mut out, encoding, 9, 0, None, |ext| ext.ext("i", &long), b"");
        let frame = frame::decode(&out[4..], frame::FRAME_LEN_MAX).unwrap().unwrap();
        let command = Command::parse(frame.encoding, frame.header).unwrap();
        assert_eq!((command.code, command.opaque), (response::SYSTEM_ERROR, 9));
    }
}

#[test]
fn a_body_that_just_fits_is_accepted() {
    let mut out = Vec::new();
    let header_len = begin_frame(&mut out, Head::request(Encoding::Binary, 0, 10, 0)).finish(0);
    let room = FRAME_LEN_MAX + LEN_FIELD_LEN - header_len.unwrap();
    let head = Head::request(Encoding::Binary, 0, 10, 0);
    assert_eq!(begin_frame(&mut out, head).finish(room), Ok(FRAME_LEN_MAX + LEN_FIELD_LEN));
    assert!(begin_frame(&mut out, head).finish(room + 1).is_err());
}

#[test]
fn a_long_remark_is_cut_between_characters() {
    let long = "\u{8ba2}".repeat(REMARK_LEN_MAX);
    let mut out = Vec::new();
    response(&mut out, Encoding::Json, 1, 1, Some(&long), |_| {}, b"");
    let frame = frame::decode(&out, frame::FRAME_LEN_MAX).unwrap().unwrap();
    let command = Command::parse(frame.encoding, frame.header).unwrap();
    assert_eq!(command.remark.as_deref(), Some("\u{8ba2}".repeat(REMARK_LEN_MAX / 3).as_str()));
}
