//! The RocketMQ remoting protocol.
#![no_std]
extern crate alloc;
