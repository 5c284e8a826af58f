//! Reading answers, cheaply.
//!
//! A generator that shares two cores with the broker must not spend them on parsing. Of an answer
//! it needs the code, the correlation number and whether it is an answer at all; [`scan`] finds
//! these three in the compact, alphabetical JSON that Java and RingMQ emit without reading the rest,
//! and falls back to a full parse for any other spelling. Single extension fields are looked up by
//! name only where a subcommand needs them.

use memchr::memrchr;
use ringmq_protocol::command::Command;
use ringmq_protocol::frame::{Encoding, LEN_FIELD_LEN, PREFIX_LEN};

use crate::frame::OPAQUE_BASE;

/// Fixed part of a binary header up to the remark's length.
const BINARY_FIXED_LEN: usize = 13;

/// What a generator needs of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    /// Response code; the request code when this is a request of the broker.
    pub(crate) code: i32,
    /// Correlation number.
    pub(crate) opaque: i32,
    /// Bit 0 of the flag: an answer, not a request of the broker.
    pub(crate) response: bool,
    /// How the header is written.
    pub(crate) encoding: Encoding,
    /// The header's bytes.
    pub(crate) header: &'a [u8],
    /// The body's bytes.
    pub(crate) body: &'a [u8],
}

/// Reads a whole frame, its length prefix included; `None` when it is no frame.
pub(crate) fn scan(frame: &[u8]) -> Option<Answer<'_>> {
    let (lead, rest) = frame.split_at_checked(PREFIX_LEN)?;
    let &[kind, a, b, c] = lead.get(LEN_FIELD_LEN..)?.first_chunk::<4>()?;
    let (header, body) = rest.split_at_checked(u32::from_be_bytes([0, a, b, c]) as usize)?;
    let encoding = Encoding::from_type_byte(kind)?;
    let (code, opaque, flag) = match encoding {
        Encoding::Json => json_fast(header).or_else(|| slow(encoding, header))?,
        Encoding::Binary => binary(header)?,
    };
    Some(Answer { code, opaque, response: flag & 1 == 1, encoding, header, body })
}

impl<'a> Answer<'a> {
    /// The whole header.
    fn command(&self) -> Option<Command<'a>> {
        Command::parse(self.encoding, self.header).ok()
    }

    /// The slot of its request, if that was one of [`crate::frame`].
    pub(crate) fn slot(&self) -> u32 {
        self.opaque.cast_unsigned().wrapping_sub(OPAQUE_BASE)
    }

    /// The text of an extension field.
    pub(crate) fn ext(&self, name: &str) -> Option<String> {
        Some(self.command()?.ext.get(name)?.to_str().into_owned())
    }

    /// A decimal extension field.
    pub(crate) fn ext_int(&self, name: &str) -> Option<i64> {
        self.command()?.ext.get(name)?.to_str().parse().ok()
    }

    /// The remark, for messages to people.
    pub(crate) fn remark(&self) -> String {
        self.command().and_then(|command| command.remark).unwrap_or_default().into_owned()
    }
}

/// Works for headers that start with the code and have their keys in alphabetical order. Looking
/// for a key with its quotes is safe: inside a string they would be escaped.
fn json_fast(header: &[u8]) -> Option<(i32, i32, i32)> {
    let code = int_at(header.strip_prefix(b"{\"code\":")?)?;
    let opaque_at = last_key(header, b'q', 3, b"\"opaque\":")?;
    let before = header.get(..opaque_at)?;
    let opaque = int_at(header.get(opaque_at + b"\"opaque\":".len()..)?)?;
    let flag_at = last_key(before, b'f', 0, b"\"flag\":")?;
    let flag = int_at(before.get(flag_at + b"\"flag\":".len()..)?)?;
    Some((code, opaque, flag))
}

/// The last place of `key`, found by its rare letter `rare`, which stands at `rare_at` in it.
fn last_key(header: &[u8], rare: u8, rare_at: usize, key: &[u8]) -> Option<usize> {
    // The quote before the first letter is part of the key.
    let rare_at = rare_at + 1;
    let mut until = header.len();
    loop {
        let at = memrchr(rare, header.get(..until)?)?;
        if let Some(start) = at.checked_sub(rare_at)
            && header.get(start..)?.starts_with(key)
        {
            return Some(start);
        }
        until = at;
    }
}

/// A JSON integer at the start of `bytes`, followed by something that ends it.
fn int_at(bytes: &[u8]) -> Option<i32> {
    let (negative, digits) = match bytes.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    let mut value: i64 = 0;
    let mut count = 0;
    for byte in digits {
        if !byte.is_ascii_digit() {
            break;
        }
        value = value * 10 + i64::from(byte - b'0');
        count += 1;
        if count > 10 {
            return None;
        }
    }
    let ended = digits.get(count).is_some_and(|byte| matches!(byte, b',' | b'}'));
    if count == 0 || !ended {
        return None;
    }
    i32::try_from(if negative { -value } else { value }).ok()
}

