//! What brokers ask of a client about its consumers.
//!
//! Source: Apache RocketMQ 4.9.8, `ClientRemotingProcessor`.

use std::sync::Arc;

use bytes::Bytes;
use ringmq_protocol::headers::{ConsumerGroupRequest, ConsumerRunningInfoRequest};

use crate::{
    client::Shared,
    remoting::{Inbound, Reply},
};

/// NOTIFY_CONSUMER_IDS_CHANGED (40): a member of a group came or went.
pub(crate) async fn members_changed(shared: Arc<Shared>, request: Inbound) -> Reply {
    if let Ok(header) = request.command().and_then(|command| ConsumerGroupRequest::decode(&command))
    {
        tracing::debug!(group = &*header.consumer_group, addr = &*request.addr, "members changed");
    }
    shared.groups.members_changed();
    Reply::ok(Bytes::new())
}

/// GET_CONSUMER_STATUS_FROM_CLIENT (221): offsets by queue.
pub(crate) async fn status(_shared: Arc<Shared>, _request: Inbound) -> Reply {
    Reply::ok(Bytes::from_static(br#"{"consumerTable":{},"messageQueueTable":{}}"#))
}

/// GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309).
pub(crate) async fn no_consumer(_shared: Arc<Shared>, request: Inbound) -> Reply {
    let header = request.command().and_then(|command| ConsumerRunningInfoRequest::decode(&command));
    match header {
        Ok(header) => unknown_group(&header.consumer_group),
        Err(error) => Reply::failed(error.to_string()),
    }
}

/// # Source
///
/// Apache RocketMQ 4.9.8, `ClientRemotingProcessor.getConsumerRunningInfo`.
fn unknown_group(group: &str) -> Reply {
    Reply::failed(format!("The Consumer Group <{group}> not exist in this consumer"))
}
