//! What consumers of all kinds share.
//!
//! A consumer is a [`Member`] of its group. `rebalance` finds the queues that it is to hold, `fetch`
//! pulls them into their `backlog`, and `commit` stores how far each is done. A kind of consumer
//! adds what becomes of the messages: see the modules `push` and `pull`.

pub(crate) mod answers;
pub(crate) mod backlog;
mod check;
mod commit;
mod fetch;
pub(crate) mod held;
pub(crate) mod local;
mod locks;
pub(crate) mod member;
mod rebalance;
pub(crate) mod request;
pub(crate) mod retry;
mod stats;
mod watch;

pub(crate) use member::Member;
