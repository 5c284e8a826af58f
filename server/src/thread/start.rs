//! From a configuration to a running data thread, and its end.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ringmq_engine::{EpochMillis, RingShard};
use slab::Slab;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{LocalShard, Shared, Thread, turn};
use crate::{
    broker::{Conn, held::HeldPulls, keys, topics::Topics},
    context::{ConnId, Principal, RequestContext, Transport},
    control::{ConsumerOffset, Fact, ToThread},
    link::Links,
    metrics::ShardFigures,
    net::{self, conn::NetShared, signal::Signal},
};

/// Entries of the runtime's ring. It submits when its thread parks or when this is full.
const RING_ENTRIES: u32 = 2048;

/// How long connections may take to get their last answers when the process stops.
const DRAIN: Duration = Duration::from_secs(5);

/// What the rest of the process asks of a data thread.
pub(crate) enum ToData {
    /// Accept connections here, and deal them to these threads in turn.
    Listen(TcpListener, Vec<mpsc::Sender<ToData>>),
    /// A new connection.
    Accepted(TcpStream, SocketAddr),
    /// Make these facts durable on shard 0, which is on this thread.
    PutFacts(Vec<Fact>, oneshot::Sender<Result<(), String>>),
    /// Delete this topic's queues on this thread's shards, and the offsets of its consumers.
    DeleteTopic(Arc<str>, oneshot::Sender<Result<(), String>>),
    /// List the committed consumer offsets of this thread's shards.
    ListOffsets(oneshot::Sender<Vec<ConsumerOffset>>),
    /// Tell figures for monitoring.
    Figures(oneshot::Sender<ThreadFigures>),
    /// Stop: no more requests; the answers that are due go out.
    Stop,
}

/// What one data thread has to tell.
pub(crate) struct ThreadFigures {
    pub(crate) shards: Vec<ShardFigures>,
    /// Connections closed because their socket took nothing.
    pub(crate) stalled: u64,
    /// Pulls that wait for messages.
    pub(crate) parked_pulls: usize,
}

/// What a data thread starts with.
pub(crate) struct ThreadStart {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) shards: Vec<(u32, RingShard)>,
    pub(crate) links: Links<super::Question, super::Answer>,
    pub(crate) requests: mpsc::Receiver<ToData>,
    pub(crate) control: mpsc::Receiver<ToThread>,
    /// Told once the runtime is there, or why it is not.
    pub(crate) ready: oneshot::Sender<io::Result<()>>,
}

/// Runs a data thread until it is told to stop. Blocks.
///
/// # Errors
///
/// A line for the log, if a shard could not be closed. What was acknowledged is safe.
pub(crate) fn run(start: ThreadStart) -> Result<(), String> {
    let mut ring = tokio_uring::uring_builder();
    // Without it a fifth of the throughput is lost; with DEFER_TASKRUN the runtime hangs.
    ring.setup_coop_taskrun();
    let mut builder = tokio_uring::builder();
    builder.entries(RING_ENTRIES).uring_builder(&ring);
    let ThreadStart { index, shared, shards, links, requests, control, ready } = start;
    let runtime = match tokio_uring::Runtime::new(&builder) {
        Ok(runtime) => runtime,
        Err(error) => {
            let line = error.to_string();
            let _ = ready.send(Err(error));
            return Err(line);
        }
    };
    let thread = Thread::new(index, shared, shards, links);
    let closing = thread.clone();
    runtime.block_on(async move {
        let _ = ready.send(Ok(()));
        serve(thread, requests, control).await;
    });
    drop(runtime);
    closing.close()
}

async fn serve(
    thread: Rc<Thread>,
    requests: mpsc::Receiver<ToData>,
    control: mpsc::Receiver<ToThread>,
) {
    let mut tasks = vec![
        tokio::task::spawn_local(take_turns(thread.clone())),
        tokio::task::spawn_local(turn::hear_the_bell(thread.clone())),
        tokio::task::spawn_local(turn::tick(thread.clone())),
        tokio::task::spawn_local(turn::end_holds(thread.clone())),
        tokio::task::spawn_local(hear_control(thread.clone(), control)),
    ];
    for index in 0..thread.shards.len() {
        let thread = thread.clone();
        tasks.push(tokio::task::spawn_local(async move {
            if let Err(error) = turn::watch_ring(thread.clone(), index).await {
                tracing::error!(%error, "the ring of a shard cannot be watched");
                thread.shared.fatal.notify_one();
            }
        }));
    }
    // Something may have been left open by the start.
    thread.turn.set();
    hear_requests(&thread, requests).await;
    thread.drain().await;
    for task in &tasks {
        task.abort();
    }
    for task in tasks {
        let _ = task.await;
    }
}

