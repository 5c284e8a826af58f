//! VIEW_MESSAGE_BY_ID (33): one record by its position in the log.
//!
//! The position comes from a client and may be anything; the engine answers only where a committed
//! record starts.
//!
//! Source: `QueryMessageProcessor.viewMessageById`.

use std::rc::Rc;

use ringmq_engine::{LogOffset, ReadAtOutcome, Shard};
use ringmq_protocol::{codes::response, command::Command, headers::ViewMessageRequest};

use super::{Conn, Failure, Op, Reply, Served, Step, Ticket, answer};
use crate::thread::Thread;

/// Takes a request.
pub(crate) fn serve(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
) -> Served {
    let checked = ViewMessageRequest::decode(command).map_err(Failure::from).and_then(|request| {
        let position = LogOffset::new(request.log_offset);
        position
            .map(|position| (position, request.log_offset))
            .ok_or_else(|| missing(request.log_offset))
    });
    match checked {
        Ok((position, number)) => {
            let shard = thread.shared.shard_of_position(position);
            thread.start(conn, ticket, shard, Op::View(number))
        }
        Err(failure) => answer::refuse(thread, conn, &ticket, &failure),
    }
}

fn missing(position: i64) -> Failure {
    Failure::new(response::SYSTEM_ERROR, format!("can not find message by the offset, {position}"))
}

/// Reads the record. `read` is the token for a read from the device.
pub(crate) fn execute(engine: &mut Shard, number: i64, read: u64) -> Step {
    let Some(position) = LogOffset::new(number) else {
        return Step::Reply(Reply::Failed(missing(number)));
    };
    match engine.read_at(position, read) {
        ReadAtOutcome::Found(record) => Step::Reply(Reply::Record(record)),
        ReadAtOutcome::Missing => Step::Reply(Reply::Failed(missing(number))),
        ReadAtOutcome::Pending => Step::Reads(Op::View(number)),
        ReadAtOutcome::Failed(error) => Step::Reply(Reply::Failed(error.into())),
    }
}
