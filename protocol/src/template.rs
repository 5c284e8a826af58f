//! Headers that look like an earlier one.
//!
//! A producer sends thousands of headers that differ only in their number, time, queue and
//! properties. A [`SendTemplate`] remembers what one of them looked like and compares the next one
//! piece by piece: equal pieces mean an equal structure, so only what varies has to be read. A
//! header that does not fit is parsed as usual, and nothing is lost but the comparison.
//!
//! What a template gives is what [`Command::parse`] and [`SendRequest::decode`] give for the same
//! bytes. One difference: an escape in the properties that JSON does not know stays as it is instead
//! of making the header malformed; [`Text::is_sound`] tells.
//!
//! A producer, in turn, writes its headers after one that it has encoded as usual: what is the same
//! is copied. It reads the answers with an [`AnswerTemplate`], which differ in their number, queue,
//! position and ids.

mod pull;

use alloc::{borrow::Cow, boxed::Box, string::String, vec::Vec};
use core::ops::Range;

pub use self::pull::{MatchedPull, PullTemplate};

use crate::{
    command::{Command, Language},
    encode::{FrameTooLong, finish_lens, push_int, push_json_escaped},
    frame::{Encoding, PREFIX_LEN},
    headers::{SendRequest, SendResponse},
    text::Text,
};

/// Longest header that is worth a template.
const HEADER_LEN_MAX: usize = 4096;

/// Room for escapes and longer numbers. Unit: bytes.
const SLACK_LEN: usize = 64;

/// What may differ between two headers of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varying {
    Opaque,
    QueueId,
    BornTimestamp,
    Properties,
}

/// A piece that is the same in every header, and what varies behind it.
#[derive(Debug)]
struct Piece<V> {
    same: Range<usize>,
    then: Option<V>,
}

/// The JSON header of a send that others are compared with.
#[derive(Debug)]
pub struct SendTemplate {
    header: Box<[u8]>,
    pieces: Vec<Piece<Varying>>,
    head: MatchedHead,
    request: SendRequest<'static>,
}

/// The fields of the head that every matching header shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedHead {
    /// Request code.
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's `MQVersion` ordinal.
    pub version: i32,
    /// Flag bits of the header.
    pub flag: i32,
}

impl MatchedHead {
    const fn of(command: &Command<'_>) -> Self {
        let Command { code, language, version, flag, .. } = *command;
        Self { code, language, version, flag }
    }
}

/// What a header that matched has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedSend<'a> {
    /// The request's number.
    pub opaque: i32,
    /// The queue; negative lets the broker pick one.
    pub queue_id: i32,
    /// Milliseconds since 1970 by the producer's clock.
    pub born_timestamp_ms: i64,
    /// The message's properties in the form of [`crate::properties`], undecoded.
    pub properties: Option<Text<'a>>,
}

/// What a header has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Varied<'a> {
    /// The request's number.
    pub opaque: i32,
    /// The queue.
    pub queue_id: i32,
    /// Milliseconds since 1970 by the producer's clock.
    pub born_timestamp_ms: i64,
    /// The message's properties in the form of [`crate::properties`].
    pub properties: &'a [u8],
}

impl SendTemplate {
    /// Learns from a header. `None` when it is not a send, or has something that a template cannot
    /// describe; it must be parsed every time then.
    pub fn learn(header: &[u8]) -> Option<Self> {
        if header.len() > HEADER_LEN_MAX {
            return None;
        }
        let command = Command::parse(Encoding::Json, header).ok()?;
        let request = SendRequest::decode(&command).ok()?;
        if command.is_response() || command.remark.is_some() {
            return None;
        }
        let own = MatchedSend {
            opaque: command.opaque,
            queue_id: request.queue_id,
            born_timestamp_ms: request.born_timestamp_ms,
            properties: request.properties,
        };
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let template = Self {
            header: header.into(),
            pieces: pieces(header, &command, Varying::Opaque, Varying::of)?,
            head: MatchedHead::of(&command),
            // The broker's name is informative.
            request: SendRequest {
                producer_group: owned(request.producer_group),
                topic: owned(request.topic),
                default_topic: owned(request.default_topic),
                properties: None,
                broker_name: None,
                ..request
            },
        };
        let same = template.read(header).is_some_and(|read| read == own);
        (same && template.is_proven(&template.altered())).then_some(template)
    }

