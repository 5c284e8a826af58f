//! The message record: the one form in which a message is stored and delivered.
//!
//! [`MessageView`] reads it in place, [`MessageParts`] writes it in one pass into a buffer of
//! exactly its length. The broker writes magic V1, which every client reads, and V2 (two bytes of
//! topic length) only for topics that V1 cannot carry.
//!
//! ```text
//! total length 4 | magic 4 | body crc 4 | queue id 4 | flag 4 | queue offset 8 | log offset 8 |
//! sys flag 4 | born time 8 | born host 8 or 20 | store time 8 | store host 8 or 20 |
//! reconsume times 4 | prepared transaction offset 8 | body length 4, body |
//! topic length 1 (V2: 2), topic | properties length 2, properties
//! ```
//!
//! Source: Apache RocketMQ 5.3.3, `MessageDecoder.decode`, `CommitLog`, `MessageVersion`.

use core::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::{
    limits::{PROPERTIES_LEN_MAX, TOPIC_LEN_MAX},
    message_id::OffsetMessageId,
};

mod write;

pub use write::{MessageParts, PIECES_MAX, PropertiesParts};

/// First magic: topic length in one byte.
pub const MAGIC_V1: u32 = 0xdaa3_20a7;
/// Second magic, of 5.x: topic length in two bytes.
pub const MAGIC_V2: u32 = 0xdaa3_20ab;

/// Bytes of a V1 record with IPv4 hosts besides body, topic and properties.
pub const OVERHEAD_V4: usize = 91;

/// Bits of a record's sys flag. Source: `MessageSysFlag`.
pub mod sys_flag {
    /// The body is compressed.
    pub const COMPRESSED: i32 = 0x1;
    /// The topic takes several tags for a message.
    pub const MULTI_TAGS: i32 = 0x2;
    /// Mask of the transaction's state.
    pub const TRANSACTION_MASK: i32 = 0xc;
    /// A half message; only on the wire.
    pub const TRANSACTION_PREPARED: i32 = 0x4;
    /// A delivered transactional message.
    pub const TRANSACTION_COMMIT: i32 = 0x8;
    /// A rolled back one.
    pub const TRANSACTION_ROLLBACK: i32 = 0xc;
    /// The born host is IPv6.
    pub const BORN_HOST_V6: i32 = 0x10;
    /// The store host is IPv6.
    pub const STORE_HOST_V6: i32 = 0x20;
    /// 5.x: clients unwrap the record.
    pub const NEED_UNWRAP: i32 = 0x40;
    /// 5.x: the record is a batch.
    pub const INNER_BATCH: i32 = 0x80;
    /// Mask of the compression: 0 and `0x300` zlib, `0x100` LZ4, `0x200` zstd.
    pub const COMPRESSION_MASK: i32 = 0x700;
}

/// A record, read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageView<'a> {
    /// The whole record.
    pub bytes: &'a [u8],
    /// [`body_crc`] of the body, as stored.
    pub body_crc: u32,
    /// The queue.
    pub queue_id: i32,
    /// The application's own number.
    pub flag: i32,
    /// Offset in messages within the queue.
    pub queue_offset: i64,
    /// Position in the broker's log, in bytes.
    pub log_offset: i64,
    /// Bits of [`sys_flag`].
    pub sys_flag: i32,
    /// Milliseconds since 1970 by the producer's clock.
    pub born_timestamp_ms: i64,
    /// The producer as the broker saw it.
    pub born_host: SocketAddr,
    /// Milliseconds since 1970 by the broker's clock.
    pub store_timestamp_ms: i64,
    /// The broker as clients reach it.
    pub store_host: SocketAddr,
    /// How often the message was delivered before.
    pub reconsume_times: i32,
    /// Log position of the half message behind a committed transaction, else 0. Unit: bytes.
    pub prepared_transaction_offset: i64,
    /// The body as sent, possibly compressed.
    pub body: &'a [u8],
    /// The topic; UTF-8 unless damaged.
    pub topic: &'a [u8],
    /// Properties in the form of [`crate::properties`].
    pub properties: &'a [u8],
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes end before the record does.
    Truncated,
    /// The magic is neither V1 nor V2.
    UnknownMagic(u32),
    /// The lengths inside the record do not add up to its total length, or a port is none.
    Inconsistent,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the record is cut"),
            Self::UnknownMagic(magic) => write!(f, "unknown record magic {magic:#010x}"),
            Self::Inconsistent => f.write_str("the record's lengths do not add up"),
        }
    }
}

impl core::error::Error for RecordError {}

/// CRC-32 (IEEE) of a stored body without its top bit, as records carry it.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `UtilAll.crc32`.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7fff_ffff
}

