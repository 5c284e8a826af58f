//! Records on their way into the log.
//!
//! On the thread of its shard a message is written straight from the receive buffer into the open
//! group. For a shard of another thread it is encoded first, with its stamp left open: the other
//! thread copies it and fills in the three numbers that only it knows.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use ringmq_engine::{EpochMillis, LogOffset, QueueOffset, Record, Stamp};
use ringmq_protocol::{
    batch,
    record::{MessageParts, PropertiesParts},
};

/// Where the stamp lies in a record with an IPv4 born host.
///
/// Source: facts of the record layout, fields 6, 7 and 11.
const QUEUE_OFFSET_AT: usize = 20;
const LOG_OFFSET_AT: usize = 28;
const STORE_TIME_AT: usize = 56;

/// A message that is written where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Everything but the stamp. The hosts are IPv4 addresses.
    pub(crate) parts: MessageParts<'a>,
    /// Hash of its tag.
    pub(crate) tag: i64,
}

impl Record for Message<'_> {
    fn len(&self) -> usize {
        self.parts.encoded_len()
    }

    fn tag(&self) -> i64 {
        self.tag
    }

    fn write(&self, stamp: &Stamp, dst: &mut [u8]) {
        let (queue_offset, log_offset) = (stamp.queue_offset.get(), stamp.log_offset.get());
        self.parts.write(queue_offset, log_offset, stamp.store_time.get(), dst);
    }
}

/// A message of a batch: what it has of its own, and what all have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchMessage<'a> {
    /// The batch's message without flag, body and properties.
    pub(crate) common: &'a MessageParts<'a>,
    /// The application's own number, body and properties.
    pub(crate) item: batch::Item<'a>,
    /// What follows the item's properties.
    pub(crate) suffix: &'a [u8],
    /// Hash of its tag.
    pub(crate) tag: i64,
    /// Bytes of the record.
    len: usize,
}

impl<'a> BatchMessage<'a> {
    pub(crate) fn new(
        common: &'a MessageParts<'a>,
        item: batch::Item<'a>,
        suffix: &'a [u8],
        tag: i64,
    ) -> Self {
        let mut message = Self { common, item, suffix, tag, len: 0 };
        message.len = message.parts().encoded_len();
        message
    }

    /// The properties as they are stored.
    pub(crate) fn properties(&self) -> PropertiesParts<'a> {
        PropertiesParts::from(self.item.properties).with_pair(self.suffix)
    }

    fn parts(&self) -> MessageParts<'a> {
        MessageParts {
            flag: self.item.flag,
            body: self.item.body,
            properties: self.properties(),
            ..*self.common
        }
    }
}

impl Record for BatchMessage<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn tag(&self) -> i64 {
        self.tag
    }

    fn write(&self, stamp: &Stamp, dst: &mut [u8]) {
        Message { parts: self.parts(), tag: self.tag }.write(stamp, dst);
    }
}

/// Encoded messages for another thread.
#[derive(Debug)]
pub(crate) struct Parcel {
    bytes: Vec<u8>,
    /// Tag of the first record, and the whole of it where it is alone.
    first_tag: i64,
    /// End and tag of each record, where there are several.
    cuts: Box<[(u32, i64)]>,
}

/// One record of a parcel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed<'a> {
    bytes: &'a [u8],
    tag: i64,
}

impl Parcel {
    /// Encodes messages.
    pub(crate) fn pack<R: Record>(messages: &[R]) -> Self {
        let open = Stamp {
            log_offset: LogOffset::new(0).expect("0 is not negative"),
            queue_offset: QueueOffset::default(),
            store_time: EpochMillis::default(),
        };
        let mut bytes = vec![0; messages.iter().map(Record::len).sum()];
        let mut cuts = Vec::new();
        let mut end = 0;
        for message in messages {
            let start = end;
            end += message.len();
            if let Some(room) = bytes.get_mut(start..end) {
                message.write(&open, room);
            }
            if messages.len() > 1 {
                // A batch is bounded by the frame, far below 4 GiB.
                cuts.push((u32::try_from(end).unwrap_or(u32::MAX), message.tag()));
            }
        }
        let first_tag = messages.first().map_or(0, Record::tag);
        Self { bytes, first_tag, cuts: cuts.into() }
    }

