//! Requests: built once, patched in place.
//!
//! A generator that formats a header for every message measures itself. Here a frame is built once
//! per queue; a send copies it and overwrites the correlation number and a stamp in the body, a
//! pull also the queue offset. To keep lengths fixed, correlation numbers count from
//! [`OPAQUE_BASE`] (always ten digits). Offsets have as many digits as they need, as every client
//! writes them; in binary headers, whose lengths are nested, they are written with leading zeros,
//! a decimal number like any other to Java's `Long.parseLong`.

use ringmq_protocol::batch;
use ringmq_protocol::codes::request as codes;
use ringmq_protocol::encode;
use ringmq_protocol::frame::Encoding;
use ringmq_protocol::properties;
use ringmq_protocol::tags::java_hash;

use crate::clock::{Nanos, epoch_ms};

/// First correlation number of patched frames; every later one has as many digits.
pub(crate) const OPAQUE_BASE: u32 = 1_000_000_000;
/// Bytes of the stamp at the start of a body that is long enough.
pub(crate) const STAMP_LEN: usize = 16;

/// Places of a frame's lengths: behind this one, and of the header (whose encoding is the top byte).
const LEN_AT: usize = 0;
const HEADER_LEN_AT: usize = 4;
/// Digits of a patched queue offset: as many as `i64::MAX` has.
const OFFSET_DIGITS: usize = 19;
/// Place of the correlation number in a binary frame.
const BINARY_OPAQUE_AT: usize = 8 + 5;

/// Builds a whole request frame. `ext` must be in the order in which it shall appear.
pub(crate) fn request(
    encoding: Encoding,
    code: i32,
    opaque: u32,
    ext: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    let put_fields = |writer: &mut encode::FrameWriter<'_, '_>| {
        for (name, value) in ext {
            writer.ext(name, value);
        }
    };
    encode::request(&mut frame, encoding, opaque.cast_signed(), code, 0, put_fields, body)
        .expect("frames of this tool are checked against the limit when its options are read");
    frame
}

/// A frame whose correlation number can be replaced.
#[derive(Clone, Debug)]
struct Template {
    bytes: Vec<u8>,
    encoding: Encoding,
    opaque_at: usize,
}

impl Template {
    fn new(encoding: Encoding, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Self {
        let bytes = request(encoding, code, OPAQUE_BASE, ext, body);
        let opaque_at = match encoding {
            Encoding::Binary => BINARY_OPAQUE_AT,
            Encoding::Json => {
                let key = b"\"opaque\":";
                let header = bytes.get(..bytes.len() - body.len()).unwrap_or_default();
                memchr::memmem::rfind(header, key).expect("every header has one") + key.len()
            }
        };
        Self { bytes, encoding, opaque_at }
    }

    /// Appends the frame with the correlation number `OPAQUE_BASE + slot` and returns its bytes.
    fn write<'a>(&self, slot: u32, out: &'a mut Vec<u8>) -> &'a mut [u8] {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let frame = out.get_mut(start..).unwrap_or_default();
        let opaque = OPAQUE_BASE + slot;
        match self.encoding {
            Encoding::Json => put_digits(frame, self.opaque_at, 10, opaque.into()),
            Encoding::Binary => put(frame, self.opaque_at, &opaque.to_be_bytes()),
        }
        frame
    }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Lowers the 32-bit length at `at`.
fn shorten(frame: &mut [u8], at: usize, by: usize) {
    let len = frame.get(at..).and_then(<[u8]>::first_chunk).copied().map(u32::from_be_bytes);
    let by = u32::try_from(by).unwrap_or_default();
    put(frame, at, &(len.unwrap_or_default() - by).to_be_bytes());
}

/// Writes `value` in decimal, with leading zeros, into `count` bytes from `at`.
fn put_digits(frame: &mut [u8], at: usize, count: usize, mut value: u64) {
    for place in frame.get_mut(at..at + count).unwrap_or_default().iter_mut().rev() {
        *place = b"0123456789".get((value % 10) as usize).copied().unwrap_or(b'0');
        value /= 10;
    }
}

/// What a send carries.
#[derive(Clone, Debug)]
pub(crate) struct SendSpec<'a> {
    /// How the header is written.
    pub(crate) encoding: Encoding,
    /// Producer group.
    pub(crate) group: &'a str,
    /// Topic.
    pub(crate) topic: &'a str,
    /// Bytes of one message's body.
    pub(crate) body_len: usize,
    /// Messages of one request; more than one makes a batch (320).
    pub(crate) batch: u32,
    /// Tag, put into every message.
    pub(crate) tag: Option<&'a str>,
}

/// Send frames of one topic, one for each queue.
#[derive(Clone, Debug)]
pub(crate) struct SendFrames {
    frames: Vec<Template>,
    /// Where the body of each message starts, counted from the end of the frame.
    bodies_from_end: Vec<usize>,
}

