//! One connection per address, shared by everything of a client.
//!
//! A call encodes its request, takes the connection to its address (or makes one), sends, and
//! waits for the answer with the same `opaque`, all within one deadline. Answers may come in any
//! order. A connection that ended is replaced by the next call; after a failed attempt the address
//! rests for a moment that doubles up to [`REST_MAX`], during which calls fail at once.
//!
//! Elsewhere: bytes in and out are in `link`, what brokers ask of clients is in `serve`.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ringmq_protocol::{
    codes::{VERSION_4_9_8, request, response},
    command::{Command, FLAG_ONEWAY, HeaderError, Language},
    encode::{FrameWriter, Head, begin_frame},
    frame::Encoding,
};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

use self::link::Link;
use crate::{Error, Invalid, client::Shared, lock};

mod link;
mod serve;

pub(crate) use serve::{Inbound, Reply};

/// How long an attempt to connect may take. Source: Apache RocketMQ 4.9.8,
/// `NettyClientConfig.connectTimeoutMillis`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Rest of an address after its first failed attempt to connect.
const REST_MIN: Duration = Duration::from_millis(50);

/// Longest rest of an address.
const REST_MAX: Duration = Duration::from_secs(1);

/// Most connections that a call tries, each of which may end just before it takes the request.
const CONNECTIONS_MAX: usize = 2;

/// A connection on which a call's time ran out while nothing at all came in for this long is given
/// up, since its peer may be gone without a word. Upstream gives it up after every such call.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// A request, encoded but for the connection that it goes to.
pub(crate) struct Request {
    code: i32,
    opaque: i32,
    /// The frame up to its body.
    head: Vec<u8>,
    body: Bytes,
}

/// The answer to a request, whatever its code.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) encoding: Encoding,
    pub(crate) header: Bytes,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn command(&self) -> Result<Command<'_>, HeaderError> {
        Command::parse(self.encoding, &self.header)
    }

    /// The header, with what is wrong with it as an error of this address.
    pub(crate) fn parse(&self, addr: &str) -> Result<Command<'_>, Error> {
        self.command().map_err(|error| unexpected(addr, error))
    }
}

/// The error for an answer that is none.
pub(crate) fn unexpected(addr: &str, reason: impl ToString) -> Error {
    Error::Protocol { addr: addr.into(), reason: reason.to_string() }
}

/// The error for an answer with a code that is no success.
pub(crate) fn refused(addr: &str, command: &Command<'_>) -> Error {
    let remark = command.remark.as_deref().unwrap_or_default();
    Error::Refused { addr: addr.into(), code: command.code, remark: remark.into() }
}

/// The connections of one client. There are as many as addresses in use; [`Remoting::retain`]
/// drops the others.
#[derive(Debug)]
pub(crate) struct Remoting {
    /// Whose connections they are: who answers what brokers ask.
    client: Weak<Shared>,
    peers: Mutex<HashMap<String, Arc<Peer>>>,
    /// The last opaque number given out; all connections count together.
    opaque: AtomicI32,
}

/// One address.
#[derive(Debug, Default)]
struct Peer {
    /// The connection in use. Written under the lock of `rest` only.
    link: Mutex<Option<Arc<Link>>>,
    /// Held while connecting, so that one attempt serves all who wait.
    rest: tokio::sync::Mutex<Rest>,
}

/// What the last failed attempt to connect left behind.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Instant>,
    len: Duration,
    kind: Option<io::ErrorKind>,
}

impl Remoting {
    pub(crate) fn new(client: Weak<Shared>) -> Self {
        Self { client, peers: Mutex::default(), opaque: AtomicI32::new(0) }
    }

    /// Encodes a request.
    ///
    /// # Errors
    ///
    /// [`Invalid::TooLong`] if no peer would accept the frame.
    pub(crate) fn request(
        &self,
        code: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: Bytes,
    ) -> Result<Request, Error> {
        self.encode(code, 0, ext, body)
    }

    /// Encodes a request that gets no answer.
    ///
    /// # Errors
    ///
    /// As [`Remoting::request`].
    pub(crate) fn oneway_request(
        &self,
        code: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: Bytes,
    ) -> Result<Request, Error> {
        self.encode(code, FLAG_ONEWAY, ext, body)
    }

    fn encode(
        &self,
        code: i32,
        flag: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: Bytes,
    ) -> Result<Request, Error> {
        // Zero and negative numbers are left out: some peers take 0 for absent.
        let opaque = (self.opaque.fetch_add(1, Ordering::Relaxed) & 0x3fff_ffff) + 1;
        let mut head = Vec::with_capacity(512);
        let fields = Head {
            encoding: Encoding::Json,
            code,
            language: Language::Rust,
            version: VERSION_4_9_8,
            opaque,
            flag,
            remark: None,
        };
        let mut writer = begin_frame(&mut head, fields);
        ext(&mut writer);
        writer.finish(body.len()).map_err(|error| Invalid::TooLong {
            len: error.len,
            max: ringmq_protocol::frame::FRAME_LEN_MAX,
        })?;
        Ok(Request { code, opaque, head, body })
    }

