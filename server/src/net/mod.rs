//! The connection layer: bytes in, answers out.
//!
//! One reader and one writer task per connection, on the connection's own thread. The reader takes
//! large chunks and hands over every whole frame in place; the writer sends all answers that are
//! ready in one go. What is in the frames is none of this module's business: it gives them to
//! [`Service::serve`] and finds the answers in the connection's [`outbox::Outbox`].
//!
//! The interface is small on purpose, so that a version on one raw ring can be tried against it.

pub(crate) mod conn;
pub(crate) mod gather;
pub(crate) mod inbox;
pub(crate) mod listen;
pub(crate) mod outbox;
pub(crate) mod signal;

pub(crate) use conn::{Conn, Service};
