//! One data thread: its shards, its connections, and its turn.
//!
//! The thread runs a `tokio-uring` runtime for its connections, and each of its shards has a ring of
//! its own. Whatever happens sets the [`Thread::turn`] signal: a connection has served a chunk, a
//! shard's ring has completions, another thread has sent something, time has passed. The turn task
//! then lets every connection that is ready go first, and takes one turn: what other threads sent is
//! executed, the shards get their input-drained and their kernel calls, what was committed is
//! answered, what was woken is read. So a busy thread gathers many appends into one group, and an
//! idle one writes a single message at once.
//!
//! Nothing here is shared with another thread but what goes through [`crate::link`].

mod awake;
mod facts;
mod losses;
pub(crate) mod plane;
mod start;
mod turn;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ringmq_engine::{
    AppendError, Appended, EpochMillis, LogOffset, QueueNo, Record, RingShard, Sequence, Shard,
    shard_of,
};
use ringmq_protocol::encode::SentAnswers;
use slab::Slab;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use self::losses::Losses;

use crate::{
    broker::{
        Conn, Executed, Op, QueueName, Reply, Served, Ticket, Wait, answer,
        held::{self, HeldPulls},
        keys,
        pull::PullOp,
        query::QueryOp,
        send::Scratch,
        topics::{Topic, Topics},
    },
    config::BrokerConfig,
    context::{Authorizer, ConnId},
    control::{Published, ToControl},
    link::{Credit, Links},
    net::{conn::NetShared, signal::Signal},
};

/// What all data threads have in common.
pub(crate) struct Shared {
    pub(crate) config: BrokerConfig,
    pub(crate) published: Arc<Published>,
    pub(crate) to_control: mpsc::Sender<ToControl>,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    /// The address in records and message ids.
    pub(crate) store_host: std::net::SocketAddr,
    /// What is answered to sends of one message.
    pub(crate) sent_answers: SentAnswers,
    /// The property that every stored message gets: `CLUSTER`, its separator, the cluster's name.
    pub(crate) cluster_pair: Box<[u8]>,
    pub(crate) shards: u32,
    pub(crate) threads: usize,
    pub(crate) segment_len: u64,
    /// A permit for each search by key.
    pub(crate) queries: Arc<Semaphore>,
    /// Connections that are open.
    pub(crate) conns: AtomicUsize,
    /// Threads that have answered everything, once the process stops.
    pub(crate) drained: AtomicUsize,
    /// Rung when the process cannot go on.
    pub(crate) fatal: Notify,
}

impl Shared {
    /// Counts a connection, unless there are as many as may be.
    fn take_conn(&self) -> bool {
        let max = self.config.limits.conns;
        let add = |count| (count < max).then_some(count + 1);
        self.conns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn give_conn(&self) {
        self.conns.fetch_sub(1, Ordering::Relaxed);
    }

    /// The shard that a position of the log lies on.
    pub(crate) fn shard_of_position(&self, position: LogOffset) -> u32 {
        let segment = u64::try_from(position.get()).unwrap_or(0) / self.segment_len;
        u32::try_from(segment % u64::from(self.shards)).unwrap_or(0)
    }
}

/// A request for a shard of another thread.
#[derive(Debug)]
pub(crate) struct Question {
    shard: u32,
    ticket: Ticket,
    op: Op,
}

/// Its answer.
#[derive(Debug)]
pub(crate) struct Answer {
    ticket: Ticket,
    reply: Reply,
}

/// What is due when a group is committed.
#[derive(Debug)]
pub(crate) enum Pending {
    /// The outcome of a request.
    Reply(Reply),
    /// Facts of the control plane are durable.
    Facts(oneshot::Sender<Result<(), String>>),
}

/// Where a shard is.
pub(crate) enum Place<'a> {
    /// On this thread, at this index.
    Here(usize, &'a LocalShard),
    /// On this other thread.
    On(usize),
}

/// A shard of this thread.
pub(crate) struct LocalShard {
    number: u32,
    /// `None` once the thread has stopped.
    ring: RefCell<Option<RingShard>>,
    /// What waits for a commit, by a sequence that does not fall.
    acks: RefCell<VecDeque<(Sequence, Ticket, Pending)>>,
    /// What waits for a read from the device.
    reads: RefCell<Slab<(Ticket, Op)>>,
    /// What other threads sent and the shard had no room for. At most one per credit.
    backlog: RefCell<VecDeque<(Ticket, Op)>>,
    /// Rung when the shard has room again.
    room: Notify,
    /// When it was told last that time passes, in milliseconds since 1970.
    last_tick: Cell<i64>,
    /// Whether its end has been logged.
    reported: Cell<bool>,
    /// What retention took from consumer groups.
    losses: RefCell<Losses>,
}

/// One data thread.
pub(crate) struct Thread {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) net: Rc<NetShared>,
    pub(crate) links: Links<Question, Answer>,
    pub(crate) topics: Topics,
    pub(crate) held: RefCell<HeldPulls>,
    pub(crate) scratch: RefCell<Scratch>,
    /// Set when there is something for a turn.
    pub(crate) turn: Signal,
    shards: Vec<LocalShard>,
    conns: RefCell<Slab<Rc<Conn>>>,
    generation: Cell<u32>,
    now: Cell<i64>,
    picks: Cell<u32>,
    /// Rung when a held pull may end sooner than all others.
    new_end: Notify,
    /// Set once: requests are refused from then on.
    pub(crate) stopping: Cell<bool>,
    /// Connections whose tasks have not ended.
    running: Cell<usize>,
    me: Weak<Thread>,
}

