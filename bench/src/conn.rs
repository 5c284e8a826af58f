//! One connection: a socket, the bytes received but not yet taken, the bytes queued but not sent.
//!
//! Set-up calls are blocking ([`Conn::call`]); [`Conn::go`] then hands the socket to the event
//! loop. Frames are cut out of the receive buffer in place.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ringmq_protocol::frame::{FRAME_LEN_MAX, LEN_FIELD_LEN};

use crate::reactor::{Reactor, Token};
use crate::scan::{Answer, scan};

/// Receive buffer of a connection that carries load, in bytes.
pub(crate) const BUSY_INBOX_LEN: usize = 256 * 1024;
/// Receive buffer of one of thousands of idle connections, in bytes.
pub(crate) const IDLE_INBOX_LEN: usize = 4 * 1024;
/// How long a set-up call waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes, or nothing for now.
    Open,
    /// The peer closed or reset the connection.
    Closed,
}

/// Received bytes, cut into frames in place.
#[derive(Debug)]
pub(crate) struct Inbox {
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// An inbox that starts with room for `capacity` bytes and grows to the largest frame seen.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { buf: vec![0; capacity], start: 0, end: 0 }
    }

    /// Where the next bytes go; at least `want` bytes if the pending frame is that long.
    fn space(&mut self) -> &mut [u8] {
        let pending = self.end - self.start;
        if pending == 0 {
            self.start = 0;
            self.end = 0;
        }
        let need = self.pending_len().unwrap_or(0).max(pending + 1);
        if self.buf.len() - self.start < need || self.end == self.buf.len() {
            self.buf.copy_within(self.start..self.end, 0);
            self.start = 0;
            self.end = pending;
            if self.buf.len() < need {
                self.buf.resize(need.next_power_of_two(), 0);
            }
        }
        self.buf.get_mut(self.end..).unwrap_or_default()
    }

    fn filled(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.buf.len(), "read past the buffer");
    }

    /// The whole length of the frame at the front, once its first four bytes are there.
    fn pending_len(&self) -> Option<usize> {
        let bytes = self.buf.get(self.start..self.end)?;
        let (prefix, _) = bytes.split_first_chunk::<LEN_FIELD_LEN>()?;
        Some(u32::from_be_bytes(*prefix) as usize + LEN_FIELD_LEN)
    }

    /// The next whole frame, its length prefix included; `None` until it has arrived.
    ///
    /// # Errors
    ///
    /// `InvalidData` when the peer announces a frame beyond the protocol's limit.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(len) = self.pending_len() else { return Ok(None) };
        if len > FRAME_LEN_MAX + LEN_FIELD_LEN {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "frame beyond the limit"));
        }
        if self.end - self.start < len {
            return Ok(None);
        }
        let from = self.start;
        self.start += len;
        Ok(self.buf.get(from..from + len))
    }

    /// The next whole frame, read as far as a run needs it: mostly an answer, but brokers ask too.
    ///
    /// # Errors
    ///
    /// Those of [`Inbox::next`], and `InvalidData` for a header that cannot be read. The connection
    /// is of no use any more.
    pub(crate) fn answer(&mut self) -> io::Result<Option<Answer<'_>>> {
        match self.next()? {
            Some(frame) => scan(frame).map(Some).ok_or(io::ErrorKind::InvalidData.into()),
            None => Ok(None),
        }
    }
}

/// A connection to a broker or name server.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: TcpStream,
    /// Received bytes.
    pub(crate) inbox: Inbox,
    /// Frames to send; emptied by [`Conn::flush`].
    pub(crate) outbox: Vec<u8>,
    sent: usize,
    token: Option<Token>,
    awaits_room: bool,
}

