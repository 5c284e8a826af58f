//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).
//!
//! The checks, their order and codes, and the statuses of the store lookup are those of RocketMQ
//! (facts: remoting 3.3). A pull that finds nothing and may wait is held at its queue; the append
//! that commits a matching message wakes it, and it runs again without waiting. Its hold time ends
//! exactly, not at the next of some five-second checks.
//!
//! Source: `PullMessageProcessor`, `DefaultMessageStore.getMessage`, `PullRequestHoldService`.

use std::rc::Rc;

use ringmq_engine::{
    AppendError, EpochMillis, QueueNo, QueueOffset, ReadLimits, ReadOutcome, RecordSlice, Shard,
    TagFilter,
};
use ringmq_protocol::{
    codes::response,
    command::Command,
    headers::{PullRequest, pull_flag},
    names::validate_group,
    tags::TagSet,
    template::{MatchedPull, PullTemplate},
};

use super::{
    Conn, Executed, Failure, Op, QueueName, Reply, Served, Step, Ticket, Wait, keys, offset,
    stop::{Stop, failed},
    topics::Topic,
};
use crate::{
    control::{GroupView, MessageModel},
    thread::{Place, Thread},
};

/// Entries of a queue that one pull looks at, at least. Source: 16,000 bytes of 20-byte entries.
const SCANNED_MIN: u32 = 800;

/// The longest that a pull is held, in milliseconds.
const HOLD_MS_MAX: i64 = 3_600_000;

/// What a pull wants from its queue.
#[derive(Debug)]
pub(crate) struct PullOp {
    pub(crate) queue: QueueName,
    /// Offset in messages; as the client says, so any number.
    pub(crate) from: i64,
    pub(crate) count_max: u32,
    pub(crate) bytes_max: usize,
    pub(crate) filter: TagFilter,
    /// A group's offset to store, if it is higher than what is stored.
    pub(crate) commit: Option<(Box<str>, i64)>,
    /// The token under which the pull may be held.
    pub(crate) hold: Option<u64>,
    /// Until when, in milliseconds since 1970.
    pub(crate) until: i64,
    /// A token under which it was held, and whose wait has to be taken back.
    pub(crate) unhold: Option<u64>,
}

/// A pull's outcome.
#[derive(Debug)]
pub(crate) struct Pulled {
    /// Response code.
    pub(crate) code: i32,
    /// Upstream's name of the status, which is the remark.
    pub(crate) status: &'static str,
    /// Where to pull next, and the ends of the queue. Offsets in messages.
    pub(crate) next: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
    /// The records.
    pub(crate) slices: Vec<RecordSlice>,
}

#[cfg(test)]
impl PullOp {
    pub(crate) fn for_test() -> Self {
        Self {
            queue: QueueName { topic: "T".into(), queue_id: 0 },
            from: 0,
            count_max: 32,
            bytes_max: 1 << 18,
            filter: TagFilter::All,
            commit: None,
            hold: None,
            until: 0,
            unhold: None,
        }
    }
}

/// Takes a pull.
pub(crate) fn serve(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
) -> Served {
    match PullRequest::decode(command) {
        Ok(request) => {
            let own = MatchedPull::of(command.opaque, &request);
            serve_request(thread, conn, ticket, &request, own)
        }
        Err(error) => Stop::from(error).serve(thread, conn, &ticket),
    }
}

/// Takes a pull that looks like an earlier one.
pub(crate) fn serve_known(
    thread: &Thread,
    conn: &Rc<Conn>,
    template: &PullTemplate,
    own: MatchedPull,
) -> Served {
    let ticket = Ticket::of_known(conn.context.conn, template.head(), own.opaque);
    serve_request(thread, conn, ticket, template.request(), own)
}

/// Takes a pull: what it has in common with others that look like it, and what it has of its own.
fn serve_request(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    request: &PullRequest<'_>,
    own: MatchedPull,
) -> Served {
    match check(thread, &ticket, request, own) {
        Ok((topic, op)) => start(thread, conn, ticket, &topic, op),
        Err(stop) => stop.serve(thread, conn, &ticket),
    }
}

