//! GET_CONSUMER_LIST_BY_GROUP (38), UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) and
//! GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201).
//!
//! Source: Apache RocketMQ 4.9.8, `ConsumerManageProcessor`, `AdminBrokerProcessor`.

use std::sync::Arc;

use ringmq_protocol::{
    body::{ConsumerList, SubscriptionGroupConfig},
    command::Command,
    headers::ConsumerGroupRequest,
};

use super::{allowed_group, heartbeat::parse, master_only};
use crate::control::{
    GroupConfig,
    answer::Answer,
    bodies,
    broker::{Broker, Now},
    groups::GROUPS_MAX,
};

/// One id per connection of the group, the caller's included as soon as its heartbeat was answered.
/// Sorted, so that the same members always give the same bytes.
pub(super) fn consumer_list(broker: &Broker, command: &Command<'_>) -> Result<Answer, Answer> {
    let group = ConsumerGroupRequest::decode(command)?.consumer_group;
    let Some(members) = broker.members.consumers(&group) else {
        return Err(Answer::failed(format!("no consumer for this group, {group}")));
    };
    let ids = members.members.values().map(|member| member.client_id.to_string());
    let mut consumer_id_list: Vec<_> = ids.collect();
    consumer_id_list.sort_unstable();
    Ok(Answer::json(&ConsumerList { consumer_id_list }))
}

pub(super) fn update(broker: &mut Broker, body: &[u8], now: Now) -> Result<Answer, Answer> {
    master_only(broker)?;
    let update: SubscriptionGroupConfig = parse(body)?;
    allowed_group(&update.group_name)?;
    let config = GroupConfig {
        name: Arc::from(update.group_name),
        consume_enable: update.consume_enable,
        consume_from_min_enable: update.consume_from_min_enable,
        consume_broadcast_enable: update.consume_broadcast_enable,
        notify_consumer_ids_changed_enable: update.notify_consumer_ids_changed_enable,
        retry_queue_nums: update.retry_queue_nums,
        retry_max_times: update.retry_max_times,
        broker_id: update.broker_id,
        which_broker_when_consume_slowly: update.which_broker_when_consume_slowly,
    };
    match broker.groups.put(config, now.epoch_ms) {
        Some(_) => Ok(Answer::ok()),
        None => Err(Answer::failed(format!("this broker has {GROUPS_MAX} groups already"))),
    }
}

pub(super) fn all(broker: &Broker) -> Answer {
    let groups = &broker.groups;
    let in_order = bodies::in_order(groups.all());
    Answer::json(&bodies::group_table(groups.version(), &in_order))
}