impl LocalShard {
    fn new(number: u32, ring: RingShard) -> Self {
        Self {
            number,
            ring: RefCell::new(Some(ring)),
            acks: RefCell::default(),
            reads: RefCell::default(),
            backlog: RefCell::default(),
            room: Notify::new(),
            last_tick: Cell::new(0),
            reported: Cell::new(false),
            losses: RefCell::default(),
        }
    }

    /// Calls the engine.
    ///
    /// # Panics
    ///
    /// When the thread has stopped, or from inside such a call.
    pub(crate) fn engine<T>(&self, call: impl FnOnce(&mut Shard) -> T) -> T {
        let mut ring = self.ring.borrow_mut();
        call(ring.as_mut().expect("the shard is open as long as the thread runs").shard())
    }

    /// Appends messages to a queue of a topic.
    pub(crate) fn append<R: Record>(
        &self,
        topic: &Topic,
        queue_id: i32,
        records: &[R],
        key: &mut Vec<u8>,
        now: EpochMillis,
    ) -> Result<Appended, AppendError> {
        let slot = topic.slot(queue_id);
        self.engine(|engine| {
            let queue = match slot.and_then(Cell::get) {
                Some(queue) => queue,
                None => {
                    keys::queue(&topic.config.name, queue_id, key);
                    engine.open_queue(key, now)?
                }
            };
            if let Some(slot) = slot {
                slot.set(Some(queue));
            }
            engine.append(queue, records, now)
        })
    }

    /// Appends messages to the queue with this key.
    ///
    /// `exists` tells whether its topic does: it may have been deleted since the messages were
    /// handed over, and then nothing of it may come into being again.
    pub(crate) fn append_by_key<R: Record>(
        &self,
        key: &[u8],
        records: &[R],
        exists: impl FnOnce() -> bool,
        now: EpochMillis,
    ) -> Result<Appended, AppendError> {
        self.engine(|engine| {
            let queue: QueueNo = match engine.queue(key) {
                Some(queue) => queue,
                None if exists() => engine.open_queue(key, now)?,
                None => return Err(AppendError::Deleted),
            };
            engine.append(queue, records, now)
        })
    }

    /// Answers a request once the group is committed.
    pub(crate) fn answer_at(&self, sequence: Sequence, ticket: Ticket, pending: Pending) {
        self.acks.borrow_mut().push_back((sequence, ticket, pending));
    }

    /// The token for the next read.
    pub(crate) fn next_read(&self) -> u64 {
        u64::try_from(self.reads.borrow().vacant_key()).unwrap_or(u64::MAX)
    }

    /// Keeps an op whose read has this token, until the token is ready.
    pub(crate) fn park_read(&self, read: u64, ticket: Ticket, op: Op) {
        let slot = self.reads.borrow_mut().insert((ticket, op));
        assert_eq!(u64::try_from(slot).ok(), Some(read), "the token was asked for just before");
    }
}

impl Thread {
    /// The time when this chunk arrived or this turn began.
    pub(crate) fn now(&self) -> EpochMillis {
        EpochMillis::new(self.now.get())
    }

