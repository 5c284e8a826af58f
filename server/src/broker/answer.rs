//! Answers: the only place where results and errors become response codes.

use std::rc::Rc;

use ringmq_engine::{AppendError, ReadError};
use ringmq_protocol::{
    codes::response,
    command::HeaderError,
    encode::{self, FrameWriter, Head, begin_frame},
    frame::Encoding,
    limits::MessageIllegal,
    message_id::OffsetMessageId,
};

use super::{Conn, Failure, Reply, Served, Ticket, pull::Pulled, query, send::Sent};
use crate::{control::CreateTopicError, thread::Thread};

impl From<HeaderError> for Failure {
    fn from(error: HeaderError) -> Self {
        Self::new(response::SYSTEM_ERROR, error.to_string())
    }
}

impl From<MessageIllegal> for Failure {
    fn from(error: MessageIllegal) -> Self {
        Self::new(
            response::MESSAGE_ILLEGAL,
            format!(
                "the message is illegal, maybe msg body or properties length not matched: {error}"
            ),
        )
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::new(response::SYSTEM_ERROR, error.to_string())
    }
}

/// [`AppendError::Backlogged`] is waited for and gets here only when that is not possible.
impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        let code = match error {
            AppendError::Backlogged => response::SYSTEM_BUSY,
            AppendError::DiskFull(_) | AppendError::Poisoned(_) => response::SERVICE_NOT_AVAILABLE,
            AppendError::Deleted => response::TOPIC_NOT_EXIST,
            AppendError::TooLarge { .. } => response::MESSAGE_ILLEGAL,
            _ => response::SYSTEM_ERROR,
        };
        Self::new(code, error.to_string())
    }
}

/// Why the topic of a send could not be created.
pub(crate) fn not_created(error: CreateTopicError, ticket: &Ticket) -> Failure {
    match error {
        CreateTopicError::Name(rule) => Failure::new(ticket.invalid_parameter(), rule.to_string()),
        CreateTopicError::NoTemplate => Failure::new(
            response::TOPIC_NOT_EXIST,
            "topic not exist, apply first please! See https://rocketmq.apache.org/docs/bestPractice",
        ),
        CreateTopicError::NoQueues => Failure::new(
            ticket.invalid_parameter(),
            "the topic would have no queues: defaultTopicQueueNums takes 1 and more, and the topic \
             that it is made after must have queues",
        ),
        CreateTopicError::TooMany(count) => Failure::new(
            response::SYSTEM_ERROR,
            format!("there are {count} topics, and no more may be created"),
        ),
        CreateTopicError::Store(cause) => {
            Failure::new(response::SYSTEM_ERROR, format!("the topic was not stored: {cause}"))
        }
    }
}

/// The group of a request has no configuration and may not get one.
pub(crate) fn no_group(group: &str) -> Failure {
    Failure::new(
        response::SUBSCRIPTION_GROUP_NOT_EXIST,
        format!("subscription group [{group}] does not exist"),
    )
}

/// The process is stopping. Producers try another broker on this code.
pub(crate) fn stopping() -> Failure {
    Failure::new(response::SERVICE_NOT_AVAILABLE, "the broker is stopping")
}

/// Writes the answer of a request to its connection, if both still want one.
pub(crate) fn complete(thread: &Thread, ticket: &Ticket, reply: Reply) {
    if ticket.oneway || matches!(reply, Reply::Nothing) {
        return;
    }
    let Some(conn) = thread.conn(ticket.conn) else { return };
    match reply {
        Reply::Sent(sent) => answer_send(thread, &conn, ticket, &sent),
        Reply::Pulled(pulled) => answer_pull(&conn, ticket, pulled),
        Reply::Offset(offset) => {
            answer(&conn, ticket, |ext| ext.ext_int("offset", offset));
        }
        Reply::Time(time) => {
            answer(&conn, ticket, |ext| ext.ext_int("timestamp", time));
        }
        Reply::Record(record) => conn.put(|outbox| {
            let head = Head::response(ticket.encoding, ticket.opaque, response::SUCCESS, None);
            let header = begin_frame(outbox.open(), head);
            if header.finish(record.len()).is_ok() {
                outbox.push_slices(std::iter::once(record), conn.is_slow());
            }
        }),
        Reply::Queried(op) => query::complete(&conn, ticket, *op),
        Reply::Done => answer(&conn, ticket, |_| ()),
        Reply::Failed(failure) => fail(thread, &conn, ticket, &failure),
        // Held pulls are kept by the thread, see `pull`.
        Reply::Held(_) | Reply::Nothing => {}
    }
}

