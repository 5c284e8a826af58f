//! Who asks, and whether they may.
//!
//! Every request carries a [`RequestContext`] from the connection it came on. Access control, TLS and
//! further front ends come in through it without touching the requests.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

/// Names one connection of this process, over its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Index of the data thread that owns the connection.
    pub thread: u16,
    /// Its slot in that thread's table.
    pub slot: u32,
    /// Tells this connection from an earlier one in the same slot.
    pub generation: u32,
}

/// How the bytes arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// TCP without encryption.
    Plain,
}

/// Who a connection has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Principal {
    /// Nobody asked.
    Anonymous,
    /// A named user.
    User(Arc<str>),
}

/// Where a request came from.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// The other end of the socket.
    pub peer: SocketAddr,
    /// The connection.
    pub conn: ConnId,
    /// How the bytes arrived.
    pub transport: Transport,
    /// Who the connection has proved to be.
    pub principal: Principal,
}

impl RequestContext {
    /// The peer as records carry it: IPv4 only, since clients in C++ and Node read nothing else. A
    /// mapped address counts as the IPv4 address in it, any other IPv6 address as 0.0.0.0.
    pub fn peer_v4(&self) -> (Ipv4Addr, u16) {
        let address = match self.peer.ip() {
            std::net::IpAddr::V4(address) => address,
            std::net::IpAddr::V6(address) => {
                address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)
            }
        };
        (address, self.peer.port())
    }
}
/// Why a request is turned away. Becomes its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Response code, normally `NO_PERMISSION` (16).
    pub code: i32,
    /// Remark of the answer, for people.
    pub remark: String,
}

/// Decides over every request before it is looked at any further.
pub trait Authorizer: Send + Sync {
    /// Whether this request may go on. Called on data threads for every request: must not block.
    ///
    /// # Errors
    ///
    /// The answer to give instead.
    fn authorize(
        &self,
        context: &RequestContext,
        command: &ringmq_protocol::command::Command<'_>,
        body: &[u8],
    ) -> Result<(), Refusal>;

    /// True if [`authorize`](Self::authorize) lets every request pass, whatever is in it: requests
    /// need not be parsed in full for its sake then.
    fn allows_all(&self) -> bool {
        false
    }
}

/// Lets everything pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize(
        &self,
        _: &RequestContext,
        _: &ringmq_protocol::command::Command<'_>,
        _: &[u8],
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn allows_all(&self) -> bool {
        true
    }
}
