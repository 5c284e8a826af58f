//! The broker and name server of RingMQ.
//!
//! Start reading at [`server`], then at `thread`: one data thread with its shards, its connections and
//! its turn. The requests are in `broker`, one file each; bytes in and answers out in `net`; what
//! crosses threads in `link`. Everything that is not a message or an offset belongs to [`control`],
//! which runs on a thread of its own, as do the name server in [`namesrv`] and the page for monitoring
//! in [`metrics`].
//!
//! The crate turns requests into engine calls and results into responses. It knows nothing of bytes
//! on disk.

mod broker;
pub mod clock;
pub mod config;
pub mod context;
pub mod control;
mod link;
mod memory;
pub mod metrics;
pub mod namesrv;
mod net;
pub mod server;
mod thread;