async fn take_turns(thread: Rc<Thread>) {
    if let Err(error) = turn::take_turns(thread.clone()).await {
        tracing::error!(%error, "a data thread cannot look for work");
        thread.shared.fatal.notify_one();
    }
}

async fn hear_requests(thread: &Rc<Thread>, mut requests: mpsc::Receiver<ToData>) {
    let mut acceptors = Vec::new();
    while let Some(request) = requests.recv().await {
        match request {
            ToData::Listen(listener, threads) => {
                let shared = thread.shared.clone();
                acceptors.push(tokio::task::spawn_local(accept_all(shared, listener, threads)));
            }
            ToData::Accepted(stream, peer) => thread.accept(stream, peer),
            ToData::PutFacts(facts, reply) => {
                let thread = thread.clone();
                tokio::task::spawn_local(async move { thread.put_facts(facts, reply).await });
            }
            ToData::DeleteTopic(topic, reply) => {
                let thread = thread.clone();
                tokio::task::spawn_local(async move { thread.delete_topic(&topic, reply).await });
            }
            ToData::ListOffsets(reply) => drop(reply.send(thread.consumer_offsets())),
            ToData::Figures(reply) => drop(reply.send(thread.figures())),
            ToData::Stop => break,
        }
    }
    for acceptor in acceptors {
        acceptor.abort();
        // The socket is closed when the task has gone.
        let _ = acceptor.await;
    }
}

