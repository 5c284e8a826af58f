//! Message ids: the broker's offset id, and the unique id that a producer makes.
//!
//! An offset id names a store host and a position in its log, in upper-case hex. Clients decode it
//! and connect to that host, so it has to be an address that they can reach.
//!
//! Source: Apache RocketMQ 4.9.8, `MessageDecoder.createMessageId`, `MessageClientIDSetter`.

use alloc::string::String;
use core::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::Deref,
};

/// Hex digits of an id with an IPv4 address.
pub const HEX_LEN_V4: usize = 32;

/// Hex digits of an id with an IPv6 address.
pub const HEX_LEN_V6: usize = 56;

/// Where a message lies: the `msgId` of send responses, `offsetMsgId` elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OffsetMessageId {
    /// The broker's address as clients reach it.
    pub host: SocketAddr,
    /// Position of the record in that broker's log, in bytes.
    pub log_offset: i64,
}

impl OffsetMessageId {
    /// The id in upper-case hex: ip (4 or 16 bytes), port (4), log offset (8).
    pub fn to_hex(&self) -> Hex {
        let mut hex = Hex::empty();
        match self.host.ip() {
            IpAddr::V4(ip) => hex.push(&ip.octets()),
            IpAddr::V6(ip) => hex.push(&ip.octets()),
        }
        hex.push(&u32::from(self.host.port()).to_be_bytes());
        hex.push(&self.log_offset.to_be_bytes());
        hex
    }

    /// Reads 32 or 56 hex digits of either case; `None` for anything else.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `MessageDecoder.decodeMessageId`.
    pub fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0_u8; HEX_LEN_V6 / 2];
        let bytes = decode_hex(hex, &mut bytes)?;
        let (ip, rest) = match hex.len() {
            HEX_LEN_V4 => {
                let (ip, rest) = bytes.split_first_chunk::<4>()?;
                (IpAddr::from(*ip), rest)
            }
            HEX_LEN_V6 => {
                let (ip, rest) = bytes.split_first_chunk::<16>()?;
                (IpAddr::from(*ip), rest)
            }
            _ => return None,
        };
        let (port, log_offset) = rest.split_first_chunk::<4>()?;
        let port = u16::try_from(u32::from_be_bytes(*port)).ok()?;
        let log_offset = i64::from_be_bytes(*log_offset.first_chunk::<8>()?);
        Some(Self { host: SocketAddr::new(ip, port), log_offset })
    }

    /// The ids of one batch joined with commas, as its send response carries them.
    pub fn join(ids: impl Iterator<Item = Self>) -> String {
        let mut joined = String::new();
        for id in ids {
            if !joined.is_empty() {
                joined.push(',');
            }
            joined.push_str(&id.to_hex());
        }
        joined
    }
}

impl fmt::Display for OffsetMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// What a producer's unique id is made of. The caller brings time, address and counter.
#[derive(Clone, Copy, Debug)]
pub struct UniqueId {
    /// The client's own address.
    pub ip: IpAddr,
    /// Low 16 bits of the process id.
    pub process_id: u16,
    /// Any number that tells producers of one process apart; upstream takes a class loader's hash.
    pub salt: i32,
    /// Milliseconds since the start of the current month.
    pub month_ms: i32,
    /// Rises by one per id.
    pub counter: u16,
}

impl UniqueId {
    /// The id in upper-case hex, the value of property `UNIQ_KEY`: 32 or 56 digits.
    pub fn to_hex(&self) -> Hex {
        let mut hex = Hex::empty();
        match self.ip {
            IpAddr::V4(ip) => hex.push(&ip.octets()),
            IpAddr::V6(ip) => hex.push(&ip.octets()),
        }
        hex.push(&self.process_id.to_be_bytes());
        hex.push(&self.salt.to_be_bytes());
        hex.push(&self.month_ms.to_be_bytes());
        hex.push(&self.counter.to_be_bytes());
        hex
    }
}

/// Up to 56 hex digits on the stack; reads as a `str`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex {
    digits: [u8; HEX_LEN_V6],
    len: usize,
}

