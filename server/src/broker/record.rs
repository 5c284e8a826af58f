//! Records on their way into the log.
//!
//! On the thread of its shard a message is written straight from the receive buffer into the open
//! group. For a shard of another thread it is encoded first, with its stamp left open: the other
//! thread copies it and fills in the three numbers that only it knows.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    ops::Range,
};

use ringmq_engine::{EpochMillis, KeyHash, KeyScope, LogOffset, QueueOffset, Record, Stamp};
use ringmq_protocol::{
    batch, properties,
    record::{MessageParts, PropertiesParts},
    tags,
};

/// Where the stamp lies in a record with an IPv4 born host.
///
/// Source: facts of the record layout, fields 6, 7 and 11.
const QUEUE_OFFSET_AT: usize = 20;
const LOG_OFFSET_AT: usize = 28;
const STORE_TIME_AT: usize = 56;

/// What the properties of a message say to the broker: read once, as every send is.
///
/// Of several pairs with the same name the last one counts, as for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said<'a> {
    /// Hash of the tag.
    pub(crate) tag: i64,
    /// The unique id; empty without one.
    pub(crate) unique: &'a [u8],
    /// The keys, with blanks between them.
    pub(crate) words: &'a [u8],
}

impl<'a> Said<'a> {
    /// Reads them from a text of properties.
    pub(crate) fn of(text: &'a [u8]) -> Self {
        let (mut tag, mut said) = (None, Self::default());
        for (name, value) in properties::iter(text) {
            match name {
                b"TAGS" => tag = Some(value),
                b"KEYS" => said.words = value,
                b"UNIQ_KEY" => said.unique = value,
                _ => {}
            }
        }
        Self { tag: tags::tags_code(tag), ..said }
    }

    /// What a message of a batch has of its own, and from the batch where it has nothing.
    fn or(self, batch: &Self) -> Self {
        let or = |own: &'a [u8], other| if own.is_empty() { other } else { own };
        let (unique, words) = (or(self.unique, batch.unique), or(self.words, batch.words));
        Self { unique, words, ..self }
    }

    /// The keys by which the message is found.
    ///
    /// Source: `IndexService.buildIndex`.
    fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        let words = self.words.split(|&byte| byte == b' ');
        std::iter::once(self.unique).chain(words).filter(|key| !key.is_empty())
    }

    /// Whether this is one of the keys.
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        self.keys().any(|known| known == key)
    }

    fn hash_keys(&self, scope: KeyScope, each: &mut dyn FnMut(KeyHash)) {
        self.keys().for_each(|key| each(scope.hash(key)));
    }
}

/// The properties of a message that was read, for those behind it in its batch: most differ from it in
/// their unique ids only.
#[derive(Clone, Debug)]
pub(crate) struct Alike<'a> {
    text: &'a [u8],
    said: Said<'a>,
    /// Where the unique id lies.
    unique: Range<usize>,
}

impl<'a> Alike<'a> {
    /// `None` for a message without a unique id. `said` was read from `text`.
    pub(crate) fn new(text: &'a [u8], said: Said<'a>) -> Option<Self> {
        let start = said.unique.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        let unique = start..start + said.unique.len();
        (text.get(unique.clone()) == Some(said.unique) && !unique.is_empty()).then_some(Self {
            text,
            said,
            unique,
        })
    }

    /// What a text says that differs in nothing but the unique id; `None` for any other.
    pub(crate) fn read(&self, text: &'a [u8]) -> Option<Said<'a>> {
        let is_separator =
            |&byte: &u8| matches!(byte, properties::NAME_SEPARATOR | properties::PAIR_SEPARATOR);
        let Range { start, end } = self.unique;
        let unique = text.get(start..end)?;
        let is_alike = text.len() == self.text.len()
            && text.get(..start) == self.text.get(..start)
            && text.get(end..) == self.text.get(end..)
            && !unique.iter().any(is_separator);
        is_alike.then_some(Said { unique, ..self.said })
    }
}

/// A message that is written where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Everything but the stamp. The hosts are IPv4 addresses.
    pub(crate) parts: MessageParts<'a>,
    /// Its tag and keys.
    pub(crate) said: Said<'a>,
    /// What its keys count within: the topic.
    pub(crate) scope: KeyScope,
}

