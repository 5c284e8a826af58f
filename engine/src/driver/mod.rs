//! What carries out a shard's operations: the real ring, and a simulated disk.

mod buffers;
pub(crate) mod files;
pub(crate) mod ring;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
