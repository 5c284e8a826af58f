//! One connection: a reader task, a writer task, and what they share.
//!
//! The reader does not read while the connection owes the peer more answers than its output budget
//! allows, while its thread's budget is used up, or while the service asks it to wait. Nothing is
//! queued for a connection that is not read, beyond the answers to what it has already asked.
//!
//! A socket that takes no byte for the write timeout, a frame over 4 KiB that does not arrive in its
//! time, and a connection without traffic are closed by [`sweep`], with a log line.

use std::{
    cell::{Cell, RefCell},
    io,
    net::Shutdown,
    rc::Rc,
};

use ringmq_protocol::frame::{self, FRAME_LEN_MAX, Frame};
use tokio::sync::Notify;
use tokio_uring::net::TcpStream;

use super::{
    inbox::{Inbox, Pool},
    outbox::Outbox,
    signal::Signal,
};
use crate::{config::Limits, context::RequestContext};

/// A frame over 4 KiB holds memory that others wait for: its next byte must come within this time.
const FRAME_PAUSE_MAX: std::time::Duration = std::time::Duration::from_secs(3);

/// Ticks of the thread's coarse clock per second.
pub(crate) const TICKS_PER_SECOND: u64 = 10;

/// What a service says about a frame.
#[derive(Debug)]
pub(crate) enum Served<W> {
    /// Accepted; an answer may come later.
    Done,
    /// Not accepted: offer it again after this wait.
    Again(W),
    /// Accepted, but wait before the next one.
    Then(W),
    /// The peer has broken the protocol: close the connection.
    Close,
}

/// What is done with the frames. Lives on the thread of its connections.
pub(crate) trait Service: 'static {
    /// What a connection may have to wait for.
    type Wait;
    /// What the service keeps with each connection.
    type State: Default;

    /// Bytes have arrived; frames of them follow.
    fn chunk_arrived(&self);

    /// Takes one frame. `whole` is all of it, with its length field.
    fn serve(
        &self,
        conn: &Rc<Conn<Self::State>>,
        frame: &Frame<'_>,
        whole: &[u8],
    ) -> Served<Self::Wait>;

    /// Waits, without blocking other connections.
    async fn wait(&self, conn: &Rc<Conn<Self::State>>, wait: Self::Wait);

    /// Whether the wait has ended with an answer to the frame, which is not offered again then.
    fn refused(&self, conn: &Rc<Conn<Self::State>>) -> bool;

    /// All whole frames of a chunk have been served, or the connection is about to wait.
    fn chunk_served(&self);

    /// The connection is about to wait for its peer: what it holds that others wait for goes back.
    fn peer_is_slow(&self, conn: &Rc<Conn<Self::State>>);

    /// The connection is below its output budget again.
    fn output_drained(&self, conn: &Rc<Conn<Self::State>>);

    /// The connection has ended; no frame of it follows.
    async fn closed(&self, conn: &Rc<Conn<Self::State>>);
}

/// What all connections of a thread share.
#[derive(Debug)]
pub(crate) struct NetShared {
    /// Large receive buffers.
    pub(crate) pool: Rc<Pool>,
    /// Bounds of time and memory.
    pub(crate) limits: Limits,
    /// The coarse clock: rises [`TICKS_PER_SECOND`] times a second.
    pub(crate) tick: Cell<u64>,
    /// Bytes of answers that wait in all connections.
    output: Cell<usize>,
    output_max: usize,
    /// Readers wait here while `output` is above its maximum.
    output_fell: Notify,
    /// Connections closed because their socket took nothing.
    pub(crate) stalled: Cell<u64>,
}

impl NetShared {
    /// For one of `threads` threads.
    pub(crate) fn new(limits: Limits, threads: usize) -> Self {
        Self {
            pool: Rc::new(Pool::new(limits.receive_bytes / threads)),
            tick: Cell::new(0),
            output: Cell::new(0),
            output_max: limits.output_bytes / threads,
            output_fell: Notify::new(),
            stalled: Cell::new(0),
            limits,
        }
    }
}