impl Hex {
    const fn empty() -> Self {
        Self { digits: [b'0'; HEX_LEN_V6], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let rooms = self.digits.get_mut(self.len..).unwrap_or_default().chunks_mut(8);
        for (room, part) in rooms.zip(bytes.chunks(4)) {
            let mut word = [0; 4];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            let digits = digits_of(u32::from_be_bytes(word));
            room.iter_mut().zip(digits).for_each(|(to, from)| *to = from);
        }
        self.len += 2 * bytes.len();
    }
}

/// The eight upper-case hex digits of a word, all at once: each nibble is spread to a byte, and those
/// above 9 are moved on to the letters.
#[inline]
fn digits_of(word: u32) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TO_LETTERS: u64 = (b'A' - b'9' - 1) as u64;
    let mut nibbles = u64::from(word);
    nibbles = (nibbles | nibbles << 16) & 0x0000_FFFF_0000_FFFF;
    nibbles = (nibbles | nibbles << 8) & 0x00FF_00FF_00FF_00FF;
    nibbles = (nibbles | nibbles << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    // Adding 6 carries into the upper half of a byte just for 10 and more.
    let letters = (nibbles + 6 * ONES) >> 4 & ONES;
    (nibbles + ONES * u64::from(b'0') + letters * TO_LETTERS).to_be_bytes()
}

/// The 16 upper-case hex digits of a log offset, as they end every offset id.
#[inline]
pub(crate) fn digits_of_offset(log_offset: i64) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h] = log_offset.to_be_bytes();
    let mut digits = [0; 16];
    let (front, back) = digits.split_at_mut(8);
    front.copy_from_slice(&digits_of(u32::from_be_bytes([a, b, c, d])));
    back.copy_from_slice(&digits_of(u32::from_be_bytes([e, f, g, h])));
    digits
}

impl Deref for Hex {
    type Target = str;

    fn deref(&self) -> &str {
        let digits = self.digits.get(..self.len).unwrap_or_default();
        core::str::from_utf8(digits).unwrap_or_default()
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Decodes hex digits into the front of `out`.
fn decode_hex<'o>(hex: &str, out: &'o mut [u8]) -> Option<&'o [u8]> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) || digits.len() > 2 * out.len() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|v| u8::try_from(v).ok());
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = value(*high)? << 4 | value(*low)?;
    }
    out.get(..digits.len() / 2)
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    fn id(host: &str, log_offset: i64) -> OffsetMessageId {
        OffsetMessageId { host: host.parse().unwrap(), log_offset }
    }

    /// The facts sheet's vector (storage 1.9 and A.3).
    #[test]
    fn offset_ids_have_upstreams_digits() {
        let hex = "0A01020900002A9F0000000000001000";
        assert_eq!(&*id("10.1.2.9:10911", 4096).to_hex(), hex);
        assert_eq!(OffsetMessageId::parse(hex), Some(id("10.1.2.9:10911", 4096)));
        assert_eq!(OffsetMessageId::parse(&hex.to_lowercase()), Some(id("10.1.2.9:10911", 4096)));
    }

    #[test]
    fn ids_with_ipv6_have_56_digits() {
        let six = id("[2001:db8::1]:65535", i64::MAX);
        assert_eq!(six.to_hex().len(), HEX_LEN_V6);
        assert_eq!(OffsetMessageId::parse(&six.to_hex()), Some(six));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for bad in ["", "0", "0A01020900002A9F000000000000100", "g".repeat(32).as_str()] {
            assert_eq!(OffsetMessageId::parse(bad), None, "{bad}");
        }
        assert_eq!(OffsetMessageId::parse(&"F".repeat(32)), None, "no such port");
        assert_eq!(OffsetMessageId::parse(&"0".repeat(34)), None);
        assert_eq!(OffsetMessageId::parse(&"0".repeat(58)), None);
    }

    #[test]
    fn ids_of_a_batch_are_joined_in_order() {
        let ids = [id("127.0.0.1:10911", 1), id("127.0.0.1:10911", 2)];
        let joined = OffsetMessageId::join(ids.into_iter());
        assert_eq!(joined, "7F00000100002A9F0000000000000001,7F00000100002A9F0000000000000002");
    }

    #[test]
    fn every_byte_has_its_two_digits() {
        for byte in 0..=u8::MAX {
            let bytes = [byte, !byte, byte, byte.rotate_left(4)];
            let want = format!("{:08X}", u32::from_be_bytes(bytes));
            assert_eq!(digits_of(u32::from_be_bytes(bytes)), *want.as_bytes());
            let mut hex = Hex::empty();
            hex.push(&[7]);
            hex.push(&[byte; 7]);
            assert_eq!(&*hex, format!("07{}", format!("{byte:02X}").repeat(7)));
        }
        let offset = 0x0123_4567_89AB_CDEF;
        assert_eq!(&digits_of_offset(offset), b"0123456789ABCDEF");
    }

    #[test]
    fn unique_ids_have_upstreams_layout() {
        let id = UniqueId {
            ip: IpAddr::from([127, 0, 0, 1]),
            process_id: 0xc602,
            salt: 0x4481,
            month_ms: 0xf29c,
            counter: 0x100,
        };
        assert_eq!(&*id.to_hex(), "7F000001C602000044810000F29C0100");
    }
}
