//! Compressed bodies: packed by producers, unpacked by consumers.
//!
//! Zlib is always there; LZ4 and Zstandard come with the features `lz4` and `zstd`. A body that
//! cannot be unpacked stays as it is.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `CompressorFactory`, `MessageSysFlag`; LZ4 is its frame
//! format.

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::{Compression as Level, read::ZlibDecoder, write::ZlibEncoder};
use ringmq_protocol::record::sys_flag;

/// Longest body that is unpacked. Unit: bytes. A sender may raise its limit over 4 MiB, but a few
/// bytes must not become all of the memory.
const UNPACKED_LEN_MAX: u64 = 64 * 1024 * 1024;

#[cfg(feature = "lz4")]
const TYPE_LZ4: i32 = 0x100;
#[cfg(feature = "zstd")]
const TYPE_ZSTD: i32 = 0x200;
const TYPE_ZLIB: i32 = 0x300;

/// How bodies are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Zlib (RFC 1950), which every client unpacks. The default.
    #[default]
    Zlib,
    /// LZ4, several times faster. Java's clients 4.9.8 and 5.x unpack it, most others do not.
    #[cfg(feature = "lz4")]
    Lz4,
    /// Zstandard, faster and smaller than zlib. Java's clients 4.9.8 and 5.x unpack it, most others
    /// do not.
    #[cfg(feature = "zstd")]
    Zstd,
}

impl Compression {
    /// Packs a body; `None` if it does not get shorter. Levels are those of zlib, 0 to 9.
    ///
    /// The second value is what the sys flag says about it.
    pub(crate) fn pack(self, body: &[u8], level: u32) -> Option<(Bytes, i32)> {
        let packed = match self {
            Self::Zlib => pack_zlib(body, level),
            #[cfg(feature = "lz4")]
            Self::Lz4 => pack_lz4(body),
            #[cfg(feature = "zstd")]
            Self::Zstd => zstd::bulk::compress(body, zstd_level(level)),
        };
        // Writing to memory does not fail; if it did, the body would be sent as it is.
        let packed = packed.ok().filter(|packed| packed.len() < body.len())?;
        Some((packed.into(), sys_flag::COMPRESSED | self.flag()))
    }

    const fn flag(self) -> i32 {
        match self {
            Self::Zlib => TYPE_ZLIB,
            #[cfg(feature = "lz4")]
            Self::Lz4 => TYPE_LZ4,
            #[cfg(feature = "zstd")]
            Self::Zstd => TYPE_ZSTD,
        }
    }
}

fn pack_zlib(body: &[u8], level: u32) -> io::Result<Vec<u8>> {
    let mut encoder =
        ZlibEncoder::new(Vec::with_capacity(body.len() / 2), Level::new(level.min(9)));
    encoder.write_all(body)?;
    encoder.finish()
}

#[cfg(feature = "lz4")]
fn pack_lz4(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::with_capacity(body.len() / 2));
    encoder.write_all(body)?;
    Ok(encoder.finish()?)
}

/// Upstream hands its level to whichever compressor; they all take 1 to 9.
#[cfg(feature = "zstd")]
fn zstd_level(level: u32) -> i32 {
    i32::try_from(level.clamp(1, 9)).unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL)
}

/// The body as it was before the producer compressed it, and the bits of its sys flag that say how
/// it still is compressed; 0 if it is not.
pub(crate) fn unpack(body: Bytes, flags: i32) -> (Bytes, i32) {
    if flags & sys_flag::COMPRESSED == 0 {
        return (body, 0);
    }
    let packing = flags & (sys_flag::COMPRESSED | sys_flag::COMPRESSION_MASK);
    let unpacked = match flags & sys_flag::COMPRESSION_MASK {
        0 | TYPE_ZLIB => bounded(ZlibDecoder::new(&*body)),
        #[cfg(feature = "lz4")]
        TYPE_LZ4 => bounded(lz4_flex::frame::FrameDecoder::new(&*body)),
        #[cfg(feature = "zstd")]
        TYPE_ZSTD => zstd::Decoder::with_buffer(&*body).ok().and_then(bounded),
        _ => None,
    };
    unpacked.map_or((body, packing), |unpacked| (unpacked.into(), 0))
}

/// All that a decoder gives, unless it is damaged or more than [`UNPACKED_LEN_MAX`].
fn bounded(decoder: impl Read) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    let len = decoder.take(UNPACKED_LEN_MAX + 1).read_to_end(&mut unpacked).ok()?;
    u64::try_from(len).is_ok_and(|len| len <= UNPACKED_LEN_MAX).then_some(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Compression> {
        vec![
            Compression::Zlib,
            #[cfg(feature = "lz4")]
            Compression::Lz4,
            #[cfg(feature = "zstd")]
            Compression::Zstd,
        ]
    }

    #[test]
    fn bodies_come_back_as_they_were() {
        let body = b"hello, hello".repeat(1000);
        for compression in all() {
            for level in [0, 1, 5, 9, 99] {
                let Some((packed, flags)) = compression.pack(&body, level) else {
                    assert_eq!((compression, level), (Compression::Zlib, 0));
                    continue;
                };
                assert!(packed.len() < body.len() / 10, "{compression:?} {level}");
                assert_eq!(unpack(packed, flags), (body.clone().into(), 0));
            }
        }
    }

    #[test]
    fn zlib_without_a_type_is_that_of_old_senders() {
        let (packed, _) = Compression::Zlib.pack(&b"hello".repeat(1000), 5).unwrap();
        assert_eq!(unpack(packed, 1).1, 0);
    }

    #[test]
    fn what_does_not_get_shorter_is_not_packed() {
        for compression in all() {
            assert_eq!(compression.pack(b"x", 5), None);
        }
    }

    #[test]
    fn damaged_and_plain_bodies_are_left() {
        let plain = Bytes::from_static(b"plain");
        assert_eq!(unpack(plain.clone(), 0), (plain.clone(), 0));
        for flags in [0x1, 0x101, 0x201, 0x301, 0x401] {
            assert_eq!(unpack(plain.clone(), flags), (plain.clone(), flags), "flags {flags:#x}");
        }
    }

    #[test]
    fn a_body_that_would_fill_the_memory_stays_packed() {
        let zeros = vec![0; usize::try_from(UNPACKED_LEN_MAX).unwrap() + 1];
        for compression in all() {
            let (bomb, flags) = compression.pack(&zeros, 1).unwrap();
            assert_eq!(unpack(bomb.clone(), flags), (bomb, flags), "{compression:?}");
        }
    }
}