impl Record for Message<'_> {
    fn len(&self) -> usize {
        self.parts.encoded_len()
    }

    fn tag(&self) -> i64 {
        self.said.tag
    }

    fn keys(&self, each: &mut dyn FnMut(KeyHash)) {
        self.said.hash_keys(self.scope, each);
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
    /// The properties as they are stored.
    pub(crate) properties: PropertiesParts<'a>,
    /// Its tag and keys.
    said: Said<'a>,
    /// What its keys count within: the topic.
    scope: KeyScope,
    /// Bytes of the record.
    len: usize,
}

impl<'a> BatchMessage<'a> {
    /// `suffix` follows the item's properties. Each comes with what it says.
    pub(crate) fn new(
        common: &'a MessageParts<'a>,
        (item, own): (batch::Item<'a>, Said<'a>),
        (suffix, of_all): (&'a [u8], &Said<'a>),
        scope: KeyScope,
    ) -> Self {
        let properties = PropertiesParts::from(item.properties).with_pair(suffix);
        let mut message = Self { common, item, properties, said: own.or(of_all), scope, len: 0 };
        message.len = message.parts().encoded_len();
        message
    }

    fn parts(&self) -> MessageParts<'a> {
        MessageParts {
            flag: self.item.flag,
            body: self.item.body,
            properties: self.properties,
            ..*self.common
        }
    }
}

impl Record for BatchMessage<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn tag(&self) -> i64 {
        self.said.tag
    }

    fn keys(&self, each: &mut dyn FnMut(KeyHash)) {
        self.said.hash_keys(self.scope, each);
    }

    fn write(&self, stamp: &Stamp, dst: &mut [u8]) {
        Message { parts: self.parts(), said: self.said, scope: self.scope }.write(stamp, dst);
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
    /// The first key of all: most messages are alone and have one.
    first_key: Option<(u32, KeyHash)>,
    /// The others, and which record has them.
    keys: Box<[(u32, KeyHash)]>,
}

/// One record of a parcel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed<'a> {
    bytes: &'a [u8],
    tag: i64,
    /// Its place in the parcel.
    place: u32,
    parcel: &'a Parcel,
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
        let (mut first_key, mut keys) = (None, Vec::new());
        let mut end = 0;
        for (place, message) in (0..).zip(messages) {
            message.keys(&mut |hash| match first_key {
                None => first_key = Some((place, hash)),
                Some(_) => keys.push((place, hash)),
            });
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
        Self { bytes, first_tag, cuts: cuts.into(), first_key, keys: keys.into() }
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

    /// The records at the places of [`Parcel::unpack`].
    pub(crate) fn records(&self, places: &[(usize, usize, i64)]) -> Vec<Packed<'_>> {
        let bytes = |start: usize, end: usize| self.bytes.get(start..end).unwrap_or_default();
        let places = (0..).zip(places);
        places
            .map(|(place, &(start, end, tag))| Packed {
                bytes: bytes(start, end),
                tag,
                place,
                parcel: self,
            })
            .collect()
    }
}

