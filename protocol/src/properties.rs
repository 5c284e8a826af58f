//! A message's properties: `name 0x01 value`, joined by `0x02`, which may also end the text.
//!
//! The text is read in place. Neither separator can be escaped; pairs with an empty name or value
//! do not count, and of several with one name the last does, as in Java's map.
//!
//! Source: Apache RocketMQ 4.9.8, `MessageDecoder.string2messageProperties`, `MessageConst`.

use alloc::vec::Vec;
use core::fmt;

/// Stands between a name and its value.
pub const NAME_SEPARATOR: u8 = 1;
/// Stands between pairs, and after the last one in what 5.x and Go send.
pub const PAIR_SEPARATOR: u8 = 2;

/// Names with a meaning. Source: `MessageConst`.
pub mod name {
    /// Keys to find the message by, separated by spaces.
    pub const KEYS: &str = "KEYS";
    /// The message's tag.
    pub const TAGS: &str = "TAGS";
    /// `false` asks not to wait for flush or replication.
    pub const WAIT: &str = "WAIT";
    /// Delay level in decimal.
    pub const DELAY: &str = "DELAY";
    /// A retried message's topic.
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    /// The topic behind a delayed or half message.
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    /// The queue behind a delayed or half message.
    pub const REAL_QID: &str = "REAL_QID";
    /// `true` on transactional messages.
    pub const TRAN_MSG: &str = "TRAN_MSG";
    /// Producer group of a transactional message.
    pub const PGROUP: &str = "PGROUP";
    /// First offset message id of a retried message.
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    /// Carries the header's reconsume times on the client.
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    /// Carries the header's bound of reconsume times on the client.
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    /// The broker's region.
    pub const MSG_REGION: &str = "MSG_REGION";
    /// Whether the message is traced.
    pub const TRACE_ON: &str = "TRACE_ON";
    /// The message id that the producer made.
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    /// Smallest offset of the queue, added by a consumer.
    pub const MIN_OFFSET: &str = "MIN_OFFSET";
    /// End of the queue, added by a consumer.
    pub const MAX_OFFSET: &str = "MAX_OFFSET";
    /// When consumption began, added by a consumer.
    pub const CONSUME_START_TIME: &str = "CONSUME_START_TIME";
    /// Links a re-appended half message to its first position.
    pub const TRAN_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
    /// How often a half message was checked.
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    /// Seconds before the first check of a half message.
    pub const CHECK_IMMUNITY_TIME_IN_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    /// The client's namespace.
    pub const INSTANCE_ID: &str = "INSTANCE_ID";
    /// Ties a reply to its request.
    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    /// Client id of the requester.
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    /// Milliseconds that the requester waits.
    pub const TTL: &str = "TTL";
    /// When the requester got the reply.
    pub const ARRIVE_TIME: &str = "ARRIVE_TIME";
    /// When the broker pushed the reply.
    pub const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";
    /// The broker's cluster.
    pub const CLUSTER: &str = "CLUSTER";
    /// `reply` on replies.
    pub const MSG_TYPE: &str = "MSG_TYPE";
    /// 5.x: receipt of a popped message.
    pub const POP_CK: &str = "POP_CK";
    /// 5.x: first time that a message was popped.
    pub const FIRST_POP_TIME: &str = "1ST_POP_TIME";
    /// 5.x: deliver after so many seconds.
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    /// 5.x: deliver after so many milliseconds.
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    /// 5.x: deliver at this time, milliseconds since 1970.
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    /// 5.x: the ordering key.
    pub const SHARDING_KEY: &str = "__SHARDINGKEY";
    /// 5.x: topic of a dead letter.
    pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
    /// 5.x: message id of a dead letter.
    pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
}

/// One segment of the text and where it lies.
struct Segment<'a> {
    start: usize,
    end: usize,
    pair: Option<(&'a [u8], &'a [u8])>,
}

/// Walks over all segments, those that are no pair included.
fn segments(text: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut start = 0;
    core::iter::from_fn(move || {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let len = memchr::memchr(PAIR_SEPARATOR, rest).unwrap_or(rest.len());
        let segment = rest.get(..len)?;
        let pair = memchr::memchr(NAME_SEPARATOR, segment).and_then(|at| {
            let (name, value) = segment.split_at_checked(at)?;
            let (_, value) = value.split_first()?;
            (!name.is_empty() && !value.is_empty()).then_some((name, value))
        });
        let found = Segment { start, end: start + len, pair };
        start += len + 1;
        Some(found)
    })
}

/// All pairs of the text, in its order.
pub fn iter(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    segments(text).filter_map(|segment| segment.pair)
}