/// The checks before the store is asked, first failure wins.
fn check(
    thread: &Thread,
    ticket: &Ticket,
    request: &PullRequest<'_>,
    MatchedPull { queue_id, queue_offset, commit_offset, .. }: MatchedPull,
) -> Result<(Rc<Topic>, PullOp), Stop> {
    if !thread.topics.permission().1 {
        return Err(failed(response::NO_PERMISSION, "the broker may not be read"));
    }
    let group_name = &*request.consumer_group;
    let groups = thread.topics.groups();
    let group = groups.group(group_name).filter(|group| group.config.is_some());
    let Some(group) = group else {
        return Err(Stop::for_group(thread, ticket, group_name));
    };
    let config = group.config.as_ref();
    if config.is_some_and(|config| !config.consume_enable) {
        return Err(failed(
            response::NO_PERMISSION,
            format!("subscription group no permission, {group_name}"),
        ));
    }
    let Some(topic) = thread.topics.topic(&request.topic) else {
        return Err(failed(
            response::TOPIC_NOT_EXIST,
            format!("topic[{}] not exist, apply first please!", request.topic),
        ));
    };
    if !topic.config.readable() {
        return Err(failed(
            response::NO_PERMISSION,
            format!("the topic[{}] pulling message is forbidden", request.topic),
        ));
    }
    let in_range = u32::try_from(queue_id).is_ok_and(|id| id < topic.config.read_queue_nums);
    if !in_range {
        return Err(failed(
            ticket.invalid_parameter(),
            format!("queueId[{queue_id}] is illegal, topic:[{}]", request.topic),
        ));
    }
    let filter = filter(request, group)?;
    let count = match request.max_msg_nums {
        0 => 1,
        count if count > 0 => count.unsigned_abs(),
        _ if ticket.is_5 => 1,
        count => {
            return Err(failed(response::SYSTEM_ERROR, format!("maxMsgNums[{count}] is illegal")));
        }
    };
    let settings = &thread.shared.config;
    let commits = request.sys_flag & pull_flag::COMMIT_OFFSET != 0
        && commit_offset >= 0
        && validate_group(group_name).is_ok();
    let op = PullOp {
        queue: QueueName { topic: topic.config.name.clone(), queue_id },
        from: queue_offset,
        count_max: count.min(settings.pull_count_max),
        bytes_max: settings.pull_bytes_max,
        filter,
        commit: commits.then(|| (group_name.into(), commit_offset)),
        hold: None,
        until: hold_end(thread, request),
        unhold: None,
    };
    Ok((topic, op))
}

/// When holding ends; 0 for a pull that may not be held.
fn hold_end(thread: &Thread, request: &PullRequest<'_>) -> i64 {
    if request.sys_flag & pull_flag::SUSPEND == 0 {
        return 0;
    }
    let wish = match thread.shared.config.short_polling {
        None => request.suspend_timeout_ms,
        Some(short) => i64::try_from(short.as_millis()).unwrap_or(HOLD_MS_MAX),
    };
    thread.now().get() + wish.clamp(0, HOLD_MS_MAX)
}

