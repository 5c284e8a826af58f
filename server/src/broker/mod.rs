//! The requests of the data plane, one file each, and what they share.
//!
//! A request is decoded and checked on the thread of its connection. What it wants from a shard is an
//! [`Op`]; the shard's thread, often the same, turns it into engine calls and gives a [`Reply`], which
//! travels back to the connection's thread and becomes the answer there. A [`Ticket`] goes along and
//! says whom to answer, and how.

pub(crate) mod answer;
pub(crate) mod dispatch;
pub(crate) mod held;
pub(crate) mod keys;
pub(crate) mod lookup;
pub(crate) mod offset;
pub(crate) mod pull;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod send;
mod stop;
pub(crate) mod templates;
pub(crate) mod topics;
pub(crate) mod view;

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use ringmq_engine::{RecordSlice, Sequence};
use ringmq_protocol::{
    codes::response,
    command::{Command, FLAG_ONEWAY},
    frame::Encoding,
    template::MatchedHead,
};
use tokio::sync::{mpsc, oneshot};

use self::{
    pull::PullOp,
    record::Parcel,
    templates::{PullTemplates, SendTemplates},
    topics::Topic,
};
use crate::{
    context::ConnId,
    control::{self, CreateTopicError, ToControl},
    net,
};

/// First version whose clients expect the answers of 5.x. Source: `MQVersion.Version.V5_0_0`.
const VERSION_5: i32 = 413;

/// A connection of the broker.
pub(crate) type Conn = net::Conn<ConnState>;

/// What a frame led to.
pub(crate) type Served = net::conn::Served<Wait>;

/// What the broker keeps with a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnState {
    /// The topic of the last send, which mostly is that of the next.
    pub(crate) last_topic: RefCell<Option<Rc<Topic>>>,
    /// What its sends look like.
    pub(crate) sends: RefCell<SendTemplates>,
    /// What its pulls look like.
    pub(crate) pulls: RefCell<PullTemplates>,
    /// A hand-over credit that was waited for and belongs to the next request to that thread.
    pub(crate) credit: Cell<Option<usize>>,
    /// What was waited for was refused, and the request has been answered so.
    pub(crate) refused: Cell<bool>,
    /// Tokens of its pulls that are held.
    pub(crate) held: RefCell<Vec<u64>>,
    /// Pulls that came due while the connection had no room for answers.
    pub(crate) deferred: RefCell<Vec<(Ticket, Box<PullOp>)>>,
}

/// Whom to answer, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// The connection that asked.
    pub(crate) conn: ConnId,
    /// The request's number.
    pub(crate) opaque: i32,
    /// How the request's header was written, and the answer's will be.
    pub(crate) encoding: Encoding,
    /// Nothing is answered, whatever happens.
    pub(crate) oneway: bool,
    /// The client expects what a 5.x broker answers.
    pub(crate) is_5: bool,
    /// Answers of sends always carry region and trace switch.
    pub(crate) send: bool,
    /// Token of a pull that may be held on another thread's shard; 0 for anything else.
    pub(crate) hold: u64,
}

impl Ticket {
    pub(crate) fn new(conn: ConnId, encoding: Encoding, command: &Command<'_>) -> Self {
        Self {
            conn,
            opaque: command.opaque,
            encoding,
            oneway: command.is_oneway(),
            is_5: command.version >= VERSION_5,
            send: false,
            hold: 0,
        }
    }

    /// For a request that looked like an earlier one.
    pub(crate) fn of_known(conn: ConnId, head: &MatchedHead, opaque: i32) -> Self {
        Self {
            conn,
            opaque,
            encoding: Encoding::Json,
            oneway: head.flag & FLAG_ONEWAY != 0,
            is_5: head.version >= VERSION_5,
            send: false,
            hold: 0,
        }
    }

    /// For work that no connection asked for.
    pub(crate) fn of_nobody() -> Self {
        Self {
            conn: ConnId { thread: 0, slot: u32::MAX, generation: 0 },
            opaque: 0,
            encoding: Encoding::Json,
            oneway: true,
            is_5: false,
            send: false,
            hold: 0,
        }
    }

