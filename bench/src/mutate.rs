//! Damaging frames, reproducibly: the same seed gives the same bytes.
//!
//! Two kinds: [`mutate`] damages bytes, most of which ends in the decoder of frames and headers;
//! [`Parts::mutate`] changes fields and bodies and leaves frame and header valid, which reaches the
//! code that handles the request.

use ringmq_protocol::command::Command;
use ringmq_protocol::frame::{Encoding, FRAME_LEN_MAX, LEN_FIELD_LEN, PREFIX_LEN, decode};

use crate::frame::request;

/// Bytes that mean something to a parser of lengths or of JSON.
const BYTES: &[u8] = b"\x00\x01\x7f\x80\xff\"{}[]\\:,-0\x1f /.%e";
/// Lengths and numbers at the edges of their types and limits.
const WORDS: &[u32] = &[
    0,
    1,
    3,
    4,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x00ff_ffff,
    0x0100_0000,
    0x0100_0001,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
];
/// Text that should never become a path, a number or a format.
const TEXTS: &[&str] = &[
    "../x",
    "../../../../tmp/x",
    "..",
    "/",
    "a/../b",
    "%00",
    "\\u0000",
    "\\ud800",
    "-1",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "1e308",
    "99999999999999999999999999999999",
    "null",
    "true",
    "{}",
    "[]",
    "",
    " ",
    "2147483648",
    "%RETRY%",
    "%DLQ%x",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "a||||b",
    "||",
];
/// Correlation number of rebuilt frames.
const OPAQUE: u32 = 77;
/// Highest request code that is tried, beside the ones of the corpus.
const CODE_MAX: usize = 400;
/// Longest run that is inserted, removed or repeated, in bytes.
const RUN_LEN_MAX: usize = 64;

/// SplitMix64: small, fast, and the same everywhere.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator that starts from `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        usize::try_from(self.next() % bound).unwrap_or_default()
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `items`.
    ///
    /// # Panics
    ///
    /// When there are none.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        items.get(self.below(items.len())).expect("a choice needs at least one item")
    }
}

/// A request taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    encoding: Encoding,
    code: i32,
    ext: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Parts {
    /// Takes a whole, valid frame apart.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let frame = decode(frame, FRAME_LEN_MAX).ok()??;
        let command = Command::parse(frame.encoding, frame.header).ok()?;
        let ext = command
            .ext
            .iter()
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        let (encoding, code) = (frame.encoding, command.code);
        Some(Self { encoding, code, ext, body: frame.body.to_vec() })
    }

    /// Changes what the request says; `other` lends fields and its body.
    pub(crate) fn mutate(&mut self, random: &mut Random, other: &Self) {
        for _ in 0..=random.below(2) {
            match random.below(8) {
                0..=2 => self.replace_value(random, random_text),
                3 => self
                    .replace_value(random, |random| random.pick(WORDS).cast_signed().to_string()),
                4 if !self.ext.is_empty() => {
                    let index = random.below(self.ext.len());
                    self.ext.swap_remove(index);
                }
                5 => {
                    let start = random.below(other.ext.len() + 1);
                    self.ext.extend_from_slice(other.ext.get(start..).unwrap_or_default());
                }
                6 => self.mutate_body(random, other),
                _ => self.code = i32::try_from(random.below(CODE_MAX)).unwrap_or_default(),
            }
        }
    }

    fn replace_value(&mut self, random: &mut Random, value: impl Fn(&mut Random) -> String) {
        let index = random.below(self.ext.len());
        if let Some((_, place)) = self.ext.get_mut(index) {
            *place = value(random);
        }
    }

    fn mutate_body(&mut self, random: &mut Random, other: &Self) {
        if random.chance(20) {
            self.body.clone_from(&other.body);
        } else {
            step(random, &mut self.body, &other.body);
        }
    }

    /// The request as a frame again.
    pub(crate) fn build(&self) -> Vec<u8> {
        let ext: Vec<(&str, &str)> =
            self.ext.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        request(self.encoding, self.code, OPAQUE, &ext, &self.body)
    }
}

fn random_text(random: &mut Random) -> String {
    (*random.pick(TEXTS)).to_owned()
}

/// Damages `frame`; `other` lends pieces. In most cases the lengths are put right again
/// afterwards, so that the damage reaches what lies behind them.
pub(crate) fn mutate(random: &mut Random, frame: &mut Vec<u8>, other: &[u8]) {
    let header_len = header_len(frame);
    let len_before = frame.len();
    for _ in 0..=random.below(3) {
        step(random, frame, other);
    }
    if random.chance(80) && frame.len() >= PREFIX_LEN {
        let header_len = if random.chance(50) {
            // The change of length is taken as the header's, where most damage is done.
            (header_len + frame.len()).saturating_sub(len_before)
        } else {
            header_len
        };
        let room = frame.len() - PREFIX_LEN;
        put_lengths(frame, header_len.min(room));
    }
}

