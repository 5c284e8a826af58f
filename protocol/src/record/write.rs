//! Writing a record.

use core::{
    mem,
    net::{IpAddr, SocketAddr},
};

use super::{
    MAGIC_V1, MAGIC_V2, OVERHEAD_V4, PROPERTIES_LEN_MAX, TOPIC_LEN_MAX, body_crc, sys_flag,
};

/// Longest topic of a V2 record: its length is a signed 16-bit number.
const TOPIC_LEN_MAX_V2: usize = 32_767;

/// Bytes that an IPv6 host needs more than an IPv4 one.
const V6_EXTRA: usize = 12;

/// Most pieces of a [`PropertiesParts`]: the client's text around a pair that is left out, and two
/// additions with their separators.
pub const PIECES_MAX: usize = 6;

/// Everything that a record holds but its position and store time, which are known only when it is
/// written. Borrowed, so that a message goes from the receive buffer to the log in one copy.
#[derive(Clone, Copy, Debug)]
pub struct MessageParts<'a> {
    /// The queue.
    pub queue_id: i32,
    /// The application's own number.
    pub flag: i32,
    /// Bits of [`sys_flag`]; those for IPv6 hosts are set here, whatever the client claimed.
    pub sys_flag: i32,
    /// Milliseconds since 1970 by the producer's clock.
    pub born_timestamp_ms: i64,
    /// The producer as the broker sees it.
    pub born_host: SocketAddr,
    /// The broker as clients reach it.
    pub store_host: SocketAddr,
    /// How often the message was delivered before.
    pub reconsume_times: i32,
    /// Log position of the half message behind a committed transaction, else 0. Unit: bytes.
    pub prepared_transaction_offset: i64,
    /// The body as sent, possibly compressed.
    pub body: &'a [u8],
    /// [`body_crc`] of the body, if the caller knows it already.
    pub body_crc: Option<u32>,
    /// The topic.
    pub topic: &'a [u8],
    /// The properties.
    pub properties: PropertiesParts<'a>,
}

/// A properties text in pieces that are written one after the other: what the client sent, without
/// `WAIT`, and what the broker adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PropertiesParts<'a> {
    pieces: [&'a [u8]; PIECES_MAX],
    count: usize,
    /// What the pieces are together, in bytes.
    len: usize,
}

impl<'a> PropertiesParts<'a> {
    /// Adds a piece, verbatim. Empty pieces take no room.
    ///
    /// # Panics
    ///
    /// With more than [`PIECES_MAX`] pieces that are not empty.
    #[must_use]
    #[inline]
    pub fn with(mut self, piece: &'a [u8]) -> Self {
        if !piece.is_empty() {
            let slot = self.pieces.get_mut(self.count).expect("the caller keeps to PIECES_MAX");
            *slot = piece;
            self.count += 1;
            self.len += piece.len();
        }
        self
    }

    /// Adds a `name 0x01 value` pair, and a separator if one is needed before it.
    ///
    /// # Panics
    ///
    /// As [`Self::with`].
    #[must_use]
    #[inline]
    pub fn with_pair(self, pair: &'a [u8]) -> Self {
        let last = self.count.checked_sub(1).and_then(|last| self.pieces.get(last));
        let separator = crate::properties::separator(last.copied().unwrap_or_default());
        self.with(separator).with(pair)
    }

    /// What the pieces are together, in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True without any text.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> From<&'a [u8]> for PropertiesParts<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self::default().with(text)
    }
}

/// A buffer that is filled from the front.
struct Filler<'d>(&'d mut [u8]);

impl Filler<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let (head, tail) = mem::take(&mut self.0).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.0 = tail;
    }

    #[inline]
    fn put_host(&mut self, host: SocketAddr) {
        match host.ip() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }

    /// A length field of 4 bytes; the caller has checked that it fits.
    #[inline]
    fn put_len(&mut self, len: usize) {
        let len = i32::try_from(len).expect("a record is shorter than 2 GiB");
        self.put(&len.to_be_bytes());
    }
}

impl MessageParts<'_> {
    const fn is_v2(&self) -> bool {
        self.topic.len() > TOPIC_LEN_MAX
    }

    const fn hosts_flag(&self) -> i32 {
        let born = if self.born_host.is_ipv6() { sys_flag::BORN_HOST_V6 } else { 0 };
        let store = if self.store_host.is_ipv6() { sys_flag::STORE_HOST_V6 } else { 0 };
        born | store
    }

    /// The record's length in bytes.
    pub fn encoded_len(&self) -> usize {
        OVERHEAD_V4
            + usize::from(self.is_v2())
            + usize::from(self.born_host.is_ipv6()) * V6_EXTRA
            + usize::from(self.store_host.is_ipv6()) * V6_EXTRA
            + self.body.len()
            + self.topic.len()
            + self.properties.len()
    }

    /// Writes the record. `queue_offset` is in messages, `log_offset` in bytes.
    ///
    /// # Panics
    ///
    /// If `dst` is not exactly [`Self::encoded_len`] long, or a part is longer than its length
    /// field can say; [`crate::limits::check_message`] excludes the latter.
    pub fn write(
        &self,
        queue_offset: i64,
        log_offset: i64,
        store_timestamp_ms: i64,
        dst: &mut [u8],
    ) {
        let properties_len = self.properties.len();
        assert!(self.topic.len() <= TOPIC_LEN_MAX_V2, "topic of {} bytes", self.topic.len());
        assert!(properties_len <= PROPERTIES_LEN_MAX, "properties of {properties_len} bytes");
        let len = self.encoded_len();
        assert_eq!(dst.len(), len, "the buffer has the record's length");
        let hosts_mask = sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6;
        let sys_flag = self.sys_flag & !hosts_mask | self.hosts_flag();
        let crc = self.body_crc.unwrap_or_else(|| body_crc(self.body));

        let mut out = Filler(dst);
        out.put_len(len);
        out.put(&(if self.is_v2() { MAGIC_V2 } else { MAGIC_V1 }).to_be_bytes());
        out.put(&crc.to_be_bytes());
        out.put(&self.queue_id.to_be_bytes());
        out.put(&self.flag.to_be_bytes());
        out.put(&queue_offset.to_be_bytes());
        out.put(&log_offset.to_be_bytes());
        out.put(&sys_flag.to_be_bytes());
        out.put(&self.born_timestamp_ms.to_be_bytes());
        out.put_host(self.born_host);
        out.put(&store_timestamp_ms.to_be_bytes());
        out.put_host(self.store_host);
        out.put(&self.reconsume_times.to_be_bytes());
        out.put(&self.prepared_transaction_offset.to_be_bytes());
        out.put_len(self.body.len());
        out.put(self.body);
        let topic_len = u16::try_from(self.topic.len()).unwrap_or_default().to_be_bytes();
        match (self.is_v2(), topic_len) {
            (true, both) => out.put(&both),
            (false, [_, low]) => out.put(&[low]),
        }
        out.put(self.topic);
        out.put(&u16::try_from(properties_len).unwrap_or_default().to_be_bytes());
        for piece in self.properties.pieces.iter().take(self.properties.count) {
            out.put(piece);
        }
        assert!(out.0.is_empty(), "the length covers every field");
    }
}
