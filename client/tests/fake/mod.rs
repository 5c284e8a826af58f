//! A name server and broker for tests, on a real loopback socket: it notes every request and does
//! what its script says.
#![allow(dead_code, reason = "each test file uses another part of it")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

pub(crate) mod messages;

use bytes::BytesMut;
use ringmq_protocol::{
    command::Command,
    encode::{Head, begin_frame},
    frame::{self, Encoding, FRAME_LEN_MAX},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request as the fake saw it, or a client's answer to one of the fake's.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) code: i32,
    pub(crate) opaque: i32,
    pub(crate) flag: i32,
    pub(crate) language: String,
    pub(crate) remark: Option<String>,
    pub(crate) ext: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// How many connections there were before this one.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn ext(&self, name: &str) -> &str {
        self.ext.get(name).map_or("", String::as_str)
    }

    /// A property of a send's header.
    pub(crate) fn property(&self, name: &str) -> Option<String> {
        let value = ringmq_protocol::properties::get(self.ext("i").as_bytes(), name)?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    }
}

/// What the fake does with a request.
pub(crate) enum Reaction {
    Answer {
        code: i32,
        remark: Option<&'static str>,
        ext: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// Bytes as they are.
    Raw(Vec<u8>),
    Silence,
    /// The other reaction, after this time.
    Later(Duration, Box<Reaction>),
    Close,
}

pub(crate) fn ok() -> Reaction {
    refuse(0)
}

pub(crate) fn refuse(code: i32) -> Reaction {
    Reaction::Answer { code, remark: None, ext: Vec::new(), body: Vec::new() }
}

pub(crate) fn answer(code: i32, ext: &[(&str, &str)], body: &[u8]) -> Reaction {
    let ext = ext.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Reaction::Answer { code, remark: None, ext, body: body.into() }
}

/// The answer to a send that was stored.
pub(crate) fn stored(seen: &Seen) -> Reaction {
    let id = "7F00000100002A9F0000000000001000";
    answer(0, &[("msgId", id), ("queueId", seen.ext("e")), ("queueOffset", "7")], b"")
}

/// A route over brokers with a name, an address and a number of queues each.
pub(crate) fn route(brokers: &[(&str, &str, i32)]) -> Reaction {
    let data = brokers.iter().map(|(name, addr, _)| {
        format!(r#"{{"brokerAddrs":{{0:"{addr}"}},"brokerName":"{name}","cluster":"C"}}"#)
    });
    let queues = brokers.iter().map(|(name, _, count)| {
        format!(
            r#"{{"brokerName":"{name}","perm":6,"readQueueNums":{count},"topicSysFlag":0,"writeQueueNums":{count}}}"#
        )
    });
    let (data, queues) = (data.collect::<Vec<_>>().join(","), queues.collect::<Vec<_>>().join(","));
    let body =
        format!(r#"{{"brokerDatas":[{data}],"filterServerTable":{{}},"queueDatas":[{queues}]}}"#);
    answer(0, &[], body.as_bytes())
}

pub(crate) struct Fake {
    pub(crate) addr: String,
    seen: watch::Receiver<Vec<Seen>>,
    connections: Arc<Mutex<Vec<Arc<tokio::sync::Mutex<tokio::net::tcp::OwnedWriteHalf>>>>>,
}

impl Fake {
    /// Starts a fake; the script gets its address and each request.
    pub(crate) async fn start(
        script: impl Fn(&str, &Seen) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (sender, seen) = watch::channel(Vec::new());
        let (script, sender) = (Arc::new(script), Arc::new(sender));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (own, writers) = (addr.clone(), Arc::clone(&connections));
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (reader, writer) = stream.into_split();
                let writer = Arc::new(tokio::sync::Mutex::new(writer));
                writers.lock().unwrap().push(Arc::clone(&writer));
                let (script, sender, own) = (Arc::clone(&script), Arc::clone(&sender), own.clone());
                let react = move |seen: &Seen| {
                    sender.send_modify(|all| all.push(seen.clone()));
                    script(&own, seen)
                };
                tokio::spawn(serve(reader, writer, connection, react));
            }
        });
        Self { addr, seen, connections }
    }

    /// All requests with this code so far.
    pub(crate) fn seen(&self, code: i32) -> Vec<Seen> {
        self.seen.borrow().iter().filter(|seen| seen.code == code).cloned().collect()
    }

