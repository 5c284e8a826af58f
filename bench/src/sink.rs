//! `sink`: a stand-in broker that stores nothing and answers every request with success.
//!
//! It shows what the generator and the loopback interface can do at most on a machine: a broker's
//! figure close to the sink's says more about the generator than about the broker.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use clap::Args;
use ringmq_protocol::encode;
use ringmq_protocol::frame::Encoding;

use crate::admin::resolve;
use crate::cli::say;
use crate::clock::{Clock, Nanos};
use crate::conn::{BUSY_INBOX_LEN, Conn, Received};
use crate::reactor::{Actor, Reactor, Stop, Token, run};
use crate::scan::scan;

/// Answers everything with success.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sink {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:23990")]
    listen: String,
    /// Seconds to run
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
}

/// The listener is lane 0; connections follow.
const LISTENER: u32 = 0;

struct Stub {
    listener: TcpListener,
    lanes: Vec<Option<Conn>>,
}

impl Sink {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut reactor = Reactor::new(Clock::start())?;
        let addr: SocketAddr = resolve(&self.listen)?;
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        reactor.add(&listener, Token { actor: 0, lane: LISTENER })?;
        say(&format!("answering on {addr} for {} s", self.seconds))?;
        let mut stub = Stub { listener, lanes: Vec::new() };
        let until = reactor.now().plus(Duration::from_secs_f64(self.seconds));
        run(&mut reactor, &mut [&mut stub], until, Stop::AtTime)
    }
}

impl Stub {
    fn accept(&mut self, reactor: &Reactor) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut conn = Conn::adopt(stream, BUSY_INBOX_LEN)?;
            let lane = u32::try_from(self.lanes.len() + 1).expect("far fewer connections");
            conn.go(reactor, Token { actor: 0, lane })?;
            self.lanes.push(Some(conn));
        }
    }

    /// Answers what has arrived; false when the connection is over.
    fn answer(conn: &mut Conn, reactor: &Reactor) -> io::Result<bool> {
        let received = conn.receive()?;
        while let Ok(Some(frame)) = conn.inbox.next() {
            let Some(request) = scan(frame) else { return Ok(false) };
            put_answer(request.encoding, request.opaque, &mut conn.outbox);
        }
        Ok(received == Received::Open && conn.flush(reactor)? == Received::Open)
    }
}

fn put_answer(encoding: Encoding, opaque: i32, out: &mut Vec<u8>) {
    let fields = |writer: &mut encode::FrameWriter<'_, '_>| {
        writer.ext("MSG_REGION", "DefaultRegion");
        writer.ext("TRACE_ON", "true");
        writer.ext("msgId", "7F00000100002A9F0000000000000000");
        writer.ext("offset", "0");
        writer.ext("queueId", "0");
        writer.ext("queueOffset", "0");
    };
    encode::response(out, encoding, opaque, 0, None, fields, b"");
}

impl Actor for Stub {
    fn ready(&mut self, lane: usize, _readable: bool, reactor: &Reactor) -> io::Result<()> {
        let Some(index) = lane.checked_sub(1) else { return self.accept(reactor) };
        let Some(slot) = self.lanes.get_mut(index) else { return Ok(()) };
        if let Some(conn) = slot
            && !Self::answer(conn, reactor)?
        {
            *slot = None;
        }
        Ok(())
    }

    fn tick(&mut self, _now: Nanos, _reactor: &Reactor) -> io::Result<Option<Nanos>> {
        Ok(None)
    }

    fn done(&self) -> bool {
        false
    }
}

/// Serves every connection from a blocking thread of its own; `answers` requests of each are
/// answered, then it is closed.
#[cfg(test)]
pub(crate) fn serve(answers: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || serve_one(stream.unwrap(), answers));
        }
    });
    addr
}

#[cfg(test)]
fn serve_one(stream: std::net::TcpStream, mut answers: usize) {
    use std::io::Write as _;
    let mut writer = stream.try_clone().unwrap();
    let mut conn = Conn::adopt(stream, BUSY_INBOX_LEN).unwrap();
    while conn.receive().is_ok_and(|received| received == Received::Open) {
        let mut out = Vec::new();
        while let Ok(Some(frame)) = conn.inbox.next() {
            if answers == 0 {
                return;
            }
            answers -= 1;
            let request = scan(frame).unwrap();
            put_answer(request.encoding, request.opaque, &mut out);
        }
        writer.write_all(&out).unwrap();
    }
}
