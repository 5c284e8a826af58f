//! A forward scanner over tolerant JSON, for command headers.
//!
//! It finds the borders of values and checks escapes; it decodes nothing and allocates nothing.
//! Control characters inside strings pass, since some clients send them raw.

use crate::text::Text;

/// How deeply objects and arrays may be nested in a header. Real ones have two levels; the bound
/// keeps the bracket stack in one machine word.
const DEPTH_MAX: u32 = 64;

/// Position at which the bytes stopped being JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) usize);

/// One value, as far as a header needs to tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A string, or a number, boolean, object or array by its source text.
    Text(Text<'a>),
    /// `null`.
    Null,
}

#[derive(Clone, Copy)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// The next byte that is not white space, without passing it.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// Passes the next byte if it is `wanted`.
    #[inline]
    pub(crate) fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    #[inline]
    pub(crate) fn expect(&mut self, wanted: u8) -> Result<(), Malformed> {
        if self.take(wanted) { Ok(()) } else { Err(Malformed(self.at)) }
    }

    /// Passes a quoted string.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<Text<'a>, Malformed> {
        self.expect(b'"')?;
        let start = self.at;
        self.at = find_special(self.bytes, start).ok_or(Malformed(self.bytes.len()))?;
        let escaped = self.bytes.get(self.at) == Some(&b'\\');
        if escaped {
            self.rest_of_escaped()?;
        }
        let raw = self.bytes.get(start..self.at).ok_or(Malformed(start))?;
        self.at += 1;
        Ok(Text::scanned(raw, escaped))
    }

    /// Goes on from a string's first backslash to its closing quote.
    fn rest_of_escaped(&mut self) -> Result<(), Malformed> {
        while self.bytes.get(self.at) != Some(&b'"') {
            self.escape()?;
            self.at = find_special(self.bytes, self.at).ok_or(Malformed(self.bytes.len()))?;
        }
        Ok(())
    }

    /// Passes one escape, which starts here.
    fn escape(&mut self) -> Result<(), Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = match rest {
            [_, b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|d| d.is_ascii_hexdigit()) => 6,
            [_, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            _ => return Err(Malformed(self.at)),
        };
        self.at += len;
        Ok(())
    }

    /// Passes `"key":"value"` if it stands here without white space and escapes, as clients write
    /// nearly all entries. Otherwise nothing is passed.
    #[inline(always)]
    pub(crate) fn plain_pair(&mut self) -> Option<(Text<'a>, Text<'a>)> {
        let key_at = self.at + 1;
        let key_end = find_special(self.bytes, key_at)?;
        let (key, rest) = self.bytes.get(key_at..)?.split_at_checked(key_end - key_at)?;
        if self.bytes.get(self.at) != Some(&b'"') || rest.first_chunk() != Some(b"\":\"") {
            return None;
        }
        let value_at = key_end + 3;
        let value_end = find_special(self.bytes, value_at)?;
        let (value, rest) = self.bytes.get(value_at..)?.split_at_checked(value_end - value_at)?;
        if rest.first() != Some(&b'"') {
            return None;
        }
        self.at = value_end + 1;
        Some((Text::plain(key), Text::plain(value)))
    }

    /// Passes any value.
    #[inline(always)]
    pub(crate) fn value(&mut self) -> Result<Value<'a>, Malformed> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::Text),
            Some(b'{' | b'[') => self.nested().map(Value::Text),
            _ => self.literal(),
        }
    }

    /// Passes a number, `true`, `false` or `null`.
    fn literal(&mut self) -> Result<Value<'a>, Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.'))
            .count();
        let raw = rest.get(..len).unwrap_or_default();
        let value = match raw {
            b"null" => Value::Null,
            b"true" | b"false" => Value::Text(Text::plain(raw)),
            [b'-' | b'0'..=b'9', tail @ ..]
                if tail
                    .iter()
                    .all(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) =>
            {
                Value::Text(Text::plain(raw))
            }
            _ => return Err(Malformed(self.at)),
        };
        self.at += len;
        Ok(value)
    }

    /// Passes an unquoted key as fastjson writes it: a number or a name.
    pub(crate) fn word(&mut self) -> Result<(), Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let in_word = |b: &&u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'$' | b'.');
        let len = rest.iter().take_while(in_word).count();
        self.at += len;
        if len == 0 { Err(Malformed(self.at)) } else { Ok(()) }
    }

    /// Passes an object or array and gives its source text.
    pub(crate) fn nested(&mut self) -> Result<Text<'a>, Malformed> {
        let start = self.at;
        let mut depth = 0_u32;
        // Bit `depth - 1` says whether that level is an object.
        let mut objects = 0_u64;
        loop {
            match self.peek().ok_or(Malformed(self.at))? {
                open @ (b'{' | b'[') => {
                    if depth == DEPTH_MAX {
                        return Err(Malformed(self.at));
                    }
                    objects = objects << 1 | u64::from(open == b'{');
                    depth += 1;
                    self.at += 1;
                }
                close @ (b'}' | b']') => {
                    if (objects & 1 == 1) != (close == b'}') {
                        return Err(Malformed(self.at));
                    }
                    objects >>= 1;
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        break;
                    }
                }
                b'"' => drop(self.string()?),
                b',' | b':' => self.at += 1,
                _ => drop(self.literal()?),
            }
        }
        self.bytes.get(start..self.at).map(Text::plain).ok_or(Malformed(start))
    }
}

