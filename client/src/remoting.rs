//! One connection per address, shared by everything of a client.
//!
//! A call encodes its request, takes the connection to its address (or makes one), sends, and
//! waits for the answer with the same `opaque`, all within one deadline. Answers may come in any
//! order. A connection that ended is replaced by the next call; a server that says it goes away is
//! asked once more, on a new connection.
//!
//! Elsewhere: when to connect is in `peer`, one connection in `link`, what brokers ask of clients in
//! `serve`.

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
use foldhash::fast::FixedState;
use ringmq_protocol::{
    codes::{VERSION_4_9_8, request, response},
    command::{Command, FLAG_ONEWAY, HeaderError, Language},
    encode::{FrameTooLong, FrameWriter, Head, begin_frame},
    frame::{Encoding, FRAME_LEN_MAX, PREFIX_LEN},
};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

use self::{
    link::{Link, Outcome, Untaken},
    peer::Peer,
    stream::Stream,
};
use crate::{Error, Invalid, client::Shared, lock, observe};

mod link;
mod peer;
mod pump;
mod queue;
mod serve;
mod sign;
mod spin;
mod stored;
mod stream;

pub(crate) use serve::{Inbound, Reply};
pub(crate) use sign::Credentials;
pub(crate) use stored::Stored;

/// Most connections that a call tries, each of which may end just before it takes the request.
const CONNECTIONS_MAX: usize = 2;

/// How long an attempt to connect may take. Source: Apache RocketMQ 4.9.8,
/// `NettyClientConfig.connectTimeoutMillis`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A request, encoded but for the connection that it goes to.
pub(crate) struct Request {
    code: i32,
    opaque: i32,
    /// The frame up to its body.
    head: Vec<u8>,
    body: Bytes,
}

impl Request {
    /// The encoded header.
    pub(crate) fn header(&self) -> &[u8] {
        self.head.get(PREFIX_LEN..).unwrap_or_default()
    }
}

/// The answer to a request, whatever its code.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
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

/// How a client proves who it is, and whom it trusts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    pub(crate) credentials: Option<Credentials>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::Tls>,
}

/// The connections of one client. There are as many as addresses in use; [`Remoting::retain`]
/// drops the others.
#[derive(Debug)]
pub(crate) struct Remoting {
    /// For requests of brokers.
    client: Weak<Shared>,
    security: Security,
    peers: Mutex<HashMap<String, Arc<Peer>, FixedState>>,
    /// The last opaque number given out; all connections count together.
    opaque: AtomicI32,
}

impl Remoting {
    pub(crate) fn new(client: Weak<Shared>, security: Security) -> Self {
        Self { client, security, peers: Mutex::default(), opaque: AtomicI32::new(0) }
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
        self.encode(code, 0, None, ext, body)
    }

    /// A request whose head is written by `write`, with its number and the length of its body. Only
    /// for requests that are not signed.
    ///
    /// # Errors
    ///
    /// As [`Remoting::request`].
    pub(crate) fn written_request(
        &self,
        code: i32,
        body: Bytes,
        write: impl FnOnce(i32, usize, &mut Vec<u8>) -> Result<usize, FrameTooLong>,
    ) -> Result<Request, Error> {
        let opaque = self.next_opaque();
        let mut head = Vec::new();
        write(opaque, body.len(), &mut head).map_err(too_long)?;
        Ok(Request { code, opaque, head, body })
    }

    /// Whether requests are signed.
    pub(crate) const fn is_signing(&self) -> bool {
        self.security.credentials.is_some()
    }

    fn next_opaque(&self) -> i32 {
        // Zero and negative numbers are left out: some peers take 0 for absent.
        (self.opaque.fetch_add(1, Ordering::Relaxed) & 0x3fff_ffff) + 1
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
        self.encode(code, FLAG_ONEWAY, None, ext, body)
    }

    /// Encodes a request that gets no answer, with a text for people.
    ///
    /// # Errors
    ///
    /// As [`Remoting::request`].
    pub(crate) fn oneway_with_remark(
        &self,
        code: i32,
        remark: Option<&str>,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: Bytes,
    ) -> Result<Request, Error> {
        self.encode(code, FLAG_ONEWAY, remark, ext, body)
    }

    fn encode(
        &self,
        code: i32,
        flag: i32,
        remark: Option<&str>,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: Bytes,
    ) -> Result<Request, Error> {
        let opaque = self.next_opaque();
        let mut head = Vec::with_capacity(512);
        let fields = Head {
            encoding: Encoding::Json,
            code,
            language: Language::Rust,
            version: VERSION_4_9_8,
            opaque,
            flag,
            remark,
        };
        let mut writer = begin_frame(&mut head, fields);
        ext(&mut writer);
        let finished = match &self.security.credentials {
            None => writer.finish(body.len()),
            Some(credentials) => {
                credentials.introduce(&mut writer);
                // The signature covers what brokers read, so it is made from what was written.
                let unsigned = writer.finish(body.len()).map(|_| std::mem::take(&mut head));
                unsigned.and_then(|unsigned| {
                    let header = unsigned.get(PREFIX_LEN..).unwrap_or_default();
                    let mut writer = begin_frame(&mut head, fields);
                    if let Ok(command) = Command::parse(Encoding::Json, header) {
                        writer.copy_ext(&command.ext);
                        credentials.sign(&command.ext, &body, &mut writer);
                    }
                    writer.finish(body.len())
                })
            }
        };
        finished.map_err(too_long)?;
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
        let mut was_sent_away = false;
        for _ in 0..CONNECTIONS_MAX {
            let link = self.link(addr, deadline, request.code).await?;
            let Request { code, opaque, head, body } = &request;
            let waiting = match link.call(*opaque, head, body, deadline).await {
                Ok(waiting) => waiting,
                // The connection ended before it took the request: another one may.
                Err(Untaken::Ended) => continue,
                Err(Untaken::Late) => return Err(timed_out(addr, *code)),
            };
            let answer = answered(addr, *code, waiting.await)?;
            if answer.code == response::GO_AWAY && !was_sent_away {
                was_sent_away = true;
                self.retire(addr, &link);
                continue;
            }
            return Ok(answer);
        }
        Err(Error::Disconnected { addr: addr.into() })
    }