/// A forward reader over one record. What it cannot read makes the record inconsistent, since the
/// record's own total length bounds it.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(RecordError::Inconsistent)?;
        self.0 = rest;
        Ok(*chunk)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, RecordError> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, RecordError> {
        self.array().map(i64::from_be_bytes)
    }

    fn host(&mut self, is_v6: bool) -> Result<SocketAddr, RecordError> {
        let ip = match is_v6 {
            true => IpAddr::from(self.array::<16>()?),
            false => IpAddr::from(self.array::<4>()?),
        };
        let port = u16::try_from(self.i32()?).map_err(|_| RecordError::Inconsistent)?;
        Ok(SocketAddr::new(ip, port))
    }

    /// Bytes after a length that may be negative on the wire.
    fn bytes(&mut self, len: i32) -> Result<&'a [u8], RecordError> {
        let len = usize::try_from(len).map_err(|_| RecordError::Inconsistent)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(RecordError::Inconsistent)?;
        self.0 = rest;
        Ok(bytes)
    }
}

impl<'a> MessageView<'a> {
    /// Reads the record at the start of `buf`; more bytes may follow it.
    ///
    /// The body's checksum is not checked, see [`MessageView::body_is_intact`].
    ///
    /// # Errors
    ///
    /// [`RecordError`]; nothing can be said about what follows.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 5.3.3, `MessageDecoder.decode`. Unlike clients, this also compares the
    /// total length with the fields.
    pub fn parse(buf: &'a [u8]) -> Result<Self, RecordError> {
        let total_len = buf.first_chunk::<4>().ok_or(RecordError::Truncated)?;
        let total_len = usize::try_from(i32::from_be_bytes(*total_len))
            .map_err(|_| RecordError::Inconsistent)?;
        if total_len < OVERHEAD_V4 {
            return Err(RecordError::Inconsistent);
        }
        let bytes = buf.get(..total_len).ok_or(RecordError::Truncated)?;
        let mut fields = Fields(bytes);
        let _total_len = fields.u32()?;
        let magic = fields.u32()?;
        if !matches!(magic, MAGIC_V1 | MAGIC_V2) {
            return Err(RecordError::UnknownMagic(magic));
        }
        let view = Self::fields(bytes, magic == MAGIC_V2, &mut fields)?;
        if fields.0.is_empty() { Ok(view) } else { Err(RecordError::Inconsistent) }
    }

    fn fields(bytes: &'a [u8], is_v2: bool, fields: &mut Fields<'a>) -> Result<Self, RecordError> {
        let body_crc = fields.u32()?;
        let queue_id = fields.i32()?;
        let flag = fields.i32()?;
        let queue_offset = fields.i64()?;
        let log_offset = fields.i64()?;
        let sys_flag = fields.i32()?;
        let born_timestamp_ms = fields.i64()?;
        let born_host = fields.host(sys_flag & sys_flag::BORN_HOST_V6 != 0)?;
        let store_timestamp_ms = fields.i64()?;
        let store_host = fields.host(sys_flag & sys_flag::STORE_HOST_V6 != 0)?;
        let reconsume_times = fields.i32()?;
        let prepared_transaction_offset = fields.i64()?;
        let body_len = fields.i32()?;
        let body = fields.bytes(body_len)?;
        let topic_len = match is_v2 {
            true => i16::from_be_bytes(fields.array()?).into(),
            false => i8::from_be_bytes(fields.array()?).into(),
        };
        let topic = fields.bytes(topic_len)?;
        let properties_len = i16::from_be_bytes(fields.array()?);
        let properties = fields.bytes(properties_len.into())?;
        Ok(Self {
            bytes,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic,
            properties,
        })
    }

    /// Whether the body has the checksum that the record names.
    pub fn body_is_intact(&self) -> bool {
        body_crc(self.body) == self.body_crc
    }

    /// The id that names this record to its broker.
    pub const fn offset_message_id(&self) -> OffsetMessageId {
        OffsetMessageId { host: self.store_host, log_offset: self.log_offset }
    }

    /// The value of a property.
    pub fn property(&self, name: &str) -> Option<&'a [u8]> {
        crate::properties::get(self.properties, name)
    }
}

/// Reads records that lie back to back, as in the body of a pull. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a>(&'a [u8]);

/// The records of a body.
pub const fn records(body: &[u8]) -> Records<'_> {
    Records(body)
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<MessageView<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = MessageView::parse(self.0);
        let passed = record.as_ref().map_or(self.0.len(), |view| view.bytes.len());
        self.0 = self.0.get(passed..).unwrap_or_default();
        Some(record)
    }
}

#[cfg(test)]
mod tests;