    /// All requests so far.
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// All answers to requests of the fake's own, which say so in their flag.
    pub(crate) fn answers(&self) -> Vec<Seen> {
        self.seen.borrow().iter().filter(|seen| seen.flag & 1 == 1).cloned().collect()
    }

    /// Waits until there are so many answers to requests of the fake's own.
    pub(crate) async fn wait_for_answers(&self, count: usize) -> Vec<Seen> {
        let enough = |all: &Vec<Seen>| all.iter().filter(|s| s.flag & 1 == 1).count() >= count;
        let mut seen = self.seen.clone();
        let waited = tokio::time::timeout(PATIENCE, seen.wait_for(enough)).await;
        waited.expect("the answers come in time").expect("the fake is running");
        self.answers()
    }

    /// Waits until there are so many requests with this code.
    pub(crate) async fn wait_for(&self, code: i32, count: usize) -> Vec<Seen> {
        let enough = |all: &Vec<Seen>| all.iter().filter(|seen| seen.code == code).count() >= count;
        let mut seen = self.seen.clone();
        let waited = tokio::time::timeout(PATIENCE, seen.wait_for(enough)).await;
        waited.expect("the requests come in time").expect("the fake is running");
        self.seen(code)
    }

    /// Sends a frame to all clients.
    pub(crate) async fn push(&self, frame: &[u8]) {
        let writers = self.connections.lock().unwrap().clone();
        for writer in writers {
            // Connections of earlier moments may be gone.
            let _ = writer.lock().await.write_all(frame).await;
        }
    }
}

async fn serve(
    mut reader: tokio::net::tcp::OwnedReadHalf,
    writer: Arc<tokio::sync::Mutex<tokio::net::tcp::OwnedWriteHalf>>,
    connection: usize,
    react: impl Fn(&Seen) -> Reaction,
) {
    let mut buffer = BytesMut::new();
    while let Ok(len) = reader.read_buf(&mut buffer).await {
        while let Some(frame) = frame::decode(&buffer, FRAME_LEN_MAX).unwrap() {
            let command = Command::parse(frame.encoding, frame.header).unwrap();
            let seen = Seen {
                code: command.code,
                opaque: command.opaque,
                flag: command.flag,
                language: command.language.name().into(),
                remark: command.remark.as_deref().map(String::from),
                ext: command.ext.iter().map(|(n, v)| (n.into_owned(), v.into_owned())).collect(),
                body: frame.body.into(),
                connection,
            };
            let answers = !command.is_response() && !command.is_oneway();
            let total_len = frame.total_len;
            drop(command);
            let _ = buffer.split_to(total_len);
            let bytes = match react(&seen) {
                Reaction::Silence => continue,
                Reaction::Close => return drop(writer.lock().await.shutdown().await),
                Reaction::Later(time, reaction) => {
                    let (writer, opaque) = (Arc::clone(&writer), seen.opaque);
                    tokio::spawn(async move {
                        tokio::time::sleep(time).await;
                        let bytes = bytes_of(*reaction, opaque).unwrap();
                        // The client may be gone.
                        let _ = writer.lock().await.write_all(&bytes).await;
                    });
                    continue;
                }
                reaction => bytes_of(reaction, seen.opaque).unwrap(),
            };
            if answers && writer.lock().await.write_all(&bytes).await.is_err() {
                return;
            }
        }
        if len == 0 {
            return;
        }
    }
}

/// The bytes of a reaction that has some.
fn bytes_of(reaction: Reaction, opaque: i32) -> Option<Vec<u8>> {
    match reaction {
        Reaction::Answer { code, remark, ext, body } => {
            Some(encode(opaque, code, remark, &ext, &body))
        }
        Reaction::Raw(bytes) => Some(bytes),
        Reaction::Silence | Reaction::Later(..) | Reaction::Close => None,
    }
}

/// The frame of an answer.
pub(crate) fn encode(
    opaque: i32,
    code: i32,
    remark: Option<&str>,
    ext: &[(String, String)],
    body: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = begin_frame(&mut out, Head::response(Encoding::Json, opaque, code, remark));
    for (name, value) in ext {
        writer.ext(name, value);
    }
    writer.finish(body.len()).unwrap();
    out.extend_from_slice(body);
    out
}

/// An address where nobody listens.
pub(crate) async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Whether someone listens there.
pub(crate) async fn is_listening(addr: &str) -> bool {
    TcpStream::connect(addr).await.is_ok()
}