/// What the pull wants of the queue's messages, by its own expression or the group's subscription.
fn filter(request: &PullRequest<'_>, group: &GroupView) -> Result<TagFilter, Stop> {
    let no_other_filters = |kind: &str| {
        failed(
            response::SYSTEM_ERROR,
            format!("The broker does not support consumer to filter message by {kind}"),
        )
    };
    if request.sys_flag & pull_flag::SUBSCRIPTION != 0 {
        let kind = request.expression_type.as_deref().filter(|kind| !kind.is_empty());
        if let Some(kind) = kind.filter(|kind| *kind != "TAG") {
            return Err(no_other_filters(kind));
        }
        let expression = request.subscription.as_deref().unwrap_or_default();
        let tags = TagSet::parse(expression).map_err(|_| {
            failed(response::SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
        })?;
        return Ok(tags.codes().map_or(TagFilter::All, |codes| TagFilter::Tags(codes.into())));
    }
    if !group.online {
        return Err(failed(
            response::SUBSCRIPTION_NOT_EXIST,
            "the consumer's group info not exist",
        ));
    }
    let broadcasts = group.message_model == MessageModel::Broadcasting;
    if broadcasts && group.config.as_ref().is_some_and(|config| !config.consume_broadcast_enable) {
        return Err(failed(
            response::NO_PERMISSION,
            format!(
                "the consumer group[{}] can not consume by broadcast way",
                request.consumer_group
            ),
        ));
    }
    let Some(subscription) = group.subscription(&request.topic) else {
        return Err(failed(
            response::SUBSCRIPTION_NOT_EXIST,
            "the consumer's subscription not exist",
        ));
    };
    if subscription.sub_version < request.sub_version {
        return Err(failed(
            response::SUBSCRIPTION_NOT_LATEST,
            "the consumer's subscription not latest",
        ));
    }
    if !subscription.is_tag() {
        return Err(no_other_filters(&subscription.expression_type));
    }
    Ok(match &*subscription.codes {
        [] => TagFilter::All,
        codes => TagFilter::Tags(codes.into()),
    })
}

/// Takes a checked pull to its queue.
fn start(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    topic: &Topic,
    mut op: PullOp,
) -> Served {
    let held_max = thread.shared.config.limits.conn_held_pulls;
    let may_hold = op.until != 0 && conn.state.held.borrow().len() < held_max;
    let shard = topic.shard(op.queue.queue_id);
    match thread.place(shard) {
        Place::Here(index, local) => {
            if may_hold {
                op.hold = Some(thread.held.borrow_mut().reserve(ticket));
            }
            let ticket = Ticket { hold: op.hold.unwrap_or(0), ..ticket };
            match local.execute(thread, ticket, Op::Pull(Box::new(op))) {
                Executed::Reply(reply) => thread.finish(ticket, reply),
                Executed::Later => {}
                Executed::NoRoom(_) => {
                    thread.held.borrow_mut().free(ticket.hold);
                    return Served::Again(Wait::Room(index));
                }
            }
        }
        Place::On(other) => {
            let Some(credit) = thread.credit(conn, other) else {
                return Served::Again(Wait::Credit(other));
            };
            if may_hold {
                op.hold = Some(thread.held.borrow_mut().reserve(ticket));
            }
            let ticket = Ticket { hold: op.hold.unwrap_or(0), ..ticket };
            thread.ask(credit, shard, ticket, Op::Pull(Box::new(op)));
        }
    }
    Served::Done
}

/// Looks a pull up in its queue. `read` is the token for a read from the device.
pub(crate) fn execute(
    engine: &mut Shard,
    mut op: Box<PullOp>,
    read: u64,
    key: &mut Vec<u8>,
    now: EpochMillis,
) -> Step {
    if let Some((group, value)) = op.commit.take() {
        keys::offset(&group, &op.queue.topic, op.queue.queue_id, key);
        offset::raise(engine, key, value, now);
    }
    keys::queue(&op.queue.topic, op.queue.queue_id, key);
    let queue = engine.queue(key);
    if let (Some(queue), Some(token)) = (queue, op.unhold.take()) {
        engine.cancel_wait(queue, token);
    }
    let ends = queue.map(|queue| (engine.min_offset(queue).get(), engine.max_offset(queue).get()));
    let (min, max) = ends.unwrap_or_default();
    let pulled = match (outside(op.from, min, max), queue) {
        (Some(pulled), _) => pulled,
        (None, Some(queue)) => match look_up(engine, &op, queue, read) {
            Looked::Found(code, status, next, slices) => {
                Pulled { code, status, next, min, max, slices }
            }
            Looked::Reads => return Step::Reads(Op::Pull(op)),
            Looked::Failed(failure) => return Step::Reply(Reply::Failed(failure)),
        },
        (None, None) => unreachable!("a queue without a number has no messages"),
    };
    match op.hold {
        Some(token) if pulled.code == response::PULL_NOT_FOUND && now.get() < op.until => {
            hold(engine, op, token, key, now)
        }
        _ => Step::Reply(Reply::Pulled(pulled)),
    }
}

/// The outcome of a pull at an offset that has no message.
fn outside(from: i64, min: i64, max: i64) -> Option<Pulled> {
    let (code, status, next) = if max == 0 {
        let code = if from == 0 { response::PULL_NOT_FOUND } else { response::PULL_OFFSET_MOVED };
        (code, "NO_MESSAGE_IN_QUEUE", 0)
    } else if from < min {
        (response::PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", min)
    } else if from == max {
        (response::PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", max)
    } else if from > max {
        (response::PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", max)
    } else {
        return None;
    };
    Some(Pulled { code, status, next, min, max, slices: Vec::new() })
}

/// What is at an offset between the ends of a queue.
enum Looked {
    /// Response code, status, where to read on, and the records.
    Found(i32, &'static str, i64, Vec<RecordSlice>),
    Reads,
    Failed(Failure),
}

fn look_up(engine: &mut Shard, op: &PullOp, queue: QueueNo, read: u64) -> Looked {
    let from = QueueOffset::new(op.from).unwrap_or_default();
    let limits = ReadLimits {
        records_max: op.count_max,
        bytes_max: op.bytes_max,
        scanned_max: op.count_max.max(SCANNED_MIN),
    };
    let mut slices = Vec::new();
    match engine.read(queue, from, &limits, &op.filter, read, &mut slices) {
        ReadOutcome::Found { next, .. } => {
            Looked::Found(response::SUCCESS, "FOUND", next.get(), slices)
        }
        ReadOutcome::NoMatch { next } => {
            let code = response::PULL_RETRY_IMMEDIATELY;
            Looked::Found(code, "NO_MATCHED_MESSAGE", next.get(), slices)
        }
        ReadOutcome::Pending => Looked::Reads,
        ReadOutcome::Failed(error) => Looked::Failed(error.into()),
        // The ends were looked at just before, and nothing has happened since.
        ReadOutcome::AtEnd | ReadOutcome::BeyondEnd { .. } | ReadOutcome::BelowMin { .. } => {
            Looked::Found(response::PULL_NOT_FOUND, "OFFSET_FOUND_NULL", op.from, slices)
        }
    }
}

/// Lets the pull wait at its queue, which is opened if nobody has sent to it yet.
fn hold(engine: &mut Shard, op: Box<PullOp>, token: u64, key: &[u8], now: EpochMillis) -> Step {
    match engine.open_queue(key, now) {
        Ok(queue) => {
            engine.wait(queue, op.filter.clone(), token);
            Step::Reply(Reply::Held(op))
        }
        Err(AppendError::Backlogged) => Step::NoRoom(Op::Pull(op)),
        Err(error) => Step::Reply(Reply::Failed(error.into())),
    }
}

/// Takes a wait back whose connection has ended.
pub(crate) fn unhold(engine: &mut Shard, queue: &QueueName, token: u64, key: &mut Vec<u8>) -> Step {
    keys::queue(&queue.topic, queue.queue_id, key);
    if let Some(queue) = engine.queue(key) {
        engine.cancel_wait(queue, token);
    }
    Step::Reply(Reply::Nothing)
}
