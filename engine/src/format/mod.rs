//! What the files of a store look like, byte by byte. Every integer is big-endian.

pub(crate) mod buffers;
pub(crate) mod bytes;
pub(crate) mod changes;
pub(crate) mod checkpoint;
pub(crate) mod group;
pub(crate) mod index_block;
pub(crate) mod manifest;
pub(crate) mod payload;
