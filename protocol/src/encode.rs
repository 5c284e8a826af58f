//! Writing frames into a caller's buffer, without intermediate values.
//!
//! [`begin_frame`] starts a frame, the writer takes the header's entries one by one, and
//! [`FrameWriter::finish`] patches the lengths. The body either follows in the same buffer or
//! travels as slices of its own: `finish` only needs its length.
//!
//! JSON is compact, with keys in the alphabetical order that Java has, and every entry is a
//! string: Go drops a frame in which one is not, and C++ skips the entry.
//!
//! Source: Apache RocketMQ 4.9.8, `RemotingCommand.encodeHeader`, `RocketMQSerializable`.

mod sent;

use alloc::vec::Vec;
use core::fmt;

pub use self::sent::{Sent, SentAnswers};
use crate::{
    codes::{VERSION_4_9_8, response},
    command::{Command, Ext, FLAG_RESPONSE, Language},
    frame::{Encoding, FRAME_LEN_MAX, LEN_FIELD_LEN, PREFIX_LEN},
    message_id::OffsetMessageId,
};

/// Remarks are cut to this many bytes: they often quote what a peer sent, and a header of
/// megabytes helps nobody.
pub const REMARK_LEN_MAX: usize = 4096;

/// Longest header that the 3-byte length can say.
const HEADER_LEN_MAX: usize = 0xff_ffff;

/// The fixed fields of a header to write.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// How the header is written.
    pub encoding: Encoding,
    /// Request or response code. The binary form carries 16 bits of it.
    pub code: i32,
    /// The sender's language. Servers say `JAVA`, which every client knows.
    pub language: Language,
    /// The sender's `MQVersion` ordinal.
    pub version: i32,
    /// The request's number, echoed by its response.
    pub opaque: i32,
    /// [`FLAG_RESPONSE`] and [`crate::command::FLAG_ONEWAY`].
    pub flag: i32,
    /// Text for people, cut to [`REMARK_LEN_MAX`] bytes; absent on success.
    pub remark: Option<&'a str>,
}

impl<'a> Head<'a> {
    /// The head of a response as 4.9.8 writes it.
    pub const fn response(
        encoding: Encoding,
        opaque: i32,
        code: i32,
        remark: Option<&'a str>,
    ) -> Self {
        let (language, version) = (Language::Java, VERSION_4_9_8);
        Self { encoding, code, language, version, opaque, flag: FLAG_RESPONSE, remark }
    }

    /// The head of a request as 4.9.8 writes it; `flag` is 0 or the oneway bit.
    pub const fn request(encoding: Encoding, opaque: i32, code: i32, flag: i32) -> Self {
        let (language, version) = (Language::Java, VERSION_4_9_8);
        Self { encoding, code, language, version, opaque, flag, remark: None }
    }
}

impl<'a> From<&'a Command<'a>> for Head<'a> {
    /// The fixed fields of a parsed header, to be written in JSON unless changed.
    fn from(command: &'a Command<'a>) -> Self {
        Self {
            encoding: Encoding::Json,
            code: command.code,
            language: command.language,
            version: command.version,
            opaque: command.opaque,
            flag: command.flag,
            remark: command.remark.as_deref(),
        }
    }
}

/// The frame would be longer than a receiver accepts; nothing of it was left in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTooLong {
    /// Bytes that the frame would have, its length field included.
    pub len: usize,
}

impl fmt::Display for FrameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {} bytes is longer than peers accept", self.len)
    }
}

impl core::error::Error for FrameTooLong {}

/// A frame whose header is being written. Dropping it without [`FrameWriter::finish`] leaves an
/// unusable part in the buffer.
#[derive(Debug)]
#[must_use = "only `finish` makes the frame whole"]
pub struct FrameWriter<'v, 'a> {
    out: &'v mut Vec<u8>,
    start: usize,
    /// Where the entries begin.
    ext_start: usize,
    head: Head<'a>,
}

/// Starts a frame at the end of `out`.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `RemotingCommand.encodeHeader`.
pub fn begin_frame<'v, 'a>(out: &'v mut Vec<u8>, head: Head<'a>) -> FrameWriter<'v, 'a> {
    let head = Head { remark: head.remark.map(cut_remark), ..head };
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, head.encoding.type_byte(), 0, 0, 0]);
    match head.encoding {
        Encoding::Json => {
            out.extend_from_slice(b"{\"code\":");
            push_int(out, head.code.into());
            out.extend_from_slice(b",\"extFields\":{");
        }
        Encoding::Binary => begin_binary(out, &head),
    }
    let ext_start = out.len();
    FrameWriter { out, start, ext_start, head }
}