    /// Sends a request and waits for its answer, whatever its code.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], [`Error::Disconnected`] or [`Error::TimedOut`].
    pub(crate) async fn call(
        &self,
        addr: &str,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let late = || timed_out(addr, request.code);
        let (mut head, mut body) = (request.head, request.body);
        for _ in 0..CONNECTIONS_MAX {
            let link = timeout_at(deadline, self.link(addr)).await.map_err(|_| late())??;
            let received = link.received();
            let sent = timeout_at(deadline, link.send(request.opaque, head, body)).await;
            let waiting = match sent.map_err(|_| late())? {
                Ok(waiting) => waiting,
                // The connection ended before it took the request: another one may.
                Err(unsent) => {
                    (head, body) = unsent;
                    continue;
                }
            };
            let started = Instant::now();
            return match timeout_at(deadline, waiting).await {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(Error::Disconnected { addr: addr.into() }),
                Err(_) => {
                    if link.received() == received && started.elapsed() >= SILENCE_MAX {
                        tracing::debug!(addr, "gave up a silent connection");
                        link.close();
                    }
                    Err(late())
                }
            };
        }
        Err(Error::Disconnected { addr: addr.into() })
    }

    /// Sends a request and waits for an answer with code 0.
    ///
    /// # Errors
    ///
    /// As [`Remoting::call`], and [`Error::Refused`] for any other code.
    pub(crate) async fn call_ok(
        &self,
        addr: &str,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let answer = self.call(addr, request, deadline).await?;
        let command = answer.parse(addr)?;
        match command.code {
            response::SUCCESS => {}
            _ => return Err(refused(addr, &command)),
        }
        drop(command);
        Ok(answer)
    }

    /// Hands a oneway request to the connection, which may still fail to send it.
    ///
    /// # Errors
    ///
    /// As [`Remoting::call`], as far as they show before the request is written.
    pub(crate) async fn oneway(
        &self,
        addr: &str,
        request: Request,
        deadline: Instant,
    ) -> Result<(), Error> {
        let late = || timed_out(addr, request.code);
        let (mut head, mut body) = (request.head, request.body);
        for _ in 0..CONNECTIONS_MAX {
            let link = timeout_at(deadline, self.link(addr)).await.map_err(|_| late())??;
            match timeout_at(deadline, link.send_oneway(head, body)).await.map_err(|_| late())? {
                Ok(()) => return Ok(()),
                Err(unsent) => (head, body) = unsent,
            }
        }
        Err(Error::Disconnected { addr: addr.into() })
    }

    /// Closes the connections to addresses that are not in use any more.
    pub(crate) fn retain(&self, in_use: impl Fn(&str) -> bool) {
        lock(&self.peers).retain(|addr, _| in_use(addr));
    }

    /// Closes all connections once what was handed to them is written, for at most until then.
    pub(crate) async fn close(&self, deadline: Instant) {
        let peers: Vec<_> = lock(&self.peers).drain().collect();
        for (_, peer) in peers {
            let link = lock(&peer.link).take();
            if let Some(link) = link {
                let _ = timeout_at(deadline, link.flushed()).await;
                link.close();
            }
        }
    }

    /// The connection to an address, a new one if need be.
    async fn link(&self, addr: &str) -> Result<Arc<Link>, Error> {
        let peer = match lock(&self.peers).get(addr) {
            Some(peer) => Arc::clone(peer),
            None => Arc::default(),
        };
        if let Some(link) = peer.current() {
            return Ok(link);
        }
        let peer = Arc::clone(lock(&self.peers).entry(addr.into()).or_insert(peer));
        peer.connect(addr, &self.client)
            .await
            .map_err(|source| Error::Connect { addr: addr.into(), source })
    }
}

impl Peer {
    fn current(&self) -> Option<Arc<Link>> {
        lock(&self.link).as_ref().filter(|link| !link.is_closed()).cloned()
    }

    async fn connect(&self, addr: &str, client: &Weak<Shared>) -> io::Result<Arc<Link>> {
        let mut rest = self.rest.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if let Some(kind) = rest.kind.filter(|_| rest.until > Some(Instant::now())) {
            return Err(kind.into());
        }
        let attempt = timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await;
        match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                *rest = Rest::default();
                // Small frames must not wait for the acknowledgement of earlier ones.
                stream.set_nodelay(true)?;
                let link = Arc::new(Link::start(addr, stream, Weak::clone(client)));
                *lock(&self.link) = Some(Arc::clone(&link));
                tracing::debug!(addr, "connected");
                Ok(link)
            }
            Err(error) => {
                rest.len = (rest.len * 2).clamp(REST_MIN, REST_MAX);
                rest.until = Some(Instant::now() + rest.len);
                rest.kind = Some(error.kind());
                tracing::debug!(addr, %error, "cannot connect");
                Err(error)
            }
        }
    }
}

fn timed_out(addr: &str, code: i32) -> Error {
    Error::TimedOut { addr: addr.into(), request: request::name(code).unwrap_or("request") }
}
