//! One connection that sends what it is told.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use ringmq_protocol::{
    command::{Command, FLAG_ONEWAY},
    encode::{FrameWriter, request},
    frame::{self, Encoding, FRAME_LEN_MAX},
};

use crate::wait::PATIENCE;

/// A blocking connection to a broker or name server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    opaque: i32,
    encoding: Encoding,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Response code.
    pub code: i32,
    /// The request that it answers.
    pub opaque: i32,
    /// Text for people.
    pub remark: Option<String>,
    /// Header entries.
    pub ext: BTreeMap<String, String>,
    /// Body.
    pub body: Vec<u8>,
}

impl Reply {
    /// An entry that is a number.
    ///
    /// # Panics
    ///
    /// If it is absent or no number.
    #[track_caller]
    pub fn number(&self, name: &str) -> i64 {
        let text = self.ext.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name} is {text}"))
    }
}

impl Client {
    /// Connects; answers that take longer than [`PATIENCE`] are errors.
    ///
    /// # Errors
    ///
    /// If nothing listens there.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, received: Vec::new(), opaque: 0, encoding: Encoding::Json })
    }

    /// Writes headers in this encoding from now on.
    #[must_use]
    pub fn with_encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// The socket, to send what no client would.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends a request and returns its number.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn post(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: &[u8],
    ) -> io::Result<i32> {
        self.write(code, 0, ext, body)
    }

    /// Sends a request that wants no answer.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn post_oneway(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: &[u8],
    ) -> io::Result<()> {
        self.write(code, FLAG_ONEWAY, ext, body).map(drop)
    }

    fn write(
        &mut self,
        code: i32,
        flag: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: &[u8],
    ) -> io::Result<i32> {
        self.opaque += 1;
        let mut out = Vec::new();
        request(&mut out, self.encoding, self.opaque, code, flag, ext, body)
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.stream.write_all(&out)?;
        Ok(self.opaque)
    }

    /// The next answer, whichever request it is for; requests of the server are passed over.
    ///
    /// # Errors
    ///
    /// Those of the socket, `UnexpectedEof` if the server closed it, `WouldBlock` if it says
    /// nothing for too long, `InvalidData` if what it says is no frame.
    pub fn reply(&mut self) -> io::Result<Reply> {
        loop {
            if let Some(reply) = self.take_frame()? {
                match reply {
                    (true, reply) => return Ok(reply),
                    (false, _) => continue,
                }
            }
            let mut chunk = [0; 64 << 10];
            let count = match self.stream.read(&mut chunk) {
                // A signal to the process says nothing about the broker.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.received.extend(chunk.iter().take(count));
        }
    }

    /// The first whole frame received, and whether it is an answer.
    fn take_frame(&mut self) -> io::Result<Option<(bool, Reply)>> {
        let broken = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let frame = match frame::decode(&self.received, FRAME_LEN_MAX) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(error) => return Err(broken(error.to_string())),
        };
        let command = Command::parse(frame.encoding, frame.header)
            .map_err(|error| broken(error.to_string()))?;
        let reply = Reply {
            code: command.code,
            opaque: command.opaque,
            remark: command.remark.as_deref().map(str::to_owned),
            ext: command
                .ext
                .iter()
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
            body: frame.body.to_vec(),
        };
        let is_response = command.is_response();
        let total_len = frame.total_len;
        self.received.drain(..total_len);
        Ok(Some((is_response, reply)))
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    ///
    /// As [`Client::reply`]; `InvalidData` if another request is answered, since nothing else was
    /// asked.
    pub fn call(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut FrameWriter<'_, '_>),
        body: &[u8],
    ) -> io::Result<Reply> {
        let opaque = self.post(code, ext, body)?;
        let reply = self.reply()?;
        if reply.opaque == opaque {
            Ok(reply)
        } else {
            let what = format!("answer to {} instead of {opaque}", reply.opaque);
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
    }
}