    /// Whether another header that fits means the same when it is parsed: of an entry that stands there
    /// twice, or under a name that this request does not use, the parser may take the other one.
    fn is_proven(&self, altered: &[u8]) -> bool {
        let Some(own) = self.read(altered) else { return false };
        let Ok(command) = Command::parse(Encoding::Json, altered) else { return false };
        let Ok(request) = SendRequest::decode(&command) else { return false };
        let MatchedSend { opaque, queue_id, born_timestamp_ms, properties } = own;
        let ours = SendRequest { queue_id, born_timestamp_ms, properties, ..self.request.clone() };
        opaque == command.opaque
            && self.head == MatchedHead::of(&command)
            && ours == SendRequest { broker_name: None, ..request }
    }

    fn altered(&self) -> Vec<u8> {
        altered(&self.header, &self.pieces, |varying| varying == Varying::Properties)
    }

    /// The fields of the head that every header has which looks like the learned one.
    pub const fn head(&self) -> &MatchedHead {
        &self.head
    }

    /// The request that every header makes which looks like the learned one. The queue and the time
    /// are those of the learned one, and properties are not there: [`read`](Self::read) gives them.
    pub const fn request(&self) -> &SendRequest<'static> {
        &self.request
    }

    /// Reads a header that looks like the learned one; `None` for any other.
    #[inline]
    pub fn read<'a>(&self, header: &'a [u8]) -> Option<MatchedSend<'a>> {
        let mut own = MatchedSend::default();
        let mut rest = header;
        for piece in &self.pieces {
            rest = rest.strip_prefix(self.header.get(piece.same.clone())?)?;
            let Some(varying) = piece.then else { continue };
            if varying == Varying::Properties {
                let text;
                (text, rest) = take_text(rest)?;
                own.properties = Some(text);
                continue;
            }
            let number;
            (number, rest) = take_number(rest)?;
            match varying {
                Varying::Opaque => own.opaque = i32::try_from(number).ok()?,
                Varying::QueueId => own.queue_id = i32::try_from(number).ok()?,
                _ => own.born_timestamp_ms = number,
            }
        }
        rest.is_empty().then_some(own)
    }
}

impl SendTemplate {
    /// Whether the learned header has properties, and so those have that are written after it.
    pub fn has_properties(&self) -> bool {
        self.pieces.iter().any(|piece| piece.then == Some(Varying::Properties))
    }

    /// Writes a header that looks like the learned one at the end of `out`, as a frame up to its
    /// body. Returns the bytes of the whole frame, length field and body included.
    ///
    /// # Errors
    ///
    /// [`FrameTooLong`], and `out` is as it was.
    pub fn write(
        &self,
        varied: Varied<'_>,
        body_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, FrameTooLong> {
        let start = out.len();
        out.reserve(PREFIX_LEN + self.header.len() + varied.properties.len() + SLACK_LEN);
        out.extend_from_slice(&[0; PREFIX_LEN]);
        for piece in &self.pieces {
            out.extend_from_slice(self.header.get(piece.same.clone()).unwrap_or_default());
            match piece.then {
                Some(Varying::Opaque) => push_int(out, varied.opaque.into()),
                Some(Varying::QueueId) => push_int(out, varied.queue_id.into()),
                Some(Varying::BornTimestamp) => push_int(out, varied.born_timestamp_ms),
                Some(Varying::Properties) => push_json_escaped(out, varied.properties),
                None => {}
            }
        }
        finish_lens(out, start, Encoding::Json, body_len)
    }
}

/// What may differ between the answers that one producer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerVarying {
    Opaque,
    MessageId,
    QueueId,
    QueueOffset,
    TransactionId,
    BatchId,
}

impl AnswerVarying {
    fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"msgId" => Some(Self::MessageId),
            b"queueId" => Some(Self::QueueId),
            b"queueOffset" => Some(Self::QueueOffset),
            b"transactionId" => Some(Self::TransactionId),
            b"batchUniqId" => Some(Self::BatchId),
            _ => None,
        }
    }
}

/// The JSON header of an answer to a send that others are compared with.
#[derive(Debug)]
pub struct AnswerTemplate {
    header: Box<[u8]>,
    pieces: Vec<Piece<AnswerVarying>>,
    code: i32,
    recall_handle: Option<String>,
    region: Option<String>,
    trace_on: Option<bool>,
}

/// An answer that matched a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedAnswer<'a> {
    /// Response code.
    pub code: i32,
    /// The number of the request that it answers.
    pub opaque: i32,
    /// Where the message was stored.
    pub response: SendResponse<'a>,
}

