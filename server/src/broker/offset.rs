//! QUERY_CONSUMER_OFFSET (14) and UPDATE_CONSUMER_OFFSET (15).
//!
//! A committed offset is a fact on the shard of its queue. What pulls and oneway requests bring is
//! staged and rides along with the next group; a two-way request is answered when its fact is
//! committed. A query never tells a value that a crash could take back: it flushes and waits for it.
//!
//! An explicit request may lower an offset, since clients reset and seek that way; the commit that a
//! pull carries only raises.
//!
//! Source: `ConsumerManageProcessor` of RocketMQ 4.9.8 and 5.3.3.

use std::rc::Rc;

use ringmq_engine::{AppendError, EpochMillis, QueueNo, Shard};
use ringmq_protocol::{
    codes::response,
    command::Command,
    headers::{QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest},
    names::{validate_group, validate_topic},
};

use super::{Conn, Failure, Op, QueueName, Reply, Served, Step, Ticket, answer, keys};
use crate::thread::Thread;

/// An offset to store.
#[derive(Debug)]
pub(crate) struct CommitOp {
    queue: QueueName,
    group: Box<str>,
    /// In messages; any number.
    value: i64,
    /// Whether an answer waits for it.
    answered: bool,
}

/// An offset to find.
#[derive(Debug)]
pub(crate) struct CommittedOp {
    queue: QueueName,
    group: Box<str>,
    /// The client asks for "not found" instead of a guess.
    no_guess: bool,
    /// 5.x does not guess for a queue without messages.
    is_5: bool,
}

/// Takes request 15.
pub(crate) fn serve_update(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
) -> Served {
    let checked = UpdateConsumerOffsetRequest::decode(command)
        .map_err(Failure::from)
        .and_then(|request| check_update(thread, &ticket, request));
    match checked {
        Ok(op) => {
            let shard = thread.shard_of(&op.queue);
            thread.start(conn, ticket, shard, Op::Commit(Box::new(op)))
        }
        Err(failure) => answer::refuse(thread, conn, &ticket, &failure),
    }
}

fn check_update(
    thread: &Thread,
    ticket: &Ticket,
    request: UpdateConsumerOffsetRequest<'_>,
) -> Result<CommitOp, Failure> {
    check_names(&request.consumer_group, &request.topic)?;
    if ticket.is_5 {
        let groups = thread.topics.groups();
        if groups.group(&request.consumer_group).is_none_or(|group| group.config.is_none()) {
            return Err(answer::no_group(&request.consumer_group));
        }
        if thread.topics.topic(&request.topic).is_none() {
            return Err(Failure::new(
                response::TOPIC_NOT_EXIST,
                format!("Topic {} not exist!", request.topic),
            ));
        }
    }
    Ok(CommitOp {
        queue: thread.queue_name(&request.topic, request.queue_id),
        group: request.consumer_group.into(),
        value: request.commit_offset,
        answered: !ticket.oneway,
    })
}

/// Takes request 14.
pub(crate) fn serve_query(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
) -> Served {
    let checked =
        QueryConsumerOffsetRequest::decode(command).map_err(Failure::from).and_then(|request| {
            check_names(&request.consumer_group, &request.topic)?;
            Ok(CommittedOp {
                queue: thread.queue_name(&request.topic, request.queue_id),
                group: request.consumer_group.into(),
                no_guess: ticket.is_5 && request.set_zero_if_not_found == Some(false),
                is_5: ticket.is_5,
            })
        });
    match checked {
        Ok(op) => {
            let shard = thread.shard_of(&op.queue);
            thread.start(conn, ticket, shard, Op::Committed(Box::new(op)))
        }
        Err(failure) => answer::refuse(thread, conn, &ticket, &failure),
    }
}

/// Offsets of any topic and group may be stored, also of unknown ones, but names become keys of the
/// store and have to be names.
fn check_names(group: &str, topic: &str) -> Result<(), Failure> {
    match validate_group(group).and(validate_topic(topic)) {
        Ok(()) => Ok(()),
        Err(_) => Err(Failure::new(
            response::SYSTEM_ERROR,
            "the name of the topic or of the consumer group is not allowed",
        )),
    }
}

fn value_of(bytes: Option<&[u8]>) -> Option<i64> {
    Some(i64::from_be_bytes(bytes?.try_into().ok()?))
}

/// Stages an offset if it is higher than what is stored.
pub(crate) fn raise(engine: &mut Shard, key: &[u8], value: i64, now: EpochMillis) {
    if value_of(engine.latest_fact(key)).is_none_or(|stored| stored < value) {
        engine.stage_fact(key, &value.to_be_bytes(), now);
    }
}

/// Stores an offset.
pub(crate) fn commit(
    engine: &mut Shard,
    op: Box<CommitOp>,
    key: &mut Vec<u8>,
    now: EpochMillis,
) -> Step {
    keys::offset(&op.group, &op.queue.topic, op.queue.queue_id, key);
    let stored = value_of(engine.latest_fact(key));
    if stored.is_some_and(|stored| stored > op.value) {
        let QueueName { topic, queue_id } = &op.queue;
        tracing::info!(%topic, queue_id, group = %op.group, from = stored, to = op.value, "consumer offset goes back by request");
    }
    let value = op.value.to_be_bytes();
    if !op.answered {
        engine.stage_fact(key, &value, now);
        return Step::Reply(Reply::Nothing);
    }
    let unchanged = stored == Some(op.value);
    if unchanged && !engine.fact_is_staged(key) {
        return match engine.fact_awaits(key) {
            Some(sequence) => Step::Commits(sequence, Reply::Done),
            None => Step::Reply(Reply::Done),
        };
    }
    match engine.put_fact(key, Some(&value), now) {
        Ok(sequence) => Step::Commits(sequence, Reply::Done),
        Err(AppendError::Backlogged) => Step::NoRoom(Op::Commit(op)),
        Err(error) => Step::Reply(Reply::Failed(error.into())),
    }
}

/// Finds an offset.
pub(crate) fn committed(
    engine: &mut Shard,
    op: Box<CommittedOp>,
    key: &mut Vec<u8>,
    now: EpochMillis,
) -> Step {
    keys::offset(&op.group, &op.queue.topic, op.queue.queue_id, key);
    if engine.fact_is_staged(key) {
        match engine.flush_staged(now) {
            Ok(_) => {}
            Err(AppendError::Backlogged) => return Step::NoRoom(Op::Committed(op)),
            Err(error) => return Step::Reply(Reply::Failed(error.into())),
        }
    }
    let Some(value) = value_of(engine.latest_fact(key)).filter(|value| *value >= 0) else {
        keys::queue(&op.queue.topic, op.queue.queue_id, key);
        let queue = engine.queue(key);
        return Step::Reply(guess(engine, &op, queue));
    };
    match engine.fact_awaits(key) {
        Some(sequence) => Step::Commits(sequence, Reply::Offset(value)),
        None => Step::Reply(Reply::Offset(value)),
    }
}

/// What is told to a group that has no offset: 0 while the queue still has its first message, as a
/// broker that has not run for long does.
fn guess(engine: &Shard, op: &CommittedOp, queue: Option<QueueNo>) -> Reply {
    let min = queue.map_or(0, |queue| engine.min_offset(queue).get());
    let max = queue.map_or(0, |queue| engine.max_offset(queue).get());
    if op.no_guess || min > 0 || (op.is_5 && max == 0) {
        return Reply::Failed(Failure::new(
            response::QUERY_NOT_FOUND,
            "Not found, maybe this group consumer boot first",
        ));
    }
    Reply::Offset(0)
}
