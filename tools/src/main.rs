//! The admin command line.
fn main() {}
