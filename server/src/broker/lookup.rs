//! SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and
//! GET_EARLIEST_MSG_STORETIME (32).
//!
//! None of them asks whether the topic exists; a queue that nobody has written to has the ends 0 and
//! 0. The search answers with the first message at or after the time, or the end of the queue, which
//! suits the clients of all versions; 5.x clients may ask for the last one at or before it.
//!
//! Source: `AdminBrokerProcessor`, `DefaultMessageStore.getOffsetInQueueByTime`.

use std::rc::Rc;

use ringmq_engine::{EpochMillis, SearchOutcome, Shard, StoreTime};
use ringmq_protocol::{
    codes::{request, response},
    command::Command,
    headers::{QueueRequest, SearchOffsetRequest},
    names::validate_topic,
};

use super::{Conn, Failure, Op, QueueName, Reply, Served, Step, Ticket, answer, keys};
use crate::thread::Thread;

/// A question about a queue.
#[derive(Debug)]
pub(crate) struct LookupOp {
    queue: QueueName,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Max,
    Min,
    /// Store time of the first message.
    Earliest,
    /// First message at or after this time.
    From(i64),
    /// Last message at or before this time.
    UpTo(i64),
}

/// Takes one of the four requests.
pub(crate) fn serve(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
) -> Served {
    match decode(thread, command) {
        Ok(op) => {
            let shard = thread.shard_of(&op.queue);
            thread.start(conn, ticket, shard, Op::Lookup(Box::new(op)))
        }
        Err(failure) => answer::refuse(thread, conn, &ticket, &failure),
    }
}

fn decode(thread: &Thread, command: &Command<'_>) -> Result<LookupOp, Failure> {
    let (topic, queue_id, what) = match command.code {
        request::SEARCH_OFFSET_BY_TIMESTAMP => {
            let header = SearchOffsetRequest::decode(command)?;
            let time = header.timestamp_ms;
            let what = if header.wants_upper() { What::UpTo(time) } else { What::From(time) };
            (header.topic, header.queue_id, what)
        }
        code => {
            let header = QueueRequest::decode(command)?;
            let what = match code {
                request::GET_MAX_OFFSET => What::Max,
                request::GET_MIN_OFFSET => What::Min,
                _ => What::Earliest,
            };
            (header.topic, header.queue_id, what)
        }
    };
    validate_topic(&topic)
        .map_err(|error| Failure::new(response::SYSTEM_ERROR, error.to_string()))?;
    Ok(LookupOp { queue: thread.queue_name(&topic, queue_id), what })
}

/// Answers the question. `read` is the token for a read from the device.
pub(crate) fn execute(engine: &mut Shard, op: Box<LookupOp>, read: u64, key: &mut Vec<u8>) -> Step {
    keys::queue(&op.queue.topic, op.queue.queue_id, key);
    let Some(queue) = engine.queue(key) else {
        return Step::Reply(match op.what {
            What::Earliest => Reply::Time(-1),
            _ => Reply::Offset(0),
        });
    };
    let (min, max) = (engine.min_offset(queue), engine.max_offset(queue));
    let search = |engine: &mut Shard, time| engine.search_time(queue, EpochMillis::new(time), read);
    let found = match op.what {
        What::Max => return Step::Reply(Reply::Offset(max.get())),
        What::Min => return Step::Reply(Reply::Offset(min.get())),
        What::Earliest if min == max => return Step::Reply(Reply::Time(-1)),
        What::Earliest => {
            return match engine.store_time(queue, min, read) {
                Ok(StoreTime::At(time)) => Step::Reply(Reply::Time(time.get())),
                Ok(StoreTime::Missing) => Step::Reply(Reply::Time(-1)),
                Ok(StoreTime::Pending) => Step::Reads(Op::Lookup(op)),
                Err(error) => Step::Reply(Reply::Failed(error.into())),
            };
        }
        What::From(time) => search(engine, time),
        What::UpTo(time) => search(engine, time.saturating_add(1)),
    };
    match found {
        SearchOutcome::Found(at) => {
            let offset = match op.what {
                What::UpTo(_) if at > min => at.get() - 1,
                What::UpTo(_) => 0,
                _ => at.get(),
            };
            Step::Reply(Reply::Offset(offset))
        }
        SearchOutcome::Pending => Step::Reads(Op::Lookup(op)),
        SearchOutcome::Failed(error) => Step::Reply(Reply::Failed(error.into())),
    }
}
