//! [`Text`]: a string inside a received header, decoded only if and when somebody asks.
//!
//! The properties of a message travel in a JSON header with escapes in them (`\u0001`). Decoding
//! them where the header is scanned would allocate for every message, so the scan only checks the
//! escapes, and the text is written where it is needed, once.

use alloc::{borrow::Cow, string::String, vec::Vec};
use core::fmt;

/// A borrowed string that may still contain checked JSON escapes.
///
/// Bytes that are not UTF-8 become U+FFFD in [`Text::to_str`], as Java's `new String(bytes, UTF_8)`
/// does, and stay as they are in [`Text::bytes`].
#[derive(Clone, Copy)]
pub struct Text<'a> {
    raw: &'a [u8],
    /// How many bytes are known to be without escapes: all, or none. A whole word, because texts
    /// are moved through memory all the time, and a flag with padding behind it is moved in odd
    /// pieces, which the processor cannot forward from store to load.
    plain_len: usize,
}

impl<'a> Text<'a> {
    /// A text without escapes.
    pub const fn plain(raw: &'a [u8]) -> Self {
        Self { raw, plain_len: raw.len() }
    }

    /// The inside of a JSON string whose escapes the scanner has checked.
    pub(crate) const fn scanned(raw: &'a [u8], escaped: bool) -> Self {
        Self { raw, plain_len: if escaped { 0 } else { raw.len() } }
    }

    /// The inside of a JSON string, with its escapes. `None` if it cannot be that.
    pub fn inside(raw: &'a [u8]) -> Option<Self> {
        crate::scan::is_inside(raw)
            .then(|| Self::scanned(raw, memchr::memchr(b'\\', raw).is_some()))
    }

    /// The bytes themselves if no escape is in them, at no cost.
    pub const fn as_plain(&self) -> Option<&'a [u8]> {
        if self.is_escaped() { None } else { Some(self.raw) }
    }

    pub(crate) const fn is_escaped(&self) -> bool {
        self.plain_len < self.raw.len()
    }

    /// The bytes as they were received, with whatever escapes are in them.
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether every escape is one that JSON knows. The scanner sees to it; what was cut out of a
    /// header without it may have others.
    pub fn is_sound(&self) -> bool {
        !self.is_escaped() || crate::scan::is_inside(self.raw)
    }

    /// An upper bound of the decoded length in bytes; exact without escapes. No longer than the
    /// received bytes, since every escape is longer than what it stands for.
    pub const fn len_max(&self) -> usize {
        self.raw.len()
    }

    /// True if the text has no characters.
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The decoded bytes; borrowed if there is nothing to decode.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        if !self.is_escaped() {
            return Cow::Borrowed(self.raw);
        }
        let mut out = Vec::with_capacity(self.raw.len());
        self.append_to(&mut out);
        Cow::Owned(out)
    }

    /// The decoded string; borrowed if there is nothing to decode or replace.
    pub fn to_str(&self) -> Cow<'a, str> {
        match self.bytes() {
            // Most texts are valid, and the plain check is faster than the one that replaces.
            Cow::Borrowed(raw) => match core::str::from_utf8(raw) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => String::from_utf8_lossy(raw),
            },
            Cow::Owned(raw) => Cow::Owned(match String::from_utf8(raw) {
                Ok(text) => text,
                Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            }),
        }
    }

    /// Appends the decoded bytes to `out`, at most [`Text::len_max`] of them.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        if !self.is_escaped() {
            out.extend_from_slice(self.raw);
            return;
        }
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            let (run, escape) = rest.split_at(at);
            out.extend_from_slice(run);
            rest = decode_escape(escape, out);
        }
        out.extend_from_slice(rest);
    }

    /// The text as a decimal integer, as `Long.parseLong` reads it.
    #[inline]
    pub fn to_i64(&self) -> Option<i64> {
        match self.as_plain() {
            Some(plain) => parse_i64(plain),
            None => parse_i64(&self.bytes()),
        }
    }

    /// The text as a decimal integer, as `Integer.parseInt` reads it.
    pub fn to_i32(&self) -> Option<i32> {
        self.to_i64().and_then(|value| i32::try_from(value).ok())
    }

    /// True only for `true` in any case, as `Boolean.parseBoolean`. C++ clients send `0` and `1`,
    /// and real brokers read both as false.
    pub fn to_bool(&self) -> bool {
        self.bytes().eq_ignore_ascii_case(b"true")
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self::plain(text.as_bytes())
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Text<'_> {}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_str(), f)
    }
}

impl Default for Text<'_> {
    fn default() -> Self {
        Self::plain(b"")
    }
}