fn begin_binary(out: &mut Vec<u8>, head: &Head<'_>) {
    out.extend_from_slice(&low_16_bits(head.code));
    out.push(head.language.number());
    out.extend_from_slice(&low_16_bits(head.version));
    out.extend_from_slice(&head.opaque.to_be_bytes());
    out.extend_from_slice(&head.flag.to_be_bytes());
    let remark = head.remark.unwrap_or_default();
    // The remark is cut to far below 4 GiB.
    out.extend_from_slice(&u32::try_from(remark.len()).unwrap_or_default().to_be_bytes());
    out.extend_from_slice(remark.as_bytes());
    out.extend_from_slice(&[0; 4]);
}

impl<'v, 'a> FrameWriter<'v, 'a> {
    /// Adds an entry.
    #[inline]
    pub fn ext(&mut self, name: &str, value: &str) {
        self.ext_bytes(name, value.as_bytes());
    }

    /// Adds an entry whose value is UTF-8 text in bytes, such as a properties string.
    #[inline]
    pub fn ext_bytes(&mut self, name: &str, value: &[u8]) {
        let mark = self.begin_entry(name);
        match self.head.encoding {
            Encoding::Json => push_json_escaped(self.out, value),
            Encoding::Binary => self.out.extend_from_slice(value),
        }
        self.end_entry(mark);
    }

    /// Adds an entry with a decimal number.
    #[inline]
    pub fn ext_int(&mut self, name: &str, value: i64) {
        let mark = self.begin_entry(name);
        push_int(self.out, value);
        self.end_entry(mark);
    }

    /// Adds `true` or `false`.
    #[inline]
    pub fn ext_bool(&mut self, name: &str, value: bool) {
        self.ext(name, if value { "true" } else { "false" });
    }

    /// Adds message ids joined with commas: the `msgId` of a send response, without a string in
    /// between.
    pub fn ext_ids(&mut self, name: &str, ids: impl Iterator<Item = OffsetMessageId>) {
        let mark = self.begin_entry(name);
        let mut separator: &[u8] = b"";
        for id in ids {
            self.out.extend_from_slice(separator);
            self.out.extend_from_slice(id.to_hex().as_bytes());
            separator = b",";
        }
        self.end_entry(mark);
    }

    /// Adds all entries of a received header, as a forwarded request needs them.
    pub fn copy_ext(&mut self, ext: &Ext<'_>) {
        for (name, value) in ext.entries() {
            self.ext_bytes(&name.to_str(), &value.bytes());
        }
    }

    /// Writes the name and what stands before the value; returns where the value begins.
    #[inline]
    fn begin_entry(&mut self, name: &str) -> usize {
        match self.head.encoding {
            Encoding::Json => {
                if self.out.len() > self.ext_start {
                    self.out.push(b',');
                }
                self.out.push(b'"');
                push_json_escaped(self.out, name.as_bytes());
                self.out.extend_from_slice(b"\":\"");
            }
            Encoding::Binary => {
                // Names are upstream's field names. A forwarded one came with a 2-byte length, or
                // is cut here so that the frame stays whole.
                let len =
                    u16::try_from(name.len()).map_or(MAX_NAME_LEN, |len| len.min(MAX_NAME_LEN));
                self.out.extend_from_slice(&len.to_be_bytes());
                let name = name.as_bytes().get(..len.into()).unwrap_or_default();
                self.out.extend_from_slice(name);
                self.out.extend_from_slice(&[0; 4]);
            }
        }
        self.out.len()
    }

    #[inline]
    fn end_entry(&mut self, value_start: usize) {
        match self.head.encoding {
            Encoding::Json => self.out.push(b'"'),
            Encoding::Binary => patch_len(self.out, value_start),
        }
    }

    /// Completes the header for a body of `body_len` bytes, which the caller appends to the buffer
    /// or sends behind it. Returns the bytes of the whole frame, length field and body included.
    ///
    /// # Errors
    ///
    /// [`FrameTooLong`] if no peer would accept the frame. The buffer then ends where it ended
    /// before [`begin_frame`].
    pub fn finish(self, body_len: usize) -> Result<usize, FrameTooLong> {
        let Self { out, start, ext_start, head } = self;
        match head.encoding {
            Encoding::Json => finish_json(out, &head),
            Encoding::Binary => patch_len(out, ext_start),
        }
        finish_lens(out, start, head.encoding, body_len)
    }
}