/// Whether this is the inside of a string: no quote ends it, and JSON knows every escape.
pub(crate) fn is_inside(bytes: &[u8]) -> bool {
    let mut scanner = Scanner::new(bytes, 0);
    while let Some(at) = find_special(bytes, scanner.at) {
        scanner.at = at;
        if bytes.get(at) == Some(&b'"') || scanner.escape().is_err() {
            return false;
        }
    }
    true
}

/// Finds the next quote or backslash at or after `from`, eight bytes at a time.
#[inline(always)]
fn find_special(bytes: &[u8], from: usize) -> Option<usize> {
    const QUOTES: u64 = 0x2222_2222_2222_2222;
    const BACKSLASHES: u64 = 0x5c5c_5c5c_5c5c_5c5c;
    let mut at = from;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_be_bytes(*chunk);
        let hits = zero_bytes(word ^ QUOTES) | zero_bytes(word ^ BACKSLASHES);
        if hits != 0 {
            return Some(at + (hits.leading_zeros() / 8) as usize);
        }
        at += 8;
    }
    let tail = bytes.get(at..)?;
    tail.iter().position(|b| matches!(b, b'"' | b'\\')).map(|offset| at + offset)
}

/// The top bit of every byte of `word` that is zero; exact, unlike the shorter trick with a
/// borrow, whose false hits would lie before the first real one in a big-endian word.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    !(((word & LOW_BITS) + LOW_BITS) | word | LOW_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn specials_are_found_at_every_position() {
        for len in 0..40 {
            for at in 0..len {
                for (special, other) in [(b'"', 0x22 + 1), (b'\\', 0x5c - 1), (b'"', 0xa2)] {
                    let mut bytes = vec![other; len];
                    assert_eq!(find_special(&bytes, 0), None);
                    bytes[at] = special;
                    assert_eq!(find_special(&bytes, 0), Some(at), "length {len}");
                    assert_eq!(find_special(&bytes, at + 1), None);
                }
            }
        }
    }

    #[track_caller]
    fn value(json: &str) -> Result<Value<'_>, Malformed> {
        Scanner::new(json.as_bytes(), 0).value()
    }

    #[test]
    fn values_keep_their_source_text() {
        assert_eq!(value(" 12,"), Ok(Value::Text(Text::from("12"))));
        assert_eq!(value("true}"), Ok(Value::Text(Text::from("true"))));
        assert_eq!(value("null"), Ok(Value::Null));
        assert_eq!(value(r#"{"a":[1,"}"]} "#), Ok(Value::Text(Text::from(r#"{"a":[1,"}"]}"#))));
        for bad in ["", "nul", "tru", "-x", "\"open", r#""\x""#, r#""\u12g4""#, "[}", "[", "{1"] {
            assert!(value(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nesting_has_a_bound() {
        let deep = "[".repeat(64) + &"]".repeat(64);
        assert!(value(&deep).is_ok());
        let deeper = "[".repeat(65) + &"]".repeat(65);
        assert!(value(&deeper).is_err());
    }
}