    /// The code for a parameter out of range: 4.9.8 has none of its own.
    pub(crate) fn invalid_parameter(&self) -> i32 {
        if self.is_5 { response::INVALID_PARAMETER } else { response::SYSTEM_ERROR }
    }
}

/// Why a request fails: its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Response code.
    pub(crate) code: i32,
    /// For people.
    pub(crate) remark: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        Self { code, remark: remark.into() }
    }
}

/// Names a queue on whichever thread.
#[derive(Clone, Debug)]
pub(crate) struct QueueName {
    /// The topic.
    pub(crate) topic: Arc<str>,
    /// The queue; any number, as clients may send it.
    pub(crate) queue_id: i32,
}

/// What a request wants from a shard.
#[derive(Debug)]
pub(crate) enum Op {
    /// Store these records.
    Append {
        /// Where to.
        queue: QueueName,
        /// The records, but for their stamps.
        parcel: Parcel,
    },
    /// Read messages.
    Pull(Box<PullOp>),
    /// Forget that a pull waits.
    Unhold {
        /// Where it waits.
        queue: QueueName,
        /// Its token.
        token: u64,
    },
    /// Store a consumer offset.
    Commit(Box<offset::CommitOp>),
    /// Find a consumer offset.
    Committed(Box<offset::CommittedOp>),
    /// Find an offset or time in a queue.
    Lookup(Box<lookup::LookupOp>),
    /// Read the record at this position of the log.
    View(i64),
    /// Find messages by key.
    Query(Box<query::QueryOp>),
}

/// What a shard answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Records were stored and are durable.
    Sent(send::Sent),
    /// A pull's outcome.
    Pulled(pull::Pulled),
    /// The pull is held; its token will be nudged.
    Held(Box<PullOp>),
    /// An offset.
    Offset(i64),
    /// A time in milliseconds.
    Time(i64),
    /// One record.
    Record(RecordSlice),
    /// What one shard, and those before it, have found by a key.
    Queried(Box<query::QueryOp>),
    /// Done, without anything to tell.
    Done,
    /// Nothing is answered.
    Nothing,
    /// It failed.
    Failed(Failure),
}

/// How far an [`Op`] got in one step on its shard.
#[derive(Debug)]
pub(crate) enum Step {
    /// This is the outcome.
    Reply(Reply),
    /// This is the outcome once the group is committed.
    Commits(Sequence, Reply),
    /// The device is being read; the op is to be tried again when its token is ready.
    Reads(Op),
    /// The shard has no room for appends now.
    NoRoom(Op),
}

/// What became of an [`Op`] on its shard.
#[derive(Debug)]
pub(crate) enum Executed {
    /// This is the outcome.
    Reply(Reply),
    /// The outcome comes when a flush or a read completes.
    Later,
    /// The shard has no room for appends now.
    NoRoom(Op),
}

/// What a connection waits for before it goes on.
#[derive(Debug)]
pub(crate) enum Wait {
    /// A credit for this thread.
    Credit(usize),
    /// Room for appends on this shard of the thread, by its place there.
    Room(usize),
    /// Fewer searches by key.
    Query,
    /// A topic is being created.
    Topic(Ticket, oneshot::Receiver<Result<Arc<control::TopicConfig>, CreateTopicError>>),
    /// A group is being created.
    Group(Ticket, oneshot::Receiver<Option<Arc<control::GroupConfig>>>),
    /// The control thread has no room; this goes first when it has.
    Control(Box<ToControl>),
    /// The control thread has no room for a question; the frame is offered again when it has.
    ControlRoom,
}

/// Sends to the control thread, or says what to wait for.
fn tell_control(control: &mpsc::Sender<ToControl>, message: ToControl) -> Served {
    match control.try_send(message) {
        Ok(()) => Served::Done,
        Err(mpsc::error::TrySendError::Full(message)) => {
            Served::Then(Wait::Control(Box::new(message)))
        }
        // The process is stopping.
        Err(mpsc::error::TrySendError::Closed(_)) => Served::Close,
    }
}