    /// The records, to be appended.
    pub(crate) fn unpack(&self, records: &mut Vec<(usize, usize, i64)>) {
        records.clear();
        if self.cuts.is_empty() {
            records.push((0, self.bytes.len(), self.first_tag));
            return;
        }
        let mut start = 0;
        for (end, tag) in &self.cuts {
            let end = usize::try_from(*end).unwrap_or(usize::MAX);
            records.push((start, end, *tag));
            start = end;
        }
    }

    /// Record `index` of [`Parcel::unpack`]'s places.
    pub(crate) fn record(&self, (start, end, tag): (usize, usize, i64)) -> Packed<'_> {
        Packed { bytes: self.bytes.get(start..end).unwrap_or_default(), tag }
    }
}

impl Record for Packed<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn tag(&self) -> i64 {
        self.tag
    }

    fn write(&self, stamp: &Stamp, dst: &mut [u8]) {
        dst.copy_from_slice(self.bytes);
        let fields = [
            (QUEUE_OFFSET_AT, stamp.queue_offset.get()),
            (LOG_OFFSET_AT, stamp.log_offset.get()),
            (STORE_TIME_AT, stamp.store_time.get()),
        ];
        for (at, value) in fields {
            let field = dst.get_mut(at..at + 8).expect("every record has a fixed part");
            field.copy_from_slice(&value.to_be_bytes());
        }
    }
}

/// An address as records carry it.
pub(crate) fn host((address, port): (Ipv4Addr, u16)) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<'a>(body: &'a [u8], tag: i64) -> Message<'a> {
        let parts = MessageParts {
            queue_id: 3,
            flag: 9,
            sys_flag: 1,
            born_timestamp_ms: 1_700_000_000_000,
            born_host: host((Ipv4Addr::new(10, 1, 2, 3), 51000)),
            store_host: host((Ipv4Addr::new(10, 1, 2, 9), 10911)),
            reconsume_times: 2,
            prepared_transaction_offset: 0,
            body,
            body_crc: None,
            topic: b"TopicTest",
            properties: PropertiesParts::from(&b"TAGS\x01TagA"[..]),
        };
        Message { parts, tag }
    }

    #[test]
    fn a_message_of_a_batch_is_stored_like_one_that_was_sent_alone() {
        let alone = message(b"hello", 7);
        let common = message(b"", 0).parts;
        let item = batch::Item { flag: 9, body: b"hello", properties: b"" };
        let of_batch = BatchMessage::new(&common, item, b"TAGS\x01TagA", 7);
        assert_eq!(of_batch.len(), alone.len());
        let stamp = Stamp {
            log_offset: LogOffset::new(1).unwrap(),
            queue_offset: QueueOffset::new(2).unwrap(),
            store_time: EpochMillis::new(3),
        };
        let (mut one, mut other) = (vec![0; alone.len()], vec![0; alone.len()]);
        alone.write(&stamp, &mut one);
        of_batch.write(&stamp, &mut other);
        assert_eq!(one, other);
    }

    #[test]
    fn a_parcel_ends_up_as_the_same_bytes() {
        let messages = [message(b"hello", 1), message(b"", 2), message(&[7; 300], 3)];
        for count in 1..=messages.len() {
            let parcel = Parcel::pack(&messages[..count]);
            let mut places = Vec::new();
            parcel.unpack(&mut places);
            assert_eq!(places.len(), count);
            for (message, place) in messages.iter().zip(places) {
                let packed = parcel.record(place);
                assert_eq!((packed.len(), packed.tag()), (message.len(), message.tag()));
                let stamp = Stamp {
                    log_offset: LogOffset::new(0x1122_3344_5566).unwrap(),
                    queue_offset: QueueOffset::new(0x0a0b_0c0d).unwrap(),
                    store_time: EpochMillis::new(1_700_000_000_005),
                };
                let (mut direct, mut handed) = (vec![0; packed.len()], vec![0; packed.len()]);
                message.write(&stamp, &mut direct);
                packed.write(&stamp, &mut handed);
                assert_eq!(direct, handed);
            }
        }
    }
}