/// Writes the lengths of the frame whose header ends the buffer; returns the bytes of the whole
/// frame, as [`FrameWriter::finish`].
///
/// # Errors
///
/// [`FrameTooLong`]; the buffer then ends where the frame began.
pub(crate) fn finish_lens(
    out: &mut Vec<u8>,
    start: usize,
    encoding: Encoding,
    body_len: usize,
) -> Result<usize, FrameTooLong> {
    let header_len = out.len() - start - PREFIX_LEN;
    let len = header_len.saturating_add(PREFIX_LEN - LEN_FIELD_LEN).saturating_add(body_len);
    if len > FRAME_LEN_MAX || header_len > HEADER_LEN_MAX {
        out.truncate(start);
        return Err(FrameTooLong { len: len.saturating_add(LEN_FIELD_LEN) });
    }
    let lens = [
        u32::try_from(len).unwrap_or_default(),
        u32::try_from(header_len).unwrap_or_default() | u32::from(encoding.type_byte()) << 24,
    ];
    if let Some(prefix) = out.get_mut(start..start + PREFIX_LEN) {
        for (field, value) in prefix.chunks_exact_mut(4).zip(lens) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    }
    Ok(len + LEN_FIELD_LEN)
}

/// Longest entry name of the binary form, whose length field is a signed 16-bit number.
const MAX_NAME_LEN: u16 = 0x7fff;

fn finish_json(out: &mut Vec<u8>, head: &Head<'_>) {
    out.extend_from_slice(b"},\"flag\":");
    push_int(out, head.flag.into());
    out.extend_from_slice(b",\"language\":\"");
    out.extend_from_slice(head.language.name().as_bytes());
    out.extend_from_slice(b"\",\"opaque\":");
    push_int(out, head.opaque.into());
    if let Some(remark) = head.remark {
        out.extend_from_slice(b",\"remark\":\"");
        push_json_escaped(out, remark.as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    push_int(out, head.version.into());
    out.push(b'}');
}

/// Writes the number of bytes since `start` into the 4 bytes before it. A longer block than that
/// can say is over the frame limit, too, and `finish` then drops it.
fn patch_len(out: &mut [u8], start: usize) {
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(field) = start.checked_sub(4).and_then(|from| out.get_mut(from..start)) {
        field.copy_from_slice(&len.to_be_bytes());
    }
}

/// The last two bytes of the big-endian form: what upstream's cast to `short` keeps.
const fn low_16_bits(value: i32) -> [u8; 2] {
    let [_, _, high, low] = value.to_be_bytes();
    [high, low]
}

fn cut_remark(remark: &str) -> &str {
    if remark.len() <= REMARK_LEN_MAX {
        return remark;
    }
    let end = (0..=REMARK_LEN_MAX).rev().find(|at| remark.is_char_boundary(*at)).unwrap_or(0);
    remark.get(..end).unwrap_or_default()
}

/// Appends `value` in decimal digits.
pub(crate) fn push_int(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends text with quotes, backslashes and control characters escaped.
pub(crate) fn push_json_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\') {
        let (run, tail) = rest.split_at(at);
        out.extend_from_slice(run);
        let Some((special, tail)) = tail.split_first() else { break };
        push_escape(out, *special);
        rest = tail;
    }
    out.extend_from_slice(rest);
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| DIGITS.get(usize::from(value & 15)).copied().unwrap_or(b'0');
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        _ => out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte)]),
    }
}

/// Appends a whole response: head, the entries that `ext` adds, and the body.
///
/// It always carries `extFields`, even empty: Java producers fail on a send response without.
/// Should the frame come out longer than peers accept, a short `SYSTEM_ERROR` takes its place, so
/// that every request still gets an answer.
///
/// # Panics
///
/// Never: the short answer has a remark of fixed length and no entries.
pub fn response(
    out: &mut Vec<u8>,
    encoding: Encoding,
    opaque: i32,
    code: i32,
    remark: Option<&str>,
    ext: impl FnOnce(&mut FrameWriter<'_, '_>),
    body: &[u8],
) {
    let mut writer = begin_frame(out, Head::response(encoding, opaque, code, remark));
    ext(&mut writer);
    if writer.finish(body.len()).is_ok() {
        out.extend_from_slice(body);
        return;
    }
    let remark = Some("the response is longer than a frame may be");
    let head = Head::response(encoding, opaque, response::SYSTEM_ERROR, remark);
    let short = begin_frame(out, head).finish(0);
    assert!(short.is_ok(), "a header of fixed fields fits any frame");
}

/// Appends a whole request in the name of a 4.9.8 Java peer; `flag` is 0 or
/// [`crate::command::FLAG_ONEWAY`].
///
/// # Errors
///
/// [`FrameTooLong`] if no peer would accept the frame; nothing was appended.
pub fn request(
    out: &mut Vec<u8>,
    encoding: Encoding,
    opaque: i32,
    code: i32,
    flag: i32,
    ext: impl FnOnce(&mut FrameWriter<'_, '_>),
    body: &[u8],
) -> Result<(), FrameTooLong> {
    let mut writer = begin_frame(out, Head::request(encoding, opaque, code, flag));
    ext(&mut writer);
    writer.finish(body.len())?;
    out.extend_from_slice(body);
    Ok(())
}

#[cfg(test)]
mod tests;