fn slow(encoding: Encoding, header: &[u8]) -> Option<(i32, i32, i32)> {
    let command = Command::parse(encoding, header).ok()?;
    Some((command.code, command.opaque, command.flag))
}

fn binary(header: &[u8]) -> Option<(i32, i32, i32)> {
    let (fixed, _) = header.split_first_chunk::<BINARY_FIXED_LEN>()?;
    let &[c0, c1, _language, _v0, _v1, o0, o1, o2, o3, f0, f1, f2, f3] = fixed;
    Some((
        i32::from(i16::from_be_bytes([c0, c1])),
        i32::from_be_bytes([o0, o1, o2, o3]),
        i32::from_be_bytes([f0, f1, f2, f3]),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Apache's broker 4.9.7 answers a send.
    const JAVA: &str = "{\"code\":0,\"extFields\":{\"MSG_REGION\":\"DefaultRegion\",\
        \"TRACE_ON\":\"true\",\"msgId\":\"7F00000100002A9F0000000000000400\",\"queueId\":\"3\",\
        \"queueOffset\":\"-17\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":1000000007,\
        \"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}";

    fn frame(kind: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(u32::try_from(4 + header.len() + body.len()).unwrap().to_be_bytes());
        out.extend((u32::from(kind) << 24 | u32::try_from(header.len()).unwrap()).to_be_bytes());
        out.extend(header);
        out.extend(body);
        out
    }

    #[track_caller]
    fn check(header: &str, want: Option<(i32, i32, bool)>) {
        let frame = frame(0, header.as_bytes(), b"");
        let got = scan(&frame).map(|answer| (answer.code, answer.opaque, answer.response));
        assert_eq!(got, want, "{header}");
    }

    #[test]
    fn the_usual_spelling_takes_the_fast_path() {
        assert_eq!(json_fast(JAVA.as_bytes()), Some((0, 1_000_000_007, 1)));
        check(JAVA, Some((0, 1_000_000_007, true)));
    }

    #[test]
    fn other_spellings_mean_the_same() {
        check("{ \"code\": 2, \"flag\": 1, \"opaque\": 9 }", Some((2, 9, true)));
        check("{\"opaque\":9,\"flag\":\"1\",\"code\":\"-3\"}", Some((-3, 9, true)));
        check("{\"code\":40,\"flag\":2,\"opaque\":5,\"remark\":\"q\"}", Some((40, 5, false)));
    }

    #[test]
    fn text_that_looks_like_a_key_is_not_one() {
        check(
            "{\"code\":1,\"flag\":1,\"opaque\":7,\"remark\":\"\\\"opaque\\\":8,\\\"flag\\\":0\"}",
            Some((1, 7, true)),
        );
    }

    #[test]
    fn damaged_frames_are_none() {
        check("{\"code\":1,\"flag\":1", None);
        check("", None);
        assert_eq!(scan(&frame(7, JAVA.as_bytes(), b"")), None);
        let whole = frame(0, JAVA.as_bytes(), b"");
        for len in 0..whole.len() - 1 {
            assert_eq!(scan(&whole[..len]), None, "cut at {len}");
        }
    }

    #[test]
    fn extension_fields_are_found_by_their_whole_name() {
        let json = frame(0, JAVA.as_bytes(), b"xyz");
        let answer = scan(&json).unwrap();
        assert_eq!(answer.ext("queueId"), Some("3".to_owned()));
        assert_eq!(answer.ext_int("queueOffset"), Some(-17));
        assert_eq!(answer.ext("queue"), None);
        assert_eq!(answer.body, b"xyz");
    }

    #[test]
    fn binary_headers_are_read_as_well() {
        let mut header = vec![0, 17, 0, 1, 0x97, 0, 0, 0, 9, 0, 0, 0, 1];
        header.extend([0, 0, 0, 2]);
        header.extend(b"no");
        header.extend([0, 0, 0, 11, 0, 3]);
        header.extend(b"abc");
        header.extend([0, 0, 0, 2]);
        header.extend(b"42");
        let frame = frame(1, &header, b"");
        let answer = scan(&frame).unwrap();
        assert_eq!((answer.code, answer.opaque, answer.response), (17, 9, true));
        assert_eq!(answer.remark(), "no");
        assert_eq!(answer.ext_int("abc"), Some(42));
        assert_eq!(answer.ext("ab"), None);
    }
}
