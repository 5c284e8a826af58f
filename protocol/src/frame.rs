//! Frames: where one command ends and the next begins.
//!
//! A frame is a 4-byte length, one byte that names the header's encoding, a 3-byte header length,
//! the header and the body. All integers are big-endian and the length counts what follows it.
//!
//! Source: Apache RocketMQ 4.9.8, `RemotingCommand.decode`, `NettyDecoder`.

use core::fmt;

/// The longest frame that a peer accepts: the value of its length field, so without these 4 bytes.
///
/// Unit: bytes. Source: `com.rocketmq.remoting.frameMaxLength`, enforced by every receiver.
pub const FRAME_LEN_MAX: usize = 16_777_216;

/// Length of the length field itself.
pub const LEN_FIELD_LEN: usize = 4;

/// Length of everything before the header: the length field and the word with encoding and header
/// length.
pub const PREFIX_LEN: usize = 8;

/// How a frame's header is written. The body does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// A JSON object; the default of every client.
    Json,
    /// Upstream's `ROCKETMQ` form: fixed fields and length-prefixed strings.
    Binary,
}

impl Encoding {
    /// The value of the frame's type byte.
    pub const fn type_byte(self) -> u8 {
        match self {
            Self::Json => 0,
            Self::Binary => 1,
        }
    }

    /// The encoding that a type byte names, or `None` for a byte that no version knows.
    pub const fn from_type_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Json),
            1 => Some(Self::Binary),
            _ => None,
        }
    }
}

/// One whole frame, borrowed from the buffer that it arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// How `header` is written.
    pub encoding: Encoding,
    /// The header's bytes; [`crate::command::Command::parse`] reads them.
    pub header: &'a [u8],
    /// The body's bytes, empty if the frame has none.
    pub body: &'a [u8],
    /// Bytes of the whole frame, its length field included: how far to advance the buffer.
    pub total_len: usize,
}

/// Why a buffer does not start with a frame. The peer has lost the framing, so the only reaction
/// is to close its connection; upstream does the same, without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length field is over the limit. Both in bytes.
    TooLong {
        /// What the length field says.
        len: usize,
        /// The limit that the caller gave.
        max: usize,
    },
    /// The length field, in bytes, does not even cover the word with the header length.
    TooShort(usize),
    /// The header would reach beyond the frame. Both in bytes.
    HeaderTooLong {
        /// What the header length field says.
        header_len: usize,
        /// What is left of the frame for header and body.
        room: usize,
    },
    /// The type byte names no known encoding.
    UnknownEncoding(u8),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { len, max } => write!(f, "frame of {len} bytes, at most {max} allowed"),
            Self::TooShort(len) => write!(f, "frame length {len} is below 4"),
            Self::HeaderTooLong { header_len, room } => {
                write!(f, "header of {header_len} bytes in a frame with room for {room}")
            }
            Self::UnknownEncoding(byte) => write!(f, "unknown header encoding {byte}"),
        }
    }
}

impl core::error::Error for FrameError {}

/// The first 8 bytes of a frame, checked.
struct Prefix {
    encoding: Encoding,
    header_len: usize,
    total_len: usize,
}

fn prefix(buf: &[u8], frame_len_max: usize) -> Result<Option<Prefix>, FrameError> {
    let Some(len_field) = buf.first_chunk::<LEN_FIELD_LEN>() else { return Ok(None) };
    // The cast cannot lose bits: `usize` has at least 32 on every target that tokio or this
    // project runs on, and a 16-bit one would not get past the limit below.
    let len = u32::from_be_bytes(*len_field) as usize;
    if len > frame_len_max {
        return Err(FrameError::TooLong { len, max: frame_len_max });
    }
    let Some(room) = len.checked_sub(PREFIX_LEN - LEN_FIELD_LEN) else {
        return Err(FrameError::TooShort(len));
    };
    let Some([_, _, _, _, type_byte, high, middle, low]) = buf.first_chunk::<PREFIX_LEN>() else {
        return Ok(None);
    };
    let Some(encoding) = Encoding::from_type_byte(*type_byte) else {
        return Err(FrameError::UnknownEncoding(*type_byte));
    };
    let header_len = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
    if header_len > room {
        return Err(FrameError::HeaderTooLong { header_len, room });
    }
    Ok(Some(Prefix { encoding, header_len, total_len: len + LEN_FIELD_LEN }))
}