    /// Sends a message, a batch or a reply.
    ///
    /// # Errors
    ///
    /// As [`Remoting::call`]; [`Error::Refused`] or [`Error::Protocol`].
    pub(crate) async fn send(
        &self,
        addr: &str,
        request: &Request,
        deadline: Instant,
    ) -> Result<Stored, Error> {
        let mut was_sent_away = false;
        for _ in 0..CONNECTIONS_MAX {
            let link = self.link(addr, deadline, request.code).await?;
            let Request { code, opaque, head, body } = request;
            let waiting = match link.send(*opaque, head, body, deadline).await {
                Ok(waiting) => waiting,
                Err(Untaken::Ended) => continue,
                Err(Untaken::Late) => return Err(timed_out(addr, *code)),
            };
            let stored = answered(addr, *code, waiting.awake().await)?;
            let is_sent_away =
                matches!(&stored, Err(error) if error.code() == Some(response::GO_AWAY));
            if is_sent_away && !was_sent_away {
                was_sent_away = true;
                self.retire(addr, &link);
                continue;
            }
            return stored;
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
        match answer.code {
            response::SUCCESS => Ok(answer),
            _ => Err(refused(addr, &answer.parse(addr)?)),
        }
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
        for _ in 0..CONNECTIONS_MAX {
            let link = self.link(addr, deadline, request.code).await?;
            match link.oneway(&request.head, &request.body, deadline).await {
                Ok(()) => return Ok(()),
                Err(Untaken::Ended) => {}
                Err(Untaken::Late) => return Err(timed_out(addr, request.code)),
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
            if let Some(link) = peer.current() {
                let _ = timeout_at(deadline, link.flushed()).await;
                link.close();
            }
        }
    }

    /// The connection to an address, a new one if need be.
    async fn link(&self, addr: &str, deadline: Instant, code: i32) -> Result<Arc<Link>, Error> {
        let peer = {
            let mut peers = lock(&self.peers);
            match peers.get(addr) {
                Some(peer) => match peer.current() {
                    Some(link) => return Ok(link),
                    None => Arc::clone(peer),
                },
                None => Arc::clone(peers.entry(addr.into()).or_default()),
            }
        };
        let link = timeout_at(deadline, peer.link(self.connect(addr))).await;
        match link.map_err(|_| timed_out(addr, code))? {
            Ok(link) => Ok(link),
            Err(source) => Err(Error::Connect { addr: addr.into(), source }),
        }
    }

    /// Gives a connection up for calls to come.
    fn retire(&self, addr: &str, link: &Arc<Link>) {
        if let Some(peer) = lock(&self.peers).get(addr) {
            peer.retire(link);
        }
    }

    async fn open(&self, addr: &str) -> io::Result<Stream> {
        let stream = TcpStream::connect(addr).await?;
        // Small frames must not wait for the acknowledgement of earlier ones.
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.security.tls {
            return Ok(Stream::Tls(Box::new(tls.connect(addr, stream).await?)));
        }
        Ok(Stream::Plain(stream))
    }

    async fn connect(&self, addr: &str) -> io::Result<Arc<Link>> {
        let attempt = timeout(CONNECT_TIMEOUT, self.open(addr)).await;
        match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                tracing::debug!(addr, "connected");
                observe::connected(addr);
                // A broker forgets a client with its connection.
                if let Some(client) = self.client.upgrade() {
                    client.groups.request_heartbeat();
                }
                Ok(Arc::new(Link::start(addr, stream, Weak::clone(&self.client))))
            }
            Err(error) => {
                tracing::debug!(addr, %error, "cannot connect");
                Err(error)
            }
        }
    }
}

/// What became of a call, as an answer or an error.
fn answered<T>(addr: &str, code: i32, outcome: Option<Outcome<T>>) -> Result<T, Error> {
    match outcome {
        Some(Outcome::Answered(answer)) => Ok(answer),
        Some(Outcome::Late) => Err(timed_out(addr, code)),
        None => Err(Error::Disconnected { addr: addr.into() }),
    }
}

fn too_long(error: FrameTooLong) -> Error {
    Invalid::TooLong { len: error.len, max: FRAME_LEN_MAX }.into()
}

fn timed_out(addr: &str, code: i32) -> Error {
    Error::TimedOut { addr: addr.into(), request: request::name(code).unwrap_or("request") }
}
