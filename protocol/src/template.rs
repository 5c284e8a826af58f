//! Headers that look like an earlier one.
//!
//! A producer sends thousands of headers that differ only in their number, time, queue and
//! properties. A [`SendTemplate`] remembers what one of them looked like and compares the next one
//! piece by piece: equal pieces mean an equal structure, so only what varies has to be read. A
//! header that does not fit is parsed as usual, and nothing is lost but the comparison.
//!
//! What a template gives is what [`Command::parse`] and [`SendRequest::decode`] give for the same
//! bytes. One difference: an escape in the properties that JSON does not know stays as it is instead
//! of making the header malformed.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::ops::Range;

use crate::{
    command::{Command, Language},
    frame::Encoding,
    headers::SendRequest,
    text::Text,
};

/// Longest header that is worth a template.
const HEADER_LEN_MAX: usize = 4096;

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
struct Piece {
    same: Range<usize>,
    then: Option<Varying>,
}

/// The JSON header of a send that others are compared with.
#[derive(Debug)]
pub struct SendTemplate {
    header: Box<[u8]>,
    pieces: Vec<Piece>,
    fixed: Fixed,
}

/// The fields that every matching header shares.
#[derive(Debug)]
struct Fixed {
    code: i32,
    language: Language,
    version: i32,
    flag: i32,
    producer_group: String,
    topic: String,
    default_topic: String,
    default_topic_queue_nums: i32,
    sys_flag: i32,
    message_flag: i32,
    reconsume_times: i32,
    unit_mode: bool,
    max_reconsume_times: Option<i32>,
    batch: bool,
}

/// The head of a header that matched a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedHead {
    /// Request code.
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's `MQVersion` ordinal.
    pub version: i32,
    /// The request's number.
    pub opaque: i32,
    /// Flag bits of the header.
    pub flag: i32,
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
        let template = Self {
            header: header.into(),
            pieces: pieces(header, &command)?,
            fixed: Fixed {
                code: command.code,
                language: command.language,
                version: command.version,
                flag: command.flag,
                producer_group: request.producer_group.clone().into_owned(),
                topic: request.topic.clone().into_owned(),
                default_topic: request.default_topic.clone().into_owned(),
                default_topic_queue_nums: request.default_topic_queue_nums,
                sys_flag: request.sys_flag,
                message_flag: request.flag,
                reconsume_times: request.reconsume_times,
                unit_mode: request.unit_mode,
                max_reconsume_times: request.max_reconsume_times,
                batch: request.batch,
            },
        };
        // The broker's name is informative; every other field must come out the same.
        let request = SendRequest { broker_name: None, ..request };
        let same = template
            .read(header)
            .is_some_and(|(head, read)| head.opaque == command.opaque && read == request);
        same.then_some(template)
    }

    /// Reads a header that looks like the learned one; `None` for any other.
    #[inline]
    pub fn read<'a>(&'a self, header: &'a [u8]) -> Option<(MatchedHead, SendRequest<'a>)> {
        let fixed = &self.fixed;
        let (mut opaque, mut queue_id, mut born_timestamp_ms) = (0, 0, 0);
        let mut properties = None;
        let mut rest = header;
        for piece in &self.pieces {
            rest = rest.strip_prefix(self.header.get(piece.same.clone())?)?;
            let Some(varying) = piece.then else { continue };
            if varying == Varying::Properties {
                let text;
                (text, rest) = take_text(rest)?;
                properties = Some(text);
                continue;
            }
            let number;
            (number, rest) = take_number(rest)?;
            match varying {
                Varying::Opaque => opaque = i32::try_from(number).ok()?,
                Varying::QueueId => queue_id = i32::try_from(number).ok()?,
                _ => born_timestamp_ms = number,
            }
        }
        if !rest.is_empty() {
            return None;
        }
        let head = MatchedHead {
            code: fixed.code,
            language: fixed.language,
            version: fixed.version,
            opaque,
            flag: fixed.flag,
        };
        let request = SendRequest {
            producer_group: fixed.producer_group.as_str().into(),
            topic: fixed.topic.as_str().into(),
            default_topic: fixed.default_topic.as_str().into(),
            default_topic_queue_nums: fixed.default_topic_queue_nums,
            queue_id,
            sys_flag: fixed.sys_flag,
            born_timestamp_ms,
            flag: fixed.message_flag,
            properties,
            reconsume_times: fixed.reconsume_times,
            unit_mode: fixed.unit_mode,
            max_reconsume_times: fixed.max_reconsume_times,
            batch: fixed.batch,
            broker_name: None,
        };
        Some((head, request))
    }
}

/// Cuts a header at what varies.
fn pieces(header: &[u8], command: &Command<'_>) -> Option<Vec<Piece>> {
    let mut cuts = Vec::new();
    for (name, value) in command.ext.entries() {
        let varying = match name.as_plain()? {
            b"e" | b"queueId" => Varying::QueueId,
            b"g" | b"bornTimestamp" => Varying::BornTimestamp,
            b"i" | b"properties" => Varying::Properties,
            _ => continue,
        };
        cuts.push((place_in(header, value.raw())?, varying));
    }
    cuts.push((place_of_opaque(header)?, Varying::Opaque));
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
    use std::{format, string::ToString};

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
        let Some((head, request)) = read else { return };
        let command = Command::parse(Encoding::Json, header.as_bytes()).unwrap();
        let want = SendRequest::decode(&command).unwrap();
        assert_eq!(request, SendRequest { broker_name: None, ..want }, "{header}");
        assert_eq!((head.code, head.opaque), (command.code, command.opaque));
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
                let Some((head, request)) = template.read(&changed) else { continue };
                let Ok(command) = Command::parse(Encoding::Json, &changed) else {
                    // Only the inside of the properties may hold what JSON does not know.
                    assert!(request.properties.is_some_and(|text| text.as_plain().is_none()));
                    continue;
                };
                let want = SendRequest::decode(&command).unwrap();
                assert_eq!(request, SendRequest { broker_name: None, ..want });
                assert_eq!(head.opaque, command.opaque);
            }
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
}