    /// Looks at the clock.
    pub(crate) fn refresh_now(&self) -> EpochMillis {
        self.now.set(crate::clock::epoch_ms());
        self.now()
    }

    /// A number that rises with every call, for whoever spreads things.
    pub(crate) fn next_turn(&self) -> u32 {
        let pick = self.picks.get();
        self.picks.set(pick.wrapping_add(1));
        pick
    }

    /// Where a shard is: shards are dealt to the threads in turn.
    pub(crate) fn place(&self, shard: u32) -> Place<'_> {
        let shard = usize::try_from(shard).expect("shards are few");
        let (thread, index) = (shard % self.shared.threads, shard / self.shared.threads);
        match self.shards.get(index).filter(|_| thread == self.index) {
            Some(local) => Place::Here(index, local),
            None => Place::On(thread),
        }
    }

    /// The shard of a queue.
    pub(crate) fn shard_of(&self, queue: &QueueName) -> u32 {
        shard_of(queue.topic.as_bytes(), queue.queue_id.cast_unsigned(), self.shared.shards)
    }

    /// A queue's name, sharing the topic's text where the topic is known.
    pub(crate) fn queue_name(&self, topic: &str, queue_id: i32) -> QueueName {
        let known = self.topics.topic(topic).map(|topic| topic.config.name.clone());
        QueueName { topic: known.unwrap_or_else(|| topic.into()), queue_id }
    }

    /// A credit for another thread: the one that the connection has waited for, or a free one.
    pub(crate) fn credit(&self, conn: &Conn, other: usize) -> Option<Credit<'_>> {
        match conn.state.credit.take() {
            Some(kept) if kept == other => return Some(self.links.kept(kept)),
            Some(unused) => drop(self.links.kept(unused)),
            None => {}
        }
        self.links.try_credit(other)
    }

    /// Hands an op to another thread.
    pub(crate) fn ask(&self, credit: Credit<'_>, shard: u32, ticket: Ticket, op: Op) {
        self.links.ask(credit, Question { shard, ticket, op });
        self.turn.set();
    }

    /// Takes a request to its shard, wherever that is.
    pub(crate) fn start(&self, conn: &Rc<Conn>, ticket: Ticket, shard: u32, op: Op) -> Served {
        match self.place(shard) {
            Place::Here(index, local) => match local.execute(self, ticket, op) {
                Executed::Reply(reply) => self.finish(ticket, reply),
                Executed::Later => {}
                Executed::NoRoom(_) => return Served::Again(Wait::Room(index)),
            },
            Place::On(other) => match self.credit(conn, other) {
                Some(credit) => self.ask(credit, shard, ticket, op),
                None => return Served::Again(Wait::Credit(other)),
            },
        }
        Served::Done
    }

    /// Waits until a shard of this thread has room for appends again.
    pub(crate) async fn wait_for_room(&self, index: usize) {
        if let Some(shard) = self.shards.get(index) {
            shard.room.notified().await;
        }
    }

    /// The connection of this name, if it still exists.
    pub(crate) fn conn(&self, id: ConnId) -> Option<Rc<Conn>> {
        let slot = usize::try_from(id.slot).ok()?;
        let conns = self.conns.borrow();
        conns.get(slot).filter(|conn| conn.context.conn == id).cloned()
    }

    /// Gives an outcome to the thread that asked.
    fn deliver(&self, ticket: Ticket, reply: Reply) {
        let asking = usize::from(ticket.conn.thread);
        if asking == self.index {
            self.finish(ticket, reply);
        } else {
            self.links.answer(asking, Answer { ticket, reply });
        }
    }

    /// Takes the outcome of a request of this thread.
    pub(crate) fn finish(&self, ticket: Ticket, reply: Reply) {
        match reply {
            Reply::Held(op) => self.hold(ticket, op),
            Reply::Queried(mut op) => match op.next_shard(self.shared.shards) {
                Some(shard) => self.query_on(ticket, shard, op),
                None => answer::complete(self, &ticket, Reply::Queried(op)),
            },
            reply => {
                if ticket.hold != 0 {
                    self.held.borrow_mut().free(ticket.hold);
                }
                answer::complete(self, &ticket, reply);
            }
        }
    }

    fn hold(&self, ticket: Ticket, op: Box<PullOp>) {
        let Some(conn) = self.conn(ticket.conn) else {
            self.held.borrow_mut().free(ticket.hold);
            self.unhold(ticket, op.queue, ticket.hold);
            return;
        };
        let sooner = self.held.borrow().next_end().is_none_or(|end| op.until < end);
        self.held.borrow_mut().hold(ticket.hold, op);
        conn.state.held.borrow_mut().push(ticket.hold);
        if sooner {
            self.new_end.notify_one();
        }
    }

    /// Takes a held pull out: its wait is over.
    fn take_held(&self, token: u64) -> Option<(Ticket, Box<PullOp>)> {
        let (ticket, mut op) = self.held.borrow_mut().take(token)?;
        op.hold = None;
        if let Some(conn) = self.conn(ticket.conn) {
            let mut held = conn.state.held.borrow_mut();
            if let Some(at) = held.iter().position(|known| *known == token) {
                held.swap_remove(at);
            }
        }
        Some((Ticket { hold: 0, ..ticket }, op))
    }

    /// A message has come for a held pull of any thread.
    fn wake(&self, token: u64) {
        let owner = held::thread_of(token);
        if owner != self.index {
            self.links.nudge(owner, token);
        } else if let Some((ticket, op)) = self.take_held(token) {
            self.pull_again(ticket, op);
        }
    }

    /// The hold time of a pull is over.
    fn end_hold(&self, token: u64) {
        if let Some((ticket, mut op)) = self.take_held(token) {
            op.unhold = Some(token);
            self.pull_again(ticket, op);
        }
    }

    /// Runs a pull once more, without holding it. If its connection has no room for answers now, it
    /// runs when there is.
    pub(crate) fn pull_again(&self, ticket: Ticket, op: Box<PullOp>) {
        let Some(conn) = self.conn(ticket.conn) else {
            if let Some(token) = op.unhold {
                self.unhold(ticket, op.queue, token);
            }
            return;
        };
        if !conn.has_output_room() {
            conn.state.deferred.borrow_mut().push((ticket, op));
            return;
        }
        self.start_later(ticket, self.shard_of(&op.queue), Op::Pull(op));
    }

    /// Takes a wait back whose pull has no connection any more.
    fn unhold(&self, ticket: Ticket, queue: QueueName, token: u64) {
        let ticket = Ticket { oneway: true, hold: 0, ..ticket };
        self.start_later(ticket, self.shard_of(&queue), Op::Unhold { queue, token });
    }

    /// Takes an op to its shard that no connection waits with. The number of such ops is bounded by
    /// those of held pulls and of searches by key.
    fn start_later(&self, ticket: Ticket, shard: u32, op: Op) {
        self.turn.set();
        match self.place(shard) {
            Place::Here(_, local) => match local.execute(self, ticket, op) {
                Executed::Reply(reply) => self.finish(ticket, reply),
                Executed::Later => {}
                Executed::NoRoom(op) => local.backlog.borrow_mut().push_back((ticket, op)),
            },
            Place::On(other) => match self.links.try_credit(other) {
                Some(credit) => self.ask(credit, shard, ticket, op),
                None => self.queue_for_credit(other, Question { shard, ticket, op }),
            },
        }
    }

    /// Takes a search by key to its next shard. In a task of its own: a store may have a thousand
    /// shards, and the calls of this one would be as deep.
    fn query_on(&self, ticket: Ticket, shard: u32, op: Box<QueryOp>) {
        let Some(me) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move { me.start_later(ticket, shard, Op::Query(op)) });
    }

    fn queue_for_credit(&self, other: usize, question: Question) {
        let Some(me) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            let credit = me.links.credit(other).await;
            me.links.ask(credit, question);
            me.turn.set();
        });
    }

    /// A connection has ended: nothing of it may be left.
    pub(crate) fn forget(&self, conn: &Rc<Conn>) {
        self.give_credit_back(conn);
        let id = conn.context.conn;
        if self.conn(id).is_some()
            && let Ok(slot) = usize::try_from(id.slot)
        {
            self.conns.borrow_mut().remove(slot);
        }
        for token in std::mem::take(&mut *conn.state.held.borrow_mut()) {
            let taken = self.held.borrow_mut().take(token);
            if let Some((ticket, op)) = taken {
                self.unhold(ticket, op.queue, token);
            }
        }
        for (ticket, op) in std::mem::take(&mut *conn.state.deferred.borrow_mut()) {
            if let Some(token) = op.unhold {
                self.unhold(ticket, op.queue, token);
            }
        }
    }
}

#[cfg(test)]
mod tests;
