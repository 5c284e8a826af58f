//! Sends and pulls that look like earlier ones of their connection.
//!
//! Most headers of a client differ from the one before in a few numbers only, and the properties of a
//! producer in the unique id. Each connection keeps templates of some, so that a header is compared instead of
//! scanned. Learning costs more than one scan, so it happens after several headers that fitted none.

use std::cell::Cell;

use ringmq_protocol::{
    properties::{self, name},
    record::PropertiesParts,
    template::{MatchedPull, MatchedSend, PullTemplate, SendTemplate},
    text::Text,
};

use super::record::Said;

/// Templates of one kind on a connection: a producer that sends to more topics in turn is parsed as
/// usual.
const KNOWN_MAX: usize = 4;
/// Headers that must fit no template before another one is learned.
const MISSES_PER_LESSON: u32 = 16;

/// What the headers of one kind on a connection look like.
#[derive(Debug)]
pub(crate) struct Templates<K> {
    known: Vec<K>,
    /// Which one fitted last: it is tried first.
    last: Cell<usize>,
    misses: u32,
    /// Where the next lesson goes.
    oldest: usize,
}

/// The sends of a connection.
pub(crate) type SendTemplates = Templates<Known>;
/// The pulls of a connection.
pub(crate) type PullTemplates = Templates<PullTemplate>;

impl<K> Default for Templates<K> {
    fn default() -> Self {
        Self { known: Vec::new(), last: Cell::default(), misses: 0, oldest: 0 }
    }
}

impl<K> Templates<K> {
    /// What `read` makes of the first template that fits.
    fn find<'a, T>(&'a self, read: impl Fn(&'a K) -> Option<T>) -> Option<T> {
        let last = self.last.get();
        if let Some(found) = read(self.known.get(last)?) {
            return Some(found);
        }
        let others = self.known.iter().enumerate().filter(|(index, _)| *index != last);
        for (index, known) in others {
            if let Some(found) = read(known) {
                self.last.set(index);
                return Some(found);
            }
        }
        None
    }

    /// Notes a header that fitted no template, and learns from some of them.
    fn note_miss(&mut self, learn: impl FnOnce() -> Option<K>) {
        self.misses += 1;
        if self.misses < MISSES_PER_LESSON {
            return;
        }
        self.misses = 0;
        let Some(known) = learn() else { return };
        match self.known.get_mut(self.oldest) {
            Some(slot) => *slot = known,
            None => self.known.push(known),
        }
        self.last.set(self.oldest);
        self.oldest = (self.oldest + 1) % KNOWN_MAX;
    }
}

impl PullTemplates {
    /// Reads a JSON header of a pull that looks like an earlier one.
    pub(crate) fn read(&self, header: &[u8]) -> Option<(&PullTemplate, MatchedPull)> {
        self.find(|known| known.read(header).map(|own| (known, own)))
    }

    /// Notes a pull in JSON that fitted no template, and learns from some of them.
    pub(crate) fn missed(&mut self, header: &[u8]) {
        self.note_miss(|| PullTemplate::learn(header));
    }
}

impl SendTemplates {
    /// Reads a JSON header of a send that looks like an earlier one.
    pub(crate) fn read<'a>(&'a self, header: &'a [u8]) -> Option<KnownSend<'a>> {
        self.find(|known| known.read(header))
    }

    /// Notes a send in JSON that fitted no template, and learns from some of them.
    ///
    /// `cluster_pair` is what the broker adds to the properties of every message.
    pub(crate) fn missed(&mut self, header: &[u8], cluster_pair: &[u8]) {
        self.note_miss(|| {
            let template = SendTemplate::learn(header)?;
            let text = template.read(header).and_then(|own| own.properties);
            let properties = text.and_then(|text| PropertiesShape::learn(text, cluster_pair));
            Some(Known { template, properties })
        });
    }
}

/// What a send looks like.
#[derive(Debug)]
pub(crate) struct Known {
    template: SendTemplate,
    properties: Option<PropertiesShape>,
}

/// A send that looks like an earlier one.
pub(crate) struct KnownSend<'a> {
    pub(crate) template: &'a SendTemplate,
    /// What it has of its own.
    pub(crate) own: MatchedSend<'a>,
    /// Its properties, if they look like earlier ones as well.
    pub(crate) shaped: Option<Shaped<'a>>,
}

/// Properties that look like earlier ones. Nothing in them makes the message wait.
#[derive(Clone, Copy)]
pub(crate) struct Shaped<'a> {
    shape: &'a PropertiesShape,
    /// The unique id.
    id: &'a [u8],
}

/// Properties as they are stored.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub(crate) parts: PropertiesParts<'a>,
    /// What they say to the broker.
    pub(crate) said: Said<'a>,
}

