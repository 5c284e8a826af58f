//! Who is connected, for admin tools: GET_CONSUMER_CONNECTION_LIST (203),
//! GET_PRODUCER_CONNECTION_LIST (204) and GET_ALL_PRODUCER_INFO (328).
//!
//! Source: Apache RocketMQ 4.9.8, `AdminBrokerProcessor`.

use ringmq_protocol::{
    body::{
        SubscriptionData,
        admin::{Connection, ConsumerConnection, ProducerConnection},
    },
    codes::response,
    command::Command,
    headers::{ConsumerGroupRequest, ProducerGroupRequest},
    tags::java_hash,
};

use crate::control::{SubscriptionView, answer::Answer, bodies, broker::Broker, members::Member};

pub(super) fn consumer_connections(
    broker: &Broker,
    command: &Command<'_>,
) -> Result<Answer, Answer> {
    let group = ConsumerGroupRequest::decode(command)?.consumer_group;
    let Some(members) = broker.members.consumers(&group) else {
        let remark = format!("the consumer group[{group}] not online");
        return Err(Answer::error(response::CONSUMER_NOT_ONLINE, remark));
    };
    let subscriptions = members.subscriptions.iter();
    Ok(Answer::json(&ConsumerConnection {
        connection_set: members.members.values().map(connection).collect(),
        consume_from_where: Some(members.terms.consume_from),
        consume_type: Some(members.terms.consume_type),
        message_model: Some(members.terms.message_model),
        subscription_table: subscriptions
            .map(|(topic, view)| (topic.to_string(), subscription(view)))
            .collect(),
    }))
}

fn connection(member: &Member) -> Connection {
    Connection {
        client_addr: member.peer.to_string(),
        client_id: member.client_id.to_string(),
        language: member.language.name().to_owned(),
        version: member.version,
    }
}

fn subscription(view: &SubscriptionView) -> SubscriptionData {
    SubscriptionData {
        class_filter_mode: false,
        code_set: view.tags.iter().map(|tag| java_hash(tag)).collect(),
        expression_type: Some(view.expression_type.to_string()),
        sub_string: view.expression.to_string(),
        sub_version: view.sub_version,
        tags_set: view.tags.iter().map(ToString::to_string).collect(),
        topic: view.topic.to_string(),
    }
}

pub(super) fn producer_connections(
    broker: &Broker,
    command: &Command<'_>,
) -> Result<Answer, Answer> {
    let group = ProducerGroupRequest::decode(command)?.producer_group;
    let Some(members) = broker.members.producers(&group) else {
        return Err(Answer::failed(format!("the producer group[{group}] not exist")));
    };
    let connection_set = members.values().map(connection).collect();
    Ok(Answer::json(&ProducerConnection { connection_set }))
}

pub(super) fn producers(broker: &Broker) -> Answer {
    let groups = broker.members.producer_groups();
    let groups = groups.map(|(name, members)| (&**name, members.values()));
    Answer::json(&bodies::producer_table(groups.collect::<Vec<_>>().into_iter()))
}