impl AnswerTemplate {
    /// Learns from a header. `None` when it does not say where a message was stored, or has
    /// something that a template cannot describe; it must be parsed every time then.
    pub fn learn(header: &[u8]) -> Option<Self> {
        if header.len() > HEADER_LEN_MAX {
            return None;
        }
        let command = Command::parse(Encoding::Json, header).ok()?;
        let response = SendResponse::decode(&command).ok()?;
        if !command.is_response() || command.remark.is_some() {
            return None;
        }
        let template = Self {
            header: header.into(),
            pieces: pieces(header, &command, AnswerVarying::Opaque, AnswerVarying::of)?,
            code: command.code,
            recall_handle: response.recall_handle.clone().map(Cow::into_owned),
            region: response.region.clone().map(Cow::into_owned),
            trace_on: response.trace_on,
        };
        let want = MatchedAnswer { code: command.code, opaque: command.opaque, response };
        let same = template.read(header).is_some_and(|read| read == want);
        (same && template.is_proven(&template.altered())).then_some(template)
    }

    /// Whether another header that fits means the same when it is parsed.
    fn is_proven(&self, altered: &[u8]) -> bool {
        let Ok(command) = Command::parse(Encoding::Json, altered) else { return false };
        let Ok(response) = SendResponse::decode(&command) else { return false };
        let want = MatchedAnswer { code: command.code, opaque: command.opaque, response };
        self.read(altered).is_some_and(|read| read == want)
    }

    fn altered(&self) -> Vec<u8> {
        let numbers = [AnswerVarying::Opaque, AnswerVarying::QueueId, AnswerVarying::QueueOffset];
        altered(&self.header, &self.pieces, |varying| !numbers.contains(&varying))
    }

    /// Reads a header that looks like the learned one; `None` for any other.
    #[inline]
    pub fn read<'a>(&'a self, header: &'a [u8]) -> Option<MatchedAnswer<'a>> {
        let mut response = SendResponse {
            msg_id: Cow::Borrowed(""),
            queue_id: 0,
            queue_offset: 0,
            transaction_id: None,
            batch_uniq_id: None,
            recall_handle: self.recall_handle.as_deref().map(Cow::Borrowed),
            region: self.region.as_deref().map(Cow::Borrowed),
            trace_on: self.trace_on,
        };
        let mut opaque = 0;
        let mut rest = header;
        for piece in &self.pieces {
            rest = rest.strip_prefix(self.header.get(piece.same.clone())?)?;
            match piece.then {
                None => {}
                Some(varying @ (AnswerVarying::Opaque | AnswerVarying::QueueId)) => {
                    let number;
                    (number, rest) = take_number(rest)?;
                    let number = i32::try_from(number).ok()?;
                    match varying {
                        AnswerVarying::Opaque => opaque = number,
                        _ => response.queue_id = number,
                    }
                }
                Some(AnswerVarying::QueueOffset) => {
                    (response.queue_offset, rest) = take_number(rest)?;
                }
                Some(varying) => {
                    let text;
                    (text, rest) = take_text(rest)?;
                    let text = Cow::Borrowed(core::str::from_utf8(text.as_plain()?).ok()?);
                    match varying {
                        AnswerVarying::MessageId => response.msg_id = text,
                        AnswerVarying::TransactionId => response.transaction_id = Some(text),
                        _ => response.batch_uniq_id = Some(text),
                    }
                }
            }
        }
        rest.is_empty().then_some(MatchedAnswer { code: self.code, opaque, response })
    }
}

impl Varying {
    fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"e" | b"queueId" => Some(Self::QueueId),
            b"g" | b"bornTimestamp" => Some(Self::BornTimestamp),
            b"i" | b"properties" => Some(Self::Properties),
            _ => None,
        }
    }
}

/// Cuts a header at what varies: the number, and the entries that `varying` knows by name.
fn pieces<V>(
    header: &[u8],
    command: &Command<'_>,
    opaque: V,
    varying: impl Fn(&[u8]) -> Option<V>,
) -> Option<Vec<Piece<V>>> {
    let mut cuts = Vec::new();
    for (name, value) in command.ext.entries() {
        if let Some(varying) = varying(name.as_plain()?) {
            cuts.push((place_in(header, value.raw())?, varying));
        }
    }
    cuts.push((place_of_opaque(header)?, opaque));
    cuts.sort_unstable_by_key(|(place, _)| place.start);
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    let mut from = 0;
    for (place, varying) in cuts {
        pieces.push(Piece { same: from..place.start, then: Some(varying) });
        from = place.end;
    }
    pieces.push(Piece { same: from..header.len(), then: None });
    Some(pieces)
}