impl Conn {
    /// Connects, blocking, without Nagle's delay, with a receive buffer of `inbox_len` bytes that
    /// grows when a frame is longer.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn connect(addr: SocketAddr, inbox_len: usize) -> io::Result<Self> {
        Self::adopt(TcpStream::connect_timeout(&addr, CALL_TIMEOUT)?, inbox_len)
    }

    /// Takes over a connected socket, still blocking.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn adopt(stream: TcpStream, inbox_len: usize) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CALL_TIMEOUT))?;
        Ok(Self {
            stream,
            inbox: Inbox::with_capacity(inbox_len),
            outbox: Vec::new(),
            sent: 0,
            token: None,
            awaits_room: false,
        })
    }

    /// The socket, for options.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends one frame and waits for the answer with `opaque`; whatever else comes is dropped.
    ///
    /// # Errors
    ///
    /// Socket errors, a closed connection, no answer in time, or bytes that are no frame.
    pub(crate) fn call<T>(
        &mut self,
        frame: &[u8],
        opaque: i32,
        use_answer: impl FnOnce(Answer<'_>) -> T,
    ) -> io::Result<T> {
        self.stream.write_all(frame)?;
        loop {
            while let Some(answer) = self.inbox.answer()? {
                if answer.response && answer.opaque == opaque {
                    return Ok(use_answer(answer));
                }
            }
            if self.receive()? == Received::Closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Makes the socket non-blocking and gives it to the event loop.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn go(&mut self, reactor: &Reactor, token: Token) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        reactor.add(&self.stream, token)?;
        self.token = Some(token);
        Ok(())
    }

    /// Reads once.
    ///
    /// # Errors
    ///
    /// Socket errors other than a reset by the peer.
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        match self.stream.read(self.inbox.space()) {
            Ok(0) => Ok(Received::Closed),
            Ok(count) => {
                self.inbox.filled(count);
                Ok(Received::Open)
            }
            Err(error) if is_reset(&error) => Ok(Received::Closed),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => Ok(Received::Open),
                io::ErrorKind::WouldBlock if self.token.is_some() => Ok(Received::Open),
                _ => Err(error),
            },
        }
    }

    /// Sends what is queued, as far as the socket takes it, and asks to be told about room for
    /// the rest.
    ///
    /// # Errors
    ///
    /// Socket errors other than a reset by the peer.
    pub(crate) fn flush(&mut self, reactor: &Reactor) -> io::Result<Received> {
        while self.sent < self.outbox.len() {
            let rest = self.outbox.get(self.sent..).unwrap_or_default();
            match self.stream.write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.watch_output(reactor, true)?;
                    return Ok(Received::Open);
                }
                Err(error) if is_reset(&error) => return Ok(Received::Closed),
                Err(error) => return Err(error),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        self.watch_output(reactor, false)?;
        Ok(Received::Open)
    }

    fn watch_output(&mut self, reactor: &Reactor, output: bool) -> io::Result<()> {
        if let Some(token) = self.token
            && self.awaits_room != output
        {
            reactor.watch_output(&self.stream, token, output)?;
            self.awaits_room = output;
        }
        Ok(())
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(inbox: &mut Inbox, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = inbox.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            inbox.filled(count);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let frames: Vec<Vec<u8>> = [1_usize, 900, 70_000, 3, 400_000]
            .iter()
            .map(|&len| {
                let mut frame = u32::try_from(len).unwrap().to_be_bytes().to_vec();
                frame.extend((0..len).map(|i| u8::try_from(i % 251).unwrap()));
                frame
            })
            .collect();
        let all = frames.concat();
        for piece in [1, 7, 4096, all.len()] {
            let mut inbox = Inbox::with_capacity(64);
            let mut got = Vec::new();
            for bytes in all.chunks(piece) {
                arrive(&mut inbox, bytes);
                while let Some(frame) = inbox.next().unwrap() {
                    got.push(frame.to_vec());
                }
            }
            assert!(got == frames, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_before_it_is_stored() {
        let mut inbox = Inbox::with_capacity(64);
        arrive(&mut inbox, &[0x7f, 0xff, 0xff, 0xff]);
        assert!(inbox.next().is_err());
    }
}