/// Answers success with these entries and no body.
fn answer(conn: &Rc<Conn>, ticket: &Ticket, ext: impl FnOnce(&mut FrameWriter<'_, '_>)) {
    conn.put(|outbox| {
        let Ticket { encoding, opaque, .. } = *ticket;
        encode::response(outbox.open(), encoding, opaque, response::SUCCESS, None, ext, &[]);
    });
}

/// Answers that a request failed, and is done with it.
pub(crate) fn refuse(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: &Ticket,
    failure: &Failure,
) -> Served {
    fail(thread, conn, ticket, failure);
    Served::Done
}

/// Answers that a request failed.
pub(crate) fn fail(thread: &Thread, conn: &Rc<Conn>, ticket: &Ticket, failure: &Failure) {
    if ticket.oneway {
        return;
    }
    let config = &thread.shared.config;
    conn.put(|outbox| {
        let Ticket { encoding, opaque, .. } = *ticket;
        let ext = |ext: &mut FrameWriter<'_, '_>| {
            if ticket.send {
                ext.ext("MSG_REGION", &config.region);
                ext.ext_bool("TRACE_ON", config.trace_on);
            }
        };
        let remark = Some(&*failure.remark);
        encode::response(outbox.open(), encoding, opaque, failure.code, remark, ext, &[]);
    });
}

fn answer_send(thread: &Thread, conn: &Rc<Conn>, ticket: &Ticket, sent: &Sent) {
    let config = &thread.shared.config;
    let host = thread.shared.store_host;
    if ticket.encoding == Encoding::Json
        && let Some(log_offset) = sent.only_log_offset()
    {
        let sent = encode::Sent {
            opaque: ticket.opaque,
            log_offset,
            queue_id: sent.queue_id,
            queue_offset: sent.first_queue_offset,
        };
        conn.put(|outbox| thread.shared.sent_answers.write(&sent, outbox.open()));
        return;
    }
    answer(conn, ticket, |ext| {
        ext.ext("MSG_REGION", &config.region);
        ext.ext_bool("TRACE_ON", config.trace_on);
        let ids = sent.log_offsets().map(|log_offset| OffsetMessageId { host, log_offset });
        ext.ext_ids("msgId", ids);
        ext.ext_int("queueId", sent.queue_id.into());
        ext.ext_int("queueOffset", sent.first_queue_offset);
    });
}

fn answer_pull(conn: &Rc<Conn>, ticket: &Ticket, pulled: Pulled) {
    let body_len: usize = pulled.slices.iter().map(|slice| slice.len()).sum();
    conn.put(|outbox| {
        let remark = Some(pulled.status);
        let head = Head::response(ticket.encoding, ticket.opaque, pulled.code, remark);
        let mut ext = begin_frame(outbox.open(), head);
        ext.ext_int("maxOffset", pulled.max);
        ext.ext_int("minOffset", pulled.min);
        ext.ext_int("nextBeginOffset", pulled.next);
        ext.ext_int("suggestWhichBrokerId", 0);
        if ticket.is_5 {
            ext.ext_int("groupSysFlag", 0);
            ext.ext_int("topicSysFlag", 0);
        }
        if ext.finish(body_len).is_ok() {
            outbox.push_slices(pulled.slices.into_iter(), conn.is_slow());
        }
    });
}
