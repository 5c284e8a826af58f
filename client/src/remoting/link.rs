//! One connection: a task that writes requests and hands answers to those who wait for them.
//!
//! Three bounds hold: [`CALLS_MAX`] requests wait for an answer, [`QUEUED_COUNT_MAX`] frames and
//! [`QUEUED_KIB_MAX`] of them wait to be written. A caller waits for room, within its own time.
//! When the connection ends, for whatever reason, all who wait are told.

use std::{
    collections::HashMap,
    future::Future,
    io, mem,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Buf, Bytes, BytesMut};
use ringmq_protocol::{
    command::Command,
    frame::{self, FRAME_LEN_MAX},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
};

use super::{Answer, serve::Desk};
use crate::{client::Shared, lock};

/// Most requests of one connection that wait for an answer. Each queue that is read has one held
/// pull among them, so there is room for many queues and for sends beside them.
const CALLS_MAX: usize = 65_536;

/// Most frames that wait to be written.
const QUEUED_COUNT_MAX: usize = 1024;

/// How much of them waits to be written, in KiB; two of the longest frames.
const QUEUED_KIB_MAX: usize = 2 * FRAME_LEN_MAX / 1024 + 2;

/// Most frames written at once.
const WRITE_COUNT_MAX: usize = 64;

/// Bodies up to this length are copied behind their headers, so that one write sends many frames.
const COPIED_LEN_MAX: usize = 16 * 1024;

/// Room for writing that is kept while there is nothing to write, in bytes.
const KEPT_LEN_MAX: usize = 256 * 1024;

/// Room for reading, in bytes; longer frames get what they need.
const READ_LEN: usize = 16 * 1024;

/// A connection. Dropping it lets its task write what is queued, then close.
#[derive(Debug)]
pub(super) struct Link {
    outgoing: mpsc::Sender<Outgoing>,
    calls: Arc<Semaphore>,
    room: Arc<Semaphore>,
    state: Arc<State>,
}

/// What the connection's task shares with callers.
#[derive(Debug)]
struct State {
    /// Who waits for which answer. Removed by whoever comes first: the answer, or the caller that
    /// stops waiting. `None` once the connection has ended.
    waiting: Mutex<Option<HashMap<i32, oneshot::Sender<Answer>>>>,
    /// Reads that brought something. Only the task adds to it.
    received: AtomicU64,
    close: Notify,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    head: Vec<u8>,
    body: Bytes,
    /// Given back when the frame is written.
    _room: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    /// A whole frame that is written without a place of its own: an answer to a broker.
    pub(super) const fn answer(frame: Vec<u8>) -> Self {
        Self { head: frame, body: Bytes::new(), _room: None }
    }

    #[cfg(test)]
    pub(super) fn into_head(self) -> Vec<u8> {
        self.head
    }
}

/// A request that the connection did not take: its frame up to the body, and the body.
pub(super) type Unsent = (Vec<u8>, Bytes);

