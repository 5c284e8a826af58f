//! The name server's socket: frames in, answers out, with a bound on everything.
//!
//! One task per connection on the control thread's runtime. A connection reads, handles every whole
//! frame and writes the answers before it reads again, so that a peer which does not take its
//! answers is not read either. Bytes that do not start a frame cost their connection only.

use std::{
    cell::RefCell,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bytes::{Buf, BytesMut};
use ringmq_protocol::{
    command::Command,
    frame::{self, FRAME_LEN_MAX, Frame},
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinSet, spawn_blocking, yield_now},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at},
};
use tracing::{debug, info, warn};

use super::{
    NameServer,
    kv::{KvChange, NotChanged},
    routes::Peer,
};
use crate::{
    clock,
    control::{answer::Answer, files},
};

/// Connections at most; further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 20_000;
/// A connection on which nothing comes for this long is closed. Source: 120 s all-idle of upstream.
pub const IDLE_MAX: Duration = Duration::from_secs(120);
/// A peer that does not take its answers for this long loses its connection.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// A frame longer than [`SMALL_FRAME_LEN_MAX`] must be whole this long after its start.
pub const LARGE_FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that all connections together may hold in frames longer than [`SMALL_FRAME_LEN_MAX`].
pub const LARGE_FRAMES_LEN_MAX: usize = 128 << 20;
/// Frames up to this length need no part of [`LARGE_FRAMES_LEN_MAX`].
pub const SMALL_FRAME_LEN_MAX: usize = 16 << 10;
/// How often silent brokers are looked for.
const EXPIRY_SCAN: Duration = Duration::from_secs(5);
/// Answers are written when they are this long, even if more requests wait in the buffer.
const ANSWERS_LEN_MAX: usize = 256 << 10;
/// Unit of the large-frame budget: semaphores count in 32 bits.
const BUDGET_UNIT: usize = 1024;
/// What a connection reads at a time.
const READ_LEN: usize = 8 << 10;

/// A name server with its listening socket.
pub(crate) struct Listener {
    socket: TcpListener,
    shared: Shared,
}

/// What all connections use. They run on one thread.
#[derive(Clone)]
struct Shared {
    server: Rc<RefCell<NameServer>>,
    kv_path: Arc<Path>,
    /// Held while a change of the KV configuration is written: they follow each other.
    kv_turn: Rc<Mutex<()>>,
    large_frames: Arc<Semaphore>,
}

impl Listener {
    /// Starts to serve on a bound socket. Call it inside the runtime that will run it.
    pub(crate) fn new(
        socket: std::net::TcpListener,
        server: NameServer,
        kv_path: PathBuf,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let shared = Shared {
            server: Rc::new(RefCell::new(server)),
            kv_path: kv_path.into(),
            kv_turn: Rc::default(),
            large_frames: Arc::new(Semaphore::new(LARGE_FRAMES_LEN_MAX / BUDGET_UNIT)),
        };
        Ok(Self { socket: TcpListener::from_std(socket)?, shared })
    }

    /// Accepts and serves connections until `stop` says so; they end with it.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { socket, shared } = self;
        let mut connections = JoinSet::new();
        let mut next_peer = 0_u64;
        let mut scan = interval(EXPIRY_SCAN);
        scan.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                _ = scan.tick() => {
                    let expired = shared.server.borrow_mut().routes.expire(clock::instant());
                    for addr in expired {
                        warn!(%addr, "broker was silent for too long and is dropped");
                    }
                }
                Some(_) = connections.join_next() => {}
                accepted = socket.accept() => match accepted {
                    Ok((stream, addr)) if connections.len() < CONNECTIONS_MAX => {
                        next_peer += 1;
                        let peer = Peer(next_peer);
                        connections.spawn_local(serve(stream, addr, peer, shared.clone()));
                    }
                    Ok((_, addr)) => warn!(%addr, max = CONNECTIONS_MAX, "too many connections"),
                    Err(error) => {
                        // Out of descriptors, most likely: give the others time to end.
                        warn!(%error, "the name server cannot accept");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
    }
}

async fn serve(stream: TcpStream, addr: SocketAddr, peer: Peer, shared: Shared) {
    let ended = Connection::new(stream, addr, peer, shared.clone()).run().await;
    debug!(%addr, error = ended.err().map(tracing::field::display), "connection ended");
    for broker in shared.server.borrow_mut().routes.connection_closed(peer) {
        info!(addr = %broker, "broker's connection ended, it is dropped");
    }
}

struct Connection {
    stream: TcpStream,
    addr: SocketAddr,
    peer: Peer,
    shared: Shared,
    received: BytesMut,
    answers: Vec<u8>,
    /// Held while a large frame arrives.
    large_frame: Option<LargeFrame>,
}

struct LargeFrame {
    _budget: OwnedSemaphorePermit,
    deadline: Instant,
}

impl Connection {
    fn new(stream: TcpStream, addr: SocketAddr, peer: Peer, shared: Shared) -> Self {
        let (received, answers) = (BytesMut::new(), Vec::new());
        Self { stream, addr, peer, shared, received, answers, large_frame: None }
    }

