//! Helpers for whole-system tests: the real `ringmq` process, and bare sockets that talk to it.
//!
//! [`server::Ringmq`] starts the binary that this build made and ends it with the test.
//! [`client::Client`] is one connection that sends what it is told, well-formed or not.
//! [`messages`] has the few requests that most tests need.
//!
//! Nothing here waits for time to pass: a start is over when the process says so, an answer has
//! come when the socket has it, and each wait has a limit after which the test fails.
//!
//! Published clients are put through their paces in `interop`, which needs their languages.

pub mod binary;
pub mod client;
pub mod folder;
pub mod messages;
pub mod server;
pub mod wait;