impl SendFrames {
    /// Builds the frames of queues `0..queues`.
    pub(crate) fn new(spec: &SendSpec<'_>, queues: u32) -> Self {
        let properties = message_properties(spec.tag);
        let body = vec![b'r'; spec.body_len];
        let (code, content, body_starts) = if spec.batch == 1 {
            (codes::SEND_MESSAGE_V2, body, vec![0])
        } else {
            let (content, starts) = batch_content(&body, &properties, spec.batch);
            (codes::SEND_BATCH_MESSAGE, content, starts)
        };
        let stamped = spec.body_len >= STAMP_LEN;
        let bodies_from_end = if stamped {
            body_starts.iter().map(|start| content.len() - start).collect()
        } else {
            Vec::new()
        };
        let born = epoch_ms().to_string();
        let header_properties =
            if spec.batch == 1 { String::from_utf8_lossy(&properties) } else { "".into() };
        let batch_flag = (spec.batch > 1).to_string();
        let frames = (0..queues)
            .map(|queue| {
                let queue = queue.to_string();
                let ext = [
                    ("a", spec.group),
                    ("b", spec.topic),
                    ("c", "TBW102"),
                    ("d", "4"),
                    ("e", queue.as_str()),
                    ("f", "0"),
                    ("g", born.as_str()),
                    ("h", "0"),
                    ("i", header_properties.as_ref()),
                    ("j", "0"),
                    ("k", "false"),
                    ("m", batch_flag.as_str()),
                ];
                Template::new(spec.encoding, code, &ext, &content)
            })
            .collect();
        Self { frames, bodies_from_end }
    }

    /// Appends the frame for `queue` with correlation number `slot`, its messages stamped with the
    /// moment and consecutive numbers from `sequence`.
    pub(crate) fn write(
        &self,
        queue: usize,
        slot: u32,
        moment: Nanos,
        sequence: u64,
        out: &mut Vec<u8>,
    ) {
        let template = self.frames.get(queue).expect("queues were counted when this was built");
        let frame = template.write(slot, out);
        for (number, from_end) in (sequence..).zip(&self.bodies_from_end) {
            let at = frame.len() - from_end;
            put(frame, at, &moment.get().to_be_bytes());
            put(frame, at + 8, &number.to_be_bytes());
        }
    }
}

/// The stamp of a message body: when it was meant to be sent, and its number.
pub(crate) fn stamp(body: &[u8]) -> Option<(Nanos, u64)> {
    let (moment, rest) = body.split_first_chunk::<8>()?;
    let (number, _) = rest.split_first_chunk::<8>()?;
    Some((Nanos::new(u64::from_be_bytes(*moment)), u64::from_be_bytes(*number)))
}

fn message_properties(tag: Option<&str>) -> Vec<u8> {
    let mut text = Vec::new();
    // A Java producer always adds a unique key and WAIT; the key's length is what counts here.
    let key = "7F00000118B4AAC2083C000000000000";
    for (name, value) in
        [tag.map(|tag| ("TAGS", tag)), Some(("UNIQ_KEY", key)), Some(("WAIT", "true"))]
            .into_iter()
            .flatten()
    {
        properties::append(&mut text, name, value).expect("tags are checked as options");
    }
    text
}

/// A batch body and where in it each message's own body starts.
fn batch_content(body: &[u8], properties: &[u8], count: u32) -> (Vec<u8>, Vec<usize>) {
    let mut content = Vec::new();
    let mut starts = Vec::new();
    // The body follows five integers.
    let body_at = 20;
    for _ in 0..count {
        starts.push(content.len() + body_at);
        batch::append(&mut content, &batch::Item { flag: 0, body, properties })
            .expect("messages of this tool are checked against the limit as options");
    }
    (content, starts)
}

/// What a pull asks for.
#[derive(Clone, Debug)]
pub(crate) struct PullSpec<'a> {
    /// How the header is written.
    pub(crate) encoding: Encoding,
    /// Consumer group.
    pub(crate) group: &'a str,
    /// Topic.
    pub(crate) topic: &'a str,
    /// Messages wanted at most.
    pub(crate) messages_max: u32,
    /// How long the broker may hold the pull at the end of the queue, in milliseconds.
    pub(crate) suspend_ms: u32,
}

/// The pull frame of one queue.
#[derive(Clone, Debug)]
pub(crate) struct PullFrame {
    template: Template,
    offset_at: usize,
}

