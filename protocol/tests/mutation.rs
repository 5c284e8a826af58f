//! Mutated frames: no decoder panics, whatever the bytes.
//!
//! The mutations follow a seed, so that a failure can be replayed; `SEED` in the environment
//! chooses another one.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in its helpers, too"
)]

mod common;

use std::{env, panic};

use common::recorded;
use ringmq_protocol::{
    batch, body,
    body::{RegisterBrokerBody, admin},
    command::Command,
    encode::{Head, begin_frame},
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::*,
    message_id::OffsetMessageId,
    names, properties, record,
    tags::TagSet,
    text::Text,
};

/// How many frames are tried.
const FRAMES: u32 = 100_000;

/// A small generator (xorshift64*), good enough to pick bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % bound
    }

    fn byte(&mut self) -> u8 {
        // Bytes that mean something to one of the formats, half of the time.
        const SPECIAL: &[u8] = b"{}[]\",:\\0-9\x00\x01\x02\x7f\x80\xffun";
        match self.below(2) {
            0 => SPECIAL[self.below(SPECIAL.len())],
            _ => u8::try_from(self.below(256)).unwrap(),
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(6) {
        // The frame's own prefix stays more often, so that mutations reach the inner decoders.
        let from = if random.below(8) == 0 { 0 } else { frame::PREFIX_LEN.min(bytes.len()) };
        let at = from + random.below(bytes.len() - from + 1);
        match random.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.byte()),
            2 => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => {
                let start = random.below(other.len());
                let end = (start + random.below(64)).min(other.len());
                bytes.splice(at..at, other[start..end].iter().copied());
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.byte();
                }
            }
        }
    }
}

fn try_headers(command: &Command<'_>) {
    macro_rules! decode {
        ($($type:ident)*) => { $(drop($type::decode(command));)* };
    }
    decode!(SendRequest SendResponse PushReplyRequest PullRequest PullResponse
        QueryConsumerOffsetRequest UpdateConsumerOffsetRequest QueueRequest SearchOffsetRequest
        OffsetResponse TimestampResponse ViewMessageRequest QueryMessageRequest
        QueryMessageResponse UnregisterClientRequest SendBackRequest ConsumerGroupRequest
        ResetOffsetRequest ConsumerStatusRequest ConsumerRunningInfoRequest ConsumeDirectlyRequest
        CreateTopicRequest TopicRequest DeleteTopicInNamesrvRequest RouteRequest
        EndTransactionRequest CheckTransactionRequest RegisterBrokerRequest RegisterBrokerResponse
        BrokerIdentity QueryDataVersionResponse BrokerHeartbeatRequest PutKvRequest KvKeyRequest
        KvValueResponse KvNamespaceRequest BrokerNameRequest WipeWritePermResponse
        AddWritePermResponse ClusterRequest BrokerMemberGroupRequest ProducerGroupRequest
        DeleteGroupRequest ConsumeStatsRequest TopicGroupRequest GroupRequest
        CorrectionOffsetRequest CloneGroupOffsetRequest BrokerStatsRequest
        QueryConsumeQueueRequest BrokerConfigResponse);
    let long_names = Command { code: 10, ..command.clone() };
    drop(SendRequest::decode(&long_names));
}

/// Parses a header, reads it in every way, and checks that it survives being written.
fn try_command(encoding: Encoding, header: &[u8]) {
    let Ok(command) = Command::parse(encoding, header) else { return };
    try_headers(&command);
    for (_, value) in command.ext.iter() {
        let _ = OffsetMessageId::parse(&value);
        drop(TagSet::parse(&value));
        let _ = names::validate_topic(&value);
        assert!(properties::iter(value.as_bytes()).count() <= value.len());
        let (head, tail) = properties::without(value.as_bytes(), "WAIT");
        assert!(head.len() + tail.len() <= value.len());
    }
    let mut out = Vec::new();
    let mut writer = begin_frame(&mut out, Head::from(&command));
    writer.copy_ext(&command.ext);
    if writer.finish(0).is_ok() {
        let again = frame::decode(&out, FRAME_LEN_MAX).unwrap().unwrap();
        let same = Command::parse(again.encoding, again.header).unwrap();
        assert!(same.ext.iter().eq(command.ext.iter()), "{header:02x?}");
    }
}

/// Feeds a body to decoders; `turn` chooses among those for JSON, so that each gets its share.
fn try_body(bytes: &[u8], turn: u32) {
    for view in record::records(bytes).flatten() {
        assert!(view.bytes.len() <= bytes.len());
        view.body_is_intact();
        view.property("TAGS");
    }
    let items: usize = batch::items(bytes).flatten().count();
    assert!(items * batch::ITEM_OVERHEAD <= bytes.len());
    drop(RegisterBrokerBody::from_text(bytes));
    macro_rules! decode {
        ($($number:literal $type:path),*) => {
            match turn % 12 { $($number => drop(body::decode::<$type>(bytes)),)* _ => {} }
        };
    }
    drop(body::decode::<body::HeartbeatData>(bytes));
    decode!(0 body::ConsumerList, 1 body::LockBatchRequest, 2 body::LockBatchResponse,
        3 body::RegisterBrokerBody, 4 body::TopicRouteData, 5 body::ClusterInfo,
        6 body::TopicConfigTable, 7 body::SubscriptionGroupTable, 8 body::CheckClientConfig,
        9 body::OffsetTable, 10 admin::ConsumerConnection, 11 body::KvTable);
    match turn % 4 {
        0 => drop(body::OffsetsByQueue::decode(bytes)),
        1 => drop(admin::TopicStatsTable::decode(bytes)),
        2 => drop(admin::ConsumeStats::decode(bytes)),
        _ => drop(body::decode::<body::BrokerMemberGroup>(bytes)),
    }
}

fn try_frame(bytes: &[u8], turn: u32) {
    let peeked = frame::peek_len(bytes, FRAME_LEN_MAX);
    match frame::decode(bytes, FRAME_LEN_MAX) {
        Ok(Some(frame)) => {
            assert_eq!(peeked, Ok(Some(frame.total_len)));
            assert!(frame.total_len <= bytes.len());
            try_command(frame.encoding, frame.header);
            try_body(frame.body, turn);
        }
        Ok(None) => assert!(peeked.is_ok()),
        Err(error) => assert_eq!(peeked, Err(error)),
    }
    // The mutation may have broken the frame's lengths; the inner decoders get their share anyway.
    let (header, body) = bytes.split_at(bytes.len() / 2);
    try_command(Encoding::Json, header.get(frame::PREFIX_LEN..).unwrap_or_default());
    try_command(Encoding::Binary, header.get(frame::PREFIX_LEN..).unwrap_or_default());
    try_body(body, turn);
    assert!(Text::plain(bytes).to_str().len() <= 3 * bytes.len());
}

#[test]
fn no_mutated_frame_makes_a_decoder_panic() {
    let seed = env::var("SEED").map_or(0x5eed, |text| text.parse().expect("SEED is a number"));
    let frames: Vec<_> = recorded().into_iter().map(|recorded| recorded.bytes).collect();
    let mut random = Random(seed | 1);
    for turn in 0..FRAMES {
        let mut bytes = frames[random.below(frames.len())].clone();
        let other = &frames[random.below(frames.len())];
        mutate(&mut bytes, other, &mut random);
        let result = panic::catch_unwind(|| try_frame(&bytes, turn));
        assert!(result.is_ok(), "frame {turn} with SEED={seed}: {bytes:02x?}");
    }
}
