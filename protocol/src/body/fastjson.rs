//! From what fastjson writes to standard JSON.
//!
//! fastjson leaves number keys unquoted (`{0:"a"}`) and writes maps whose keys are objects with the
//! object itself as the key (`{{"queueId":0}:100}`). Here the former get quotes, the latter become
//! strings with the object's text. Raw control characters in strings are escaped.

use alloc::{borrow::Cow, vec::Vec};

use super::BodyError;
use crate::{
    encode::push_json_escaped,
    scan::{Malformed, Scanner},
};

/// How deeply objects and arrays may be nested; one bit each.
const DEPTH_MAX: u32 = 64;

impl From<Malformed> for BodyError {
    fn from(Malformed(position): Malformed) -> Self {
        Self::NotJson { position }
    }
}

/// Rewrites fastjson's liberties; standard JSON comes back as it is. The result is checked only as
/// far as needed: a parser has to follow.
///
/// # Errors
///
/// [`BodyError::NotJson`] for a token that neither form has, or nesting without end.
///
/// # Source
///
/// fastjson 1.2.83 as used by Apache RocketMQ 4.9.8 and 5.3.3 (facts sheet, sections 5.2 and 5.4).
pub fn standardize(text: &[u8]) -> Result<Cow<'_, [u8]>, BodyError> {
    let mut rewriter = Rewriter { text, out: Vec::new(), copied: 0 };
    let mut scanner = Scanner::new(text, 0);
    // Bit 0 says whether the innermost level is an object.
    let (mut depth, mut objects, mut at_key) = (0_u32, 0_u64, false);
    while let Some(byte) = scanner.peek() {
        let start = scanner.position();
        match byte {
            b'{' | b'[' if !at_key => {
                if depth == DEPTH_MAX {
                    return Err(BodyError::NotJson { position: start });
                }
                depth += 1;
                at_key = byte == b'{';
                objects = objects << 1 | u64::from(at_key);
                scanner.take(byte);
            }
            b'{' => {
                scanner.nested()?;
                rewriter.quote(start, scanner.position());
                at_key = false;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1).ok_or(BodyError::NotJson { position: start })?;
                objects >>= 1;
                at_key = false;
                scanner.take(byte);
            }
            b',' => {
                at_key = objects & 1 == 1;
                scanner.take(byte);
            }
            b':' => {
                scanner.take(byte);
            }
            b'"' => {
                let inside = scanner.string()?;
                rewriter.escape_controls(start, inside.raw());
                at_key = false;
            }
            _ if at_key => {
                scanner.word()?;
                rewriter.quote(start, scanner.position());
                at_key = false;
            }
            _ => drop(scanner.value()?),
        }
    }
    Ok(rewriter.finish())
}

/// Copies the text up to each place that has to change.
struct Rewriter<'a> {
    text: &'a [u8],
    out: Vec<u8>,
    copied: usize,
}

impl<'a> Rewriter<'a> {
    /// Puts the text from `start` to `end` between quotes.
    fn quote(&mut self, start: usize, end: usize) {
        let token = self.text.get(start..end).unwrap_or_default();
        self.copy_to(start);
        self.out.push(b'"');
        push_json_escaped(&mut self.out, token);
        self.out.push(b'"');
        self.copied = end;
    }

    /// Escapes raw control characters in a string that starts with the quote at `start`.
    fn escape_controls(&mut self, start: usize, inside: &[u8]) {
        for (offset, byte) in inside.iter().enumerate().filter(|(_, byte)| **byte < 0x20) {
            let at = start + 1 + offset;
            self.copy_to(at);
            push_json_escaped(&mut self.out, &[*byte]);
            self.copied = at + 1;
        }
    }

    fn copy_to(&mut self, end: usize) {
        self.out.extend_from_slice(self.text.get(self.copied..end).unwrap_or_default());
    }

    fn finish(mut self) -> Cow<'a, [u8]> {
        if self.copied == 0 {
            return Cow::Borrowed(self.text);
        }
        self.copy_to(self.text.len());
        Cow::Owned(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = standardize(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), want);
    }

    #[test]
    fn standard_json_is_not_copied() {
        let text = br#" {"a":[1,true,null,{"b":"\u0001"}],"c":-1.5e3} "#;
        assert!(matches!(standardize(text), Ok(Cow::Borrowed(same)) if same == text));
    }

    #[test]
    fn keys_get_quotes() {
        check(r#"{0:"a",1:"b"}"#, r#"{"0":"a","1":"b"}"#);
        check(r#"{"t":{-1 : 2, name:[0,{7:8}]}}"#, r#"{"t":{"-1" : 2, "name":[0,{"7":8}]}}"#);
        check(
            r#"{{"brokerName":"b","queueId":0}:100,{"x":{1:2}}:1}"#,
            r#"{"{\"brokerName\":\"b\",\"queueId\":0}":100,"{\"x\":{1:2}}":1}"#,
        );
    }

    #[test]
    fn raw_control_characters_are_escaped() {
        check("{\"p\":\"A\u{1}1\u{2}\"}", r#"{"p":"A\u00011\u0002"}"#);
    }

    #[test]
    fn what_is_no_json_is_refused_or_left_to_the_parser() {
        for bad in ["}", "{\"a", "{'a':1}", "@", "{\"a\":\"\\x\"}", "{{"] {
            assert!(standardize(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(standardize("[".repeat(65).as_bytes()).is_err());
    }
}