impl PullFrame {
    /// Builds the frame as a push consumer sends it: suspended, subscription known from the
    /// heartbeat.
    pub(crate) fn new(spec: &PullSpec<'_>, queue: u32) -> Self {
        // No other field can contain nineteen nines.
        let placeholder = "9".repeat(OFFSET_DIGITS);
        let (queue, max) = (queue.to_string(), spec.messages_max.to_string());
        let suspend = spec.suspend_ms.to_string();
        let ext = [
            ("commitOffset", "0"),
            ("consumerGroup", spec.group),
            ("expressionType", "TAG"),
            ("maxMsgNums", max.as_str()),
            ("queueId", queue.as_str()),
            ("queueOffset", placeholder.as_str()),
            ("subVersion", "1"),
            ("suspendTimeoutMillis", suspend.as_str()),
            ("sysFlag", "2"),
            ("topic", spec.topic),
        ];
        let template = Template::new(spec.encoding, codes::PULL_MESSAGE, &ext, b"");
        let offset_at = memchr::memmem::find(&template.bytes, placeholder.as_bytes())
            .expect("the placeholder was just written");
        Self { template, offset_at }
    }

    /// Appends the frame for `queue_offset` with correlation number `slot`.
    pub(crate) fn write(&self, queue_offset: u64, slot: u32, out: &mut Vec<u8>) {
        let start = out.len();
        let frame = self.template.write(slot, out);
        put_digits(frame, self.offset_at, OFFSET_DIGITS, queue_offset);
        if self.template.encoding == Encoding::Json {
            let digits = queue_offset.checked_ilog10().unwrap_or(0) as usize + 1;
            let zeros = OFFSET_DIGITS - digits;
            for at in [LEN_AT, HEADER_LEN_AT] {
                shorten(frame, at, zeros);
            }
            let at = start + self.offset_at;
            out.drain(at..at + zeros);
        }
    }
}

/// A heartbeat body of one push consumer with one subscription.
pub(crate) fn consumer_heartbeat(client_id: &str, group: &str, topic: &str, tags: &str) -> Vec<u8> {
    let tag_set: Vec<&str> = tags.split("||").map(str::trim).filter(|tag| *tag != "*").collect();
    let code_set: Vec<i32> = tag_set.iter().map(|tag| java_hash(tag)).collect();
    serde_json::json!({
        "clientID": client_id,
        "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{
                "classFilterMode": false,
                "codeSet": code_set,
                "expressionType": "TAG",
                "subString": tags,
                "subVersion": 1,
                "tagsSet": tag_set,
                "topic": topic,
            }],
            "unitMode": false,
        }],
        "producerDataSet": [],
    })
    .to_string()
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan;

    fn spec(encoding: Encoding, batch: u32) -> SendSpec<'static> {
        SendSpec { encoding, group: "g", topic: "t", body_len: 40, batch, tag: Some("TagA") }
    }

    #[test]
    fn patching_changes_the_number_and_nothing_else() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let frames = SendFrames::new(&spec(encoding, 1), 12);
            let mut out = vec![1, 2, 3];
            frames.write(11, 123_456_789, Nanos::new(5), 6, &mut out);
            let answer = scan(&out[3..]).unwrap();
            assert_eq!(answer.opaque, 1_123_456_789);
            assert_eq!(answer.code, codes::SEND_MESSAGE_V2);
            assert_eq!(answer.ext("e").as_deref(), Some("11"));
            assert_eq!(answer.ext("b").as_deref(), Some("t"));
            assert_eq!(stamp(answer.body), Some((Nanos::new(5), 6)));
            assert_eq!(answer.body.len(), 40);
        }
    }

    #[test]
    fn every_message_of_a_batch_has_its_own_stamp() {
        let frames = SendFrames::new(&spec(Encoding::Json, 3), 1);
        let mut out = Vec::new();
        frames.write(0, 0, Nanos::new(9), 100, &mut out);
        let mut rest = scan(&out).unwrap().body;
        for number in 100..103 {
            let len = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            assert_eq!(stamp(&rest[20..]), Some((Nanos::new(9), number)));
            rest = &rest[len..];
        }
        assert_eq!(rest, b"");
    }

    #[test]
    fn a_pull_carries_its_offset_as_a_plain_decimal_number() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let spec =
                PullSpec { encoding, group: "g", topic: "t", messages_max: 32, suspend_ms: 9 };
            let frame = PullFrame::new(&spec, 3);
            for offset in [0, 42, u64::try_from(i64::MAX).unwrap()] {
                let mut out = Vec::new();
                frame.write(offset, 8, &mut out);
                let answer = scan(&out).unwrap();
                assert_eq!(answer.ext_int("queueOffset"), i64::try_from(offset).ok());
                if encoding == Encoding::Json {
                    let text = answer.ext("queueOffset").map(|text| text.to_string());
                    assert_eq!(text, Some(offset.to_string()), "as clients write it");
                }
                assert_eq!(answer.opaque, 1_000_000_008);
            }
        }
    }
}
