//! From a frame to the request that it is, and from an op to its engine call.
//!
//! The hot requests are served on the data thread. Everything else that a broker port gets goes to
//! the control thread with its whole frame, unknown codes included.

use std::rc::Rc;

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    command::Command,
    frame::{Encoding, Frame},
};

use super::{
    Conn, Executed, Failure, Op, Served, Step, Ticket, Wait, answer, lookup, offset, pull, query,
    send, tell_control, view,
};
use crate::{
    control::ToControl,
    net::Service,
    thread::{LocalShard, Pending, Thread},
};

impl Service for Thread {
    type Wait = Wait;
    type State = super::ConnState;

    fn chunk_arrived(&self) {
        self.refresh_now();
    }

    fn serve(&self, conn: &Rc<Conn>, frame: &Frame<'_>, whole: &[u8]) -> Served {
        let served = self.dispatch(conn, frame, whole);
        // Waited for, but the request may have gone another way this time.
        self.give_credit_back(conn);
        served
    }

    fn peer_is_slow(&self, conn: &Rc<Conn>) {
        self.give_credit_back(conn);
    }

    async fn wait(&self, conn: &Rc<Conn>, wait: Wait) {
        match wait {
            Wait::Credit(other) => {
                let credit = self.links.credit(other).await;
                conn.state.credit.set(Some(credit.keep()));
            }
            Wait::Room(index) => self.wait_for_room(index).await,
            Wait::Query => {
                // The request is offered again and takes a permit of its own then.
                let _ = self.shared.queries.acquire().await;
            }
            Wait::Topic(ticket, created) => {
                if let Err(error) = created.await.unwrap_or_else(|_| Err(gone())) {
                    conn.state.refused.set(true);
                    answer::fail(self, conn, &ticket, &answer::not_created(error, &ticket));
                }
            }
            Wait::Group(ticket, ensured) => {
                if ensured.await.ok().flatten().is_none() {
                    conn.state.refused.set(true);
                    let failure = Failure::new(
                        response::SUBSCRIPTION_GROUP_NOT_EXIST,
                        "subscription group does not exist, and may not be created",
                    );
                    answer::fail(self, conn, &ticket, &failure);
                }
            }
            Wait::Control(message) => {
                // Fails only when the process is stopping.
                let _ = self.shared.to_control.send(*message).await;
            }
            Wait::ControlRoom => {
                let _ = self.shared.to_control.reserve().await;
            }
        }
    }

    fn refused(&self, conn: &Rc<Conn>) -> bool {
        conn.state.refused.replace(false)
    }

    fn chunk_served(&self) {
        self.turn.set();
    }

    fn output_drained(&self, conn: &Rc<Conn>) {
        let deferred = std::mem::take(&mut *conn.state.deferred.borrow_mut());
        for (ticket, op) in deferred {
            self.pull_again(ticket, op);
        }
    }

    async fn closed(&self, conn: &Rc<Conn>) {
        self.forget(conn);
        let message = ToControl::Closed { conn: conn.context.conn };
        // Fails only when the process is stopping.
        let _ = self.shared.to_control.send(message).await;
    }
}

/// The control thread has gone: the process is stopping.
fn gone() -> crate::control::CreateTopicError {
    crate::control::CreateTopicError::Store("the broker is stopping".to_owned())
}

