//! LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).
//!
//! Source: Apache RocketMQ 4.9.8, `AdminBrokerProcessor.lockBatchMQ`.

use ringmq_protocol::{
    body::{LockBatchRequest, LockBatchResponse, MessageQueue},
    names::validate_topic,
};

use super::{allowed_group, heartbeat::parse};
use crate::control::{
    answer::Answer,
    broker::{Broker, Now},
    locks::QueueKey,
};

/// Queues in one request at most.
const QUEUES_MAX: usize = 65_536;
/// Bytes in a client id or broker name at most.
const NAME_LEN_MAX: usize = 1024;

/// Answers 0 in any case; the body lists the queues that the client now holds.
pub(super) fn lock(broker: &mut Broker, body: &[u8], now: Now) -> Result<Answer, Answer> {
    let LockBatchRequest { client_id, consumer_group, mut mq_set, .. } = batch(body)?;
    mq_set.retain(|queue| {
        key(queue).is_some_and(|queue| {
            broker.locks.lock(&consumer_group, &queue, &client_id, now.instant)
        })
    });
    Ok(Answer::json(&LockBatchResponse { lock_ok_mq_set: mq_set }))
}

/// Gives up the queues that the client holds; others stay with their owners.
pub(super) fn unlock(broker: &mut Broker, body: &[u8]) -> Result<Answer, Answer> {
    let LockBatchRequest { client_id, consumer_group, mq_set, .. } = batch(body)?;
    for queue in mq_set.iter().filter_map(key) {
        broker.locks.unlock(&consumer_group, &queue, &client_id);
    }
    Ok(Answer::ok())
}

fn batch(body: &[u8]) -> Result<LockBatchRequest, Answer> {
    let batch: LockBatchRequest = parse(body)?;
    let names = [&batch.client_id, &batch.consumer_group];
    if names.iter().any(|name| name.is_empty()) {
        return Err(Answer::failed("clientId or consumerGroup is missing in the request body"));
    }
    if batch.mq_set.len() > QUEUES_MAX || names.iter().any(|name| name.len() > NAME_LEN_MAX) {
        return Err(Answer::failed("the request names more or longer than this broker keeps"));
    }
    allowed_group(&batch.consumer_group)?;
    Ok(batch)
}

/// The queue's key; none for names that no queue can have, which nobody can lock.
fn key(queue: &MessageQueue) -> Option<QueueKey> {
    let fits = validate_topic(&queue.topic).is_ok() && queue.broker_name.len() <= NAME_LEN_MAX;
    fits.then(|| QueueKey {
        topic: queue.topic.as_str().into(),
        broker_name: queue.broker_name.as_str().into(),
        queue_id: queue.queue_id,
    })
}
