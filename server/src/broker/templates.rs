//! Sends that look like earlier ones of their connection.
//!
//! Most headers of a producer differ from the one before in a few numbers only. Each connection keeps
//! templates of some, so that a header is compared instead of scanned. Learning costs more than one
//! scan, so it happens after several headers that fitted none.

use std::cell::Cell;

use ringmq_protocol::{
    headers::SendRequest,
    template::{MatchedHead, SendTemplate},
};

/// Templates of one connection: a producer that sends to more topics in turn is parsed as usual.
const KNOWN_MAX: usize = 4;
/// Sends that must fit no template before another one is learned.
const MISSES_PER_LESSON: u32 = 16;

/// The templates of a connection.
#[derive(Debug, Default)]
pub(crate) struct SendTemplates {
    known: Vec<SendTemplate>,
    /// Which one fitted last: it is tried first.
    last: Cell<usize>,
    misses: u32,
    /// Where the next lesson goes once all places are taken.
    oldest: usize,
}

impl SendTemplates {
    /// Reads a JSON header that looks like an earlier one.
    pub(crate) fn read<'a>(&'a self, header: &'a [u8]) -> Option<(MatchedHead, SendRequest<'a>)> {
        let last = self.last.get();
        if let Some(found) = self.known.get(last)?.read(header) {
            return Some(found);
        }
        let others = self.known.iter().enumerate().filter(|(index, _)| *index != last);
        for (index, template) in others {
            if let Some(found) = template.read(header) {
                self.last.set(index);
                return Some(found);
            }
        }
        None
    }

    /// Notes a send in JSON that fitted no template, and learns from some of them.
    pub(crate) fn missed(&mut self, header: &[u8]) {
        self.misses += 1;
        if self.misses < MISSES_PER_LESSON {
            return;
        }
        self.misses = 0;
        let Some(template) = SendTemplate::learn(header) else { return };
        match self.known.get_mut(self.oldest) {
            Some(slot) if self.oldest < KNOWN_MAX => *slot = template,
            _ => self.known.push(template),
        }
        self.last.set(self.oldest);
        self.oldest = (self.oldest + 1) % KNOWN_MAX;
    }
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::{
        codes::request,
        encode::{self, FrameWriter},
        frame::{self, Encoding, FRAME_LEN_MAX},
    };

    use super::*;

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
                templates.missed(&header(&topic, opaque));
            }
            let (head, request) = templates
                .read(&header(&topic, 77))
                .map(|(head, request)| (head, request.topic.into_owned()))
                .unwrap();
            assert_eq!((head.opaque, request), (77, topic));
            assert!(templates.known.len() <= KNOWN_MAX);
        }
        assert!(templates.read(&header("Topic0", 1)).is_none(), "the oldest gave way");
        assert!(templates.read(&header("Topic3", 1)).is_some());
    }
}