/// Accepts connections until it is aborted, and deals them out.
async fn accept_all(
    shared: Arc<Shared>,
    listener: TcpListener,
    threads: Vec<mpsc::Sender<ToData>>,
) {
    const PAUSE: Duration = Duration::from_millis(100);
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the listening socket cannot be used");
            shared.fatal.notify_one();
            return;
        }
    };
    for thread in threads.iter().cycle() {
        let accepted = loop {
            match listener.accept().await {
                Ok((stream, peer)) if shared.take_conn() => match prepare(stream) {
                    Ok(stream) => break (stream, peer),
                    Err(_) => shared.give_conn(),
                },
                Ok((_, peer)) => {
                    tracing::warn!(%peer, "refused: maxConnections are open");
                }
                Err(error) => {
                    // Mostly a shortage of descriptors, which passes or not.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        if thread.send(ToData::Accepted(accepted.0, accepted.1)).await.is_err() {
            return;
        }
    }
}

fn prepare(stream: tokio::net::TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    // The ring waits for a socket by itself, unless the socket says that it does not block.
    stream.set_nonblocking(false)?;
    Ok(stream)
}

async fn hear_control(thread: Rc<Thread>, mut control: mpsc::Receiver<ToThread>) {
    while let Some(message) = control.recv().await {
        match message {
            ToThread::Send { conn, bytes } => {
                if let Some(conn) = thread.conn(conn) {
                    conn.put(|outbox| outbox.push_bytes(bytes));
                }
            }
            ToThread::Notify { conns, bytes } => {
                // A notice may be lost, so whoever is behind does not get more to read.
                let exist = conns.into_iter().filter_map(|conn| thread.conn(conn));
                for conn in exist.filter(|conn| conn.has_output_room()) {
                    conn.put(|outbox| outbox.push_bytes(bytes.clone()));
                }
            }
            ToThread::Close { conn } => {
                if let Some(conn) = thread.conn(conn) {
                    conn.abort();
                }
            }
        }
    }
}

impl Thread {
    fn new(
        index: usize,
        shared: Arc<Shared>,
        shards: Vec<(u32, RingShard)>,
        links: Links<super::Question, super::Answer>,
    ) -> Rc<Self> {
        let net = NetShared::new(shared.config.limits.clone(), shared.threads);
        let number = u16::try_from(index).expect("threads are few");
        Rc::new_cyclic(|me| Self {
            index,
            topics: Topics::new(&shared.published, shared.shards),
            net: Rc::new(net),
            links,
            held: RefCell::new(HeldPulls::new(number)),
            scratch: RefCell::default(),
            turn: Signal::default(),
            shards: shards
                .into_iter()
                .map(|(number, ring)| LocalShard::new(number, ring))
                .collect(),
            conns: RefCell::new(Slab::new()),
            generation: Cell::new(0),
            now: Cell::new(crate::clock::epoch_ms()),
            picks: Cell::new(0),
            new_end: Notify::new(),
            stopping: Cell::new(false),
            running: Cell::new(0),
            shared,
            me: me.clone(),
        })
    }

    /// Takes a connection over.
    fn accept(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        if self.stopping.get() {
            self.shared.give_conn();
            return;
        }
        let mut conns = self.conns.borrow_mut();
        let slot = conns.vacant_entry();
        self.generation.set(self.generation.get().wrapping_add(1));
        let conn = ConnId {
            thread: u16::try_from(self.index).expect("threads are few"),
            slot: u32::try_from(slot.key()).expect("connections are bounded"),
            generation: self.generation.get(),
        };
        let context = RequestContext {
            peer,
            conn,
            transport: Transport::Plain,
            principal: Principal::Anonymous,
        };
        let stream = tokio_uring::net::TcpStream::from_std(stream);
        let conn: Rc<Conn> = Rc::new(Conn::new(context, stream, self.net.clone()));
        slot.insert(conn.clone());
        self.running.set(self.running.get() + 1);
        let thread = self.clone();
        tokio::task::spawn_local(async move {
            net::conn::run(conn, thread.clone()).await;
            thread.running.set(thread.running.get() - 1);
            thread.shared.give_conn();
        });
    }

    fn figures(&self) -> ThreadFigures {
        let of_shard = |shard: &LocalShard| {
            shard.engine(|engine| ShardFigures {
                shard: shard.number,
                stats: engine.stats(),
                queues: engine.queue_count(),
                poison: engine.poisoned().map(str::to_owned),
                disk: engine.disk_use(),
                lost_unread: shard.losses.borrow().figures(),
            })
        };
        ThreadFigures {
            shards: self.shards.iter().map(of_shard).collect(),
            stalled: self.net.stalled.get(),
            parked_pulls: self.held.borrow().len(),
        }
    }

    fn consumer_offsets(&self) -> Vec<ConsumerOffset> {
        let mut offsets = Vec::new();
        for shard in &self.shards {
            shard.engine(|engine| {
                for (key, value) in engine.facts_with_prefix(keys::OFFSET_PREFIX) {
                    let Some((group, topic, queue_id)) = keys::parse_offset(key) else { continue };
                    let (Ok(queue_id), Ok(value)) = (u32::try_from(queue_id), value.try_into())
                    else {
                        continue;
                    };
                    offsets.push(ConsumerOffset {
                        topic: topic.into(),
                        group: group.into(),
                        queue_id,
                        queue_offset: i64::from_be_bytes(value),
                    });
                }
            });
        }
        offsets
    }

    /// Lets the answers that are due go out, then closes every connection. What is asked meanwhile is
    /// refused, so that producers go to another broker.
    async fn drain(self: &Rc<Self>) {
        self.stopping.set(true);
        let conns = || -> Vec<Rc<Conn>> {
            self.conns.borrow().iter().map(|(_, conn)| conn.clone()).collect()
        };
        let owes = || {
            let acks = self.shards.iter().any(|shard| !shard.acks.borrow().is_empty());
            acks || !self.links.is_quiet() || conns().iter().any(|conn| conn.owes_output())
        };
        let deadline = tokio::time::sleep(DRAIN);
        tokio::pin!(deadline);
        let mut step = tokio::time::interval(Duration::from_millis(2));
        while owes() {
            tokio::select! {
                () = &mut deadline => break,
                _ = step.tick() => {}
            }
        }
        // Others may still wait for this thread's answers.
        self.shared.drained.fetch_add(1, Ordering::Relaxed);
        while self.shared.drained.load(Ordering::Relaxed) < self.shared.threads {
            tokio::select! {
                () = &mut deadline => break,
                _ = step.tick() => {}
            }
        }
        for conn in conns() {
            conn.abort();
        }
        // Every reader and writer must have seen the end of its socket before the runtime goes: it
        // waits for operations that are under way.
        while self.running.get() > 0 {
            step.tick().await;
        }
    }

    /// Flushes and closes the shards.
    fn close(&self) -> Result<(), String> {
        let now = || EpochMillis::new(crate::clock::epoch_ms());
        let mut failed = Ok(());
        for shard in &self.shards {
            let ring = shard.ring.borrow_mut().take();
            if let Some(Err(error)) = ring.map(|ring| ring.close(now)) {
                failed = Err(format!("shard {} was not closed cleanly: {error}", shard.number));
            }
        }
        failed
    }
}