fn step(random: &mut Random, frame: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(frame.len());
    let run = 1 + random.below(RUN_LEN_MAX);
    let end = (at + run).min(frame.len());
    match random.below(10) {
        0 => {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = frame.get_mut(at) {
                *byte = *random.pick(BYTES);
            }
        }
        2 => overwrite(frame, at, &random.pick(WORDS).to_be_bytes()),
        3 => overwrite(frame, random.below(2) * 4, &random.pick(WORDS).to_be_bytes()),
        4 => frame.truncate(at),
        5 => {
            let noise: Vec<u8> = (0..run).map(|_| random.next().to_be_bytes()[0]).collect();
            frame.splice(at..at, noise);
        }
        6 => drop(frame.drain(at..end)),
        7 => {
            let copy = frame.get(at..end).unwrap_or_default().to_vec();
            frame.splice(at..at, copy);
        }
        8 => {
            let from = random.below(other.len());
            frame.truncate(at);
            frame.extend_from_slice(other.get(from..).unwrap_or_default());
        }
        _ => {
            let text: &&str = random.pick(TEXTS);
            replace_word(frame, at, text);
        }
    }
}

fn overwrite(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Replaces the word (letters, digits, `_`, `-`) at or behind `at`.
fn replace_word(frame: &mut Vec<u8>, at: usize, text: &str) {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let tail = frame.get(at..).unwrap_or_default();
    let Some(start) = tail.iter().position(is_word) else { return };
    let word = tail.get(start..).unwrap_or_default();
    let len = word.iter().position(|byte| !is_word(byte)).unwrap_or(word.len());
    frame.splice(at + start..at + start + len, text.bytes());
}

/// The header length that a frame names.
fn header_len(frame: &[u8]) -> usize {
    match frame.get(LEN_FIELD_LEN..PREFIX_LEN) {
        Some(&[_, a, b, c]) => u32::from_be_bytes([0, a, b, c]) as usize,
        _ => 0,
    }
}

/// Makes both lengths fit the bytes that are there.
fn put_lengths(frame: &mut [u8], header_len: usize) {
    let total = u32::try_from(frame.len() - LEN_FIELD_LEN).unwrap_or(u32::MAX);
    let [_, header @ ..] = u32::try_from(header_len).unwrap_or(u32::MAX).to_be_bytes();
    overwrite(frame, 0, &total.to_be_bytes());
    overwrite(frame, LEN_FIELD_LEN + 1, &header);
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::frame::Encoding;

    use super::*;
    use crate::frame::request;

    fn damaged(seed: u64, count: usize) -> Vec<Vec<u8>> {
        let whole = request(Encoding::Json, 310, 1, &[("b", "topic"), ("e", "3")], b"body");
        let mut random = Random::new(seed);
        (0..count)
            .map(|_| {
                let mut frame = whole.clone();
                mutate(&mut random, &mut frame, &whole);
                frame
            })
            .collect()
    }

    #[test]
    fn a_seed_always_gives_the_same_frames() {
        assert_eq!(damaged(7, 500), damaged(7, 500));
        assert_ne!(damaged(7, 500), damaged(8, 500));
    }

    #[test]
    fn most_frames_stay_frames_and_most_are_damaged() {
        let whole = damaged(1, 0);
        assert!(whole.is_empty());
        let frames = damaged(3, 2000);
        let framed = frames
            .iter()
            .filter(|frame| {
                frame.len() >= PREFIX_LEN
                    && u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize + LEN_FIELD_LEN
                        == frame.len()
            })
            .count();
        assert!((1200..2000).contains(&framed), "{framed} of 2000 have the right length");
        let header_fits = |frame: &Vec<u8>| header_len(frame) + PREFIX_LEN <= frame.len();
        assert!(frames.iter().any(|frame| !header_fits(frame)));
    }

    #[test]
    fn changed_requests_are_valid_frames() {
        let whole = request(Encoding::Binary, 310, 1, &[("b", "topic"), ("e", "3")], b"body");
        let parts = Parts::parse(&whole).unwrap();
        assert_eq!(Parts::parse(&parts.build()).unwrap().ext, parts.ext);
        let mut random = Random::new(5);
        let mut changed = 0;
        for _ in 0..1000 {
            let mut parts = parts.clone();
            parts.mutate(&mut random, &parts.clone());
            let frame = parts.build();
            assert!(Parts::parse(&frame).is_some(), "{frame:02x?}");
            changed += u32::from(frame.get(13..) != whole.get(13..));
        }
        assert!(changed > 700, "{changed} of 1000 differ");
    }

    #[test]
    fn empty_frames_are_survived() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let mut frame = Vec::new();
            mutate(&mut random, &mut frame, b"");
        }
    }
}
