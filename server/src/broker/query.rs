//! QUERY_MESSAGE (12): messages of a topic by key or unique id.
//!
//! A key may be on any shard, so the question goes from one shard to the next and takes along what it
//! has found; the last one's answer is the client's. As upstream, the newest messages up to the number
//! asked for are given, in the order in which they were stored. Other than upstream, a message is
//! given only if it really has the key, and times are exact.
//!
//! Source: `QueryMessageProcessor.queryMessage`, `DefaultMessageStore.queryMessage`.

use std::{rc::Rc, sync::Arc};

use ringmq_engine::{
    EpochMillis, FoundRecord, KeyHash, KeyLimits, KeyOutcome, KeyScope, KeySearch, Shard,
};
use ringmq_protocol::{
    codes::response,
    command::Command,
    encode::{Head, begin_frame},
    headers::{QueryMessageRequest, QueryMessageResponse},
    limits::TOPIC_LEN_MAX,
    record::MessageView,
};
use tokio::sync::OwnedSemaphorePermit;

use super::{Conn, Op, Reply, Served, Step, Ticket, Wait, answer, record::Said};
use crate::thread::Thread;

/// Messages of an answer. Source: `MessageStoreConfig.maxMsgsNumBatch`.
const MESSAGES_MAX: u32 = 64;
/// The same for a unique id, whatever the request says. Source: `defaultQueryMaxNum`.
const UNIQUE_MAX: u32 = 32;
/// Bytes of an answer; the newest message is given whatever its length.
const BYTES_MAX: usize = 8 << 20;
/// Messages that one shard looks at, whether they have the key or only its hash.
const SCANNED_MAX: u32 = 1024;
/// No property is as long.
const KEY_LEN_MAX: usize = 32_767;
/// Questions that may be under way in the whole process, each with an answer's bytes.
pub(crate) const QUERIES_MAX: usize = 16;

/// A question on its way over the shards.
#[derive(Debug)]
pub(crate) struct QueryOp {
    topic: Box<[u8]>,
    key: Box<[u8]>,
    hash: KeyHash,
    times: (EpochMillis, EpochMillis),
    messages_max: u32,
    /// The shard that is asked now.
    shard: u32,
    search: KeySearch,
    /// What the shards before have found, newest first.
    found: Vec<FoundRecord>,
    /// Store time of the newest message and where its log ends, of all shards asked so far.
    newest: (i64, i64),
    _permit: OwnedSemaphorePermit,
}

/// Takes a request.
pub(crate) fn serve(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
) -> Served {
    let request = match QueryMessageRequest::decode(command) {
        Ok(request) => request,
        Err(error) => return answer::refuse(thread, conn, &ticket, &error.into()),
    };
    let messages_max = match u32::try_from(request.max_num) {
        _ if request.unique_key_query => UNIQUE_MAX,
        Ok(asked) => asked.min(MESSAGES_MAX),
        Err(_) => 0,
    };
    let lens = 1..=KEY_LEN_MAX;
    let none = messages_max == 0
        || !lens.contains(&request.key.len())
        || request.topic.len() > TOPIC_LEN_MAX
        || request.begin_timestamp_ms > request.end_timestamp_ms;
    if none {
        answer_with(conn, &ticket, Vec::new(), (0, 0));
        return Served::Done;
    }
    let Ok(permit) = Arc::clone(&thread.shared.queries).try_acquire_owned() else {
        return Served::Again(Wait::Query);
    };
    let op = QueryOp::new(&request, messages_max, permit);
    thread.start(conn, ticket, 0, Op::Query(Box::new(op)))
}

impl QueryOp {
    fn new(
        request: &QueryMessageRequest<'_>,
        messages_max: u32,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let (topic, key) = (request.topic.as_bytes(), request.key.as_bytes());
        let hash = KeyScope::new(topic).hash(key);
        let time = EpochMillis::new;
        let times = (time(request.begin_timestamp_ms), time(request.end_timestamp_ms));
        Self {
            topic: topic.into(),
            key: key.into(),
            hash,
            times,
            messages_max,
            shard: 0,
            search: search(hash, times, messages_max),
            found: Vec::new(),
            newest: (0, 0),
            _permit: permit,
        }
    }

    /// The next shard to ask, if there is one.
    pub(crate) fn next_shard(&mut self, shards: u32) -> Option<u32> {
        self.shard += 1;
        (self.shard < shards).then_some(self.shard)
    }

    /// Takes what a shard has found.
    fn take(&mut self, engine: &Shard) {
        let next = search(self.hash, self.times, self.messages_max);
        self.found.extend(std::mem::replace(&mut self.search, next).into_found());
        let order = |found: &FoundRecord| (found.store_time, found.record.log_offset);
        self.found.sort_unstable_by_key(|found| std::cmp::Reverse(order(found)));
        let (mut count, mut bytes) = (0, 0);
        self.found.retain(|found| {
            count += 1;
            bytes += found.record.bytes.len();
            count == 1 || count <= self.messages_max && bytes <= BYTES_MAX
        });
        let newest = (engine.committed_time().get(), engine.committed_end().get());
        self.newest = self.newest.max(newest);
    }
}

fn search(hash: KeyHash, times: (EpochMillis, EpochMillis), messages_max: u32) -> KeySearch {
    let limits =
        KeyLimits { records_max: messages_max, bytes_max: BYTES_MAX, scanned_max: SCANNED_MAX };
    KeySearch::new(hash, times, limits)
}

/// Searches one shard. `read` is the token for a read from the device.
pub(crate) fn execute(engine: &mut Shard, mut op: Box<QueryOp>, read: u64) -> Step {
    let QueryOp { topic, key, search, .. } = &mut *op;
    let has_key = |record: &[u8]| {
        MessageView::parse(record).is_ok_and(|message| {
            message.topic == &**topic && Said::of(message.properties).has_key(key)
        })
    };
    match engine.search_key(search, has_key, read) {
        KeyOutcome::Done => {
            op.take(engine);
            Step::Reply(Reply::Queried(op))
        }
        KeyOutcome::Pending => Step::Reads(Op::Query(op)),
        KeyOutcome::Failed(error) => Step::Reply(Reply::Failed(error.into())),
    }
}

/// Answers with what all shards have found.
pub(crate) fn complete(conn: &Rc<Conn>, ticket: &Ticket, op: QueryOp) {
    answer_with(conn, ticket, op.found, op.newest);
}

/// Answers with these messages, oldest first. `newest`: store time of the newest message that there
/// is, and where it is in the log; clients do without, and get zeros when nothing was found, as upstream.
fn answer_with(conn: &Rc<Conn>, ticket: &Ticket, found: Vec<FoundRecord>, newest: (i64, i64)) {
    const NOT_FOUND: &str = "can not find message, maybe time range not correct";
    if ticket.oneway {
        return;
    }
    let (code, remark, (time, log_offset)) = match found.is_empty() {
        true => (response::QUERY_NOT_FOUND, Some(NOT_FOUND), (0, 0)),
        false => (response::SUCCESS, None, newest),
    };
    let header = QueryMessageResponse {
        index_last_update_timestamp_ms: time,
        index_last_update_log_offset: log_offset,
    };
    let body_len = found.iter().map(|found| found.record.bytes.len()).sum();
    conn.put(|outbox| {
        let head = Head::response(ticket.encoding, ticket.opaque, code, remark);
        let mut ext = begin_frame(outbox.open(), head);
        header.encode(&mut ext);
        if ext.finish(body_len).is_ok() {
            let slices = found.into_iter().rev().map(|found| found.record.bytes);
            outbox.push_slices(slices, conn.is_slow());
        }
    });
}
