//! What brokers ask of a client about its consumers, mostly for administrators.
//!
//! Maps from queues are written in fastjson's form, the object as key: the only one that Java of
//! 4.9 and 5.5 and Go all read.
//!
//! Source: Apache RocketMQ 4.9.8, `ClientRemotingProcessor`, `ConsumerRunningInfo`,
//! `ConsumeMessageDirectlyResult`.

use std::{
    fmt::Write,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use ringmq_protocol::{
    body::OffsetsByQueue,
    headers::{
        ConsumeDirectlyRequest, ConsumerGroupRequest, ConsumerRunningInfoRequest,
        ConsumerStatusRequest, HeaderError, ResetOffsetRequest,
    },
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{held::Held, member::Member};
use crate::{
    MessageQueue, QueueOffset,
    client::Shared,
    message,
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

/// RESET_CONSUMER_CLIENT_OFFSET (220): go on at other offsets.
pub(crate) async fn reset(shared: Arc<Shared>, request: Inbound) -> Reply {
    answer(reset_offsets(&shared, &request))
}

fn reset_offsets(shared: &Shared, request: &Inbound) -> Result<Bytes, String> {
    let command = request.command().map_err(text)?;
    let header = ResetOffsetRequest::decode(&command).map_err(text)?;
    let member = find(shared, &header.group)?;
    let table = OffsetsByQueue::decode(&request.body).map_err(|error| error.to_string())?;
    for (queue, offset) in table.offset_table {
        let queue = MessageQueue::new(queue.topic, queue.broker_name, queue.queue_id);
        let held = member.held(&queue).filter(|_| queue.topic() == header.topic && offset >= 0);
        if let Some(held) = held {
            tracing::info!(group = member.group(), %queue, offset, "reset by a broker");
            member.move_to(&held, QueueOffset::new(offset));
        }
    }
    Ok(Bytes::new())
}

/// GET_CONSUMER_STATUS_FROM_CLIENT (221): offsets by queue.
pub(crate) async fn status(shared: Arc<Shared>, request: Inbound) -> Reply {
    let offsets = request.command().and_then(|command| {
        let header = ConsumerStatusRequest::decode(&command)?;
        let held = shared.groups.member(&header.group).map(|member| member.all_held());
        let held = held.unwrap_or_default().into_iter();
        let of_topic = held.filter(|held| held.queue.topic() == header.topic);
        Ok(of_topic.map(|held| (held.queue.clone(), held.done().to_string())).collect::<Vec<_>>())
    });
    answer(offsets.map_err(text).map(|offsets| {
        let table = by_queue(offsets);
        format!(r#"{{"consumerTable":{{}},"messageQueueTable":{table}}}"#).into()
    }))
}

/// GET_CONSUMER_RUNNING_INFO (307): all about a consumer.
pub(crate) async fn running_info(shared: Arc<Shared>, request: Inbound) -> Reply {
    let member = request.command().map_err(text).and_then(|command| {
        let header = ConsumerRunningInfoRequest::decode(&command).map_err(text)?;
        find(&shared, &header.consumer_group)
    });
    answer(member.map(|member| info_of(&member).into()))
}

/// CONSUME_MESSAGE_DIRECTLY (309): give a message to the listener now. Offsets stay as they are.
pub(crate) async fn consume_directly(shared: Arc<Shared>, request: Inbound) -> Reply {
    let started = Instant::now();
    let begun = request.command().map_err(text).and_then(|command| {
        let header = ConsumeDirectlyRequest::decode(&command).map_err(text)?;
        let member = find(&shared, &header.consumer_group)?;
        let broker_name = header.broker_name.as_deref().unwrap_or(&request.addr);
        let messages = message::parse_all(&request.body, broker_name);
        let mut message = messages
            .map_err(|error| error.to_string())?
            .pop()
            .ok_or_else(|| "the request has no message".to_owned())?;
        message.show_first_topic();
        let message = message.unwrapped(&shared.namespace);
        let listening = member.sink.consume_directly(message);
        let listening = listening.ok_or_else(|| unknown(&header.consumer_group))?;
        Ok((listening, member.settings.is_ordered))
    });
    let (listening, is_ordered) = match begun {
        Ok(begun) => begun,
        Err(remark) => return Reply::failed(remark),
    };
    let directly = listening.await;
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let body = json!({
        "autoCommit": true,
        "consumeResult": directly.result,
        "order": is_ordered,
        "remark": directly.remark,
        "spentTimeMills": millis,
    });
    Reply::ok(body.to_string().into())
}

fn answer(body: Result<Bytes, String>) -> Reply {
    match body {
        Ok(body) => Reply::ok(body),
        Err(remark) => Reply::failed(remark),
    }
}

fn text(error: HeaderError) -> String {
    error.to_string()
}

fn find(shared: &Shared, group: &str) -> Result<Arc<Member>, String> {
    shared.groups.member(group).ok_or_else(|| unknown(group))
}

/// # Source
///
/// Apache RocketMQ 4.9.8, `ClientRemotingProcessor.getConsumerRunningInfo`.
fn unknown(group: &str) -> String {
    format!("The Consumer Group <{group}> not exist in this consumer")
}

/// A map from queues to JSON texts.
fn by_queue(entries: Vec<(MessageQueue, String)>) -> String {
    let mut out = String::from("{");
    for (index, (queue, value)) in entries.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let key = json!({
            "brokerName": queue.broker_name(), "queueId": queue.queue_id(), "topic": queue.topic(),
        });
        // Writing to a string cannot fail.
        let _ = write!(out, "{comma}{key}:{value}");
    }
    out.push('}');
    out
}

/// # Source
///
/// Apache RocketMQ 4.9.8, `DefaultMQPushConsumerImpl.consumerRunningInfo`.
fn info_of(member: &Member) -> String {
    let queues = member.all_held().into_iter().map(|held| (held.queue.clone(), queue_info(&held)));
    let queues = by_queue(queues.collect());
    let rates = member.stats.rates().into_iter().map(|(topic, rates)| {
        let shown = json!({
            "consumeFailedMsgs": rates.failed_count,
            "consumeFailedTPS": rates.failed,
            "consumeOKTPS": rates.done,
            "consumeRT": rates.consume_time,
            "pullRT": rates.pull_time,
            "pullTPS": rates.pulled,
        });
        (topic, shown)
    });
    let rates: serde_json::Map<String, Value> = rates.collect();
    // A list of plain structs always has a JSON form.
    let subscriptions = serde_json::to_value(member.subscription_data()).unwrap_or_default();
    format!(
        r#"{{"mqTable":{queues},"properties":{},"statusTable":{},"subscriptionSet":{subscriptions}}}"#,
        properties(member),
        Value::Object(rates),
    )
}

fn queue_info(held: &Held) -> String {
    let (count, len, extent) = held.with(|b| (b.count(), b.len(), b.extent()));
    let (first, last) = extent.unwrap_or_default();
    json!({
        "cachedMsgCount": count,
        "cachedMsgMaxOffset": last.get(),
        "cachedMsgMinOffset": first.get(),
        "cachedMsgSizeInMiB": len / (1024 * 1024),
        "commitOffset": held.done().get(),
        // Spelling as upstream.
        "droped": held.is_dropped(),
        "lastConsumeTimestamp": held.marks.consumed_ms.load(Ordering::Relaxed),
        "lastLockTimestamp": held.marks.locked_ms.load(Ordering::Relaxed),
        "lastPullTimestamp": held.marks.pulled_ms.load(Ordering::Relaxed),
        "locked": held.lock_age().is_some(),
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    })
    .to_string()
}

fn properties(member: &Member) -> Value {
    let settings = &member.settings;
    let limits = member.limits();
    json!({
        "PROP_CLIENT_VERSION": "V4_9_8",
        "PROP_CONSUMEORDERLY": settings.is_ordered.to_string(),
        "PROP_CONSUMER_START_TIMESTAMP": member.started_ms.to_string(),
        "PROP_CONSUME_TYPE": settings.consume_type.name(),
        "PROP_NAMESERVER_ADDR": member.client.shared.routes.servers(),
        "PROP_THREADPOOL_CORE_SIZE": member.sink.concurrency().to_string(),
        "consumeThreadMax": member.sink.concurrency().to_string(),
        "consumeThreadMin": member.sink.concurrency().to_string(),
        "consumerGroup": settings.group,
        "messageModel": settings.model.name(),
        "pullBatchSize": settings.pull_count_max.to_string(),
        "pullInterval": settings.pull_pause.as_millis().to_string(),
        "pullThresholdForQueue": limits.count_max.to_string(),
        "pullThresholdSizeForQueue": (limits.len_max / (1024 * 1024)).to_string(),
    })
}