/// One connection.
pub(crate) struct Conn<T> {
    /// Who is at the other end.
    pub(crate) context: RequestContext,
    /// What the service keeps with it.
    pub(crate) state: T,
    shared: Rc<NetShared>,
    stream: Rc<TcpStream>,
    outbox: RefCell<Outbox>,
    /// Bytes in the outbox and in the write that is under way.
    waiting: Cell<usize>,
    /// Set by whoever puts answers; the writer waits for it.
    has_output: Signal,
    /// Set by the writer; the reader waits for it.
    has_room: Signal,
    closing: Cell<bool>,
    /// The last write did not go out at once: its peer is behind.
    slow: Cell<bool>,
    /// Tick of the last byte in either direction.
    active: Cell<u64>,
    /// Since when a write has made no progress.
    write_since: Cell<Option<u64>>,
    /// Since when a frame over 4 KiB is incomplete.
    frame_since: Cell<Option<u64>>,
}

impl<T: Default> Conn<T> {
    pub(crate) fn new(context: RequestContext, stream: TcpStream, shared: Rc<NetShared>) -> Self {
        let active = Cell::new(shared.tick.get());
        Self {
            context,
            state: T::default(),
            shared,
            stream: Rc::new(stream),
            outbox: RefCell::default(),
            waiting: Cell::new(0),
            has_output: Signal::default(),
            has_room: Signal::default(),
            closing: Cell::new(false),
            slow: Cell::new(false),
            active,
            write_since: Cell::new(None),
            frame_since: Cell::new(None),
        }
    }
}

impl<T> Conn<T> {
    /// Appends answers; they go out with the writer's next turn.
    pub(crate) fn put(&self, write: impl FnOnce(&mut Outbox)) {
        if self.closing.get() {
            return;
        }
        let mut outbox = self.outbox.borrow_mut();
        let before = outbox.len();
        write(&mut outbox);
        self.add_waiting(outbox.len() - before);
        self.has_output.set();
    }

