//! What a header costs: nanoseconds to parse a send and a pull in both encodings and to write
//! their answers, each the best of several rounds.
//!
//! Run with `cargo run --release -p ringmq-protocol --example header_cost`.
#![expect(clippy::print_stdout, reason = "the figures are its output")]
#![expect(clippy::disallowed_methods, reason = "a stopwatch needs the clock")]

use std::{borrow::Cow, hint::black_box, time::Instant};

use ringmq_protocol::{
    codes::{request, response},
    command::Command,
    encode::{FrameWriter, Head, Sent, SentAnswers, begin_frame, response},
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::{PullRequest, PullResponse, SendRequest, SendResponse},
    message_id::OffsetMessageId,
    template::SendTemplate,
    text::Text,
};

const ROUNDS: u32 = 1_000;
const PER_ROUND: u32 = 1_000;

/// Prints the time of one `step`, in nanoseconds.
fn measure(name: &str, bytes: usize, mut step: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..PER_ROUND {
            step();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(PER_ROUND));
    }
    println!("{name:<28} {bytes:>5} bytes {best:>8.1} ns");
}

fn frame(encoding: Encoding, code: i32, ext: impl FnOnce(&mut FrameWriter<'_, '_>)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = begin_frame(&mut out, Head::request(encoding, 4711, code, 0));
    ext(&mut writer);
    writer.finish(0).expect("a header fits a frame");
    out
}

/// A send as the Java client 4.9.8 makes it.
fn send() -> SendRequest<'static> {
    let properties = "KEYS\u{1}key-1\u{2}UNIQ_KEY\u{1}FD000000000000000000000000000002525A5FFD2B2797CAFB1D0000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
    SendRequest {
        producer_group: Cow::Borrowed("golden_producers"),
        topic: Cow::Borrowed("GoldenTopic"),
        default_topic: Cow::Borrowed("TBW102"),
        default_topic_queue_nums: 4,
        queue_id: 1,
        sys_flag: 0,
        born_timestamp_ms: 1_796_037_862_173,
        flag: 0,
        properties: Some(Text::from(properties)),
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch: false,
        broker_name: Some(Cow::Borrowed("b0")),
    }
}

/// A pull as the Java client 5.5.0 makes it.
fn pull() -> PullRequest<'static> {
    PullRequest {
        consumer_group: Cow::Borrowed("golden_group"),
        topic: Cow::Borrowed("GoldenTopic"),
        queue_id: 1,
        queue_offset: 123_456_789,
        max_msg_nums: 32,
        sys_flag: 3,
        commit_offset: 123_456_700,
        suspend_timeout_ms: 15_000,
        subscription: Some(Cow::Borrowed("*")),
        sub_version: 1_796_037_862_814,
        expression_type: Some(Cow::Borrowed("TAG")),
        max_msg_bytes: Some(262_144),
        request_source: None,
        proxy_forward_client_id: None,
    }
}

fn parse(bytes: &[u8]) -> Command<'_> {
    let frame = frame::decode(bytes, FRAME_LEN_MAX).ok().flatten().expect("a whole frame");
    Command::parse(frame.encoding, frame.header).expect("a header")
}

fn main() {
    let id =
        OffsetMessageId { host: "127.0.0.1:10911".parse().expect("an address"), log_offset: 5026 };
    for encoding in [Encoding::Json, Encoding::Binary] {
        let sends = frame(encoding, request::SEND_MESSAGE_V2, |out| {
            send().encode(request::SEND_MESSAGE_V2, out);
        });
        measure(&format!("parse send {encoding:?}"), sends.len(), || {
            let command = parse(black_box(&sends));
            black_box(SendRequest::decode(&command)).expect("a send");
        });
        let mut text = Vec::with_capacity(256);
        measure(&format!("  with properties {encoding:?}"), sends.len(), || {
            let command = parse(black_box(&sends));
            let send = SendRequest::decode(&command).expect("a send");
            text.clear();
            send.properties.unwrap_or_default().append_to(&mut text);
            black_box(&text);
        });
        if encoding == Encoding::Json {
            let frame =
                frame::decode(&sends, FRAME_LEN_MAX).expect("a frame").expect("a whole one");
            let template = SendTemplate::learn(frame.header).expect("a send in JSON");
            measure("  by template", sends.len(), || {
                let frame = frame::decode(black_box(&sends), FRAME_LEN_MAX);
                let frame = frame.expect("a frame").expect("a whole one");
                black_box(template.read(frame.header)).expect("the same header");
            });
            let mut out = Vec::with_capacity(512);
            let answers = SentAnswers::new(id.host, "DefaultRegion", true);
            let log_offset = id.log_offset;
            let answer = Sent { opaque: 4711, log_offset, queue_id: 1, queue_offset: 7 };
            measure("write send response at once", 242, || {
                out.clear();
                answers.write(black_box(&answer), &mut out);
                black_box(&out);
            });
        }
        let pulls = frame(encoding, request::PULL_MESSAGE, |out| pull().encode(out));
        measure(&format!("parse pull {encoding:?}"), pulls.len(), || {
            let command = parse(black_box(&pulls));
            black_box(PullRequest::decode(&command)).expect("a pull");
        });
        let mut out = Vec::with_capacity(1024);
        let answer = |out: &mut Vec<u8>| {
            out.clear();
            let hex = black_box(id).to_hex();
            let header = SendResponse::new(Cow::Borrowed(&hex), 1, 4, true);
            let ext = |writer: &mut FrameWriter<'_, '_>| header.encode(writer);
            response(out, encoding, 4711, response::SUCCESS, None, ext, b"");
        };
        answer(&mut out);
        let len = out.len();
        measure(&format!("write send response {encoding:?}"), len, || answer(&mut out));
        let answer = |out: &mut Vec<u8>| {
            out.clear();
            let header = black_box(PullResponse::new(123_456_789, 0, 123_456_800));
            let ext = |writer: &mut FrameWriter<'_, '_>| header.encode(writer);
            response(out, encoding, 4711, response::SUCCESS, Some("FOUND"), ext, b"");
        };
        answer(&mut out);
        let len = out.len();
        measure(&format!("write pull response {encoding:?}"), len, || answer(&mut out));
    }
}
