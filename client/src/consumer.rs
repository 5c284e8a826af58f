//! What consumers of all kinds share.

pub(crate) mod answers;