    /// Whether the peer is behind, so that answers to it must not hold shared memory.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.get()
    }

    /// Whether the connection may get answers of any length now.
    pub(crate) fn has_output_room(&self) -> bool {
        self.waiting.get() < self.shared.limits.conn_output_bytes
    }

    /// Ends the connection: reads and writes under way fail.
    pub(crate) fn abort(&self) {
        self.closing.set(true);
        self.has_output.set();
        self.has_room.set();
        // Fails if the peer was faster, which is as good.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Whether answers wait to be written.
    pub(crate) fn owes_output(&self) -> bool {
        self.waiting.get() > 0 && !self.closing.get()
    }

    fn touch(&self) {
        self.active.set(self.shared.tick.get());
    }

    fn add_waiting(&self, len: usize) {
        self.waiting.set(self.waiting.get() + len);
        self.shared.output.set(self.shared.output.get() + len);
    }

    fn sub_waiting(&self, len: usize) {
        self.waiting.set(self.waiting.get() - len);
        let shared = &self.shared;
        let before = shared.output.get();
        shared.output.set(before - len);
        if before >= shared.output_max && before - len < shared.output_max {
            shared.output_fell.notify_waiters();
        }
    }

    /// Waits until the peer has taken enough of what it is owed.
    async fn output_room(&self) {
        while !self.has_output_room() && !self.closing.get() {
            self.has_room.wait().await;
        }
        while self.shared.output.get() >= self.shared.output_max && !self.closing.get() {
            let fell = self.shared.output_fell.notified();
            tokio::select! {
                () = fell => {}
                () = self.has_room.wait() => {}
            }
        }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn run<S: Service>(conn: Rc<Conn<S::State>>, service: Rc<S>) {
    let writer = tokio::task::spawn_local(write_answers(conn.clone(), service.clone()));
    if let Err(why) = read_frames(&conn, &*service).await {
        tracing::debug!(peer = %conn.context.peer, %why, "connection ended");
    }
    service.closed(&conn).await;
    conn.closing.set(true);
    conn.has_output.set();
    // The writer sends what is left; it ends with the socket or with the write timeout.
    let _ = writer.await;
    let rest = conn.waiting.get();
    conn.sub_waiting(rest);
}

async fn read_frames<S: Service>(conn: &Rc<Conn<S::State>>, service: &S) -> io::Result<()> {
    let mut inbox = Inbox::new(conn.shared.pool.clone());
    loop {
        inbox.make_room().await.map_err(io::Error::other)?;
        let since = conn.frame_since.get().unwrap_or_else(|| conn.shared.tick.get());
        conn.frame_since.set(inbox.holds_budget_for_a_frame().then_some(since));
        if inbox.read(&conn.stream).await? == 0 {
            return Ok(());
        }
        conn.touch();
        service.chunk_arrived();
        serve_chunk(conn, service, &mut inbox).await?;
        service.chunk_served();
    }
}

async fn serve_chunk<S: Service>(
    conn: &Rc<Conn<S::State>>,
    service: &S,
    inbox: &mut Inbox,
) -> io::Result<()> {
    loop {
        if !conn.has_output_room() || conn.shared.output.get() >= conn.shared.output_max {
            service.chunk_served();
            service.peer_is_slow(conn);
            conn.output_room().await;
        }
        if conn.closing.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let unread = inbox.unread();
        let frame = frame::decode(unread, FRAME_LEN_MAX).map_err(io::Error::other)?;
        let Some(frame) = frame else { return Ok(()) };
        let len = frame.total_len;
        let whole = unread.get(..len).unwrap_or_default();
        match service.serve(conn, &frame, whole) {
            Served::Done => inbox.consume(len),
            Served::Again(wait) => {
                service.chunk_served();
                service.wait(conn, wait).await;
                if service.refused(conn) {
                    inbox.consume(len);
                }
            }
            Served::Then(wait) => {
                inbox.consume(len);
                service.chunk_served();
                service.wait(conn, wait).await;
            }
            Served::Close => return Err(io::ErrorKind::InvalidData.into()),
        }
        conn.frame_since.set(None);
    }
}

async fn write_answers<S: Service>(conn: Rc<Conn<S::State>>, service: Rc<S>) {
    let shared = &conn.shared;
    loop {
        let batch = conn.outbox.borrow_mut().take();
        let Some(batch) = batch else {
            if conn.closing.get() {
                return;
            }
            conn.has_output.wait().await;
            continue;
        };
        let len = batch.len();
        let progress = || {
            conn.write_since.set(Some(shared.tick.get()));
            conn.touch();
        };
        conn.write_since.set(Some(shared.tick.get()));
        let written = batch.write(&conn.stream, progress).await;
        conn.write_since.set(None);
        conn.sub_waiting(len);
        let Ok(written) = written else {
            conn.abort();
            return;
        };
        conn.slow.set(!written.at_once);
        conn.outbox.borrow_mut().recycle(written.batch);
        if conn.has_output_room() {
            conn.has_room.set();
            service.output_drained(&conn);
        }
    }
}

/// Closes the connection if it has been in one state for too long.
pub(crate) fn sweep<T>(conn: &Conn<T>) {
    let (now, limits) = (conn.shared.tick.get(), &conn.shared.limits);
    let older = |since: Option<u64>, limit: std::time::Duration| {
        since.is_some_and(|since| {
            let ticks = limit.as_millis() * u128::from(TICKS_PER_SECOND) / 1000;
            u128::from(now.saturating_sub(since)) > ticks
        })
    };
    let why = if older(conn.write_since.get(), limits.write_timeout) {
        conn.shared.stalled.set(conn.shared.stalled.get() + 1);
        "its socket takes no answers"
    } else if older(conn.frame_since.get(), limits.frame_timeout)
        || (conn.frame_since.get().is_some() && older(Some(conn.active.get()), FRAME_PAUSE_MAX))
    {
        "the rest of a frame did not come"
    } else if older(Some(conn.active.get()), limits.idle_timeout) {
        "no traffic"
    } else {
        return;
    };
    if !conn.closing.get() {
        tracing::info!(peer = %conn.context.peer, waiting = conn.waiting.get(), "closed: {why}");
        conn.abort();
    }
}
