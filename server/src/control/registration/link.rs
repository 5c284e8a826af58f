//! One name server: connect, register, stay in touch.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use ringmq_protocol::{
    codes::{request, response},
    command::Command,
    encode,
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::{BrokerIdentity, RegisterBrokerRequest},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{info, warn};

use super::{
    Announcement, REGISTER_TIMEOUT, UNREGISTER_TIMEOUT,
    body::{RegisterBody, encode_topics},
};
use crate::control::{BrokerControlConfig, bodies};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How far a link is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkState {
    /// A first registration has succeeded or failed.
    pub(super) tried: bool,
    /// The latest attempt has not failed. True at first, so that early topics wait for it.
    pub(super) up: bool,
    /// Number of the latest announcement that the name server has taken.
    pub(super) known: u64,
}

/// The link to one name server.
pub(super) struct Link {
    config: Arc<BrokerControlConfig>,
    addr: String,
    announcement: watch::Receiver<Announcement>,
    state: watch::Sender<LinkState>,
    /// The latest full body and its announcement, so that a broker at rest encodes it once.
    full: Option<(u64, RegisterBody)>,
}

impl Link {
    pub(super) fn new(
        config: Arc<BrokerControlConfig>,
        addr: String,
        announcement: watch::Receiver<Announcement>,
    ) -> (Self, watch::Receiver<LinkState>) {
        let (state, receiver) = watch::channel(LinkState { up: true, ..LinkState::default() });
        (Self { config, addr, announcement, state, full: None }, receiver)
    }

    /// Runs until the broker leaves.
    pub(super) async fn run(mut self) {
        let mut pause = RETRY_MIN;
        loop {
            let was_up = self.state.borrow().up;
            let Err(error) = self.session().await else { return };
            let registered = self.state.borrow().up && self.state.borrow().tried;
            if registered || was_up {
                warn!(namesrv = %self.addr, %error, "name server lost, trying again");
                pause = RETRY_MIN;
            }
            self.state.send_modify(|state| (state.tried, state.up) = (true, false));
            tokio::select! {
                _ = self.announcement.wait_for(|now| now.leaving) => return,
                () = sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
            }
        }
    }

    /// One connection, from its start to its end. `Ok` only once the broker has left.
    async fn session(&mut self) -> io::Result<()> {
        let mut wire = Wire::connect(&self.addr).await?;
        let mut taken: Option<u64> = None;
        let mut next_full = Instant::now();
        loop {
            let announcement = self.announcement.borrow_and_update().clone();
            if announcement.leaving {
                let left = timeout(UNREGISTER_TIMEOUT, self.unregister(&mut wire)).await;
                return left.unwrap_or_else(|_| Err(late("unregistration")));
            }
            let now = Instant::now();
            if now >= next_full || taken != Some(announcement.number) {
                let known = if now >= next_full { None } else { taken };
                let number = announcement.number;
                let body = self.body(announcement, known).await?;
                let answer = timeout(REGISTER_TIMEOUT, self.register(&mut wire, &body)).await;
                answer.unwrap_or_else(|_| Err(late("registration")))?;
                if body.is_full {
                    next_full = Instant::now() + self.config.register_period;
                }
                taken = Some(number);
                self.report(number);
            }
            tokio::select! {
                changed = self.announcement.changed() => changed.map_err(io::Error::other)?,
                () = sleep_until(next_full) => {}
                error = wire.ended() => return Err(error),
            }
        }
    }

    fn report(&self, number: u64) {
        let first = !self.state.borrow().up || !self.state.borrow().tried;
        self.state.send_modify(|state| {
            *state = LinkState { tried: true, up: true, known: number };
        });
        if first {
            info!(namesrv = %self.addr, broker = %self.config.broker_name,
                  addr = %self.config.advertised_addr, "registered with the name server");
        }
    }