/// The header with something else in each place that varies, and different things in all of them.
fn altered<V: Copy>(header: &[u8], pieces: &[Piece<V>], is_text: impl Fn(V) -> bool) -> Vec<u8> {
    /// Unlike any number that stands there, most likely; equal ones would only prove less.
    const FIRST: i64 = 90_001;
    let mut out = Vec::with_capacity(header.len() + SLACK_LEN);
    for (number, piece) in (FIRST..).zip(pieces) {
        out.extend_from_slice(header.get(piece.same.clone()).unwrap_or_default());
        let Some(varying) = piece.then else { continue };
        if is_text(varying) {
            out.push(b't');
        }
        push_int(&mut out, number);
    }
    out
}

fn place_in(header: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(header.as_ptr().addr())?;
    Some(start..start + part.len())
}

/// The digits behind the only `"opaque":`.
fn place_of_opaque(header: &[u8]) -> Option<Range<usize>> {
    const KEY: &[u8] = b"\"opaque\":";
    let mut places = memchr::memmem::find_iter(header, KEY);
    let start = places.next()? + KEY.len();
    if places.next().is_some() {
        return None;
    }
    let digits = header.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0).then_some(start..start + digits)
}

/// Up to 18 digits, which cannot overflow.
#[inline]
fn take_number(bytes: &[u8]) -> Option<(i64, &[u8])> {
    const DIGITS_MAX: usize = 18;
    let mut value = 0_i64;
    let mut len = 0;
    for byte in bytes.iter().take(DIGITS_MAX) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value * 10 + i64::from(digit);
        len += 1;
    }
    let rest = bytes.get(len..)?;
    // A leading zero, or a longer number, is left to the parser.
    let odd = len == 0 || (len > 1 && bytes.first() == Some(&b'0'));
    let longer = rest.first().is_some_and(u8::is_ascii_digit);
    (!odd && !longer).then_some((value, rest))
}

