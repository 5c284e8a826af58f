//! The `ringmq` binary.
fn main() {}
