//! UPDATE_AND_CREATE_TOPIC (17), DELETE_TOPIC_IN_BROKER (215), GET_ALL_TOPIC_CONFIG (21), GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305).
//!
//! Source: Apache RocketMQ 4.9.8, `AdminBrokerProcessor`.

use ringmq_protocol::{
    body::TopicList,
    command::Command,
    headers::{CreateTopicRequest, TopicRequest},
    names::validate_topic,
};

use super::master_only;
use crate::control::{
    CreateTopicError, FilterType, TopicConfig,
    answer::{Answer, NO_REMARK_SET},
    bodies,
    broker::{Broker, Now},
    topics::QUEUES_PER_TOPIC_MAX,
};

/// Creates a topic, or changes the queue counts and permission of one. Counts and permission are
/// taken as they come, as upstream does; only a count that would drown the clients is refused.
pub(super) fn update(
    broker: &mut Broker,
    command: &Command<'_>,
    now: Now,
) -> Result<Answer, Answer> {
    let header = CreateTopicRequest::decode(command)?;
    let filter_type = match &*header.topic_filter_type {
        "SINGLE_TAG" => FilterType::SingleTag,
        "MULTI_TAG" => FilterType::MultiTag,
        other => {
            let remark = format!("topicFilterType = [{other}] value invalid");
            return Err(Answer::failed(remark));
        }
    };
    validate_topic(&header.topic).map_err(|error| Answer::failed(error.to_string()))?;
    if broker.topics.is_system(&header.topic) {
        let remark = format!("The topic[{}] is conflict with system topic.", header.topic);
        return Err(Answer::failed(remark));
    }
    master_only(broker)?;
    let config = TopicConfig {
        name: (&*header.topic).into(),
        read_queue_nums: queue_nums(header.read_queue_nums)?,
        write_queue_nums: queue_nums(header.write_queue_nums)?,
        perm: u32::try_from(header.perm).map_err(|_| negative("perm"))?,
        sys_flag: u32::try_from(header.topic_sys_flag.unwrap_or(0))
            .map_err(|_| negative("topicSysFlag"))?,
        filter_type,
        // 4.9.8 leaves this field out of what it keeps.
        order: false,
    };
    match broker.topics.put(config, now.epoch_ms) {
        Ok(_) => Ok(Answer { remark: Some(NO_REMARK_SET.into()), ..Answer::ok() }),
        Err(CreateTopicError::TooMany(max)) => {
            Err(Answer::failed(format!("this broker has {max} topics, and no more may be made")))
        }
        Err(error) => Err(Answer::failed(format!("{error:?}"))),
    }
}

/// Deletes a topic with its messages and the offsets of its consumers. One that is not there is
/// deleted already, as with upstream.
pub(super) fn delete(
    broker: &mut Broker,
    command: &Command<'_>,
    now: Now,
) -> Result<Answer, Answer> {
    let topic = TopicRequest::decode(command)?.topic;
    if topic.trim().is_empty() {
        return Err(Answer::failed("The specified topic is blank."));
    }
    if broker.topics.is_system(&topic) {
        let remark = format!("The topic[{topic}] is conflict with system topic.");
        return Err(Answer::failed(remark));
    }
    master_only(broker)?;
    broker.topics.delete(&topic, now.epoch_ms);
    Ok(Answer::ok())
}

fn queue_nums(number: i32) -> Result<u32, Answer> {
    let number = u32::try_from(number).map_err(|_| negative("queueNums"))?;
    if number > QUEUES_PER_TOPIC_MAX {
        let remark = format!("{number} queues asked for, at most {QUEUES_PER_TOPIC_MAX} allowed");
        return Err(Answer::failed(remark));
    }
    Ok(number)
}

fn negative(field: &str) -> Answer {
    Answer::failed(format!("the header field {field} must not be negative"))
}

pub(super) fn all(broker: &Broker) -> Answer {
    let topics = &broker.topics;
    let in_order = bodies::in_order(topics.all());
    Answer::json(&bodies::topic_table(topics.version(), &in_order))
}

pub(super) fn system(broker: &Broker) -> Answer {
    let topic_list = broker.topics.system_names().map(ToString::to_string).collect();
    Answer::json(&TopicList { broker_addr: None, topic_list })
}