/// A string's inside, up to its closing quote. One with an escaped quote is left to the parser.
#[inline]
fn take_text(bytes: &[u8]) -> Option<(Text<'_>, &[u8])> {
    let end = memchr::memchr(b'"', bytes)?;
    let (raw, rest) = bytes.split_at_checked(end)?;
    if raw.last() == Some(&b'\\') {
        return None;
    }
    Some((Text::scanned(raw, memchr::memchr(b'\\', raw).is_some()), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        encode::{Head, begin_frame},
        frame::FRAME_LEN_MAX,
    };
    use std::{format, string::ToString, vec};

    fn header(queue: i64, born: i64, properties: &str, opaque: i64) -> String {
        format!(
            "{{\"code\":310,\"extFields\":{{\"a\":\"PG\",\"b\":\"TopicA\",\"c\":\"TBW102\",\"d\":\"4\",\
             \"e\":\"{queue}\",\"f\":\"0\",\"g\":\"{born}\",\"h\":\"7\",\"i\":\"{properties}\",\
             \"j\":\"0\",\"k\":\"false\",\"m\":\"false\"}},\"flag\":0,\"language\":\"JAVA\",\
             \"opaque\":{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}}"
        )
    }

    /// A header reads the same through the template, or not at all.
    #[track_caller]
    fn check(template: &SendTemplate, header: &str, fits: bool) {
        let read = template.read(header.as_bytes());
        assert_eq!(read.is_some(), fits, "{header}");
        let Some(own) = read else { return };
        let command = Command::parse(Encoding::Json, header.as_bytes()).unwrap();
        check_same(template, own, &command);
    }

    /// What a template gives is what parsing and decoding give.
    #[track_caller]
    fn check_same(template: &SendTemplate, own: MatchedSend<'_>, command: &Command<'_>) {
        let MatchedSend { opaque, queue_id, born_timestamp_ms, properties } = own;
        let request = template.request().clone();
        let request = SendRequest { queue_id, born_timestamp_ms, properties, ..request };
        let want = SendRequest::decode(command).unwrap();
        assert_eq!(request, SendRequest { broker_name: None, ..want });
        let head = template.head();
        assert_eq!((head.code, opaque), (command.code, command.opaque));
        assert_eq!((head.flag, head.version), (command.flag, command.version));
    }

    #[test]
    fn headers_that_differ_where_they_may_are_read() {
        let first = header(1, 1_700_000_000_000, r"UNIQ_KEY\u00010A\u0002WAIT\u0001true", 5);
        let template = SendTemplate::learn(first.as_bytes()).unwrap();
        check(&template, &first, true);
        check(&template, &header(0, 1, "", 0), true);
        check(&template, &header(2_147_483_647, 9, "plain", 2_147_483_647), true);
        check(&template, &header(3, 1_700_000_000_001, r"K\u0001\u8ba2\u5355\u0002", 99), true);
    }

    #[test]
    fn headers_are_written_as_they_are_encoded() {
        let request = |queue_id, born_timestamp_ms, properties: &'static [u8]| SendRequest {
            producer_group: "PG".into(),
            topic: "TopicA".into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 4,
            queue_id,
            sys_flag: 0,
            born_timestamp_ms,
            flag: -7,
            properties: Some(Text::plain(properties)),
            reconsume_times: 0,
            unit_mode: false,
            max_reconsume_times: None,
            batch: false,
            broker_name: Some("broker-a".into()),
        };
        let encode = |request: &SendRequest<'_>, opaque, body_len| {
            let mut out = vec![7];
            let mut writer = begin_frame(&mut out, Head::request(Encoding::Json, opaque, 310, 0));
            request.encode(310, &mut writer);
            let len = writer.finish(body_len);
            (len, out)
        };
        let (_, first) = encode(&request(1, 1_700_000_000_000, b"A\x01b"), 5, 10);
        let template = SendTemplate::learn(&first[1 + PREFIX_LEN..]).unwrap();
        assert!(template.has_properties());
        for (opaque, queue_id, born_timestamp_ms, properties, body_len) in [
            (5, 1, 1_700_000_000_000, &b"A\x01b"[..], 10),
            (i32::MAX, -1, -1, b"", 0),
            (1, 1000, i64::MAX, b"\"quoted\"\\\x01\x02\n\xe8\xae\xa2", 4 * 1024 * 1024),
            (1, 0, 0, b"x", FRAME_LEN_MAX),
        ] {
            let want = encode(&request(queue_id, born_timestamp_ms, properties), opaque, body_len);
            let (varied, mut out) =
                (Varied { opaque, queue_id, born_timestamp_ms, properties }, vec![7]);
            let len = template.write(varied, body_len, &mut out);
            assert_eq!((len, out), want);
        }
    }

    #[test]
    fn anything_else_is_left_to_the_parser() {
        let first = header(1, 1_700_000_000_000, "P", 5);
        let template = SendTemplate::learn(first.as_bytes()).unwrap();
        for other in [
            header(-1, 1, "P", 5),
            header(1, 1, "P", -5),
            header(1, 1, r#"a\"b"#, 5),
            header(1, 1, r"a\\", 5),
            header(2_147_483_648, 1, "P", 5),
            first.replace("TopicA", "TopicB"),
            first.replace("\"h\":\"7\"", "\"h\":\"8\""),
            first.replace("\"e\":\"1\"", "\"e\":\"01\""),
            first.replace("\"g\":\"1700000000000\"", "\"g\":\"1234567890123456789\""),
            first.replace(":310,", ":320,"),
            first.clone() + "\n",
            first.replace(",\"version\":409}", ""),
        ] {
            check(&template, &other, false);
        }
    }

    #[test]
    fn a_cut_or_changed_header_is_never_read_as_something_else() {
        let first = header(1, 1_700_000_000_000, r"A\u0001b", 5);
        let template = SendTemplate::learn(first.as_bytes()).unwrap();
        for at in 0..first.len() {
            assert!(template.read(&first.as_bytes()[..at]).is_none(), "cut at {at}");
            for change in [b'"', b'\\', b'0', b'9', b'x', 0, 0xff] {
                let mut changed = first.clone().into_bytes();
                changed[at] = change;
                let Some(own) = template.read(&changed) else { continue };
                let Ok(command) = Command::parse(Encoding::Json, &changed) else {
                    // Only the inside of the properties may hold what JSON does not know.
                    assert!(own.properties.is_some_and(|text| text.as_plain().is_none()));
                    continue;
                };
                check_same(&template, own, &command);
            }
        }
    }

    #[test]
    fn what_the_parser_takes_from_elsewhere_teaches_nothing() {
        let first = header(3, 5, "P", 7);
        for odd in [
            // Both names of one entry.
            first.replace("\"e\":\"3\"", "\"e\":\"3\",\"queueId\":\"3\""),
            first.replace("\"g\":\"5\"", "\"g\":\"5\",\"bornTimestamp\":\"5\""),
            first.replace("\"j\":", "\"properties\":\"P\",\"j\":"),
            // Another number that looks like the request's.
            first.replace("\"opaque\":7", "\"opaque\" :7,\"x\":{\"opaque\":7}"),
            first
                .replace("{\"code\"", "{\"x\":{\"opaque\":7},\"code\"")
                .replace(",\"opaque\":7", ",\"opaque\" :7"),
        ] {
            assert!(Command::parse(Encoding::Json, odd.as_bytes()).is_ok(), "{odd}");
            assert!(SendTemplate::learn(odd.as_bytes()).is_none(), "{odd}");
        }
    }

    #[test]
    fn other_requests_and_odd_headers_teach_nothing() {
        let first = header(1, 1, "P", 5);
        for odd in [
            first.replace("\"opaque\":5", "\"opaque\":-5"),
            first.replace("\"m\":\"false\"", "\"m\":\"false\",\"opaque\":\"1\""),
            first.replace("\"flag\":0", "\"flag\":1"),
            first.replace("\"b\":\"TopicA\",", ""),
            "{}".to_string(),
        ] {
            assert!(SendTemplate::learn(odd.as_bytes()).is_none(), "{odd}");
        }
    }

    fn answer(id: &str, queue: i64, offset: i64, opaque: i64) -> String {
        format!(
            "{{\"code\":0,\"extFields\":{{\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\",\
             \"msgId\":\"{id}\",\"queueId\":\"{queue}\",\"queueOffset\":\"{offset}\",\
             \"transactionId\":\"{id}-t\"}},\"flag\":1,\"language\":\"JAVA\",\"opaque\":{opaque},\
             \"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}}"
        )
    }

    /// An answer reads the same through the template, or not at all.
    #[track_caller]
    fn check_answer(template: &AnswerTemplate, header: &[u8], fits: Option<bool>) {
        let read = template.read(header);
        assert!(fits.is_none_or(|fits| fits == read.is_some()), "{}", header.escape_ascii());
        let Some(read) = read else { return };
        let command = Command::parse(Encoding::Json, header).unwrap();
        let response = SendResponse::decode(&command).unwrap();
        let want = MatchedAnswer { code: command.code, opaque: command.opaque, response };
        assert_eq!(read, want, "{}", header.escape_ascii());
    }

    #[test]
    fn answers_that_differ_where_they_may_are_read() {
        let first = answer("0A", 1, 7, 5);
        let template = AnswerTemplate::learn(first.as_bytes()).unwrap();
        check_answer(&template, first.as_bytes(), Some(true));
        check_answer(&template, answer("", 0, 0, 0).as_bytes(), Some(true));
        let long = answer(&"AB,".repeat(300), i32::MAX.into(), 1 << 40, i32::MAX.into());
        check_answer(&template, long.as_bytes(), Some(true));
        for other in [
            answer("0A", 1, 7, 1 << 31),
            answer("0A", 1 << 31, 7, 5),
            answer("0A", -1, 7, 5),
            answer(r"a\u0041", 1, 7, 5),
            answer(r#"a\"b"#, 1, 7, 5),
            first.replace("\"code\":0", "\"code\":10"),
            first.replace("\"TRACE_ON\":\"true\"", "\"TRACE_ON\":\"false\""),
            first.replace(",\"version\":409}", ""),
            first.clone() + " ",
        ] {
            check_answer(&template, other.as_bytes(), Some(false));
        }
    }

    #[test]
    fn a_cut_or_changed_answer_is_never_read_as_something_else() {
        let first = answer("0A", 1, 7, 5);
        let template = AnswerTemplate::learn(first.as_bytes()).unwrap();
        for at in 0..first.len() {
            assert!(template.read(&first.as_bytes()[..at]).is_none(), "cut at {at}");
            for change in [b'"', b'\\', b'0', b'9', b'x'] {
                let mut changed = first.clone().into_bytes();
                changed[at] = change;
                check_answer(&template, &changed, None);
            }
        }
    }

    #[test]
    fn only_answers_to_sends_can_be_learned() {
        let first = answer("0A", 1, 7, 5);
        for other in [
            first.replace("\"flag\":1", "\"flag\":0"),
            first.replace("\"msgId\"", "\"other\""),
            first.replace(",\"language\"", ",\"remark\":\"x\",\"language\""),
        ] {
            assert!(AnswerTemplate::learn(other.as_bytes()).is_none(), "{other}");
        }
    }
}