/// Reads an optional sign and decimal digits.
#[inline]
fn parse_i64(raw: &[u8]) -> Option<i64> {
    /// So many digits cannot overflow.
    const SAFE_DIGITS: usize = 18;
    let (negative, digits) = match raw {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Counted downwards, because the most negative number has no positive twin.
    let mut value: i64 = 0;
    let (safe, rest) = digits.split_at_checked(SAFE_DIGITS).unwrap_or((digits, &[]));
    for byte in safe {
        value = value * 10 - i64::from(digit(*byte)?);
    }
    for byte in rest {
        value = value.checked_mul(10)?.checked_sub(digit(*byte)?.into())?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

#[inline]
fn digit(byte: u8) -> Option<u8> {
    let digit = byte.wrapping_sub(b'0');
    (digit <= 9).then_some(digit)
}

/// Decodes the escape at the start of `escape` into `out` and returns what follows it. What is not
/// an escape after all is copied, so that the function is total.
fn decode_escape<'a>(escape: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let (byte, rest) = match escape {
        [_, b'u', rest @ ..] => return decode_unicode(rest, out),
        [_, b'n', rest @ ..] => (b'\n', rest),
        [_, b't', rest @ ..] => (b'\t', rest),
        [_, b'r', rest @ ..] => (b'\r', rest),
        [_, b'b', rest @ ..] => (0x08, rest),
        [_, b'f', rest @ ..] => (0x0c, rest),
        [_, other, rest @ ..] => (*other, rest),
        [other] => (*other, &[][..]),
        [] => return escape,
    };
    out.push(byte);
    rest
}

/// Decodes the four digits after `\u`, and a second escape if the two are a surrogate pair.
fn decode_unicode<'a>(digits: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let Some((unit, rest)) = code_unit(digits) else { return digits };
    let (character, rest) = match (unit, rest) {
        (0xd800..=0xdbff, [b'\\', b'u', low_digits @ ..]) => match code_unit(low_digits) {
            Some((low @ 0xdc00..=0xdfff, rest)) => {
                (char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)), rest)
            }
            _ => (None, rest),
        },
        _ => (char::from_u32(unit), rest),
    };
    // A lone surrogate has no UTF-8 form. Java's encoder writes a replacement for it, too.
    let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    rest
}

fn code_unit(digits: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = digits.split_first_chunk::<4>()?;
    let mut unit = 0;
    for digit in digits {
        unit = unit * 16 + char::from(*digit).to_digit(16)?;
    }
    Some((unit, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, want: &str) {
        assert_eq!(Text::scanned(raw.as_bytes(), true).to_str(), want, "raw: {raw}");
    }

    #[test]
    fn escapes_that_json_does_not_know_are_not_sound() {
        for sound in ["", "plain", r"\u0001", r"a\n\\b\u8bA2c", r"\/"] {
            assert!(Text::scanned(sound.as_bytes(), true).is_sound(), "{sound}");
        }
        for other in [r"\x", r"a\u00", r"\u00g0b", r"ends\", r"\0001", r#"a""#] {
            assert!(!Text::scanned(other.as_bytes(), true).is_sound(), "{other}");
            assert!(Text::inside(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn escapes_are_decoded_as_json_says() {
        check(r"TAGS\u0001a\u0002", "TAGS\u{1}a\u{2}");
        check(r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t");
        check(r"\u8ba2\u5355 plain", "\u{8ba2}\u{5355} plain");
        check(r"\ud83d\ude00", "\u{1f600}");
        check(r"\ud83d!", "\u{fffd}!");
        check(r"\ud83d\u0041", "\u{fffd}A");
        check(r"\udc00", "\u{fffd}");
    }

    #[test]
    fn numbers_are_read_as_java_reads_them() {
        let number = |raw: &'static str| Text::from(raw).to_i64();
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("-9223372036854775808"), Some(i64::MIN));
        assert_eq!(number("9223372036854775807"), Some(i64::MAX));
        assert_eq!(number("9223372036854775808"), None);
        assert_eq!(number("+7"), Some(7));
        for bad in ["", "-", "1.0", " 1", "0x1", "1e3"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!(Text::from("2147483648").to_i32(), None);
        assert_eq!(Text::scanned(br"\u0034\u0032", true).to_i32(), Some(42));
    }

    #[test]
    fn only_true_is_true() {
        assert!(Text::from("true").to_bool());
        assert!(Text::from("TRUE").to_bool());
        assert!(!Text::from("1").to_bool());
        assert!(!Text::from("").to_bool());
    }
}
