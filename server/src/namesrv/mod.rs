//! The name server: which broker has which topic, and a few texts that admin tools keep there.
//!
//! Brokers register with every name server and again every 30 s; clients ask any of them. Name
//! servers know nothing of each other and remember nothing but the KV configuration: routes come
//! back with the brokers' next registrations.
//!
//! [`RouteTable`] and [`KvTable`] are the state, `NameServer::handle` answers one request from
//! them, `listener` does the I/O. Time comes in as an argument.

mod kv;
mod listener;
mod register;
mod requests;
mod routes;

pub use self::{
    kv::{KV_BYTES_MAX, KvFull, KvTable},
    listener::{
        CONNECTIONS_MAX, IDLE_MAX, LARGE_FRAME_TIMEOUT, LARGE_FRAMES_LEN_MAX, SMALL_FRAME_LEN_MAX,
        WRITE_TIMEOUT,
    },
    requests::NameServer,
    routes::{
        ADDRESSES_MAX, Address, BROKER_TEXT_LEN_MAX, BadText, ENTRIES_MAX, Master, Peer, Queues,
        RegisterError, Registration, Route, RouteBroker, RouteTable, SILENCE_MAX, UnitTopics,
    },
};
pub(crate) use self::{listener::Listener, routes::check_name};