impl Known {
    fn read<'a>(&'a self, header: &'a [u8]) -> Option<KnownSend<'a>> {
        let own = self.template.read(header)?;
        let Some(text) = own.properties else {
            return Some(KnownSend { template: &self.template, own, shaped: None });
        };
        let shaped = self.properties.as_ref().and_then(|shape| shape.read(text));
        // What looks like learned properties has their escapes; any other is left to the parser if
        // it may be malformed.
        let is_sound = shaped.is_some() || text.is_sound();
        is_sound.then_some(KnownSend { template: &self.template, own, shaped })
    }
}

/// What the properties of a producer have in common: all but the unique id of each message.
#[derive(Debug)]
struct PropertiesShape {
    /// As received, before and behind the id.
    raw: (Box<[u8]>, Box<[u8]>),
    id_len: usize,
    /// As stored, before and behind the id, with what the broker adds.
    stored: (Box<[u8]>, Box<[u8]>),
    tag: i64,
    /// The keys of all its messages.
    words: Box<[u8]>,
}

impl PropertiesShape {
    /// Learns from the properties of a header. `None` if they have no unique id, or something that
    /// the broker acts on.
    fn learn(text: Text<'_>, cluster_pair: &[u8]) -> Option<Self> {
        const BEFORE_ID: &[u8] = b"UNIQ_KEY\\u0001";
        let raw = text.raw();
        let id_at = memchr::memmem::find(raw, BEFORE_ID)? + BEFORE_ID.len();
        let (raw_before, rest) = raw.split_at_checked(id_at)?;
        let id_len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let (id, raw_behind) = rest.split_at_checked(id_len)?;
        let decoded = text.bytes();
        let said = Said::of(&decoded);
        if id.is_empty()
            || said.unique != id
            || properties::iter(&decoded).any(|(name, _)| is_acted_on(name))
        {
            return None;
        }
        // The same text may stand in the value of another property, in front of it: what changes with
        // these bytes must be the id.
        let other: Vec<u8> =
            id.iter().map(|byte| if *byte == b'A' { b'B' } else { b'A' }).collect();
        let changed = [raw_before, &other, raw_behind].concat();
        if Said::of(&Text::inside(&changed)?.bytes()).unique != other {
            return None;
        }
        // The id is looked up again in what is stored: `WAIT` has gone from either side of it.
        let (head, tail) = properties::without(&decoded, name::WAIT);
        let stored = [head, tail].concat();
        let mut places = memchr::memmem::find_iter(&stored, id);
        let at = places.next()?;
        if places.next().is_some() {
            return None;
        }
        let (before, rest) = stored.split_at_checked(at)?;
        let behind = rest.get(id_len..)?;
        let behind = [behind, properties::separator(&stored), cluster_pair].concat();
        Some(Self {
            raw: (raw_before.into(), raw_behind.into()),
            id_len,
            stored: (before.into(), behind.into()),
            tag: said.tag,
            words: said.words.into(),
        })
    }

    fn read<'a>(&'a self, text: Text<'a>) -> Option<Shaped<'a>> {
        let rest = text.raw().strip_prefix(&*self.raw.0)?;
        let (id, rest) = rest.split_at_checked(self.id_len)?;
        let fits = *rest == *self.raw.1 && id.iter().all(u8::is_ascii_alphanumeric);
        fits.then_some(Shaped { shape: self, id })
    }
}

impl<'a> Shaped<'a> {
    /// The properties as they are stored.
    pub(crate) fn stored(self) -> Stored<'a> {
        let Self { shape, id } = self;
        let (before, behind) = &shape.stored;
        let parts = PropertiesParts::default().with(before).with(id).with(behind);
        Stored { parts, said: Said { tag: shape.tag, unique: id, words: &shape.words } }
    }
}