    async fn run(mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        loop {
            self.handle_received().await?;
            // A socket that is never empty must not keep the others waiting.
            yield_now().await;
            self.budget_large_frame().await?;
            let until = self
                .large_frame
                .as_ref()
                .map_or_else(|| Instant::now() + IDLE_MAX, |large| large.deadline);
            // The buffer comes when the bytes are there: an idle connection holds none.
            let readable = timeout_at(until, self.stream.readable()).await;
            readable.map_err(|_| timed_out("nothing came"))??;
            self.received.reserve(READ_LEN);
            match self.stream.try_read_buf(&mut self.received) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Handles every whole frame that is there and writes the answers.
    async fn handle_received(&mut self) -> io::Result<()> {
        while let Some(frame) = decode(&self.received)? {
            let total_len = frame.total_len;
            self.shared.handle(self.peer, self.addr, &frame, &mut self.answers).await?;
            self.received.advance(total_len);
            if self.answers.len() >= ANSWERS_LEN_MAX {
                self.write_answers().await?;
            }
        }
        self.write_answers().await
    }

    async fn write_answers(&mut self) -> io::Result<()> {
        if !self.answers.is_empty() {
            let write = timeout(WRITE_TIMEOUT, self.stream.write_all(&self.answers));
            write.await.map_err(|_| timed_out("answers were not taken"))??;
        }
        // An idle connection holds no buffer.
        self.answers = Vec::new();
        Ok(())
    }

    /// Waits until the budget of all connections allows the frame that has begun, if it is large.
    async fn budget_large_frame(&mut self) -> io::Result<()> {
        let wanted = frame::peek_len(&self.received, FRAME_LEN_MAX).map_err(invalid)?;
        let wanted = wanted.unwrap_or(0);
        if wanted <= SMALL_FRAME_LEN_MAX {
            self.large_frame = None;
            if self.received.is_empty() {
                self.received = BytesMut::new();
            }
        } else if self.large_frame.is_none() {
            let deadline = Instant::now() + LARGE_FRAME_TIMEOUT;
            let units = u32::try_from(wanted.div_ceil(BUDGET_UNIT)).map_err(invalid)?;
            let budget = Arc::clone(&self.shared.large_frames).acquire_many_owned(units);
            let budget = timeout_at(deadline, budget).await;
            let budget = budget.map_err(|_| timed_out("no room for a large frame"))?;
            self.large_frame = Some(LargeFrame { _budget: budget.map_err(invalid)?, deadline });
        }
        Ok(())
    }
}

impl Shared {
    /// Answers one frame; an error ends the connection.
    async fn handle(
        &self,
        peer: Peer,
        addr: SocketAddr,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let command = Command::parse(frame.encoding, frame.header).map_err(invalid)?;
        if command.is_response() {
            return Ok(());
        }
        let answer = match KvChange::of(&command) {
            Some(Ok(change)) => self.change_kv(change).await,
            Some(Err(error)) => error.into(),
            None => {
                let mut server = self.server.borrow_mut();
                server.handle(peer, addr, &command, frame.body, clock::instant())
            }
        };
        if !command.is_oneway() {
            answer.append_to(out, frame.encoding, command.opaque);
        }
        Ok(())
    }

    /// Changes the KV configuration and its file, while other connections are served.
    async fn change_kv(&self, change: KvChange) -> Answer {
        let _turn = self.kv_turn.lock().await;
        let before = self.server.borrow().kv();
        let path = Arc::clone(&self.kv_path);
        let save = move |content: &[u8]| files::replace(&path, content);
        let changed = spawn_blocking(move || change.apply(&before, save)).await;
        let changed = changed.unwrap_or_else(|error| Err(NotChanged::NotSaved(error.into())));
        self.server.borrow_mut().kv_changed(changed)
    }
}

fn decode(received: &[u8]) -> io::Result<Option<Frame<'_>>> {
    frame::decode(received, FRAME_LEN_MAX).map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}