impl Thread {
    fn dispatch(&self, conn: &Rc<Conn>, frame: &Frame<'_>, whole: &[u8]) -> Served {
        if let Some(served) = self.dispatch_known(conn, frame) {
            return served;
        }
        // RocketMQ closes the connection as well when it cannot read a header.
        let Ok(command) = Command::parse(frame.encoding, frame.header) else {
            return Served::Close;
        };
        if command.is_response() {
            return self.to_control(conn, whole);
        }
        let ticket = Ticket::new(conn.context.conn, frame.encoding, &command);
        if let Err(refusal) = self.shared.authorizer.authorize(&conn.context, &command, frame.body)
        {
            let failure = Failure::new(refusal.code, refusal.remark);
            return answer::refuse(self, conn, &ticket, &failure);
        }
        if self.stopping.get() {
            return answer::refuse(self, conn, &ticket, &answer::stopping());
        }
        match command.code {
            request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
                if frame.encoding == Encoding::Json {
                    let cluster_pair = &self.shared.cluster_pair;
                    conn.state.sends.borrow_mut().missed(frame.header, cluster_pair);
                }
                send::serve(self, conn, ticket, &command, frame.body)
            }
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => {
                if frame.encoding == Encoding::Json {
                    conn.state.pulls.borrow_mut().missed(frame.header);
                }
                pull::serve(self, conn, ticket, &command)
            }
            request::QUERY_CONSUMER_OFFSET => offset::serve_query(self, conn, ticket, &command),
            request::UPDATE_CONSUMER_OFFSET => offset::serve_update(self, conn, ticket, &command),
            request::SEARCH_OFFSET_BY_TIMESTAMP
            | request::GET_MAX_OFFSET
            | request::GET_MIN_OFFSET
            | request::GET_EARLIEST_MSG_STORETIME => lookup::serve(self, conn, ticket, &command),
            request::VIEW_MESSAGE_BY_ID => view::serve(self, conn, ticket, &command),
            request::QUERY_MESSAGE => query::serve(self, conn, ticket, &command),
            _ => self.to_control(conn, whole),
        }
    }

    /// Serves a send or a pull that looks like an earlier one, without parsing its header.
    fn dispatch_known(&self, conn: &Rc<Conn>, frame: &Frame<'_>) -> Option<Served> {
        let may = frame.encoding == Encoding::Json
            && self.shared.authorizer.allows_all()
            && !self.stopping.get();
        if !may {
            return None;
        }
        if let Some(known) = conn.state.sends.borrow().read(frame.header) {
            return Some(send::serve_known(self, conn, &known, frame.body));
        }
        let pulls = conn.state.pulls.borrow();
        let (template, own) = pulls.read(frame.header)?;
        Some(pull::serve_known(self, conn, template, own))
    }

    /// Gives back a hand-over credit that was waited for and has not been used.
    pub(crate) fn give_credit_back(&self, conn: &Conn) {
        if let Some(unused) = conn.state.credit.take() {
            drop(self.links.kept(unused));
        }
    }

    fn to_control(&self, conn: &Rc<Conn>, whole: &[u8]) -> Served {
        let frame = Bytes::copy_from_slice(whole);
        let message = ToControl::Request { ctx: conn.context.clone(), frame };
        tell_control(&self.shared.to_control, message)
    }
}

impl LocalShard {
    /// Takes an op, of this thread or another.
    pub(crate) fn execute(&self, thread: &Thread, ticket: Ticket, op: Op) -> Executed {
        let now = thread.now();
        let op = match op {
            Op::Append { queue, parcel } => {
                return match send::append_parcel(thread, self, ticket, (queue, parcel), now) {
                    Ok(Some(reply)) => Executed::Reply(reply),
                    Ok(None) => Executed::Later,
                    Err((queue, parcel)) => Executed::NoRoom(Op::Append { queue, parcel }),
                };
            }
            other => other,
        };
        let read = self.next_read();
        let step = self.engine(|engine| {
            let mut scratch = thread.scratch.borrow_mut();
            let key = scratch.key();
            match op {
                Op::Pull(op) => pull::execute(engine, op, read, key, now),
                Op::Commit(op) => offset::commit(engine, op, key, now),
                Op::Committed(op) => offset::committed(engine, op, key, now),
                Op::Lookup(op) => lookup::execute(engine, op, read, key),
                Op::View(position) => view::execute(engine, position, read),
                Op::Query(op) => query::execute(engine, op, read),
                Op::Unhold { queue, token } => pull::unhold(engine, &queue, token, key),
                Op::Append { .. } => unreachable!("handled above"),
            }
        });
        match step {
            Step::Reply(reply) => Executed::Reply(reply),
            Step::Commits(sequence, reply) => {
                self.answer_at(sequence, ticket, Pending::Reply(reply));
                Executed::Later
            }
            Step::Reads(op) => {
                self.park_read(read, ticket, op);
                Executed::Later
            }
            Step::NoRoom(op) => Executed::NoRoom(op),
        }
    }
}