    /// What to register: the changes since `known` if they are at hand, else everything.
    async fn body(
        &mut self,
        announcement: Announcement,
        known: Option<u64>,
    ) -> io::Result<RegisterBody> {
        let config = Arc::clone(&self.config);
        if let Some(changes) = known.and_then(|known| announcement.changes_since(known)) {
            let changes: Vec<_> = changes.iter().map(|topic| &**topic).collect();
            return encode_topics(&config, announcement.version, &changes, false);
        }
        let number = announcement.number;
        if let Some((_, body)) = self.full.as_ref().filter(|(of, _)| *of == number) {
            return Ok(body.clone());
        }
        // A quarter of a million topics take longer than other work may wait.
        let encode = move || {
            let topics = bodies::in_order(&announcement.topics);
            encode_topics(&config, announcement.version, &topics, true)
        };
        let body = spawn_blocking(encode).await.map_err(io::Error::other)??;
        self.full = Some((number, body.clone()));
        Ok(body)
    }

    async fn register(&self, wire: &mut Wire, body: &RegisterBody) -> io::Result<()> {
        let config = &self.config;
        let header = RegisterBrokerRequest {
            broker_name: (&*config.broker_name).into(),
            broker_addr: (&*config.advertised_addr).into(),
            cluster_name: (&*config.cluster_name).into(),
            ha_server_addr: (&*config.ha_server_addr).into(),
            broker_id: broker_id(config),
            compressed: body.compressed,
            body_crc32: body.crc32,
            heartbeat_timeout_ms: None,
            enable_acting_master: None,
            zone_name: None,
        };
        wire.call(request::REGISTER_BROKER, |out| header.encode(out), &body.bytes).await
    }

    async fn unregister(&self, wire: &mut Wire) -> io::Result<()> {
        let config = &self.config;
        let header = BrokerIdentity {
            broker_name: (&*config.broker_name).into(),
            broker_addr: (&*config.advertised_addr).into(),
            cluster_name: (&*config.cluster_name).into(),
            broker_id: broker_id(config),
        };
        wire.call(request::UNREGISTER_BROKER, |out| header.encode(out), &Bytes::new()).await
    }
}

fn broker_id(config: &BrokerControlConfig) -> i64 {
    i64::try_from(config.broker_id).unwrap_or(i64::MAX)
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer to the {what} in time"))
}

/// A connection that asks one thing at a time.
struct Wire {
    stream: TcpStream,
    received: BytesMut,
    opaque: i32,
}

impl Wire {
    async fn connect(addr: &str) -> io::Result<Self> {
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await;
        let stream = stream.unwrap_or_else(|_| Err(late("connection request")))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: BytesMut::new(), opaque: 0 })
    }

    /// Sends a request and waits for its answer, which must be a success.
    async fn call(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut encode::FrameWriter<'_, '_>),
        body: &Bytes,
    ) -> io::Result<()> {
        // Opaque 0 is taken for absent by some peers.
        self.opaque = self.opaque.checked_add(1).unwrap_or(1);
        let mut out = Vec::new();
        encode::request(&mut out, Encoding::Json, self.opaque, code, 0, ext, body)
            .map_err(io::Error::other)?;
        self.stream.write_all(&out).await?;
        drop(out);
        loop {
            if let Some(answered) = self.take_answer()? {
                return answered;
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The answer to the latest request, if it is whole. Other frames are skipped.
    fn take_answer(&mut self) -> io::Result<Option<io::Result<()>>> {
        while let Some(frame) = frame::decode(&self.received, FRAME_LEN_MAX).map_err(invalid)? {
            let command = Command::parse(frame.encoding, frame.header).map_err(invalid)?;
            let ours = command.is_response() && command.opaque == self.opaque;
            let refused = (command.code != response::SUCCESS).then(|| {
                let remark = command.remark.as_deref().unwrap_or("no reason given");
                io::Error::other(format!("refused with code {}: {remark}", command.code))
            });
            let total_len = frame.total_len;
            self.received.advance(total_len);
            if ours {
                return Ok(Some(refused.map_or(Ok(()), Err)));
            }
        }
        Ok(None)
    }

    /// Waits for the end of the connection. What a name server sends unasked is skipped.
    async fn ended(&mut self) -> io::Error {
        loop {
            let read = self.stream.read_buf(&mut self.received).await;
            match read.and_then(|len| self.take_answer().map(|_| len)) {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
