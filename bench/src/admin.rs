//! Set-up over a blocking connection: topics, offsets, routes, heartbeats.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};

use ringmq_protocol::codes::request as codes;
use ringmq_protocol::frame::Encoding;

use crate::conn::{Conn, IDLE_INBOX_LEN};
use crate::frame::{consumer_heartbeat, request};

/// Correlation number of set-up calls: they go one at a time.
const OPAQUE: u32 = 1;

/// A broker or name server answered with an error.
fn refused(what: &str, code: i32, remark: &str) -> io::Error {
    io::Error::other(format!("{what}: code {code} {remark}"))
}

/// One address out of `host:port`.
///
/// # Errors
///
/// When the text is no address or the name does not resolve.
pub(crate) fn resolve(addr: &str) -> io::Result<SocketAddr> {
    addr.to_socket_addrs()?.next().ok_or_else(|| io::Error::other(format!("{addr} has no address")))
}

/// A connection for set-up calls.
pub(crate) struct Admin {
    conn: Conn,
}

impl Admin {
    /// Connects.
    ///
    /// # Errors
    ///
    /// As the system reports them, with the address.
    pub(crate) fn connect(addr: SocketAddr) -> io::Result<Self> {
        let conn = Conn::connect(addr, IDLE_INBOX_LEN)
            .map_err(|error| io::Error::new(error.kind(), format!("{addr}: {error}")))?;
        Ok(Self { conn })
    }

    fn call(
        &mut self,
        what: &str,
        code: i32,
        ext: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let frame = request(Encoding::Json, code, OPAQUE, ext, body);
        let reply = self.conn.call(&frame, OPAQUE.cast_signed(), |answer| Reply {
            code: answer.code,
            remark: answer.remark(),
            offset: answer.ext_int("offset"),
            body: answer.body.to_vec(),
        })?;
        match reply.code {
            0 => Ok(reply),
            code => Err(refused(what, code, &reply.remark)),
        }
    }

    /// Creates or widens a topic with as many read as write queues.
    ///
    /// # Errors
    ///
    /// Connection errors and the broker's refusal.
    pub(crate) fn create_topic(&mut self, topic: &str, queues: u32) -> io::Result<()> {
        let queues = queues.to_string();
        let ext = [
            ("defaultTopic", "TBW102"),
            ("order", "false"),
            ("perm", "6"),
            ("readQueueNums", queues.as_str()),
            ("topic", topic),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("writeQueueNums", queues.as_str()),
        ];
        self.call("create topic", codes::UPDATE_AND_CREATE_TOPIC, &ext, b"")?;
        Ok(())
    }

    /// The next offset that a queue will give out.
    ///
    /// # Errors
    ///
    /// Connection errors and the broker's refusal.
    pub(crate) fn max_offset(&mut self, topic: &str, queue: u32) -> io::Result<u64> {
        self.offset("max offset", codes::GET_MAX_OFFSET, topic, queue)
    }

    /// The first offset that a queue still has.
    ///
    /// # Errors
    ///
    /// Connection errors and the broker's refusal.
    pub(crate) fn min_offset(&mut self, topic: &str, queue: u32) -> io::Result<u64> {
        self.offset("min offset", codes::GET_MIN_OFFSET, topic, queue)
    }

    fn offset(&mut self, what: &str, code: i32, topic: &str, queue: u32) -> io::Result<u64> {
        let reply =
            self.call(what, code, &[("queueId", &queue.to_string()), ("topic", topic)], b"")?;
        reply
            .offset
            .and_then(|offset| u64::try_from(offset).ok())
            .ok_or_else(|| io::Error::other(format!("{what}: no offset in the answer")))
    }

    /// The address of the first broker in a topic's route; this connection must lead to a name
    /// server.
    ///
    /// # Errors
    ///
    /// Connection errors, an unknown topic, a route without a broker.
    pub(crate) fn broker_of(&mut self, topic: &str) -> io::Result<SocketAddr> {
        let reply = self.call("route", codes::GET_ROUTEINFO_BY_TOPIC, &[("topic", topic)], b"")?;
        let route: serde_json::Value = serde_json::from_slice(&reply.body)
            .map_err(|error| io::Error::other(format!("route of {topic}: {error}")))?;
        let addr = route
            .pointer("/brokerDatas/0/brokerAddrs")
            .and_then(|addrs| addrs.as_object()?.values().next()?.as_str())
            .ok_or_else(|| io::Error::other(format!("the route of {topic} names no broker")))?;
        resolve(addr)
    }
}

struct Reply {
    code: i32,
    remark: String,
    offset: Option<i64>,
    body: Vec<u8>,
}

/// Registers a consumer on the connection that its pulls will use.
///
/// # Errors
///
/// Connection errors and the broker's refusal.
pub(crate) fn join(
    conn: &mut Conn,
    client_id: &str,
    group: &str,
    topic: &str,
    tags: &str,
) -> io::Result<()> {
    let body = consumer_heartbeat(client_id, group, topic, tags);
    let frame = request(Encoding::Json, codes::HEART_BEAT, OPAQUE, &[], &body);
    let (code, remark) =
        conn.call(&frame, OPAQUE.cast_signed(), |answer| (answer.code, answer.remark()))?;
    if code == 0 { Ok(()) } else { Err(refused("heartbeat", code, &remark)) }
}