/// The value of `name`; the last one, if there are several.
pub fn get<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    iter(text).filter(|(found, _)| *found == name.as_bytes()).last().map(|(_, value)| value)
}

/// The text without the first pair called `name`, in two pieces to be written one after the other.
/// The second piece is empty if there is no such pair.
///
/// This is how `WAIT` leaves a message before it is stored, without a copy.
pub fn without<'a>(text: &'a [u8], name: &str) -> (&'a [u8], &'a [u8]) {
    let is_it =
        |segment: &Segment<'_>| segment.pair.is_some_and(|(found, _)| found == name.as_bytes());
    let Some(Segment { start, end, .. }) = segments(text).find(is_it) else { return (text, &[]) };
    // The separator after the pair goes with it, or the one before if it is the last.
    let (head, tail) = (text.get(..start), text.get(end + 1..));
    match (head.unwrap_or_default(), tail.unwrap_or_default()) {
        (head, []) => (head.strip_suffix(&[PAIR_SEPARATOR]).unwrap_or(head), &[]),
        pieces => pieces,
    }
}

/// What has to stand between `text` and a pair appended to it.
pub const fn separator(text: &[u8]) -> &'static [u8] {
    match text {
        [] | [.., PAIR_SEPARATOR] => &[],
        _ => &[PAIR_SEPARATOR],
    }
}

/// A name or value cannot be a property: it is empty or has one of the two separators in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAProperty;

impl fmt::Display for NotAProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a property needs a name and a value without the characters 1 and 2")
    }
}

impl core::error::Error for NotAProperty {}

/// Appends a pair to a text, with the separator it needs.
///
/// # Errors
///
/// [`NotAProperty`]; the text is unchanged. Java clients accept such values and cut them on
/// receipt.
pub fn append(text: &mut Vec<u8>, name: &str, value: &str) -> Result<(), NotAProperty> {
    let fits = |part: &str| {
        !part.is_empty() && !part.bytes().any(|b| matches!(b, NAME_SEPARATOR | PAIR_SEPARATOR))
    };
    if !fits(name) || !fits(value) {
        return Err(NotAProperty);
    }
    text.extend_from_slice(separator(text));
    text.extend_from_slice(name.as_bytes());
    text.push(NAME_SEPARATOR);
    text.extend_from_slice(value.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &[u8], want: &[(&str, &str)]) {
        let want: Vec<_> = want.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
        assert_eq!(iter(text).collect::<Vec<_>>(), want, "text: {text:02x?}");
    }

    #[test]
    fn both_endings_and_odd_segments_are_read_as_java_reads_them() {
        check(b"TAGS\x01TagA\x02KEYS\x01k1", &[("TAGS", "TagA"), ("KEYS", "k1")]);
        check(b"TAGS\x01TagA\x02KEYS\x01k1\x02", &[("TAGS", "TagA"), ("KEYS", "k1")]);
        check(b"", &[]);
        check(b"\x02\x02", &[]);
        check(b"\x01v\x02n\x01\x02x\x02a\x01b\x01c", &[("a", "b\x01c")]);
    }

    #[test]
    fn the_last_of_several_counts() {
        assert_eq!(get(b"A\x011\x02B\x012\x02A\x013", "A"), Some(&b"3"[..]));
        assert_eq!(get(b"A\x011", "a"), None);
    }

    #[test]
    fn a_pair_can_be_left_out_anywhere() {
        let check = |text: &[u8], want: &[u8]| {
            let (head, tail) = without(text, "W");
            assert_eq!([head, tail].concat(), want, "text: {text:02x?}");
        };
        check(b"W\x01t", b"");
        check(b"W\x01t\x02", b"");
        check(b"W\x01t\x02A\x011", b"A\x011");
        check(b"A\x011\x02W\x01t", b"A\x011");
        check(b"A\x011\x02W\x01t\x02", b"A\x011");
        check(b"A\x011\x02W\x01t\x02B\x012", b"A\x011\x02B\x012");
        check(b"A\x011\x02WW\x01t\x02", b"A\x011\x02WW\x01t\x02");
    }

    #[test]
    fn appended_pairs_are_separated_once() {
        let mut text = Vec::new();
        append(&mut text, "A", "1").unwrap();
        append(&mut text, "B", "2").unwrap();
        assert_eq!(text, b"A\x011\x02B\x012");
        text.push(PAIR_SEPARATOR);
        append(&mut text, "C", "3").unwrap();
        assert_eq!(text, b"A\x011\x02B\x012\x02C\x013");
        for (name, value) in [("", "v"), ("n", ""), ("n\x01", "v"), ("n", "v\x02")] {
            assert_eq!(append(&mut text, name, value), Err(NotAProperty));
        }
    }
}
