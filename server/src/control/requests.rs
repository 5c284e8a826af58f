//! Requests of the control plane: from a code to the handler, and what its answer rests on.

mod admin;
mod group;
mod heartbeat;
mod lock;
mod offsets;
mod topic;

use ringmq_protocol::{
    codes::request, command::Command, limits::GROUP_LEN_MAX, names::validate_group,
};

pub(super) use self::offsets::WithOffsets;
use super::{
    answer::{Answer, either},
    broker::{Broker, Now},
};
use crate::context::RequestContext;

/// What must have happened before an answer may go out as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestsOn {
    /// Nothing.
    Nothing,
    /// The turn's facts are durable. If they are not, the answer is a failure.
    Store,
    /// That, and the name servers know of the turn's topics or their time is over.
    NameServers,
}

/// What the answer to a request code rests on.
///
/// A heartbeat is answered in any case: its members are registered even if their group's
/// configuration could not be stored, as with upstream; the pull then says what is missing.
pub(super) fn rests_on(code: i32) -> RestsOn {
    match code {
        request::UPDATE_AND_CREATE_TOPIC => RestsOn::NameServers,
        request::DELETE_TOPIC_IN_BROKER
        | request::GET_ALL_TOPIC_CONFIG
        | request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        | request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => RestsOn::Store,
        _ => RestsOn::Nothing,
    }
}

/// Handles one request. A oneway request is handled too, and its answer dropped by the caller.
pub(super) fn handle(
    broker: &mut Broker,
    ctx: &RequestContext,
    command: &Command<'_>,
    body: &[u8],
    now: Now,
) -> Answer {
    either(match command.code {
        request::UPDATE_AND_CREATE_TOPIC => topic::update(broker, command, now),
        request::DELETE_TOPIC_IN_BROKER => topic::delete(broker, command, now),
        request::GET_ALL_TOPIC_CONFIG => Ok(topic::all(broker)),
        request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => Ok(topic::system(broker)),
        request::HEART_BEAT => heartbeat::heartbeat(broker, ctx, command, body, now),
        request::UNREGISTER_CLIENT => heartbeat::unregister(broker, ctx, command),
        request::CHECK_CLIENT_CONFIG => heartbeat::check(body),
        request::GET_CONSUMER_LIST_BY_GROUP => group::consumer_list(broker, command),
        request::LOCK_BATCH_MQ => lock::lock(broker, body, now),
        request::UNLOCK_BATCH_MQ => lock::unlock(broker, body),
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => group::update(broker, body, now),
        request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => Ok(group::all(broker)),
        request::GET_CONSUMER_CONNECTION_LIST => admin::consumer_connections(broker, command),
        request::GET_PRODUCER_CONNECTION_LIST => admin::producer_connections(broker, command),
        request::GET_ALL_PRODUCER_INFO => Ok(admin::producers(broker)),
        code => Ok(Answer::unsupported(code)),
    })
}

/// The remark of changes that only a master may make. Source: `AdminBrokerProcessor.validateSlave`.
const ON_SLAVE: &str = "Can't modify topic or subscription group from slave broker, please execute \
                        it from master broker.";

/// Refuses changes on a slave.
fn master_only(broker: &Broker) -> Result<(), Answer> {
    if broker.config.broker_id == 0 { Ok(()) } else { Err(Answer::failed(ON_SLAVE)) }
}

/// Refuses a group whose name upstream's clients would not take: nothing of it may come into being.
/// 4.9.8 takes any name here and 5.x passes over it; both then answer 26 or 1 to what the group asks
/// next, and an answer that says why comes sooner.
fn allowed_group(name: &str) -> Result<(), Answer> {
    validate_group(name).map_err(|_| {
        let shown: String = name.escape_debug().take(80).collect();
        Answer::failed(format!(
            "the group name [{shown}] is not allowed: it takes 1 to {GROUP_LEN_MAX} of the \
             characters ^[%|a-zA-Z0-9_-]+$"
        ))
    })
}

#[cfg(test)]
mod tests;