/// Names that make a message wait, or be refused.
fn is_acted_on(name: &[u8]) -> bool {
    let known = [name::DELAY, name::TRAN_MSG];
    known.iter().any(|known| known.as_bytes() == name) || name.starts_with(b"TIMER_DEL")
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{
        codes::request,
        command::Command,
        encode::{self, FrameWriter},
        frame::{self, Encoding, FRAME_LEN_MAX},
        record::MessageParts,
    };

    use super::*;

    const PAIR: &[u8] = b"CLUSTER\x01C";

    fn header(topic: &str, opaque: i32) -> Vec<u8> {
        let mut out = Vec::new();
        let entries = [("a", "G"), ("b", topic), ("c", "TBW102"), ("d", "4"), ("e", "1")];
        let others = [("f", "0"), ("g", "1"), ("h", "0"), ("i", "A\u{1}b")];
        let ext = |ext: &mut FrameWriter<'_, '_>| {
            entries.iter().chain(&others).for_each(|(name, value)| ext.ext(name, value));
        };
        encode::request(&mut out, Encoding::Json, opaque, request::SEND_MESSAGE_V2, 0, ext, &[])
            .unwrap();
        frame::decode(&out, FRAME_LEN_MAX).unwrap().unwrap().header.to_vec()
    }

    #[test]
    fn a_connection_learns_what_it_often_gets_and_forgets_the_oldest() {
        let mut templates = SendTemplates::default();
        for n in 0..6 {
            let topic = format!("Topic{n}");
            for opaque in 0..MISSES_PER_LESSON.cast_signed() {
                assert!(templates.read(&header(&topic, opaque)).is_none());
                templates.missed(&header(&topic, opaque), PAIR);
            }
            let header = header(&topic, 77);
            let known = templates.read(&header).unwrap();
            assert_eq!((known.own.opaque, &*known.template.request().topic), (77, &*topic));
            assert!(known.shaped.is_none(), "there is no unique id");
            assert!(templates.known.len() <= KNOWN_MAX);
        }
        assert!(templates.read(&header("Topic0", 1)).is_none(), "the oldest gave way");
        assert!(templates.read(&header("Topic3", 1)).is_some());
    }

    fn record(properties: PropertiesParts<'_>) -> Vec<u8> {
        let parts = MessageParts {
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: "1.2.3.4:5".parse().unwrap(),
            store_host: "1.2.3.4:5".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"b",
            body_crc: None,
            topic: b"T",
            properties,
        };
        let mut record = vec![0; parts.encoded_len()];
        parts.write(0, 0, 0, &mut record);
        record
    }

    /// What is stored is the same whether the properties are compared or scanned.
    #[track_caller]
    fn check(shape: &PropertiesShape, raw: &str, fits: bool) {
        let text = Text::from(raw);
        let json = format!("{{\"extFields\":{{\"i\":\"{raw}\"}}}}");
        let command = Command::parse(Encoding::Json, json.as_bytes()).unwrap();
        let scanned = command.ext.get("i").unwrap_or(text);
        let shaped = shape.read(scanned);
        assert_eq!(shaped.is_some(), fits, "{raw}");
        let Some(stored) = shaped.map(Shaped::stored) else { return };
        let decoded = scanned.bytes();
        let (head, tail) = properties::without(&decoded, name::WAIT);
        let slow = PropertiesParts::default().with(head).with(tail).with_pair(PAIR);
        assert_eq!(stored.parts.len(), slow.len(), "{raw}");
        assert_eq!(stored.said, Said::of(&decoded));
        assert_eq!(record(stored.parts), record(slow), "{raw}");
    }

    fn shape(raw: &str) -> Option<PropertiesShape> {
        let json = format!("{{\"extFields\":{{\"i\":\"{raw}\"}}}}");
        let command = Command::parse(Encoding::Json, json.as_bytes()).unwrap();
        PropertiesShape::learn(command.ext.get("i").unwrap(), PAIR)
    }

    #[test]
    fn properties_that_differ_in_their_id_are_stored_as_if_scanned() {
        const ONE: &str = "7F0000010A2A18B4AAC23D0C1F2A0000";
        const TWO: &str = "7F0000010A2A18B4AAC23D0C1F2A0001";
        for form in [
            r"UNIQ_KEY\u0001ID\u0002WAIT\u0001true\u0002TAGS\u0001A",
            r"WAIT\u0001true\u0002UNIQ_KEY\u0001ID",
            r"KEYS\u0001k\u0002UNIQ_KEY\u0001ID\u0002WAIT\u0001false\u0002",
            r"TAGS\u0001\u8ba2\u0002UNIQ_KEY\u0001ID\u0002",
            r"UNIQ_KEY\u0001ID",
        ] {
            let shape = shape(&form.replace("ID", ONE)).unwrap();
            check(&shape, &form.replace("ID", ONE), true);
            check(&shape, &form.replace("ID", TWO), true);
            check(&shape, &form.replace("ID", &TWO[1..]), false);
            check(&shape, &form.replace("ID", r"7F0000010A2A18B4AAC23D0C1F2\u0002"), false);
            check(&shape, &(form.replace("ID", ONE) + r"\u0002DELAY\u00013"), false);
        }
    }

    #[test]
    fn properties_that_the_broker_acts_on_have_no_shape() {
        for raw in [
            r"UNIQ_KEY\u0001A1\u0002DELAY\u00013",
            r"TRAN_MSG\u0001true\u0002UNIQ_KEY\u0001A1",
            r"UNIQ_KEY\u0001A1\u0002TIMER_DELAY_SEC\u00019",
            r"UNIQ_KEY\u0001A1\u0002KEYS\u0001A1",
            r"UNIQ_KEY\u0001\u0002KEYS\u0001A1",
            r"KEYS\u0001A1",
            r"UNIQ_KEY\u0001A-1\u0002",
            r"UNIQ_KEY\u0001A1\u0002UNIQ_KEY\u0001A2",
            r"WAIT\u0001xUNIQ_KEY\u0001A1\u0002UNIQ_KEY\u0001A1",
            r"WAIT\u0001x\\u0002UNIQ_KEY\u0001A1\u0002UNIQ_KEY\u0001A1",
        ] {
            assert!(shape(raw).is_none(), "{raw}");
        }
    }
}