impl Record for Packed<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn tag(&self) -> i64 {
        self.tag
    }

    fn keys(&self, each: &mut dyn FnMut(KeyHash)) {
        let Parcel { first_key, keys, .. } = self.parcel;
        let is_own = |key: &&(u32, KeyHash)| key.0 == self.place;
        // Keys are in the order of their records.
        let behind = keys.partition_point(|&(place, _)| place < self.place);
        let others = keys.get(behind..).unwrap_or_default().iter().take_while(is_own);
        first_key.iter().filter(is_own).chain(others).for_each(|&(_, hash)| each(hash));
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

    /// What two messages of each test have as their properties.
    const PROPERTIES: &[u8] = b"TAGS\x01TagA\x02UNIQ_KEY\x01AB01\x02KEYS\x01 one  two ";

    fn message<'a>(body: &'a [u8], properties: &'a [u8]) -> Message<'a> {
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
            properties: PropertiesParts::from(properties),
        };
        Message { parts, said: Said::of(properties), scope: KeyScope::new(b"TopicTest") }
    }

    fn keys(record: &impl Record) -> Vec<KeyHash> {
        let mut keys = Vec::new();
        record.keys(&mut |hash| keys.push(hash));
        keys
    }

    #[test]
    fn a_message_is_found_by_its_unique_id_and_each_word_of_its_keys() {
        let scope = KeyScope::new(b"TopicTest");
        let expected = [&b"AB01"[..], b"one", b"two"].map(|key| scope.hash(key));
        assert_eq!(keys(&message(b"", PROPERTIES)), expected);
        let said = Said::of(PROPERTIES);
        assert!(said.has_key(b"two") && said.has_key(b"AB01"));
        assert!(!said.has_key(b"on") && !said.has_key(b"") && !said.has_key(b"one  two"));
        assert_eq!(keys(&message(b"", b"KEYS\x01a\x02KEYS\x01b")), [scope.hash(b"b")]);
        assert_eq!(keys(&message(b"", b"TAGS\x01UNIQ_KEY")), []);
    }

    #[test]
    fn a_message_of_a_batch_is_stored_like_one_that_was_sent_alone() {
        let alone = message(b"hello", PROPERTIES);
        let common = message(b"", b"").parts;
        let item = batch::Item { flag: 9, body: b"hello", properties: b"TAGS\x01TagA" };
        let suffix = &b"UNIQ_KEY\x01AB01\x02KEYS\x01 one  two "[..];
        let own = Said::of(item.properties);
        let of_all = (suffix, &Said::of(suffix));
        let of_batch = BatchMessage::new(&common, (item, own), of_all, alone.scope);
        assert_eq!((of_batch.len(), of_batch.tag()), (alone.len(), alone.tag()));
        assert_eq!(keys(&of_batch), keys(&alone));
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
    fn properties_that_differ_in_the_unique_id_alone_need_not_be_read_again() {
        let alike = Alike::new(PROPERTIES, Said::of(PROPERTIES)).unwrap();
        let read = |text: &'static [u8]| {
            let said = alike.read(text);
            assert!(said.is_none_or(|said| said == Said::of(text)), "{text:?}");
            said.is_some()
        };
        assert!(read(b"TAGS\x01TagA\x02UNIQ_KEY\x01CD23\x02KEYS\x01 one  two "));
        assert!(read(PROPERTIES));
        for other in [
            &b"TAGS\x01TagB\x02UNIQ_KEY\x01AB01\x02KEYS\x01 one  two "[..],
            b"TAGS\x01TagA\x02UNIQ_KEY\x01AB01\x02KEYS\x01 one  too ",
            b"TAGS\x01TagA\x02UNIQ_KEY\x01AB0\x02\x02KEYS\x01 one  two ",
            b"TAGS\x01TagA\x02UNIQ_KEY\x01A\x02B\x01\x02KEYS\x01 one  two ",
            b"TAGS\x01TagA\x02UNIQ_KEY\x01AB012\x02KEYS\x01 one  two ",
            b"",
        ] {
            assert!(!read(other), "{other:?}");
        }
        let without = &b"TAGS\x01TagA"[..];
        assert!(Alike::new(without, Said::of(without)).is_none());
        // The last of several unique ids counts, whatever stands before it.
        let two = &b"UNIQ_KEY\x01A\x02UNIQ_KEY\x01B"[..];
        let alike = Alike::new(two, Said::of(two)).unwrap();
        assert!(alike.read(b"UNIQ_KEY\x01B\x02UNIQ_KEY\x01B").is_none());
        assert_eq!(alike.read(b"UNIQ_KEY\x01A\x02UNIQ_KEY\x01C").unwrap().unique, b"C");
    }

    #[test]
    fn a_parcel_ends_up_as_the_same_bytes() {
        let few = &b"KEYS\x01x"[..];
        let messages = [
            message(b"hello", PROPERTIES),
            message(b"", b""),
            message(&[7; 300], few),
            message(b"4", few),
        ];
        for count in 1..=messages.len() {
            let parcel = Parcel::pack(&messages[..count]);
            let mut places = Vec::new();
            parcel.unpack(&mut places);
            assert_eq!(places.len(), count);
            for (message, packed) in messages.iter().zip(parcel.records(&places)) {
                assert_eq!((packed.len(), packed.tag()), (message.len(), message.tag()));
                assert_eq!(keys(&packed), keys(message));
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
