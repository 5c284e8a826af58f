//! A RocketMQ client.