impl Link {
    pub(super) fn start(addr: &str, stream: TcpStream, client: Weak<Shared>) -> Self {
        let (outgoing, queue) = mpsc::channel(QUEUED_COUNT_MAX);
        let state = Arc::new(State {
            waiting: Mutex::new(Some(HashMap::new())),
            received: AtomicU64::new(0),
            close: Notify::new(),
        });
        let desk = Desk::new(addr, client, outgoing.downgrade());
        tokio::spawn(run(desk, stream, queue, Arc::clone(&state)));
        Self {
            outgoing,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            room: Arc::new(Semaphore::new(QUEUED_KIB_MAX)),
            state,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.outgoing.is_closed()
    }

    /// Ends the connection at once.
    pub(super) fn close(&self) {
        self.state.close.notify_one();
    }

    /// A number that changes with everything that comes in.
    pub(super) fn received(&self) -> u64 {
        self.state.received.load(Ordering::Relaxed)
    }

    /// Waits until all that was handed over is written, or the connection has ended.
    pub(super) async fn flushed(&self) {
        let all = u32::try_from(QUEUED_KIB_MAX).unwrap_or(u32::MAX);
        tokio::select! {
            _ = self.room.acquire_many(all) => {}
            () = self.outgoing.closed() => {}
        }
    }

    /// Queues a request. The inner future gives its answer, or `None` if the connection ended.
    ///
    /// # Errors
    ///
    /// The request, if the connection has ended.
    pub(super) async fn send(
        &self,
        opaque: i32,
        head: Vec<u8>,
        body: Bytes,
    ) -> Result<impl Future<Output = Option<Answer>> + use<>, Unsent> {
        let call = Arc::clone(&self.calls).acquire_owned().await.ok();
        let (sender, receiver) = oneshot::channel();
        match lock(&self.state.waiting).as_mut() {
            Some(waiting) => drop(waiting.insert(opaque, sender)),
            None => return Err((head, body)),
        }
        let forget = Forget { state: Arc::clone(&self.state), opaque };
        self.queue(head, body).await?;
        Ok(async move {
            let answer = receiver.await.ok();
            drop((call, forget));
            answer
        })
    }

    /// Queues a request that gets no answer.
    ///
    /// # Errors
    ///
    /// The request, if the connection has ended.
    pub(super) async fn send_oneway(&self, head: Vec<u8>, body: Bytes) -> Result<(), Unsent> {
        self.queue(head, body).await
    }

    async fn queue(&self, head: Vec<u8>, body: Bytes) -> Result<(), Unsent> {
        let kib = (head.len() + body.len()).div_ceil(1024);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let room = tokio::select! {
            room = Arc::clone(&self.room).acquire_many_owned(kib) => room.ok(),
            () = self.outgoing.closed() => return Err((head, body)),
        };
        let outgoing = Outgoing { head, body, _room: room };
        self.outgoing.send(outgoing).await.map_err(|error| (error.0.head, error.0.body))
    }
}

/// Removes a caller that stops waiting.
struct Forget {
    state: Arc<State>,
    opaque: i32,
}

impl Drop for Forget {
    fn drop(&mut self) {
        if let Some(waiting) = lock(&self.state.waiting).as_mut() {
            waiting.remove(&self.opaque);
        }
    }
}

async fn run(
    desk: Desk,
    stream: TcpStream,
    mut queue: mpsc::Receiver<Outgoing>,
    state: Arc<State>,
) {
    let (reader, writer) = stream.into_split();
    let end = tokio::select! {
        end = read(reader, &desk, &state) => end,
        end = write(writer, &mut queue) => end,
        () = state.close.notified() => Ok(()),
    };
    if let Err(error) = end {
        tracing::debug!(addr = desk.addr(), %error, "connection ended");
    }
    // First refuse new requests, then tell those who wait: their senders are dropped.
    queue.close();
    drop(lock(&state.waiting).take());
}

/// Writes frames until all senders are gone.
async fn write(mut writer: OwnedWriteHalf, queue: &mut mpsc::Receiver<Outgoing>) -> io::Result<()> {
    let mut frames = Vec::with_capacity(WRITE_COUNT_MAX);
    let mut bytes = Vec::new();
    while queue.recv_many(&mut frames, WRITE_COUNT_MAX).await > 0 {
        for frame in &mut frames {
            bytes.append(&mut frame.head);
            if frame.body.len() <= COPIED_LEN_MAX {
                bytes.extend_from_slice(&frame.body);
            } else {
                writer.write_all(&bytes).await?;
                bytes.clear();
                writer.write_all(&mem::take(&mut frame.body)).await?;
            }
        }
        writer.write_all(&bytes).await?;
        bytes.clear();
        bytes.shrink_to(KEPT_LEN_MAX);
        frames.clear();
    }
    writer.shutdown().await
}

/// Reads frames until the peer closes.
async fn read(mut reader: OwnedReadHalf, desk: &Desk, state: &State) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(READ_LEN);
    loop {
        while let Some(len) = whole_frame(&buffer)? {
            take_frame(buffer.split_to(len).freeze(), desk, state)?;
        }
        let missing = frame::peek_len(&buffer, FRAME_LEN_MAX)
            .map_err(io::Error::other)?
            .map_or(0, |len| len.saturating_sub(buffer.len()));
        buffer.reserve(missing.max(READ_LEN));
        if reader.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.received.fetch_add(1, Ordering::Relaxed);
    }
}

/// Length of the frame that the buffer starts with, if it is there as a whole.
fn whole_frame(buffer: &[u8]) -> io::Result<Option<usize>> {
    let frame = frame::decode(buffer, FRAME_LEN_MAX).map_err(io::Error::other)?;
    Ok(frame.map(|frame| frame.total_len))
}

/// Hands an answer to its caller, or a request to the desk.
fn take_frame(bytes: Bytes, desk: &Desk, state: &State) -> io::Result<()> {
    let Some(frame) = frame::decode(&bytes, FRAME_LEN_MAX).map_err(io::Error::other)? else {
        return Ok(());
    };
    let command = Command::parse(frame.encoding, frame.header).map_err(io::Error::other)?;
    let (opaque, is_response) = (command.opaque, command.is_response());
    let (encoding, header_len, body_len) = (frame.encoding, frame.header.len(), frame.body.len());
    drop(command);
    let mut header = bytes;
    header.advance(frame::PREFIX_LEN);
    let body = header.split_off(header_len);
    debug_assert!(body.len() == body_len, "a frame is prefix, header and body");
    if !is_response {
        desk.take(encoding, header, body);
        return Ok(());
    }
    let caller = lock(&state.waiting).as_mut().and_then(|waiting| waiting.remove(&opaque));
    match caller {
        // The caller may have gone in this moment.
        Some(caller) => drop(caller.send(Answer { encoding, header, body })),
        None => tracing::trace!(opaque, "answer to nobody"),
    }
    Ok(())
}
