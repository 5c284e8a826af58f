//! The RocketMQ remoting protocol as functions of bytes: frames, headers, records and bodies.
//!
//! Start at [`frame::decode`], which finds one whole frame in a receive buffer, and
//! [`command::Command::parse`], which scans its header once. [`headers`] gives the typed form of
//! the header's entries, [`body`] that of JSON bodies, [`record`] the message record that a pull
//! returns, and [`encode`] writes frames into a caller's `Vec`.
//!
//! Every decoder here is total: whatever the bytes, it returns a value or an error, never panics,
//! and allocates no more than the length of its input justifies. Lengths are checked against their
//! limits before anything is allocated for them.
//!
//! The crate does no I/O, reads no clock and starts no threads; `check-no-os.sh` beside its
//! manifest proves it. Time and addresses come in as arguments.
//!
//! Integers here are plain, with their unit in the name: this is the level at which bytes are
//! encoded and decoded.
#![no_std]
extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod batch;
pub mod body;
pub mod codes;
pub mod command;
pub mod encode;
pub mod frame;
pub mod headers;
pub mod limits;
pub mod message_id;
pub mod names;
pub mod properties;
pub mod record;
mod scan;
pub mod tags;
pub mod template;
pub mod text;