/// Finds the frame at the start of `buf`, or `Ok(None)` while more bytes are needed.
///
/// Nothing is copied. `frame_len_max` bounds the length field (normally [`FRAME_LEN_MAX`]) and is
/// checked as soon as 4 bytes are there, before a caller grows its buffer for the rest.
///
/// # Errors
///
/// [`FrameError`] if the bytes cannot start a frame: close the connection.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `NettyDecoder` and `RemotingCommand.decode`.
pub fn decode(buf: &[u8], frame_len_max: usize) -> Result<Option<Frame<'_>>, FrameError> {
    let Some(prefix) = prefix(buf, frame_len_max)? else { return Ok(None) };
    let Some(content) = buf.get(PREFIX_LEN..prefix.total_len) else { return Ok(None) };
    let Some((header, body)) = content.split_at_checked(prefix.header_len) else {
        return Ok(None);
    };
    Ok(Some(Frame { encoding: prefix.encoding, header, body, total_len: prefix.total_len }))
}

/// The total length in bytes of the frame at the start of `buf`, its length field included, as soon
/// as its first 8 bytes are there: what a receive buffer has to hold before [`decode`] succeeds.
///
/// # Errors
///
/// As [`decode`].
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `NettyDecoder`.
pub fn peek_len(buf: &[u8], frame_len_max: usize) -> Result<Option<usize>, FrameError> {
    Ok(prefix(buf, frame_len_max)?.map(|prefix| prefix.total_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], want: Result<Option<Frame<'_>>, FrameError>) {
        assert_eq!(decode(bytes, FRAME_LEN_MAX), want, "bytes: {bytes:02x?}");
    }

    #[test]
    fn a_whole_frame_is_found_and_the_next_one_left_alone() {
        let bytes = [0, 0, 0, 7, 0, 0, 0, 2, b'{', b'}', b'x', 0, 0];
        check(
            &bytes,
            Ok(Some(Frame {
                encoding: Encoding::Json,
                header: b"{}",
                body: b"x",
                total_len: bytes.len() - 2,
            })),
        );
    }

    #[test]
    fn every_cut_of_a_frame_needs_more_bytes() {
        let bytes = [0, 0, 0, 7, 1, 0, 0, 2, b'{', b'}', b'x'];
        for cut in 0..bytes.len() {
            check(&bytes[..cut], Ok(None));
        }
        assert_eq!(peek_len(&bytes[..8], FRAME_LEN_MAX), Ok(Some(11)));
        assert_eq!(peek_len(&bytes[..7], FRAME_LEN_MAX), Ok(None));
    }

    #[test]
    fn limits_are_checked_on_the_first_bytes() {
        check(&[1, 0, 0, 1], Err(FrameError::TooLong { len: 16_777_217, max: FRAME_LEN_MAX }));
        check(&[0xff; 4], Err(FrameError::TooLong { len: 0xffff_ffff, max: FRAME_LEN_MAX }));
        check(&[0, 0, 0, 3], Err(FrameError::TooShort(3)));
        check(&[1, 0, 0, 0], Ok(None));
        check(&[0, 0, 0, 4, 2, 0, 0, 0], Err(FrameError::UnknownEncoding(2)));
        check(&[0, 0, 0, 5, 0, 0, 0, 2], Err(FrameError::HeaderTooLong { header_len: 2, room: 1 }));
        assert_eq!(
            decode(&[0, 0, 0, 9], 8).map(|_| ()),
            Err(FrameError::TooLong { len: 9, max: 8 })
        );
    }
}
