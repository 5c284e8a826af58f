//! HEART_BEAT (34), UNREGISTER_CLIENT (35) and CHECK_CLIENT_CONFIG (46).
//!
//! The answer to a heartbeat carries none of the entries by which 5.x brokers offer short
//! heartbeats, so every client always sends all its subscriptions.
//!
//! Source: Apache RocketMQ 4.9.8, `ClientManageProcessor`.

use std::sync::Arc;

use ringmq_protocol::{
    body::{
        self, Body, CheckClientConfig, ConsumeFromWhere, ConsumerData, HeartbeatData, ProducerData,
        SubscriptionData,
    },
    command::Command,
    headers::UnregisterClientRequest,
    names::{self, NameError},
    tags::{TagSet, java_hash},
};

use super::allowed_group;
use crate::{
    context::RequestContext,
    control::{
        ConsumeType, MessageModel, NewTopic, SubscriptionView,
        answer::Answer,
        broker::{Broker, Now},
        members::{Full, Member, Terms},
    },
};

/// Consumer and producer groups in one heartbeat at most, each.
const GROUPS_MAX: usize = 1024;
/// Bytes in a client id, a group name or the name of an expression type at most.
const NAME_LEN_MAX: usize = 1024;
/// Bytes in one subscription expression at most.
const EXPRESSION_LEN_MAX: usize = 64 << 10;
/// Type of an expression that names none.
const TAG: &str = "TAG";

pub(super) fn heartbeat(
    broker: &mut Broker,
    ctx: &RequestContext,
    command: &Command<'_>,
    body: &[u8],
    now: Now,
) -> Result<Answer, Answer> {
    let heartbeat: HeartbeatData = parse(body)?;
    let client_id = heartbeat.client_id;
    if client_id.trim().is_empty() {
        return Err(Answer::failed("the heartbeat names no clientID"));
    }
    let counts = [heartbeat.consumer_data_set.len(), heartbeat.producer_data_set.len()];
    if client_id.len() > NAME_LEN_MAX || counts.iter().any(|count| *count > GROUPS_MAX) {
        return Err(too_much());
    }
    let member = Member {
        client_id: Arc::from(client_id),
        peer: ctx.peer,
        language: command.language,
        version: command.version,
        seen: now.instant,
        seen_ms: now.epoch_ms,
    };
    // A client's groups share its heartbeat: one bad name must not cost the others.
    let mut refused = Ok(Answer::ok());
    for consumer in heartbeat.consumer_data_set {
        match allowed_group(&consumer.group_name) {
            Ok(()) => enter_consumer(broker, ctx, consumer, &member, now)?,
            Err(answer) => refused = Err(answer),
        }
    }
    for ProducerData { group_name, .. } in heartbeat.producer_data_set {
        // A client that traces puts some forty characters around the name of a group.
        let allowed = match names::validate_group(&group_name) {
            Err(NameError::TooLong) if group_name.len() <= NAME_LEN_MAX => Ok(()),
            _ => allowed_group(&group_name),
        };
        if let Err(answer) = allowed {
            refused = Err(answer);
            continue;
        }
        let entered = broker.members.heartbeat_producer(&group_name, ctx.conn, member.clone());
        entered.map_err(|Full| too_much())?;
    }
    refused
}

fn enter_consumer(
    broker: &mut Broker,
    ctx: &RequestContext,
    consumer: ConsumerData,
    member: &Member,
    now: Now,
) -> Result<(), Answer> {
    let group = consumer.group_name;
    let mut subscriptions = Vec::with_capacity(consumer.subscription_data_set.len());
    for subscription in consumer.subscription_data_set {
        subscriptions.push(view(subscription)?);
    }
    let terms = Terms {
        consume_type: consumer.consume_type.unwrap_or(ConsumeType::Passively),
        message_model: consumer.message_model.unwrap_or(MessageModel::Clustering),
        consume_from: consumer.consume_from_where.unwrap_or(ConsumeFromWhere::LastOffset),
    };
    let entered =
        broker.members.heartbeat_consumer(&group, ctx.conn, member.clone(), terms, subscriptions);
    entered.map_err(|Full| too_much())?;
    // Without a configuration the member is registered all the same, and its pulls answered 26.
    let may_retry = names::group_of_retry_topic(&group).is_none();
    if let Some(config) = broker.groups.find_or_create(&group, now.epoch_ms)
        && may_retry
    {
        let how = NewTopic::OfGroup {
            queue_nums: u32::try_from(config.retry_queue_nums).unwrap_or(0),
            unit_mode: consumer.unit_mode,
        };
        // A group whose name is too long for a retry topic works without one, as with upstream; nor
        // does a heartbeat fail because there are too many topics.
        let _ = broker.topics.create(&names::retry_topic(&group), &how, now.epoch_ms);
    }
    Ok(())
}

/// The subscription as the pull checks need it.
fn view(subscription: SubscriptionData) -> Result<SubscriptionView, Answer> {
    let SubscriptionData { topic, sub_string, expression_type, tags_set, sub_version, .. } =
        subscription;
    let expression_type = expression_type.filter(|text| !text.is_empty()).unwrap_or(TAG.into());
    if topic.len() > NAME_LEN_MAX
        || expression_type.len() > NAME_LEN_MAX
        || sub_string.len() > EXPRESSION_LEN_MAX
    {
        return Err(too_much());
    }
    // The tags, and never the codes, of the client count. Some leave the set out; the expression
    // says the same.
    let mut tags = match TagSet::parse(&sub_string) {
        _ if expression_type != TAG => Vec::new(),
        Ok(TagSet::All) => Vec::new(),
        Ok(TagSet::Tags(tags)) if tags_set.is_empty() => tags,
        _ => tags_set,
    };
    tags.sort_unstable();
    tags.dedup();
    let mut codes: Vec<i64> = tags.iter().map(|tag| java_hash(tag).into()).collect();
    codes.sort_unstable();
    codes.dedup();
    Ok(SubscriptionView {
        topic: Arc::from(topic),
        sub_version,
        expression_type: expression_type.into(),
        expression: sub_string.into(),
        tags: tags.into_iter().map(String::into_boxed_str).collect(),
        codes: codes.into(),
    })
}

pub(super) fn unregister(
    broker: &mut Broker,
    ctx: &RequestContext,
    command: &Command<'_>,
) -> Result<Answer, Answer> {
    let header = UnregisterClientRequest::decode(command)?;
    if let Some(group) = header.producer_group.filter(|group| !group.is_empty()) {
        broker.members.leave_producer(&group, ctx.conn);
    }
    if let Some(group) = header.consumer_group.filter(|group| !group.is_empty()) {
        broker.members.leave_consumer(&group, ctx.conn);
    }
    Ok(Answer::ok())
}

/// Whether a subscription could be served. Only tag expressions can, as on a 4.9.8 broker whose
/// `enablePropertyFilter` is off, which is its default.
pub(super) fn check(body: &[u8]) -> Result<Answer, Answer> {
    let check: CheckClientConfig = parse(body)?;
    if check.subscription_data.is_tag() {
        return Ok(Answer::ok());
    }
    let kind = check.subscription_data.expression_type.unwrap_or_default();
    let remark = format!("The broker does not support consumer to filter message by {kind}");
    Err(Answer::failed(remark))
}

fn too_much() -> Answer {
    Answer::failed("the heartbeat names more or longer groups and topics than this broker keeps")
}

/// Reads a JSON body.
pub(super) fn parse<T: Body>(body: &[u8]) -> Result<T, Answer> {
    body::decode(body).map_err(|error| Answer::failed(error.to_string()))
}
